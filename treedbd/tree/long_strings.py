"""Strings that are too long for one step: collected and parsed in parts, with pauses.

A string of megabytes is one leaf. To parse or search it at once would take tens of milliseconds,
and far more if much of it is escaped. It is printed by `printing`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import orjson

from treedbd.pauses import pause
from treedbd.tree.errors import InvalidData

_COUNTED_AT_ONCE: Final = 65_536
_REST: Final = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
"""What is left of a string up to its last quotation mark, or to a lone backslash at the end."""
# What a part of a string begins with that can be parsed by itself: characters and escapes that are
# whole, and both halves of an escaped surrogate pair.
_WHOLE: Final = re.compile(
    rb"(?:[^\\\x80-\xff]++|[\xc0-\xdf].|[\xe0-\xef]..|[\xf0-\xf7]..."
    rb"|\\u[dD][89abAB]..\\u....|\\u(?:[^dD]...|[dD][^89abAB]..)|\\[^u])*+",
    re.DOTALL,
)
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
        end = _WHOLE.match(text).end()  # type: ignore[union-attr]  # it matches anything
        if len(text) - end >= _LONGEST_CHARACTER:
            end = len(text)  # it is not valid there
        texts.append(_parse(text[:end]))
        rest = text[end:]
        pause()
    texts.append(_parse(rest))
    return "".join(texts)


def count_bytes(text: str) -> int:
    """Return how many bytes of UTF-8 a string has."""
    count = 0
    for at in range(0, len(text), _COUNTED_AT_ONCE):
        count += len(text[at : at + _COUNTED_AT_ONCE].encode())
        pause()
    return count


def _parse(text: bytes) -> str:
    try:
        json = orjson.loads(b'"%b"' % text)
    except orjson.JSONDecodeError as error:
        raise InvalidData(f"Not valid JSON: {error}.") from None
    if not isinstance(json, str):
        raise InvalidData("Not valid JSON: a quotation mark is out of place.")
    return json
