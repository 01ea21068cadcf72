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
