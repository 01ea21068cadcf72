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


class RulesWarning(NamedTuple):
    """What is allowed but probably not meant; `str()` is `line:column: text`.

    If it `is_advice`, it may well be meant, and is said where rules are checked and logged, not in
    the response to putting them.
    """

    position: TextPosition
    text: str
    is_advice: bool = False

    def __str__(self) -> str:
        return f"{self.position.line}:{self.position.column}: {self.text}"


class InvalidRules(ValueError):
    """A rules document that cannot be put in force; `str()` is `line:column: text`.

    `hint` is a sentence that may help ("Did you mean …?"), or empty. It is not part of the text,
    because clients know the texts of Firebase.
    """

    def __init__(self, line: int, column: int, text: str, hint: str = "") -> None:
        super().__init__(f"{line}:{column}: {text}")
        self.line = line
        self.column = column
        self.text = text
        self.hint = hint


class ExpressionError(Exception):
    """An error in one expression, `offset` characters from its beginning; `hint` may be empty."""

    def __init__(self, offset: int, text: str, hint: str = "") -> None:
        super().__init__(text)
        self.offset = offset
        self.text = text
        self.hint = hint


def with_hint(error: BaseException) -> str:
    """Return the text of an error for a person, with its hint if it has one."""
    hint = error.hint if isinstance(error, InvalidRules) else ""
    return f"{error} {hint}".rstrip()
