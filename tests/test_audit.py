"""`.ci/audit` with a pip-audit that only pretends: what fails the gate, and what does not."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from typing import Any

import pytest

AUDIT = pathlib.Path(__file__).parent.parent / ".ci" / "audit"
SOUND = {"name": "sound", "version": "1", "vulns": []}
UNKNOWN = {"name": "unknown", "skip_reason": "not found"}
VULNERABLE = {
    "name": "vulnerable",
    "version": "2",
    "vulns": [{"id": "PYSEC-1", "aliases": ["CVE-1"], "fix_versions": ["2.1"]}],
}
UNREACHABLE = "Audit of dependencies: left out, no service with advisories can be reached.\n"
PRETENDED = """#!/bin/sh
echo "$@" >>"$0.calls"
while [ "$1" != --vulnerability-service ]; do shift; done
cat "$0.$2" 2>/dev/null || { echo 'ConnectionError: no route' >&2; exit 1; }
"""


class Environment:
    """An environment whose pip-audit prints what the tests say."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.python = folder / "python"
        self.python.symlink_to(sys.executable)
        self._program = folder / "pip-audit"
        self._program.write_text(PRETENDED)
        self._program.chmod(0o755)

    def answer(self, service: str, *packages: dict[str, Any]) -> None:
        """Have a service know of packages."""
        text = json.dumps({"dependencies": packages, "fixes": []})
        self._program.with_name(f"pip-audit.{service}").write_text(text)

    def audit(self) -> tuple[int, str]:
        """Run the audit; return its status and what it printed."""
        done = subprocess.run(
            [str(self.python), str(AUDIT), "treedb", "tests"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stderr == ""
        return done.returncode, done.stdout

    def calls(self) -> list[str]:
        """Return the arguments of each call of pip-audit."""
        return self._program.with_name("pip-audit.calls").read_text().splitlines()


@pytest.fixture
def environment(tmp_path: pathlib.Path) -> Environment:
    return Environment(tmp_path)


def test_a_known_vulnerability_fails_the_audit(environment: Environment) -> None:
    environment.answer("pypi", SOUND, VULNERABLE)
    assert environment.audit() == (
        1,
        "vulnerable 2 has PYSEC-1, CVE-1: fixed in 2.1.\n"
        "Audit of dependencies: 1 known vulnerabilities in 2 packages.\n",
    )


def test_it_looks_at_the_lock_files_and_not_at_what_is_installed(environment: Environment) -> None:
    environment.answer("pypi", SOUND)
    assert environment.audit() == (
        0,
        "Audit of dependencies: 0 known vulnerabilities in 1 packages.\n",
    )
    (call,) = environment.calls()
    locks = AUDIT.parent / "locks"
    assert call.endswith(f"--requirement {locks}/treedb.txt --requirement {locks}/tests.txt")
    assert "--require-hashes" in call


@pytest.mark.parametrize("index", [(), (UNKNOWN,)])
def test_if_the_index_has_no_advisories_another_service_is_asked(
    environment: Environment, index: tuple[dict[str, Any], ...]
) -> None:
    if index:
        environment.answer("pypi", *index)
    environment.answer("osv", VULNERABLE)
    status, said = environment.audit()
    assert status == 1
    assert said.startswith("vulnerable 2 has PYSEC-1")


def test_without_any_service_it_says_so_in_one_line_and_does_not_fail(
    environment: Environment,
) -> None:
    environment.answer("pypi", UNKNOWN)
    assert environment.audit() == (0, UNREACHABLE)


def test_what_no_service_knows_is_named(environment: Environment) -> None:
    environment.answer("pypi", SOUND, UNKNOWN)
    assert environment.audit() == (
        0,
        "Audit of dependencies: nothing is known of unknown.\n"
        "Audit of dependencies: 0 known vulnerabilities in 1 packages.\n",
    )
