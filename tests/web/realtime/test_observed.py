"""The requests of sessions, as an admin is shown them."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from tests.web.inspected_server import InspectedServer, members, send, token_of
from tests.web.test_freed_at_the_end import open_socket
from tests.websocket_frames import TEXT, print_frame
from treedbd.rules.ruleset import DENY
from treedbd.web.realtime import observed
from treedbd.web.realtime.messages import RealtimeRequest
from treedbd.web.realtime.observed import Asked, ObservedSession
from treedbd.web.realtime.session import RealtimeSession

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJhIjoxfQ.c2lnbmF0dXJl"


@pytest.fixture
def server(tmp_path: pathlib.Path) -> InspectedServer:
    server = InspectedServer(tmp_path)
    server.seen()
    return server


@pytest.mark.parametrize(
    ("action", "body", "method", "status", "code"),
    [
        ("p", {"p": "/open/a", "d": 1}, "PUT", 200, None),
        ("m", {"p": "open/a", "d": {"b": 1}}, "PATCH", 200, None),
        ("q", {"p": "open/a", "h": ""}, "LISTEN", 200, None),
        ("g", {"p": "open/a"}, "GET", 200, None),
        ("n", {"p": "open/a"}, "UNLISTEN", 200, None),
        ("o", {"p": "open/a", "d": 1}, "ONDISCONNECT-PUT", 200, None),
        ("om", {"p": "open/a", "d": {"b": 1}}, "ONDISCONNECT-PATCH", 200, None),
        ("oc", {"p": "open/a"}, "ONDISCONNECT-CANCEL", 200, None),
        ("p", {"p": "open/a", "d": 1, "h": "x"}, "PUT", 412, "datastale"),
    ],
)
def test_what_a_client_does_is_shown(
    server: InspectedServer, action: str, body: Any, method: str, status: int, code: str | None
) -> None:
    send(server, open_socket(server), 1, action, body)
    opened, done = server.seen()
    assert (opened["method"], opened["path"], opened["status"]) == ("GET", "/.ws", 101)
    assert (done["method"], done["path"], done["status"]) == (method, "/open/a", status)
    assert (done["kind"], done["code"], done["database"]) == ("socket", code, "demo")
    assert done["id"] == opened["id"].replace("/0", "/1")


@pytest.mark.parametrize(
    ("action", "body", "denied"),
    [
        ("p", {"p": "own", "d": {"x": JWT}}, {"x": "…"}),
        ("m", {"p": "own", "d": {"x": 1}}, {"x": 1}),
        ("o", {"p": "own", "d": 1}, 1),
    ],
)
def test_a_denial_is_shown_with_whom_and_what(
    server: InspectedServer, action: str, body: Any, denied: Any
) -> None:
    peer = open_socket(server)
    send(server, peer, 1, "auth", {"cred": token_of(uid="bob")})
    send(server, peer, 2, action, body)
    _, signed_in, seen = server.seen()
    assert (signed_in["method"], signed_in["uid"], signed_in["status"]) == ("AUTH", "bob", 200)
    assert (seen["status"], seen["code"], seen["uid"]) == (403, "permission_denied", "bob")
    assert seen["auth"]["uid"] == "bob"
    assert seen["body"] == denied
    assert members(server.seen("status=denied"), "path") == [("/own",)]


def test_a_denied_listen_is_shown(tmp_path: pathlib.Path) -> None:
    server = InspectedServer(tmp_path, DENY)
    server.seen()
    peer = open_socket(server)
    send(server, peer, 1, "q", {"p": "a", "q": {"i": "age", "l": 2}, "t": 1, "h": ""})
    send(server, peer, 2, "g", {"p": "b"})
    shown = server.seen("status=denied")
    assert members(shown, "method", "path", "query", "auth") == [
        ("LISTEN", "/a", '{"i":"age","l":2}', None),
        ("GET", "/b", "", None),
    ]


def test_a_bad_token_is_shown_and_the_token_is_not(server: InspectedServer) -> None:
    peer = open_socket(server)
    send(server, peer, 1, "auth", {"cred": JWT})
    send(server, peer, 2, "p", {"p": f"own/{JWT.partition('.')[0]}", "d": JWT})
    _, bad, denied = server.seen()
    assert (bad["method"], bad["status"], bad["code"]) == ("AUTH", 401, "invalid_token")
    assert (denied["path"], denied["body"]) == ("/own/…", "…")


@pytest.mark.parametrize("body", [{}, {"p": 1}, {"p": "a/b.c#d", "d": 1}, {"p": "x" * 9000}])
def test_a_malformed_request_is_shown(server: InspectedServer, body: Any) -> None:
    send(server, open_socket(server), 1, "p", body)
    _, seen = server.seen()
    assert (seen["status"], seen["code"]) == (400, "failure")
    assert len(seen["path"]) <= 2001


def test_a_long_write_is_shown_without_its_body(server: InspectedServer) -> None:
    peer = open_socket(server)
    send(server, peer, 1, "p", {"p": "open/a", "d": "x" * 100_000})
    send(server, peer, 2, "p", {"p": "own/a", "d": "x" * 100_000})
    _, long, denied = server.seen()
    assert (long["path"], long["status"]) == ("/open/a", 200)
    assert (denied["path"], denied["status"]) == ("/own/a", 403)
    assert "body" not in denied


def test_a_denied_value_with_too_many_levels_is_left_out(server: InspectedServer) -> None:
    peer, deep = open_socket(server), [1]
    for _ in range(600):
        deep = [deep]  # type: ignore[list-item]
    reader = token_of(uid="x", admin=True, read_only=True)
    send(server, peer, 1, "auth", {"cred": reader})
    send(server, peer, 2, "p", {"p": "open/a", "d": deep})
    *_, denied = server.seen()
    assert (denied["path"], denied["status"]) == ("/open/a", 403)
    assert "body" not in denied


def test_what_is_not_a_request_for_data_is_not_shown(server: InspectedServer) -> None:
    peer = open_socket(server)
    send(server, peer, 1, "s", {"c": {"sdk.js.1": 1}})
    send(server, peer, 2, "appcheck", {})
    send(server, peer, 3, "x", {})
    assert len(server.seen()) == 1


def test_a_session_of_another_project_is_not_recorded(server: InspectedServer) -> None:
    server.resource.realtime.sockets.observe = None
    peer = open_socket(server)
    (session,) = server.resource.realtime.sockets.listeners
    server.inspection.recorder._watched["shop"] = server.inspection.recorder._watched.pop("demo")
    server.inspection._observer.switch(is_on=True)
    assert isinstance(session, ObservedSession)
    send(server, peer, 1, "p", {"p": "open/a", "d": 1})
    assert session.asked == {}
    assert len(server.seen(project="shop")) == 0


def test_a_session_forgets_what_waits_too_long(
    server: InspectedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observed, "MAX_ASKED", 2)
    peer = open_socket(server)
    (session,) = server.resource.realtime.sockets.listeners
    assert isinstance(session, ObservedSession)
    waiting = Asked(RealtimeRequest(-1, "p", {}))
    session.asked.update({-1: waiting, -2: waiting})
    send(server, peer, 1, "p", {"p": "open/a", "d": 1})
    assert list(session.asked) == [-2]


def test_requests_under_way_at_the_end_of_the_recording_are_answered(
    server: InspectedServer,
) -> None:
    peer = open_socket(server)
    (session,) = server.resource.realtime.sockets.listeners
    assert isinstance(session, ObservedSession)
    put = {"t": "d", "d": {"r": 1, "a": "p", "b": {"p": "open/a", "d": 1}}}
    peer.send(print_frame(TEXT, json.dumps(put).encode()))
    assert list(session.asked) == [1]
    server.inspection.close()
    peer.transport.clear()
    server.clock.advance(0)
    server.clock.advance(0)
    assert b'"r":1,"b":{"s":"ok"' in peer.transport.value()
    assert type(session) is RealtimeSession
