"""The whole interface over databases in memory, with clients in memory and a simulated clock."""

from __future__ import annotations

import json
import os
import pathlib
import re
from typing import Any

from twisted.internet.defer import execute
from twisted.internet.task import Clock

from tests.web.http1.peer import Peer, ScriptedResource, Server
from treedbd.database.catalog import Catalog
from treedbd.database.runtime import Runtime
from treedbd.limits import Limits, StreamLimits
from treedbd.rules.ruleset import OPEN, RuleSet
from treedbd.web.auth.authenticator import Authenticator
from treedbd.web.http1.factory import Http1Factory
from treedbd.web.options import WebOptions
from treedbd.web.resource import TreeResource

WALL = 1_700_000_000.0
BUFFER_BYTES = 10_000
PATIENT = Limits(idle_s=1e4, write_stalled_s=1e4)


class SlowClock(Clock):
    """A clock whose time advances by `lag` whenever it is read, so that long work is sliced."""

    lag = 0.0

    def seconds(self) -> float:
        """Return the time."""
        self.rightNow += self.lag
        return super().seconds()


class TreeServer(Server):
    """An `Http1Factory` that serves a `TreeResource`; writes are committed when the clock moves."""

    def __init__(self, folder: pathlib.Path, rules: RuleSet = OPEN) -> None:
        super().__init__(ScriptedResource())
        self.clock = self.slow_clock = SlowClock()
        self.catalog = Catalog(
            folder,
            "memory",
            {},
            any_project=True,
            first_rules=rules,
            runtime=Runtime(self.clock, os.urandom, execute),
            retain_events=100,
        )
        self.resource = TreeResource(
            catalog=self.catalog,
            options=WebOptions(
                domains=("localhost",), streams=StreamLimits(buffer_bytes=BUFFER_BYTES)
            ),
            authenticator=Authenticator(lambda _: None, self.clock, lambda: WALL),
            clock=self.clock,
            wall_clock=lambda: WALL,
        )
        self.factory = Http1Factory(self.resource, PATIENT, self.clock)

    def write(self, method: str, path: str, value: Any) -> None:
        """Do a write, and notify all watchers of it."""
        self.begin_write(method, path, value)
        self.clock.advance(0)

    def begin_write(self, method: str, path: str, value: Any) -> Peer:
        """Request a write; it is committed with all others of the same turn."""
        body = json.dumps(value).encode()
        head = f"{method} {path}.json HTTP/1.1\r\nHost: demo.localhost\r\n"
        peer = self.connect()
        peer.send(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        return peer

    def open_stream(self, target: str, headers: str = "") -> StreamClient:
        """Open a stream."""
        return StreamClient(self, target, headers)


class StreamClient:
    """The client end of a stream; `ids` are those of the events read last."""

    def __init__(self, server: TreeServer, target: str, headers: str) -> None:
        self.peer = server.connect()
        head = f"GET {target} HTTP/1.1\r\nHost: demo.localhost\r\nAccept: text/event-stream\r\n"
        self.peer.send(f"{head}{headers}\r\n".encode())
        self.ids: list[str] = []
        self._is_head_read = False

    @property
    def producer(self) -> Any:
        """What the transport pauses and resumes."""
        return self.peer.transport.producer

    def read_events(self) -> list[tuple[str, str]]:
        """Return the events received since the last call: kinds and data."""
        data = self.peer.transport.value()
        self.peer.transport.clear()
        if not self._is_head_read:
            head, _, data = data.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 ")
            self._is_head_read = True
        body = b""
        while data and not data.startswith(b"0\r\n"):
            size, _, data = data.partition(b"\r\n")
            body += data[: int(size, 16)]
            data = data[int(size, 16) + 2 :]
        frames = re.findall(r"event: (\S+)\ndata: (.*)\n(?:id: (\S+)\n)?\n", body.decode())
        self.ids = [found for _, _, found in frames if found]
        return [(kind, data) for kind, data, _ in frames]


def put(path: str, value: Any) -> tuple[str, str]:
    """Return a `put` event as `StreamClient.read_events` returns it."""
    return "put", json.dumps({"path": path, "data": value}, separators=(",", ":"))
