"""The paths of the real-time protocol: a request for `/.ws` becomes a session, `/.lp` leads there.

`RealtimeEndpoint` answers the requests. The head of one was parsed and limited by the HTTP server;
here its database is found and it is upgraded to a WebSocket, and `RealtimeDoor` opens the database
and begins a session. A client that connects again names its former session (`ls`), which is ended
first: what it has left is written before the client can write anything.

Clients put a database into `ns`, as requests over HTTP do. Some put the first label of the host
there, unasked: that counts only if there is such a project.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Callable
from typing import Any, Final

from twisted.internet.defer import Deferred, DeferredList
from websockets.datastructures import Headers as UpgradeHeaders
from websockets.http11 import Request as UpgradeRequest

from treedbd.database.catalog import Catalog
from treedbd.database.database import Database
from treedbd.database.requests import SHUTTING_DOWN, Unavailable, UnknownDatabase
from treedbd.http1.headers import Header
from treedbd.http1.request import IHttp1Request
from treedbd.limits import DEFAULT_TIMEOUT_S
from treedbd.names import DatabaseName
from treedbd.tree.types import InvalidQuery
from treedbd.web.auth.identity import ANONYMOUS, Identity
from treedbd.web.context import WebParts
from treedbd.web.handlers import DataHandlers
from treedbd.web.listeners import (
    SocketRegistry,
)
from treedbd.web.realtime import messages
from treedbd.web.realtime.context import KnownHashes, RealtimeParts
from treedbd.web.realtime.session import RealtimeSession
from treedbd.web.realtime.socket import accept_upgrade
from treedbd.web.realtime.wire import (
    WEBSOCKET_VERSION,
    CannotUpgrade,
    WrongVersion,
)
from treedbd.web.request import AllowedMethods, Location, check_method, find_parameter
from treedbd.web.response import Response, counted_address_of

_SOCKET_METHODS: Final = AllowedMethods.of(["GET"])
_LONG_POLL_METHODS: Final = AllowedMethods.of(["GET", "HEAD"])
TIMEOUT_S: Final = 30.0
"""Seconds that the program which embeds the service has to say who sends a request."""


class RealtimeEndpoint:
    """Answers the requests for the paths of the real-time protocol."""

    def __init__(
        self,
        door: RealtimeDoor,
        parts: WebParts,
        refuse: Callable[[IHttp1Request, Exception], None],
        find: Callable[[DatabaseName], Database],
    ) -> None:
        """`refuse` answers with an error, `find` returns the database of a name."""
        self.door: Final = door
        self._parser = parts.parser
        self._writer = parts.writer
        self._users = parts.users
        self._guard = parts.guard
        self._rates = parts.rates
        self._refuse = refuse
        self._find = find

    async def socket(self, request: IHttp1Request) -> None:
        """Open a session, or say why not."""
        try:
            check_method(request.method, _SOCKET_METHODS)
            location, database = self._locate(request)
            if location.malformed is not None:
                raise location.malformed
            if self._rates is not None:
                self._rates.take_project(request, location.name.project, is_write=False)
            identity = None
            if self._users is not None:
                identity = await self._users.find(request, TIMEOUT_S)
            former = find_parameter(request.uri, b"ls")
            await self.door.open(request, database, former[0] if former else "", identity)
        except Exception as error:
            self._refuse(request, error)

    async def long_poll(self, request: IHttp1Request) -> None:
        """Send a browser back to the socket."""
        try:
            check_method(request.method, _LONG_POLL_METHODS)
            location = self._parser.locate(request)
            if self._rates is not None:
                self._rates.take_project(request, location.name.project, is_write=False)
            script = answer_long_poll(find_parameter(request.uri, b"cb"))
            if self._guard is not None:
                self._guard.check_script(request)
            self._send(request, script)
        except Exception as error:
            self._refuse(request, error)

    def _send(self, request: IHttp1Request, response: Response) -> None:
        self._writer.send(request, response, no_store=True)

    def _locate(self, request: IHttp1Request) -> tuple[Location, Database]:
        """Return what a request addresses; raise the error in its address."""
        location = self._parser.locate(request)
        host = request.headers[b"host"][0]
        ns = location.parameters.get("ns", "")
        if not name_without_host_label(ns, host):
            return location, self._find(location.name)
        try:
            if not is_ipv4(host):
                return location, self._find(location.name)
        except UnknownDatabase as error:
            if error.is_project_known:
                raise
        location = self._parser.locate(request, ignores_ns=True)
        return location, self._find(location.name)


def name_without_host_label(ns: str, host: bytes) -> bool:
    """Return whether `ns` is only what a client has made of the host: its first label."""
    name = host.decode("latin-1").rpartition(":")[0] or host.decode("latin-1")
    return name.partition(".")[0].lower() == ns.lower() and "." in name


def is_ipv4(host: bytes) -> bool:
    """Return whether a Host header is an IPv4 address, with or without a port."""
    try:
        ipaddress.IPv4Address(host.decode("latin-1").partition(":")[0])
    except ValueError:
        return False
    return True


SESSION_BYTES: Final = 16
_SESSION_ID: Final = re.compile(r"[0-9a-f]{32}")


class RealtimeDoor:
    """Opens sessions.

    Attributes:
        is_ending: set when the server stops.

    """

    def __init__(self, parts: RealtimeParts, entropy: Callable[[int], bytes]) -> None:
        """Make ids of sessions by `entropy`, which returns that many random bytes."""
        self.is_ending = False
        self._parts = parts
        self._entropy = entropy
        self._open: set[RealtimeSession] = set()

    async def open(
        self,
        request: IHttp1Request,
        database: Database,
        former: str,
        identity: Identity | None,
    ) -> None:
        """Open a session, after its `former` one has ended; raise `BadHandshake` or `WrongVersion`.

        `identity` is who sends the request, if the program that embeds the service has said so.
        """
        parts = self._parts
        if self.is_ending:
            raise Unavailable(SHUTTING_DOWN)
        database.check_exists()
        versions = request.headers.get(b"sec-websocket-version", [])
        if versions and versions != [WEBSOCKET_VERSION.encode()]:
            raise WrongVersion
        headers = accept_upgrade(_as_upgrade(request), parts.limits)
        address = counted_address_of(request)
        parts.registry.check(address)
        session = RealtimeSession(
            parts,
            self._entropy(SESSION_BYTES).hex(),
            database,
            request,
            address,
            ANONYMOUS if identity is None else identity,
        )
        opening = parts.acquire(database)
        try:
            if isinstance(opening, Deferred):
                await opening
            if _SESSION_ID.fullmatch(former):
                await self._end_former(former, database)
            self._start(session, request, headers)
        except BaseException:
            parts.release(database)
            raise

    @property
    def connected(self) -> int:
        """How many sessions have a connection."""
        return len(self._parts.registry)

    @property
    def sockets(self) -> SocketRegistry:
        """The open WebSockets."""
        return self._parts.registry

    def end(self) -> None:
        """Close all sessions, and open no others: the server stops."""
        self.is_ending = True
        self._parts.registry.end()

    def ended(self) -> Deferred[Any]:
        """Return what fires when all that the clients of all sessions have left is written."""
        return DeferredList([session.close() for session in self._open], consumeErrors=True)

    def recheck(self, trusts: Callable[[str, Identity], bool]) -> None:
        """End the identities that a project no longer trusts."""
        self._parts.registry.recheck(trusts)

    def _start(
        self, session: RealtimeSession, request: IHttp1Request, headers: tuple[Header, ...]
    ) -> None:
        parts = self._parts
        parts.registry.check(session.address)  # others may have come meanwhile
        ended = request.notifyFinish()
        connection = request.upgrade(headers, session.received)
        if connection is None:
            raise CannotUpgrade
        host = request.headers.get(b"host", [b""])[0].decode("latin-1")
        parts.registry.add(session)
        self._open.add(session)
        session.start(connection, messages.print_hello(parts.now_ms(), host, session.id))
        ended.addBoth(lambda _: session.connection_ended())
        session.ended.addCallback(lambda _: self._open.discard(session))

    async def _end_former(self, former: str, database: Database) -> None:
        """End the session that a client had before, wherever it is open."""
        session = self._parts.registry.find(former)
        if isinstance(session, RealtimeSession) and session.database is database:
            await session.close()
        else:
            await database.disconnect_writes.run(former)


def _as_upgrade(request: IHttp1Request) -> UpgradeRequest:
    """Return the head of a request, which was parsed already, as the WebSocket library has it."""
    fields: Any = [
        (name.decode("latin-1"), value.decode("latin-1"))
        for name, values in request.headers.items()
        for value in values
    ]
    return UpgradeRequest(
        request.uri.decode("latin-1"),
        UpgradeHeaders(fields),
        method=request.method.decode("latin-1"),
        protocol=request.clientproto.decode("latin-1"),
    )


_LONG_POLL_SCRIPT: Final = (
    b'try{parent.localStorage.removeItem("firebase:previous_websocket_failure")}catch(e){}'
    b'parent.window["pLPCommand%b"]("close")'
)
_CALLBACK_NUMBER: Final = re.compile(r"[0-9]+")
_SCRIPT_HEADERS: Final = ((b"Content-Type", b"application/javascript; charset=utf-8"),)


def answer_long_poll(callbacks: list[str]) -> Response:
    """Return the script for a request with the number of a callback; raise `InvalidQuery`.

    Long polling is not offered. But a browser whose WebSocket has failed once remembers that, and
    requests `/.lp` first the next time, for ever; the script lets it forget. It runs in a frame of
    the page's own origin, which names the callback by a number. Source: `realtime-protocol.md`,
    section 1.
    """
    if len(callbacks) != 1 or not _CALLBACK_NUMBER.fullmatch(callbacks[0]):
        raise InvalidQuery("The number of the callback (cb) must be there once, in digits only.")
    return Response(200, _LONG_POLL_SCRIPT % callbacks[0].encode(), _SCRIPT_HEADERS)


def make_realtime(
    parts: WebParts,
    catalog: Catalog,
    data: DataHandlers,
    refuse: Callable[[IHttp1Request, Exception], None],
    find: Callable[[DatabaseName], Database],
) -> RealtimeEndpoint:
    """Return what answers the requests of the real-time protocol."""
    settings, clock = parts.settings, parts.clock
    registry = SocketRegistry(
        settings.limits, settings.streams, clock, parts.wall_clock, parts.counts
    )
    shared = RealtimeParts(
        limits=settings.limits,
        buffer_bytes=settings.streams.buffer_bytes,
        registry=registry,
        authenticator=parts.authenticator,
        guard=parts.guard,
        rates=parts.rates,
        reads=parts.reads,
        gate=data.gate,
        missing_indexes=data.missing_indexes,
        hashes=KnownHashes(),
        slices=parts.reads.slices,
        clock=clock,
        now_ms=data.now_ms,
        acquire=lambda database: catalog.acquire(database, DEFAULT_TIMEOUT_S),
        release=catalog.release,
        explains_denials=settings.development,
        accepts_unsigned=settings.is_local and settings.admin_token is None,
    )
    return RealtimeEndpoint(RealtimeDoor(shared, os.urandom), parts, refuse, find)
