"""Which databases cannot be opened, and why; the others are served meanwhile.

A database stays refused until an operator orders by SIGHUP that it is tried again: a file that is
being put back must not be opened half way. Only one that is merely inaccessible, because another
program has locked it or the disk has failed, is tried again at its next use, and now and then
without one. A project stays refused until the next start.
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.logger import Logger

from treedbd.database.requests import DatabaseRefused
from treedbd.database.runtime import Problem
from treedbd.errors import OperatorError
from treedbd.names import DatabaseName
from treedbd.store.engine import StoreInaccessible


class Refusals:
    """The databases, and the whole projects, that are refused."""

    _log = Logger()

    def __init__(self, open_later: Callable[[DatabaseName], None]) -> None:
        """Call `open_later` for a database that is to be tried again without being used."""
        self._open_later = open_later
        self._databases: dict[DatabaseName, OperatorError] = {}
        self._projects: dict[str, OperatorError] = {}

    @property
    def names(self) -> list[DatabaseName]:
        """The databases that are refused by themselves."""
        return list(self._databases)

    def check(self, name: DatabaseName) -> None:
        """Raise `DatabaseRefused` if a database is refused."""
        if name.project in self._projects or not self.may_open(name):
            raise DatabaseRefused

    def may_open(self, name: DatabaseName) -> bool:
        """Return whether it makes sense to open the file of a database now."""
        return isinstance(self._databases.get(name), StoreInaccessible | None)

    def add(self, name: DatabaseName, error: OperatorError) -> None:
        """Refuse a database from now on."""
        is_known = str(self._databases.get(name)) == str(error)
        self._databases[name] = error
        if isinstance(error, StoreInaccessible):
            self._open_later(name)
            if is_known:
                return
        self._log.error(
            "{reason} The database {label} is not served until then.",
            reason=str(error),
            label=name.label,
        )

    def add_project(self, project: str, error: OperatorError) -> None:
        """Refuse all databases of a project from now on: which there are is not known."""
        self._projects[project] = error
        self._log.error(
            "{reason} No database of the project {project} is served until then.",
            reason=str(error),
            project=project,
        )

    def discard(self, name: DatabaseName) -> None:
        """Refuse a database no more; no error if it is not refused."""
        if self._databases.pop(name, None) is not None:
            self._log.info("The database {label} is served again.", label=name.label)

    def problems(self) -> list[Problem]:
        """Return what is refused, without the paths of files."""
        return [
            *(
                Problem(name.project, name.database, _reason("database", error))
                for name, error in self._databases.items()
            ),
            *(
                Problem(project, None, _reason("project's directory", error))
                for project, error in self._projects.items()
            ),
        ]


def _reason(what: str, error: OperatorError) -> str:
    return f"The {what} {error.problem}: {error.remedy}."
