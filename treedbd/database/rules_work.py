"""Work on rules documents, in slices between which the reactor serves others.

A document of a mebibyte takes seconds, and only the caller that puts or checks such rules waits.
One document is worked on at a time, in the order of arrival, so that several take no larger share
of the reactor's time than one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NoReturn, TypeVar

from twisted.internet.defer import DeferredLock
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater

from treedbd.database.requests import DeadlinePassed
from treedbd.database.slices import SLICE_SECONDS
from treedbd.loop import Steps

Result = TypeVar("Result")


class RulesWork:
    """The work on the rules documents of a service."""

    def __init__(self, clock: IReactorTime) -> None:
        """Slice by `clock`, whose seconds deadlines are in."""
        self._clock = clock
        self._turn = DeferredLock()

    @asynccontextmanager
    async def turn(self, deadline: float | None = None) -> AsyncIterator[None]:
        """Wait for the turn of a document; the next one's begins at the end of the context.

        What is done with the rules within it is done in the order in which they arrived. Raises
        `DeadlinePassed`. The waiting may be cancelled.
        """
        turn = self._turn.acquire()
        if deadline is not None:
            turn.addTimeout(max(0.0, deadline - self._clock.seconds()), self._clock, _time_out)
        await turn
        try:
            yield
        finally:
            self._turn.release()

    async def run(self, steps: Steps[Result], deadline: float | None = None) -> Result:
        """Do the work on a document whose turn it is, and return its result.

        Raises what the work raises, and `DeadlinePassed`. It may be cancelled.
        """
        end = self._clock.seconds() + SLICE_SECONDS
        while True:
            try:
                next(steps)
            except StopIteration as stop:
                result: Result = stop.value
                return result
            if self._clock.seconds() >= end:
                self.check_deadline(deadline)
                await deferLater(self._clock, 0)
                end = self._clock.seconds() + SLICE_SECONDS

    def check_deadline(self, deadline: float | None) -> None:
        """Raise `DeadlinePassed` if it is past a deadline."""
        if deadline is not None and self._clock.seconds() >= deadline:
            _time_out()


def _time_out(*_: object) -> NoReturn:
    raise DeadlinePassed("the rules were checked and stored")
