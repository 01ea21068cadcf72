"""The one transaction of a shelf file.

Nothing is written to disk before `commit`, which is the only step that waits. When the engine
refuses anything, the transaction is rolled back on the spot: nothing is left but to tell its
writers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import apsw

from treedbd.store.mapping import Failed, Full
from treedbd.store.sqlite_file import TROUBLE
from treedbd.store.sqlite_rows import SqliteRows

_PUT = "INSERT INTO kv VALUES(1, ?, ?) ON CONFLICT(db, k) DO UPDATE SET v = excluded.v"
_DELETE = "DELETE FROM kv WHERE db = 1 AND k = ?"
_DELETE_RANGE = "DELETE FROM kv WHERE db = 1 AND k >= ? AND k < ?"
_APPEND = "INSERT INTO log VALUES(1, ?, ?, ?)"
_TRIM = "DELETE FROM log WHERE seq <= ?"
_PAGES = "PRAGMA page_count"
_COUNT = "UPDATE dbs SET seq = ? WHERE db = 1"


class Owner(Protocol):
    """What hears how the transaction ended, exactly once."""

    def has_room(self, pages: int) -> bool:
        """Tell, before a commit, whether a file of so many pages has room on its medium."""
        ...

    def committed(self, sequence: int) -> None:
        """Hear that all is durable; `sequence` is the number of the last entry ever appended."""
        ...

    def rolled_back(self) -> None:
        """Hear that the changes were withdrawn."""
        ...

    def broken(self, error: apsw.Error, *, in_commit: bool) -> Full | Failed:
        """Hear that `error` withdrew the changes; return what it is to be raised as."""
        ...


class SqliteTransaction(SqliteRows):
    """Changes under way on the writing connection."""

    def __init__(self, connection: apsw.Connection, owner: Owner) -> None:
        """Begin at once; if that raises, `owner` has heard of it."""
        super().__init__(connection)
        self._owner = owner
        self._changes = 0
        self._last: int | None = None
        self.begin("BEGIN IMMEDIATE")

    def put(self, key: bytes, value: bytes) -> None:
        """Set the value of `key`."""
        self._changes += 1
        self._execute(_PUT, (key, value))

    def put_all(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Set the values of many keys; they are taken one by one, and none is kept."""
        self._changes += 1
        if self._is_over():
            self._execute(_PUT)
        try:
            self._connection.executemany(_PUT, rows)
        except TROUBLE as error:
            raise self._break(error) from error

    def delete(self, key: bytes) -> None:
        """Remove `key` if it is there."""
        self._changes += 1
        self._execute(_DELETE, (key,))

    def delete_range(self, low: bytes, high: bytes) -> None:
        """Remove every key with `low <= key < high`."""
        self._changes += 1
        self._execute(_DELETE_RANGE, (low, high))

    def sequence(self) -> int:
        """Return the number of the last entry ever appended, by this transaction or before."""
        return super().sequence() if self._last is None else self._last

    def append(self, op_id: bytes, content: bytes) -> int:
        """Append an entry to the log; return its sequence number."""
        number = self.sequence() + 1
        self._execute(_APPEND, (number, op_id, content))
        self._last = number
        return number

    def trim(self, upto: int) -> None:
        """Forget the entries with numbers up to and including `upto`."""
        self._execute(_TRIM, (upto,))

    def commit(self) -> None:
        """Make the changes durable; raise `Full` or `Failed`."""
        last = self.sequence()
        if self._last is not None:
            self._execute(_COUNT, (last,))
        if not self._owner.has_room(self._execute(_PAGES).get):
            self.rollback()
            raise Full("The disk is full.")
        self._leave()
        try:
            self._run("COMMIT")
        except TROUBLE as error:
            raise self._break(error, in_commit=True) from error
        self._owner.committed(last)

    def rollback(self) -> None:
        """Forget the changes; without effect once the transaction has ended in any way."""
        if not self._is_over():
            self._withdraw()
            self._owner.rolled_back()

    def _range(
        self, statement: str, low: bytes, high: bytes, reverse: bool
    ) -> Iterator[tuple[Any, ...]]:
        """Go on behind the last key given, over the rows as they are by then.

        After a change the statement begins anew: SQLite leaves open whether one that is running
        sees the change (https://www.sqlite.org/isolation.html).
        """
        while True:
            changes = self._changes
            for row in self._walk(statement, low, high):
                yield row
                if self._changes != changes:
                    break
            else:
                return
            if reverse:
                high = row[0]
            else:
                low = row[0] + b"\0"

    def _break(self, error: apsw.Error, *, in_commit: bool = False) -> Full | Failed:
        self._withdraw()
        return self._owner.broken(error, in_commit=in_commit)

    def _withdraw(self) -> None:
        self._leave()
        if self._connection.in_transaction:
            with contextlib.suppress(*TROUBLE):
                self._run("ROLLBACK")
