"""The one route of the tree: a request is asked, answered or written, and sent.

Small answers go out in the turn in which they are asked. A long read and a write finish later; what
goes on then is not tied to the client: when it leaves, a write that was begun is still done, and
only its answer is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import IO, Final, NoReturn, TypeVar

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.server import Request

from treedbd.database.catalog import Catalog
from treedbd.database.permit import Claim
from treedbd.database.question import (
    READ_MISSED,
    TURN_MISSED,
    Caller,
    DeadlinePassed,
    PermissionDenied,
)
from treedbd.rules.evaluation import Context
from treedbd.rules.judge import Verdict
from treedbd.store.nodes import Nodes
from treedbd.tree.line import in_one_line
from treedbd.tree.path import format_path
from treedbd.tree.query import InvalidQuery, Query
from treedbd.web.answer import Reply, refuse
from treedbd.web.ask import WRITING, Ask, Reader
from treedbd.web.explain import explanation
from treedbd.web.frame import parse_id
from treedbd.web.identity.gate import Gate, caller_of
from treedbd.web.identity.identity import Identity, override_auth, require_admin
from treedbd.web.options import WebOptions
from treedbd.web.read import Form, Pieces, facts_of, index_of, parse_form, pieces_of
from treedbd.web.send import Sender
from treedbd.web.shape import (
    envelope_of,
    json_reply,
    needs_body,
    needs_whole,
    read_reply,
)
from treedbd.web.stream import STREAM_HEADERS, Stream, Watch, check_stream
from treedbd.web.streams import Holder, StreamLimits, Streams
from treedbd.web.transfer import LongReads, draw_at_once, read_whole
from treedbd.web.write import make_edit, make_write, next_push_key, write_reply

T = TypeVar("T")

MOST_ADVICE: Final = 1000
"""So many different missing indexes are logged, each once."""


class DataRoute:
    """Answers every request whose path is one of the tree's."""

    _log = Logger()

    def __init__(
        self,
        catalog: Catalog,
        options: WebOptions,
        gate: Gate,
        stream_limits: StreamLimits,
        clock: IReactorTime,
        wall_clock: Callable[[], float],
    ) -> None:
        """Answer from `catalog`; `wall_clock` gives the seconds since 1970."""
        self.sender: Final = Sender(options.cors_origins)
        self.reader: Final = Reader(options, catalog)
        self._gate = gate
        self._catalog = catalog
        self._options = options
        self.streams: Final = Streams(stream_limits, clock, wall_clock)
        self._advised: set[str] = set()
        self._long_reads = LongReads(clock)
        self._clock = clock
        self._wall_clock = wall_clock

    def answer(self, request: Request) -> None:
        """Answer a request, now or later; every error becomes a reply."""
        try:
            if request.method == b"OPTIONS":
                self.reader.check_host(request)
                self.sender.send(request, self.sender.preflight(request), no_store=True)
                return
            ask = self.reader.read(request)
            if ask.method in WRITING:
                self._write(request, ask)
            else:
                self._answer_read(request, ask)
        except Exception as error:
            self.refuse(request, error)

    def refuse(self, request: Request, error: BaseException) -> None:
        """Answer with an error."""
        reply = refuse(error, self.reader.dialect_of(request))
        self.sender.send(request, reply, no_store=True)

    def _identified(self, request: Request, ask: Ask, go_on: Callable[[Identity], None]) -> None:
        """Go on when it is known who asks, as an admin wants the rules to see it."""
        found = self._gate.identify(ask.name.project, ask.token, ask.override)
        if isinstance(found, Deferred):
            found.addTimeout(ask.timeout, self._clock, _give_up)
            self._later(request, found, go_on)
        else:
            go_on(found)

    def _answer_read(self, request: Request, ask: Ask) -> None:
        form = parse_form(ask.parameters)
        deadline = self._clock.seconds() + ask.timeout
        if form.query is not None:
            self._check_index(ask, form.query)
        if ask.wants_explanation:
            self._explain(request, ask, lambda caller: self._judge_read(ask, form, caller))
        elif ask.accepts_events:
            check_stream(ask.parameters, ask.place)
            self._identified(request, ask, lambda who: self._stream(request, ask, form, who))
        else:
            self._identified(
                request, ask, lambda who: self._read(request, ask, form, deadline, who)
            )

    def _read(
        self, request: Request, ask: Ask, form: Form, deadline: float, identity: Identity
    ) -> None:
        database = self._catalog.database(ask.name)
        pieces = self._judged(ask, form, identity)
        body = database.read(lambda nodes: draw_at_once(nodes, pieces, self._clock))
        if self._clock.seconds() >= deadline:
            raise DeadlinePassed(READ_MISSED)
        if body is not None:
            self._send_read(request, ask, form, body)
            return

        drawing = Deferred.fromCoroutine(self._long_reads.draw(database, pieces, deadline))

        def send(file: IO[bytes]) -> None:
            if needs_whole(ask, form):
                with file:
                    self._send_read(request, ask, form, read_whole(file))
            else:
                common = self.sender.common_headers(request, no_store=ask.token is not None)
                self._long_reads.send(request, file, envelope_of(form), common, deadline)

        self._later(request, drawing, send, cancels=True)

    def _check_index(self, ask: Ask, query: Query) -> None:
        """Refuse a query without an index where the project wants that, else log it."""
        index = index_of(query)
        rules = self._catalog.rulebook(ask.name.project).rules
        if index is None or index in rules.indexed(ask.place.path):
            return
        advice = (
            f'Index not defined, add ".indexOn": "{index}", for path '
            f'"{format_path(ask.place.path)}", to the rules'
        )
        if self._catalog.check(ask.name).require_index:
            raise InvalidQuery(advice)
        if advice not in self._advised and len(self._advised) < MOST_ADVICE:
            self._advised.add(advice)
            # The client chose the names in it.
            shown = in_one_line(advice)
            self._log.info("{project}: {advice}", project=ask.name.project, advice=shown)

    def _explain(self, request: Request, ask: Ask, judge: Callable[[Caller], Verdict]) -> None:
        """Answer an admin which rules would run, in place of what was asked."""

        def answer(identity: Identity) -> None:
            require_admin(identity, "An explanation")
            seen_as = override_auth(identity, ask.override)
            verdict = judge(Caller(seen_as.auth))
            shown = explanation(verdict, is_admin=seen_as.is_admin)
            self._send(request, ask, json_reply(ask, shown))

        self._identified(request, attrs.evolve(ask, override=None), answer)

    def _judge_read(self, ask: Ask, form: Form, caller: Caller) -> Verdict:
        rules = self._catalog.rulebook(ask.name.project).rules
        now, facts = self._now_ms(), facts_of(form)
        return self._catalog.database(ask.name).read(
            lambda nodes: rules.may_read(
                ask.place.path, Context(caller.auth, now, nodes, facts), explain=True
            )
        )

    def _judged(self, ask: Ask, form: Form, identity: Identity) -> Pieces:
        """Return what draws a form for a caller: of each moment it first asks the rules."""
        rulebook = self._catalog.rulebook(ask.name.project)
        caller, path, facts = caller_of(identity), ask.place.path, facts_of(form)
        draw = pieces_of(form, ask.place) if needs_body(ask, form) else _draw_nothing

        def pieces(nodes: Nodes) -> Iterator[bytes]:
            rulebook.check_read(path, caller, self._now_ms(), nodes, facts)
            return draw(nodes)

        return pieces

    def _send_read(self, request: Request, ask: Ask, form: Form, body: bytes) -> None:
        self._send(request, ask, read_reply(ask, form, body))

    def _stream(self, request: Request, ask: Ask, form: Form, identity: Identity) -> None:
        address = getattr(request.getClientAddress(), "host", "")
        self.streams.check(ask.name, address)
        claim = Claim(caller_of(identity), ask.place.path, facts_of(form), self._now_ms)
        watch = Watch(
            self._catalog.database(ask.name),
            ask.place.path,
            form.query,
            claim,
            identity,
            ask.parameters.get("resume") == "true",
        )
        stream = Stream(request, watch, self.streams, self._clock, self.refuse)
        common = self.sender.common_headers(request, no_store=False)
        self.streams.add(stream, Holder(ask.name, address, identity))
        try:
            stream.start((*STREAM_HEADERS, *common), parse_id(ask.last_event_id))
        except PermissionDenied:
            self.streams.remove(stream)
            raise

    def _write(self, request: Request, ask: Ask) -> None:
        deadline = self._clock.seconds() + ask.timeout
        database = self._catalog.database(ask.name)
        now = self._now_ms()
        push_key = next_push_key(database, ask, now)
        body = request.content.read() if request.content is not None else b""
        edit = make_edit(ask, body, push_key, self._options)
        if self._clock.seconds() >= deadline:
            raise DeadlinePassed(TURN_MISSED)

        def write(identity: Identity) -> None:
            wanted = make_write(ask, edit, now, caller_of(identity), deadline)
            self._later(
                request,
                database.write(wanted),
                lambda outcome: self._send(request, ask, write_reply(ask, outcome)),
            )

        if ask.wants_explanation:
            self._explain(
                request,
                ask,
                lambda caller: database.judge(make_write(ask, edit, now, caller, deadline)),
            )
        else:
            self._identified(request, ask, write)

    def _send(self, request: Request, ask: Ask, reply: Reply) -> None:
        self.sender.send(request, reply, no_store=ask.token is not None)

    def _now_ms(self) -> int:
        return int(self._wall_clock() * 1000)

    def _later(
        self,
        request: Request,
        waiting: Deferred[T],
        send: Callable[[T], None],
        *,
        cancels: bool = False,
    ) -> None:
        """Send when the answer is there, unless the client has left by then.

        With `cancels` nobody needs what is waited for once the client has left.
        """
        left: list[Failure] = []

        def leave(reason: Failure) -> None:
            left.append(reason)
            if cancels:
                waiting.cancel()

        request.notifyFinish().addErrback(leave)

        def answer(result: T) -> None:
            if not left:
                send(result)

        def refuse(reason: Failure) -> None:
            if not left and reason.value is not None:
                self.refuse(request, reason.value)

        waiting.addCallback(answer).addErrback(refuse)


def _draw_nothing(_: Nodes) -> Iterator[bytes]:
    yield b""


def _give_up(_: object, seconds: float) -> NoReturn:
    raise DeadlinePassed(f"The identity provider did not answer within {seconds:g} s.")
