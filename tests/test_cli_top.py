"""`treedb top`: what it shows, of a daemon and of numbers that a test chooses."""

from __future__ import annotations

import json
import pathlib
import re
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.command import COMMAND, environment, run_command
from tests.daemon import Daemon
from treedbd.cli.exit import format_bytes
from treedbd.cli.top import Counted, CountedDatabase, format_counted, parse_counted

SLOW: dict[str, Any] = {
    "ms": 1234.56,
    "method": "PUT",
    "name": "eu--demo",
    "path": "/a",
    "status": 200,
    "ago_s": 7,
}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("daemon")) as running:
        running.request("PUT", "/a.json?ns=top", "1")
        running.request("PUT", "/a.json?ns=eu--top", "1")
        running.request("GET", "/a.json?ns=top")
        yield running


def counted(for_s: float, **databases: tuple[int | None, int, int, int, float]) -> Counted:
    return Counted(for_s, {name: CountedDatabase(*of) for name, of in databases.items()}, ())


def rows_of(lines: list[str]) -> list[list[str]]:
    """Return the words of the rows with databases."""
    begin = next(number for number, line in enumerate(lines) if "DATABASE" in line) + 1
    end = next((number for number, line in enumerate(lines) if "SLOWEST" in line), len(lines) + 1)
    return [line.split() for line in lines[begin : end - 1] if line]


def test_rates_are_those_between_two_looks_with_the_busiest_first() -> None:
    before = counted(100.0, a=(10, 0, 9, 1000, 5000.0), b=(10, 0, 0, 50, 100.0))
    now = counted(
        102.0, a=(2048, 3, 7, 1010, 5005.0), b=(None, 1, 0, 150, 400.0), c=(0, 0, 0, 0, 0.0)
    )
    lines = format_counted(before, now)
    assert lines[0] == "3 databases, 4 streams, 7 WebSockets, 55.0 requests a second"
    assert rows_of(lines) == [
        ["50.0", "3.0", "1", "0", "-", "b"],
        ["5.0", "0.5", "3", "7", "2.0", "KB", "a"],
        ["0.0", "0.0", "0", "0", "0", "B", "c"],
    ]


def test_a_daemon_that_has_started_again_counts_from_its_start() -> None:
    before = counted(100.0, a=(10, 0, 0, 1000, 5000.0))
    assert rows_of(format_counted(before, counted(4.0, a=(10, 0, 0, 8, 16.0)))) == [
        ["2.0", "2.0", "0", "0", "10", "B", "a"]
    ]


def test_the_slowest_requests_are_shown_and_cannot_move_the_cursor() -> None:
    slow = {**SLOW, "path": "/a\x1b[2J"}
    lines = format_counted(counted(0.0), Counted(1.0, {}, (SLOW, slow)))
    assert lines[-2].split() == ["1234.6", "7", "s", "200", "PUT", "/a", "(eu--demo)"]
    assert "\x1b" not in lines[-1]


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KB"), (5 << 20, "5.0 MB"), (3 << 40, "3072.0 GB")],
)
def test_sizes_have_the_unit_that_suits_them(count: int, shown: str) -> None:
    assert format_bytes(count) == shown


def test_once_prints_the_databases_of_the_project(daemon: Daemon) -> None:
    done = run_command("top", f"{daemon.http}/?ns=top", "--once", token="owner")
    assert done.status == 0, done.errors
    assert "2 databases, 0 streams, 0 WebSockets" in done.text
    assert re.search(r" top\n", done.text)
    assert re.search(r" eu--top\n", done.text)
    assert re.search(r"PUT /a \((eu--)?top\)\n", done.text)


def test_requests_of_admins_are_shown_with_their_path(daemon: Daemon) -> None:
    daemon.request("GET", "/.settings/rules.json?ns=top&auth=owner")
    done = run_command("top", f"{daemon.http}/?ns=top", "--once", token="owner")
    assert re.search(r"GET /\.settings/rules\.json \(top\)\n", done.text)


def test_json_is_what_the_daemon_sends(daemon: Daemon) -> None:
    done = run_command("top", f"{daemon.http}/?ns=top", "--once", "--json", token="owner")
    shown = json.loads(done.text)
    assert {each["name"] for each in shown["databases"]} == {"top", "eu--top"}
    assert set(parse_counted(shown).databases) == {"top", "eu--top"}


def test_it_is_shown_again_until_it_is_interrupted(daemon: Daemon) -> None:
    words = ["top", f"{daemon.http}/?ns=top", "--interval", "0.1"]
    with subprocess.Popen(
        [*COMMAND, *words], stdout=subprocess.PIPE, text=True, env=environment("owner")
    ) as running:
        assert running.stdout is not None
        found = 0
        while found < 3:
            line = running.stdout.readline()
            assert line, "It ended early."
            found += "requests a second" in line
        running.send_signal(signal.SIGINT)
        running.stdout.read()
        assert running.wait(30) == 0


def test_only_an_admin_is_shown_anything(daemon: Daemon, tmp_path: pathlib.Path) -> None:
    done = run_command("top", f"{daemon.http}/?ns=top", "--once", folder=tmp_path)
    assert done.status == 1
    assert done.output == b""
    assert "requires an admin's token" in done.errors


@pytest.mark.parametrize("interval", ["0", "x", "1e9", "nan"])
def test_an_interval_is_a_number_of_seconds(interval: str) -> None:
    done = run_command("top", "http://localhost:1/", "--interval", interval)
    assert done.status == 2
    assert "must be a number of seconds from 0.1 to 3600" in done.errors
