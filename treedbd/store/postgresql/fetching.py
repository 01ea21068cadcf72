"""What a local copy lacks, read from PostgreSQL at one moment.

A copy follows rows, not edits: what is fetched are the present rows of all keys and ranges that the
commits since then touched, so every copy is byte for byte what PostgreSQL holds, whatever version
made it. If the commits that are missing are no longer all recorded, or the copy ends with a
commit that is not in the history of the cluster, all rows are fetched.
"""

from __future__ import annotations

import contextlib
import pathlib
import struct
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any, Final

import attrs
import psycopg
from psycopg import sql

from treedbd.store.cursors import CURSOR_END, CURSORS_FIRST, NOTHING_HELD, Held, held_by_rows
from treedbd.store.engine import LogEntry, Row
from treedbd.store.postgresql.commits import NOTHING_COPIED, CopyPosition, Touched
from treedbd.store.postgresql.connection import (
    CONFIRM,
    Rows,
    Session,
    SessionPool,
    TimedConnection,
    check_confirmed,
    rows_of,
    unreachable,
)

_BEGIN: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_STATE: Final = "SELECT rev, seq, epoch FROM dbs WHERE db = %s"
_CHANGES: Final = (
    "SELECT rev, token, touched FROM changes WHERE db = %s AND rev >= %s ORDER BY rev LIMIT %s"
)
_LAST_CHANGE: Final = "SELECT token FROM changes WHERE db = %s AND rev = %s"
ENTRY_BYTES: Final = 64 * 1024 * 1024
"""Bytes of entries that one fetch takes; a copy that lacks more is replaced as a whole."""
_ENTRIES: Final = (
    "SELECT seq, op, entry FROM ("
    "SELECT seq, op, entry, sum(octet_length(entry)) OVER (ORDER BY seq DESC) AS bytes"
    " FROM log WHERE db = %s AND seq > %s) AS newest"
    " WHERE bytes <= %s ORDER BY seq"
)
_HELD_ENTRIES: Final = (
    "SELECT int8send(seq) || op, entry FROM log"
    " WHERE db = {} AND seq > {} AND seq <= {} ORDER BY seq"
)
_HELD_AT_ONCE: Final = 1024
"""Entries of one statement: of very many the server might sort all before it sends the first."""
_CURSORS: Final = "SELECT k, v FROM kv WHERE db = %s AND k >= %b AND k < %b"
_ROWS: Final = "SELECT k, v FROM kv WHERE db = %s AND k = ANY(%b::bytea[])"
_ROWS_BETWEEN: Final = "SELECT k, v FROM kv WHERE db = {} AND k >= {} AND k < {} ORDER BY k"
_ALL_ROWS: Final = "SELECT k, v FROM kv WHERE db = {} ORDER BY k"
_KEYS_AT_ONCE: Final = 1000
_NUMBER_BYTES: Final = 8
_LENGTHS: Final = struct.Struct(">II")
_ROWS_BETWEEN_DEADLINES: Final = 4096

MAX_FOLLOWED: Final = 10_000
"""A copy that lacks more commits than this is replaced as a whole."""


class DatabaseMissing(LookupError):
    """PostgreSQL has no such database: the cluster was restored from before it was created."""


@attrs.frozen
class Fetched:
    """What makes the copy at `base` the state at `position`; `close` releases what it holds.

    Attributes:
        base: the position of the copy that it is for.
        position: the position after it has been applied; its epoch is that of the cluster then.
        sequence: the number of the last entry of the log.
        touched: whose rows are replaced by `rows`; None if all are.
        rows: the present rows.
        entries: the entries of the log that the copy lacks, or with all rows those retained, and
            those that cursors need.

    """

    base: CopyPosition
    position: CopyPosition
    sequence: int
    touched: Touched | None
    rows: Iterable[Row]
    entries: Iterable[LogEntry]

    @property
    def is_whole(self) -> bool:
        """Whether it replaces the whole copy, so that watchers have to read everything again."""
        return self.touched is None

    @property
    def epoch(self) -> int:
        """The epoch of the rules that are in force."""
        return self.position.epoch

    def close(self) -> None:
        """Remove the temporary files, if there are any."""
        for spooled in (self.rows, self.entries):
            if isinstance(spooled, SpooledRows | SpooledEntries):
                spooled.close()


class SpooledRows:
    """Rows in an unnamed temporary file, which can be iterated over several times."""

    def __init__(self, folder: pathlib.Path, rows: Iterable[Row]) -> None:
        """Write all of `rows`; raise OSError."""
        self._file: IO[bytes] = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - until `close`
        try:
            for key, value in rows:
                self._file.write(_LENGTHS.pack(len(key), len(value)))
                self._file.write(key)
                self._file.write(value)
        except BaseException:
            self.close()
            raise

    def __iter__(self) -> Iterator[Row]:
        self._file.seek(0)
        while head := self._file.read(_LENGTHS.size):
            key_bytes, value_bytes = _LENGTHS.unpack(head)
            yield self._file.read(key_bytes), self._file.read(value_bytes)

    def close(self) -> None:
        """Remove the file."""
        self._file.close()


class SpooledEntries:
    """Entries in an unnamed temporary file: those at the end that are in sequence, up to `last`."""

    def __init__(self, folder: pathlib.Path, rows: Iterable[Row], last: int) -> None:
        """Write all of `rows`, as `_HELD_ENTRIES` returns them; raise OSError."""
        self._first, self._next = 0, 0
        self._rows = SpooledRows(folder, self._follow(rows))
        if self._next != last + 1:
            self._first = last + 1

    def __iter__(self) -> Iterator[LogEntry]:
        for head, content in self._rows:
            sequence = _sequence_of(head)
            if sequence >= self._first:
                yield LogEntry(sequence, head[_NUMBER_BYTES:], content)

    def close(self) -> None:
        """Remove the file."""
        self._rows.close()

    def _follow(self, rows: Iterable[Row]) -> Iterator[Row]:
        for head, content in rows:
            sequence = _sequence_of(head)
            if sequence != self._next:
                self._first = sequence
            self._next = sequence + 1
            yield head, content


def _sequence_of(head: bytes) -> int:
    return int.from_bytes(head[:_NUMBER_BYTES], "big")


@attrs.define(eq=False, repr=False)
class Fetcher:
    """Fetches over a few connections: with all rows, at most `retain` entries of the log.

    What cursors need of the log is fetched too, however much it is: they bound that themselves.
    """

    _pool: SessionPool
    _is_strict: bool = attrs.field(kw_only=True)
    _retain: int = attrs.field(kw_only=True)

    def fetch(self, base: CopyPosition, sequence: int, folder: pathlib.Path) -> Fetched:
        """Fetch what a copy lacks; blocks, in any thread.

        `sequence` is the number of the last entry in the copy. All rows of a database go to a
        temporary file in `folder`. Raises `StoreUnreachable`, `DatabaseMissing` or OSError.
        """
        with self._pool.lend() as session:
            try:
                return self._fetch(session, base, sequence, folder)
            except psycopg.Error as error:
                session.drop()
                raise unreachable(error) from error
            except BaseException:
                session.drop()
                raise

    def _fetch(
        self, session: Session, base: CopyPosition, sequence: int, folder: pathlib.Path
    ) -> Fetched:
        connection = session.ready()
        state, changes, entries = _read_changes(connection, base, sequence)
        with contextlib.ExitStack() as on_error:
            fetched = _follow(base, sequence, state, changes, entries)
            if fetched is None:
                fetched = self._read_all(session, connection, base, state, folder)
                on_error.callback(fetched.close)
                rows: Iterable[Row] = _copy_out(session, connection, _ALL_ROWS, (base.db,))
            else:
                rows = _touched_rows(session, connection, fetched)
            if fetched.touched is None or fetched.touched.ranges:
                rows = SpooledRows(folder, rows)
                on_error.callback(rows.close)
            fetched = attrs.evolve(fetched, rows=rows if isinstance(rows, SpooledRows) else [*rows])
            _end(connection, is_strict=self._is_strict)
            on_error.pop_all()
        return fetched

    def _read_all(
        self,
        session: Session,
        connection: TimedConnection,
        base: CopyPosition,
        state: Sequence[Any],
        folder: pathlib.Path,
    ) -> Fetched:
        """Return what replaces the whole copy, but for its rows."""
        rev, last, epoch = state
        token = rows_of(connection, _LAST_CHANGE, (base.db, rev))
        after = max(0, last - self._retain)
        held = read_held(connection, base.db)
        entries: Iterable[LogEntry]
        if held == NOTHING_HELD:
            newest = rows_of(connection, _ENTRIES, (base.db, after, ENTRY_BYTES))
            entries = _without_gap([LogEntry(*row) for row in newest], last)
        else:
            after = max(0, min(after, held.through))
            rows = _held_rows(session, connection, base.db, after, last)
            entries = SpooledEntries(folder, rows, last)
        position = attrs.evolve(base, rev=rev, token=token[0][0] if token else b"", epoch=epoch)
        return Fetched(
            base=base,
            position=position,
            sequence=last,
            touched=None,
            rows=(),
            entries=entries,
        )


def read_held(connection: TimedConnection, db: int) -> Held:
    """Return what the cursors of a database hold of its log."""
    rows = rows_of(connection, _CURSORS, (db, CURSORS_FIRST, CURSOR_END))
    return held_by_rows((bytes(key), bytes(value)) for key, value in rows)


def _read_changes(
    connection: TimedConnection, base: CopyPosition, sequence: int
) -> tuple[Sequence[Any], Rows, list[LogEntry]]:
    """Begin at one moment; return the state, and the commits and entries since `base`.

    All are sent at once. Without a copy no commits are followed.
    """
    execute = connection.execute
    with connection.pipeline():
        execute(_BEGIN)
        state = execute(_STATE, (base.db,), binary=True)
        if base.rev != NOTHING_COPIED:
            changes = execute(_CHANGES, (base.db, base.rev, MAX_FOLLOWED + 2), binary=True)
            entries = execute(_ENTRIES, (base.db, sequence, ENTRY_BYTES), binary=True)
    found = state.fetchone()
    if found is None:
        raise DatabaseMissing(base.db)
    if base.rev == NOTHING_COPIED:
        return found, [], []
    return found, changes.fetchall(), [LogEntry(*row) for row in entries.fetchall()]


def _follow(
    base: CopyPosition, sequence: int, state: Sequence[Any], changes: Rows, entries: list[LogEntry]
) -> Fetched | None:
    """Return what the commits after `base` touched, without rows; None if some are not known."""
    rev, last, epoch = state
    if base.rev == NOTHING_COPIED or rev - base.rev > MAX_FOLLOWED:
        return None
    tokens = {0: b""} | {number: token for number, token, _ in changes}
    if tokens.get(base.rev) != base.token:
        return None
    if any(number not in tokens for number in range(base.rev, rev + 1)):
        return None
    if [entry.sequence for entry in entries] != list(range(sequence + 1, last + 1)):
        return None
    touched = Touched.union(
        Touched.decode(each) for number, _, each in changes if number > base.rev
    )
    position = attrs.evolve(base, rev=rev, token=tokens[rev], epoch=epoch)
    return Fetched(
        base=base, position=position, sequence=last, touched=touched, rows=(), entries=entries
    )


def _touched_rows(session: Session, connection: TimedConnection, fetched: Fetched) -> Iterator[Row]:
    touched = fetched.touched or Touched()
    db = fetched.base.db
    for first in range(0, len(touched.keys), _KEYS_AT_ONCE):
        keys = list(touched.keys[first : first + _KEYS_AT_ONCE])
        yield from rows_of(connection, _ROWS, (db, keys))
    for low, high in touched.ranges:
        yield from _copy_out(session, connection, _ROWS_BETWEEN, (db, low, high))


def _held_rows(
    session: Session, connection: TimedConnection, db: int, after: int, last: int
) -> Iterator[Row]:
    """Yield the entries of the log after a number as rows, for `SpooledEntries`."""
    for low in range(after, last, _HELD_AT_ONCE):
        high = min(last, low + _HELD_AT_ONCE)
        yield from _copy_out(session, connection, _HELD_ENTRIES, (db, low, high))


def _end(connection: TimedConnection, *, is_strict: bool) -> None:
    """End the transaction; with `is_strict`, raise `StoreUnreachable` if it is not confirmed."""
    connection.has_warned = False
    with connection.only_confirming(), connection.pipeline() as pipeline:
        connection.execute("COMMIT")
        if is_strict:
            pipeline.sync()
            connection.execute(CONFIRM)
    if is_strict:
        check_confirmed(connection)


def _without_gap(entries: list[LogEntry], last: int) -> list[LogEntry]:
    """Return the entries at the end that are in sequence, up to `last`."""
    kept: list[LogEntry] = []
    for entry in reversed(entries):
        if entry.sequence != last - len(kept):
            break
        kept.append(entry)
    return kept[::-1]


def _copy_out(
    session: Session, connection: TimedConnection, select: str, values: tuple[Any, ...]
) -> Iterator[Row]:
    """Yield the rows of a query as they come."""
    # Many rows take longer than one statement may; the deadline is that of each part.
    connection.execute("SET LOCAL statement_timeout = 0")
    query = sql.SQL(select).format(*map(sql.Literal, values))
    statement = sql.SQL("COPY ({}) TO STDOUT (FORMAT BINARY)").format(query)
    with connection.cursor(binary=True) as cursor, cursor.copy(statement) as copy:
        copy.set_types(["bytea", "bytea"])
        for number, (key, value) in enumerate(copy.rows()):
            if number % _ROWS_BETWEEN_DEADLINES == 0:
                session.extend()
            yield key, value
    session.extend()
