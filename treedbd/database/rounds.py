"""Rounds: what happens between two batches, while the state of the database stands still.

Theory of operation. After each commit the watchers are notified of it: one round. It goes in
slices, so other requests are served meanwhile, but no batch of this database begins before the
round is over. So everything in a round sees exactly the state that the commit left, rounds neither
overlap nor pile up, and a database with many watchers slows down its own writers only, by no more
than what notifying costs.

Other work needs the same stillness: it has `run_later`. It is run between batches too, when all
watchers have been notified of all that is durable. Waiting writes go first, one batch before each
further piece of such work, so that neither can keep the other from its turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from twisted.logger import Logger

from treedbd.database.slices import Slices, Steps, logged


class Rounds:
    """The rounds of one database.

    Attributes:
        is_held: set while a batch is being committed and answered; nothing is run then.

    """

    _log = Logger()

    def __init__(
        self, slices: Slices, are_writes_waiting: Callable[[], bool], done: Callable[[], None]
    ) -> None:
        """Call `done` when a batch may begin again."""
        self.is_held = False
        self._slices = slices
        self._are_writes_waiting = are_writes_waiting
        self._done = done
        self._round: deque[Steps] = deque()
        self._later: deque[Steps] = deque()
        self._is_running = False

    @property
    def is_busy(self) -> bool:
        """Whether a round is under way, so that no batch may begin."""
        return self._is_running

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way and nothing waits."""
        return not (self._is_running or self._round or self._later)

    def add(self, steps: Steps) -> None:
        """Add to the round under way, or to the one that `start` begins."""
        self._round.append(steps)

    def run_later(self, steps: Steps) -> None:
        """Run this when all watchers have been notified of what is durable."""
        self._later.append(steps)
        if not self._are_writes_waiting():
            self.start()

    def start(self) -> None:
        """Begin what waits, unless something is under way; in this turn, if it is little."""
        if not (self._is_running or self.is_held or self.is_idle):
            self._is_running = True
            self._slices.start(self._run())

    def _run(self) -> Steps:
        while self._round or self._later:
            while self._round:
                yield from logged(self._round.popleft(), self._log)
            if self._later:
                yield from logged(self._later.popleft(), self._log)
            if self._are_writes_waiting():
                break
        self._is_running = False
        self._done()
