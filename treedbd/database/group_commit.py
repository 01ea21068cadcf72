"""Group commit: writes collect while one commit waits for the disk, then are committed together.

Theory of operation. All Python work of a batch happens in the reactor's thread, in slices of a few
milliseconds (`slices`) while its transaction stays open. A write is one step, or many if it pauses
(`pauses`): a large one does, and is a batch of its own. Only `commit` runs in another thread, and
only to wait. All the while reads are served, from the last durable state, and new writes collect
for the next batch, so batches grow where the disk is slow. Whatever a write reads in its
transaction is revealed to no caller before that transaction is durable, refusals included. Then
comes a round (`rounds`), in which first the writers are answered, then the watchers notified; the
next batch begins when it is over. Processes that share a database take turns (`write_turn`).

When a commit fails, none of its writes was applied and all of them are refused; `recovery` brings
the store back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Final, TypeAlias

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger

from treedbd.database.batch_applier import Abandoned, Apply, BatchApplier, trace_commit, trace_round
from treedbd.database.maintenance import Maintenance, maintain_once
from treedbd.database.recovery import Recovery
from treedbd.database.requests import (
    SHUTTING_DOWN,
    DeadlinePassed,
    Outcome,
    OutcomeInDoubt,
    QueuedWrite,
    Unavailable,
    Write,
    answer_all,
    refuse_all,
)
from treedbd.database.rounds import Rounds
from treedbd.database.runtime import Runtime
from treedbd.database.slices import Steps
from treedbd.database.upkeep import Upkeep
from treedbd.database.write_queue import WriteQueue
from treedbd.database.write_turn import OwnTurn, WriteTurn
from treedbd.store.engine import Conflict, DiskFull, Engine, StoreFailed, Transaction
from treedbd.tree.event import Commit

OnCommitted: TypeAlias = Callable[[Sequence[Commit]], None]
Notify: TypeAlias = Callable[[Sequence[Commit]], Steps]


class GroupCommit:
    """The queue of writes of one database.

    Attributes:
        rounds: what is run between the batches.
        upkeep: checkpoints the store, and compacts it.

    """

    _log = Logger()

    def __init__(
        self,
        engine: Engine,
        apply: Apply,
        on_committed: OnCommitted,
        notify: Notify,
        leave: Callable[[], bool],
        runtime: Runtime,
        turn: WriteTurn | None = None,
    ) -> None:
        """Write into `engine`, in the turns of this process.

        `on_committed` is called with the commits of a batch, in sequence order, in the turn in
        which they became durable and before any of their writers is answered; `notify` notifies the
        watchers of them afterwards. `leave` lets reads show what was committed, and returns
        whether the moment before is held until the watchers were notified.
        """
        self._turn: Final[WriteTurn] = OwnTurn(runtime.run_in_thread) if turn is None else turn
        self._engine, self._clock = engine, runtime.clock
        self._on_committed, self._notify, self._leave = on_committed, notify, leave
        self._waiting: Final = WriteQueue(
            runtime.clock, runtime.slices, self._refusal_of_late, self.try_again
        )
        self._batches = BatchApplier(
            engine, apply, self._waiting.put_back, lambda: self._is_ending, runtime.clock
        )
        self.rounds: Final = Rounds(
            runtime.slices, lambda: bool(self._waiting), self._resume_writes
        )
        self._slices = runtime.slices
        self._time_commit = runtime.statistics.time_commit
        runtime.statistics.queues.add(self._waiting)
        self._began = 0.0  # the batch under way
        self._is_committing = False  # from the first write of a batch that is applied on
        self._scheduled: IDelayedCall | None = None
        self.upkeep: Final = Upkeep(
            engine, runtime, self._turn, lambda: self._may_begin, self._resume_writes
        )
        self._maintenance: Maintenance | None = None
        self._is_maintenance_due = False
        self._recovery = Recovery(
            engine, runtime, lambda: self._is_writing, self._resume_writes, self._turn.run
        )
        self._turn.attach(self.rounds, self.try_again)
        self._damage: str | None = None
        self._is_ending = False
        self._closed: Deferred[None] | None = None

    @property
    def write_problem(self) -> str | None:
        """Why writes are refused at present, in one sentence; None if they are accepted."""
        of_store = self._damage or self._recovery.write_problem or self._turn.problem
        return of_store or self._engine.find_misplaced()

    @property
    def is_busy(self) -> bool:
        """Whether a write waits, is made durable or notified, or the store is being recovered."""
        is_waiting = len(self._waiting) or self._maintenance is not None
        return bool(is_waiting or self._is_working or self._recovery.write_problem)

    def submit(self, write: Write) -> Deferred[Outcome]:
        """Queue a write; fires when it is durable, or with the reason why it is not done."""
        queued = QueuedWrite(write, Deferred())
        if self._is_ending:
            queued.refuse(Unavailable(SHUTTING_DOWN))
        elif self._damage or self._recovery.failure or self._turn.problem:
            queued.refuse(Unavailable(self.write_problem or ""))
        else:
            self._waiting.add(queued)
            self._schedule()
        return queued.deferred

    def maintain(self, work: Maintenance) -> None:
        """Do work on the store in transactions of its own, between the batches of writes.

        `work` does one step in a transaction, and returns False if there was nothing left to do. No
        writer and no watcher is told of it. Work that is under way is replaced.
        """
        if not (self._is_ending or self._damage):
            self._maintenance = work
            self._schedule()

    def refuse_damaged(self, problem: str) -> None:
        """Refuse the writes in the queue and all that follow: the store is damaged."""
        self._damage = problem
        self._recovery.close()  # what is damaged cannot be recovered
        self._maintenance = None
        self._waiting.end(problem)

    def refuse_writes(self) -> None:
        """Refuse the writes in the queue and all that follow; the batch under way is finished."""
        self._is_ending = True
        self._maintenance = None
        self._waiting.end(SHUTTING_DOWN)

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
        return not (self._is_writing or self._recovery.is_busy or self.rounds.is_busy)

    @property
    def _is_writing(self) -> bool:
        return self._is_committing or self.upkeep.is_busy

    @property
    def _is_working(self) -> bool:
        return not self._may_begin or not self.rounds.is_idle

    def try_again(self) -> None:
        """Begin what waits for the turn of this process."""
        if self._waiting or self._maintenance is not None:
            self._schedule()
        elif self._closed is not None:
            self._finish_closing()

    def _refusal_of(self, queued: QueuedWrite) -> str | None:
        """Return why a write cannot be done now, None if it can."""
        must_wait = self._recovery.is_full and not queued.only_removes
        return self.write_problem or "" if must_wait else self._turn.problem

    def _refusal_of_late(self) -> Exception:
        """Return what a write is refused with whose deadline passes while it waits."""
        if self._turn.delay is not None:
            return Unavailable(self._turn.delay)
        return DeadlinePassed("it was applied")

    def _schedule(self) -> None:
        if self._may_begin and self._scheduled is None:
            self._scheduled = self._clock.callLater(0, self._begin)

    def _begin(self) -> None:
        self._scheduled = None
        if not self._may_begin:
            return
        if not (self._waiting or self._maintenance):
            self._turn.give()
            return
        # What others have committed meanwhile may begin a round. The batch does not wait for its
        # end, because others wait for the turn; the next one does.
        if not self._turn.take() or self._is_writing or self._recovery.is_busy:
            return
        work = self._maintenance
        may_maintain = work is not None and not self._recovery.is_full
        if work is not None and may_maintain and (self._is_maintenance_due or not self._waiting):
            steps = self._maintain_once(work)
        elif self._waiting:
            steps = self._apply_and_commit(self._waiting.take_batch(self._refusal_of))
        else:
            self._turn.give()
            return
        self._is_maintenance_due = not self._is_maintenance_due
        # Held from now on: no round may begin while a transaction is open.
        self._is_committing = self.rounds.is_held = True
        self._began = perf_counter()
        self._slices.start(steps)

    def _maintain_once(self, work: Maintenance) -> Steps:
        """Do one step of maintenance, then begin to commit it."""
        try:
            transaction = yield from maintain_once(self._engine, work)
        except (DiskFull, StoreFailed) as error:
            self._end_batch()
            self._refuse([], error)
            return
        except Exception:
            self._log.failure("Maintenance of a database has failed, and is given up.")
            transaction = None
        if transaction is None:
            self._end_maintenance(work)
        else:
            Deferred.fromCoroutine(self._commit(transaction, []))

    def _end_maintenance(self, work: Maintenance) -> None:
        if self._maintenance is work:
            self._maintenance = None
        self._end_batch()
        self._resume_writes()

    def _apply_and_commit(self, batch: list[QueuedWrite]) -> Steps:
        """Apply a batch in one transaction, then begin to commit it."""
        try:
            transaction = yield from self._batches.apply_batch(batch)
        except Abandoned:
            self._end_batch()
            self._answer_refused(batch, partial(Unavailable, SHUTTING_DOWN))
            self._resume_writes()
        except Exception as error:
            self._end_batch()
            self._refuse(batch, error)
        else:
            if transaction is None:
                Deferred.fromCoroutine(self._end_unchanged(batch))
            else:
                Deferred.fromCoroutine(self._commit(transaction, batch))

    async def _commit(self, transaction: Transaction, batch: list[QueuedWrite]) -> None:
        """Commit a batch that was applied, and answer its writers."""
        self._engine.pin()
        commit, time = transaction.commit, self._time_commit
        commit = commit if time is None else time(commit, len(batch), self._began)
        try:
            committing = self._turn.commit(commit, self._is_checkpoint_due, batch)
            await trace_commit(batch, committing)
        except Exception as error:
            self._engine.advance()
            self._not_committed(batch, error)
        else:
            is_held = self._leave()
            self._is_committing = False
            is_due = self._is_checkpoint_due()
            if is_due:
                # Begun before the writers are answered, so that what they send next waits for it;
                # but a moment that is held would keep the log from being restarted.
                self.upkeep.is_busy = True
                if not is_held:
                    Deferred.fromCoroutine(self.upkeep.checkpoint())
            else:
                self._turn.give()
            self._recovery.check_space()
            self._answer_and_notify(batch, checkpoints=is_due and is_held)

    async def _end_unchanged(self, batch: list[QueuedWrite]) -> None:
        """Answer the writers of a batch that has changed nothing, if what it saw was current."""
        try:
            if (confirming := self._turn.confirm()) is not None:
                await confirming
        except Exception as error:
            self._not_committed(batch, error)
        else:
            self._end_batch()
            self._answer_and_notify(batch)

    def _not_committed(self, batch: list[QueuedWrite], error: Exception) -> None:
        """Do a batch again, or refuse its writes: its commit has failed."""
        if isinstance(error, Conflict):
            self._waiting.put_back(batch)
        self._end_batch()
        if isinstance(error, Unavailable | OutcomeInDoubt):
            self._answer_refused(batch, lambda: error.with_traceback(None))
        elif not isinstance(error, Conflict):
            self._refuse(batch, error)
            return
        self._resume_writes()

    def _is_checkpoint_due(self) -> bool:
        return self._engine.needs_checkpoint and not self._recovery.is_full

    def _end_batch(self) -> None:
        self._is_committing = self.rounds.is_held = False
        self._turn.give()

    def _answer_and_notify(self, batch: list[QueuedWrite], *, checkpoints: bool = False) -> None:
        """Answer the writers, then notify the watchers, both in slices; then maybe checkpoint."""
        commits = [commit for queued in batch if (commit := queued.commit) is not None]
        self._waiting.note(batch)
        self.rounds.add(answer_all(batch))
        if commits:
            self.rounds.add(trace_round(batch, self._notify(commits)))
            # Before the round: no caller who knows of a write may still be served what was kept.
            self._on_committed(commits)
        if checkpoints:
            self.rounds.add(self._begin_checkpoint())
        self.rounds.is_held = False
        self.rounds.start()
        self._resume_writes()

    def _begin_checkpoint(self) -> Steps:
        Deferred.fromCoroutine(self.upkeep.checkpoint())
        yield

    def _answer_refused(self, batch: list[QueuedWrite], refusal: Callable[[], Exception]) -> None:
        """Refuse the writes of a batch with what `refusal` returns, before the next one begins."""
        if batch:
            self.rounds.add(refuse_all(batch, refusal))
            self.rounds.start()

    def _refuse(self, batch: list[QueuedWrite], error: BaseException) -> None:
        """Refuse the writes of a batch that failed, and begin to recover."""
        may_retry = isinstance(error, DiskFull) and not (self._recovery.is_full or self._is_ending)
        reason = self._recovery.begin(error)
        # The reserve will have made room for removals.
        self._waiting.put_back(each for each in batch if may_retry and each.only_removes)
        refused = [queued for queued in batch if not (may_retry and queued.only_removes)]
        if self._recovery.failure is not None:
            refused += self._waiting.take_all()
        self._answer_refused(refused, partial(Unavailable, reason))
        self._resume_writes()

    def _resume_writes(self) -> None:
        self._turn.batch_over()
        if self._waiting:
            self._schedule()
            return
        self.rounds.start()
        if self._maintenance is not None:
            self._schedule()
        elif self._may_begin:
            self._turn.give()  # the writes that it was taken for were refused meanwhile
        if self._closed is not None:
            self._finish_closing()

    def _finish_closing(self) -> None:
        if self._closed is None or self._closed.called or self._is_working or len(self._waiting):
            return
        self._recovery.close()
        self._waiting.close()
        self._closed.callback(None)
