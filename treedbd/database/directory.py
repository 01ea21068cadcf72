"""What lies in a data directory: `<folder>/<project>/<name>.shelf`, and rules beside the databases.

Whatever cannot be looked at is told and never passed over: a database that nobody sees would be
served as an empty one, and then written anew.
"""

from __future__ import annotations

import os
import pathlib
import stat
from collections.abc import Collection, Iterator

import attrs

from treedbd.database.rulebook import RULES_FILE
from treedbd.store.mapping import Refused

SHELF = ".shelf"
_LOG = f"{SHELF}-wal"


@attrs.frozen
class Entry:
    """The file of a database or of rules; where there is `trouble`, a sentence, what keeps it away.

    `place` is the file, the log whose file is gone, or what should be the directory of the project.
    """

    project: str
    place: pathlib.Path
    trouble: str | None = None

    @property
    def is_shelf(self) -> bool:
        """Whether it is the file of a database."""
        return self.trouble is None and self.place.name != RULES_FILE

    @property
    def database(self) -> str:
        """The name of the database whose file it is."""
        return self.place.name.removesuffix(SHELF)


def walk(folder: pathlib.Path, projects: Collection[str]) -> Iterator[Entry]:
    """Iterate in order over what lies in a data directory; raise `Refused` if that cannot be seen.

    `projects` are those that are known: nothing but a directory may have the name of one.
    """
    try:
        places = sorted(folder.iterdir())
    except OSError as error:
        raise Refused(
            f"The data directory {folder} cannot be looked into ({error.strerror}): let the user "
            "that runs treedb read and enter it."
        ) from None
    for place in places:
        project = place.name
        try:
            if stat.S_ISDIR(place.stat().st_mode):
                yield from _walk_project(project, place)
            elif project in projects:
                yield Entry(
                    project,
                    place,
                    f"{place} is not a directory, and the project {project} needs it to be one: "
                    "move it out of the data directory.",
                )
        except OSError as error:
            if project in projects or not isinstance(error, FileNotFoundError):
                yield Entry(project, place, _unseen(place, error))


def _walk_project(project: str, folder: pathlib.Path) -> Iterator[Entry]:
    files = sorted(folder.iterdir())
    for file in files:
        if file.name.endswith(SHELF) or file.name == RULES_FILE:
            yield Entry(project, file)
        elif file.name.endswith(_LOG) and (shelf := _shelf_of(file)) not in files:
            yield Entry(
                project,
                file,
                f"{file} is the log of a database whose own file, {shelf.name}, is missing: put "
                "back the one that belongs to it, or remove the log and restore the database from "
                "a backup.",
            )


def _shelf_of(log: pathlib.Path) -> pathlib.Path:
    return log.with_name(log.name.removesuffix(_LOG) + SHELF)


def _unseen(place: pathlib.Path, error: OSError) -> str:
    return (
        f"{place} cannot be looked into ({os.strerror(error.errno or 0)}): let the user that runs "
        "treedb read and enter it, or move it out of the data directory."
    )
