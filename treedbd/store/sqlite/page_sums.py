"""Check sums of the pages of a file, by which a bit that has changed on the disk is noticed.

Each page ends with eight reserved bytes that hold a sum of the others. SQLite's own extension
computes it when a page is written to the file, which a checkpoint does, and compares it when a page
is read from there: https://www.sqlite.org/cksumvfs.html. The wheels of apsw include that extension.
It is a layer over the files of the system (a VFS), and leaves files alone that reserve no such
bytes.

In the write-ahead log the reserved bytes mean nothing: each frame has a check sum of SQLite, which
is compared when the log is first read, and what follows one that is wrong does not count. A page
that a checkpoint has written in part is no damage: until the file is synced, the log has that page,
and reads find it there.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from typing import Final

import apsw
from apsw import sqlite_extra

VFS: Final = "cksmvfs"
SUM_BYTES: Final = 8
RESERVED_AT: Final = 20
"""Where the header of a file says how many bytes a page reserves."""
_WORDS: Final = 0xFFFFFFFF


@functools.cache
def load() -> bool:
    """Let connections use `VFS`, each that names it; return whether apsw includes it."""
    default = apsw.vfs_names()[0]
    try:
        with apsw.Connection(":memory:") as connection:
            sqlite_extra.load(connection, "cksumvfs")
        connection.close()
    except (LookupError, sqlite_extra.NotAvailable, apsw.Error):
        return False
    apsw.set_default_vfs(default)
    return VFS in apsw.vfs_names()


def are_compared(connection: apsw.Connection) -> bool:
    """Return whether the check sums of the pages that a connection reads are compared.

    They are not if the header of the file says that there are none.
    """
    return bool(connection.pragma("checksum_verification") == "1")


def reserve(connection: apsw.Connection) -> None:
    """Let the pages of a database without tables reserve the bytes of a sum."""
    reserved = ctypes.c_int(SUM_BYTES)
    connection.file_control("main", apsw.SQLITE_FCNTL_RESERVE_BYTES, ctypes.addressof(reserved))


def write_sums(content: bytearray, page_bytes: int) -> None:
    """Set the sums of all pages in the content of a file."""
    for at in range(0, len(content), page_bytes):
        end = at + page_bytes - SUM_BYTES
        content[end : end + SUM_BYTES] = _sum(bytes(content[at:end]))


def _sum(page: bytes) -> bytes:
    first = second = 0
    for even, odd in struct.iter_unpack("<II", page):
        first = (first + even + second) & _WORDS
        second = (second + odd + first) & _WORDS
    return struct.pack("<II", first, second)
