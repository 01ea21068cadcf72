"""The text of a rules document: JSON in a dialect, with the position of every part.

The dialect adds to JSON what rules files are written with: line and block comments, line breaks
and tabs inside strings, a comma before a closing bracket. It refuses a member given twice.

Theory of operation: one pass with a cursor over the text. Numbers and null are read, for the sake
of a better message, though no place of a rules document takes them. Nothing here knows what the
members mean; `outline` does. An `Item` keeps the offset at which it begins, and a `Text` can tell
where each of its characters stands in the document, escapes and all.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from functools import cached_property
from operator import itemgetter
from typing import Any, Final, NoReturn, TypeAlias

import attrs

from treedbd.rules.refusal import InvalidRules, Position

_BLANK = re.compile(r"(?:[ \t\r\n]+|//[^\n]*|/\*[\s\S]*?\*/)*")
_PLAIN = re.compile(r'[^"\\\x00-\x08\x0b\x0c\x0e-\x1f]*')
_WORD = re.compile(r"[A-Za-z]+")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_HEX = re.compile(r"u([0-9A-Fa-f]{4})")
_PAIR = re.compile(r"u([dD][89abAB][0-9A-Fa-f]{2})\\u([dD][c-fC-F][0-9A-Fa-f]{2})")
_ESCAPES: Final = {
    '"': '"',
    "\\": "\\",
    "/": "/",
    "b": "\b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
}
_CONSTANTS: Final = {"true": True, "false": False, "null": None}


class Source:
    """A document's text, and where its lines begin."""

    def __init__(self, text: str) -> None:
        self.text: Final = text

    @cached_property
    def _line_starts(self) -> list[int]:
        return [0, *(found.end() for found in re.finditer("\n", self.text))]

    def position(self, offset: int) -> Position:
        """Return the line and column of an offset."""
        line = bisect_right(self._line_starts, offset)
        return Position(line, offset - self._line_starts[line - 1] + 1)

    def refuse(self, offset: int, text: str) -> NoReturn:
        """Raise `InvalidRules` for what stands at an offset."""
        raise InvalidRules(*self.position(offset), text)


@attrs.frozen(eq=False)
class Scalar:
    """A number, a boolean or null."""

    offset: int
    value: int | float | bool | None


@attrs.frozen(eq=False)
class Text:
    """A string; `breaks` lists `(index, offset)` wherever the two stop running side by side."""

    offset: int
    value: str
    breaks: tuple[tuple[int, int], ...]

    def offset_of(self, index: int) -> int:
        """Return where the character at `index` stands; its length stands for the closing quote."""
        at = bisect_right(self.breaks, index, key=itemgetter(0)) - 1
        begin, offset = self.breaks[at]
        return offset + index - begin


@attrs.frozen(eq=False)
class Array:
    """An array."""

    offset: int
    items: tuple[Item, ...]


@attrs.frozen(eq=False)
class Object:
    """An object: its members in their order, and where its closing bracket stands."""

    offset: int
    members: tuple[tuple[Text, Item], ...]
    end: int


Item: TypeAlias = Scalar | Text | Array | Object


def as_json(item: Item) -> Any:
    """Return the plain JSON that an item stands for."""
    if isinstance(item, Object):
        return {key.value: as_json(value) for key, value in item.members}
    if isinstance(item, Array):
        return [as_json(value) for value in item.items]
    return item.value


def parse_document(source: Source, max_depth: int) -> Item:
    """Parse a whole document; raise `InvalidRules`.

    `max_depth` bounds how deep brackets lie in each other.
    """
    return _Cursor(source, max_depth).document()


class _Cursor:
    """Where the parser stands; each method reads one thing and leaves the cursor behind it."""

    def __init__(self, source: Source, max_depth: int) -> None:
        self.source = source
        self.text = source.text
        self.at = 0
        self.room = max_depth

    def document(self) -> Item:
        self.skip_blank()
        item = self.item()
        self.skip_blank()
        if self.at < len(self.text):
            self.refuse("Parse error.")
        return item

    def refuse(self, text: str) -> NoReturn:
        self.source.refuse(self.at, text)

    def skip_blank(self) -> str:
        """Step over blanks and comments; return the character that follows, '' at the end."""
        found = _BLANK.match(self.text, self.at)
        assert found is not None  # noqa: S101 - the pattern matches nothing, too
        self.at = found.end()
        return self.text[self.at : self.at + 1]

    def item(self) -> Item:
        next_one = self.text[self.at : self.at + 1]
        if next_one == '"':
            return self.string()
        if next_one in ("{", "["):
            if not self.room:
                self.refuse("Rules are nested too deeply.")
            self.room -= 1
            item = self.object() if next_one == "{" else self.array()
            self.room += 1
            return item
        if next_one == ",":
            self.refuse("Unexpected ','.")
        return self.scalar()

    def scalar(self) -> Scalar:
        begin = self.at
        word = _WORD.match(self.text, begin)
        if word and word[0] in _CONSTANTS:
            self.at = word.end()
            return Scalar(begin, _CONSTANTS[word[0]])
        number = _NUMBER.match(self.text, begin)
        if not number:
            self.refuse("Parse error.")
        self.at = number.end()
        return Scalar(begin, float(number[0]))

    def object(self) -> Object:
        begin = self.at
        members: list[tuple[Text, Item]] = []
        names: set[str] = set()
        while self.another("}", first=not members):
            if self.text[self.at] != '"':
                self.refuse("Expected '\"'.")
            key = self.string()
            if key.value in names:
                self.source.refuse(key.offset, f"The member '{key.value}' is given twice.")
            names.add(key.value)
            if self.skip_blank() != ":":
                self.refuse("Expected ':'.")
            self.at += 1
            self.skip_blank()
            members.append((key, self.item()))
        return Object(begin, tuple(members), self.at - 1)

    def array(self) -> Array:
        begin = self.at
        items: list[Item] = []
        while self.another("]", first=not items):
            items.append(self.item())
        return Array(begin, tuple(items))

    def another(self, closing: str, *, first: bool) -> bool:
        """Step to the next part of an object or array; False behind its closing bracket."""
        if first:
            self.at += 1
        after_comma = False
        if self.skip_blank() == "," and not first:
            self.at += 1
            self.skip_blank()
            after_comma = True
        next_one = self.text[self.at : self.at + 1]
        if next_one == closing:
            self.at += 1
            return False
        if next_one == "," and not after_comma:
            self.refuse("Unexpected ','.")
        if not next_one:
            self.refuse("Unexpected end of the document.")
        if not first and not after_comma:
            self.refuse(f"Expected ',' or '{closing}'.")
        return True

    def string(self) -> Text:
        begin = self.at
        pieces: list[str] = []
        length = 0
        self.at += 1
        breaks = [(0, self.at)]
        while True:
            plain = self.plain()
            pieces.append(plain)
            length += len(plain)
            stop = self.text[self.at : self.at + 1]
            if stop == '"':
                break
            if stop != "\\":
                self.source.refuse(begin, "The string does not end.")
            pieces.append(self.escape())
            length += 1
            breaks.append((length, self.at))
        self.at += 1
        return Text(begin, "".join(pieces), tuple(breaks))

    def plain(self) -> str:
        found = _PLAIN.match(self.text, self.at)
        assert found is not None  # noqa: S101 - the pattern matches nothing, too
        self.at = found.end()
        if self.at < len(self.text) and self.text[self.at] not in '"\\':
            self.refuse("A string must not hold control characters.")
        return found[0]

    def escape(self) -> str:
        after = self.at + 1
        letter = self.text[after : after + 1]
        if letter in _ESCAPES:
            self.at = after + 1
            return _ESCAPES[letter]
        pair = _PAIR.match(self.text, after)
        if pair:
            self.at = pair.end()
            high, low = int(pair[1], 16), int(pair[2], 16)
            return chr(0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00))
        found = _HEX.match(self.text, after)
        if found and not 0xD800 <= int(found[1], 16) <= 0xDFFF:
            self.at = found.end()
            return chr(int(found[1], 16))
        shown = self.text[after : after + (5 if letter == "u" else 1)]
        if not shown.isprintable():
            shown = ascii(shown)[1:-1]
        return self.refuse(f"Invalid escape: '\\{shown}'")
