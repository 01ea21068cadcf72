"""The lock of a data directory: one daemon at a time.

The lock is the kernel's (`flock`), so it ends with the process that holds it, however it ends; the
file `treedb.lock` that it hangs on stays and means nothing by itself; no project can have its name.
The number in it is there to tell an operator who holds the lock. A child made by `fork` holds it
along with its parent.
"""

from __future__ import annotations

import fcntl
import os
import pathlib

from treedbd.store.files import make_directory, open_private
from treedbd.store.mapping import Refused

_NAME = "treedb.lock"


class DirectoryLock:
    """Held from its making until `release`."""

    def __init__(self, directory: pathlib.Path) -> None:
        """Make the directory if it is missing and lock it.

        Raises `Refused` if another holds it, or if it or the file in it cannot be opened.
        """
        try:
            make_directory(directory)
            self._descriptor = open_private(directory / _NAME, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise Refused(_explain_opening(directory, error)) from None
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(self._descriptor, 20).decode("ascii", "replace").strip()
            os.close(self._descriptor)
            raise Refused(_explain_locking(directory, holder, error)) from None
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, b"%d\n" % os.getpid(), 0)

    def release(self) -> None:
        """Let others have the directory."""
        os.close(self._descriptor)


def _explain_opening(directory: pathlib.Path, error: OSError) -> str:
    reason = os.strerror(error.errno or 0)
    file = directory / _NAME
    if os.path.lexists(file):
        return (
            f"The lock file {file} cannot be opened ({reason}): "
            "let the user that runs treedb own it and all that lies beside it."
        )
    return (
        f"The data directory {directory} cannot be used ({reason}): "
        "let the user that runs treedb write to it, or name another."
    )


def _explain_locking(directory: pathlib.Path, holder: str, error: OSError) -> str:
    if not isinstance(error, BlockingIOError):
        return (
            f"The data directory {directory} cannot be locked "
            f"({os.strerror(error.errno or 0)}): put it on a local file system."
        )
    process = f" (process {holder})" if holder else ""
    return (
        f"The data directory {directory} is in use by another treedb{process}: "
        "stop that one, or name another directory."
    )
