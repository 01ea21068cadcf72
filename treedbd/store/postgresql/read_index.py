"""The read index: how far databases have come, which a read must have reached to be current.

One question serves all reads that were waiting when it was sent: the caller collects them. It is
asked in a transaction that writes, and its answer is believed when that has been confirmed: a
primary that was cut off still answers questions, and no such transaction ends there
(`connection.confirm`).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

import psycopg
from psycopg.pq.abc import PGresult

from treedbd.store.postgresql.connection import (
    PostgresqlSettings,
    Session,
    TimedConnection,
    begin_ask,
    check_confirmed,
    connect,
    find_answer,
    int4_array,
    prepare,
    rows_of,
    unreachable,
)

_STATEMENTS: Final = {
    # The message makes it a transaction that writes. The databases are joined to it, so that it is
    # there whatever there is of them, and it is in the answer: else it would be optimised away.
    "ask (integer[])": (
        "SELECT d.db, d.seq, d.rev, d.epoch, written.at FROM"
        " (SELECT pg_logical_emit_message(true, 'treedb', '') AS at) AS written"
        " LEFT JOIN dbs AS d ON d.db = ANY($1)"
    )
}
STATES: Final = "SELECT db, seq, rev, epoch FROM dbs WHERE db = ANY(%b::integer[])"


class DatabaseState(NamedTuple):
    """How far a database has come: entries of the log, commits, and the epoch of its rules."""

    seq: int
    rev: int
    epoch: int


class ReadIndex:
    """Asks over a connection of its own, one question at a time.

    A strict one is asked without waiting: `connect`, in any thread, then `begin` and `receive`
    whenever there is something to be read from the connection.
    """

    def __init__(self, settings: PostgresqlSettings) -> None:
        """Connect at the first question."""
        self._settings = settings
        self._session = Session(settings)

    def ask(self, dbs: Collection[int]) -> dict[int, DatabaseState]:
        """Return the states of databases as the server shows them, confirmed or not; blocks.

        A database that does not exist is missing. Raises `StoreUnreachable`.
        """
        return self._session.run(lambda connection: states_of(connection, list(dbs)))

    def connect(self) -> TimedConnection:
        """Return a connection for strict questions; blocks. Raises `StoreUnreachable`."""
        connection = connect(self._settings)
        connection.may_cancel = True
        try:
            prepare(connection, _STATEMENTS)
        except psycopg.Error as error:
            connection.close()
            raise unreachable(error) from error
        return connection

    def begin(self, connection: TimedConnection, dbs: Collection[int]) -> None:
        """Send a question; raise `StoreUnreachable`."""
        connection.has_warned = False
        try:
            begin_ask(connection, b"ask", (int4_array(dbs),))
        except psycopg.Error as error:
            raise unreachable(error) from error

    def receive(self, connection: TimedConnection) -> dict[int, DatabaseState] | None:
        """Return the confirmed states of databases, None as long as there is no answer.

        A database that does not exist is missing. Raises `StoreUnreachable`.
        """
        try:
            found = find_answer(connection)
        except psycopg.Error as error:
            raise unreachable(error) from error
        if found is None:
            return None
        check_confirmed(connection)
        return dict(_decode(found, row) for row in range(found.ntuples) if found.get_value(row, 0))

    def close(self) -> None:
        """Close the connection, but for those that `connect` has returned."""
        self._session.close()


def _decode(found: PGresult, row: int) -> tuple[int, DatabaseState]:
    values = [found.get_value(row, column) or b"" for column in range(4)]
    db, *state = [int.from_bytes(value, "big", signed=True) for value in values]
    return db, DatabaseState(*state)


def states_of(connection: TimedConnection, dbs: list[int]) -> dict[int, DatabaseState]:
    """Return the states of databases as the server shows them, confirmed or not."""
    return {row[0]: DatabaseState(*row[1:]) for row in rows_of(connection, STATES, (dbs,))}
