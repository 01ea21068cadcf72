"""The space of a shelf file: allocated before a commit, so that a checkpoint never needs room.

What follows the last page means nothing; if a commit fails, the file is truncated there again, by
this process or by the next checkpoint.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import sys

from treedbd.files import FULL_ERRNOS, allocate
from treedbd.store.sqlite.file import PAGE_BYTES


class FileSpace:
    """The space of one file.

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
        """Let the next reads come from the disk, not from the cache of the system."""
        if sys.platform == "linux":
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Close the file, after the last connection."""
        os.close(self._descriptor)
