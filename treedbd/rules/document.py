"""Rules documents: their parser, and the errors and warnings about them with their positions.

A document is in a dialect of JSON. The dialect adds what rules files use: line and block comments,
line breaks and tabs inside strings, a comma before a closing bracket. A duplicate member is an
error.

Theory of operation: one pass with a cursor over the text, in steps. Numbers and null are parsed,
although they are valid nowhere in a rules document, so that `ruleset` can report them with a better
message. This module does not know what the members mean; `ruleset` does. An `Item` has the offset
at which it begins, and a `TextItem` maps each of its characters to an offset, across escapes.

Of what is not a document at all only the first error is reported, with its position and its text.
Of a document `ruleset` reports the first error of each rule. The texts are in the modules that find
the errors: here, and in `ruleset`, `grammar`, `regex` and `typecheck`. An `ExpressionError` has an
offset into the text of its expression. Only `ruleset` knows where that text is in the document; it
makes an `InvalidRules` of the error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, NoReturn, TypeAlias

import attrs

from treedbd.errors import find_similar
from treedbd.loop import Steps
from treedbd.tree.types import Json


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
    because clients know the texts of Firebase. `others` are the errors that follow in the document,
    as far as they are known.
    """

    def __init__(self, line: int, column: int, text: str, hint: str = "") -> None:
        super().__init__(f"{line}:{column}: {text}")
        self.line = line
        self.column = column
        self.text = text
        self.hint = hint
        self.others: tuple[InvalidRules, ...] = ()


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


_LIKENESS: Final = 0.75
"""How alike two names must be: `.raed` and `.read` are at 0.8, which is meant; `numChildren` and
`hasChildren` at 0.73, which is not."""


def suggest(name: str, known: Iterable[str]) -> str:
    """Return a hint that names the known name which is most like `name`; empty if none is."""
    similar = find_similar(name, known, _LIKENESS)
    return f"Did you mean '{similar}'?" if similar else ""


# Atomic groups, not possessive ones; the patterns of tokens in `grammar` say why.
_SKIPPED_AT_ONCE: Final = 500
_SKIPPED = re.compile(rf"(?>(?:[ \t\r\n]++|//[^\n]*+|/\*[\s\S]*?\*/){{0,{_SKIPPED_AT_ONCE}}})")
_PAIR: Final = r"u[dD][89abAB][0-9A-Fa-f]{2}\\u[dD][c-fC-F][0-9A-Fa-f]{2}"
_CHARACTERS = re.compile(
    r'"(?>(?:[^"\\\x00-\x08\x0b\x0c\x0e-\x1f]++'
    rf'|\\(?:["\\/bfnrt]|u(?![dD][89a-fA-F])[0-9A-Fa-f]{{4}}|{_PAIR}))*)'
)
"""A string up to its closing quote, or up to the first character that it must not hold."""
_ESCAPE = re.compile(rf"\\(?:{_PAIR}|u[0-9A-Fa-f]{{4}}|.)")
_MEMBER = re.compile(
    rf'{_SKIPPED.pattern}(,?){_SKIPPED.pattern}"([^"\\\x00-\x1f]*+)"'
    rf"{_SKIPPED.pattern}:{_SKIPPED.pattern}(?![ \t\r\n/])"
)
"""How nearly every member begins; any other one is parsed piece by piece."""
_WORD = re.compile(r"[A-Za-z]+")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
CONSTANTS: Final = {"true": True, "false": False, "null": None}
_ITEMS_PER_STEP: Final = 100
_AFTER_ITEM: Final = {
    '"': "Write a comma between two members.",
    "}": "Close the bracket that was opened last.",
    "]": "Close the bracket that was opened last.",
}
_IN_STRING: Final = "Within an expression write single quotes, as in auth.uid == 'ada'."


class Source:
    """The text of a document, and the lines of its offsets."""

    def __init__(self, text: str) -> None:
        self.text: Final = text
        # The last position, from which the next one is counted: most follow each other.
        self._offset = 0
        self._line = 1
        self._line_start = 0

    def position(self, offset: int) -> TextPosition:
        """Return the line and column of an offset."""
        if offset < self._offset:
            self._offset, self._line, self._line_start = 0, 1, 0
        self._line += self.text.count("\n", self._offset, offset)
        self._line_start = max(self._line_start, self.text.rfind("\n", self._offset, offset) + 1)
        self._offset = offset
        return TextPosition(self._line, offset - self._line_start + 1)

    def fail(self, offset: int, text: str, hint: str = "") -> NoReturn:
        """Raise `InvalidRules` with the position of an offset."""
        raise InvalidRules(*self.position(offset), text, hint)


@attrs.frozen(eq=False)
class ScalarItem:
    """A number, a boolean or null."""

    offset: int
    value: int | float | bool | None


@attrs.frozen(eq=False)
class TextItem:
    """A string; `raw` is what is written between its quotes, empty if that is `value` itself."""

    offset: int
    value: str
    raw: str = ""

    def offset_of(self, index: int) -> int:
        """Return the offset of a character; that of the closing quote for the length."""
        offset = index
        for escape in _ESCAPE.finditer(self.raw):
            if escape.start() >= offset:
                break
            offset += len(escape[0]) - 1
        return self.offset + 1 + offset


@attrs.frozen(eq=False)
class ArrayItem:
    """An array."""

    offset: int
    items: tuple[Item, ...]


@attrs.frozen(eq=False)
class ObjectItem:
    """An object: its members in the order of the text, and the offset of its closing bracket."""

    offset: int
    keys: tuple[TextItem, ...]
    values: tuple[Item, ...]
    end: int

    @property
    def members(self) -> Iterator[tuple[TextItem, Item]]:
        """Each key with its value."""
        return zip(self.keys, self.values, strict=True)


Item: TypeAlias = ScalarItem | TextItem | ArrayItem | ObjectItem


def as_json(item: Item) -> Steps[Json]:
    """Return an item as plain JSON, in steps."""
    if isinstance(item, ObjectItem):
        yield
        members: dict[str, Json] = {}
        for key, value in item.members:
            members[key.value] = yield from as_json(value)
        return members
    if isinstance(item, ArrayItem):
        yield
        items: list[Json] = []
        for value in item.items:
            items.append((yield from as_json(value)))  # noqa: PERF401 - a comprehension cannot yield
        return items
    return item.value


def parts_of(item: Item) -> tuple[Item, ...]:
    """Return the keys and values of an object, or the items of an array."""
    if isinstance(item, ObjectItem):
        return (*item.keys, *item.values)
    return item.items if isinstance(item, ArrayItem) else ()


def parse_document(source: Source, max_depth: int) -> Steps[Item]:
    """Parse a whole document, in which at most `max_depth` brackets are nested, in steps.

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
        self.items_of_step = 0

    def document(self) -> Steps[Item]:
        while self.skip():
            yield
        item = self.leaf() or (yield from self.container())
        while self.skip():
            yield
        if self.at < len(self.text):
            self.fail("Parse error.", "Remove what follows the document.")
        return item

    def fail(self, text: str, hint: str = "") -> NoReturn:
        self.source.fail(self.at, text, hint)

    def next(self) -> str:
        """Return the character at the cursor, '' at the end."""
        return self.text[self.at : self.at + 1]

    def skip(self) -> bool:
        """Skip whitespace and comments; return whether there may be more of them."""
        found = _SKIPPED.match(self.text, self.at)
        assert found is not None  # noqa: S101 - the pattern also matches the empty string
        self.at = found.end()
        return found.end() - found.start() >= _SKIPPED_AT_ONCE

    def ends_step(self) -> bool:
        """Count an item; return whether a step ends with it."""
        self.items_of_step = (self.items_of_step + 1) % _ITEMS_PER_STEP
        return not self.items_of_step

    def leaf(self) -> Item | None:
        """Parse an item, None if it is a container."""
        character = self.next()
        if character == '"':
            return self.string()
        if character in ("{", "["):
            return None
        if character == ",":
            self.fail("Unexpected ','.", "A value is missing before the comma.")
        return self.scalar()

    def container(self) -> Steps[Item]:
        if not self.remaining_depth:
            self.fail("Rules are nested too deeply.")
        self.remaining_depth -= 1
        item: Item = yield from self.object() if self.next() == "{" else self.array()
        self.remaining_depth += 1
        return item

    def scalar(self) -> ScalarItem:
        begin = self.at
        word = _WORD.match(self.text, begin)
        if word and word[0] in CONSTANTS:
            self.at = word.end()
            return ScalarItem(begin, CONSTANTS[word[0]])
        number = _NUMBER.match(self.text, begin)
        if not number:
            self.fail("Parse error.", "Write expressions in double quotes." if self.next() else "")
        self.at = number.end()
        return ScalarItem(begin, float(number[0]))

    def object(self) -> Steps[ObjectItem]:
        begin = self.at
        self.at += 1
        keys: list[TextItem] = []
        values: list[Item] = []
        names: set[str] = set()
        while True:
            found = _MEMBER.match(self.text, self.at)
            if found is not None and bool(found[1]) is bool(keys):
                key = TextItem(found.start(2) - 1, found[2])
                self.at = found.end()
            elif (yield from self.advance("}", first=not keys)):
                key = yield from self.key()
            else:
                return ObjectItem(begin, tuple(keys), tuple(values), self.at - 1)
            if key.value in names:
                self.source.fail(key.offset, f"The member '{key.value}' is given twice.")
            names.add(key.value)
            keys.append(key)
            values.append(self.leaf() or (yield from self.container()))
            if self.ends_step():
                yield

    def key(self) -> Steps[TextItem]:
        """Parse the key of a member, and move to its value."""
        if self.next() != '"':
            self.fail("Expected '\"'.", "Write keys in double quotes.")
        key = self.string()
        while self.skip():
            yield
        if self.next() != ":":
            self.fail("Expected ':'.", "Write a colon between a key and its value.")
        self.at += 1
        while self.skip():
            yield
        return key

    def array(self) -> Steps[ArrayItem]:
        begin = self.at
        self.at += 1
        items: list[Item] = []
        while (yield from self.advance("]", first=not items)):
            items.append(self.leaf() or (yield from self.container()))
            if self.ends_step():
                yield
        return ArrayItem(begin, tuple(items))

    def advance(self, closing: str, *, first: bool) -> Steps[bool]:
        """Move to the next member or array item; return False after the closing bracket.

        `first` says that the cursor is just after the opening bracket.
        """
        needs_comma = not first
        while True:
            while self.skip():
                yield
            character = self.next()
            if character != "," or not needs_comma:
                break
            self.at += 1
            needs_comma = False
        if character == closing:
            self.at += 1
            return False
        if character == "," and first:
            self.fail("Unexpected ','.", "Remove the comma.")
        if not character:
            self.fail("Unexpected end of the document.", f"A closing {closing} is missing.")
        if needs_comma:
            self.fail(f"Expected ',' or '{closing}'.", _AFTER_ITEM.get(character, _IN_STRING))
        return True

    def string(self) -> TextItem:
        found = _CHARACTERS.match(self.text, self.at)
        assert found is not None  # noqa: S101 - the cursor is at a quote
        end = found.end()
        if self.text[end : end + 1] != '"':
            self.fail_in_string(end)
        begin, self.at = self.at, end + 1
        raw = self.text[begin + 1 : end]
        if "\\" not in raw:
            return TextItem(begin, raw)
        return TextItem(begin, json.loads(f'"{raw}"', strict=False), raw)

    def fail_in_string(self, end: int) -> NoReturn:
        """Report what a string must not hold, at `end`."""
        if end == len(self.text):
            self.fail("Unterminated string.", "A closing double quote is missing.")
        if self.text[end] != "\\":
            self.source.fail(end, "A string must not hold control characters.")
        letters = 5 if self.text.startswith("u", end + 1) else 1
        shown = self.text[end + 1 : end + 1 + letters]
        if not shown.isprintable():
            shown = ascii(shown)[1:-1]
        self.source.fail(end, f"Invalid escape: '\\{shown}'", "Write \\\\ for a backslash.")
