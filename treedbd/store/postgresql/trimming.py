"""Drops old records from PostgreSQL, in statements so small that no commit waits for them.

Any daemon may do that at any time. The newest entries of the log and the newest commits stay, and
so does all that is young; the last commit is never dropped, because copies are compared with it.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from treedbd.store.postgresql.connection import SessionPool, TimedConnection

_AT_ONCE: Final = 500
_OLD: Final = (
    "DELETE FROM {table} WHERE db = %s AND {number} IN ("
    "SELECT {number} FROM {table} WHERE db = %s"
    " AND {number} < (SELECT {number} FROM dbs WHERE db = %s) - %s"
    " AND at < now() - make_interval(secs => %s)"
    " ORDER BY {number} LIMIT %s)"
)
_STATEMENTS: Final = tuple(
    _OLD.format(table=table, number=number)
    for table, number in (("log", "seq"), ("changes", "rev"))
)


def trim(pool: SessionPool, db: int, *, retain: int, age_s: float) -> int:
    """Drop what is older than `age_s` but for the newest `retain`; return how many records.

    Blocks, in any thread. Raises `StoreUnreachable`.
    """
    dropped = 0
    for statement in _STATEMENTS:
        parameters = (db, db, db, max(0, retain), age_s, _AT_ONCE)
        while True:
            count = pool.run(partial(_delete, statement, parameters))
            dropped += count
            if count < _AT_ONCE:
                break
    return dropped


def _delete(statement: str, parameters: tuple[float, ...], connection: TimedConnection) -> int:
    return connection.execute(statement.encode(), parameters).rowcount
