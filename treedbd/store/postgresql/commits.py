"""Commits in PostgreSQL: one pipelined transaction that compares and appends, and what is in doubt.

Theory of operation
-------------------
The row of a database in `dbs` decides. A commit that was prepared on the state after `rev` commits,
under the rules of `epoch`, changes that row only if it still has both; otherwise a division by zero
ends the pipeline, and nothing has happened. So a daemon that is late, or that judged by old rules,
cannot commit, whatever it believes; there is no lease and no clock.

All statements are sent at once and COMMIT is the last: an error before it ends the transaction.
Once COMMIT may have reached the server, the end of the connection, the deadline, and a warning (the
wait for the standbys was cancelled) all mean that the outcome is unknown. `settle` finds it out. If
the commit is not there it must never be there later: its transaction may still be open on the
server, or on its way. So an empty commit is made in its place, for which the row has to be locked:
then either the first one has ended, or it can never win. What is read is believed when a
transaction that writes was confirmed after it.

Someone always wins. That it is not always somebody else is seen to by an advisory lock, which every
commit takes in its shared form: a daemon that has lost several times takes it exclusively, and
holds it while it catches up and does its batch again. The server releases it if the daemon idles.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import attrs
import psycopg

from treedbd.store.engine import Conflict, DiskFull, InDoubt, LogEntry, StoreUnreachable
from treedbd.store.postgresql.connection import (
    Session,
    SessionPool,
    TimedConnection,
    commit_confirmed,
    confirm,
    unreachable,
)
from treedbd.store.postgresql.position import TOKEN_BYTES, CopyPosition
from treedbd.store.postgresql.prepared import (
    PipelineCall,
    bytea_array,
    int4,
    int8,
    prepare,
    send_all,
)
from treedbd.store.postgresql.schema import LOCK_CLASS
from treedbd.store.postgresql.touched import Range, Touched

BYTES_AT_ONCE: Final = 4 * 1024 * 1024
"""Bytes of rows that one statement carries, or one row."""
_TURN_PATIENCE_S: Final = 0.1

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
        keys: the keys that were put or deleted singly.
        ranges: the ranges that were emptied first.
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
    """Sends commits over a few connections, and settles those that are in doubt."""

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

    def send(self, pending: PendingCommit, turn: Session | None = None) -> None:
        """Commit, and return when it is durable; blocks, in any thread.

        `turn` is the connection that `take_turn` returned. Raises `Conflict`, `DiskFull` or
        `StoreUnreachable`: then nothing was applied; or `InDoubt`.
        """
        try:
            if turn is not None:
                self._send(turn, pending, has_turn=turn.is_in_transaction)
            else:
                with self._pool.lend() as session:
                    self._send(session, pending, has_turn=False)
        except Conflict:
            self._count(conflicts=1)
            raise
        self._count(commits=1)

    def take_turn(self, db: int) -> Session | None:
        """Keep all others from committing to a database, until `end_turn`; None if that fails."""
        try:
            session = self._pool.take(_TURN_PATIENCE_S)
        except StoreUnreachable:
            return None
        try:
            connection = session.ready()
            connection.execute("BEGIN")
            connection.execute(_LOCK, (db,))
        except (psycopg.Error, StoreUnreachable):
            self.end_turn(session)
            return None
        return session

    def end_turn(self, session: Session) -> None:
        """Let others commit again; waits for nothing."""
        if not session.is_idle:
            session.drop()  # the server ends the transaction, and releases the lock
        self._pool.give_back(session)

    def settle(self, pending: PendingCommit) -> bool | None:
        """Find out whether a commit in doubt was applied; blocks, in any thread.

        None if that cannot be found out any more: its records were trimmed. After any answer the
        commit will never be applied later. Raises `StoreUnreachable`: ask again.
        """
        applied = self._pool.run(lambda connection: _settle(connection, pending))
        self._count(commits=int(applied is True))
        return applied

    def _send(self, session: Session, pending: PendingCommit, *, has_turn: bool) -> None:
        connection = session.ready()
        is_sent = False
        try:
            prepare(connection, _STATEMENTS)
            connection.has_warned = False
            calls = _calls(pending, has_turn=has_turn)
            is_sent = True
            answers = send_all(connection, calls)
        except psycopg.Error as error:
            raise _classify(session, connection, error, is_sent=is_sent) from error
        except BaseException:
            session.drop()
            raise
        if connection.has_warned or answers[-1] != "COMMIT":
            raise InDoubt


def _calls(pending: PendingCommit, *, has_turn: bool) -> Iterator[PipelineCall]:
    """Yield the statements of a commit."""
    base, entries = pending.base, pending.entries
    db = int4(base.db)
    if not has_turn:
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
    session: Session,
    connection: TimedConnection,
    error: psycopg.Error,
    *,
    is_sent: bool,
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


def _settle(connection: TimedConnection, pending: PendingCommit) -> bool | None:
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
