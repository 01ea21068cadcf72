"""Handlers: one coroutine for each method of the tree; here those that read, and repeated reads.

A handler is given a request, its parsed form and the database it addresses, and returns the
response; None if it sends the response by itself, as a stream does. An exception becomes an error
response (`errors`). Small reads are answered in the turn in which they arrive. If a client
disconnects while its handler waits, a write that has begun is still done; only its response is
dropped. `write` has the handlers that write, `DataHandlers.methods` all of them.

Most requests of a dashboard or a device are the bytes of the one before: `RepeatedReads` answers
them in one step from what is kept.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Final, TypeAlias

import attrs
from twisted.internet.defer import CancelledError, Deferred
from twisted.python.failure import Failure

from treedbd.database.answers import Answer
from treedbd.database.catalog import Catalog
from treedbd.database.database import Database
from treedbd.database.requests import Caller, DeadlinePassed, PermissionDenied
from treedbd.database.rights import ReadRequest
from treedbd.http1.content import Flow
from treedbd.http1.request import IHttp1Request
from treedbd.rules.evaluate import explanation
from treedbd.store.nodes import Nodes
from treedbd.web.auth.identity import ANONYMOUS, Identity, override_auth, require_admin
from treedbd.web.context import WebParts
from treedbd.web.listeners import StreamRegistry
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
    json_response,
    kept_response,
    known_tag,
    make_source,
    may_flow,
    needs_body,
    read_response,
)
from treedbd.web.request import DataRequest, Question, check_stream
from treedbd.web.response import Response, counted_address_of
from treedbd.web.streams import Stream
from treedbd.web.write import WriteHandlers

Handler: TypeAlias = Callable[[IHttp1Request, DataRequest, Database], Awaitable[Response | None]]


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
        missing_indexes: looks at the queries.
        gate: lets bodies be parsed.
        parts: what it shares with other protocols.
        refuse: answers a stream that cannot begin.

    """

    def __init__(
        self, parts: WebParts, refuse: Callable[[IHttp1Request, BaseException], None]
    ) -> None:
        """`refuse` answers a stream that cannot begin."""
        self.parts: Final = parts
        self.refuse: Final = refuse
        self._rates = parts.rates
        self._authenticator = parts.authenticator
        self._clock, self._wall_clock = parts.clock, parts.wall_clock
        writes = WriteHandlers(parts, self)
        self.methods: Final[dict[bytes, Handler]] = {
            b"GET": self.get,
            b"HEAD": self.get,
            **writes.methods,
        }
        self.streams: Final = StreamRegistry(
            limits=parts.settings.limits,
            stream_limits=parts.settings.streams,
            clock=parts.clock,
            wall_clock=parts.wall_clock,
            counts=parts.counts,
            rates=parts.rates,
        )
        self._writes = writes
        self.gate: Final = writes.gate
        self._shared_reads = parts.reads
        self.missing_indexes: Final = MissingIndexes()

    def refuse_writes(self) -> None:
        """Refuse the writes that wait to be parsed, and all that come."""
        self._writes.refuse_writes()

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
        if wanted.accepts_events:
            await Stream.open(request, wanted, self, database, identity)
            return None
        caller = Caller(identity.auth, identity.is_admin)
        read = ReadRequest(
            caller=caller,
            path=wanted.place.path,
            query=options.facts,
            now=self.now_ms,
            trace=wanted.trace,
        )
        if options.query is not None:
            self.missing_indexes.check(database, options.query, read)
        kept = self._find_kept(wanted, database, read)
        check_read = partial(database.check_read, read)
        return kept or await self._read(request, wanted, database, check_read, deadline)

    def _find_kept(
        self, wanted: DataRequest, database: Database, read: ReadRequest
    ) -> Response | None:
        """Return the response with a kept answer, if there is one that is complete."""
        answer = database.answers.find(wanted.place, wanted.form)
        if answer is None:
            return None
        database.check_read(read)
        return kept_response(wanted, answer, self._shared_reads.memory)

    async def _read(
        self,
        request: IHttp1Request,
        wanted: DataRequest,
        database: Database,
        check_read: Callable[[Nodes], None],
        deadline: float,
    ) -> Response | None:
        """Answer a read: in this turn, or if it is large, when it is rendered.

        `check_read` raises unless the caller may read a state.
        """
        tag = database.known_tag(wanted.place) if is_tagged(wanted) else None
        source = make_source(database, wanted, tag)
        is_empty = not needs_body(wanted) or (tag is not None and is_met_by(wanted, tag))

        def render(nodes: Nodes) -> bytes | Rendering | TooMuchWork:
            # The rules are evaluated against each state that is read, before it is sent.
            check_read(nodes)
            return b"" if is_empty else self._shared_reads.render(source, nodes)

        rendered: bytes | Rendered | TooMuchWork | None = database.read(render)
        if self._clock.seconds() >= deadline:
            raise DeadlinePassed("the data was read")
        if isinstance(rendered, TooMuchWork):
            waiter = Waiter(source, check_read, rendered.sequence)
            rendered = await self._render_large(request, wanted, database, waiter, deadline)
        if rendered is None:
            return None
        tag = known_tag(source if isinstance(rendered, bytes) else rendered.source)
        answer = None if is_empty else _keep(database, wanted, rendered, tag)
        kept = None if answer is None else kept_response(wanted, answer, self._shared_reads.memory)
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
        """Render in slices, or wait for a rendering under way; None if the client disconnects."""
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
        return json_response(wanted, shown)

    # Callers.

    async def identify(self, wanted: DataRequest, database: Database) -> Identity:
        """Return the identity that the rules see as the caller of a request, and count it."""
        project = database.name.project
        if wanted.token is None and wanted.override is None:
            identity = ANONYMOUS if wanted.identity is None else wanted.identity
        else:
            identity = await self._authenticator.identify(
                project, wanted.token, wanted.override, wanted.timeout_s, wanted.identity
            )
        # Neither the program itself nor a question of our own is a caller.
        if self._rates is not None and not (wanted.takes_whole or wanted.explains_denial):
            self._rates.take_user(project, identity, is_write=wanted.is_write)
        return identity

    async def identify_for_explanation(self, wanted: DataRequest, database: Database) -> Identity:
        """Return the identity that an admin wants explained; raise for any other sender."""
        if wanted.explains_denial:
            return await self.identify(wanted, database)
        identity = await self.identify_admin(wanted, database, "An explanation")
        return override_auth(identity, wanted.override)

    async def identify_admin(self, wanted: DataRequest, database: Database, what: str) -> Identity:
        """Return the admin who sends a request; raise for any other sender.

        `what` is what was requested, as the subject of a sentence.
        """
        identity = await self._authenticator.identify(
            database.name.project, wanted.token, None, wanted.timeout_s, wanted.identity
        )
        require_admin(identity, what)
        database.check_exists()
        return identity

    def now_ms(self) -> int:
        """Return the time in milliseconds since 1970."""
        return int(self._wall_clock() * 1000)


def _keep(
    database: Database, wanted: DataRequest, rendered: bytes | Rendered, tag: str | None
) -> Answer | None:
    """Keep what was rendered for the reads that follow, if it is the whole text and still true."""
    if isinstance(rendered, Flow) or wanted.read_options.callback is not None:
        return None
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


def _sequence(nodes: Nodes) -> int:
    return nodes.rows.sequence()


class RepeatedReads:
    """Answers the reads whose question is remembered and whose answer is kept.

    If the head of a request is that of the one before, what it asks is remembered (`Question`); if
    nothing was written there since, so is the answer. What is left is to evaluate the rules, which
    is done for each request. Whatever is not that simple, errors included, is left to the handlers.
    """

    def __init__(
        self,
        parts: WebParts,
        data: DataHandlers,
        catalog: Catalog,
        refuse: Callable[[IHttp1Request, BaseException, DataRequest], None],
    ) -> None:
        """`refuse` answers with an error."""
        self._rates = parts.rates
        self._guard = parts.guard
        self._refuse = refuse
        self._leaves_denials = parts.settings.logs_requests
        self._catalog = catalog
        self._authenticator = parts.authenticator
        self._writer = parts.writer
        self._now_ms = data.now_ms

    def repeat(
        self, request: IHttp1Request, otherwise: Callable[[IHttp1Request], None] | None
    ) -> bool:
        """Answer a read that the connection repeats, if that is simple; return whether it was.

        With `otherwise` it may be answered a little later, when the database is current; if it
        cannot be even then, `otherwise` is called with the request.
        """
        question: Question | None = request.head_memory.question
        if question is None or question.rules is None:
            return False
        wanted = question.wanted
        try:
            if self._guard is not None and wanted.token is not None:
                self._guard.check_token(request.headers, wanted.token)
            if self._answer(request, question):
                return True
        except Exception as error:
            if self._leaves_denials and isinstance(error, PermissionDenied):
                return False  # to be explained, too
            self._refuse(request, error, wanted)
            return True
        if otherwise is None:
            return False
        go_on = otherwise

        def repeat_or_go_on() -> None:
            if not self.repeat(request, None):
                go_on(request)

        return self._catalog.when_current(question.name, repeat_or_go_on)

    def _answer(self, request: IHttp1Request, question: Question) -> bool:
        """Answer a request if that is simple; return whether it is answered.

        Raises `TooManyRequests`, `PermissionDenied` or `WaitingBytesRefused`.
        """
        database = self._catalog.use_open(question.name)
        if database is None or question.rules is not database.rules.current:
            return False
        wanted = question.wanted
        identity = ANONYMOUS
        if wanted.token is not None:
            known = self._authenticator.recall(database.name.project, wanted.token)
            if known is None:
                return False
            identity = known
        answer = database.answers.find(wanted.place, wanted.form)
        if answer is None:
            return False
        response = kept_response(wanted, answer, self._writer.waiting)
        if response is None:
            return False
        if self._rates is not None:
            self._rates.take_project(request, database.name.project, is_write=False)
            self._rates.take_user(database.name.project, identity, is_write=False)
        read = question.read
        if read is None or question.identity is not identity:
            caller = Caller(identity.auth, identity.is_admin)
            path, facts = wanted.place.path, wanted.read_options.facts
            read = ReadRequest(caller, path, facts, self._now_ms)
            question.identity, question.read = identity, read
        database.check_read(read)
        self._writer.send(request, response, no_store=wanted.token is not None)
        return True
