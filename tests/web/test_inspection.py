"""Requests as they come, and the connections of a project, as an admin is shown them."""

from __future__ import annotations

import json
import pathlib
import random
from typing import Any
from urllib.parse import quote

import attrs
import pytest

from tests.web.inspected_server import (
    REQUESTS,
    InspectedServer,
    members,
    send,
    token_of,
)
from tests.web.test_freed_at_the_end import open_socket
from tests.web.tree_server import SETTINGS
from treedbd.config.endpoints import LocalNetwork
from treedbd.http1.registry import RequestLogging
from treedbd.http1.request import Request
from treedbd.web import inspection as module
from treedbd.web.feeds import MAX_FEEDS
from treedbd.web.inspection import (
    MAX_CONNECTIONS,
    MAX_WAITING,
    RequestFeed,
    pack,
    unpack,
)
from treedbd.web.realtime.observed import ObservedSession
from treedbd.web.seen_requests import DENIED_BYTES, KEPT, MAX_WATCHED, WATCHED_S

CONNECTIONS = "/.inspect/connections.json"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJhIjoxfQ.c2lnbmF0dXJl"


@pytest.fixture
def server(tmp_path: pathlib.Path) -> InspectedServer:
    return InspectedServer(tmp_path)


@pytest.mark.parametrize("place", [REQUESTS, CONNECTIONS])
def test_only_an_admin_is_shown_anything(server: InspectedServer, place: str) -> None:
    for token, status in ((token_of(uid="ada"), 403), ("", 401), (token_of("shop"), 401)):
        assert server.request("GET", f"{place}?auth={token}").status == status
        stream = ["Accept: text/event-stream"]
        assert server.request("GET", f"{place}?auth={token}", headers=stream).status == status
    assert server.request("PUT", f"{place}?auth={token_of()}", b"1").status == 405
    assert server.request("OPTIONS", place).status in (200, 204)
    assert server.request("HEAD", f"{place}?auth={token_of()}").status == 200


@pytest.mark.parametrize("place", [REQUESTS, CONNECTIONS])
def test_an_explanation_says_that_no_rule_applies(server: InspectedServer, place: str) -> None:
    explain = ["X-TreeDB-Explain: true"]
    reply = server.request("GET", f"{place}?auth={token_of()}", headers=explain)
    assert json.loads(reply.body)["allowed"] is True


def test_requests_are_recorded_once_they_were_asked_for(server: InspectedServer) -> None:
    server.request("PUT", "/open/a.json", b"1")
    assert server.seen() == []
    server.request("PUT", "/open/a.json", b"[1]")
    server.request("GET", "/open/a.json?print=pretty")
    server.request("PUT", "/open/a.json", b"1", host="eu--demo.localhost")
    server.request("PUT", "/open/a.json", b"1", host="shop.localhost")
    put, get, other = server.seen()
    assert members([put, get, other], "method", "path", "status", "database") == [
        ("PUT", "/open/a", 200, "demo"),
        ("GET", "/open/a", 200, "demo"),
        ("PUT", "/open/a", 200, "eu--demo"),
    ]
    assert members([put, get], "kind", "code", "uid", "admin", "address", "query") == [
        ("request", None, None, False, "192.0.2.1", ""),
        ("request", None, None, False, "192.0.2.1", "print=pretty"),
    ]
    assert (put["received"], put["sent"]) == (3, 3)
    assert put["ms"] >= 0
    assert put["time"] == "2023-11-14T22:13:20.000Z"
    assert put["id"] != get["id"]


def test_nothing_is_recorded_after_a_minute_in_which_nothing_was_asked(
    server: InspectedServer,
) -> None:
    connections, peer = server.factory.connections, server.connect()
    at_rest = connections.logs
    server.seen()
    assert connections.logs is not at_rest
    assert peer.connection._logs is connections.logs
    server.clock.advance(WATCHED_S - 1)
    server.seen()
    server.clock.advance(WATCHED_S - 1)
    assert connections.logs is not at_rest
    server.clock.advance(2)
    assert connections.logs is at_rest
    assert peer.connection._logs is at_rest
    assert server.resource._refuse.watchers == []
    server.request("GET", "/open.json")
    assert server.seen() == []


def test_requests_are_still_logged_as_they_were(tmp_path: pathlib.Path) -> None:
    logged: list[str] = []

    def log(request: Request) -> None:
        logged.append(request.shown_path)

    server = InspectedServer(tmp_path, logs=RequestLogging(log, log))
    server.seen()
    server.request("GET", "/open.json")
    peer = server.get("/open/a.json", "Accept: text/event-stream\r\n")
    peer.disconnect()
    assert logged == [REQUESTS, "/open.json", "/open/a.json"]
    slow = InspectedServer(tmp_path / "slow", logs=RequestLogging(log, log, least_s=60))
    slow.seen()
    slow.request("GET", "/open.json")
    assert len(logged) == 3
    assert len(slow.seen()) == 1


def test_the_last_requests_are_kept_and_no_more(server: InspectedServer) -> None:
    server.seen()
    for number in range(KEPT + 20):
        server.request("GET", f"/open/{number}.json")
    paths = [each["path"] for each in server.seen()]
    assert paths == [f"/open/{number}" for number in range(20, KEPT + 20)]


def test_a_denied_request_is_shown_with_whom_and_what(server: InspectedServer) -> None:
    server.seen()
    server.request("PUT", f"/own/a.json?auth={token_of(uid='bob')}", b'{"x": 1}')
    server.request("PUT", "/own/a.json", b"1")
    server.request("PUT", f"/own/a.json?auth={token_of()}&auth_variable_override=null", b"1")
    server.request("PUT", f"/own/a.json?auth={token_of(uid='ada')}", b"1")
    bob, nobody, overridden, ada = server.seen()
    assert (bob["status"], bob["code"], bob["uid"]) == (403, "permission_denied", "bob")
    assert bob["auth"]["uid"] == "bob"
    assert bob["body"] == {"x": 1}
    assert (nobody["auth"], nobody["uid"], nobody["body"]) == (None, None, 1)
    assert (overridden["auth"], overridden["admin"]) == (None, False)
    assert (ada["status"], ada["uid"]) == (200, "ada")
    assert "auth" not in ada
    assert "body" not in ada


def test_no_token_with_escapes_is_shown(server: InspectedServer) -> None:
    escaped, begun = JWT.replace("J", "\\u004a"), JWT.replace("e", "\\u0065")
    server.seen()
    for text in (escaped, begun):
        body = f'{{"t":["{text}"],"x {text}":"a\\n{text} b","n":1.50}}'
        server.request("PUT", "/own/a.json", body.encode())
    for query in (f'equalTo="a" {escaped}', f'where={{"x":"{escaped}"}}', f'equalTo="{begun}"'):
        server.request("GET", "/own/a.json?" + quote(query, safe="="))
    seen = server.seen()
    assert [each["body"] for each in seen[:2]] == [{"t": ["…"], "x …": "a\n… b", "n": 1.5}] * 2
    assert [each["query"] for each in seen[2:]] == ["equalTo=…", 'where={"x":"…"}', 'equalTo="…"']


def test_no_signature_alone_is_shown(server: InspectedServer) -> None:
    signature = token_of().rpartition(".")[2]
    assert len(signature) == 43
    server.seen()
    server.request("PUT", f"/own/{signature}.json", json.dumps({"s": signature}).encode())
    server.request("PUT", f'/own/a.json?orderBy="{signature}"', json.dumps("a" * 64).encode())
    first, second = server.seen()
    assert (first["path"], first["body"]) == ("/own/…", {"s": "…"})
    assert (second["query"], second["body"]) == ('orderBy="…"', "a" * 64)


def test_a_long_or_malformed_body_is_left_out(server: InspectedServer) -> None:
    server.seen()
    server.request("PUT", "/own/a.json", json.dumps("x" * DENIED_BYTES).encode())
    server.request("PUT", "/own/a.json", b"{")
    server.request("PUT", "/own/a.json", b"1", headers=["Content-Encoding: gzip"])
    for each in server.seen("status=denied"):
        assert "body" not in each


@pytest.mark.parametrize("secret", [None, "dev-secret"])
def test_no_token_is_shown(tmp_path: pathlib.Path, secret: str | None) -> None:
    network = None if secret is None else LocalNetwork(secret, (), ("192.0.2.9",))
    options = attrs.evolve(SETTINGS, network=network)
    server = InspectedServer(tmp_path, options=options)
    server.follow()
    server.seen()
    body = json.dumps({"token": JWT, "text": "dev-secret"}).encode()
    server.request("PUT", f"/own/a.json?auth={token_of(uid='ada')}x", body)
    server.request("PUT", f"/own/{JWT}.json?access_token=dev-secret", body)
    server.request("PUT", f"/own/dev-secret.json?equalTo=%22{JWT}%22", body)
    server.request("PUT", f"/own/a.json%3Fauth={JWT}", body)
    server.request("GET", f"/own/dev-secret?auth={JWT}")
    server.request("PUT", f"/own/a.json?auth_variable_override=%7B%22a%22:%22{JWT}%22%7D", body)
    server.request("GET", "/own.json", headers=[f"User-Agent: {JWT}", f"X-Other: {JWT}"])
    server.request("GET", f"/own/{JWT.partition('.')[0]}.json")
    server.request("GET", "/own/%64ev-secret")
    text = json.dumps(server.seen())
    assert len(server.seen()) == 9
    assert secret is None or "%64ev-secret" not in text
    for token in (JWT, JWT.partition(".")[0], token_of(uid="ada"), secret or JWT):
        assert token not in text
    assert '"auth=\\u2026"' in text
    assert '"token": "\\u2026"' in text


def test_requests_that_cannot_be_parsed_are_shown_too(server: InspectedServer) -> None:
    server.seen()
    server.request("GET", "/open/a")
    server.request("GET", "/open/a.json?orderBy=age")
    server.request("BREW", "/open/a.json")
    server.request("GET", "/open.json?auth=nonsense")
    server.request("GET", "/open.json", host="elsewhere.example")
    assert members(server.seen(), "path", "status", "code") == [
        ("/open/a", 404, "not_found"),
        ("/open/a", 400, "invalid_query"),
        ("/open/a.json", 405, "method_not_allowed"),
        ("/open", 401, "auth_required"),
    ]


def test_a_client_that_does_not_wait_is_shown_with_status_499(server: InspectedServer) -> None:
    server.seen()
    server.begin_write("PUT", "/open/a", 1).disconnect()
    server.clock.advance(0)
    assert members(server.seen(), "method", "status") == [("PUT", 499)]


def test_the_own_requests_of_a_console_are_left_out(server: InspectedServer) -> None:
    server.seen()
    server.ask("/.inspect/activity.json")
    server.ask(CONNECTIONS)
    server.request("GET", REQUESTS)
    server.request("GET", "/.console/none.js")
    server.ask("/.settings/rules.json?format=strict")
    assert members(server.seen(), "path", "admin") == [("/.settings/rules.json", True)]


def test_a_stream_is_shown_when_it_opens(server: InspectedServer) -> None:
    server.seen()
    stream = server.open_stream("/open.json?orderBy=%22$key%22")
    denied = server.get(f"/own.json?auth={JWT}", "Accept: text/event-stream\r\n")
    assert denied.read()[0].status == 401
    shown = members(server.seen(), "kind", "status", "path", "query")
    assert shown == [
        ("stream", 200, "/open", 'orderBy="$key"'),
        ("stream", 401, "/own", "auth=…"),
    ]
    stream.peer.disconnect()
    server.clock.advance(0)
    assert len(server.seen()) == 2


def test_the_end_of_a_stream_is_not_shown_as_another_request(server: InspectedServer) -> None:
    server.seen()
    server.open_stream("/open.json")
    server.resource.streams.end()
    server.open_stream("/open.json").peer.disconnect()
    server.clock.advance(0)
    assert members(server.seen(), "kind", "status") == [("stream", 200)] * 2


def test_keys_beyond_ascii_are_shown_as_they_are(server: InspectedServer) -> None:
    server.seen()
    server.get("/open/Z%C3%BCrich/%E6%9D%B1%E4%BA%AC.json")
    server.get("/open/a%25b.json")
    assert members(server.seen("path=/open/Z%C3%BCrich"), "path") == [("/open/Zürich/東京",)]
    assert members(server.seen(), "path")[-1] == ("/open/a%b",)


@pytest.mark.parametrize(
    ("query", "paths"),
    [
        ("", ["/open/a", "/open/ab", "/own/a", "/open/a/b", "/none"]),
        ("path=/open/a", ["/open/a", "/open/a/b"]),
        ("path=open/a/", ["/open/a", "/open/a/b"]),
        ("path=/", ["/open/a", "/open/ab", "/own/a", "/open/a/b", "/none"]),
        ("status=403", ["/own/a"]),
        ("status=denied", ["/own/a"]),
        ("status=4xx", ["/own/a", "/none"]),
        ("status=5xx", []),
        ("uid=ada", ["/open/ab"]),
        ("uid=", ["/open/a", "/own/a", "/open/a/b", "/none"]),
        ("slower=60000", []),
        ("slower=0", ["/open/a", "/open/ab", "/own/a", "/open/a/b", "/none"]),
        ("database=eu--demo", ["/open/a/b"]),
        ("database=demo&path=/open&status=2xx", ["/open/a", "/open/ab"]),
    ],
)
def test_the_filters_select_requests(server: InspectedServer, query: str, paths: list[str]) -> None:
    feed = server.follow(query)
    server.request("GET", "/open/a.json")
    server.request("GET", f"/open/ab.json?auth={token_of(uid='ada')}")
    server.request("PUT", "/own/a.json", b"1")
    server.request("PUT", "/open/a/b.json", b"1", host="eu--demo.localhost")
    server.request("GET", "/none")
    assert [each["path"] for each in server.seen(query)] == paths
    sent = [data["path"] for kind, data in server.events(feed) if kind == "request"]
    assert sent == paths


@pytest.mark.parametrize(
    "query", ["status=40", "status=6xx", "slower=fast", "slower=-1", "path=/a&path=/b", "uid=%zz"]
)
def test_a_malformed_filter_is_an_error(server: InspectedServer, query: str) -> None:
    for headers in ([], ["Accept: text/event-stream"]):
        reply = server.request("GET", f"{REQUESTS}?auth={token_of()}&{query}", headers=headers)
        assert (reply.status, json.loads(reply.body)["error"]) == (400, "invalid_query")


def test_a_feed_sends_each_request_as_it_comes(server: InspectedServer) -> None:
    feed = server.follow()
    assert feed.read_events() == [("keep-alive", "null")]
    server.request("GET", "/open/a.json")
    server.request("PUT", "/own/a.json", b"1")
    (first, get), (second, put) = server.events(feed)
    assert (first, second) == ("request", "request")
    assert [get, put] == server.seen()
    assert (get["path"], put["body"]) == ("/open/a", 1)


def test_a_feed_records_for_as_long_as_it_is_open(server: InspectedServer) -> None:
    feed = server.follow()
    server.clock.advance(10 * WATCHED_S)
    server.request("GET", "/open/a.json")
    assert "request" in [kind for kind, _ in server.events(feed)]
    feed.peer.disconnect()
    server.clock.advance(WATCHED_S + 1)
    server.clock.advance(WATCHED_S + 1)
    assert not server.inspection.recorder.is_recording


def test_a_feed_sends_keep_alives(server: InspectedServer) -> None:
    feed = server.follow()
    feed.read_events()
    for _ in range(40):
        server.clock.advance(1)
    assert ("keep-alive", "null") in feed.read_events()


def test_what_a_slow_reader_does_not_read_is_dropped_and_counted(server: InspectedServer) -> None:
    feed = server.follow(room=500)
    for number in range(3):
        server.request("GET", f"/open/{number}.json")
    server.clock.advance(0.2)
    (open_feed,) = server.resource.streams.listeners
    assert isinstance(open_feed, RequestFeed)
    for number in range(MAX_WAITING + 30):
        server.request("GET", f"/open/x{number}.json")
    server.clock.advance(0.2)
    assert len(open_feed._waiting) == MAX_WAITING
    feed.peer.transport.room = None
    sent = feed.read_events()
    feed.producer.resumeProducing()
    sent += feed.read_events()
    for _ in range(12):
        server.clock.advance(0.1)
        sent += feed.read_events()
    dropped = [json.loads(data) for kind, data in sent if kind == "dropped"]
    assert dropped == [{"count": 30}]
    paths = [json.loads(data)["path"] for kind, data in sent if kind == "request"]
    assert paths[-1] == f"/open/x{MAX_WAITING + 29}"
    assert len(paths) == 3 + MAX_WAITING


def test_a_reader_that_stalls_is_cut_off(server: InspectedServer) -> None:
    feed = server.follow(room=100)
    server.request("GET", "/open/a.json")
    for _ in range(100):
        server.clock.advance(1)
    assert feed.peer.is_dropped
    assert len(server.resource.streams) == 0


def test_a_project_has_a_few_feeds_at_most(server: InspectedServer) -> None:
    feeds = [server.follow() for _ in range(MAX_FEEDS)]
    headers = ["Accept: text/event-stream"]
    refused = server.request("GET", f"{REQUESTS}?auth={token_of()}", headers=headers)
    assert refused.status == 429
    feeds[0].peer.disconnect()
    server.clock.advance(0)
    assert server.follow().read_events() == [("keep-alive", "null")]


def test_the_head_of_a_feed_is_that_of_a_stream(server: InspectedServer) -> None:
    headers = ["Accept: text/event-stream"]
    reply = server.request("HEAD", f"{REQUESTS}?auth={token_of()}", headers=headers)
    assert reply[b"content-type"] == b"text/event-stream; charset=utf-8"
    assert len(server.resource.streams) == 0
    assert not server.inspection.recorder.is_recording


def test_a_feed_counts_as_a_stream(tmp_path: pathlib.Path) -> None:
    limits = attrs.evolve(SETTINGS.limits, streams_per_address=1)
    server = InspectedServer(tmp_path, options=attrs.evolve(SETTINGS, limits=limits))
    server.follow()
    headers = ["Accept: text/event-stream"]
    assert server.request("GET", "/open.json", headers=headers).status == 429


def test_a_feed_ends_when_its_token_expires_or_the_server_stops(
    server: InspectedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = token_of(uid="x", admin=True, exp=1_700_000_005)
    short = server.open_stream(f"{REQUESTS}?auth={token}")
    long = server.follow()
    server.pass_s(monkeypatch, 17)
    assert ("auth_revoked", "credential is no longer valid") in short.read_events()
    assert short.peer.is_closed
    assert not long.peer.is_closed
    server.resource.streams.end()
    assert long.peer.is_closed
    assert len(server.resource.streams) == 0


def test_only_so_many_projects_are_recorded(tmp_path: pathlib.Path) -> None:
    server = InspectedServer(tmp_path)
    recorder = server.inspection.recorder
    server.follow()
    (feed,) = server.resource.streams.listeners
    assert isinstance(feed, RequestFeed)
    recorder.watch("followed").followers.append(feed)
    for number in range(MAX_WATCHED + 5):
        recorder.watch(f"p{number}")
    assert len(recorder._watched) == MAX_WATCHED
    assert recorder.follows("followed")
    assert f"p{MAX_WATCHED + 4}" in recorder._watched


def test_a_closed_inspection_waits_for_nothing(server: InspectedServer) -> None:
    server.seen()
    server.ask("/.inspect/activity.json")
    server.inspection.close()
    assert not server.inspection.recorder.is_recording
    calls: Any = server.clock.getDelayedCalls()
    waiting = [call.func.__qualname__ for call in calls]
    assert waiting == ["Connections._sweep"]


def test_streams_and_sockets_are_shown_newest_first(server: InspectedServer) -> None:
    server.open_stream("/open/a.json?orderBy=%22$key%22&limitToFirst=2", "User-Agent: x\r\n")
    second = server.open_stream(f"/open/b.json?auth={token_of(uid='ada')}", host="192.0.2.7")
    server.follow()
    peer = open_socket(server)
    send(server, peer, 1, "s", {"c": {"sdk.js.10-1-0": 1}})
    send(server, peer, 2, "q", {"p": "open", "h": ""})
    send(server, peer, 3, "o", {"p": "open/left", "d": 1})
    server.write("PUT", "/open/b", 1)
    server.write("PUT", "/open/b", 2)
    shown = server.ask(CONNECTIONS)
    streams, sockets = shown["streams"], shown["sockets"]
    assert (streams["count"], sockets["count"]) == (2, 1)
    assert members(streams["shown"], "path", "uid", "address", "query", "events") == [
        ("/open/b", "ada", "192.0.2.7", "auth=…", 2),
        ("/open/a", None, "192.0.2.1", 'orderBy="$key"&limitToFirst=2', 0),
    ]
    assert streams["shown"][0]["bytes"] > streams["shown"][1]["bytes"] > 0
    (socket,) = sockets["shown"]
    assert socket["since"].endswith("Z")
    assert {**socket, "since": ""} == {
        "database": "demo",
        "uid": None,
        "admin": False,
        "address": "192.0.2.1",
        "since": "",
        "listens": 1,
        "on_disconnect": True,
        "client": "sdk.js.10-1-0",
    }
    second.peer.disconnect()
    assert server.ask(CONNECTIONS)["streams"]["count"] == 1


def test_the_client_of_a_socket_is_what_it_calls_itself(server: InspectedServer) -> None:
    open_socket(server)
    (socket,) = server.ask(CONNECTIONS)["sockets"]["shown"]
    assert socket["client"] == ""


def test_connections_of_other_projects_are_not_shown(server: InspectedServer) -> None:
    server.open_stream("/open.json")
    shown = server.ask(CONNECTIONS, "shop")
    assert shown == {
        "streams": {"count": 0, "shown": []},
        "sockets": {"count": 0, "shown": []},
    }


def test_of_many_connections_the_newest_are_shown(
    server: InspectedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_CONNECTIONS", 3)
    assert MAX_CONNECTIONS == 500
    for number in range(5):
        server.open_stream(f"/open/{number}.json")
    streams = server.ask(CONNECTIONS)["streams"]
    assert streams["count"] == 5
    assert [each["path"] for each in streams["shown"]] == ["/open/4", "/open/3", "/open/2"]


def test_a_long_answer_to_another_process_loses_its_oldest_items() -> None:
    noise = [random.Random(number).randbytes(4000).hex() for number in range(60)]
    packed = pack({"count": 60, "requests": noise}, "requests")
    kept = unpack(packed)["requests"]
    assert 0 < len(kept) < 60
    assert kept == noise[-len(kept) :]
    assert unpack(pack({"count": 1, "requests": ["x"]}, "requests"))["requests"] == ["x"]


def others_of(other: InspectedServer) -> Any:
    """Return what asks another server, as if it were the worker 7."""

    async def ask(question: bytes) -> dict[int, bytes]:
        return {7: await other.inspection.answer(question, 7)}

    return ask


@pytest.fixture
def pair(tmp_path: pathlib.Path) -> tuple[InspectedServer, InspectedServer]:
    """Return two servers, of which the first asks the second."""
    (tmp_path / "other").mkdir()
    first, second = InspectedServer(tmp_path), InspectedServer(tmp_path / "other")
    first.inspection.ask_others = others_of(second)
    return first, second


def test_the_requests_of_all_processes_are_shown_in_their_order(
    pair: tuple[InspectedServer, InspectedServer],
) -> None:
    first, second = pair
    assert first.seen() == []
    second.request("PUT", "/own/b.json", b'{"x": 1}')
    first.request("GET", "/open/a.json")
    shown = first.seen()
    assert {each["path"] for each in shown} == {"/open/a", "/own/b"}
    (denied,) = first.seen("status=denied")
    assert [denied] == second.seen()
    assert denied["body"] == {"x": 1}


def test_a_feed_sends_the_requests_of_all_processes_once(
    pair: tuple[InspectedServer, InspectedServer],
) -> None:
    first, second = pair
    second.seen()
    second.request("GET", "/open/before.json")
    feed = first.follow()
    first.events(feed)
    second.request("GET", "/open/other.json")
    first.request("GET", "/open/own.json")
    assert {data["path"] for _, data in first.events(feed)} == {"/open/own", "/open/other"}
    second.request("GET", "/open/again.json")
    assert [data["path"] for _, data in first.events(feed)] == ["/open/again"]
    feed.peer.disconnect()
    first.clock.advance(2)
    assert first.inspection._requests_followed._after == {}


def test_the_connections_of_all_processes_are_shown(
    pair: tuple[InspectedServer, InspectedServer],
) -> None:
    first, second = pair
    first.open_stream("/open/a.json")
    second.open_stream("/open/b.json")
    open_socket(second)
    shown = first.ask(CONNECTIONS)
    assert (shown["streams"]["count"], shown["sockets"]["count"]) == (2, 1)
    assert {each["path"] for each in shown["streams"]["shown"]} == {"/open/b", "/open/a"}


def test_sessions_are_observed_only_while_an_admin_looks(server: InspectedServer) -> None:
    before = open_socket(server)
    (session,) = server.resource.realtime.sockets.listeners
    assert not isinstance(session, ObservedSession)
    server.seen()
    assert isinstance(session, ObservedSession)
    send(server, before, 1, "p", {"p": "open/a", "d": 1})
    assert members(server.seen(), "method", "path", "kind") == [("PUT", "/open/a", "socket")]
    server.clock.advance(WATCHED_S + 1)
    assert type(session).__name__ == "RealtimeSession"
    assert "asked" not in vars(session)
