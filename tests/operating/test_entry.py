from __future__ import annotations

import warnings
from typing import Any

import pytest
from twisted.logger import LogEvent, Logger, LogLevel
from twisted.python.failure import Failure

from treedbd.operating.log import (
    MAX_CHARACTERS,
    LogRecord,
    NotAnEntry,
    decode_entry,
    encode_entry,
    entry_of,
)


def event_of(*arguments: Any, level: str = "info", **more: Any) -> LogEvent:
    events: list[LogEvent] = []
    logger = Logger("a.logger", observer=events.append)  # type: ignore[arg-type]
    logger.emit(LogLevel.levelWithName(level), *arguments, **more)
    return events[0]


def failure_of(error: Exception) -> Failure:
    try:
        raise error
    except Exception:
        return Failure()


def test_an_event_has_its_level_its_logger_and_its_text() -> None:
    entry = entry_of(event_of("{n} are {what}", level="warn", n=2, what="here"))
    assert (entry.level, entry.logger, entry.message) == ("warn", "a.logger", "2 are here")
    assert (entry.traceback, entry.line, entry.worker, dict(entry.fields)) == ("", "", 0, {})


def test_fields_and_a_line_of_its_own_come_from_the_event() -> None:
    entry = entry_of(event_of("x", treedb_fields={"a": 1}, treedb_line="in place of it"))
    assert (entry.fields, entry.line) == ({"a": 1}, "in place of it")


def test_a_failure_has_its_traceback_apart_from_the_message() -> None:
    entry = entry_of(event_of("It failed.", log_failure=failure_of(ValueError("why"))))
    assert entry.message == "It failed."
    assert entry.traceback.startswith("Traceback")
    assert entry.traceback.endswith("ValueError: why")


def test_a_failure_whose_text_cannot_be_made_is_logged_all_the_same() -> None:
    class Unprintable(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    entry = entry_of(event_of("It failed.", log_failure=failure_of(Unprintable())))
    assert "Unprintable" in entry.traceback or "cannot be shown" in entry.traceback


def test_an_event_that_cannot_be_formatted_is_logged_all_the_same() -> None:
    assert "Unable to format" in entry_of(event_of("{missing}")).message


@pytest.mark.parametrize("text", ["plain", "ä\n\x1b[2J", "\ud800", "\u2028", ""])
def test_an_entry_comes_through_to_another_process(text: str) -> None:
    sent = LogRecord(1.5, "error", "a", text, {"path": text, "n": 1.5, "tls": True}, text, text)
    encoded = encode_entry(sent)
    assert encoded.count(b"\n") == 1
    received = decode_entry(encoded, 3)
    assert received == LogRecord(1.5, "error", "a", text, sent.fields, text, text, 3)


def test_of_a_very_long_text_the_rest_is_dropped() -> None:
    sent = LogRecord(1.5, "error", "a", "x" * 10**6, {}, "y" * 10**6)
    received = decode_entry(encode_entry(sent), 1)
    assert (len(received.message), len(received.traceback)) == (MAX_CHARACTERS, MAX_CHARACTERS)


@pytest.mark.parametrize(
    "line",
    [
        *(b"", b"null", b"[]", b"Traceback", b'{"a": 1}', b"\xff", b"[1.5]"),
        b"[" * 100_000,
        *(b'[1, "info", "a", "b", {}, "", ""]', b'[1.5, "loud", "a", "b", {}, "", ""]'),
    ],
)
def test_what_is_no_entry_is_an_error(line: bytes) -> None:
    with pytest.raises(NotAnEntry):
        decode_entry(line, 1)


def test_a_warning_of_python_is_text() -> None:
    shown = warnings.formatwarning("old", DeprecationWarning, "a.py", 1)
    assert entry_of(event_of("{text}", text=shown)).message == shown.strip("\n")
