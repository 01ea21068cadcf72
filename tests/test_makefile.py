"""What `make run` prints while it installs, with a pip that only pretends."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess

import pytest

MAKEFILE = pathlib.Path(__file__).parent.parent / "Makefile"
PYTHON = """#!/bin/sh
case " $* " in *" --quiet "*) ;; *) seq -f 'Collecting package %g' 130 ;; esac
if [ -e fails ]; then
    seq -f 'ERROR: reason %g' 3 >&2
    exit 1
fi
"""
SENTENCE = "Installing treedb and the packages it needs in .venv: once, in about a minute."


@pytest.fixture
def project(tmp_path: pathlib.Path) -> pathlib.Path:
    """A project whose environment is made, and has nothing installed."""
    programs = {"python": PYTHON, "treedb": '#!/bin/sh\necho "run $*"\n'}
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / "treedbd").mkdir()
    for name in ("pyproject.toml", "treedbd/version.py"):
        (tmp_path / name).touch()
    shutil.copy(MAKEFILE, tmp_path)
    for name, text in programs.items():
        file = tmp_path / ".venv" / "bin" / name
        file.write_text(text)
        file.chmod(0o755)
    return tmp_path


def make_run(project: pathlib.Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", "--no-print-directory", "run"],
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
