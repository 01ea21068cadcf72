"""The writes of one database that wait for a batch, and when their time is over.

Those that compete for a place may be held a moment meanwhile (`contention`). Writes that are
refused leave the queue at once, and their writers are answered in slices, in the order in which
they came.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Final

from twisted.internet.interfaces import IDelayedCall, IReactorTime

from treedbd.database.contention import Contention
from treedbd.database.requests import QueuedWrite, Unavailable, refuse_all
from treedbd.database.slices import Slices, StepQueue, Steps

BATCH_WRITES: Final = 1024
LOOK_SECONDS: Final = 0.000_005
"""For each write that waits when those that are late are refused, the time until the next look.

To look at one takes a tenth of that, so however many deadlines there are, most time is left.
"""


class WriteQueue:
    """Writes in the order in which they came; one whose deadline passes meanwhile is refused."""

    def __init__(
        self,
        clock: IReactorTime,
        slices: Slices,
        refusal: Callable[[], Exception],
        resume: Callable[[], None],
    ) -> None:
        """Refuse by `clock`, which counts the seconds of deadlines, with what `refusal` returns.

        Writers are refused in `slices`. `resume` is called when writes that were held wait for a
        batch again, and when all that were refused have been answered.
        """
        self._refusals = StepQueue(slices)
        self._refused = 0
        self._refusal = refusal
        self._resume = resume
        self._clock = clock
        self._end: str | None = None
        self._waiting: deque[QueuedWrite] = deque()
        self._contention = Contention(clock, self._release)
        self._timer: IDelayedCall | None = None
        self._timer_at = math.inf
        self._no_look_before = -math.inf

    def __len__(self) -> int:
        """Return how many writes wait, for a batch or for their refusal."""
        held = 0 if self._contention.is_calm else self._contention.held
        return len(self._waiting) + held + self._refused

    def __bool__(self) -> bool:
        """Return whether a write waits that is not held."""
        return bool(self._waiting)

    def add(self, queued: QueuedWrite) -> None:
        """Add a write at the end."""
        self._waiting.append(queued)
        self._set_timer(queued.write.deadline)

    def put_back(self, writes: Iterable[QueuedWrite]) -> None:
        """Put writes back before all others, in their order; refuse them after `end`."""
        listed = list(writes)
        if self._end is not None:
            self._refuse(listed, partial(Unavailable, self._end))
            return
        self._waiting.extendleft(reversed(listed))
        for queued in listed:
            self._set_timer(queued.write.deadline)

    def take_batch(self, refusal_of: Callable[[QueuedWrite], str | None]) -> list[QueuedWrite]:
        """Remove the next batch; writes that are late, or have a refusal, are refused.

        A large write is a batch of its own.
        """
        self.refuse_late()
        batch: list[QueuedWrite] = []
        refused: dict[str, list[QueuedWrite]] = {}
        taken: set[int | None] = set()
        while self._waiting and len(batch) < BATCH_WRITES:
            queued = self._waiting.popleft()
            if not self._contention.is_calm:
                # Not if an earlier one is in the batch, which may be put back before what is held.
                contender = queued.write.contender
                if contender not in taken and self._contention.holds(queued):
                    continue
                taken.add(contender)
            refusal = refusal_of(queued)
            if refusal is not None:
                refused.setdefault(refusal, []).append(queued)
            elif queued.is_large and batch:
                self.put_back((queued,))
                break
            else:
                batch.append(queued)
                if queued.is_large:
                    break
        for reason, writes in refused.items():
            self._refuse(writes, partial(Unavailable, reason))
        return batch

    def note(self, batch: Iterable[QueuedWrite]) -> None:
        """Take in what has become of a batch, before its writers are answered."""
        conditional = [queued for queued in batch if queued.write.condition is not None]
        if conditional:
            self._contention.note(conditional)

    def end(self, reason: str) -> None:
        """Refuse all writes that wait, or are put back from now on."""
        self._end = reason
        self._refuse(self.take_all(), partial(Unavailable, reason))

    def take_all(self) -> list[QueuedWrite]:
        """Remove all writes that wait, those that are held included."""
        self._contention.end()
        writes, self._waiting = self._waiting, deque()
        return list(writes)

    def refuse_late(self) -> None:
        """Refuse the writes whose deadline has passed."""
        now = self._clock.seconds()
        late = [queued for queued in self._waiting if _is_late(queued, now)]
        if late:
            self._waiting = deque(each for each in self._waiting if not _is_late(each, now))
            self._refuse(late, self._refusal)

    def close(self) -> None:
        """Stop the timers; no write waits or will."""
        self._contention.end()
        if self._timer is not None and self._timer.active():
            self._timer.cancel()

    def _refuse(self, writes: Collection[QueuedWrite], refusal: Callable[[], Exception]) -> None:
        """Answer writes that were taken out of the queue with what `refusal` returns."""
        if writes:
            self._refused += len(writes)
            self._refusals.add(self._refuse_in_steps(writes, refusal))

    def _refuse_in_steps(
        self, writes: Iterable[QueuedWrite], refusal: Callable[[], Exception]
    ) -> Steps:
        for _ in refuse_all(writes, refusal):
            self._refused -= 1
            yield
        if not self._refused:
            self._resume()

    def _release(self, writes: Iterable[QueuedWrite]) -> None:
        self.put_back(writes)
        self._resume()

    def _set_timer(self, deadline: float | None) -> None:
        """Make sure that waiting writes are refused at this time, if not sooner.

        If many wait, it may be a little later: all of them are looked at.
        """
        if deadline is None or deadline >= self._timer_at:
            return
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        self._timer_at = deadline
        pause = max(0.0, max(deadline, self._no_look_before) - self._clock.seconds())
        self._timer = self._clock.callLater(pause, self._on_timer)

    def _on_timer(self) -> None:
        self._timer_at = math.inf
        self.refuse_late()
        self._no_look_before = self._clock.seconds() + LOOK_SECONDS * len(self._waiting)
        deadlines = [queued.write.deadline for queued in self._waiting]
        self._set_timer(min((at for at in deadlines if at is not None), default=None))


def _is_late(queued: QueuedWrite, now: float) -> bool:
    return queued.write.deadline is not None and queued.write.deadline <= now
