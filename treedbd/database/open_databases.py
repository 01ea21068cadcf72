"""The open databases of a process, and those that are refused or waiting for a check.

Theory of operation. Requests `acquire` a database (`files`) for as long as they run. One that is
closed is opened in a worker thread, and if there are too many, the one that was used least recently
among those that are *idle* is closed first, in the same job of that thread. A database is idle if
no request has acquired it, and if it has no watcher, read grant, snapshot, waiting write or
recovery under way, and no volatile values. If no database is idle, one is closed that has nothing
but volatile values, which are lost; if there is none either, the request is refused. After
`UNUSED_S` an idle database is closed in any case. A program that holds a `Database` need not
acquire it: then it is opened in place, at the next use.

What the sessions of dead processes have left (`disconnect`) is written before a database counts as
open. If it is opened in place, which cannot wait for that, it is refused for a moment.

`OpenDatabases` does this. `Refusals` are the databases that cannot be opened, `PageCaches` divides
the memory for pages among those that are open, and `DamageChecks` opens each once after the start.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Final

import attrs
from twisted.internet.defer import Deferred, DeferredSemaphore
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from treedbd.database.requests import (
    SHUTTING_DOWN,
    DatabaseDeleted,
    DatabaseRefused,
    NoDescriptors,
    TooManyInUse,
    Unavailable,
)
from treedbd.database.runtime import Problem, Runtime
from treedbd.database.slices import Steps
from treedbd.errors import OperatorError
from treedbd.files import has_descriptors
from treedbd.limits import KIB, MIB, Limits
from treedbd.names import DatabaseName
from treedbd.store.engine import CannotOpenStore, Damage, StoreFailed, StoreInaccessible
from treedbd.store.on_demand import FileEngine, ReopeningEngine
from treedbd.store.sqlite.check import CheckStopped

if TYPE_CHECKING:
    from treedbd.database.catalog import Catalog
    from treedbd.database.database import Database
    from treedbd.database.files import DatabaseFiles

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

MAX_SHARE: Final = 16 * MIB
MIN_SHARE: Final = 64 * KIB
"""Bytes of pages that one database may keep."""
DIVIDED_AT_ONCE: Final = 32
"""Databases whose share changes in one turn of the reactor."""
DIVIDE_AGAIN_S: Final = 1.0
"""Seconds until databases that were writing receive their part."""

CHECKED_BYTES: Final = 256 * MIB
"""A larger file is not checked: that would take too long."""
PAUSE_S: Final = 0.002
"""Seconds for which a check leaves the interpreter to other threads, every few milliseconds."""
RETRY_S: Final = 5.0
"""Seconds until a database that could not be opened at present is tried again."""
_log = Logger()


@attrs.frozen
class OpenBounds:
    """How many databases may be open, and how many bytes of pages they may keep together."""

    databases: int
    cache_bytes: int


DEFAULT_BOUNDS: Final = OpenBounds(Limits().open_databases, Limits().cache_bytes)


class OpenDatabases:
    """The databases whose files are open; belongs to the reactor's thread, but for `created`."""

    def __init__(
        self, bounds: OpenBounds, runtime: Runtime, refusals: Refusals, catalog: Catalog
    ) -> None:
        """Open databases of `catalog`, which keeps them until they are closed."""
        self._bounds = bounds
        self._runtime = runtime
        self._refusals = refusals
        self._catalog = catalog
        self._open: dict[Database, ReopeningEngine] = {}
        self._waiting: dict[Database, list[Deferred[None]]] = {}
        self._openings = DeferredSemaphore(OPENED_AT_ONCE)
        self._caches = PageCaches(bounds.cache_bytes, self._open, runtime.clock)
        self._sweeping: IDelayedCall | None = None
        self._last_refusal: str | None = None
        self._is_over = False

    def open(self, database: Database, engine: ReopeningEngine) -> Deferred[None]:
        """Open a database, which its caller keeps from being closed; fires when it is open.

        Errbacks with `Unavailable`. All who wait for one database share its opening.
        """
        done: Deferred[None] = Deferred()
        waiting = self._waiting.setdefault(database, [])
        waiting.append(done)
        if len(waiting) == 1:
            Deferred.fromCoroutine(self._open_and_answer(database, engine))
        return done

    async def try_again(self, database: Database, engine: ReopeningEngine) -> bool:
        """Open a database that was refused; return whether that is possible now."""
        database.requests += 1
        try:
            await self.open(database, engine)
        except Unavailable:
            return False  # that is logged
        finally:
            database.requests -= 1
        return True

    def open_in_place(self, database: Database, engine: ReopeningEngine) -> None:
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

    def _check_nothing_left(self, database: Database, engine: ReopeningEngine) -> None:
        """Raise `Unavailable` if dead processes have left writes, and begin to do these."""
        if engine.read(database.disconnect_writes.may_have_left):
            engine.detach()
            engine.close_detached()
            database.requests += 1

            def done(_: object) -> None:
                database.requests -= 1

            self._runtime.clock.callLater(0, lambda: self.open(database, engine).addBoth(done))
            raise Unavailable(_IS_BEHIND)

    def created(self, database: Database, engine: ReopeningEngine, file: FileEngine) -> None:
        """Use and count a file that was created for a database, in any thread."""
        engine.attach(file, self._caches.share)
        self._open[database] = engine
        self._catalog.keep(database.name)

    def may_create(self) -> bool:
        """Return whether one more file may be created, and be open; in any thread."""
        return len(self._open) < self._bounds.databases + CREATED_BEYOND

    async def settle(self, database: Database) -> None:
        """Return when a database is not being opened."""
        if database in self._waiting:
            opened: Deferred[None] = Deferred()
            self._waiting[database].append(opened)
            with contextlib.suppress(Exception):
                await opened

    def forget(self, database: Database) -> None:
        """Forget a database that was closed for good."""
        self._open.pop(database, None)

    def start(self) -> None:
        """Close databases from now on that have been idle for long."""
        self._sweeping = self._runtime.clock.callLater(SWEEP_S, self._sweep)

    def close_idle(self, database: Database) -> None:
        """Close a database that was opened for no request, if it is idle."""
        if database in self._open and self._is_idle(database):
            self._close([database])

    def trim(self) -> None:
        """Close idle databases if too many are open, because files were created."""
        self._close(self._find_idle(len(self._open) - self._bounds.databases))

    def stop(self) -> None:
        """Open no further file, and close none by itself."""
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
        """Stop keeping those that were closed: another `Database` may open their files now."""
        for database in change.closes:
            if database not in self._open:
                self._catalog.stop_keeping(database)

    # Opening.

    async def _open_and_answer(self, database: Database, engine: ReopeningEngine) -> None:
        """Open a database when those before it are open, and answer all who wait for it."""
        refusal = None
        await self._openings.acquire()
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
            self._openings.release()
        self._runtime.slices.start(_answer(self._waiting.pop(database), refusal))

    def _prepare(self, database: Database, engine: ReopeningEngine) -> _Change:
        """Reserve the place of a database; return what opens it, after others that it replaces.

        Raises `Unavailable`.
        """
        if self._is_over:
            raise Unavailable(SHUTTING_DOWN)
        replaced = {} if database in self._open else self._make_room()
        self._open[database] = engine
        return _Change(replaced, engine, self._caches.divide())

    def _record(self, database: Database) -> None:
        """Record that a database has been opened."""
        self._last_refusal = None
        self._refusals.discard(database.name)
        database.used_at = self._runtime.clock.seconds()
        self._catalog.keep(database.name)
        database.file_opened()

    def _refusal(self, database: Database, error: Exception) -> Exception:
        """Record why a database could not be opened; return what its users receive."""
        if not database.is_open:
            self._open.pop(database, None)
        if not has_descriptors():
            error = NoDescriptors()
        elif isinstance(error, CannotOpenStore):
            self._refusals.add(database.name, error)
            return DatabaseRefused()
        is_known = self._is_over or str(error) == self._last_refusal
        if isinstance(error, DatabaseDeleted):
            return error
        if isinstance(error, Unavailable) and not is_known:
            self._last_refusal = str(error)
            _log.error("{label}: {reason}", label=database.name.label, reason=str(error))
        return error

    # Closing.

    def _make_room(self) -> dict[Database, ReopeningEngine]:
        """Detach idle databases so that one more may be open; raise `TooManyInUse`."""
        excess = len(self._open) + 1 - self._bounds.databases
        closed = self._find_idle(excess)
        if len(closed) < excess:
            closed = self._find_idle(excess, has_volatile=True)
        if len(closed) < excess:
            raise TooManyInUse
        return self._detach(closed)

    def _find_idle(self, count: int, *, has_volatile: bool = False) -> list[Database]:
        """Return at most `count` idle databases, those that were used least recently.

        With `has_volatile` also those that hold values in memory alone, which go with them.
        """
        if count <= 0:
            return []
        by_use = sorted(self._open, key=attrgetter("used_at"))
        is_idle = self._is_unused if has_volatile else self._is_idle
        return list(islice(filter(is_idle, by_use), count))

    def _is_idle(self, database: Database) -> bool:
        return database.is_idle and self._is_unused(database)

    def _is_unused(self, database: Database) -> bool:
        return database.is_open and database.is_unused and not self._open[database].has_snapshots

    def _detach(self, databases: Sequence[Database]) -> dict[Database, ReopeningEngine]:
        """Allow databases to be opened again; their files are still to be closed."""
        detached = {database: self._open.pop(database) for database in databases}
        for database, engine in detached.items():
            database.is_open = False
            engine.detach()
        return detached

    def _close(self, databases: Sequence[Database]) -> None:
        if databases and not self._is_over:
            self._run(_Change(self._detach(databases)))

    def _sweep(self) -> None:
        """Close databases that have been idle for long."""
        self.trim()
        late = self._runtime.clock.seconds() - UNUSED_S
        self._close([each for each in self._find_idle(CLOSED_AT_ONCE) if each.used_at <= late])
        self._caches.divide()
        self.start()


@attrs.frozen
class _Change:
    """Closes files and then opens one; to be called in any thread."""

    closes: Mapping[Database, ReopeningEngine]
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


def _answer(waiting: Iterable[Deferred[None]], refusal: Exception | None) -> Steps:
    """Answer all requests that wait for a database."""
    for done in waiting:
        if refusal is None:
            done.callback(None)
        else:
            done.errback(refusal)
        yield


class Refusals:
    """The databases, and the whole projects, that cannot be served, and why; the others are served.

    A database stays refused until an operator orders by SIGHUP that it is tried again: a file that
    is being put back must not be opened half way. Only one that is merely inaccessible, because
    another program has locked it or the disk has failed, is tried again at its next use, and now
    and then without one. A project stays refused until the next start.
    """

    _log = Logger()

    def __init__(self, open_later: Callable[[DatabaseName], None]) -> None:
        """Call `open_later` for a database that is to be tried again without being used."""
        self._open_later = open_later
        self._databases: dict[DatabaseName, OperatorError] = {}
        self._projects: dict[str, OperatorError] = {}

    @property
    def names(self) -> list[DatabaseName]:
        """The databases that are refused by themselves."""
        return list(self._databases)

    def check(self, name: DatabaseName) -> None:
        """Raise `DatabaseRefused` if a database is refused."""
        if name.project in self._projects or not self.may_open(name):
            raise DatabaseRefused

    def may_open(self, name: DatabaseName) -> bool:
        """Return whether it makes sense to open the file of a database now."""
        return isinstance(self._databases.get(name), StoreInaccessible | None)

    def add(self, name: DatabaseName, error: OperatorError) -> None:
        """Refuse a database from now on."""
        is_known = str(self._databases.get(name)) == str(error)
        self._databases[name] = error
        if isinstance(error, StoreInaccessible):
            self._open_later(name)
            if is_known:
                return
        self._log.error(
            "{reason} The database {label} is not served until then.",
            reason=str(error),
            label=name.label,
        )

    def add_project(self, project: str, error: OperatorError) -> None:
        """Refuse all databases of a project from now on: it is not known which ones exist."""
        self._projects[project] = error
        self._log.error(
            "{reason} No database of the project {project} is served until then.",
            reason=str(error),
            project=project,
        )

    def discard(self, name: DatabaseName) -> None:
        """Stop refusing a database; no error if it is not refused."""
        if self._databases.pop(name, None) is not None:
            self._log.info("The database {label} is served again.", label=name.label)

    def forget(self, name: DatabaseName) -> None:
        """Stop refusing a database that was deleted."""
        self._databases.pop(name, None)

    def problems(self) -> list[Problem]:
        """Return what is refused, without the paths of files."""
        of_databases = [
            Problem(name.project, name.database, _reason("database", error))
            for name, error in self._databases.items()
        ]
        of_projects = [
            Problem(project, None, _reason("project's directory", error))
            for project, error in self._projects.items()
        ]
        return of_databases + of_projects


def _reason(what: str, error: OperatorError) -> str:
    return f"The {what} {error.problem}: {error.remedy}."


class PageCaches:
    """Divides `total` bytes of memory for pages among the open databases.

    Each may keep an equal part, rounded down to a power of two, so that the parts change seldom.
    When they do, the databases receive theirs a few at a time.

    Attributes:
        share: the bytes of pages that each of them may keep at present.

    """

    def __init__(
        self, total: int, databases: Mapping[Database, ReopeningEngine], clock: IReactorTime
    ) -> None:
        """Divide among `databases`, which are those that are open at any time."""
        self._total = total
        self._databases = databases
        self._clock = clock
        self._next: IDelayedCall | None = None
        self.share = cache_share(total, 0)

    def divide(self) -> int:
        """Divide again if more or fewer are open now; return the share."""
        share = cache_share(self._total, len(self._databases))
        if share != self.share:
            self.share = share
            if self._next is None:
                self._next = self._clock.callLater(0, self._limit_some)
        return share

    def stop(self) -> None:
        """Make no further change."""
        if self._next is not None:
            self._next.cancel()
            self._next = None

    def _limit_some(self) -> None:
        """Reduce some databases to their share; those that are writing, later."""
        self._next = None
        others = [
            (database, engine)
            for database, engine in list(self._databases.items())
            if database.is_open and engine.cache_size != self.share
        ]
        free = [engine for database, engine in others if not database.is_writing]
        for engine in free[:DIVIDED_AT_ONCE]:
            engine.limit_cache(self.share)
        if free[DIVIDED_AT_ONCE:] or len(free) < len(others):
            pause = 0 if free else DIVIDE_AGAIN_S
            self._next = self._clock.callLater(pause, self._limit_some)


def cache_share(total: int, count: int) -> int:
    """Return the bytes of pages that each of `count` open databases may keep."""
    share = max(MIN_SHARE, min(MAX_SHARE, total // max(1, count)))
    return 1 << (share.bit_length() - 1)


class DamageChecks:
    """Opens every database once after the start, and looks for damage where it may be.

    So what an opening shows is known before a request: missing changes, an unknown format. Only a
    file that was not closed cleanly is read as a whole, in a worker thread, one file at a time. It
    is served meanwhile; if it is damaged, its writes are refused from then on. What can be read is
    served, unless its structure is damaged: then rows may be missing from any read.
    """

    _log = Logger()

    def __init__(self, files: DatabaseFiles, runtime: Runtime) -> None:
        """Check `files`, which are read in a worker thread."""
        self._files = files
        self._runtime = runtime
        self._waiting: dict[DatabaseName, None] = {}
        self._later: dict[DatabaseName, None] = {}
        self._next: IDelayedCall | None = None
        self._running: Deferred[None] | None = None
        self._checked: DatabaseName | None = None
        self._unwanted: dict[DatabaseName, Deferred[None]] = {}
        self._is_over = False

    def add(self, names: Iterable[DatabaseName]) -> None:
        """Check databases, from the next turn of the reactor on."""
        self._waiting.update(dict.fromkeys(names))
        self._schedule(0)

    def add_later(self, name: DatabaseName) -> None:
        """Check a database in a while, because it could not be opened now."""
        if not self._is_over:
            self._later[name] = None
            self._schedule(RETRY_S)

    def forget(self, name: DatabaseName) -> Deferred[None] | None:
        """Do not check a database; None if it is not being checked, else what fires at the end."""
        self._waiting.pop(name, None)
        self._later.pop(name, None)
        if self._checked != name:
            return None
        ended = self._unwanted[name] = Deferred()
        return ended

    def stop(self) -> Deferred[None]:
        """Begin no further check; fires when the one under way has ended, which is soon."""
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
            self._checked = name
            try:
                await self._check(name)
            except (CheckStopped, DatabaseRefused):
                pass  # why one is refused is known, and whether to try again
            except DatabaseDeleted:
                pass
            except Unavailable:
                self._later.update({name: None, **self._waiting})
                self._waiting.clear()
            except StoreFailed as error:
                self._log.error("{label} cannot be checked: {error}", label=name.label, error=error)
            except Exception:
                self._log.failure("{label} cannot be checked.", label=name.label)
            finally:
                self._checked = None
                if (ended := self._unwanted.pop(name, None)) is not None:
                    ended.callback(None)

    async def _check(self, name: DatabaseName) -> None:
        database = self._files.find_to_check(name)
        file = await self._files.hold_file(database)
        try:
            if file.was_closed_cleanly or file.size() > CHECKED_BYTES:
                return
            found: list[Damage | None] = []
            await self._runtime.run_in_thread(lambda: found.append(file.find_damage(self._pause)))
            if name in self._unwanted:
                return
            if found[0] is None:
                file.confirm_sound()
            else:
                self._files.refuse_damaged(name, found[0])
        finally:
            self._files.release_file(database)

    def _pause(self) -> bool:
        time.sleep(PAUSE_S)
        return self._is_over or self._checked in self._unwanted
