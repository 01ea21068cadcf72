"""Where the log goes: standard output, or a file that another program rotates.

The file is appended to, so a program may cut it (`copytruncate` of logrotate), and it is opened
again by its name on request, so a program may rename it. Nothing is rotated or removed here.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, BinaryIO, Final

from twisted.logger import ILogObserver, LogEvent
from zope.interface import implementer

from treedbd.logs.entry import entry_of
from treedbd.logs.lines import FormatEntry

FILE_MODE: Final = 0o640
"""The log has addresses, paths and the names of users."""


class LogFile:
    """A file that is appended to."""

    def __init__(self, path: str) -> None:
        """Open the file, or create it; raise OSError."""
        self._path = os.path.abspath(path)
        self._file = self._open()

    def write(self, data: bytes) -> None:
        """Append bytes."""
        self._file.write(data)

    def reopen(self) -> None:
        """Open the file of this name again; if that fails, go on with the one that is open."""
        try:
            file = self._open()
        except OSError:
            return
        self._file.close()
        self._file = file

    def _open(self) -> BinaryIO:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        # Without a buffer: each line is one call of the system, so that lines are never mixed.
        return os.fdopen(os.open(self._path, flags, FILE_MODE), "wb", 0)


def write_to_stream(stream: Any) -> Callable[[bytes], None]:
    """Return what writes bytes to a text stream at once, whatever its encoding."""
    binary = getattr(stream, "buffer", None)
    if binary is None:  # one in memory

        def write_text(data: bytes) -> None:
            stream.write(data.decode())
            stream.flush()

        return write_text

    def write(data: bytes) -> None:
        stream.flush()
        binary.write(data)
        binary.flush()

    return write


@implementer(ILogObserver)
class LogWriter:
    """An observer of Twisted's log that writes each event in one form."""

    def __init__(self, write: Callable[[bytes], None], format_entry: FormatEntry) -> None:
        self._write = write
        self._format = format_entry

    def __call__(self, event: LogEvent) -> None:
        """Write one event."""
        self._write(self._format(entry_of(event)).encode("utf-8", "backslashreplace"))
