"""Bounds how long SQLite sleeps in the thread that everybody waits for.

To begin to read, SQLite locks a part of the index of the log, and tries up to 100 times if that
fails, with sleeps of ten seconds in all. Where the system refuses a lock, or its release, every
read of that file would take so long. No setting bounds that: so the function of SQLite that sleeps
is replaced (`xSleep`, https://www.sqlite.org/c3ref/vfs.html), and sleeps as before unless its
thread has a bound. Without sleeps the 100 attempts take about a millisecond, and the read
fails.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Final

import apsw

SLEEP_US: Final = 5_000
"""Microseconds for which a bounded call may sleep: other processes hold these locks for less."""

_Sleep = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int)


class _FileSystem(ctypes.Structure):
    """A file system of SQLite, https://www.sqlite.org/c3ref/vfs.html."""

    _fields_ = (
        ("version", ctypes.c_int),
        ("file_bytes", ctypes.c_int),
        ("path_bytes", ctypes.c_int),
        ("others", ctypes.c_void_p * 12),
        ("sleep", _Sleep),
    )


class _Thread(threading.local):
    """One thread.

    Attributes:
        sleep_us: for how many microseconds SQLite may still sleep in it, None for as long as it
            wants.

    """

    sleep_us: int | None = None


this_thread: Final = _Thread()
"""Set `sleep_us` before a call that may sleep, and to None after it.

No context manager: each read would call two functions more.
"""
_replaced: Final[dict[int, tuple[object, object]]] = {}
"""The functions before and after, by the address of the file system: neither may be freed."""
_lock: Final = threading.Lock()


def allow_bounds(connection: apsw.Connection) -> None:
    """Let `this_thread.sleep_us` bound a connection, and all others of its file system."""
    pointer = ctypes.POINTER(_FileSystem)()
    connection.file_control("main", apsw.SQLITE_FCNTL_VFS_POINTER, ctypes.addressof(pointer))
    if not pointer:
        return
    address = ctypes.addressof(pointer.contents)
    with _lock:
        if address in _replaced:
            return
        system = pointer.contents
        # Not a reference to the field, which is about to change.
        sleep = _Sleep(ctypes.cast(system.sleep, ctypes.c_void_p).value or 0)

        def sleep_bounded(vfs: int, microseconds: int) -> int:
            left = this_thread.sleep_us
            if left is not None:
                microseconds = min(microseconds, left)
                this_thread.sleep_us = left - microseconds
            return int(sleep(vfs, microseconds)) if microseconds else 0

        bounded = _Sleep(sleep_bounded)
        _replaced[address] = (sleep, bounded)
        system.sleep = bounded
