"""PostgreSQL as one daemon uses it: connections, threads to wait in, shared reads of states.

Nothing in `ClusterConnections` waits in the reactor's thread, except `connect`. The state of a
database is how many commits PostgreSQL has of it. `States` reads states once for all reads that
wait for them. A `StateQuery` is sent, and its answer received, in the reactor's thread, as requests
are: a thread would cost as much as the query. Connections are made in threads.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from typing import Any, Final, TypeAlias, TypeVar

import psycopg
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReadDescriptor
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.python.threadpool import ThreadPool
from zope.interface import implementer

from treedbd.database.slices import SLICE_SECONDS, Slices
from treedbd.errors import in_one_line
from treedbd.store.engine import StoreUnreachable
from treedbd.store.postgresql.cluster import DatabaseState, PostgresqlCluster, ReadIndex
from treedbd.store.postgresql.connection import PostgresqlSettings, TimedConnection, cannot_connect

T = TypeVar("T")

_CALLS_BETWEEN_LOOKS: Final = 16
"""Calls that are made between two looks at the clock."""
THREADS: Final = 12
"""Threads that wait for PostgreSQL: for commits, fetches, copies, maintenance."""
THREADS_ASIDE: Final = 2
"""The same for what any caller may request as often as it likes; it delays no commit."""
SILENCE_S: Final = 3.0
"""Seconds without an answer after which the cluster counts as unreachable."""

Run: TypeAlias = Callable[[Callable[[], Any]], "Deferred[Any]"]
StateCall: TypeAlias = Callable[[DatabaseState | None], None]


class ClusterConnections:
    """The connections of one daemon; all but `connect` belongs to the reactor's thread.

    Attributes:
        is_strict: whether no read may be older than an acknowledged write of any daemon.
        states: reads the states of databases.
        slices: run callers that waited for the same result.
        daemon: the name of this daemon in PostgreSQL.
        is_closing: whether nothing new may begin.
        clock_problem: why no writes are accepted because of the clock; None if they are.

    """

    _log = Logger()

    def __init__(
        self, settings: PostgresqlSettings, reactor: Any, *, retain: int, is_strict: bool
    ) -> None:
        """Prepare; copies keep about `retain` entries of the log.

        States are confirmed even if reads do not wait for them (`is_strict` is False): a primary
        that is cut off would answer for ever that nothing is new.
        """
        self.is_strict: Final = is_strict
        self.daemon: Final = f"{socket.gethostname()}-{os.getpid()}-{os.urandom(3).hex()}"
        self.is_closing = False
        self.clock_problem: str | None = None
        self.settings: Final = settings
        self.slices: Final = Slices(reactor)
        self.states: Final = States(
            lambda dbs: Deferred.fromCoroutine(self._read_states(dbs)), reactor, self.slices
        )
        self._reactor = reactor
        self._retain = retain
        self._pool = ThreadPool(1, THREADS, "postgresql")
        self._pool_aside = ThreadPool(0, THREADS_ASIDE, "postgresql-aside")
        self._store: PostgresqlCluster | None = None
        self._query: StateQuery | None = None
        self._answered_at = 0.0
        self._failure: str | None = None

    @property
    def store(self) -> PostgresqlCluster:
        """The connections themselves; raises `StoreUnreachable` before `connect`."""
        if self._store is None:
            raise StoreUnreachable("PostgreSQL is not connected.")
        return self._store

    @property
    def problem(self) -> str | None:
        """Why the cluster cannot be used at present, in one sentence; None if it can."""
        if self._failure is not None:
            return self._failure
        if time.monotonic() > self._answered_at + SILENCE_S:
            return "PostgreSQL does not answer."
        return None

    def connect(self) -> None:
        """Connect, and create or migrate the tables if necessary; blocks.

        Raises `CannotOpenStore`.
        """
        try:
            self._store = PostgresqlCluster(self.settings, retain=self._retain)
        except StoreUnreachable as error:
            raise cannot_connect(self.settings.subject, error) from None
        self._answered_at = time.monotonic()
        self._pool.start()
        self._pool_aside.start()
        patience = self.settings.patience_s
        self._query = StateQuery(self._store.read_index, self.run, self._reactor, patience)

    def run(self, work: Callable[[], T]) -> Deferred[T]:
        """Run what blocks in a thread."""
        return deferToThreadPool(self._reactor, self._pool, work)

    def run_aside(self, work: Callable[[], T]) -> Deferred[T]:
        """Run what blocks in a thread of another pool, so that it delays no commit."""
        return deferToThreadPool(self._reactor, self._pool_aside, work)

    def hint_others(self, db: int) -> None:
        """Send the other daemons the hint that a database was written; do not wait for it."""
        self.run(lambda: self.store.notifier.notify(db))

    def stop_queries(self) -> None:
        """Send no query of states any more."""
        if self._query is not None:
            self._query.close()

    def close(self) -> None:
        """Close all connections; blocks until what is under way has ended or passed its time."""
        if self._store is not None:
            self._store.close()
            self._pool_aside.stop()
            self._pool.stop()

    async def _read_states(self, dbs: Collection[int]) -> dict[int, DatabaseState]:
        try:
            if self._query is None:
                raise StoreUnreachable("PostgreSQL is not connected.")
            states = await self._query.read(dbs)
        except StoreUnreachable as error:
            if self._failure is None:
                self._log.error("{reason}", reason=str(error))
                self._log_cause(error)
            self._failure = str(error)
            raise
        if self._failure is not None:
            self._log.info("PostgreSQL answers again.")
        self._answered_at = time.monotonic()
        self._failure = None
        return states

    def _log_cause(self, error: StoreUnreachable) -> None:
        """Log what the driver says, which names hosts and so is for operators only."""
        if error.__cause__ is not None:
            self._log.error("The driver says: {reason}", reason=in_one_line(str(error.__cause__)))


class States:
    """Reads the states of databases, by one query for all callers that wait."""

    def __init__(
        self,
        find: Callable[[Collection[int]], Deferred[dict[int, DatabaseState]]],
        reactor: Any,
        slices: Slices,
    ) -> None:
        """Read states by `find`; callers that wait go on in `slices`."""
        self._find_states = find
        self._reactor = reactor
        self._wanted: set[int] = set()
        self._calls: list[tuple[int, StateCall]] = []
        self._runs = Singleflight(self._find_all, slices, self._gather)

    async def find_states(self, dbs: Collection[int]) -> dict[int, DatabaseState]:
        """Return the states of databases, by a query that begins after the call.

        A database that is not in PostgreSQL is missing. Raises `StoreUnreachable`.
        """
        self._wanted.update(dbs)
        found: dict[int, DatabaseState] = await self._runs.call()
        return {db: found[db] for db in dbs if db in found}

    def find_state_soon(self, db: int, call: StateCall) -> None:
        """Call `call` with the state of a database, by a later query; with None if that fails."""
        self._calls.append((db, call))
        self._runs.begin()

    async def _gather(self) -> None:
        """Wait for the next turn of the reactor, so that all requests of this one share a query."""
        next_turn: Deferred[None] = Deferred()
        self._reactor.callLater(0, next_turn.callback, None)
        await next_turn

    async def _find_all(self) -> dict[int, DatabaseState]:
        dbs, self._wanted = self._wanted, set()
        calls, self._calls = self._calls, []
        dbs.update([db for db, _ in calls])
        found: dict[int, DatabaseState] = {}
        try:
            found = await self._find_states(dbs)
        finally:
            self._answer(iter(calls), found)
        return found

    def _answer(
        self, calls: Iterator[tuple[int, StateCall]], states: Mapping[int, DatabaseState]
    ) -> None:
        """Make calls, in slices."""
        end = self._reactor.seconds() + SLICE_SECONDS
        for number, (db, call) in enumerate(calls, 1):
            call(states.get(db))
            if number % _CALLS_BETWEEN_LOOKS == 0 and self._reactor.seconds() > end:
                self._reactor.callLater(0, self._answer, calls, states)
                return


@implementer(IReadDescriptor)
class StateQuery:
    """Queries of states, one after the other, over a connection that the reactor watches."""

    def __init__(self, index: ReadIndex, run: Run, reactor: Any, patience_s: float) -> None:
        """Send queries to `index`; `run` runs what blocks in a thread."""
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
        self._timer: IDelayedCall | None = None  # one for many queries

    async def read(self, dbs: Collection[int]) -> dict[int, DatabaseState]:
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
        """End the connection, and the query under way."""
        self._fail(Failure(StoreUnreachable("The connections to PostgreSQL are closed.")))

    # For the reactor.

    def fileno(self) -> int:
        """Return the descriptor that is watched, -1 if there is none."""
        return self._descriptor

    def logPrefix(self) -> str:
        """Return the name for the log."""
        return "PostgreSQL"

    def doRead(self) -> None:
        """Receive what has arrived, and answer the query if that is all of it."""
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
        """Use another connection for the next query."""
        self._fail(Failure(StoreUnreachable("PostgreSQL cannot be reached.")))

    def _look_at_clock(self) -> None:
        """End a query that is late; look again later if another one is under way."""
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


class Singleflight:
    """Coalesces calls: each caller receives the result of a run that started after its call.

    One run follows the other.
    """

    def __init__(
        self,
        work: Callable[[], Awaitable[Any]],
        slices: Slices,
        gather: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Do `work`; calls until `gather` has returned share the run.

        Callers go on in `slices`, while the next run may begin.
        """
        self._work = work
        self._gather = gather
        self._slices = slices
        self._waiting: list[Deferred[Any]] = []
        self._is_running = False

    def call(self) -> Deferred[Any]:
        """Return a Deferred of the result, or the failure, of a run that has not begun yet."""
        waiter: Deferred[Any] = Deferred()
        self._waiting.append(waiter)
        if not self._is_running:
            Deferred.fromCoroutine(self._run())
        return waiter

    def begin(self) -> None:
        """Begin a run, without an error if it fails: there will be another one."""
        if all(each.called for each in self._waiting):  # cancelled calls do not begin a run
            self.call().addErrback(lambda _: None)

    async def _run(self) -> None:
        self._is_running = True
        while self._waiting:
            if self._gather is not None:
                await self._gather()
            waiting = [each for each in self._waiting if not each.called]  # others were cancelled
            self._waiting = []
            if not waiting:
                continue
            try:
                result = await self._work()
            except Exception:
                result = Failure()
            self._slices.fire(waiting, result)
        self._is_running = False
