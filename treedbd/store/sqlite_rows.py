"""Rows of a shelf file at one moment, as a connection shows them.

A moment is one transaction of a connection. No statement outlives it: whoever still holds an
iterator, or the rows, gets RuntimeError. What changes rows is in `sqlite_transaction`.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TypeAlias

import apsw

from treedbd.store.mapping import Entry, Row
from treedbd.store.sqlite_file import TROUBLE, trouble

Execute: TypeAlias = Callable[..., apsw.Cursor]

_GET = "SELECT v FROM kv WHERE db = 1 AND k = ?"
_FLOOR = "SELECT k, v FROM kv WHERE db = 1 AND k <= ? ORDER BY k DESC LIMIT 1"
_RANGE = "FROM kv WHERE db = 1 AND k >= ? AND k < ? ORDER BY k"
_SCANS = (f"SELECT k, v {_RANGE}", f"SELECT k, v {_RANGE} DESC")
_KEY_SCANS = (f"SELECT k {_RANGE}", f"SELECT k {_RANGE} DESC")
_SEQUENCE = "SELECT seq FROM dbs WHERE db = 1"
_ENTRIES = "SELECT seq, op_id, entry FROM log WHERE seq > ? ORDER BY seq"

_as_entry: Callable[[tuple[Any, ...]], Entry] = functools.partial(tuple.__new__, Entry)
_first: Callable[[tuple[Any, ...]], bytes] = operator.itemgetter(0)


class SqliteRows:
    """The rows at one moment after another: each is begun and ended."""

    def __init__(self, connection: apsw.Connection) -> None:
        """Use `connection`, which nobody else may put into a transaction."""
        self._connection = connection
        self._run: Execute = connection.cursor().execute
        self._execute: Execute = _refuse
        self._scans: set[apsw.Cursor] = set()

    def begin(self, how: str = "BEGIN") -> None:
        """Begin a moment; it is the one at which the first statement is run."""
        try:
            self._run(how)
        except TROUBLE as error:
            raise self._break(error) from error
        self._execute = self._guarded

    def end(self) -> None:
        """End the moment, and every statement that belongs to it."""
        self._leave()
        if self._connection.in_transaction:  # the engine ends it by itself in some troubles
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

    def entries(self, after: int) -> Iterator[Entry]:
        """Iterate over the retained entries with numbers above `after`."""
        return map(_as_entry, self._walk(_ENTRIES, after))

    def _is_over(self) -> bool:
        return self._execute is _refuse

    def _leave(self) -> None:
        self._execute = _refuse
        for cursor in self._scans:
            cursor.close()
        self._scans.clear()

    def _range(
        self, statement: str, low: bytes, high: bytes, reverse: bool
    ) -> Iterator[tuple[Any, ...]]:
        return self._walk(statement, low, high)

    def _walk(self, statement: str, *bindings: bytes | int) -> Iterator[tuple[Any, ...]]:
        """Run a statement of its own, row by row, until it or the moment ends."""
        if self._is_over():
            _refuse()
        cursor = self._connection.cursor()
        self._scans.add(cursor)
        try:
            yield from cursor.execute(statement, bindings)
        except apsw.CursorClosedError:
            _refuse()
        except TROUBLE as error:
            raise self._break(error) from error
        finally:
            self._scans.discard(cursor)
            cursor.close()

    def _guarded(self, statement: str, bindings: tuple[bytes | int, ...] = ()) -> apsw.Cursor:
        try:
            return self._run(statement, bindings)
        except TROUBLE as error:
            raise self._break(error) from error

    def _break(self, error: apsw.Error) -> Exception:
        """Return what the trouble is to be raised as."""
        return trouble(self._connection, error)


class SqliteSnapshot(SqliteRows):
    """One moment, held open on a connection of its own."""

    def __init__(
        self, connection: apsw.Connection, closed: Callable[[SqliteSnapshot, apsw.Connection], None]
    ) -> None:
        """Hold the present moment; give `connection` back to `closed`."""
        super().__init__(connection)
        self._closed = closed
        self.begin()
        self.sequence()

    def close(self) -> None:
        """Let the moment go."""
        if not self._is_over():
            self.end()
            self._closed(self, self._connection)


def _refuse(*_: object) -> NoReturn:
    raise RuntimeError("The moment that these rows belong to is over.")
