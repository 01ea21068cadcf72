"""Commits in PostgreSQL: what one compares and adds, how it is sent, and how doubt is resolved.

Theory of operation
-------------------
The row of a database in `dbs` decides. A commit that was prepared on the state after `rev` commits,
under the rules of `epoch`, changes that row only if it still has both; otherwise a division by zero
ends the pipeline, and nothing has happened. So a daemon that is late, or that judged by old rules,
cannot commit; neither leases nor clocks are involved. A `CopyPosition` is the
state that a copy has; `Touched` are the rows that a commit changes, by which other copies follow.

All statements are sent at once and COMMIT is the last: an error before it ends the transaction.
Once COMMIT may have reached the server, the end of the connection, the deadline, and a warning (the
wait for the standbys was cancelled) all mean that the outcome is unknown (`find_outcome`). If the
commit is not there it must never be there later: its transaction may still be open on the server,
or on its way. So an empty commit is made in its place, for which the row has to be locked:
then either the first one has ended, or it can never win. What is read counts when a
transaction that writes was confirmed after it.

Of daemons that compete one always wins. That it is not always another one is ensured by an advisory
lock, which every commit takes in its shared form: a daemon that has lost several times takes it
exclusively (`take_lock`), and holds it while it catches up and does its batch again. The server
releases it if the daemon idles.
"""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple, TypeAlias

import attrs
import psycopg

from treedbd.store.engine import Conflict, DamagedRow, DiskFull, InDoubt, LogEntry, StoreUnreachable
from treedbd.store.postgresql.connection import (
    PipelineCall,
    Session,
    SessionPool,
    TimedConnection,
    bytea_array,
    commit_confirmed,
    confirm,
    int4,
    int8,
    prepare,
    send_all,
    unreachable,
)
from treedbd.store.postgresql.schema import LOCK_CLASS
from treedbd.store.rows import seal, unseal

POSITION_KEY: Final = b"\xff" * 512
END_OF_ROWS: Final = POSITION_KEY
"""All rows that belong to the database have keys below this one."""
TOKEN_BYTES: Final = 16
NOTHING_COPIED: Final = -1
"""The `rev` of a copy that has nothing yet, not even the empty database."""
_POSITION_VERSION: Final = 1
_CONTENT: Final = struct.Struct(">B16siq16sq")


@attrs.frozen
class CopyPosition:
    """The commit that a copy ends with, as a row of the copy at `POSITION_KEY` says.

    The row is written in the same local transaction as the rows that a commit changed: a crash
    between the commit in PostgreSQL and the local one leaves a copy that lacks some commits,
    never one that is wrong. Its key is longer than any row key, so no row of the tree or of an
    index can have it; it is not sent to PostgreSQL. The content has a check sum as all rows have.

    Attributes:
        cluster: the id of the cluster, 16 bytes.
        db: the number of the database there.
        rev: how many commits there were; `NOTHING_COPIED` if the copy has nothing.
        token: what identifies the last commit, by which histories that have diverged are
            distinguished; empty before the first.
        epoch: the epoch of the rules by which the last own commit was judged, for information.

    """

    cluster: bytes
    db: int
    rev: int = NOTHING_COPIED
    token: bytes = b""
    epoch: int = 0

    def encode(self) -> bytes:
        """Return the content of the row."""
        token = self.token.ljust(TOKEN_BYTES, b"\0")
        content = _CONTENT.pack(
            _POSITION_VERSION, self.cluster, self.db, self.rev, token, self.epoch
        )
        return seal(POSITION_KEY, content)


def decode_position(stored: bytes | None) -> CopyPosition | None:
    """Return the position that a row holds; None without a row, or if it cannot be read."""
    if stored is None:
        return None
    try:
        version, cluster, db, rev, token, epoch = _CONTENT.unpack(unseal(POSITION_KEY, stored))
    except (DamagedRow, struct.error):
        return None
    if version != _POSITION_VERSION:
        return None
    return CopyPosition(
        cluster=cluster, db=db, rev=rev, token=token if any(token) else b"", epoch=epoch
    )


Range: TypeAlias = tuple[bytes, bytes]
"""The keys from the first one, without the second one."""

_TOUCHED_VERSION: Final = 1
MAX_KEYS: Final = 20_000
"""More single keys than this are recorded as one range from the first to the last."""


def _merged(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """Return ranges in order, those that overlap or meet as one, and without empty ones."""
    merged: list[Range] = []
    for low, high in sorted(each for each in ranges if each[0] < each[1]):
        if merged and low <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(high, merged[-1][1])
        else:
            merged.append((low, high))
    return tuple(merged)


@attrs.frozen
class Touched:
    """Which rows a commit touched: single keys in order, and ranges that do not overlap.

    No key is in a range. The present rows of all that a commit touched are read where it is
    applied, so to name more rows than were touched costs time and is not an error: very many keys
    become one range.

    The encoding begins with its version and the number of single keys; then come all keys in order,
    and after them the two ends of each range. Of a key follow, each as a variable-length number,
    how many bytes it shares with the key before it and how many differ, and then these.
    """

    keys: tuple[bytes, ...] = ()
    ranges: tuple[Range, ...] = ()

    @classmethod
    def of(cls, keys: Iterable[bytes], ranges: Iterable[Range]) -> Touched:
        """Return what any keys and ranges touch together."""
        merged = _merged(ranges)
        single = tuple(_outside(sorted(set(keys)), merged))
        if len(single) > MAX_KEYS:
            return cls.of((), (*merged, (single[0], single[-1] + b"\0")))
        return cls(single, merged)

    @classmethod
    def union(cls, parts: Iterable[Touched]) -> Touched:
        """Return what several commits touched together."""
        every = list(parts)
        return cls.of(
            (key for each in every for key in each.keys),
            (span for each in every for span in each.ranges),
        )

    def encode(self) -> bytes:
        """Return the bytes; `decode` is the inverse."""
        encoded = bytearray((_TOUCHED_VERSION,))
        _put_number(encoded, len(self.keys))
        before = b""
        for key in (*self.keys, *(end for each in self.ranges for end in each)):
            shared = _shared(before, key)
            _put_number(encoded, shared)
            _put_number(encoded, len(key) - shared)
            encoded += key[shared:]
            before = key
        return bytes(encoded)

    @classmethod
    def decode(cls, encoded: bytes) -> Touched:
        """Return what was encoded; raise ValueError for other bytes."""
        try:
            if encoded[0] != _TOUCHED_VERSION:
                raise ValueError(f"Touched rows of an unknown version {encoded[0]}.")
            count, at = _number(encoded, 1)
            every = list(_keys(encoded, at))
        except IndexError:
            raise ValueError("The record of touched rows is cut off.") from None
        ends = every[count:]
        if len(every) < count or len(ends) % 2:
            raise ValueError("The record of touched rows is cut off.")
        return cls(tuple(every[:count]), tuple(zip(ends[::2], ends[1::2], strict=True)))


def _outside(keys: Iterable[bytes], ranges: tuple[Range, ...]) -> Iterator[bytes]:
    """Yield the keys that are in no range; both are in order."""
    number = 0
    for key in keys:
        while number < len(ranges) and ranges[number][1] <= key:
            number += 1
        if number == len(ranges) or key < ranges[number][0]:
            yield key


def _keys(encoded: bytes, at: int) -> Iterator[bytes]:
    key = b""
    while at < len(encoded):
        shared, at = _number(encoded, at)
        length, at = _number(encoded, at)
        rest = encoded[at : at + length]
        if shared > len(key) or len(rest) < length:
            raise IndexError
        key = key[:shared] + rest
        yield key
        at += length


def _shared(one: bytes, other: bytes) -> int:
    """Return how many bytes two keys begin with alike."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[:middle] == other[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _put_number(encoded: bytearray, number: int) -> None:
    """Append a number, seven bits in each byte, the lowest first."""
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)


def _number(encoded: bytes, at: int) -> tuple[int, int]:
    """Return the number that begins at `at`, and where it ends."""
    number = shift = 0
    while encoded[at] > 0x7F:
        number |= (encoded[at] & 0x7F) << shift
        shift += 7
        at += 1
    return number | encoded[at] << shift, at + 1


BYTES_AT_ONCE: Final = 4 * 1024 * 1024
"""Bytes of rows that one statement carries, or one row."""
_LOCK_PATIENCE_S: Final = 0.1

_LOCK: Final = f"SELECT pg_advisory_xact_lock({LOCK_CLASS}, %s)"
_BEGIN: Final = PipelineCall(b"BEGIN", is_prepared=False)
_COMMIT: Final = PipelineCall(b"COMMIT", is_prepared=False)
_STATEMENTS: Final = {
    "share (integer)": f"SELECT pg_advisory_xact_lock_shared({LOCK_CLASS}, $1)",
    "win (integer, bigint, bigint, bigint, bigint)": (
        "WITH won AS (UPDATE dbs SET seq = seq + $5, rev = rev + 1"
        " WHERE db = $1 AND rev = $2 AND epoch = $3 AND epoch >= 0 AND seq = $4 RETURNING 1)"
        " SELECT 1 / count(*) FROM won"
    ),
    "empty_range (integer, bytea, bytea)": "DELETE FROM kv WHERE db = $1 AND k >= $2 AND k < $3",
    "remove (integer, bytea[])": "DELETE FROM kv WHERE db = $1 AND k = ANY($2)",
    "put (integer, bytea[], bytea[])": (
        "INSERT INTO kv SELECT $1, * FROM unnest($2, $3)"
        " ON CONFLICT (db, k) DO UPDATE SET v = excluded.v"
    ),
    "append (integer, bigint, bytea[], bytea[])": (
        "INSERT INTO log (db, seq, op, entry) SELECT $1, $2 + number, op, entry"
        " FROM unnest($3, $4) WITH ORDINALITY AS new (op, entry, number)"
    ),
    "record (integer, bigint, bigint, bytea, bytea)": (
        "INSERT INTO changes (db, rev, seq, token, touched) VALUES ($1, $2, $3, $4, $5)"
    ),
}
_CHANGE: Final = "INSERT INTO changes (db, rev, seq, token, touched) VALUES (%s, %s, %s, %b, %b)"
_FENCE: Final = "UPDATE dbs SET rev = rev + 1 WHERE db = %s AND rev = %s RETURNING seq"
_FATE: Final = (
    "SELECT d.rev, (SELECT token FROM changes WHERE db = d.db AND rev = %s),"
    " (SELECT op FROM log WHERE db = d.db AND seq = %s) FROM dbs d WHERE d.db = %s"
)


@attrs.frozen
class PendingCommit:
    """What one commit adds to the state at `base`.

    Attributes:
        base: the last commit before.
        token: identifies this commit.
        sequence: the number of the last entry before.
        entries: the new entries of the log.
        keys: the keys that were put or deleted singly, in order.
        ranges: the ranges that were emptied first, in their order in time.
        value_of: returns the new value of a key, None for a row that is removed.

    """

    base: CopyPosition
    token: bytes
    sequence: int
    entries: tuple[LogEntry, ...]
    keys: tuple[bytes, ...]
    ranges: tuple[Range, ...]
    value_of: Callable[[bytes], bytes | None]

    @property
    def after(self) -> CopyPosition:
        """The position that the commit makes."""
        return attrs.evolve(self.base, rev=self.base.rev + 1, token=self.token)


def new_token() -> bytes:
    """Return a token that no other commit has."""
    return os.urandom(TOKEN_BYTES)


class CommitCounts(NamedTuple):
    """Commits that a daemon has made, and those that it has lost to others, since its start."""

    commits: int = 0
    conflicts: int = 0


class CommitSender:
    """Sends commits over a few connections, and finds the outcome of those in doubt."""

    def __init__(self, pool: SessionPool) -> None:
        """Borrow a connection of `pool` for each commit."""
        self._pool = pool
        self._counting = threading.Lock()
        self._counts = CommitCounts()

    @property
    def counts(self) -> CommitCounts:
        """What became of the commits so far."""
        return self._counts

    def _count(self, commits: int = 0, conflicts: int = 0) -> None:
        with self._counting:
            before = self._counts
            self._counts = CommitCounts(before.commits + commits, before.conflicts + conflicts)

    def send(self, pending: PendingCommit, locked: Session | None = None) -> None:
        """Commit, and return when it is durable; blocks, in any thread.

        `locked` is the connection that `take_lock` returned. Raises `Conflict`, `DiskFull` or
        `StoreUnreachable`: then nothing was applied; or `InDoubt`.
        """
        try:
            if locked is not None:
                self._send(locked, pending, has_lock=locked.is_in_transaction)
            else:
                with self._pool.lend() as session:
                    self._send(session, pending, has_lock=False)
        except Conflict:
            self._count(conflicts=1)
            raise
        self._count(commits=1)

    def take_lock(self, db: int) -> Session | None:
        """Keep others from committing to a database until `release_lock`; None if that fails."""
        try:
            session = self._pool.take(_LOCK_PATIENCE_S)
        except StoreUnreachable:
            return None
        try:
            connection = session.ready()
            connection.execute("BEGIN")
            connection.execute(_LOCK, (db,))
        except (psycopg.Error, StoreUnreachable):
            self.release_lock(session)
            return None
        return session

    def release_lock(self, session: Session) -> None:
        """Release the lock, so that others commit again; waits for nothing."""
        if not session.is_idle:
            session.drop()  # the server ends the transaction, and releases the lock
        self._pool.give_back(session)

    def find_outcome(self, pending: PendingCommit) -> bool | None:
        """Find whether a commit in doubt was applied; blocks, in any thread.

        None if that can no longer be found: its records were trimmed. After any answer the
        commit will never be applied later. Raises `StoreUnreachable`: call again.
        """
        applied = self._pool.run(lambda connection: _find_outcome(connection, pending))
        self._count(commits=int(applied is True))
        return applied

    def _send(self, session: Session, pending: PendingCommit, *, has_lock: bool) -> None:
        connection = session.ready()
        is_sent = False
        try:
            prepare(connection, _STATEMENTS)
            connection.has_warned = False
            calls = _calls(pending, has_lock=has_lock)
            is_sent = True
            answers = send_all(connection, calls)
        except psycopg.Error as error:
            raise _classify(session, connection, error, is_sent=is_sent) from error
        except BaseException:
            session.drop()
            raise
        if connection.has_warned or answers[-1] != "COMMIT":
            raise InDoubt


def _calls(pending: PendingCommit, *, has_lock: bool) -> Iterator[PipelineCall]:
    """Yield the statements of a commit."""
    base, entries = pending.base, pending.entries
    db = int4(base.db)
    if not has_lock:
        yield _BEGIN
        yield PipelineCall(b"share", (db,))
    numbers = (base.rev, base.epoch, pending.sequence, len(entries))
    yield PipelineCall(b"win", (db, *map(int8, numbers)))
    for low, high in pending.ranges:
        yield PipelineCall(b"empty_range", (db, low, high))
    yield from _row_calls(pending, db)
    if entries:
        ops = bytea_array([entry.op_id for entry in entries])
        contents = bytea_array([entry.content for entry in entries])
        yield PipelineCall(b"append", (db, int8(pending.sequence), ops, contents))
    touched = Touched.of(pending.keys, pending.ranges).encode()
    last = int8(pending.sequence + len(entries))
    yield PipelineCall(b"record", (db, int8(base.rev + 1), last, pending.token, touched))
    yield _COMMIT


def _row_calls(pending: PendingCommit, db: bytes) -> Iterator[PipelineCall]:
    """Yield statements that make the rows what they are in the local transaction."""
    removed: list[bytes] = []
    keys: list[bytes] = []
    values: list[bytes] = []
    size = 0
    for key in pending.keys:
        value = pending.value_of(key)
        if value is None:
            removed.append(key)
            continue
        keys.append(key)
        values.append(value)
        size += len(key) + len(value)
        if size >= BYTES_AT_ONCE:
            yield PipelineCall(b"put", (db, bytea_array(keys), bytea_array(values)))
            keys, values, size = [], [], 0
    if keys:
        yield PipelineCall(b"put", (db, bytea_array(keys), bytea_array(values)))
    if removed:
        yield PipelineCall(b"remove", (db, bytea_array(removed)))


def _classify(
    session: Session, connection: TimedConnection, error: psycopg.Error, *, is_sent: bool
) -> Exception:
    """Return what an error of a commit means, and end its transaction."""
    if connection.is_lost and is_sent:
        session.drop()
        return InDoubt()
    session.abandon_transaction()
    state = error.sqlstate or ""
    # Class 40 are serialisation failures and deadlocks: also those lost to another commit.
    if isinstance(error, psycopg.errors.DivisionByZero) or state.startswith("40"):
        return Conflict()
    if isinstance(error, psycopg.errors.DiskFull):
        return DiskFull("The disk of PostgreSQL is full.")
    session.drop()  # it may have become a standby: connect again, to whichever takes writes
    return unreachable(error)


def _find_outcome(connection: TimedConnection, pending: PendingCommit) -> bool | None:
    base = pending.base
    connection.execute("BEGIN")
    fenced = connection.execute(_FENCE, (base.db, base.rev)).fetchone()
    if fenced is not None:
        change = (base.db, base.rev + 1, fenced[0], new_token(), Touched().encode())
        connection.execute(_CHANGE, change)
        commit_confirmed(connection)
        return False
    parameters = (base.rev + 1, pending.sequence + 1, base.db)
    found = connection.execute(_FATE, parameters).fetchone()
    connection.execute("COMMIT")
    confirm(connection)
    if found is None or found[0] <= base.rev:
        return False  # the cluster was restored from an older state
    _, token, op = found
    if token is not None:
        return bytes(token) == pending.token
    if pending.entries and op is not None:
        return bytes(op) == pending.entries[0].op_id
    return None
