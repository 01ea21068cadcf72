"""Recovery of a store after an error: a full disk, a failed sync.

A full disk releases the reserve, and from then on only removals are accepted; the reserve is
allocated again as soon as there is room for it. The log says so at once, and says that there is
room again when there is for the largest write that was refused. Until then smaller ones are
accepted: a caller cannot keep others from writing by what is too large. After any other failure
nothing is acknowledged until the store has been recovered from disk and verified, which is tried
again at growing intervals.

All of that waits for the disk in the thread in which commits wait for it, never in the reactor's
thread; so it never runs during a commit, and no commit runs during it.
"""

from __future__ import annotations

import pathlib
import shutil
from collections.abc import Callable
from functools import partial
from typing import Final

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger

from treedbd.database.runtime import Runtime
from treedbd.store.engine import CannotCreateStore, DiskFull, Engine, StoreFailed

SPACE_CHECK_S: Final = 0.5
"""Seconds between two checks whether a full disk has room again."""
RECOVERY_PAUSES: Final = (0.0, 0.1, 0.5, 1.0, 2.0, 5.0)
"""Seconds before each attempt to recover a store; the last one repeats."""


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
            await self._runtime.run_in_thread(partial(self._run_in_turn, work))
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
