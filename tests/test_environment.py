"""Which Python the virtual environment is made from, with interpreters that only pretend."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys

import pytest

ENVIRONMENT = pathlib.Path(__file__).parent.parent / ".ci" / "environment"
OPTIMISED = "'--enable-shared' '--enable-optimizations'"
PLAIN = "'--enable-shared'"
FAKE = """#!{real}
import pathlib, sys, types
sysconfig = types.ModuleType("sysconfig")
sysconfig.get_config_var = {{"CONFIG_ARGS": {options!r}}}.get
sysconfig.get_scheme_names = lambda: {schemes!r}
sys.modules["sysconfig"] = sysconfig
sys.version_info = {version!r}
if not ({has_venv} or pathlib.Path({installed!r}).exists()):
    sys.modules["ensurepip"] = None
if sys.argv[1] == "-c":
    exec(sys.argv[2])
else:
    print("run", *sys.argv[1:])
"""


class Machine:
    """A path of its own, in folders that are searched in the order in which they are made."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        self._path = [self._add_folder("tools")]
        dirname = shutil.which("dirname")
        assert dirname is not None
        (self._path[0] / "dirname").symlink_to(dirname)

    def add(
        self,
        name: str,
        options: str | None = PLAIN,
        *,
        version: tuple[int, int] = (3, 11),
        schemes: tuple[str, ...] = ("posix_prefix", "venv"),
        has_venv: bool = True,
    ) -> str:
        """Add an interpreter in a folder of its own, after the others; return its file."""
        installed = str(self._folder / "venv-is-installed")
        text = FAKE.format(
            real=sys.executable,
            options=options,
            schemes=schemes,
            version=version,
            has_venv=has_venv,
            installed=installed,
        )
        self._path.append(self._add_folder(str(len(self._path))))
        return self._write(self._path[-1], name, text)

    def add_program(self, name: str, text: str) -> str:
        """Add a shell script, before all interpreters."""
        return self._write(self._path[0], name, f"#!/bin/sh\n{text}\n")

    def make(self) -> subprocess.CompletedProcess[str]:
        """Make an environment."""
        return subprocess.run(
            [str(ENVIRONMENT), "target folder"],
            env={"PATH": ":".join(map(str, self._path))},
            capture_output=True,
            text=True,
            check=False,
        )

    def _add_folder(self, name: str) -> pathlib.Path:
        folder = self._folder / f"with space {name}"
        folder.mkdir()
        return folder

    def _write(self, folder: pathlib.Path, name: str, text: str) -> str:
        file = folder / name
        file.write_text(text)
        file.chmod(0o755)
        return str(file)


@pytest.fixture
def machine(tmp_path: pathlib.Path) -> Machine:
    """A machine without any Python."""
    return Machine(tmp_path)


def check_taken(machine: Machine, python: str, *, build: str) -> None:
    done = machine.make()
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[-2:] == [f"Using {python} ({build}).", "run -m venv --clear target folder"]


SLOWER = "not optimised: treedb will be up to a third slower"


def test_an_optimised_python_is_taken_before_a_newer_one(machine: Machine) -> None:
    machine.add("python3.13", PLAIN, version=(3, 13))
    optimised = machine.add("python3.12", OPTIMISED, version=(3, 12))
    check_taken(machine, optimised, build="optimised")


def test_the_newest_of_the_optimised_ones_is_taken(machine: Machine) -> None:
    machine.add("python3.11", OPTIMISED)
    newest = machine.add("python3.13", OPTIMISED, version=(3, 13))
    machine.add("python3", OPTIMISED)
    check_taken(machine, newest, build="optimised")


def test_the_newest_is_taken_if_none_is_optimised(machine: Machine) -> None:
    machine.add("python3.11")
    newest = machine.add("python3.12", version=(3, 12))
    check_taken(machine, newest, build=SLOWER)


def test_the_python_of_a_distribution_is_optimised_whatever_it_says(machine: Machine) -> None:
    machine.add("python3.12", version=(3, 12))
    system = machine.add("python3", schemes=("deb_system", "posix_local"))
    check_taken(machine, system, build="optimised")


def test_a_python_that_does_not_know_its_build_is_not_optimised(machine: Machine) -> None:
    check_taken(machine, machine.add("python3", options=None), build=SLOWER)


def test_an_optimised_python_is_found_behind_another_of_its_name(machine: Machine) -> None:
    machine.add("python3.11", PLAIN)
    optimised = machine.add("python3.11", OPTIMISED)
    check_taken(machine, optimised, build="optimised")


def test_an_interpreter_that_cannot_be_run_is_absent(machine: Machine) -> None:
    machine.add_program("python3.12", "echo 'python3.12: command not found' >&2; exit 127")
    check_taken(machine, machine.add("python3.11"), build=SLOWER)


def test_a_python_that_is_too_old_is_not_taken(machine: Machine) -> None:
    machine.add("python3", OPTIMISED, version=(3, 10))
    done = machine.make()
    assert done.returncode == 1
    assert done.stderr == "treedb needs Python 3.11 or newer, and there is none on the path.\n"


def test_a_python_without_venv_is_taken_only_if_its_package_can_be_installed(
    machine: Machine,
) -> None:
    machine.add("python3", has_venv=False)
    done = machine.make()
    assert done.returncode == 1
    assert "sudo apt-get install python3-venv" in done.stderr


def test_the_package_of_venv_is_installed_if_no_python_has_it(
    machine: Machine, tmp_path: pathlib.Path
) -> None:
    python = machine.add("python3", OPTIMISED, has_venv=False)
    machine.add_program("id", "echo 0")
    machine.add_program("apt-get", f"[ $1 = update ] || : > '{tmp_path}/venv-is-installed'")
    check_taken(machine, python, build="optimised")


def test_a_python_that_still_has_no_venv_is_refused(machine: Machine) -> None:
    machine.add("python3", has_venv=False)
    machine.add_program("id", "echo 0")
    machine.add_program("apt-get", "exit 0")
    done = machine.make()
    assert done.returncode == 1
    assert "install its venv module" in done.stderr
