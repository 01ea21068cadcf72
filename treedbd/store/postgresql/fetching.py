"""Reads from PostgreSQL what a local copy lacks, at one moment.

A copy follows rows, not edits: what is fetched are the present rows of all keys and ranges that the
commits since then touched, so every copy is byte for byte what PostgreSQL holds, whatever version
made it. If the commits that are missing are not all recorded any more, or the copy ends with a
commit that is not in the history of the cluster, all rows are fetched.

Compares what a local file holds of a database with what PostgreSQL holds, and repairs that.

Records, which are rows or entries of the log, are compared in buckets: some thousand of them from
one key to another. For each bucket both sides compute the number of records and one digest of all
keys and contents; only of a bucket that differs are the records themselves compared, and those that
differ written. So what is equal is read on the server and not sent, and the buckets together cover
all that the server holds: if all agree, the two are equal.
"""

from __future__ import annotations

import contextlib
import hashlib
import pathlib
import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any, Final, NamedTuple, TypeAlias

import attrs
import psycopg
from psycopg import sql

from treedbd.store.engine import LogEntry, ReadView, Row
from treedbd.store.postgresql.commits import END_OF_ROWS, NOTHING_COPIED, CopyPosition, Touched
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
from treedbd.store.rows import FIRST

Key: TypeAlias = Any
"""bytes of a row, int of an entry."""
Record: TypeAlias = tuple[Any, ...]
"""A key and the columns of its content, which are bytes."""

RECORDS: Final = 2000
"""Records in a bucket, at most."""
BUCKET_BYTES: Final = 1024 * 1024
"""A bucket with more bytes ends with the record that makes it so long."""
BUCKETS: Final = 8
"""Buckets that are compared at once."""
_LAST_NUMBER: Final = 2**63 - 1
_LENGTH: Final = struct.Struct(">I")
_NUMBER: Final = struct.Struct(">q")

_RANGE: Final = "FROM {table} WHERE db = %s AND {key} >= %{kind} AND {key} < %{kind}"
_DIGEST: Final = (
    "SELECT count(*), sha256(coalesce(string_agg({head} || {content}, ''::bytea ORDER BY {key}),"
    " ''::bytea)) " + _RANGE
)
_RECORDS: Final = "SELECT {key}, sha256({content}) " + _RANGE
_DELETE: Final = "DELETE FROM {table} WHERE db = %s AND {key} = ANY(%b::{type}[])"
_PUT: Final = (
    "INSERT INTO {table} (db, {key}, {columns}) SELECT %s, * FROM unnest(%b::{type}[], {arrays})"
    " ON CONFLICT (db, {key}) DO UPDATE SET {updates}"
)


@attrs.frozen
class ComparedTable:
    """A table of PostgreSQL and what corresponds to it in a local file.

    Attributes:
        first: the least key; `end` is above all keys.
        read: iterates over the local records from a key on.
        encode_key: the key as the digest has it.

    """

    first: Key
    end: Key
    read: Callable[[ReadView, Key], Iterable[Record]]
    encode_key: Callable[[Key], bytes]
    digest_statement: str
    records_statement: str
    delete_statement: str
    put_statement: str


def _make_table(
    table: str, key: str, key_type: str, columns: Sequence[str], **local: Any
) -> ComparedTable:
    is_bytes = key_type == "bytea"
    words = {
        "table": table,
        "key": key,
        "type": key_type,
        "kind": "b" if is_bytes else "s",
        "head": f"int4send(length({key})) || {key}" if is_bytes else f"int8send({key})",
        "content": " || ".join(f"int4send(length({each})) || {each}" for each in columns),
        "columns": ", ".join(columns),
        "arrays": ", ".join("%b::bytea[]" for _ in columns),
        "updates": ", ".join(f"{each} = excluded.{each}" for each in columns),
    }
    statements = (each.format(**words) for each in (_DIGEST, _RECORDS, _DELETE, _PUT))
    return ComparedTable(*local.values(), *statements)


def _read_rows(view: ReadView, low: bytes) -> Iterable[Record]:
    return view.scan(low, END_OF_ROWS)


def _read_entries(view: ReadView, low: int) -> Iterable[Record]:
    return view.entries(low - 1)


def _with_length(content: bytes) -> bytes:
    return _LENGTH.pack(len(content)) + content


ROWS: Final = _make_table(
    "kv", "k", "bytea", ("v",), first=FIRST, end=END_OF_ROWS, read=_read_rows, encode=_with_length
)
LOG: Final = _make_table(
    "log",
    "seq",
    "bigint",
    ("op", "entry"),
    first=0,
    end=_LAST_NUMBER,
    read=_read_entries,
    encode=_NUMBER.pack,
)


class Bucket(NamedTuple):
    """All local records from `low`, without `high`, in order."""

    low: Key
    high: Key
    records: Sequence[Record]

    @property
    def size(self) -> int:
        """The bytes of the contents."""
        return sum(len(column) for record in self.records for column in record[1:])


def take_buckets(table: ComparedTable, view: ReadView, low: Key) -> tuple[list[Bucket], Key | None]:
    """Return some buckets from `low` on, and where the next one begins; None after the last."""
    found: list[Bucket] = []
    records: list[Record] = []
    size = 0
    for record in table.read(view, low):
        if len(records) >= RECORDS or size >= BUCKET_BYTES:
            found.append(Bucket(low, record[0], records))
            low, records, size = record[0], [], 0
            if len(found) == BUCKETS:
                return found, low
        records.append(record)
        size += sum(map(len, record[1:]))
    return [*found, Bucket(low, table.end, records)], None


def find_different(
    connection: TimedConnection, table: ComparedTable, db: int, buckets: Iterable[Bucket]
) -> list[Bucket]:
    """Return those of the buckets that the server does not hold alike."""
    asked = []
    with connection.pipeline() as pipeline:
        for each in buckets:
            parameters = (db, each.low, each.high)
            asked.append(
                (each, connection.execute(table.digest_statement, parameters, binary=True))
            )
        pipeline.sync()
        # The server computes its digests at the same time.
        expected = [(len(each.records), _digest(table, each.records)) for each, _ in asked]
        found = [cursor.fetchone() for _, cursor in asked]
    return [
        each for (each, _), own, theirs in zip(asked, expected, found, strict=True) if own != theirs
    ]


def repair(connection: TimedConnection, table: ComparedTable, db: int, bucket: Bucket) -> int:
    """Make what the server holds that of a bucket; return how many records differed."""
    present: dict[Key, bytes] = dict(_read_stored(connection, table, db, bucket))
    wrong = []
    for record in bucket.records:
        digest = hashlib.sha256(b"".join(map(_with_length, record[1:]))).digest()
        if present.pop(record[0], None) != digest:
            wrong.append(record)
    if present:
        connection.execute(table.delete_statement, (db, list(present)))
    for columns in _in_parts(wrong):
        connection.execute(table.put_statement, (db, *columns))
    return len(present) + len(wrong)


def _read_stored(
    connection: TimedConnection, table: ComparedTable, db: int, bucket: Bucket
) -> Rows:
    return rows_of(connection, table.records_statement, (db, bucket.low, bucket.high))


def _in_parts(records: Sequence[Record]) -> Iterator[list[list[Any]]]:
    """Yield columns of records, of no more bytes at once than one message should have."""
    part: list[Record] = []
    size = 0
    for record in records:
        part.append(record)
        size += sum(map(len, record[1:]))
        if size >= BUCKET_BYTES:
            yield [list(column) for column in zip(*part, strict=True)]
            part, size = [], 0
    if part:
        yield [list(column) for column in zip(*part, strict=True)]


def _digest(table: ComparedTable, records: Iterable[Record]) -> bytes:
    pieces: list[bytes] = []
    for record in records:
        pieces.append(table.encode_key(record[0]))
        for column in record[1:]:
            pieces.append(_LENGTH.pack(len(column)))
            pieces.append(column)
    return hashlib.sha256(b"".join(pieces)).digest()


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
_ROWS: Final = "SELECT k, v FROM kv WHERE db = %s AND k = ANY(%b::bytea[])"
_ROWS_BETWEEN: Final = "SELECT k, v FROM kv WHERE db = {} AND k >= {} AND k < {} ORDER BY k"
_ALL_ROWS: Final = "SELECT k, v FROM kv WHERE db = {} ORDER BY k"
_KEYS_AT_ONCE: Final = 1000
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
        entries: the entries of the log that the copy lacks, or with all rows those retained.

    """

    base: CopyPosition
    position: CopyPosition
    sequence: int
    touched: Touched | None
    rows: Iterable[Row]
    entries: list[LogEntry]

    @property
    def is_whole(self) -> bool:
        """Whether it replaces the whole copy, so that watchers have to read everything again."""
        return self.touched is None

    @property
    def epoch(self) -> int:
        """The epoch of the rules that are in force."""
        return self.position.epoch

    def close(self) -> None:
        """Remove the temporary file, if there is one."""
        if isinstance(self.rows, SpooledRows):
            self.rows.close()


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


class Fetcher:
    """Fetches over a few connections."""

    def __init__(self, pool: SessionPool, *, is_strict: bool, retain: int) -> None:
        """Fetch at most `retain` entries of the log with all rows."""
        self._pool = pool
        self._is_strict = is_strict
        self._retain = retain

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
                fetched = self._read_all(connection, base, state)
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
        self, connection: TimedConnection, base: CopyPosition, state: Sequence[Any]
    ) -> Fetched:
        """Return what replaces the whole copy, but for its rows."""
        rev, last, epoch = state
        token = rows_of(connection, _LAST_CHANGE, (base.db, rev))
        after = max(0, last - self._retain)
        newest = rows_of(connection, _ENTRIES, (base.db, after, ENTRY_BYTES))
        entries = [LogEntry(*row) for row in newest]
        position = attrs.evolve(base, rev=rev, token=token[0][0] if token else b"", epoch=epoch)
        return Fetched(base, position, last, None, (), _without_gap(entries, last))


def _read_changes(
    connection: TimedConnection, base: CopyPosition, sequence: int
) -> tuple[Sequence[Any], Rows, list[LogEntry]]:
    """Begin at one moment; return the state, and the commits and entries since `base`.

    All are sent at once. Without a copy there are no commits to be followed.
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
    base: CopyPosition,
    sequence: int,
    state: Sequence[Any],
    changes: Rows,
    entries: list[LogEntry],
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
    return Fetched(base, position, last, touched, (), entries)


def _touched_rows(session: Session, connection: TimedConnection, fetched: Fetched) -> Iterator[Row]:
    touched = fetched.touched or Touched()
    db = fetched.base.db
    for first in range(0, len(touched.keys), _KEYS_AT_ONCE):
        keys = list(touched.keys[first : first + _KEYS_AT_ONCE])
        yield from rows_of(connection, _ROWS, (db, keys))
    for low, high in touched.ranges:
        yield from _copy_out(session, connection, _ROWS_BETWEEN, (db, low, high))


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
