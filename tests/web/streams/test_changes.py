"""Streams with `describe=true`: which places change, without their values."""

from __future__ import annotations

import json
import pathlib
from typing import Any
from urllib.parse import quote

import attrs
import pytest

from tests.access import secret_of, user
from tests.web.tree_server import (
    BUFFER_BYTES,
    SETTINGS,
    StreamClient,
    TreeServer,
    make_verifier,
    put,
)
from treedbd.database.requests import ProjectSpec
from treedbd.limits import MAX_CHANGED_KEYS
from treedbd.names import DatabaseName
from treedbd.rules.ruleset import DENY, RuleSet, parse_rules
from treedbd.store.nodes import Nodes
from treedbd.tree.event import Event
from treedbd.tree.types import Chunks, Path
from treedbd.web.write import LARGE_BODY_BYTES

IS_ADA = "auth.uid == 'ada' && !root.child('closed').exists()"
CLOSABLE = parse_rules(
    json.dumps({"rules": {".write": True, "a": {".read": IS_ADA}}}).encode(),
)


@pytest.fixture
def server(tmp_path: pathlib.Path) -> TreeServer:
    return TreeServer(tmp_path)


def with_users(folder: pathlib.Path, rules: RuleSet, **limits: int) -> TreeServer:
    """Return a server of a project with users."""
    return TreeServer(
        folder,
        rules,
        projects=[ProjectSpec("demo")],
        verifier=lambda name: make_verifier(secret_of(name)),
        options=attrs.evolve(SETTINGS, limits=attrs.evolve(SETTINGS.limits, **limits)),
    )


def changed(path: str, *keys: str) -> tuple[str, str]:
    """Return a `changed` event as `StreamClient.read_events` returns it."""
    data: dict[str, Any] = {"path": path} | ({"keys": keys} if keys else {})
    return "changed", json.dumps(data, separators=(",", ":"), ensure_ascii=False)


def watch(server: TreeServer, path: str, *more: str) -> StreamClient:
    """Open a stream of changes, and read how it begins."""
    client = server.open_stream(f"{path}.json?{'&'.join(('describe=true', *more))}")
    assert client.read_events() == [changed("/")]
    return client


def test_each_write_that_reaches_the_place_is_one_event(server: TreeServer) -> None:
    client = watch(server, "/a")
    for method, path, value, expected in (
        ("PUT", "/a", {"b": {"c": 1}}, [changed("/")]),
        ("PUT", "/a/b/c", 2, [changed("/b/c")]),
        ("PUT", "/a/b/c", 2, [changed("/b/c")]),
        ("PATCH", "/a", {"b/d": "x", "ä": None}, [changed("/", "b/d", "ä")]),
        ("PATCH", "/a/b", {"d": 1}, [changed("/b", "d")]),
        ("PATCH", "/", {"a/b": 1, "z": 1, "a/x/y": 2}, [changed("/", "b", "x/y")]),
        ("PATCH", "/", {"a": {"b": 1}}, [changed("/")]),
        ("PUT", "/a/b/.priority", 5, [changed("/b")]),
        ("PUT", "/z", 1, []),
        ("PUT", "/.priority", 1, []),
        ("DELETE", "/a/b", None, [changed("/b")]),
        ("PUT", "/", {"z": 1}, [changed("/")]),
        ("DELETE", "/a", None, [changed("/")]),
    ):
        server.write(method, path, value)
        assert client.read_events() == expected, (method, path)


def test_the_keys_of_a_patch_are_left_out_if_they_are_many(server: TreeServer) -> None:
    client = watch(server, "/a")
    server.write("PATCH", "/a/b", {f"k{number}": 1 for number in range(MAX_CHANGED_KEYS + 1)})
    assert client.read_events() == [changed("/b")]


def test_a_batch_is_one_write_to_each_stream(server: TreeServer) -> None:
    clients = [watch(server, "/a") for _ in range(3)]
    for client in clients:
        client.peer.transport.writes = 0
    for number in range(5):
        server.begin_write("PUT", f"/a/{number}", number)
    server.clock.advance(0)
    for client in clients:
        assert client.read_events() == [changed(f"/{number}") for number in range(5)]
        assert client.peer.transport.writes == 1


def test_frames_are_printed_once_for_all_streams_of_a_kind(
    server: TreeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = [watch(server, "/a") for _ in range(3)]
    plain = [server.open_stream("/a.json") for _ in range(3)]
    for client in plain:
        assert client.read_events() == [put("/", None)]
    printed: list[str] = []
    chunks = Event.chunks

    def record(event: Event) -> Chunks:
        printed.append(event.kind)
        return chunks(event)

    monkeypatch.setattr(Event, "chunks", record)
    server.write("PUT", "/a/b", 1)
    assert [client.read_events() for client in clients] == [[changed("/b")]] * 3
    assert [client.read_events() for client in plain] == [[put("/b", 1)]] * 3
    assert sorted(printed) == ["changed", "put"]


def test_no_value_is_read_whether_it_is_small_or_large(
    server: TreeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.write("PUT", "/a", {"b": "x" * 3 * BUFFER_BYTES})
    read: list[Path] = []

    def refuse(_: Nodes, path: Path, **__: Any) -> Any:
        read.append(path)

    for name in ("get", "chunks", "children"):
        monkeypatch.setattr(Nodes, name, refuse)
    clients = [watch(server, path) for path in ("/", "/a", "/a/b", "/a/b/c")]
    body = json.dumps("y" * LARGE_BODY_BYTES).encode()
    assert server.request("PUT", "/a/b.json?print=silent", body).status == 204
    told = ("/a/b", "/b", "/", "/")
    assert [client.read_events() for client in clients] == [[changed(each)] for each in told]
    assert not read


def test_after_too_many_events_a_paused_reader_reads_all_of_the_place_again(
    server: TreeServer,
) -> None:
    client = watch(server, "/a")
    client.producer.pauseProducing()
    server.write("PUT", "/a/b", 1)
    server.write("PUT", "/a/c", 1)
    client.producer.resumeProducing()
    assert client.read_events() == [changed("/b"), changed("/c")]
    client.producer.pauseProducing()
    for number in range(300):
        server.write("PUT", f"/a/{number:03}", 1)
    assert server.resource.streams.overflowed == 1
    client.producer.resumeProducing()
    assert client.read_events() == [changed("/")]
    server.write("PUT", "/a/b", 3)
    assert client.read_events() == [changed("/b")]


def test_a_silent_stream_gets_a_keep_alive_and_one_that_is_not_read_is_dropped(
    server: TreeServer,
) -> None:
    client, stalled = watch(server, "/a"), watch(server, "/a")
    stalled.producer.pauseProducing()
    server.pass_time(30)
    assert client.read_events() == [("keep-alive", "null")]
    server.pass_time(30)
    assert stalled.peer.is_dropped
    assert not client.peer.is_dropped


def open_as_ada(server: TreeServer) -> StreamClient:
    return watch(server, "/a", f"auth={user('demo', 'ada')}")


def test_a_write_that_ends_the_right_is_not_sent(tmp_path: pathlib.Path) -> None:
    server = with_users(tmp_path, CLOSABLE)
    client = open_as_ada(server)
    server.write("PUT", "/a/b", 1)
    server.write("PATCH", "/", {"closed": True, "a/b": 2})
    assert client.read_events() == [changed("/b"), ("cancel", "null")]
    assert client.peer.is_closed


def test_rules_that_deny_the_read_end_the_stream(server: TreeServer) -> None:
    client = watch(server, "/a")
    database = server.catalog.find(DatabaseName("demo"))
    database.rules.current = DENY
    database.recheck_grants()
    assert client.read_events() == [("cancel", "null")]
    assert database._watchers.count == 0
    assert len(server.resource.streams) == 0


def test_a_token_that_is_not_trusted_any_longer_ends_the_stream(tmp_path: pathlib.Path) -> None:
    server = with_users(tmp_path, CLOSABLE)
    client = open_as_ada(server)
    server.resource.streams.recheck(lambda *_: False)
    assert client.read_events() == [("auth_revoked", "credential is no longer valid")]


@pytest.mark.parametrize("uid", [None, "bob"])
def test_a_stream_is_refused_as_a_plain_one(tmp_path: pathlib.Path, uid: str | None) -> None:
    server = with_users(tmp_path, CLOSABLE)
    auth = "" if uid is None else f"&auth={user('demo', uid)}"
    answers = []
    for target in (f"/a.json?describe=true{auth}", f"/a.json?describe=false{auth}"):
        (reply,) = server.get(target, "Accept: text/event-stream\r\n").read()
        answers.append((reply.status, reply.body))
    assert answers[0] == answers[1]
    assert answers[0][0] == 403


@pytest.mark.parametrize("read", ["query.limitToFirst == null", "query.limitToFirst <= 50"])
def test_for_the_rules_it_is_a_read_without_a_query(tmp_path: pathlib.Path, read: str) -> None:
    server = TreeServer(tmp_path, parse_rules(json.dumps({"rules": {".read": read}}).encode()))
    (reply,) = server.get("/a.json?describe=true", "Accept: text/event-stream\r\n").read()
    assert reply.status == (200 if "null" in read else 403)


def test_streams_of_changes_are_counted_with_the_others(tmp_path: pathlib.Path) -> None:
    server = TreeServer(
        tmp_path,
        options=attrs.evolve(SETTINGS, limits=attrs.evolve(SETTINGS.limits, streams_per_address=2)),
    )
    client = watch(server, "/a")
    server.open_stream("/a.json").read_events()
    (reply,) = server.get("/b.json?describe=true", "Accept: text/event-stream\r\n").read()
    assert reply.status == 429
    server.write("PUT", "/a", 1)
    assert (server.resource.streams.opened, server.resource.streams.events_sent) == (2, 2)
    client.peer.disconnect()
    watch(server, "/b")


def test_head_opens_no_stream(server: TreeServer) -> None:
    target = "/a.json?describe=true"
    peer = server.connect()
    head = f"HEAD {target} HTTP/1.1\r\nHost: demo.localhost\r\nAccept: text/event-stream\r\n\r\n"
    peer.send(head.encode())
    (reply,) = peer.read(b"HEAD")
    assert reply.status == 200
    assert len(server.resource.streams) == 0


@pytest.mark.parametrize(
    ("more", "name"),
    [
        ("orderBy=%22$key%22", "orderBy"),
        ("orderBy=%22$key%22&limitToFirst=5", "orderBy"),
        ("limitToFirst=5", "limitToFirst"),
        ("startAt=%22a%22", "startAt"),
        ("equalTo=1", "equalTo"),
        ("where=%7B%22age%22:1%7D", "where"),
        ("resume=true", "resume"),
        ("format=export", "format"),
        ("shallow=true", "shallow"),
        ("print=pretty", "print"),
        ("callback=f", "callback"),
        ("download=f", "download"),
    ],
)
def test_parameters_that_need_a_value_do_not_work_with_it(
    server: TreeServer, more: str, name: str
) -> None:
    for target in (f"/a.json?describe=true&{more}", f"/a.json?{more}&describe=true"):
        (reply,) = server.get(target, "Accept: text/event-stream\r\n").read()
        assert reply.status == 400
        error = json.loads(reply.body)
        assert error["error"] == "invalid_query"
        assert name in error["message"]


@pytest.mark.parametrize("value", ["", "1", "True", "true&describe=true"])
def test_describe_is_true_or_false(server: TreeServer, value: str) -> None:
    (reply,) = server.get(f"/a.json?describe={value}", "Accept: text/event-stream\r\n").read()
    assert reply.status == 400
    assert json.loads(reply.body)["error"] == "invalid_query"


@pytest.mark.parametrize("parameters", ["describe=false", "describe=false&resume=true", ""])
def test_without_it_a_stream_has_values(server: TreeServer, parameters: str) -> None:
    client = server.open_stream(f"/a.json?{parameters}")
    server.write("PUT", "/a/b", 1)
    assert client.read_events() == [put("/", None), put("/b", 1)]


def test_a_priority_cannot_be_watched(server: TreeServer) -> None:
    target = "/a/.priority.json?describe=true"
    (reply,) = server.get(target, "Accept: text/event-stream\r\n").read()
    assert (reply.status, json.loads(reply.body)["error"]) == (400, "invalid_path")


def test_what_a_stream_writes_at_its_end_works_with_it(server: TreeServer) -> None:
    writes = quote(json.dumps({"state": "offline"}))
    client = server.open_stream(f"/a.json?describe=true&resume=false&onDisconnect={writes}")
    server.clock.advance(0)
    assert client.read_events() == [changed("/")]
    client.peer.disconnect()
    server.clock.advance(0)
    assert json.loads(server.request("GET", "/a.json").body) == {"state": "offline"}


def test_a_stream_that_ended_watches_no_more(server: TreeServer) -> None:
    database = server.catalog.find(DatabaseName("demo"))
    clients = [watch(server, "/a"), watch(server, "/a"), watch(server, "/b")]
    assert database._watchers.count == 3
    clients[0].peer.disconnect()
    server.write("PUT", "/a", 1)
    assert clients[1].read_events() == [changed("/")]
    server.resource.streams.end()
    assert database._watchers.count == 0
    assert len(database._grants.held) == 0
