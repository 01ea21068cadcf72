"""One WebSocket (RFC 6455): from the bytes of a client to its messages, and from messages to bytes.

The `websockets` library reads and checks the frames, without I/O; the connection, its writer and
its time limits stay those of the HTTP server. Text frames that the server sends are made by
`frames` and go through the `Outbox`, so that control frames come between whole messages only.
"""

from __future__ import annotations

import codecs
import logging
from collections.abc import Callable, Sequence
from math import inf
from typing import Final, Protocol

from twisted.internet.interfaces import IReactorTime
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request as UpgradeRequest
from websockets.protocol import State
from websockets.server import ServerProtocol

from treedbd.database.slices import Slices, Steps
from treedbd.http1.headers import Header
from treedbd.http1.writer import UpgradedConnection
from treedbd.limits import KIB, Limits
from treedbd.web.queues import FrameReader
from treedbd.web.realtime.frame_cutter import FrameCutter
from treedbd.web.realtime.frames import BytesReader
from treedbd.web.realtime.outbox import Outbox
from treedbd.web.realtime.pieces import Message, PieceJoiner, TooManyPieces
from treedbd.web.realtime.registry import BadHandshake

PARSED_AT_ONCE: Final = KIB
"""Bytes of a client in one step: 170 frames without content take a few milliseconds."""
PAYLOAD_AT_ONCE: Final = 16 * KIB
"""The same of the payload of one frame."""
FULL_PIECE_BYTES: Final = KIB
"""A piece or a fragment of a message that has as many is not counted beside the message."""
FRAME_SLACK_BYTES: Final = 64 * KIB
"""Bytes by which a frame may exceed a message, so that a message that is too long is answered."""

_OF_THE_SERVER: Final = frozenset({b"date", b"content-length", b"content-type", b"connection"})

_make_decoder: Final = codecs.getincrementaldecoder("utf-8")

_silent = logging.getLogger("treedb.websockets")
_silent.addHandler(logging.NullHandler())
_silent.propagate = False


class MessageReceiver(Protocol):
    """What receives the messages of a socket."""

    def receive(self, message: Message) -> None:
        """Receive a message."""
        ...

    def set_parsing(self, is_parsing: bool) -> None:
        """Leave the client unread, or read it: what it has sent is parsed in slices."""
        ...

    def fail(self) -> None:
        """End after the exception that is being handled."""
        ...

    def refused(self, limit: str) -> None:
        """Note what a limit has refused, by its setting."""
        ...

    def count_frame(self) -> None:
        """Count a frame that completes no message for the rates of the client."""
        ...


def make_protocol(limits: Limits, state: State = State.OPEN) -> ServerProtocol:
    """Return what reads the frames of a client."""
    return ServerProtocol(state=state, max_size=_longest_frame(limits), logger=_silent)


def _longest_frame(limits: Limits) -> int:
    return limits.write_body_bytes + FRAME_SLACK_BYTES


def accept_upgrade(request: UpgradeRequest, limits: Limits) -> tuple[Header, ...]:
    """Return the headers of the reply that upgrades; raise `BadHandshake` if it cannot."""
    answer = make_protocol(limits, State.CONNECTING).accept(request)
    fields = [(name.encode(), text.encode()) for name, text in answer.headers.raw_items()]
    kept = tuple(field for field in fields if field[0].lower() not in _OF_THE_SERVER)
    if answer.status_code != 101:
        raise BadHandshake(bytes(answer.body or b"").decode().strip())
    return (*kept, (b"Connection", b"Upgrade"))


class RealtimeSocket:
    """The frames of one WebSocket.

    Attributes:
        is_held: whether what the client sends is not parsed for now: it is beyond a rate.
        last_received: when the client has sent anything last, in seconds of the clock.
        received: bytes that the client has sent.

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
        "_receiver",
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
        receiver: MessageReceiver,
        limits: Limits,
        clock: IReactorTime,
        slices: Slices,
        note_held: Callable[[int], bool],
    ) -> None:
        """Hand messages to `receiver`.

        `note_held` is called with the bytes by which what is held of messages has grown; it returns
        whether that is too much.
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
        self._receiver = receiver
        self._slices = slices
        self._unparsed: bytearray | None = None

    @property
    def message_age(self) -> float:
        """For how many seconds the client has been sending a message that is not complete."""
        return 0.0 if self._began_message is None else self._clock.seconds() - self._began_message

    @property
    def held_bytes(self) -> int:
        """How many bytes are held of a message that is not complete."""
        return self._held

    def receive(self, data: bytes) -> None:
        """Receive what the client has sent; much of it in slices, for it may be tiny frames."""
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
        """Parse no more of what the client has sent, and leave it unread, until `go_on`."""
        if not self.is_held and not self._is_closing:
            self.is_held = True
            self._receiver.set_parsing(True)

    def go_on(self) -> None:
        """Parse what the client has sent while it was held."""
        self.is_held = False
        self.last_received = self._clock.seconds()  # it was not read, so it was not silent
        if self._unparsed is None:
            self._receiver.set_parsing(False)
        else:
            self._parse_rest()

    def _parse_rest(self) -> None:
        if not self.is_held:
            self._slices.start(self._parse_in_steps(self._receiver))
        if self._unparsed is not None:
            self._receiver.set_parsing(True)

    def _parse_in_steps(self, receiver: MessageReceiver) -> Steps:
        """Parse for a receiver, which is forgotten if this is released meanwhile."""
        try:
            while self._unparsed and not self._is_closing and not self.is_held:
                size = max(PARSED_AT_ONCE, min(self._cutter.payload, PAYLOAD_AT_ONCE))
                data = bytes(self._unparsed[:size])
                del self._unparsed[:size]
                self._parse(data)
                yield
        except Exception:
            receiver.fail()
        if self._is_closing or not self._unparsed:
            self._unparsed = None
            receiver.set_parsing(self.is_held)

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
        """Ask the client for a sign of life, once for each silence."""
        if self._is_closing or self._pinged_at >= self.last_received:
            return
        self._pinged_at = self._clock.seconds()
        self._protocol.send_ping(b"")
        for frame in self._protocol.data_to_send():
            self._outbox.send_answer(frame)

    def open(self) -> Sequence[FrameReader]:
        """Return the pong that waits (`outbox.Job`)."""
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
        """Hold nothing any more: the connection is gone."""
        self._is_closing = True
        self._note_held(-self._held)
        self._held = 0
        self._unparsed = None
        self._protocol.parser.close()  # a generator that refers to the protocol, and to its frame
        self._protocol.parser_exc = None  # whose traceback does, too
        del self._cutter, self._joiner, self._note_held, self._protocol, self._receiver

    def _receive_frame(self, frame: Frame) -> None:
        if frame.opcode is Opcode.BINARY:
            self.close(CloseCode.UNSUPPORTED_DATA, "messages are text")
        elif frame.opcode in (Opcode.TEXT, Opcode.CONT):
            self._receive_text(bytes(frame.data), is_end=frame.fin)
        elif frame.opcode is not Opcode.CLOSE:
            self._receiver.count_frame()

    def _receive_text(self, text: bytes, *, is_end: bool) -> None:
        """Receive the text of a frame, or of a fragment of one."""
        try:
            self._check_text(text, is_end=is_end)
            message = self._joiner.add(text, is_end=is_end)
        except UnicodeDecodeError:
            self.close(CloseCode.INVALID_DATA, "text is UTF-8")
        except TooManyPieces:
            self._receiver.refused("message_pieces")
            self.close(CloseCode.MESSAGE_TOO_BIG, "too many pieces")
        else:
            if message is not None:
                self._receiver.receive(message)
            elif len(text) < FULL_PIECE_BYTES:
                self._receiver.count_frame()

    def _check_text(self, text: bytes, *, is_end: bool) -> None:
        """Raise UnicodeDecodeError for a frame that is no UTF-8; a character may end later."""
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
        """Send what the protocol answers by itself: pongs, or the end."""
        if not writes:
            return
        if self._protocol.close_expected():
            sent = self._protocol.close_sent
            if sent is not None and sent.code == CloseCode.MESSAGE_TOO_BIG:
                self._receiver.refused("write_body_bytes")
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
        """Count what is held of a message that is not complete."""
        held = len(self._protocol.reader.buffer)
        held += self._cutter.held_bytes + self._joiner.held_bytes
        grown = held - self._held
        if grown:
            self._held = held
            if self._note_held(grown):
                self._receiver.refused("held_body_bytes")
                self.close(CloseCode.TRY_AGAIN_LATER, "too many messages are arriving")
                return
        if not held and not self._joiner.is_joining:
            self._began_message = None
        elif self._began_message is None:
            self._began_message = self._clock.seconds()
