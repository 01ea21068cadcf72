"""What keeps a database or a project from being served as it should be, and how it is found."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeAlias

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


class ProblemSearch:
    """Looks for problems in slices, once for all who ask before a look has begun.

    A look takes some microseconds for each open database, and anybody may ask for one.
    """

    def __init__(self, look: Callable[[], Look], slices: Slices) -> None:
        """Run what `look` returns in `slices`."""
        self._look = look
        self._queue = StepQueue(slices)
        self._waiting: list[Deferred[list[Problem]]] = []

    def find(self) -> Deferred[list[Problem]]:
        """Return what a look finds that begins now or later."""
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
