"""Writes: the handlers of PUT, POST, PATCH and DELETE, and the bodies of writes.

Errors have the promised order: first the token, then whether the caller may write anything at or
below the place, then the body, then the verdict of the rules. So a caller without rights costs
little, however large the body: only a short one is parsed before the rights are known, because then
evaluating the rules once is enough.

A longer body waits until it is admitted to parsing (`BodyGate`). One that takes some milliseconds
is parsed, and its edit made, in several turns of the reactor. A large one, of more than
`LARGE_BODY_BYTES` or `LARGE_BODY_NODES`, is never parsed as a whole: it is written piece by piece
(`database.apply`, `LargeBodies`).

Theory of operation of the gate. A parsed body takes many times the memory of its bytes, until its
write is durable or refused. So the memory of parsed bodies is bounded, by an estimate from above
(`Admission`). Unparsed bodies wait in the order of their arrival, large ones in a queue of their
own, so that a small one never waits for a large one. Several that are admitted together, because
room became free, or refused because the server stops, continue in slices.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator
from functools import partial
from io import SEEK_END, BytesIO
from typing import IO, TYPE_CHECKING, Final

import attrs
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater

from treedbd.database.database import Database
from treedbd.database.requests import (
    Caller,
    Condition,
    DeadlinePassed,
    LargeBody,
    Outcome,
    TooLarge,
    Unavailable,
    Write,
)
from treedbd.database.slices import Slices, Steps
from treedbd.http1.content import SMALL_BYTES, Content, JoinedContent
from treedbd.http1.parser import Coding, decode_body, decode_pieces, parse_coding
from treedbd.http1.request import IHttp1Request, read_body, size_of_body
from treedbd.limits import KIB, MAX_DEPTH, MIB, Limits
from treedbd.names import Origin
from treedbd.rules.evaluate import explanation
from treedbd.store.nodes import Nodes
from treedbd.tree.edit import Edit, Method, has_more_nodes, make_patch, make_put, make_remove
from treedbd.tree.types import STORED, Change, InvalidData, InvalidPath, Json, Place
from treedbd.tree.value import compact, parse
from treedbd.web.auth.identity import Identity, ReadOnlyToken, require_admin
from treedbd.web.reading import (
    ReadSource,
    Rendering,
    SharedReads,
    TooMuchWork,
    Waiter,
    before_deadline,
    with_expiry,
)
from treedbd.web.request import PLAIN, DataRequest, PayloadTooLarge, parse_choice
from treedbd.web.response import JSON_TYPE, Response, counted_address_of, json_response

if TYPE_CHECKING:
    from treedbd.web.resource import DataHandlers

LARGE_BODY_BYTES: Final = 256 * KIB
LARGE_BODY_NODES: Final = 2000
"""A body with more bytes, or more members and items, is written piece by piece.

Others are parsed, brought into normal form and printed in one step each, which takes a few
milliseconds at most, whatever they hold.
"""
DECODED_AT_ONCE_BYTES: Final = 64 * KIB
"""A compressed body that has at most so many bytes when it is decoded waits as it is then.

Longer ones wait as they were sent, because decoded they would fill the memory.
"""

PIECE_BYTES: Final = 64 * KIB

_MIN_NODE_BYTES: Final = len("1,")

_TOO_LARGE_TO_EXPLAIN: Final = (
    f"A write that is explained may have at most {LARGE_BODY_BYTES} bytes "
    f"({DECODED_AT_ONCE_BYTES} if they are compressed), and {LARGE_BODY_NODES} members and array "
    "items: explain it for a part of the value."
)


@attrs.frozen
class SentBody:
    """A body as it was sent: `length` bytes in `file`, in a content coding or None."""

    file: IO[bytes]
    length: int
    coding: Coding | None

    @property
    def is_large(self) -> bool:
        """Whether its bytes alone make it a large body."""
        return self.length > LARGE_BODY_BYTES

    def read(self) -> bytes:
        """Return all of it, in its content coding."""
        self.file.seek(0)
        return self.file.read()

    def pieces(self) -> Iterator[bytes]:
        """Yield the decoded text; raise `InvalidData` if its content coding is wrong."""
        sent = (self._read_at(at) for at in range(0, self.length, PIECE_BYTES))
        return sent if self.coding is None else decode_pieces(sent, self.coding, PIECE_BYTES)

    def _read_at(self, at: int) -> bytes:
        self.file.seek(at)
        return self.file.read(PIECE_BYTES)


def decode(body: bytes, coding: Coding, limit: int) -> bytes:
    """Return a body without its content coding.

    Raises `PayloadTooLarge` if it has more than `limit` bytes then, or `InvalidData`.
    """
    decoded = decode_body(body, coding, limit)
    if decoded is None:
        raise PayloadTooLarge(limit)
    return decoded


def read_small_body(request: IHttp1Request, limit: int) -> bytes:
    """Return a decoded body of at most `limit` bytes; raise `PayloadTooLarge` or `InvalidData`."""
    if size_of_body(request) > limit:
        raise PayloadTooLarge(limit)
    body, coding = read_body(request), parse_coding(request.headers)
    return body if coding is None else decode(body, coding, limit)


def parse_body(body: bytes, limits: Limits) -> Json:
    """Return the JSON in a body; raise `InvalidData`."""
    if not body.strip():
        raise InvalidData("The request needs a JSON body.")
    json = parse(body)
    limit = limits.write_nodes
    if len(body) > _MIN_NODE_BYTES * limit and has_more_nodes(json, limit):
        raise InvalidData(
            f"A body may have at most {limit} members and array items (write_nodes): "
            "write it in parts."
        )
    return json


def parse_whole(body: bytes, limits: Limits, place: Place) -> Json:
    """Return the JSON in a body of any length that is not split; raise `InvalidData`.

    At the place of a priority a long body that surely is not one is not parsed.
    """
    if place.is_priority and len(body) > LARGE_BODY_BYTES and body.lstrip()[:1] in (b"[", b"{"):
        raise InvalidData("A priority must be a number or a string.")
    return parse_body(body, limits)


FREE_BYTES: Final = 4 * KIB
"""A body up to this length is parsed at once and not counted."""
LARGE_BYTES: Final = MIB
"""Estimated memory of a body that waits among the large ones."""
LONG_NODES: Final = 5000
"""Members and items that take some milliseconds to parse."""
NODE_BYTES: Final = 200
"""Memory of a member or item, parsed and in normal form; measured: 130 to 270."""


@attrs.define(eq=False)
class Admission:
    """The place of a body of `length` bytes and about `nodes` nodes in the gate.

    If it has to wait, `began` fires with None when it may be parsed, or with the sentence that
    refuses it.
    """

    length: int
    nodes: int
    began: Deferred[str | None] | None = None

    @property
    def size(self) -> int:
        """The memory that the parsed body takes, estimated from above."""
        return self.length + self.nodes * NODE_BYTES

    @property
    def is_large(self) -> bool:
        """Whether the body waits in the queue of large ones."""
        return self.size > LARGE_BYTES

    @property
    def takes_long(self) -> bool:
        """Whether a turn should end between parsing and what follows."""
        return self.nodes > LONG_NODES

    @classmethod
    def of(cls, body: bytes) -> Admission:
        """Return the admission of a body, which has not entered the gate."""
        return cls(len(body), body.count(b",") + body.count(b"{") + body.count(b"["))


class _BodyQueue:
    """Bodies that together take at most `limit` bytes of memory, or one that takes more."""

    def __init__(self, limit: int, clock: IReactorTime, slices: Slices) -> None:
        self._limit = limit
        self._clock = clock
        self._slices = slices
        self._used = 0
        self._refusal: str | None = None
        self._waiting: deque[Admission] = deque()
        self._is_going_on = False

    def enter(self, admission: Admission) -> Deferred[str | None] | None:
        """Admit a body and return None, or return what fires when it is admitted or refused."""
        if not self._waiting and self._has_room(admission):
            self._used += admission.size
            return None
        self._waiting.append(admission)
        admission.began = Deferred(lambda _: self._withdraw(admission))
        return admission.began

    def leave(self, admission: Admission) -> None:
        """Free the room of a body."""
        self._used -= admission.size
        self._go_on()

    def refuse(self, reason: str) -> None:
        """Refuse all that wait."""
        self._refusal = reason
        self._go_on()

    def _has_room(self, admission: Admission) -> bool:
        return not self._used or self._used + admission.size <= self._limit

    def _withdraw(self, admission: Admission) -> None:
        self._waiting.remove(admission)
        self._go_on()

    def _may_go_on(self) -> bool:
        return bool(self._waiting) and (
            self._refusal is not None or self._has_room(self._waiting[0])
        )

    def _go_on(self) -> None:
        """Admit bodies, or refuse them, in slices.

        This begins in another turn of the reactor, so that the response before them is sent first.
        """
        if self._may_go_on() and not self._is_going_on:
            self._is_going_on = True
            self._clock.callLater(0, lambda: self._slices.start(self._go_on_in_steps()))

    def _go_on_in_steps(self) -> Steps:
        while self._may_go_on():
            admission = self._waiting.popleft()
            if self._refusal is None:
                self._used += admission.size
            if admission.began is not None:
                admission.began.callback(self._refusal)
            yield
        self._is_going_on = False


class BodyGate:
    """Admits bodies to be parsed, as many at a time as there is memory for."""

    def __init__(self, limit: int, clock: IReactorTime, slices: Slices) -> None:
        """Admit bodies of `limit` bytes of memory at a time, in each of two queues."""
        self._clock = clock
        self._small = _BodyQueue(limit, clock, slices)
        self._large = _BodyQueue(limit, clock, slices)
        self._refusal: str | None = None

    async def enter(self, request: IHttp1Request, admission: Admission, deadline: float) -> None:
        """Wait until a body may be parsed; it is admitted until `leave`.

        Raises `DeadlinePassed`, `Unavailable`, or `CancelledError` if the client has disconnected.
        """
        if self._refusal is not None:
            raise Unavailable(self._refusal)
        began = self._queue(admission).enter(admission)
        if began is not None:
            request.notifyFinish().addErrback(lambda _: began.cancel())
            refusal = await before_deadline(
                began, deadline, self._clock, "the body could be parsed"
            )
            if refusal is not None:
                raise Unavailable(refusal)

    def leave(self, admission: Admission) -> None:
        """Free the room of a body whose parsed form is no longer used."""
        self._queue(admission).leave(admission)

    def refuse(self, reason: str) -> None:
        """Refuse the bodies that wait, and all new ones, with the sentence `reason`."""
        self._refusal = reason
        self._small.refuse(reason)
        self._large.refuse(reason)

    def _queue(self, admission: Admission) -> _BodyQueue:
        return self._large if admission.is_large else self._small


@attrs.define(eq=False)
class _BegunWrite:
    """A write whose caller is known.

    `now` is its time in milliseconds since 1970, `deadline` in seconds of the clock. It has a
    `contender` if it has a condition, and an `origin` if writes are audited.
    """

    contender: int | None
    wanted: DataRequest
    database: Database
    identity: Identity
    now: int
    deadline: float
    origin: Origin | None = None

    def check_rights(self) -> None:
        """Raise `PermissionDenied` if the caller may write nothing here, whatever the body."""
        if not self.wanted.wants_explanation:
            caller = Caller(self.identity.auth, self.identity.is_admin)
            self.database.check_may_write(self.wanted.place.path, caller)

    def write(self, edit: Edit) -> Write:
        """Return the write for the database; an explained one is not an admin's."""
        wanted = self.wanted
        etags, is_push = wanted.condition, wanted.method == b"POST"
        condition = None if etags is None else Condition(wanted.place, etags)
        identity = self.identity
        is_admin = identity.is_admin and not wanted.wants_explanation
        return Write(
            edit=edit,
            now=self.now,
            caller=Caller(identity.auth, is_admin, self.origin),
            condition=condition,
            deadline=self.deadline,
            wants_echo=wanted.print != "silent" and not is_push,
            wants_etag=wanted.wants_etag or condition is not None,
            is_push=is_push,
            trace=wanted.trace,
            contender=self.contender,
            has_events=not (wanted.parameters and _disables_triggers(wanted)),
        )


class WriteHandlers:
    """Handles the requests that write.

    Attributes:
        methods: the handler of each method.
        gate: admits bodies to be parsed.

    """

    def __init__(self, data: DataHandlers) -> None:
        """Write for the callers that `data` identifies, at its time."""
        context = data.context
        self._limits = limits = context.settings.limits
        self._data = data
        self._clock = clock = context.clock
        self._now_ms = data.now_ms
        self._audit = context.audit
        self.methods: Final = {
            b"PUT": self.put,
            b"POST": self.post,
            b"PATCH": self.patch,
            b"DELETE": self.delete,
        }
        self._large = LargeBodies(context.reads, clock)
        self.gate: Final = BodyGate(limits.parsed_bytes, clock, context.reads.slices)

    def put(
        self, request: IHttp1Request, wanted: DataRequest, database: Database
    ) -> Awaitable[Response | None]:
        """Set a place to the body."""
        return self._write(request, wanted, database, wanted.place)

    def post(
        self, request: IHttp1Request, wanted: DataRequest, database: Database
    ) -> Awaitable[Response | None]:
        """Add a child with a push id as its key and the body as its value."""
        path = _node_path(wanted)
        if len(path) == MAX_DEPTH:
            raise InvalidData(f"A child of this path is deeper than {MAX_DEPTH} keys.")
        place = Place((*path, database.push_ids.next(self._now_ms())))
        return self._write(request, wanted, database, place)

    def patch(
        self, request: IHttp1Request, wanted: DataRequest, database: Database
    ) -> Awaitable[Response | None]:
        """Merge the members of the body, whose names may be slash paths, into a node."""
        return self._write(request, wanted, database, Place(_node_path(wanted)), "patch")

    def delete(
        self, request: IHttp1Request, wanted: DataRequest, database: Database
    ) -> Awaitable[Response | None]:
        """Remove what is at a place."""
        return self._write(request, wanted, database, wanted.place, None)

    async def _write(
        self,
        request: IHttp1Request,
        wanted: DataRequest,
        database: Database,
        place: Place,
        method: Method | None = "put",
    ) -> Response | None:
        """Apply the edit in a body, or remove what is at a place; None if the client is gone."""
        now, deadline = self._now_ms(), self._clock.seconds() + wanted.timeout_s
        known = None if wanted.wants_explanation else self._data.recall(wanted, database)
        identity = known or await self._identify(wanted, database)
        if identity.is_read_only or wanted.parameters:
            _check_sender(wanted, identity)
        begun = _BegunWrite(
            contender=None if wanted.condition is None else request.contender,
            wanted=wanted,
            database=database,
            identity=identity,
            now=now,
            deadline=deadline,
            origin=None if self._audit is None else self._audit.origin(request, identity),
        )
        if method is None:
            return await self._do(begun, make_remove(place))
        body = _read_short(request)
        if body is None:
            begun.check_rights()
            sent = _take_body(request)
            if sent.coding is not None or sent.length > FREE_BYTES:
                target = Edit(method, place, None, (Change(place, STORED),))
                return await self._write_when_admitted(request, begun, sent, target)
            body = sent.read()
        try:
            edit = self._make_edit(parse_body(body, self._limits), method, place)
        except InvalidData:
            begun.check_rights()  # a caller without rights must not see what is wrong with the body
            raise
        return await self._do(begun, edit)

    def _make_edit(self, json: Json, method: Method, place: Place) -> Edit:
        if method == "patch":
            return make_patch(place.path, json, self._limits.string_bytes)
        return make_put(place, json, self._limits.string_bytes)

    async def _write_when_admitted(
        self, request: IHttp1Request, begun: _BegunWrite, body: SentBody, target: Edit
    ) -> Response | None:
        """Wait until a body may be decoded and parsed, then apply its edit to the `target`."""
        is_whole = target.place.is_priority
        if body.coding is not None:
            admission = Admission(self._limits.write_body_bytes, self._limits.write_body_bytes)
        else:
            admission = Admission(body.length, 0) if body.is_large else Admission.of(body.read())
        is_split = body.coding is not None or body.is_large or admission.nodes > LARGE_BODY_NODES
        if is_split and begun.wanted.wants_explanation:
            raise TooLarge(
                _TOO_LARGE_TO_EXPLAIN
            )  # an explanation would parse and judge it in one step
        if is_split and not is_whole:
            admission = Admission(body.length, 0)
        try:
            await self.gate.enter(request, admission, begun.deadline)
        except CancelledError:
            return None  # the client has disconnected
        try:
            if is_split and not is_whole:
                return await self._write_split(request, begun, body, target)
            return await self._write_whole(begun, body, target, takes_long=admission.takes_long)
        finally:
            self.gate.leave(admission)

    async def _write_split(
        self, request: IHttp1Request, begun: _BegunWrite, body: SentBody, target: Edit
    ) -> Response | None:
        """Do a write whose body is parsed piece by piece while it is applied."""
        limits, database = self._limits, begun.database
        await self._large.check_size(body, limits.write_body_bytes, begun.deadline)
        self._check_deadline(begun)
        large = LargeBody(body.pieces, body.length, limits.string_bytes, limits.write_nodes)
        write = attrs.evolve(begun.write(target), large=large)
        outcome = await database.write(write)
        return await self._large.respond(request, begun, outcome, body)

    async def _write_whole(
        self, begun: _BegunWrite, body: SentBody, target: Edit, *, takes_long: bool
    ) -> Response:
        """Do a write whose body is parsed as a whole."""
        content = await self._large.read(body, self._limits.write_body_bytes, begun.deadline)
        json = parse_whole(content, self._limits, target.place)
        if takes_long:
            await self._let_others_run(begun)
        edit = self._make_edit(json, target.method, target.place)
        if takes_long:
            await self._let_others_run(begun)
        return await self._do(begun, edit)

    async def _let_others_run(self, begun: _BegunWrite) -> None:
        await deferLater(self._clock, 0)
        self._check_deadline(begun)

    async def _identify(self, wanted: DataRequest, database: Database) -> Identity:
        if wanted.wants_explanation:
            return await self._data.identify_for_explanation(wanted, database)
        return await self._data.identify(wanted, database)

    async def _do(self, begun: _BegunWrite, edit: Edit) -> Response:
        """Do or explain an edit, and return the response.

        The database refuses it if its deadline has passed.
        """
        wanted, identity = begun.wanted, begun.identity
        write = begun.write(edit)
        if wanted.wants_explanation:
            verdict = begun.database.explain_write(write)
            may_write = wanted.override is not None or not identity.is_read_only
            shown = explanation(
                verdict,
                is_admin=identity.is_admin,
                auth=identity.auth,
                refusal=None if may_write else str(ReadOnlyToken()),
            )
            volatile = begun.database.volatile
            if volatile is not None and (part := volatile.part_of(edit)):
                shown["volatile"] = part
            return json_response(wanted, with_expiry(shown, begun.database, edit.place.path))
        return write_response(wanted, await begun.database.write(write))

    def _check_deadline(self, begun: _BegunWrite) -> None:
        if self._clock.seconds() >= begun.deadline:
            raise DeadlinePassed("it was applied")


def _check_sender(wanted: DataRequest, identity: Identity) -> None:
    """Raise the error of a write that its sender may not request, whatever it writes."""
    if identity.is_read_only:
        wanted.check_reads()
    if _disables_triggers(wanted):
        require_admin(identity, "disableTriggers=true")


def _disables_triggers(wanted: DataRequest) -> bool:
    """Return whether hooks are to receive nothing of a write; raise `InvalidQuery`."""
    return parse_choice(wanted.parameters, "disableTriggers", "true", "false") == "true"


def _read_short(request: IHttp1Request) -> bytes | None:
    """Return a body that is parsed at once; None if it is long, or in a content coding."""
    content: IO[bytes] | None = request.content
    if content is None:
        return b""
    if b"content-encoding" in request.headers:
        return None
    content.seek(0)
    body = content.read(FREE_BYTES + 1)
    return body if len(body) <= FREE_BYTES else None


def _take_body(request: IHttp1Request) -> SentBody:
    """Return a body as it was sent, or decoded if that is not much."""
    headers = request.headers
    coding = parse_coding(headers) if b"content-encoding" in headers else None
    file: IO[bytes] = BytesIO() if request.content is None else request.content
    sent = SentBody(file, file.seek(0, SEEK_END), coding)
    if coding is not None and not sent.is_large:
        decoded = decode_body(sent.read(), coding, DECODED_AT_ONCE_BYTES)
        if decoded is not None:
            return SentBody(BytesIO(decoded), len(decoded), None)
    return sent


def _node_path(wanted: DataRequest) -> tuple[str, ...]:
    """Return the path of a request that does not address a priority; raise `InvalidPath`."""
    if wanted.place.is_priority:
        raise InvalidPath("A priority can only be read, set and removed.")
    return wanted.place.path


class LargeBodies:
    """Prepares large writes, and answers them.

    The response is that of a small write: a PUT shows the value as it is stored, a PATCH as it was
    sent. If the caller may not read the results of its server values, it receives its own body.
    """

    def __init__(self, reads: SharedReads, clock: IReactorTime) -> None:
        """Read what was written by `reads`."""
        self._reads = reads
        self._clock = clock

    async def check_size(self, body: SentBody, limit: int, deadline: float) -> None:
        """Raise `PayloadTooLarge` if a decoded body has more than `limit` bytes.

        Raises `InvalidData` and `DeadlinePassed`, too. Nothing has been written yet.
        """
        if body.coding is not None:
            await self._reads.slices.run(self._decode(body, limit, deadline))

    async def read(self, body: SentBody, limit: int, deadline: float) -> bytes:
        """Return the text of a body; raise as `check_size` does."""
        if body.coding is None:
            return body.read()
        kept: list[bytes] = []
        await self._reads.slices.run(self._decode(body, limit, deadline, kept.append))
        return b"".join(kept)

    def _decode(
        self,
        body: SentBody,
        limit: int,
        deadline: float,
        keep: Callable[[bytes], None] = lambda _: None,
    ) -> Generator[None, None, None]:
        """Decode a body in steps; all bodies that are decoded share one slice of each turn."""
        size = 0
        for piece in body.pieces():
            size += len(piece)
            if size > limit:
                raise PayloadTooLarge(limit)
            keep(piece)
            if self._clock.seconds() >= deadline:
                raise DeadlinePassed("it was applied")
            yield

    async def respond(
        self, request: IHttp1Request, begun: _BegunWrite, written: Outcome, body: SentBody
    ) -> Response | None:
        """Return the response to a durable write; None if its client has disconnected."""
        wanted = begun.wanted
        headers = _headers_of(wanted, written)
        if wanted.print == "silent":
            return Response(204, b"", headers)
        shown: bytes | Rendering | Content | None
        if wanted.method == b"POST":
            name: Json = {"name": written.edit.place.path[-1]}
            shown = compact(name)
        elif written.edit.method == "put" and written.may_read:
            shown = await self._read(request, begun, written)
            if shown is None:
                return None
        else:
            parts = await self._reads.slices.run(self._sent(body, written))
            sent = JoinedContent(self._reads.memory, parts)
            shown = sent if sent.size > SMALL_BYTES else sent.whole()
        return Response(200, shown, (JSON_TYPE, *headers))

    def _sent(self, body: SentBody, written: Outcome) -> Generator[None, None, Iterable[bytes]]:
        """Return the sent body in steps; server values are replaced if the caller may see them."""
        if written.may_read and written.sent is not None:
            return written.sent
        pieces = []
        for piece in body.pieces():
            pieces.append(piece)
            yield
        return pieces

    async def _read(
        self, request: IHttp1Request, begun: _BegunWrite, written: Outcome
    ) -> bytes | Rendering | None:
        """Return what was written, as of the turn in which it became durable."""
        database = begun.database
        source = ReadSource(database, written.edit.place, PLAIN)
        rendered = database.read(partial(self._reads.render, source))
        if not isinstance(rendered, TooMuchWork):
            return rendered
        waiter = Waiter(source, _allow, rendered.sequence)
        waiting = self._reads.render_large(database.hold, waiter, counted_address_of(request))
        request.notifyFinish().addErrback(lambda _: waiting.cancel())
        try:
            return await before_deadline(
                waiting, self._clock.seconds() + begun.wanted.timeout_s, self._clock
            )
        except CancelledError:
            return None


def _allow(_: Nodes) -> None:
    """Allow a caller to read what it has written."""


def write_response(request: DataRequest, outcome: Outcome) -> Response:
    """Return the response to a durable write."""
    tag = outcome.etag
    is_push = request.method == b"POST"
    shown: Json = {"name": outcome.edit.place.path[-1]} if is_push else outcome.echo
    part = outcome.volatile_part
    if tag is None and not part and request.print == "compact":
        return Response(200, compact(shown))
    return json_response(request, shown, *_headers_of(request, outcome))


def _headers_of(request: DataRequest, outcome: Outcome) -> tuple[tuple[bytes, bytes], ...]:
    """Return the entity tag of a write, and which part of it is volatile."""
    tag, part = outcome.etag, outcome.volatile_part
    headers = () if tag is None else ((b"ETag", request.dialect.etag(tag)),)
    return (*headers, (b"X-TreeDB-Volatile", part.encode())) if part else headers
