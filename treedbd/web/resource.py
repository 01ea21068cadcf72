"""The Klein resource: one catch-all route for the tree, and the few reserved places beside it.

Requests for data go past Klein's router, which could only ever choose the one route and would
decode the path first. The reserved places, and whatever they raise, take Klein's ordinary way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

from klein import Klein
from klein.resource import KleinResource
from twisted.internet.interfaces import IReactorTime
from twisted.python.failure import Failure
from twisted.web.server import NOT_DONE_YET, Request

from treedbd.database.catalog import Catalog
from treedbd.database.question import Unavailable
from treedbd.web.admin import AdminRoutes
from treedbd.web.answer import MethodNotAllowed, Reply, refuse
from treedbd.web.data import DataRoute
from treedbd.web.identity.gate import Gate
from treedbd.web.options import WebOptions
from treedbd.web.streams import StreamLimits, Streams

RESERVED: Final = (
    [b".health"],
    [b".settings", b"rules.json"],
    [b".inspect", b"databases.json"],
)
HEALTH_METHODS: Final = b"GET, HEAD, OPTIONS"


class TreeResource(KleinResource):
    """The whole interface as an `IResource`, to be mounted under any prefix.

    Attributes:
        judges_size: tells the channel to let a request be refused here whose body is too large.

    """

    judges_size = True

    def __init__(
        self,
        catalog: Catalog,
        options: WebOptions,
        gate: Gate,
        stream_limits: StreamLimits,
        clock: IReactorTime,
        wall_clock: Callable[[], float],
    ) -> None:
        """Serve `catalog`; `wall_clock` gives the seconds since 1970."""
        self._catalog = catalog
        self._data = DataRoute(catalog, options, gate, stream_limits, clock, wall_clock)
        self._admin = AdminRoutes(self._data.reader, gate, catalog, self._data.sender)
        super().__init__(self._routes())

    def render(self, request: Any) -> Any:
        """Answer a request: at once where that is possible."""
        if b"/." in request.path or b"%" in request.path:
            segments = [segment for segment in request.postpath if segment]
            if segments[2:] == [b".json"]:
                segments = [segments[0], segments[1] + b".json"]
            if segments in RESERVED:
                request.postpath = segments
                return super().render(request)
        self._data.answer(request)
        return NOT_DONE_YET

    @property
    def streams(self) -> Streams:
        """The open streams."""
        return self._data.streams

    def _routes(self) -> Klein:
        app = Klein()
        app.route("/.health")(self._health)
        self._admin.add_to(app)
        app.handle_errors(Exception)(cast(Any, self._refuse))
        return app

    def _health(self, request: Request) -> bytes:
        if request.method == b"OPTIONS":
            preflight = self._data.sender.preflight(request, HEALTH_METHODS)
            return self._data.sender.prepare(request, preflight)
        if request.method not in (b"GET", b"HEAD"):
            raise MethodNotAllowed("The health can be read, nothing else.", HEALTH_METHODS)
        troubles = self._catalog.troubles()
        if troubles:
            raise Unavailable(" ".join(f"{label}: {why}" for label, why in troubles.items()))
        return self._data.sender.prepare(request, Reply(200, b'{"status":"ok"}'))

    def _refuse(self, request: Request, failure: Failure) -> bytes:
        dialect = self._data.reader.dialect_of(request)
        return self._data.sender.prepare(request, refuse(failure.value or Exception(), dialect))
