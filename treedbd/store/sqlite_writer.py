"""The writing connection of a shelf file: transactions, the fold of the log, failure, recovery.

Theory of operation
-------------------
A commit writes its pages behind the last one in the write-ahead log, ends them with a mark and
syncs the log. From time to time what the log holds is *folded* into the file (SQLite says
checkpoint), which syncs both; the log is then written again from its beginning.

A sync that fails says nothing about what is on the medium, and the next one may succeed without
having written what this one did not. What follows from that:

- A commit whose sync failed leaves its pages and its mark in the log. The running process knows
  better and does not read them, but a process that opens the file later takes them for a commit.
  So one small page is written over them at once (`_bury`): what follows it in the log no longer
  carries the right sums. Should the process die between the two, the commit may come to life
  although its writers were told that it failed; they cannot be told anything more exact, either,
  when the power fails.
- No transaction begins until `recover` has rewritten and synced all that the log holds, into the
  file, has looked from a new connection, past the cache of the system, whether the file is sound
  and nothing acknowledged is missing, and has had one commit of its own synced.
- A fold that fails after a commit does not undo that commit: it is durable and is acknowledged.
  The engine keeps the log and would write the pages again, but the failure is remembered.
- A process that died may have left a log whose sync had failed: a log that is there when the file
  is opened is folded before anything else is done.

No room for a write is another matter: the mark is missing, and the transaction never happened.

A fold must never need room: on a full disk it is the fold that lets the log be begun anew, in room
that it has already, so that what is removed finds some. So the file is made as long as a commit
will have it before its pages go to the log. What lies behind the last page means nothing; where
the commit fails the file is cut off there again, by us or by the next fold.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import sys
from collections.abc import Callable

import apsw

from treedbd.store.files import FULL_ERRNOS, allocate
from treedbd.store.mapping import Failed, Full, Refused
from treedbd.store.sqlite_file import (
    FORMAT,
    LOCKED,
    PAGE_BYTES,
    TROUBLE,
    connect_writer,
    describe,
    refusal,
    trouble,
)
from treedbd.store.sqlite_transaction import SqliteTransaction

FOLD_FRAMES = 250
"""Pages in the log from which it is folded; as many again after a fold that readers hindered."""


class SqliteWriter:
    """The one writing and folding connection of a file; the `Owner` of its transactions."""

    def __init__(self, path: pathlib.Path) -> None:
        """Open the file and fold what its log holds; raise `Refused`, or `Full`."""
        self._path = path
        # Closing any descriptor of a file drops the locks of this process on it, SQLite's among
        # them: this one stays open from before the first connection until after the last.
        self._disk = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._failure: str | None = None
        self._transaction: SqliteTransaction | None = None
        self._frames = 0
        self._fold_at = FOLD_FRAMES
        self._shorter: int | None = None
        try:
            self._connection = self._connect()
            self._last = _last_sequence(self._connection)
        except TROUBLE as error:
            os.close(self._disk)
            raise refusal(path, error) from error
        except BaseException:
            os.close(self._disk)
            raise

    def begin(self) -> SqliteTransaction:
        """Open the one transaction; raise `Failed`."""
        if self._failure is not None:
            raise Failed(self._failure)
        if self._transaction is not None:
            raise RuntimeError("There is one transaction at a time.")
        self._transaction = SqliteTransaction(self._connection, self)
        return self._transaction

    def has_room(self, pages: int) -> bool:
        """Take the room for a file of so many pages, if there is; a commit is to follow."""
        size = os.fstat(self._disk).st_size
        missing = pages * PAGE_BYTES - size
        if missing <= 0:
            return True
        self._shorter = size
        try:
            allocate(self._disk, size, missing)
        except OSError as error:
            if error.errno in FULL_ERRNOS:
                self._cut_off()
                return False
            # Some other trouble, of which the commit itself will tell.
        return True

    def committed(self, sequence: int) -> None:
        """Take note of a commit; fold the log when it has grown long enough."""
        self._transaction = None
        self._shorter = None
        self._last = sequence
        if self._frames >= self._fold_at:
            self.fold()

    def rolled_back(self) -> None:
        """Take note of a transaction that changed nothing."""
        self._transaction = None

    def broken(self, error: apsw.Error, *, in_commit: bool) -> Full | Failed:
        """Take note of a transaction that failed; return what it is to be raised as."""
        self._transaction = None
        self._cut_off()
        failure = self._note(error)
        if in_commit and self._failure is not None:
            self._bury()
        return failure

    def fold(self) -> None:
        """Bring what the log holds into the file, as far as readers let it; not in a transaction.

        Raises nothing: a failure is remembered, and no room in the file is a matter of patience.
        """
        if self._transaction is None:
            self._fold_at = self._frames + FOLD_FRAMES
            self._try(self._connection.wal_checkpoint)

    def empty_log(self) -> None:
        """Give back the room of the log, which keeps it after a fold; raises nothing."""
        if self._transaction is None:
            self._try(lambda: _fold_all(self._connection))

    def recover(self) -> None:
        """Bring the file back from disk and verify it; raise `Failed`."""
        if self._transaction is not None:
            self._transaction.rollback()
        try:
            if not os.path.samestat(os.fstat(self._disk), self._path.stat()):
                raise Failed("The file has been replaced by another.")
            fresh = self._connect()
        except TROUBLE as error:
            raise Failed(describe(error)) from error
        except (OSError, Refused, Full) as error:
            raise Failed("The file cannot be opened again.") from error
        try:
            self._verify(fresh)
            _touch(fresh)
        except TROUBLE as error:
            fresh.close()
            raise Failed(describe(error)) from error
        except BaseException:
            fresh.close()
            raise
        self._connection.close()
        self._connection = fresh
        self._failure = None

    def close(self) -> None:
        """Fold the log, remove it and close; to be called after the last reader has closed."""
        if self._transaction is not None:
            self._transaction.rollback()
        self._connection.close()
        os.close(self._disk)

    def _connect(self) -> apsw.Connection:
        connection = connect_writer(self._path)
        try:
            _fold_all(connection)
        except BaseException:
            connection.close()
            raise
        connection.set_wal_hook(self._count_frames)
        return connection

    def _count_frames(self, _connection: apsw.Connection, _name: str, frames: int) -> int:
        if frames < self._frames:
            self._fold_at = FOLD_FRAMES
        self._frames = frames
        return apsw.SQLITE_OK

    def _try(self, fold: Callable[[], object]) -> None:
        try:
            fold()
        except TROUBLE as error:
            self._note(error)

    def _note(self, error: apsw.Error) -> Full | Failed:
        """Return what the error means; remember it if it means that nothing can be vouched for."""
        failure = trouble(self._connection, error)
        if isinstance(failure, Failed) and not isinstance(error, LOCKED):
            self._failure = str(failure)
        return failure

    def _cut_off(self) -> None:
        """Give back the room that was taken for a commit that did not happen."""
        if self._shorter is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(self._disk, self._shorter)
            self._shorter = None

    def _bury(self) -> None:
        with contextlib.suppress(*TROUBLE):
            _touch(self._connection)

    def _verify(self, connection: apsw.Connection) -> None:
        if sys.platform == "linux":
            os.posix_fadvise(self._disk, 0, 0, os.POSIX_FADV_DONTNEED)
        found = connection.pragma("quick_check", 1)
        if found != "ok":
            raise Failed(f"The file is damaged: {found}")
        if _last_sequence(connection) < self._last:
            raise Failed("Acknowledged changes are missing from the file.")


def _last_sequence(connection: apsw.Connection) -> int:
    number: int = connection.execute("SELECT seq FROM dbs WHERE db = 1").get
    return number


def _touch(connection: apsw.Connection) -> None:
    """Commit one page that says what it said before."""
    try:
        connection.execute(f"BEGIN IMMEDIATE; PRAGMA user_version = {FORMAT}; COMMIT")
    except TROUBLE:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _fold_all(connection: apsw.Connection) -> None:
    """Fold the whole log and empty it, unless readers of older moments or a full disk hinder it."""
    try:
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    except LOCKED:
        pass
    except TROUBLE as error:
        if not isinstance(trouble(connection, error), Full):
            raise
