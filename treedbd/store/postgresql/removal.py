"""The deletion of a database in PostgreSQL: at once for all daemons, its rows in parts.

Theory of operation. One transaction removes the row of the database in `dbs`, and records its
number in `meta`. From then on no daemon finds the database or can commit to it, and another one of
the same name may be created, with another number. Then its rows are removed, some thousand in each
statement, and last the record. Whatever dies meanwhile, the next call of `remove_left_rows`, by any
daemon, goes on. All functions block, and raise `StoreUnreachable`.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from treedbd.names import DatabaseName
from treedbd.store.postgresql.cluster import ADD_PROJECT, LOCK_PROJECT, refuse_moved
from treedbd.store.postgresql.connection import (
    SessionPool,
    TimedConnection,
    commit_confirmed,
    rows_of,
)

AT_ONCE: Final = 5000
"""Rows that one statement removes."""
REMOVE_SOME: Final = tuple(
    f"DELETE FROM {table} WHERE db = %s AND {key} IN"  # noqa: S608 - names of our own
    f" (SELECT {key} FROM {table} WHERE db = %s ORDER BY {key} LIMIT {AT_ONCE})"
    for table, key in (("kv", "k"), ("log", "seq"), ("changes", "rev"))
)
_RECORD: Final = "removed."
"""How the name in `meta` begins that records a number whose rows are being removed."""
_REMOVE: Final = "DELETE FROM dbs WHERE project = %s AND name = %s RETURNING db"
_NOTE: Final = "INSERT INTO meta VALUES (%s, '') ON CONFLICT DO NOTHING"
_NOTED: Final = "SELECT name FROM meta WHERE starts_with(name, %s)"
_FORGET: Final = "DELETE FROM meta WHERE name = %s"


def delete_database(pool: SessionPool, name: DatabaseName) -> None:
    """Delete a database; no effect if it does not exist. Its rows are left to be removed."""

    def delete(connection: TimedConnection) -> None:
        connection.execute("BEGIN")
        # As for a creation: a move that is under way is waited for, and refused after.
        connection.execute(ADD_PROJECT, (name.project,))
        connection.execute(LOCK_PROJECT, (name.project,))
        refuse_moved(connection)
        for (db,) in rows_of(connection, _REMOVE, (name.project, name.database)):
            connection.execute(_NOTE, (f"{_RECORD}{db}",))
        commit_confirmed(connection)

    pool.run(delete)


def remove_left_rows(pool: SessionPool) -> None:
    """Remove all rows of databases that were deleted."""
    for (record,) in pool.run(lambda connection: rows_of(connection, _NOTED, (_RECORD,))):
        db = int(record.removeprefix(_RECORD))
        for statement in REMOVE_SOME:
            while pool.run(partial(execute, statement, (db, db))) == AT_ONCE:
                continue
        pool.run(partial(execute, _FORGET, (record,)))


def execute(statement: str, parameters: tuple[int | str, ...], connection: TimedConnection) -> int:
    """Execute a statement; return how many rows it has changed."""
    return connection.execute(statement.encode(), parameters).rowcount
