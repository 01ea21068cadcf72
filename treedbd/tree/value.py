"""Values of the tree: their one normal form, their numbers, and how they are parsed and printed.

The normal form of a node (`Value`):

- nothing is `None`; it never occurs inside a container, and a container is never empty;
- a leaf is a string, a number or a boolean; with a priority it is
  `{".value": leaf, ".priority": priority}`;
- a container is a dict in key order; its priority comes first, under `.priority`.

Arrays exist only in output: an object whose keys look like indices is printed as an array.
`edit.normalise` brings incoming JSON into this form.

Numbers. An integer within 64 bits is exact; anything else is an IEEE double, printed as ECMAScript
prints it (RFC 8785, section 3.2.2.3). A double whose printed form is a plain integer below 2^64 is
stored as that integer, so a number that is printed and parsed again is the same number.

Printing. `orjson` prints all JSON as the interface requires, except doubles with an exponent. If
its output may have one, `print_double` prints all doubles, and their text is inserted unchanged.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from decimal import Decimal
from functools import lru_cache
from itertools import islice
from typing import Any, Final, NamedTuple

import orjson

from treedbd.loop import pause
from treedbd.tree.path import as_index, sort_keys
from treedbd.tree.types import (
    CONTAINER,
    PRIORITY,
    VALUE,
    Container,
    InvalidData,
    Json,
    Leaf,
    Path,
    Priority,
    Value,
)


def sort_members(children: dict[str, Value]) -> dict[str, Value]:
    """Return the members in key order, `.priority` (which sorts as text) moved to the front."""
    ordered = sort_keys(children)
    if PRIORITY in children:
        ordered.remove(PRIORITY)
        ordered.insert(0, PRIORITY)
    return {key: children[key] for key in ordered}


def with_priority(value: Value, priority: Priority | None) -> Value:
    """Return `value` with this priority in place of any it had; nothing stays nothing."""
    bare = without_priority(value)
    if priority is None or bare is None:
        return bare
    if isinstance(bare, dict):
        return {PRIORITY: priority, **bare}
    return {VALUE: bare, PRIORITY: priority}


def without_priority(value: Value) -> Value:
    """Return `value` without its own priority; those below it stay."""
    if not isinstance(value, dict):
        return value
    if VALUE in value:
        return value[VALUE]
    if PRIORITY in value:
        return {key: child for key, child in value.items() if key != PRIORITY}
    return value


def priority_of(value: Value) -> Priority | None:
    """Return the priority of a node."""
    priority: Any = value.get(PRIORITY) if isinstance(value, dict) else None
    return priority  # type: ignore[no-any-return]  # by the normal form


def leaf_of(value: Value) -> Leaf | Container | None:
    """Return the leaf at a node, `CONTAINER` if it has children, None if nothing is there."""
    leaf: Any = value.get(VALUE, CONTAINER) if isinstance(value, dict) else value
    return leaf  # type: ignore[no-any-return]  # by the normal form


def container_of(value: Value) -> dict[str, Value] | None:
    """Return `value` if it is a container, else None."""
    return value if isinstance(value, dict) and VALUE not in value else None


def value_at(value: Value, path: Path) -> Value:
    """Return what is at `path` below a node."""
    for key in path:
        if not isinstance(value, dict):
            return None
        value = value.get(key)
    return value


def nest(path: Path, value: Value) -> Value:
    """Return the containers that lead to `value` along a path; nothing if it is nothing."""
    if value is None:
        return None
    for key in reversed(path):
        value = {key: value}
    return value


def members(value: Value) -> Iterator[tuple[str, Value]]:
    """Iterate over the children of a node in key order; a leaf has none."""
    if not isinstance(value, dict) or VALUE in value:
        return
    for key, child in value.items():
        if key != PRIORITY:
            yield key, child


def as_priority(value: Value) -> Priority | None:
    """Return the value of a change that sets a priority, as a priority."""
    priority: Any = value
    return priority  # type: ignore[no-any-return]  # `edit.check_priority` has checked it


def as_json(value: Value) -> Json:
    """Return a value as JSON with its priorities, which it is already: only the type differs."""
    json: Any = value
    return json  # type: ignore[no-any-return]


def from_export(json: Json) -> Value:
    """Return JSON that `format=export` shows as the value that it is: only the type differs."""
    value: Any = json
    return value  # type: ignore[no-any-return]


def plain(value: Value) -> Json:
    """Return the JSON of a plain GET: no priorities, arrays where the keys are indices."""
    if not isinstance(value, dict):
        return value
    if VALUE in value:
        return plain(value[VALUE])
    # Most children are leaves: copying all and replacing a few is faster than a comprehension.
    children: dict[str, Any] = dict(value)
    children.pop(PRIORITY, None)
    for key, child in value.items():
        if type(child) is dict:
            children[key] = plain(child)
    return as_array(children) or children


def as_array(children: dict[str, Json]) -> list[Json] | None:
    """Return the array that an object in key order is printed as, or None if it stays an object.

    It is an array if all keys are canonical non-negative integers and the greatest is less than
    twice their count; gaps become null.
    """
    greatest = as_index(next(reversed(children)))
    if greatest is None or greatest >= 2 * len(children):
        return None
    if as_index(next(iter(children))) is None:
        return None
    # All keys are integers by now. After the first one, those in another form are `0…` or `-0…`.
    joined = ",".join(children)
    if ",0" in joined or ",-" in joined:
        return None
    if greatest == len(children) - 1:
        return list(children.values())
    return [children.get(str(at)) for at in range(greatest + 1)]


def from_plain(json: Json) -> Value:
    """Bring JSON that `plain` returned back into the normal form, without the lost priorities."""
    if isinstance(json, list):
        return {str(at): from_plain(item) for at, item in enumerate(json) if item is not None}
    if isinstance(json, dict):
        return {key: from_plain(item) for key, item in json.items()}
    return json


INT64_LOW, INT64_HIGH = -(2**63), 2**63 - 1
_EXACT = 1e16
_UINT64_END = 2.0**64
_LEAST_PLAIN, _LEAST_LONG = -6, 21
"""Exponents from the first on and below the second are not printed."""


def canonical_number(number: int | float) -> int | float:
    """Return the number that the tree stores for a number in JSON.

    Raises ValueError if it is not finite.
    """
    if isinstance(number, int):
        if INT64_LOW <= number <= INT64_HIGH:
            return number
        number = float(number)
    if not math.isfinite(number):
        raise ValueError("The number is out of range.")
    if not number.is_integer():
        return number
    if -_EXACT < number < _EXACT:
        return int(number)
    if INT64_LOW < number < _UINT64_END:
        return int(Decimal(repr(number)))
    return number


def add(left: int | float, right: int | float) -> int | float:
    """Add two numbers of the tree: exact within 64 bits, a double beyond.

    Raises ValueError if the sum is not finite.
    """
    total = left + right
    if isinstance(total, int) and not INT64_LOW <= total <= INT64_HIGH:
        total = float(left) + float(right)
    return canonical_number(total)


def print_double(number: float) -> str:
    """Print a finite double as ECMAScript's Number::toString does."""
    if number == 0:
        return "0"
    mantissa, _, exponent_text = repr(number).partition("e")
    if not exponent_text:
        return mantissa.removesuffix(".0")
    if not _LEAST_PLAIN <= int(exponent_text) < _LEAST_LONG:
        return f"{mantissa}e{int(exponent_text):+d}"
    sign, digits, exponent = Decimal(repr(number)).as_tuple()
    text = "".join(map(str, digits)).rstrip("0")
    point = len(digits) + int(exponent)
    return ("-" if sign else "") + _place_point(text, point)


def _place_point(digits: str, point: int) -> str:
    count = len(digits)
    if count <= point <= 21:
        return digits + "0" * (point - count)
    if 0 < point <= 21:
        return f"{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return "0." + "0" * -point + digits
    mantissa = digits if count == 1 else f"{digits[0]}.{digits[1:]}"
    return f"{mantissa}e{point - 1:+d}"


NULL = b"null"
KEYS_AT_ONCE: Final = 64
"""Keys that are read before a chunk of them is printed."""
PARTS_AT_ONCE: Final = 32
"""Names and values of short members that are printed in one chunk."""
SHORT_BYTES: Final = 1024
"""A chunk of a member that has more bytes is not joined with what follows it."""
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
    """Print JSON without white space; a long string with pauses.

    orjson's bytes occupy 4 KiB and more, however short they are, so what may be kept is copied.
    """
    if type(json) is str and len(json) > TEXT_AT_ONCE:
        text = b"".join(print_text(json))
        pause()
        return text
    text = orjson.dumps(json)
    if type(json) is not str and _EXPONENT.search(text):
        text = orjson.dumps(_with_printed_doubles(json))
    return b"".join((text, b""))


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

    Short members share a chunk, some at most. At each None a chunk ends, which may be empty, and
    after each empty chunk of a member.
    """
    separator = b"{"
    parts: list[bytes] = []
    for member in members:
        if member is None:
            yield b"".join(parts)
            parts.clear()
            continue
        key, chunks = member
        parts.append(b"%b%b:" % (separator, compact(key)))
        for chunk in chunks:
            parts.append(chunk)
            if not SHORT_BYTES >= len(chunk) > 0 or len(parts) > PARTS_AT_ONCE:
                yield b"".join(parts)
                parts.clear()
        separator = b","
    parts.append(NULL if separator == b"{" else b"}")
    yield b"".join(parts)


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
def _ends_around(containers: bytes) -> _Ends:
    """Return what completes a fragment inside these containers, named by brackets.

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
    long string is not a fragment: it is passed on as it comes.
    """

    def __init__(self) -> None:
        self._containers = b""
        self._rest = b""
        self._is_begun = False
        self._is_in_string = False

    def feed(self, text: bytes) -> Iterator[bytes]:
        """Add text; yield what can be indented by now."""
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
        """Return the end, after all of the text was added."""
        return self._indent(self._rest)

    def _indent(self, fragment: bytes) -> bytes:
        start = _ends_around(self._containers) if self._is_begun else _Ends(b"", 0, b"", 0)
        self._containers = _still_open(self._containers, fragment)
        self._is_begun = True
        end = _ends_around(self._containers)
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
        text = orjson.dumps(_with_printed_doubles(json), option=option)
    return b"".join((text, b""))


def _with_printed_doubles(json: Json | Value) -> object:
    if isinstance(json, float):
        return orjson.Fragment(print_double(json).encode())
    if isinstance(json, dict):
        return {key: _with_printed_doubles(item) for key, item in json.items()}
    if isinstance(json, list):
        return [_with_printed_doubles(item) for item in json]
    return json
