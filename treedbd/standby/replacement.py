"""The file of a database replaced by another one, whole or not at all, whenever the process dies.

A new file is made in a folder of its own in the data directory, and is complete and durable there
before anything of the old one is touched. Then a *note* beside it says that it is to be in the
place of the old one. From that moment on the new file counts: the next start finishes what a crash
has left (`finish_all`), before any database is opened. A file without a note is removed then.

All functions block, and are called in a thread, or before the reactor runs, by the process that
holds the lock of the data directory.
"""

from __future__ import annotations

import pathlib
import shutil
from typing import Final

from treedbd.database.removal import shelf_of
from treedbd.files import create_directory, sync_directory, write_atomically
from treedbd.names import DatabaseName, parse_label
from treedbd.store.sqlite.engine import FILE_SUFFIXES
from treedbd.store.sqlite.file import beside
from treedbd.store.sqlite.history import MARK

FOLDER: Final = "treedb.standby"
"""The folder in the data directory; no project can have such a name."""
NEW: Final = ".shelf"
NOTE: Final = ".ready"
DOWNLOAD: Final = ".base"


def new_file_of(data: pathlib.Path, name: DatabaseName) -> pathlib.Path:
    """Return where the new file of a database is made; the folder exists then."""
    create_directory(data / FOLDER)
    return data / FOLDER / f"{name.label}{NEW}"


def download_of(data: pathlib.Path, name: DatabaseName) -> pathlib.Path:
    """Return where the base of a database is stored while it comes; the folder exists then."""
    create_directory(data / FOLDER)
    return data / FOLDER / f"{name.label}{DOWNLOAD}"


def remove_new(data: pathlib.Path, name: DatabaseName) -> None:
    """Remove what an earlier attempt has left of a new file that has no note."""
    new = new_file_of(data, name)
    for suffix in FILE_SUFFIXES:
        beside(new, suffix).unlink(missing_ok=True)


def put_in_place(new: pathlib.Path, target: pathlib.Path) -> None:
    """Replace the file of a database, which is not open, by a new one; raise OSError.

    It may be called again after an error.
    """
    if new.exists():
        write_atomically(_note_of(new), b"")
    _finish(new, target)


def finish_all(data: pathlib.Path) -> list[DatabaseName]:
    """Finish what has a note, and remove the rest; return the databases that were replaced.

    Raises OSError.
    """
    folder = data / FOLDER
    if not folder.is_dir():
        return []
    replaced = []
    for note in sorted(folder.glob(f"*{NEW}{NOTE}")):
        name = parse_label(note.name.removesuffix(f"{NEW}{NOTE}"))
        if name is not None:
            _finish(note.with_name(note.name.removesuffix(NOTE)), shelf_of(data, name))
            replaced.append(name)
    shutil.rmtree(folder, ignore_errors=True)
    return replaced


def _note_of(new: pathlib.Path) -> pathlib.Path:
    return new.with_name(new.name + NOTE)


def _finish(new: pathlib.Path, target: pathlib.Path) -> None:
    """Put a new file that has a note in its place, as far as that is not done yet."""
    create_directory(target.parent)
    if new.exists():
        has_mark = beside(new, MARK).exists()
        for suffix in FILE_SUFFIXES:  # a log of the old file must not be applied to the new one
            if suffix and (suffix != MARK or has_mark):
                beside(target, suffix).unlink(missing_ok=True)
        sync_directory(target.parent)
        if has_mark:
            beside(new, MARK).rename(beside(target, MARK))
            sync_directory(target.parent)
        new.rename(target)
        sync_directory(target.parent)
    _note_of(new).unlink(missing_ok=True)
    sync_directory(new.parent)
