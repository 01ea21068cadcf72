"""Group commit: writes collect while one commit waits for the disk, then go down together.

All Python work of a batch happens on the reactor's thread within one turn; only `commit` runs in a
thread, and only to wait. Meanwhile new writes gather for the batch after it, so batches grow where
the disk is slow. Whatever a write sees in its transaction is told to nobody before that transaction
is durable, refusals included.

When a commit fails, none of its writes was applied and all of them are told so; what is done about
it then is the affair of `care`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from treedbd.database.care import Care
from treedbd.database.platform import Platform
from treedbd.database.question import (
    TURN_MISSED,
    ConditionFailed,
    DeadlinePassed,
    Outcome,
    PermissionDenied,
    TooLarge,
    Unavailable,
    Write,
)
from treedbd.store.mapping import Failed, Full, Mapping, Transaction
from treedbd.tree.event import Telling
from treedbd.tree.value import InvalidData

Apply: TypeAlias = Callable[[Transaction, Write], Outcome]
Tell: TypeAlias = Callable[[Sequence[Telling]], None]

BATCH_WRITES = 1024
BATCH_SECONDS = 0.02

_REFUSALS = (PermissionDenied, ConditionFailed, InvalidData, TooLarge, DeadlinePassed)


@attrs.define(eq=False)
class _Turn:
    """One write, waiting; `result` once it has been judged."""

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


class Batcher:
    """The queue of writes of one database."""

    _log = Logger()

    def __init__(
        self,
        mapping: Mapping,
        apply: Apply,
        tell: Tell,
        platform: Platform,
    ) -> None:
        """Write into `mapping`; `tell` hears what was made durable, in sequence order."""
        self._mapping = mapping
        self._apply = apply
        self._tell = tell
        self._run_commit = platform.run_commit
        self._clock = platform.clock
        self._waiting: deque[_Turn] = deque()
        self._is_committing = False
        self._scheduled: IDelayedCall | None = None
        self._alarm: IDelayedCall | None = None
        self._care = Care(mapping, platform, lambda: self._is_committing, self._go_on)
        self._closed: Deferred[None] | None = None

    @property
    def trouble(self) -> str | None:
        """Why writes are refused at present, in a sentence; None while all is well."""
        return self._care.trouble

    def submit(self, write: Write) -> Deferred[Outcome]:
        """Queue a write; fires once it is durable, or with why it is not done."""
        turn = _Turn(write, Deferred())
        if self._closed is not None:
            turn.refuse(Unavailable("The database is shutting down."))
        elif not self._care.takes_writes:
            turn.refuse(Unavailable(self.trouble or ""))
        else:
            self._waiting.append(turn)
            self._schedule()
            self._arm(write.deadline)
        return turn.deferred

    def close(self) -> Deferred[None]:
        """Take no more writes; fires when those under way have been answered."""
        if self._closed is None:
            self._closed = Deferred()
            self._finish_closing()
        return self._closed

    def _schedule(self) -> None:
        is_free = not (self._is_committing or self._care.is_busy)
        if is_free and self._scheduled is None:
            self._scheduled = self._clock.callLater(0, self._run)

    def _run(self) -> None:
        self._scheduled = None
        if self._care.is_busy:
            return
        turns = self._take()
        try:
            turns, transaction = self._judge(turns)
        except Exception as error:
            self._fail(turns, error)
            return
        if transaction is None:
            self._conclude(turns)
            return
        self._is_committing = True
        committed = self._run_commit(transaction.commit)
        committed.addCallbacks(
            lambda _: self._succeed(turns),
            lambda failure: self._fail(turns, failure.value),
        )

    def _take(self) -> list[_Turn]:
        """Take the next batch off the queue, refusing what cannot be done now."""
        self._withdraw_late()
        turns: list[_Turn] = []
        while self._waiting and len(turns) < BATCH_WRITES:
            turn = self._waiting.popleft()
            if self._care.is_full and not _only_removes(turn.write):
                turn.refuse(Unavailable(self.trouble or ""))
            else:
                turns.append(turn)
        return turns

    def _judge(self, turns: list[_Turn]) -> tuple[list[_Turn], Transaction | None]:
        """Apply the writes to one transaction; give back which were, and the transaction.

        No transaction comes back where none of them changed anything. A write that breaks is
        taken out and the others start again from a clean transaction.
        """
        while turns:
            transaction = self._mapping.begin()
            broken = None
            try:
                broken = self._apply_each(turns, transaction)
            except BaseException:
                transaction.rollback()
                raise
            if broken is None:
                if any(_telling(turn.result) is not None for turn in turns):
                    return turns, transaction
                transaction.rollback()
                return turns, None
            transaction.rollback()
            self._log.error("A write broke: {failure}", failure=broken.result)
            turns.remove(broken)
            broken.answer()
        return turns, None

    def _apply_each(self, turns: list[_Turn], transaction: Transaction) -> _Turn | None:
        """Apply writes until the batch has taken its time; the rest goes back to the queue."""
        end = self._clock.seconds() + BATCH_SECONDS
        for at, turn in enumerate(turns):
            try:
                turn.result = self._apply(transaction, turn.write)
            except _REFUSALS as refusal:
                turn.result = Failure(refusal)
            except (Full, Failed):
                raise
            except Exception:
                turn.result = Failure()
                return turn
            if self._clock.seconds() > end:
                self._waiting.extendleft(reversed(turns[at + 1 :]))
                del turns[at + 1 :]
                break
        return None

    def _succeed(self, turns: list[_Turn]) -> None:
        self._is_committing = False
        self._care.look_for_room()  # begun before its writers know: what they send next waits
        self._conclude(turns)

    def _conclude(self, turns: list[_Turn]) -> None:
        for turn in turns:
            turn.answer()
        tellings = [telling for turn in turns if (telling := _telling(turn.result)) is not None]
        try:
            if tellings:
                self._tell(tellings)
        except Exception:
            self._log.failure("Watchers could not be told.")
        finally:
            self._go_on()

    def _fail(self, turns: list[_Turn], error: BaseException) -> None:
        self._is_committing = False
        may_try_again = isinstance(error, Full) and not self._care.is_full
        reason = self._care.take(error)
        for turn in reversed(turns):
            if may_try_again and _only_removes(turn.write):
                self._waiting.appendleft(turn)  # the reserve will have made room for it
            else:
                turn.refuse(Unavailable(reason))
        if not self._care.takes_writes:
            while self._waiting:
                self._waiting.popleft().refuse(Unavailable(reason))
        self._go_on()

    def _go_on(self) -> None:
        if self._waiting:
            self._schedule()
        self._finish_closing()

    def _finish_closing(self) -> None:
        is_busy = self._is_committing or self._care.is_busy
        if self._closed is None or self._closed.called or is_busy or self._waiting:
            return
        self._care.close()
        if self._alarm is not None and self._alarm.active():
            self._alarm.cancel()
        self._closed.callback(None)

    def _arm(self, deadline: float | None) -> None:
        """See to it that waiting writes are withdrawn at this time, if not sooner."""
        if deadline is None:
            return
        if self._alarm is not None and self._alarm.active():
            if self._alarm.getTime() <= deadline:
                return
            self._alarm.cancel()
        pause = max(0.0, deadline - self._clock.seconds())
        self._alarm = self._clock.callLater(pause, self._ring)

    def _ring(self) -> None:
        self._withdraw_late()
        deadlines = [turn.write.deadline for turn in self._waiting]
        self._arm(min((at for at in deadlines if at is not None), default=None))

    def _withdraw_late(self) -> None:
        now = self._clock.seconds()
        late = [turn for turn in self._waiting if turn.is_late(now)]
        if late:
            self._waiting = deque(turn for turn in self._waiting if not turn.is_late(now))
        for turn in late:
            turn.refuse(DeadlinePassed(TURN_MISSED))


def _telling(result: Outcome | Failure | None) -> Telling | None:
    return result.telling if isinstance(result, Outcome) else None


def _only_removes(write: Write) -> bool:
    return all(change.value is None for change in write.edit.changes)
