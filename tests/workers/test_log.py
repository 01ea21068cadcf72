from __future__ import annotations

from collections.abc import Iterator

import pytest
from twisted.logger import ILogObserver, LogEvent, LogLevel, globalLogPublisher
from zope.interface import implementer

from treedbd.operating.log import LogRecord, encode_entry
from treedbd.workers.protocol import MAX_LINE_BYTES, WorkerLog


@pytest.fixture
def logged() -> Iterator[list[tuple[LogLevel, str]]]:
    found: list[tuple[LogLevel, str]] = []

    @implementer(ILogObserver)
    def observe(event: LogEvent) -> None:
        found.append((event["log_level"], f"{event['number']} {event['text']}"))

    globalLogPublisher.addObserver(observe)
    yield found
    globalLogPublisher.removeObserver(observe)


def line(level: str, text: str) -> bytes:
    return encode_entry(LogRecord(1.5, level, "a.logger", text))


def test_what_a_worker_logs_keeps_its_level(logged: list[tuple[LogLevel, str]]) -> None:
    log = WorkerLog(2)
    log.receive(line("warn", "one") + line("info", "two"))
    assert logged == [(LogLevel.warn, "2 one"), (LogLevel.info, "2 two")]


def test_a_line_may_come_in_parts(logged: list[tuple[LogLevel, str]]) -> None:
    log = WorkerLog(1)
    for byte in line("error", "a\nb"):
        log.receive(bytes([byte]))
    assert logged == [(LogLevel.error, "1 a\nb")]


@pytest.mark.parametrize(
    "content",
    [
        *("Fatal Python error", "[1]", '["nonsense", "x"]', '{"a": 1}'),
        '[1.0, "nonsense", "a", "b", {}, "", ""]',
    ],
)
def test_what_else_a_process_says_is_an_error(
    content: str, logged: list[tuple[LogLevel, str]]
) -> None:
    log = WorkerLog(1)
    log.receive(content.encode())
    log.end()
    ((level, _),) = logged
    assert level is LogLevel.error


def test_a_line_without_an_end_is_cut(logged: list[tuple[LogLevel, str]]) -> None:
    log = WorkerLog(1)
    for _ in range(3):
        log.receive(b"x" * MAX_LINE_BYTES)
    log.end()
    ((_, text),) = logged
    assert len(text) <= MAX_LINE_BYTES + 2
