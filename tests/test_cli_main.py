"""`treedb --version`: its output, and how little it imports."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from typing import Final, NoReturn

import pytest

from treedbd.cli.main import main

MAX_MODULES: Final = 61
"""It imports 50 at present. Each further one makes every command start later."""


def run_python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a fresh interpreter without environment variables, which could make it import more."""
    command = [sys.executable, "-X", "importtime", *arguments]
    return subprocess.run(command, cwd="/", env={}, capture_output=True, text=True, check=True)


def imported(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return the names of the modules that an interpreter imported."""
    _, *lines = (line for line in done.stderr.splitlines() if line.startswith("import time:"))
    return [line.rpartition("|")[2].strip() for line in lines]


def test_the_version_is_that_of_the_installed_package() -> None:
    assert run_python("-m", "treedbd.cli", "--version").stdout == f"treedb {version('treedb')}\n"


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
