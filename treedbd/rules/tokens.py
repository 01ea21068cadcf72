"""The tokens of expressions: their patterns, and the values of literals.

What a token may be depends on whether an operand or an operator comes next: a slash begins a
regular expression where an operand is expected, and divides elsewhere. So there is one pattern for
each of the two states. Whitespace and comments are skipped before any token.
"""

from __future__ import annotations

import re
from typing import Final

from treedbd.rules.errors import ExpressionError
from treedbd.tree.value import canonical_number

# Atomic groups, not possessive ones: where one of these has failed in its middle, Python before
# 3.11.5 goes on from there, not from where it began.
_BLANKS: Final = r"(?>(?:\s+|//[^\n]*|/\*[\s\S]*?\*/)*)"
_NAME: Final = r"(?:[^\W\d]|\$)[\w$]*"
_NUMBER: Final = (
    r"0[xX][0-9A-Fa-f]+|(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
)
_STRING: Final = r'"(?>(?:[^"\\\r\n]|\\[^\r\n])*)"' + r"|'(?>(?:[^'\\\r\n]|\\[^\r\n])*)'"
_REGEX: Final = (
    r"/(?![*/])(?:[^/\\\[\r\n]|\\[^\r\n]|\[(?>(?:[^\]\\\r\n]|\\[^\r\n])*)\])+/[A-Za-z0-9_$]*"
)

BLANKS: Final = re.compile(_BLANKS)
NAME: Final = re.compile(f"{_BLANKS}({_NAME})")
OPERAND: Final = re.compile(
    rf"{_BLANKS}(?:(?P<name>{_NAME})|(?P<number>{_NUMBER})|(?P<string>{_STRING})"
    rf"|(?P<pattern>{_REGEX})|(?P<prefix>[!-])|(?P<opening>[(\[])|(?P<closing>[)\]]))"
)
"""What may stand where an operand is expected; a closing bracket ends an empty list."""
OPERATOR: Final = re.compile(
    rf"{_BLANKS}(?:(?P<operator>\|\||&&|[=!]==?|[<>]=?|[-+*/%])|(?P<member>\.)|(?P<opening>[(\[])"
    r"|(?P<closing>[)\]])|(?P<comma>,)|(?P<choice>\?)|(?P<otherwise>:)|(?P<end>;|\Z))"
)
"""What may follow an operand."""
ANY: Final = re.compile(rf"{_NAME}|{_NUMBER}|{_STRING}|{_REGEX}|===?|!==?|[<>]=?|\|\||&&|[\s\S]")
"""Any token at all, to be shown in an error."""

_CONSTANTS: Final = {"true": True, "false": False, "null": None}
_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|x([0-9A-Fa-f]{2})|(.))", re.DOTALL)
_LETTERS: Final = {
    "b": "\b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
    "0": "\0",
}


def is_constant(name: str) -> bool:
    """Return whether a name is `true`, `false` or `null`."""
    return name in _CONSTANTS


def read_constant(name: str) -> bool | None:
    """Return the value of `true`, `false` or `null`."""
    return _CONSTANTS[name]


def read_number(token: str, offset: int) -> int | float:
    """Return the value of a number; raise `ExpressionError` if it is out of range."""
    try:
        if token[:2] in ("0x", "0X"):
            return canonical_number(int(token, 16))
        if token.isdigit() and len(token) < 20:
            return canonical_number(int(token))
        return canonical_number(float(token))
    except (ValueError, OverflowError):
        raise ExpressionError(offset, "The number is out of range.") from None


def read_string(token: str, offset: int) -> str:
    """Return the value of a string in quotes; raise `ExpressionError` for half a surrogate pair."""
    if "\\" not in token:
        return token[1:-1]
    text = _ESCAPE.sub(_read_escape, token[1:-1])
    try:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError:
        raise ExpressionError(offset, "A string must not hold half a surrogate pair.") from None


def _read_escape(found: re.Match[str]) -> str:
    code = found[1] or found[2]
    return chr(int(code, 16)) if code else _LETTERS.get(found[3], found[3])
