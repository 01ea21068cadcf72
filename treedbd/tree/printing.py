"""JSON as bytes: parsed strictly, printed compactly or indented, numbers as RFC 8785 prints them.

`orjson` prints all JSON as the interface requires, except doubles with an exponent. If its output
may have one, `number` prints all doubles, and their text is inserted unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

import orjson

from treedbd.pauses import pause
from treedbd.tree.errors import InvalidData
from treedbd.tree.number import print_double
from treedbd.tree.types import Json, Value

NULL = b"null"
KEYS_AT_ONCE: Final = 64
"""Keys that are read before a chunk of them is printed."""
TEXT_AT_ONCE: Final = 16_384
"""Characters of a long string that are printed in one step."""
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
