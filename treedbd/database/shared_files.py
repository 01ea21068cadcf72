"""The files of databases that other processes serve too: who has them open, and who creates them.

A database that was never written has no file, and the first write may be one of another process.
So before each use it is looked whether there is a file by now; from then on that is used.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping
from typing import Final
from weakref import WeakValueDictionary

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater

from treedbd.database.data_directory import SHELF
from treedbd.database.file_user import FileUser
from treedbd.database.requests import time_out_opening
from treedbd.names import DatabaseName
from treedbd.store.on_demand import ReopeningEngine
from treedbd.store.sqlite.shared import SharedShelf

LOOK_AGAIN_S: Final = 0.001
"""Seconds until it is looked again whether a database that is being created has a file."""

OpenFile = Callable[[FileUser, ReopeningEngine], "Deferred[None]"]


class SharedFiles:
    """The files of one data directory that other processes serve too."""

    def __init__(
        self,
        folder: pathlib.Path,
        engines: Mapping[FileUser, ReopeningEngine],
        clock: IReactorTime,
        open_file: OpenFile,
        created: Callable[[DatabaseName], None],
    ) -> None:
        """Open files by `open_file`; call `created` with databases that others have created."""
        self._folder = folder
        self._engines = engines
        self._clock = clock
        self._open_file = open_file
        self._created = created
        self._shelves: WeakValueDictionary[DatabaseName, SharedShelf] = WeakValueDictionary()

    def shelf(self, name: DatabaseName) -> SharedShelf:
        """Return how the file of a database is shared with others."""
        shelf = self._shelves.get(name)
        if shelf is None:
            shelf = self._shelves[name] = SharedShelf(self._path_of(name))
        return shelf

    def exists(self, name: DatabaseName) -> bool:
        """Return whether a database has a file by now."""
        return self._path_of(name).exists()

    def list_created(self, project: str) -> list[DatabaseName]:
        """Return the databases of a project that have files; none if they cannot be listed."""
        try:
            files = list((self._folder / project).glob(f"*{SHELF}"))
        except OSError:
            return []
        return [DatabaseName(project, file.name.removesuffix(SHELF)) for file in files]

    def acquire(self, database: FileUser, timeout_s: float) -> Deferred[None] | None:
        """Keep a database open, and let it show what others have committed; None if it does.

        Else returns what fires when it does; that errbacks as `DatabaseFiles.acquire`.
        """
        looking = self._find_created(database)
        if looking is None and database.is_open:
            current = database.make_current()
            database.requests += 1
            return current and current.addTimeout(timeout_s, self._clock, time_out_opening)
        database.requests += 1
        acquiring = Deferred.fromCoroutine(self._open_and_look(database, looking))
        return acquiring.addTimeout(timeout_s, self._clock, time_out_opening)

    def follow_created(self, database: FileUser) -> None:
        """Open a database that another process has created, if this one has watchers of it."""
        engine = self._engines.get(database)
        if engine is None or not engine.is_new or database.is_idle or database.is_writing:
            return
        if self._find_created(database) is None and not database.is_open:
            self._open_file(database, engine).addErrback(lambda _: None)  # that is logged

    async def _open_and_look(self, database: FileUser, looking: Deferred[None] | None) -> None:
        if looking is not None:
            await looking
        if not database.is_open:
            await self._open_file(database, self._engines[database])
        waiting = database.make_current()
        if waiting is not None:
            await waiting

    def _find_created(self, database: FileUser) -> Deferred[None] | None:
        """Use the file of a new database from now on if another process has created it.

        Returns what fires when that is known, None if it is. The file is not opened yet.
        """
        engine = self._engines.get(database)
        if engine is None or not engine.is_new or not self.exists(database.name):
            return None
        if database.is_writing:  # which will be found to be in conflict
            waiting: Deferred[None] = deferLater(self._clock, LOOK_AGAIN_S)
            return waiting.addCallback(lambda _: self._find_created(database))
        engine.detach()
        database.is_open = False
        self._created(database.name)
        return None

    def _path_of(self, name: DatabaseName) -> pathlib.Path:
        return self._folder / name.project / f"{name.database}{SHELF}"
