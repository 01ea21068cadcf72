"""The examples of `docs/functions.md` are run, and the script for the suite starts a daemon."""

from __future__ import annotations

import pathlib
import subprocess
from collections.abc import Iterator

import pytest

from tests.daemon import Daemon
from tests.pages import DOCS, read_blocks
from tests.test_interface_docs import Reader

PAGE = (DOCS / "functions.md").read_text()
JAR = "/somewhere/java"


@pytest.fixture
def reader(tmp_path: pathlib.Path) -> Iterator[Reader]:
    with Daemon(tmp_path) as daemon:
        yield Reader(daemon)


def test_the_requests_are_answered_as_the_page_says(reader: Reader) -> None:
    blocks = read_blocks("functions.md", "http")
    assert len(blocks) == 3
    for _, text in blocks:
        reader.exchange(text)


@pytest.fixture
def script(tmp_path: pathlib.Path) -> pathlib.Path:
    """The script of the page; `treedb` prints its arguments."""
    begin = PAGE.index("    #!/bin/sh")
    lines = PAGE[begin : PAGE.index("\n\n", begin)].splitlines()
    for name, text in (
        ("java", "\n".join(line.removeprefix("    ") for line in lines)),
        ("treedb", '#!/bin/sh\necho "$@"'),
    ):
        (tmp_path / name).write_text(f"{text}\n")
        (tmp_path / name).chmod(0o755)
    return tmp_path / "java"


def run(script: pathlib.Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    variables = {
        "PATH": f"{script.parent}:/usr/bin:/bin",
        "DATABASE_EMULATOR_BINARY_PATH": JAR,
    }
    return subprocess.run(
        [script, *arguments], env=variables, capture_output=True, text=True, check=True
    )


def test_the_script_starts_treedb_where_the_suite_wants_its_database(
    script: pathlib.Path,
) -> None:
    flags = ["--host", "127.0.0.2", "--port", "9123", "--functions_emulator_port", "5001"]
    started = run(script, "-Duser.language=en", "-jar", JAR, *flags)
    assert started.stdout == "serve --listen tcp:9123:interface=127.0.0.2 --data treedb-data\n"


def test_the_script_has_a_version_that_the_suite_takes(script: pathlib.Path) -> None:
    assert "version" in run(script, "-version").stderr
