"""The header of the index of a write-ahead log: whether anybody has committed, seen in memory.

SQLite keeps the index in the file `-shm`, which all processes that have the shelf open map into
memory. Its first 48 bytes describe the last commit, and change with each one, when that has been
synced and before it can be read (https://www.sqlite.org/walformat.html, section 2.1). To compare it
takes a twentieth of a microsecond; `PRAGMA data_version`, which does the same, takes 35 times that.
Whoever records the header before reading is never deceived: what it reads is at least as new.
"""

from __future__ import annotations

import mmap
import os
import pathlib
from typing import Final

INDEX: Final = "-shm"
"""What the name of the index has after that of the shelf."""
_HEADER_BYTES: Final = 48
_MAPPED_BYTES: Final = 4096


class LogIndex:
    """The index of one shelf that is open, to be closed after the last connection.

    Closing any descriptor of the file would drop the locks that SQLite has on it in this process.
    """

    def __init__(self, path: pathlib.Path) -> None:
        """Map the index of the shelf at `path`; raise OSError."""
        real = path.resolve()
        name = real.with_name(real.name + INDEX)
        self._descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._map = mmap.mmap(self._descriptor, _MAPPED_BYTES, access=mmap.ACCESS_READ)
        except BaseException:
            os.close(self._descriptor)
            raise

    def header(self) -> bytes:
        """Return the header as it is now."""
        return self._map[:_HEADER_BYTES]

    def close(self) -> None:
        """Release it."""
        self._map.close()
        os.close(self._descriptor)
