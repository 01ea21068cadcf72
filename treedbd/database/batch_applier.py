"""One batch of writes: applied in one transaction, in steps.

A write that raises an unexpected error is removed from its batch, and the others start again from a
clean transaction. A batch that has used its time ends with the write that is being applied; what is
left of it waits for the next.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from functools import partial
from typing import Final, TypeAlias, TypeVar

import attrs
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from treedbd.database.requests import (
    ConditionFailed,
    DeadlinePassed,
    Outcome,
    PermissionDenied,
    QueuedWrite,
    QuotaExceeded,
    TooLarge,
    TooManyDisconnectWrites,
    UnknownDatabase,
    Write,
)
from treedbd.database.slices import Steps
from treedbd.loop import Awaited, in_steps, pause
from treedbd.store.engine import DiskFull, Engine, StoreFailed, Transaction
from treedbd.traces import Trace, now_ns
from treedbd.tree.types import InvalidData

T = TypeVar("T")

Apply: TypeAlias = Callable[[Transaction, Write], Outcome]

BATCH_SECONDS: Final = 0.02
"""A batch that has been applied for so long is committed; what is left of it waits for the next."""

WRITES: Final = "treedb.batch.writes"
"""The attribute with the number of writes in a batch, of spans that they share."""

_REFUSALS: Final = (
    *(PermissionDenied, ConditionFailed, InvalidData, TooLarge, DeadlinePassed),
    *(QuotaExceeded, TooManyDisconnectWrites, UnknownDatabase),
)


class Abandoned(Exception):
    """A batch that has taken long is given up, because the server is shutting down."""


@attrs.frozen(eq=False)
class BatchApplier:
    """Applies batches to `engine`, each write by `apply`.

    `requeue` takes the writes for which a batch has no time; `is_ending` returns whether the server
    is shutting down.
    """

    engine: Engine
    apply: Apply
    requeue: Callable[[list[QueuedWrite]], None]
    is_ending: Callable[[], bool]
    clock: IReactorTime

    _log = Logger()

    def apply_batch(self, batch: list[QueuedWrite]) -> Generator[Awaited, None, Transaction | None]:
        """Apply the writes to one transaction and return it, None if none of them changed anything.

        A write that raises an unexpected error is removed from the batch and answered, and the
        others start again from a clean transaction. Writes for which there was no time go back to
        the queue.
        """
        while batch:
            transaction = self.engine.begin()
            try:
                failed = yield from self._in_steps(partial(self._apply_each, batch, transaction))
            except BaseException:
                transaction.rollback()
                raise
            if failed is None:
                if any(queued.must_be_committed for queued in batch):
                    return transaction
                yield from in_steps(transaction.rollback)
                return None
            transaction.rollback()
            self._log.error("A write failed: {failure}", failure=failed.result)
            batch.remove(failed)
            failed.answer()
        return None

    def _in_steps(self, work: Callable[[], T]) -> Generator[Awaited, None, T]:
        """Run `work` in steps; raise `Abandoned` if that takes long and the queue is ended."""
        end = self.clock.seconds() + BATCH_SECONDS
        steps = in_steps(work, self.clock.seconds)
        while True:
            try:
                awaited = next(steps)
            except StopIteration as stop:
                result: T = stop.value
                return result
            if self.is_ending() and self.clock.seconds() > end:
                steps.close()
                raise Abandoned
            yield awaited

    def _apply_each(self, batch: list[QueuedWrite], transaction: Transaction) -> QueuedWrite | None:
        """Apply writes until the batch has used its time; return one that failed, if any did."""
        end = self.clock.seconds() + BATCH_SECONDS
        for at, queued in enumerate(batch):
            try:
                queued.result = self.apply(transaction, queued.write)
            except _REFUSALS as refusal:
                # Its traceback would hold this batch, and that the value that a refusal may show.
                queued.result = Failure(refusal.with_traceback(None))
            except (DiskFull, StoreFailed):
                raise
            except Exception:
                queued.result = Failure()
                return queued
            if self.clock.seconds() > end:
                self.requeue(batch[at + 1 :])
                del batch[at + 1 :]
                break
            pause()
        return None


async def trace_commit(batch: Sequence[QueuedWrite], committing: Awaitable[None]) -> None:
    """Await the commit of a batch, and record a span of it for each write that is sampled."""
    traces = _traces_of(batch)
    if not traces:
        await committing
        return
    began, failed = now_ns(), True
    try:
        await committing
        failed = False
    finally:
        for trace in traces:
            trace.record("commit", began, {WRITES: len(batch)}, failed=failed)


def trace_round(batch: Sequence[QueuedWrite], notify: Steps) -> Steps:
    """Return steps that notify of a batch, and record a span for each write that is sampled."""
    traces = _traces_of(batch)
    return _recorded(traces, notify, len(batch)) if traces else notify


def _recorded(traces: Sequence[Trace], notify: Steps, writes: int) -> Steps:
    began = now_ns()
    yield from notify
    for trace in traces:
        trace.record("notify", began, {WRITES: writes})


def _traces_of(batch: Sequence[QueuedWrite]) -> list[Trace]:
    return [trace for queued in batch if (trace := queued.write.trace) is not None]
