"""What keeps a database or a project from being served as it should be, and how it is found."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from typing import Protocol, TypeAlias

import attrs
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from treedbd.database.slices import Slices, StepQueue, Steps
from treedbd.names import DatabaseName


@attrs.frozen
class Problem:
    """One thing that is wrong with a project, or with one of its databases.

    `database` is None if it concerns them all. `reason` is a sentence for the operator.
    """

    project: str
    database: str | None
    reason: str
    refuses_writes: bool = True

    def __str__(self) -> str:
        """Return the reason, after the label of what it concerns."""
        if self.database is None:
            return f"{self.project}: {self.reason}"
        return f"{DatabaseName(self.project, self.database).label}: {self.reason}"


Look: TypeAlias = Generator[None, None, list[Problem]]
"""Steps that look at everything, and return what is wrong."""


class Writing(Protocol):
    """A database, as far as it may be writable or not."""

    @property
    def write_problem(self) -> str | None:
        """Why writes are refused at present; None if they are accepted."""
        ...


class Ruling(Protocol):
    """The rules of a project, as far as they may be in force or not."""

    @property
    def problem(self) -> str | None:
        """Why the stored rules are not in force; None if they are."""
        ...


def look_for_problems(
    of_files: Iterable[Problem],
    databases: Mapping[DatabaseName, Writing],
    rules: Mapping[str, Ruling],
) -> Look:
    """Return the problems of files, of open databases, and of the rules of projects."""
    found = {(each.project, each.database): each for each in of_files}
    for name, database in list(databases.items()):
        reason = database.write_problem
        if reason is not None:
            found[name.project, name.database] = Problem(name.project, name.database, reason)
        yield
    return [
        *found.values(),
        *(
            Problem(project, None, each.problem, refuses_writes=False)
            for project, each in list(rules.items())
            if each.problem is not None
        ),
    ]


class ProblemSearch:
    """Looks for problems in slices, once for all who ask before a look has begun.

    A look takes some microseconds for each open database, and anybody may ask for one.
    """

    def __init__(self, look: Callable[[], Look], slices: Slices) -> None:
        """Run what `look` returns in `slices`."""
        self._look = look
        self._queue = StepQueue(slices)
        self._waiting: list[Deferred[list[Problem]]] = []

    def find(
        self, find_more: Callable[[], Awaitable[list[Problem]]] | None = None
    ) -> Deferred[list[Problem]]:
        """Return what a look finds that begins now or later, and what `find_more` finds."""
        found = self._find()
        if find_more is None:
            return found

        async def find_all() -> list[Problem]:
            return list(dict.fromkeys(await found + await find_more()))

        return Deferred.fromCoroutine(find_all())

    def _find(self) -> Deferred[list[Problem]]:
        waiter: Deferred[list[Problem]] = Deferred()
        self._waiting.append(waiter)
        if len(self._waiting) == 1:
            self._queue.add(self._run())
        return waiter

    def _run(self) -> Steps:
        waiting, self._waiting = self._waiting, []
        try:
            found: list[Problem] | Failure = yield from self._look()
        except Exception:
            found = Failure()
        for waiter in waiting:
            waiter.callback(found)
            yield
