"""The progress of an import: a bar on a terminal, a line elsewhere, nothing with `--quiet`."""

from __future__ import annotations

import contextlib
import os
import pathlib
import pty
import subprocess

import pytest
from twisted.internet.task import Clock

from tests.cli.loading.documents import as_json
from tests.command import COMMAND, environment, run_command
from tests.daemon import Daemon
from treedbd.cli.loading.transfer import ProgressReport, sum_sizes
from treedbd.limits import MIB

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
        env={**environment(), "TERM": "xterm", "COLUMNS": "250"},
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


def test_elsewhere_a_line_is_printed_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    progress = ProgressReport("copied", 100 * MIB, is_quiet=False, now=clock.seconds)
    for count in range(1, 101):
        clock.advance(1)
        progress.advance_to(count * MIB)
    assert capsys.readouterr().err.splitlines() == [
        "copied: 10.0 of 100.0 MiB (10 %), about 90 s left",
        "copied: 30.0 of 100.0 MiB (30 %), about 70 s left",
        "copied: 70.0 of 100.0 MiB (70 %), about 30 s left",
    ]
    clock.advance(60)
    progress.advance_to(101 * MIB)
    assert capsys.readouterr().err == "copied: 101.0 MiB, the total is not known\n"


@pytest.mark.parametrize(
    ("found", "size"),
    [
        (None, 4),
        ("abc", 5),
        ({"a": {".sz": 10}, "bc": 12}, len('{"a":0123456789,"bc":12}')),
        ({"a": True, "b": True}, None),
        ({"a": {"x": 1}}, None),
    ],
)
def test_a_total_is_the_sum_of_the_sizes_that_a_server_knows(found: object, size: int) -> None:
    assert sum_sizes(found) == size


@pytest.mark.parametrize("command", ["export", "migrate"])
def test_a_terminal_shows_how_much_of_the_total_is_done(
    shared_daemon: Daemon, tmp_path: pathlib.Path, command: str
) -> None:
    root = shared_daemon.http.replace("127.0.0.1", f"progress-{command}.localhost")
    assert run_command("set", root, '{"a":1,"b":{"c":2}}', "--silent").status == 0
    words = ["export", root, str(tmp_path / "a.json")]
    if command == "migrate":
        words = ["migrate", root, root.replace("progress-", "target-"), "--once"]
    reader, writer = pty.openpty()
    subprocess.run(
        [*COMMAND, *words],
        env={**environment("owner"), "TERM": "xterm", "COLUMNS": "250"},
        stderr=writer,
        check=True,
        timeout=PATIENCE_S,
    )
    os.close(writer)
    shown = b""
    with contextlib.suppress(OSError):  # which is the end of what a terminal shows
        while True:
            shown += os.read(reader, 65_536)
    os.close(reader)
    assert b"100%" in shown
    assert b"19/19 bytes" in shown


def test_an_export_to_a_terminal_ends_with_a_line_end(shared_daemon: Daemon) -> None:
    root = shared_daemon.http.replace("127.0.0.1", "progress-line.localhost")
    assert run_command("set", root, '{"a":1}', "--silent").status == 0
    words = ["export", root, "-", "--quiet"]
    assert run_command(*words).output == b'{"a":1}'
    reader, writer = pty.openpty()
    subprocess.run(
        [*COMMAND, *words], env=environment(), stdout=writer, check=True, timeout=PATIENCE_S
    )
    os.close(writer)
    assert os.read(reader, 100) == b'{"a":1}\r\n'
    os.close(reader)
