"""What `make run` and `make develop` install, and print, with a pip that only pretends."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess

import pytest

MAKEFILE = pathlib.Path(__file__).parent.parent / "Makefile"
PYTHON = """#!/bin/sh
echo "$@" >>calls
case " $* " in *" --quiet "*) ;; *) seq -f 'Collecting package %g' 130 ;; esac
if [ -e fails ]; then
    seq -f 'ERROR: reason %g' 3 >&2
    exit 1
fi
"""
LOCKS = (".ci/locks/treedb.txt", ".ci/locks/tests.txt")
SENTENCE = "Installing treedb and the packages it needs in .venv: once, in about a minute."


@pytest.fixture
def project(tmp_path: pathlib.Path) -> pathlib.Path:
    """A project whose environment is made, and has nothing installed."""
    programs = {"python": PYTHON, "treedb": '#!/bin/sh\necho "run $*"\n'}
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".ci" / "locks").mkdir(parents=True)
    (tmp_path / "treedbd").mkdir()
    for name in ("pyproject.toml", "treedbd/__init__.py", *LOCKS):
        (tmp_path / name).touch()
    shutil.copy(MAKEFILE, tmp_path)
    shutil.copy(MAKEFILE.parent / ".ci" / "install", tmp_path / ".ci")
    for name, text in programs.items():
        file = tmp_path / ".venv" / "bin" / name
        file.write_text(text)
        file.chmod(0o755)
    return tmp_path


def make_run(project: pathlib.Path, target: str = "run") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", "--no-print-directory", target],
        cwd=project,
        env={"PATH": os.environ["PATH"]},  # without the flags of a make that runs the tests
        capture_output=True,
        text=True,
        check=False,
    )


def test_it_says_in_one_line_that_it_installs_and_only_once(project: pathlib.Path) -> None:
    first = make_run(project)
    assert (first.stdout, first.stderr) == (f"{SENTENCE}\nrun serve\n", "")
    assert make_run(project).stdout == "run serve\n"


def test_the_errors_of_a_failed_installation_are_shown_and_it_is_tried_again(
    project: pathlib.Path,
) -> None:
    (project / "fails").touch()
    failed = make_run(project)
    assert failed.returncode != 0
    assert failed.stdout == f"{SENTENCE}\n"
    assert failed.stderr.startswith("ERROR: reason 1\nERROR: reason 2\nERROR: reason 3\n")
    (project / "fails").unlink()
    assert make_run(project).stdout == f"{SENTENCE}\nrun serve\n"


def installed(project: pathlib.Path) -> list[list[str]]:
    """Return the options of each installation since the last look, without those about output."""
    calls = project / "calls"
    lines = calls.read_text().splitlines()
    calls.unlink()
    command = "-m pip --disable-pip-version-check --quiet install "
    assert all(line.startswith(command) for line in lines)
    return [line.removeprefix(command).split() for line in lines]


@pytest.mark.parametrize(("target", "locks"), [("run", LOCKS[:1]), ("develop", LOCKS)])
def test_only_wheels_that_the_lock_files_name_are_installed(
    project: pathlib.Path, target: str, locks: tuple[str, ...]
) -> None:
    assert make_run(project, target).returncode == 0
    packages, itself = installed(project)
    assert packages == [
        *("--require-hashes", "--no-deps", "--only-binary", ":all:"),
        *(word for lock in locks for word in ("--requirement", lock)),
    ]
    assert itself == ["--no-deps", "--no-build-isolation", "--editable", "."]


@pytest.mark.parametrize("changed", ["pyproject.toml", *LOCKS])
def test_it_installs_again_when_what_is_needed_has_changed(
    project: pathlib.Path, changed: str
) -> None:
    make_run(project)
    (project / changed).write_text("changed")
    assert make_run(project).stdout == f"{SENTENCE}\nrun serve\n"
