"""The resource of the interface: its routes, the dispatch of requests, and the handlers that read.

The routes are declared on one Klein application: paths and methods. Requests are not routed by it,
because its router decodes the path first (so `%2F` would become a separator), and because one route
gets nearly all of them. `TreeResource.render` dispatches by a table that is derived from the
declaration: the routes without variables are the reserved paths, and every other path is one of the
tree.

A handler is one coroutine for a method of the tree. It receives a request, its parsed form and the
database that it addresses, and returns the response; None if it sends the response by itself, as a
stream does. An exception becomes an error response (`errors`). Small reads are answered in the turn
in which they arrive. If a client disconnects while its handler waits, a write that has begun is
still done; only its response is dropped. `DataHandlers` reads, `write` has the handlers that write.

A read that need not wait is answered without a coroutine (`DataHandlers.get_at_once`): most are.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar

import attrs
from klein import Klein
from twisted.internet.defer import CancelledError, Deferred
from twisted.python.failure import Failure
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET
from zope.interface import implementer

from treedbd.database.answers import Answer
from treedbd.database.catalog import Catalog
from treedbd.database.database import AbsentDatabase, Database
from treedbd.database.requests import (
    SHUTTING_DOWN,
    Caller,
    DeadlinePassed,
    Unavailable,
    UnknownDatabase,
)
from treedbd.database.rights import ReadRequest
from treedbd.http1.adapter import AdaptedRequest
from treedbd.http1.content import Flow, WaitingBytesRefused
from treedbd.http1.request import IHttp1Request, IHttp1Resource, Request, size_of_body
from treedbd.loop import Turns
from treedbd.names import DatabaseName
from treedbd.rules.evaluate import explanation
from treedbd.store.nodes import Nodes
from treedbd.traces import Trace
from treedbd.tree.query import Order
from treedbd.web.activity import Activity
from treedbd.web.admin import AdminHandlers
from treedbd.web.auth.identity import ANONYMOUS, Identity, override_auth, require_admin
from treedbd.web.backups import BackupHandlers, Backups
from treedbd.web.console import ERROR_HEADERS, SAFE_HEADERS, Console
from treedbd.web.context import WebContext
from treedbd.web.cursors import CursorHandlers
from treedbd.web.databases import DatabaseHandlers
from treedbd.web.dead_letters import DeadLetterHandlers
from treedbd.web.errors import ErrorSender, NoteRefusal, codes_by_status
from treedbd.web.feed import FeedHandlers
from treedbd.web.function_triggers import FunctionHandlers
from treedbd.web.inspection import Inspection
from treedbd.web.listeners import StreamRegistry
from treedbd.web.openapi import DeclaredRoute, OpenApi
from treedbd.web.origins import CONSOLE, SENT_FOR_PAGES, ForeignOrigin, OriginGuard, UnnamedPage
from treedbd.web.pages import DOCUMENT_FILE_PATHS, DOCUMENT_PATHS, Documents, FrontPage, Health
from treedbd.web.profile import ORDINARY_STREAMS, Profiler
from treedbd.web.rates import Rates, TooManyRequests
from treedbd.web.reading import (
    MissingIndexes,
    Rendered,
    Rendering,
    TooMuchWork,
    Waiter,
    before_deadline,
    explain_index,
    is_met_by,
    is_tagged,
    kept_response,
    known_tag,
    make_source,
    may_flow,
    needs_body,
    read_response,
    with_expiry,
)
from treedbd.web.realtime.opening import RealtimeEndpoint
from treedbd.web.request import (
    READING,
    AllowedMethods,
    DataRequest,
    Question,
    check_method,
    check_stream,
    names_changes,
    parse_callback,
)
from treedbd.web.request_log import DevelopmentLog
from treedbd.web.response import Response, counted_address_of, json_response
from treedbd.web.standby import StandbyHandlers
from treedbd.web.webhooks import WebhookHandlers
from treedbd.web.write import FREE_BYTES, WriteHandlers

if TYPE_CHECKING:
    from treedbd.config.settings import Settings

Handler: TypeAlias = Callable[[IHttp1Request, DataRequest, Database], Awaitable[Response | None]]
RouteHandler: TypeAlias = Callable[[IHttp1Request], Coroutine[Any, Any, None]]
_Handler = TypeVar("_Handler", bound=Callable[..., Any])

ALL_METHODS: Final = ("GET", "HEAD", "PUT", "POST", "PATCH", "DELETE", "OPTIONS")
READ_METHODS: Final = ("GET", "HEAD", "OPTIONS")
PAGES: Final = frozenset({"root", "icon", "document", "document_file"})
"""The routes for browsers."""
REALTIME: Final = frozenset({"socket", "long_poll"})
"""The routes of the real-time protocol."""
STANDBY: Final = frozenset(
    f"standby_{each}"
    for each in ("base", "promotion", "reached", "state", "stream", "superseded", "term")
)
"""The routes for standbys."""
UNDECLARED: Final = REALTIME | STANDBY | {"document_file", "console"}
"""The routes that the OpenAPI document does not have."""

_SUFFIX: Final = b".json"


class Route(NamedTuple):
    """One entry of the dispatch table."""

    answer: RouteHandler
    allowed: AllowedMethods


def route_each(
    app: Klein, paths: Iterable[str], methods: Sequence[str]
) -> Callable[[_Handler], _Handler]:
    """Declare one handler for each of several paths."""

    def declare(handler: _Handler) -> _Handler:
        for path in paths:
            app.route(path, methods=methods)(handler)
        return handler

    return declare


def make_routes(
    resource: object, app: Klein, other: Callable[..., Coroutine[Any, Any, None]]
) -> dict[str, Route]:
    """Return the routes of `app` by their endpoints.

    A route is answered by the method of `resource` that has the name of its endpoint, or else by
    `other`, which is called with the endpoint, too.
    """
    return {
        rule.endpoint: Route(
            getattr(resource, rule.endpoint, partial(other, endpoint=rule.endpoint)),
            AllowedMethods.of(rule.methods),
        )
        for rule in app.url_map.iter_rules()
    }


def split_segments(path: Iterable[bytes]) -> tuple[bytes, ...]:
    """Return the segments of a decoded path; `a/.json` names `a.json`."""
    segments = [segment for segment in path if segment]
    if segments[-1:] == [_SUFFIX] and len(segments) > 1:
        segments[-2:] = [segments[-2] + _SUFFIX]
    return tuple(segments)


def reserved_routes(app: Klein) -> dict[tuple[bytes, ...], str]:
    """Return the endpoints of the routes without variables, by the segments of their paths."""
    return {
        split_segments(rule.rule.encode().split(b"/")): rule.endpoint
        for rule in app.url_map.iter_rules()
        if not rule.arguments
    }


def reserved_answers(
    routes: Mapping[str, Route],
    reserved: Mapping[tuple[bytes, ...], str],
    without: frozenset[str],
) -> dict[tuple[bytes, ...], RouteHandler]:
    """Return the handlers of the reserved paths.

    Paths of the endpoints that the service is `without` are ordinary paths of the tree.
    """
    return {
        segments: routes[endpoint].answer
        for segments, endpoint in reserved.items()
        if endpoint not in without
    }


def declared_routes(app: Klein, without: frozenset[str]) -> list[DeclaredRoute]:
    """Return the declared routes of `app`, except those that the service is `without`.

    Those of the real-time protocol are left out, because its requests are of another kind, and the
    files beside the pages of the documentation, those of the console, and what standbys use,
    because no client needs them.
    """
    return [
        DeclaredRoute(rule.rule, rule.endpoint, frozenset(rule.methods or ()))
        for rule in app.url_map.iter_rules()
        if rule.endpoint not in without | UNDECLARED
    ]


def make_openapi(app: Klein, settings: Settings, without: frozenset[str]) -> OpenApi:
    """Return what serves the OpenAPI document of the routes, except those of `without`."""
    return OpenApi(
        routes=declared_routes(app, without),
        limits=settings.limits,
        etag_headers=settings.http.etag_headers,
        codes=codes_by_status(),
    )


def missing_endpoints(settings: Settings) -> frozenset[str]:
    """Return the endpoints that a service with these settings does not have."""
    pages = frozenset() if settings.http.page else PAGES
    return pages if settings.realtime.enabled else pages | REALTIME


def drive(coroutine: Coroutine[Deferred[Any], Any, object], failure: Failure | None = None) -> None:
    """Run a coroutine to its end; if it waits for a Deferred, continue when that fires.

    A coroutine that does not wait costs no Deferred. It must catch its own exceptions. `failure` is
    that of the Deferred that it waited for, and is raised in it.
    """
    try:
        if failure is None:
            waits_for = coroutine.send(None)
        else:  # the Deferred cannot raise it by itself: it is still running its callbacks
            waits_for = failure.throwExceptionIntoGenerator(coroutine)
    except StopIteration:
        return
    waits_for.addCallbacks(lambda _: drive(coroutine), lambda failure: drive(coroutine, failure))


class DataHandlers:
    """Handles requests for data.

    Attributes:
        methods: the handler of each method.
        streams: the open streams.
        missing_indexes: finds queries without an index.
        gate: admits bodies to be parsed.
        context: what the handlers of the service share.
        refuse: answers with an error.
        stream_kinds: the classes of streams, of values and of changes; while a database is
            profiled, those that record what they send.
        profiler: records the operations of databases that are profiled.

    """

    profiler: Profiler

    def __init__(self, context: WebContext, refuse: ErrorSender) -> None:
        self.context: Final = context
        self.refuse: Final = refuse
        self._rates = context.rates
        self._authenticator = context.authenticator
        self._clock, self._wall_clock = context.clock, context.wall_clock
        writes = WriteHandlers(self)
        self.methods: Final[dict[bytes, Handler]] = {
            b"GET": self.get,
            b"HEAD": self.get,
            **writes.methods,
        }
        self.streams: Final = StreamRegistry(context)
        self.stream_kinds = ORDINARY_STREAMS
        self.gate: Final = writes.gate
        self._shared_reads = context.reads
        self.missing_indexes: Final = MissingIndexes()
        self._audit = context.audit if context.audit is not None and context.audit.reads else None

    async def get(
        self, request: IHttp1Request, wanted: DataRequest, database: Database
    ) -> Response | None:
        """Read a value, run a query, or open a stream."""
        deadline = self._clock.seconds() + wanted.timeout_s
        options = wanted.read_options
        if wanted.wants_explanation:
            return await self._explain_read(wanted, database)
        if wanted.accepts_events:
            check_stream(wanted.parameters, wanted.place)
        identity = await self.identify(wanted, database)
        if self._audit is not None:
            self._audit.read(request, wanted, database.name, identity)
        if wanted.accepts_events:
            kind = self.stream_kinds[names_changes(wanted.parameters)]
            stream = kind(
                request=request, wanted=wanted, data=self, database=database, identity=identity
            )
            await stream.open()
            return None
        read = self._make_read(wanted, identity)
        if options.query is not None:
            self.missing_indexes.check(database, options.query, read)
            if database.indexes.is_changing and not await self._wait_for_index(
                request, database, options.query.order, read, deadline
            ):
                return None
        found = self._read(wanted, database, read, deadline)
        if isinstance(found, Response):
            return found
        return await self.finish_read(request, wanted, database, found, deadline)

    async def _wait_for_index(
        self,
        request: IHttp1Request,
        database: Database,
        order: Order,
        read: ReadRequest,
        deadline: float,
    ) -> bool:
        """Wait for an index that is being built, if need be; False if the client disconnects."""
        if not database.indexes.must_wait(read.path, order):
            return True
        database.check_read(read)
        waiting = database.indexes.wait_for(read.path, order)
        request.notifyFinish().addErrback(lambda _: waiting.cancel())
        try:
            await before_deadline(waiting, deadline, self._clock, "the index was built")
        except CancelledError:
            return False
        return True

    def get_at_once(
        self, request: IHttp1Request, question: Question, database: Database
    ) -> Response | Handler | None:
        """Answer a simple read in this turn, if nothing has to be waited for.

        Returns what answers a large read in place of `get`, and None if its token has to be
        verified first, or an index is being built; then nothing was counted. `database` shows the
        last durable state.
        """
        wanted, read = question.wanted, question.read
        query = wanted.read_options.query
        if query is not None and database.indexes.is_changing:
            return None
        identity = self.recall(wanted, database)
        if identity is None:
            return None
        if self._audit is not None:
            self._audit.read(request, wanted, database.name, identity)
        if read is None or question.identity is not identity or request.trace is not None:
            read = self._make_read(wanted, identity, request.trace)
            if request.trace is None:
                question.identity, question.read, question.allowed = identity, read, None
        rules = database.rules.current
        if query is not None and question.rules is not rules:
            is_ready = self.missing_indexes.check(database, query, read)
            question.rules = rules if is_ready else None
        deadline = self._clock.seconds() + wanted.timeout_s
        asked = question if request.trace is None else None
        found = self._read(wanted, database, read, deadline, asked)
        if isinstance(found, Response):
            return found
        return partial(self.finish_read, waiter=found, deadline=deadline)

    def _make_read(
        self, wanted: DataRequest, identity: Identity, trace: Trace | None = None
    ) -> ReadRequest:
        return ReadRequest(
            caller=Caller(identity.auth, identity.is_admin),
            path=wanted.place.path,
            query=wanted.read_options.facts,
            now=self.now_ms,
            trace=trace or wanted.trace,
        )

    def _read(
        self,
        wanted: DataRequest,
        database: Database,
        read: ReadRequest,
        deadline: float,
        question: Question | None = None,
    ) -> Response | Waiter:
        """Return the response to a read, or what waits for it if it is large.

        The answer may be kept. Else it is rendered: in this turn, unless it is large. In the
        `question`, if `read` is of one, it is kept that the rules allow it in every state.
        """
        rules = database.rules.current
        is_allowed = question is not None and question.allowed is rules
        answer = database.answers.find(wanted.place, wanted.form)
        if answer is not None:
            if not is_allowed and database.check_read(read) and question is not None:
                question.allowed = rules
            kept = kept_response(wanted, answer, self._shared_reads.memory)
            if kept is not None:
                return kept
        tag = None
        if not wanted.shows_value and is_tagged(wanted):
            tag = database.known_tag(wanted.place)
        source = make_source(database, wanted, tag)
        is_empty = not wanted.shows_value and _is_empty(wanted, tag)

        def render(nodes: Nodes) -> bytes | Rendering | TooMuchWork:
            # The rules are evaluated against each state that is read, before it is sent.
            database.check_read(read, nodes)
            return b"" if is_empty else self._shared_reads.render(source, nodes)

        rendered = database.read(render)
        if self._clock.seconds() >= deadline:
            raise DeadlinePassed("the data was read")
        if isinstance(rendered, TooMuchWork):
            return Waiter(source, partial(database.check_read, read), rendered.sequence)
        return self._respond(wanted, database, rendered, source, deadline)

    async def finish_read(
        self,
        request: IHttp1Request,
        wanted: DataRequest,
        database: Database,
        waiter: Waiter,
        deadline: float,
    ) -> Response | None:
        """Return the response to a large read, which goes on if this is called in the same turn."""
        rendered = await self._render_large(request, wanted, database, waiter, deadline)
        if rendered is None:
            return None
        return self._respond(wanted, database, rendered, rendered.source, deadline)

    def _respond(
        self,
        wanted: DataRequest,
        database: Database,
        rendered: bytes | Rendered,
        source: object,
        deadline: float,
    ) -> Response:
        """Return the response with what `source` has rendered, and keep that if it is possible."""
        if wanted.shows_value and isinstance(rendered, bytes):
            database.answers.keep(wanted.place, wanted.form, rendered)
            return Response(200, rendered)
        tag = known_tag(source if isinstance(rendered, bytes) else rendered.source)
        answer = None if _is_empty(wanted, tag) else _keep(database, wanted, rendered, tag)
        if answer is not None and not isinstance(rendered, bytes):
            kept = kept_response(wanted, answer, self._shared_reads.memory)
            if kept is not None:
                return kept
        # Without a time-out of its own, a large read only has to begin in time.
        cut_off_at = deadline if "timeout" in wanted.parameters else None
        return read_response(wanted, rendered, tag, cut_off_at)

    async def _render_large(
        self,
        request: IHttp1Request,
        wanted: DataRequest,
        database: Database,
        waiter: Waiter,
        deadline: float,
    ) -> Rendered | None:
        """Render in slices, or join an equal rendering; None if the client disconnects."""
        states: list[int] = []
        flows = may_flow(wanted) and request.method != b"HEAD" and not wanted.takes_whole
        waiting = self._shared_reads.render_flowing(
            database.hold,
            attrs.evolve(waiter, begun=states.append, may_flow=flows),
            counted_address_of(request),
        )
        request.notifyFinish().addErrback(lambda _: waiting.cancel())
        try:
            rendered = await before_deadline(waiting, deadline, self._clock)
        except CancelledError:
            return None
        tag = known_tag(rendered.source)
        if tag is not None and states[-1:] == [database.read(_sequence)]:
            database.keep_tag(wanted.place, tag)
        return rendered

    async def _explain_read(self, wanted: DataRequest, database: Database) -> Response:
        identity = await self.identify_for_explanation(wanted, database)
        path, facts = wanted.place.path, wanted.read_options.facts
        caller = Caller(identity.auth, identity.is_admin)
        verdict = database.explain_read(ReadRequest(caller, path, facts, self.now_ms))
        shown = explanation(verdict, is_admin=identity.is_admin, auth=identity.auth)
        query = wanted.read_options.query
        if query is not None:
            shown["index"] = explain_index(database, path, query)
        return json_response(wanted, with_expiry(shown, database, path))

    # Callers.

    def recall(self, wanted: DataRequest, database: Database) -> Identity | None:
        """Return what `identify` does; None if a token has to be verified first.

        Then nothing was counted.
        """
        if wanted.override is not None:
            return None
        project, identity = database.name.project, wanted.identity
        if identity is None:
            if wanted.token is None:
                identity = ANONYMOUS
            else:
                identity = self._authenticator.recall(project, wanted.token)
                if identity is None:
                    return None
        if self._rates is not None:
            self._count_for(self._rates, wanted, project, identity)
        return identity

    async def identify(self, wanted: DataRequest, database: Database) -> Identity:
        """Return the caller of a request as the rules see it, and count the request for it."""
        known = self.recall(wanted, database)
        if known is not None:
            return known
        identity = await self._authenticator.identify(
            database.name.project,
            wanted.token,
            wanted.override,
            wanted.timeout_s,
            wanted.identity,
        )
        if self._rates is not None:
            self._count_for(self._rates, wanted, database.name.project, identity)
        return identity

    def _count_for(
        self, rates: Rates, wanted: DataRequest, project: str, identity: Identity
    ) -> None:
        # The embedding program and the service itself are not counted.
        if not (wanted.takes_whole or wanted.explains_denial):
            rates.take_user(project, identity, is_write=wanted.is_write)

    async def identify_for_explanation(self, wanted: DataRequest, database: Database) -> Identity:
        """Return the identity to be explained; raise unless the sender is an admin."""
        if wanted.explains_denial:
            return await self.identify(wanted, database)
        identity = await self.identify_admin(wanted, database, "An explanation")
        return override_auth(identity, wanted.override)

    async def identify_admin(
        self, wanted: DataRequest, database: Database, what: str, *, is_read: bool = False
    ) -> Identity:
        """Return the admin who sends a request; raise unless the sender is one.

        `what` is what was requested, as the subject of a sentence. An admin who may only read may
        send an explanation, a method that reads, or what `is_read` whatever its method.
        """
        identity = await self._authenticator.identify(
            database.name.project, wanted.token, None, wanted.timeout_s, wanted.identity
        )
        require_admin(identity, what)
        if identity.is_read_only and not is_read:
            wanted.check_reads()
        database.check_exists()
        return identity

    async def is_admin(self, wanted: DataRequest, project: str) -> bool:
        """Return whether the sender of a request is an admin of another project.

        Raises as `identify`. The request is not counted.
        """
        identity = await self._authenticator.identify(
            project, wanted.token, None, wanted.timeout_s, wanted.identity
        )
        return identity.is_admin

    def now_ms(self) -> int:
        """Return the time in milliseconds since 1970."""
        return int(self._wall_clock() * 1000)


def _keep(
    database: Database, wanted: DataRequest, rendered: bytes | Rendered, tag: str | None
) -> Answer | None:
    """Keep a rendering for later reads, if it is the whole text and still current."""
    options = wanted.read_options
    if isinstance(rendered, Flow) or options.callback is not None:
        return None
    if options.description is not None:
        return None  # the same state may be counted further the next time
    if wanted.print == "silent":
        return None
    content = None
    if not isinstance(rendered, bytes):
        if rendered.is_in_file or rendered.sequence != database.read(_sequence):
            return None
        content, rendered = rendered, rendered.whole()
    answer = database.answers.keep(wanted.place, wanted.form, rendered)
    if answer is not None:
        answer.content = answer.content or content
        answer.tag = answer.tag or tag
    return answer


def _is_empty(wanted: DataRequest, tag: str | None) -> bool:
    """Return whether a response has no body; `tag` is that of the value, if it is known."""
    if tag is None:
        return wanted.print == "silent" and not needs_body(wanted)
    return is_met_by(wanted, tag)  # if it is tagged, the response depends on the data


def _sequence(nodes: Nodes) -> int:
    return nodes.rows.sequence()


_ECHOING: Final = frozenset({b"PUT", b"PATCH"})
"""Methods whose response is about as large as the body: room for it is checked before."""


@implementer(IHttp1Resource)
class TreeResource(Resource):
    """The whole interface as an `IResource`, to be mounted under any prefix.

    Attributes:
        shared_reads: the renderings that are being made or read.
        backups: takes backups.
        data, streams: handles the requests for data; the open streams.
        realtime: serves the real-time protocol.
        console_files: serves the console.
        writer: sends responses.
        rates: bounds what callers do; None if nothing does.
        inspection: shows admins requests and connections.
        standbys: serves standbys, and what promotes one.
        hooks: serves the hooks of databases.
        dead_letters: serves what these could not deliver.

    """

    isLeaf = True
    app = Klein()
    _is_ending = False
    _development_log: DevelopmentLog | None = None

    def __init__(
        self,
        context: WebContext,
        catalog: Catalog,
        activity: Activity | None = None,
        refused: NoteRefusal | None = None,
    ) -> None:
        """Serve `catalog`; `activity` is shown to admins.

        `refused` is called for each error response, with the request, the error and its code.
        """
        Resource.__init__(self)
        settings = context.settings
        self._catalog = catalog
        self._moment = catalog.moment
        self._body_limit = settings.limits.write_body_bytes
        self._proxies = settings.trusted_proxies
        self._parser, self._guard, self._users = context.parser, context.guard, context.users
        self.shared_reads, self.rates, self.writer = context.reads, context.rates, context.writer
        self._health = Health(catalog, context.authenticator, self._parser, self._users)
        self._refuse = ErrorSender(self._parser, self.writer, catalog.dialect, refused)
        self._audit = context.audit
        if self._audit is not None:
            self._refuse.watchers.append(self._audit.refused)
        self.console_files: Final = Console(context)
        self._front_page = FrontPage(settings, self._parser, catalog, self.console_files)
        self._documents = Documents(context.clock)
        without = missing_endpoints(settings)
        self._openapi = make_openapi(self.app, settings, without)
        self.data: Final = DataHandlers(context, self._refuse)
        self.streams: Final = self.data.streams
        self.realtime: Final = RealtimeEndpoint(self.data, catalog, self.find)
        self._serve_admins(context, activity or Activity(context.clock))
        if settings.logs_requests:
            self._development_log = DevelopmentLog(self.data.methods, settings.admin_token)
        self._routes = make_routes(self, self.app, self._answer_other)
        self._reserved = reserved_answers(self._routes, RESERVED, without)

    def _serve_admins(self, context: WebContext, activity: Activity) -> None:
        """Make the handlers of what only admins may do."""
        data, catalog, sockets = self.data, self._catalog, self.realtime.sockets
        self.inspection = Inspection(data, sockets, activity, catalog)
        self._admin = AdminHandlers(data, catalog, sockets, activity, inspection=self.inspection)
        self._databases = DatabaseHandlers(data, catalog, activity)
        self._cursors = CursorHandlers(data, catalog)
        self._functions = FunctionHandlers(data, catalog)
        self.hooks = WebhookHandlers(data, catalog)
        self.dead_letters = DeadLetterHandlers(data, catalog)
        self._feeds = FeedHandlers(data, catalog)
        self.backups = Backups(context.settings, context.clock)
        self._backups = BackupHandlers(data, self.backups)
        self.standbys = StandbyHandlers(data, catalog)
        catalog.end_listeners.append(self._end_listeners)

    @property
    def log_request(self) -> Callable[[Request], None] | None:
        """Logs an answered request; None outside development mode."""
        return None if self._development_log is None else self._development_log.record

    def show_turns(self, turns: Turns) -> None:
        """Show the turns of the process to admins who request its health."""
        self._health.turns = turns

    def show_lag(self, find_lag_ms: Callable[[], int] | None) -> None:
        """Say in each response how old the data may be, in milliseconds; None for no longer."""
        self.writer.lag_ms = self._health.find_lag_ms = find_lag_ms

    def _end_listeners(self, name: DatabaseName) -> None:
        """End the streams and sockets of a database that is deleted."""
        self.streams.revoke(name)
        self.realtime.sockets.revoke(name)

    def refuse_writes(self) -> None:
        """Refuse the writes that wait to be parsed, and all new ones: the server stops."""
        self._is_ending = self._health.is_ending = self.realtime.is_ending = True
        self.data.gate.refuse(SHUTTING_DOWN)

    @app.route("/", methods=ALL_METHODS)
    async def root(self, request: IHttp1Request) -> None:
        """Answer a browser with a page, any other request like a path without `.json`."""
        if self._front_page.is_wanted(request):
            await self._answer_apart(request, "root", self._front_page.answer)
        else:
            self.tree(request)

    @app.route("/favicon.ico", methods=READ_METHODS)
    async def icon(self, request: IHttp1Request) -> None:
        """Answer with the icon of the pages."""
        await self._answer_apart(request, "icon", self._front_page.answer_icon)

    @app.route("/.ws", methods=["GET"])
    async def socket(self, request: IHttp1Request) -> None:
        """Open a session of the real-time protocol."""
        await self.realtime.socket(request)
        if self._development_log is not None:
            self._development_log.socket_opened(request)

    @app.route("/.lp", methods=["GET"])
    async def long_poll(self, request: IHttp1Request) -> None:
        """Make a browser that begins to poll use the WebSocket again."""
        await self.realtime.long_poll(request)

    @route_each(app, DOCUMENT_PATHS, READ_METHODS)
    async def document(self, request: IHttp1Request) -> None:
        """Answer with a page of the documentation."""
        await self._answer_apart(request, "document", self._documents.answer)

    @route_each(app, DOCUMENT_FILE_PATHS, READ_METHODS)
    async def document_file(self, request: IHttp1Request) -> None:
        """Answer with a file that pages of the documentation link to, or load."""
        await self._answer_apart(request, "document_file", self._documents.answer_file)

    @app.route("/.console", methods=READ_METHODS)
    @app.route("/.console/<path:name>", methods=READ_METHODS)
    async def console(self, request: IHttp1Request) -> None:
        """Answer with a file of the console; like a path of the tree where it is not served."""
        if not self.console_files.is_served(request):
            self.tree(request)
            return
        allowed = self._routes["console"].allowed
        try:
            self._parser.check_host(request)
            if request.method == b"OPTIONS":
                request.send(204, ((b"Allow", allowed.header), *SAFE_HEADERS), b"")
                return
            check_method(request.method, allowed)
            await self.console_files.answer(request)
        except Exception as error:
            self._refuse(request, error, headers=ERROR_HEADERS)

    @app.route("/.health", methods=READ_METHODS)
    async def health(self, request: IHttp1Request) -> None:
        """Answer whether everything works."""
        await self._answer_apart(request, "health", self._health.check, is_health=True)

    @app.route("/.openapi.json", methods=READ_METHODS)
    async def openapi(self, request: IHttp1Request) -> None:
        """Answer with the OpenAPI document."""
        await self._answer_apart(request, "openapi", self._openapi.answer)

    @app.route("/.inspect/activity.json", methods=READ_METHODS, endpoint="activity")
    @app.route("/.inspect/caller.json", methods=READ_METHODS, endpoint="caller")
    @app.route("/.inspect/connections.json", methods=READ_METHODS, endpoint="connections")
    @app.route("/.inspect/databases.json", methods=READ_METHODS, endpoint="databases")
    @app.route("/.inspect/requests.json", methods=READ_METHODS, endpoint="requests")
    @app.route("/.settings/audit.json", methods=READ_METHODS, endpoint="audit")
    @app.route("/.settings/compact.json", methods=["POST", "OPTIONS"], endpoint="compact")
    @app.route("/.settings/log.json", methods=READ_METHODS, endpoint="log")
    @app.route("/.settings/profile.json", methods=READ_METHODS, endpoint="profile")
    @app.route("/.settings/rules.json", methods=["GET", "HEAD", "PUT", "OPTIONS"], endpoint="rules")
    @app.route("/.settings/rules/trial.json", methods=["POST", "OPTIONS"], endpoint="rules_trial")
    @app.route("/.settings/rules/versions.json", methods=READ_METHODS, endpoint="rules_versions")
    @app.route("/.settings/tokens.json", methods=["POST", "OPTIONS"], endpoint="tokens")
    async def admin(self, request: IHttp1Request, endpoint: str) -> None:
        """Answer an admin, or a caller about himself; the endpoint also names the handler."""
        await self._answer_admin(request, endpoint, getattr(self._admin, endpoint))

    @app.route("/.inspect/projects.json", methods=READ_METHODS)
    async def projects(self, request: IHttp1Request) -> None:
        """Answer with the projects of an admin, and their databases."""
        await self._answer_admin(request, "projects", self._databases.projects)

    @app.route("/.settings/database.json", methods=["PUT", "DELETE", "OPTIONS"])
    async def database(self, request: IHttp1Request) -> None:
        """Create a database, or delete it."""
        await self._answer_admin(request, "database", self._databases.database)

    @app.route("/.settings/cursors.json", methods=["GET", "HEAD", "DELETE", "OPTIONS"])
    async def cursors(self, request: IHttp1Request) -> None:
        """List the cursors of change logs, or remove one."""
        await self._answer_admin(request, "cursors", self._cursors.cursors)

    @app.route(
        "/.settings/functionTriggers.json", methods=["GET", "HEAD", "PUT", "POST", "OPTIONS"]
    )
    async def functions(self, request: IHttp1Request) -> None:
        """List the functions that are called, or register some."""
        await self._answer_admin(request, "functions", self._functions.functions)

    @app.route("/.settings/webhooks.json", methods=["GET", "HEAD", "PUT", "DELETE", "OPTIONS"])
    async def webhooks(self, request: IHttp1Request) -> None:
        """List the hooks of a database, put some, or remove one."""
        await self._answer_admin(request, "webhooks", self.hooks.webhooks)

    @app.route(
        "/.settings/webhooks/dead.json", methods=["GET", "HEAD", "POST", "DELETE", "OPTIONS"]
    )
    async def webhooks_dead(self, request: IHttp1Request) -> None:
        """List the dead letters of a hook, replay or discard some."""
        await self._answer_admin(request, "webhooks_dead", self.dead_letters.dead_letters)

    @app.route("/.settings/webhooks/test.json", methods=["POST", "OPTIONS"])
    async def webhooks_test(self, request: IHttp1Request) -> None:
        """Send an event to the receiver of a hook for trial."""
        await self._answer_admin(request, "webhooks_test", self.dead_letters.test_hook)

    @app.route(
        "/.settings/events.json", methods=["GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS"]
    )
    async def events(self, request: IHttp1Request) -> None:
        """Give a program the events of a hook, or change what it reads."""
        await self._answer_admin(request, "events", self._feeds.events)

    @app.route("/.inspect/backups.json", methods=READ_METHODS, endpoint="list_backups")
    async def list_backups(self, request: IHttp1Request) -> None:
        """Answer with the backups that were taken."""
        await self._answer_admin(request, "list_backups", self._backups.backups)

    @app.route("/.settings/backup.json", methods=["POST", "OPTIONS"])
    async def backup(self, request: IHttp1Request) -> None:
        """Take a backup."""
        await self._answer_admin(request, "backup", self._backups.backup)

    async def _answer_other(self, request: IHttp1Request, endpoint: str) -> None:
        """Answer a request of an endpoint without a method of its own."""
        answer = self.standby if endpoint in STANDBY else self.admin
        await answer(request, endpoint)

    @app.route("/.standby/base", methods=["GET", "OPTIONS"], endpoint="standby_base")
    @app.route("/.standby/promote.json", methods=["POST", "OPTIONS"], endpoint="standby_promotion")
    @app.route("/.standby/reached.json", methods=["POST", "OPTIONS"], endpoint="standby_reached")
    @app.route("/.standby/state.json", methods=READ_METHODS, endpoint="standby_state")
    @app.route("/.standby/stream.json", methods=["POST", "OPTIONS"], endpoint="standby_stream")
    @app.route(
        "/.standby/superseded.json", methods=["POST", "OPTIONS"], endpoint="standby_superseded"
    )
    async def standby(self, request: IHttp1Request, endpoint: str) -> None:
        """Answer a standby, or its first."""
        handler = getattr(self.standbys, endpoint.removeprefix("standby_"))
        await self._answer_admin(request, endpoint, handler)

    @app.route("/.standby/term.json", methods=READ_METHODS)
    async def standby_term(self, request: IHttp1Request) -> None:
        """Answer which term this is."""
        await self._answer_apart(request, "standby_term", self.standbys.term)

    async def _answer_admin(self, request: IHttp1Request, endpoint: str, handler: Handler) -> None:
        asked = self._ask(request, self._routes[endpoint].allowed, has_place=False)
        if asked is not None:
            await self._answer(request, *asked, handler)

    @app.route("/<path:place>", methods=ALL_METHODS)
    def tree(self, request: IHttp1Request, place: str = "") -> None:
        """Answer a request for a place in the tree, `/<path>.json`."""
        asked = self._ask(request, self._routes["tree"].allowed, has_place=True)
        if asked is not None:
            self._answer_place(request, *asked)

    # Dispatch.

    def render(self, request: Any) -> int:
        """Dispatch a request; its response is sent now or later."""
        self._moment.of = None  # that was of another request
        if not IHttp1Request.providedBy(request):
            request = AdaptedRequest(request, self._body_limit, self._proxies)
            if self.rates is not None:
                self.rates.follow(request)
        try:
            if self.rates is not None:
                self.rates.take_address(request)
            if self._guard is not None and (
                request.method == b"POST" or not SENT_FOR_PAGES.isdisjoint(request.headers)
            ):
                self._guard.check(request)
        except (ForeignOrigin, UnnamedPage, TooManyRequests) as error:
            is_console = request.postpath[:1] == [CONSOLE] and self.console_files.is_served(request)
            self._refuse(request, error, headers=ERROR_HEADERS if is_console else None)
            return NOT_DONE_YET
        question: Question | None = request.head_memory.question or self._parser.recall(request)
        if question is None or question.wanted.admin_path is not None or request.is_oversized:
            self._dispatch(request)
        else:
            self._answer_place(request, question)
        return NOT_DONE_YET

    def _dispatch(self, request: IHttp1Request) -> None:
        uri = request.uri
        if b"/." in uri or b"%" in uri or b"?" in uri or not uri.endswith(_SUFFIX):
            path = request.path  # which is made of the target
            if b"/." in path or b"%" in path or not path.endswith(_SUFFIX):
                answer = self._reserved.get(split_segments(request.postpath))
                if answer is None and request.postpath[0] == CONSOLE:
                    answer = self.console
                if answer is not None:
                    drive(answer(request))
                    return
        self.tree(request)

    async def _answer_apart(
        self,
        request: IHttp1Request,
        endpoint: str,
        handler: Callable[[IHttp1Request], Awaitable[Response]],
        *,
        is_health: bool = False,
    ) -> None:
        """Answer a request that concerns no database: pages for browsers, health.

        Health is answered at any host, and never stored by caches.
        """
        allowed = self._routes[endpoint].allowed
        try:
            if not is_health:
                self._parser.check_host(request)
            if request.method == b"OPTIONS":
                response = self.writer.preflight(request, allowed.header)
            else:
                check_method(request.method, allowed)
                response = await handler(request)
            self.writer.send(request, response, no_store=is_health)
        except Exception as error:
            self._refuse(request, error)

    def _ask(
        self, request: IHttp1Request, allowed: AllowedMethods, *, has_place: bool
    ) -> tuple[Question, Database | None] | None:
        """Return what `RequestParser.ask` returns; None if the request needs no other answer.

        `allowed` are the methods of the route.
        """
        try:
            if request.method != b"OPTIONS":
                return self._parser.ask(request, self.find, allowed, has_place=has_place)
            self._parser.check_host(request)
            response = self.writer.preflight(request, allowed.header)
            self.writer.send(request, response, no_store=True)
        except Exception as error:
            self._refuse(request, error)
        return None

    def _answer_place(
        self,
        request: IHttp1Request,
        question: Question,
        database: Database | None = None,
        *,
        is_late: bool = False,
    ) -> None:
        """Answer a request for a place in the tree: at once if it is a simple read, or later.

        `database` is that of the question, None if it is not found yet. With `is_late` it has been
        waited for until it may be current.
        """
        wanted, go_on = question.wanted, None
        try:
            if self.rates is not None and not is_late:
                self.rates.take_project(request, question.name.project, is_write=wanted.is_write)
            if question.is_simple and self._users is None:
                current = self._catalog.use_open(question.name)
                if current is not None:
                    database = current
                    if self._guard is not None:
                        self._check_sender(request, wanted, self._guard)
                    found = self.data.get_at_once(request, question, current)
                    if isinstance(found, Response):
                        self.writer.send(request, found, no_store=wanted.token is not None)
                        return
                    go_on = found
                elif not is_late and self._waits_for_current(request, question):
                    return
        except Exception as error:
            drive(self._refuse_data(request, wanted, database, error))
            return
        drive(self._answer(request, question, database, None, go_on))

    def _waits_for_current(self, request: IHttp1Request, question: Question) -> bool:
        """Answer a read once its database may be current; return False if that is not possible.

        It is not for a request with a time-out of its own, since nothing limits this wait.
        """
        answer = partial(self._answer_place, request, question, is_late=True)
        has_timeout = "timeout" in question.wanted.parameters
        return not has_timeout and self._catalog.when_current(question.name, answer)

    async def _answer(
        self,
        request: IHttp1Request,
        question: Question,
        database: Database | None,
        handler: Handler | None,
        go_on: Handler | None = None,
    ) -> None:
        """Answer by a handler; None is that of the method, for a place in the tree.

        `go_on` is what is left of that, None if all is.
        """
        wanted = question.wanted
        is_public = handler is None and self._users is None
        try:
            database = database or self.find(question.name)
            if handler is not None and self.rates is not None:
                self.rates.take_project(request, question.name.project, is_write=wanted.is_write)
            if self._users is not None:  # for each request, even if it repeats a head
                wanted = await self._users.identify(request, wanted)
            response = await self._handle(request, wanted, database, handler, go_on)
        except Exception as error:
            await self._refuse_data(request, wanted, database, error)
            return
        if response is None:
            if self._development_log is not None:
                self._development_log.stream_opened(request)
            if self.inspection.recorder.is_recording:
                self.inspection.recorder.opened(request)
            return
        if handler is not None and self._audit is not None:
            self._audit.settings(request, wanted, question.name, response.status)
        may_store = is_public and wanted.token is None
        may_refuse = wanted.method not in _ECHOING
        try:
            self.writer.send(request, response, no_store=not may_store, may_refuse=may_refuse)
        except WaitingBytesRefused as error:
            self._refuse(request, error, wanted)

    async def _refuse_data(
        self,
        request: IHttp1Request,
        wanted: DataRequest,
        database: Database | None,
        error: Exception,
    ) -> None:
        """Answer with an error; development mode explains those of a database in the log."""
        if self._development_log is not None and database is not None:
            await self._development_log.explain(request, wanted, database, error)
        self._refuse(request, error, wanted)

    async def serve(self, request: Any, name: DatabaseName, wanted: DataRequest) -> Response | None:
        """Return the response to the embedding program; None if it has cancelled its `request`."""
        self._moment.of = None  # that was of another request
        try:
            return await self._handle(request, wanted, self.find(name), None)
        except Exception as error:
            if self._audit is not None:
                self._audit.refuse(request, wanted, name, error)
            raise

    async def _handle(
        self,
        request: IHttp1Request,
        wanted: DataRequest,
        database: Database,
        handler: Handler | None,
        go_on: Handler | None = None,
    ) -> Response | None:
        """Return the response of the handler; for data, the database stays open meanwhile."""
        if self._guard is not None:
            self._check_sender(request, wanted, self._guard)
        is_write = wanted.method not in READING
        if is_write:
            if self._is_ending:
                raise Unavailable(SHUTTING_DOWN)
            size = size_of_body(request)
            if wanted.method in _ECHOING and wanted.print != "silent":
                self.writer.check_room(request, size)
            # The rights of a large body, and an explanation, are evaluated against the last state.
            is_write = size <= FREE_BYTES and not wanted.wants_explanation
        if handler is not None:
            return await handler(request, wanted, database)
        if request.trace is not None:
            wanted = attrs.evolve(wanted, trace=request.trace)
        opening = self._catalog.acquire(database, wanted.timeout_s, is_write=is_write)
        try:
            if opening is not None:
                await opening
            handle = go_on or self.data.methods[wanted.method]
            return await handle(request, wanted, database)
        finally:
            self._catalog.release(database)

    def _check_sender(
        self, request: IHttp1Request, wanted: DataRequest, guard: OriginGuard
    ) -> None:
        """Raise an error if a page sends the request that may not send it."""
        if wanted.token is not None:
            guard.check_token(request.headers, wanted.token)
        if wanted.method in READING and "callback" in wanted.parameters:
            parse_callback(wanted.parameters["callback"])  # an invalid name is another error
            guard.check_script(request)

    def find(self, name: DatabaseName) -> Database:
        """Return a database, or a stand-in for one that its project does not list."""
        try:
            return self._catalog.find(name)
        except UnknownDatabase as error:
            if not error.is_project_known:
                raise
            return self._catalog.stand_in(name, AbsentDatabase)


RESERVED: Final = reserved_routes(TreeResource.app)
"""The endpoints of the routes without variables, by the segments of their paths."""
