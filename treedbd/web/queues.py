"""The send queue of a stream: at once while its reader keeps up, else in order and within bounds.

Theory of operation. Short frames are written to the request directly. What is longer than a chunk
is sent chunk by chunk, as the reader reads, in slices that all streams share, and from the one copy
that all streams of a path share: the value that they begin with, long frames. Meanwhile, and while
the transport is paused, frames wait in the queue. Beyond a limit they are dropped and the queue
*has overflowed*: once the reader reads again, the owner of the queue puts something in their place.
The same happens if too many bytes wait for readers of the whole service.

A WebSocket has an outbox with other rules in place of it (`realtime.socket`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, Protocol

from twisted.internet.interfaces import IReactorTime

from treedbd.database.slices import Slices, Steps
from treedbd.http1.content import SMALL_BYTES, Buffer, Content, ContentReader, WaitingBytesRefused
from treedbd.http1.request import IHttp1Request
from treedbd.http1.writer import ContentWriter
from treedbd.limits import KIB

if TYPE_CHECKING:
    from treedbd.web.streams.stream import Stream

CHUNK_BYTES: Final = 16 * KIB


class FrameReader(Protocol):
    """One part of a frame that is being sent; `remaining` is false at its end."""

    @property
    def remaining(self) -> int:
        """Whether there is more to read."""
        ...

    def read(self, size: int) -> Buffer:
        """Return at most `size` bytes and go on."""
        ...

    def close(self) -> None:
        """Stop reading."""
        ...


class SendQueue:
    """The bytes of one stream on their way to its request.

    Attributes:
        is_paused: set while the transport accepts no more.
        is_held: set while what is to be put first is not ready.
        has_overflowed: whether frames were dropped; what is sent then is dropped too.
        last_sent: when something was sent last, in seconds of the clock.

    """

    __slots__ = (
        "_address",
        "_clock",
        "_is_sending",
        "_limit",
        "_owner",
        "_sending",
        "_slices",
        "_then",
        "_waiting",
        "_waiting_bytes",
        "_writer",
        "has_overflowed",
        "is_held",
        "is_paused",
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
        client's `address`. `owner` is called to refill the queue, and after an exception.
        """
        self.is_paused = False
        self.has_overflowed = False
        self.is_held = False
        self.last_sent = clock.seconds()
        self._writer = ContentWriter(request)
        self._limit = limit
        self._owner: Stream | None = owner
        self._clock = clock
        self._address = address
        # Idle streams are many, so what they do not use is not made.
        self._sending: deque[FrameReader] | None = None
        self._waiting: deque[ContentReader] | None = None
        self._waiting_bytes = 0
        self._then: Callable[[], None] | None = None
        self._slices = slices
        self._is_sending = False

    @property
    def is_idle(self) -> bool:
        """Whether frames are written at once."""
        must_wait = self.is_paused or self.is_held or self.has_overflowed
        return not (must_wait or self._sending or self._waiting)

    def send(self, frames: Content) -> bool:
        """Send whole frames now, or after those that are waiting; return False on overflow."""
        must_wait = self.is_paused or self.is_held or self.has_overflowed
        if must_wait or self._sending or self._waiting:
            self._wait(frames)
        elif frames.size <= CHUNK_BYTES:
            self.last_sent = self._clock.seconds()
            self._writer.write_content(frames)
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
        """Send one frame, in parts, next; no other frame may be partly sent."""
        self._sending = deque(readers)

    def resume(self) -> None:
        """Send what waits, unless the queue is paused or held."""
        if not self._is_sending:
            self._is_sending = True
            self._slices.start(self._send_chunks())

    def overflow(self) -> None:
        """Drop waiting frames, and new ones until the owner has refilled the queue."""
        self._drop_waiting()
        self.has_overflowed = True
        self.resume()

    def postpone(self) -> None:
        """Hold the queue: its owner could not refill it, and releases it to be called again."""
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
        self.is_held = True  # sends nothing any more
        self._owner = None
        self._writer.settle()
        self.has_overflowed = False
        self._then = None
        self._drop_waiting()
        sending, self._sending = self._sending, None
        _close_all(sending)

    def _send_chunks(self) -> Steps:
        try:
            while (chunk := self._next_chunk()) is not None:
                self._write(chunk)
                yield
        except Exception:
            if self._owner is None:
                raise
            self._owner.fail()
        finally:
            self._is_sending = False

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

    def _gather(self) -> bytes:
        """Return the next chunk: of the frame being sent, then of those that wait."""
        gathered: list[Buffer] = []
        room = CHUNK_BYTES
        while self._sending and room:
            reader = self._sending[0]
            piece = reader.read(room)
            gathered.append(piece)
            room -= len(piece)
            if not reader.remaining:
                self._sending.popleft().close()
                if not self._sending:
                    self._sending = None if self._then is not None else self._take_waiting()
        return b"".join(gathered)

    def _take_waiting(self) -> deque[FrameReader] | None:
        """Return the next frame that waits, if there is one."""
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
        _close_all(waiting)

    def _write(self, data: bytes) -> None:
        self.last_sent = self._clock.seconds()
        self._writer.write(data)


def _close_all(readers: Iterable[FrameReader] | None) -> None:
    for reader in readers or ():
        reader.close()
