"""Connections to PostgreSQL: how they are made, lent and ended, and statements sent all at once.

**Settings.** A connection string is a URL or `key=value` pairs, as libpq reads them, and may name
several hosts. A password in it would be in the configuration, in the list of processes and in
reports of errors, so it is refused: libpq finds passwords in its password file or in a service
file.

**Deadlines.** A connection has one use at a time, and every use has a deadline; one that passes it
closes the connection. No commit is ever cancelled. A COMMIT that is cancelled ends its wait for the
standbys and answers success with a warning: then the commit is visible on this server, and a server
that takes over may lack it. So warnings are recorded.

**Pipelines.** The pipeline of the driver makes a cursor, and a call of the system, for each
statement, and counts a statement as prepared although an error before it has made the server skip
that. Here statements are prepared when the connection is made (`prepare`); a pipeline is one
message and the wait for its answers (`send_all`). Parameters are given in the binary format of
PostgreSQL.
"""

from __future__ import annotations

import contextlib
import math
import select
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import attrs
import psycopg
from psycopg.abc import PQGen
from psycopg.conninfo import conninfo_to_dict
from psycopg.errors import Diagnostic, error_from_result
from psycopg.pq import ExecStatus, TransactionStatus
from psycopg.pq.abc import PGresult
from psycopg.rows import TupleRow

from treedbd.errors import OperatorError
from treedbd.store.engine import CannotOpenStore, StoreUnreachable

T = TypeVar("T")
RV = TypeVar("RV")

SCHEMA: Final = "treedb"
"""The schema of all tables, and the name of the application and of the channel of hints."""
DEFAULT_PATIENCE_S: Final = 5.0
IDLE_MS: Final = 10_000
"""A daemon that stops in the middle of a transaction loses it, and its locks, after this time."""
_SECRETS: Final = {"password", "sslpassword"}
_BALANCING_LIBPQ: Final = 160_000

_DEFAULTS: Final = {
    "target_session_attrs": "read-write",
    "application_name": SCHEMA,
    "connect_timeout": "2",  # for each host: a frozen one only accepts connections
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
}

CONFIRM: Final = "SELECT pg_logical_emit_message(true, 'treedb', '')"
_INTERVAL_S: Final = 0.1
_CANCEL_PATIENCE_S: Final = 1.0


@attrs.frozen
class PostgresqlSettings:
    """How to connect, and how long to wait.

    Attributes:
        dsn: the connection string, without a password.
        patience_s: seconds until an answer counts as lost; a copy of a whole database may take
            longer, but not longer than this between two pieces.
        is_strict: whether what was read counts only after a standby has confirmed a
            transaction that was sent after the read.
        is_cluster: whether the operator has declared that there are synchronous standbys.
        commit_connections: how many commits of different databases can be under way at once.

    """

    dsn: str
    patience_s: float = DEFAULT_PATIENCE_S
    is_strict: bool = True
    is_cluster: bool = False
    commit_connections: int = 4

    def __attrs_post_init__(self) -> None:
        parse_dsn(self.dsn)

    @property
    def subject(self) -> str:
        """What messages call the server: its database and hosts."""
        parameters = parse_dsn(self.dsn)
        hosts = parameters.get("host") or parameters.get("service") or "the local host"
        return f"The PostgreSQL database {parameters.get('dbname', 'of the user')} on {hosts}"

    def parameters(self) -> dict[str, Any]:
        """Return the parameters of a connection, as libpq takes them."""
        given = parse_dsn(self.dsn)
        patience_ms = math.ceil(self.patience_s * 1000)
        limits = {"tcp_user_timeout": str(patience_ms)}
        session = {
            "search_path": SCHEMA,
            # A role may have another default, with which a commit does not wait for the standbys.
            "synchronous_commit": "on",
            "default_transaction_isolation": r"read\ committed",
            # Neither ends the wait of a COMMIT for the standbys, which must not be cancelled: the
            # server stops these clocks when a statement has been executed.
            "statement_timeout": str(patience_ms),
            "lock_timeout": str(patience_ms),
            "idle_in_transaction_session_timeout": str(IDLE_MS),
        }
        options = [str(given.pop("options", "")), *(f"-c {k}={v}" for k, v in session.items())]
        if psycopg.pq.version() >= _BALANCING_LIBPQ:
            # After a fail-over the old primary may still run, cut off: do not always choose it.
            limits["load_balance_hosts"] = "random"
        return {**_DEFAULTS, **limits, **given, "options": " ".join(options).strip()}


def parse_dsn(dsn: str) -> dict[str, Any]:
    """Return the parameters of a connection string; raise `OperatorError`."""
    try:
        parameters: dict[str, Any] = conninfo_to_dict(dsn)
    except psycopg.Error:
        # Not the text of the error: it repeats the string, which may hold a password.
        raise OperatorError(
            "The connection string of PostgreSQL",
            "cannot be read",
            "write a URL such as postgresql://treedb@host1,host2/treedb",
        ) from None
    if not parameters.keys().isdisjoint(_SECRETS):
        raise OperatorError(
            "The connection string of PostgreSQL",
            "holds a password",
            "put the password into the file that PGPASSFILE names, or into a service file",
        )
    return parameters


class TimedConnection(psycopg.Connection[TupleRow]):
    """A connection whose every wait ends at a deadline.

    Attributes:
        deadline: seconds of the monotonic clock; when they are over the connection closes itself.
        is_prepared: whether its statements are prepared (`prepare`).
        may_cancel: whether all that can be under way is a confirmation, which changes nothing.
        answer: what was received of the answer to `begin_query`.
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
        # So that it counts as lost: a COMMIT that was sent must not be taken for failed.
        self.pgconn.finish()

    @contextlib.contextmanager
    def only_confirming(self) -> Iterator[None]:
        """Allow what is under way to be cancelled at the deadline, within a `with` block."""
        self.may_cancel = True
        try:
            yield
        finally:
            self.may_cancel = False

    def extend(self, patience_s: float) -> None:
        """Set the deadline to so many seconds from now."""
        self.deadline = time.monotonic() + patience_s

    def record(self, diagnostic: Diagnostic) -> None:
        """Record a message of the server that is not an error."""
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
    """Return what an operator reads who cannot connect, with what the driver says."""
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
        connection = self._connection
        if connection is not None and (
            connection.is_lost if self._listens else connection.has_ended()
        ):
            self.drop()
        if self._connection is None:
            self._connection = connect(self._settings)
        self.extend()
        return self._connection

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
        """Start the deadline again."""
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


_INT4: Final = struct.Struct(">i")
_INT8: Final = struct.Struct(">q")
_ARRAY: Final = struct.Struct(">iiIii")
_EMPTY_ARRAY: Final = struct.pack(">iiI", 0, 0, 17)
_BYTEA_OID: Final = 17
_INT4_OID: Final = 23
_INT4_ITEM: Final = struct.Struct(">ii")
_LENGTH: Final = struct.Struct(">I")
_ERRORS: Final = (ExecStatus.FATAL_ERROR, ExecStatus.BAD_RESPONSE)


class PipelineCall(NamedTuple):
    """A statement and its parameters: a prepared one by its name, or any one by its text."""

    statement: bytes
    parameters: Sequence[bytes] = ()
    is_prepared: bool = True


def int4(number: int) -> bytes:
    """Return an integer parameter."""
    return _INT4.pack(number)


def int8(number: int) -> bytes:
    """Return a bigint parameter."""
    return _INT8.pack(number)


def bytea_array(values: Sequence[bytes]) -> bytes:
    """Return a bytea[] parameter."""
    if not values:
        return _EMPTY_ARRAY
    parts = [_ARRAY.pack(1, 0, _BYTEA_OID, len(values), 1)]
    for value in values:
        parts.append(_LENGTH.pack(len(value)))
        parts.append(value)
    return b"".join(parts)


def int4_array(numbers: Iterable[int]) -> bytes:
    """Return an integer[] parameter."""
    listed = list(numbers)
    if not listed:
        return struct.pack(">iiI", 0, 0, _INT4_OID)
    head = _ARRAY.pack(1, 0, _INT4_OID, len(listed), 1)
    return head + b"".join(_INT4_ITEM.pack(4, number) for number in listed)


def prepare(connection: TimedConnection, statements: Mapping[str, str]) -> None:
    """Prepare statements, whose keys are `name(types of the parameters)`, unless they are."""
    if not connection.is_prepared:
        for head, text in statements.items():
            connection.execute(f"PREPARE {head} AS {text}".encode())
        connection.is_prepared = True


def send_all(connection: TimedConnection, calls: Iterable[PipelineCall]) -> list[str]:
    """Send all statements at once; return what the server says of each, such as `COMMIT`.

    Raises the first error, as the driver does; the statements after it have no effect. If the
    deadline of the connection has passed, the connection is closed.
    """
    pgconn = connection.pgconn
    pgconn.enter_pipeline_mode()
    for call in calls:
        if call.is_prepared:
            formats = [1] * len(call.parameters)
            pgconn.send_query_prepared(call.statement, call.parameters, formats)
        else:
            pgconn.send_query_params(call.statement, None)
        pgconn.flush()  # so that the server begins with a long pipeline
    pgconn.pipeline_sync()
    answers, error = _receive(connection)
    if not connection.is_lost:
        pgconn.exit_pipeline_mode()
    if error is not None:
        raise error_from_result(error)
    return answers


def begin_query(connection: TimedConnection, statement: bytes, parameters: Sequence[bytes]) -> None:
    """Send a short prepared statement, whose rows `find_answer` returns in binary."""
    pgconn = connection.pgconn
    pgconn.send_query_prepared(statement, parameters, [1] * len(parameters), result_format=1)
    pgconn.flush()


def find_answer(connection: TimedConnection) -> PGresult | None:
    """Return the rows of the statement that was sent, None as long as they are not all there.

    Waits for nothing. Raises `psycopg.Error`, as the driver does.
    """
    pgconn = connection.pgconn
    pgconn.consume_input()
    while not pgconn.is_busy():
        result = pgconn.get_result()
        if result is not None:
            connection.answer = result
            continue
        found, connection.answer = connection.answer, None
        if found is None:
            raise psycopg.OperationalError("The connection has ended.")
        if found.status in _ERRORS:
            raise error_from_result(found)
        return found
    return None


def _receive(connection: TimedConnection) -> tuple[list[str], PGresult | None]:
    """Return the answers up to the end of the pipeline, and the first error."""
    pgconn = connection.pgconn
    answers: list[str] = []
    error: PGresult | None = None
    while True:
        _wait(connection)
        while not pgconn.is_busy():
            result = pgconn.get_result()
            if result is None:  # the end of one statement
                if connection.is_lost:
                    raise psycopg.OperationalError("The connection has ended.")
                continue
            status = result.status
            if status == ExecStatus.PIPELINE_SYNC:
                return answers, error
            if status in _ERRORS:  # what follows the first one is only aborted
                error = result
            answers.append((result.command_status or b"").decode())


def _wait(connection: TimedConnection) -> None:
    """Send what can be sent and receive what there is; raise `psycopg.OperationalError`."""
    pgconn = connection.pgconn
    left = connection.deadline - time.monotonic()
    poll = select.poll()
    poll.register(pgconn.socket, select.POLLIN | (select.POLLOUT if pgconn.flush() else 0))
    ready = poll.poll(max(0.0, left) * 1000) if left < float("inf") else poll.poll()
    if not ready:
        connection.give_up()
        raise psycopg.OperationalError("The server has not answered in time.")
    pgconn.consume_input()
