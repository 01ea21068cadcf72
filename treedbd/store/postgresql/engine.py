"""The engine of one database in PostgreSQL and its copy: PostgreSQL decides, the copy is read.

The copy is a shelf file whose commits are not synced. Reads, snapshots and all that concerns files
go to it alone. A commit is sent to PostgreSQL first (`commits`), with what `RecordingTransaction`
has noted of it; when it has won there, it is made in the copy. What other daemons commit comes into
the copy with `fetch`, in any thread, and `apply_fetched`. Nothing here waits until other daemons
have been notified of a commit.

If the copy fails after PostgreSQL has committed, the outcome is reported as in doubt: it is known
to PostgreSQL, and `find_outcome` finds it there. The copy only lacks some commits.
"""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final

import attrs

from treedbd.store.cursors import held
from treedbd.store.directory_lock import DirectoryLock
from treedbd.store.engine import (
    CannotOpenStore,
    Conflict,
    DiskFull,
    InDoubt,
    LogEntry,
    StoreFailed,
    StoreInaccessible,
)
from treedbd.store.postgresql.commits import (
    END_OF_ROWS,
    NOTHING_COPIED,
    POSITION_KEY,
    CommitSender,
    CopyPosition,
    PendingCommit,
    Range,
    decode_position,
    new_token,
)
from treedbd.store.postgresql.connection import Session
from treedbd.store.postgresql.fetching import Fetched, Fetcher
from treedbd.store.rows import FIRST
from treedbd.store.sqlite.engine import RESERVE_BYTES, SqliteEngine, remove_files
from treedbd.store.sqlite.reader import PresentReader
from treedbd.store.sqlite.writer import SqliteTransaction

LOSSES_BEFORE_LOCK: Final = 3
"""After so many lost commits in a row this daemon takes the lock on commits."""
_IN_DOUBT: Final = "Whether the last commit was applied is not known yet."

_FEW_ROWS: Final = 64


class RecordingTransaction:
    """A `Transaction` on the copy that records what it touches, for the commit in PostgreSQL.

    Only keys and ranges are recorded: the values are read from the local transaction when the
    commit is sent. A range is recorded only if there were rows in it, and as single keys if they
    were few: most ranges that the tree removes are empty, and each would be a statement.

    Attributes:
        local: the transaction on the copy.

    """

    def __init__(
        self, engine: PostgresqlEngine, local: SqliteTransaction, base: CopyPosition
    ) -> None:
        """`engine` commits it, and releases its lock when it is rolled back.

        `base` is the position of the copy, with the epoch of the rules now.
        """
        self.local: Final = local
        self._base = base
        self._first_sequence = local.sequence()
        self._appended: list[LogEntry] = []
        self._engine = engine
        self._is_over = False  # then a rollback must not release the lock that a lost commit took
        self._keys: set[bytes] = set()
        self._ranges: list[Range] = []
        # What only reads, or concerns only the copy, does not pass through here.
        self.get = local.get
        self.floor = local.floor
        self.floors = local.floors
        self.scan = local.scan
        self.scan_keys = local.scan_keys
        self.sequence = local.sequence
        self.trim = local.trim
        self.shorten = local.shorten
        self.entries = local.entries

    def pending(self) -> PendingCommit:
        """Return what is to be committed in PostgreSQL, by a token of its own."""
        return PendingCommit(
            base=self._base,
            token=new_token(),
            sequence=self._first_sequence,
            entries=tuple(self._appended),
            keys=tuple(sorted(self._keys)),
            ranges=tuple(self._ranges),
            value_of=self.local.get,
        )

    @property
    def changes_something(self) -> bool:
        """Whether there is anything to be sent."""
        return bool(self._keys or self._ranges or self._appended)

    def put(self, key: bytes, value: bytes) -> None:
        """Set the value of `key`."""
        self._keys.add(key)
        self.local.put(key, value)

    def put_all(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Set the values of many keys."""
        self.local.put_all(self._recorded(rows))

    def delete(self, key: bytes) -> None:
        """Remove `key` if it exists."""
        self._keys.add(key)
        self.local.delete(key)

    def delete_range(self, low: bytes, high: bytes) -> None:
        """Remove every key with `low <= key < high`."""
        high = min(high, END_OF_ROWS)
        present = list(islice(self.local.scan_keys(low, high), _FEW_ROWS + 1))
        if len(present) > _FEW_ROWS:
            self._ranges.append((low, high))
        else:
            self._keys.update(present)
        self.local.delete_range(low, high)

    def append(self, op_id: bytes, content: bytes) -> int:
        """Append an entry to the log; return its sequence number."""
        number = self.local.append(op_id, content)
        self._appended.append(LogEntry(number, op_id, content))
        return number

    def commit(self) -> None:
        """Make the changes durable in PostgreSQL, then in the copy.

        Raises `Conflict`, `StoreUnreachable` or `InDoubt`, too.
        """
        self._is_over = True
        self._engine.commit(self)

    def rollback(self) -> None:
        """Discard the changes; no effect once the transaction has ended in any way."""
        if not self._is_over:
            self._is_over = True
            self.local.rollback()
            self._engine.release_lock()

    def _recorded(self, rows: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        record = self._keys.add
        for row in rows:
            record(row[0])
            yield row


@attrs.frozen
class DatabaseIdentity:
    """Which database of which cluster: the id of the cluster, and the number of the database."""

    cluster: bytes
    db: int


def open_copy(
    path: pathlib.Path, *, lock: DirectoryLock | None = None, reserve_bytes: int = RESERVE_BYTES
) -> SqliteEngine:
    """Open a local copy; one that is missing, or cannot be opened for good, is made new and empty.

    Raises `StoreInaccessible`, or `CannotOpenStore` if it cannot be created.
    """
    try:
        return SqliteEngine.open(path, lock=lock, reserve_bytes=reserve_bytes, is_cache=True)
    except FileNotFoundError:
        remove_files(path)  # what is left of one that was removed
    except StoreInaccessible:
        raise
    except CannotOpenStore:
        remove_files(path)  # whatever was wrong with it, PostgreSQL has all of it
    return SqliteEngine.create(path, lock=lock, reserve_bytes=reserve_bytes, is_cache=True)


class PostgresqlEngine:
    """An `Engine` over one database in PostgreSQL; a `FileEngine` over its copy.

    Attributes:
        path: the file of the copy.
        epoch: the epoch of the rules by which writes are judged; set it with the rules, before the
            next `begin`. A commit under another epoch than the cluster's is a `Conflict`.

    """

    def __init__(
        self,
        local: SqliteEngine,
        identity: DatabaseIdentity,
        commits: CommitSender,
        fetcher: Fetcher,
        *,
        epoch: int,
        retain: int,
    ) -> None:
        """Use `local`, from `open_copy`; its log keeps about `retain` entries.

        What the copy holds of another database or cluster is replaced by the first fetch.
        """
        self.path: Final = local.path
        self._local, self._commits, self._fetcher = local, commits, fetcher
        self._retain, self.epoch = retain, epoch
        found = decode_position(local.read(lambda rows: rows.get(POSITION_KEY)))
        if found is None or (found.cluster, found.db) != (identity.cluster, identity.db):
            found = CopyPosition(identity.cluster, identity.db)
        # One value, since threads read and set it: the position, and the number of the last entry.
        self._present = found, local.read(lambda rows: rows.sequence())
        self._in_doubt: PendingCommit | None = None
        self._losses = 0
        self._locked: Session | None = None
        # No call of these passes through here.
        self.read = local.read
        self.pin = local.pin
        self.advance = local.advance
        self.needs_checkpoint = local.needs_checkpoint
        self.checkpoint = local.checkpoint
        self.compact = local.compact
        self.limit_cache = local.limit_cache
        self.find_damage = local.find_damage
        self.confirm_sound = local.confirm_sound
        self.release_reserve = local.release_reserve
        self.restore_reserve = local.restore_reserve
        self.find_misplaced = local.find_misplaced
        self.verify = local.verify
        self.size = local.size
        self.follow_moments = local.follow_moments
        self.was_closed_cleanly: Final = local.was_closed_cleanly

    @property
    def has_snapshots(self) -> bool:
        """Whether a moment is held open."""
        return self._local.has_snapshots

    def refuse_snapshots(self, refusal: Callable[[], Exception]) -> None:
        """Close every moment that is held open; its reader receives what `refusal` returns."""
        self._local.refuse_snapshots(refusal)

    @property
    def position(self) -> CopyPosition:
        """How far the copy has come."""
        return self._present[0]

    def snapshot(self) -> PresentReader:
        """Hold the present moment open."""
        return self._local.snapshot()

    def begin(self) -> RecordingTransaction:
        """Open the one transaction; raise `StoreFailed`, also while a commit is in doubt."""
        if self._in_doubt is not None:
            raise StoreFailed(_IN_DOUBT)
        base = attrs.evolve(self.position, epoch=self.epoch)
        return RecordingTransaction(self, self._local.begin(), base)

    def find_outcome(self) -> bool | None:
        """Find whether the commit in doubt was applied; blocks, in any thread.

        If it was, the copy lacks it: fetch. None if that can no longer be found. Raises
        `StoreUnreachable`: then it is still in doubt. True if nothing is in doubt.
        """
        if self._in_doubt is None:
            return True
        applied = self._commits.find_outcome(self._in_doubt)
        self._in_doubt = None
        return applied

    def fetch(self) -> Fetched:
        """Fetch what the copy lacks; blocks, in any thread.

        Raises `StoreUnreachable`, `DatabaseMissing` or OSError.
        """
        position, sequence = self._present
        return self._fetcher.fetch(position, sequence, self.path.parent)

    def recover(self) -> None:
        """Bring the copy back from disk and verify it; raise `StoreFailed`."""
        self._local.recover()
        stored = self._local.read(lambda rows: (rows.get(POSITION_KEY), rows.sequence()))
        found = decode_position(stored[0])
        lost = attrs.evolve(self.position, rev=NOTHING_COPIED, token=b"")
        self._present = found or lost, stored[1]

    def apply_fetched(self, fetched: Fetched) -> bool:
        """Bring the copy to the position of `fetched`, in one local transaction, without a sync.

        No transaction may be open. Returns False, without effect, if the copy has changed since the
        fetch: fetch again. Raises `DiskFull` or `StoreFailed`. With all rows of a large database it
        takes long: then call it in another thread, as a commit.
        """
        with contextlib.closing(fetched):
            present = self.position
            if (fetched.base.rev, fetched.base.token) != (present.rev, present.token):
                return False
            if fetched.position.rev == present.rev and not fetched.is_whole:
                return True
            local = self._local.begin()
            try:
                _replace_rows(local, fetched)
                through = min(fetched.sequence - self._retain - 1, held(local).through)
                local.trim(max(0, through))
                position = attrs.evolve(fetched.position, epoch=self.epoch)
                local.put(POSITION_KEY, position.encode())
                local.commit()
            except BaseException:
                local.rollback()
                raise
            self._present = position, fetched.sequence
            return True

    def catch_up(self) -> Fetched:
        """Fetch and apply; blocks. Only where nothing else uses the engine."""
        while True:
            fetched = self.fetch()
            if self.apply_fetched(fetched):
                return fetched

    def close(self) -> None:
        """Close the copy cleanly; the connections are not the engine's."""
        self.release_lock()
        self._local.close()

    def commit(self, transaction: RecordingTransaction) -> None:
        """Commit in PostgreSQL, then in the copy; raises as `RecordingTransaction.commit`."""
        local = transaction.local
        local.sequence()  # raises RuntimeError if the transaction has ended
        if not transaction.changes_something:
            self.release_lock()
            local.commit()
            return
        pending = transaction.pending()
        try:
            local.put(POSITION_KEY, pending.after.encode())
            self._commits.send(pending, self._locked)
        except BaseException as error:
            local.rollback()
            self._has_lost(error, pending)
            raise
        self.release_lock()
        self._losses = 0
        try:
            local.commit()
        except (DiskFull, StoreFailed) as error:
            self._in_doubt = pending
            raise InDoubt from error
        self._present = pending.after, pending.sequence + len(pending.entries)

    def _has_lost(self, error: BaseException, pending: PendingCommit) -> None:
        """Record a commit that PostgreSQL has not made, as far as is known."""
        self.release_lock()
        if isinstance(error, InDoubt):
            self._in_doubt = pending
        elif isinstance(error, Conflict):
            self._losses += 1
            if self._losses >= LOSSES_BEFORE_LOCK:
                self._locked = self._commits.take_lock(pending.base.db)

    def release_lock(self) -> None:
        """Release the lock for which others wait, if this daemon has it; not during a commit."""
        locked, self._locked = self._locked, None
        if locked is not None:
            self._commits.release_lock(locked)


def _replace_rows(local: SqliteTransaction, fetched: Fetched) -> None:
    """Make the touched rows those of PostgreSQL, and append the entries."""
    touched = fetched.touched
    if touched is None:
        local.delete_range(FIRST, END_OF_ROWS)
        local.put_all(fetched.rows)
        local.replace_log(fetched.sequence, fetched.entries)
        return
    for low, high in touched.ranges:
        local.delete_range(low, high)
    for key in touched.keys:
        local.delete(key)
    local.put_all(fetched.rows)
    for entry in fetched.entries:
        local.append(entry.op_id, entry.content)
