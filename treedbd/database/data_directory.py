"""The files of a data directory: `<data>/<project>/<database>.shelf`, and rules beside them.

Whatever cannot be read is reported and never skipped: a database that is not seen would be served
as an empty one, and then overwritten.
"""

from __future__ import annotations

import os
import pathlib
import stat
from collections.abc import Collection, Iterator
from typing import Final

import attrs

from treedbd.database.active_rules import RULES_FILE
from treedbd.store.engine import CannotOpenStore

SHELF: Final = ".shelf"
_LOG: Final = f"{SHELF}-wal"


@attrs.frozen
class DirectoryEntry:
    """The file of a database or of rules; `error` is why it cannot be served, if it cannot.

    `file` may then also be a log whose database is missing, or what should be the directory of a
    project.
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
        """The name of the database whose file it is."""
        return self.file.name.removesuffix(SHELF)


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
    for file in files:
        if file.name.endswith(SHELF) or file.name == RULES_FILE:
            yield DirectoryEntry(project, file)
        elif file.name.endswith(_LOG) and (shelf := _shelf_of(file)) not in files:
            yield DirectoryEntry(
                project,
                file,
                CannotOpenStore(
                    file,
                    f"is the log of a database whose own file, {shelf.name}, is missing",
                    "put that file back, or remove the log and restore the database from a backup",
                ),
            )


def _shelf_of(log: pathlib.Path) -> pathlib.Path:
    return log.with_name(log.name.removesuffix(_LOG) + SHELF)


def _unreadable(file: pathlib.Path, error: OSError) -> CannotOpenStore:
    return CannotOpenStore(
        file,
        f"cannot be read ({os.strerror(error.errno or 0)})",
        "let the user that runs treedb read and enter it, or move it out of the data directory",
    )
