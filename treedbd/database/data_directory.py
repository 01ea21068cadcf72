"""The layout of a data directory: `<data>/<project>/<database>.shelf`, with rules beside them.

What cannot be read is reported and never skipped: a database that is not seen would be served as an
empty one, and then overwritten. `walk` lists the files; `find_databases` finds what is to serve,
and what cannot be. Both leave out a database that was removed, whatever is left of it (`removal`).
No database is opened: the first bytes of each file show that it is foreign, or of a newer version.
Whatever else is wrong with a file is found when it is opened.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final, TypeAlias

import attrs
from twisted.logger import Logger

from treedbd.errors import OperatorError
from treedbd.files import create_directory, is_open_to_others
from treedbd.names import DatabaseName
from treedbd.store.directory_lock import LOCK_FILE
from treedbd.store.engine import CannotOpenStore
from treedbd.store.sqlite.file import FORMAT, LOG, beside, inaccessible, read_format
from treedbd.store.sqlite.history import MARK

SHELF: Final = ".shelf"
RULES_FILE: Final = "rules.json"
RULES_VERSIONS_FOLDER: Final = "rules.versions"
"""Beside the rules: what was put last, which is not served."""
REMOVAL_NOTE: Final = "-removed"
"""How a file ends, after the name of a database's own, that says that it is removed (`removal`)."""
MOVED_FILE: Final = "moved-to-postgresql"
"""In a data directory whose databases were brought to PostgreSQL, which has newer data since."""
BACKUP_NOTE: Final = "treedb.backup"
"""In a data directory that `treedb backup` has saved; the time of the file says when."""
READER_FILE: Final = "treedb.reader."
"""How the name of the file begins that an elected reader has locked (`election`); no project has
such a name. A process that is killed leaves it, and it means nothing then."""
_LEFT_BEHIND: Final = {f"{SHELF}{LOG}": "log", f"{SHELF}{MARK}": "mark"}
"""What only a database with data leaves, by the end of the name."""
_log = Logger()

ServedProjects: TypeAlias = Mapping[str, Collection[str] | None]
"""The databases of each project, None for one that may have any."""


@attrs.frozen
class DirectoryEntry:
    """The file of a database or of rules; `error` is why it cannot be served, if it cannot.

    `file` may then also be a log or a mark whose database is missing, or what should be the
    directory of a project.
    """

    project: str
    file: pathlib.Path
    error: CannotOpenStore | None = None

    @property
    def is_shelf(self) -> bool:
        """Whether it is the file of a database."""
        return self.error is None and self.file.name != RULES_FILE

    @property
    def database(self) -> str:
        """The name of the database whose file it is, or whose log or mark."""
        return self.file.name.partition(SHELF)[0]


def is_removed(shelf: pathlib.Path) -> bool:
    """Return whether a database has a removal note: it does not exist, whatever is left of it."""
    return os.path.lexists(beside(shelf, REMOVAL_NOTE))


def prepare(folder: pathlib.Path) -> bool:
    """Create a data directory if it is missing; return whether other users can enter it.

    One that holds anything keeps its mode. Raises `CannotOpenStore`.
    """
    try:
        create_directory(folder)
        is_open = is_open_to_others(folder)
        if is_open and not any(folder.iterdir()):
            folder.chmod(stat.S_IRWXU)
            is_open = False
    except OSError as error:
        raise CannotOpenStore(
            f"The data directory {folder}",
            f"cannot be used ({error.strerror})",
            "let the user that runs treedb write to it, or choose another directory",
        ) from None
    return is_open


def list_locks(folder: pathlib.Path) -> list[pathlib.Path]:
    """Return the files in a data directory that only processes lock: nothing is stored in them."""
    return [
        each
        for each in folder.iterdir()
        if each.name == LOCK_FILE or each.name.startswith(READER_FILE)
    ]


def stored_bytes(folder: pathlib.Path, names: Iterable[DatabaseName]) -> list[int]:
    """Return how many bytes the files of databases have in a data directory, 0 if one has none.

    Each project's directory is read once.
    """
    listed = list(names)
    sizes = dict.fromkeys(listed, 0)
    for project in {name.project for name in listed}:
        with contextlib.suppress(OSError), os.scandir(folder / project) as files:
            for file in files:
                name = DatabaseName(project, file.name.partition(".")[0])
                if name in sizes:
                    with contextlib.suppress(OSError):  # removed meanwhile
                        sizes[name] += file.stat().st_size
    return [sizes[name] for name in listed]


def measure_all(folder: pathlib.Path) -> dict[DatabaseName, int]:
    """Return how many bytes the files of each database have in a data directory."""
    sizes: dict[DatabaseName, int] = {}
    with contextlib.suppress(OSError), os.scandir(folder) as projects:
        for project in projects:
            if project.is_dir():
                _measure_project(project.name, pathlib.Path(project.path), sizes)
    return sizes


def _measure_project(project: str, folder: pathlib.Path, sizes: dict[DatabaseName, int]) -> None:
    with contextlib.suppress(OSError), os.scandir(folder) as files:
        for file in files:
            database, shelf, _ = file.name.partition(SHELF)
            if shelf:
                name = DatabaseName(project, database)
                with contextlib.suppress(OSError):  # removed meanwhile
                    sizes[name] = sizes.get(name, 0) + file.stat().st_size


def walk(folder: pathlib.Path, projects: Collection[str]) -> Iterator[DirectoryEntry]:
    """Iterate over the files of a data directory in order; raise `CannotOpenStore`.

    `projects` are those that are configured: only a directory may have the name of one.
    """
    try:
        files = sorted(folder.iterdir())
    except OSError as error:
        raise CannotOpenStore(
            f"The data directory {folder}",
            f"cannot be read ({error.strerror})",
            "let the user that runs treedb read and enter it",
        ) from None
    for file in files:
        project = file.name
        try:
            if stat.S_ISDIR(file.stat().st_mode):
                yield from _walk_project(project, file)
            elif project in projects:
                yield DirectoryEntry(
                    project,
                    file,
                    CannotOpenStore(
                        file,
                        f"is not a directory, as the project {project} needs",
                        "move it out of the data directory",
                    ),
                )
        except OSError as error:
            if project in projects or not isinstance(error, FileNotFoundError):
                yield DirectoryEntry(project, file, _unreadable(file, error))


def _walk_project(project: str, folder: pathlib.Path) -> Iterator[DirectoryEntry]:
    files = sorted(folder.iterdir())
    known = set(files)
    # What is left of a removed database is not one.
    for note in [each for each in files if each.name.endswith(f"{SHELF}{REMOVAL_NOTE}")]:
        shelf = note.with_name(note.name.removesuffix(REMOVAL_NOTE))
        files = [each for each in files if not each.name.startswith(shelf.name)]
    for file in files:
        if file.name.endswith(SHELF) or file.name == RULES_FILE:
            yield DirectoryEntry(project, file)
            continue
        for suffix, kind in _LEFT_BEHIND.items():
            shelf = file.with_name(file.name.removesuffix(suffix) + SHELF)
            if file.name.endswith(suffix) and shelf not in known:
                known.add(shelf)  # to be reported once
                yield DirectoryEntry(project, file, _without_shelf(file, kind, shelf))


def _without_shelf(file: pathlib.Path, kind: str, shelf: pathlib.Path) -> CannotOpenStore:
    return CannotOpenStore(
        file,
        f"is the {kind} of a database whose own file, {shelf.name}, is missing",
        "put that file back, or restore the database from a backup, or remove "
        f"{shelf.name}-* to go on without it",
    )


def _unreadable(file: pathlib.Path, error: OSError) -> CannotOpenStore:
    return CannotOpenStore(
        file,
        f"cannot be read ({os.strerror(error.errno or 0)})",
        "let the user that runs treedb read and enter it, or move it out of the data directory",
    )


@attrs.frozen
class FoundDatabases:
    """What `find_databases` has found.

    Attributes:
        databases: those that have a file, also those that are refused.
        removed: those that were removed, but not all of their files are gone yet.
        older: those whose file has an older format.
        refused: why databases cannot be served.
        refused_projects: why projects cannot be served, and which databases they have is not known.
        foreign: the files of projects and databases that are not configured.

    """

    databases: set[DatabaseName] = attrs.field(factory=set)
    removed: set[DatabaseName] = attrs.field(factory=set)
    older: set[DatabaseName] = attrs.field(factory=set)
    refused: dict[DatabaseName, OperatorError] = attrs.field(factory=dict)
    refused_projects: dict[str, OperatorError] = attrs.field(factory=dict)
    foreign: list[pathlib.Path] = attrs.field(factory=list)

    def warn_of_foreign(self) -> None:
        """Log which files are not served."""
        for file in self.foreign:
            _log.warn(
                "{file} belongs to no project and database of the configuration; it is not served.",
                file=str(file),
            )


def find_databases(
    folder: pathlib.Path, projects: ServedProjects, *, any_project: bool
) -> FoundDatabases:
    """Find the databases in a data directory; raise `CannotOpenStore` if it cannot be read itself.

    `projects` are those that are configured; with `any_project` all others are served as well.
    No file of the directory may be open as a database in this process: reading it would release the
    locks that SQLite holds on it.
    """
    if (folder / MOVED_FILE).exists():
        raise CannotOpenStore(
            folder,
            "was moved to PostgreSQL, which has the newest data",
            f"start a daemon with that engine, or remove the file {folder / MOVED_FILE} to serve "
            "the old data all the same",
        )
    found = FoundDatabases()
    for entry in walk(folder, projects):
        databases = projects.get(entry.project)
        is_project = entry.file == folder / entry.project
        if entry.project not in projects and not any_project:
            found.foreign.append(entry.file)
        elif is_project and entry.error is not None:
            found.refused_projects[entry.project] = entry.error
        elif entry.file.name == RULES_FILE:
            continue
        elif databases is not None and entry.database not in databases:
            found.foreign.append(entry.file)
        else:
            name = DatabaseName(entry.project, entry.database)
            found.databases.add(name)
            try:
                if _format_of(entry) < FORMAT:
                    found.older.add(name)
            except CannotOpenStore as error:
                found.refused[name] = error
    return found


def _format_of(entry: DirectoryEntry) -> int:
    """Return the format of a file; raise `CannotOpenStore` if it cannot be served."""
    if entry.error is not None:
        raise entry.error
    try:
        return read_format(entry.file)
    except OSError as error:
        raise unreachable(entry.file, error) from None


def unreachable(file: pathlib.Path, error: OSError) -> CannotOpenStore:
    """Return what to raise for the file of a database that is missing or cannot be reached."""
    if not isinstance(error, FileNotFoundError):
        return inaccessible(file, str(error.strerror))
    return CannotOpenStore(
        file,
        f"cannot be opened ({error.strerror})",
        "put the database back, or move the rest of it out of the data directory",
    )
