"""The rows of a shelf file at one moment, read over a connection.

A moment is one transaction of a connection. No statement outlives it: an iterator, or the view,
that is used later raises RuntimeError. `transaction` changes rows.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TypeAlias, TypeVar

import apsw

from treedbd.store.engine import LogEntry, ReadView, Row
from treedbd.store.sqlite.errors import SQLITE_ERRORS, classify_error

Execute: TypeAlias = Callable[..., apsw.Cursor]
T = TypeVar("T")

_GET = "SELECT v FROM kv WHERE db = 1 AND k = ?"
_FLOOR = "SELECT k, v FROM kv WHERE db = 1 AND k <= ? ORDER BY k DESC LIMIT 1"
_RANGE = "FROM kv WHERE db = 1 AND k >= ? AND k < ? ORDER BY k"
_SCANS = (f"SELECT k, v {_RANGE}", f"SELECT k, v {_RANGE} DESC")
_KEY_SCANS = (f"SELECT k {_RANGE}", f"SELECT k {_RANGE} DESC")
_SEQUENCE = "SELECT seq FROM dbs WHERE db = 1"
_ENTRIES = "SELECT seq, op_id, entry FROM log WHERE seq > ? ORDER BY seq"

_as_entry: Callable[[tuple[Any, ...]], LogEntry] = functools.partial(tuple.__new__, LogEntry)
_first: Callable[[tuple[Any, ...]], bytes] = operator.itemgetter(0)


class SqliteReader:
    """Runs one read transaction after another, each of which shows one moment."""

    def __init__(self, connection: apsw.Connection) -> None:
        """Use `connection`, which no other code may put into a transaction."""
        self._connection = connection
        self._run: Execute = connection.cursor().execute
        self._execute: Execute = _raise_over
        self._scans: set[apsw.Cursor] = set()

    def read(self, work: Callable[[ReadView], T]) -> T:
        """Run `work` on the present moment and return its result.

        Raises `StoreFailed` if the file cannot be read.
        """
        self.begin()
        try:
            return work(self)
        finally:
            self.end()

    def begin(self, statement: str = "BEGIN") -> None:
        """Begin a transaction; it shows the moment at which its first statement runs."""
        try:
            self._run(statement)
        except SQLITE_ERRORS as error:
            raise self._on_error(error) from error
        self._execute = self._guarded

    def end(self) -> None:
        """End the transaction, and every statement that belongs to it."""
        self._invalidate()
        if self._connection.in_transaction:  # SQLite has ended it after some errors
            self._run("ROLLBACK")  # as cheap as COMMIT, which reports a damaged page once more

    def get(self, key: bytes) -> bytes | None:
        """Return the value of `key`."""
        value: bytes | None = self._execute(_GET, (key,)).get
        return value

    def floor(self, key: bytes) -> Row | None:
        """Return the row with the greatest key that is at most `key`."""
        row: Row | None = self._execute(_FLOOR, (key,)).get
        return row

    def scan(self, low: bytes, high: bytes, *, reverse: bool = False) -> Iterator[Row]:
        """Iterate over rows in key order, or backwards."""
        return self._range(_SCANS[reverse], low, high, reverse)

    def scan_keys(self, low: bytes, high: bytes, *, reverse: bool = False) -> Iterator[bytes]:
        """Iterate over keys in their order, or backwards."""
        return map(_first, self._range(_KEY_SCANS[reverse], low, high, reverse))

    def sequence(self) -> int:
        """Return the number of the last entry ever appended."""
        number: int = self._execute(_SEQUENCE).get
        return number

    def entries(self, after: int) -> Iterator[LogEntry]:
        """Iterate over the retained entries with numbers above `after`."""
        return map(_as_entry, self._walk(_ENTRIES, after))

    def _is_over(self) -> bool:
        return self._execute is _raise_over

    def _invalidate(self) -> None:
        """End the use of the view and of all iterators over it."""
        self._execute = _raise_over
        if self._scans:
            for cursor in self._scans:
                cursor.close()
            self._scans.clear()

    def _range(
        self, statement: str, low: bytes, high: bytes, reverse: bool
    ) -> Iterator[tuple[Any, ...]]:
        return self._walk(statement, low, high)

    def _walk(self, statement: str, *bindings: bytes | int) -> Iterator[tuple[Any, ...]]:
        """Run a statement on a cursor of its own, row by row, until it or the moment ends."""
        if self._is_over():
            _raise_over()
        cursor = self._connection.cursor()
        self._scans.add(cursor)
        try:
            yield from cursor.execute(statement, bindings)
        except apsw.CursorClosedError:
            _raise_over()
        except SQLITE_ERRORS as error:
            raise self._on_error(error) from error
        finally:
            self._scans.discard(cursor)
            cursor.close()

    def _guarded(self, statement: str, bindings: tuple[bytes | int, ...] = ()) -> apsw.Cursor:
        try:
            return self._run(statement, bindings)
        except SQLITE_ERRORS as error:
            raise self._on_error(error) from error

    def _on_error(self, error: apsw.Error) -> Exception:
        """Return what to raise for an error of the engine."""
        return classify_error(self._connection, error)


class SqliteSnapshot(SqliteReader):
    """A moment that is held open on a connection of its own."""

    def __init__(
        self, connection: apsw.Connection, closed: Callable[[SqliteSnapshot, apsw.Connection], None]
    ) -> None:
        """Hold the present moment; call `closed` with `connection` at its end."""
        super().__init__(connection)
        self._closed = closed
        self.begin()
        self.sequence()

    def close(self) -> None:
        """Release the moment."""
        if not self._is_over():
            self.end()
            self._closed(self, self._connection)


def _raise_over(*_: object) -> NoReturn:
    raise RuntimeError("The read or transaction of these rows has ended.")
