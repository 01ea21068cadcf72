"""Group commit: writes collect while one commit waits for the disk, then are committed together.

Theory of operation. All Python work of a batch happens in the reactor's thread, in slices of a few
milliseconds (`slices`) while its transaction stays open; one write is one step. Only `commit` runs
in another thread, and only to wait. All the while reads are served, from the last durable state,
and new writes collect for the next batch, so batches grow where the disk is slow. Whatever a write
reads in its transaction is revealed to no caller before that transaction is durable, refusals
included. Then comes a round (`rounds`), in which first the writers are answered, then the watchers
notified; the next batch begins when it is over.

When a commit fails, none of its writes was applied and all of them are refused; `recovery` brings
the store back.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Final, TypeAlias

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
from treedbd.database.write_queue import QueuedWrite, WriteQueue
from treedbd.store.engine import DiskFull, Engine, StoreFailed, Transaction
from treedbd.tree.errors import InvalidData
from treedbd.tree.event import Commit

Apply: TypeAlias = Callable[[Transaction, Write], Outcome]
OnCommitted: TypeAlias = Callable[[Sequence[Commit]], None]
Notify: TypeAlias = Callable[[Sequence[Commit]], Steps]

BATCH_WRITES: Final = 1024
BATCH_SECONDS: Final = 0.02
"""A batch that has been applied for so long is committed; what is left of it waits for the next."""

_REFUSALS: Final = (PermissionDenied, ConditionFailed, InvalidData, TooLarge, DeadlinePassed)


class GroupCommit:
    """The queue of writes of one database.

    Attributes:
        rounds: what is run between the batches.

    """

    _log = Logger()

    def __init__(
        self,
        engine: Engine,
        apply: Apply,
        on_committed: OnCommitted,
        notify: Notify,
        runtime: Runtime,
    ) -> None:
        """Write into `engine`.

        `on_committed` is called with the commits of a batch, in sequence order, in the turn in
        which they became durable and before any of their writers is answered; `notify` notifies the
        watchers of them afterwards.
        """
        self._engine = engine
        self._apply = apply
        self._on_committed = on_committed
        self._notify = notify
        self._run_in_thread = runtime.run_in_thread
        self._clock = runtime.clock
        self._waiting: Final = WriteQueue(runtime.clock)
        self.rounds: Final = Rounds(
            runtime.slices, lambda: bool(self._waiting), self._resume_writes
        )
        self._slices = runtime.slices
        self._is_committing = False  # from the first write of a batch that is applied on
        self._scheduled: IDelayedCall | None = None
        self._is_checkpointing = False
        self._recovery = Recovery(
            engine,
            runtime,
            lambda: self._is_committing or self._is_checkpointing,
            self._resume_writes,
        )
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
        queued = QueuedWrite(write, Deferred())
        if self._is_ending:
            queued.refuse(Unavailable(SHUTTING_DOWN))
        elif self._damage is not None or self._recovery.failure is not None:
            queued.refuse(Unavailable(self.write_problem or ""))
        else:
            self._waiting.add(queued)
            self._schedule()
        return queued.deferred

    def refuse_damaged(self, problem: str) -> None:
        """Refuse the writes in the queue and all that follow: the store is damaged."""
        self._damage = problem
        self._waiting.refuse_all(problem)

    def refuse_writes(self) -> None:
        """Refuse the writes in the queue and all that follow; the batch under way is finished."""
        self._is_ending = True
        self._waiting.refuse_all(SHUTTING_DOWN)

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
        is_writing = self._is_committing or self._is_checkpointing
        return not (is_writing or self._recovery.is_busy or self.rounds.is_busy)

    @property
    def _is_working(self) -> bool:
        return not self._may_begin or not self.rounds.is_idle

    def _schedule(self) -> None:
        if self._may_begin and self._scheduled is None:
            self._scheduled = self._clock.callLater(0, self._begin)

    def _begin(self) -> None:
        self._scheduled = None
        if self._may_begin:
            batch = self._next_batch()
            # Held from now on: no round may begin while a transaction is open.
            self._is_committing = self.rounds.is_held = True
            self._slices.start(self._apply_and_commit(batch))

    def _apply_and_commit(self, batch: list[QueuedWrite]) -> Steps:
        """Apply a batch in one transaction, then begin to commit it."""
        try:
            transaction = yield from self._apply_batch(batch)
        except Exception as error:
            self._end_batch()
            self._refuse(batch, error)
        else:
            if transaction is None:
                self._end_batch()
                self._answer_and_notify(batch)
            else:
                Deferred.fromCoroutine(self._commit(transaction, batch))

    async def _commit(self, transaction: Transaction, batch: list[QueuedWrite]) -> None:
        """Commit a batch that was applied, and answer its writers."""
        self._engine.pin()
        try:
            await self._run_in_thread(transaction.commit)
        except Exception as error:
            self._engine.advance()
            self._end_batch()
            self._refuse(batch, error)
        else:
            self._engine.advance()
            self._is_committing = False
            # Begun before the writers are answered, so that what they send next waits for it.
            if self._recovery.is_full:
                self._recovery.check_space()
            elif self._engine.needs_checkpoint:
                Deferred.fromCoroutine(self._checkpoint())
            self._answer_and_notify(batch)

    async def _checkpoint(self) -> None:
        """Keep the store short; no batch begins meanwhile."""
        self._is_checkpointing = True
        await self._run_in_thread(self._engine.checkpoint)
        self._is_checkpointing = False
        self._resume_writes()

    def _end_batch(self) -> None:
        self._is_committing = self.rounds.is_held = False

    def _next_batch(self) -> list[QueuedWrite]:
        """Remove the next batch from the queue, refusing what cannot be done now."""
        self._waiting.refuse_late()
        batch: list[QueuedWrite] = []
        while self._waiting and len(batch) < BATCH_WRITES:
            queued = self._waiting.take()
            if self._recovery.is_full and not queued.only_removes:
                queued.refuse(Unavailable(self.write_problem or ""))
            else:
                batch.append(queued)
        return batch

    def _apply_batch(self, batch: list[QueuedWrite]) -> Generator[None, None, Transaction | None]:
        """Apply the writes to one transaction and return it, None if none of them changed anything.

        A write that raises an unexpected error is removed from the batch and answered, and the
        others start again from a clean transaction. Writes for which there was no time go back to
        the queue.
        """
        while batch:
            transaction = self._engine.begin()
            try:
                failed = yield from self._apply_each(batch, transaction)
            except BaseException:
                transaction.rollback()
                raise
            if failed is None:
                if any(queued.commit is not None for queued in batch):
                    return transaction
                transaction.rollback()
                return None
            transaction.rollback()
            self._log.error("A write failed: {failure}", failure=failed.result)
            batch.remove(failed)
            failed.answer()
        return None

    def _apply_each(
        self, batch: list[QueuedWrite], transaction: Transaction
    ) -> Generator[None, None, QueuedWrite | None]:
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
                self._requeue(batch[at + 1 :])
                del batch[at + 1 :]
                break
            yield
        return None

    def _requeue(self, writes: list[QueuedWrite]) -> None:
        """Put writes back at the head of the queue, or refuse them if it was ended meanwhile."""
        refusal = SHUTTING_DOWN if self._is_ending else self._damage
        if refusal is None:
            self._waiting.put_back(writes)
            return
        for queued in writes:
            queued.refuse(Unavailable(refusal))

    def _answer_and_notify(self, batch: list[QueuedWrite]) -> None:
        """Answer the writers, then notify the watchers, both in slices."""
        commits = [commit for queued in batch if (commit := queued.commit) is not None]
        if commits:
            # First: no caller who knows of a write may still be served what was kept before it.
            self._on_committed(commits)
        self.rounds.add(_answer(batch))
        if commits:
            self.rounds.add(self._notify(commits))
        self.rounds.is_held = False
        self.rounds.start()
        self._resume_writes()

    def _refuse(self, batch: list[QueuedWrite], error: BaseException) -> None:
        """Refuse the writes of a batch that failed, and begin to recover."""
        may_retry = isinstance(error, DiskFull) and not (self._recovery.is_full or self._is_ending)
        reason = self._recovery.begin(error)
        # The reserve will have made room for removals.
        self._waiting.put_back(each for each in batch if may_retry and each.only_removes)
        for queued in batch:
            if not (may_retry and queued.only_removes):
                queued.refuse(Unavailable(reason))
        if self._recovery.failure is not None:
            self._waiting.refuse_all(reason)
        self._resume_writes()

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
        self._waiting.close()
        self._closed.callback(None)


def _answer(batch: list[QueuedWrite]) -> Steps:
    for queued in batch:
        queued.answer()
        yield
