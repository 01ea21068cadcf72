"""`/.ws` and `/.lp`: the paths of the real-time protocol, and what their requests address.

Clients put a database into `ns`, as requests over HTTP do. What some put there without being told
to is the first label of the host: that counts only if there is such a project.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final, Protocol

from treedbd.database.catalog import Catalog
from treedbd.database.database import Database
from treedbd.database.requests import UnknownDatabase
from treedbd.http1.interface import IHttp1Request
from treedbd.limits import DEFAULT_TIMEOUT_S
from treedbd.names import DatabaseName
from treedbd.web.context import WebParts
from treedbd.web.rates import BodyGate
from treedbd.web.reading import MissingIndexes
from treedbd.web.realtime.door import RealtimeDoor, is_ipv4, name_without_host_label
from treedbd.web.realtime.known_hashes import KnownHashes
from treedbd.web.realtime.long_polling import answer_long_poll
from treedbd.web.realtime.registry import SocketRegistry
from treedbd.web.realtime.service import RealtimeParts
from treedbd.web.request import AllowedMethods, Location, check_method, find_parameter
from treedbd.web.response import Response

METHODS: Final = AllowedMethods.of(["GET"])
LONG_POLL_METHODS: Final = AllowedMethods.of(["GET", "HEAD"])
TIMEOUT_S: Final = 30.0
"""Seconds that the program which embeds the service has to say who sends a request."""


class DataParts(Protocol):
    """What handles the requests for data (`handlers.DataHandlers`), as far as it is shared."""

    @property
    def gate(self) -> BodyGate:
        """Lets bodies be parsed."""
        ...

    @property
    def missing_indexes(self) -> MissingIndexes:
        """Looks at the queries."""
        ...

    def now_ms(self) -> int:
        """Return the time in milliseconds since 1970."""
        ...


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
            check_method(request.method, METHODS)
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
            check_method(request.method, LONG_POLL_METHODS)
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


def make_realtime(
    parts: WebParts,
    catalog: Catalog,
    data: DataParts,
    refuse: Callable[[IHttp1Request, Exception], None],
    find: Callable[[DatabaseName], Database],
) -> RealtimeEndpoint:
    """Return what answers the requests of the real-time protocol."""
    options, clock = parts.options, parts.clock
    registry = SocketRegistry(
        options.limits, options.streams, clock, parts.wall_clock, options.counts
    )
    shared = RealtimeParts(
        limits=options.limits,
        buffer_bytes=options.streams.buffer_bytes,
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
        explains_denials=options.development is not None,
        accepts_unsigned=options.only_local_pages and options.admin_token is None,
    )
    return RealtimeEndpoint(RealtimeDoor(shared, os.urandom), parts, refuse, find)
