"""The lock files in `.ci/locks` fit pyproject.toml, and pin each package by version and digest."""

from __future__ import annotations

import pathlib
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

PROJECT = pathlib.Path(__file__).parent.parent
LOCKS = PROJECT / ".ci" / "locks"
INSTALL = PROJECT / ".ci" / "install"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
PLATFORMS = (("linux", "x86_64"), ("linux", "aarch64"), ("darwin", "arm64"))
PIN = re.compile(
    r"(?P<name>[a-z0-9-]+)==(?P<version>\S+)(?: ; (?P<marker>.+?))? \\\n"
    r"(?P<digests>(?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)"
    r"(?P<origins>(?:    # .*\n)*)"
)


def read_lock(name: str) -> list[re.Match[str]]:
    """Return the pins of a lock file, of which all lines but comments at its end belong to one."""
    text = (LOCKS / f"{name}.txt").read_text().partition("\n# ")[0].rstrip("\n") + "\n"
    pins = list(PIN.finditer(text))
    assert "".join(pin[0] for pin in pins) == text
    return pins


def environments() -> Iterator[dict[str, str]]:
    """Iterate over what markers see with each Python and on each platform that is supported."""
    for python in PYTHONS:
        for platform, machine in PLATFORMS:
            yield {
                "python_version": python,
                "python_full_version": f"{python}.0",
                "sys_platform": platform,
                "platform_machine": machine,
                "platform_python_implementation": "CPython",
                "implementation_name": "cpython",
                "os_name": "posix",
            }


def unmet(requirement: Requirement, pins: Iterable[re.Match[str]]) -> Iterator[str]:
    """Iterate over the environments in which no pin, or another version, is what is required."""
    named = [pin for pin in pins if pin["name"] == canonicalize_name(requirement.name)]
    for environment in environments():
        if requirement.marker is not None and not requirement.marker.evaluate(environment):
            continue
        versions = [
            Version(pin["version"])
            for pin in named
            if not pin["marker"] or Marker(pin["marker"]).evaluate(environment)
        ]
        if len(versions) != 1 or versions[0] not in requirement.specifier:
            yield f"{requirement} with Python {environment['python_version']}: {versions}"


def read_requirements() -> tuple[list[Requirement], list[Requirement]]:
    """Return what pyproject.toml requires to build and run treedb, and to test it."""
    settings = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    runs = [*settings["project"]["dependencies"], *settings["build-system"]["requires"]]
    tests = settings["project"]["optional-dependencies"]["test"]
    return [*map(Requirement, runs)], [*map(Requirement, tests)]


def test_the_locks_satisfy_pyproject_everywhere() -> None:
    runs, tests = read_requirements()
    treedb = read_lock("treedb")
    both = [*treedb, *read_lock("tests")]
    missing = [
        *(line for each in runs for line in unmet(each, treedb)),
        *(line for each in tests for line in unmet(each, both)),
    ]
    assert missing == [], "run `make lock`"


def test_the_locks_have_nothing_that_pyproject_no_longer_names() -> None:
    runs, tests = read_requirements()
    named = {canonicalize_name(each.name) for each in (*runs, *tests)}
    direct = {
        pin["name"]
        for pin in (*read_lock("treedb"), *read_lock("tests"))
        if "treedbd (pyproject.toml)" in pin["origins"] or not pin["origins"]  # a build's have none
    }
    assert direct == named, "run `make lock`"


@pytest.mark.parametrize("name", ["clients", "scanners"])
def test_the_locks_of_the_tests_have_the_versions_that_are_tried(name: str) -> None:
    lines = (PROJECT / "tests" / name / "requirements.txt").read_text().splitlines()
    required = [Requirement(line) for line in lines if not line.startswith("#")]
    missing = [line for each in required for line in unmet(each, read_lock(name))]
    assert missing == [], "run `make lock`"


def test_no_lock_says_from_where_its_packages_come() -> None:
    names = sorted(file.stem for file in LOCKS.iterdir())
    assert names == ["clients", "node", "scanners", "setuptools", "tests", "treedb", "uv"]
    for name in names:
        assert read_lock(name)
        assert "://" not in (LOCKS / f"{name}.txt").read_text()


def test_what_is_installed_needs_nothing_that_the_locks_lack() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pip", "check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


@pytest.fixture
def locked(tmp_path: pathlib.Path) -> pathlib.Path:
    """A folder whose lock pins a package of which a wheel lies beside it."""
    (tmp_path / "locks").mkdir()
    shutil.copy(INSTALL, tmp_path)
    project = tmp_path / "source"
    project.mkdir()
    (project / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
        '[project]\nname = "tampered"\nversion = "1"\n'
        '[tool.hatch.build.targets.wheel]\nonly-include = ["tampered.py"]\n'
    )
    (project / "tampered.py").write_text("")
    return tmp_path


def build(folder: pathlib.Path, kind: str) -> str:
    """Build a distribution of the package; return its digest."""
    hatchling = pathlib.Path(sys.executable).with_name("hatchling")
    command = [str(hatchling), "build", "-t", kind, "-d", str(folder / "found")]
    subprocess.run(command, cwd=folder / "source", capture_output=True, check=True)
    (file,) = (folder / "found").iterdir()
    lines = subprocess.run(
        [sys.executable, "-m", "pip", "hash", str(file)], capture_output=True, text=True, check=True
    )
    return lines.stdout.rpartition("sha256:")[2].strip()


def install(folder: pathlib.Path, digest: str) -> tuple[int, str]:
    """Install what the lock pins into an environment; return the status and what was said."""
    (folder / "locks" / "one.txt").write_text(f"tampered==1 \\\n    --hash=sha256:{digest}\n")
    environment = folder / "environment"
    if not environment.exists():
        subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    done = subprocess.run(
        [str(folder / "install"), str(environment), "one"],
        env={"PATH": "/usr/bin:/bin", "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder / "found")},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stderr


def test_a_file_with_another_digest_is_not_installed(locked: pathlib.Path) -> None:
    digest = build(locked, "wheel")
    status, said = install(locked, "0" * 64)
    assert status != 0
    assert "DO NOT MATCH" in said
    assert install(locked, digest)[0] == 0


def test_what_is_no_wheel_is_not_installed_even_with_the_right_digest(locked: pathlib.Path) -> None:
    status, said = install(locked, build(locked, "sdist"))
    assert status != 0
    assert "No matching distribution" in said
