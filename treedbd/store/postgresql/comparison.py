"""Compares what a local file holds of a database with what PostgreSQL holds, and repairs that.

Records, which are rows or entries of the log, are compared in buckets: some thousand of them from
one key to another. For each bucket both sides compute the number of records and one digest of all
keys and contents; only of a bucket that differs are the records themselves compared, and those that
differ written. So what is equal is read on the server and not sent, and the buckets together cover
all that the server holds: if all agree, the two are equal.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import attrs

from treedbd.store.engine import ReadView
from treedbd.store.postgresql.connection import Rows, TimedConnection, rows_of
from treedbd.store.postgresql.position import END_OF_ROWS
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
