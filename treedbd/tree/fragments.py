"""A JSON document of any size in fragments: each is JSON that can be parsed by itself.

Theory of operation. The splitter follows the brackets of the document, and knows for each container
that is open where its members begin and which of them are complete. When more text has come than a
fragment may have, the complete members of the outermost container that has any are cut off: they
are a fragment. So containers that are short stay whole, and a long one comes in several fragments,
each with some of its members. What is inside of members is not looked at: who parses the fragments
finds what is wrong there. All else that is wrong is found here, so a document is valid if
`finish` has returned and all fragments are valid.

Memory is bounded by a fragment and the longest leaf.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

import attrs
import orjson

from treedbd.limits import KIB, MAX_BODY_NESTING
from treedbd.tree.errors import InvalidData
from treedbd.tree.types import Path

FRAGMENT_BYTES: Final = 64 * KIB

# Patterns for what is followed in one step. The numbers in them bound the memory of a match; what
# is longer is followed in several steps, or piece by piece.
_STRING: Final = rb'"[^"\\]*(?:\\.[^"\\]*){0,20}"'
_FLAT: Final = rb'(?>(?:[^"{}\[\]]+|%b){0,200})' % _STRING
_ELEMENT: Final = rb"[^\"{}\[\],]+|%b|\{%b\}|\[%b\]" % (_STRING, _FLAT, _FLAT)
_IN_OBJECT: Final = re.compile(rb"(?>(?:%b|(,)){0,64})([{}\[\]])?" % _ELEMENT, re.DOTALL)
"""Members, up to the next bracket if it is near: the last comma and that bracket."""
_ELSEWHERE: Final = re.compile(rb"(?>(?:%b){0,8})(?:(?!)())?([{}\[\],])?" % _ELEMENT, re.DOTALL)
"""What comes before the next bracket or comma, and that."""
_PLAIN: Final = re.compile(rb'[^"{}\[\],]*')
_QUOTE: Final = b'"'[0]
_BLANK: Final = b" \t\n\r"
"""White space in JSON (RFC 8259, section 2): less than that of Python."""
_BACKSLASH: Final = b"\\"[0]
_COMMA: Final = b","[0]
_OPEN: Final = b"{["
_BRACE: Final = b"}"[0]
_CLOSING: Final = {b"{"[0]: b"}"[0], b"["[0]: b"]"[0]}
_WRAPPED: Final = {b"}"[0]: b"{%b}", b"]"[0]: b"[%b]"}


class Fragment(NamedTuple):
    """Some of the members of the container at `path`, or a whole document that is short.

    `path` leads from the top of the document. `json` is an object with some members, in the order
    of the document, or an array with some items, of which `first` is the index of the first one; a
    whole document may also be a leaf. `begun` is how many of the containers from the top down to
    this one had fragments before: if any had not, what is at `path[:begun]` is an earlier member of
    the same name, and does not count.
    """

    path: Path
    json: bytes
    first: int
    begun: int


@attrs.define
class _OpenContainer:
    """A container that is open; `start` and `member` are places in the text.

    `start` is where the members begin that were not cut off, `member` where the last of them does,
    which is not complete; `count` is its number, `first` that of the one at `start`. The key of the
    child that is open is `key`, once it is known. With `is_cut` something was cut off inside, with
    `is_past` the member has been cut off to its end.
    """

    closing: int
    start: int
    member: int
    count: int = 0
    first: int = 0
    key: str | None = None
    is_cut: bool = False
    is_past: bool = False


class Splitter:
    """Splits one document, which is fed in pieces of any length."""

    def __init__(self, limit: int = FRAGMENT_BYTES) -> None:
        """Let a fragment have at most about twice `limit` bytes, unless one leaf has more."""
        self._limit = limit
        self._text = b""
        self._at = 0  # what is before it has been followed
        self._enough = 0  # shorter texts have no other bracket after it
        self._open: list[_OpenContainer] = []
        self._is_over = False  # the document has ended, but for white space

    def feed(self, data: bytes) -> Iterator[Fragment]:
        """Yield the fragments that are complete; raise `InvalidData`."""
        for at in range(0, len(data), self._limit):
            self._text += data[at : at + self._limit]
            if len(self._text) >= self._enough:
                yield from self._follow()
                yield from self._cut()

    def finish(self) -> Iterator[Fragment]:
        """Yield what is left, after the whole document was fed; raise `InvalidData`."""
        if not self._is_over:
            yield from self._follow()
        if self._open:
            raise InvalidData("Not valid JSON: the document ends too early.")
        if not self._is_over:
            yield Fragment((), self._text, 0, 0)
        elif self._text[self._at :].strip(_BLANK):
            raise _unexpected()

    def _follow(self) -> Iterator[Fragment]:
        """Follow the text to the last bracket or comma in it."""
        self._enough = 0
        while True:
            text = self._text
            found = self._find(text, self._at)
            if found.start(1) >= 0:
                self._end_member(found.end(1))
            end = found.end()
            if found.start(2) < 0:
                if end > self._at:
                    if self._is_over:
                        self._expect_blank(self._at, end)
                    self._at = end
                    continue
                end = self._find_slowly()
                if not end:
                    self._enough = self._at + 2 * (len(text) - self._at)
                    return
            self._at = end
            char = text[end - 1]
            if char == _COMMA:
                self._end_member(end)
            elif char in _OPEN:
                self._begin(char, end)
            else:
                yield from self._end(char, end)

    def _find(self, text: bytes, at: int) -> re.Match[bytes]:
        container = self._open[-1] if self._open else None
        is_plain = container is not None and container.closing == _BRACE and not container.is_past
        found = (_IN_OBJECT if is_plain else _ELSEWHERE).match(text, at)
        assert found is not None  # noqa: S101 - both match anything
        return found

    def _find_slowly(self) -> int:
        """Return the end of the next bracket or comma after any strings, 0 if there is none yet."""
        text, at = self._text, self._at
        while True:
            at = _PLAIN.match(text, at).end()  # type: ignore[union-attr]  # it matches anything
            if at == len(text):
                return 0
            if text[at] != _QUOTE:
                return at + 1
            at = _end_of_string(text, at + 1)
            if not at:
                return 0

    def _begin(self, char: int, at: int) -> None:
        if self._is_over:
            raise _unexpected()
        if not self._open:
            self._expect_blank(0, at - 1)
        if len(self._open) >= MAX_BODY_NESTING:
            raise InvalidData(f"The data is nested deeper than {MAX_BODY_NESTING} levels.")
        self._open.append(_OpenContainer(_CLOSING[char], at, at))

    def _end_member(self, at: int) -> None:
        if not self._open:
            raise _unexpected()
        container = self._open[-1]
        container.member = at
        container.count += 1
        if container.is_past:
            self._expect_blank(container.start, at - 1)
            container.start, container.first = at, container.count
            container.is_past = False
        container.key = None

    def _end(self, char: int, at: int) -> Iterator[Fragment]:
        if not self._open or self._open[-1].closing != char:
            raise _unexpected()
        container = self._open[-1]
        if container.is_cut:
            if container.is_past:
                self._expect_blank(container.start, at - 1)
            else:
                if not self._text[container.start : at - 1].strip(_BLANK):
                    raise _unexpected()
                yield self._fragment(len(self._open) - 1, at - 1)
        self._open.pop()
        if self._open and container.is_cut:
            parent = self._open[-1]
            parent.start, parent.is_past = at, True
            self._drop(at)
        elif not self._open and container.is_cut:
            self._is_over = True
        elif not self._open:
            self._is_over = True
            yield Fragment((), self._text[: self._at], 0, 0)

    def _cut(self) -> Iterator[Fragment]:
        """Cut off complete members while there is more text than a fragment may have."""
        depth = 0
        while len(self._text) > self._limit and depth < len(self._open):
            container = self._open[depth]
            if not container.is_past and container.member > container.start:
                if not self._text[container.start : container.member - 1].strip(_BLANK):
                    raise _unexpected()
                yield self._fragment(depth, container.member - 1)
                container.start, container.first = container.member, container.count
                if depth + 1 < len(self._open):
                    self._find_key(depth)
                self._drop(container.member)
            depth += 1

    def _fragment(self, depth: int, end: int) -> Fragment:
        """Return the members of an open container from its start on as a fragment."""
        container = self._open[depth]
        keys = [self._find_key(level) for level in range(depth)]
        begun = sum(each.is_cut for each in self._open[: depth + 1])
        for each in self._open[: depth + 1]:
            each.is_cut = True
        json = _WRAPPED[container.closing] % self._text[container.start : end]
        return Fragment(tuple(keys), json, container.first, begun)

    def _find_key(self, depth: int) -> str:
        """Return the key of the child of an open container that is open too."""
        container = self._open[depth]
        if container.key is None:
            # Nothing has been cut off in the child yet, so this is what precedes its bracket.
            name = self._text[container.member : self._open[depth + 1].start - 1]
            container.key = self._parse_key(container, name.strip(_BLANK))
        return container.key

    def _parse_key(self, container: _OpenContainer, text: bytes) -> str:
        if container.closing == _CLOSING[_OPEN[1]]:
            if text:
                raise _unexpected()
            return str(container.count)
        try:
            key = orjson.loads(text[:-1]) if text.endswith(b":") else None
        except orjson.JSONDecodeError:
            key = None
        if not isinstance(key, str):
            raise _unexpected()
        return key

    def _expect_blank(self, start: int, end: int) -> None:
        if self._text[start:end].strip(_BLANK):
            raise _unexpected()

    def _drop(self, count: int) -> None:
        """Forget the beginning of the text; the keys of all that is open there are known."""
        self._text = self._text[count:]
        self._at -= count
        self._enough -= count
        for container in self._open:
            container.start = max(0, container.start - count)
            container.member = max(0, container.member - count)


def _end_of_string(text: bytes, at: int) -> int:
    """Return what follows the quote that ends a string, 0 if it is not there yet."""
    while True:
        quote = text.find(b'"', at)
        if quote < 0:
            return 0
        escapes = quote - 1
        while escapes >= at and text[escapes] == _BACKSLASH:
            escapes -= 1
        if (quote - escapes) % 2:
            return quote + 1
        at = quote + 1


def _unexpected() -> InvalidData:
    return InvalidData("Not valid JSON: a bracket or comma is out of place.")
