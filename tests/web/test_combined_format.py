from __future__ import annotations

from typing import Any

import pytest

from treedbd.web.request_log import format_combined

FIELDS: dict[str, Any] = {
    "method": "GET",
    "path": "/a.json",
    "status": 200,
    "sent": 17,
    "protocol": "HTTP/1.1",
    "client": "192.0.2.7",
    "uid": "ada",
    "user_agent": "curl/8",
    "referer": "https://a/b",
}
AT = 971_211_336.0


def test_a_line_has_the_fields_of_the_combined_format() -> None:
    assert format_combined(FIELDS, AT) == (
        '192.0.2.7 - ada [10/Oct/2000:20:55:36 +0000] "GET /a.json HTTP/1.1" 200 17 '
        '"https://a/b" "curl/8"'
    )


def test_what_is_absent_is_a_hyphen() -> None:
    few = {**FIELDS, "sent": 0}
    for name in ("uid", "user_agent", "referer"):
        del few[name]
    assert format_combined(few, AT) == (
        '192.0.2.7 - - [10/Oct/2000:20:55:36 +0000] "GET /a.json HTTP/1.1" 200 - "-" "-"'
    )


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ('a "b" \\ c', 'a \\"b\\" \\\\ c'),
        ("\x1b[2J\n\r\t\x00", "\\x1b[2J\\x0a\\x0d\\x09\\x00"),
        ("ä", "\\xc3\\xa4"),
        ("\ud800", "\\\\ud800"),
    ],
)
def test_quotes_backslashes_and_all_that_is_not_printable_ascii_is_escaped(
    value: str, shown: str
) -> None:
    line = format_combined({**FIELDS, "user_agent": value}, AT)
    assert line.endswith(f' "{shown}"')
    assert line.isprintable()


def test_the_name_of_a_user_is_one_word() -> None:
    line = format_combined({**FIELDS, "uid": 'a "b" c'}, AT)
    assert line.startswith('192.0.2.7 - a\\x20\\"b\\"\\x20c [')
