"""The files that a database has open, and whether their paths still lead to them.

A file that is renamed or removed stays open, and what is written to it then is lost, or found by
nobody. Another file in its place would be another history. So this is checked before each commit,
and nothing is committed while a file is elsewhere. Reads go on: what is open still holds all that
was acknowledged.

A commit only checks that there is a log, since on Linux (from 6.13 on) each `stat` of a file makes
the next write to it change its inode: that took 30 µs for each commit, and this takes 5. Which log
it is, is checked from time to time.
"""

from __future__ import annotations

import os
import pathlib
from typing import Final

from treedbd.store.lock import LOCK_MISPLACED, DirectoryLock
from treedbd.store.sqlite.file import log_of

_MISPLACED: Final = "was moved, removed or replaced; put it back."


class OpenFiles:
    """The shelf and its log, and the lock of the data directory if this process holds it."""

    def __init__(self, path: pathlib.Path, lock: DirectoryLock | None) -> None:
        """Remember which files there are; raise OSError if one is missing."""
        self._lock = lock
        self._shelf = os.fspath(path)
        self._log = os.fspath(log_of(path))
        self._shelf_status = os.stat(self._shelf)
        self._log_status = os.stat(self._log)

    def find_missing(self) -> str | None:
        """Do as `find_misplaced`, but do not notice another log in the place of ours."""
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
