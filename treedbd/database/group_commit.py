"""Group commit: writes collect while one commit waits for the disk, then are committed together.

Theory of operation. All Python work of a batch happens in the reactor's thread within one turn;
only `commit` runs in another thread, and only to wait. Meanwhile new writes collect for the next
batch, so batches grow where the disk is slow. Whatever a write reads in its transaction is revealed
to no caller before that transaction is durable, refusals included. Then the writers are answered,
and the next batch begins after the round in which the watchers are notified (`rounds`).

When a commit fails, none of its writes was applied and all of them are refused; `recovery` brings
the store back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from treedbd.database.errors import (
    SHUTTING_DOWN,
    ConditionFailed,
    DeadlinePassed,
    PermissionDenied,
    TooLarge,
    Unavailable,
)
from treedbd.database.recovery import Recovery
from treedbd.database.requests import Outcome, Write
from treedbd.database.rounds import Rounds
from treedbd.database.runtime import Runtime
from treedbd.database.slices import Steps
from treedbd.store.engine import DiskFull, Engine, StoreFailed, Transaction
from treedbd.tree.errors import InvalidData
from treedbd.tree.event import Commit

Apply: TypeAlias = Callable[[Transaction, Write], Outcome]
Notify: TypeAlias = Callable[[Sequence[Commit]], Steps]

BATCH_WRITES: Final = 1024
BATCH_SECONDS: Final = 0.02

_REFUSALS: Final = (PermissionDenied, ConditionFailed, InvalidData, TooLarge, DeadlinePassed)


@attrs.define(eq=False)
class _Queued:
    """One write in the queue; `result` once it has been applied or refused."""

    write: Write
    deferred: Deferred[Outcome]
    result: Outcome | Failure | None = None

    def answer(self) -> None:
        if isinstance(self.result, Outcome):
            self.deferred.callback(self.result)
        else:
            self.deferred.errback(self.result)

    def is_late(self, now: float) -> bool:
        return self.write.deadline is not None and self.write.deadline <= now

    def refuse(self, error: Exception) -> None:
        self.deferred.errback(Failure(error))


class GroupCommit:
    """The queue of writes of one database.

    Attributes:
        rounds: what is run between the batches.

    """

    _log = Logger()

    def __init__(self, engine: Engine, apply: Apply, notify: Notify, runtime: Runtime) -> None:
        """Write into `engine`; `notify` notifies of what was made durable, in sequence order."""
        self._engine = engine
        self._apply = apply
        self._notify = notify
        self._run_in_thread = runtime.run_in_thread
        self._clock = runtime.clock
        self._waiting: deque[_Queued] = deque()
        self.rounds: Final = Rounds(
            runtime.slices, lambda: bool(self._waiting), self._resume_writes
        )
        self._is_committing = False
        self._scheduled: IDelayedCall | None = None
        self._deadline_timer: IDelayedCall | None = None
        self._recovery = Recovery(engine, runtime, lambda: self._is_committing, self._resume_writes)
        self._damage: str | None = None
        self._is_ending = False
        self._closed: Deferred[None] | None = None

    @property
    def write_problem(self) -> str | None:
        """Why writes are refused at present, in one sentence; None if they are accepted."""
        return self._damage or self._recovery.write_problem or self._engine.find_misplaced()

    @property
    def is_busy(self) -> bool:
        """Whether a write waits, is made durable or notified, or the store is being recovered."""
        return bool(self._waiting or self._is_working or self._recovery.write_problem)

    def submit(self, write: Write) -> Deferred[Outcome]:
        """Queue a write; fires when it is durable, or with the reason why it is not done."""
        queued = _Queued(write, Deferred())
        if self._is_ending:
            queued.refuse(Unavailable(SHUTTING_DOWN))
        elif self._damage is not None or self._recovery.failure is not None:
            queued.refuse(Unavailable(self.write_problem or ""))
        else:
            self._waiting.append(queued)
            self._schedule()
            self._set_deadline_timer(write.deadline)
        return queued.deferred

    def refuse_damaged(self, problem: str) -> None:
        """Refuse the writes in the queue and all that follow: the store is damaged."""
        self._damage = problem
        self._refuse_waiting(problem)

    def refuse_writes(self) -> None:
        """Refuse the writes in the queue and all that follow; the batch under way is finished."""
        self._is_ending = True
        self._refuse_waiting(SHUTTING_DOWN)

    def close(self) -> Deferred[None]:
        """Refuse writes; fires when those of the batch under way are answered and notified."""
        self.refuse_writes()
        if self._closed is None:
            self._closed = Deferred()
            self._finish_closing()
        return self._closed

    @property
    def _may_begin(self) -> bool:
        """Whether a batch may begin; `_resume_writes` is called when one may again."""
        return not (self._is_committing or self._recovery.is_busy or self.rounds.is_busy)

    @property
    def _is_working(self) -> bool:
        return not self._may_begin or not self.rounds.is_idle

    def _schedule(self) -> None:
        if self._may_begin and self._scheduled is None:
            self._scheduled = self._clock.callLater(0, self._begin)

    def _begin(self) -> None:
        self._scheduled = None
        if self._may_begin:
            Deferred.fromCoroutine(self._commit_batch())

    async def _commit_batch(self) -> None:
        """Apply the next batch in one transaction, commit it, and answer its writers."""
        batch = self._next_batch()
        try:
            transaction = self._apply_batch(batch)
            if transaction is not None:
                self._is_committing = self.rounds.is_held = True
                await self._run_in_thread(transaction.commit)
        except Exception as error:
            self._is_committing = self.rounds.is_held = False
            self._refuse(batch, error)
        else:
            self._is_committing = False
            if transaction is not None and self._recovery.is_full:
                # Begun before the writers are answered, so that what they send next waits for it.
                self._recovery.check_space()
            self._answer_and_notify(batch)

    def _next_batch(self) -> list[_Queued]:
        """Remove the next batch from the queue, refusing what cannot be done now."""
        self._refuse_late()
        batch: list[_Queued] = []
        while self._waiting and len(batch) < BATCH_WRITES:
            queued = self._waiting.popleft()
            if self._recovery.is_full and not _only_removes(queued.write):
                queued.refuse(Unavailable(self.write_problem or ""))
            else:
                batch.append(queued)
        return batch

    def _apply_batch(self, batch: list[_Queued]) -> Transaction | None:
        """Apply the writes to one transaction and return it, None if none of them changed anything.

        A write that raises an unexpected error is removed from the batch and answered, and the
        others start again from a clean transaction. Writes for which there was no time go back to
        the queue.
        """
        while batch:
            transaction = self._engine.begin()
            try:
                failed = self._apply_each(batch, transaction)
            except BaseException:
                transaction.rollback()
                raise
            if failed is None:
                if any(_commit_of(queued) is not None for queued in batch):
                    return transaction
                transaction.rollback()
                return None
            transaction.rollback()
            self._log.error("A write failed: {failure}", failure=failed.result)
            batch.remove(failed)
            failed.answer()
        return None

    def _apply_each(self, batch: list[_Queued], transaction: Transaction) -> _Queued | None:
        """Apply writes until the batch has used its time; return one that failed, if any did."""
        end = self._clock.seconds() + BATCH_SECONDS
        for at, queued in enumerate(batch):
            try:
                queued.result = self._apply(transaction, queued.write)
            except _REFUSALS as refusal:
                queued.result = Failure(refusal)
            except (DiskFull, StoreFailed):
                raise
            except Exception:
                queued.result = Failure()
                return queued
            if self._clock.seconds() > end:
                self._waiting.extendleft(reversed(batch[at + 1 :]))
                del batch[at + 1 :]
                break
        return None

    def _answer_and_notify(self, batch: list[_Queued]) -> None:
        """Answer the writers, then notify the watchers."""
        for queued in batch:
            queued.answer()
        commits = [commit for queued in batch if (commit := _commit_of(queued)) is not None]
        if commits:
            self.rounds.add(self._notify(commits))
        self.rounds.is_held = False
        self.rounds.start()
        self._resume_writes()

    def _refuse(self, batch: list[_Queued], error: BaseException) -> None:
        """Refuse the writes of a batch that failed, and begin to recover."""
        may_retry = isinstance(error, DiskFull) and not (self._recovery.is_full or self._is_ending)
        reason = self._recovery.begin(error)
        for queued in reversed(batch):
            if may_retry and _only_removes(queued.write):
                self._waiting.appendleft(queued)  # the reserve will have made room for it
            else:
                queued.refuse(Unavailable(reason))
        if self._recovery.failure is not None:
            self._refuse_waiting(reason)
        self._resume_writes()

    def _refuse_waiting(self, reason: str) -> None:
        while self._waiting:
            self._waiting.popleft().refuse(Unavailable(reason))

    def _resume_writes(self) -> None:
        if self._waiting:
            self._schedule()
            return
        self.rounds.start()
        if self._closed is not None:
            self._finish_closing()

    def _finish_closing(self) -> None:
        if self._closed is None or self._closed.called or self._is_working or self._waiting:
            return
        self._recovery.close()
        if self._deadline_timer is not None and self._deadline_timer.active():
            self._deadline_timer.cancel()
        self._closed.callback(None)

    def _set_deadline_timer(self, deadline: float | None) -> None:
        """Make sure that waiting writes are refused at this time, if not sooner."""
        if deadline is None:
            return
        if self._deadline_timer is not None and self._deadline_timer.active():
            if self._deadline_timer.getTime() <= deadline:
                return
            self._deadline_timer.cancel()
        pause = max(0.0, deadline - self._clock.seconds())
        self._deadline_timer = self._clock.callLater(pause, self._on_deadline_timer)

    def _on_deadline_timer(self) -> None:
        self._refuse_late()
        deadlines = [queued.write.deadline for queued in self._waiting]
        self._set_deadline_timer(min((at for at in deadlines if at is not None), default=None))

    def _refuse_late(self) -> None:
        now = self._clock.seconds()
        late = [queued for queued in self._waiting if queued.is_late(now)]
        if late:
            self._waiting = deque(queued for queued in self._waiting if not queued.is_late(now))
        for queued in late:
            queued.refuse(DeadlinePassed("it was applied"))


def _commit_of(queued: _Queued) -> Commit | None:
    return queued.result.commit if isinstance(queued.result, Outcome) else None


def _only_removes(write: Write) -> bool:
    return all(change.value is None for change in write.edit.changes)
