"""Strings that are too long for one step: collected and parsed in parts, with pauses.

A string of megabytes is one leaf. To parse or search it at once would take tens of milliseconds,
and far more if much of it is escaped. It is printed by `printing`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import orjson

from treedbd.loop import pause
from treedbd.tree.types import InvalidData

_COUNTED_AT_ONCE: Final = 65_536
_REST: Final = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
"""What is left of a string up to its last quotation mark, or to a lone backslash at the end."""
_HIGH_SURROGATE: Final = re.compile(rb"\\u[dD][89abAB]..", re.DOTALL)
_NOT_PLAIN: Final = bytes(range(0x20)) + b'"\\'
"""What must not be in the text of a string, or does not mean itself."""
_ESCAPE: Final = len(r"\u0000")
_LONGEST_CHARACTER: Final = len(r"\ud83d\ude00")


class LongString:
    """The text of one string in JSON, which comes in pieces of any length.

    Attributes:
        parts: what has come of it, without its quotation marks.
        is_open: whether more of it is to come.

    """

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.is_open = True
        self._escape = b""  # a backslash at the end of the last piece

    def add(self, data: bytes) -> bytes:
        """Add a piece up to the end of the string; return what follows its last character."""
        data = self._escape + data
        end = find_end(data)
        self.parts.append(data[:end])
        if data[end : end + 1] == b'"':
            self.is_open = False
            return data[end:]
        self._escape = data[end:]
        return b""


def find_end(text: bytes, at: int = 0) -> int:
    """Return where a string ends that has begun: at its quotation mark, or where text is missing.

    That is the end of the text, or a lone backslash there. `at` is in the string, not in an escape.
    """
    return _REST.match(text, at).end()  # type: ignore[union-attr]  # it matches anything


def parse_text(parts: Iterable[bytes]) -> str:
    """Parse a string that comes in parts, without its quotation marks; raise `InvalidData`."""
    texts: list[str] = []
    rest = b""
    for part in parts:
        text = rest + part
        end = _find_whole(text)
        texts.append(_parse(text[:end]))
        rest = text[end:]
        pause()
    texts.append(_parse(rest))
    return "".join(texts)


def _find_whole(text: bytes) -> int:
    """Return the end of what can be parsed by itself, at most 11 bytes before that of the text.

    After it comes what is cut off: an escape, the first half of a pair of them, or a character. To
    look at the last bytes only takes a tenth of the time of parsing, whatever they are.
    """
    end = len(text)
    at = text.rfind(b"\\", max(0, end - _LONGEST_CHARACTER + 1))
    if at >= 0 and _is_escape(text, at):
        length = _ESCAPE if text[at + 1 : at + 2] == b"u" else 2
        if end - at < length:
            half = at - _ESCAPE
            has_half = half >= 0 and _HIGH_SURROGATE.match(text, half) and _is_escape(text, half)
            return half if has_half else at
        if _HIGH_SURROGATE.match(text, at):
            return at
    for back in range(1, min(3, end) + 1):
        byte = text[-back]
        if byte >= 0xC0:
            return end - back if back < 2 + (byte >= 0xE0) + (byte >= 0xF0) else end
        if byte < 0x80:
            break
    return end


def _is_escape(text: bytes, at: int) -> bool:
    """Return whether the backslash at an index begins an escape: those before it are in pairs."""
    return (at - len(text[:at].rstrip(b"\\"))) % 2 == 0


def count_bytes(text: str) -> int:
    """Return how many bytes of UTF-8 a string has."""
    count = 0
    for at in range(0, len(text), _COUNTED_AT_ONCE):
        count += len(text[at : at + _COUNTED_AT_ONCE].encode())
        pause()
    return count


def _parse(text: bytes) -> str:
    try:
        if len(text.translate(None, _NOT_PLAIN)) == len(text):
            return text.decode()  # in half of the time that a parser takes
    except UnicodeDecodeError as error:
        raise InvalidData(f"Not valid JSON: {error}.") from None
    try:
        json = orjson.loads(b'"%b"' % text)
    except orjson.JSONDecodeError as error:
        raise InvalidData(f"Not valid JSON: {error}.") from None
    if not isinstance(json, str):
        raise InvalidData("Not valid JSON: a quotation mark is out of place.")
    return json
