"""Every route of the interface, declared on one Klein application, and the dispatch of requests.

The application is the declaration: paths and methods. Requests are not routed by it, because its
router decodes the path first (so `%2F` would become a separator), and because one route gets nearly
all of them. `render` dispatches by a table that is derived from the declaration: the routes without
variables are the reserved paths, and every other path is one of the tree.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

from klein import Klein
from twisted.internet.interfaces import IReactorTime
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET
from zope.interface import implementer

from treedbd.database.absent import AbsentDatabase
from treedbd.database.catalog import Catalog
from treedbd.database.database import Database
from treedbd.database.errors import SHUTTING_DOWN, Unavailable, UnknownDatabase
from treedbd.names import DatabaseName
from treedbd.turns import Turns
from treedbd.web.admin import AdminHandlers
from treedbd.web.auth.authenticator import Authenticator
from treedbd.web.body_gate import FREE_BYTES
from treedbd.web.content import WaitingBytesRefused
from treedbd.web.cors import Cors
from treedbd.web.errors import error_response
from treedbd.web.handlers import DataHandlers, Handler, drive
from treedbd.web.health import Health
from treedbd.web.http1.adapter import AdaptedRequest, size_of_body
from treedbd.web.http1.interface import IHttp1Request, IHttp1Resource
from treedbd.web.methods import AllowedMethods, MethodNotAllowed
from treedbd.web.options import WebOptions
from treedbd.web.origins import SENT_FOR_PAGES, ForeignOrigin, OriginGuard
from treedbd.web.repeated_reads import RepeatedReads
from treedbd.web.request import DataRequest, Question, RequestParser
from treedbd.web.response import Response, ResponseWriter
from treedbd.web.shared_reads import SharedReads
from treedbd.web.sse.registry import StreamRegistry

Answer: TypeAlias = Callable[[IHttp1Request], Coroutine[Any, Any, None]]

_SUFFIX: Final = b".json"
_READING: Final = (b"GET", b"HEAD")
_ECHOING: Final = frozenset({b"PUT", b"PATCH"})
"""Methods whose response is about as large as the body: there must be room for it beforehand."""


class _Route(NamedTuple):
    """One entry of the dispatch table."""

    answer: Answer
    allowed: AllowedMethods


@implementer(IHttp1Resource)
class TreeResource(Resource):
    """The whole interface as an `IResource`, to be mounted under any prefix.

    Attributes:
        shared_reads: what waits for readers.

    """

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
        self._moment = catalog.moment
        self._body_limit = options.limits.write_body_bytes
        self._parser = RequestParser(options)
        self.shared_reads: Final = SharedReads(options.limits, clock)
        self._writer = ResponseWriter(
            Cors(options.cors_origins),
            self.shared_reads.memory,
            clock,
            compresses=options.compression,
        )
        self._guard = OriginGuard(options.cors_origins) if options.only_local_pages else None
        self._is_ending = False
        self._admin = AdminHandlers(authenticator, catalog, self._body_limit, clock)
        self._health = Health(catalog, authenticator, self._parser)
        writer, shared = self._writer, self.shared_reads
        self._data = DataHandlers(
            options, authenticator, writer, self._refuse, shared, clock, wall_clock
        )
        self._repeated_reads = RepeatedReads(catalog, authenticator, writer, self._data.now_ms)
        self._routes = {
            rule.endpoint: _Route(getattr(self, rule.endpoint), AllowedMethods.of(rule.methods))
            for rule in self.app.url_map.iter_rules()
        }
        self._reserved = {
            segments: self._routes[endpoint].answer for segments, endpoint in RESERVED.items()
        }

    @property
    def streams(self) -> StreamRegistry:
        """The open streams."""
        return self._data.streams

    def show_turns(self, turns: Turns) -> None:
        """Show the turns of the process to the admins who ask for its health."""
        self._health.turns = turns

    def show_lag(self, lag_ms: Callable[[], int]) -> None:
        """Say in each response how old, in milliseconds, what it shows may be."""
        self._writer.lag_ms = lag_ms

    def refuse_writes(self) -> None:
        """Refuse the writes that wait to be parsed, and all that come: the server is stopping."""
        self._is_ending = True
        self._data.refuse_writes()

    # The routes.

    @app.route("/.health", methods=["GET", "HEAD", "OPTIONS"])
    async def health(self, request: IHttp1Request) -> None:
        """Answer whether everything is as it should be."""
        allowed = self._routes["health"].allowed
        try:
            if request.method == b"OPTIONS":
                response = self._writer.preflight(request, allowed.header)
            elif request.method not in allowed.names:
                raise MethodNotAllowed(f"The methods here are {allowed.header.decode()}.", allowed)
            else:
                response = await self._health.check(request, is_ending=self._is_ending)
        except Exception as error:
            self._refuse(request, error)
        else:
            self._writer.send(request, response, no_store=True)

    @app.route("/.settings/rules.json", methods=["GET", "HEAD", "PUT", "OPTIONS"])
    async def rules(self, request: IHttp1Request) -> None:
        """Answer an admin about the rules of a project."""
        await self._answer(request, self._routes["rules"].allowed, self._admin.rules)

    @app.route("/.settings/log.json", methods=["GET", "HEAD", "OPTIONS"])
    async def log(self, request: IHttp1Request) -> None:
        """Answer an admin about the writes of a database."""
        await self._answer(request, self._routes["log"].allowed, self._admin.log)

    @app.route("/.settings/compact.json", methods=["POST", "OPTIONS"])
    async def compact(self, request: IHttp1Request) -> None:
        """Give free space of a database back to the file system, for an admin."""
        await self._answer(request, self._routes["compact"].allowed, self._admin.compact)

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
        self._moment.of = None  # that was of another request
        if not IHttp1Request.providedBy(request):
            request = AdaptedRequest(request, self._body_limit)
        if self._guard is not None and not SENT_FOR_PAGES.isdisjoint(request.headers):
            try:
                self._guard.check(request)
            except ForeignOrigin as error:
                self._refuse(request, error)
                return NOT_DONE_YET
        if not self._repeat(request):
            self._dispatch(request)
        return NOT_DONE_YET

    def _dispatch(self, request: IHttp1Request) -> None:
        answer: Answer = self.tree
        if b"/." in request.path or b"%" in request.path:
            answer = self._reserved.get(_segments(request.postpath), self.tree)
        drive(answer(request))

    def _repeat(self, request: IHttp1Request, *, may_wait: bool = True) -> bool:
        """Answer a read that the connection repeats, if that is simple; return whether it was.

        If it `may_wait` for that, it is answered in a moment, one way or the other.
        """
        question: Question | None = request.head_memory.question
        if question is None or question.rules is None:
            return False
        try:
            self._check_token(request, question.wanted)
            if self._repeated_reads.answer(request, question):
                return True
        except Exception as error:
            self._refuse(request, error, question.wanted)
            return True
        again = partial(self._repeat_or_dispatch, request)
        return may_wait and self._catalog.when_current(question.name, again)

    def _repeat_or_dispatch(self, request: IHttp1Request) -> None:
        if not self._repeat(request, may_wait=False):
            self._dispatch(request)

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
                question, database = self._parse(request, allowed, has_place=handler is None)
                wanted, rules = question.wanted, database.rules.current
                response = await self._handle(request, wanted, database, handler)
                if handler is None and wanted.is_simple_read:
                    question.rules = rules
        except Exception as error:
            self._refuse(request, error, wanted)
            return
        if response is None:
            return
        may_store = wanted is not None and wanted.token is None and handler is None
        may_refuse = wanted is None or wanted.method not in _ECHOING
        try:
            self._writer.send(request, response, no_store=not may_store, may_refuse=may_refuse)
        except WaitingBytesRefused as error:
            self._refuse(request, error, wanted)

    def _parse(
        self, request: IHttp1Request, allowed: AllowedMethods, *, has_place: bool
    ) -> tuple[Question, Database]:
        """Return what a request asks, and of which database; what its head asks is remembered."""
        memory = request.head_memory
        question: Question | None = memory.question
        if question is not None and not request.is_oversized:
            return question, self._find(question.name)
        location = self._parser.locate(request)
        database = self._find(location.name)
        wanted = self._parser.parse(
            request, location, database.project.dialect, allowed, has_place=has_place
        )
        question = memory.question = Question(location.name, wanted)
        return question, database

    async def _handle(
        self,
        request: IHttp1Request,
        wanted: DataRequest,
        database: Database,
        handler: Handler | None,
    ) -> Response | None:
        """Return the response of the handler; for data, the database is open meanwhile."""
        self._check_token(request, wanted)
        if wanted.method not in _READING:
            self._check_running()
        if wanted.method in _ECHOING and wanted.print != "silent":
            self._writer.check_room(request, size_of_body(request))
        if handler is not None:
            return await handler(request, wanted, database)
        # A large body is judged before it is applied, and a question about rules by the last state.
        is_write = wanted.method not in _READING and not wanted.wants_explanation
        is_write = is_write and size_of_body(request) <= FREE_BYTES
        opening = self._catalog.acquire(database, wanted.timeout_s, is_write=is_write)
        try:
            if opening is not None:
                await opening
            return await self._data.methods[wanted.method](request, wanted, database)
        finally:
            self._catalog.release(database)

    def _check_token(self, request: IHttp1Request, wanted: DataRequest) -> None:
        if self._guard is not None and wanted.token is not None:
            self._guard.check_token(request.headers, wanted.token)

    def _check_running(self) -> None:
        if self._is_ending:
            raise Unavailable(SHUTTING_DOWN)

    def _find(self, name: DatabaseName) -> Database:
        """Return a database, or what answers for one that its project does not list."""
        try:
            return self._catalog.find(name)
        except UnknownDatabase as error:
            if not error.is_project_known:
                raise
            return self._catalog.stand_in(name, AbsentDatabase)

    def _refuse(
        self, request: IHttp1Request, error: BaseException, wanted: DataRequest | None = None
    ) -> None:
        """Answer with an error; `wanted` is the request as far as it has been parsed."""
        dialect = (
            self._parser.dialect_of(request, self._catalog.dialect)
            if wanted is None
            else wanted.dialect
        )
        try:
            self._writer.send(request, error_response(error, dialect), no_store=True)
        except WaitingBytesRefused as refused:  # an error that shows a large value
            self._writer.send(request, error_response(refused, dialect), no_store=True)


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
