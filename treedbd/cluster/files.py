"""The files of a cluster's databases on one daemon: local copies, and the rules in PostgreSQL.

`ClusterFiles` is to a catalog over PostgreSQL what `database.files` is to one in a data directory.
The copy of a database (`Copies`) is opened at its first use, and closed when it has not been used
for a while. The rules of a project are in PostgreSQL, where all daemons find them (`ClusterRules`).
"""

from __future__ import annotations

import contextlib
import pathlib
import time
from collections.abc import Callable, Collection
from functools import partial
from typing import Final, NoReturn
from weakref import ReferenceType, WeakKeyDictionary, WeakSet, WeakValueDictionary, ref

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from treedbd.cluster.connections import ClusterConnections, Singleflight
from treedbd.cluster.replica import Replica
from treedbd.database.active_rules import LoadedRules
from treedbd.database.catalog import Catalog
from treedbd.database.data_directory import SHELF, FoundDatabases, ServedProjects
from treedbd.database.database import Database
from treedbd.database.files import CatalogFiles
from treedbd.database.open_databases import OpenBounds
from treedbd.database.requests import (
    DatabaseDeleted,
    TooManyInUse,
    Unavailable,
    time_out_opening,
)
from treedbd.database.runtime import Problem, Runtime
from treedbd.database.write_lock import MakeWriteLock
from treedbd.files import create_directory
from treedbd.names import DatabaseName, parse_label
from treedbd.store.directory_lock import LOCK_MISPLACED, DirectoryLock
from treedbd.store.engine import CannotCreateStore, CannotOpenStore, StoreFailed, StoreUnreachable
from treedbd.store.on_demand import CreateOnWriteEngine, ReopeningEngine
from treedbd.store.postgresql.cluster import (
    DatabaseState,
    ProjectStore,
    StoredDatabase,
    read_status,
)
from treedbd.store.postgresql.engine import PostgresqlEngine
from treedbd.store.postgresql.fetching import DatabaseMissing
from treedbd.store.postgresql.removal import delete_database, remove_left_rows
from treedbd.store.rules_versions import Origin, RulesVersion
from treedbd.store.sqlite.engine import remove_files
from treedbd.store.sqlite.file import check_library

COPY: Final = ".copy"
"""How the file of a copy ends."""
KEPT_S: Final = 7 * 86_400.0
"""Seconds after its last use for which the file of a copy is kept; older ones go at the start."""
_LOOK_AGAIN_S: Final = 0.001


class ClusterFiles(CatalogFiles):
    """The files of a daemon over PostgreSQL: copies of its databases."""

    _log = Logger()

    def __init__(
        self,
        connections: ClusterConnections,
        folder: pathlib.Path,
        bounds: OpenBounds,
        runtime: Runtime,
        catalog: Catalog,
    ) -> None:
        """Keep copies in `folder`, of which as many may be open as `bounds` says."""
        super().__init__(bounds, runtime, catalog, is_shared=True)
        self._connections = connections
        self._projects: set[str] = set()
        self._replicas: WeakValueDictionary[DatabaseName, Replica] = WeakValueDictionary()
        # Looks and refreshes that are under way, each shared by all callers that wait for it.
        self._looks: WeakKeyDictionary[Database, Singleflight] = WeakKeyDictionary()
        self._refreshes: WeakValueDictionary[str, Singleflight] = WeakValueDictionary()
        self._reaching: set[int] = set()
        self._reached_at: dict[int, float] = {}
        self._followed: WeakSet[Database] = WeakSet()
        self._leaving: set[DatabaseName] = set()
        self._copies = Copies(connections, folder, catalog, self._open.may_create)

    # What a catalog needs.

    def find_databases(
        self,
        projects: ServedProjects,
        *,
        any_project: bool,
        lock: DirectoryLock | None,
        accept_loss: bool,
    ) -> FoundDatabases:
        """Find the databases in PostgreSQL; blocks. Raises `CannotOpenStore`."""
        check_library()  # for the copies
        self._copies.warn_of_shelves()
        self._copies.lock = lock
        self._projects = set(projects)
        found = FoundDatabases()
        try:
            stored = read_status(self._connections.store.pool).databases
        except StoreUnreachable as error:
            raise CannotOpenStore(
                self._connections.settings.subject, f"fails: {error}", "start again"
            ) from None
        for each in stored:
            names = projects.get(each.project)
            is_known = each.project in projects and (not names or each.name in names)
            if any_project or is_known:
                found.databases.add(DatabaseName(each.project, each.name))
        self._copies.remove_unused()
        self._open.start()
        self._dead.start()
        return found

    def rules_storage(self, project: str) -> ClusterRules:
        """Return where the rules of a project are stored."""
        return ClusterRules(self._connections.store.projects, project)

    def make_engine(self, name: DatabaseName, *, is_written: bool) -> ReopeningEngine:
        """Return the engine of a database, whose copy is not open yet."""

        def open_file() -> PostgresqlEngine:
            return self._copies.open(name, replica)

        def create() -> PostgresqlEngine:
            return self._copies.create(name, replica)

        def use() -> None:
            database = self._catalog.find(name)
            self._open.open_in_place(database, self._engines[database])

        def created(file: PostgresqlEngine) -> None:
            self._catalog.created(name)
            self._open.created(self._catalog.in_use(name), engine, file)

        if is_written:
            engine = ReopeningEngine(open_file, use, is_shared=True)
        else:
            first = CreateOnWriteEngine(create, created, is_shared=True)
            engine = ReopeningEngine(open_file, use, first, is_shared=True)
        replica = Replica(
            connections=self._connections,
            rules=self._catalog.rules(name.project),
            engine=engine,
            clock=self._clock,
            moment=self._catalog.moment,
            gone=lambda: self._found_gone(name, replica),
        )
        self._replicas[name] = replica
        return engine

    def make_lock(self, name: DatabaseName) -> MakeWriteLock:
        """Return what makes the write lock of a database."""
        return self._replicas[name].begin

    def acquire(
        self, database: Database, timeout_s: float, *, is_write: bool
    ) -> Deferred[None] | None:
        """Open the copy, keep it open, and bring it up to date; None if all is done already."""
        database.requests += 1
        replica = self._replica_of(database)
        if replica is None:
            refreshing = self.refresh(database.name.project)
            return refreshing.addTimeout(timeout_s, self._clock, self._time_out)
        if replica.is_usable_at_once(is_write=is_write):
            return None
        acquiring = Deferred.fromCoroutine(self._acquire(database, replica, is_write=is_write))
        return acquiring.addTimeout(timeout_s, self._clock, self._time_out)

    def _time_out(self, result: object, timeout_s: float) -> NoReturn:
        if self._connections.problem is not None:
            raise Unavailable(self._connections.problem)
        time_out_opening(result, timeout_s)

    def follow(self, database: Database) -> None:
        """Open a database that another daemon has created, if this one has watchers of it."""
        replica = self._replica_of(database)
        is_unknown = replica is not None and replica.db is None and not database.is_idle
        if replica is not None and is_unknown and database not in self._followed:
            self._followed.add(database)

            def looked(_: object) -> None:  # after an error it is tried again
                self._followed.discard(database)

            opening = Deferred.fromCoroutine(self._acquire(database, replica, is_write=False))
            opening.addBoth(looked)

    def refresh(self, project: str) -> Deferred[None]:
        """Read which databases and rules a project has; errbacks with `Unavailable`."""
        run = self._refreshes.get(project)
        if run is None:
            run = self._refreshes[project] = Singleflight(
                partial(self._refresh, project), self._connections.slices
            )
        return run.call()

    def problems(self) -> list[Problem]:
        """Return why databases cannot be served."""
        found = super().problems()
        reason = self._connections.problem
        if reason is not None:
            found += [Problem(project, None, reason) for project in sorted(self._projects)]
        return found

    def note_damaged(self, name: DatabaseName, *, refuses_reads: bool) -> None:
        """Do nothing: a damaged copy is made again."""

    def path_of(self, name: DatabaseName) -> pathlib.Path:
        """Return the file of the copy of a database; raise `CannotOpenStore`."""
        return self._copies.path_of(name)

    # Deletion.

    async def delete(self, name: DatabaseName) -> None:
        """Delete a database in PostgreSQL, then the copy; other daemons find that it is gone."""
        if name in self._leaving:
            raise DatabaseDeleted
        store = self._connections.store
        replica = self._replicas.get(name)
        self._leaving.add(name)
        try:
            await self._connections.run_aside(partial(delete_database, store.pool, name))
        except StoreUnreachable as error:  # it may be deleted all the same, and is found gone then
            self._leaving.discard(name)
            raise Unavailable(str(error)) from None
        await self._let_go(name)
        if replica is not None and replica.db is not None:
            self._connections.hint_others(replica.db)
        # The rest is left to the next `trim` of any daemon.
        with contextlib.suppress(StoreUnreachable):
            await self._connections.run_aside(partial(remove_left_rows, store.pool))

    def _found_gone(self, name: DatabaseName, replica: Replica) -> None:
        """Close a database that another daemon has deleted, and remove its copy."""
        if name not in self._leaving and self._replicas.get(name) is replica:
            self._log.info("{label} was deleted by another daemon.", label=name.label)
            letting = Deferred.fromCoroutine(self._let_go(name))
            letting.addErrback(
                lambda failure: self._log.failure("A copy cannot be removed.", failure)
            )

    async def _let_go(self, name: DatabaseName) -> None:
        self._leaving.add(name)
        try:
            await self._catalog.let_go(name)
            await self._connections.run(partial(self._copies.remove, name))
        finally:
            self._leaving.discard(name)
            self._catalog.deleted(name)

    def forget(self, name: DatabaseName, database: Database | None) -> None:
        """Forget a database that is closed for good, and its copy."""
        super().forget(name, database)
        self._replicas.pop(name, None)
        if database is not None:
            self._engines.pop(database, None)  # the replica of its name may be another one's soon

    def stop(self) -> Deferred[None]:
        """Open and close no copy any more."""
        self._connections.is_closing = True
        return super().stop()

    # What others have committed.

    def replicas(self) -> dict[int, Replica]:
        """Return the replicas whose copies are open, by their numbers in PostgreSQL."""
        return {
            each.db: each
            for each in self._replicas.values()
            if each.db is not None and each.rev is not None
        }

    async def follow_all(self, now: float) -> float:
        """Begin to show what others have committed to all open databases.

        Returns the time, at most `now`, at which all that is shown was current. Raises
        `Unavailable`.
        """
        replicas = self.replicas()
        try:
            states = await self._connections.states.find_states(replicas)
        except StoreUnreachable as error:
            raise Unavailable(str(error)) from None
        for db in replicas.keys() - states.keys():
            replicas[db].gone()
        for db in states.keys() & replicas.keys():
            self._reach(db, replicas[db], states[db], now)
        for database in list(self._engines):
            self.follow(database)
        self._reached_at = {db: self._reached_at.get(db, now) for db in self.replicas()}
        return min([now, *self._reached_at.values()])

    def _reach(self, db: int, replica: Replica, state: DatabaseState, now: float) -> None:
        """Bring a copy up to a state, without waiting for one that has a long batch."""
        if db in self._reaching:
            return
        self._reaching.add(db)

        def over(result: object) -> None:
            self._reaching.discard(db)
            if not isinstance(result, Failure):
                self._reached_at[db] = now

        Deferred.fromCoroutine(replica.reach(state)).addBoth(over)

    # Opening.

    async def _acquire(self, database: Database, replica: Replica, *, is_write: bool) -> None:
        try:
            if replica.db is None:
                if (problem := self._connections.problem) is not None:
                    raise Unavailable(problem)
                await self._look(database, replica)
            if not database.is_open:
                self._refusals.check(database.name)
                await self._open.open(database, self._engines[database])
                await replica.find_and_reach()  # it may have taken long to fetch all
            elif not (is_write and replica.is_usable_at_once(is_write=True)):
                waiting = replica.make_current()
                if waiting is not None:
                    await waiting
        except DatabaseDeleted:
            self._found_gone(database.name, replica)
            raise
        except StoreUnreachable as error:
            raise Unavailable(str(error)) from None

    def _look(self, database: Database, replica: Replica) -> Deferred[None]:
        run = self._looks.get(database)
        if run is None:
            run = self._looks[database] = Singleflight(
                partial(self._look_once, ref(database), replica), self._connections.slices
            )
        return run.call()

    async def _look_once(self, of: ReferenceType[Database], replica: Replica) -> None:
        """Find out whether another daemon has created a database; its rules are in force then."""
        if (database := of()) is None:
            return
        name = database.name
        projects = self._connections.store.projects
        epoch, stored = await self._connections.run_aside(
            lambda: projects.look_up(name.project, name.database)
        )
        await replica.use_epoch(epoch)
        while stored is not None and replica.db is None:
            engine = self._engines[database]
            if not engine.is_new or not database.is_writing:
                replica.db = stored.db
                if engine.is_new:
                    engine.detach()
                    database.is_open = False
                self._catalog.created(name)
                return
            # The first write is under way, and will lose with `Conflict`.
            await deferLater(self._clock, _LOOK_AGAIN_S)

    async def _refresh(self, project: str) -> None:
        projects = self._connections.store.projects
        try:
            stored, (_, epoch) = await self._connections.run_aside(
                lambda: (projects.list_databases(project), projects.read_rules(project))
            )
        except StoreUnreachable as error:
            raise Unavailable(str(error)) from None
        names = {DatabaseName(each.project, each.name) for each in stored}
        for name in names:
            self._catalog.created(name)
        self._forget_missing(project, names)
        rules = self._catalog.rules(project)
        if epoch != rules.epoch:
            await rules.load_stored()

    def _forget_missing(self, project: str, stored: Collection[DatabaseName]) -> None:
        """Forget the databases of a project that another daemon has deleted."""
        for database in self._catalog.written.of(project, None):
            name = DatabaseName(project, database)
            if name not in stored:
                self._catalog.written.discard(name)
                if (replica := self._replicas.get(name)) is not None:
                    replica.hinted()  # which finds that it is gone, unless it was created just now

    def _replica_of(self, database: Database) -> Replica | None:
        return self._replicas.get(database.name) if database in self._engines else None


@attrs.define
class Copies:
    """The copies in one data directory; all methods block, and may be called in any thread.

    A copy is `<data>/<project>/<database>.copy`: a shelf that PostgreSQL can fill again at any
    time. The file stays for the next use, or until it has not been used for `KEPT_S`. `may_create`
    returns whether one more copy may be open.

    Attributes:
        lock: that of the data directory.

    """

    _log = Logger()
    _connections: ClusterConnections
    _folder: pathlib.Path
    _catalog: Catalog
    _may_create: Callable[[], bool]
    lock: DirectoryLock | None = None

    def open(self, name: DatabaseName, replica: Replica) -> PostgresqlEngine:
        """Open the copy of a database and bring it up to date; blocks, in any thread."""
        projects = self._connections.store.projects
        try:
            stored = projects.find_database(name.project, name.database)
        except StoreUnreachable as error:
            raise Unavailable(str(error)) from None
        if stored is None or replica.db not in {None, stored.db}:
            raise DatabaseDeleted  # by another daemon
        try:
            return self._open_stored(name, stored, replica)
        except StoreUnreachable as error:
            raise Unavailable(str(error)) from None

    def _open_stored(
        self, name: DatabaseName, stored: StoredDatabase, replica: Replica
    ) -> PostgresqlEngine:
        path = self.path_of(name)
        create_directory(path.parent)
        engine = self._connections.store.open_engine(
            path, stored.db, epoch=replica.judged_epoch, lock=self.lock
        )
        try:
            engine.catch_up()
        except (DatabaseMissing, OSError) as error:
            engine.close()
            raise StoreFailed("No copy of the database can be made at present.") from error
        except BaseException:
            engine.close()
            raise
        replica.opened(stored.db, engine)
        return engine

    def create(self, name: DatabaseName, replica: Replica) -> PostgresqlEngine:
        """Create a database for its first commit; blocks, in a worker thread.

        Raises `CannotCreateStore` or `StoreUnreachable`.
        """
        projects = self._connections.store.projects
        for each in projects.list_databases(name.project):
            self._catalog.created(DatabaseName(each.project, each.name))
        self._catalog.check_may_create(name)
        if not self._may_create():
            raise CannotCreateStore(str(TooManyInUse()))
        if self.lock is not None and not self.lock.is_in_place():
            raise CannotCreateStore(LOCK_MISPLACED)
        stored = projects.create_database(name.project, name.database)
        return self._open_stored(name, stored, replica)

    def path_of(self, name: DatabaseName) -> pathlib.Path:
        """Return the file of the copy of a database; raise `CannotOpenStore`."""
        if parse_label(name.label) != name:  # it must not lead out of the folder
            raise CannotOpenStore(
                f"The database {name.label}", "has a name that is none", "remove it from PostgreSQL"
            )
        return self._folder / name.project / f"{name.database}{COPY}"

    def remove(self, name: DatabaseName) -> None:
        """Remove the copy of a database, which is not open; one that stays is never used again."""
        with contextlib.suppress(OSError):
            remove_files(self.path_of(name))

    def remove_unused(self) -> None:
        """Remove the files of copies that have not been used for long; none may be open."""
        oldest = time.time() - KEPT_S
        for file in self._folder.glob(f"*/*{COPY}"):
            with contextlib.suppress(OSError):
                if file.stat().st_mtime < oldest:
                    remove_files(file)

    def warn_of_shelves(self) -> None:
        """Log if the folder has databases of the embedded engine, which are not served."""
        if any(self._folder.glob(f"*/*{SHELF}")):
            self._log.warn(
                "{folder} holds databases of the embedded engine, which are not served over "
                "PostgreSQL: bring them there by treedb move, or choose another data directory.",
                folder=str(self._folder),
            )


@attrs.frozen
class ClusterRules:
    """A `RulesStorage` of one project, whose rules are in PostgreSQL."""

    is_shared = True
    _projects: ProjectStore
    _project: str

    @property
    def label(self) -> str:
        """Which rules they are."""
        return f"PostgreSQL, project {self._project}"

    def load(self) -> LoadedRules:
        """Return the rules; blocks. Raises `Unavailable`."""
        try:
            return LoadedRules(*self._projects.read_rules(self._project))
        except StoreUnreachable as error:
            raise Unavailable(str(error)) from None

    def store(self, text: bytes, origin: Origin, epoch: int | None = None) -> None:
        """Replace the rules, for all daemons; blocks. Raises `Unavailable` or `RulesReplaced`."""
        try:
            self._projects.put_rules(self._project, text, origin, epoch)
        except StoreUnreachable as error:
            raise Unavailable(str(error)) from None

    def list_versions(self) -> list[RulesVersion]:
        """Return the versions that all daemons have put; blocks. Raises `Unavailable`."""
        try:
            return self._projects.list_rules_versions(self._project)
        except StoreUnreachable as error:
            raise Unavailable(str(error)) from None

    def read_version(self, number: int) -> bytes | None:
        """Return the text of a version; blocks. Raises `Unavailable`."""
        try:
            return self._projects.read_rules_version(self._project, number)
        except StoreUnreachable as error:
            raise Unavailable(str(error)) from None
