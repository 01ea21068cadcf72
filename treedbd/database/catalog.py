"""The catalog of projects and databases, with the rules of each project.

A database is stored at `<folder>/<project>/<name>.shelf`. Reading one that was never written
creates nothing; it is created by the first write that succeeds (`WrittenDatabases` has those that
exist, and says whether there may be more). The file of one that exists is opened at its first use;
if it cannot be served, the others are (`files`).
"""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Mapping,
    MutableMapping,
)
from functools import partial
from heapq import nsmallest
from threading import Lock
from time import monotonic
from typing import Final, TypeAlias, TypeVar
from weakref import WeakValueDictionary

from twisted.internet.defer import Deferred, DeferredList, fail
from twisted.logger import Logger

from treedbd.database.active_rules import ActiveRules, RulesWork
from treedbd.database.database import Database
from treedbd.database.files import MakeFiles, ReadMoment, find_files
from treedbd.database.first_hooks import FirstHooks
from treedbd.database.open_databases import DEFAULT_BOUNDS, OpenBounds
from treedbd.database.reader_lags import ReaderLags
from treedbd.database.requests import (
    DatabaseDeleted,
    ProjectSpec,
    RulesUnreadable,
    Unavailable,
    UnknownDatabase,
    WrittenElsewhere,
    time_out_opening,
)
from treedbd.database.runtime import Look, OtherProcesses, Problem, ProblemSearch, Runtime
from treedbd.database.slices import Steps
from treedbd.database.volatile_exchange import VolatileExchange
from treedbd.database.write_lock import MakeWriteLock
from treedbd.limits import Limits, RulesLimits
from treedbd.names import DEFAULT_DATABASE, DatabaseName, DialectName
from treedbd.rules.ruleset import DEFAULT_LIMITS, DENY, RuleSet
from treedbd.store.changelog import push_time
from treedbd.store.directory_lock import DirectoryLock
from treedbd.store.engine import CannotCreateStore, Engine
from treedbd.store.memory import MemoryEngine
from treedbd.store.on_demand import CreateOnWriteEngine

T = TypeVar("T")

PROJECTS_AT_ONCE: Final = 1000
"""Databases whose projects are collected in one step."""
READERS_S: Final = 30.0
"""Seconds that opening a database to look at its readers may take."""
COMING_S: Final = 60.0
"""Seconds for which a database counts that may be created and was not."""

ListCreated: TypeAlias = Callable[[str], Iterable[DatabaseName]]
"""Returns the databases of a project that have files, whichever process has created them."""


ReadLast: TypeAlias = Callable[[DatabaseName, pathlib.Path], Awaitable[None]]


class WrittenDatabases:
    """The databases that have data, so that they exist; may be used in any thread."""

    def __init__(self, limit: int, seconds: Callable[[], float] = monotonic) -> None:
        """Allow `limit` of them."""
        self._limit = limit
        self._names: set[DatabaseName] = set()
        self._seconds = seconds
        # Those that may be created and are not written yet, which count: several are created at a
        # time. If that fails, they count for a while.
        self._coming: dict[DatabaseName, float] = {}
        self._checking = Lock()

    def __contains__(self, name: DatabaseName) -> bool:
        """Return whether a database is known to have data."""
        return name in self._names

    def __len__(self) -> int:
        """Return how many databases are known to have data."""
        return len(self._names)

    def all(self) -> list[DatabaseName]:
        """Return all that are known to have data."""
        return list(self._names)

    def first(self, count: int) -> list[DatabaseName]:
        """Return those whose labels come first, in order."""
        return nsmallest(count, list(self._names), key=lambda name: name.label)

    def add(self, name: DatabaseName) -> None:
        """Record that a database has data."""
        self._names.add(name)

    def discard(self, name: DatabaseName) -> None:
        """Record that a database has no data: it was deleted, or none was ever written."""
        self._names.discard(name)
        with self._checking:
            self._coming.pop(name, None)

    def update(self, names: Iterable[DatabaseName]) -> None:
        """Record that databases have data."""
        self._names.update(names)

    def of(self, project: str, list_created: ListCreated | None) -> frozenset[str]:
        """Return the names of those of a project, also of those that others have created."""
        if list_created is not None:
            self._names.update(list_created(project))
        return frozenset(each.database for each in list(self._names) if each.project == project)

    def check_may_add(
        self, name: DatabaseName, project_limit: int, list_created: ListCreated | None
    ) -> None:
        """Raise `CannotCreateStore` if no further database may exist."""
        with self._checking:
            if name not in self._names:
                self._check(name, project_limit, list_created)
                self._coming[name] = self._seconds() + COMING_S

    def _check(
        self, name: DatabaseName, project_limit: int, list_created: ListCreated | None
    ) -> None:
        now = self._seconds()
        names = list(self._names)
        self._coming = {each: end for each, end in self._coming.items() if end > now}
        coming = self._coming.keys() - {name, *names}
        for project in {each.project for each in names} | {name.project}:
            of_project = len(self.of(project, list_created))
            of_project += sum(each.project == project for each in coming - self._names)
            if project == name.project and of_project >= project_limit:
                raise CannotCreateStore(
                    f"The project {project} has {project_limit} databases, "
                    "and no more can be created."
                )
        if len(self._names | coming) >= self._limit:
            raise CannotCreateStore(
                f"There are {self._limit} databases, and no more can be created."
            )


class Catalog:
    """All databases of one data directory.

    Attributes:
        rules_work: the work on the rules documents of all projects.
        statistics: count what all databases do.
        moment: in which a request may read at once.
        written: the databases that have data, as far as this process knows.
        readers: where the readers of change logs are, and which have lost their places.
        end_listeners: called with a database that is being deleted, to end what uses it.
        deletion_listeners: called with a database that this process has let go of for good.
        last_readers: called with a database that is being deleted, and its file, when no process
            uses that any more; it is removed when what they return has fired.
        problem_sources: return what else is not as it should be.
        news: `Runtime.news`.

    """

    _log = Logger()

    def __init__(
        self,
        folder: pathlib.Path,
        engine: str,
        projects: Mapping[str, ProjectSpec],
        *,
        any_project: bool,
        first_rules: RuleSet,
        rules_limits: RulesLimits = DEFAULT_LIMITS,
        max_databases: int = Limits().databases,
        bounds: OpenBounds = DEFAULT_BOUNDS,
        runtime: Runtime,
        retain_events: int,
        others: OtherProcesses | None = None,
        make_files: MakeFiles = find_files,
    ) -> None:
        """Serve `folder`; with `any_project` every project exists, configured or not.

        `first_rules` are in force in a project until its own are PUT. If there are `max_databases`,
        no other is created; `bounds` says how many of them may be open. `others` serve them too.
        """
        self._others = others
        self._is_in_memory = engine == "memory"
        self._projects = dict(projects)
        self._any_project = any_project
        self.rules_work: Final = RulesWork(runtime.clock)
        self._rules: MutableMapping[str, ActiveRules] = WeakValueDictionary()
        self._kept_rules: list[ActiveRules] = []
        self._unreadable: set[str] = set()
        self._runtime = runtime
        self.statistics: Final = runtime.statistics
        self.news: Final = runtime.news
        self.readers: Final = ReaderLags(runtime.statistics, runtime.clock.seconds, runtime.now_ms)
        self._retain_events = retain_events
        self.written: Final = WrittenDatabases(max_databases)
        self.end_listeners: Final[list[Callable[[DatabaseName], None]]] = []
        self.deletion_listeners: Final[list[Callable[[DatabaseName], None]]] = []
        self.last_readers: Final[list[ReadLast]] = []
        self.problem_sources: Final[list[Callable[[], list[Problem]]]] = []
        self._deleting: set[DatabaseName] = set()
        self._has_created = False
        self._used: WeakValueDictionary[DatabaseName, Database] = WeakValueDictionary()
        # Those of `_used` that are kept though nothing else refers to them: their data is open.
        self._open: dict[DatabaseName, Database] = {}
        runtime.statistics.count_open = self._open.__len__
        runtime.statistics.count_volatile = self._count_volatile
        self.moment: Final = ReadMoment()
        self._files: Final = make_files(folder, bounds, runtime, self, others)
        self._first_rules = first_rules
        self._rules_limits = rules_limits
        self._problem_search = ProblemSearch(self._look_for_problems, runtime.slices)

    def open(self, lock: DirectoryLock | None = None, *, accept_loss: bool = False) -> None:
        """Find the databases in the folder; raise `CannotOpenStore` if that cannot be read.

        `lock` is that of the folder: while it is not in its place, nothing is written. With
        `accept_loss` databases are served from which changes are missing, and that is logged.
        """
        if self._is_in_memory:
            return
        found = self._files.find_databases(
            {name: project.databases for name, project in self._projects.items()},
            any_project=self._any_project,
            lock=lock,
            accept_loss=accept_loss,
        )
        found.warn_of_foreign()
        self.written.update(found.databases)
        self._deleting.update(found.removed)
        for project in self._projects:
            with contextlib.suppress(Unavailable):  # it is read again when it is needed
                self.rules(project)  # so that what is wrong with rules is reported at the start

    def find(self, name: DatabaseName) -> Database:
        """Return a database that exists or may be created; its file need not be open.

        Raises `UnknownDatabase`, `DatabaseDeleted` for one that is being deleted, or
        `DatabaseRefused` if its project cannot be served.
        """
        database = self._open.get(name)
        if database is not None and self._may_exist(name, database.project):
            return database
        project = self._project(name)
        if not self._may_exist(name, project):
            raise UnknownDatabase(name, is_project_known=True)
        if name in self._deleting:
            raise DatabaseDeleted
        return self._used.get(name) or self._make(name, project)

    def use_open(self, name: DatabaseName) -> Database | None:
        """Return a database for use in this turn if its file is open, None if it is not."""
        database = self._open.get(name)
        if database is None or not database.is_open:
            return None
        if not (self._may_exist(name, database.project) and database.is_current()):
            return None
        database.used_at = self._runtime.clock.seconds()
        return database

    def find_open(self, name: DatabaseName) -> Database | None:
        """Return a database whose file is open, without keeping it open; None if it is not."""
        database = self._open.get(name)
        return database if database is not None and database.is_open else None

    def find_writing(self) -> list[Database]:
        """Return the databases of which writes are under way in this process."""
        return [each for each in self._live() if each.is_writing]

    def created_of(self, project: str) -> frozenset[str]:
        """Return the names of the databases of a project that have data, as far as is known."""
        return self.written.of(project, self._files.list_created)

    def when_current(self, name: DatabaseName, call: Callable[[], None]) -> bool:
        """Call `call` in a moment, during which `use_open` may return the database.

        Returns False without a call if such a moment does not exist, or the file is not open.
        """
        database = self._open.get(name)
        return database is not None and database.is_open and database.when_current(call)

    def acquire(
        self, database: Database, timeout_s: float, *, is_write: bool = False
    ) -> Deferred[None] | None:
        """Keep a database open until `release`; None if it is usable now, else what fires then.

        Errbacks as `CatalogFiles.acquire`. It has to be released after an error, too. A database
        that is used without this is opened in place, which waits for the disk.
        """
        if database.is_open and not self._files.is_shared:
            database.requests += 1
            return None
        acquiring = self._files.acquire(database, timeout_s, is_write=is_write)
        if acquiring is not None:
            return acquiring.addCallback(lambda _: self._wait_for_volatile(database, timeout_s))
        return self._wait_for_volatile(database, timeout_s)

    def _wait_for_volatile(self, database: Database, timeout_s: float) -> Deferred[None] | None:
        waiting = database.wait_for_volatile()
        return waiting and waiting.addTimeout(timeout_s, self._runtime.clock, time_out_opening)

    @contextlib.asynccontextmanager
    async def opened(
        self, database: Database, timeout_s: float, *, is_write: bool = False
    ) -> AsyncIterator[None]:
        """Keep a database open within a `with` block; raise as `acquire` errbacks."""
        opening = self.acquire(database, timeout_s, is_write=is_write)
        try:
            if opening is not None:
                await opening
            yield
        finally:
            self.release(database)

    def hinted(self, name: DatabaseName) -> None:
        """Look for writes of another process to a database, after its hint."""
        for written in self._runtime.news:
            written(name)
        if name not in self._open:
            self.readers.forget(name)  # who has written it knows what is in it
        database = self._used.get(name)
        if database is not None:
            self._files.follow(database)
            database.hinted()

    def volatile_exchange(self, name: DatabaseName) -> VolatileExchange | None:
        """Return what exchanges the volatile nodes of a database; None if it is not in use here."""
        database = self._used.get(name)
        volatile = None if database is None else database.volatile
        return None if volatile is None else volatile.exchange

    def _count_volatile(self) -> tuple[int, int]:
        """Return how many volatile nodes have values in open databases, and their bytes."""
        found = [each.volatile for each in self._open.values() if each.volatile is not None]
        return sum(map(len, found)), sum(each.size for each in found)

    def poll(self) -> None:
        """Look for writes of other processes to all databases in use, in slices."""
        self._runtime.slices.start(self._poll())

    def _poll(self) -> Steps:
        for name in list(self._used):
            self.hinted(name)
            yield

    def release(self, database: Database) -> None:
        """Allow a database to be closed again; once for each `acquire`."""
        database.requests -= 1
        database.used_at = self._runtime.clock.seconds()
        if self._has_created:
            self._has_created = False
            self._files.trim()

    def retry_refused(self) -> Deferred[None]:
        """Try again to open the databases that were refused; fires when that is done."""
        return Deferred.fromCoroutine(self._files.retry_refused())

    def stand_in(self, name: DatabaseName, kind: type[Database]) -> Database:
        """Return an empty database of `kind` in memory, which the catalog does not keep.

        Raises `UnknownDatabase` if the project does not exist.
        """
        return self._make_database(name, self._project(name), MemoryEngine(), kind=kind)

    def dialect(self, name: DatabaseName) -> DialectName:
        """Return the dialect set for the project of a database; raise `UnknownDatabase`."""
        return self._project(name).dialect

    def rules(self, project: str) -> ActiveRules:
        """Return the rules in force of a project.

        Raises `UnknownDatabase`, and `Unavailable` if they cannot be read: then they are at the
        next call.
        """
        rules = self._rules.get(project)
        if rules is None:
            spec = self._project(DatabaseName(project))
            rules = self._rules[project] = self._read_rules(spec)
            if project in self._projects or self._is_in_memory:
                # Others are dropped with their databases; rules that were PUT are in a file.
                self._kept_rules.append(rules)
            self._tell_of_rules(project)
        return rules

    def _tell_of_rules(self, project: str) -> None:
        for known in self._runtime.rules_news:
            known(project)

    def refresh(self, project: str) -> Deferred[None] | None:
        """Read which databases and rules others have made; None if all is known."""
        return None if self._is_in_memory else self._files.refresh(project)

    def file_of(self, name: DatabaseName) -> pathlib.Path:
        """Return the file of a database, or of its copy; raise `CannotOpenStore`."""
        return self._files.path_of(name)

    def names(self, project: ProjectSpec) -> list[DatabaseName]:
        """Return the databases of a project that exist or are configured, in order."""
        names = project.databases
        if names is None:
            names = self.written.of(project.name, self._files.list_created) | {DEFAULT_DATABASE}
        return [DatabaseName(project.name, name) for name in sorted(names)]

    async def with_first_hooks(self, work: Callable[[FirstHooks], T]) -> T:
        """Return what `work` returns for the hooks of patterns of databases; it may block."""
        found: list[T] = []
        hooks = self._runtime.first_hooks
        await self._runtime.run_in_thread(lambda: found.append(work(hooks)))
        return found[0]

    def check_accepts_writes(self) -> None:
        """Raise `WrittenElsewhere` if this process accepts no writes, as a standby."""
        self._runtime.gate.check()

    def find_own_problems(self) -> Deferred[list[Problem]]:
        """Find what keeps this process from serving databases as it should; opens none."""
        return self._problem_search.find()

    def find_problems(self) -> Deferred[list[Problem]]:
        """Find the problems of all processes that serve these databases."""
        others = self._others
        return self._problem_search.find(None if others is None else others.find_problems)

    def note_damaged(self, name: DatabaseName, *, refuses_reads: bool) -> None:
        """Refuse writes to a database that another process has found damaged, or reads too."""
        self._files.note_damaged(name, refuses_reads=refuses_reads)

    async def load_rules(self, project: str) -> None:
        """Put the rules of a project in force that another process has stored."""
        if project in self._rules:
            await self._rules[project].load_stored()

    def _look_for_problems(self) -> Look:
        for project in list(self._unreadable):  # without a request too: probes keep those away
            with contextlib.suppress(Unavailable):
                self.rules(project)
        reason = str(RulesUnreadable())
        unreadable = [Problem(project, None, reason) for project in sorted(self._unreadable)]
        of_files = [*self._files.problems(), *unreadable]
        found = {(each.project, each.database): each for each in of_files}
        for name, database in list(self._open.items()):
            problem = database.write_problem
            if problem is not None:
                found[name.project, name.database] = Problem(name.project, name.database, problem)
            yield
        of_rules = [
            Problem(project, None, each.problem, refuses_writes=False)
            for project, each in list(self._rules.items())
            if each.problem is not None
        ]
        yield from self._look_at_readers()
        of_others = [
            each
            for source in self.problem_sources
            for each in source()
            if (each.project, each.database) not in found  # which is the cause
        ]
        return [*found.values(), *of_rules, *self.readers.problems(), *of_others]

    def _look_at_readers(self) -> Steps:
        yield from self.readers.look_at_all(list(self._open.values()))
        name = self.readers.find_closed(self._open)
        if name is not None:
            Deferred.fromCoroutine(self._look_at_closed(name))

    async def _look_at_closed(self, name: DatabaseName) -> None:
        """Open a database that was closed, and look whether its readers have begun again."""
        try:
            database = self.find(name)
            async with self.opened(database, READERS_S):
                self.readers.look(database)
        except Exception as error:
            self._log.debug("{label} is not looked at: {error}", label=name.label, error=error)

    # For the files.

    def check_may_create(self, name: DatabaseName) -> None:
        """Raise `CannotCreateStore` if no further database may exist; in any thread."""
        limit = self._project(name).databases_max
        self.written.check_may_add(name, limit, self._files.list_created)

    def created(self, name: DatabaseName) -> None:
        """Record that a database has a file from now on; in any thread."""
        self.written.add(name)
        self._has_created = True

    def in_use(self, name: DatabaseName) -> Database:
        """Return a database that is in use already, also one that is being deleted."""
        return self._used[name]

    def keep(self, name: DatabaseName) -> None:
        """Keep a database in memory from now on, because its file is open; in any thread."""
        database = self._open[name] = self._used[name]
        database.answers.is_active = True

    def stop_keeping(self, database: Database) -> None:
        """Stop keeping a database: its file is closed."""
        if self._open.get(database.name) is database:
            del self._open[database.name]
        database.answers.is_active = False
        database.answers.clear()

    # Lists, and deletion.

    def projects(self) -> Generator[None, None, list[ProjectSpec]]:
        """Return in steps the projects that are configured or have databases, in order."""
        names = {*self._projects, *self._files.list_projects()}
        for at, each in enumerate(self.written.all()):
            names.add(each.project)
            if at % PROJECTS_AT_ONCE == 0:
                yield
        known = (each for each in sorted(names) if self._any_project or each in self._projects)
        return [self._project(DatabaseName(each)) for each in known]

    def exists(self, name: DatabaseName) -> bool:
        """Return whether a database exists, as far as is known: it is listed, or was created."""
        project = self._project(name)
        if project.databases is not None:
            return name.database in project.databases
        return name.database in self.written.of(name.project, self._files.list_created)

    def has_data(self, name: DatabaseName) -> bool:
        """Return whether a database has data, as far as is known."""
        return name in self.written or name.database in self.created_of(name.project)

    def delete(self, name: DatabaseName, *, is_local: bool = False) -> Deferred[None]:
        """Delete a database with all that is in it; fires when that is durable.

        Errbacks with `Unavailable` if it cannot be deleted, and then it is as it was. One that
        accepts no writes (`WriteGate`) deletes only what it `is_local` to decide. Cancelling ends
        the waiting only: what has begun is finished.
        """
        if not is_local and self._runtime.gate.refusal is not None:
            return fail(WrittenElsewhere(self._runtime.gate.refusal))
        deleted: Deferred[None] = Deferred()
        Deferred.fromCoroutine(self._delete(name)).chainDeferred(deleted)
        return deleted

    async def _delete(self, name: DatabaseName) -> None:
        if name in self._deleting:
            raise DatabaseDeleted
        if self._is_in_memory:
            await self.let_go(name)
            self.deleted(name)
        else:
            await self._files.delete(name)

    async def let_go(self, name: DatabaseName) -> None:
        """Close a database, which is being deleted, and end what uses it; none may use it again."""
        self._deleting.add(name)
        kept = self._open.pop(name, None)
        database = self._used.get(name)
        self._end_listeners(name)
        await self._files.settle(name, database)
        if database is not None:
            self._open.pop(name, None)
            try:
                await database.retire()
            except Exception:
                self._log.failure("{label} could not be closed.", label=name.label)
            self.stop_keeping(database)
            if self._used.get(name) is database:
                del self._used[name]
            self._end_listeners(name)  # that began meanwhile
        del kept
        self._files.forget(name, database)
        self.written.discard(name)
        for listener in self.deletion_listeners:
            listener(name)

    def _end_listeners(self, name: DatabaseName) -> None:
        for end in self.end_listeners:
            end(name)

    async def read_last(self, name: DatabaseName) -> None:
        """Give the log of a database to those who read logs, before its file is removed."""
        for read in self.last_readers:
            await read(name, self.file_of(name))

    async def replace(
        self, name: DatabaseName, put_in_place: Callable[[pathlib.Path], None]
    ) -> None:
        """Put another file in the place of that of a database, which nothing uses meanwhile.

        Its streams and sockets are ended: their clients begin again with what the file holds.
        `put_in_place` is called in a thread, with the path. What it raises is raised; then the
        database cannot be used, since it is not known what is there, until it is replaced again.
        """
        if name not in self._deleting:
            await self.let_go(name)
        await self._runtime.run_in_thread(partial(put_in_place, self.file_of(name)))
        self.deleted(name)
        self.written.add(name)

    def run_left(self) -> None:
        """Do what sessions of processes that have ended have left: writes are accepted now."""
        self._files.run_left()
        for database in self._live():
            if database.is_open:
                used = database.read(lambda nodes: push_time(nodes.rows.stored))
                database.push_ids.pass_over(used)
                database.disconnect_writes.run_left()

    def deleted(self, name: DatabaseName) -> None:
        """Allow a database to be created again: nothing is left of the one that was let go."""
        self.readers.forget(name)
        self.written.discard(name)
        self._deleting.discard(name)

    # The end.

    def refuse_writes(self) -> None:
        """Refuse all writes from now on, but those that are being made durable."""
        for database in self._live():
            database.refuse_writes()

    def close_at_once(self) -> None:
        """Close every store in this thread; nothing may be under way."""
        self._files.stop()
        for database in self._live():
            database.close_at_once()
        self._runtime.owner.close()

    def close(self) -> Deferred[None]:
        """Refuse writes, and close every store once the writes under way have been answered.

        Cancelling ends the waiting only: what waits for the disk cannot be called off.
        """
        closed: Deferred[None] = Deferred()
        Deferred.fromCoroutine(self._close()).chainDeferred(closed)
        return closed

    async def _close(self) -> None:
        self.refuse_writes()
        await self._files.stop()
        for is_closed, result in await DeferredList([each.close() for each in self._live()]):
            if not is_closed:
                self._log.failure("A store could not be closed.", result)
        self._runtime.owner.close()

    def _project(self, name: DatabaseName) -> ProjectSpec:
        spec = self._projects.get(name.project)
        if spec is not None:
            return spec
        if self._any_project:
            return ProjectSpec(name.project, None)
        raise UnknownDatabase(name, is_project_known=False)

    def _may_exist(self, name: DatabaseName, project: ProjectSpec) -> bool:
        return project.databases is None or name.database in project.databases

    def _live(self) -> list[Database]:
        """Return every database in use, open or not."""
        return list(self._used.values())

    def _read_rules(self, project: ProjectSpec) -> ActiveRules:
        """Return `_make_rules`; log once if they cannot be read, and once if they can again."""
        try:
            rules = self._make_rules(project)
        except RulesUnreadable as error:
            if project.name not in self._unreadable:
                self._unreadable.add(project.name)
                self._log.error(
                    "The stored rules of the project {project} cannot be read ({error}): its "
                    "requests are 503, and each tries again.",
                    project=project.name,
                    error=error.__cause__,
                )
            raise
        if project.name in self._unreadable:
            self._unreadable.discard(project.name)
            self._log.info("The rules of the project {project} are read.", project=project.name)
        return rules

    def _make_rules(self, project: ProjectSpec) -> ActiveRules:
        def changed() -> None:
            for database in self._live():
                if database.name.project == project.name:
                    database.recheck_grants()
            self._tell_of_rules(project.name)

        others = self._others
        return ActiveRules(
            DENY if project.is_file_managed else self._first_rules,
            is_file_managed=project.is_file_managed,
            storage=None if self._is_in_memory else self._files.rules_storage(project.name),
            run_in_thread=self._runtime.run_in_thread,
            changed=changed,
            work=self.rules_work,
            limits=self._rules_limits,
            exchange=None if others is None else others.rules_of(project.name),
            gate=self._runtime.gate,
        )

    def _make(self, name: DatabaseName, project: ProjectSpec) -> Database:
        if self._is_in_memory:
            database = self._make_database(name, project, self._make_memory(name))
        else:
            engine = self._files.make_engine(name, is_written=name in self.written)
            database = self._make_database(name, project, engine, self._files.make_lock(name))
            self._files.add(database, engine)
        self._used[name] = database
        return database

    def _make_memory(self, name: DatabaseName) -> Engine:
        def create() -> MemoryEngine:
            self.check_may_create(name)
            return MemoryEngine()

        def created(_: MemoryEngine) -> None:
            self.written.add(name)
            self.keep(name)

        return CreateOnWriteEngine(create, created)

    def _make_database(
        self,
        name: DatabaseName,
        project: ProjectSpec,
        engine: Engine,
        make_lock: MakeWriteLock | None = None,
        *,
        kind: type[Database] = Database,
    ) -> Database:
        return kind(
            name=name,
            engine=engine,
            project=project,
            rules=self.rules(name.project),
            runtime=self._runtime,
            retain_events=self._retain_events,
            make_lock=make_lock,
        )
