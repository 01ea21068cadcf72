"""The lines of the log: readable text, or one JSON object each.

Every line of JSON is valid by itself and has no control character, whatever was logged: a traceback
is one member of its object. Text shows a traceback in lines of its own, indented.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final, TypeAlias

import orjson
from twisted.logger import formatTime

from treedbd.caches import bounded_cache
from treedbd.errors import in_one_line
from treedbd.logs.entry import LogRecord

FormatEntry: TypeAlias = Callable[[LogRecord], str]
"""Returns an entry as lines of text, each with its end."""

MEMBERS: Final = ("time", "level", "logger", "message", "worker", "traceback")
"""The members of each object, the last two where there is such; other members are fields."""
IN_EVERY_MESSAGE: Final = frozenset({"method", "path", "status"})
"""Fields that the messages show which have them; text does not repeat them."""
_BARE: Final = re.compile(r"[\w.:@/+…-]+", re.ASCII)


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
    # As Twisted's own log: the lines of one entry are indented but for the first.
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
    # What is escaped already keeps its form.
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
        # JSON lets DEL, C1 controls and line separators be, and terminals and editors do not.
        text = "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in text)
    return f"{text}\n"


def rfc_3339(time: float) -> str:
    """Return a time in seconds since 1970 in UTC, to the millisecond, by RFC 3339."""
    seconds, milliseconds = divmod(int(time * 1000), 1000)
    return f"{_utc(seconds)}.{milliseconds:03d}Z"


# Most lines are of the same second as the one before.
@lru_cache(maxsize=2)
def _utc(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}"


@lru_cache(maxsize=2)
def _local_time(seconds: int) -> str:
    return formatTime(seconds)
