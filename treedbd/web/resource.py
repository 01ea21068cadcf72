"""Every route of the interface, declared on one Klein application, and the dispatch of requests.

The application is the declaration: paths and methods. Requests are not routed by it, because its
router decodes the path first (so `%2F` would become a separator), and because one route gets nearly
all of them. `render` dispatches by a table that is derived from the declaration: the routes without
variables are the reserved paths, and every other path is one of the tree.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final, NamedTuple, TypeAlias

from klein import Klein
from twisted.internet.interfaces import IReactorTime
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET
from zope.interface import implementer

from treedbd.database.catalog import Catalog
from treedbd.database.errors import Unavailable
from treedbd.web.admin import AdminHandlers
from treedbd.web.auth.authenticator import Authenticator
from treedbd.web.cors import Cors
from treedbd.web.errors import error_response
from treedbd.web.handlers import DataHandlers, Handler, drive
from treedbd.web.http1.adapter import AdaptedRequest
from treedbd.web.http1.interface import IHttp1Request, IHttp1Resource
from treedbd.web.options import WebOptions
from treedbd.web.request import AllowedMethods, DataRequest, MethodNotAllowed, RequestParser
from treedbd.web.response import Response, ResponseWriter
from treedbd.web.sse.registry import StreamRegistry

Answer: TypeAlias = Callable[[IHttp1Request], Coroutine[Any, Any, None]]

_SUFFIX: Final = b".json"


class _Route(NamedTuple):
    """One entry of the dispatch table."""

    answer: Answer
    allowed: AllowedMethods


@implementer(IHttp1Resource)
class TreeResource(Resource):
    """The whole interface as an `IResource`, to be mounted under any prefix."""

    isLeaf = True
    app = Klein()

    def __init__(
        self,
        catalog: Catalog,
        options: WebOptions,
        authenticator: Authenticator,
        clock: IReactorTime,
        wall_clock: Callable[[], float],
    ) -> None:
        """Serve `catalog`; `wall_clock` returns the seconds since 1970."""
        Resource.__init__(self)
        self._catalog = catalog
        self._body_limit = options.limits.write_body_bytes
        self._parser = RequestParser(options)
        self._writer = ResponseWriter(Cors(options.cors_origins))
        self._admin = AdminHandlers(authenticator, catalog)
        self._data = DataHandlers(
            options, authenticator, self._writer, self._refuse, clock, wall_clock
        )
        self._routes = {
            rule.endpoint: _Route(
                getattr(self, rule.endpoint), AllowedMethods.of(rule.methods or ())
            )
            for rule in self.app.url_map.iter_rules()
        }
        self._reserved = {
            segments: self._routes[endpoint].answer for segments, endpoint in RESERVED.items()
        }

    @property
    def streams(self) -> StreamRegistry:
        """The open streams."""
        return self._data.streams

    # The routes.

    @app.route("/.health", methods=["GET", "HEAD", "OPTIONS"])
    async def health(self, request: IHttp1Request) -> None:
        """Answer whether the service can write."""
        allowed = self._routes["health"].allowed
        try:
            response = self._check_health(request, allowed)
        except Exception as error:
            self._refuse(request, error)
        else:
            self._writer.send(request, response, no_store=True)

    @app.route("/.settings/rules.json", methods=["GET", "HEAD", "PUT", "OPTIONS"])
    async def rules(self, request: IHttp1Request) -> None:
        """Answer an admin about the rules of a project."""
        await self._answer(request, self._routes["rules"].allowed, self._admin.rules)

    @app.route("/.inspect/databases.json", methods=["GET", "HEAD", "OPTIONS"])
    async def databases(self, request: IHttp1Request) -> None:
        """Answer an admin about the databases of a project."""
        await self._answer(request, self._routes["databases"].allowed, self._admin.databases)

    @app.route(
        "/<path:place>", methods=["GET", "HEAD", "PUT", "POST", "PATCH", "DELETE", "OPTIONS"]
    )
    async def tree(self, request: IHttp1Request, place: str = "") -> None:
        """Answer a request for a place in the tree, `/<path>.json`."""
        await self._answer(request, self._routes["tree"].allowed, None)

    # Dispatch.

    def render(self, request: Any) -> int:
        """Dispatch a request; its response is sent now or later."""
        if not IHttp1Request.providedBy(request):
            request = AdaptedRequest(request, self._body_limit)
        answer: Answer = self.tree
        if b"/." in request.path or b"%" in request.path:
            answer = self._reserved.get(_segments(request.postpath), self.tree)
        drive(answer(request))
        return NOT_DONE_YET

    async def _answer(
        self, request: IHttp1Request, allowed: AllowedMethods, handler: Handler | None
    ) -> None:
        """Answer a request by a handler; None is that of its method, for a place in the tree.

        `allowed` are the methods of the route.
        """
        wanted: DataRequest | None = None
        try:
            if request.method == b"OPTIONS":
                self._parser.check_host(request)
                response: Response | None = self._writer.preflight(request, allowed.header)
            else:
                location = self._parser.locate(request)
                database = self._catalog.find(location.name)
                wanted = self._parser.parse(
                    request,
                    location,
                    database.project.dialect,
                    allowed,
                    has_place=handler is None,
                )
                handle = handler or self._data.methods[wanted.method]
                response = await handle(request, wanted, database)
        except Exception as error:
            self._refuse(request, error, wanted)
            return
        if response is not None:
            may_store = wanted is not None and wanted.token is None and handler is None
            self._writer.send(request, response, no_store=not may_store)

    def _refuse(
        self, request: IHttp1Request, error: BaseException, wanted: DataRequest | None = None
    ) -> None:
        """Answer with an error; `wanted` is the request as far as it has been parsed."""
        dialect = (
            self._parser.dialect_of(request, self._catalog.dialect)
            if wanted is None
            else wanted.dialect
        )
        self._writer.send(request, error_response(error, dialect), no_store=True)

    def _check_health(self, request: IHttp1Request, allowed: AllowedMethods) -> Response:
        """Return the response of `/.health`; raise `Unavailable` if a database refuses writes."""
        if request.method == b"OPTIONS":
            return self._writer.preflight(request, allowed.header)
        if request.method not in allowed.names:
            raise MethodNotAllowed(f"The methods here are {allowed.header.decode()}.", allowed)
        write_problems = self._catalog.write_problems()
        if write_problems:
            raise Unavailable(" ".join(f"{label}: {why}" for label, why in write_problems.items()))
        return Response(200, b'{"status":"ok"}')


def _segments(path: Iterable[bytes]) -> tuple[bytes, ...]:
    """Return the segments of a decoded path; `a/.json` names `a.json`."""
    segments = [segment for segment in path if segment]
    if segments[-1:] == [_SUFFIX] and len(segments) > 1:
        segments[-2:] = [segments[-2] + _SUFFIX]
    return tuple(segments)


RESERVED: Final[dict[tuple[bytes, ...], str]] = {
    _segments(rule.rule.encode().split(b"/")): rule.endpoint
    for rule in TreeResource.app.url_map.iter_rules()
    if not rule.arguments
}
"""The reserved paths, as segments, and the names of their routes, which have no variables."""
