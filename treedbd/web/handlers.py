"""The handlers of the tree: one coroutine for each method.

A handler is given a request, its parsed form and the database it addresses, and returns the
response; None if it sends the response by itself, as a stream does. An exception becomes an error
response (`errors`). Small reads are answered in the turn in which they arrive. If a client
disconnects while its handler waits, a write that has begun is still done; only its response is
dropped.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any, Final, TypeAlias

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from treedbd.database.database import Database
from treedbd.database.errors import DeadlinePassed, PermissionDenied
from treedbd.database.read_grants import ReadRequest
from treedbd.database.requests import Caller
from treedbd.limits import MAX_DEPTH
from treedbd.rules.context import Context, QueryFacts
from treedbd.rules.evaluate import Verdict
from treedbd.store.nodes import Nodes
from treedbd.text import in_one_line
from treedbd.tree.edit import Edit, make_patch, make_put, make_remove
from treedbd.tree.errors import InvalidData, InvalidPath, InvalidQuery
from treedbd.tree.path import format_path
from treedbd.tree.query import Query
from treedbd.tree.types import Place
from treedbd.web.auth.authenticator import Authenticator
from treedbd.web.auth.identity import ANONYMOUS, Identity, override_auth, require_admin
from treedbd.web.explain import explanation
from treedbd.web.http1.interface import IHttp1Request
from treedbd.web.large_reads import LargeReads, read_whole
from treedbd.web.options import WebOptions
from treedbd.web.representation import (
    Chunks,
    ReadOptions,
    chunks_of,
    index_of,
    json_response,
    needs_body,
    needs_whole,
    parse_read_options,
    query_facts,
    read_response,
    render_at_once,
    wrapping_of,
)
from treedbd.web.request import DataRequest
from treedbd.web.response import Response, ResponseWriter
from treedbd.web.sse.frames import parse_id
from treedbd.web.sse.registry import StreamRegistry, Subscriber
from treedbd.web.sse.stream import STREAM_HEADERS, Stream, StreamRequest, check_stream
from treedbd.web.write import make_write, parse_body, write_response

Handler: TypeAlias = Callable[[IHttp1Request, DataRequest, Database], Awaitable[Response | None]]

MAX_ADVICE: Final = 1000
"""How many different missing indexes are logged, each once."""


def drive(coroutine: Coroutine[Deferred[Any], Any, object], failure: Failure | None = None) -> None:
    """Run a coroutine to its end; if it waits for a Deferred, continue when that fires.

    A coroutine that does not wait costs no Deferred. The coroutine must catch its own exceptions.
    `failure` is that of the Deferred that it waited for, and is raised in it.
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

    """

    _log = Logger()

    def __init__(
        self,
        options: WebOptions,
        authenticator: Authenticator,
        writer: ResponseWriter,
        refuse: Callable[[IHttp1Request, BaseException], None],
        clock: IReactorTime,
        wall_clock: Callable[[], float],
    ) -> None:
        """`refuse` answers a stream that cannot begin; `wall_clock` returns seconds since 1970."""
        self.methods: Final[dict[bytes, Handler]] = {
            b"GET": self.get,
            b"HEAD": self.get,
            b"PUT": self.put,
            b"POST": self.post,
            b"PATCH": self.patch,
            b"DELETE": self.delete,
        }
        self.streams: Final = StreamRegistry(options.limits, options.streams, clock, wall_clock)
        self._limits = options.limits
        self._authenticator = authenticator
        self._writer = writer
        self._refuse = refuse
        self._large_reads = LargeReads(clock)
        self._advised: set[str] = set()
        self._clock = clock
        self._wall_clock = wall_clock

    async def get(
        self, request: IHttp1Request, wanted: DataRequest, database: Database
    ) -> Response | None:
        """Read a value, run a query, or open a stream."""
        deadline = self._clock.seconds() + wanted.timeout_s
        options = parse_read_options(wanted.parameters)
        facts = query_facts(options)
        if options.query is not None:
            self._check_index(wanted, options.query, database)
        if wanted.wants_explanation:
            return await self._explain_read(wanted, database, facts)
        if wanted.accepts_events:
            check_stream(wanted.parameters, wanted.place)
            identity = await self._identify(wanted, database)
            self._open_stream(request, wanted, options, database, identity)
            return None
        identity = await self._identify(wanted, database)
        caller = Caller(identity.auth, identity.is_admin)
        render = chunks_of(options, wanted.place) if needs_body(wanted, options) else _nothing

        def chunks(nodes: Nodes) -> Iterator[bytes]:
            # The rules are evaluated against each state that is read, before it is rendered.
            database.check_read(wanted.place.path, caller, self._now_ms(), nodes, facts)
            return render(nodes)

        body = database.read(lambda nodes: render_at_once(nodes, chunks, self._clock))
        if self._clock.seconds() >= deadline:
            raise DeadlinePassed("the data was read")
        if body is None:
            return await self._get_large(request, wanted, options, database, chunks, deadline)
        return read_response(wanted, options, body)

    async def put(
        self, request: IHttp1Request, wanted: DataRequest, database: Database
    ) -> Response:
        """Set a place to the body."""
        now, deadline = self._now_and_deadline(wanted)
        body = parse_body(request, self._limits)
        edit = make_put(wanted.place, body, self._limits.string_bytes)
        return await self._write(wanted, database, edit, now, deadline)

    async def post(
        self, request: IHttp1Request, wanted: DataRequest, database: Database
    ) -> Response:
        """Add a child with a push id as its key and the body as its value."""
        now, deadline = self._now_and_deadline(wanted)
        path = _node_path(wanted)
        if len(path) == MAX_DEPTH:
            raise InvalidData(f"A child of this path is deeper than {MAX_DEPTH} keys.")
        place = Place((*path, database.push_ids.next(now)))
        body = parse_body(request, self._limits)
        edit = make_put(place, body, self._limits.string_bytes)
        return await self._write(wanted, database, edit, now, deadline)

    async def patch(
        self, request: IHttp1Request, wanted: DataRequest, database: Database
    ) -> Response:
        """Merge the members of the body, whose names may be slash paths, into a node."""
        now, deadline = self._now_and_deadline(wanted)
        path = _node_path(wanted)
        body = parse_body(request, self._limits)
        edit = make_patch(path, body, self._limits.string_bytes)
        return await self._write(wanted, database, edit, now, deadline)

    async def delete(self, _: IHttp1Request, wanted: DataRequest, database: Database) -> Response:
        """Remove what is at a place."""
        now, deadline = self._now_and_deadline(wanted)
        edit = make_remove(wanted.place)
        return await self._write(wanted, database, edit, now, deadline)

    # Reads.

    async def _get_large(
        self,
        request: IHttp1Request,
        wanted: DataRequest,
        options: ReadOptions,
        database: Database,
        chunks: Chunks,
        deadline: float,
    ) -> Response | None:
        """Answer a read that takes more than one turn of the reactor."""
        rendering = Deferred.fromCoroutine(
            self._large_reads.render(database.hold, chunks, deadline)
        )
        request.notifyFinish().addErrback(lambda _: rendering.cancel())
        try:
            file = await rendering
        except CancelledError:
            return None  # the client has disconnected
        if needs_whole(wanted, options):
            with file:
                return read_response(wanted, options, read_whole(file))
        common = self._writer.common_headers(request, no_store=wanted.token is not None)
        self._large_reads.send(request, file, wrapping_of(options), common, deadline)
        return None

    def _check_index(self, wanted: DataRequest, query: Query, database: Database) -> None:
        """Raise `InvalidQuery` for a query without an index if the project requires one."""
        index = index_of(query)
        path = wanted.place.path
        if index is None or index in database.rules.current.indexed(path):
            return
        advice = (
            f'Index not defined, add ".indexOn": "{index}", for path '
            f'"{format_path(path)}", to the rules'
        )
        if database.project.require_index:
            raise InvalidQuery(advice)
        if advice not in self._advised and len(self._advised) < MAX_ADVICE:
            self._advised.add(advice)
            # It holds names that the client chose.
            shown = in_one_line(advice)
            self._log.info("{project}: {advice}", project=database.name.project, advice=shown)

    async def _explain_read(
        self,
        wanted: DataRequest,
        database: Database,
        facts: QueryFacts | None,
    ) -> Response:
        identity = await self._identify_for_explanation(wanted, database)
        now, rules = self._now_ms(), database.rules.current

        def evaluate(nodes: Nodes) -> Verdict:
            context = Context(identity.auth, now, nodes, facts)
            return rules.may_read(wanted.place.path, context, explain=True)

        verdict = database.read(evaluate)
        return json_response(wanted, explanation(verdict, is_admin=identity.is_admin))

    def _open_stream(
        self,
        request: IHttp1Request,
        wanted: DataRequest,
        options: ReadOptions,
        database: Database,
        identity: Identity,
    ) -> None:
        address = getattr(request.getClientAddress(), "host", "")
        self.streams.check(database.name, address)
        path = wanted.place.path
        caller = Caller(identity.auth, identity.is_admin)
        read_request = ReadRequest(caller, path, query_facts(options), self._now_ms)
        with_ids = wanted.parameters.get("resume") == "true"
        stream_request = StreamRequest(
            database, path, options.query, read_request, identity, with_ids
        )
        stream = Stream(request, stream_request, self.streams, self._clock, self._refuse)
        common = self._writer.common_headers(request, no_store=False)
        self.streams.add(stream, Subscriber(database.name, address, identity))
        try:
            stream.start((*STREAM_HEADERS, *common), parse_id(wanted.last_event_id))
        except PermissionDenied:
            self.streams.remove(stream)
            raise

    # Writes.

    def _now_and_deadline(self, wanted: DataRequest) -> tuple[int, float]:
        """Return the time of a write in milliseconds since 1970, and its deadline."""
        return self._now_ms(), self._clock.seconds() + wanted.timeout_s

    async def _write(
        self,
        wanted: DataRequest,
        database: Database,
        edit: Edit,
        now: int,
        deadline: float,
    ) -> Response:
        """Do an edit for the caller of a request, and return the response once it is durable."""
        if self._clock.seconds() >= deadline:
            raise DeadlinePassed("it was applied")
        if wanted.wants_explanation:
            identity = await self._identify_for_explanation(wanted, database)
            write = make_write(wanted, edit, now, Caller(identity.auth), deadline)
            verdict = database.explain_write(write)
            return json_response(wanted, explanation(verdict, is_admin=identity.is_admin))
        identity = await self._identify(wanted, database)
        caller = Caller(identity.auth, identity.is_admin)
        outcome = await database.write(make_write(wanted, edit, now, caller, deadline))
        return write_response(wanted, outcome)

    # Callers.

    async def _identify(self, wanted: DataRequest, database: Database) -> Identity:
        """Return the identity that the rules see as the caller of a request."""
        if wanted.token is None and wanted.override is None:
            return ANONYMOUS
        return await self._authenticator.identify(
            database.name.project, wanted.token, wanted.override, wanted.timeout_s
        )

    async def _identify_for_explanation(self, wanted: DataRequest, database: Database) -> Identity:
        """Return the identity that an admin wants explained; raise for any other sender."""
        identity = await self._authenticator.identify(
            database.name.project, wanted.token, None, wanted.timeout_s
        )
        require_admin(identity, "An explanation")
        return override_auth(identity, wanted.override)

    def _now_ms(self) -> int:
        return int(self._wall_clock() * 1000)


def _node_path(wanted: DataRequest) -> tuple[str, ...]:
    """Return the path of a request that does not address a priority; raise `InvalidPath`."""
    if wanted.place.is_priority:
        raise InvalidPath("A priority can only be read, set and removed.")
    return wanted.place.path


def _nothing(_: Nodes) -> Iterator[bytes]:
    yield b""
