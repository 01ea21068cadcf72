"""Connections to PostgreSQL, each for one use at a time, with a deadline for every use.

A use that passes its deadline closes the connection; no commit is ever cancelled. A COMMIT that is
cancelled ends its wait for the standbys and answers success with a warning: then the commit is
visible on this server, and a server that takes over may lack it. So warnings are recorded.
"""

from __future__ import annotations

import contextlib
import select
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias, TypeVar

import psycopg
from psycopg.abc import PQGen
from psycopg.errors import Diagnostic
from psycopg.pq import TransactionStatus
from psycopg.pq.abc import PGresult
from psycopg.rows import TupleRow

from treedbd.store.engine import CannotOpenStore, StoreUnreachable
from treedbd.store.postgresql.settings import PostgresqlSettings

T = TypeVar("T")
RV = TypeVar("RV")

CONFIRM: Final = "SELECT pg_logical_emit_message(true, 'treedb', '')"
_INTERVAL_S: Final = 0.1
_CANCEL_PATIENCE_S: Final = 1.0


class TimedConnection(psycopg.Connection[TupleRow]):
    """A connection whose every wait ends at a deadline.

    Attributes:
        deadline: seconds of the monotonic clock; when they are over the connection closes itself.
        is_prepared: whether its statements are prepared (`prepared`).
        may_cancel: whether all that can be under way is a confirmation, which changes nothing.
        answer: what was received of the answer to `prepared.begin_ask`.
        has_warned: whether the server has sent a warning since this was last set to False.

    """

    deadline = float("inf")
    has_warned = False
    may_cancel = False
    is_prepared = False
    answer: PGresult | None = None

    def wait(
        self, gen: PQGen[RV], interval: float = _INTERVAL_S, timeout: float | None = None
    ) -> RV:
        """Run a step of the protocol; raise `psycopg.OperationalError` at the deadline."""
        left = max(0.0, self.deadline - time.monotonic())
        bound = left if timeout is None else min(timeout, left)
        try:
            return super().wait(gen, interval, None if bound == float("inf") else bound)
        except psycopg.OperationalError:
            if time.monotonic() >= self.deadline:
                self.give_up()
            raise

    def give_up(self) -> None:
        """End the connection, at the deadline."""
        if self.may_cancel:
            # Otherwise each attempt would leave a process that waits for the standbys.
            with contextlib.suppress(psycopg.Error):
                self.cancel_safe(timeout=_CANCEL_PATIENCE_S)
        # So that it counts as lost: who had sent a COMMIT must not believe that it failed.
        self.pgconn.finish()

    @contextlib.contextmanager
    def only_confirming(self) -> Iterator[None]:
        """Let what is under way be cancelled at the deadline, within a `with` block."""
        self.may_cancel = True
        try:
            yield
        finally:
            self.may_cancel = False

    def extend(self, patience_s: float) -> None:
        """Let the deadline be so many seconds from now."""
        self.deadline = time.monotonic() + patience_s

    def record(self, diagnostic: Diagnostic) -> None:
        """Record a message of the server that is no error."""
        self.has_warned |= diagnostic.severity_nonlocalized == "WARNING"

    @property
    def is_lost(self) -> bool:
        """Whether the connection has ended, as far as this process knows."""
        return self.closed or self.broken

    def has_ended(self) -> bool:
        """Return whether an idle connection has received its end, or what must be read first."""
        if self.is_lost:
            return True
        poll = select.poll()
        poll.register(self.fileno(), select.POLLIN)
        return bool(poll.poll(0))


def connect(settings: PostgresqlSettings) -> TimedConnection:
    """Connect, with a transaction only where one is begun; raise `StoreUnreachable`."""
    try:
        connection = TimedConnection.connect(autocommit=True, **settings.parameters())
    except psycopg.Error as error:
        raise unreachable(error) from error
    connection.add_notice_handler(connection.record)
    return connection


def unreachable(error: psycopg.Error) -> StoreUnreachable:
    """Return what an error means that surely had no effect; its text names no host."""
    if error.diag.message_primary and error.sqlstate:
        return StoreUnreachable(f"PostgreSQL refused: {error.diag.message_primary}.")
    return StoreUnreachable("PostgreSQL cannot be reached.")


def cannot_connect(subject: str, error: StoreUnreachable) -> CannotOpenStore:
    """Return what an operator is told who cannot connect, with what the driver says."""
    said = " ".join(str(error.__cause__ or error).split())
    return CannotOpenStore(
        subject,
        f"cannot be used ({said.rstrip('.')})",
        "start it, or correct the setting engine, or the file that PGPASSFILE names",
    )


def commit_confirmed(connection: TimedConnection) -> None:
    """Commit the open transaction; raise `StoreUnreachable` if no standby has confirmed it."""
    connection.has_warned = False
    connection.execute("COMMIT")
    check_confirmed(connection)


def confirm(connection: TimedConnection) -> None:
    """Make sure that all that was read on a connection before is replicated.

    A primary that was cut off still answers reads, also of commits that no standby has. A commit of
    this transaction means that a standby has all of the log up to it; a transaction that writes
    nothing waits for no standby. Raises `StoreUnreachable`.
    """
    connection.has_warned = False
    with connection.only_confirming():
        connection.execute(CONFIRM)
    check_confirmed(connection)


def check_confirmed(connection: TimedConnection) -> None:
    """Raise `StoreUnreachable` if the wait of a commit for the standbys was broken off."""
    if connection.has_warned:
        raise StoreUnreachable("No standby of PostgreSQL has confirmed what was read.")


class Session:
    """One connection that is made when it is needed, and made again after an error.

    It may be used in any thread, by one at a time.
    """

    def __init__(self, settings: PostgresqlSettings, *, listens: bool = False) -> None:
        """Connect at the first use.

        With `listens` the server may send something at any time; without, what an idle connection
        receives can only be its end.
        """
        self._settings = settings
        self._listens = listens
        self._lock = threading.Lock()
        self._connection: TimedConnection | None = None
        self._is_over = False

    def run(self, work: Callable[[TimedConnection], T]) -> T:
        """Run `work` with a deadline; its errors of the driver become `StoreUnreachable`.

        After any error the connection is closed, so that no transaction stays open.
        """
        with self._lock:
            try:
                return work(self.ready())
            except psycopg.Error as error:
                self.drop()
                raise unreachable(error) from error
            except BaseException:
                self.drop()
                raise

    def ready(self) -> TimedConnection:
        """Return the connection, with a new deadline; raise `StoreUnreachable`."""
        if self._is_over:
            raise StoreUnreachable("The connections to PostgreSQL are closed.")
        if self._connection is not None and self._has_ended(self._connection):
            self.drop()
        if self._connection is None:
            self._connection = connect(self._settings)
        self.extend()
        return self._connection

    def _has_ended(self, connection: TimedConnection) -> bool:
        return connection.is_lost if self._listens else connection.has_ended()

    @property
    def is_in_transaction(self) -> bool:
        """Whether a transaction that was begun is still open, as far as this process knows."""
        return (
            self._connection is not None
            and not self._connection.has_ended()
            and self._connection.info.transaction_status == TransactionStatus.INTRANS
        )

    @property
    def is_idle(self) -> bool:
        """Whether there is a connection that does nothing."""
        return (
            self._connection is not None
            and self._connection.info.transaction_status == TransactionStatus.IDLE
        )

    def abandon_transaction(self) -> None:
        """End the open transaction without effect; if that fails, the connection is closed."""
        try:
            if self._connection is not None:
                self._connection.execute("ROLLBACK")
        except psycopg.Error:
            self.drop()

    def extend(self) -> None:
        """Let the deadline begin again."""
        if self._connection is not None:
            self._connection.extend(self._settings.patience_s)

    def drop(self) -> None:
        """Close the connection; nothing is cancelled."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(psycopg.Error):
                connection.close()

    def close(self) -> None:
        """Close the connection for good, when the use that is under way has ended."""
        self._is_over = True
        with self._lock:
            self.drop()


class SessionPool:
    """Some sessions, each of which is lent to one user at a time."""

    def __init__(self, settings: PostgresqlSettings, size: int) -> None:
        """Lend at most `size` sessions."""
        self._patience_s = settings.patience_s
        self._free = [Session(settings) for _ in range(size)]
        self._all = tuple(self._free)
        self._returned = threading.Condition()

    def take(self, patience_s: float | None = None) -> Session:
        """Take a session, the last one used if there are several; raise `StoreUnreachable`."""
        patience = self._patience_s if patience_s is None else patience_s
        with self._returned:
            if not self._returned.wait_for(lambda: self._free, patience):
                raise StoreUnreachable("All connections to PostgreSQL are in use.")
            return self._free.pop()

    def give_back(self, session: Session) -> None:
        """Return a session that was taken."""
        with self._returned:
            self._free.append(session)
            self._returned.notify()

    @contextlib.contextmanager
    def lend(self) -> Iterator[Session]:
        """Lend a session for a `with` block."""
        session = self.take()
        try:
            yield session
        finally:
            self.give_back(session)

    def run(self, work: Callable[[TimedConnection], T]) -> T:
        """Run `work` as `Session.run` does."""
        with self.lend() as session:
            return session.run(work)

    def close(self) -> None:
        """Close all sessions."""
        for session in self._all:
            session.close()


Rows: TypeAlias = list[tuple[Any, ...]]


def rows_of(connection: TimedConnection, statement: str, parameters: tuple[Any, ...] = ()) -> Rows:
    """Return all rows that a statement returns."""
    return connection.execute(statement, parameters, binary=True).fetchall()
