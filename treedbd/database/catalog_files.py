"""What a catalog needs of the files of its databases.

`database_files` has them in the data directory alone, `cluster.files` over PostgreSQL.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterable
from typing import Protocol, TypeAlias

from twisted.internet.defer import Deferred

from treedbd.database.active_rules import RulesStorage
from treedbd.database.catalog_hooks import CatalogHooks
from treedbd.database.file_user import FileUser
from treedbd.database.open_databases import OpenBounds
from treedbd.database.runtime import OtherProcesses, Problem, Runtime
from treedbd.database.survey import ServedProjects, Survey
from treedbd.database.write_lock import MakeSharedTurn
from treedbd.names import DatabaseName
from treedbd.store.lock import DirectoryLock
from treedbd.store.on_demand import ReopeningEngine


class CatalogFiles(Protocol):
    """The files of the databases of one catalog; belongs to the reactor's thread.

    Attributes:
        is_shared: whether other processes write the same databases.

    """

    @property
    def is_shared(self) -> bool:
        """Whether other processes write the same databases."""
        ...

    def survey(
        self,
        projects: ServedProjects,
        *,
        any_project: bool,
        lock: DirectoryLock | None,
        accept_loss: bool,
    ) -> Survey:
        """Find the databases, and refuse what cannot be served; raise `CannotOpenStore`."""
        ...

    def rules_storage(self, project: str) -> RulesStorage:
        """Return where the rules of a project are stored."""
        ...

    def make_engine(self, name: DatabaseName, *, is_written: bool) -> ReopeningEngine:
        """Return the engine of a database, of which nothing is open yet."""
        ...

    def make_turn(self, name: DatabaseName) -> MakeSharedTurn | None:
        """Return what makes the turn at a database; None if no other process writes it."""
        ...

    def add(self, database: FileUser, engine: ReopeningEngine) -> None:
        """Open and close the file of a database by its engine from now on."""
        ...

    def acquire(
        self, database: FileUser, timeout_s: float, *, is_write: bool
    ) -> Deferred[None] | None:
        """Open a database, keep it open, and let it show what others have committed.

        None if that is done, else what fires when it is; a write need not be shown everything: its
        commit finds out. Errbacks with `Unavailable`, or with `DeadlinePassed` after the time.
        """
        ...

    def follow(self, database: FileUser) -> None:
        """Open a database that another process has created, if this one has watchers of it."""
        ...

    def trim(self) -> None:
        """Close idle databases if too many are open, because files were created."""
        ...

    async def retry_refused(self) -> None:
        """Try to open again what was refused."""
        ...

    @property
    def list_created(self) -> Callable[[str], Iterable[DatabaseName]] | None:
        """Lists the databases of a project that exist; None if others create none."""
        ...

    def refresh(self, project: str) -> Deferred[None] | None:
        """Learn which databases and rules a project has; None if that is known already."""
        ...

    def problems(self) -> list[Problem]:
        """Return what keeps databases from being served, without opening any."""
        ...

    def note_damaged(self, name: DatabaseName, *, refuses_reads: bool) -> None:
        """Refuse writes to a database from now on, and with `refuses_reads` reads."""
        ...

    def stop(self) -> Deferred[None]:
        """Open and close nothing more by itself; fires when nothing is under way."""
        ...


MakeFiles: TypeAlias = Callable[
    [pathlib.Path, OpenBounds, Runtime, CatalogHooks, OtherProcesses | None], CatalogFiles
]
"""Makes the files in a data directory, of which so many may be open, shared with others or not."""
