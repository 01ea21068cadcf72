"""Recovery of a store after an error: a full disk, a failed sync.

A full disk releases the reserve, and from then on only removals are accepted; the reserve is
allocated again as soon as there is room for it. After any other failure nothing is acknowledged
until the store has been recovered from disk and verified, which is tried again at growing
intervals.

All of that waits for the disk in the thread in which commits wait for it, never in the reactor's
thread; so it never runs during a commit, and no commit runs during it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger

from treedbd.database.runtime import Runtime
from treedbd.store.engine import CannotCreateStore, DiskFull, Engine, StoreFailed

SPACE_CHECK_S: Final = 0.5
"""Seconds between two checks whether a full disk has room again."""
RECOVERY_PAUSES: Final = (0.0, 0.1, 0.5, 1.0, 2.0, 5.0)
"""Seconds before each attempt to recover a store; the last one repeats."""


class Recovery:
    """Recovers one store.

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
        run_in_turn: Callable[[Callable[[], None]], None],
    ) -> None:
        """Call `resume_writes` when the store is free again; `is_committing` says if it is not.

        `run_in_turn` runs what writes to the store, in a worker thread, when no other process does.
        """
        self._run_in_turn = run_in_turn
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
            Deferred.fromCoroutine(self._release_reserve())
            return f"The disk is full{advice}."
        self._log.error("The store failed: {error}", error=error)
        if isinstance(error, CannotCreateStore):
            return str(error)  # there is nothing to recover
        self.failure = str(error) if isinstance(error, StoreFailed) else "unexpected error"
        self._schedule_recovery(0)
        return self.write_problem or ""

    def check_space(self) -> None:
        """Check now whether a full disk has room again, because something was removed."""
        if self.failure is None and not self._is_closed:
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
            await self._runtime.run_in_thread(partial(self._run_in_turn, work))
        except Exception as error:
            return error
        finally:
            self.is_busy = False
        return None

    async def _release_reserve(self) -> None:
        await self._run(self._engine.release_reserve)
        self._await_space()
        self._resume_writes()

    def _await_space(self) -> None:
        if self.failure is None:
            self._later(SPACE_CHECK_S, self._check_space)

    def _check_space(self) -> None:
        if not self.is_full:
            return
        if self._is_committing() or self.is_busy:
            self._await_space()
        else:
            Deferred.fromCoroutine(self._restore_reserve())

    async def _restore_reserve(self) -> None:
        results: list[bool] = []
        await self._run(lambda: results.append(self._engine.restore_reserve()))
        if results == [True]:
            self.is_full = False
            self._log.info("The disk has room again; writes are accepted again.")
        else:
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
            if self.is_full:
                self._await_space()
        self._resume_writes()
