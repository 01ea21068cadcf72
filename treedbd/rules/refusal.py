"""How a rules document is refused: one error, which says where and why.

The texts themselves stand where the errors are found: `document`, `outline`, `grammar`, `regex`,
`check`. Inside one expression a place is an offset into the expression's own text (`Fault`); only
`outline` knows where that text stands in the document, and makes an `InvalidRules` of it.
"""

from __future__ import annotations

from typing import NamedTuple


class Position(NamedTuple):
    """A place in a document: both count from 1, columns in characters."""

    line: int
    column: int


class InvalidRules(ValueError):
    """A rules document that cannot be put in force; `str()` is `line:column: text`."""

    def __init__(self, line: int, column: int, text: str) -> None:
        super().__init__(f"{line}:{column}: {text}")
        self.line = line
        self.column = column
        self.text = text


class Fault(Exception):
    """What is wrong with one expression, `at` characters from its beginning."""

    def __init__(self, at: int, text: str) -> None:
        super().__init__(text)
        self.at = at
        self.text = text
