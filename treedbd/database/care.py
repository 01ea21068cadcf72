"""What is done about a mapping in trouble: a disk that is full, a sync that failed.

A full disk frees the reserve, and from then on only removals are taken; the reserve is tried again
until there is room for it. After any other failure nothing is acknowledged until the mapping has
been recovered from disk and verified, which is tried again, ever more seldom.

All of that waits for the disk, and does so where commits wait for it, never on the reactor's
thread; so none of it goes on while a commit does, and no commit while it does.
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from treedbd.database.platform import Platform
from treedbd.store.mapping import Failed, Full, Mapping, NotMade

ROOM_PAUSE = 0.5
RECOVERY_PAUSES = (0.0, 0.1, 0.5, 1.0, 2.0, 5.0)


class Care:
    """Looks after one mapping."""

    _log = Logger()

    def __init__(
        self,
        mapping: Mapping,
        platform: Platform,
        is_committing: Callable[[], bool],
        go_on: Callable[[], None],
    ) -> None:
        """Call `go_on` whenever the mapping is free again; ask `is_committing` before using it."""
        self.is_busy = False
        self.is_full = False
        self._failure: str | None = None
        self._mapping = mapping
        self._platform = platform
        self._is_committing = is_committing
        self._go_on = go_on
        self._next: IDelayedCall | None = None
        self._is_closed = False

    @property
    def takes_writes(self) -> bool:
        """Whether any write may be tried at all."""
        return self._failure is None

    @property
    def trouble(self) -> str | None:
        """What is wrong, in a sentence; None while all is well."""
        if self._failure is not None:
            return f"The store is being recovered after a failure: {self._failure}"
        return "The disk is full; only removals are taken." if self.is_full else None

    def take(self, error: BaseException) -> str:
        """Begin to do something about a transaction that failed; return what its writers are told.

        Nothing of the transaction was applied.
        """
        if isinstance(error, Full):
            advice = ": remove smaller parts first" if self.is_full else ""
            self.is_full = True
            self._run(self._mapping.release_reserve, lambda _: self._await_room())
            return f"The disk is full{advice}."
        self._log.error("The store failed: {error}", error=error)
        if isinstance(error, NotMade):
            return str(error)  # nothing is there that could be recovered
        self._failure = str(error) if isinstance(error, Failed) else "unexpected error"
        self._recover(0)
        return self.trouble or ""

    def look_for_room(self) -> None:
        """Look now whether a full disk has room again, because something was removed."""
        if self._failure is None and not self._is_closed:
            self._look_for_room()

    def close(self) -> None:
        """Begin nothing new."""
        self._is_closed = True
        if self._next is not None and self._next.active():
            self._next.cancel()

    def _later(self, pause: float, call: Callable[[], None]) -> None:
        if self._next is not None and self._next.active():
            self._next.cancel()
        if not self._is_closed:
            self._next = self._platform.clock.callLater(pause, call)

    def _run(self, work: Callable[[], None], then: Callable[[Failure | None], None]) -> None:
        """Do what waits for the disk; `then` hears how it failed, if it did."""
        self.is_busy = True

        def finish(failure: Failure | None) -> None:
            self.is_busy = False
            then(failure)
            self._go_on()

        self._platform.run_commit(work).addCallbacks(finish, finish)

    def _await_room(self) -> None:
        if self._failure is None:
            self._later(ROOM_PAUSE, self._look_for_room)

    def _look_for_room(self) -> None:
        if not self.is_full:
            return
        if self._is_committing() or self.is_busy:
            self._await_room()
            return
        found: list[bool] = []

        def look() -> None:
            found.append(self._mapping.restore_reserve())

        self._run(look, lambda _: self._have_looked(found == [True]))

    def _have_looked(self, has_room: bool) -> None:
        if has_room:
            self.is_full = False
            self._log.info("The disk has room again; writes are taken again.")
        else:
            self._await_room()

    def _recover(self, attempt: int) -> None:
        pause = RECOVERY_PAUSES[min(attempt, len(RECOVERY_PAUSES) - 1)]
        self._later(pause, lambda: self._try_recovery(attempt))

    def _try_recovery(self, attempt: int) -> None:
        self._run(self._mapping.recover, lambda failure: self._have_tried(failure, attempt))

    def _have_tried(self, failure: Failure | None, attempt: int) -> None:
        if failure is not None:
            self._log.error("The store could not be recovered: {error}", error=failure.value)
            self._recover(attempt + 1)
            return
        self._failure = None
        self._log.info("The store has been recovered and verified; it takes writes again.")
        if self.is_full:
            self._await_room()
