"""Tells a disk that could not be read from a file that is damaged.

SQLite reports both as a malformed file, because there are file systems that answer EIO for what
they know to be damaged. But EIO may be over soon, as when a network disk is away for a moment, and
nobody should restore a backup for that. The error of the system is kept for each open file, which
`SQLITE_FCNTL_LAST_ERRNO` reads: https://www.sqlite.org/c3ref/c_fcntl_begin_atomic_write.html
"""

from __future__ import annotations

import ctypes
import errno
from typing import Final

import apsw

_READ_ERRNOS: Final = frozenset({errno.EIO, errno.ENXIO, errno.ERANGE})
"""Those that SQLite takes for damage."""


class _Methods(ctypes.Structure):
    """The methods of an open file, https://www.sqlite.org/c3ref/io_methods.html."""

    _fields_ = (
        ("version", ctypes.c_int),
        ("others", ctypes.c_void_p * 9),
        (
            "file_control",
            ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p),
        ),
    )


class _File(ctypes.Structure):
    """An open file, https://www.sqlite.org/c3ref/file.html."""

    _fields_ = (("methods", ctypes.POINTER(_Methods)),)


def find_failed_read(connection: apsw.Connection) -> int:
    """Return the errno of a read of the file or of its log that failed last; 0 if none did."""
    number = ctypes.c_int()
    connection.file_control("main", apsw.SQLITE_FCNTL_LAST_ERRNO, ctypes.addressof(number))
    if number.value not in _READ_ERRNOS:
        number.value = 0
        log = ctypes.POINTER(_File)()
        connection.file_control("main", apsw.SQLITE_FCNTL_JOURNAL_POINTER, ctypes.addressof(log))
        if log and log.contents.methods:
            log.contents.methods.contents.file_control(
                ctypes.addressof(log.contents),
                apsw.SQLITE_FCNTL_LAST_ERRNO,
                ctypes.addressof(number),
            )
    return number.value if number.value in _READ_ERRNOS else 0
