"""The door of the real-time protocol: a request for `/.ws` becomes a session.

The head of the request was parsed and limited by the HTTP server; here it is upgraded to a
WebSocket, and its database is opened. A client that comes back names its former session (`ls`),
which is ended first: what it has left is written before the client can write anything.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from typing import Any, Final

from twisted.internet.defer import Deferred, DeferredList
from websockets.datastructures import Headers as UpgradeHeaders
from websockets.http11 import Request as UpgradeRequest

from treedbd.database.database import Database
from treedbd.database.requests import SHUTTING_DOWN, Unavailable
from treedbd.http1.headers import Header
from treedbd.http1.interface import IHttp1Request
from treedbd.web.auth.identity import ANONYMOUS, Identity
from treedbd.web.realtime import messages
from treedbd.web.realtime.registry import (
    WEBSOCKET_VERSION,
    CannotUpgrade,
    SocketRegistry,
    WrongVersion,
)
from treedbd.web.realtime.service import RealtimeParts
from treedbd.web.realtime.session import RealtimeSession
from treedbd.web.realtime.socket import accept_upgrade
from treedbd.web.response import counted_address_of

SESSION_BYTES: Final = 16
_SESSION: Final = re.compile(r"[0-9a-f]{32}")


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
            if _SESSION.fullmatch(former):
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
