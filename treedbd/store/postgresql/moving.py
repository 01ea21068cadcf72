"""A move of all databases into PostgreSQL, or out of it: what it changes there, and compares.

Theory of operation
-------------------
*Into PostgreSQL*: a database is copied under the project `<project>.part`, a name that no project
can have, with a negative epoch. No daemon finds it, and none could commit to it. When all of them
are complete, one transaction gives them their names, their sequence numbers and the epochs of their
rules. What an earlier attempt has left under such a name is compared and completed by the next.

*Out of PostgreSQL*: one transaction makes the epochs of all databases negative and records where
the data goes (`MOVED`). From then on no daemon can commit, and none can create a database or put
rules; reads go on. If the move fails, `thaw` gives back the epochs of the projects.

What a local file holds of a database is compared with what PostgreSQL holds, and repaired there
(`find_different`, `repair`). Records, which are rows or entries of the log, are compared in
buckets: some thousand of them from one key to another. For each bucket both sides compute the
number of records and one digest of all keys and contents; only of a bucket that differs are the
records themselves compared, and those that differ written. So what is equal is read on the server
and not sent, and the buckets together cover all that the server holds: if all agree, the two are
equal.

One move at a time holds a lock, with the connection that does all this: without it nothing counts.
"""

from __future__ import annotations

import contextlib
import hashlib
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Self, TypeAlias, TypeVar

import attrs
import orjson
import psycopg

from treedbd.errors import OperatorError
from treedbd.names import DatabaseName
from treedbd.store.engine import LogEntry, ReadView, StoreUnreachable
from treedbd.store.postgresql.cluster import GET_META, OLD, PART, PUT_RULES, SET_EPOCHS, list_all
from treedbd.store.postgresql.commits import END_OF_ROWS, Touched, new_token
from treedbd.store.postgresql.connection import (
    PostgresqlSettings,
    TimedConnection,
    commit_confirmed,
    connect,
    rows_of,
    unreachable,
)
from treedbd.store.postgresql.removal import AT_ONCE, REMOVE_SOME, execute
from treedbd.store.postgresql.schema import LOCK_CLASS, MOVED
from treedbd.store.rows import FIRST

T = TypeVar("T")

MOVED_IN: Final = "moved_in"
"""The name in `meta` that says where the data came from, after a complete move."""
_AT_ONCE: Final = 5000
_RETRY_S: Final = 0.5
# A copy of the same database is at 0 or at a commit of its own, so it takes all rows again.
_FIRST_REV: Final = 2

_TRY_LOCK: Final = f"SELECT pg_try_advisory_lock({LOCK_CLASS}, -1)"
_UNLOCK: Final = f"SELECT pg_advisory_unlock({LOCK_CLASS}, -1)"
# A daemon that creates a database or puts rules waits for the end of the transaction.
_LOCK_PROJECTS: Final = "LOCK TABLE projects IN SHARE ROW EXCLUSIVE MODE"
_SET: Final = (
    "INSERT INTO meta VALUES (%s, %s) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
)
_UNSET: Final = "DELETE FROM meta WHERE name = %s"
_ALL_RULES: Final = "SELECT project, rules FROM projects ORDER BY project"
_FIND: Final = "SELECT db FROM dbs WHERE project = %s AND name = %s"
_STAGE: Final = "INSERT INTO dbs (project, name, epoch) VALUES (%s, %s, -1) RETURNING db"
_FREEZE: Final = "UPDATE dbs SET epoch = -1 WHERE epoch >= 0"
_THAW: Final = (
    "UPDATE dbs SET epoch = p.epoch FROM projects p WHERE p.project = dbs.project AND dbs.epoch < 0"
)
_PUT_ASIDE: Final = (
    "UPDATE dbs SET project = project || %s, name = name || '.' || db, epoch = -1"
    " WHERE project = %s AND name = %s"
)
_NAME: Final = (
    "UPDATE dbs SET project = %s, name = %s, seq = %s, rev = %s, epoch = %s WHERE db = %s"
)
_RECORD: Final = (
    "INSERT INTO changes (db, rev, seq, token, touched) VALUES (%s, %s, %s, %b, %b)"
    " ON CONFLICT (db, rev) DO NOTHING"
)
_ENTRY: Final = (
    "SELECT op FROM log l JOIN dbs d USING (db) WHERE project = %s AND name = %s AND l.seq = %s"
)
_HAS_NAME: Final = "SELECT project FROM dbs WHERE db = %s FOR UPDATE"
_REMOVE: Final = "DELETE FROM dbs WHERE db = %s"


class MoveUnderWay(OperatorError):
    """Another `treedb move` works with the same PostgreSQL."""


class AppearedMeanwhile(Exception):
    """A database or rules that are to be put in place have been created there meanwhile."""


class SwitchInDoubt(Exception):
    """Whether the copies have taken their places cannot be found at present."""


@attrs.frozen
class Incoming:
    """A database that is copied into PostgreSQL: its number there, and its last entry's number."""

    name: DatabaseName
    db: int
    sequence: int = 0


class MoveConnection:
    """The connection of a move, which holds the lock; it is never made again."""

    def __init__(self, settings: PostgresqlSettings) -> None:
        """Connect and take the lock; raise `StoreUnreachable` or `MoveUnderWay`."""
        self.settings: Final = settings
        self._connection = connect(settings)
        try:
            has_lock = self.run(lambda connection: rows_of(connection, _TRY_LOCK)) == [(True,)]
        except BaseException:
            self.close()
            raise
        if not has_lock:
            self.close()
            raise MoveUnderWay(settings.subject, "is used by another treedb move", "wait for it")

    def __enter__(self) -> Self:
        """Return the connection, which is closed at the end of the `with` block."""
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        # A busy server may release the lock some time after the connection is closed.
        is_reachable = error is None or not issubclass(error, StoreUnreachable)
        if is_reachable and not self._connection.is_lost:
            with contextlib.suppress(StoreUnreachable):
                self.run(lambda connection: rows_of(connection, _UNLOCK))
        self.close()

    def run(self, work: Callable[[TimedConnection], T]) -> T:
        """Run `work` with a new deadline; its errors of the driver become `StoreUnreachable`."""
        self._connection.extend(self.settings.patience_s)
        try:
            return work(self._connection)
        except psycopg.Error as error:
            raise unreachable(error) from error

    def run_transaction(self, work: Callable[[TimedConnection], T]) -> T:
        """Run `work` in a transaction that a standby confirms if there are any."""

        def transact(connection: TimedConnection) -> T:
            connection.execute("BEGIN")
            try:
                result = work(connection)
            except BaseException:
                if not connection.is_lost:
                    connection.execute("ROLLBACK")
                raise
            commit_confirmed(connection)
            return result

        return self.run(transact)

    def close(self) -> None:
        """Release the lock."""
        self._connection.close()


def read_all_rules(connection: TimedConnection) -> dict[str, bytes | None]:
    """Return the rules of all projects, None for one without."""
    return dict(rows_of(connection, _ALL_RULES))


def find_other_rules(connection: TimedConnection, rules: Mapping[str, bytes | None]) -> list[str]:
    """Return the projects that have rules already, and other ones than `rules`."""
    stored = read_all_rules(connection)
    return sorted(each for each in rules if stored.get(each) not in (None, rules[each]))


def has_entry(connection: TimedConnection, name: DatabaseName, entry: LogEntry) -> bool:
    """Return whether the log of a database has an entry under its number."""
    found = rows_of(connection, _ENTRY, (name.project, name.database, entry.sequence))
    return [bytes(row[0]) for row in found] == [entry.op_id]


def read_mark(connection: TimedConnection, mark: str) -> str | None:
    """Return where the data went to (`MOVED`) or came from (`MOVED_IN`)."""
    found = rows_of(connection, GET_META, (mark,))
    return str(orjson.loads(found[0][0])["place"]) if found else None


def stage(connection: TimedConnection, name: DatabaseName) -> Incoming:
    """Return where a database is copied to, with what an earlier attempt has left there."""
    place = (name.project + PART, name.database)
    ((db,),) = rows_of(connection, _FIND, place) or rows_of(connection, _STAGE, place)
    return Incoming(name, db)


def switch(
    move: MoveConnection,
    databases: Iterable[Incoming],
    rules: Mapping[str, bytes | None],
    origin: str,
    *,
    replace: bool,
) -> None:
    """Put complete copies and rules in place, all at once or not at all.

    With `replace` databases of the same names are put aside. Raises `AppearedMeanwhile` or
    `StoreUnreachable`: then nothing has changed; or `SwitchInDoubt`.
    """
    every = tuple(databases)
    is_sent = False

    def put_in_place(connection: TimedConnection) -> None:
        nonlocal is_sent
        connection.execute(_LOCK_PROJECTS)
        if not replace and find_other_rules(connection, rules):
            raise AppearedMeanwhile
        epochs = {project: _put_rules(connection, project, text) for project, text in rules.items()}
        for each in every:
            if replace:
                connection.execute(_PUT_ASIDE, (OLD, each.name.project, each.name.database))
            _name(connection, each, epochs[each.name.project])
        connection.execute(_UNSET, (MOVED,))
        connection.execute(_SET, (MOVED_IN, orjson.dumps({"place": origin}).decode()))
        is_sent = True

    try:
        move.run_transaction(put_in_place)
    except BaseException as error:  # also Ctrl-C: the server may have got the COMMIT
        if isinstance(error.__cause__, psycopg.errors.UniqueViolation):
            raise AppearedMeanwhile from error
        if not is_sent or not _has_switched(move.settings, every):
            raise


def _put_rules(connection: TimedConnection, project: str, text: bytes | None) -> int:
    ((epoch,),) = rows_of(connection, PUT_RULES, (project, text))
    connection.execute(SET_EPOCHS, (epoch, project))
    return int(epoch)


def _name(connection: TimedConnection, each: Incoming, epoch: int) -> None:
    name = each.name
    numbers = (each.sequence, _FIRST_REV, epoch, each.db)
    connection.execute(_NAME, (name.project, name.database, *numbers))
    change = (each.db, _FIRST_REV, each.sequence, new_token(), Touched().encode())
    connection.execute(_RECORD, change)


def _has_switched(settings: PostgresqlSettings, databases: tuple[Incoming, ...]) -> bool:
    """Return whether a switch whose COMMIT was not answered has been made."""
    if not databases:
        return False
    limit = time.monotonic() + settings.patience_s
    while True:
        try:
            return _find_project(settings, databases[0].db) == databases[0].name.project
        except (psycopg.Error, StoreUnreachable) as error:
            if time.monotonic() >= limit:
                raise SwitchInDoubt from error
        time.sleep(_RETRY_S)  # another server may be taking over


def _find_project(settings: PostgresqlSettings, db: int) -> str | None:
    """Return the project of a database, waiting for a switch that is under way."""
    connection = connect(settings)
    try:
        connection.extend(settings.patience_s)
        connection.execute("BEGIN")
        found = rows_of(connection, _HAS_NAME, (db,))
        commit_confirmed(connection)
    finally:
        connection.close()
    return found[0][0] if found else None


def freeze(connection: TimedConnection, place: str) -> None:
    """Refuse commits of all daemons; `place` is where the data goes. In a transaction."""
    connection.execute(_LOCK_PROJECTS)
    connection.execute(_FREEZE)
    connection.execute(_UNSET, (MOVED_IN,))
    connection.execute(_SET, (MOVED, orjson.dumps({"place": place}).decode()))


def thaw(connection: TimedConnection) -> None:
    """Allow commits of daemons again. In a transaction."""
    connection.execute(_LOCK_PROJECTS)
    connection.execute(_THAW)
    connection.execute(_UNSET, (MOVED,))


def remove_left_over(move: MoveConnection, kept: Iterable[DatabaseName] = ()) -> None:
    """Remove databases that were replaced, and incomplete copies but for those of `kept`."""
    keep = {(name.project + PART, name.database) for name in kept}
    for each in move.run(list_all):
        if not each.is_served and (each.project, each.name) not in keep:
            _remove(move, each.db)


def _remove(move: MoveConnection, db: int) -> None:
    for statement in REMOVE_SOME:
        while move.run(partial(execute, statement, (db, db))) == AT_ONCE:
            continue
    move.run(lambda connection: connection.execute(_REMOVE, (db,)))


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
    return ComparedTable(
        **local,
        digest_statement=_DIGEST.format(**words),
        records_statement=_RECORDS.format(**words),
        delete_statement=_DELETE.format(**words),
        put_statement=_PUT.format(**words),
    )


def _read_rows(view: ReadView, low: bytes) -> Iterable[Record]:
    return view.scan(low, END_OF_ROWS)


def _read_entries(view: ReadView, low: int) -> Iterable[Record]:
    return view.entries(low - 1)


def _with_length(content: bytes) -> bytes:
    return _LENGTH.pack(len(content)) + content


ROWS: Final = _make_table(
    "kv",
    "k",
    "bytea",
    ("v",),
    first=FIRST,
    end=END_OF_ROWS,
    read=_read_rows,
    encode_key=_with_length,
)
LOG: Final = _make_table(
    "log",
    "seq",
    "bigint",
    ("op", "entry"),
    first=0,
    end=_LAST_NUMBER,
    read=_read_entries,
    encode_key=_NUMBER.pack,
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
    sent = []
    with connection.pipeline() as pipeline:
        for each in buckets:
            parameters = (db, each.low, each.high)
            sent.append((each, connection.execute(table.digest_statement, parameters, binary=True)))
        pipeline.sync()
        # The server computes its digests at the same time.
        expected = [(len(each.records), _digest(table, each.records)) for each, _ in sent]
        found = [cursor.fetchone() for _, cursor in sent]
    return [
        each for (each, _), own, theirs in zip(sent, expected, found, strict=True) if own != theirs
    ]


def repair(connection: TimedConnection, table: ComparedTable, db: int, bucket: Bucket) -> int:
    """Make what the server holds that of a bucket; return how many records differed."""
    present: dict[Key, bytes] = dict(
        rows_of(connection, table.records_statement, (db, bucket.low, bucket.high))
    )
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


def _in_parts(records: Sequence[Record]) -> Iterator[list[list[Any]]]:
    """Yield columns of records, of at most as many bytes at once as one message should have."""
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
