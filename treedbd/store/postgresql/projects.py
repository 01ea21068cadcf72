"""The rules of projects and the databases in them, in PostgreSQL.

The epoch of a project grows with every replacement of its rules, there and in the row of each of
its databases, in one transaction: so a daemon that judges by older rules loses its next commit.
Nothing is answered from memory, and what was read is believed as the settings say.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

from treedbd.store.engine import StoreUnreachable
from treedbd.store.postgresql.connection import (
    SessionPool,
    TimedConnection,
    commit_confirmed,
    confirm,
    rows_of,
)
from treedbd.store.postgresql.schema import MOVED

T = TypeVar("T")

_READ_RULES: Final = "SELECT rules, epoch FROM projects WHERE project = %s"
_READ_EPOCH: Final = "SELECT epoch FROM projects WHERE project = %s"
_PUT_RULES: Final = (
    "INSERT INTO projects (project, rules, epoch) VALUES (%s, %b, 2)"
    " ON CONFLICT (project) DO UPDATE SET rules = excluded.rules, epoch = projects.epoch + 1"
    " RETURNING epoch"
)
_SET_EPOCHS: Final = "UPDATE dbs SET epoch = %s WHERE project = %s AND epoch >= 0"
_FIND_MOVED: Final = "SELECT value FROM meta WHERE name = %s"
_ADD_PROJECT: Final = "INSERT INTO projects (project) VALUES (%s) ON CONFLICT DO NOTHING"
_LOCK_PROJECT: Final = "SELECT epoch FROM projects WHERE project = %s FOR UPDATE"
_SELECT: Final = "SELECT db, project, name, seq, rev, epoch FROM dbs WHERE project = %s"
_FIND: Final = _SELECT + " AND name = %s"
_LIST: Final = _SELECT + ' ORDER BY name COLLATE "C"'
_COUNT: Final = "SELECT count(*) FROM dbs WHERE project = %s"
_CREATE: Final = (
    "INSERT INTO dbs (project, name, epoch) VALUES (%s, %s, %s)"
    " RETURNING db, project, name, seq, rev, epoch"
)
FIRST_EPOCH: Final = 1
"""The epoch of a project that nobody has written rules to."""


PART: Final = ".part"
"""What the project of a database has at the end whose copy is not complete (`moving`)."""
OLD: Final = ".old"
"""What the project of a database has at the end that was replaced, and is being removed."""


class StoredDatabase(NamedTuple):
    """A database as its row in PostgreSQL describes it."""

    db: int
    project: str
    name: str
    seq: int
    rev: int
    epoch: int

    @property
    def is_served(self) -> bool:
        """Whether it is a database of a project, not one that only a move knows."""
        return not self.project.endswith((PART, OLD))


class LookedUp(NamedTuple):
    """The epoch of the rules of a project, and one of its databases; None if there is none."""

    epoch: int
    database: StoredDatabase | None


class StoredRules(NamedTuple):
    """The text of the rules of a project, None if nobody has written any, and their epoch."""

    text: bytes | None
    epoch: int


class TooManyDatabases(Exception):
    """A project has as many databases as it may have; `limit` is their number."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.limit = limit


class ProjectStore:
    """Reads and writes projects; all methods block, and may be called in any thread.

    All raise `StoreUnreachable`. A write that raises it may have been applied all the same: it is
    right to do it again.
    """

    def __init__(self, pool: SessionPool, *, is_strict: bool) -> None:
        """Borrow connections of `pool`."""
        self._pool = pool
        self._is_strict = is_strict

    def read_rules(self, project: str) -> StoredRules:
        """Return the rules of a project."""

        def read(connection: TimedConnection) -> StoredRules:
            found = rows_of(connection, _READ_RULES, (project,))
            return StoredRules(*found[0]) if found else StoredRules(None, FIRST_EPOCH)

        return self._read(read)

    def put_rules(self, project: str, text: bytes) -> int:
        """Replace the rules of a project; return their epoch."""

        def put(connection: TimedConnection) -> int:
            connection.execute("BEGIN")
            ((epoch,),) = rows_of(connection, _PUT_RULES, (project, text))
            _refuse_moved(connection)
            connection.execute(_SET_EPOCHS, (epoch, project))
            commit_confirmed(connection)
            return int(epoch)

        return self._pool.run(put)

    def look_up(self, project: str, name: str) -> LookedUp:
        """Return a database, and the epoch of the rules of its project."""

        def look(connection: TimedConnection) -> LookedUp:
            epochs = rows_of(connection, _READ_EPOCH, (project,))
            found = rows_of(connection, _FIND, (project, name))
            epoch = epochs[0][0] if epochs else FIRST_EPOCH
            return LookedUp(epoch, StoredDatabase(*found[0]) if found else None)

        return self._read(look)

    def find_database(self, project: str, name: str) -> StoredDatabase | None:
        """Return a database, None if there is none."""
        found = self._read(lambda connection: rows_of(connection, _FIND, (project, name)))
        return StoredDatabase(*found[0]) if found else None

    def create_database(self, project: str, name: str, limit: int | None = None) -> StoredDatabase:
        """Return a database, which is created if there is none.

        Raises `TooManyDatabases` if the project has `limit` of them.
        """

        def create(connection: TimedConnection) -> StoredDatabase:
            connection.execute("BEGIN")
            connection.execute(_ADD_PROJECT, (project,))
            # Whoever replaces the rules waits until the new row has the epoch, or comes first.
            ((epoch,),) = rows_of(connection, _LOCK_PROJECT, (project,))
            found = rows_of(connection, _FIND, (project, name))
            if not found:
                _refuse_moved(connection)
            if not found and limit is not None:
                ((count,),) = rows_of(connection, _COUNT, (project,))
                if count >= limit:
                    raise TooManyDatabases(limit)
            found = found or rows_of(connection, _CREATE, (project, name, epoch))
            commit_confirmed(connection)
            confirm(connection)
            return StoredDatabase(*found[0])

        return self._pool.run(create)

    def list_databases(self, project: str) -> list[StoredDatabase]:
        """Return the databases of a project, by their names."""
        found = self._read(lambda connection: rows_of(connection, _LIST, (project,)))
        return [StoredDatabase(*row) for row in found]

    def _read(self, read: Callable[[TimedConnection], T]) -> T:
        def read_and_confirm(connection: TimedConnection) -> T:
            result = read(connection)
            if self._is_strict:
                confirm(connection)
            return result

        return self._pool.run(read_and_confirm)


def _refuse_moved(connection: TimedConnection) -> None:
    """Raise `StoreUnreachable` if all was moved away.

    A statement that writes to `projects` must precede it: that waits for a move that is under way.
    """
    if rows_of(connection, _FIND_MOVED, (MOVED,)):
        raise StoreUnreachable("The data was moved away from this PostgreSQL.")
