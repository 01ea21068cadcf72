"""What one stream has to send: at once while its reader keeps up, else in order and within bounds.

Theory of operation. Frames are written to the request directly. What is longer than a chunk is sent
chunk by chunk, as the reader reads: a value from its file, long frames from the one copy that all
streams of a path share. Meanwhile, and while the transport is paused, frames wait in the queue.
Beyond a limit they are dropped and the queue *has overflowed*: once the reader reads again, the
owner of the queue puts something in their place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Protocol

from twisted.internet.interfaces import IDelayedCall, IReactorTime

from treedbd.web.http1.interface import IHttp1Request

CHUNK_BYTES: Final = 65_536
CHUNKS_PER_TURN: Final = 16


class QueueOwner(Protocol):
    """The owner of a queue, which fills it."""

    def refill(self) -> None:
        """Put something first in place of what was dropped."""
        ...

    def fail(self) -> None:
        """End after the exception that is being handled."""
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
        "_clock",
        "_current",
        "_limit",
        "_next_turn",
        "_owner",
        "_request",
        "_then",
        "_waiting",
        "_waiting_bytes",
        "has_overflowed",
        "is_held",
        "is_paused",
        "last_sent",
    )

    def __init__(
        self, request: IHttp1Request, limit: int, owner: QueueOwner, clock: IReactorTime
    ) -> None:
        """Write to `request`; at most `limit` bytes wait, besides those being sent."""
        self.is_paused = False
        self.has_overflowed = False
        self.is_held = False
        self.last_sent = clock.seconds()
        self._request = request
        self._limit = limit
        self._owner = owner
        self._clock = clock
        self._current: Iterator[bytes] | None = None
        self._waiting: deque[bytes] | None = None
        self._waiting_bytes = 0
        self._then: Callable[[], None] | None = None
        self._next_turn: IDelayedCall | None = None

    @property
    def is_idle(self) -> bool:
        """Whether frames are written at once."""
        return not (self.is_paused or self.is_held) and self._current is None

    def send(self, frames: bytes) -> None:
        """Send whole frames now, or after those that are waiting."""
        if not self.is_idle:
            self._wait(frames)
        elif len(frames) <= CHUNK_BYTES:
            self._write(frames)
        else:
            self.send_next(cut_into_chunks((frames,)))
            self.resume()

    def send_next(self, chunks: Iterator[bytes]) -> None:
        """Send the chunks of one frame next; no other frame may be partly sent."""
        self._current = chunks

    def resume(self) -> None:
        """Send what waits, unless the queue is paused or held."""
        if self._next_turn is None:
            self._send_chunks()

    def overflow(self) -> None:
        """Drop waiting frames, and new ones until the owner has refilled the queue."""
        self._drop_waiting()
        self.has_overflowed = True
        self.resume()

    def finish(self, then: Callable[[], None]) -> None:
        """Drop what waits, and call `then` after the frame that is being sent."""
        self.has_overflowed = False
        self._drop_waiting()
        if self._current is None:
            then()
        else:
            self._then = then

    def close(self) -> None:
        """Drop everything."""
        if self._next_turn is not None:
            self._next_turn.cancel()
            self._next_turn = None
        self.is_held = True  # sends nothing any more
        self.has_overflowed = False
        self._current = self._then = None
        self._drop_waiting()

    def _send_chunks(self) -> None:
        """Send some chunks now, and the rest in the next turns of the reactor."""
        self._next_turn = None
        try:
            for _ in range(CHUNKS_PER_TURN):
                chunk = self._next_chunk()
                if chunk is None:
                    return
                self._write(chunk)
        except Exception:
            self._owner.fail()
        else:
            self._next_turn = self._clock.callLater(0, self._send_chunks)

    def _next_chunk(self) -> bytes | None:
        while not (self.is_paused or self.is_held):
            if self._current is not None:
                chunk = next(self._current, None)
                if chunk is not None:
                    return chunk
                self._current = None
                if self._then is not None:
                    self._then()
            elif self.has_overflowed:
                self.has_overflowed = False
                self._owner.refill()
            elif self._waiting is not None:
                self._current = cut_into_chunks(self._waiting)
                self._drop_waiting()
            else:
                break
        return None

    def _wait(self, frames: bytes) -> None:
        if self.has_overflowed:
            return
        self._waiting_bytes += len(frames)
        if self._waiting_bytes > self._limit:
            self._drop_waiting()
            self.has_overflowed = True
        elif self._waiting is None:
            self._waiting = deque((frames,))
        else:
            self._waiting.append(frames)

    def _drop_waiting(self) -> None:
        self._waiting = None
        self._waiting_bytes = 0

    def _write(self, data: bytes) -> None:
        self.last_sent = self._clock.seconds()
        self._request.write(data)


def cut_into_chunks(frames: Iterable[bytes]) -> Iterator[bytes]:
    """Cut long frames into chunks and join short ones, copying no more than a chunk at a time."""
    gathered: list[bytes] = []
    size = 0
    for each in frames:
        if size + len(each) > CHUNK_BYTES:
            yield b"".join(gathered)
            gathered, size = [], 0
        if len(each) > CHUNK_BYTES:
            view = memoryview(each)
            yield from (
                bytes(view[at : at + CHUNK_BYTES]) for at in range(0, len(each), CHUNK_BYTES)
            )
        else:
            gathered.append(each)
            size += len(each)
    yield b"".join(gathered)
