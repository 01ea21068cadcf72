"""The copies of databases in PostgreSQL: how they are made, opened, and removed.

A copy is `<data>/<project>/<database>.copy`: a shelf that PostgreSQL can fill again at any time.
The file stays for the next use, or until nobody has used it for `KEPT_S`. All here blocks.
"""

from __future__ import annotations

import contextlib
import pathlib
import time
from collections.abc import Callable
from typing import Final, Protocol

from twisted.logger import Logger

from treedbd.cluster.connections import ClusterConnections
from treedbd.database.data_directory import SHELF
from treedbd.database.files import CatalogHooks
from treedbd.database.requests import TooManyInUse, Unavailable
from treedbd.files import create_directory
from treedbd.names import DatabaseName, parse_label
from treedbd.store.engine import CannotCreateStore, CannotOpenStore, StoreFailed, StoreUnreachable
from treedbd.store.lock import LOCK_MISPLACED, DirectoryLock
from treedbd.store.postgresql.cluster import StoredDatabase
from treedbd.store.postgresql.engine import PostgresqlEngine
from treedbd.store.postgresql.fetching import DatabaseMissing
from treedbd.store.sqlite.engine import remove_files

COPY: Final = ".copy"
"""How the file of a copy ends."""
KEPT_S: Final = 7 * 86_400.0
"""Seconds after its last use for which the file of a copy is kept; older ones go at the start."""


class CopyUser(Protocol):
    """A `Replica`, for those who open its copy.

    Attributes:
        judged_epoch: the epoch of the rules by which its present batch is judged.

    """

    judged_epoch: int

    def opened(self, db: int, file: PostgresqlEngine) -> None:
        """Use a copy that was opened just now, of the database with this number."""
        ...


class Copies:
    """The copies in one data directory; all methods may be called in any thread.

    Attributes:
        lock: that of the data directory.

    """

    _log = Logger()

    def __init__(
        self,
        connections: ClusterConnections,
        folder: pathlib.Path,
        catalog: CatalogHooks,
        may_create: Callable[[], bool],
    ) -> None:
        """Keep copies in `folder`; `may_create` returns whether one more may be open."""
        self.lock: DirectoryLock | None = None
        self._connections = connections
        self._folder = folder
        self._catalog = catalog
        self._may_create = may_create

    def open(self, name: DatabaseName, replica: CopyUser) -> PostgresqlEngine:
        """Open the copy of a database and bring it up to date; blocks, in any thread."""
        projects = self._connections.store.projects
        try:
            stored = projects.find_database(name.project, name.database)
        except StoreUnreachable as error:
            raise Unavailable(str(error)) from None
        if stored is None:
            raise CannotOpenStore(
                f"The database {name.label}",
                "is no longer in PostgreSQL",
                "restart the daemon to serve it as a new one",
            )
        try:
            return self._open_stored(name, stored, replica)
        except StoreUnreachable as error:
            raise Unavailable(str(error)) from None

    def _open_stored(
        self, name: DatabaseName, stored: StoredDatabase, replica: CopyUser
    ) -> PostgresqlEngine:
        path = self._path_of(name)
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

    def create(self, name: DatabaseName, replica: CopyUser) -> PostgresqlEngine:
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

    def _path_of(self, name: DatabaseName) -> pathlib.Path:
        if parse_label(name.label) != name:  # it must not lead out of the folder
            raise CannotOpenStore(
                f"The database {name.label}", "has a name that is none", "remove it from PostgreSQL"
            )
        return self._folder / name.project / f"{name.database}{COPY}"

    def remove_unused(self) -> None:
        """Remove the files of copies that nobody has used for long; none may be open."""
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
