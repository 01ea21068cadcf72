"""How handlers run: without a Deferred unless they wait, and what one request evaluates once."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest
from twisted.internet.defer import Deferred, fail, succeed

from tests.web.tree_server import TreeServer, put
from treedbd.database.catalog import Catalog
from treedbd.database.database import Database
from treedbd.rules.ruleset import RuleSet, parse_rules
from treedbd.web.resource import drive

CLOSED_FLAG_RULES = parse_rules(
    '{"rules": {".read": "root.child(\'closed\').val() != true", ".write": true}}'
)


@pytest.fixture
def made_deferreds(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The Deferreds that have been made; pytest-twisted makes some before the test."""
    made: list[Any] = []
    initialise = Deferred.__init__

    def record(self: Any, *arguments: Any, **options: Any) -> None:
        made.append(self)
        initialise(self, *arguments, **options)

    monkeypatch.setattr(Deferred, "__init__", record)
    yield made
    monkeypatch.undo()


# drive


def test_a_coroutine_that_does_not_wait_is_finished_at_once_and_makes_no_deferred(
    made_deferreds: list[Any],
) -> None:
    steps: list[str] = []

    async def inner() -> str:
        return "inner"

    async def work() -> str:
        steps.append(await inner())
        steps.append("end")
        return "ignored"

    made_deferreds.clear()
    drive(work())
    assert steps == ["inner", "end"]
    assert made_deferreds == []


def test_a_coroutine_does_not_wait_for_a_deferred_that_has_fired() -> None:
    results: list[object] = []

    async def work() -> None:
        results.append(await succeed("value"))
        try:
            await fail(KeyError("reason"))
        except KeyError as error:
            results.append(error.args[0])

    drive(work())
    assert results == ["value", "reason"]


def test_a_coroutine_that_waits_continues_when_its_deferred_fires() -> None:
    waiting: list[Deferred[str]] = [Deferred(), Deferred()]
    results: list[str] = []

    async def work() -> None:
        results.append(await waiting[0])
        results.append(await waiting[1])

    drive(work())
    assert results == []
    waiting[0].callback("first")
    assert results == ["first"]
    waiting[1].callback("second")
    assert results == ["first", "second"]


def test_a_coroutine_that_waits_gets_the_exception_of_its_deferred() -> None:
    waiting: list[Deferred[str]] = [Deferred(), Deferred(), Deferred()]
    results: list[object] = []

    async def work() -> None:
        for each in waiting:
            try:
                results.append(await each)
            except KeyError as error:
                results.append(error)

    drive(work())
    reason, other = KeyError("reason"), KeyError("other")
    waiting[0].errback(reason)
    waiting[1].errback(other)
    waiting[2].callback("value")
    assert results == [reason, other, "value"]


def test_an_exception_passes_through_the_coroutines_that_wait() -> None:
    waiting: Deferred[None] = Deferred()
    results: list[str] = []

    async def inner() -> None:
        try:
            await waiting
        finally:
            results.append("cleaned up")

    async def work() -> None:
        try:
            await inner()
        except OSError:
            results.append("caught")

    drive(work())
    waiting.errback(OSError())
    assert results == ["cleaned up", "caught"]


# Requests.


@pytest.fixture
def server(tmp_path: pathlib.Path) -> TreeServer:
    return TreeServer(tmp_path, CLOSED_FLAG_RULES)


def test_a_small_read_makes_no_deferred(server: TreeServer, made_deferreds: list[Any]) -> None:
    server.write("PUT", "/a", {"b": 1})
    peer = server.connect()
    made_deferreds.clear()
    peer.send(b"GET /a.json HTTP/1.1\r\nHost: demo.localhost\r\n\r\n")
    assert [reply.body for reply in peer.read()] == [b'{"b":1}']
    assert made_deferreds == []


@pytest.mark.parametrize(
    ("method", "headers", "body", "status"),
    [
        ("PUT", ('If-Match: "x"',), "1", 412),
        ("DELETE", ('If-Match: "x"',), "", 412),
        ("PUT", (), '{".sv": "unknown"}', 400),
        ("GET", (), "", 403),
        ("GET", ("Accept: text/event-stream",), "", 403),
    ],
)
def test_an_error_becomes_its_response_whether_the_handler_has_waited_or_not(
    server: TreeServer, method: str, headers: tuple[str, ...], body: str, status: int
) -> None:
    if status == 403:
        server.write("PUT", "/closed", True)
    reply = server.request(method, "/a.json", body.encode(), headers)
    assert reply.status == status


@pytest.mark.parametrize(
    ("method", "target", "body", "status", "expected"),
    [
        ("GET", "/a.json", "", 200, 1),
        ("HEAD", "/a.json", "", 200, 1),
        ("GET", "/a.json?shallow=true", "", 200, 1),
        ("PUT", "/a.json", "1", 200, 1),
        ("POST", "/a.json", "1", 200, 1),
        ("PATCH", "/a.json", '{"b":1}', 200, 1),
        ("DELETE", "/a.json", "", 200, 1),
        ("GET", "/a.json?print=loud", "", 400, 1),
        ("BREW", "/a.json", "", 405, 1),
        ("GET", "/a", "", 404, 1),
        ("GET", "/a.json?ns=other", "", 400, 0),
        ("GET", "/.settings/rules.json", "", 401, 1),
        ("GET", "/.inspect/databases.json", "", 401, 1),
        ("GET", "/.health", "", 200, 0),
        ("OPTIONS", "/a.json", "", 204, 0),
    ],
)
def test_a_request_looks_its_database_up_once(
    server: TreeServer,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    target: str,
    body: str,
    status: int,
    expected: int,
) -> None:
    names: list[object] = []
    find = Catalog.find

    def count(self: Catalog, name: Any) -> Database:
        names.append(name)
        return find(self, name)

    monkeypatch.setattr(Catalog, "find", count)
    reply = server.request(method, target, body.encode())
    assert (reply.status, len(names)) == (status, expected)


@pytest.fixture
def evaluated(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The paths whose read rules have been evaluated."""
    paths: list[object] = []
    may_read = RuleSet.may_read

    def count(self: RuleSet, path: Any, context: Any, **options: Any) -> Any:
        paths.append(path)
        return may_read(self, path, context, **options)

    monkeypatch.setattr(RuleSet, "may_read", count)
    return paths


@pytest.mark.parametrize(
    "target",
    [
        "/a.json",
        "/a.json?resume=true",
        "/a.json?orderBy=%22$key%22&limitToFirst=1",
        "/a.json?timeout=10s",
    ],
)
def test_opening_a_stream_evaluates_the_read_rules_once(
    server: TreeServer, evaluated: list[object], target: str
) -> None:
    server.write("PUT", "/a", {"b": 1})
    evaluated.clear()
    client = server.open_stream(target)
    assert client.read_events() == [put("/", {"b": 1})]
    server.clock.advance(0)
    assert evaluated == [("a",)]


def test_resuming_a_stream_evaluates_the_read_rules_once(
    server: TreeServer, evaluated: list[object]
) -> None:
    server.write("PUT", "/a", 1)
    first = server.open_stream("/a.json?resume=true")
    first.read_events()
    server.write("PUT", "/a", 2)
    evaluated.clear()
    client = server.open_stream("/a.json?resume=true", f"Last-Event-ID: {first.ids[0]}\r\n")
    assert client.read_events() == [put("/", 2)]
    assert evaluated == [("a",)]


def test_a_long_first_value_of_a_stream_evaluates_the_read_rules_once(
    server: TreeServer, evaluated: list[object]
) -> None:
    for number in range(12):
        server.write("PUT", f"/long/{number}", "x" * 200_000)
    evaluated.clear()
    server.clock.lag = 0.001
    client = server.open_stream("/long.json")
    server.clock.lag = 0.0
    server.clock.pump([0.01] * 20)
    ((kind, data),) = client.read_events()
    assert kind == "put"
    assert len(json.loads(data)["data"]) == 12
    assert evaluated == [("long",)]


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_head_for_a_stream_and_a_plain_read_evaluate_the_read_rules_once(
    server: TreeServer, evaluated: list[object], method: str
) -> None:
    headers = ("Accept: text/event-stream",) if method == "HEAD" else ()
    reply = server.request(method, "/a.json", b"", headers)
    assert reply.status == 200
    assert evaluated == [("a",)]


def test_a_commit_that_no_rule_reads_evaluates_nothing_for_open_streams(
    server: TreeServer, evaluated: list[object]
) -> None:
    client = server.open_stream("/a.json")
    client.read_events()
    evaluated.clear()
    server.write("PUT", "/a", 1)
    assert client.read_events() == [put("/", 1)]
    assert evaluated == []
    server.write("PUT", "/closed", False)
    assert evaluated == [("a",)]
