"""The one transaction of a shelf file.

Nothing is written to disk before `commit`, the only step that waits. At any error of the engine the
transaction is rolled back at once, so all that is left to do is to answer its writers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import apsw

from treedbd.loop import pause, run_beside
from treedbd.store.engine import DiskFull, LogEntry, Row, StoreFailed
from treedbd.store.sqlite.errors import SQLITE_ERRORS
from treedbd.store.sqlite.reader import SqliteReader

_GET = "SELECT v FROM kv WHERE db = 1 AND k = ?"
_FLOOR = (
    "SELECT k, CASE WHEN length(v) <= ?2 THEN v END FROM kv WHERE db = 1 AND k <= ?1 "
    "ORDER BY k DESC LIMIT 1"
)
"""The length of a value is known without reading it."""
_PUT = "INSERT INTO kv VALUES(1, ?, ?) ON CONFLICT(db, k) DO UPDATE SET v = excluded.v"
_DELETE = "DELETE FROM kv WHERE db = 1 AND k = ?"
_DELETE_RANGE = "DELETE FROM kv WHERE db = 1 AND k >= ? AND k < ?"
_LENGTHS = "SELECT k, length(v) FROM kv WHERE db = 1 AND k >= ? AND k < ? ORDER BY k LIMIT ?"
_ROWS_AT_ONCE = 512
_BYTES_AT_ONCE = 2 * 1024 * 1024
"""Rows, and bytes in them, that are removed by one statement."""
_MANY_CHANGES = 64
"""Discarding more changes takes milliseconds."""
_LONG_BYTES = 1024 * 1024
"""A longer value is read and stored beside the turns of the reactor."""
_APPEND = "INSERT INTO log VALUES(1, ?, ?, ?)"
_TRIM = "DELETE FROM log WHERE seq <= ?"
_LONG = "SELECT seq FROM log WHERE seq <= ? AND length(entry) > ?"
_ENTRY = "SELECT entry FROM log WHERE seq = ?"
_CUT = "UPDATE log SET entry = ? WHERE seq = ?"
_TRIM_ALL = "DELETE FROM log"
_PAGE_COUNT = "PRAGMA page_count"
_SET_SEQUENCE = "UPDATE dbs SET seq = ? WHERE db = 1"


class TransactionOwner(Protocol):
    """Prepares a commit, and is notified once of how the transaction ended."""

    def prepare(self, pages: int) -> None:
        """Before a commit, make sure that it will last, in a file of that many pages.

        Raises `DiskFull` or `StoreFailed`.
        """
        ...

    def committed(self, newest: tuple[int, bytes] | None) -> None:
        """Record that everything is durable.

        `newest` are the number and the id of the last entry that was appended, if any was.
        """
        ...

    def rolled_back(self) -> None:
        """Record that the changes were discarded."""
        ...

    def failed(self, error: apsw.Error, *, in_commit: bool) -> DiskFull | StoreFailed:
        """Record that `error` ended the transaction; return what to raise for it."""
        ...


class SqliteTransaction(SqliteReader):
    """Changes on the writing connection that are not committed yet."""

    def __init__(self, connection: apsw.Connection, owner: TransactionOwner) -> None:
        """Begin at once; if that raises, `owner` has been notified of the end."""
        super().__init__(connection)
        self._owner = owner
        self._changes = 0
        self._newest: tuple[int, bytes] | None = None
        self.begin("BEGIN IMMEDIATE")

    def floor(self, key: bytes) -> Row | None:
        """Return the row with the greatest key that is at most `key`."""
        row: Row | None = self._execute(_FLOOR, (key, _LONG_BYTES)).get
        if row is None or row[1] is not None:
            return row
        return row[0], self._run_long(_GET, (row[0],)) if key.startswith(row[0]) else b""

    def put(self, key: bytes, value: bytes) -> None:
        """Set the value of `key`."""
        self._changes += 1
        if len(value) <= _LONG_BYTES:
            self._execute(_PUT, (key, value))
        else:
            self._run_long(_PUT, (key, value))

    def put_all(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Set the values of many keys; `rows` is read row by row, and none is kept."""
        self._changes += 1
        if self._is_over():
            self._execute(_PUT)  # raises RuntimeError
        try:
            self._connection.executemany(_PUT, rows)
        except SQLITE_ERRORS as error:
            raise self._on_error(error) from error

    def delete(self, key: bytes) -> None:
        """Remove `key` if it exists."""
        self._changes += 1
        self._execute(_DELETE, (key,))

    def delete_range(self, low: bytes, high: bytes) -> None:
        """Remove every key with `low <= key < high`, with pauses if there are many."""
        self._changes += 1
        while (end := self._end_of_some(low, high)) != high:
            self._execute(_DELETE_RANGE, (low, end))
            low = end
            pause()
        self._execute(_DELETE_RANGE, (low, high))

    def _end_of_some(self, low: bytes, high: bytes) -> bytes:
        """Return the end of a part of a range that holds no more than is removed at once."""
        size = 0
        rows = self._walk(_LENGTHS, low, high, _ROWS_AT_ONCE)
        for number, (key, length) in enumerate(list(rows), 1):
            size += length
            if size > _BYTES_AT_ONCE or number == _ROWS_AT_ONCE:
                return key + b"\0"  # type: ignore[no-any-return]
        return high

    def sequence(self) -> int:
        """Return the number of the last entry, appended by this transaction or before it."""
        return super().sequence() if self._newest is None else self._newest[0]

    def append(self, op_id: bytes, content: bytes) -> int:
        """Append an entry to the log; return its sequence number."""
        number = self.sequence() + 1
        if len(content) <= _LONG_BYTES:
            self._execute(_APPEND, (number, op_id, content))
        else:
            self._run_long(_APPEND, (number, op_id, content))
        self._newest = (number, op_id)
        return number

    def trim(self, through: int) -> None:
        """Drop the entries with numbers up to and including `through`."""
        self._execute(_TRIM, (through,))

    def shorten(self, through: int, longest: int, cut: Callable[[bytes], bytes]) -> None:
        """Cut the entries with numbers up to `through` that are longer than `longest` bytes."""
        for (number,) in list(self._walk(_LONG, through, longest)):
            content = self._execute(_ENTRY, (number,)).get
            pause()
            self._execute(_CUT, (cut(content), number))
            pause()

    def replace_log(self, sequence: int, entries: Iterable[LogEntry]) -> None:
        """Let the log hold `entries` alone; the number of the last one ever is `sequence`."""
        self._execute(_TRIM_ALL)
        self._newest = (sequence, b"")
        for entry in entries:
            self._execute(_APPEND, entry)
            self._newest = entry[:2]

    def commit(self) -> None:
        """Make the changes durable; raise `DiskFull` or `StoreFailed`."""
        if self._newest is not None:
            self._execute(_SET_SEQUENCE, self._newest[:1])
        try:
            self._owner.prepare(self._execute(_PAGE_COUNT).get)
        except (DiskFull, StoreFailed):
            self.rollback()
            raise
        self._invalidate()
        try:
            self._run("COMMIT")
        except SQLITE_ERRORS as error:
            raise self._on_error(error, in_commit=True) from error
        self._owner.committed(self._newest)

    def rollback(self) -> None:
        """Discard the changes; no effect once the transaction has ended in any way."""
        if not self._is_over():
            self._discard()
            self._owner.rolled_back()

    def _range(
        self, statement: str, low: bytes, high: bytes, reverse: bool
    ) -> Iterator[tuple[Any, ...]]:
        """Iterate over the rows as they are when each is read, after the last key returned.

        After a change the statement starts again: SQLite leaves open whether one that is running
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

    def _run_long(self, statement: str, bindings: tuple[bytes | int, ...]) -> Any:
        """Return what a statement finds that takes milliseconds: it reads or stores megabytes.

        A statement that is kept would hold these until it is used again.
        """
        if self._is_over():
            self._execute(statement)  # raises RuntimeError
        try:
            return run_beside(lambda: self._run(statement, bindings, can_cache=False).get)
        except SQLITE_ERRORS as error:
            raise self._on_error(error) from error

    def _on_error(self, error: apsw.Error, *, in_commit: bool = False) -> DiskFull | StoreFailed:
        self._discard()
        return self._owner.failed(error, in_commit=in_commit)

    def _discard(self) -> None:
        self._invalidate()
        if self._connection.in_transaction:
            with contextlib.suppress(*SQLITE_ERRORS):
                if self._changes > _MANY_CHANGES:
                    run_beside(lambda: self._run("ROLLBACK"))
                else:
                    self._run("ROLLBACK")
