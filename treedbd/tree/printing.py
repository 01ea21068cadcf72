"""JSON as bytes: parsed strictly, printed compactly or indented, numbers as RFC 8785 prints them.

`orjson` prints all JSON as the interface requires, except doubles with an exponent. If its output
may have one, `number` prints all doubles, and their text is inserted unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import islice
from typing import Final, NamedTuple

import orjson

from treedbd.loop import pause
from treedbd.tree.errors import InvalidData
from treedbd.tree.number import print_double
from treedbd.tree.types import Json, Value

NULL = b"null"
KEYS_AT_ONCE: Final = 64
"""Keys that are read before a chunk of them is printed."""
TEXT_AT_ONCE: Final = 16_384
"""Characters of a long string that are printed in one step."""
INDENTED_AT_ONCE: Final = 32_768
"""Bytes of JSON that are indented in one step."""
_STRUCTURE: Final = b'"{}[]'
_NOT_STRUCTURE: Final = bytes(byte for byte in range(256) if byte not in _STRUCTURE)
_QUOTE: Final = b'"'
_IN_STRING = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)
"""As much of a string as there is, up to its quote or to a backslash without what it escapes."""
_MEMBER = re.compile(rb'^( *"(?:[^"\\]|\\.)*"): ', re.MULTILINE)
# An exponent as orjson prints one, with what may follow a number. The pattern begins with the "e",
# which is fastest. A match inside a string only costs time: the output is the same.
_EXPONENT = re.compile(rb"e(?<=[0-9]e)[-+]?[0-9]{1,3}(?:[,\]}\n]|\Z)")


def parse(body: bytes) -> Json:
    """Parse one JSON text; raise `InvalidData` for anything else, also for a lone surrogate.

    Of a repeated member the last value counts.
    """
    try:
        json: Json = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidData(f"Not valid JSON: {error}.") from None
    return json


def compact(json: Json | Value) -> bytes:
    """Print JSON without white space; a long string with pauses."""
    if type(json) is not str:
        return _dump(json, 0)
    if len(json) <= TEXT_AT_ONCE:
        return orjson.dumps(json)
    text = b"".join(print_text(json))
    pause()
    return text


def print_text(text: str) -> Iterator[bytes]:
    """Print a string in parts, with pauses."""
    yield b'"'
    for at in range(0, len(text), TEXT_AT_ONCE):
        yield orjson.dumps(text[at : at + TEXT_AT_ONCE])[1:-1]
        pause()
    yield b'"'


def pretty(json: Json | Value) -> bytes:
    """Print JSON with an indent of two spaces, `"a": 1`."""
    return _dump(json, orjson.OPT_INDENT_2)


def compact_sorted(json: Json | Value) -> bytes:
    """Print JSON compactly, members in the order of their UTF-8 bytes."""
    return _dump(json, orjson.OPT_SORT_KEYS)


def print_members(members: Iterable[tuple[str, Iterable[bytes]] | None]) -> Iterator[bytes]:
    """Print members, each with its JSON in chunks, as an object, in their order; without any, null.

    Each None becomes an empty chunk.
    """
    separator = b"{"
    for member in members:
        if member is None:
            yield b""
            continue
        key, chunks = member
        yield b"%b%b:" % (separator, compact(key))
        yield from chunks
        separator = b","
    yield NULL if separator == b"{" else b"}"


def print_keys(keys: Iterable[str]) -> Iterator[bytes]:
    """Print an object in which each key is true, some keys in a chunk; without any, null."""
    remaining = iter(keys)
    separator = b"{"
    while batch := list(islice(remaining, KEYS_AT_ONCE)):
        # One call prints many keys in a fraction of the time of one call for each.
        yield separator + orjson.dumps(dict.fromkeys(batch, True))[1:-1]
        separator = b","
    yield NULL if separator == b"{" else b"}"


def space_colons(indented: bytes) -> bytes:
    """Return indented JSON, or whole lines of it, with a space before each colon: `"a" : 1`."""
    # A quote that is followed by a colon and a space ends a name, unless it is escaped or begins a
    # string; then a space precedes it, as it does after a name that ends in one.
    if b'\\": ' in indented or b' ": ' in indented or indented.startswith(b'": '):
        return _MEMBER.sub(rb"\1 : ", indented)
    return indented.replace(b'": ', b'" : ')


def indent(chunks: Iterable[bytes], *, spaces_colons: bool = False) -> Iterator[bytes]:
    """Print compact JSON that comes in chunks as `pretty` does; some of the chunks are empty.

    With a space before each colon if it `spaces_colons`.
    """
    indenter = _Indenter()
    parts: list[bytes] = []
    size = 0
    for chunk in chunks:
        for at in range(0, len(chunk) or 1, INDENTED_AT_ONCE):
            parts.append(chunk[at : at + INDENTED_AT_ONCE])
            size += len(parts[-1])
            if size < INDENTED_AT_ONCE:
                yield b""
                continue
            for indented in indenter.feed(b"".join(parts)):
                yield space_colons(indented) if spaces_colons else indented
            parts.clear()
            size = 0
    for indented in (*indenter.feed(b"".join(parts)), indenter.finish()):
        yield space_colons(indented) if spaces_colons else indented


class _Ends(NamedTuple):
    """What completes a fragment of JSON: before it, and after it.

    Of each as JSON, and how many bytes of it there are when it is indented.
    """

    before: bytes
    before_bytes: int
    after: bytes
    after_bytes: int


@lru_cache(maxsize=256)
def _ends(containers: bytes) -> _Ends:
    """Return what completes a fragment that lies within these containers, named by brackets.

    A fragment follows a value; its end follows one too.
    """
    before = containers.replace(b"{", b'{"":') + b"0"
    after = containers[::-1].translate(bytes.maketrans(b"{[", b"}]"))
    indented = _dump(orjson.loads(before + after), orjson.OPT_INDENT_2)
    end = indented.index(b"0") + 1
    return _Ends(before, end, after, len(indented) - end)


class _Indenter:
    """Indents compact JSON, fragment by fragment.

    A fragment reaches from the end of one value to that of another. It is completed to JSON by the
    containers that are open around it, so that `orjson` indents it as deep as it is, and what was
    added is cut off again. Which containers are open is found by the brackets outside of strings. A
    long string is no fragment: it is passed on as it comes.
    """

    def __init__(self) -> None:
        self._containers = b""
        self._rest = b""
        self._is_begun = False
        self._is_in_string = False

    def feed(self, text: bytes) -> Iterator[bytes]:
        """Take more text; yield what can be indented by now."""
        text = self._rest + text
        if self._is_in_string:
            inside = _IN_STRING.match(text)
            end = 0 if inside is None else inside.end()
            self._is_in_string = text[end : end + 1] != _QUOTE
            if not self._is_in_string:
                end += 1
            yield text[:end]
            text = text[end:]
        self._rest = text
        if self._is_in_string:
            return
        cut, string = _find_cut(text)
        if cut > 0:
            self._rest = text[cut:]
            yield self._indent(text[:cut])
        elif string >= 0 and len(text) - string > TEXT_AT_ONCE:  # no name is so long
            self._rest, self._is_in_string = b"", True
            yield self._indent(text[:string] + b"0")[:-1] + _QUOTE
            yield from self.feed(text[string + 1 :])

    def finish(self) -> bytes:
        """Return the end, after all of the text was taken."""
        return self._indent(self._rest)

    def _indent(self, fragment: bytes) -> bytes:
        start = _ends(self._containers) if self._is_begun else _Ends(b"", 0, b"", 0)
        self._containers = _still_open(self._containers, fragment)
        self._is_begun = True
        end = _ends(self._containers)
        json = orjson.loads(start.before + fragment + end.after)
        indented = _dump(json, orjson.OPT_INDENT_2)
        return indented[start.before_bytes : len(indented) - end.after_bytes]


def _find_cut(text: bytes) -> tuple[int, int]:
    """Return where the last comma outside of strings is, and where a string begins that has no end.

    -1 for what there is not. The text begins outside of strings.
    """
    if b"\\" in text:
        text = text.replace(b"\\\\", b"__").replace(b'\\"', b"__")
    is_in_string = text.count(_QUOTE) % 2 == 1
    end = len(text)
    string = text.rfind(_QUOTE) if is_in_string else -1
    while end > 0:
        quote = text.rfind(_QUOTE, 0, end)
        comma = -1 if is_in_string else text.rfind(b",", quote + 1, end)
        if comma >= 0:
            return comma, string
        end, is_in_string = quote, not is_in_string
    return -1, string


def _still_open(containers: bytes, fragment: bytes) -> bytes:
    """Return which containers are open after a fragment, by the brackets that open them."""
    if b"\\" in fragment:
        fragment = fragment.replace(b"\\\\", b"").replace(b'\\"', b"")
    # Without the quotes of short strings, those of others still enclose the same brackets.
    brackets = fragment.translate(None, _NOT_STRUCTURE).replace(b'""', b"")
    if _QUOTE in brackets:
        brackets = b"".join(brackets.split(_QUOTE)[::2])
    brackets = containers + brackets
    length = -1
    while length != len(brackets):
        length = len(brackets)
        brackets = brackets.replace(b"{}", b"").replace(b"[]", b"")
    return brackets


def _dump(json: Json | Value, option: int) -> bytes:
    text = orjson.dumps(json, option=option)
    if _EXPONENT.search(text):
        return orjson.dumps(_with_printed_doubles(json), option=option)
    return text


def _with_printed_doubles(json: Json | Value) -> object:
    if isinstance(json, float):
        return orjson.Fragment(print_double(json).encode())
    if isinstance(json, dict):
        return {key: _with_printed_doubles(item) for key, item in json.items()}
    if isinstance(json, list):
        return [_with_printed_doubles(item) for item in json]
    return json
