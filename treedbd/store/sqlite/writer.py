"""The writing connection of a shelf file: transactions, checkpoints, failure, recovery.

Theory of operation
-------------------
A commit appends its pages to the write-ahead log, ends them with a commit frame and syncs the log.
From time to time a *checkpoint* copies what the log holds into the file and syncs both; the log is
then written again from its start.

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

No room for a write is another matter: the commit frame is missing, and the transaction never
happened.

While a commit is made in another thread, reads show the moment before it, and the log is needed for
that. So the checkpoint comes later, as a step of its own, when they have been let go; and they are
let go once more after it. Only then does no reader need the log, and the next commit restarts it.

A checkpoint must never need room: on a full disk it is what lets the log be restarted in its own
space, so that removals find some. So the file is made as long as a commit will need it before the
pages go to the log. What follows the last page means nothing; if the commit fails, the file is
truncated there again, by us or by the next checkpoint.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
import sys
from collections.abc import Callable
from typing import Final

import apsw

from treedbd.files import FULL_ERRNOS, allocate
from treedbd.store.engine import CannotOpenStore, DiskFull, StoreFailed
from treedbd.store.lock import DirectoryLock
from treedbd.store.sqlite.errors import (
    LOCK_ERRORS,
    SQLITE_ERRORS,
    cannot_open,
    classify_error,
    describe,
)
from treedbd.store.sqlite.file import PAGE_BYTES, connect_writer, log_of, set_cache_size
from treedbd.store.sqlite.history import History, has_content
from treedbd.store.sqlite.open_files import OpenFiles
from treedbd.store.sqlite.transaction import SqliteTransaction
from treedbd.store.sqlite.wal import checkpoint_all, commit_nothing, last_sequence, vacuum

CHECKPOINT_FRAMES: Final = 250
"""The log is checkpointed at this many pages, and again after as many more until it restarts."""


class SqliteWriter:
    """The one connection that writes and checkpoints a file; owns its transactions.

    Attributes:
        history: the history of the file, as it was found.
        is_sound: whether all of the file is known to be sound.
        let_reads_go: lets the next read see what has been committed; returns False if it must not
            yet, or if a read is under way. A reader of an older moment keeps the log from being
            restarted, and a checkpoint from copying all of it.

    """

    def __init__(
        self, path: pathlib.Path, lock: DirectoryLock | None = None, *, accept_loss: bool = False
    ) -> None:
        """Open the file and checkpoint its log; raise `CannotOpenStore` or `DiskFull`.

        Nothing is committed while `lock` is not in its place. With `accept_loss` the file is opened
        although changes are missing from it (`history`).
        """
        self.history: Final = History(path)
        self.let_reads_go: Callable[[], bool] = _nothing_reads
        self._path = path
        # Closing any descriptor of a file drops the locks of this process on it, SQLite's too: this
        # one stays open from before the first connection until after the last.
        self._disk = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._failure: str | None = None
        self._transaction: SqliteTransaction | None = None
        self._frames = 0
        self._checkpoint_at = CHECKPOINT_FRAMES
        self._cache_size: int | None = None
        self._size_before: int | None = None
        try:
            self._connection = connect_writer(path)
            try:
                self._open(lock, accept_loss=accept_loss)
            except BaseException:
                # What is left of the log stays for the operator.
                self._connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
                self._connection.close()
                raise
        except BaseException:
            os.close(self._disk)
            self.history.close(is_clean=False)
            raise

    def _open(self, lock: DirectoryLock | None, *, accept_loss: bool) -> None:
        try:
            self.history.check(self._connection, accept_loss=accept_loss)
            self.is_sound = self.history.was_closed_cleanly
            self._adopt(self._connection)
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
        if self._failure is not None:
            raise StoreFailed(self._failure)
        if self._transaction is not None:
            raise RuntimeError("A transaction is already open.")
        self._transaction = SqliteTransaction(self._connection, self)
        return self._transaction

    def find_misplaced(self) -> str | None:
        """Return a sentence about a file that is not where it was opened; None if all are."""
        return self._files.find_misplaced()

    def prepare(self, pages: int) -> None:
        """Make sure that what is committed will last; raise `DiskFull` or `StoreFailed`."""
        self._prepare_files()
        if not self._make_space(pages):
            raise DiskFull

    def _prepare_files(self) -> None:
        problem = self._files.find_missing()
        if problem is not None:
            self._failure = problem
            raise StoreFailed(problem)
        try:
            self.history.begin()
        except OSError as error:
            raise self._mark_failed(error) from error

    def _make_space(self, pages: int) -> bool:
        """Allocate the space of a file of that many pages; return whether there is enough."""
        size = os.fstat(self._disk).st_size
        missing = pages * PAGE_BYTES - size
        if missing <= 0:
            return True
        self._size_before = size
        try:
            allocate(self._disk, size, missing)
        except OSError as error:
            if error.errno in FULL_ERRNOS:
                self._truncate()
                return False
            # Any other error will be reported by the commit itself.
        return True

    def committed(self, newest: tuple[int, bytes] | None) -> None:
        """Record a commit; checkpoint if the log has grown long enough and reads permit."""
        self._transaction = None
        self._size_before = None
        if newest is not None:
            self._last = newest[0]
            self._try_mark(functools.partial(self.history.advance, *newest))
        if self.let_reads_go() and self.needs_checkpoint:
            self.checkpoint()

    @property
    def needs_checkpoint(self) -> bool:
        """Whether the log has grown long enough since the last checkpoint."""
        return self._frames >= self._checkpoint_at

    def rolled_back(self) -> None:
        """Record a transaction that changed nothing."""
        self._transaction = None

    def failed(self, error: apsw.Error, *, in_commit: bool) -> DiskFull | StoreFailed:
        """Record a transaction that failed; return what to raise for it."""
        self._transaction = None
        self._truncate()
        failure = self._record(error)
        if in_commit and self._failure is not None:
            self._invalidate_tail()
        return failure

    def checkpoint(self) -> None:
        """Copy the log into the file as far as readers allow; not in a transaction.

        Raises nothing. A failure is recorded; a full disk is not, since it can pass by itself.
        """
        if self._transaction is None:
            self._checkpoint_at = self._frames + CHECKPOINT_FRAMES
            self.let_reads_go()
            self._try(self._connection.wal_checkpoint)
            self.let_reads_go()  # who has read meanwhile would keep the log from being restarted
            self._try_mark(self.history.sync)
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
            self.let_reads_go()
            self._try(lambda: checkpoint_all(self._connection))

    def recover(self) -> None:
        """Bring the file back from disk and verify it; raise `StoreFailed`."""
        if self._transaction is not None:
            self._transaction.rollback()
        problem = self.find_misplaced()
        if problem is not None:
            # Not over a new connection, which would open other files. What the log holds goes into
            # the file, wherever that is now: then the log is not needed any more.
            self.checkpoint()
            raise StoreFailed(problem)
        try:
            fresh = connect_writer(self._path)
        except SQLITE_ERRORS as error:
            raise StoreFailed(describe(error)) from error
        except (OSError, CannotOpenStore, DiskFull) as error:
            raise StoreFailed("The file cannot be opened again.") from error
        try:
            self.let_reads_go()
            self._adopt(fresh)
            self._verify(fresh)
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

    def close(self) -> None:
        """Checkpoint, remove the log and close; after the last reader has closed."""
        if self._transaction is not None:
            self._transaction.rollback()
        is_clean = self.is_sound and self._failure is None and self.find_misplaced() is None
        self._connection.close()
        os.close(self._disk)
        self.history.close(is_clean=is_clean and not has_content(log_of(self._path)))

    def _adopt(self, connection: apsw.Connection) -> None:
        """Checkpoint the whole log over a new connection, and count its frames from then on."""
        checkpoint_all(connection)
        connection.set_wal_hook(self._count_frames)
        if self._cache_size is not None:
            set_cache_size(connection, self._cache_size)

    def _count_frames(self, _connection: apsw.Connection, _name: str, frames: int) -> int:
        if frames < self._frames:
            self._checkpoint_at = CHECKPOINT_FRAMES
        self._frames = frames
        return apsw.SQLITE_OK

    def _try(self, checkpoint: Callable[[], object]) -> None:
        try:
            checkpoint()
        except SQLITE_ERRORS as error:
            self._record(error)

    def _try_mark(self, write: Callable[[], None]) -> None:
        """Write to the mark after a commit, which is durable even if that fails."""
        try:
            write()
        except OSError as error:
            self._mark_failed(error)

    def _mark_failed(self, error: OSError) -> DiskFull | StoreFailed:
        """Record that the mark could not be written; return what to raise for it."""
        if error.errno in FULL_ERRNOS:
            return DiskFull()
        self._failure = _mark_problem(error)
        return StoreFailed(self._failure)

    def _record(self, error: apsw.Error) -> DiskFull | StoreFailed:
        """Return what an error means; keep it if nothing can be guaranteed from now on."""
        failure = classify_error(self._connection, error)
        if isinstance(failure, StoreFailed) and not isinstance(error, LOCK_ERRORS):
            self._failure = str(failure)
        return failure

    def _truncate(self) -> None:
        """Release the space that was allocated for a commit that failed."""
        if self._size_before is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(self._disk, self._size_before)
            self._size_before = None

    def _invalidate_tail(self) -> None:
        with contextlib.suppress(*SQLITE_ERRORS):
            commit_nothing(self._connection)

    def _verify(self, connection: apsw.Connection) -> None:
        if sys.platform == "linux":
            os.posix_fadvise(self._disk, 0, 0, os.POSIX_FADV_DONTNEED)
        found = connection.pragma("quick_check", 1)
        if found != "ok":
            raise StoreFailed(f"The file is damaged: {found}")
        if last_sequence(connection) < self._last:
            raise StoreFailed("Acknowledged changes are missing from the file.")


def _nothing_reads() -> bool:
    return True


def _mark_problem(error: OSError) -> str:
    return f"The mark beside the file cannot be written: {error.strerror}."
