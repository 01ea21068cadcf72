"""The writing connection of a shelf file: transactions, space, checkpoints, failure, recovery.

Theory of operation. Nothing is written to disk before `commit`, the only step that waits. A commit
appends its pages to the write-ahead log, ends them with a commit frame and syncs the log. From time
to time a *checkpoint* copies what the log holds into the file and syncs both; the log is then
written again from its start.

A sync that fails says nothing about what is on the disk, and the next one may succeed without
having written what this one did not. Therefore:

- A commit whose sync failed leaves its pages and its commit frame in the log. This process knows
  that and does not read them, but for a process that opens the file later they are a commit. So
  one small page is written over them at once (`_invalidate_tail`): the check sums of what follows
  it in the log no longer match. If the process dies between the two, the commit may take effect
  although its writers received an error; after a power failure they cannot know either.
- No transaction begins until `recover` has copied all that the log holds into the file and synced
  it, has checked over a new connection, past the cache of the system, that the file is sound and
  nothing acknowledged is missing, and has synced one commit of its own.
- A checkpoint that fails after a commit does not undo that commit: it is durable and is
  acknowledged. The engine keeps the log and would write the pages again, but the failure counts.
- A process that died may have left a log whose sync had failed: a log that exists when the file is
  opened is checkpointed before anything else.

No room for a write is another matter: the commit frame is missing, so nothing has happened.

While a commit is made in another thread, reads show the moment before it, and the log is needed for
that. So the checkpoint comes later, as a step of its own, when they have been released; and they
are released once more after it. Only then does no reader need the log, and the next commit restarts
it.

A checkpoint must never need room: on a full disk it is what lets the log be restarted in its own
space, so that removals find some. So the file is made as long as a commit will need it before the
pages go to the log (`FileSpace`).
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import apsw

from treedbd.files import FULL_ERRNOS, allocate, sync_directory
from treedbd.loop import pause, run_beside
from treedbd.store.directory_lock import LOCK_MISPLACED, DirectoryLock
from treedbd.store.engine import (
    TRIMMED_AT_ONCE,
    CannotOpenStore,
    DamagedPage,
    DiskFull,
    LogEntry,
    Row,
    StoreDamaged,
    StoreFailed,
)
from treedbd.store.sqlite.file import (
    BUSY_MS,
    FORMAT,
    LOCK_ERRORS,
    PAGE_BYTES,
    SLEEP_US,
    SQLITE_ERRORS,
    TURN_BUSY_MS,
    cannot_open,
    classify_error,
    connect,
    connect_writer,
    describe,
    log_of,
    set_cache_size,
    this_thread,
)
from treedbd.store.sqlite.history import History, has_content, last_sequence
from treedbd.store.sqlite.reader import GET, SqliteReader

_MISPLACED: Final = "was moved, removed or replaced; put it back."

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
"""A longer value is read and stored in another thread than the reactor's."""
_APPEND = "INSERT INTO log VALUES(1, ?, ?, ?)"
_OLDEST = "SELECT min(seq) FROM log"
_DROP = "DELETE FROM log WHERE seq = ?"
_TRIM = "DELETE FROM log WHERE seq <= ?"
_LONG = "SELECT seq FROM log WHERE seq > ? AND seq <= ? AND length(entry) > ?"
_ENTRY = "SELECT entry FROM log WHERE seq = ?"
_CUT = "UPDATE log SET entry = ? WHERE seq = ?"
_TRIM_ALL = "DELETE FROM log"
_PAGE_COUNT = "PRAGMA page_count"
_SET_SEQUENCE = "UPDATE dbs SET seq = ? WHERE db = 1"

CHECKPOINT_FRAMES: Final = 1000
"""The log is checkpointed at this many pages, and again after as many more until it restarts.

As many as SQLite chooses. A checkpoint waits for the disk three times, and no batch is committed
meanwhile.
"""
LONG_LOG_FRAMES: Final = 2 * CHECKPOINT_FRAMES
RESTART_MS: Final = 50
"""From `LONG_LOG_FRAMES` pages on, a checkpoint waits so long for readers of other processes."""

_IN_FILES: Final = 1
_IN_MEMORY: Final = 2
"""Where SQLite puts what is temporary."""


class SqliteTransaction(SqliteReader):
    """Changes on the writing connection that are not committed yet; there is one at a time.

    At any error of the engine it is rolled back at once, so all that is left to do is to answer its
    writers.
    """

    def __init__(self, connection: apsw.Connection, owner: SqliteWriter) -> None:
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
        return row[0], self._run_long(GET, (row[0],)) if key.startswith(row[0]) else b""

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
        """Return the end of a part of a range that holds at most what is removed at once."""
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
        """Drop the oldest entries with numbers up to and including `through`, some at a time."""
        first = self._execute(_OLDEST).get
        if first is None or first > through:
            return
        through = min(through, first + TRIMMED_AT_ONCE - 1)
        for (number,) in list(self._walk(_LONG, first - 1, through, _LONG_BYTES)):
            self._execute(_DROP, (number,))  # all pages of a long one are read for it
            pause()
        self._execute(_TRIM, (through,))

    def shorten(
        self, after: int, through: int, longest: int, cut: Callable[[bytes], bytes]
    ) -> None:
        """Cut the entries above `after` and up to `through` that have more than `longest` bytes."""
        for (number,) in list(self._walk(_LONG, after, through, longest)):
            content = self._execute(_ENTRY, (number,)).get
            pause()
            self._execute(_CUT, (cut(content), number))
            pause()

    def replace_log(self, sequence: int, entries: Iterable[LogEntry]) -> None:
        """Replace the log by `entries`; the number of the last one ever is `sequence`."""
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


class FileSpace:
    """The space of one file, allocated before a commit so that a checkpoint never needs room.

    What follows the last page means nothing; if a commit fails, the file is truncated there again,
    by this process or by the next checkpoint.

    Attributes:
        missing: by how many bytes the file was too short for the last commit.

    Closing any descriptor of a file drops the locks of this process on it, SQLite's too: the one of
    this class stays open from before the first connection until after the last.

    """

    def __init__(self, path: pathlib.Path) -> None:
        """Open the file; raise OSError."""
        self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._size_before: int | None = None
        self.missing = 0

    def allocate(self, pages: int) -> bool:
        """Allocate the space of a file of that many pages; return whether there is enough."""
        size = os.fstat(self._descriptor).st_size
        self.missing = max(0, pages * PAGE_BYTES - size)
        if not self.missing:
            return True
        self._size_before = size
        try:
            allocate(self._descriptor, size, self.missing)
        except OSError as error:
            if error.errno in FULL_ERRNOS:
                self.give_back()
                return False
            # Any other error will be reported by the commit itself.
        return True

    def keep(self) -> None:
        """Record that the space is used: the commit has succeeded."""
        self._size_before = None

    def give_back(self) -> None:
        """Release the space that was allocated for a commit that failed."""
        if self._size_before is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self._size_before)
            self._size_before = None

    def forget_cached(self) -> None:
        """Drop the file from the cache of the system, so that the next reads come from the disk."""
        if sys.platform == "linux":
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Close the file, after the last connection."""
        os.close(self._descriptor)


class OpenFiles:
    """The shelf and its log, and the lock of the data directory if this process holds it.

    A file that is renamed or removed stays open, and what is written to it then is lost, or is
    never found. Another file in its place would be another history. So whether the paths still lead
    to the open files is checked before each commit, and nothing is committed while a file is
    elsewhere. Reads go on: what is open still holds all that was acknowledged.

    A commit only checks that there is a log (`find_missing`), since on Linux (from 6.13 on) each
    `stat` of a file makes the next write to it change its inode: that took 30 µs for each commit,
    and this takes 5. Which log it is, is checked from time to time (`find_misplaced`).
    """

    def __init__(self, path: pathlib.Path, lock: DirectoryLock | None) -> None:
        """Remember which files there are; raise OSError if one is missing."""
        self._lock = lock
        self._shelf = os.fspath(path)
        self._log = os.fspath(log_of(path))
        self._shelf_status = os.stat(self._shelf)
        self._log_status = os.stat(self._log)

    def find_missing(self) -> str | None:
        """Return a sentence, without a path, about a file that is not where it was opened.

        Another log in the place of the one in use is not noticed.
        """
        if not _is_same(self._shelf, self._shelf_status):
            return f"The file of the database {_MISPLACED}"
        if not os.access(self._log, os.F_OK):
            return f"The write-ahead log of the database {_MISPLACED}"
        if self._lock is not None and not _is_same(self._lock.path, self._lock.status):
            return LOCK_MISPLACED
        return None

    def find_misplaced(self) -> str | None:
        """Return a sentence, without a path, about a file that is not where it was opened."""
        problem = self.find_missing()
        if problem is None and not _is_same(self._log, self._log_status):
            return f"The write-ahead log of the database {_MISPLACED}"
        return problem


def _is_same(path: str, status: os.stat_result) -> bool:
    """Return whether a path leads to the file that had this status."""
    try:
        return os.path.samestat(os.stat(path), status)
    except OSError:
        return False


def commit_nothing(connection: apsw.Connection) -> None:
    """Commit one page with the content that it has already."""
    try:
        connection.execute(f"BEGIN IMMEDIATE; PRAGMA user_version = {FORMAT}; COMMIT")
    except SQLITE_ERRORS:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def checkpoint_all(connection: apsw.Connection) -> None:
    """Checkpoint the whole log and empty it, unless older readers or a full disk prevent it."""
    try:
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    except LOCK_ERRORS:
        pass
    except SQLITE_ERRORS as error:
        if not isinstance(classify_error(connection, error), DiskFull):
            raise


class LogLength:
    """How long the log is, and when it is due to be checkpointed."""

    def __init__(self) -> None:
        self._frames = 0
        self._checkpoint_at = CHECKPOINT_FRAMES

    def is_due(self) -> bool:
        """Return whether the log has grown long enough since the last checkpoint."""
        return self._frames >= self._checkpoint_at

    @property
    def is_long(self) -> bool:
        """Whether the log has not been restarted for long in spite of checkpoints."""
        return self._frames >= LONG_LOG_FRAMES

    def count(self, _connection: apsw.Connection, _name: str, frames: int) -> int:
        """Record a commit, after which the log has so many frames (SQLite's hook)."""
        if frames < self._frames:
            self._checkpoint_at = CHECKPOINT_FRAMES
        self._frames = frames
        return apsw.SQLITE_OK

    def postpone(self) -> None:
        """Record that a checkpoint begins; the next one is due after as many frames more."""
        self._checkpoint_at = self._frames + CHECKPOINT_FRAMES


def checkpoint_some(connection: apsw.Connection, *, waits: bool) -> None:
    """Copy what readers allow from the log to the file.

    With `waits` it waits a moment for the readers of other processes, which go on when they notice
    what has been committed.
    """
    if not waits:
        connection.wal_checkpoint()
        return
    connection.set_busy_timeout(RESTART_MS)
    try:
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_FULL)
    finally:
        connection.set_busy_timeout(BUSY_MS)


def verify_file(connection: apsw.Connection, last: int, space: FileSpace) -> None:
    """Raise `StoreFailed` unless the file is sound on the disk and holds the change `last`."""
    space.forget_cached()
    found = connection.pragma("quick_check", 1)
    if found != "ok":
        raise StoreFailed(f"The file is damaged: {found}")
    if last_sequence(connection) < last:
        raise StoreFailed("Acknowledged changes are missing from the file.")


def vacuum(connection: apsw.Connection) -> None:
    """Write the file again, in one transaction, without free space.

    What is temporary goes to files meanwhile: the database need not fit into memory.
    """
    connection.pragma("temp_store", _IN_FILES)
    try:
        connection.execute("VACUUM")
    finally:
        connection.pragma("temp_store", _IN_MEMORY)


class SqliteWriter:
    """The one connection that writes and checkpoints a file; owns its transactions.

    Attributes:
        history: the history of the file, as it was found.
        is_sound: whether all of the file is known to be sound.
        log_length: how long the log is.
        report_damage: called, in the thread that uses the engine, if the file is found damaged.
        release_reads: ends the transaction of reads, so that the next read sees what has been
            committed; returns False if it must not yet, or if a read is under way. A reader of an
            older moment keeps the log from being restarted, and a checkpoint from copying all.

    """

    def __init__(
        self,
        path: pathlib.Path,
        lock: DirectoryLock | None = None,
        *,
        accept_loss: bool = False,
        is_alone: bool = True,
        is_cache: bool = False,
    ) -> None:
        """Open the file and checkpoint its log; raise `CannotOpenStore` or `DiskFull`.

        Nothing is committed while `lock` is not in its place. With `accept_loss` the file is opened
        although changes are missing from it (`History`). Unless it `is_alone`, others use the log.
        With `is_cache` commits are not synced.
        """
        self.history: Final = History(path)
        self.release_reads: Callable[[], bool] = lambda: True
        self.report_damage: Callable[[DamagedPage | StoreDamaged], None] = lambda _: None
        self._path = path
        self._space = FileSpace(path)
        self._is_cache = is_cache
        self._failure: str | None = None
        self._damage: DamagedPage | StoreDamaged | None = None  # not reported yet
        self._transaction: SqliteTransaction | None = None
        self._has_reported = False
        self._version = 0
        self.log_length: Final = LogLength()
        self._cache_size: int | None = None
        try:
            self._connection = connect_writer(path, is_cache=is_cache)
            try:
                self._open(lock, accept_loss=accept_loss, is_alone=is_alone)
            except BaseException:
                # What is left of the log stays for the operator.
                self._connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
                self._connection.close()
                raise
        except BaseException:
            self._space.close()
            self.history.close(is_clean=False)
            raise

    def _open(self, lock: DirectoryLock | None, *, accept_loss: bool, is_alone: bool) -> None:
        try:
            self.history.check(self._connection, accept_loss=accept_loss)
            self.is_sound = self.history.was_closed_cleanly
            self._adopt(self._connection, is_alone=is_alone)
            self._last = last_sequence(self._connection)
        except SQLITE_ERRORS as error:
            raise cannot_open(self._path, error, self._connection) from error
        self._files = OpenFiles(self._path, lock)
        self.history.replace_mark()

    def limit_cache(self, size: int) -> None:
        """Keep about `size` bytes of pages in memory at most; not during a commit."""
        self._cache_size = size
        set_cache_size(self._connection, size)

    def begin(self) -> SqliteTransaction:
        """Open the one transaction; raise `StoreFailed`."""
        if self._damage is not None:
            self._report_damage()
        if self._failure is not None:
            raise StoreFailed(self._failure)
        if self._transaction is not None:
            raise RuntimeError("A transaction is already open.")
        self._connection.set_busy_timeout(TURN_BUSY_MS)
        this_thread.sleep_us = SLEEP_US
        try:
            self._transaction = SqliteTransaction(self._connection, self)
        finally:
            this_thread.sleep_us = None
            self._connection.set_busy_timeout(BUSY_MS)
        return self._transaction

    def find_misplaced(self) -> str | None:
        """Return a sentence about a file that is not where it was opened; None if all are.

        While there is one, nothing is committed.
        """
        return self._files.find_misplaced()

    def check_in_place(self) -> None:
        """Raise `StoreFailed` if the path may lead to another file than the one that is open."""
        problem = self.find_misplaced()
        if problem is not None:
            raise StoreFailed(problem)

    def prepare(self, pages: int) -> None:
        """Make sure that a commit will last, in a file of that many pages.

        Raises `DiskFull` or `StoreFailed`.
        """
        self._prepare_files()
        if not self._space.allocate(pages):
            raise DiskFull(file=self._path, needed=2 * self._space.missing)  # in the log too

    def _prepare_files(self) -> None:
        problem = self._files.find_missing()
        if problem is not None:
            self._failure = problem
            raise StoreFailed(problem)
        try:
            self.history.begin()
        except OSError as error:
            raise self._mark_failed(error) from error

    def committed(self, newest: tuple[int, bytes] | None) -> None:
        """Record a commit; checkpoint if the log has grown long enough and reads permit.

        `newest` are the number and the id of the last entry that was appended, None without one.
        """
        self._transaction = None
        self._space.keep()
        if newest is not None:
            self._last = newest[0]
            try:
                self.history.advance(*newest)
            except OSError as error:  # the commit is durable all the same
                self._mark_failed(error)
        if self.release_reads() and self.log_length.is_due():
            self.checkpoint()

    def rolled_back(self) -> None:
        """Record a transaction that changed nothing."""
        self._transaction = None

    def failed(self, error: apsw.Error, *, in_commit: bool) -> DiskFull | StoreFailed:
        """Record a transaction that failed; return what to raise for it."""
        self._transaction = None
        self._space.give_back()
        failure = self._record(error)
        if in_commit and isinstance(failure, DiskFull):
            # All that was changed is in the cache, and went to the log.
            changed, _ = self._connection.status(apsw.SQLITE_DBSTATUS_CACHE_USED)
            failure.needed = self._space.missing + changed
        if in_commit and self._failure is not None:
            self._invalidate_tail()
        if not in_commit:  # a commit may be made in another thread
            self._report_damage()
        return failure

    def checkpoint(self) -> None:
        """Copy the log into the file as far as readers allow; not in a transaction.

        Raises nothing. A failure is recorded; a full disk is not, since it can pass by itself.
        """
        if self._transaction is None:
            self.log_length.postpone()
            self.release_reads()
            is_long = self.log_length.is_long
            self._try(lambda: checkpoint_some(self._connection, waits=is_long))
            self.release_reads()  # a read meanwhile would keep the log from being restarted
            try:
                self.history.sync()
            except OSError as error:
                self._mark_failed(error)
            self._failure = self._failure or self.find_misplaced()

    def compact(self) -> None:
        """Write the file again without free space; not in a transaction.

        SQLite does that in a transaction of its own, which readers do not see before its end.
        Raises `DiskFull` or `StoreFailed`; then nothing has changed.
        """
        if self._failure is not None:
            raise StoreFailed(self._failure)
        self._prepare_files()
        try:
            vacuum(self._connection)
        except SQLITE_ERRORS as error:
            raise self._record(error) from error
        self.checkpoint()  # reads that begin after it need no log, so it can be emptied
        self.truncate_log()

    def truncate_log(self) -> None:
        """Release the space of the log, which it keeps after a checkpoint; raises nothing."""
        if self._transaction is None:
            self.release_reads()
            self._try(lambda: checkpoint_all(self._connection))

    def recover(self) -> None:
        """Bring the file back from disk and verify it; raise `StoreFailed`."""
        if self._transaction is not None:
            self._transaction.rollback()
        problem = self.find_misplaced()
        if problem is not None:
            # Not over a new connection, which would open other files. What the log holds goes into
            # the file, wherever that is now.
            self.checkpoint()
            raise StoreFailed(problem)
        try:
            fresh = connect_writer(self._path, is_cache=self._is_cache)
        except SQLITE_ERRORS as error:
            raise StoreFailed(describe(error)) from error
        except (OSError, CannotOpenStore, DiskFull) as error:
            raise StoreFailed("The file cannot be opened again.") from error
        try:
            self.release_reads()
            self._adopt(fresh)
            verify_file(fresh, self._last, self._space)
            self.history.renew(fresh)
            commit_nothing(fresh)
        except BaseException as error:
            fresh.close()
            if isinstance(error, SQLITE_ERRORS):
                raise StoreFailed(describe(error)) from error
            if isinstance(error, OSError):
                raise StoreFailed(_mark_problem(error)) from error
            raise
        self._connection.close()
        self._connection = fresh
        self._failure = None

    def refresh(self) -> None:
        """Go on after what other processes have written, if they have; not in a transaction."""
        this_thread.sleep_us = SLEEP_US
        try:
            # It changes with what other connections commit, not with what this one does.
            version = self._connection.pragma("data_version")
            if version == self._version:
                return
            self._version = version
            self._last = self.history.read_newest(self._connection)
            self.history.follow_mark()
        except SQLITE_ERRORS as error:
            self._record(error)
        except OSError as error:
            self._mark_failed(error)
        finally:
            this_thread.sleep_us = None

    def fail(self, reason: str) -> None:
        """Begin no transaction before a recovery: another process has failed."""
        self._failure = self._failure or reason
        self._has_reported = True

    def take_failure(self) -> bool:
        """Return whether it has failed since the last call."""
        has_failed, had_failed = self._failure is not None, self._has_reported
        self._has_reported = has_failed
        return has_failed and not had_failed

    def close(self, *, may_write: bool = True, is_last: bool = True) -> None:
        """Checkpoint, remove the log and close; after the last reader has closed.

        Unless it `may_write`, the log stays. Unless it `is_last`, others have the file open.
        """
        if self._transaction is not None:
            self._transaction.rollback()
        is_clean = is_last and self.is_sound and self._failure is None
        is_clean = is_clean and self.find_misplaced() is None
        if may_write and is_last and self.history.was_closed_cleanly and not self.is_sound:
            with contextlib.suppress(OSError):
                self.history.begin()  # damage was found: the next opening checks the file
        if not may_write:
            self._connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        self._connection.close()
        self._space.close()
        self.history.close(is_clean=is_clean and self._has_no_log())

    def _has_no_log(self) -> bool:
        """Return whether the log is gone, so that even a power failure cannot bring it back."""
        log = log_of(self._path)
        try:
            sync_directory(log.parent)
        except OSError:
            return False
        return not has_content(log)

    def _adopt(self, connection: apsw.Connection, *, is_alone: bool = True) -> None:
        """Checkpoint the log over a new connection, and count its frames from then on."""
        if is_alone:
            checkpoint_all(connection)
        connection.set_wal_hook(self.log_length.count)
        if self._cache_size is not None:
            set_cache_size(connection, self._cache_size)

    def _try(self, checkpoint: Callable[[], object]) -> None:
        try:
            checkpoint()
        except SQLITE_ERRORS as error:
            self._record(error)

    def _mark_failed(self, error: OSError) -> DiskFull | StoreFailed:
        """Record that the mark could not be written; return what to raise for it."""
        if error.errno in FULL_ERRNOS:
            return DiskFull(file=self._path)
        self._failure = _mark_problem(error)
        return StoreFailed(self._failure)

    def _record(self, error: apsw.Error) -> DiskFull | StoreFailed:
        """Return what an error means; keep it if nothing can be guaranteed from now on."""
        failure = classify_error(self._connection, error)
        if isinstance(failure, DiskFull):
            failure.file = self._path
        if isinstance(failure, StoreFailed) and not isinstance(error, LOCK_ERRORS):
            self._failure = str(failure)
        if isinstance(failure, DamagedPage | StoreDamaged):
            self._damage = failure
        return failure

    def _report_damage(self) -> None:
        damage, self._damage = self._damage, None
        if damage is not None:
            self.report_damage(damage)

    def _invalidate_tail(self) -> None:
        with contextlib.suppress(*SQLITE_ERRORS):
            commit_nothing(self._connection)


def apply_log(path: pathlib.Path, *, accept_loss: bool) -> None:
    """Put all of the log into the file and remove it, with the index of the log in memory alone.

    No other process may have the file open. Raises `CannotOpenStore`, or one of `SQLITE_ERRORS`.
    """
    history = History(path)
    try:
        with contextlib.closing(connect(path)) as connection:
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            connection.pragma("locking_mode", "exclusive")  # first: then the index is in memory
            connection.pragma("synchronous", 2)
            connection.pragma("checkpoint_fullfsync", 1)
            history.check(connection, accept_loss=accept_loss)
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)
    finally:
        history.close(is_clean=False)


def _mark_problem(error: OSError) -> str:
    return f"The mark beside the file cannot be written: {error.strerror}."
