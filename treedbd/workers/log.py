"""The log of workers: each writes its events to its parent, which logs them as its own.

A worker writes one JSON object a line to its standard error: the level and the text. What else
arrives there, as the interpreter's last words do, is logged as an error.
"""

from __future__ import annotations

import json
import sys
from typing import Any, Final, cast

from twisted.logger import (
    InvalidLogLevelError,
    LogEvent,
    Logger,
    LogLevel,
    eventAsText,
    globalLogPublisher,
)

MAX_LINE_BYTES: Final = 256 * 1024
"""Of a longer line the rest is dropped."""


def begin_logging() -> None:
    """Write all events of this process to its standard error from now on."""
    stream = sys.stderr

    def write(event: LogEvent) -> None:
        text = eventAsText(event, includeTimestamp=False, includeSystem=False)
        level = event.get("log_level", LogLevel.info)
        print(json.dumps([level.name, text]), file=stream, flush=True)

    globalLogPublisher.addObserver(cast(Any, write))


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
        level, text = LogLevel.error, line.decode("utf-8", "replace")
        try:
            name, text = json.loads(line)
            level = LogLevel.levelWithName(name)
        except (ValueError, TypeError, InvalidLogLevelError):
            pass
        self._log.emit(level, "Worker {number}: {text}", number=self._number, text=text)
