"""The errors of expressions that do not parse: what was found, and what JavaScript it may be."""

from __future__ import annotations

import re
from typing import Final

from treedbd.rules.errors import ExpressionError
from treedbd.rules.remedies import remedy_of_operator, remedy_of_token, remedy_of_word
from treedbd.rules.tokens import ANY, BLANKS

_ASSIGNMENT = re.compile(r"(?:[-+*/%&|^]|\*\*|<<|>>>?)?=(?!=)")
_UNSUPPORTED_OPERATOR = re.compile(r"\*\*|<<|>>>?|&|\||\^|~|,|(?:in|instanceof)\b")
_UNSUPPORTED_WORD = re.compile(r"\b(typeof|void|delete|new|var|let|const|function|return)\s+$")
_LONGEST_WORD: Final = 40
"""Characters before an error that are searched for such a word."""


def syntax_error(text: str, at: int, *, operand: bool) -> ExpressionError:
    """Return the error at the first token from `at`, where the parser cannot go on.

    `operand` says that an operand was expected there, otherwise an operator or an end.
    """
    blanks = BLANKS.match(text, at)
    offset = blanks.end() if blanks else at
    first = text[offset : offset + 1]
    if not first:
        return ExpressionError(offset, "Unexpected end of expression.")
    if operand and first == "/":
        text = "unterminated regular expression literal"
        return ExpressionError(offset, text, "Close the pattern with a slash.")
    if operand and first in "\"'":
        hint = f"Close the string with {first}."
        return ExpressionError(offset, "Unterminated string literal.", hint)
    unsupported = _find_unsupported(text, offset)
    if unsupported:
        return unsupported
    token = ANY.match(text, offset)
    shown = token[0] if token else first
    hint = remedy_of_token(shown, text[:offset], operand=operand)
    return ExpressionError(offset, f"Unexpected '{shown}'.", hint)


def _find_unsupported(text: str, offset: int) -> ExpressionError | None:
    """Return the error for JavaScript that this language does not support, None for other text."""
    assignment = _ASSIGNMENT.match(text, offset)
    if assignment:
        error_text = "Rule expressions may not contain assignments."
        return ExpressionError(offset, error_text, remedy_of_operator(assignment[0]))
    if text.startswith("**", offset - 1):
        error_text = "Rule expressions may not contain operator **."
        return ExpressionError(offset - 1, error_text, remedy_of_operator("**"))
    operator = _UNSUPPORTED_OPERATOR.match(text, offset)
    if operator:
        error_text = f"Rule expressions may not contain operator {operator[0]}."
        return ExpressionError(
            offset, error_text, remedy_of_operator(operator[0], text[offset : offset + 2])
        )
    word = _UNSUPPORTED_WORD.search(text, max(0, offset - _LONGEST_WORD), offset)
    if word:
        error_text = f"Rule expressions may not contain '{word[1]}'."
        return ExpressionError(word.start(1), error_text, remedy_of_word(word[1]))
    return None
