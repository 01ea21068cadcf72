"""Opens every database once after the start, and looks for damage where it may be.

What an opening finds out is then known without a request: that changes are missing, that a format
is unknown. Only a file that was not closed cleanly is read as a whole, in a worker thread, one file
at a time. It is served meanwhile; if it is damaged nothing is written to it any more. What can be
read is served, unless its structure is damaged: then rows may be missing from any read.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Iterable
from typing import Final, Protocol

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger

from treedbd.database.requests import DatabaseRefused, Unavailable
from treedbd.database.runtime import Runtime
from treedbd.limits import MIB
from treedbd.names import DatabaseName
from treedbd.store.engine import Damage, StoreFailed
from treedbd.store.on_demand import FileEngine
from treedbd.store.sqlite.check import CheckStopped

CHECKED_BYTES: Final = 256 * MIB
"""A larger file is not checked: that would take too long."""
PAUSE_S: Final = 0.002
"""Seconds for which a check leaves the interpreter to other threads, every few milliseconds."""
RETRY_S: Final = 5.0
"""Seconds until a database that could not be opened at present is tried again."""


class CheckedFiles(Protocol):
    """Opens and closes what is checked."""

    def hold_file(self, name: DatabaseName) -> Awaitable[FileEngine]:
        """Open the file of a database, and keep it open; raise `Unavailable`."""
        ...

    def release_file(self, name: DatabaseName) -> None:
        """Let the file be closed again."""
        ...

    def refuse_damaged(self, name: DatabaseName, damage: Damage) -> None:
        """Refuse writes to a database from now on, and the reads that cannot be trusted."""
        ...


class DamageChecks:
    """The databases that wait for their check, and the one that is checked."""

    _log = Logger()

    def __init__(self, files: CheckedFiles, runtime: Runtime) -> None:
        """Check `files`, which are read in a worker thread."""
        self._files = files
        self._runtime = runtime
        self._waiting: dict[DatabaseName, None] = {}
        self._later: dict[DatabaseName, None] = {}
        self._next: IDelayedCall | None = None
        self._running: Deferred[None] | None = None
        self._is_over = False

    def add(self, names: Iterable[DatabaseName]) -> None:
        """Check databases, after the present turn of the reactor."""
        self._waiting.update(dict.fromkeys(names))
        self._schedule(0)

    def add_later(self, name: DatabaseName) -> None:
        """Check a database in a while, because it could not be opened now."""
        if not self._is_over:
            self._later[name] = None
            self._schedule(RETRY_S)

    def stop(self) -> Deferred[None]:
        """Begin no check any more; fires when the one under way has ended, which is soon."""
        self._is_over = True
        self._waiting.clear()
        self._later.clear()
        if self._next is not None and self._next.active():
            self._next.cancel()
        ended: Deferred[None] = Deferred()
        if self._running is None:
            ended.callback(None)
        else:
            self._running.addCallback(ended.callback)
        return ended

    def _schedule(self, pause: float) -> None:
        is_scheduled = self._next is not None and self._next.active()
        if (self._waiting or self._later) and self._running is None and not is_scheduled:
            self._next = self._runtime.clock.callLater(pause, self._begin)

    def _begin(self) -> None:
        self._waiting.update(self._later)
        self._later.clear()
        self._running = Deferred.fromCoroutine(self._run()).addCallback(self._end)

    def _end(self, _: None) -> None:
        self._running = None
        self._schedule(RETRY_S)

    async def _run(self) -> None:
        """Check all that wait, unless one cannot be opened because too many others are."""
        while self._waiting:
            name = next(iter(self._waiting))
            del self._waiting[name]
            try:
                await self._check(name)
            except (CheckStopped, DatabaseRefused):
                pass  # why one is refused is known, and whether to try again
            except Unavailable:
                self._later.update({name: None, **self._waiting})
                self._waiting.clear()
            except StoreFailed as error:
                self._log.error("{label} cannot be checked: {error}", label=name.label, error=error)
            except Exception:
                self._log.failure("{label} cannot be checked.", label=name.label)

    async def _check(self, name: DatabaseName) -> None:
        file = await self._files.hold_file(name)
        try:
            if file.was_closed_cleanly or file.size() > CHECKED_BYTES:
                return
            found: list[Damage | None] = []
            await self._runtime.run_in_thread(lambda: found.append(file.find_damage(self._pause)))
            if found[0] is None:
                file.confirm_sound()
            else:
                self._files.refuse_damaged(name, found[0])
        finally:
            self._files.release_file(name)

    def _pause(self) -> bool:
        time.sleep(PAUSE_S)
        return self._is_over
