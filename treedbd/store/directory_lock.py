"""The lock of a data directory: one writing process at a time; and how it is taken over.

The lock is the kernel's (`flock`), so it ends with the process that holds it, however that ends.
Two things are locked: the directory itself, which keeps others out whatever happens to the files in
it, and the file `treedb.lock`, which can be taken away from its holder, and which is all that can
be locked where the file system cannot lock directories (NFS). That file stays and means nothing by
itself; no project can have its name. The number in it is the process that locked it last, for
operators; a daemon adds the URLs at which it can be reached, for commands. A child made by `fork`
holds the lock along with its parent.

Between opening a path and locking what was opened another process may rename or remove it. So once
both are locked, the paths must still lead to them, or all begins again.

A command can take the lock away from the daemon that holds it (`LockTakeover`), which goes on
reading. A daemon commits nothing, creates nothing and puts no rules while its lock file is not in
its place; it writes again soon after the file is put back. So another program can make it
read-only: another lock file, which this program has locked, takes the place of the daemon's in one
step. The daemon keeps the lock of the directory itself, so that no third process can start. Its own
file waits beside it under another name. When this program is killed, the daemon stays read-only
until it is stopped, or until the file is put back by `put_lock_back`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pathlib
import stat
from collections.abc import Iterable
from typing import Final

from treedbd.files import create_directory, open_private, sync_directory
from treedbd.store.engine import CannotOpenStore

LOCK_MISPLACED: Final = (
    "The lock file of the data directory was moved, removed or replaced; put it back."
)
"""What is wrong while a lock is not in its place."""
LOCK_FILE: Final = "treedb.lock"
"""The name of the lock file in the directory."""
_MAX_BYTES = 65_536
_ATTEMPTS: Final = 100
_ASIDE: Final = f"{LOCK_FILE}.aside"
_NEW: Final = f"{LOCK_FILE}.new"


class DirectoryInUse(CannotOpenStore):
    """Another process has locked the directory.

    Attributes:
        directory: the directory.
        holder: the id of that process, empty if it is not known.
        urls: those at which it serves the directory, none if that process is not known.

    """

    def __init__(
        self, directory: pathlib.Path, problem: str, remedy: str, holder: str = ""
    ) -> None:
        super().__init__(f"The data directory {directory}", problem, remedy)
        self.directory = directory
        self.holder = holder
        self.urls = tuple(read_urls(directory)) if holder else ()


class DirectoryLock:
    """The lock of a directory, held from its creation until `release`.

    Attributes:
        path: its file.
        status: what distinguishes this file from others.
        descriptors: those that the lock ends with, when all their copies are closed: that of the
            file first.

    """

    path: str
    status: os.stat_result
    descriptors: tuple[int, ...]

    def __init__(self, directory: pathlib.Path, *, is_file_enough: bool = False) -> None:
        """Create the directory if it is missing, and lock it.

        With `is_file_enough` another process may hold the lock of the directory itself. Raises
        `DirectoryInUse` if it is locked already, by this process too, and `CannotOpenStore` if the
        directory or the lock file cannot be opened.
        """
        self.path = os.fspath(directory / LOCK_FILE)
        try:
            for _ in range(_ATTEMPTS):
                create_directory(directory)
                if self._lock(directory, is_file_enough=is_file_enough):
                    self._write(b"%d\n" % os.getpid())
                    return
        except OSError as error:
            raise _cannot_open(directory, error) from None
        raise CannotOpenStore(
            f"The lock file {self.path}", "is being replaced all the time", "find out by what"
        )

    def _lock(self, directory: pathlib.Path, *, is_file_enough: bool) -> bool:
        """Lock what the paths lead to; return whether they still lead there."""
        with contextlib.ExitStack() as closing:
            folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            closing.callback(os.close, folder)
            if not is_file_enough and _is_locked(folder, fcntl.LOCK_EX):
                raise _in_use(directory, _find_holder(directory))
            self._descriptor = _open_file(directory, os.O_RDWR | os.O_CREAT)
            closing.callback(os.close, self._descriptor)
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise _in_use(directory, _read_holder(self._descriptor)) from None
            except OSError as error:
                raise _cannot_lock(directory, error) from None
            self.status = os.fstat(self._descriptor)
            if not (self.is_in_place() and os.path.samestat(os.stat(directory), os.fstat(folder))):
                return False
            self.descriptors = (self._descriptor, folder)
            self._closing = closing.pop_all()
            return True

    @classmethod
    def inherit(cls, directory: pathlib.Path, descriptor: int) -> DirectoryLock:
        """Return the lock that another process holds too, by its descriptor of the file."""
        lock = cls.__new__(cls)
        lock.path = os.fspath(directory / LOCK_FILE)
        lock.status = os.fstat(descriptor)
        lock._descriptor = descriptor
        lock.descriptors = (descriptor,)
        lock._closing = contextlib.ExitStack()
        lock._closing.callback(os.close, descriptor)
        return lock

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
        self._closing.close()


def find_other(directory: pathlib.Path) -> DirectoryInUse | None:
    """Return the error that locking a directory would be if another process has locked it now.

    Nothing is created or written.
    """
    # Held for a moment only, and shared: two that check at the same time do not see each other.
    holder = _find_holder(directory)
    if holder is not None:
        return _in_use(directory, holder)
    with contextlib.suppress(OSError):
        folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return _in_use(directory, None) if _is_locked(folder, fcntl.LOCK_SH) else None
        finally:
            os.close(folder)
    return None


def _open_file(directory: pathlib.Path, flags: int) -> int:
    """Return a descriptor of the lock file; raise OSError, also if it is not a regular file.

    Of a symbolic link another file would be locked and overwritten, a named pipe would block.
    """
    flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    path = directory / LOCK_FILE
    descriptor = open_private(path, flags) if flags & os.O_CREAT else os.open(path, flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    return descriptor


def _is_locked(descriptor: int, operation: int) -> bool:
    """Lock a descriptor by an operation of `flock`; return whether another process has it locked.

    What the file system cannot lock is not locked.
    """
    try:
        fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    return False


def _find_holder(directory: pathlib.Path) -> str | None:
    """Return the process that has the lock file locked, empty if unknown, None if none has."""
    try:
        descriptor = _open_file(directory, os.O_RDONLY)
    except OSError:
        return None
    try:
        return _read_holder(descriptor) if _is_locked(descriptor, fcntl.LOCK_SH) else None
    finally:
        os.close(descriptor)


def _read_holder(descriptor: int) -> str:
    return os.pread(descriptor, 20, 0).decode("ascii", "replace").partition("\n")[0]


def read_urls(directory: pathlib.Path) -> list[str]:
    """Return the URLs at which a locked directory is served, as far as its daemon knows them."""
    try:
        descriptor = _open_file(directory, os.O_RDONLY)
        with open(descriptor, encoding="ascii", errors="replace") as file:
            return file.read(_MAX_BYTES).partition("\n")[2].split()
    except OSError:
        return []


def _cannot_open(directory: pathlib.Path, error: OSError) -> CannotOpenStore:
    reason = os.strerror(error.errno or 0)
    file = directory / LOCK_FILE
    if os.path.lexists(file):
        is_plain = stat.S_ISREG(file.lstat().st_mode)
        return CannotOpenStore(
            f"The lock file {file}",
            f"cannot be opened ({reason})",
            "make the user that runs treedb the owner of it and of everything beside it"
            if is_plain
            else "it is not a regular file: stop any treedb that uses the directory, and remove it",
        )
    return CannotOpenStore(
        f"The data directory {directory}",
        f"cannot be used ({reason})",
        "let the user that runs treedb write to it, or choose another directory",
    )


def _cannot_lock(directory: pathlib.Path, error: OSError) -> CannotOpenStore:
    return CannotOpenStore(
        f"The data directory {directory}",
        f"cannot be locked ({os.strerror(error.errno or 0)})",
        "put it on a local file system",
    )


def _in_use(directory: pathlib.Path, holder: str | None) -> DirectoryInUse:
    """Return the error of a lock that another process holds; None if it is not that of the file."""
    process = f" (process {holder})" if holder else ""
    if holder is None:
        process = f", whose {LOCK_FILE} was moved, removed or replaced"
    return DirectoryInUse(
        directory,
        f"is in use by another treedb{process}",
        "stop that process, or choose another directory",
        holder or "",
    )


class LockTakeover:
    """The lock of a data directory that no other program writes to, until `release`.

    Attributes:
        lock: the lock.
        is_served: whether a daemon has the directory open, which is read-only now.

    """

    def __init__(self, directory: pathlib.Path) -> None:
        """Take the lock, from a daemon if need be; raise `CannotOpenStore` or OSError."""
        self._directory = directory
        try:
            self.lock = DirectoryLock(directory)
        except DirectoryInUse:
            self.lock = _replace(directory)
        self.is_served: Final = is_aside(directory)

    def release(self, *, put_back: bool) -> None:
        """Release the lock; with `put_back` the daemon may write again."""
        if put_back:
            put_lock_back(self._directory)
        self.lock.release()


def is_aside(directory: pathlib.Path) -> bool:
    """Return whether a daemon is running whose lock was taken away."""
    with contextlib.suppress(OSError):
        if (directory / _ASIDE).samefile(directory / LOCK_FILE):  # a takeover was killed before
            return False
    try:
        descriptor = os.open(directory / _ASIDE, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def put_lock_back(directory: pathlib.Path) -> bool:
    """Give a daemon its lock back; return whether there was one to be given back."""
    was_aside = is_aside(directory)
    if was_aside:
        (directory / _ASIDE).replace(directory / LOCK_FILE)
    else:
        (directory / _ASIDE).unlink(missing_ok=True)  # its daemon has stopped
    sync_directory(directory)
    return was_aside


def _replace(directory: pathlib.Path) -> DirectoryLock:
    """Put a lock file that this process has locked in the place of another one."""
    current, aside, new = (directory / name for name in (LOCK_FILE, _ASIDE, _NEW))
    if is_aside(directory):
        try:  # an earlier takeover may have been killed, and its file is free
            return DirectoryLock(directory, is_file_enough=True)
        except DirectoryInUse:
            raise DirectoryInUse(
                directory,
                "is used by another treedb move, or by a daemon that was started after one",
                "wait for it, or stop the daemon",
            ) from None
    aside.unlink(missing_ok=True)
    new.unlink(missing_ok=True)
    descriptor = open_private(new, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(descriptor, b"%d\n" % os.getpid())
        owner = current.stat()
        with contextlib.suppress(PermissionError):  # the user of the daemon must be able to open it
            os.fchown(descriptor, owner.st_uid, owner.st_gid)
        os.link(current, aside)
        new.replace(current)
        sync_directory(directory)
        return DirectoryLock.inherit(directory, descriptor)
    except BaseException:
        os.close(descriptor)
        put_lock_back(directory)
        raise
