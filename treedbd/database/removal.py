"""The removal of a database in a data directory: whole or not at all, whenever a process dies.

Theory of operation. A database is a file with others beside it, which cannot be removed in one
step. So a *removal note* is created first, an empty file `<database>.shelf-removed`, and made
durable: from that moment on the database does not exist. A list of a data directory leaves out
a database with a note (`data_directory.walk`), none is opened or created in its place, and what is
left of it is removed at the next start (`finish_all`). The note is removed last, when all else is
durably gone: then a database of the same name may be created.

All but `remove_all` block, and may be called in any thread. The one process that holds the lock
of the data directory calls them, so no two processes remove, or create, the same files.
"""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final

from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger

from treedbd.database.data_directory import REMOVAL_NOTE, SHELF
from treedbd.database.runtime import RunInThread
from treedbd.files import UNFINISHED, create_directory, sync_directory, write_atomically
from treedbd.names import DatabaseName, parse_label
from treedbd.store.sqlite.engine import remove_files
from treedbd.store.sqlite.file import beside
from treedbd.store.sqlite.shared import LOCK

RETRY_S: Final = 5.0
"""Seconds until the removal of files is tried again."""
_log = Logger()


def shelf_of(folder: pathlib.Path, name: DatabaseName) -> pathlib.Path:
    """Return the path of the file of a database in a data directory."""
    return folder / name.project / f"{name.database}{SHELF}"


def begin_removal(shelf: pathlib.Path) -> None:
    """Create the removal note of a database; raise OSError, then the database is as it was."""
    create_directory(shelf.parent)
    note = beside(shelf, REMOVAL_NOTE)
    try:
        write_atomically(note, b"")
    except OSError:
        with contextlib.suppress(OSError):
            note.unlink(missing_ok=True)
        raise


def finish_removal(shelf: pathlib.Path) -> None:
    """Remove all files of a database that has a note and is not open anywhere; raise OSError.

    It may be called again after an error.
    """
    remove_files(shelf)
    beside(shelf, LOCK).unlink(missing_ok=True)
    beside(shelf, REMOVAL_NOTE).unlink(missing_ok=True)
    sync_directory(shelf.parent)


async def remove_all(shelf: pathlib.Path, run_in_thread: RunInThread, clock: IReactorTime) -> None:
    """Do `finish_removal` in a thread, again and again until the disk allows it."""
    has_failed = False
    while True:
        try:
            await run_in_thread(partial(finish_removal, shelf))
        except OSError as error:
            if not has_failed:
                _log.error(
                    "{file} of a deleted database cannot be removed ({error}); this is tried "
                    "again.",
                    file=str(shelf),
                    error=error.strerror,
                )
            has_failed = True
            await deferLater(clock, RETRY_S)
        else:
            return


def cannot_delete(error: OSError) -> str:
    """Return why a database is not deleted, in one sentence without a path."""
    return f"The database cannot be deleted ({error.strerror})."


def find_removed(folder: pathlib.Path) -> list[DatabaseName]:
    """Return the databases of a data directory that have a removal note."""
    return [name for name, _ in _find_notes(folder, f"{SHELF}{REMOVAL_NOTE}")]


def _find_notes(folder: pathlib.Path, end: str) -> Iterator[tuple[DatabaseName, pathlib.Path]]:
    """Yield the files whose names are that of a database with this `end`, and the databases."""
    for file in list(folder.glob(f"*/*{end}")):
        database = file.name.removesuffix(end)
        name = parse_label(f"{database}--{file.parent.name}")
        if name == DatabaseName(file.parent.name, database):
            yield name, file


def finish_all(folder: pathlib.Path, names: Iterable[DatabaseName]) -> list[DatabaseName]:
    """Remove what is left of databases, none of which is open; return those that still have a note.

    What cannot be removed is logged. Notes that were not finished are removed too: their databases
    exist.
    """
    for _, unfinished in _find_notes(folder, f"{SHELF}{REMOVAL_NOTE}{UNFINISHED}"):
        with contextlib.suppress(OSError):  # tried again at the next start
            unfinished.unlink()
    left = []
    for name in names:
        try:
            finish_removal(shelf_of(folder, name))
        except OSError as error:
            left.append(name)
            _log.error(
                "The rest of the deleted database {label} cannot be removed ({error}); it cannot "
                "be created again until the next start.",
                label=name.label,
                error=error.strerror,
            )
        else:
            _log.info("The rest of the deleted database {label} is removed.", label=name.label)
    return left
