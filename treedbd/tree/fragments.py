"""A JSON document of any size in fragments: each is JSON that can be parsed by itself.

Theory of operation. The splitter follows the brackets of the document, and knows for each container
that is open where its members begin and which of them are complete. When more text has come than a
fragment may have, the complete members of the outermost container that has any are cut off: they
are a fragment. So containers that are short stay whole, and a long one comes in several fragments,
each with some of its members. The inside of members is not parsed: what is wrong there is found
when the fragments are parsed. All else that is wrong is found here, so a document is valid if
`finish` has returned and all fragments are valid.

Following every bracket costs several times what a parser takes. So once something has been cut
off, text is added without being followed until it is enough for a fragment. Where the last of its
members ends is guessed from the numbers of brackets, and the parser decides: text that it accepts
between the brackets of the container is whole members of it. Else, as when a string has brackets in
it or the container has ended, the same text is followed. The result of the parser is kept for
`Fragment.parse`.

What a fragment costs to parse and write depends on its members more than on its bytes. They count,
too (`NODE_BYTES`), so a fragment is never much work, whatever the shape of the document.

A string of megabytes is one leaf. To parse or search it at once would take tens of milliseconds,
and far more if much of it is escaped. So a long string is kept in the pieces in which it came
(`LongString`), and is searched for its end once. It is a fragment of its own, with nothing but the
names that lead to it, so it can be parsed piece by piece, with pauses (`Fragment.parse`). Memory is
bounded by a fragment and the longest string. `tree.value` prints long strings.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import attrs
import orjson

from treedbd.limits import KIB, MAX_BODY_NESTING, MAX_KEY_BYTES
from treedbd.loop import pause
from treedbd.tree.types import InvalidData, InvalidKey, Json, Path

FRAGMENT_BYTES: Final = 64 * KIB
NODE_BYTES: Final = 16
"""Bytes that a member, an item or a container counts for beside its text."""
MAX_TOKEN_BYTES: Final = 64 * KIB
"""Bytes of the longest number, or malformed one: a double needs some hundred digits."""
_STEP_SHARE: Final = 16
"""This part of a fragment is followed at a time: of short items, it may be all of one."""
_LONG_SHARE: Final = 4
"""A string is long if it has more than this part of what a fragment may have."""
_KEY_BYTES: Final = len(r'"\u0000') * MAX_KEY_BYTES
"""More than the longest key takes, whatever is escaped in it."""

# Patterns for what is followed in one step. The numbers in them bound the memory of a match; what
# is longer is followed in several steps, or piece by piece.
_STRING: Final = rb'"[^"\\]*(?:\\.[^"\\]*){0,20}"'
_FLAT: Final = rb'(?>(?:[^"{}\[\]]+|%b){0,200})' % _STRING
_ELEMENT: Final = rb"[^\"{}\[\],]+|%b|\{%b\}|\[%b\]" % (_STRING, _FLAT, _FLAT)
_IN_OBJECT: Final = re.compile(rb"(?>(?:%b|(,)){0,64})([{}\[\]])?" % _ELEMENT, re.DOTALL)
"""Members, up to the next bracket if it is near: the last comma and that bracket."""
_ELSEWHERE: Final = re.compile(rb"(?>(?:%b){0,8})(?:(?!)())?([{}\[\],])?" % _ELEMENT, re.DOTALL)
"""What comes before the next bracket or comma, and that."""
_KEY_FOLLOWS: Final = re.compile(rb'[ \t\n\r]*"')
_PLAIN: Final = re.compile(rb'[^"{}\[\],]*')
_QUOTE: Final = b'"'[0]
_BLANK: Final = b" \t\n\r"
"""White space in JSON (RFC 8259, section 2): less than that of Python."""
_COMMA: Final = b","[0]
_OPEN: Final = b"{["
_CLOSE: Final = b"}]"
_MAX_GUESSES: Final = 2048
"""Commas that are looked at for the end of a member."""
_LONGEST_WAIT: Final = 1024
"""Steps that are followed at most before the end of a member is guessed again."""
_BRACE: Final = b"}"[0]
_CLOSING: Final = {b"{"[0]: b"}"[0], b"["[0]: b"]"[0]}
_WRAPPED: Final = {b"}"[0]: b"{%b}", b"]"[0]: b"[%b]"}


class InvalidFragment(InvalidData):
    """Text of a document that is not JSON: why, and the byte of the document that shows it."""

    def __init__(self, reason: str, at: int) -> None:
        super().__init__(f"Not valid JSON: {reason}.")
        self.reason = reason
        self.at = at


class Fragment(NamedTuple):
    """Some of the members of the container at `path`, or a whole document that is short.

    `path` leads from the top of the document. `parts`, joined, are JSON: an object with some
    members, in the order of the document, or an array with some items, of which `first` is the
    index of the first one; a whole document may also be a leaf. If there are several parts, all but
    the first and the last one are the text of a long string, the only thing in the fragment.
    `begun` is how many of the containers from the top down to this one had fragments before: if any
    had not, what is at `path[:begun]` is an earlier member of the same name, and does not count.
    `parsed` is the value of the JSON if it is known, None if it is not. `at` is the byte of the
    document at which the JSON begins.
    """

    path: Path
    parts: tuple[bytes, ...]
    first: int
    begun: int
    parsed: Json = None
    at: int = 0

    @property
    def json(self) -> bytes:
        """The JSON."""
        return self.parts[0] if len(self.parts) == 1 else b"".join(self.parts)

    @property
    def size(self) -> int:
        """The bytes of the JSON."""
        return sum(map(len, self.parts))

    @property
    def long_parts(self) -> tuple[bytes, ...]:
        """The text of the long string, without its quotation marks; empty if there is none."""
        return self.parts[1:-1]

    def parse(self) -> Json:
        """Return the value of the JSON, parsed with pauses if it is long; raise `InvalidFragment`.

        It may be the same object each time.
        """
        if self.parsed is not None:
            return self.parsed
        if len(self.parts) == 1:
            return self._parse(self.parts[0])
        text = parse_text(self.long_parts, self.at + len(self.parts[0]))
        around = self._parse(self.parts[0] + self.parts[-1])  # with an empty string
        if isinstance(around, dict):
            return dict.fromkeys(around, text)
        return [text] if isinstance(around, list) else text

    def _parse(self, text: bytes) -> Json:
        """Parse all but the text of the long string."""
        try:
            json: Json = orjson.loads(text)
        except orjson.JSONDecodeError:
            reason, at = _find_fault(text)
            if len(self.parts) > 1 and at > len(self.parts[0]):
                at += sum(map(len, self.long_parts))
            raise InvalidFragment(reason, self.at + at) from None
        return json


@attrs.define
class _OpenContainer:
    """A container that is open; `start` and `member` are places in the text.

    `start` is where the members begin that were not cut off, `member` where the last of them does,
    which is not complete; `count` is its number, `first` that of the one at `start`. The key of the
    child that is open is `key`, once it is known. With `is_cut` something was cut off inside, with
    `is_past` the member has been cut off to its end. `ending` is the bracket that the last member
    ended with, if one did and its end was guessed.
    """

    closing: int
    start: int
    member: int
    count: int = 0
    first: int = 0
    key: str | None = None
    is_cut: bool = False
    is_past: bool = False
    ending: bytes = b""


class Splitter:
    """Splits one document, which is fed in pieces of any length."""

    def __init__(self, limit: int = FRAGMENT_BYTES) -> None:
        """Make fragments of at most about twice `limit` bytes, unless one string has more."""
        self._limit = limit
        self._long_bytes = max(limit // _LONG_SHARE, 32)  # a server value is not long
        self._text = b""
        self._offset = 0  # the byte of the document at which the text begins
        self._gaps: list[tuple[int, int]] = []  # places in the text, and bytes that were there
        self._at = 0  # what is before it has been followed
        self._weight = 0  # of the text
        self._quote = -1  # where a string begins that is not complete
        self._long: LongString | None = None  # of which the text has the quotation marks only
        self._long_at = 0  # the place of the second one, if the string has ended
        self._open: list[_OpenContainer] = []
        self._is_over = False  # the document has ended, but for white space
        self._step = max(1, limit // _STEP_SHARE)
        self._short: list[bytes] = []  # pieces that together are shorter than a step
        self._fed = 0  # bytes that were fed and are not in the text
        self._ahead = -1  # where the text begins that waits to be followed, -1 if none does
        self._held = 0  # bytes of it that are not in the text while it is followed
        self._wait = self._next_wait = 1  # steps to follow before the next guess

    def feed(self, data: bytes) -> Iterator[Fragment]:
        """Yield the fragments that are complete; raise `InvalidData`.

        Short pieces are joined first: each step copies the text and searches it again.
        """
        self._short.append(data)
        self._fed += len(data)
        if self._fed >= self._step:
            yield from self._take_steps(self._fed - self._fed % self._step)

    def finish(self) -> Iterator[Fragment]:
        """Yield what is left, after the whole document was fed; raise `InvalidData`."""
        yield from self._take_steps(self._fed)
        while self._ahead >= 0:
            yield from self._follow_ahead()
        if not self._is_over and not self._is_in_string:
            yield from self._follow()
        if self._open or self._is_in_string:
            raise InvalidData("Not valid JSON: the document ends too early.")
        if not self._is_over:
            yield Fragment((), self._parts(self._text, 0), 0, 0)
        elif self._text[self._at :].strip(_BLANK):
            raise _unexpected()

    @property
    def unread(self) -> int:
        """How many bytes of what was fed come after what has been followed."""
        return len(self._text) - self._at + self._held + self._fed

    def _take_steps(self, size: int) -> Iterator[Fragment]:
        """Take so many bytes of what was fed, a step at a time."""
        data = b"".join(self._short)
        self._short = [data[size:]] if size < len(data) else []
        for at in range(0, size, self._step):
            piece = data[at : min(at + self._step, size)]
            self._fed -= len(piece)
            yield from self._take(piece)
            if self._ahead >= 0 and self._weight > self._limit:
                yield from self._cut_ahead()

    def _take(self, data: bytes) -> Iterator[Fragment]:
        """Add data, and follow it unless it is to wait."""
        self._add(data)
        if self._ahead >= 0:
            return
        if not self._is_in_string:
            yield from self._follow()
            yield from self._cut(self._limit)
            yield from self._bound_token()
        self._wait = max(0, self._wait - 1)
        if not self._wait and self._can_guess:
            self._ahead = len(self._text)

    @property
    def _can_guess(self) -> bool:
        """Whether the text begins with members of a container, in which no fragment is cut."""
        depth = self._cut_depth
        return depth >= 0 and not self._long and not self._open[depth].is_past

    @property
    def _cut_depth(self) -> int:
        """The depth of the innermost open container of which something was cut off; -1 for none."""
        return sum([each.is_cut for each in self._open]) - 1

    def _cut_ahead(self) -> Iterator[Fragment]:
        """Cut off the members in the text, or follow it if it is not known where they end."""
        fragment = self._guess()
        if fragment is None:
            self._wait = self._next_wait
            self._next_wait = min(2 * self._wait, _LONGEST_WAIT)
            yield from self._follow_ahead()
        else:
            self._next_wait = 1
            yield fragment
            pause()

    def _guess(self) -> Fragment | None:
        """Return the members in the text as a fragment; None if their end is not found."""
        depth = self._cut_depth
        container = self._open[depth]
        end = _find_last_comma(self._text, container)
        container.ending = b""
        if not end:
            return None
        json = _WRAPPED[container.closing] % self._text[container.start : end]
        try:
            parsed = orjson.loads(json)
        except orjson.JSONDecodeError:
            return None
        if not parsed:
            return None
        del self._open[depth + 1 :]
        fragment = Fragment(
            path=self._keys(depth),
            parts=(json,),
            first=container.first,
            begun=depth + 1,
            parsed=parsed,
            at=self._place(container.start) - 1,
        )
        container.first += len(parsed)  # of an array; otherwise it has no meaning
        container.count, container.key = container.first, None
        container.ending = self._text[end - 1 : end] if self._text[end - 1] in _CLOSE else b""
        container.start = container.member = self._at = self._ahead = 0
        self._quote = -1
        self._pass(end + 1)
        self._weight = _weigh(self._text)
        return fragment

    def _follow_ahead(self) -> Iterator[Fragment]:
        """Follow text that waits, until the next guess may come to another result."""
        text, at = self._text, self._ahead
        self._replace(at, b"")
        self._ahead = -1
        has_cut = False
        while at < len(text) and (self._ahead < 0 or not has_cut):
            self._ahead = -1
            piece = text[at : at + self._step]
            at += len(piece)
            self._held = len(text) - at
            for fragment in self._take(piece):
                has_cut = True
                yield fragment
        self._held = 0
        self._replace(len(self._text), text[at:])

    def _add(self, data: bytes) -> None:
        """Add to the text, or to the long string that has begun up to its end."""
        if self._long is not None and self._long.is_open:
            rest = self._long.add(data)
            self._note_gap(len(self._text), len(data) - len(rest))
            data = rest
        self._replace(len(self._text), data)

    @property
    def _is_in_string(self) -> bool:
        return self._long is not None and self._long.is_open

    def _follow(self) -> Iterator[Fragment]:
        """Follow the text to the last bracket or comma in it."""
        while True:
            text = self._text
            if self._long:
                end = self._find_slowly()
            else:
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
                return
            self._at = end
            char = text[end - 1]
            if char == _COMMA:
                self._end_member(end)
                if self._long:
                    yield from self._cut(0)
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
        self._quote = -1
        while True:
            at = _PLAIN.match(text, at).end()  # type: ignore[union-attr]  # it matches anything
            if at == len(text):
                return 0
            if text[at] != _QUOTE:
                return at + 1
            end = find_end(text, at + 1)
            if text[end : end + 1] != b'"':
                self._quote = at
                return 0
            at = end + 1

    def _bound_token(self) -> Iterator[Fragment]:
        """Keep what is after the last bracket or comma from growing: a string, or white space."""
        if self._quote >= 0:
            yield from self._bound_string(len(self._text) - self._quote)
            return
        if len(self._text) <= self._limit:
            return
        text = self._text.rstrip(_BLANK)
        if len(text) < len(self._text):
            self._note_gap(len(text) + 1, len(self._text) - len(text) - 1)
            self._replace(len(text), b" ")
            self._at = min(self._at, len(self._text))
        end = text[-MAX_TOKEN_BYTES:]
        if len(end.lstrip(_BLANK)) == MAX_TOKEN_BYTES and _PLAIN.fullmatch(end):
            raise InvalidData("Not valid JSON: a number is too long.")

    def _bound_string(self, size: int) -> Iterator[Fragment]:
        """Take a string that is not complete out of the text if it has become long."""
        if size <= self._long_bytes:
            return
        container = self._open[-1] if self._open else None
        if self._long or self._is_over or (container is not None and container.is_past):
            raise _unexpected()
        if container is not None and container.closing == _BRACE:
            before = self._text[container.member : self._quote]
            if not before.strip(_BLANK):
                if size <= _KEY_BYTES:
                    return
                raise _too_long(self._text[self._quote + 1 :])
        yield from self._cut(0)  # the members before it
        begin = self._quote + 1
        text = self._text[begin:]
        self._replace(begin, b"")
        self._note_gap(begin, len(text))
        self._long, self._long_at = LongString(), begin
        self._long.add(text)

    def _begin(self, char: int, at: int) -> None:
        if self._is_over or (self._open and self._open[-1].key is not None):
            raise _unexpected()  # the member has a child already
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
        if container.is_cut or self._long:
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
        elif not self._open:
            self._is_over = True
            if not container.is_cut:
                yield Fragment((), (self._text[: self._at],), 0, 0)

    def _cut(self, limit: int) -> Iterator[Fragment]:
        """Cut off complete members while more than a limit is left, and pause."""
        depth = 0
        while self._weight > limit and depth < len(self._open):
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
        pause()

    def _fragment(self, depth: int, end: int) -> Fragment:
        """Return the members of an open container from its start on as a fragment."""
        container = self._open[depth]
        keys = self._keys(depth)
        begun = sum(each.is_cut for each in self._open[: depth + 1])
        for each in self._open[: depth + 1]:
            each.is_cut = True
        json = _WRAPPED[container.closing] % self._text[container.start : end]
        return Fragment(
            path=keys,
            parts=self._parts(json, container.start - 1),
            first=container.first,
            begun=begun,
            at=self._place(container.start) - 1,
        )

    def _keys(self, depth: int) -> Path:
        """Return the path of an open container."""
        return tuple([self._find_key(level) for level in range(depth)])

    def _parts(self, json: bytes, begin: int) -> tuple[bytes, ...]:
        """Return JSON, which begins at a place in the text, as parts with the long string in it."""
        long, self._long = self._long, None
        if long is None:
            return (json,)
        at = self._long_at - begin
        return (json[:at], *long.parts, json[at:])

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
        self._weight -= _weigh(self._text[:count])
        self._pass(count)
        self._at -= count
        self._quote -= count
        for container in self._open:
            container.start = max(0, container.start - count)
            container.member = max(0, container.member - count)

    def _pass(self, count: int) -> None:
        """Remove the beginning of the text."""
        self._offset = self._place(count)
        self._gaps = [(at - count, size) for at, size in self._gaps if at > count]
        self._text = self._text[count:]

    def _place(self, at: int) -> int:
        """Return the byte of the document at a place in the text."""
        return self._offset + at + sum([size for gap, size in self._gaps if gap <= at])

    def _note_gap(self, at: int, size: int) -> None:
        """Record that bytes of the document are not in the text."""
        if self._gaps and self._gaps[-1][0] == at:
            size += self._gaps.pop()[1]
        self._gaps.append((at, size))

    def _replace(self, at: int, rest: bytes) -> None:
        """Put something else in place of the text from a position on."""
        self._weight += _weigh(rest) - _weigh(self._text[at:])
        self._text = self._text[:at] + rest


def _find_last_comma(text: bytes, container: _OpenContainer) -> int:
    """Return where the last comma between members of a container seems to be; 0 if nowhere.

    `text` has its members from `container.start` on, and brackets in strings are taken for others.
    """
    begin, end = container.start, len(text)
    wanted, skipped = container.ending + b",", len(container.ending)
    level = _count_open(text, begin, end)
    for _ in range(_MAX_GUESSES):
        at = text.rfind(wanted, begin, end)
        if at < 0:
            return 0
        at += skipped
        level -= _count_open(text, at, end)
        if not level and (container.closing != _BRACE or _KEY_FOLLOWS.match(text, at + 1)):
            return at
        end = at
    return 0


def _count_open(text: bytes, begin: int, end: int) -> int:
    """Return how many brackets open more than close in a part of a text."""
    opening = text.count(b"{", begin, end) + text.count(b"[", begin, end)
    return opening - text.count(b"}", begin, end) - text.count(b"]", begin, end)


def _weigh(text: bytes) -> int:
    """Return what text counts for, from its bytes and its members."""
    return len(text) + NODE_BYTES * (text.count(b",") + text.count(b"{") + text.count(b"["))


def _too_long(key: bytes) -> InvalidData:
    problem = f"is longer than {MAX_KEY_BYTES} bytes of UTF-8"
    return InvalidData(str(InvalidKey(key.decode(errors="replace"), problem)))


def _unexpected() -> InvalidData:
    return InvalidData("Not valid JSON: a bracket or comma is out of place.")


_COUNTED_AT_ONCE: Final = 65_536
_REST_OF_STRING: Final = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
"""What is left of a string up to its last quotation mark, or to a lone backslash at the end."""
_HIGH_SURROGATE: Final = re.compile(rb"\\u[dD][89abAB]..", re.DOTALL)
_NOT_PLAIN: Final = bytes(range(0x20)) + b'"\\'
"""What must not be in the text of a string, or does not mean itself."""
_ESCAPE: Final = len(r"\u0000")
_LONGEST_CHARACTER: Final = len(r"\ud83d\ude00")


class LongString:
    """The text of one string in JSON, which comes in pieces of any length.

    Attributes:
        parts: the text so far, without its quotation marks.
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
    return _REST_OF_STRING.match(text, at).end()  # type: ignore[union-attr]  # it matches anything


def parse_text(parts: Iterable[bytes], at: int = 0) -> str:
    """Parse a string that comes in parts, without its quotation marks; raise `InvalidFragment`.

    `at` is the byte of the document at which they begin.
    """
    texts: list[str] = []
    rest = b""
    for part in parts:
        text = rest + part
        end = _find_whole(text)
        texts.append(_parse_piece(text[:end], at))
        at += end
        rest = text[end:]
        pause()
    texts.append(_parse_piece(rest, at))
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


def _parse_piece(text: bytes, at: int) -> str:
    try:
        if len(text.translate(None, _NOT_PLAIN)) == len(text):
            return text.decode()  # in half of the time that a parser takes
        json = orjson.loads(b'"%b"' % text)
    except (UnicodeDecodeError, orjson.JSONDecodeError):
        reason, inside = _find_fault(b'"%b"' % text)
        raise InvalidFragment(reason, at + inside - 1) from None
    if not isinstance(json, str):
        raise InvalidData("Not valid JSON: a quotation mark is out of place.")
    return json


def _find_fault(text: bytes) -> tuple[str, int]:
    """Return why text is not JSON, and the byte that shows it."""
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError as error:
        try:
            before = text.decode()[: error.pos]
        except UnicodeDecodeError as undecodable:
            return error.msg, undecodable.start
        return error.msg, len(before.encode())
    raise AssertionError("The text is JSON.")


_CONTINUATION: Final = bytes(range(0x80, 0xC0))
"""The bytes of UTF-8 that do not begin a character."""


def find_line(pieces: Iterable[bytes], at: int) -> tuple[int, int, int]:
    """Return the line and the column of a byte, from 1 on, and its character, from 0 on; pauses."""
    line, column, character = 1, 1, 0
    for piece in pieces:
        text = piece[:at]
        at -= len(text)
        line += text.count(b"\n")
        end = text.rfind(b"\n") + 1
        column = (1 if end else column) + len(text[end:].translate(None, _CONTINUATION))
        character += len(text.translate(None, _CONTINUATION))
        if not at:
            break
        pause()
    return line, column, character
