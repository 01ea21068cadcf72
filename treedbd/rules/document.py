"""The parser of rules documents: a dialect of JSON, with the position of every item.

The dialect adds to JSON what rules files use: line and block comments, line breaks and tabs inside
strings, a comma before a closing bracket. A duplicate member is an error.

Theory of operation: one pass with a cursor over the text. Numbers and null are parsed, although
they are valid nowhere in a rules document, so that `build` can report them with a better message.
This module does not know what the members mean; `build` does. An `Item` has the offset at which it
begins, and a `TextItem` maps each of its characters to an offset, across escapes.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from functools import cached_property
from operator import itemgetter
from typing import Final, NoReturn, TypeAlias

import attrs

from treedbd.rules.errors import InvalidRules, TextPosition
from treedbd.tree.types import Json

_SKIPPED = re.compile(r"(?:[ \t\r\n]+|//[^\n]*|/\*[\s\S]*?\*/)*")
_UNESCAPED = re.compile(r'[^"\\\x00-\x08\x0b\x0c\x0e-\x1f]*')
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
    """The text of a document, and the lines of its offsets."""

    def __init__(self, text: str) -> None:
        self.text: Final = text

    @cached_property
    def _line_starts(self) -> list[int]:
        return [0, *(found.end() for found in re.finditer("\n", self.text))]

    def position(self, offset: int) -> TextPosition:
        """Return the line and column of an offset."""
        line = bisect_right(self._line_starts, offset)
        return TextPosition(line, offset - self._line_starts[line - 1] + 1)

    def fail(self, offset: int, text: str) -> NoReturn:
        """Raise `InvalidRules` with the position of an offset."""
        raise InvalidRules(*self.position(offset), text)


@attrs.frozen(eq=False)
class ScalarItem:
    """A number, a boolean or null."""

    offset: int
    value: int | float | bool | None


@attrs.frozen(eq=False)
class TextItem:
    """A string.

    `runs` has an `(index, offset)` for the first character and for each one after an escape: its
    index in `value`, and its offset in the document.
    """

    offset: int
    value: str
    runs: tuple[tuple[int, int], ...]

    def offset_of(self, index: int) -> int:
        """Return the offset of a character; that of the closing quote for the length."""
        begin, offset = self.runs[bisect_right(self.runs, index, key=itemgetter(0)) - 1]
        return offset + index - begin


@attrs.frozen(eq=False)
class ArrayItem:
    """An array."""

    offset: int
    items: tuple[Item, ...]


@attrs.frozen(eq=False)
class ObjectItem:
    """An object: its members in the order of the text, and the offset of its closing bracket."""

    offset: int
    members: tuple[tuple[TextItem, Item], ...]
    end: int


Item: TypeAlias = ScalarItem | TextItem | ArrayItem | ObjectItem


def as_json(item: Item) -> Json:
    """Return an item as plain JSON."""
    if isinstance(item, ObjectItem):
        return {key.value: as_json(value) for key, value in item.members}
    if isinstance(item, ArrayItem):
        return [as_json(value) for value in item.items]
    return item.value


def parse_document(source: Source, max_depth: int) -> Item:
    """Parse a whole document, in which at most `max_depth` brackets are nested.

    Raises `InvalidRules`.
    """
    return _DocumentParser(source, max_depth).document()


class _DocumentParser:
    """A cursor over the text; each method parses one construct and moves the cursor past it."""

    def __init__(self, source: Source, max_depth: int) -> None:
        self.source = source
        self.text = source.text
        self.at = 0
        self.remaining_depth = max_depth

    def document(self) -> Item:
        self.skip_whitespace()
        item = self.item()
        self.skip_whitespace()
        if self.at < len(self.text):
            self.fail("Parse error.")
        return item

    def fail(self, text: str) -> NoReturn:
        self.source.fail(self.at, text)

    def skip_whitespace(self) -> str:
        """Skip whitespace and comments; return the character that follows, '' at the end."""
        found = _SKIPPED.match(self.text, self.at)
        assert found is not None  # noqa: S101 - the pattern also matches the empty string
        self.at = found.end()
        return self.text[self.at : self.at + 1]

    def item(self) -> Item:
        character = self.text[self.at : self.at + 1]
        if character == '"':
            return self.string()
        if character in ("{", "["):
            if not self.remaining_depth:
                self.fail("Rules are nested too deeply.")
            self.remaining_depth -= 1
            item = self.object() if character == "{" else self.array()
            self.remaining_depth += 1
            return item
        if character == ",":
            self.fail("Unexpected ','.")
        return self.scalar()

    def scalar(self) -> ScalarItem:
        begin = self.at
        word = _WORD.match(self.text, begin)
        if word and word[0] in _CONSTANTS:
            self.at = word.end()
            return ScalarItem(begin, _CONSTANTS[word[0]])
        number = _NUMBER.match(self.text, begin)
        if not number:
            self.fail("Parse error.")
        self.at = number.end()
        return ScalarItem(begin, float(number[0]))

    def object(self) -> ObjectItem:
        begin = self.at
        members: list[tuple[TextItem, Item]] = []
        names: set[str] = set()
        while self.advance("}", first=not members):
            if self.text[self.at] != '"':
                self.fail("Expected '\"'.")
            key = self.string()
            if key.value in names:
                self.source.fail(key.offset, f"The member '{key.value}' is given twice.")
            names.add(key.value)
            if self.skip_whitespace() != ":":
                self.fail("Expected ':'.")
            self.at += 1
            self.skip_whitespace()
            members.append((key, self.item()))
        return ObjectItem(begin, tuple(members), self.at - 1)

    def array(self) -> ArrayItem:
        begin = self.at
        items: list[Item] = []
        while self.advance("]", first=not items):
            items.append(self.item())
        return ArrayItem(begin, tuple(items))

    def advance(self, closing: str, *, first: bool) -> bool:
        """Move to the next member or array item; return False after the closing bracket.

        `first` says that the cursor is still at the opening bracket.
        """
        if first:
            self.at += 1
        after_comma = False
        if self.skip_whitespace() == "," and not first:
            self.at += 1
            self.skip_whitespace()
            after_comma = True
        character = self.text[self.at : self.at + 1]
        if character == closing:
            self.at += 1
            return False
        if character == "," and not after_comma:
            self.fail("Unexpected ','.")
        if not character:
            self.fail("Unexpected end of the document.")
        if not first and not after_comma:
            self.fail(f"Expected ',' or '{closing}'.")
        return True

    def string(self) -> TextItem:
        begin = self.at
        pieces: list[str] = []
        length = 0
        self.at += 1
        runs = [(0, self.at)]
        while True:
            unescaped = self.unescaped()
            pieces.append(unescaped)
            length += len(unescaped)
            character = self.text[self.at : self.at + 1]
            if character == '"':
                break
            if character != "\\":
                self.source.fail(begin, "Unterminated string.")
            pieces.append(self.escape())
            length += 1
            runs.append((length, self.at))
        self.at += 1
        return TextItem(begin, "".join(pieces), tuple(runs))

    def unescaped(self) -> str:
        found = _UNESCAPED.match(self.text, self.at)
        assert found is not None  # noqa: S101 - the pattern also matches the empty string
        self.at = found.end()
        if self.at < len(self.text) and self.text[self.at] not in '"\\':
            self.fail("A string must not hold control characters.")
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
        return self.fail(f"Invalid escape: '\\{shown}'")
