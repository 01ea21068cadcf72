"""The lock of a data directory: one writing process at a time.

The lock is the kernel's (`flock`), so it ends with the process that holds it, however that ends.
The file `treedb.lock` stays and means nothing by itself; no project can have its name. The number
in it is the process that locked it last, for operators; a daemon adds the URLs at which it can be
reached, for commands. A child made by `fork` holds the lock along
with its parent.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
from collections.abc import Iterable
from typing import Final

from treedbd.files import create_directory, open_private
from treedbd.store.engine import CannotOpenStore

LOCK_MISPLACED: Final = (
    "The lock file of the data directory was moved, removed or replaced; put it back."
)
"""What is wrong while a lock is not in its place."""
LOCK_FILE: Final = "treedb.lock"
"""The name of the lock file in the directory."""
_MAX_BYTES = 65_536


class DirectoryInUse(CannotOpenStore):
    """Another process has locked the directory.

    Attributes:
        directory: the directory.
        holder: the id of that process, empty if it is not known.
        urls: those at which it serves the directory, as far as they are known.

    """

    def __init__(
        self, directory: pathlib.Path, problem: str, remedy: str, holder: str = ""
    ) -> None:
        super().__init__(f"The data directory {directory}", problem, remedy)
        self.directory = directory
        self.holder = holder
        self.urls = tuple(read_urls(directory))


class DirectoryLock:
    """The lock of a directory, held from its creation until `release`.

    Attributes:
        path: its file.
        status: what tells this file from others.

    """

    path: str
    status: os.stat_result

    def __init__(self, directory: pathlib.Path) -> None:
        """Create the directory if it is missing, and lock it.

        Raises `DirectoryInUse` if it is locked already, by this process too, and `CannotOpenStore`
        if the directory or the lock file cannot be opened.
        """
        self.path = os.fspath(directory / LOCK_FILE)
        try:
            create_directory(directory)
            self._descriptor = open_private(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise _cannot_open(directory, error) from None
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = _read_holder(self._descriptor)
            os.close(self._descriptor)
            raise _cannot_lock(directory, holder, error) from None
        self.status = os.fstat(self._descriptor)
        self._write(b"%d\n" % os.getpid())

    @classmethod
    def inherit(cls, directory: pathlib.Path, descriptor: int) -> DirectoryLock:
        """Return the lock that a parent process holds, of which this one has a descriptor."""
        lock = cls.__new__(cls)
        lock.path = os.fspath(directory / LOCK_FILE)
        lock.status = os.fstat(descriptor)
        lock._descriptor = descriptor
        return lock

    @property
    def descriptor(self) -> int:
        """The descriptor that the lock ends with, when all its copies are closed."""
        return self._descriptor

    def note_urls(self, urls: Iterable[str]) -> None:
        """Write down at which URLs this process serves the directory."""
        self._write(f"{os.getpid()}\n{' '.join(urls)}\n".encode())

    def _write(self, content: bytes) -> None:
        with contextlib.suppress(OSError):  # it is for people, and the disk may be full
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, content, 0)

    def is_in_place(self) -> bool:
        """Return whether the lock still keeps others out.

        If the directory or the file was moved, removed or replaced, another process can lock what
        is there now.
        """
        try:
            return os.path.samestat(os.stat(self.path), self.status)
        except OSError:
            return False

    def release(self) -> None:
        """Release the lock."""
        os.close(self._descriptor)


def find_other(directory: pathlib.Path) -> DirectoryInUse | None:
    """Return the error that locking a directory would be if another process has locked it now.

    Nothing is created or written.
    """
    try:
        descriptor = os.open(directory / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        # Held for a moment only, and shared: two that look at the same time find nobody.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError as error:
        found = _cannot_lock(directory, _read_holder(descriptor), error)
        return found if isinstance(found, DirectoryInUse) else None
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return None


def _read_holder(descriptor: int) -> str:
    return os.read(descriptor, 20).decode("ascii", "replace").partition("\n")[0]


def read_urls(directory: pathlib.Path) -> list[str]:
    """Return the URLs at which a locked directory is served, as far as its daemon knows them."""
    try:
        with open(directory / LOCK_FILE, encoding="ascii", errors="replace") as file:
            return file.read(_MAX_BYTES).partition("\n")[2].split()
    except OSError:
        return []


def _cannot_open(directory: pathlib.Path, error: OSError) -> CannotOpenStore:
    reason = os.strerror(error.errno or 0)
    file = directory / LOCK_FILE
    if os.path.lexists(file):
        return CannotOpenStore(
            f"The lock file {file}",
            f"cannot be opened ({reason})",
            "make the user that runs treedb the owner of it and of everything beside it",
        )
    return CannotOpenStore(
        f"The data directory {directory}",
        f"cannot be used ({reason})",
        "let the user that runs treedb write to it, or choose another directory",
    )


def _cannot_lock(directory: pathlib.Path, holder: str, error: OSError) -> CannotOpenStore:
    if not isinstance(error, BlockingIOError):
        return CannotOpenStore(
            f"The data directory {directory}",
            f"cannot be locked ({os.strerror(error.errno or 0)})",
            "put it on a local file system",
        )
    process = f" (process {holder})" if holder else ""
    return DirectoryInUse(
        directory,
        f"is in use by another treedb{process}",
        "stop that process, or choose another directory",
        holder,
    )
