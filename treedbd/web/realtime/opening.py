"""The paths of the real-time protocol: a request for `/.ws` becomes a session, `/.lp` leads there.

`RealtimeEndpoint` answers the requests. The HTTP server has parsed and limited the head; here the
database is found and opened, the connection becomes a WebSocket, and a session begins. A client
that connects again names its former session (`ls`), which is ended first: the writes that it has
set for its end are done before the client can write anything.

Clients put a database into `ns`, as requests over HTTP do. Some put the first label of the host
there by themselves: it counts only if such a project exists.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from twisted.internet.defer import Deferred, DeferredList
from websockets.datastructures import Headers as UpgradeHeaders
from websockets.http11 import Request as UpgradeRequest

from treedbd.database.catalog import Catalog
from treedbd.database.database import Database
from treedbd.database.requests import SHUTTING_DOWN, Unavailable, UnknownDatabase
from treedbd.http1.parser import Header
from treedbd.http1.request import IHttp1Request
from treedbd.limits import DEFAULT_TIMEOUT_S
from treedbd.names import DatabaseName
from treedbd.tree.types import InvalidQuery
from treedbd.web.auth.identity import ANONYMOUS, Identity
from treedbd.web.realtime import messages
from treedbd.web.realtime.session import RealtimeContext, RealtimeSession
from treedbd.web.realtime.socket import accept_upgrade
from treedbd.web.realtime.wire import WEBSOCKET_VERSION, CannotUpgrade, WrongVersion
from treedbd.web.request import AllowedMethods, Location, check_method, find_parameter
from treedbd.web.response import Response, counted_address_of

if TYPE_CHECKING:
    from treedbd.web.resource import DataHandlers

_SOCKET_METHODS: Final = AllowedMethods.of(["GET"])
_LONG_POLL_METHODS: Final = AllowedMethods.of(["GET", "HEAD"])
TIMEOUT_S: Final = 30.0
"""Seconds in which the embedding program has to name the sender of a request."""

SESSION_BYTES: Final = 16
_SESSION_ID: Final = re.compile(r"[0-9a-f]{32}")


class RealtimeEndpoint:
    """Answers requests for the paths of the real-time protocol, and has the open sessions.

    Attributes:
        is_ending: set when the server stops.
        sockets: the open WebSockets.

    """

    def __init__(
        self,
        data: DataHandlers,
        catalog: Catalog,
        find: Callable[[DatabaseName], Database],
    ) -> None:
        """`find` returns the database of a name."""
        self.is_ending = False
        web = data.context
        self._context = RealtimeContext(data, catalog)
        self.sockets: Final = self._context.registry
        self._open: set[RealtimeSession] = set()
        self._parser = web.parser
        self._writer = web.writer
        self._users = web.users
        self._guard = web.guard
        self._rates = web.rates
        self._refuse = data.refuse
        self._find = find

    async def socket(self, request: IHttp1Request) -> None:
        """Open a session, or answer with the error."""
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
            await self._open_session(request, database, former[0] if former else "", identity)
        except Exception as error:
            self._refuse(request, error)

    async def long_poll(self, request: IHttp1Request) -> None:
        """Answer with the script that makes a browser use the WebSocket again."""
        try:
            check_method(request.method, _LONG_POLL_METHODS)
            location = self._parser.locate(request)
            if self._rates is not None:
                self._rates.take_project(request, location.name.project, is_write=False)
            script = answer_long_poll(find_parameter(request.uri, b"cb"))
            if self._guard is not None:
                self._guard.check_script(request)
            self._writer.send(request, script, no_store=True)
        except Exception as error:
            self._refuse(request, error)

    def end(self) -> None:
        """Close all sessions and open no others: the server stops."""
        self.is_ending = True
        self.sockets.end()

    def ended(self) -> Deferred[Any]:
        """Close all sessions; fires when the writes that their clients set for the end are done."""
        return DeferredList([session.close() for session in self._open], consumeErrors=True)

    def _locate(self, request: IHttp1Request) -> tuple[Location, Database]:
        """Return what a request addresses; raise the error in its address."""
        location = self._parser.locate(request)
        host = request.headers[b"host"][0]
        ns = location.parameters.get("ns", "")
        if not is_host_label(ns, host):
            return location, self._find(location.name)
        try:
            if not is_ipv4(host):
                return location, self._find(location.name)
        except UnknownDatabase as error:
            if error.is_project_known:
                raise
        location = self._parser.locate(request, ignores_ns=True)
        return location, self._find(location.name)

    async def _open_session(
        self,
        request: IHttp1Request,
        database: Database,
        former: str,
        identity: Identity | None,
    ) -> None:
        """Open a session, after its `former` one has ended; raise `BadHandshake` or `WrongVersion`.

        `identity` is the sender of the request, if the program that embeds the service has named
        one.
        """
        context = self._context
        if self.is_ending:
            raise Unavailable(SHUTTING_DOWN)
        database.check_exists()
        versions = request.headers.get(b"sec-websocket-version", [])
        if versions and versions != [WEBSOCKET_VERSION.encode()]:
            raise WrongVersion
        headers = accept_upgrade(_as_upgrade(request), context.limits)
        address = counted_address_of(request)
        self.sockets.check(address)
        session = RealtimeSession(
            context=context,
            session_id=os.urandom(SESSION_BYTES).hex(),
            database=database,
            request=request,
            address=address,
            identity=ANONYMOUS if identity is None else identity,
        )
        opening = context.catalog.acquire(database, DEFAULT_TIMEOUT_S)
        try:
            if isinstance(opening, Deferred):
                await opening
            if _SESSION_ID.fullmatch(former):
                await self._end_former(former, database)
            self._start(session, request, headers)
        except BaseException:
            context.catalog.release(database)
            raise

    def _start(
        self, session: RealtimeSession, request: IHttp1Request, headers: tuple[Header, ...]
    ) -> None:
        context = self._context
        self.sockets.check(session.address)  # others may have been opened meanwhile
        ended = request.notifyFinish()
        connection = request.upgrade(headers, session.received)
        if connection is None:
            raise CannotUpgrade
        host = request.headers.get(b"host", [b""])[0].decode("latin-1")
        self.sockets.add(session)
        self._open.add(session)
        session.start(connection, messages.print_hello(context.now_ms(), host, session.id))
        ended.addBoth(lambda _: session.connection_ended())
        session.ended.addCallback(lambda _: self._open.discard(session))

    async def _end_former(self, former: str, database: Database) -> None:
        """End the former session of a client, in whichever process it is open."""
        session = self.sockets.find(former)
        if session is not None and session.database is database:
            await session.close()
        else:
            await database.disconnect_writes.run(former)


def is_host_label(ns: str, host: bytes) -> bool:
    """Return whether `ns` is the first label of the host, as some clients send it."""
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
    """Return the parsed head of a request in the form of the WebSocket library."""
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

    There is no long polling. But a browser whose WebSocket has failed once remembers that, and from
    then on always requests `/.lp` first; the script removes that memory. It runs in a frame of the
    page's own origin, which names the callback by a number. Source: `realtime-protocol.md`, section
    1.
    """
    if len(callbacks) != 1 or not _CALLBACK_NUMBER.fullmatch(callbacks[0]):
        raise InvalidQuery("The number of the callback (cb) must be there once, in digits only.")
    return Response(200, _LONG_POLL_SCRIPT % callbacks[0].encode(), _SCRIPT_HEADERS)
