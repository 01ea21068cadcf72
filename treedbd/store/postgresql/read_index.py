"""The read index: how far databases have come, which a read must have reached to be current.

One question serves all reads that were waiting when it was sent: the caller collects them. An
answer is believed only when a transaction that writes, sent after it on the same connection, has
been confirmed: a primary that was cut off still answers questions, and no such transaction ends
there (`connection.confirm`). Both are sent at once, and take one round trip.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

from treedbd.store.postgresql.connection import (
    CONFIRM,
    Session,
    TimedConnection,
    check_confirmed,
    rows_of,
)
from treedbd.store.postgresql.settings import PostgresqlSettings

STATES: Final = "SELECT db, seq, rev, epoch FROM dbs WHERE db = ANY(%b::integer[])"


class DatabaseState(NamedTuple):
    """How far a database has come: entries of the log, commits, and the epoch of its rules."""

    seq: int
    rev: int
    epoch: int


class ReadIndex:
    """Asks over a connection of its own."""

    def __init__(self, settings: PostgresqlSettings) -> None:
        """Connect at the first question."""
        self._session = Session(settings)
        self._is_strict = settings.is_strict

    def ask(self, dbs: Collection[int]) -> dict[int, DatabaseState]:
        """Return the states of databases; blocks, in any thread, one question at a time.

        A database that does not exist is missing. Raises `StoreUnreachable`.
        """
        return self._session.run(lambda connection: self._ask(connection, list(dbs)))

    def close(self) -> None:
        """Close the connection."""
        self._session.close()

    def _ask(self, connection: TimedConnection, dbs: list[int]) -> dict[int, DatabaseState]:
        if not self._is_strict:
            return states_of(connection, dbs)
        connection.has_warned = False
        with connection.only_confirming(), connection.pipeline() as pipeline:
            answer = connection.execute(STATES, (dbs,), binary=True)
            pipeline.sync()  # the answer and the confirmation are two transactions
            connection.execute(CONFIRM)
        check_confirmed(connection)
        return {row[0]: DatabaseState(*row[1:]) for row in answer.fetchall()}


def states_of(connection: TimedConnection, dbs: list[int]) -> dict[int, DatabaseState]:
    """Return the states of databases as the server shows them, confirmed or not."""
    return {row[0]: DatabaseState(*row[1:]) for row in rows_of(connection, STATES, (dbs,))}
