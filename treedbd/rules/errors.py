"""The errors of a rules document; only the first is reported, with its position and its text.

The texts are in the modules that find the errors: `document`, `build`, `grammar`, `regex` and
`typecheck`. An `ExpressionError` has an offset into the text of its expression. Only `build` knows
where that text is in the document; it turns the error into an `InvalidRules`.
"""

from __future__ import annotations

from typing import NamedTuple


class TextPosition(NamedTuple):
    """A position in a document: line and column count from 1, columns in characters."""

    line: int
    column: int


class InvalidRules(ValueError):
    """A rules document that cannot be put in force; `str()` is `line:column: text`."""

    def __init__(self, line: int, column: int, text: str) -> None:
        super().__init__(f"{line}:{column}: {text}")
        self.line = line
        self.column = column
        self.text = text


class ExpressionError(Exception):
    """An error in one expression, `offset` characters from its beginning."""

    def __init__(self, offset: int, text: str) -> None:
        super().__init__(text)
        self.offset = offset
        self.text = text
