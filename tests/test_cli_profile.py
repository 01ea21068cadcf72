"""`treedb top --profile`: operations added up by path, of a daemon and of those a test chooses."""

from __future__ import annotations

import json
import pathlib
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.command import COMMAND, environment, run_command
from tests.daemon import Daemon
from tests.test_cli_hostile_servers import Serve, response_of, serve
from treedbd.cli import profile as module
from treedbd.cli.profile import MAX_CHILDREN, MAX_KEYS, MAX_ROWS, Profile, format_profile

__all__ = ["serve"]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("daemon")) as running:
        yield running


def read(*path: str, **more: Any) -> dict[str, Any]:
    return {"name": "rest-read", "path": list(path), "millis": 1.0, "bytes": 10, **more}


def profile_of(*operations: dict[str, Any]) -> Profile:
    profile = Profile()
    for each in operations:
        profile.add(each)
    return profile


def rows_of(profile: Profile, by: str = "time") -> list[str]:
    """Return the rows of a second, without the head of the table."""
    return [" ".join(line.split()) for line in format_profile(profile, 1.0, by)[3:]]


def test_operations_on_a_place_are_added_up_with_the_slowest_first() -> None:
    profile = profile_of(
        read("a"),
        read("a", millis=5.0, bytes=2000, allowed=False),
        {"name": "rest-write", "path": ["a"], "millis": 40.0, "bytes": 1, "allowed": True},
        {"name": "concurrent-connect", "timestamp": 1},
    )
    assert rows_of(profile) == [
        "1.0 1 40.0 40.0 1 B 0 rest-write /a",
        "2.0 2 3.0 5.0 2.0 KB 1 rest-read /a",
        "1.0 1 0.0 0.0 0 B 0 concurrent-connect /",
    ]
    for by in ("bytes", "count"):
        assert rows_of(profile, by)[0].endswith("rest-read /a")
    assert format_profile(profile, 2.0, "time")[0] == "4 operations in 2 s"


def test_many_keys_below_a_place_are_one_row() -> None:
    few = profile_of(*[read("users", f"u{number}", "name") for number in range(MAX_CHILDREN)])
    assert len(rows_of(few)) == MAX_CHILDREN
    few.add(read("users", "more", "age"))
    few.add(read("users", "u1", "name"))
    few.add(read("users", "u1", "name", "deep"))
    assert rows_of(few) == [
        f"{MAX_CHILDREN + 1}.0 {MAX_CHILDREN + 1} 1.0 1.0 260 B 0 rest-read /users/$key/name",
        "1.0 1 1.0 1.0 10 B 0 rest-read /users/$key/age",
        "1.0 1 1.0 1.0 10 B 0 rest-read /users/$key/name/deep",
    ]


def test_patterns_below_joined_keys_are_joined_too() -> None:
    profile = profile_of(
        *[read("a", f"k{number}", f"x{number}{other}") for number in range(26) for other in "abc"]
    )
    assert rows_of(profile) == ["78.0 78 1.0 1.0 780 B 0 rest-read /a/$key/$key"]


def test_the_index_that_a_query_lacks_is_named() -> None:
    needed = {"orderBy": "age", "index": {"path": ["profile", "age"]}}
    query = {"unIndexed": True, "querySet": [needed]}
    profile = profile_of(
        *[read("users", f"u{at}", **query) for at in range(30)], read("b", **query)
    )
    lines = [" ".join(line.split()) for line in format_profile(profile, 1.0, "time")]
    assert lines[-3:] == [
        "QUERIES WITHOUT AN INDEX: ADD IT TO THE RULES",
        '30 /users/$key: ".indexOn": "profile/age"',
        '1 /b: ".indexOn": "profile/age"',
    ]


def test_what_was_lost_is_said() -> None:
    profile = profile_of(read("a"), {"name": "operations-lost", "count": 12})
    first = format_profile(profile, 60.0, "time")[0]
    assert first == "1 operation in 60 s; 12 more came too fast to be shown"


def test_what_is_shown_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = profile_of(*[read(f"a{a}", f"b{b}") for a in range(25) for b in range(25)])
    assert rows_of(wide)[-1] == f"{625 - MAX_ROWS} more rows are not shown."
    monkeypatch.setattr(module, "MAX_PLACES", 5)
    bounded = profile_of(*[read(f"a{at}", "x") for at in range(9)])
    assert [row[-1] for row in (line.split() for line in rows_of(bounded))] == [
        "/",
        "/a0/x",
        "/a1/x",
    ]
    deep = profile_of(read(*["k"] * 10_000))
    assert rows_of(deep)[0].endswith("/k" * 4)
    monkeypatch.undo()
    deep = profile_of(read(*["k"] * 10_000))
    assert rows_of(deep)[0].endswith(" " + "/k" * MAX_KEYS)


@contextmanager
def running(daemon: Daemon, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Run the command in the background, and interrupt it."""
    words = ["top", f"{daemon.http}/?ns=profiled", "--profile", "--interval", "0.1", *options]
    with subprocess.Popen(
        [*COMMAND, *words], stdout=subprocess.PIPE, text=True, env=environment("owner")
    ) as process:
        yield process
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        process.stdout.read()
        assert process.wait(30) == 0


def test_the_operations_on_a_database_are_shown_until_it_is_interrupted(daemon: Daemon) -> None:
    with running(daemon) as process:
        assert process.stdout is not None
        daemon.request("PUT", "/other.json?ns=other", "1")
        while line := process.stdout.readline():  # a report each tenth of a second
            daemon.request("PUT", "/a/b.json?ns=profiled", "1")
            assert "/other" not in line
            if line.endswith("rest-write /a/b\n"):
                break
        assert re.fullmatch(r" +[\d.]+ +\d+ +[\d.]+ +[\d.]+ +\d+ B +0  rest-write /a/b\n", line)


def test_json_is_each_operation_on_a_line(daemon: Daemon) -> None:
    with running(daemon, "--json") as process:
        assert process.stdout is not None
        lines: list[str] = []
        reading = threading.Thread(
            target=lambda out: lines.append(out.readline()), args=(process.stdout,)
        )
        reading.start()
        while reading.is_alive():  # it is not known when the profile begins
            daemon.request("PUT", "/a/b.json?ns=profiled", "1")
        operation = json.loads(lines[0])
        assert (operation["name"], operation["path"]) == ("rest-write", ["a", "b"])


def test_once_ends_after_the_interval(daemon: Daemon) -> None:
    words = ["top", f"{daemon.http}/?ns=profiled", "--profile", "--once", "--interval", "0.1"]
    done = run_command(*words, token="owner")
    assert done.status == 0, done.errors
    assert done.text.startswith("0 operations in 0 s\n")


def test_only_an_admin_is_shown_a_profile(daemon: Daemon, tmp_path: pathlib.Path) -> None:
    words = ["top", f"{daemon.http}/?ns=profiled", "--profile", "--once"]
    done = run_command(*words, folder=tmp_path)
    assert (done.status, done.output) == (1, b"")
    assert "requires an admin's token" in done.errors


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("http://localhost:1/a/b", "--profile"), "URL: must name a database, not a path in it"),
        (
            ("http://localhost:1/a.json?ns=b", "--profile"),
            "URL: must name a database, not a path in it",
        ),
        (("http://localhost:1/", "--by", "bytes"), "argument --by: only with --profile"),
        (("http://localhost:1/", "--by", "time"), "argument --by: only with --profile"),
    ],
)
def test_a_wrong_command_line_is_refused(words: tuple[str, ...], why: str) -> None:
    result = run_command("top", *words)
    assert (result.status, result.output) == (2, b"")
    assert why in result.errors


@pytest.mark.parametrize(
    ("frames", "sentence"),
    [
        (b"event: log\ndata: [1]\n\n", "did not send operations."),
        (b'event: log\ndata: {"name":1}\n\n', "did not send operations."),
        (b'event: log\ndata: {"name":"rest-read","path":3}\n\n', "did not send operations."),
        (b"event: log\ndata: {\n\n", "did not send operations."),
        (b'event: log\ndata: {"name":"x","unIndexed":true}\n\n', "did not send operations."),
        (b"event: auth_revoked\ndata: x\n\n", "the token is no longer valid."),
        (b"event: keep-alive\ndata: null\n\n", "ended the stream."),
    ],
)
def test_what_a_daemon_does_not_send_is_one_sentence(
    serve: Serve, frames: bytes, sentence: str
) -> None:
    answer = response_of(frames).replace(b"ETag", b"Content-Type: text/event-stream\r\nETag")
    done = run_command("top", "--profile", serve(answer).removesuffix("/a"))
    assert done.error.endswith(sentence), done.error
    done = run_command("top", "--profile", serve(response_of(frames)).removesuffix("/a"))
    assert done.error.endswith("is not a stream."), done.error
