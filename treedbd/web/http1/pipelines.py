"""Connections whose clients have sent more requests than are rendered at once, in a ring.

However many such connections there are, together they have one share of each turn of the reactor:
each renders a few requests and goes to the end, in the order in which they came. So a client that
sends one request at a time never waits for what others have sent ahead, only for a turn. A client
alone in the ring has the whole share. Those that read long replies as fast as these are sent are
in the ring too: each is sent a piece.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

_log = Logger()

VISITS: Final = 8
"""How often connections go on in one turn, all together."""
SHARE_SECONDS: Final = 0.008
"""No further one begins in a turn in which they have taken so long."""


class Ring:
    """Calls what waits, in order, a few in each turn; a call may add itself again."""

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_scheduled = False

    def add(self, go_on: Callable[[], None]) -> None:
        """Call `go_on` when all that waits has been called; what it raises is logged."""
        self._waiting.append(go_on)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._clock.callLater(0, self._take_turn)

    def _take_turn(self) -> None:
        seconds = self._clock.seconds
        end = seconds() + SHARE_SECONDS
        for _ in range(VISITS):
            try:
                self._waiting.popleft()()
            except Exception:
                _log.failure("A connection failed between two requests.")
            if not self._waiting:
                self._is_scheduled = False
                return
            if seconds() >= end:
                break
        self._clock.callLater(0, self._take_turn)
