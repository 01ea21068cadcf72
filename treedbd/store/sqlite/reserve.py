"""Disk space kept in reserve, so that removals still work when the disk is full.

The reserve is a file of real blocks beside the database. When the disk is full it is deleted; its
space is enough to checkpoint the log of the engine and restart it, and for removals. It is
allocated again only when there is room for it twice: space that was released a moment ago is not
space to spare.
"""

from __future__ import annotations

import os
import pathlib

from treedbd.files import FULL_ERRNOS, allocate, open_private, sync_directory


class Reserve:
    """A file of `size` bytes that may or may not exist."""

    def __init__(self, path: pathlib.Path, size: int) -> None:
        """Nothing is read or written before the first call of a method."""
        self._path = path
        self._size = size

    def release(self) -> None:
        """Release the space, if it is held."""
        self._path.unlink(missing_ok=True)
        sync_directory(self._path.parent)

    def restore(self) -> bool:
        """Allocate the space; return False, and hold nothing, if there is not room for it twice.

        Raises OSError for any other error of the disk.
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
