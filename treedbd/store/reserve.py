"""Disk space kept in reserve, so that removals still work when the disk is full.

A file of real blocks lies beside the database. When there is no room left it is given up; what it
took is enough for the log of the engine to be folded into the database and begun anew, and for
removals. It is taken back only when there is room for it twice: space that was given up a moment
ago is not space to spare.
"""

from __future__ import annotations

import os
import pathlib

from treedbd.store.files import FULL_ERRNOS, allocate, open_private, sync_directory


class Reserve:
    """A file of `size` bytes, or the lack of it."""

    def __init__(self, path: pathlib.Path, size: int) -> None:
        """Look at nothing yet; the file may or may not be there."""
        self._path = path
        self._size = size

    def release(self) -> None:
        """Give the space to others; nothing happens if it is not held."""
        self._path.unlink(missing_ok=True)
        sync_directory(self._path.parent)

    def restore(self) -> bool:
        """Hold the space; return False, and hold nothing, if there is not room for it twice.

        Raises OSError for anything else that is wrong with the medium.
        """
        if self._is_held():
            return True
        descriptor = open_private(self._path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:
            allocate(descriptor, 0, 2 * self._size)
            os.ftruncate(descriptor, self._size)
            os.fsync(descriptor)
        except OSError as error:
            self._path.unlink(missing_ok=True)
            if error.errno in FULL_ERRNOS:
                return False
            raise
        finally:
            os.close(descriptor)
        sync_directory(self._path.parent)
        return True

    def _is_held(self) -> bool:
        try:
            status = self._path.stat()
        except FileNotFoundError:
            return False
        return status.st_size == self._size and status.st_blocks * 512 >= self._size
