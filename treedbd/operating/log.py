"""The log of a daemon: its entries, their text and JSON, and the file that they are written to.

An event of `twisted.logger`, or a line from a worker, becomes a `LogRecord`, which a format prints
as text or JSON, and a `LogWriter` writes to standard output or to a file (`find_target`). Twisted
uses it as the observer of the application; the options `--logger` and `--syslog` of twistd precede
it.

Besides its text, an event may have keys that only this module reads: `FIELDS`, a mapping from names
to JSON values; `LINE`, the line that replaces the whole entry in a text log; and `MESSAGE`, the
text itself, which is then not formatted.

Every line of JSON is valid by itself and has no control characters: a traceback is one member of
its object. Text shows a traceback in lines of its own, indented.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, BinaryIO, Final, TypeAlias

import attrs
import orjson
from twisted.logger import (
    ILogObserver,
    InvalidLogLevelError,
    LogEvent,
    LogLevel,
    eventAsText,
    formatTime,
)
from twisted.python.failure import Failure
from zope.interface import implementer

from treedbd.caches import bounded_cache
from treedbd.errors import NO_FIELDS, OperatorError, in_one_line

FIELDS: Final = "treedb_fields"
LINE: Final = "treedb_line"
MESSAGE: Final = "treedb_message"
ENTRY: Final = "treedb_entry"
"""The key of an entry that another process has logged, in the event that passes it on."""
MAX_CHARACTERS: Final = 10_000
"""The longest text of an entry that is passed to another process."""
_TYPES: Final = [float, str, str, str, dict, str, str]
"""The types of the parts of an entry that is passed: the fields of a `LogRecord`, in order."""

MEMBERS: Final = ("time", "level", "logger", "message", "worker", "traceback")
"""The members of each object, the last two of which may be missing; all others are fields."""
IN_EVERY_MESSAGE: Final = frozenset({"method", "path", "status"})
"""Fields that messages contain already; text does not repeat them."""
_BARE: Final = re.compile(r"[\w.:@/+…-]+", re.ASCII)

FILE_MODE: Final = 0o640
"""Other users of the machine must not read addresses, paths and the names of users."""

DEFAULT_FILE: Final = "twistd.log"
"""The log of a daemon in the background without `--logfile`."""


class NotAnEntry(ValueError):
    """A line that is not an entry: text of a process that can no longer log."""


class CannotLog(OperatorError):
    """A file for the log that cannot be written."""


@attrs.frozen
class LogRecord:
    """One entry of the log.

    Attributes:
        time: when it was logged, in seconds since 1970.
        level: `debug`, `info`, `warn`, `error` or `critical`.
        logger: the module or class that logs it, or the name that another program has chosen.
        message: the text, which may have several lines.
        fields: further members, in the order in which they are shown.
        traceback: that of a failure; empty without one.
        line: the line that replaces the whole entry in a text log; empty without one.
        worker: the number of the worker process, from 1; 0 without workers.

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
    if traceback and traceback in message:  # an event of the older log of Twisted
        message = message.replace(traceback, "").strip()
    return LogRecord(
        time=float(event.get("log_time", 0.0)),
        level=level.name,
        logger=str(logger),
        message=message,
        fields=event.get(FIELDS, NO_FIELDS),
        traceback=traceback,
        line=event.get(LINE, ""),
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
    except Exception as error:  # raised by `str` of the exception
        return f"The traceback cannot be shown: {type(error).__name__}."


def encode_entry(entry: LogRecord) -> bytes:
    """Return an entry as one line of bytes, with its end, for another process.

    The rest of a very long text is dropped.
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


def decode_entry(line: bytes, worker: int) -> LogRecord:
    """Return the entry that a worker has encoded; raise `NotAnEntry`."""
    try:
        parts: Any = json.loads(line)  # which accepts lone surrogates
    except (ValueError, RecursionError):
        raise NotAnEntry from None
    if not isinstance(parts, list) or [type(part) for part in parts] != _TYPES:
        raise NotAnEntry
    time, level, logger, message, fields, traceback, shown = parts
    try:
        LogLevel.levelWithName(level)
    except InvalidLogLevelError:
        raise NotAnEntry from None
    return LogRecord(
        time=time,
        level=level,
        logger=logger,
        message=message,
        fields=fields,
        traceback=traceback,
        line=shown,
        worker=worker,
    )


FormatEntry: TypeAlias = Callable[[LogRecord], str]
"""Returns an entry as lines of text, each with its end."""


def format_text(entry: LogRecord) -> str:
    """Return an entry as readable text."""
    if entry.line:
        return f"{entry.line}\n"
    message = entry.message
    if entry.fields:
        message = f"{message} {format_fields(entry)}".rstrip()
    if entry.worker:
        message = f"Worker {entry.worker}: {message}"
    if entry.traceback:
        message = f"{message}\n{entry.traceback}"
    # As in Twisted's own log, all lines of an entry but the first are indented.
    shown = "\n\t".join(map(in_one_line, message.split("\n")))
    return f"{_local_time(int(entry.time))} [{entry.logger}#{entry.level}] {shown}\n"


def format_fields(entry: LogRecord) -> str:
    """Return the fields that the message does not show, as `name=value` with blanks between."""
    return " ".join(
        f"{name}={_format_value(value)}"
        for name, value in entry.fields.items()
        if name not in IN_EVERY_MESSAGE
    )


def _format_value(value: object) -> str:
    if isinstance(value, str):
        return _format_string(value)
    return str(value).lower()  # a number, true or false


@bounded_cache(256)
def _format_string(value: str) -> str:
    shown = in_one_line(value)
    if _BARE.fullmatch(shown):
        return shown
    # Characters that are escaped already are not escaped again.
    return '"' + shown.replace('"', '\\"') + '"'


def format_json(entry: LogRecord) -> str:
    """Return an entry as a JSON object in one line."""
    members: dict[str, object] = {
        "time": rfc_3339(entry.time),
        "level": entry.level,
        "logger": entry.logger,
        "message": entry.message,
    }
    if entry.worker:
        members["worker"] = entry.worker
    members.update(entry.fields)
    if entry.traceback:
        members["traceback"] = entry.traceback
    try:
        text = orjson.dumps(members, default=str).decode()
    except TypeError:  # a lone surrogate, or a number that is too large
        text = json.dumps(members, default=str)
    if not text.isprintable():
        # JSON permits DEL, C1 controls and line separators, which terminals and editors interpret.
        text = "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in text)
    return f"{text}\n"


def rfc_3339(time: float) -> str:
    """Return a time in seconds since 1970 in UTC, to the millisecond, by RFC 3339."""
    seconds, milliseconds = divmod(int(time * 1000), 1000)
    return f"{_utc(seconds)}.{milliseconds:03d}Z"


# Most lines have the same second as the previous one.
@lru_cache(maxsize=2)
def _utc(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}"


@lru_cache(maxsize=2)
def _local_time(seconds: int) -> str:
    return formatTime(seconds)


class LogFile:
    """A file that another program may rotate.

    Writes append, so a program may truncate it (`copytruncate` of logrotate), and `reopen` opens it
    by its name again, so a program may rename it.
    """

    def __init__(self, path: str) -> None:
        """Open the file, or create it; raise OSError."""
        self._path = os.path.abspath(path)
        self._file = self._open()

    def write(self, data: bytes) -> None:
        """Append bytes."""
        self._file.write(data)

    def reopen(self) -> None:
        """Open the file of this name again; if that fails, keep the open one."""
        try:
            file = self._open()
        except OSError:
            return
        self._file.close()
        self._file = file

    def _open(self) -> BinaryIO:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        # Without a buffer, since each line must be one system call, so that lines are never mixed.
        return os.fdopen(os.open(self._path, flags, FILE_MODE), "wb", 0)


def write_to_stream(stream: Any) -> Callable[[bytes], None]:
    """Return a function that writes bytes to a text stream at once, whatever its encoding."""
    binary = getattr(stream, "buffer", None)
    if binary is None:  # a stream in memory

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


FORMATS: Final[Mapping[str, FormatEntry]] = {"text": format_text, "json": format_json}


@attrs.frozen
class LogOutput:
    """The writer of the log, and its file, None for standard output."""

    writer: LogWriter
    file: LogFile | None = None


@attrs.frozen
class LogTarget:
    """The file to which a daemon logs; empty for standard output."""

    file: str = ""

    def open(self, log_format: str) -> LogOutput:
        """Return the output in a format; raise `CannotLog`."""
        format_entry = FORMATS[log_format]
        if not self.file:
            return LogOutput(LogWriter(write_to_stream(sys.stdout), format_entry))
        try:
            file = LogFile(self.file)
        except OSError as error:
            raise CannotLog(
                f"The log file {self.file}",
                f"cannot be written ({error.strerror})",
                "choose another --logfile",
            ) from None
        return LogOutput(LogWriter(file.write, format_entry), file)


def find_target(options: Mapping[str, Any], *, in_foreground: bool) -> LogTarget | None:
    """Return the target by the `options` of twistd; None if twistd logs itself."""
    if options.get("logger") or options.get("syslog"):
        return None
    file = options.get("logfile") or ""
    if file == "-":
        return LogTarget() if in_foreground else None  # twistd reports the error
    return LogTarget(file or ("" if in_foreground else DEFAULT_FILE))
