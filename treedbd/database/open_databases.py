"""The databases whose files are open: at most so many, and those used least recently are closed.

Theory of operation. Requests `acquire` a database for as long as they run. One that is closed is
opened in a worker thread, and if there are too many, the one that was used least recently among
those that are *idle* is closed first, in the same turn of the thread. Idle is what nobody has
acquired, and what has no watcher, read grant, snapshot, waiting write or recovery under way. If no
database is idle, the request is refused. After `UNUSED_S` an idle database is closed in any case.

A program that holds a `Database` need not acquire it: then it is opened in place, at the next use.

What the sessions of dead processes have left (`disconnect_writes`) is written before a database
counts as open. If it is opened in place, which cannot wait for that, it is refused for a moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from operator import attrgetter
from typing import Final

import attrs
from twisted.internet.defer import Deferred, DeferredSemaphore
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from treedbd.database.file_user import FileUser
from treedbd.database.page_caches import PageCaches
from treedbd.database.refusals import Refusals
from treedbd.database.requests import (
    SHUTTING_DOWN,
    DatabaseRefused,
    NoDescriptors,
    TooManyInUse,
    Unavailable,
)
from treedbd.database.runtime import Runtime
from treedbd.database.slices import Steps
from treedbd.files import has_descriptors
from treedbd.limits import Limits
from treedbd.names import DatabaseName
from treedbd.store.engine import CannotOpenStore
from treedbd.store.on_demand import FileEngine, ReopeningEngine

UNUSED_S: Final = 300.0
"""Seconds after its last use for which an idle database stays open."""
SWEEP_S: Final = 10.0
"""Seconds between two searches for databases that have been idle for long."""
CLOSED_AT_ONCE: Final = 8
"""Databases that one sweep closes; they are still open while others may be opened."""
CREATED_BEYOND: Final = 16
"""Databases that may be open beyond the bound for a moment: first commits create files in threads,
where no other can be closed."""
OPENED_AT_ONCE: Final = 4
"""Databases that are opened at a time, so that most threads stay free for commits."""
_IS_BEHIND: Final = "What was to be written when connections ended is written first: try again."

_log = Logger()


@attrs.frozen
class OpenBounds:
    """How many databases may be open, and how many bytes of pages they may keep together."""

    databases: int
    cache_bytes: int


DEFAULT_BOUNDS: Final = OpenBounds(Limits().open_databases, Limits().cache_bytes)


@attrs.frozen
class _Change:
    """Closes files and then opens one; to be called in any thread."""

    closes: Mapping[FileUser, ReopeningEngine]
    opens: ReopeningEngine | None = None
    cache_size: int = 0

    def __call__(self) -> None:
        for database, engine in self.closes.items():
            try:
                engine.close_detached()
            except Exception:
                _log.failure("{label} could not be closed.", label=database.name.label)
        if self.opens is not None:
            self.opens.open(self.cache_size)


class OpenDatabases:
    """The databases whose files are open; belongs to the reactor's thread, but for `created`."""

    def __init__(
        self,
        bounds: OpenBounds,
        runtime: Runtime,
        refusals: Refusals,
        opened: Callable[[DatabaseName], None],
        closed: Callable[[DatabaseName], None],
    ) -> None:
        """Call `opened` when a database has been opened, in any thread, `closed` when closed."""
        self._bounds = bounds
        self._runtime = runtime
        self._refusals = refusals
        self._opened = opened
        self._closed = closed
        self._open: dict[FileUser, ReopeningEngine] = {}
        self._waiting: dict[FileUser, list[Deferred[None]]] = {}
        self._turns = DeferredSemaphore(OPENED_AT_ONCE)
        self._caches = PageCaches(bounds.cache_bytes, self._open, runtime.clock)
        self._sweeping: IDelayedCall | None = None
        self._last_refusal: str | None = None
        self._is_over = False

    def open(self, database: FileUser, engine: ReopeningEngine) -> Deferred[None]:
        """Open a database, which its caller keeps from being closed; fires when it is open.

        Errbacks with `Unavailable`. All who wait for one database share its opening.
        """
        done: Deferred[None] = Deferred()
        waiting = self._waiting.setdefault(database, [])
        waiting.append(done)
        if len(waiting) == 1:
            Deferred.fromCoroutine(self._open_and_answer(database, engine))
        return done

    async def try_again(self, database: FileUser, engine: ReopeningEngine) -> bool:
        """Open a database that was refused; return whether that is possible now."""
        database.requests += 1
        try:
            await self.open(database, engine)
        except Unavailable:
            return False  # that is logged
        finally:
            database.requests -= 1
        return True

    def open_in_place(self, database: FileUser, engine: ReopeningEngine) -> None:
        """Open a database at once, in this thread; raise `Unavailable`."""
        try:
            change = self._prepare(database, engine)
            try:
                change()
            finally:
                self._finish(change)
            self._check_nothing_left(database, engine)
        except Exception as error:
            raise self._refusal(database, error) from None
        self._record(database)

    def _check_nothing_left(self, database: FileUser, engine: ReopeningEngine) -> None:
        """Raise `Unavailable` if dead processes have left writes, and begin to do these."""
        if engine.read(database.disconnect_writes.may_have_left):
            engine.detach()
            engine.close_detached()
            database.requests += 1

            def done(_: object) -> None:
                database.requests -= 1

            self._runtime.clock.callLater(0, lambda: self.open(database, engine).addBoth(done))
            raise Unavailable(_IS_BEHIND)

    def created(self, database: FileUser, engine: ReopeningEngine, file: FileEngine) -> None:
        """Use and count a file that was created for a database, in any thread."""
        engine.attach(file, self._caches.share)
        self._open[database] = engine
        self._opened(database.name)

    def may_create(self) -> bool:
        """Return whether one more file may be created, and be open; in any thread."""
        return len(self._open) < self._bounds.databases + CREATED_BEYOND

    def start(self) -> None:
        """Close databases from now on that have been idle for long."""
        self._sweeping = self._runtime.clock.callLater(SWEEP_S, self._sweep)

    def close_idle(self, database: FileUser) -> None:
        """Close a database that was opened for nobody, if it is idle."""
        if database in self._open and self._is_idle(database):
            self._close([database])

    def trim(self) -> None:
        """Close idle databases if too many are open, because files were created."""
        self._close(self._find_idle(len(self._open) - self._bounds.databases))

    def stop(self) -> None:
        """Open nothing any more, and close nothing by itself."""
        self._is_over = True
        self._caches.stop()
        if self._sweeping is not None:
            self._sweeping.cancel()
            self._sweeping = None

    def _run(self, change: _Change) -> Deferred[None]:
        """Make a change in a thread; fires when it is made."""

        def finish(result: Failure | None) -> Failure | None:
            self._finish(change)
            return result

        return self._runtime.run_in_thread(change).addBoth(finish)

    def _finish(self, change: _Change) -> None:
        """Keep those that were closed no longer: another `Database` may open their files now."""
        for database in change.closes:
            if database not in self._open:
                self._closed(database.name)

    # Opening.

    async def _open_and_answer(self, database: FileUser, engine: ReopeningEngine) -> None:
        """Open a database when it is its turn, and answer all who wait for it."""
        refusal = None
        await self._turns.acquire()
        try:
            if not database.is_open:
                await self._run(self._prepare(database, engine))
                # Before it counts as open: all who need it wait for this too.
                if engine.read(database.disconnect_writes.may_have_left):
                    await database.disconnect_writes.run_left()
            self._record(database)
        except Exception as error:
            refusal = self._refusal(database, error)
        finally:
            self._turns.release()
        self._runtime.slices.start(_answer(self._waiting.pop(database), refusal))

    def _prepare(self, database: FileUser, engine: ReopeningEngine) -> _Change:
        """Reserve the place of a database; return what opens it, after others that it replaces.

        Raises `Unavailable`.
        """
        if self._is_over:
            raise Unavailable(SHUTTING_DOWN)
        replaced = {} if database in self._open else self._make_room()
        self._open[database] = engine
        return _Change(replaced, engine, self._caches.divide())

    def _record(self, database: FileUser) -> None:
        """Record that a database has been opened."""
        self._last_refusal = None
        self._refusals.discard(database.name)
        database.used_at = self._runtime.clock.seconds()
        self._opened(database.name)
        database.file_opened()

    def _refusal(self, database: FileUser, error: Exception) -> Exception:
        """Record why a database could not be opened; return what its users receive."""
        if not database.is_open:
            self._open.pop(database, None)
        if not has_descriptors():
            error = NoDescriptors()
        elif isinstance(error, CannotOpenStore):
            self._refusals.add(database.name, error)
            return DatabaseRefused()
        is_known = self._is_over or str(error) == self._last_refusal
        if isinstance(error, Unavailable) and not is_known:
            self._last_refusal = str(error)
            _log.error("{label}: {reason}", label=database.name.label, reason=str(error))
        return error

    # Closing.

    def _make_room(self) -> dict[FileUser, ReopeningEngine]:
        """Detach as many databases as one more needs; raise `TooManyInUse`."""
        excess = len(self._open) + 1 - self._bounds.databases
        idle = self._find_idle(excess)
        if len(idle) < excess:
            raise TooManyInUse
        return self._detach(idle)

    def _find_idle(self, count: int) -> list[FileUser]:
        """Return so many idle databases, those that were used least recently, if there are."""
        if count <= 0:
            return []
        by_use = sorted(self._open, key=attrgetter("used_at"))
        return list(islice(filter(self._is_idle, by_use), count))

    def _is_idle(self, database: FileUser) -> bool:
        return database.is_open and database.is_idle and not self._open[database].has_snapshots

    def _detach(self, databases: Sequence[FileUser]) -> dict[FileUser, ReopeningEngine]:
        """Let databases be opened before their next use; their files are still to be closed."""
        detached = {database: self._open.pop(database) for database in databases}
        for database, engine in detached.items():
            database.is_open = False
            engine.detach()
        return detached

    def _close(self, databases: Sequence[FileUser]) -> None:
        if databases and not self._is_over:
            self._run(_Change(self._detach(databases)))

    def _sweep(self) -> None:
        """Close databases that have been idle for long."""
        self.trim()
        late = self._runtime.clock.seconds() - UNUSED_S
        self._close([each for each in self._find_idle(CLOSED_AT_ONCE) if each.used_at <= late])
        self._caches.divide()
        self.start()


def _answer(waiting: Iterable[Deferred[None]], refusal: Exception | None) -> Steps:
    """Let all go on who wait for a database: each is a request."""
    for done in waiting:
        if refusal is None:
            done.callback(None)
        else:
            done.errback(refusal)
        yield
