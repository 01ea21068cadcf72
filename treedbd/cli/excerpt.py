"""A line of a document with a caret below one of its columns, as compilers show it."""

from __future__ import annotations

import unicodedata
from typing import Final

from treedbd.cli.exit import make_printable

_INDENT: Final = "    "
_WIDTH: Final = 100
"""Characters of a line that are shown; documents without line ends have very long ones."""
_BEFORE: Final = 60
"""Characters of a long line that are shown before the caret."""
_CUT: Final = "…"


def excerpt(document: str, line: int, column: int) -> tuple[str, str]:
    """Return a line of a document, and the line with the caret; both numbers count from 1."""
    text = document.split("\n", line)[line - 1].removesuffix("\r")
    begin = max(0, column - 1 - _BEFORE) if len(text) > _WIDTH else 0
    before = _CUT * (begin > 0) + text[begin : column - 1]
    rest = text[column - 1 : begin + _WIDTH]
    after = rest + _CUT * (begin + _WIDTH < len(text))
    # A tab is as wide as the terminal makes it, so the caret's line has the same tabs.
    pad = "".join("\t" if each == "\t" else " " * _width(each) for each in before)
    shown = "\t".join(map(make_printable, (before + after).split("\t")))
    return f"{_INDENT}{shown}", f"{_INDENT}{pad}^"


def _width(character: str) -> int:
    """Return how many columns a terminal takes for a character."""
    if not character.isprintable():
        return 1  # shown as a replacement character
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
