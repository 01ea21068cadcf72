"""Statements that are prepared on a connection, and sent with others all at once.

The pipeline of the driver makes a cursor, and a call of the system, for each statement, and counts
a statement as prepared although an error before it has made the server skip that. Here statements
are prepared when the connection is made; a pipeline is one message and the wait for its answers.
Parameters are given in the binary format of PostgreSQL.
"""

from __future__ import annotations

import select
import struct
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import psycopg
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGresult

from treedbd.store.postgresql.connection import TimedConnection

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


def begin_ask(connection: TimedConnection, statement: bytes, parameters: Sequence[bytes]) -> None:
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
