"""Which databases have been written, so that they exist, and whether there may be more."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import nsmallest
from threading import Lock
from time import monotonic
from typing import Final, TypeAlias

from treedbd.names import DatabaseName
from treedbd.store.engine import CannotCreateStore

ListCreated: TypeAlias = Callable[[str], Iterable[DatabaseName]]
"""Returns the databases of a project that have files, whichever process has created them."""

COMING_S: Final = 60.0
"""Seconds for which a database counts that may be created and was not."""


class WrittenDatabases:
    """The databases that have data; may be used in any thread."""

    def __init__(self, limit: int, seconds: Callable[[], float] = monotonic) -> None:
        """Let there be `limit` of them."""
        self._limit = limit
        self._names: set[DatabaseName] = set()
        self._seconds = seconds
        # Those that may be created and are not written yet, which count: several are created at a
        # time. If that fails, they count for a while.
        self._coming: dict[DatabaseName, float] = {}
        self._checking = Lock()

    def __contains__(self, name: DatabaseName) -> bool:
        """Return whether a database is known to have data."""
        return name in self._names

    def __len__(self) -> int:
        """Return how many databases are known to have data."""
        return len(self._names)

    def first(self, count: int) -> list[DatabaseName]:
        """Return those whose labels come first, in order."""
        return nsmallest(count, list(self._names), key=lambda name: name.label)

    def add(self, name: DatabaseName) -> None:
        """Record that a database has data."""
        self._names.add(name)

    def update(self, names: Iterable[DatabaseName]) -> None:
        """Record that databases have data."""
        self._names.update(names)

    def of(self, project: str, list_created: ListCreated | None) -> frozenset[str]:
        """Return the names of those of a project, also of those that others have created."""
        if list_created is not None:
            self._names.update(list_created(project))
        return frozenset(each.database for each in list(self._names) if each.project == project)

    def check_may_add(
        self, name: DatabaseName, project_limit: int, list_created: ListCreated | None
    ) -> None:
        """Raise `CannotCreateStore` if there may be no further database."""
        with self._checking:
            if name not in self._names:
                self._check(name, project_limit, list_created)
                self._coming[name] = self._seconds() + COMING_S

    def _check(
        self, name: DatabaseName, project_limit: int, list_created: ListCreated | None
    ) -> None:
        now = self._seconds()
        names = list(self._names)
        self._coming = {each: end for each, end in self._coming.items() if end > now}
        coming = self._coming.keys() - {name, *names}
        for project in {each.project for each in names} | {name.project}:
            of_project = len(self.of(project, list_created))
            of_project += sum(each.project == project for each in coming - self._names)
            if project == name.project and of_project >= project_limit:
                raise CannotCreateStore(
                    f"The project {project} has {project_limit} databases, and no more can be "
                    "created."
                )
        if len(self._names | coming) >= self._limit:
            raise CannotCreateStore(
                f"There are {self._limit} databases, and no more can be created."
            )
