"""The line of a document that an error is in, with the caret below its column."""

from __future__ import annotations

import pytest

from treedbd.cli.exit import (
    excerpt,
)


def under(shown: str, caret: str) -> str:
    """Return what is above the caret, if every character takes one column."""
    assert caret.strip() == "^"
    return shown[len(caret) - 1 :]


@pytest.mark.parametrize(
    ("document", "line", "column", "lines"),
    [
        ("ab cd", 1, 4, ("    ab cd", "       ^")),
        ("one\ntwo\nthree", 2, 1, ("    two", "    ^")),
        ("one\r\ntwo\r\n", 2, 2, ("    two", "     ^")),
        ("one", 1, 4, ("    one", "       ^")),
        ("one\n", 2, 1, ("    ", "    ^")),
        ("", 1, 1, ("    ", "    ^")),
        ("\ta\tb", 1, 4, ("    \ta\tb", "    \t \t^")),
        ("日本 x", 1, 4, ("    日本 x", "         ^")),
        ("e\u0301 x", 1, 4, ("    e\u0301 x", "      ^")),
        ("a\x1b[2J b", 1, 7, ("    a�[2J b", "          ^")),
        ("\ufeff{}", 1, 1, ("    �{}", "    ^")),
    ],
)
def test_the_caret_is_below_the_column(
    document: str, line: int, column: int, lines: tuple[str, str]
) -> None:
    assert excerpt(document, line, column) == lines


@pytest.mark.parametrize("at", [0, 10, 60, 61, 500, 940, 994])
def test_of_a_long_line_the_part_around_the_column_is_shown(at: int) -> None:
    document = "x" * at + "wrong" + "x" * (995 - at)
    shown, caret = excerpt(document, 1, at + 1)
    assert under(shown, caret).startswith("wrong")
    assert len(shown) <= 4 + 100 + 2
    assert shown.startswith("    …") == (at > 60)
    assert shown.endswith("…") == (at < 960)


def test_a_line_of_a_large_document_is_found() -> None:
    document = "x\n" * 500_000 + "  here"
    assert excerpt(document, 500_001, 3) == ("      here", "      ^")
