"""PostgreSQL as one daemon uses it: its connections, threads to wait in, and shared questions.

Nothing here waits in the reactor's thread, but for `connect`.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Collection
from typing import Any, Final, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger
from twisted.python.threadpool import ThreadPool

from treedbd.cluster.questions import Questions, StrictQuestion
from treedbd.database.slices import Slices
from treedbd.errors import in_one_line
from treedbd.store.engine import StoreUnreachable
from treedbd.store.postgresql.cluster import DatabaseState, PostgresqlCluster
from treedbd.store.postgresql.connection import PostgresqlSettings, cannot_connect

T = TypeVar("T")

THREADS: Final = 12
"""How many things can be waited for at a time: commits, fetches, copies, upkeep."""
THREADS_ASIDE: Final = 2
"""How many of those that any caller may ask for as often as he likes."""
SILENCE_S: Final = 3.0
"""Seconds without an answer after which the cluster counts as unreachable."""


class ClusterConnections:
    """The connections of one daemon; all but `connect` belongs to the reactor's thread.

    Attributes:
        is_strict: whether no read may be older than an acknowledged write of any daemon.
        questions: asks how far databases are.
        slices: in which all go on who waited for the same.
        daemon: the name by which the others see this daemon.
        is_closing: whether nothing new is to begin.
        clock_problem: why no writes are accepted because of the clock; None if they are.

    """

    _log = Logger()

    def __init__(
        self, settings: PostgresqlSettings, reactor: Any, *, retain: int, is_strict: bool
    ) -> None:
        """Prepare; copies keep about `retain` entries of the log.

        Also where reads do not ask (`is_strict`), nothing is believed that is not confirmed: a
        primary that was cut off would say for ever that there is nothing new.
        """
        self.is_strict: Final = is_strict
        self.daemon: Final = f"{socket.gethostname()}-{os.getpid()}-{os.urandom(3).hex()}"
        self.is_closing = False
        self.clock_problem: str | None = None
        self.settings: Final = settings
        self.slices: Final = Slices(reactor)
        self.questions: Final = Questions(
            lambda dbs: Deferred.fromCoroutine(self._ask(dbs)), reactor, self.slices
        )
        self._reactor = reactor
        self._retain = retain
        self._pool = ThreadPool(1, THREADS, "postgresql")
        self._pool_aside = ThreadPool(0, THREADS_ASIDE, "postgresql-aside")
        self._store: PostgresqlCluster | None = None
        self._strict: StrictQuestion | None = None
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
        """Connect, and make or migrate the tables if need be; blocks.

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
        self._strict = StrictQuestion(self._store.read_index, self.run, self._reactor, patience)

    def run(self, work: Callable[[], T]) -> Deferred[T]:
        """Run what blocks in a thread."""
        return deferToThreadPool(self._reactor, self._pool, work)

    def run_aside(self, work: Callable[[], T]) -> Deferred[T]:
        """Run what blocks in a thread, but so that it keeps no commit waiting."""
        return deferToThreadPool(self._reactor, self._pool_aside, work)

    def call_in_reactor(self, call: Callable[..., None], *arguments: object) -> None:
        """Call something in the reactor's thread; may be called in any thread."""
        self._reactor.callFromThread(call, *arguments)

    def tell_others(self, db: int) -> None:
        """Let the other daemons know that a database was written, without waiting for it."""
        self.run(lambda: self.store.notifier.notify(db))

    def stop_asking(self) -> None:
        """Ask nothing more."""
        if self._strict is not None:
            self._strict.close()

    def close(self) -> None:
        """Close all connections; blocks until what is under way has ended or passed its time."""
        if self._store is not None:
            self._store.close()
            self._pool_aside.stop()
            self._pool.stop()

    async def _ask(self, dbs: Collection[int]) -> dict[int, DatabaseState]:
        try:
            if self._strict is None:
                raise StoreUnreachable("PostgreSQL is not connected.")
            states = await self._strict.ask(dbs)
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
