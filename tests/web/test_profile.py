"""The live profile of a database: operations as an admin gets them."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import attrs
import pytest

from tests.web.inspected_server import InspectedServer, send, token_of
from tests.web.test_freed_at_the_end import open_socket
from tests.web.test_inspection import others_of
from tests.web.tree_server import SETTINGS, StreamClient
from treedbd.config.endpoints import LocalNetwork
from treedbd.rules.ruleset import parse_rules
from treedbd.tree.hashes import data_hash
from treedbd.tree.value import from_export
from treedbd.web import profile as module
from treedbd.web.feeds import MAX_FEEDS
from treedbd.web.profile import (
    MAX_KEY,
    MAX_KEYS,
    MAX_PATH,
    WATCHED_S,
    ProfileFeed,
)
from treedbd.web.streams import Stream

PROFILE = "/.settings/profile.json"
EVENTS = ["Accept: text/event-stream"]
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJhIjoxfQ.c2lnbmF0dXJl"
RULES = parse_rules(
    b'{"rules": {"open": {".read": true, ".write": true, ".indexOn": "by"}, '
    b'"k": {".read": true}, "own": {".write": "auth.uid == \'ada\'"}}}'
)


@pytest.fixture
def server(tmp_path: pathlib.Path) -> InspectedServer:
    return InspectedServer(tmp_path, RULES)


def profile(server: InspectedServer, *, room: int | None = None) -> StreamClient:
    """Open a profile of the database `demo`."""
    return server.open_stream(f"{PROFILE}?auth={token_of()}", room=room)


def operations(server: InspectedServer, opened: StreamClient) -> list[dict[str, Any]]:
    """Return the operations since the last call."""
    events = server.events(opened)
    assert {kind for kind, _ in events} <= {"keep-alive", "log"}
    return [data for kind, data in events if kind == "log"]


def shown(server: InspectedServer, opened: StreamClient, *names: str) -> list[tuple[Any, ...]]:
    """Return the names of the operations, and these members of each."""
    return [
        (each["name"], *[each.get(name) for name in names]) for each in operations(server, opened)
    ]


# Whose it is, and what it costs.


def test_only_an_admin_is_shown_anything(server: InspectedServer) -> None:
    for token, status in ((token_of(uid="ada"), 403), ("", 401), (token_of("shop"), 401)):
        refused = server.request("GET", f"{PROFILE}?auth={token}", headers=EVENTS)
        assert refused.status == status
    reader = token_of(uid="x", admin=True, read_only=True)
    assert server.open_stream(f"{PROFILE}?auth={reader}").read_events() == [("keep-alive", "null")]
    assert server.request("PUT", f"{PROFILE}?auth={token_of()}", b"1").status == 405
    assert server.request("HEAD", f"{PROFILE}?auth={token_of()}", headers=EVENTS).status == 200


def test_it_is_a_stream_and_nothing_else(server: InspectedServer) -> None:
    reply = server.request("GET", f"{PROFILE}?auth={token_of()}")
    assert (reply.status, json.loads(reply.body)["error"]) == (400, "invalid_query")
    explain = ["X-TreeDB-Explain: true"]
    reply = server.request("GET", f"{PROFILE}?auth={token_of()}", headers=explain)
    assert json.loads(reply.body)["allowed"] is True


def test_nothing_reports_before_a_profile_and_after_it(server: InspectedServer) -> None:
    connections, peer = server.factory.connections, server.connect()
    at_rest, streams = connections.logs, server.resource.streams
    stream, changes = (
        server.open_stream("/open.json"),
        server.open_stream("/open.json?describe=true"),
    )
    socket = open_socket(server)
    send(server, socket, 1, "q", {"p": "open"})
    (session,) = server.resource.realtime.sockets.listeners
    (listen,) = session.listens

    def kinds() -> list[str]:
        server.clock.advance(0)
        server.clock.advance(0)
        kinds = [type(each).__name__ for each in (*streams.listeners[:2], session, listen)]
        new = server.open_stream("/open.json")
        kinds.append(type(streams.listeners[-1]).__name__)
        new.peer.disconnect()
        return kinds

    def is_at_rest() -> bool:
        has_no_watcher = server.resource._refuse.watchers == []
        is_logged_as_before = connections.logs is peer.connection._logs is at_rest
        return has_no_watcher and is_logged_as_before and "asked" not in vars(session)

    ordinary = ["Stream", "ChangesStream", "RealtimeSession", "Listen", "Stream"]
    assert (kinds(), is_at_rest()) == (ordinary, True)
    opened = profile(server)
    profiled = ["ProfiledStream", "ProfiledChanges", "ObservedSession", "ProfiledListen"]
    assert (kinds(), is_at_rest()) == ([*profiled, "ProfiledStream"], False)
    opened.peer.disconnect()
    server.clock.advance(WATCHED_S + 1)
    assert (kinds(), is_at_rest()) == (ordinary, True)
    server.request("PUT", "/open/a.json", b"1")
    assert stream.read_events()[-1] == ("put", '{"path":"/a","data":1}')
    assert changes.read_events()[-1] == ("changed", '{"path":"/a"}')


def test_requests_and_a_profile_are_recorded_side_by_side(server: InspectedServer) -> None:
    opened = profile(server)
    assert server.seen() == []
    server.request("PUT", "/own/a.json", b"1")
    assert [each["code"] for each in server.seen()] == ["permission_denied"]
    assert shown(server, opened, "allowed") == [("rest-write", False)]
    opened.peer.disconnect()
    server.clock.advance(WATCHED_S + 1)
    server.request("PUT", "/own/a.json", b"2")
    assert len(server.seen()) == 2
    assert not server.inspection.profiler.is_recording


# Operations.


def test_requests_are_operations_as_the_profiler_of_firebase_names_them(
    server: InspectedServer,
) -> None:
    opened = profile(server)
    server.request("PUT", "/open/a.json", b'{"x": 1}')
    server.request("GET", "/open/a.json")
    server.request("PATCH", "/open/a.json", b'{"y": 2}')
    server.request("POST", "/open/list.json", b"true")
    server.request("DELETE", "/open/a.json", headers=["If-Match: null_etag"])
    server.request("DELETE", "/open/a.json")
    server.request("GET", "/open/a.json?shallow=true", host="eu--demo.localhost")
    assert shown(server, opened, "path", "bytes", "allowed", "status") == [
        ("rest-write", ["open", "a"], 8, True, 200),
        ("rest-read", ["open", "a"], 7, True, 200),
        ("rest-update", ["open", "a"], 8, True, 200),
        ("rest-write", ["open", "list"], 4, True, 200),
        ("rest-transaction", ["open", "a"], 0, True, 412),
        ("rest-write", ["open", "a"], 0, True, 200),
    ]


def test_an_operation_says_when_how_long_and_whose_it_was(server: InspectedServer) -> None:
    opened = profile(server)
    server.request("GET", "/open/a.json")
    (read,) = operations(server, opened)
    assert read["millis"] >= 0
    assert {**read, "millis": 0} == {
        "name": "rest-read",
        "path": ["open", "a"],
        "querySet": [],
        "unIndexed": False,
        "millis": 0,
        "bytes": 4,
        "allowed": True,
        "status": 200,
        "client": {"remoteAddress": {"address": "192.0.2.1"}},
        "timestamp": 1_700_000_000_000,
    }


def test_what_was_denied_is_not_allowed(server: InspectedServer) -> None:
    opened = profile(server)
    server.request("PUT", "/own/a.json", b"1")
    server.request("GET", "/own.json")
    server.request("GET", "/own.json", headers=EVENTS)
    server.request("PUT", "/open/a.json", b"{")
    server.request("GET", "/open/a.json?auth=x")
    assert shown(server, opened, "allowed", "status") == [
        ("rest-write", False, 403),
        ("rest-read", False, 403),
        ("listener-listen", False, 403),
        ("rest-write", True, 400),
        ("rest-read", True, 401),
    ]


def test_a_query_without_an_index_says_which_one_it_needs(server: InspectedServer) -> None:
    opened = profile(server)
    for query in ('"by"&limitToFirst=3', '"other/deep"', '"$value"', '"$key"&equalTo="a"'):
        server.request("GET", f"/open.json?orderBy={query}")
    first, *others = shown(server, opened, "unIndexed", "querySet")
    by = {"orderBy": "by", "index": {"path": ["by"]}, "limitToFirst": 3}
    assert first == ("rest-read", False, [by])
    assert others == [
        ("rest-read", True, [{"orderBy": "other/deep", "index": {"path": ["other", "deep"]}}]),
        ("rest-read", True, [{"orderBy": "$value", "index": {"path": [".value"]}}]),
        ("rest-read", False, [{"orderBy": "$key", "index": {}}]),
    ]


def test_a_stream_is_a_listen_then_broadcasts_then_an_unlisten(server: InspectedServer) -> None:
    opened = profile(server)
    streams = [server.open_stream("/open.json") for _ in range(2)]
    server.open_stream("/open/a.json?describe=true")
    assert shown(server, opened, "path", "bytes", "allowed") == [
        ("listener-listen", ["open"], 4, True),
        ("listener-listen", ["open"], 4, True),
        ("listener-listen", ["open", "a"], 0, True),
    ]
    server.request("PUT", "/open/a.json", b"1")
    write, *broadcast = shown(server, opened, "path", "bytes", "clientsUpdated")
    assert write == ("rest-write", ["open", "a"], 1, None)
    frame = len('event: put\ndata: {"path":"/a","data":1}\n\n')
    changed = len('event: changed\ndata: {"path":"/"}\n\n')
    assert broadcast == [("listener-broadcast", ["open", "a"], 2 * frame + changed, 3)]
    streams[0].peer.disconnect()
    assert shown(server, opened, "path") == [("listener-unlisten", ["open"])]


def test_an_open_stream_is_profiled_and_a_profile_that_ends_leaves_it(
    server: InspectedServer,
) -> None:
    stream = server.open_stream("/open.json")
    opened = profile(server)
    server.clock.advance(0)
    server.request("PUT", "/open/a.json", b"1")
    assert ("listener-broadcast", 1) in shown(server, opened, "clientsUpdated")
    opened.peer.disconnect()
    server.clock.advance(WATCHED_S + 1)
    server.request("PUT", "/open/a.json", b"2")
    assert stream.read_events()[-1] == ("put", '{"path":"/a","data":2}')


def test_a_stream_that_falls_short_begins_again_with_its_value(server: InspectedServer) -> None:
    opened = profile(server)
    stream = server.open_stream("/open.json?resume=true", room=10)
    (open_stream,) = [
        each for each in server.resource.streams.listeners if isinstance(each, Stream)
    ]
    open_stream._queue.overflow()
    stream.peer.transport.room = None
    stream.producer.resumeProducing()
    names = shown(server, opened, "bytes", "clientsUpdated")
    assert names == [("listener-listen", 4, None), ("listener-broadcast", 4, 1)]
    server.request("PUT", "/open/a.json", b"1")
    server.events(opened)
    headers = f"Last-Event-ID: {stream.ids[-1] if stream.read_events() and stream.ids else '0'}\r\n"
    server.open_stream("/open.json?resume=true", headers)
    assert shown(server, opened)[0] == ("listener-listen",)


def test_what_a_socket_requests_are_operations(server: InspectedServer) -> None:
    opened = profile(server)
    socket = open_socket(server)
    send(server, socket, 1, "q", {"p": "open"})
    send(server, socket, 2, "p", {"p": "open/a", "d": {"x": 1}})
    send(server, socket, 3, "p", {"p": "open/a", "d": 2, "h": "wrong"})
    send(server, socket, 4, "m", {"p": "open", "d": {"b": 1}})
    send(server, socket, 5, "p", {"p": "open/a", "d": None})
    send(server, socket, 6, "g", {"p": "open"})
    send(server, socket, 7, "n", {"p": "open"})
    found = shown(server, opened, "path", "bytes", "allowed")
    broadcasts = [each[:2] for each in found if each[0] == "listener-broadcast"]
    assert [each for each in found if each[0] != "listener-broadcast"] == [
        ("concurrent-connect", None, None, None),
        ("listener-listen", ["open"], 4, True),
        ("realtime-write", ["open", "a"], 7, True),
        ("realtime-transaction", ["open", "a"], 1, True),
        ("realtime-update", ["open"], 7, True),
        ("realtime-write", ["open", "a"], 0, True),
        ("realtime-read", ["open"], 7, True),
        ("listener-unlisten", ["open"], None, None),
    ]
    assert broadcasts == [
        ("listener-broadcast", ["open", "a"]),
        ("listener-broadcast", ["open"]),
        ("listener-broadcast", ["open", "a"]),
    ]


def test_what_a_socket_does_at_its_end_are_operations(server: InspectedServer) -> None:
    opened = profile(server)
    socket = open_socket(server)
    send(server, socket, 1, "o", {"p": "open/a", "d": 12})
    send(server, socket, 2, "om", {"p": "open/b", "d": {"c": 1}})
    send(server, socket, 3, "oc", {"p": "open/b"})
    send(server, socket, 4, "o", {"p": "own/a", "d": 1})
    send(server, socket, 5, "q", {"p": "open"})
    assert shown(server, opened, "path", "bytes", "allowed")[1:] == [
        ("on-disconnect-put", ["open", "a"], 2, True),
        ("on-disconnect-update", ["open", "b"], 7, True),
        ("on-disconnect-cancel", ["open", "b"], None, True),
        ("on-disconnect-put", ["own", "a"], 1, False),
        ("listener-listen", ["open"], 4, True),
    ]
    socket.disconnect()
    names = [name for (name,) in shown(server, opened)]
    assert sorted(names) == ["concurrent-disconnect", "listener-unlisten", "run-on-disconnect"]


def test_what_a_socket_is_refused_is_an_operation(server: InspectedServer) -> None:
    opened = profile(server)
    socket = open_socket(server)
    send(server, socket, 1, "q", {"p": "own"})
    send(server, socket, 2, "g", {"p": "own", "q": {"i": "n", "l": 2}})
    send(server, socket, 3, "q", {"p": "open", "q": {"i": []}})
    send(server, socket, 4, "q", {"p": "a#b"})
    send(server, socket, 5, "q", {"p": "open", "q": {"i": "n", "l": 1}, "t": 1})
    send(server, socket, 6, "p", {"p": "own", "d": "x" * 100_000})
    _, *found = shown(server, opened, "path", "bytes", "allowed", "status", "unIndexed")
    assert found == [
        ("listener-listen", ["own"], 0, False, 403, False),
        ("realtime-read", ["own"], 0, False, 403, True),
        ("listener-listen", ["open"], 0, True, 400, False),
        ("listener-listen", [], 0, True, 400, False),
        ("listener-listen", ["open"], 4, True, None, True),
        ("realtime-write", ["own"], 100_002, False, 403, None),
    ]


def test_open_listens_are_profiled(server: InspectedServer) -> None:
    socket = open_socket(server)
    send(server, socket, 1, "q", {"p": "open"})
    opened = profile(server)
    server.clock.advance(0)
    send(server, socket, 2, "p", {"p": "open/a", "d": 1})
    assert shown(server, opened, "clientsUpdated") == [
        ("realtime-write", None),
        ("listener-broadcast", 1),
    ]


def test_a_listen_whose_client_has_the_value_sends_none(server: InspectedServer) -> None:
    server.request("PUT", "/open/a.json", b'"text"')
    opened = profile(server)
    socket = open_socket(server)
    for number, claimed in enumerate((data_hash(from_export("text")), "another")):
        send(server, socket, number, "q", {"p": "open/a", "h": claimed})
    listens = [each for each in shown(server, opened, "bytes") if each[0] == "listener-listen"]
    assert listens == [("listener-listen", 0), ("listener-listen", 6)]


# Bounds, and what is not shown.


def test_long_paths_are_cut(server: InspectedServer) -> None:
    opened = profile(server)
    server.request("GET", f"/open/{'ä' * (MAX_KEY + 1)}/b.json")
    server.request("GET", "/" + "/".join(["k"] * (MAX_KEYS - 1)) + ".json")
    server.request("GET", "/" + "/".join(["k" * 100] * 30) + ".json")
    long, deep, large = operations(server, opened)
    assert long["path"] == ["open", "ä" * MAX_KEY + "…", "b"]
    assert deep["path"] == ["k"] * (MAX_KEYS - 1)
    assert large["path"][-1] == "…"
    assert sum(map(len, large["path"])) <= MAX_PATH + 101
    assert module.cut_path("k" * (MAX_KEYS + 1), str)[MAX_KEYS:] == ["…"]


@pytest.mark.parametrize("secret", [None, "dev-secret"])
def test_neither_a_value_nor_a_token_is_shown(tmp_path: pathlib.Path, secret: str | None) -> None:
    network = None if secret is None else LocalNetwork(secret, (), ("192.0.2.9",))
    server = InspectedServer(tmp_path, RULES, attrs.evolve(SETTINGS, network=network))
    opened = profile(server)
    signature = token_of().rpartition(".")[2]
    server.request("PUT", f"/open/a.json?auth={JWT}", b'{"v": "a value"}')
    server.request("GET", f"/open/{signature}.json")
    server.request("GET", "/open/dev-secret.json?orderBy=%22dev-secret%22&startAt=%22a%20value%22")
    server.request("GET", f"/open/a.json?access_token={JWT}&orderBy=%22{signature}%22")
    stream = server.open_stream(f"/open.json?auth={token_of()}")
    text = json.dumps(operations(server, opened))
    assert len(stream.read_events()) == 1
    for hidden in (JWT, signature, "a value", token_of(), *([secret] if secret else [])):
        assert hidden not in text


def test_a_slow_reader_loses_operations_and_is_shown_how_many(
    server: InspectedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ProfileFeed, "most_waiting", 20)
    opened = profile(server, room=400)
    for number in range(3):
        server.request("GET", f"/open/{number}.json")
    server.clock.advance(0.2)
    for number in range(50):
        assert server.request("GET", f"/open/x{number}.json").status == 200
    opened.peer.transport.room = None
    opened.producer.resumeProducing()
    found = operations(server, opened)
    (lost,) = [each for each in found if each["name"] == "operations-lost"]
    assert lost == {"name": "operations-lost", "count": 30, "timestamp": 1_700_000_000_000}
    assert found[-1]["path"] == ["open", "x49"]
    assert len(found) == 3 + 1 + 20


def test_the_bytes_that_wait_have_a_bound(
    server: InspectedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ProfileFeed, "most_waiting_bytes", 1000)
    opened = profile(server, room=10)
    for number in range(50):
        server.request("GET", f"/open/{number}.json")
    (feed,) = server.resource.streams.listeners
    assert isinstance(feed, ProfileFeed)
    assert sum(map(len, feed._waiting)) == feed._waiting_bytes <= 1000
    opened.peer.transport.room = None
    opened.producer.resumeProducing()
    found = operations(server, opened)
    assert sum(each.get("count", 1) for each in found) == 50


def test_many_broadcasts_are_shown_before_their_time(
    server: InspectedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_GATHERED", 2)
    opened = profile(server)
    server.open_stream("/open.json")
    for number in range(5):
        server.request("PUT", f"/open/{number}.json", b"1")
    assert len(server.inspection.profiler._gathered) <= 2
    names = [name for (name,) in shown(server, opened)]
    assert names.count("listener-broadcast") == 5


def test_a_project_has_a_few_profiles_at_most(server: InspectedServer) -> None:
    feeds = [profile(server) for _ in range(MAX_FEEDS)]
    refused = server.request("GET", f"{PROFILE}?auth={token_of()}", headers=EVENTS)
    assert refused.status == 429
    feeds[0].peer.disconnect()
    server.clock.advance(0)
    assert profile(server).read_events() == [("keep-alive", "null")]


def test_a_profile_ends_with_its_database(server: InspectedServer) -> None:
    server.request("PUT", "/open/a.json", b"1")
    opened = profile(server)
    (feed,) = server.resource.streams.listeners
    feed.revoke()
    assert ("cancel", "null") in opened.read_events()
    assert opened.peer.is_closed


def test_what_is_gathered_when_the_server_stops_is_dropped(server: InspectedServer) -> None:
    opened = profile(server)
    server.open_stream("/open.json")
    server.request("PUT", "/open/a.json", b"1")
    server.inspection.close()
    server.clock.advance(1)
    assert "listener-broadcast" not in [name for (name,) in shown(server, opened)]


# Several processes.


def test_a_profile_shows_the_operations_of_all_processes(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").mkdir()
    first = InspectedServer(tmp_path, RULES)
    second = InspectedServer(tmp_path / "other", RULES)
    first.inspection.ask_others = others_of(second)
    second.request("GET", "/open/before.json")
    opened = profile(first)
    first.request("GET", "/open/own.json")
    second.request("GET", "/open/other.json")
    paths = [each["path"][1] for each in operations(first, opened)]
    assert sorted(paths) == ["other", "own"]
    monkeypatch.setattr("treedbd.web.inspection.UNPACKED_BYTES", 500)
    for number in range(9):
        second.request("GET", f"/open/{number}.json")
    paths = [each["path"][1] for each in operations(first, opened)]
    assert paths == [str(number) for number in range(9)]
    watched = second.inspection.profiler._watched
    (name,) = watched
    for number in range(module.KEPT + 5):
        watched[name].add(b'{"name":"rest-read","path":["open","%d"]}' % number)
    monkeypatch.undo()
    found = operations(first, opened)
    assert found[0]["name"] == "operations-lost"
    assert found[0]["count"] == 5
    assert [each["path"][1] for each in found[1:]] == [str(at) for at in range(5, module.KEPT + 5)]
    opened.peer.disconnect()
    first.clock.advance(2)
    assert first.inspection._operations_followed._after == {}


def test_what_cannot_be_printed_has_no_size_and_ends_no_session(server: InspectedServer) -> None:
    opened = profile(server)
    socket = open_socket(server)
    deep: Any = 1
    for _ in range(600):
        deep = [deep]
    send(server, socket, 1, "p", {"p": "open/a", "d": deep})
    send(server, socket, 2, "p", {"p": "open/a", "d": 123456789012345678901234567890})
    send(server, socket, 3, "p", {"p": "open/a", "d": 1, "h": 7})
    send(server, socket, 4, "p", {"p": 5, "d": 1})
    send(server, socket, 5, "g", {"p": "open", "q": 3})
    assert shown(server, opened, "path", "bytes", "status", "allowed")[1:] == [
        ("realtime-write", ["open", "a"], None, 400, True),
        ("realtime-write", ["open", "a"], 22, 200, True),
        ("realtime-transaction", ["open", "a"], 1, 400, True),
        ("realtime-write", [], 1, 400, True),
        ("realtime-read", ["open"], 0, 400, True),
    ]
