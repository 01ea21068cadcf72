"""Commits that may be in doubt, and their writers, who may not want to wait for so long."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.internet.task import deferLater

from treedbd.cluster.local_copy import LocalCopy, Waiting
from treedbd.database.requests import OutcomeInDoubt, QueuedWrite
from treedbd.database.slices import SLICE_SECONDS, Slices
from treedbd.store.engine import InDoubt

_SOON_S: Final = 0.002


async def commit_or_settle(
    waiting: Waiting,
    copy: LocalCopy,
    commit: Callable[[], None],
    batch: Sequence[QueuedWrite],
) -> None:
    """Return when a batch is committed, and the copy has it.

    Raises `Conflict` or `StoreUnreachable`: then it was not applied; or `InDoubt`.
    """
    stop_answering = answer_when_late(copy.clock, batch)
    try:
        await waiting.run(commit)
    except InDoubt:
        await copy.settle()
    finally:
        stop_answering()


def answer_when_late(clock: IReactorTime, batch: Sequence[QueuedWrite]) -> Callable[[], None]:
    """Answer each writer at its deadline that its outcome is in doubt; return what ends that.

    A commit is never called off: it goes on, and so does whoever waits for longer.
    """
    late = sorted(
        (each for each in batch if each.write.deadline is not None),
        key=lambda each: each.write.deadline or 0,
        reverse=True,
    )
    calls: list[IDelayedCall] = []

    def answer() -> None:
        calls.clear()
        now = clock.seconds()
        end = now + SLICE_SECONDS
        while late and (late[-1].write.deadline or 0) <= now < end:
            late.pop().refuse(OutcomeInDoubt())
            now = clock.seconds()
        wait()

    def wait() -> None:
        if late:
            pause = (late[-1].write.deadline or 0) - clock.seconds()
            calls.append(clock.callLater(max(0, pause), answer))

    def stop() -> None:
        for call in calls:
            call.cancel()
        late.clear()

    wait()
    return stop


class BatchEnds:
    """Who waits for the end of the batch of a database."""

    def __init__(self, clock: IReactorTime, slices: Slices) -> None:
        """Nobody waits yet."""
        self._clock = clock
        self._slices = slices
        self._waiting: list[Deferred[None]] = []

    def wait(self) -> Deferred[None]:
        """Return what fires at the end of the batch."""
        end: Deferred[None] = Deferred()
        self._waiting.append(end)
        return end

    def soon(self) -> Deferred[None]:
        """Return what fires after a moment."""
        return deferLater(self._clock, _SOON_S)

    def over(self) -> None:
        """Let all go on that wait, in turns of their own, in slices."""
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            self._clock.callLater(0, self._slices.fire, waiting, None)
