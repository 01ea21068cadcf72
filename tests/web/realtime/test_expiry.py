"""A message is judged by who its client is when it is handled: a token may have expired since."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from tests.http1.peer import Peer
from tests.web import tree_server
from tests.web.test_freed_at_the_end import open_socket
from tests.web.tree_server import WALL, TreeServer, make_verifier
from tests.websocket_frames import TEXT, print_frame
from treedbd.rules.ruleset import parse_rules
from treedbd.web.auth import jwt
from treedbd.web.auth.identity import ANONYMOUS

SECRET = "s" * 32
RULES = parse_rules(b'{"rules": {".read": "auth != null", ".write": "auth != null"}}')


def ask(server: TreeServer, peer: Peer, number: int, action: str, body: Any) -> str:
    """Send a request and return the status of its answer; no time passes."""
    peer.transport.clear()
    request = {"t": "d", "d": {"r": number, "a": action, "b": body}}
    peer.send(print_frame(TEXT, json.dumps(request).encode()))
    for _ in range(5):
        server.clock.advance(0)
    received: bytes = peer.transport.value()
    answer = received.partition(b'"r":%d,"b":{"s":"' % number)[2]
    return answer.partition(b'"')[0].decode()


@pytest.mark.parametrize(
    ("action", "body"),
    [
        *(("p", {"p": "a", "d": 1}), ("m", {"p": "a", "d": {"b": 1}}), ("g", {"p": "a"})),
        *(("q", {"p": "a", "h": ""}), ("o", {"p": "a", "d": 1})),
    ],
)
def test_no_request_is_done_after_the_token_has_expired(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, action: str, body: Any
) -> None:
    verifier = make_verifier(SECRET)
    server = TreeServer(tmp_path, RULES, verifier=lambda _: verifier)
    peer = open_socket(server)
    token = jwt.mint(SECRET.encode(), {"uid": "ada"}, now=WALL, ttl_s=5)
    assert ask(server, peer, 1, "auth", {"cred": token}) == "ok"
    assert ask(server, peer, 2, action, body) == "ok"
    monkeypatch.setattr(tree_server, "WALL", WALL + 1000)
    assert ask(server, peer, 3, action, body) == "permission_denied"
    assert b"expired_token" in peer.transport.value()


RECHECKED = parse_rules(b'{"rules": {".read": "auth != null", ".write": true}}')


def open_listener(server: TreeServer) -> Peer:
    """Open a socket of a user whose token expires after five seconds, and listen."""
    peer = open_socket(server)
    token = jwt.mint(SECRET.encode(), {"uid": "ada"}, now=WALL, ttl_s=5)
    assert ask(server, peer, 1, "auth", {"cred": token}) == "ok"
    assert ask(server, peer, 2, "q", {"p": "a", "h": ""}) == "ok"
    peer.transport.clear()
    server.write("PUT", "/a", "first")
    assert b'"first"' in peer.transport.value()
    peer.transport.clear()
    return peer


def test_no_event_is_sent_after_the_token_has_expired(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verifier = make_verifier(SECRET)
    server = TreeServer(tmp_path, RECHECKED, verifier=lambda _: verifier)
    peer = open_listener(server)
    monkeypatch.setattr(tree_server, "WALL", WALL + 1000)
    server.write("PUT", "/a", "second")
    assert b'"second"' not in peer.transport.value()
    assert b"expired_token" in peer.transport.value()


def test_no_event_is_sent_to_another_caller_before_it_is_judged(tmp_path: pathlib.Path) -> None:
    """Many listens are judged again in slices, between which a write may be notified."""
    verifier = make_verifier(SECRET)
    server = TreeServer(tmp_path, RECHECKED, verifier=lambda _: verifier)
    peer = open_listener(server)
    (session,) = server.resource.realtime._open
    session._become(ANONYMOUS)
    server.write("PUT", "/a", "second")
    assert b'"second"' not in peer.transport.value()
    assert b'"a":"c"' in peer.transport.value()
