"""What is done to a shelf, or its log, as a whole: at its opening, in recovery, when compacting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import apsw

from treedbd.store.engine import DiskFull, StoreFailed
from treedbd.store.sqlite.file import BUSY_MS, FORMAT, LOCK_ERRORS, SQLITE_ERRORS, classify_error

CHECKPOINT_FRAMES: Final = 250
"""The log is checkpointed at this many pages, and again after as many more until it restarts."""
LONG_LOG_FRAMES: Final = 8 * CHECKPOINT_FRAMES
RESTART_MS: Final = 50
"""From this many pages on, a checkpoint waits so long for readers of other processes."""

_IN_FILES: Final = 1
_IN_MEMORY: Final = 2
"""Where SQLite puts what is temporary."""


def last_sequence(connection: apsw.Connection) -> int:
    """Return the number of the last entry of the change log."""
    number: int = connection.execute("SELECT seq FROM dbs WHERE db = 1").get
    return number


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

    @property
    def is_due(self) -> bool:
        """Whether the log has grown long enough since the last checkpoint."""
        return self._frames >= self._checkpoint_at

    @property
    def is_long(self) -> bool:
        """Whether checkpoints have not let the log be restarted for long."""
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


def verify(connection: apsw.Connection, last: int, forget_cached: Callable[[], None]) -> None:
    """Raise `StoreFailed` unless the file is sound on the disk and holds the change `last`.

    `forget_cached` lets reads come from the disk.
    """
    forget_cached()
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
