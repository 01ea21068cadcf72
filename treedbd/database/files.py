"""The files of the databases of a catalog: made, opened, closed, checked and refused.

The catalog knows which databases there are; `CatalogFiles` is what it needs of their files, which
call it when a file is created, opened or closed. `DatabaseFiles` has them in the data directory
alone; `cluster.files` over PostgreSQL. Which of them are open, and which are refused or checked for
damage, is decided in `open_databases`. Where other processes serve the same files, `SharedFiles`
finds what they have created; `DeadOwners` does what the sessions of dead processes have left.
"""

from __future__ import annotations

import contextlib
import pathlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Final, TypeAlias
from weakref import WeakKeyDictionary, WeakValueDictionary

import attrs
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.interfaces import IDelayedCall
from twisted.internet.task import deferLater
from twisted.logger import Logger

from treedbd.database.active_rules import FileRules, RulesStorage
from treedbd.database.data_directory import (
    RULES_FILE,
    RULES_VERSIONS_FOLDER,
    SHELF,
    FoundDatabases,
    ServedProjects,
    find_databases,
    is_removed,
    unreachable,
)
from treedbd.database.open_databases import DamageChecks, OpenBounds, OpenDatabases, Refusals
from treedbd.database.removal import (
    begin_removal,
    cannot_delete,
    find_removed,
    finish_all,
    remove_all,
    shelf_of,
)
from treedbd.database.requests import (
    DatabaseDeleted,
    DatabaseRefused,
    DeadlinePassed,
    DeletionUnderWay,
    NoDescriptors,
    TooManyInUse,
    Unavailable,
    UnknownDatabase,
    time_out_opening,
)
from treedbd.database.runtime import OtherProcesses, Problem, Runtime
from treedbd.database.session_owners import DeadOwner
from treedbd.database.write_lock import FileWriteLock, MakeWriteLock
from treedbd.files import create_directory, has_descriptors
from treedbd.names import DatabaseName, parse_label
from treedbd.store.directory_lock import LOCK_MISPLACED, DirectoryLock
from treedbd.store.engine import (
    CannotCreateStore,
    CannotOpenStore,
    Damage,
    StoreDamaged,
    StoreFailed,
    StoreUnreachable,
)
from treedbd.store.on_demand import CreateOnWriteEngine, FileEngine, ReopeningEngine
from treedbd.store.sqlite.engine import SqliteEngine
from treedbd.store.sqlite.file import check_library, damaged, inaccessible
from treedbd.store.sqlite.shared import SharedShelf

if TYPE_CHECKING:
    from treedbd.database.catalog import Catalog
    from treedbd.database.database import Database

LOOK_AGAIN_S: Final = 0.001
"""Seconds until the next look for the file of a database that is being created."""

LOOK_S: Final = 1.0
"""Seconds between two searches for processes that have died, where there are several."""
RETRY_S: Final = 5.0
"""Seconds until what could not be done is tried again."""
OPEN_S: Final = 30.0
"""Seconds that opening a database may take."""

DAMAGED: Final = "The database is damaged, and nothing is written to it: restore it from a backup."
UNREADABLE: Final = (
    "The database is damaged, and neither read nor written: restore it from a backup."
)
_SERVED: Final = {
    True: "it is neither read nor written",
    False: "nothing is written to it, and what can be read is served",
}
"""What is done with a damaged database, by whether reads are refused."""


class CatalogFiles(ABC):
    """The files of the databases of one catalog; belongs to the reactor's thread.

    `DatabaseFiles` has them in a data directory, `cluster.files.ClusterFiles` over PostgreSQL.

    Attributes:
        is_shared: whether other processes write the same databases.

    """

    def __init__(
        self, bounds: OpenBounds, runtime: Runtime, catalog: Catalog, *, is_shared: bool
    ) -> None:
        """Open as many files as `bounds` says for the databases of `catalog`."""
        self.is_shared: Final = is_shared
        self._clock = runtime.clock
        self._catalog = catalog
        self._engines: WeakKeyDictionary[Database, ReopeningEngine] = WeakKeyDictionary()
        self._refusals = Refusals(self._check_later)
        self._open = OpenDatabases(bounds, runtime, self._refusals, catalog)
        self._dead = DeadOwners(self, catalog, runtime, has_others=is_shared)

    @abstractmethod
    def find_databases(
        self,
        projects: ServedProjects,
        *,
        any_project: bool,
        lock: DirectoryLock | None,
        accept_loss: bool,
    ) -> FoundDatabases:
        """Find the databases, and refuse what cannot be served; raise `CannotOpenStore`."""

    @abstractmethod
    def rules_storage(self, project: str) -> RulesStorage:
        """Return where the rules of a project are stored."""

    @abstractmethod
    def make_engine(self, name: DatabaseName, *, is_written: bool) -> ReopeningEngine:
        """Return the engine of a database, of which nothing is open yet."""

    @abstractmethod
    def make_lock(self, name: DatabaseName) -> MakeWriteLock | None:
        """Return what makes the write lock of a database; None if no other process writes it."""

    @abstractmethod
    def acquire(
        self, database: Database, timeout_s: float, *, is_write: bool
    ) -> Deferred[None] | None:
        """Open a database, keep it open, and bring it up to date with what others wrote.

        None if that is done, else what fires when it is; a write does not wait for that: its
        commit compares. Errbacks with `Unavailable`, or with `DeadlinePassed` after the time.
        """

    @abstractmethod
    def path_of(self, name: DatabaseName) -> pathlib.Path:
        """Return the file of a database, or of its copy; raise `CannotOpenStore`."""

    @abstractmethod
    def follow(self, database: Database) -> None:
        """Open a database that another process has created, if this one has watchers of it."""

    @abstractmethod
    async def delete(self, name: DatabaseName) -> None:
        """Delete a database with all that is in it; return when that is durable.

        Every process lets go of it (`Catalog.let_go`) before its files are removed. Raises
        `Unavailable` if it cannot be deleted, and then it is as it was.
        """

    async def settle(self, name: DatabaseName, database: Database | None) -> None:
        """Return when nothing is done to the file of a database that no request has begun."""
        del name
        if database is not None:
            await self._open.settle(database)

    def forget(self, name: DatabaseName, database: Database | None) -> None:
        """Forget a database that is closed for good, and why it was refused."""
        self._refusals.forget(name)
        if database is not None:
            self._open.forget(database)

    @property
    def list_created(self) -> Callable[[str], Iterable[DatabaseName]] | None:
        """Lists the databases of a project that exist; None if others create none."""
        return None

    def list_projects(self) -> Iterable[str]:
        """Return projects in which other processes may have created databases."""
        return ()

    def refresh(self, project: str) -> Deferred[None] | None:
        """Read which databases and rules a project has; None if that is known already."""
        return None

    def add(self, database: Database, engine: ReopeningEngine) -> None:
        """Open and close the file of a database by its engine from now on."""
        self._engines[database] = engine
        database.is_open = engine.is_open

    def trim(self) -> None:
        """Close idle databases if too many are open, because files were created."""
        self._open.trim()

    async def retry_refused(self) -> None:
        """Try to open again what was refused: an operator may have repaired it."""
        for name in self._refusals.names:
            database = self._catalog.find(name)
            if await self._open.try_again(database, self._engines[database]):
                self._opened_again(name)

    def _opened_again(self, _: DatabaseName) -> None:
        """Check a database for damage that was refused and can be served now."""
        return

    def _check_later(self, _: DatabaseName) -> None:
        """Try a database again without its being used."""
        return

    def run_left(self) -> None:
        """Do what dead owners have left, because writes are accepted from now on."""
        self._dead.start()

    def problems(self) -> list[Problem]:
        """Return what keeps databases from being served, without opening any."""
        return self._refusals.problems()

    @abstractmethod
    def note_damaged(self, name: DatabaseName, *, refuses_reads: bool) -> None:
        """Refuse writes to a database from now on, and with `refuses_reads` reads."""

    def stop(self) -> Deferred[None]:
        """Open and close nothing more by itself; fires when nothing is under way."""
        self._open.stop()
        self._dead.stop()
        return succeed(None)


@attrs.define(eq=False)
class ReadMoment:
    """Set for the duration of one call: the replica whose state is known to be current.

    Reads of it skip the round trip to PostgreSQL.

    Attributes:
        of: whose database may be read at once; None outside such a call. A request that begins with
            another one ends it.

    """

    of: object | None = None


MakeFiles: TypeAlias = (
    "Callable[[pathlib.Path, OpenBounds, Runtime, Catalog, OtherProcesses | None], CatalogFiles]"
)
"""Makes the files in a data directory, of which so many may be open, shared with others or not."""


class DatabaseFiles(CatalogFiles):
    """The files of one data directory."""

    _log = Logger()

    def __init__(
        self,
        folder: pathlib.Path,
        bounds: OpenBounds,
        runtime: Runtime,
        catalog: Catalog,
        others: OtherProcesses | None,
    ) -> None:
        """Use the files in `folder`, of which as many may be open as `bounds` says.

        `others` have the same files open.
        """
        super().__init__(bounds, runtime, catalog, is_shared=others is not None)
        self._others = others
        self._folder = folder
        self._runtime = runtime
        self._lock: DirectoryLock | None = None
        self._accepts_loss = False
        self._damaged: dict[DatabaseName, bool] = {}  # whether reads are refused, too
        self._checks = DamageChecks(self, runtime)
        self._is_held_only_for_check = False

    def find_databases(
        self,
        projects: ServedProjects,
        *,
        any_project: bool,
        lock: DirectoryLock | None,
        accept_loss: bool,
    ) -> FoundDatabases:
        """Find those in the folder, refuse what cannot be served, and check the rest later.

        Files of an older format are converted, which may take minutes. Raises `CannotOpenStore` if
        the folder itself cannot be read, or nothing can be opened with the SQLite that is there.
        """
        check_library()
        self._lock = lock
        self._accepts_loss = accept_loss
        removed = find_removed(self._folder)
        if self._others is None:  # else the parent has done that
            removed = finish_all(self._folder, removed)
        found = find_databases(self._folder, projects, any_project=any_project)
        found.removed.update(removed)
        for project, error in found.refused_projects.items():
            self._refusals.add_project(project, error)
        for name, error in found.refused.items():
            self._refusals.add(name, error)
        for name in sorted(found.older, key=str):
            self._convert(name)
        if self._others is None or self._others.checks_files:
            self._checks.add(sorted(filter(self._refusals.may_open, found.databases), key=str))
        self._open.start()
        self._dead.start()
        return found

    def make_engine(self, name: DatabaseName, *, is_written: bool) -> ReopeningEngine:
        """Return the engine of a database, of which nothing is open yet.

        Raises `DatabaseRefused` for one without a file, if it is not known whether it has one.
        """

        def open_file() -> FileEngine:
            return self._open_file(name)

        def use() -> None:
            self._open_in_place(self._catalog.find(name))

        def created(file: SqliteEngine) -> None:
            file.report_damage(partial(self._found_damaged, name))
            self._catalog.created(name)
            self._open.created(self._catalog.in_use(name), engine, file)

        is_shared = self.is_shared
        if is_written:
            return ReopeningEngine(open_file, use, is_shared=is_shared)
        self._refusals.check(name)
        first = CreateOnWriteEngine(lambda: self._create(name), created, is_shared=is_shared)
        engine = ReopeningEngine(open_file, use, first, is_shared=is_shared)
        return engine

    def add(self, database: Database, engine: ReopeningEngine) -> None:
        """Open and close the file of a database by its engine; refuse it if it is damaged."""
        super().add(database, engine)
        refuses_reads = self._damaged.get(database.name)
        if refuses_reads is not None:
            self._refuse(database, refuses_reads=refuses_reads)

    def acquire(
        self, database: Database, timeout_s: float, *, is_write: bool
    ) -> Deferred[None] | None:
        """Open a database and keep it open; errbacks as the base class says."""
        database.requests += 1
        opening = self._open_unless_refused(database)
        return opening.addTimeout(timeout_s, self._clock, time_out_opening)

    async def delete(self, name: DatabaseName) -> None:
        """Delete a database; all processes let go of it before its files are removed."""
        if self._others is not None:
            await self._others.delete(name)
            return
        if (problem := self.find_misplaced()) is not None:
            raise Unavailable(problem)
        shelf = self.path_of(name)
        await self._begin_removal(shelf)
        await self._catalog.let_go(name)
        await self._catalog.read_last(name)
        await remove_all(shelf, self._runtime.run_in_thread, self._clock)
        self._catalog.deleted(name)

    async def _begin_removal(self, shelf: pathlib.Path) -> None:
        try:
            await self._runtime.run_in_thread(partial(begin_removal, shelf))
        except OSError as error:
            raise Unavailable(cannot_delete(error)) from None

    async def settle(self, name: DatabaseName, database: Database | None) -> None:
        """Return when the file is neither being opened nor checked."""
        await super().settle(name, database)
        if (checking := self._checks.forget(name)) is not None:
            await checking

    def forget(self, name: DatabaseName, database: Database | None) -> None:
        """Forget a database that is closed for good, and what was wrong with it."""
        super().forget(name, database)
        self._damaged.pop(name, None)

    def make_lock(self, name: DatabaseName) -> MakeWriteLock | None:
        """Return None: no other process writes it."""
        return None

    def rules_storage(self, project: str) -> FileRules:
        """Return where the rules of a project are stored."""
        folder = self._folder / project
        return FileRules(folder / RULES_FILE, folder / RULES_VERSIONS_FOLDER, self.find_misplaced)

    def follow(self, database: Database) -> None:
        """Do nothing: no other process creates databases."""

    def _opened_again(self, name: DatabaseName) -> None:
        self._checks.add([name])

    def _check_later(self, name: DatabaseName) -> None:
        self._checks.add_later(name)

    def find_misplaced(self) -> str | None:
        """Return a sentence if files that are created now would not be those of this folder."""
        is_in_place = self._lock is None or self._lock.is_in_place()
        return None if is_in_place else LOCK_MISPLACED

    def problems(self) -> list[Problem]:
        """Return what keeps databases from being served whose files need not be open for that."""
        of_damaged = [
            Problem(name.project, name.database, _problem(refuses_reads=refuses_reads))
            for name, refuses_reads in self._damaged.items()
        ]
        return super().problems() + of_damaged

    def stop(self) -> Deferred[None]:
        """Open and close nothing more by itself; fires when no file is being checked."""
        super().stop()
        return self._checks.stop()

    # For the checks.

    def find_to_check(self, name: DatabaseName) -> Database:
        """Return a database that is to be checked."""
        return self._catalog.find(name)

    async def hold_file(self, database: Database) -> FileEngine:
        """Open the file of a database, and keep it open; raise `Unavailable`."""
        engine = self._engines[database]
        self._refusals.check(database.name)
        self._is_held_only_for_check = not database.is_open
        database.requests += 1
        try:
            if not database.is_open:
                await self._open.open(database, engine)
            return engine.file
        except BaseException:
            database.requests -= 1
            raise

    def release_file(self, database: Database) -> None:
        """Allow the file to be closed again, and close it if it was not open before."""
        database.requests -= 1
        if self._is_held_only_for_check:
            self._open.close_idle(database)

    def refuse_damaged(self, name: DatabaseName, damage: Damage) -> None:
        """Refuse writes to a database from now on, and the reads that cannot be trusted."""
        refuses_reads = isinstance(damage, StoreDamaged)
        if self._damaged.get(name) in {refuses_reads, True}:
            return  # that is known
        self.note_damaged(name, refuses_reads=refuses_reads)
        if self._others is not None:
            self._others.report_damaged(name, refuses_reads=refuses_reads)
        self._log.error(
            "{reason} Until then {what}.",
            reason=str(damaged(self.path_of(name), str(damage))),
            what=_SERVED[refuses_reads],
        )

    def note_damaged(self, name: DatabaseName, *, refuses_reads: bool) -> None:
        """Refuse writes to a database from now on, and with `refuses_reads` reads."""
        self._damaged[name] = refuses_reads
        self._refuse(self._catalog.find(name), refuses_reads=refuses_reads)

    def _refuse(self, database: Database, *, refuses_reads: bool) -> None:
        problem = _problem(refuses_reads=refuses_reads)
        if refuses_reads:
            self._engines[database].refuse_reads(problem)
        database.refuse_damaged(problem)

    def _found_damaged(self, name: DatabaseName, damage: Damage) -> None:
        """Refuse a database that a read or a write has found damaged, when that is over."""
        if name not in self._damaged:
            self._clock.callLater(0, self._refuse_if_found, name, damage)

    def _refuse_if_found(self, name: DatabaseName, damage: Damage) -> None:
        with contextlib.suppress(DatabaseDeleted):
            self._catalog.find(name)
            self.refuse_damaged(name, damage)

    # Files.

    def path_of(self, name: DatabaseName) -> pathlib.Path:
        """Return the file of a database."""
        return shelf_of(self._folder, name)

    def _open_unless_refused(self, database: Database) -> Deferred[None]:
        """Open a file; errbacks with `Unavailable`."""
        try:
            self._refusals.check(database.name)
        except DatabaseRefused as refusal:
            return fail(refusal)
        return self._open.open(database, self._engines[database])

    def _open_in_place(self, database: Database) -> None:
        self._refusals.check(database.name)
        self._open.open_in_place(database, self._engines[database])

    def _open_file(self, name: DatabaseName) -> SqliteEngine:
        """Open the file of a database, in any thread; raise `CannotOpenStore`."""
        file = self.path_of(name)
        try:
            engine = self._use_file(name, partial(self._open_shelf, file))
        except OSError as error:
            raise unreachable(file, error) from None
        except StoreFailed as error:
            raise inaccessible(file, str(error)) from None
        engine.report_damage(partial(self._found_damaged, name))
        if engine.warning is not None:
            self._log.warn("{warning}", warning=engine.warning)
        return engine

    def _use_file(
        self, name: DatabaseName, make: Callable[[bool], SqliteEngine], *, is_new: bool = False
    ) -> SqliteEngine:
        """Return the engine that `make` makes, which is given whether this process is alone."""
        return make(True)

    def _open_shelf(self, file: pathlib.Path, is_alone: bool) -> SqliteEngine:
        return SqliteEngine.open(
            file,
            lock=self._lock,
            accept_loss=self._accepts_loss,
            report=self._report,
            is_alone=is_alone,
        )

    def _convert(self, name: DatabaseName) -> None:
        try:
            self._open_file(name).close()
        except CannotOpenStore as error:
            self._refusals.add(name, error)

    def _report(self, sentence: str) -> None:
        self._log.info("{sentence}", sentence=sentence)

    def _create(self, name: DatabaseName) -> SqliteEngine:
        """Create the file of a database, in a worker thread; raise `CannotCreateStore`."""
        self._catalog.check_may_create(name)
        if not self._open.may_create():
            raise CannotCreateStore(str(TooManyInUse()))
        if (problem := self.find_misplaced()) is not None:
            raise CannotCreateStore(problem)
        file = self.path_of(name)
        if is_removed(file):
            raise DeletionUnderWay

        def create(is_alone: bool) -> SqliteEngine:
            # It exists already if an earlier first commit failed after the file had been created,
            # or if another process was first.
            if file.exists():
                return self._open_shelf(file, is_alone)
            return SqliteEngine.create(file, lock=self._lock)

        try:
            return self._use_file(name, create, is_new=True)
        except (CannotOpenStore, StoreFailed, OSError):
            if has_descriptors():
                raise
            raise CannotCreateStore(str(NoDescriptors())) from None


def _problem(*, refuses_reads: bool) -> str:
    return UNREADABLE if refuses_reads else DAMAGED


class SharedFiles(DatabaseFiles):
    """The files of one data directory that other processes serve too: who has them open.

    A database that was never written has no file, and its first write may be one of another
    process. So before each use this looks for a file; from then on that is used.
    """

    @cached_property
    def _shelves(self) -> WeakValueDictionary[DatabaseName, SharedShelf]:
        return WeakValueDictionary()

    def make_engine(self, name: DatabaseName, *, is_written: bool) -> ReopeningEngine:
        """Return the engine of a database, of which nothing is open yet."""
        if self._exists(name):
            self._catalog.created(name)
            is_written = True
        return super().make_engine(name, is_written=is_written)

    def make_lock(self, name: DatabaseName) -> MakeWriteLock:
        """Return what makes the write lock of a database."""
        return partial(FileWriteLock, self._shelf(name), name, self._runtime)

    @property
    def list_created(self) -> Callable[[str], list[DatabaseName]]:
        """Lists the databases of a project that have files; none if they cannot be listed."""
        return self._list_files

    def list_projects(self) -> Iterable[str]:
        """Return the projects that have a directory; none if they cannot be listed."""
        try:
            names = [each.name for each in self._folder.iterdir() if each.is_dir()]
        except OSError:
            return ()
        return [name for name in names if parse_label(name) == DatabaseName(name)]

    def _list_files(self, project: str) -> list[DatabaseName]:
        try:
            files = list((self._folder / project).glob(f"*{SHELF}"))
        except OSError:
            return []
        return [
            DatabaseName(project, file.name.removesuffix(SHELF))
            for file in files
            if not is_removed(file)
        ]

    def acquire(
        self, database: Database, timeout_s: float, *, is_write: bool
    ) -> Deferred[None] | None:
        """Keep a database open, and bring it up to date with others; None if that is done.

        A write is judged under the write lock, so it need not wait for what others have committed.
        Else returns what fires when it does; that errbacks as `DatabaseFiles.acquire`.
        """
        looking = self._find_created(database)
        if looking is None and database.is_open:
            current = None if is_write else database.make_current()
            database.requests += 1
            return current and current.addTimeout(timeout_s, self._clock, time_out_opening)
        database.requests += 1
        acquiring = Deferred.fromCoroutine(self._open_and_look(database, looking))
        return acquiring.addTimeout(timeout_s, self._clock, time_out_opening)

    def follow(self, database: Database) -> None:
        """Open a database that another process has created, if this one has watchers of it."""
        engine = self._engines.get(database)
        if engine is None or not engine.is_new or database.is_idle or database.is_writing:
            return
        if self._find_created(database) is None and not database.is_open:
            self._open_unless_refused(database).addErrback(lambda _: None)  # that is logged

    async def _open_and_look(self, database: Database, looking: Deferred[None] | None) -> None:
        if looking is not None:
            await looking
        if not database.is_open:
            await self._open_unless_refused(database)
        waiting = database.make_current()
        if waiting is not None:
            await waiting

    def _find_created(self, database: Database) -> Deferred[None] | None:
        """Use the file of a new database from now on if another process has created it.

        Returns what fires when that is known, None if it is. The file is not opened yet.
        """
        engine = self._engines.get(database)
        if engine is None or not engine.is_new or not self._exists(database.name):
            return None
        if database.is_writing:  # which will be found to be in conflict
            waiting: Deferred[None] = deferLater(self._clock, LOOK_AGAIN_S)
            return waiting.addCallback(lambda _: self._find_created(database))
        engine.detach()
        database.is_open = False
        self._catalog.created(database.name)
        return None

    def _exists(self, name: DatabaseName) -> bool:
        shelf = self.path_of(name)
        return shelf.exists() and not is_removed(shelf)

    def forget(self, name: DatabaseName, database: Database | None) -> None:
        """Forget a database that is closed for good, and how it was shared."""
        super().forget(name, database)
        self._shelves.pop(name, None)

    def _shelf(self, name: DatabaseName) -> SharedShelf:
        """Return how processes share the file of a database."""
        shelf = self._shelves.get(name)
        if shelf is None:
            shelf = self._shelves[name] = SharedShelf(self.path_of(name))
        return shelf

    def _use_file(
        self, name: DatabaseName, make: Callable[[bool], SqliteEngine], *, is_new: bool = False
    ) -> SqliteEngine:
        if is_new:
            create_directory(self.path_of(name).parent)
        return self._shelf(name).open(make, keeps_lock=is_new)


def find_files(
    folder: pathlib.Path,
    bounds: OpenBounds,
    runtime: Runtime,
    catalog: Catalog,
    others: OtherProcesses | None,
) -> DatabaseFiles:
    """Return the files of a data directory (`MakeFiles`), shared with `others` if there are any."""
    kind = DatabaseFiles if others is None else SharedFiles
    return kind(folder, bounds, runtime, catalog, others)


class DeadOwners:
    """Finds dead owners of sessions, and does what they have left.

    What a dead owner (`session_owners`) has left in a database is done when the database is
    opened. Here the databases that it lists are opened for that, one after the other, in the
    background; then its list is removed. Where several processes serve the same databases, each
    looks every second whether another one has died.
    """

    _log = Logger()

    def __init__(
        self, files: CatalogFiles, catalog: Catalog, runtime: Runtime, *, has_others: bool
    ) -> None:
        """Open by `files` the databases of `catalog`; look repeatedly if other processes exist."""
        self._files = files
        self._catalog = catalog
        self._owner, self._gate = runtime.owner, runtime.gate
        self._clock = runtime.clock
        self._has_others = has_others
        self._next: IDelayedCall | None = None
        self._is_over = False

    def start(self) -> None:
        """Begin in the next turn of the reactor."""
        if self._next is None or not self._next.active():
            self._next = self._clock.callLater(0, self._begin)

    def stop(self) -> None:
        """Begin nothing more."""
        self._is_over = True
        if self._next is not None and self._next.active():
            self._next.cancel()

    def _begin(self) -> None:
        Deferred.fromCoroutine(self._look())

    async def _look(self) -> None:
        if self._gate.refusal is not None:
            return  # started again when writes are accepted
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
        database = self._catalog.find(name)
        # A write may be judged on an older state: its commit compares.
        opening = self._files.acquire(database, OPEN_S, is_write=True)
        try:
            if opening is not None:
                await opening
            await database.disconnect_writes.run_left()
            return not database.disconnect_writes.has_left
        finally:
            database.requests -= 1
