"""The whole interface over databases in memory, with clients in memory and a simulated clock."""

from __future__ import annotations

import json
import os
import pathlib
import re
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from twisted.internet.defer import execute

from tests.database.world import TurnClock
from tests.http1.peer import ParsedReply, Peer, ScriptedResource, Server
from treedbd.config.endpoints import parse_endpoint
from treedbd.config.settings import Settings
from treedbd.database.answers import AnswerPool
from treedbd.database.catalog import Catalog
from treedbd.database.requests import ProjectSpec
from treedbd.database.runtime import RunInThread, Runtime
from treedbd.http1.registry import ServerOptions
from treedbd.http1.server import Http1Factory
from treedbd.limits import Limits, StreamLimits
from treedbd.rules.ruleset import OPEN, RuleSet
from treedbd.web.auth.verifier import Authenticator, Verifier
from treedbd.web.context import make_context
from treedbd.web.errors import NoteRefusal
from treedbd.web.resource import TreeResource

WALL = 1_700_000_000.0
BUFFER_BYTES = 10_000
PATIENT = Limits(idle_s=1e4, write_stalled_s=1e4)
LISTEN = (parse_endpoint("tcp:80", pathlib.Path()),)
"""With it hosts outside of the domains are misdirected; nothing listens."""
SETTINGS = Settings(
    listen=LISTEN,
    domains=("localhost",),
    limits=PATIENT,
    streams=StreamLimits(buffer_bytes=BUFFER_BYTES),
)


def make_verifier(*secrets: str, **options: Any) -> Verifier:
    """Return the verifier of a project without providers."""
    return Verifier([each.encode() for each in secrets], open_keys=_open_no_keys, **options)


def _open_no_keys(_: object) -> NoReturn:
    raise AssertionError("No provider is configured.")


class TreeServer(Server):
    """An `Http1Factory` that serves a `TreeResource`; writes are committed when the clock moves."""

    clock: TurnClock

    def __init__(
        self,
        folder: pathlib.Path,
        rules: RuleSet = OPEN,
        *,
        engine: str = "memory",
        projects: Iterable[ProjectSpec] = (),
        verifier: Callable[[str], Verifier | None] = lambda _: None,
        options: Settings = SETTINGS,
        run_in_thread: RunInThread = execute,
        entropy: Callable[[int], bytes] = os.urandom,
        refused: NoteRefusal | None = None,
        **of_runtime: Any,
    ) -> None:
        """Serve `projects`, or any project without them; `verifier` returns that of a project.

        `of_runtime` are further fields of the `Runtime`.
        """
        super().__init__(ScriptedResource())
        configured = {each.name: each for each in projects}
        self.clock = TurnClock()
        self.catalog = Catalog(
            folder,
            engine,
            configured,
            any_project=not configured,
            first_rules=rules,
            runtime=Runtime(
                self.clock,
                entropy,
                run_in_thread,
                AnswerPool(options.limits.kept_answer_bytes),
                **of_runtime,
            ),
            retain_events=100,
        )
        context = make_context(
            settings=options,
            authenticator=Authenticator(verifier, self.clock, lambda: WALL),
            clock=self.clock,
            wall_clock=lambda: WALL,
        )
        self.resource = TreeResource(context, self.catalog, refused=refused)
        self.factory = Http1Factory(
            self.resource,
            options.limits,
            self.clock,
            ServerOptions(rates=self.resource.rates, held=self.resource.shared_reads.held),
        )

    def request(
        self,
        method: str,
        target: str,
        body: bytes = b"",
        headers: Iterable[str] = (),
        host: str = "demo.localhost",
        *,
        address: str = "192.0.2.1",
    ) -> ParsedReply:
        """Send a request on a new connection from an address, and return its reply."""
        lines = [f"{method} {target} HTTP/1.1", f"Host: {host}", *headers]
        head = "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""])
        peer = self.connect(address)
        peer.send(head.encode() + body)
        self.clock.advance(0)
        (reply,) = peer.read(method.encode())
        return reply

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

    def open_stream(
        self, target: str, headers: str = "", *, host: str = "192.0.2.1", room: int | None = None
    ) -> StreamClient:
        """Open a stream from an address; the transport holds `room` bytes, if that is set."""
        return StreamClient(self, target, headers, host, room)

    def get(
        self, target: str, headers: str = "", *, host: str = "192.0.2.1", room: int | None = None
    ) -> Peer:
        """Request a read from an address; the transport holds `room` bytes, if that is set."""
        peer = self.connect(host)
        peer.transport.room = room
        peer.send(f"GET {target} HTTP/1.1\r\nHost: demo.localhost\r\n{headers}\r\n".encode())
        return peer


class StreamClient:
    """The client end of a stream; `ids` are those of the events read last."""

    def __init__(
        self, server: TreeServer, target: str, headers: str, host: str, room: int | None
    ) -> None:
        self.peer = server.get(
            target, f"Accept: text/event-stream\r\n{headers}", host=host, room=room
        )
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
        frames = re.findall(r"event: (\S+)\ndata: (.*)\n(?:id: (\S+)\n)?\n", data.decode())
        self.ids = [found for _, _, found in frames if found]
        return [(kind, data) for kind, data, _ in frames]


def put(path: str, value: Any) -> tuple[str, str]:
    """Return a `put` event as `StreamClient.read_events` returns it."""
    return "put", json.dumps({"path": path, "data": value}, separators=(",", ":"))


def patch(path: str, data: Any) -> tuple[str, str]:
    """Return a `patch` event as `StreamClient.read_events` returns it."""
    return "patch", json.dumps({"path": path, "data": data}, separators=(",", ":"))
