from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treedbd.operating.log import MEMBERS, LogRecord, format_json, format_text, rfc_3339

AT = 1_700_000_000.1234
HOSTILE = ("\x1b[2J\x07", "a\nb\r\n", "\x9b31m", "\u2028\u2029\x85", "\u202eexe", "\ud800", "\x00")


def entry(message: str = "Hello.", **more: Any) -> LogRecord:
    return LogRecord(AT, "info", "a.logger", message, **more)


def test_json_has_all_members_and_the_fields() -> None:
    shown = json.loads(format_json(entry(worker=2, fields={"ms": 1.5}, traceback="T\nU")))
    assert shown == {
        "time": "2023-11-14T22:13:20.123Z",
        "level": "info",
        "logger": "a.logger",
        "message": "Hello.",
        "worker": 2,
        "ms": 1.5,
        "traceback": "T\nU",
    }
    assert set(MEMBERS) <= shown.keys()
    assert set(json.loads(format_json(entry()))) == {*MEMBERS} - {"worker", "traceback"}


@pytest.mark.parametrize("text", HOSTILE)
def test_json_is_one_printable_line_whatever_was_logged(text: str) -> None:
    line = format_json(entry(text, fields={"path": text}, traceback=text))
    assert line.endswith("\n")
    assert line[:-1].isprintable()
    shown = json.loads(line)
    assert (shown["message"], shown["path"], shown["traceback"]) == (text, text, text)


@given(st.text())
def test_json_keeps_every_text(text: str) -> None:
    line = format_json(entry(text))
    assert line[:-1].isprintable()
    assert json.loads(line)["message"] == text


def test_json_shows_what_has_no_form_in_json_as_text() -> None:
    shown = json.loads(format_json(entry(fields={"n": 2**70, "x": {1}})))
    assert shown["x"] == "{1}"
    assert shown["n"] == 2**70


def test_text_is_time_source_level_message_and_fields() -> None:
    fields = {"path": "/a", "status": 200, "ms": 1.5, "tls": True, "user_agent": 'a "b" c\x1b'}
    line = format_text(entry("GET /a 200", fields=fields))
    assert re.fullmatch(r"2023-11-1\dT\d\d:\d\d:20[+-]\d{4} \[a\.logger#info\] .*\n", line)
    assert line.endswith('] GET /a 200 ms=1.5 tls=true user_agent="a \\"b\\" c\\x1b"\n')


@pytest.mark.parametrize("text", HOSTILE)
def test_text_has_no_control_character_whatever_was_logged(text: str) -> None:
    line = format_text(entry(text, fields={"path": text, "agent": text}))
    first, *others = line.split("\n")
    assert all(each.startswith("\t") for each in others[:-1])
    assert all(each.lstrip("\t").isprintable() for each in (first, *others))


def test_text_indents_a_traceback_and_names_the_worker() -> None:
    line = format_text(entry(worker=2, traceback="Traceback\n  file"))
    assert line.endswith("] Worker 2: Hello.\n\tTraceback\n\t  file\n")


def test_text_shows_a_line_of_its_own_in_place_of_all_else() -> None:
    assert format_text(entry(worker=2, fields={"a": 1}, line="as it is")) == "as it is\n"


def test_times_have_milliseconds_and_are_utc() -> None:
    assert rfc_3339(0.0) == "1970-01-01T00:00:00.000Z"
    assert rfc_3339(0.9996) == "1970-01-01T00:00:00.999Z"
