"""Writing to a database that other processes write too.

A process takes the turn for one batch: when it has it, it first catches up with what others have
committed (`following`), and then judges, applies and commits its own. It asks again when others may
have given the turn back: as soon as one of them says so, and every few milliseconds in any case. No
thread waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger

from treedbd.database.following import FollowerHooks, LogFollower
from treedbd.database.requests import QueuedWrite, Unavailable
from treedbd.database.rounds import Rounds
from treedbd.database.runtime import Runtime
from treedbd.names import DatabaseName
from treedbd.store.engine import DiskFull, Engine, Sharing, StoreFailed

RETRY_S: Final = 0.002
"""Seconds until the turn is asked for again, if nobody has said that it is free."""
FAILED_S: Final = 0.2
"""The same after the store could not be read."""
WAITS_FOR_OTHERS: Final = "Another process has been writing to the database for long."


class SharedWriting:
    """A `WriteTurn` at a database that is shared.

    Attributes:
        following: follows what the others commit.
        delay: what the turn is waited for; None if it is not.

    """

    _log = Logger()

    problem = None
    is_in_use = False  # what others have written is read from the file itself

    def __init__(
        self,
        sharing: Sharing,
        name: DatabaseName,
        runtime: Runtime,
        engine: Engine,
        follower: FollowerHooks,
    ) -> None:
        """Write to `engine`, and let `follower` have what others write to it."""
        self.following = LogFollower(sharing, engine, runtime.clock, follower)
        self.delay: str | None = None
        self._sharing = sharing
        self._run_in_thread = runtime.run_in_thread
        self._clock = runtime.clock
        self._given = partial(runtime.send_hint, name)
        self._is_over = False
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
        self.delay = None
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
        self.delay = None
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        was_held = self._sharing.is_held
        if was_held:
            self.following.keep_open()
        self._sharing.let_go()
        if was_held:
            self._given()

    def commit(
        self,
        commit: Callable[[], None],
        must_keep: Callable[[], bool],
        _: Sequence[QueuedWrite],
    ) -> Deferred[None]:
        """Do as `WriteTurn.commit`.

        The turn is given back in the thread of the commit: the reactor of this process may be busy,
        and others need not wait for it.
        """

        def commit_and_give() -> None:
            commit()
            if not must_keep():
                self._sharing.let_go()
            self._given()  # those who read show the new moment before a checkpoint, which needs it

        return self._run_in_thread(commit_and_give)

    def confirm(self) -> None:
        """Return None: whoever has the turn has seen all that there is."""

    def run(self, work: Callable[[], None]) -> None:
        """Run `work` with the turn, in a worker thread; raise `StoreFailed`."""
        self._sharing.run_held(work)

    def batch_over(self) -> None:
        """Show what others have committed, if that had to wait."""
        self.following.batch_over()

    def make_current(self) -> Deferred[None] | None:
        """Do as `LogFollower.make_current`."""
        return self.following.make_current()

    def is_current(self) -> bool:
        """Do as `LogFollower.is_current`."""
        return self.following.is_current()

    def when_current(self, _: Callable[[], None]) -> bool:
        """Return False: whether it is current is known at once."""
        return False

    def hinted(self) -> None:
        """Look whether others have committed anything, or given the turn back."""
        if self._is_over:
            return
        if not self.following.hinted():
            self._sharing.renew()
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
            self._retry()

    def end(self) -> None:
        """Look no more whether others have committed."""
        self._is_over = True

    def _ask_again(self, pause: float) -> None:
        self.delay = WAITS_FOR_OTHERS
        if self._timer is None or not self._timer.active():
            self._timer = self._clock.callLater(pause, self._retry)

    def _retry(self) -> None:
        if self._try_again is not None:
            self._try_again()
