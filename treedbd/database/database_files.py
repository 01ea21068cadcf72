"""The files of the databases of a catalog: made, opened, closed, checked and refused.

The catalog knows which databases there are; this knows their files. `open_databases` decides which
of them are open, `refusals` keeps what cannot be opened, `damage_checks` opens each once after the
start.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from functools import partial
from typing import Final
from weakref import WeakKeyDictionary

from twisted.internet.defer import Deferred, fail
from twisted.logger import Logger

from treedbd.database.active_rules import FileRules
from treedbd.database.catalog_hooks import CatalogHooks
from treedbd.database.damage_checks import DamageChecks
from treedbd.database.data_directory import RULES_FILE, SHELF
from treedbd.database.dead_owners import DeadOwners
from treedbd.database.file_user import FileUser
from treedbd.database.open_databases import OpenBounds, OpenDatabases
from treedbd.database.refusals import Refusals
from treedbd.database.requests import DatabaseRefused, NoDescriptors, TooManyInUse, time_out_opening
from treedbd.database.runtime import OtherProcesses, Problem, Runtime
from treedbd.database.shared_files import SharedFiles
from treedbd.database.survey import ServedProjects, Survey, survey, unreachable
from treedbd.database.write_lock import MakeSharedTurn, SharedWriting
from treedbd.files import create_directory, has_descriptors
from treedbd.names import DatabaseName
from treedbd.store.engine import (
    CannotCreateStore,
    CannotOpenStore,
    Damage,
    StoreDamaged,
    StoreFailed,
)
from treedbd.store.lock import LOCK_MISPLACED, DirectoryLock
from treedbd.store.on_demand import CreateOnWriteEngine, FileEngine, ReopeningEngine
from treedbd.store.sqlite.engine import SqliteEngine
from treedbd.store.sqlite.file import check_library, damaged, inaccessible

DAMAGED: Final = "The database is damaged, and nothing is written to it: restore it from a backup."
UNREADABLE: Final = (
    "The database is damaged, and neither read nor written: restore it from a backup."
)
_SERVED: Final = {
    True: "it is neither read nor written",
    False: "nothing is written to it, and what can be read is served",
}
"""What is done with a damaged database, by whether reads are refused."""


class DatabaseFiles:
    """The `CatalogFiles` of one data directory; belongs to the reactor's thread."""

    _log = Logger()

    def __init__(
        self,
        folder: pathlib.Path,
        bounds: OpenBounds,
        runtime: Runtime,
        catalog: CatalogHooks,
        others: OtherProcesses | None,
    ) -> None:
        """Use the files in `folder`, of which as many may be open as `bounds` says.

        `others` have the same files open.
        """
        self._others = others
        self.is_shared: Final = others is not None
        self._folder = folder
        self._clock = runtime.clock
        self._runtime = runtime
        self._catalog = catalog
        self._lock: DirectoryLock | None = None
        self._accepts_loss = False
        self._engines: WeakKeyDictionary[FileUser, ReopeningEngine] = WeakKeyDictionary()
        self._damaged: dict[DatabaseName, bool] = {}  # whether reads are refused, too
        self._refusals = Refusals(self._open_later)
        self._open = OpenDatabases(
            bounds, runtime, self._refusals, opened=catalog.keep, closed=catalog.let_go
        )
        self._shared: SharedFiles | None = None
        if others is not None:
            self._shared = SharedFiles(
                folder, self._engines, runtime.clock, self._open_shared, catalog.created
            )
        self._checks = DamageChecks(self, runtime)
        self._dead = DeadOwners(self, catalog.find, runtime, has_others=self.is_shared)
        self._is_held_only_for_check = False

    def survey(
        self,
        projects: ServedProjects,
        *,
        any_project: bool,
        lock: DirectoryLock | None,
        accept_loss: bool,
    ) -> Survey:
        """Look through the folder, refuse what cannot be served, and check the rest in a while.

        Files of an older format are converted, which may take minutes. Raises `CannotOpenStore` if
        the folder itself cannot be read, or nothing can be opened with the SQLite that is there.
        """
        check_library()
        self._lock = lock
        self._accepts_loss = accept_loss
        found = survey(self._folder, projects, any_project=any_project)
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
        """Do as `CatalogFiles.make_engine`.

        Raises `DatabaseRefused` for one without a file, if it is not known whether it has one.
        """
        if self._shared is not None and self._shared.exists(name):
            self._catalog.created(name)
            is_written = True

        def open_file() -> FileEngine:
            return self._open_file(name)

        def use() -> None:
            self._open_in_place(self._catalog.find(name))

        def created(file: SqliteEngine) -> None:
            file.report_damage(partial(self._found_damaged, name))
            self._catalog.created(name)
            self._open.created(self._catalog.find(name), engine, file)

        is_shared = self._shared is not None
        if is_written:
            return ReopeningEngine(open_file, use, is_shared=is_shared)
        self._refusals.check(name)
        first = CreateOnWriteEngine(lambda: self._create(name), created, is_shared=is_shared)
        engine = ReopeningEngine(open_file, use, first, is_shared=is_shared)
        return engine

    def add(self, database: FileUser, engine: ReopeningEngine) -> None:
        """Open and close the file of a database by its engine from now on."""
        self._engines[database] = engine
        database.is_open = engine.is_open
        refuses_reads = self._damaged.get(database.name)
        if refuses_reads is not None:
            self._refuse(database, refuses_reads=refuses_reads)

    def acquire(
        self, database: FileUser, timeout_s: float, *, is_write: bool
    ) -> Deferred[None] | None:
        """Do as `CatalogFiles.acquire`."""
        if self._shared is not None:
            return self._shared.acquire(database, timeout_s)
        database.requests += 1
        try:
            self._refusals.check(database.name)
        except DatabaseRefused as refusal:
            return fail(refusal)
        opening = self._open.open(database, self._engines[database])
        return opening.addTimeout(timeout_s, self._clock, time_out_opening)

    def make_turn(self, name: DatabaseName) -> MakeSharedTurn | None:
        """Do as `CatalogFiles.make_turn`."""
        if self._shared is None:
            return None
        return partial(SharedWriting, self._shared.shelf(name), name, self._runtime)

    def rules_storage(self, project: str) -> FileRules:
        """Return where the rules of a project are stored."""
        return FileRules(self._folder / project / RULES_FILE, self.find_misplaced)

    def follow(self, database: FileUser) -> None:
        """Open a database that another process has created, if this one has watchers of it."""
        if self._shared is not None:
            self._shared.follow_created(database)

    def trim(self) -> None:
        """Close idle databases if too many are open, because files were created."""
        self._open.trim()

    async def retry_refused(self) -> None:
        """Try to open again what was refused, because an operator has mended it."""
        for name in self._refusals.names:
            database = self._catalog.find(name)
            if await self._open.try_again(database, self._engines[database]):
                self._checks.add([name])

    @property
    def list_created(self) -> Callable[[str], list[DatabaseName]] | None:
        """Lists the databases of a project that have files; None if others create none."""
        return None if self._shared is None else self._shared.list_created

    def find_misplaced(self) -> str | None:
        """Return a sentence if files that are created now would not be those of this folder."""
        is_in_place = self._lock is None or self._lock.is_in_place()
        return None if is_in_place else LOCK_MISPLACED

    def refresh(self, _: str) -> None:
        """Do nothing: what there is, is known."""

    def problems(self) -> list[Problem]:
        """Return what keeps databases from being served whose files need not be open for that."""
        return [
            *self._refusals.problems(),
            *(
                Problem(name.project, name.database, _problem(refuses_reads=refuses_reads))
                for name, refuses_reads in self._damaged.items()
            ),
        ]

    def stop(self) -> Deferred[None]:
        """Open and close nothing more by itself; fires when no file is being checked."""
        self._open.stop()
        self._dead.stop()
        return self._checks.stop()

    # For the checks.

    async def hold_file(self, name: DatabaseName) -> FileEngine:
        """Open the file of a database, and keep it open; raise `Unavailable`."""
        database = self._catalog.find(name)
        engine = self._engines[database]
        self._refusals.check(name)
        self._is_held_only_for_check = not database.is_open
        database.requests += 1
        try:
            if not database.is_open:
                await self._open.open(database, engine)
            return engine.file
        except BaseException:
            database.requests -= 1
            raise

    def release_file(self, name: DatabaseName) -> None:
        """Let the file be closed again, and close it if it was not open before."""
        database = self._catalog.find(name)
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
            self._others.tell_damaged(name, refuses_reads=refuses_reads)
        self._log.error(
            "{reason} Until then {what}.",
            reason=str(damaged(self._path_of(name), str(damage))),
            what=_SERVED[refuses_reads],
        )

    def note_damaged(self, name: DatabaseName, *, refuses_reads: bool) -> None:
        """Refuse writes to a database from now on, and with `refuses_reads` reads."""
        self._damaged[name] = refuses_reads
        self._refuse(self._catalog.find(name), refuses_reads=refuses_reads)

    def _refuse(self, database: FileUser, *, refuses_reads: bool) -> None:
        problem = _problem(refuses_reads=refuses_reads)
        if refuses_reads:
            self._engines[database].refuse_reads(problem)
        database.refuse_damaged(problem)

    def _found_damaged(self, name: DatabaseName, damage: Damage) -> None:
        """Refuse a database that a read or a write has found damaged, when that is over."""
        if name not in self._damaged:
            self._clock.callLater(0, self.refuse_damaged, name, damage)

    # Files.

    def _open_later(self, name: DatabaseName) -> None:
        self._checks.add_later(name)

    def _path_of(self, name: DatabaseName) -> pathlib.Path:
        return self._folder / name.project / f"{name.database}{SHELF}"

    def _open_shared(self, database: FileUser, engine: ReopeningEngine) -> Deferred[None]:
        try:
            self._refusals.check(database.name)
        except DatabaseRefused as refusal:
            return fail(refusal)
        return self._open.open(database, engine)

    def _open_in_place(self, database: FileUser) -> None:
        self._refusals.check(database.name)
        self._open.open_in_place(database, self._engines[database])

    def _open_file(self, name: DatabaseName) -> SqliteEngine:
        """Open the file of a database, in any thread; raise `CannotOpenStore`."""
        file = self._path_of(name)
        try:
            if self._shared is None:
                engine = self._open_shelf(file, is_alone=True)
            else:
                shelf = self._shared.shelf(name)
                engine = shelf.open(lambda is_alone: self._open_shelf(file, is_alone=is_alone))
        except OSError as error:
            raise unreachable(file, error) from None
        except StoreFailed as error:
            raise inaccessible(file, str(error)) from None
        engine.report_damage(partial(self._found_damaged, name))
        if engine.warning is not None:
            self._log.warn("{warning}", warning=engine.warning)
        return engine

    def _open_shelf(self, file: pathlib.Path, *, is_alone: bool) -> SqliteEngine:
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
        file = self._path_of(name)

        def create(is_alone: bool) -> SqliteEngine:
            # It exists already if an earlier first commit failed after the file had been created,
            # or if another process was first.
            if file.exists():
                return self._open_shelf(file, is_alone=is_alone)
            return SqliteEngine.create(file, lock=self._lock)

        try:
            if self._shared is None:
                return create(True)
            create_directory(file.parent)
            return self._shared.shelf(name).open(create, keeps_turn=True)
        except (CannotOpenStore, StoreFailed, OSError):
            if has_descriptors():
                raise
            raise CannotCreateStore(str(NoDescriptors())) from None


def _problem(*, refuses_reads: bool) -> str:
    return UNREADABLE if refuses_reads else DAMAGED
