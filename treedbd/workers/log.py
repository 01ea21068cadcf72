"""The log of workers: each writes its entries to its parent, which logs them as its own.

A worker writes one line of `operating.log` each to its standard error. What else arrives there, as the
interpreter's last words do, is logged as an error.
"""

from __future__ import annotations

import sys
import time
from typing import Any, Final, cast

from twisted.logger import LogEvent, Logger, LogLevel, globalLogBeginner

from treedbd.operating.log import LogRecord, NotAnEntry, decode_entry, encode_entry, entry_of

MAX_LINE_BYTES: Final = 256 * 1024
"""Of a longer line the rest is dropped."""


def begin_logging() -> None:
    """Write all events of this process to its standard error from now on, and all that it prints.

    What fails before, or in the interpreter itself, arrives there as it is.
    """
    stream = sys.stderr.buffer

    def write(event: LogEvent) -> None:
        stream.write(encode_entry(entry_of(event)))
        stream.flush()

    globalLogBeginner.beginLoggingTo([cast(Any, write)])


class WorkerLog:
    """Logs what one worker writes."""

    _log = Logger()

    def __init__(self, number: int) -> None:
        """Name the worker by its `number`, from 1 on."""
        self._number = number
        self._rest = b""

    def receive(self, content: bytes) -> None:
        """Log the lines that are complete."""
        *lines, rest = (self._rest + content).split(b"\n")
        self._rest = rest[:MAX_LINE_BYTES]
        for line in lines:
            self._log_line(line)

    def end(self) -> None:
        """Log what has no line end."""
        if self._rest:
            self._log_line(self._rest)
        self._rest = b""

    def _log_line(self, line: bytes) -> None:
        try:
            entry = decode_entry(line, self._number)
        except NotAnEntry:
            text = line.decode("utf-8", "replace")
            name = f"{__name__}.{type(self).__name__}"
            entry = LogRecord(time.time(), "error", name, text, worker=self._number)
        self._log.emit(
            LogLevel.levelWithName(entry.level),
            "Worker {number}: {text}",
            number=self._number,
            text="\n".join(filter(None, (entry.message, entry.traceback))),
            treedb_entry=entry,
        )
