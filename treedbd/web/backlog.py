"""What one stream has to send: at once while its reader keeps up, else in order and within bounds.

Theory of operation. Frames go straight to the request. Whatever is longer than a piece goes out
piece by piece, at the speed of the reader: a value from its file, long frames from the one copy
that all streams of a path share. Meanwhile, and while the transport asks for a pause, frames wait.
Past a bound they are dropped and the backlog is *stale*: whoever fills it is asked for something in
their place once the reader reads again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Protocol

from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.web.server import Request

PIECE_BYTES: Final = 65_536
PIECES_PER_TURN: Final = 16


class Filler(Protocol):
    """Who fills a backlog."""

    def refill(self) -> None:
        """Put something first in place of what was dropped."""
        ...

    def fail(self) -> None:
        """Give up after the error that is being handled."""
        ...


class Backlog:
    """The way of one stream's bytes to its request.

    Attributes:
        is_paused: set while the transport asks for no more.
        is_held: set while something is to be put first that is not there yet.
        is_stale: set where frames were dropped; what is sent then is dropped too.
        last_sent: when something was sent last, in seconds of the clock.

    """

    __slots__ = (
        "_bound",
        "_clock",
        "_filler",
        "_next_turn",
        "_request",
        "_then",
        "_under_way",
        "_waiting",
        "_waiting_bytes",
        "is_held",
        "is_paused",
        "is_stale",
        "last_sent",
    )

    def __init__(self, request: Request, bound: int, filler: Filler, clock: IReactorTime) -> None:
        """Write to `request`; at most `bound` bytes wait, beside those that are under way."""
        self.is_paused = False
        self.is_stale = False
        self.is_held = False
        self.last_sent = clock.seconds()
        self._request = request
        self._bound = bound
        self._filler = filler
        self._clock = clock
        self._under_way: Iterator[bytes] | None = None
        self._waiting: deque[bytes] | None = None
        self._waiting_bytes = 0
        self._then: Callable[[], None] | None = None
        self._next_turn: IDelayedCall | None = None

    @property
    def is_idle(self) -> bool:
        """Whether what is sent now leaves now."""
        return not (self.is_paused or self.is_held) and self._under_way is None

    def send(self, frames: bytes) -> None:
        """Send whole frames now, or behind those that are on their way."""
        if not self.is_idle:
            self._wait(frames)
        elif len(frames) <= PIECE_BYTES:
            self._write(frames)
        else:
            self.put_first(cut((frames,)))
            self.resume()

    def put_first(self, pieces: Iterator[bytes]) -> None:
        """Let the pieces of one frame be what is sent next; nothing may be under way."""
        self._under_way = pieces

    def resume(self) -> None:
        """Send what waits, if nothing is in the way any more."""
        if self._next_turn is None:
            self._take_turn()

    def begin_anew(self) -> None:
        """Forget what waits, and what is sent until something has been put first."""
        self._forget_waiting()
        self.is_stale = True
        self.resume()

    def finish(self, then: Callable[[], None]) -> None:
        """Forget what waits, and call `then` behind the frame that is under way."""
        self.is_stale = False
        self._forget_waiting()
        if self._under_way is None:
            then()
        else:
            self._then = then

    def close(self) -> None:
        """Forget everything."""
        if self._next_turn is not None:
            self._next_turn.cancel()
            self._next_turn = None
        self.is_held = True
        self.is_stale = False
        self._under_way = self._then = None
        self._forget_waiting()

    def _take_turn(self) -> None:
        """Send some pieces, then let others have their turn."""
        self._next_turn = None
        try:
            for _ in range(PIECES_PER_TURN):
                piece = self._next_piece()
                if piece is None:
                    return
                self._write(piece)
        except Exception:
            self._filler.fail()
        else:
            self._next_turn = self._clock.callLater(0, self._take_turn)

    def _next_piece(self) -> bytes | None:
        while not (self.is_paused or self.is_held):
            if self._under_way is not None:
                piece = next(self._under_way, None)
                if piece is not None:
                    return piece
                self._under_way = None
                if self._then is not None:
                    self._then()
            elif self.is_stale:
                self.is_stale = False
                self._filler.refill()
            elif self._waiting is not None:
                self._under_way = cut(self._waiting)
                self._forget_waiting()
            else:
                break
        return None

    def _wait(self, frames: bytes) -> None:
        if self.is_stale:
            return
        self._waiting_bytes += len(frames)
        if self._waiting_bytes > self._bound:
            self._forget_waiting()
            self.is_stale = True
        elif self._waiting is None:
            self._waiting = deque((frames,))
        else:
            self._waiting.append(frames)

    def _forget_waiting(self) -> None:
        self._waiting = None
        self._waiting_bytes = 0

    def _write(self, data: bytes) -> None:
        self.last_sent = self._clock.seconds()
        self._request.write(data)


def cut(frames: Iterable[bytes]) -> Iterator[bytes]:
    """Cut long frames into pieces and put short ones together, copying no more than a piece."""
    gathered: list[bytes] = []
    size = 0
    for each in frames:
        if size + len(each) > PIECE_BYTES:
            yield b"".join(gathered)
            gathered, size = [], 0
        if len(each) > PIECE_BYTES:
            view = memoryview(each)
            yield from (
                bytes(view[at : at + PIECE_BYTES]) for at in range(0, len(each), PIECE_BYTES)
            )
        else:
            gathered.append(each)
            size += len(each)
    yield b"".join(gathered)
