"""Group commit: writes collect while one commit waits for the disk, then are committed together.

Theory of operation. All Python work of a batch happens in the reactor's thread, in slices of a few
milliseconds (`slices`) while its transaction stays open. A write is one step, or many if it pauses
(`loop.pause`): a large one does, and is a batch of its own. Only `commit` runs in another thread,
and only to wait. All the while reads are served, from the last durable state, and new writes
collect for the next batch, so batches grow where the disk is slow. Whatever a write reads in its
transaction is revealed to no caller before that transaction is durable, refusals included. Then
comes a round (`write_lock.Rounds`), in which first the writers are answered, then the watchers
notified; the next batch begins when it is over. Processes that share a database have its write lock
(`write_lock`) for one batch each. When a commit fails, none of its writes was applied and all of
them are refused.

`GroupCommit` decides what happens next. Its parts: `WriteQueue` has the writes that wait, and
`Contention` holds those that compete for a place; `BatchApplier` applies a batch. Between batches,
`Upkeep` checkpoints and compacts the store, and steps of maintenance, such as building indexes, run
in transactions of their own. `Recovery` brings the store back after an error.
"""

from __future__ import annotations

import math
import pathlib
import shutil
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Generator, Iterable, Iterator, Sequence
from functools import partial
from time import perf_counter
from typing import Final, TypeAlias, TypeVar

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from treedbd.database.requests import (
    SHUTTING_DOWN,
    ConditionFailed,
    DeadlinePassed,
    Outcome,
    OutcomeInDoubt,
    PermissionDenied,
    QueuedWrite,
    QuotaExceeded,
    TooLarge,
    TooManyDisconnectWrites,
    Unavailable,
    UnknownDatabase,
    Write,
    answer_all,
    refuse_all,
)
from treedbd.database.runtime import Runtime
from treedbd.database.slices import Slices, StepQueue, Steps
from treedbd.database.write_lock import Rounds, WriteLock
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
_REFUSALS: Final = (
    *(PermissionDenied, ConditionFailed, InvalidData, TooLarge, DeadlinePassed),
    *(QuotaExceeded, TooManyDisconnectWrites, UnknownDatabase),
)

_POLL_S: Final = 0.001
"""Seconds between two looks whether the store can be compacted."""

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

Apply: TypeAlias = Callable[[Transaction, Write], Outcome]
OnCommitted: TypeAlias = Callable[[Sequence[Commit]], None]
Notify: TypeAlias = Callable[[Sequence[Commit]], Steps]
Maintenance: TypeAlias = Callable[[Transaction], bool]
"""Does one step in a transaction; returns False if there was nothing left to do."""
_Claim: TypeAlias = tuple[int, Path]
"""A contender (`Write.contender`), and the place of its condition."""


class Abandoned(Exception):
    """A batch that has taken long is given up, because the server is shutting down."""


class GroupCommit:
    """The group commit of one database: decides when its writes are applied and committed.

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
        lock: WriteLock | None = None,
    ) -> None:
        """Write into `engine`, under `lock`; without it the database is of this process alone.

        `on_committed` is called with the commits of a batch, in sequence order, in the turn in
        which they became durable and before any of their writers is answered; `notify` notifies the
        watchers of them afterwards. `leave` lets reads show what was committed, and returns
        whether the moment before is held until the watchers were notified.
        """
        self._lock: Final[WriteLock] = WriteLock(runtime.run_in_thread) if lock is None else lock
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
            engine, runtime, self._lock, lambda: self._may_begin, self._resume_writes
        )
        self._maintenance: Maintenance | None = None
        self._is_maintenance_due = False
        self._recovery = Recovery(
            engine, runtime, lambda: self._is_writing, self._resume_writes, self._lock.run
        )
        self._lock.attach(self.rounds, self.try_again)
        self._damage: str | None = None
        self._is_ending = False
        self._closed: Deferred[None] | None = None

    @property
    def write_problem(self) -> str | None:
        """Why writes are refused at present, in one sentence; None if they are accepted."""
        of_store = self._damage or self._recovery.write_problem or self._lock.problem
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
        elif self._damage or self._recovery.failure or self._lock.problem:
            queued.refuse(Unavailable(self.write_problem or ""))
        else:
            self._waiting.add(queued)
            self._schedule()
        return queued.deferred

    def maintain(self, work: Maintenance) -> None:
        """Do work on the store in transactions of its own, between the batches of writes.

        `work` does one step in a transaction, and returns False if there was nothing left to do. No
        writer is answered and no watcher notified. Work that is under way is replaced.
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
        """Begin what waits for the write lock."""
        if self._waiting or self._maintenance is not None:
            self._schedule()
        elif self._closed is not None:
            self._finish_closing()

    def _refusal_of(self, queued: QueuedWrite) -> str | None:
        """Return why a write cannot be done now, None if it can."""
        must_wait = self._recovery.is_full and not queued.only_removes
        return self.write_problem or "" if must_wait else self._lock.problem

    def _refusal_of_late(self) -> Exception:
        """Return what a write is refused with whose deadline passes while it waits."""
        if self._lock.delay is not None:
            return Unavailable(self._lock.delay)
        return DeadlinePassed("it was applied")

    def _schedule(self) -> None:
        if self._may_begin and self._scheduled is None:
            self._scheduled = self._clock.callLater(0, self._begin)

    def _begin(self) -> None:
        self._scheduled = None
        if not self._may_begin:
            return
        if not (self._waiting or self._maintenance):
            self._lock.give()
            return
        # What others have committed meanwhile may begin a round. The batch does not wait for its
        # end, because others wait for the lock; the next one does.
        if not self._lock.take() or self._is_writing or self._recovery.is_busy:
            return
        work = self._maintenance
        may_maintain = work is not None and not self._recovery.is_full
        if work is not None and may_maintain and (self._is_maintenance_due or not self._waiting):
            steps = self._maintain_once(work)
        elif self._waiting:
            steps = self._apply_and_commit(self._waiting.take_batch(self._refusal_of))
        else:
            self._lock.give()
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
            committing = self._lock.commit(commit, self._is_checkpoint_due, batch)
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
                self._lock.give()
            self._recovery.check_space()
            self._answer_and_notify(batch, checkpoints=is_due and is_held)

    async def _end_unchanged(self, batch: list[QueuedWrite]) -> None:
        """Answer the writers of a batch that has changed nothing, if what it saw was current."""
        try:
            if (confirming := self._lock.confirm()) is not None:
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
        self._lock.give()

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
        self._lock.batch_over()
        if self._waiting:
            self._schedule()
            return
        self.rounds.start()
        if self._maintenance is not None:
            self._schedule()
        elif self._may_begin:
            self._lock.give()  # the writes that it was taken for were refused meanwhile
        if self._closed is not None:
            self._finish_closing()

    def _finish_closing(self) -> None:
        if self._closed is None or self._closed.called or self._is_working or len(self._waiting):
            return
        self._recovery.close()
        self._waiting.close()
        self._closed.callback(None)


class WriteQueue:
    """Writes in the order in which they came; one whose deadline passes meanwhile is refused.

    Those that compete for a place may be held a moment (`Contention`). Writes that are refused
    leave the queue at once, and their writers are answered in slices, in the order in which they
    came.
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
        """Record what has become of a batch, before its writers are answered."""
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


@attrs.frozen(eq=False)
class BatchApplier:
    """Applies batches to `engine` in one transaction each, in steps; each write by `apply`.

    A batch that has used its time ends with the write that is being applied: `requeue` takes the
    writes that are left. `is_ending` returns whether the server is shutting down.
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


class MaintenanceList:
    """What is to be done to one store in the background, one after the other.

    Indexes are built so, and what a database holds is counted.
    """

    def __init__(self) -> None:
        self._maintain: Callable[[Maintenance], None] | None = None
        self._waiting: list[Maintenance] = []

    def begin(self, maintain: Callable[[Maintenance], None]) -> None:
        """Do it from now on by `maintain` (`GroupCommit.maintain`), which knows of one thing."""
        self._maintain = maintain
        if self._waiting:
            maintain(self._do_step)

    def add(self, work: Maintenance) -> None:
        """Do steps of `work` until there is nothing left of it to do."""
        if work not in self._waiting:
            self._waiting.append(work)
        if self._maintain is not None:
            self._maintain(self._do_step)

    def _do_step(self, transaction: Transaction) -> bool:
        while self._waiting:
            work = self._waiting[0]
            try:
                if work(transaction):
                    return True
            except (DiskFull, StoreFailed):
                raise  # it is tried again
            except Exception:
                self._waiting.remove(work)
                raise
            self._waiting.remove(work)
        return False


def maintain_once(engine: Engine, work: Maintenance) -> Generator[None, None, Transaction | None]:
    """Do one step of maintenance, with pauses, in a transaction of its own.

    Returns the transaction, None if there was nothing left to do.
    """
    transaction = engine.begin()
    try:
        has_changed = yield from in_steps(partial(work, transaction))
    except BaseException:
        transaction.rollback()
        raise
    if has_changed:
        return transaction
    transaction.rollback()
    return None


class Upkeep:
    """Checkpoints and compacts one store, between the batches.

    Both wait for the disk in another thread. No batch begins meanwhile; reads go on.

    Attributes:
        is_busy: whether the store is being worked on, so that no batch may begin.

    """

    def __init__(
        self,
        engine: Engine,
        runtime: Runtime,
        lock: WriteLock,
        may_begin: Callable[[], bool],
        resume_writes: Callable[[], None],
    ) -> None:
        """Work on `engine` when `may_begin`; call `resume_writes` when it is free again."""
        self.is_busy = False
        self._engine = engine
        self._runtime = runtime
        self._lock = lock
        self._may_begin = may_begin
        self._resume_writes = resume_writes

    async def checkpoint(self) -> None:
        """Keep the store short, under the lock that a batch has kept."""
        await self._run(self._engine.checkpoint)

    async def compact(self) -> tuple[int, int]:
        """Give free space back to the file system; return the bytes before and after.

        Raises `DiskFull` or `StoreFailed`.
        """
        if self._engine.read(lambda view: view.sequence()) == 0:
            return 0, 0
        before = self._engine.size()
        while not (self._may_begin() and self._lock.take() and self._may_begin()):
            await deferLater(self._runtime.clock, _POLL_S)
        await self._run(self._engine.compact)
        return before, self._engine.size()

    async def _run(self, work: Callable[[], None]) -> None:
        self.is_busy = True
        try:
            await self._runtime.run_in_thread(work)
        finally:
            self.is_busy = False
            self._lock.give()
            self._resume_writes()


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
        is_busy: whether the store is being worked on, so that no commit may begin.
        is_full: whether the disk is full, so that only removals are accepted.
        failure: why no write is accepted at all, None if writes are.

    """

    _log = Logger()

    def __init__(
        self,
        engine: Engine,
        runtime: Runtime,
        is_committing: Callable[[], bool],
        resume_writes: Callable[[], None],
        run_locked: Callable[[Callable[[], None]], None],
    ) -> None:
        """Call `resume_writes` when the store is free again; `is_committing` says if it is not.

        `run_locked` runs what writes to the store, in a worker thread, when no other process does.
        """
        self._run_locked = run_locked
        self.is_busy = False
        self.is_full = False
        self.failure: str | None = None
        self._engine = engine
        self._runtime = runtime
        self._is_committing = is_committing
        self._resume_writes = resume_writes
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
        self.is_busy = True
        try:
            await self._runtime.run_in_thread(partial(self._run_locked, work))
        except Exception as error:
            return error
        finally:
            self.is_busy = False
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
        self._resume_writes()

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
        if self._is_committing() or self.is_busy:
            self._await_space()
        else:
            Deferred.fromCoroutine(self._restore_reserve(self._refused))

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
        self._resume_writes()

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
        self._resume_writes()


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
        if write.condition is None or queued.is_large or queued.was_held:
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
