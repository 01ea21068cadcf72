"""What a data directory has to be served: its databases, and what cannot be served of it.

A survey opens no database. It reads the first bytes of each file, which show that it is foreign, or
of a newer version; whatever else is wrong with a file is found when it is opened.
"""

from __future__ import annotations

import pathlib
from collections.abc import Collection, Mapping
from typing import TypeAlias

import attrs
from twisted.logger import Logger

from treedbd.database.data_directory import MOVED_FILE, RULES_FILE, DirectoryEntry, walk
from treedbd.errors import OperatorError
from treedbd.names import DatabaseName
from treedbd.store.engine import CannotOpenStore
from treedbd.store.sqlite.file import FORMAT, inaccessible, read_format

ServedProjects: TypeAlias = Mapping[str, Collection[str] | None]
"""The databases of each project, None for one that may have any."""

_log = Logger()


@attrs.frozen
class Survey:
    """What was found.

    Attributes:
        databases: those that have a file, also those that are refused.
        older: those whose file has an older format.
        refused: why databases cannot be served.
        refused_projects: why projects cannot be served, and which databases they have is not known.
        foreign: the files of projects and databases that are not configured.

    """

    databases: set[DatabaseName] = attrs.field(factory=set)
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


def survey(folder: pathlib.Path, projects: ServedProjects, *, any_project: bool) -> Survey:
    """Look through a data directory; raise `CannotOpenStore` if it cannot be read itself.

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
    found = Survey()
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
