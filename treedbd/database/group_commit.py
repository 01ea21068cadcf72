"""Group commit: the one machine that all writes of a database pass.

Writes collect while one commit waits for the disk, then are committed together. What is done to the
store is done here, one after the other (`State`), and `GroupCommit._next` alone decides what is
next:

1. *Applying.* A batch is taken from the queue and applied in one transaction, by the reactor's
   thread, in slices of a few milliseconds while the transaction stays open. A write is one step, or
   many if it pauses (`loop.pause`): a large one does, and is a batch of its own. Reads are served
   from the last durable state, and new writes collect for the next batch. Or a step of maintenance
   is applied, alternating with batches: an index is built, what a database holds is counted. While
   others are busy there is a pause after each step (`Pace`).
2. *Committing.* Another thread waits for the disk, and nothing else is done to the store. So
   batches grow where the disk is slow. Whatever a write has read in its transaction is revealed to
   no caller before that transaction is durable, refusals included.
3. *Round.* First the writers are answered, then the watchers notified, in slices (`Rounds`). No
   batch begins before the round is over, so all in it see exactly the state that the commit left.
4. *Maintaining.* When the log of the store has grown it is checkpointed, in another thread and
   beside the round; an operator may have the store compacted.

So a write is durable, then answered, then notified of.

When a commit fails, none of its writes was applied: all of them are refused, and no watcher is
notified. Then, *recovering*, the store is brought back in another thread (`Recovery`). After a
failure it is opened again and verified, and no write is accepted before that; on a full disk a
reserve makes room for removals, which are accepted.

A `WriteLock` is acquired for each batch. A process alone always has it; processes that share a
database have it for one batch each (`write_lock`). Watchers are notified of what others have
committed in rounds, too. Such a round may go on while a batch is applied, since others wait for the
lock; what this batch adds to it comes after it.
"""

from __future__ import annotations

import math
import pathlib
import shutil
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Generator, Iterable, Iterator, Sequence
from enum import Enum
from functools import partial
from math import inf
from time import perf_counter
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from treedbd.database.requests import (
    SHUTTING_DOWN,
    ConditionFailed,
    DeadlinePassed,
    DeletionUnderWay,
    EntryRefused,
    HookConflict,
    Outcome,
    OutcomeInDoubt,
    PermissionDenied,
    PlaceLost,
    QuotaExceeded,
    ReaderReplaced,
    TooLarge,
    TooManyCursors,
    TooManyDisconnectWrites,
    TooManyEvents,
    TooManyHooks,
    Unavailable,
    UnknownDatabase,
    UnknownHook,
    Write,
)
from treedbd.database.runtime import RunInThread, Runtime
from treedbd.database.slices import Slices, StepQueue, Steps
from treedbd.loop import Awaited, in_steps, pause
from treedbd.store.engine import (
    CannotCreateStore,
    Conflict,
    DiskFull,
    Engine,
    StoreFailed,
    Transaction,
)
from treedbd.traces import Trace, now_ns
from treedbd.tree.event import Commit
from treedbd.tree.types import InvalidData, Path

if TYPE_CHECKING:
    from treedbd.database.apply import WriteApplier
    from treedbd.database.database import Database

T = TypeVar("T")

BATCH_WRITES: Final = 1024
"""The most writes of a batch."""
LOOK_SECONDS: Final = 0.000_005
"""Seconds until the next look for late writes, for each write that waits.

To look at one takes a tenth of that, so however many deadlines there are, most time is left.
"""

BATCH_SECONDS: Final = 0.02
"""A batch that has been applied for so long is committed; what is left of it waits for the next."""
WRITES: Final = "treedb.batch.writes"
"""The attribute with the number of writes in a batch, of spans that they share."""
SHARE: Final = 6
"""While others are busy, maintenance has one part in so many of the time."""
CALM: Final = 0.25
"""Others are not busy if they use less than this part of the time."""
CALM_LOOK_S: Final = 0.005
"""Seconds between two looks whether others are busy."""
_REFUSALS: Final = (
    *(PermissionDenied, ConditionFailed, InvalidData, TooLarge, DeadlinePassed),
    *(QuotaExceeded, TooManyCursors, TooManyDisconnectWrites, TooManyEvents),
    *(UnknownDatabase, EntryRefused, UnknownHook, HookConflict, TooManyHooks),
    *(PlaceLost, ReaderReplaced),
)

SPACE_CHECK_S: Final = 0.5
"""Seconds between two checks whether a full disk has room again."""
RECOVERY_PAUSES: Final = (0.0, 0.1, 0.5, 1.0, 2.0, 5.0)
"""Seconds before each attempt to recover a store; the last one repeats."""

PATIENCE: Final = 2
"""Losses at a place after which it is reserved for a contender."""
PENALTY: Final = 8
"""Losses more until that happens again, after a reservation that came to nothing."""
LOOK_S: Final = 0.05
"""Seconds between two looks whether the contender has come."""
LOOKS: Final = 5
"""Looks until a reservation ends: a pause of this process, however long, counts as one."""
RESERVED_S: Final = LOOKS * LOOK_S
"""Seconds: a few times what an answer and the next write need, also over a mobile network."""
MAX_CLAIMS: Final = 1_000
"""Contenders that are remembered; the one that has lost last is remembered longest."""
MAX_RESERVATIONS: Final = 100
"""The most places that are reserved, so that a batch is judged in little time."""

_Claim: TypeAlias = tuple[int, Path]
"""A contender (`Write.contender`), and the place of its condition."""

Maintenance: TypeAlias = Callable[[Transaction], bool]
"""Does one step in a transaction; returns False if there was nothing left to do."""


class Abandoned(Exception):
    """A batch that has taken long is given up, because the server is shutting down."""


class State(Enum):
    """What is done to the store of a database; the next batch waits for its end."""

    IDLE = "idle"
    APPLYING = "applying"
    COMMITTING = "committing"
    ROUND = "round"
    MAINTAINING = "maintaining"
    RECOVERING = "recovering"


class GroupCommit:
    """The group commit of one database: decides when its writes are applied and committed.

    Attributes:
        rounds: what is run between the batches.

    """

    _log = Logger()

    def __init__(
        self,
        database: Database,
        engine: Engine,
        applier: WriteApplier,
        runtime: Runtime,
        lock: WriteLock | None = None,
        maintenance: MaintenanceList | None = None,
    ) -> None:
        """Write into `engine`, under `lock`; without it the database is of this process alone.

        In the turn in which the commits of a batch became durable, `database.leave` shows them to
        reads, and `database.committed` is called with them, in sequence order, before any of their
        writers is answered; `database.notify` notifies the watchers afterwards. Between batches the
        steps of `maintenance` are done.
        """
        self._lock: Final[WriteLock] = WriteLock(runtime.run_in_thread) if lock is None else lock
        self._maintenance: Final = MaintenanceList() if maintenance is None else maintenance
        self._pace: Final = Pace(runtime, self._next)
        self._database, self._engine = database, engine
        self._applier, self._runtime = applier, runtime
        self._clock: Final = runtime.clock
        self._queue: Final = WriteQueue(
            runtime.clock, runtime.slices, self._refusal_of_late, self._next
        )
        runtime.statistics.queues.add(self._queue)
        self.rounds: Final = Rounds(runtime.slices, lambda: bool(self._queue.ready), self.ended)
        self._recovery: Final = Recovery(engine, runtime, self._lock, self)
        self._transaction = State.IDLE  # APPLYING and COMMITTING, or IDLE
        self._in_thread = State.IDLE  # MAINTAINING and RECOVERING, or IDLE
        self._began = 0.0  # the batch under way
        self._due: IDelayedCall | None = None
        self._is_maintenance_due = False
        self._compactions: Final = deque[Deferred[None]]()
        self._damage: str | None = None
        self._is_ending = False
        self._end_reason = SHUTTING_DOWN
        self._closed: Deferred[None] | None = None
        self._lock.attach(self.rounds, self._next)
        self._maintenance.attach(self._next)

    @property
    def state(self) -> State:
        """What is done to the store now.

        A round may go on while a transaction is open, and the store be checkpointed during a round:
        then it is the first of them.
        """
        if self._transaction is not State.IDLE:
            return self._transaction
        return State.ROUND if self.rounds.is_busy else self._in_thread

    @property
    def is_store_free(self) -> bool:
        """Whether neither a transaction is open nor another thread works on the store."""
        return self._transaction is self._in_thread is State.IDLE

    @property
    def write_problem(self) -> str | None:
        """Why writes are refused at present, in one sentence; None if they are accepted."""
        of_store = self._damage or self._recovery.write_problem or self._lock.problem
        return of_store or self._engine.find_misplaced()

    @property
    def end_reason(self) -> str | None:
        """Why writes are refused until the end, in one sentence; None if they are not."""
        return self._end_reason if self._is_ending else self._damage

    @property
    def is_busy(self) -> bool:
        """Whether a write waits, is made durable or notified, or the store is being recovered."""
        is_waiting = len(self._queue) or self._maintenance.waiting or self._compactions
        return bool(is_waiting or not self._is_still or self._recovery.write_problem)

    @property
    def _is_still(self) -> bool:
        return self.state is State.IDLE and self.rounds.is_idle

    # What comes from outside.

    def submit(self, write: Write) -> Deferred[Outcome]:
        """Queue a write; fires when it is durable, or with the reason why it is not done."""
        queued = QueuedWrite(write, Deferred())
        if self._is_ending:
            queued.refuse(Unavailable(self._end_reason))
        elif self._damage or self._recovery.failure or self._lock.problem:
            queued.refuse(Unavailable(self.write_problem or ""))
        else:
            self._queue.add(queued)
            self._next()
        return queued.deferred

    async def compact(self) -> tuple[int, int]:
        """Give free space back to the file system; return the bytes before and after.

        Raises `DiskFull`, `StoreFailed`, or `Unavailable` when the server shuts down.
        """
        if self._is_ending:
            raise Unavailable(self._end_reason)
        if self._engine.read(lambda view: view.sequence()) == 0:
            return 0, 0
        before = self._engine.size()
        free: Deferred[None] = Deferred()
        self._compactions.append(free)
        self._next()
        await free
        await self._maintain_store(self._engine.compact)
        return before, self._engine.size()

    def refuse_damaged(self, problem: str) -> None:
        """Refuse the writes in the queue and all that follow: the store is damaged."""
        self._damage = problem
        self._recovery.close()  # what is damaged cannot be recovered
        self._end_maintenance()
        self._queue.end(problem)

    def refuse_writes(self, reason: str = SHUTTING_DOWN) -> None:
        """Refuse the writes in the queue and all that follow; the batch under way is finished.

        The first `reason` is what their callers receive.
        """
        if not self._is_ending:
            self._is_ending, self._end_reason = True, reason
        self._end_maintenance()
        while self._compactions:
            self._compactions.popleft().errback(Unavailable(self._end_reason))
        self._queue.end(self._end_reason)

    def close(self, reason: str = SHUTTING_DOWN) -> Deferred[None]:
        """Refuse writes; fires when those of the batch under way are answered and notified."""
        self.refuse_writes(reason)
        if self._closed is None:
            self._closed = Deferred()
            self._next()
        return self._closed

    def _end_maintenance(self) -> None:
        self._maintenance.end()
        self._pace.end()

    # What happens next.

    def _next(self, *, is_due: bool = False) -> None:
        """Decide what is done to the store next: nothing else does.

        Called when anything was queued, and when anything has ended. What needs the lock begins in
        the next turn (`is_due`), so that all that is queued in this turn is in the batch.
        """
        # As `state` says, without a call: this is decided several times for each write.
        if not (self._transaction is self._in_thread is State.IDLE) or self.rounds.is_busy:
            return  # its end calls this again
        if not (self._queue.ready or self._compactions or self._may_maintain()):
            self._lock.give()  # what it was acquired for may have been refused meanwhile
            if self._closed is not None:
                self._finish_closing(self._closed)
        elif not is_due:
            self._due = self._due or self._clock.callLater(0, self._on_due)
        # What others have committed may begin a round here, for whose end the others would wait.
        elif self._lock.take() and self.is_store_free:
            self._begin()

    def _may_maintain(self) -> bool:
        return bool(self._maintenance.waiting) and self._pace.may_begin()

    def _on_due(self) -> None:
        self._due = None
        self._next(is_due=True)

    def _begin(self) -> None:
        """Begin a compaction, a batch, or a step of maintenance; the two alternate."""
        is_sound = self._recovery.failure is None
        if self._compactions and is_sound:
            self._compactions.popleft().callback(None)
            self._next()  # unless it has begun: its caller may be gone
            return
        is_due = self._is_maintenance_due or not self._queue.ready
        if is_due and is_sound and not self._recovery.is_full and self._may_maintain():
            steps = self._apply_maintenance()
        elif self._queue.ready:
            may_refuse = self._recovery.is_full or self._lock.problem is not None
            batch = self._queue.take_batch(self._refusal_of if may_refuse else None)
            steps = self._apply_batch(batch)
        else:
            self._lock.give()
            return
        self._is_maintenance_due = not self._is_maintenance_due
        assert not self.rounds.is_held  # noqa: S101 - one transaction at a time
        self._transaction, self._began = State.APPLYING, perf_counter()
        self.rounds.is_held = True  # no round may begin while a transaction is open
        self._runtime.slices.start(steps)

    def ended(self) -> None:
        """Go on after a batch, a round, or work in another thread."""
        self._lock.batch_over()
        if not self._queue.ready:
            self.rounds.start()
        self._next()

    def _finish_closing(self, closed: Deferred[None]) -> None:
        if self._is_still and not (closed.called or self._queue):
            self._recovery.close()
            self._queue.close()
            closed.callback(None)

    # Applying.

    def _refusal_of(self, queued: QueuedWrite) -> str | None:
        """Return why a write cannot be done now, None if it can."""
        must_wait = self._recovery.is_full and not queued.only_removes
        return self.write_problem or "" if must_wait else self._lock.problem

    def _refusal_of_late(self) -> Exception:
        """Return what a write is refused with whose deadline passes while it waits."""
        if self._lock.delay is not None:
            return Unavailable(self._lock.delay)
        return DeadlinePassed("it was applied")

    def _apply_maintenance(self) -> Steps:
        """Do one step of maintenance, then begin to commit it."""
        try:
            step = maintain_once(self._engine, self._maintenance.do_step, self._clock.seconds)
            transaction = yield from self._pace.measure(step)
        except (DiskFull, StoreFailed) as error:
            self._end_transaction()
            self._refuse([], error)
            return
        except Exception:
            self._log.failure("Maintenance of a database has failed, and is given up.")
            transaction = None
        if transaction is None:
            self._end_transaction()
            self.ended()
        else:
            self._commit(transaction, [])

    def _apply_batch(self, batch: list[QueuedWrite]) -> Steps:
        """Apply a batch in one transaction, then begin to commit it."""
        try:
            transaction = yield from self._apply_writes(batch)
        except Abandoned:
            self._end_transaction()
            self._answer_refused(batch, partial(Unavailable, self._end_reason))
            self.ended()
        except Exception as error:
            self._end_transaction()
            self._refuse(batch, error)
        else:
            if transaction is None:
                Deferred.fromCoroutine(self._end_unchanged(batch))
            else:
                self._commit(transaction, batch)

    def _apply_writes(
        self, batch: list[QueuedWrite]
    ) -> Generator[Awaited, None, Transaction | None]:
        """Apply writes to one transaction and return it, None if none of them changed anything.

        A write that raises an unexpected error is removed from the batch and answered, and the
        others start again from a clean transaction. A batch that has used its time ends with the
        write that is being applied; what is left of it goes back to the queue.
        """
        while batch:
            transaction = self._engine.begin()
            try:
                failed = yield from self._in_steps(partial(self._apply_each, batch, transaction))
            except BaseException:
                transaction.rollback()
                raise
            if failed is None:
                for queued in batch:
                    if queued.must_be_committed:
                        return transaction
                yield from in_steps(transaction.rollback)
                return None
            transaction.rollback()
            self._log.error("A write failed: {failure}", failure=failed.result)
            batch.remove(failed)
            failed.answer()
        return None

    def _in_steps(self, work: Callable[[], T]) -> Generator[Awaited, None, T]:
        """Run `work` in steps; raise `Abandoned` if that takes long and the server shuts down."""
        end = self._clock.seconds() + BATCH_SECONDS
        steps = in_steps(work, self._clock.seconds)
        while True:
            try:
                awaited = next(steps)
            except StopIteration as stop:
                result: T = stop.value
                return result
            if self._is_ending and self._clock.seconds() > end:
                steps.close()
                raise Abandoned
            yield awaited

    def _apply_each(self, batch: list[QueuedWrite], transaction: Transaction) -> QueuedWrite | None:
        """Apply writes until the batch has used its time; return one that failed, if any did."""
        end = self._clock.seconds() + BATCH_SECONDS
        for at, queued in enumerate(batch):
            if at:
                pause()
            try:
                queued.result = self._applier.apply(transaction, queued.write)
            except _REFUSALS as refusal:
                # Its traceback would hold this batch, and that the value that a refusal may show.
                queued.result = Failure(refusal.with_traceback(None))
            except (DiskFull, StoreFailed):
                raise
            except Exception:
                queued.result = Failure()
                return queued
            if self._clock.seconds() > end:
                self._queue.put_back(batch[at + 1 :])
                del batch[at + 1 :]
                break
        self._applier.finish()
        return None

    # Committing.

    def _commit(self, transaction: Transaction, batch: list[QueuedWrite]) -> None:
        """Commit a batch that was applied; then answer its writers, or recover."""
        self._engine.pin()
        self._transaction = State.COMMITTING
        commit, time = transaction.commit, self._runtime.statistics.time_commit
        if time is not None:
            commit = time(commit, len(batch), self._began, self._database.name.project)
        traces = [trace for queued in batch if (trace := queued.write.trace) is not None]
        committing = self._lock.commit(commit, self._is_checkpoint_due, batch)
        if traces:
            committing = Deferred.fromCoroutine(trace_commit(traces, len(batch), committing))
        # A coroutine of its own would be a dozen frames more for a write that is alone.
        committing.addCallbacks(
            partial(self._committed, batch, traces), partial(self._commit_failed, batch)
        )

    def _commit_failed(self, batch: list[QueuedWrite], failure: Failure) -> None:
        """Show what was durable before; do the batch again, or refuse its writes."""
        error = failure.value
        assert isinstance(error, Exception), failure  # noqa: S101 - a thread catches nothing else
        self._engine.advance()
        self._not_committed(batch, error)

    def _committed(self, batch: list[QueuedWrite], traces: Sequence[Trace], _: None = None) -> None:
        """Show what is durable now, answer its writers, and notify of it."""
        assert self._transaction is State.COMMITTING  # noqa: S101 - durable, then answered
        is_held = self._database.leave()
        self._transaction = State.IDLE
        is_due = self._is_checkpoint_due()
        if not is_due:
            self._lock.give()
        elif is_held:
            # The moment that is held would keep the log from being restarted.
            self._in_thread = State.MAINTAINING
        else:
            # Before the writers are answered, so that what they send next waits for it.
            Deferred.fromCoroutine(self._checkpoint())
        if self._recovery.is_full:
            self._recovery.check_space()
        self._answer_and_notify(batch, traces, checkpoints=is_due and is_held)

    async def _end_unchanged(self, batch: list[QueuedWrite]) -> None:
        """Answer the writers of a batch that has changed nothing, if what it saw was current."""
        try:
            if (confirming := self._lock.confirm()) is not None:
                await confirming
        except Exception as error:
            self._not_committed(batch, error)
        else:
            self._end_transaction()
            self._answer_and_notify(batch)

    def _not_committed(self, batch: list[QueuedWrite], error: Exception) -> None:
        """Do a batch again, or refuse its writes: its commit has failed."""
        if isinstance(error, Conflict):
            self._queue.put_back(batch)
        self._end_transaction()
        if isinstance(error, Unavailable | OutcomeInDoubt):
            self._answer_refused(batch, lambda: error.with_traceback(None))
        elif not isinstance(error, Conflict):
            self._refuse(batch, error)
            return
        self.ended()

    def _end_transaction(self) -> None:
        self._transaction, self.rounds.is_held = State.IDLE, False
        self._lock.give()

    # The round after it.

    def _answer_and_notify(
        self, batch: list[QueuedWrite], traces: Sequence[Trace] = (), *, checkpoints: bool = False
    ) -> None:
        """Answer the writers, then notify the watchers, both in slices; then maybe checkpoint."""
        commits: list[Commit] = []
        conditional: list[QueuedWrite] = []
        for queued in batch:
            if isinstance(queued.result, Outcome):
                if queued.result.commit is not None:
                    commits.append(queued.result.commit)
                if queued.result.volatile:
                    self._database.show_volatile(queued.result)
            if queued.write.condition is not None:
                conditional.append(queued)
        if conditional:
            self._queue.note(conditional)
        self.rounds.add(answer_all(batch))
        if commits:
            notify = self._database.notify(commits)
            self.rounds.add(trace_round(traces, len(batch), notify) if traces else notify)
            # Before the round: no caller who knows of a write may still be served what was kept.
            self._database.committed(commits)
        if checkpoints:
            self.rounds.add(self._begin_checkpoint())
        self.rounds.is_held = False
        self.rounds.start()  # or the one under way goes on; its end calls `ended`
        self._lock.batch_over()

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
        self._queue.put_back(each for each in batch if may_retry and each.only_removes)
        refused = [queued for queued in batch if not (may_retry and queued.only_removes)]
        if self._recovery.failure is not None:
            refused += self._queue.take_all()
        self._answer_refused(refused, partial(Unavailable, reason))
        self.ended()

    # Work on the store in another thread.

    def _is_checkpoint_due(self) -> bool:
        return self._engine.needs_checkpoint() and not self._recovery.is_full

    def _begin_checkpoint(self) -> Steps:
        Deferred.fromCoroutine(self._checkpoint())
        yield

    async def _checkpoint(self) -> None:
        """Keep the log of the store short, under the lock that the batch has kept."""
        await self._maintain_store(self._engine.checkpoint)

    async def _maintain_store(self, work: Callable[[], None]) -> None:
        try:
            await self.run_in_thread(State.MAINTAINING, work)
        finally:
            self._lock.give()
            self.ended()

    async def run_in_thread(self, state: State, work: Callable[[], None]) -> None:
        """Run what waits for the disk; the database has this state meanwhile. Raises as `work`."""
        self._in_thread = state
        try:
            await self._runtime.run_in_thread(work)
        finally:
            self._in_thread = State.IDLE


class WriteLock:
    """The lock of one database for the writes of this process, which alone always has it.

    Attributes:
        problem: why no write is accepted at present, in one sentence; None if they are.
        delay: why this process waits for the lock, in one sentence; None if it does not.

    """

    problem: str | None = None
    delay: str | None = None

    def __init__(self, run_in_thread: RunInThread) -> None:
        """Commit by `run_in_thread`."""
        self._run_in_thread = run_in_thread

    def attach(self, rounds: Rounds, try_again: Callable[[], None]) -> None:
        """Call `try_again` when the lock may be free; watchers are notified in `rounds`."""

    def take(self) -> bool:
        """Acquire the lock; if that fails return False, and try again until `give`."""
        return True

    def give(self) -> None:
        """Release the lock, or stop trying to acquire it."""

    def commit(
        self,
        commit: Callable[[], None],
        must_keep: Callable[[], bool],
        batch: Sequence[QueuedWrite],
    ) -> Deferred[None]:
        """Run `commit`, which blocks, for the writes of a batch; fires when they are durable.

        The lock is released at once unless it must be kept. Errbacks with what `commit` raises,
        or with what the writers are refused with: `Unavailable` or `OutcomeInDoubt`. After
        `Conflict` the batch is done again, from the state that others have made.
        """
        return self._run_in_thread(commit)

    def confirm(self) -> Deferred[None] | None:
        """Find out whether a batch without any commit saw the last durable state.

        None if it did. Else errbacks as `commit`.
        """
        return None

    def run(self, work: Callable[[], None]) -> None:
        """Run `work` with the lock, in a worker thread; raise `StoreFailed`."""
        work()

    def batch_over(self) -> None:
        """Do what had to wait for the end of a batch, or of a round after it."""


@attrs.define(eq=False)
class QueuedWrite:
    """One write in the queue; `result` once it has been applied or refused.

    It `was_held` if it has waited for another contender (`group_commit.Contention`), which it does
    once at most.
    """

    write: Write
    deferred: Deferred[Outcome]
    result: Outcome | Failure | None = None
    was_held: bool = False

    @property
    def must_be_committed(self) -> bool:
        """Whether it has changed anything, of the tree or beside it."""
        result = self.result
        return isinstance(result, Outcome) and (
            result.commit is not None or result.has_changed_rows
        )

    @property
    def only_removes(self) -> bool:
        """Whether it needs no room on the disk."""
        return all(change.value is None for change in self.write.edit.changes)

    def answer(self) -> None:
        """Answer with the result, unless it was answered while its outcome was in doubt."""
        if self.deferred.called:
            return
        if isinstance(self.result, Outcome):
            self.deferred.callback(self.result)
        else:
            self.deferred.errback(self.result)

    def refuse(self, error: Exception) -> None:
        """Answer with an error, unless it was answered while its outcome was in doubt."""
        if not self.deferred.called:
            self.deferred.errback(error)


def answer_all(batch: Sequence[QueuedWrite]) -> Generator[None, None, None]:
    """Answer each write of a batch, in steps: the last one ends with what follows."""
    for at, queued in enumerate(batch):
        if at:
            yield
        queued.answer()


def refuse_all(
    writes: Iterable[QueuedWrite], refusal: Callable[[], Exception]
) -> Generator[None, None, None]:
    """Refuse each write with an error of its own, in steps."""
    for queued in writes:
        queued.refuse(refusal())
        yield


class WriteQueue:
    """Writes in the order in which they came; one whose deadline passes meanwhile is refused.

    Those that compete for a place may be held a moment (`Contention`). Writes that are refused
    leave the queue at once, and their writers are answered in slices, in the order in which they
    came.

    Attributes:
        ready: those that wait for the next batch, and are not held.

    """

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
        self.ready: deque[QueuedWrite] = deque()
        self._contention = Contention(clock, self._release)
        self._timer: IDelayedCall | None = None
        self._timer_at = math.inf
        self._no_look_before = -math.inf

    def __len__(self) -> int:
        """Return how many writes wait, for a batch or for their refusal."""
        held = 0 if self._contention.is_calm else self._contention.held
        return len(self.ready) + held + self._refused

    def add(self, queued: QueuedWrite) -> None:
        """Add a write at the end."""
        self.ready.append(queued)
        deadline = queued.write.deadline
        if deadline is not None and deadline < self._timer_at:
            self._set_timer(deadline)

    def put_back(self, writes: Iterable[QueuedWrite]) -> None:
        """Put writes back before all others, in their order; refuse them after `end`."""
        listed = list(writes)
        if self._end is not None:
            self._refuse(listed, partial(Unavailable, self._end))
            return
        self.ready.extendleft(reversed(listed))
        self._set_timer_for(listed)

    def take_batch(
        self, refusal_of: Callable[[QueuedWrite], str | None] | None
    ) -> list[QueuedWrite]:
        """Remove the next batch; writes that are late, or have a refusal, are refused.

        A large write is a batch of its own. None has a refusal if `refusal_of` is None.
        """
        if self._clock.seconds() >= self._timer_at:  # the earliest deadline of those that wait
            self.refuse_late()
        batch: list[QueuedWrite] = []
        refused: dict[str, list[QueuedWrite]] = {}
        taken: set[int | None] = set()
        while self.ready and len(batch) < BATCH_WRITES:
            queued = self.ready.popleft()
            if not self._contention.is_calm:
                # Not if an earlier one is in the batch, which may be put back before what is held.
                contender = queued.write.contender
                if contender not in taken and self._contention.holds(queued):
                    continue
                taken.add(contender)
            refusal = None if refusal_of is None else refusal_of(queued)
            if refusal is not None:
                refused.setdefault(refusal, []).append(queued)
                continue
            is_large = queued.write.large is not None
            if is_large and batch:
                self.put_back((queued,))
            else:
                batch.append(queued)
            if is_large:
                break
        for reason, writes in refused.items():
            self._refuse(writes, partial(Unavailable, reason))
        return batch

    def note(self, conditional: Iterable[QueuedWrite]) -> None:
        """Record the outcome of writes on a condition, before their writers are answered."""
        self._contention.note(conditional)

    def end(self, reason: str) -> None:
        """Refuse all writes that wait, or are put back from now on."""
        self._end = reason
        self._refuse(self.take_all(), partial(Unavailable, reason))

    def take_all(self) -> list[QueuedWrite]:
        """Remove all writes that wait, those that are held included."""
        self._contention.end()
        writes, self.ready = self.ready, deque()
        return list(writes)

    def refuse_late(self) -> None:
        """Refuse the writes whose deadline has passed."""
        now = self._clock.seconds()
        late = [queued for queued in self.ready if _is_late(queued, now)]
        if late:
            self.ready = deque(each for each in self.ready if not _is_late(each, now))
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

    def _set_timer_for(self, writes: Iterable[QueuedWrite]) -> None:
        deadlines = [each.write.deadline for each in writes]
        earliest = min((at for at in deadlines if at is not None), default=math.inf)
        if earliest < self._timer_at:
            self._set_timer(earliest)

    def _set_timer(self, deadline: float) -> None:
        """Refuse the writes that are late then, instead of at a later time.

        If many wait, it may be a little later: all of them are looked at.
        """
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        self._timer_at = deadline
        pause = max(0.0, max(deadline, self._no_look_before) - self._clock.seconds())
        self._timer = self._clock.callLater(pause, self._on_timer)

    def _on_timer(self) -> None:
        self._timer_at = math.inf
        self.refuse_late()
        self._no_look_before = self._clock.seconds() + LOOK_SECONDS * len(self.ready)
        self._set_timer_for(self.ready)


def _is_late(queued: QueuedWrite, now: float) -> bool:
    return queued.write.deadline is not None and queued.write.deadline <= now


class Contention:
    """The places at which writes on a condition compete: the contender that loses often goes first.

    Theory of operation. A transaction is a write on the condition that its place still holds the
    value from which it was made. Of those made from one value one is done; the others are refused,
    receive the present value, and come back with a new one. The nearest and the fastest contender
    would always be first. So losses are counted for each contender and place. When a batch has
    refused one that has lost `PATIENCE` times or more, the place is *reserved* for the one of them
    that has lost most often: until it has written, the other writes on a condition at, above and
    below the place are held. So it is refused once more at most: if another write of that batch
    replaced the value that it received. Then those that were held are applied; they are refused,
    and the next of them has the place. So a contender loses about as often as there are others.

    A reservation ends after `RESERVED_S` in any case. If it came to nothing, because its contender
    did not come or was still refused, that contender is waited for again only when it has lost
    `PENALTY` times more. So one that is too slow, or loses on purpose, seldom delays others. A
    write is held once at most, so it waits no longer than `RESERVED_S`, and not at all if it would
    be late then.

    Writes without a condition, large ones, and those at other places are never held. Two writes of
    one contender are never reordered: when another one comes, the one that is held goes before it.
    All this concerns one database in one process: what other processes write, or is written without
    a condition, can still refuse the one for which a place is reserved.

    Attributes:
        is_calm: whether no place is reserved, so that nothing is held.

    """

    def __init__(
        self, clock: IReactorTime, release: Callable[[Iterable[QueuedWrite]], None]
    ) -> None:
        """Give back to `release` what was held; it goes before all that waits."""
        self.is_calm = True
        self._clock = clock
        self._release = release
        self._losses: dict[_Claim, int] = {}
        # By each path at or above its place: those at or below a path are found there.
        self._reservations: dict[Path, dict[Path, _Reservation]] = {}
        self._held: dict[int, _Reservation] = {}  # by the contender of what is held there

    @property
    def held(self) -> int:
        """How many writes are held."""
        return len(self._held)

    def holds(self, queued: QueuedWrite) -> bool:
        """Return whether a write that is to be applied has to wait; it is released later then."""
        write, contender = queued.write, queued.write.contender
        if contender is None:
            return False
        if (reservation := self._held.pop(contender, None)) is not None:
            self._release((reservation.held.pop(contender), queued))
            return True
        if write.condition is None or write.large is not None or queued.was_held:
            return False
        found = self._find(write.condition.place.path)
        if found is None or found.contender == contender:
            return False
        if write.deadline is not None and write.deadline <= found.end:
            return False
        queued.was_held = True
        found.held[contender] = queued
        self._held[contender] = found
        return True

    def note(self, writes: Iterable[QueuedWrite]) -> None:
        """Record what has become of writes on a condition, before their writers are answered."""
        lost: dict[_Claim, int] = {}
        for queued in writes:
            claim = _claim_of(queued.write)
            if claim is None:
                continue
            losses, result = self._losses.pop(claim, 0), queued.result
            if isinstance(result, Failure) and result.check(ConditionFailed):
                self._losses[claim] = lost[claim] = losses + 1
            else:
                self._end_if_reserved(claim)
        for claim in sorted(lost, key=lost.__getitem__, reverse=True):
            if lost[claim] < PATIENCE or len(self._all) >= MAX_RESERVATIONS:
                break
            if self._find(claim[1]) is None:
                self._reserve(*claim)
        while len(self._losses) > MAX_CLAIMS:
            del self._losses[next(iter(self._losses))]

    def end(self) -> None:
        """Release all that is held, and end all reservations."""
        for reservation in list(self._all.values()):
            self._end(reservation)

    @property
    def _all(self) -> dict[Path, _Reservation]:
        return self._reservations.get((), {})

    def _find(self, path: Path) -> _Reservation | None:
        """Return a place at, above or below a path that is reserved."""
        if self.is_calm:
            return None
        for below in self._reservations.get(path, {}).values():
            return below
        found = (self._reservations.get(above, {}).get(above) for above in _at_or_above(path))
        return next((each for each in found if each is not None), None)

    def _reserve(self, contender: int, path: Path) -> None:
        timer = self._clock.callLater(LOOK_S, self._look, (contender, path))
        end = self._clock.seconds() + RESERVED_S
        reservation = _Reservation(contender, path, end, timer)
        for above in _at_or_above(path):
            self._reservations.setdefault(above, {})[path] = reservation
        self.is_calm = False

    def _look(self, claim: _Claim) -> None:
        """Stop waiting for a contender that has not come back for long."""
        reservation = self._all[claim[1]]
        reservation.looks -= 1
        if reservation.looks:
            reservation.timer = self._clock.callLater(LOOK_S, self._look, claim)
        else:
            self._losses.pop(claim, None)
            self._losses[claim] = -PENALTY
            self._end_if_reserved(claim)

    def _end_if_reserved(self, claim: _Claim) -> None:
        contender, path = claim
        reservation = self._all.get(path)
        if reservation is not None and reservation.contender == contender:
            self._end(reservation)

    def _end(self, reservation: _Reservation) -> None:
        if reservation.timer.active():
            reservation.timer.cancel()
        for above in _at_or_above(reservation.path):
            near = self._reservations[above]
            del near[reservation.path]
            if not near:
                del self._reservations[above]
        self.is_calm = not self._reservations
        held, reservation.held = reservation.held, {}
        for contender in held:
            del self._held[contender]
        self._release(held.values())


@attrs.define(eq=False)
class _Reservation:
    """A place that is reserved for a contender, until a time in seconds of the clock.

    `held` are the writes that wait for its end, by their contenders.
    """

    contender: int
    path: Path
    end: float
    timer: IDelayedCall
    looks: int = LOOKS
    held: dict[int, QueuedWrite] = attrs.field(factory=dict)


def _at_or_above(path: Path) -> Iterator[Path]:
    return (path[:length] for length in range(len(path) + 1))


def _claim_of(write: Write) -> _Claim | None:
    if write.condition is None or write.contender is None:
        return None
    return write.contender, write.condition.place.path


class Rounds:
    """The rounds of one database.

    Theory of operation. After each commit the watchers are notified of it: one round. It goes in
    slices, so other requests are served meanwhile, but no batch of this database begins before the
    round is over. So everything in a round sees exactly the state that the commit left, rounds
    neither overlap nor pile up, and a database with many watchers slows down its own writers only,
    at most by what notifying costs.

    Other work needs the same stillness (`run_later`). It is run between batches too, when all
    watchers have been notified of all that is durable. Waiting writes go first, one batch before
    each further piece of such work, so that neither can hold up the other for ever.

    Attributes:
        is_held: set while a batch is being committed and answered; only what was added by
            `run_beside` begins then.
        is_busy: whether a round is under way.

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
        self.is_busy = False

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way and nothing waits."""
        return not (self.is_busy or self._round or self._later)

    @property
    def is_waiting(self) -> bool:
        """Whether anything of a round has not begun."""
        return bool(self._round)

    def add(self, steps: Steps) -> None:
        """Add to the round under way, or to the one that `start` begins."""
        self._round.append(steps)

    def ends_with(self, steps: Steps) -> bool:
        """Return whether this was added last to the round, and has not begun."""
        return bool(self._round) and self._round[-1] is steps

    def run_later(self, steps: Steps) -> None:
        """Run this when all watchers have been notified of what is durable."""
        self._later.append(steps)
        if not self._are_writes_waiting():
            self.start()

    def run_beside(self, steps: Steps) -> None:
        """Run this as `run_later` does, but also while a batch is applied or committed.

        For what needs no state that the batch leaves: what the batch adds comes after it.
        """
        self._later.append(steps)
        if not (self._round or self.is_busy):
            self._begin()

    def run_first(self, steps: Steps) -> None:
        """Run this as `run_beside` does, and before a batch begins, or another is notified of."""
        is_next = not (self.is_busy or (self.is_held and self._round))
        self._round.append(steps)
        if is_next:
            self._begin()

    def start(self) -> None:
        """Begin what waits, unless something is under way; a little is done before this returns."""
        if (self._round or self._later) and not (self.is_busy or self.is_held):
            self.is_busy = True  # as `_begin`, which would be a call more for each write
            self._slices.start(self._run())

    def _begin(self) -> None:
        self.is_busy = True
        self._slices.start(self._run())

    def _run(self) -> Steps:
        while self._round or self._later:
            is_later = not self._round
            try:
                yield from (self._later if is_later else self._round).popleft()
            except Exception:
                self._log.failure("Work in slices failed.")
            if is_later and not self._round and self._are_writes_waiting():
                break
        self.is_busy = False
        self._done()


class MaintenanceList:
    """What is to be done to one store in the background, one after the other.

    Indexes are built so, and what a database holds is counted. No writer is answered and no watcher
    notified.

    Attributes:
        waiting: what is to be done, the first of it now.

    """

    def __init__(self) -> None:
        self.waiting: list[Maintenance] = []
        self._added: Callable[[], None] | None = None
        self._is_over = False

    def attach(self, added: Callable[[], None]) -> None:
        """Call `added` when there is something to be done."""
        self._added = added
        if self.waiting:
            added()

    def add(self, work: Maintenance) -> None:
        """Do steps of `work` until there is nothing left of it to do."""
        if self._is_over:
            return
        if work not in self.waiting:
            self.waiting.append(work)
        if self._added is not None:
            self._added()

    def end(self) -> None:
        """Do nothing more, and forget what was to be done."""
        self._is_over = True
        self.waiting.clear()

    def do_step(self, transaction: Transaction) -> bool:
        """Do one step in a transaction; return False if there was nothing left to do."""
        while self.waiting:
            work = self.waiting[0]
            try:
                if work(transaction):
                    return True
            except (DiskFull, StoreFailed):
                raise  # it is tried again
            except Exception:
                self._remove(work)
                raise
            self._remove(work)
        return False

    def _remove(self, work: Maintenance) -> None:
        if work in self.waiting:  # else everything was ended meanwhile
            self.waiting.remove(work)


class Pace:
    """Pauses between the steps of maintenance of one database while others are busy.

    Theory of operation. A step is applied without delay, since writes wait for its end. After one
    that took `t` of the reactor's time, the next one begins when `SHARE` times `t` have passed
    since it began. So maintenance has that share of the time, however long others wait. Time that
    others had during the step and its commit counts too: where the share is less anyway, there is
    no pause. And a pause ends as soon as others are not busy. In it no transaction is open and
    no lock is held, so a write that comes is applied at once.
    """

    def __init__(self, runtime: Runtime, go_on: Callable[[], None]) -> None:
        """Call `go_on` when a pause may be over."""
        self._clock, self._used = runtime.clock, runtime.used_seconds
        self._go_on = go_on
        self._end = -inf
        self._looked, self._used_then = 0.0, 0.0
        self._next: IDelayedCall | None = None

    def measure(self, step: Generator[Awaited, None, T]) -> Generator[Awaited, None, T]:
        """Do a step, whose time decides how long the pause is that follows."""
        seconds, spent = self._clock.seconds, 0.0
        began = resumed = seconds()
        try:
            while True:
                try:
                    awaited = next(step)
                except StopIteration as stop:
                    result: T = stop.value
                    return result
                spent += seconds() - resumed
                yield awaited
                resumed = seconds()
        finally:
            step.close()
            self._looked, self._used_then = seconds(), self._used()
            self._end = began + SHARE * (spent + self._looked - resumed)

    def may_begin(self) -> bool:
        """Return whether the next step may begin; if not, `go_on` is called in some ms."""
        if self._next is not None:
            return False
        now, used = self._clock.seconds(), self._used()
        are_calm = used - self._used_then <= CALM * (now - self._looked)
        if are_calm or now >= self._end:
            self._end = -inf  # also if it does not begin now
            return True
        self._looked, self._used_then = now, used
        self._next = self._clock.callLater(min(CALM_LOOK_S, self._end - now), self._look)
        return False

    def end(self) -> None:
        """End the pause; no step follows."""
        if self._next is not None:
            self._next.cancel()
            self._next = None

    def _look(self) -> None:
        self._next = None
        self._go_on()


def maintain_once(
    engine: Engine, work: Maintenance, seconds: Callable[[], float]
) -> Generator[Awaited, None, Transaction | None]:
    """Do one step of maintenance, with pauses, in a transaction of its own.

    Returns the transaction, None if there was nothing left to do.
    """
    transaction = engine.begin()
    try:
        has_changed = yield from in_steps(partial(work, transaction), seconds)
    except BaseException:
        transaction.rollback()
        raise
    if has_changed:
        return transaction
    transaction.rollback()
    return None


class Recovery:
    """Recovers one store after an error: a full disk, a failed sync.

    A full disk releases the reserve, and from then on only removals are accepted; the reserve is
    allocated again as soon as there is room for it. The log says so at once, and says that there is
    room again when there is for the largest write that was refused. Until then smaller ones are
    accepted: a caller cannot keep others from writing by what is too large. After any other failure
    nothing is acknowledged until the store has been recovered from disk and verified, which is
    tried again at growing intervals.

    All of that waits for the disk in the thread in which commits wait for it, never in the
    reactor's thread; so it never runs during a commit, and no commit runs during it.

    Attributes:
        is_full: whether the disk is full, so that only removals are accepted.
        failure: why no write is accepted at all, None if writes are.

    """

    _log = Logger()

    def __init__(
        self, engine: Engine, runtime: Runtime, lock: WriteLock, commits: GroupCommit
    ) -> None:
        """Recover `engine` between the batches of `commits`, when no other process writes to it."""
        self.is_full = False
        self.failure: str | None = None
        self._engine = engine
        self._runtime = runtime
        self._lock = lock
        self._commits = commits
        self._next: IDelayedCall | None = None
        self._is_closed = False
        self._logged = ""
        self._refused: _Refused | None = None

    @property
    def write_problem(self) -> str | None:
        """What is wrong, in one sentence; None if nothing is."""
        if self.failure is not None:
            return f"The store is being recovered after a failure: {self.failure}"
        return "The disk is full; only removals are accepted." if self.is_full else None

    def begin(self, error: BaseException) -> str:
        """Begin to recover from the error of a transaction; return the message for its writers.

        Nothing of the transaction was applied.
        """
        if isinstance(error, DiskFull):
            advice = ": remove smaller parts first" if self.is_full else ""
            self.is_full = True
            Deferred.fromCoroutine(self._release_reserve(error))
            return f"The disk is full{advice}."
        if isinstance(error, DeletionUnderWay):
            return str(error)  # as any request for the database is answered meanwhile
        if isinstance(error, CannotCreateStore):
            note = self._runtime.creation_lines.take()
            if note is not None:
                self._log.error("No database was created: {error}{note}", error=error, note=note)
            return str(error)  # there is nothing to recover
        self._log.error("The store failed: {error}", error=error)
        self.failure = str(error) if isinstance(error, StoreFailed) else "unexpected error"
        self._schedule_recovery(0)
        return self.write_problem or ""

    def check_space(self) -> None:
        """Check now whether a full disk has room again, because something was removed."""
        if self.is_full and self.failure is None and not self._is_closed:
            self._check_space()

    def close(self) -> None:
        """Begin nothing new."""
        self._is_closed = True
        if self._next is not None and self._next.active():
            self._next.cancel()

    def _later(self, pause: float, call: Callable[[], object]) -> None:
        if self._next is not None and self._next.active():
            self._next.cancel()
        if not self._is_closed:
            self._next = self._runtime.clock.callLater(pause, call)

    async def _run(self, work: Callable[[], None]) -> BaseException | None:
        """Run what waits for the disk; return the error if it failed."""
        try:
            await self._commits.run_in_thread(State.RECOVERING, partial(self._lock.run, work))
        except Exception as error:
            return error
        return None

    async def _release_reserve(self, error: DiskFull) -> None:
        found: list[int | None] = []
        refused = self._refused
        if is_first := refused is None:
            self._refused = refused = _Refused(error.file, error.needed)
        refused.needed = max(refused.needed, error.needed)

        def release() -> None:
            found.append(refused.free())
            self._engine.release_reserve()

        await self._run(release)
        if is_first:
            self._log_full(error, next(iter(found), None))
        self._await_space()
        self._commits.ended()

    def _log_full(self, error: DiskFull, free: int | None) -> None:
        if error.file is None or free is None:
            self._log.error("{reason} Only removals are accepted.", reason=str(error))
            return
        self._log.error(
            "The disk is full: {folder} had {free:,} bytes free, and a write to {file}{needed} was "
            "refused. Only removals are accepted until there is room.",
            folder=str(error.file.parent),
            free=free,
            file=error.file.name,
            needed=f" that needs about {error.needed:,}" if error.needed else "",
        )

    def _await_space(self) -> None:
        if self.failure is None:
            self._later(SPACE_CHECK_S, self._check_space)

    def _check_space(self) -> None:
        if self._refused is None:
            return
        if self._commits.is_store_free:
            Deferred.fromCoroutine(self._restore_reserve(self._refused))
        else:
            self._await_space()

    async def _restore_reserve(self, refused: _Refused) -> None:
        results: list[bool] = []

        def restore() -> None:
            if self._engine.restore_reserve():
                results.append(refused.has_room())

        await self._run(restore)
        if results:
            self.is_full = False
        if results == [True]:
            self._refused = None
            self._log.info("The disk has room again; writes are accepted again.")
        else:
            if results and not refused.is_partial:
                refused.is_partial = True
                self._log.warn(
                    "The disk has room for small writes, which are accepted again; one that needs "
                    "about {needed:,} bytes is refused until there is more.",
                    needed=refused.needed,
                )
            self._await_space()
        self._commits.ended()

    def _schedule_recovery(self, attempt: int) -> None:
        pause = RECOVERY_PAUSES[min(attempt, len(RECOVERY_PAUSES) - 1)]
        self._later(pause, lambda: Deferred.fromCoroutine(self._recover(attempt)))

    async def _recover(self, attempt: int) -> None:
        error = await self._run(self._engine.recover)
        if error is not None:
            if str(error) != self._logged:
                self._log.error("The store could not be recovered: {error}", error=error)
            self._logged = str(error)
            self._schedule_recovery(attempt + 1)
        else:
            self.failure = None
            self._logged = ""
            self._log.info("The store has been recovered and verified; it accepts writes again.")
            if self._refused is not None:
                self._await_space()
        self._commits.ended()


@attrs.define
class _Refused:
    """What was refused since the disk had room last.

    `needed` are the bytes of the largest write, `is_partial` whether smaller ones are accepted.
    """

    file: pathlib.Path | None
    needed: int
    is_partial: bool = False

    def has_room(self) -> bool:
        """Return whether there is room for all that was refused; in a worker thread."""
        free = self.free()
        return free is None or free >= self.needed

    def free(self) -> int | None:
        """Return how many bytes are free where the file is, None if that is not known."""
        try:
            return None if self.file is None else shutil.disk_usage(self.file.parent).free
        except OSError:
            return None


async def trace_commit(traces: Sequence[Trace], writes: int, committing: Awaitable[None]) -> None:
    """Await the commit of a batch, and record a span of it for each write that is sampled."""
    began, failed = now_ns(), True
    try:
        await committing
        failed = False
    finally:
        for trace in traces:
            trace.record("commit", began, {WRITES: writes}, failed=failed)


def trace_round(traces: Sequence[Trace], writes: int, notify: Steps) -> Steps:
    """Notify of a batch, in steps, and record a span for each write that is sampled."""
    began = now_ns()
    yield from notify
    for trace in traces:
        trace.record("notify", began, {WRITES: writes})
