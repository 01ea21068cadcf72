"""The vendored files of the console are what their page says, and small."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
from typing import Any, Final

PROJECT: Final = pathlib.Path(__file__).parents[2]
BUILDER: Final = PROJECT / ".ci" / "vendor"
CONSOLE: Final = PROJECT / "treedbd" / "console"
VENDOR: Final = CONSOLE / "vendor"
NODE: Final = PROJECT / "tests" / "clients" / ".venv" / "bin"
NAMES: Final = ("lit.js", "codemirror.js")
MAX_VENDOR_BYTES: Final = 220_000
MAX_CONSOLE_BYTES: Final = 300_000
LICENCES: Final = {"MIT", "BSD-3-Clause"}


def build(project: pathlib.Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the builder of a project.

    It does so in a folder of the disk: programs may not run in the one of the tests, in memory.
    """
    environment = {name: value for name, value in os.environ.items() if name != "TMPDIR"}
    return subprocess.run(
        ["sh", str(project / ".ci" / "vendor" / "build"), *arguments],
        env={**environment, "PATH": f"{NODE}:{environment['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )


def compressed(folder: pathlib.Path) -> int:
    """Return the bytes of all files in a folder, each compressed as for a response."""
    files = [file for file in folder.rglob("*") if file.is_file() and file.suffix != ".md"]
    return sum(len(gzip.compress(file.read_bytes(), 9)) for file in files)


def read_lock() -> dict[str, dict[str, Any]]:
    """Return the packages of the lock file, by their folders."""
    packages: dict[str, dict[str, Any]] = json.loads((BUILDER / "package-lock.json").read_text())[
        "packages"
    ]
    return packages


def read_table(columns: int) -> list[list[str]]:
    """Return the rows of the table of VENDOR.md that has so many columns."""
    lines = re.findall(r"^\| `.*\|$", (VENDOR / "VENDOR.md").read_text(), re.MULTILINE)
    rows = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in rows if len(row) == columns]


def read_files(folder: pathlib.Path) -> dict[str, bytes]:
    """Return the content of each file of a folder by its name."""
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_the_files_are_what_their_packages_make() -> None:
    done = build(PROJECT, "--check")
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_other_files_are_found_and_mended(tmp_path: pathlib.Path) -> None:
    shutil.copytree(BUILDER, tmp_path / ".ci" / "vendor")
    shutil.copytree(VENDOR, tmp_path / "treedbd" / "console" / "vendor")
    for name, old, new in (
        ("lit.js", "(c) 2017", "(c) 2018"),
        ("VENDOR.md", "| 3.3.3 |", "| 3.3.2 |"),
    ):
        file = tmp_path / "treedbd" / "console" / "vendor" / name
        text = file.read_text()
        file.write_text(text.replace(old, new))
        assert file.read_text() != text
    before = read_files(tmp_path / "treedbd" / "console" / "vendor")
    done = build(tmp_path, "--check")
    assert done.returncode == 1
    assert done.stderr == "".join(
        f"treedbd/console/vendor/{name} is not what .ci/vendor/build makes.\n"
        for name in ("lit.js", "VENDOR.md")
    )
    assert read_files(tmp_path / "treedbd" / "console" / "vendor") == before
    assert build(tmp_path).returncode == 0
    assert read_files(tmp_path / "treedbd" / "console" / "vendor") == read_files(VENDOR)


def test_the_page_names_each_file_with_its_digest() -> None:
    found = [
        [name, str(len(content)), hashlib.sha256(content).hexdigest()]
        for name in NAMES
        for content in [(VENDOR / name).read_bytes()]
    ]
    assert read_table(3) == found
    assert {file.name for file in VENDOR.iterdir()} == {*NAMES, "VENDOR.md"}


def test_the_page_names_the_packages_of_the_lock_file() -> None:
    locked = read_lock()
    rows = read_table(4)
    assert {"lit", "@codemirror/view", "@codemirror/merge"} <= {row[0] for row in rows}
    for package, version, licence, name in rows:
        entry = locked[f"node_modules/{package}"]
        assert [version, licence] == [entry["version"], entry["license"]]
        assert f"{package} {version} ({licence})\n" in (VENDOR / name).read_text()
    assert {row[2] for row in rows} == LICENCES


def test_each_package_is_locked_by_its_digest_and_by_no_host() -> None:
    packages = read_lock()
    asked = packages.pop("")["dependencies"]
    assert asked == json.loads((BUILDER / "package.json").read_text())["dependencies"]
    for name, version in asked.items():
        assert packages[f"node_modules/{name}"]["version"] == version
    for entry in packages.values():
        assert entry["integrity"].startswith("sha512-")
    assert "://" not in (BUILDER / "package-lock.json").read_text()


def test_the_files_hold_their_licences() -> None:
    for name in NAMES:
        text = (VENDOR / name).read_text()
        assert text.startswith("/*!\n")
        assert "Copyright (c) " in text[:5000] or "Copyright (C) " in text[:5000]
        assert "WARRANTIES OF MERCHANTABILITY" in text[:5000]


def test_the_console_is_small() -> None:
    assert 100_000 < compressed(VENDOR) < MAX_VENDOR_BYTES
    assert compressed(CONSOLE) < MAX_CONSOLE_BYTES
