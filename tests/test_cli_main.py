"""`treedb --version`: its output, and how little it imports."""

from __future__ import annotations

import pathlib
import subprocess
import sys
from importlib.metadata import version
from typing import Final, NoReturn

import pytest

from treedbd.cli.main import main
from treedbd.cli.parser import parse

MAX_MODULES: Final = 61
"""It imports 50 at present. Each further one makes every command start later."""


PROJECT: Final = pathlib.Path(__file__).parent.parent


def run_python(*arguments: str, folder: str = "/") -> subprocess.CompletedProcess[str]:
    """Run a fresh interpreter without environment variables, which could make it import more."""
    command = [sys.executable, "-X", "importtime", *arguments]
    return subprocess.run(command, cwd=folder, env={}, capture_output=True, text=True, check=True)


def imported(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return the names of the modules that an interpreter imported."""
    _, *lines = (line for line in done.stderr.splitlines() if line.startswith("import time:"))
    return [line.rpartition("|")[2].strip() for line in lines]


def test_the_version_is_that_of_the_installed_package() -> None:
    assert run_python("-m", "treedbd.cli", "--version").stdout == f"treedb {version('treedbd')}\n"


def test_printing_the_version_imports_few_modules() -> None:
    names = imported(run_python("-m", "treedbd.cli", "--version"))
    assert "treedbd.cli.main" in names
    assert len(names) <= MAX_MODULES, names


def test_ctrl_c_while_a_command_is_imported_ends_it_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(_: str) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr("treedbd.cli.main.import_module", interrupt)
    assert main(["get", "http://localhost"]) == 130


def test_importing_the_package_does_not_import_twisted() -> None:
    names = imported(run_python("-c", "import treedbd"))
    assert "treedbd" in names
    assert not [name for name in names if name.partition(".")[0] == "twisted"]


@pytest.mark.parametrize(
    "words",
    [
        ["get", "http://localhost:1/a"],
        ["set", "https://localhost:1/a", "1"],
        ["log", "http://localhost:1"],
        ["rules", "get", "http://localhost:1"],
        ["ls", "http://localhost:1"],
        ["tree", "http://localhost:1"],
        ["cp", "http://localhost:1/a", "http://localhost:1/b"],
        ["transaction", "http://localhost:1/a", "."],
        ["watch", "http://localhost:1/a"],
    ],
)
def test_a_command_of_one_request_imports_no_reactor_and_no_second_tls(words: list[str]) -> None:
    script = "import sys; from treedbd.cli.main import main; sys.exit(main(sys.argv[1:]) != 1)"
    names = imported(run_python("-c", script, *words, folder=str(PROJECT)))
    assert "treedbd.cli.http_client" in names
    packages = {name.partition(".")[0] for name in names}
    assert not packages & {"twisted", "cryptography", "OpenSSL", "asyncio", "jwt", "re2", "apsw"}


def test_making_a_token_and_checking_rules_import_no_reactor(tmp_path: pathlib.Path) -> None:
    script = "import sys; from treedbd.cli.main import main; sys.exit(main(sys.argv[1:]))"
    rules = tmp_path / "rules.json"
    rules.write_text('{"rules":{}}')
    token = ("token", "--project", "demo", "--uid", "a", "--data", str(tmp_path / "data"))
    for words in (token, ("rules", "check", str(rules))):
        names = imported(run_python("-c", script, *words, folder=str(PROJECT)))
        assert "treedbd.cli.options" in names
        assert not [name for name in names if name.partition(".")[0] in {"twisted", "OpenSSL"}]


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("rm", "remove"),
        ("del", "remove"),
        ("delete", "remove"),
        ("put", "set"),
        ("post", "push"),
        ("patch", "update"),
        ("cat", "get"),
        ("rename", "mv"),
        ("delet", "remove"),
        ("renam", "mv"),
        ("gte", "get"),
    ],
)
def test_a_hint_says_what_a_word_of_other_programs_is_here(
    word: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse([word, "a"])
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith(f"there is no {word!r}. Did you mean {meant}?\n")
