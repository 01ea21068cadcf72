"""A server whose requests an admin looks at, with clocks that go together."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterable
from typing import Any

import jwt
import pytest

from tests.access import secret_of
from tests.http1.peer import Peer
from tests.web import tree_server
from tests.web.tree_server import SETTINGS, StreamClient, TreeServer, make_verifier
from tests.websocket_frames import TEXT, print_frame
from treedbd.config.settings import Settings
from treedbd.http1.registry import RequestLogging, ServerOptions
from treedbd.http1.server import Http1Factory
from treedbd.rules.ruleset import RuleSet, parse_rules
from treedbd.web.activity import Activity
from treedbd.web.inspection import Inspection

REQUESTS = "/.inspect/requests.json"
RULES = parse_rules(
    b'{"rules": {".read": true, "open": {".write": true}, '
    b'"own": {".write": "auth.uid == \'ada\'"}}}'
)


def token_of(project: str = "demo", **claims: Any) -> str:
    """Return a token; without claims it is an admin's."""
    return jwt.encode(claims or {"uid": "x", "admin": True}, secret_of(project), "HS256")


class InspectedServer(TreeServer):
    """A server with the projects `demo` and `shop`, which counts and records requests."""

    def __init__(
        self,
        folder: pathlib.Path,
        rules: RuleSet = RULES,
        options: Settings = SETTINGS,
        logs: RequestLogging | None = None,
    ) -> None:
        verifiers = {each: make_verifier(secret_of(each)) for each in ("demo", "shop")}
        super().__init__(folder, rules, verifier=verifiers.get, options=options)
        activity: Activity = self.resource._admin._activity
        server = ServerOptions(activity=activity)
        if logs is not None:
            server = ServerOptions(activity=activity, logs=logs)
        self.factory = Http1Factory(self.resource, options.limits, self.clock, server)
        self.inspection.attach(self.factory.connections)

    @property
    def inspection(self) -> Inspection:
        """What shows the requests."""
        return self.resource.inspection

    def pass_s(self, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
        """Let the time pass by both clocks, in steps of a tenth of a second."""
        for _ in range(round(seconds * 10)):
            monkeypatch.setattr(tree_server, "WALL", tree_server.WALL + 0.1)
            self.clock.advance(0.1)

    def ask(self, target: str, project: str = "demo") -> Any:
        """Return what an admin is shown."""
        separator = "&" if "?" in target else "?"
        reply = self.request(
            "GET", f"{target}{separator}auth={token_of(project)}", host=f"{project}.localhost"
        )
        assert reply.status == 200, reply
        return json.loads(reply.body)

    def seen(self, query: str = "", project: str = "demo") -> list[dict[str, Any]]:
        """Return the requests that an admin is shown."""
        shown: list[dict[str, Any]] = self.ask(f"{REQUESTS}?{query}", project)
        return shown

    def follow(self, query: str = "", *, room: int | None = None) -> StreamClient:
        """Follow the requests."""
        return self.open_stream(f"{REQUESTS}?auth={token_of()}&{query}", room=room)

    def events(self, feed: StreamClient) -> list[tuple[str, Any]]:
        """Return the events of a feed since the last call, after what waits was sent."""
        for _ in range(12):
            self.clock.advance(0.1)
        return [(kind, json.loads(data)) for kind, data in feed.read_events()]


def send(server: TreeServer, peer: Peer, number: int, action: str, body: Any) -> None:
    """Send a request of the real-time protocol, and let it be answered."""
    request = {"t": "d", "d": {"r": number, "a": action, "b": body}}
    peer.send(print_frame(TEXT, json.dumps(request).encode()))
    for _ in range(5):
        server.clock.advance(0)


def members(shown: Iterable[dict[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    """Return some members of what is shown."""
    return [tuple(each[name] for name in names) for each in shown]
