"""Takes the lock of a data directory away from the daemon that holds it, which goes on reading.

A daemon commits nothing, creates nothing and puts no rules while its lock file is not in its place
(`lock`); reads go on, and it writes again soon after the file is put back. So another program can
make it read-only: another lock file, which this program has locked, takes the place of the daemon's
in one step. The daemon keeps the lock of the directory itself, so that no third process can start.
Its own file waits beside it under another name. When this program is killed, the daemon stays
read-only until it is stopped, or until the file is put back by `put_back`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
import time
from typing import Final

import apsw

from treedbd.files import open_private, sync_directory
from treedbd.store.engine import StoreFailed
from treedbd.store.lock import LOCK_FILE, DirectoryInUse, DirectoryLock
from treedbd.store.sqlite.file import connect

_ASIDE: Final = f"{LOCK_FILE}.aside"
_NEW: Final = f"{LOCK_FILE}.new"
_BUSY_MS: Final = 10


class LockTakeover:
    """The lock of a data directory that no other program writes to, until `release`.

    Attributes:
        is_served: whether a daemon has the directory open, which is read-only now.

    """

    def __init__(self, directory: pathlib.Path) -> None:
        """Take the lock, from a daemon if need be; raise `CannotOpenStore` or OSError."""
        self._directory = directory
        try:
            self._lock = DirectoryLock(directory)
        except DirectoryInUse:
            self._lock = _replace(directory)
        self.is_served: Final = is_aside(directory)

    @property
    def lock(self) -> DirectoryLock:
        """The lock."""
        return self._lock

    def release(self, *, put_back: bool) -> None:
        """Release the lock; with `put_back` the daemon may write again."""
        if put_back:
            put_lock_back(self._directory)
        self._lock.release()


def is_aside(directory: pathlib.Path) -> bool:
    """Return whether a daemon is running whose lock was taken away."""
    with contextlib.suppress(OSError):
        if (directory / _ASIDE).samefile(directory / LOCK_FILE):  # somebody was killed before
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


def await_writers(shelf: pathlib.Path, patience_s: float) -> None:
    """Wait until no transaction is open that began before the lock was taken; in any process.

    A daemon looks for its lock between the begin of a transaction and its end, so what begins later
    is not committed. Raises `StoreFailed`.
    """
    limit = time.monotonic() + patience_s
    try:
        with contextlib.closing(connect(shelf)) as connection:
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            connection.set_busy_timeout(_BUSY_MS)
            while not _try_write(connection):
                if time.monotonic() >= limit:
                    raise StoreFailed(f"{shelf} is being written for too long.")
    except apsw.Error as error:
        raise StoreFailed(f"{shelf} cannot be locked ({error}).") from error


def _try_write(connection: apsw.Connection) -> bool:
    try:
        connection.execute("BEGIN IMMEDIATE")
    except apsw.BusyError:
        return False
    connection.execute("ROLLBACK")
    return True


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
