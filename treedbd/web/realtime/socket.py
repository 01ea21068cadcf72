"""One WebSocket (RFC 6455): from the bytes of a client to its messages, and from messages to bytes.

The connection, its writer and its time limits stay those of the HTTP server; the `websockets`
library reads and checks the frames, without I/O. What a client sends goes through a
`RealtimeSocket`: frames are cut, parsed and joined to messages (`wire`), in slices if they are
many. The messages wait in the `Inbox`, and `Pending` keeps reads and writes in their order. Text
frames that the server sends are made by `wire` and go through the `Outbox`, so that control frames
come between whole messages only.

Theory of operation of the outbox. There are three kinds of items. *Events* of listens may be
dropped: when more bytes of them wait than the bound, all that wait are dropped, and each listen
that has lost any is *stale*: in place of its first event it has a job that sends its present value.
*Answers* are never dropped; while more than the bound of them wait, the client is not read. A *job*
is opened when it is the next to be sent, so a value is read when there is room for it, and
everything queued before it is older. While a job waits for its value, nothing after it is sent: an
answer never comes before an event of a commit that it follows. Only whole messages are dropped or
inserted.
"""

from __future__ import annotations

import codecs
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from websockets.exceptions import InvalidHeader
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request as UpgradeRequest
from websockets.protocol import State
from websockets.server import ServerProtocol

from treedbd.counting import SMALL_HELD_BYTES
from treedbd.database.requests import Unavailable
from treedbd.database.slices import Slices, Steps
from treedbd.http1.content import (
    SMALL_BYTES,
    Content,
    ContentReader,
    FrameReader,
    WaitingBytesRefused,
)
from treedbd.http1.parser import Header
from treedbd.http1.senders import CHUNK_BYTES, FrameSender, UpgradedConnection
from treedbd.limits import KIB, Limits
from treedbd.web.realtime.wire import (
    WEBSOCKET_VERSION,
    BadHandshake,
    BytesReader,
    FrameCutter,
    FramingReader,
    LongMessage,
    Message,
    PieceJoiner,
    TooManyPieces,
    UnframedMessage,
)

if TYPE_CHECKING:
    from treedbd.web.realtime.listens import Listen
    from treedbd.web.realtime.session import RealtimeSession

JOB_BYTES: Final = 256
"""The bytes that a job counts for among the waiting answers."""


class Job(Protocol):
    """Reads what is sent when it is next in the outbox: a value, an answer, or a pong."""

    def open(self) -> Sequence[FrameReader] | None:
        """Return what is sent next; None if that is not ready, until `Outbox.release`.

        Raises `WaitingBytesRefused`: it is opened again after `Outbox.retry`.
        """


class _Event(NamedTuple):
    """Frames of a listen that wait, or a long message that is not framed yet."""

    reader: ContentReader
    owner: Listen
    is_framed: bool

    def readers(self) -> deque[FrameReader]:
        """Return what reads the frames."""
        reader = self.reader
        return deque((reader if self.is_framed else FramingReader((reader,), reader.size),))


_Item: TypeAlias = "_Event | bytes | Job"


class Outbox(FrameSender):
    """The messages to one client: in one order, at once while it reads, within bounds.

    Attributes:
        is_paused: set while the transport does not accept data.

    """

    __slots__ = (
        "_address",
        "_answer_bytes",
        "_event_bytes",
        "_is_closed",
        "_is_held",
        "_is_reading",
        "_limit",
        "_session",
        "_waiting",
    )

    def __init__(
        self,
        connection: UpgradedConnection,
        limit: int,
        session: RealtimeSession,
        slices: Slices,
        address: str,
    ) -> None:
        """Queue at most `limit` bytes of events, and not many more of answers.

        What waits is sent in `slices`, which all sockets share.
        """
        super().__init__(connection, slices)
        self._limit = limit
        self._session = session
        self._address = address
        self._waiting: deque[_Item] | None = None
        self._event_bytes = 0
        self._answer_bytes = 0
        self._is_held = False
        self._is_closed = False
        self._is_reading = True

    @property
    def is_idle(self) -> bool:
        """Whether a message would be written at once."""
        return not (self.is_paused or self._is_held or self._sending or self._waiting)

    @property
    def is_mid_frame(self) -> bool:
        """Whether a frame may be sent in part."""
        return bool(self._sending)

    def send_event(self, frames: Content, owner: Listen) -> None:
        """Send frames or a long message of a listen, or later its present value."""
        if self._waiting or self._sending or self.is_paused or self._is_held:
            self._wait_event(frames, owner)
        elif frames.size <= CHUNK_BYTES:
            self._send_whole(frames)
        else:
            self._wait_event(frames, owner)
            self.resume()

    def send_answer(self, frames: bytes) -> None:
        """Send frames that are never dropped."""
        if self._is_closed:
            return
        if len(frames) <= CHUNK_BYTES and self.is_idle:
            self._write(frames)
            return
        self._append(frames)
        self._answer_bytes += len(frames)
        self._bound_answers()
        self.resume()

    def gather(self, send_answers: Callable[[], None]) -> None:
        """Send what a call sends in one piece, as far as it fits."""
        if self._is_sending or not self.is_idle:
            send_answers()
            return
        self._is_held = self._is_sending = True
        try:
            send_answers()
        finally:
            self._is_held = self._is_sending = False
            self.resume()

    def add(self, job: Job) -> None:
        """Send what a job returns when everything before it is sent, maybe now."""
        if self._is_closed:
            return
        self._append(job)
        self._answer_bytes += JOB_BYTES
        self._bound_answers()
        self.resume()

    def refresh(self, owner: Listen) -> None:
        """Send the present value of a listen in place of its waiting events."""
        if not owner.is_stale:
            self._drop_events(owner)
            if not owner.is_stale:
                owner.is_stale = True
                self.add(owner)

    def release(self, readers: Iterable[FrameReader]) -> None:
        """Send what a job had to wait for."""
        if self._is_closed:
            for reader in readers:
                reader.close()
            return
        self._is_held = False
        self._sending = deque(readers)
        self.resume()

    def postpone(self, job: Job, error: WaitingBytesRefused) -> None:
        """Open a job again later, which had to wait and has no room now."""
        if self._is_closed:
            return
        self._answer_bytes += JOB_BYTES
        if self._waiting is None:
            self._waiting = deque()
        self._waiting.appendleft(job)
        self._session.postponed(error)

    def retry(self) -> None:
        """Go on after `RealtimeSession.postponed`."""
        self._is_held = False
        self.resume()

    def close(self) -> None:
        """Drop everything for good, and drop the owner."""
        if self._is_closed:
            return
        self._is_closed = True
        del self._session
        self.end_direct()
        waiting, self._waiting = self._waiting, None
        for item in waiting or ():
            if isinstance(item, _Event):
                item.reader.close()
        self._close_frame()

    # What waits.

    def _append(self, item: _Item) -> None:
        if self._waiting is None:
            self._waiting = deque()
        self._waiting.append(item)

    def _wait_event(self, frames: Content, owner: Listen) -> None:
        if self._is_closed:
            return
        size = self._event_bytes + frames.size
        if size > self._limit and not self.is_idle:
            self._overflow(owner)
            return
        try:
            reader = frames.open(self._address, may_refuse=size > SMALL_BYTES)
        except WaitingBytesRefused:
            self._overflow(owner)
            return
        self._event_bytes = size
        self._append(_Event(reader, owner, not isinstance(frames, UnframedMessage)))

    def _overflow(self, owner: Listen) -> None:
        self._session.overflowed()
        self._drop_events(None)
        if not owner.is_stale:
            owner.is_stale = True
            self.add(owner)

    def _drop_events(self, owner: Listen | None) -> None:
        """Drop the events of a listen, or of all; each that loses any becomes stale."""
        kept: deque[_Item] = deque()
        for item in self._waiting or ():
            if not isinstance(item, _Event) or owner not in (None, item.owner):
                kept.append(item)
                continue
            self._event_bytes -= item.reader.size
            item.reader.close()
            if not item.owner.is_stale:
                item.owner.is_stale = True
                self._answer_bytes += JOB_BYTES
                kept.append(item.owner)
        self._waiting = kept or None

    def _bound_answers(self) -> None:
        """Read from the client, or leave it unread, by the bytes that wait for it."""
        is_reading = self._answer_bytes <= (self._limit if self._is_reading else self._limit // 2)
        if is_reading is not self._is_reading and not self._is_closed:
            self._is_reading = is_reading
            self._session.set_reading(is_reading)

    # Sending.

    def _fail(self, error: Exception) -> None:
        if self._is_closed:
            raise error
        self._session.fail()

    def _next_frame(self) -> None:
        """Return None: what follows may be an answer."""

    def _next_chunk(self) -> bytes | None:
        while not (self.is_paused or self._is_held or self._is_closed):
            if self._sending:
                return self._gather()
            if not self._waiting:
                self._waiting = None
                return None
            item = self._waiting.popleft()
            if isinstance(item, bytes):
                return self._gather_answers(item, self._waiting)
            if isinstance(item, _Event):
                self._event_bytes -= item.reader.size
                self._sending = item.readers()
            else:
                self._open(item)
        return None

    def _open(self, job: Job) -> None:
        self._answer_bytes -= JOB_BYTES
        try:
            self._is_held = True  # what is sent meanwhile comes after it
            readers = job.open()
        except WaitingBytesRefused as error:
            self.postpone(job, error)
            return
        if self._is_closed:
            self.release(readers or ())
        elif readers is not None:
            self._is_held = False
            self._sending = deque(readers) or None
        self._bound_answers()

    def _gather_answers(self, first: bytes, waiting: deque[_Item]) -> bytes:
        gathered, size = [first], len(first)
        while waiting and size < CHUNK_BYTES and isinstance(answer := waiting[0], bytes):
            gathered.append(answer)
            size += len(answer)
            waiting.popleft()
        self._answer_bytes -= size
        self._bound_answers()
        return b"".join(gathered)


INBOX_BYTES: Final = 64 * KIB
"""Messages that wait to be handled; beyond, the client is not read."""
_MESSAGE_BYTES: Final = 64
"""The bytes that a message counts for beside its text."""


def _ignore(*_: object) -> None:
    pass


class Inbox:
    """Messages that one client has sent and the server has not handled yet, in order.

    Messages are handled in slices that all sessions share. While one waits, for the keys of an
    identity provider or to be admitted to parsing, those after it wait too. While many wait, or
    while too many answers wait for the client, the client is not read. A long message is counted
    until it has been parsed.

    Attributes:
        may_read: whether there is room for the answers to the client.
        is_parsing: whether its bytes are still being parsed.

    """

    __slots__ = (
        "_blocked_bytes",
        "_bytes",
        "_connection",
        "_handle",
        "_is_blocked",
        "_is_closed",
        "_is_working",
        "_messages",
        "_note_held",
        "_slices",
        "is_parsing",
        "may_read",
    )

    def __init__(
        self,
        connection: UpgradedConnection,
        slices: Slices,
        handle: Callable[[Message], None],
        note_held: Callable[[int], object],
    ) -> None:
        """Call `handle`, which raises nothing, with each message, in `slices`.

        `note_held` is called with the bytes by which the memory of long messages has grown.
        """
        self.may_read = True
        self.is_parsing = False
        self._blocked_bytes = 0
        self._bytes = 0
        self._connection = connection
        self._handle = handle
        self._is_blocked = False
        self._is_closed = False
        self._is_working = False
        self._messages: deque[Message] | None = None
        self._note_held = note_held
        self._slices = slices

    def add(self, message: Message) -> None:
        """Handle a message, now or after those before it."""
        if self._messages is None:
            self._messages = deque()
        self._messages.append(message)
        size = _counted_size(message)
        self._bytes += size
        if size > SMALL_HELD_BYTES:
            self._note_held(size)
        if self._is_working or self._is_blocked:
            self.bound_reading()
        else:
            self._work()

    def block(self, work: Coroutine[Any, Any, None]) -> None:
        """Do work that may wait and raises nothing; the messages after it wait, too."""
        self._is_blocked = True
        Deferred.fromCoroutine(work).addBoth(self._unblock)

    def bound_reading(self) -> None:
        """Read from the client, or leave it unread, by the number of messages that wait."""
        if not self._is_closed:
            has_room = self.may_read and not self.is_parsing and self._bytes <= INBOX_BYTES
            self._connection.set_reading(has_room)

    def close(self) -> None:
        """Drop what waits, and drop the session; nothing may be added afterwards."""
        self._is_closed = True
        self._messages = None
        self._handle = self._note_held = _ignore

    def _unblock(self, _: object) -> None:
        self._is_blocked = False
        if self._blocked_bytes:
            self._note_held(-self._blocked_bytes)
            self._blocked_bytes = 0
        if self._messages and not self._is_working:
            self._work()
        else:
            self.bound_reading()

    def _work(self) -> None:
        self._is_working = True
        self._slices.start(self._steps())

    def _steps(self) -> Steps:
        while self._messages and not self._is_blocked:
            message = self._messages.popleft()
            size = _counted_size(message)
            self._bytes -= size
            self._handle(message)
            if size > SMALL_HELD_BYTES:
                if self._is_blocked:
                    self._blocked_bytes = size
                else:
                    self._note_held(-size)
            yield
        if not self._messages:
            self._messages = None
        self._is_working = False
        self.bound_reading()


def _counted_size(message: Message) -> int:
    if isinstance(message, LongMessage):
        return _MESSAGE_BYTES + message.size
    return _MESSAGE_BYTES + (len(message) if isinstance(message, bytes) else KIB)


class Pending:
    """Counts the requests of one kind that have not taken effect yet; later ones wait for them.

    The requests of a client take effect in the order in which they were sent: a read after a write
    shows it and is answered after it, a read before a write does not show it. Writes do not wait
    for writes, which are queued in their order, nor reads for reads.
    """

    __slots__ = ("_count", "_none_left")

    def __init__(self) -> None:
        self._count = 0
        self._none_left: Deferred[None] | None = None

    @property
    def is_none(self) -> bool:
        """Whether none is pending."""
        return not self._count

    def begin(self) -> None:
        """Count a request."""
        self._count += 1

    def end(self) -> None:
        """Stop counting it: it has taken effect, or was refused."""
        self._count -= 1
        none_left = self._none_left
        if not self._count and none_left is not None:
            self._none_left = None
            none_left.callback(None)

    def when_none(self) -> Deferred[None] | None:
        """Return what fires when none is pending, None if none is; one caller can wait."""
        if not self._count:
            return None
        self._none_left = Deferred()
        return self._none_left

    def give_up(self) -> None:
        """Fail what waits for them with `Unavailable`: the client has disconnected."""
        none_left, self._none_left = self._none_left, None
        if none_left is not None:
            none_left.errback(Unavailable("The client has gone."))


PARSED_AT_ONCE: Final = KIB
"""Bytes of a client in one step: 170 frames without content take a few milliseconds."""
PAYLOAD_AT_ONCE: Final = 16 * KIB
"""Bytes of the payload of one frame in one step."""
FULL_PIECE_BYTES: Final = KIB
"""A piece or a fragment of at least this many bytes is counted with its message only."""
FRAME_SLACK_BYTES: Final = 64 * KIB
"""Bytes by which a frame may exceed a message, so that a message that is too long is answered."""

_OF_THE_SERVER: Final = frozenset({b"date", b"content-length", b"content-type", b"connection"})

_make_decoder: Final = codecs.getincrementaldecoder("utf-8")

_silent = logging.getLogger("treedb.websockets")
_silent.addHandler(logging.NullHandler())
_silent.propagate = False


def make_protocol(limits: Limits, state: State = State.OPEN) -> ServerProtocol:
    """Return what parses the frames of a client."""
    return ServerProtocol(state=state, max_size=_longest_frame(limits), logger=_silent)


def _longest_frame(limits: Limits) -> int:
    return limits.write_body_bytes + FRAME_SLACK_BYTES


_UPGRADE_FIELDS: Final = (
    "A WebSocket is opened by a request with Connection: Upgrade and Upgrade: websocket."
)
_NEEDED_FIELDS: Final = {
    "Connection": _UPGRADE_FIELDS,
    "Upgrade": _UPGRADE_FIELDS,
    "Sec-WebSocket-Key": "Sec-WebSocket-Key must be there once, and be 16 bytes in base64.",
    "Sec-WebSocket-Version": (
        f"Sec-WebSocket-Version must be there once, and be {WEBSOCKET_VERSION}."
    ),
}


def accept_upgrade(request: UpgradeRequest, limits: Limits) -> tuple[Header, ...]:
    """Return the headers of the reply to an upgrade; raise `BadHandshake` if it is refused."""
    protocol = make_protocol(limits, State.CONNECTING)
    answer = protocol.accept(request)
    fields = [(name.encode(), text.encode()) for name, text in answer.headers.raw_items()]
    kept = tuple(field for field in fields if field[0].lower() not in _OF_THE_SERVER)
    if answer.status_code != 101:
        raise BadHandshake(_describe_refusal(protocol.handshake_exc))
    return (*kept, (b"Connection", b"Upgrade"))


def _describe_refusal(error: Exception | None) -> str:
    """Return what a handshake lacks as one sentence; `error` is that of the library."""
    if not isinstance(error, InvalidHeader):
        return "A WebSocket is opened by a GET of HTTP/1.1."
    return _NEEDED_FIELDS.get(error.name) or f"The header {error.name} is not valid."


class RealtimeSocket:
    """The frames of one WebSocket.

    Attributes:
        is_held: whether the bytes of the client are not parsed for now, because it exceeds a rate.
        last_received: when the client has last sent anything, in seconds of the clock.
        received: how many bytes the client has sent.

    """

    __slots__ = (
        "_began_message",
        "_clock",
        "_connection",
        "_cutter",
        "_decoder",
        "_held",
        "_is_closing",
        "_joiner",
        "_note_held",
        "_outbox",
        "_pinged_at",
        "_pong",
        "_protocol",
        "_session",
        "_slices",
        "_unparsed",
        "is_held",
        "last_received",
        "received",
    )

    def __init__(
        self,
        connection: UpgradedConnection,
        outbox: Outbox,
        session: RealtimeSession,
        limits: Limits,
        clock: IReactorTime,
        slices: Slices,
        note_held: Callable[[int], bool],
    ) -> None:
        """Hand messages to `receiver`.

        `note_held` is called with the bytes by which the memory of messages has grown; it returns
        whether they are too many.
        """
        self.is_held = False
        self.last_received = clock.seconds()
        self.received = 0
        self._began_message: float | None = None
        self._clock = clock
        self._connection = connection
        self._cutter = FrameCutter(_longest_frame(limits))
        self._decoder: codecs.IncrementalDecoder | None = None  # within a frame in fragments
        self._is_closing = False
        self._joiner = PieceJoiner(limits.write_body_bytes, limits.message_pieces)
        self._note_held = note_held
        self._held = 0
        self._outbox = outbox
        self._pinged_at = -inf
        self._pong: bytes | None = None
        self._protocol = make_protocol(limits)
        self._session = session
        self._slices = slices
        self._unparsed: bytearray | None = None

    @property
    def message_age(self) -> float:
        """For how many seconds the client has been sending a message that is not complete."""
        return 0.0 if self._began_message is None else self._clock.seconds() - self._began_message

    @property
    def held_bytes(self) -> int:
        """How many bytes of a message that is not complete are in memory."""
        return self._held

    def receive(self, data: bytes) -> None:
        """Receive bytes of the client; many of them in slices, because frames may be tiny."""
        if self._is_closing:
            return
        self.last_received = self._clock.seconds()
        self.received += len(data)
        if self._unparsed is not None:
            self._unparsed += data
        elif len(data) <= PARSED_AT_ONCE and not self.is_held:
            self._parse(data)
        else:
            self._unparsed = bytearray(data)
            self._parse_rest()

    def hold(self) -> None:
        """Stop parsing the bytes of the client, and leave it unread, until `go_on`."""
        if not self.is_held and not self._is_closing:
            self.is_held = True
            self._session.set_parsing(True)

    def go_on(self) -> None:
        """Parse the bytes that arrived while the client was held."""
        self.is_held = False
        self.last_received = self._clock.seconds()  # it was not silent, but unread
        if self._unparsed is None:
            self._session.set_parsing(False)
        else:
            self._parse_rest()

    def _parse_rest(self) -> None:
        if not self.is_held:
            self._slices.start(self._parse_in_steps(self._session))
        if self._unparsed is not None:
            self._session.set_parsing(True)

    def _parse_in_steps(self, session: RealtimeSession) -> Steps:
        """Parse for a receiver, which is dropped if this is released meanwhile."""
        try:
            while self._unparsed and not self._is_closing and not self.is_held:
                size = max(PARSED_AT_ONCE, min(self._cutter.payload, PAYLOAD_AT_ONCE))
                data = bytes(self._unparsed[:size])
                del self._unparsed[:size]
                self._parse(data)
                yield
        except Exception:
            session.fail()
        if self._is_closing or not self._unparsed:
            self._unparsed = None
            session.set_parsing(self.is_held)

    def _parse(self, data: bytes) -> None:
        if self._is_closing:
            return
        protocol = self._protocol
        protocol.receive_data(self._cutter.cut(data))
        for event in protocol.events_received():
            if isinstance(event, Frame) and not self._is_closing:
                self._receive_frame(event)
        if self._is_closing:
            return
        self._send_control(protocol.data_to_send())
        if not self._is_closing:
            self._count_held()

    def ping(self) -> None:
        """Send a ping, which the client answers with a pong; one for each silence."""
        if self._is_closing or self._pinged_at >= self.last_received:
            return
        self._pinged_at = self._clock.seconds()
        self._protocol.send_ping(b"")
        for frame in self._protocol.data_to_send():
            self._outbox.send_answer(frame)

    def open(self) -> Sequence[FrameReader]:
        """Return the pong that waits (`Job`)."""
        pong, self._pong = self._pong or b"", None
        return [BytesReader(pong)]

    def close(self, code: int, reason: str = "") -> None:
        """Close the WebSocket; what waits to be sent is dropped."""
        if self._is_closing:
            return
        self._protocol.fail(code, reason)
        self._end(self._protocol.data_to_send())

    def abort(self) -> None:
        """Drop the connection."""
        self._is_closing = True
        self._connection.abort()

    def release(self) -> None:
        """Release everything: the connection has ended."""
        self._is_closing = True
        self._note_held(-self._held)
        self._held = 0
        self._unparsed = None
        self._protocol.parser.close()  # a generator that refers to the protocol, and to its frame
        self._protocol.parser_exc = None  # whose traceback does, too
        del self._cutter, self._joiner, self._note_held, self._protocol, self._session

    def _receive_frame(self, frame: Frame) -> None:
        if frame.opcode is Opcode.BINARY:
            self.close(CloseCode.UNSUPPORTED_DATA, "messages are text")
        elif frame.opcode in (Opcode.TEXT, Opcode.CONT):
            self._receive_text(bytes(frame.data), is_end=frame.fin)
        elif frame.opcode is not Opcode.CLOSE:
            self._session.count_frame()

    def _receive_text(self, text: bytes, *, is_end: bool) -> None:
        """Receive the text of a frame, or of a fragment of one."""
        try:
            self._check_text(text, is_end=is_end)
            message = self._joiner.add(text, is_end=is_end)
        except UnicodeDecodeError:
            self.close(CloseCode.INVALID_DATA, "text is UTF-8")
        except TooManyPieces:
            self._session.refused("message_pieces")
            self.close(CloseCode.MESSAGE_TOO_BIG, "too many pieces")
        else:
            if message is not None:
                self._session.receive(message)
            elif len(text) < FULL_PIECE_BYTES:
                self._session.count_frame()

    def _check_text(self, text: bytes, *, is_end: bool) -> None:
        """Raise UnicodeDecodeError for a frame that is not UTF-8; a character may end later."""
        decoder = self._decoder
        if decoder is None:
            if is_end:
                text.decode()
                return
            decoder = self._decoder = _make_decoder()
        decoder.decode(text, is_end)
        if is_end:
            self._decoder = None

    def _send_control(self, writes: list[bytes]) -> None:
        """Send what the protocol answers by itself: pongs, or the close frame."""
        if not writes:
            return
        if self._protocol.close_expected():
            sent = self._protocol.close_sent
            if sent is not None and sent.code == CloseCode.MESSAGE_TOO_BIG:
                self._session.refused("write_body_bytes")
            self._end(writes)
            return
        # The last pong answers all pings before it (RFC 6455, section 5.5.3).
        is_waiting, self._pong = self._pong is not None, writes[-1]
        if not is_waiting:
            self._outbox.add(self)

    def _end(self, writes: list[bytes]) -> None:
        """Send a close frame, unless another frame is sent in part, and close the connection."""
        self._is_closing = True
        self._began_message = None
        is_mid_frame = self._outbox.is_mid_frame
        self._outbox.close()
        if not is_mid_frame:
            for frame in writes:
                if frame:
                    self._connection.write(frame)
        self._connection.finish()

    def _count_held(self) -> None:
        """Count the memory of a message that is not complete."""
        held = len(self._protocol.reader.buffer)
        held += self._cutter.held_bytes + self._joiner.held_bytes
        grown = held - self._held
        if grown:
            self._held = held
            if self._note_held(grown):
                self._session.refused("held_body_bytes")
                self.close(CloseCode.TRY_AGAIN_LATER, "too many messages are arriving")
                return
        if not held and not self._joiner.is_joining:
            self._began_message = None
        elif self._began_message is None:
            self._began_message = self._clock.seconds()
