"""One stream: a long-lived request that receives everything written at a path.

Theory of operation. `StreamOpening` admits a stream: limits, rights, a missing index. Then it
stores what the stream writes at its end (`StreamWrites`), and begins it.

A `Stream` begins with one `put` of the present value and registers as a watcher in the same call,
so nothing can be missed in between. From then on each notification becomes frames, printed once for
all streams of a path, which go to the request through the `SendQueue`. When that has overflowed,
because the reader did not read, the stream starts again: with one `put` of the value as it is then.
If there is no room for that, because too much waits for readers, it is postponed to the next tick
of the registry. A large value is rendered in slices, together with the reads that wait for the same
(`FirstValue`). A stream that resumes begins with what it missed (`MissedReader`), if the log still
has it.

What a stream shows of its path is in `database.watchers`, the bytes of its events in `frames`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IPushProducer, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from treedbd.database.database import Database
from treedbd.database.disconnect import check_nodes
from treedbd.database.requests import Caller, PermissionDenied, Unavailable
from treedbd.database.resume import MissedNotification, Resumption
from treedbd.database.rights import ReadRequest
from treedbd.database.watchers import Notification
from treedbd.held_bytes import SMALL_HELD_BYTES, HeldAccount, HeldBytesRefused
from treedbd.http1.content import Buffer, Content, ContentReader, WaitingBytes, WaitingBytesRefused
from treedbd.http1.headers import Header
from treedbd.http1.parser import CutOff
from treedbd.http1.request import IHttp1Request
from treedbd.limits import Limits
from treedbd.store.engine import DiskFull, StoreFailed
from treedbd.store.nodes import Nodes
from treedbd.tree.edit import Edit, make_patch
from treedbd.tree.event import Position
from treedbd.tree.query import Query, bytes_of
from treedbd.tree.types import InvalidData, InvalidQuery, Path
from treedbd.tree.value import parse
from treedbd.web.auth.identity import Identity
from treedbd.web.context import WebParts
from treedbd.web.queues import SendQueue
from treedbd.web.reading import (
    FirstValue,
    MissingIndexes,
    Rendering,
    SharedReads,
    TooMuchWork,
    first_source,
)
from treedbd.web.request import ON_DISCONNECT, DataRequest, Parameters, Question
from treedbd.web.response import counted_address_of
from treedbd.web.streams import frames
from treedbd.web.streams.frames import parse_id, print_in_pieces
from treedbd.web.streams.registry import StreamRegistry, Subscriber

_REMEMBERED_CHARACTERS: Final = 256
"""Of each parameter that the log may ask for while a stream is open."""
STREAM_HEADERS: Final[tuple[Header, ...]] = (
    (b"Content-Type", b"text/event-stream; charset=utf-8"),
    (b"X-Accel-Buffering", b"no"),  # nginx would collect the events
)

_SESSION_BYTES: Final = 16
"""Random bytes of the id by which the store has what a stream writes at its end."""


@attrs.frozen
class StreamRequest:
    """What a stream is asked for: a path, all of it or a query; `with_ids` if it can be resumed.

    `read` is what the rules are evaluated for, `identity` who reads, from which `address`. `writes`
    is what it writes when it ends. What is held for it is charged to its `account`.
    """

    database: Database
    path: Path
    query: Query | None
    read: ReadRequest
    identity: Identity
    address: str
    with_ids: bool
    writes: StreamWrites | None = None
    account: HeldAccount | None = None


@implementer(IPushProducer)
class Stream:
    """A watcher that writes to its request; also the producer of the request's transport."""

    __slots__ = (
        "_can_expire",
        "_first",
        "_grant",
        "_is_ending",
        "_is_over",
        "_queue",
        "_reads",
        "_refuse",
        "_refused",
        "_registry",
        "_request",
        "_resumption",
        "_subscription",
        "_wanted",
    )
    _log = Logger()

    def __init__(
        self,
        request: IHttp1Request,
        wanted: StreamRequest,
        registry: StreamRegistry,
        reads: SharedReads,
        clock: IReactorTime,
        refuse: Callable[[IHttp1Request, BaseException], None],
    ) -> None:
        """Write to `request`; `refuse` answers it if a large first value cannot be rendered."""
        self._refuse = refuse
        self._request = request
        self._wanted = wanted
        self._can_expire = wanted.identity.expires_at is not None
        self._registry = registry
        self._reads = reads
        self._queue = SendQueue(
            request, registry.buffer_bytes, self, clock, reads.slices, wanted.address
        )
        database = wanted.database
        self._grant = database.make_grant(wanted.read, self.revoke, self._queue.overflow)
        self._subscription = database.subscribe(
            wanted.path, wanted.query, self, account=wanted.account
        )
        source = first_source(database, wanted.path, wanted.query, self._subscription)
        self._first = FirstValue(source, self._grant.check_again, reads, wanted.address)
        self._resumption: Resumption | None = None
        self._refused: WaitingBytesRefused | None = None
        self._is_ending = False
        self._is_over = False

    @property
    def last_sent(self) -> float:
        """When something was sent last, in seconds of the clock."""
        return self._queue.last_sent

    def start(self, headers: tuple[Header, ...], last_received: Position | None) -> None:
        """Begin: with what was missed since `last_received` if known, else with a first `put`.

        Raises `PermissionDenied` or `WaitingBytesRefused` before anything is sent.
        """
        wanted, request = self._wanted, self._request
        request.notifyFinish().addBoth(self._close)
        if self._is_over:
            return  # the client has disconnected before
        if request.method == b"HEAD":
            wanted.database.read(self._judge)
            request.start(200, headers, closes_connection=True)
            request.finish()
        elif wanted.with_ids and wanted.query is None and last_received is not None:
            judged = wanted.database.read(self._judge)
            self._start_sending(headers)
            self._queue.is_held = True
            may_continue = partial(self._grant.held_through, judged)
            self._resumption = Resumption(
                wanted.path, last_received, self, may_continue, self._begin
            )
            wanted.database.resume(self._resumption)
        else:
            self._start_with_value(headers)

    def _judge(self, nodes: Nodes) -> int:
        """Evaluate the read rules; return the number of the state."""
        self._grant.check(nodes)
        return nodes.rows.sequence()

    def _start_with_value(self, headers: tuple[Header, ...]) -> None:
        rendered, sequence = self._subscription.watch(self._render)
        if isinstance(rendered, TooMuchWork):
            self._start_sending(headers)
            self._render_large(sequence)
            return
        try:
            self._queue.send_next(self._first.open(rendered, self._position(sequence)))
        except WaitingBytesRefused:
            self._close(None)
            raise
        self._start_sending(headers)
        self._queue.resume()

    def _start_sending(self, headers: tuple[Header, ...]) -> None:
        request, writes = self._request, self._wanted.writes
        if writes is not None:
            writes.has_begun = True
        request.start(200, headers, closes_connection=True)
        request.has_own_timeout = True
        request.registerProducer(self, True)

    def notify(self, notification: Notification) -> None:
        """Send what was written."""
        # Called for each stream and event, so with as few calls as possible.
        try:
            if self._is_over or (
                (self._can_expire or self._grant.must_be_checked) and not self._may_continue()
            ):
                return None
            queue, with_ids = self._queue, self._wanted.with_ids
            if queue.has_overflowed:
                return None
            if notification.is_missed:
                return self._read_again()
            data: Content | None = notification.shared.get(with_ids)
            if data is None:
                data = frames.content_of(notification, self._reads.memory, with_ids)
            registry = self._registry
            registry.events_sent += len(notification.events)
            registry.event_bytes += data.size
            if data.size and not queue.send(data):
                registry.overflowed += 1
        except PermissionDenied:
            self.revoke()
        except Exception:
            self.fail()

    def keep_alive(self) -> None:
        """Send a keep-alive, unless something is waiting to be sent anyway."""
        try:
            if self._may_continue() and self._queue.is_idle:
                self._queue.send_at_once(frames.KEEP_ALIVE)
        except Exception:
            self.fail()

    def end(self, last_frame: bytes = b"") -> None:
        """End cleanly, with a frame that says why, after the frame that is being sent."""
        if self._is_over or self._is_ending:
            return
        self._is_ending = True
        self._unwatch()
        self._queue.finish(lambda: self._finish(last_frame))

    def abort(self, reason: CutOff = "slow") -> None:
        """Drop the connection."""
        if not self._is_over:
            self._close(None)
            self._request.abort(reason)

    def fail(self) -> None:
        """End after an error of ours, so that the client connects again."""
        self._log.failure("A stream failed.")
        self.abort("failed")

    def pauseProducing(self) -> None:
        """Stop writing until the reader has read what was sent."""
        self._queue.is_paused = True
        self._registry.pause(self)

    def resumeProducing(self) -> None:
        """Write what waits, or the present value if the queue has overflowed."""
        self._queue.is_paused = False
        self._registry.resume(self)
        if not (self._is_over or self._is_ending):
            self._may_continue()
        self._queue.resume()

    def stopProducing(self) -> None:
        """Stop writing: the connection is gone."""
        self._close(None)

    def _finish(self, last_frame: bytes) -> None:
        self._close(None)
        self._request.unregisterProducer()
        if last_frame:
            self._request.write(last_frame)
        self._request.finish()

    def _close(self, _: object) -> None:
        if self._is_over:
            return
        self._is_over = True
        self._unwatch()
        if self._wanted.account is not None:
            self._wanted.account.close()
        self._registry.remove(self)
        self._queue.close()
        # What refers to the stream forgets it: no collection of garbage is needed to free it.
        self._subscription.end()
        self._grant.end()

    def _unwatch(self) -> None:
        self._subscription.unwatch()
        if self._wanted.writes is not None:
            self._wanted.writes.end()
        self._grant.close()
        self._first.cancel()
        if self._resumption is not None:
            self._resumption.cancel()

    def _may_continue(self) -> bool:
        """Return whether the caller may still receive anything; if not, end."""
        if self._can_expire and self._registry.has_expired(self._wanted.identity):
            self.end(frames.AUTH_REVOKED)
            return False
        return not self._grant.must_be_checked or self._grant.recheck()

    def revoke(self) -> None:
        """End with `cancel`: what it shows can no longer be read."""
        self.end(frames.CANCEL)

    def refill(self) -> None:
        """Watch again, and send one `put` of the present value next."""
        try:
            rendered, sequence = self._subscription.watch(self._render)
            if isinstance(rendered, TooMuchWork):
                self._render_large(sequence)
            else:
                self._queue.send_next(self._first.open(rendered, self._position(sequence)))
        except (PermissionDenied, InvalidQuery, HeldBytesRefused, Unavailable):
            self.revoke()
        except WaitingBytesRefused as error:
            self._postpone(error)

    def _read_again(self) -> None:
        """Send the present value for an event that is too large: at once, if it is short."""
        queue = self._queue
        if self._wanted.query is None and not queue.is_idle:
            rendered, sequence = self._subscription.watch(self._render)
            if isinstance(rendered, bytes):
                queue.send(self._first.print(rendered, self._position(sequence)))
                return
        queue.overflow()

    def retry(self) -> None:
        """Send the present value after all, if there is room for it now."""
        if self._refused is not None and not self._refused.has_room(self._wanted.address):
            self._registry.postpone(self)
            return
        self._refused = None
        self._queue.is_held = False
        self._queue.resume()

    def _postpone(self, error: WaitingBytesRefused) -> None:
        self._refused = error.with_traceback(None)
        self._queue.postpone()
        self._registry.postpone(self)

    def _begin(self, missed: MissedNotification | None) -> None:
        """Send what was missed next, or the present value if that is not known, or too much."""
        self._queue.is_held = False
        try:
            reader = None if missed is None else self._read_missed(missed)
            if reader is None:
                self.refill()
            else:
                self._queue.send_next([reader])
            self._queue.resume()
        except Exception:
            self.fail()

    def _read_missed(self, missed: MissedNotification) -> MissedReader | None:
        """Return what reads the events; None if there is no room to keep them meanwhile."""
        try:
            return MissedReader(missed, self._reads.memory, self._wanted.address)
        except WaitingBytesRefused:
            return None

    def _render(self, nodes: Nodes) -> bytes | Rendering | TooMuchWork:
        """Evaluate the read rules; return the present value."""
        self._grant.check(nodes)
        return self._first.render(nodes)

    def _position(self, sequence: int) -> Position | None:
        """Return what identifies an event that shows a state, None if nothing does."""
        wanted = self._wanted
        return wanted.database.watching.position(sequence) if wanted.with_ids else None

    def _render_large(self, judged: int) -> None:
        """Render a large value; the read rules already allowed the state `judged`."""
        self._queue.is_held = True
        waiting = self._first.render_large(self._wanted.database.hold, judged, self._subscription)
        waiting.addCallback(self._rendered).addErrback(self._not_rendered)

    def _rendered(self, rendering: Rendering) -> None:
        if self._is_ending or self._is_over or not self._may_continue():
            return
        readers = self._first.open(rendering, self._position(rendering.sequence))
        self._queue.is_held = False
        self._queue.send_next(readers)
        self._queue.resume()

    def _not_rendered(self, failure: Failure) -> None:
        if self._is_ending or self._is_over:
            return
        error, has_begun = failure.value, self._request.startedWriting
        if isinstance(error, PermissionDenied) or (
            has_begun and isinstance(error, InvalidQuery | HeldBytesRefused)
        ):
            self.revoke()
        elif isinstance(error, WaitingBytesRefused) and has_begun:
            self._postpone(error)
        elif (
            isinstance(
                error,
                DiskFull | StoreFailed | WaitingBytesRefused | HeldBytesRefused | InvalidQuery,
            )
            and not has_begun
        ):
            if self._wanted.writes is not None:
                self._wanted.writes.has_begun = False
            self._close(None)
            self._request.unregisterProducer()
            self._refuse(self._request, error)
        else:
            self._log.failure("A stream failed.", failure)
            self.abort("failed")


@attrs.frozen(eq=False)
class StreamOpening:
    """Opens the streams of a service: admits them, stores their writes, and begins them.

    Attributes:
        parts: what it shares with other protocols.
        streams: those that are open.
        refuse: answers a stream that cannot begin.
        missing_indexes: looks at the queries.
        now_ms: returns the time in milliseconds since 1970.

    """

    parts: WebParts
    streams: StreamRegistry
    refuse: Callable[[IHttp1Request, BaseException], None]
    missing_indexes: MissingIndexes
    now_ms: Callable[[], int]

    async def open(
        self, request: IHttp1Request, wanted: DataRequest, database: Database, identity: Identity
    ) -> None:
        """Begin a stream, when what it writes at its end is stored; raise what refuses it."""
        request.head_memory.identity = identity  # for the log: its token may expire meanwhile
        _shorten_question(request)
        address = counted_address_of(request)
        account = self._hold(wanted, address)
        writes = None
        if ON_DISCONNECT in wanted.parameters:
            writes = await self._store_writes(request, wanted, database, identity)
        path = wanted.place.path
        with_ids = wanted.parameters.get("resume") == "true"
        try:
            read = self.admit(wanted, database, identity, address)
            stream_request = StreamRequest(
                *(database, path, wanted.read_options.query, read, identity, address),
                with_ids,
                writes,
                account,
            )
            self._begin(request, wanted, stream_request)
        except BaseException:
            if account is not None:
                account.close()
            if writes is not None:
                writes.end()
            raise

    def _hold(self, wanted: DataRequest, address: str) -> HeldAccount | None:
        """Charge what a stream of a query holds, None for others; raise `HeldBytesRefused`."""
        query = wanted.read_options.query
        if query is None:
            return None
        account = self.parts.reads.held.account(address)
        account.charge(bytes_of(query))
        return account

    def _begin(self, request: IHttp1Request, wanted: DataRequest, asked: StreamRequest) -> None:
        parts = self.parts
        stream = Stream(request, asked, self.streams, parts.reads, parts.clock, self.refuse)
        common = parts.writer.common_headers(request, no_store=False)
        if asked.writes is not None:
            asked.writes.end_stream = stream.end
        subscriber = Subscriber(asked.database.name, asked.address, asked.identity, request)
        self.streams.add(stream, subscriber)
        try:
            stream.start((*STREAM_HEADERS, *common), parse_id(wanted.last_event_id))
        except (
            *(PermissionDenied, WaitingBytesRefused, HeldBytesRefused, InvalidQuery),
            Unavailable,
        ):
            self.streams.remove(stream)
            raise

    async def _store_writes(
        self, request: IHttp1Request, wanted: DataRequest, database: Database, identity: Identity
    ) -> StreamWrites:
        """Judge and store what a stream writes when it ends; nothing for a HEAD.

        Nothing is stored for a stream that would be refused.
        """
        limits = self.parts.settings.limits
        edit = parse_on_disconnect(wanted.parameters, wanted.place.path, limits)
        read = self.admit(wanted, database, identity, counted_address_of(request))
        database.check_read(read)
        writes = StreamWrites(database, edit, read.caller, self.streams.track)
        store = writes.judge if request.method == b"HEAD" else writes.store
        await store(self.now_ms(), limits.disconnect_writes_per_connection)
        return writes

    def admit(
        self, wanted: DataRequest, database: Database, identity: Identity, address: str | None
    ) -> ReadRequest:
        """Return for what the rules are evaluated while a stream, or a program, watches a place.

        Raises if it may not begin; whether the rules allow it is evaluated with its first value.
        """
        options, path = wanted.read_options, wanted.place.path
        request = ReadRequest(
            Caller(identity.auth, identity.is_admin), path, options.facts, self.now_ms
        )
        if options.query is not None:
            self.missing_indexes.check(database, options.query, request)
        if database.is_absent:
            database.check_read(request)
        self.streams.check(database.name, address, identity)
        return request


def _shorten_question(request: IHttp1Request) -> None:
    """Remember little of long parameters: what is read of them later is which there are."""
    question = request.head_memory.question
    if isinstance(question, Question):
        parameters = question.wanted.parameters
        if sum(map(len, parameters.values())) > SMALL_HELD_BYTES:
            short = {name: text[:_REMEMBERED_CHARACTERS] for name, text in parameters.items()}
            question.wanted = attrs.evolve(question.wanted, parameters=short)


def parse_on_disconnect(parameters: Parameters, path: Path, limits: Limits) -> Edit:
    """Return what a stream of `path` writes when it ends; raise `InvalidQuery`.

    Paths are relative to that of the stream, as the keys of a PATCH.
    """
    try:
        body = parse(parameters[ON_DISCONNECT].encode())
        if not isinstance(body, dict):
            raise InvalidData("it must be an object of paths and values.")
        check_nodes(body)
        return make_patch(path, body, limits.string_bytes)
    except InvalidData as error:
        raise InvalidQuery(f"{ON_DISCONNECT}: {error}") from None


class StreamWrites:
    """What one stream writes when it ends, for whatever reason: its parameter `onDisconnect`.

    It is a PATCH of the path of the stream, judged and stored before the stream begins
    (`database.disconnect`), and done when the stream ends. Of a stream that is refused, or whose
    client is gone before it has begun, nothing is left.

    Attributes:
        has_begun: whether the stream has begun; if not, nothing is written.
        end_stream: ends the stream, while there is one.

    """

    def __init__(
        self,
        database: Database,
        edit: Edit,
        caller: Caller,
        track: Callable[[Deferred[None]], None],
    ) -> None:
        """Do `edit` as `caller`; `track` is called with what fires when it is done."""
        self.has_begun = False
        self.end_stream: Callable[[], object] | None = None
        self._writes = database.disconnect_writes
        self._edit = edit
        self._caller = caller
        self._track = track
        self._session = secrets.token_hex(_SESSION_BYTES)
        self._is_over = False

    async def store(self, now: int, limit: int) -> None:
        """Judge the write, and store it; raise as `DisconnectWrites.set`."""
        try:
            await self._writes.set(
                *(self._session, self._edit, self._caller, now, limit),
                self._end_all,
            )
        except Unavailable:  # it may be stored all the same
            self.end()
            raise

    async def judge(self, now: int, limit: int) -> None:
        """Judge the write, and store nothing; raise as `store`."""
        self._is_over = True
        await self._writes.judge(self._edit, self._caller, now, limit)

    def _end_all(self) -> None:
        (self.end_stream or self.end)()

    def end(self) -> None:
        """Do the write, or forget it if the stream has not begun; only the first call counts."""
        if not self._is_over:
            self._is_over = True
            self.end_stream = None
            self._track(
                (self._writes.run if self.has_begun else self._writes.forget)(self._session)
            )


class _HeldEvents(Content):
    """The events of a notification that are kept for their readers: counted as content is.

    They are in memory until all who missed them have read them.
    """

    __slots__ = ()

    def __init__(self, memory: WaitingBytes, size: int) -> None:
        super().__init__(memory, b"")
        self.size = size


def hold_missed(missed: MissedNotification, memory: WaitingBytes, address: str) -> ContentReader:
    """Count what was missed by a client at `address`, once for all of them, until it is closed.

    Raises `WaitingBytesRefused`.
    """
    size = missed.memory_bytes
    held: Content | None = missed.shared.get((_HeldEvents, size))
    if held is None:
        held = missed.shared[_HeldEvents, size] = _HeldEvents(memory, size)
    return held.open(address)


class MissedReader:
    """Reads the frames of what a client missed, as a `ContentReader` reads content.

    They are printed some events at a time, once for all clients that missed the same.

    Attributes:
        remaining: whether there is more to read.

    """

    __slots__ = ("_held", "_piece", "_pieces", "remaining")

    def __init__(self, missed: MissedNotification, memory: WaitingBytes, address: str) -> None:
        """Read for a client at `address`; `memory` counts what is kept, printed too.

        Raises `WaitingBytesRefused`.
        """
        self.remaining = True
        self._held = hold_missed(missed, memory, address)
        self._pieces: Iterator[bytes] = print_in_pieces(missed)
        self._piece = memoryview(b"")

    def read(self, size: int) -> Buffer:
        """Return at most `size` bytes and go on; none at the end."""
        if not self._piece:
            piece = next(self._pieces, None)
            if piece is None:
                self.remaining = False
                return b""
            self._piece = memoryview(piece)
        data, self._piece = self._piece[:size], self._piece[size:]
        return data

    def close(self) -> None:
        """Stop reading."""
        self.remaining = False
        self._piece = memoryview(b"")
        self._pieces = iter(())
        self._held.close()
