"""Does what the sessions of processes have left that have ended without doing it.

What a dead owner (`session_owner`) has left in a database is done when the database is opened. Here
the databases that it lists are opened for that, one after the other, in the background; then its
list is removed. Where several processes serve the same databases, each looks every second whether
another one has died.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger

from treedbd.database.file_user import FileUser
from treedbd.database.requests import DatabaseRefused, DeadlinePassed, Unavailable, UnknownDatabase
from treedbd.database.runtime import DeadOwner, Runtime
from treedbd.names import DatabaseName
from treedbd.store.engine import StoreUnreachable

LOOK_S: Final = 1.0
"""Seconds between two searches for processes that have died, where there are several."""
RETRY_S: Final = 5.0
"""Seconds until what could not be done is tried again."""
OPEN_S: Final = 30.0
"""Seconds for which the opening of a database is waited for."""


class OpeningFiles(Protocol):
    """Opens databases (`CatalogFiles`)."""

    def acquire(
        self, database: FileUser, timeout_s: float, *, is_write: bool
    ) -> Deferred[None] | None:
        """Open a database, and keep it open; None if that is done, else what fires then."""
        ...


class DeadOwners:
    """The search for dead owners, and the work for them."""

    _log = Logger()

    def __init__(
        self,
        files: OpeningFiles,
        find: Callable[[DatabaseName], FileUser],
        runtime: Runtime,
        *,
        has_others: bool,
    ) -> None:
        """Open by `files` what `find` returns; look again and again if there are others."""
        self._files = files
        self._find = find
        self._owner = runtime.owner
        self._clock = runtime.clock
        self._has_others = has_others
        self._next: IDelayedCall | None = None
        self._is_over = False

    def start(self) -> None:
        """Begin after the present turn of the reactor."""
        self._next = self._clock.callLater(0, self._begin)

    def stop(self) -> None:
        """Begin nothing more."""
        self._is_over = True
        if self._next is not None and self._next.active():
            self._next.cancel()

    def _begin(self) -> None:
        Deferred.fromCoroutine(self._look())

    async def _look(self) -> None:
        is_done = True
        for owner in await self._find_dead():
            try:
                is_done &= await self._do_all(owner)
            except OSError as error:
                self._log.warn("{file} cannot be read: {error}", file=str(owner), error=error)
            except StoreUnreachable:
                is_done = False
            except Exception:
                self._log.failure("What {file} lists cannot be done.", file=str(owner))
        if not self._is_over and (self._has_others or not is_done):
            pause = LOOK_S if self._has_others and is_done else RETRY_S
            self._next = self._clock.callLater(pause, self._begin)

    async def _find_dead(self) -> Sequence[DeadOwner]:
        try:
            return await self._owner.find_dead()
        except Exception:
            self._log.failure("Processes that have died could not be looked for.")
            return ()

    async def _do_all(self, owner: DeadOwner) -> bool:
        """Do what one owner has left, and forget it; return whether to try again if not."""
        is_done = is_all = True
        for name in owner.read_names():
            try:
                is_done &= await self._do(name)
            except (UnknownDatabase, DatabaseRefused):
                is_all = False  # it is done when the database is served again
            except (Unavailable, DeadlinePassed):
                is_done = False
            if self._is_over:
                return False
        if is_done:
            await owner.done(is_all=is_all)
        return is_done

    async def _do(self, name: DatabaseName) -> bool:
        """Do what was left in one database; return whether all of it is done."""
        database = self._find(name)
        # A write need not see everything: its commit finds out.
        opening = self._files.acquire(database, OPEN_S, is_write=True)
        try:
            if opening is not None:
                await opening
            await database.disconnect_writes.run_left()
            return not database.disconnect_writes.has_left
        finally:
            database.requests -= 1
