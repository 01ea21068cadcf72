"""Writing to a database that other processes write too.

A process takes the turn for one batch: when it has it, it first catches up with what others have
committed (`following`), and then judges, applies and commits its own. It asks again when others may
have given the turn back: as soon as one of them says so, and every few milliseconds in any case. No
thread waits for it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger

from treedbd.database.errors import Unavailable
from treedbd.database.following import FollowerHooks, LogFollower
from treedbd.database.rounds import Rounds
from treedbd.database.runtime import Runtime
from treedbd.names import DatabaseName
from treedbd.store.engine import DiskFull, Engine, StoreFailed
from treedbd.store.sharing import Sharing

RETRY_S: Final = 0.002
"""Seconds until the turn is asked for again, if nobody has said that it is free."""
FAILED_S: Final = 0.2
"""The same after the store could not be read."""


class SharedWriting:
    """A `WriteTurn` at a database that is shared.

    Attributes:
        following: follows what the others commit.
        is_waiting: whether another process has the turn, and it is asked for.

    """

    _log = Logger()

    @classmethod
    def of(
        cls,
        sharing: Sharing | None,
        engine: Engine,
        name: DatabaseName,
        runtime: Runtime,
        hooks: FollowerHooks,
    ) -> SharedWriting | None:
        """Return the turn at a database, None if it is not shared."""
        return None if sharing is None else cls(sharing, engine, name, runtime, hooks)

    def __init__(
        self,
        sharing: Sharing,
        engine: Engine,
        name: DatabaseName,
        runtime: Runtime,
        follower: FollowerHooks,
    ) -> None:
        """Write to `engine`, and let `follower` have what others write to it."""
        self.following: Final = LogFollower(sharing, engine, runtime.clock, follower)
        self.is_waiting = False
        self._sharing = sharing
        self._clock = runtime.clock
        self._given = partial(runtime.send_hint, name)
        self._timer: IDelayedCall | None = None
        self._try_again: Callable[[], None] | None = None

    def attach(self, rounds: Rounds, try_again: Callable[[], None]) -> None:
        """Call `try_again` when the turn may be free; watchers are notified in `rounds`."""
        self._try_again = try_again
        self.following.use_rounds(rounds)

    def take(self) -> bool:
        """Return whether this process has the turn; if not, it is asked for until `give`."""
        if self._sharing.is_held:
            return True
        if not self._sharing.try_hold():
            self._ask_again(RETRY_S)
            return False
        self.is_waiting = False
        try:
            self.following.is_current()
        except (StoreFailed, DiskFull, Unavailable) as error:
            self._log.error("What others have written cannot be read: {error}", error=error)
            self._sharing.let_go()
            self._ask_again(FAILED_S)
            return False
        return True

    def give(self) -> None:
        """Give the turn back, or ask for it no longer."""
        self.is_waiting = False
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        was_held = self._sharing.is_held
        self._sharing.let_go()
        if was_held:
            self._given()

    def commit(self, commit: Callable[[], None], must_keep: Callable[[], bool]) -> None:
        """Run `commit`, in a worker thread, and give the turn back at once unless it must be kept.

        The reactor of this process may be busy, and others need not wait for it.
        """
        commit()
        if not must_keep():
            self._sharing.let_go()
            self._given()

    def run(self, work: Callable[[], None]) -> None:
        """Run `work` with the turn, in a worker thread; raise `StoreFailed`."""
        self._sharing.run_held(work)

    def batch_over(self) -> None:
        """Show what others have committed, if that had to wait."""
        self.following.batch_over()

    def hinted(self) -> None:
        """Look whether others have committed anything, or given the turn back."""
        self.following.hinted()
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
            self._retry()

    def _ask_again(self, pause: float) -> None:
        self.is_waiting = True
        if self._timer is None or not self._timer.active():
            self._timer = self._clock.callLater(pause, self._retry)

    def _retry(self) -> None:
        if self._try_again is not None:
            self._try_again()
