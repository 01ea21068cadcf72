"""Questions how far databases are, each asked once for all reads that wait for it.

A strict question is sent and its answer received in the reactor's thread, as requests are: a thread
would cost as much as the question. Connections are made in threads.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final, TypeAlias

import psycopg
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReadDescriptor
from twisted.python.failure import Failure
from zope.interface import implementer

from treedbd.cluster.next_run import NextRun
from treedbd.database.slices import SLICE_SECONDS, Slices
from treedbd.store.engine import StoreUnreachable
from treedbd.store.postgresql.cluster import DatabaseState, ReadIndex
from treedbd.store.postgresql.connection import TimedConnection

Run: TypeAlias = Callable[[Callable[[], Any]], "Deferred[Any]"]
Told: TypeAlias = Callable[[DatabaseState | None], None]
_CALLS_BETWEEN_LOOKS: Final = 16


@implementer(IReadDescriptor)
class StrictQuestion:
    """One question after the other, over a connection that the reactor watches."""

    def __init__(self, index: ReadIndex, run: Run, reactor: Any, patience_s: float) -> None:
        """Ask `index`; `run` runs what blocks in a thread."""
        self._index = index
        self._run = run
        self._reactor = reactor
        self._patience_s = patience_s
        self._connection: TimedConnection | None = None
        # A copy of the connection's: libpq closes its own as soon as the connection has ended, and
        # another connection may get the number while the reactor still watches it.
        self._descriptor = -1
        self._done: Deferred[dict[int, DatabaseState]] | None = None
        self._deadline = 0.0
        self._timer: IDelayedCall | None = None  # one for many questions

    async def ask(self, dbs: Collection[int]) -> dict[int, DatabaseState]:
        """Return the confirmed states of databases; raise `StoreUnreachable`."""
        if self._connection is None:
            connection = await self._run(self._index.connect)
            self._descriptor = _copy_descriptor(connection)
            self._connection = connection
            self._reactor.addReader(self)
        done = self._done = Deferred()
        self._deadline = self._reactor.seconds() + self._patience_s
        try:
            self._index.begin(self._connection, dbs)
        except StoreUnreachable:
            self._fail(Failure())
        else:
            if self._timer is None:
                self._timer = self._reactor.callLater(self._patience_s, self._look_at_clock)
        return await done

    def close(self) -> None:
        """End the connection, and the question."""
        self._fail(Failure(StoreUnreachable("The connections to PostgreSQL are closed.")))

    # For the reactor.

    def fileno(self) -> int:
        """Return the descriptor that is watched, -1 if there is none."""
        return self._descriptor

    def logPrefix(self) -> str:
        """Return what the log calls it."""
        return "PostgreSQL"

    def doRead(self) -> None:
        """Receive what there is."""
        if self._connection is None:
            return
        try:
            states = self._index.receive(self._connection)
        except StoreUnreachable:
            self._fail(Failure())
            return
        if states is None or self._done is None:
            return
        done, self._done = self._done, None
        done.callback(states)

    def connectionLost(self, reason: Failure) -> None:
        """Ask over another connection next time."""
        self._fail(Failure(StoreUnreachable("PostgreSQL cannot be reached.")))

    def _look_at_clock(self) -> None:
        """Give up a question that is late; look again later if another is under way."""
        self._timer = None
        if self._done is None:
            return
        left = self._deadline - self._reactor.seconds()
        if left <= 0:
            self._fail(Failure(StoreUnreachable("PostgreSQL does not answer.")))
        else:
            self._timer = self._reactor.callLater(left, self._look_at_clock)

    def _fail(self, failure: Failure) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._reactor.removeReader(self)
            os.close(self._descriptor)
            self._descriptor = -1
            self._run(connection.give_up)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        done, self._done = self._done, None
        if done is not None:
            done.errback(failure)


def _copy_descriptor(connection: TimedConnection) -> int:
    try:
        return os.dup(connection.fileno())
    except (psycopg.Error, OSError):
        connection.close()
        raise StoreUnreachable("PostgreSQL cannot be reached.") from None


class Questions:
    """Asks one question for all who wait, for databases of any number."""

    def __init__(
        self,
        ask: Callable[[Collection[int]], Deferred[dict[int, DatabaseState]]],
        reactor: Any,
        slices: Slices,
    ) -> None:
        """Ask by `ask`; all who wait go on in `slices`."""
        self._ask_index = ask
        self._reactor = reactor
        self._to_ask: set[int] = set()
        self._calls: list[tuple[int, Told]] = []
        self._runs = NextRun(self._ask_all, slices, self._gather)

    async def ask(self, dbs: Collection[int]) -> dict[int, DatabaseState]:
        """Return how far databases are, asked after now; raise `StoreUnreachable`.

        One that is not in PostgreSQL is missing.
        """
        self._to_ask.update(dbs)
        asked: dict[int, DatabaseState] = await self._runs.ask()
        return {db: asked[db] for db in dbs if db in asked}

    def ask_soon(self, db: int, call: Told) -> None:
        """Call `call` with how far a database is, asked after now; None if that is not known."""
        self._calls.append((db, call))
        self._runs.ask_for_nobody()

    async def _gather(self) -> None:
        """Let all requests of this turn of the reactor join."""
        turn: Deferred[None] = Deferred()
        self._reactor.callLater(0, turn.callback, None)
        await turn

    async def _ask_all(self) -> dict[int, DatabaseState]:
        dbs, self._to_ask = self._to_ask, set()
        calls, self._calls = self._calls, []
        dbs.update([db for db, _ in calls])
        asked: dict[int, DatabaseState] = {}
        try:
            asked = await self._ask_index(dbs)
        finally:
            self._answer(iter(calls), asked)
        return asked

    def _answer(
        self, calls: Iterator[tuple[int, Told]], states: Mapping[int, DatabaseState]
    ) -> None:
        """Make calls, in slices."""
        end = self._reactor.seconds() + SLICE_SECONDS
        for number, (db, call) in enumerate(calls, 1):
            call(states.get(db))
            if number % _CALLS_BETWEEN_LOOKS == 0 and self._reactor.seconds() > end:
                self._reactor.callLater(0, self._answer, calls, states)
                return
