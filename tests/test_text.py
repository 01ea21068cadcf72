"""Text that is safe to print on one line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treedbd.errors import in_one_line


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("/a b/ü.json", "/a b/ü.json"),
        ("a\r\nb\tc", r"a\r\nb\tc"),
        ("\x1b[2J\x9b0m\x00", r"\x1b[2J\x9b0m\x00"),
        ("\u2028\u202e\ud800", r"\u2028\u202e\ud800"),
    ],
)
def test_control_characters_are_escaped(text: str, shown: str) -> None:
    assert in_one_line(text) == shown


@given(st.text(st.characters(categories=None)))
def test_any_text_becomes_one_printable_line(text: str) -> None:
    assert in_one_line(text).isprintable()
