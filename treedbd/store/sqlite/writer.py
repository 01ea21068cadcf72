"""The writing connection of a shelf file: transactions, checkpoints, failure, recovery.

Theory of operation. A commit appends its pages to the write-ahead log, ends them with a commit
frame and syncs the log. From time to time a *checkpoint* copies what the log holds into the file
and syncs both; the log is then written again from its start.

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
that. So the checkpoint comes later, as a step of its own, when they have been let go; and they are
let go once more after it. Only then does no reader need the log, and the next commit restarts it.

A checkpoint must never need room: on a full disk it is what lets the log be restarted in its own
space, so that removals find some. So the file is made as long as a commit will need it before the
pages go to the log (`space`).
"""

from __future__ import annotations

import contextlib
import functools
import pathlib
from collections.abc import Callable
from typing import Final

import apsw

from treedbd.files import FULL_ERRNOS, sync_directory
from treedbd.store.engine import CannotOpenStore, DamagedPage, DiskFull, StoreDamaged, StoreFailed
from treedbd.store.lock import DirectoryLock
from treedbd.store.sqlite.errors import (
    LOCK_ERRORS,
    SQLITE_ERRORS,
    cannot_open,
    classify_error,
    describe,
)
from treedbd.store.sqlite.file import (
    BUSY_MS,
    TURN_BUSY_MS,
    connect,
    connect_writer,
    log_of,
    set_cache_size,
)
from treedbd.store.sqlite.history import History, has_content
from treedbd.store.sqlite.open_files import OpenFiles
from treedbd.store.sqlite.sleeps import SLEEP_US, this_thread
from treedbd.store.sqlite.space import FileSpace
from treedbd.store.sqlite.transaction import SqliteTransaction
from treedbd.store.sqlite.wal import (
    LogLength,
    checkpoint_all,
    checkpoint_some,
    commit_nothing,
    last_sequence,
    vacuum,
    verify,
)


class SqliteWriter:
    """The one connection that writes and checkpoints a file; owns its transactions.

    Attributes:
        history: the history of the file, as it was found.
        is_sound: whether all of the file is known to be sound.
        report_damage: called, in the thread that uses the engine, if the file is found damaged.
        let_reads_go: lets the next read see what has been committed; returns False if it must not
            yet, or if a read is under way. A reader of an older moment keeps the log from being
            restarted, and a checkpoint from copying all of it.

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
        although changes are missing from it (`history`). Unless it `is_alone`, others use the log.
        With `is_cache` commits are not synced.
        """
        self.history: Final = History(path)
        self.let_reads_go: Callable[[], bool] = lambda: True
        self.report_damage: Callable[[DamagedPage | StoreDamaged], None] = lambda _: None
        self._path = path
        self._space = FileSpace(path)
        self._is_cache = is_cache
        self._failure: str | None = None
        self._damage: DamagedPage | StoreDamaged | None = None  # not reported yet
        self._transaction: SqliteTransaction | None = None
        self._has_reported = False
        self._version = 0
        self._log_length = LogLength()
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
        """Return a sentence about a file that is not where it was opened; None if all are."""
        return self._files.find_misplaced()

    def prepare(self, pages: int) -> None:
        """Make sure that what is committed will last; raise `DiskFull` or `StoreFailed`."""
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
        """Record a commit; checkpoint if the log has grown long enough and reads permit."""
        self._transaction = None
        self._space.keep()
        if newest is not None:
            self._last = newest[0]
            self._try_mark(functools.partial(self.history.advance, *newest))
        if self.let_reads_go() and self.needs_checkpoint:
            self.checkpoint()

    @property
    def needs_checkpoint(self) -> bool:
        """Whether the log has grown long enough since the last checkpoint."""
        return self._log_length.is_due

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
            self._log_length.postpone()
            self.let_reads_go()
            is_long = self._log_length.is_long
            self._try(lambda: checkpoint_some(self._connection, waits=is_long))
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
            self.let_reads_go()
            self._adopt(fresh)
            verify(fresh, self._last, self._space.forget_cached)
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
            self._last = last_sequence(self._connection)
            self.history.follow(self._connection)
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
        """Return whether there is no log, and a power failure cannot bring it back either."""
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
        connection.set_wal_hook(self._log_length.count)
        if self._cache_size is not None:
            set_cache_size(connection, self._cache_size)

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

    Nobody else may have the file open. Raises `CannotOpenStore`, or one of `SQLITE_ERRORS`.
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
