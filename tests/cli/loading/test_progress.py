"""The progress of an import: a bar on a terminal, a line elsewhere, nothing with `--quiet`."""

from __future__ import annotations

import os
import pathlib
import pty
import subprocess

import pytest

from tests.cli.loading.documents import as_json
from tests.command import COMMAND, environment, run_command

CURSOR_HIDDEN = "\x1b[?25l"
CURSOR_SHOWN = "\x1b[?25h"
PATIENCE_S = 60


@pytest.fixture
def words(tmp_path: pathlib.Path) -> list[str]:
    """An import that needs no daemon."""
    file = tmp_path / "a.json"
    file.write_bytes(as_json())
    return ["import", str(file), "http://localhost/", "--data", str(tmp_path / "data")]


def test_a_terminal_shows_a_bar_and_then_the_summary(words: list[str]) -> None:
    reader, writer = pty.openpty()
    subprocess.run(
        [*COMMAND, *words],
        env={**environment(), "TERM": "xterm", "COLUMNS": "120"},
        stderr=writer,
        check=True,
        timeout=PATIENCE_S,
    )
    os.close(writer)
    shown = b""
    while b"MiB/s)" not in shown:
        shown += os.read(reader, 65_536)
    os.close(reader)
    text = shown.decode()
    assert text.startswith(CURSOR_HIDDEN)
    bar, _, summary = text.rpartition(CURSOR_SHOWN)
    assert "import " in bar
    assert "%" in bar
    assert "Imported 1,503 records, " in summary


def test_elsewhere_there_is_one_line_or_none(words: list[str]) -> None:
    done = run_command(*words)
    assert done.errors.startswith("Imported 1,503 records, ")
    assert done.errors.count("\n") == 1
    assert run_command(*words, "--replace", "--quiet") == (0, b"", "")
