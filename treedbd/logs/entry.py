"""One entry of the log, taken from an event of `twisted.logger`, or from a worker's.

What is logged with a logger may carry, besides its text, some things that only this package reads:
`FIELDS`, a mapping from names to values that JSON has; `LINE`, the line that a text log shows in
place of everything else; and `MESSAGE`, the text itself, which then need not be formatted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import attrs
import orjson
from twisted.logger import InvalidLogLevelError, LogEvent, LogLevel, eventAsText
from twisted.python.failure import Failure

from treedbd.errors import NO_FIELDS

FIELDS: Final = "treedb_fields"
LINE: Final = "treedb_line"
MESSAGE: Final = "treedb_message"
ENTRY: Final = "treedb_entry"
"""The key of an entry that another process has logged, in the event that passes it on."""
MAX_CHARACTERS: Final = 10_000
"""Of each text of an entry that is passed to another process."""
_TYPES: Final = [float, str, str, str, dict, str, str]


@attrs.frozen
class LogRecord:
    """What is logged at one moment.

    Attributes:
        time: when, in seconds since 1970.
        level: `debug`, `info`, `warn`, `error` or `critical`.
        logger: what logs it: a module or a class, or another program's name for itself.
        message: the text, which may have several lines.
        fields: further members, in the order in which they are shown.
        traceback: that of a failure, empty if there is none.
        line: what a text log shows in place of all else; empty if nothing does.
        worker: the number of the worker process, from 1; 0 if there are no workers.

    """

    time: float
    level: str
    logger: str
    message: str
    fields: Mapping[str, object] = NO_FIELDS
    traceback: str = ""
    line: str = ""
    worker: int = 0


def entry_of(event: LogEvent) -> LogRecord:
    """Return the entry of an event."""
    passed_on = event.get(ENTRY)
    if isinstance(passed_on, LogRecord):
        return passed_on
    level = event.get("log_level", LogLevel.info)
    logger = event.get("log_namespace") or event.get("log_system") or "-"
    traceback = _traceback_of(event)
    message = event.get(MESSAGE) or _message_of(event)
    if traceback and traceback in message:  # of the older log of Twisted
        message = message.replace(traceback, "").strip()
    return LogRecord(
        float(event.get("log_time", 0.0)),
        level.name,
        str(logger),
        message,
        event.get(FIELDS, NO_FIELDS),
        traceback,
        event.get(LINE, ""),
    )


def _message_of(event: LogEvent) -> str:
    return eventAsText(
        event, includeTraceback=False, includeTimestamp=False, includeSystem=False
    ).strip("\n")


def _traceback_of(event: LogEvent) -> str:
    failure = event.get("log_failure")
    if not isinstance(failure, Failure):
        return ""
    try:
        return failure.getTraceback().strip("\n")
    except Exception as error:  # of the text of what was raised
        return f"The traceback cannot be shown: {type(error).__name__}."


def encode_entry(entry: LogRecord) -> bytes:
    """Return an entry as one line of bytes, with its end, for another process.

    Of a very long text the rest is dropped.
    """
    parts = (
        entry.time,
        entry.level,
        entry.logger,
        entry.message[:MAX_CHARACTERS],
        dict(entry.fields),
        entry.traceback[:MAX_CHARACTERS],
        entry.line[:MAX_CHARACTERS],
    )
    try:
        return orjson.dumps(parts, default=str) + b"\n"
    except TypeError:  # a lone surrogate
        return json.dumps(parts, default=str).encode() + b"\n"


class NotAnEntry(ValueError):
    """A line that is no entry: what a process prints when it cannot log any more."""


def decode_entry(line: bytes, worker: int) -> LogRecord:
    """Return the entry that a worker has encoded; raise `NotAnEntry`."""
    try:
        parts: Any = json.loads(line)  # which also knows lone surrogates
    except (ValueError, RecursionError):
        raise NotAnEntry from None
    if not isinstance(parts, list) or [type(part) for part in parts] != _TYPES:
        raise NotAnEntry
    time, level, logger, message, fields, traceback, shown = parts
    try:
        LogLevel.levelWithName(level)
    except InvalidLogLevelError:
        raise NotAnEntry from None
    return LogRecord(time, level, logger, message, fields, traceback, shown, worker)
