"""One stream: a long-lived request that receives everything written at a path.

Theory of operation. `Stream.open` admits a stream: limits, rights, a missing index. Then it stores
what the stream writes at its end (`StreamWrites`), and begins with one `put` of the present value.
The stream subscribes in the same call, so no write is missed in between. From then on each
notification becomes frames, which are printed once for all streams of a path.

The frames go to the request through the `SendQueue`. Short ones are written directly. Everything
longer than a chunk, such as the first value, is sent chunk by chunk as the client reads, in slices
that all streams share, from one copy for all streams of a path. Meanwhile, and while the transport
is paused, other frames wait in the queue. Beyond a limit, or if too many bytes wait for the clients
of the whole service, they are dropped and the queue *has overflowed*: when the client reads again,
the stream begins again with one `put` of the present value. If there is no room for that, it is
postponed to the next tick of the registry. A WebSocket has other rules (`realtime.socket.Outbox`).

A stream with `describe=true` (`ChangesStream`) names the places that change, and reads no value.
Its frames are `changed`; where another stream begins with a value, it begins with one of all of its
place.

A large value is rendered in slices, together with equal reads (`FirstValue`). A stream that resumes
begins with what it missed (`MissedReader`), if the log still has it.

Frames. A frame is `event:` and `data:`, `id:` if it is requested, and an empty line. Some clients
fail at a comment, and browsers drop an event without data, so a keep-alive has `data: null`. An
identifier is a position, printed as `42-9f3ac1d2e4b5a697`: the number of the write and the first
bytes of its operation id, which distinguish it from the same number of another database.
"""

from __future__ import annotations

import re
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IPushProducer, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from treedbd.counting import SMALL_HELD_BYTES, HeldAccount, HeldBytesRefused
from treedbd.database.database import Database
from treedbd.database.disconnect import check_nodes
from treedbd.database.requests import Caller, PermissionDenied, Unavailable
from treedbd.database.resume import MissedNotification, Resumption
from treedbd.database.rights import ReadRequest
from treedbd.database.slices import Slices
from treedbd.database.watchers import Notification, ReadGrant, Subscription
from treedbd.http1.content import (
    SMALL_BYTES,
    Buffer,
    Content,
    ContentReader,
    FrameReader,
    JoinedContent,
    WaitingBytes,
    WaitingBytesRefused,
)
from treedbd.http1.parser import CutOff, Header
from treedbd.http1.request import IHttp1Request
from treedbd.http1.senders import CHUNK_BYTES, FrameSender
from treedbd.limits import Limits
from treedbd.store.engine import DiskFull, StoreFailed
from treedbd.store.nodes import Nodes
from treedbd.tree.edit import Edit, make_patch
from treedbd.tree.event import Event, Moment, Position
from treedbd.tree.query import bytes_of
from treedbd.tree.types import InvalidData, InvalidQuery, Path
from treedbd.tree.value import parse
from treedbd.web.auth.identity import Identity, ReadOnlyToken
from treedbd.web.reading import FirstValue, Rendering, TooMuchWork, first_source
from treedbd.web.request import ON_DISCONNECT, DataRequest, Parameters, Question
from treedbd.web.response import counted_address_of

if TYPE_CHECKING:
    from treedbd.web.resource import DataHandlers

_REMEMBERED_CHARACTERS: Final = 256
"""Characters of each parameter that are kept for the log while a stream is open."""
STREAM_HEADERS: Final[tuple[Header, ...]] = (
    (b"Content-Type", b"text/event-stream; charset=utf-8"),
    (b"X-Accel-Buffering", b"no"),  # nginx would collect the events
)

_SESSION_BYTES: Final = 16
"""Random bytes of the id under which the store has what a stream writes at its end."""


KEEP_ALIVE: Final = b"event: keep-alive\ndata: null\n\n"
CANCEL: Final = b"event: cancel\ndata: null\n\n"
AUTH_REVOKED: Final = b"event: auth_revoked\ndata: credential is no longer valid\n\n"
_ALL_CHANGED: Final = b'event: changed\ndata: {"path":"/"}\n\n'
_FIRST_PUT: Final = (b'event: put\ndata: {"path":"/","data":', b"}\n")

PIECE_EVENTS: Final = 32
"""Events that are printed in one step."""

UNKNOWN: Final = Position(0, b"")
"""The position of a client near volatile nodes, of which the change log has not all events."""
_OP_ID_BYTES: Final = 8
_ID = re.compile(r"(0|[1-9][0-9]{0,17})(?:-([0-9a-f]{16}))?")


def print_frames(events: Iterable[tuple[Position, Event]], *, with_ids: bool) -> bytes:
    """Print events, each with its position, one frame after the other."""
    return b"".join(_chunks(events, with_ids=with_ids))


def content_of(notification: Notification, memory: WaitingBytes, with_ids: bool | None) -> Content:
    """Return the frames of a notification, one copy for all its streams."""
    content: Content | None = notification.shared.get(with_ids)
    if content is None:
        chunks = _chunks(notification.events, with_ids=with_ids)
        is_large = any(event.is_large for _, event in notification.events)
        content = JoinedContent(memory, chunks) if is_large else Content(memory, b"".join(chunks))
        notification.shared[with_ids] = content
    return content


def _chunks(events: Iterable[tuple[Position, Event]], *, with_ids: bool | None) -> Iterator[bytes]:
    """Print events; None instead of `with_ids` makes clients forget the identifier they have."""
    for position, event in events:
        yield b"event: %b\ndata: " % event.kind.encode()
        yield from event.chunks()
        is_numbered = with_ids and not isinstance(position.sequence, Moment)
        yield b"\n" + frame_end(position if is_numbered else UNKNOWN if with_ids is None else None)


def print_in_pieces(notification: Notification) -> Iterator[bytes]:
    """Print what a client missed, with identifiers, some events at a time.

    A piece is printed when it is needed, once for all streams that share the notification. There is
    at least one, which may be empty.
    """
    events = notification.events
    for at in range(0, len(events) or 1, PIECE_EVENTS):
        some = events[at : at + PIECE_EVENTS]
        # More events may be added to the last piece before another stream needs it.
        printed = notification.shared.get((at, len(some)))
        if printed is None:
            printed = notification.shared[at, len(some)] = print_frames(some, with_ids=True)
        yield printed


def frame_end(position: Position | None) -> bytes:
    """Return what follows the data of a frame; None for one without an identifier.

    With that of an `UNKNOWN` position the client forgets the last one.
    """
    if position is None:
        return b"\n"
    return b"id: \n\n" if position is UNKNOWN else b"id: %b\n\n" % print_id(position).encode()


def _around_first(position: Position | None) -> tuple[bytes, bytes]:
    """Return what precedes and follows the value in its first `put`."""
    before, after = _FIRST_PUT
    return before, after + frame_end(position)


def parse_id(text: str | None) -> Position | None:
    """Return the position in a `Last-Event-ID`, None if it has another form."""
    found = _ID.fullmatch(text or "")
    if found is None:
        return None
    sequence, op_id = found.groups()
    return Position(int(sequence), bytes.fromhex(op_id or ""))


def print_id(position: Position) -> str:
    """Return the identifier of a position."""
    if not position.op_id:
        return str(position.sequence)
    return f"{position.sequence}-{position.op_id[:_OP_ID_BYTES].hex()}"


class SendQueue(FrameSender):
    """The bytes of one stream on their way to its request.

    Attributes:
        is_paused: set while the transport does not accept data.
        is_held: set while what is to be sent next is not ready.
        has_overflowed: whether frames were dropped; new ones are dropped too.
        last_sent: when something was sent last, in seconds of the clock.

    """

    __slots__ = (
        "_address",
        "_clock",
        "_limit",
        "_owner",
        "_then",
        "_waiting",
        "_waiting_bytes",
        "has_overflowed",
        "is_held",
        "last_sent",
    )

    def __init__(
        self,
        request: IHttp1Request,
        limit: int,
        owner: Stream,
        clock: IReactorTime,
        slices: Slices,
        address: str = "",
    ) -> None:
        """Write to `request`; at most `limit` bytes wait, besides the frame being sent.

        What waits is sent in `slices`, which the streams of a service share, and is counted for the
        client's `address`. `owner` refills the queue, and is called after an exception.
        """
        super().__init__(request, slices)
        self.has_overflowed = False
        self.is_held = False
        self.last_sent = clock.seconds()
        self._limit = limit
        self._owner: Stream | None = owner
        self._clock = clock
        self._address = address
        self._waiting: deque[ContentReader] | None = None
        self._waiting_bytes = 0
        self._then: Callable[[], None] | None = None

    @property
    def is_idle(self) -> bool:
        """Whether a frame would be written at once."""
        must_wait = self.is_paused or self.is_held or self.has_overflowed
        return not (must_wait or self._sending or self._waiting)

    def send(self, frames: Content) -> bool:
        """Send whole frames now, or after those that wait; return False on overflow."""
        must_wait = self.is_paused or self.is_held or self.has_overflowed
        if must_wait or self._sending or self._waiting:
            self._wait(frames)
        elif frames.size <= CHUNK_BYTES:
            self.last_sent = self._clock.seconds()
            self._send_whole(frames)
            return True
        else:
            try:
                self.send_next((frames.open(self._address),))
            except WaitingBytesRefused:
                self.has_overflowed = True
            self.resume()
        return not self.has_overflowed

    def send_at_once(self, frame: bytes) -> None:
        """Send a short frame; the queue must be idle."""
        self._write(frame)

    def send_next(self, readers: Iterable[FrameReader]) -> None:
        """Send one frame next, in parts; no other frame may be partly sent."""
        self._sending = deque(readers)

    def overflow(self) -> None:
        """Drop waiting frames, and new ones until the owner has refilled the queue."""
        self._drop_waiting()
        self.has_overflowed = True
        self.resume()

    def postpone(self) -> None:
        """Hold the queue: its owner could not refill it, and will release it."""
        self.is_held = True
        self.has_overflowed = True

    def finish(self, then: Callable[[], None]) -> None:
        """Drop what waits, and call `then` after the frame that is being sent."""
        self.has_overflowed = False
        self._drop_waiting()
        if self._sending:
            self._then = then
        else:
            then()

    def close(self) -> None:
        """Drop everything, and forget the owner."""
        self.is_held = True  # nothing is sent from now on
        self._owner = None
        self.end_direct()
        self.has_overflowed = False
        self._then = None
        self._drop_waiting()
        self._close_frame()

    def _fail(self, error: Exception) -> None:
        if self._owner is None:
            raise error
        self._owner.fail()

    def _next_chunk(self) -> bytes | None:
        while not (self.is_paused or self.is_held):
            if self._sending:
                return self._gather()
            if self._then is not None:
                then, self._then = self._then, None
                then()
            elif self.has_overflowed and self._owner is not None:
                self.has_overflowed = False
                self._owner.refill()
            elif self._waiting:
                self._sending = self._take_waiting()
            else:
                break
        return None

    def _next_frame(self) -> deque[FrameReader] | None:
        return None if self._then is not None else self._take_waiting()

    def _take_waiting(self) -> deque[FrameReader] | None:
        """Remove and return the next frame that waits, None if none does."""
        if not self._waiting:
            self._waiting = None
            return None
        reader = self._waiting.popleft()
        self._waiting_bytes -= reader.size
        taken: deque[FrameReader] = deque((reader,))
        return taken

    def _wait(self, frames: Content) -> None:
        if self.has_overflowed:
            return
        size = self._waiting_bytes + frames.size
        if size > self._limit:
            self._overflow()
            return
        try:
            reader = frames.open(self._address, may_refuse=size > SMALL_BYTES)
        except WaitingBytesRefused:
            self._overflow()
            return
        self._waiting_bytes = size
        if self._waiting is None:
            self._waiting = deque()
        self._waiting.append(reader)

    def _overflow(self) -> None:
        self._drop_waiting()
        self.has_overflowed = True

    def _drop_waiting(self) -> None:
        waiting, self._waiting = self._waiting, None
        self._waiting_bytes = 0
        for reader in waiting or ():
            reader.close()

    def _write(self, chunk: bytes) -> None:
        self.last_sent = self._clock.seconds()
        super()._write(chunk)


class _HeldEvents(Content):
    """The events of a notification, counted as content while any client has to read them."""

    __slots__ = ()

    def __init__(self, memory: WaitingBytes, size: int) -> None:
        super().__init__(memory, b"")
        self.size = size


def hold_missed(missed: MissedNotification, memory: WaitingBytes, address: str) -> ContentReader:
    """Return a reader that counts what a client at `address` missed, once for all clients.

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
        """Read for a client at `address`; `memory` counts events and frames that are kept.

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


def parse_on_disconnect(parameters: Parameters, path: Path, limits: Limits) -> Edit:
    """Return what a stream of `path` writes when it ends; raise `InvalidQuery`.

    Its paths are relative to `path`, as the keys of a PATCH are.
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

    It is a PATCH of the path of the stream. It is judged and stored before the stream begins
    (`database.disconnect`), and done when the stream ends. A stream that is refused, or whose
    client disconnects before it has begun, writes nothing.

    Attributes:
        has_begun: whether the stream has begun; if not, nothing is written.
        end_stream: ends the stream; None before it watches.

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
                self._session, self._edit, self._caller, now, limit, self._end_all
            )
        except Unavailable:  # it may be stored nevertheless
            self.end()
            raise

    async def judge(self, now: int, limit: int) -> None:
        """Judge the write, and store nothing; raise as `store`."""
        self._is_over = True
        await self._writes.judge(self._edit, self._caller, now, limit)

    def _end_all(self) -> None:
        (self.end_stream or self.end)()

    def end(self) -> None:
        """Do the write, or drop it if the stream has not begun; only the first call counts."""
        if not self._is_over:
            self._is_over = True
            self.end_stream = None
            self._track(
                (self._writes.run if self.has_begun else self._writes.forget)(self._session)
            )


@implementer(IPushProducer)
class Stream:
    """A watcher that writes to its request; also the producer of the request's transport.

    Attributes:
        request, wanted: the request that has opened it, and its parsed form.
        events: how many it was notified of.

    """

    __slots__ = (
        "_account",
        "_can_expire",
        "_data",
        "_database",
        "_first",
        "_grant",
        "_is_ending",
        "_is_over",
        "_query",
        "_queue",
        "_reads",
        "_refused",
        "_registry",
        "_resumption",
        "_subscription",
        "_with_ids",
        "_writes",
        "address",
        "events",
        "identity",
        "name",
        "request",
        "wanted",
    )
    _log = Logger()

    def __init__(
        self,
        request: IHttp1Request,
        wanted: DataRequest,
        data: DataHandlers,
        database: Database,
        identity: Identity,
    ) -> None:
        """Write to `request` what is `wanted` of a place or a query and `identity` may read."""
        self.identity: Final = identity
        self.address: Final = counted_address_of(request)
        self.name: Final = database.name
        self.request: Final = request
        self.wanted: Final = wanted
        self.events = 0
        self._data = data
        self._database = database
        self._reads = data.context.reads
        self._registry = data.streams
        self._query = wanted.read_options.query
        self._with_ids = wanted.parameters.get("resume") == "true"
        self._can_expire = identity.expires_at is not None
        self._account: HeldAccount | None = None
        self._writes: StreamWrites | None = None
        self._queue: SendQueue
        self._grant: ReadGrant
        self._subscription: Subscription
        self._first: FirstValue
        self._resumption: Resumption | None = None
        self._refused: WaitingBytesRefused | None = None
        self._is_ending = False
        self._is_over = False

    async def open(self) -> None:
        """Begin when what the stream writes at its end is stored; raise why it is refused."""
        request, wanted, data = self.request, self.wanted, self._data
        request.head_memory.identity = self.identity  # for the log: its token may expire meanwhile
        _shorten_question(request)
        try:
            self._charge()
            if ON_DISCONNECT in wanted.parameters:
                await self._store_writes()
            self._watch(self._admit())
            common = data.context.writer.common_headers(request, no_store=False)
            self._begin((*STREAM_HEADERS, *common), parse_id(wanted.last_event_id))
        except BaseException:
            if self._account is not None:
                self._account.close()
            if self._writes is not None:
                self._writes.end()
            raise

    def _admit(self) -> ReadRequest:
        """Return the read that the rules judge; raise unless the stream may begin."""
        return admit(self._data, self.wanted, self._database, self.identity, self.address)

    def _charge(self) -> None:
        """Charge the memory of a stream of a query; raise `HeldBytesRefused`."""
        if self._query is not None:
            account = self._reads.held.account(self.address)
            account.charge(bytes_of(self._query))
            self._account = account

    async def _store_writes(self) -> None:
        """Judge and store what the stream writes when it ends; for a HEAD only judge it.

        Nothing is stored for a stream that would be refused.
        """
        data, database, wanted = self._data, self._database, self.wanted
        limits = data.context.settings.limits
        if self.identity.is_read_only:
            raise ReadOnlyToken
        edit = parse_on_disconnect(wanted.parameters, wanted.place.path, limits)
        read = self._admit()
        database.check_read(read)
        caller = read.caller
        if data.context.audit is not None:
            origin = data.context.audit.origin(self.request, self.identity)
            caller = attrs.evolve(caller, origin=origin)
        writes = StreamWrites(database, edit, caller, data.streams.track)
        store = writes.judge if self.request.method == b"HEAD" else writes.store
        await store(data.now_ms(), limits.disconnect_writes_per_connection)
        self._writes = writes

    def _watch(self, read: ReadRequest) -> None:
        """Subscribe to the place or query; the first value is judged later."""
        self._queue = SendQueue(
            request=self.request,
            limit=self._registry.buffer_bytes,
            owner=self,
            clock=self._data.context.clock,
            slices=self._reads.slices,
            address=self.address,
        )
        self._grant = self._database.make_grant(read, self.revoke, self._queue.overflow)
        self._subscribe(self.wanted.place.path)
        if self._writes is not None:
            self._writes.end_stream = self.end

    def _subscribe(self, path: Path) -> None:
        database, reads = self._database, self._reads
        self._subscription = database.subscribe(path, self._query, self, account=self._account)
        source = first_source(database, path, self._query, self._subscription)
        self._first = FirstValue(source, self._grant.check_again, reads, self.address)

    def _begin(self, headers: tuple[Header, ...], last_received: Position | None) -> None:
        self._registry.add(self)
        try:
            self.start(headers, last_received)
        except (
            PermissionDenied,
            WaitingBytesRefused,
            HeldBytesRefused,
            InvalidQuery,
            Unavailable,
        ):
            self._registry.remove(self)
            raise

    @property
    def last_sent(self) -> float:
        """When something was sent last, in seconds of the clock."""
        return self._queue.last_sent

    @property
    def sent_bytes(self) -> int:
        """How many bytes were sent so far."""
        return self._queue.sent_bytes

    def start(self, headers: tuple[Header, ...], last_received: Position | None) -> None:
        """Begin with what was missed since `last_received` if known, else with a first `put`.

        Raises `PermissionDenied` or `WaitingBytesRefused` before anything is sent.
        """
        wanted, request = self.wanted, self.request
        request.notifyFinish().addBoth(self._close)
        if self._is_over:
            return  # the client has disconnected before
        if request.method == b"HEAD":
            self._database.read(self._judge)
            request.start(200, headers, closes_connection=True)
            request.finish()
        elif (
            self._with_ids
            and self._query is None
            and last_received is not None
            and self._database.may_resume(wanted.place.path)
        ):
            judged = self._database.read(self._judge)
            self._start_sending(headers)
            self._queue.is_held = True
            may_continue = partial(self._grant.held_through, judged)
            self._resumption = Resumption(
                path=wanted.place.path,
                after=last_received,
                watcher=self,
                may_continue=may_continue,
                begin=self._send_missed,
            )
            self._database.resume(self._resumption)
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
            self._queue.send_next(self._open_first(rendered, self._position(sequence)))
        except WaitingBytesRefused:
            self._close(None)
            raise
        self._start_sending(headers)
        self._queue.resume()

    def _start_sending(self, headers: tuple[Header, ...]) -> None:
        request, writes = self.request, self._writes
        if writes is not None:
            writes.has_begun = True
        request.start(200, headers, closes_connection=True)
        request.has_own_timeout = True
        request.registerProducer(self, True)

    def notify(self, notification: Notification) -> bool:
        """Send what was written; return whether nothing had to be checked or read for it."""
        # Called for each stream and event, so it makes few calls and uses few objects.
        try:
            is_short = (
                self._grant.checked_under is self._database.rules.current and not self._can_expire
            )
            if self._is_over or not (is_short or self._may_continue()):
                return False
            queue, with_ids = self._queue, self._with_ids and self._may_have_ids()
            if queue.has_overflowed:
                return True
            if notification.is_missed:
                self._read_again()
                return False
            data: Content | None = notification.shared.get(with_ids)
            if data is None:
                data = content_of(notification, self._reads.memory, with_ids)
            registry = self._registry
            count = len(notification.events)
            registry.events_sent += count
            self.events += count
            registry.event_bytes += data.size
            if data.size and not queue.send(data):
                registry.overflowed += 1
            return is_short
        except PermissionDenied:
            self.revoke()
        except Exception:
            self.fail()
        return False

    def keep_alive(self) -> None:
        """Send a keep-alive, unless something is waiting to be sent anyway."""
        try:
            if self._may_continue() and self._queue.is_idle:
                self._queue.send_at_once(KEEP_ALIVE)
        except Exception:
            self.fail()

    def end(self, last_frame: bytes = b"") -> None:
        """End cleanly after the frame that is being sent; `last_frame` says why."""
        if self._is_over or self._is_ending:
            return
        self._is_ending = True
        self._unwatch()
        self._queue.finish(lambda: self._finish(last_frame))

    def abort(self, reason: CutOff = "slow") -> None:
        """Drop the connection."""
        if not self._is_over:
            self._close(None)
            self.request.abort(reason)

    def fail(self) -> None:
        """End after an error of the server, so that the client connects again."""
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
        self.request.unregisterProducer()
        if last_frame:
            self.request.write(last_frame)
        self.request.finish()

    def _close(self, _: object) -> None:
        if self._is_over:
            return
        self._is_over = True
        self._unwatch()
        if self._account is not None:
            self._account.close()
        self._registry.remove(self)
        self._queue.close()
        # No object refers to the stream from now on: it is freed without garbage collection.
        self._subscription.end()
        self._grant.end()

    def _unwatch(self) -> None:
        self._subscription.unwatch()
        if self._writes is not None:
            self._writes.end()
        self._grant.close()
        self._stop_reading()

    def _stop_reading(self) -> None:
        self._first.cancel()
        if self._resumption is not None:
            self._resumption.cancel()

    def _may_continue(self) -> bool:
        """Return whether the caller may receive more; if not, end."""
        if self._can_expire and self._registry.has_expired(self.identity):
            self.lose_identity()
            return False
        return not self._grant.must_be_checked or self._grant.recheck()

    def lose_identity(self) -> None:
        """End with `auth_revoked`: the token has expired, or is no longer trusted."""
        self.end(AUTH_REVOKED)

    def revoke(self) -> None:
        """End with `cancel`: the caller may no longer read what the stream shows."""
        self.end(CANCEL)

    def refill(self) -> None:
        """Watch again, and send one `put` of the present value next."""
        try:
            rendered, sequence = self._subscription.watch(self._render)
            if isinstance(rendered, TooMuchWork):
                self._render_large(sequence)
            else:
                self._queue.send_next(self._open_first(rendered, self._position(sequence)))
        except (PermissionDenied, InvalidQuery, HeldBytesRefused, Unavailable):
            self.revoke()
        except WaitingBytesRefused as error:
            self._postpone(error)

    def _read_again(self) -> None:
        """Send the present value in place of an event that is too large; a short one at once."""
        queue = self._queue
        if self._query is None and not queue.is_idle:
            rendered, sequence = self._subscription.watch(self._render)
            if isinstance(rendered, bytes):
                queue.send(self._print_first(rendered, self._position(sequence)))
                return
        queue.overflow()

    def retry(self) -> None:
        """Send the present value that was postponed, if there is room for it now."""
        if self._refused is not None and not self._refused.has_room(self.address):
            self._registry.postpone(self)
            return
        self._refused = None
        self._queue.is_held = False
        self._queue.resume()

    def _postpone(self, error: WaitingBytesRefused) -> None:
        self._refused = error.with_traceback(None)
        self._queue.postpone()
        self._registry.postpone(self)

    def _send_missed(self, missed: MissedNotification | None) -> None:
        """Send what was missed next, or the present value if it is unknown or too much."""
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
            return MissedReader(missed, self._reads.memory, self.address)
        except WaitingBytesRefused:
            return None

    def _render(self, nodes: Nodes) -> bytes | Rendering | TooMuchWork:
        """Evaluate the read rules; return the present value."""
        self._grant.check(nodes)
        return self._first.render(nodes)

    def _position(self, sequence: int) -> Position | None:
        """Return the identifier of an event that shows a state, None without identifiers."""
        if not self._with_ids:
            return None
        return self._database.watching.position(sequence) if self._may_have_ids() else UNKNOWN

    def _may_have_ids(self) -> bool | None:
        """Return True if events with identifiers have them, None if they make clients forget one.

        A client that has seen volatile values cannot go on after an event: what became of them is
        in no log.
        """
        return True if self._database.may_resume(self.wanted.place.path) else None

    def _open_first(
        self, rendered: bytes | Rendering, position: Position | None
    ) -> list[ContentReader]:
        """Return readers of the parts of a `put` of a value; `position` is its identifier.

        Raises `WaitingBytesRefused`.
        """
        if isinstance(rendered, bytes):
            return [self._print_first(rendered, position).open(self.address, may_refuse=False)]
        before, after = _around_first(position)
        value = rendered.open(self.address)
        memory = self._reads.memory
        ends = [
            Content(memory, each).open(self.address, may_refuse=False) for each in (before, after)
        ]
        return [ends[0], value, ends[1]]

    def _print_first(self, rendered: bytes, position: Position | None) -> Content:
        """Return a `put` of a short value; `position` is its identifier."""
        before, after = _around_first(position)
        return Content(self._reads.memory, before + rendered + after)

    def _render_large(self, judged: int) -> None:
        """Render a large value; the read rules already allowed the state `judged`."""
        self._queue.is_held = True
        hold = partial(self._database.hold_first, self._query)
        waiting = self._first.render_large(hold, judged, self._subscription)
        waiting.addCallback(self._rendered).addErrback(self._not_rendered)

    def _rendered(self, rendering: Rendering) -> None:
        if self._is_ending or self._is_over or not self._may_continue():
            return
        readers = self._open_first(rendering, self._position(rendering.sequence))
        self._queue.is_held = False
        self._queue.send_next(readers)
        self._queue.resume()

    def _not_rendered(self, failure: Failure) -> None:
        if self._is_ending or self._is_over:
            return
        error, has_begun = failure.value, self.request.startedWriting
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
            if self._writes is not None:
                self._writes.has_begun = False
            self._close(None)
            self.request.unregisterProducer()
            self._data.refuse(self.request, error)
        else:
            self._log.failure("A stream failed.", failure)
            self.abort("failed")


class ChangesStream(Stream):
    """A stream that names the places that change, and reads no value.

    It begins, and begins again, with one `changed` of all of its place.
    """

    __slots__ = ()

    def _admit(self) -> ReadRequest:
        """Return the read of all of the place: parameters do not make it a query."""
        return attrs.evolve(super()._admit(), query=None)

    def _subscribe(self, path: Path) -> None:
        self._subscription = self._database.subscribe_to_changes(path, self)

    def _render(self, nodes: Nodes) -> bytes:
        """Evaluate the read rules; read no value."""
        self._grant.check(nodes)
        return b""

    def _print_first(self, rendered: bytes, position: Position | None) -> Content:
        """Return what it begins with."""
        return Content(self._reads.memory, _ALL_CHANGED)

    def _stop_reading(self) -> None:
        pass


def admit(
    data: DataHandlers,
    wanted: DataRequest,
    database: Database,
    identity: Identity,
    address: str | None,
) -> ReadRequest:
    """Return the read that the rules judge while a stream, or a program, watches a place.

    Raises unless it may begin; the rules judge it with its first value.
    """
    options, path = wanted.read_options, wanted.place.path
    caller = Caller(identity.auth, identity.is_admin)
    read = ReadRequest(caller, path, options.facts, data.now_ms)
    if options.query is not None:
        data.missing_indexes.check(database, options.query, read)
    if database.is_absent:
        database.check_read(read)
    data.streams.check(database.name, address, identity)
    return read


def _shorten_question(request: IHttp1Request) -> None:
    """Shorten long parameters: from now on only their names are read."""
    question = request.head_memory.question
    if isinstance(question, Question):
        parameters = question.wanted.parameters
        if sum(map(len, parameters.values())) > SMALL_HELD_BYTES:
            short = {name: text[:_REMEMBERED_CHARACTERS] for name, text in parameters.items()}
            question.wanted = attrs.evolve(question.wanted, parameters=short)
