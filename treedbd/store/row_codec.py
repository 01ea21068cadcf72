"""How a value is encoded in a row.

A row without a priority anywhere is *plain*: it holds exactly the bytes that a plain GET prints,
arrays as arrays, so that reads send them unparsed. A row with a priority somewhere is *marked*: one
space, then the normal form of `tree.value` printed as JSON, which is what `format=export` prints.
The *priority row* of a spread container (see `nodes`) is a marked row that holds its priority and
nothing else. This module knows nothing of row keys and engines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import orjson

from treedbd.store.engine import DamagedRow
from treedbd.tree.fragments import parse_text
from treedbd.tree.path import as_index
from treedbd.tree.types import (
    CONTAINER,
    PRIORITY,
    VALUE,
    Charge,
    Container,
    InvalidData,
    Json,
    Leaf,
    Path,
    Priority,
    Value,
)
from treedbd.tree.value import (
    NULL,
    as_priority,
    compact,
    from_export,
    from_plain,
    leaf_of,
    plain,
    priority_of,
    with_priority,
)

MARK: Final = b" "
_MARK: Final = MARK[0]
_HAS_PRIORITY: Final = b'"%b":' % PRIORITY.encode()
"""Occurs in printed JSON only as the name of a member: in a string its quotes are escaped."""
_MAYBE_ARRAY: Final = re.compile(rb'\{"[0-9]')
"""Occurs in every printed object that could be an array: its first key is an index."""
_PRIORITY_ROW: Final = MARK + b"{" + _HAS_PRIORITY
_ONE_PRIORITY: Final = re.compile(
    rb'%b(?:"[^"\\]*+(?:\\.[^"\\]*+)*+"|[^",}]*+)\}' % re.escape(_PRIORITY_ROW), re.DOTALL
)
"""All of a priority row: after the priority of any other row more members come."""
CONTAINERS: Final = b"{["
"""How a plain row that holds a container begins."""
_QUOTE: Final = b'"'[0]
_MARKED_STRING: Final = MARK + b'{"%b":"' % VALUE.encode()
"""How the row of a string with a priority begins."""
_AFTER_STRING: Final = b'",' + _HAS_PRIORITY
"""What ends that string, and occurs only once: quotes in strings are escaped."""
CHUNK_BYTES: Final = 32_768
LARGE_ROW_BYTES: Final = 4096
"""Bytes of a row that costs about the same to read however long it is."""
_AT_ONCE_BYTES: Final = 65_536
"""Bytes of a string that are parsed in one step."""
_DECODED: Final = 3
"""How many bytes each byte of a row counts for that is not ASCII, which takes so much longer."""
_COPIED_AT_ONCE: Final = 8
"""Bytes of a row that is only copied from the engine, at the cost of parsing one."""
_LEAST_MEMBER: Final = 1
"""Bytes of a member without its value if all of them are printed as an array: a comma."""
_LEAST_DOUBLE: Final = len("0.5")
"""Characters of a number that is no integer, or is too large for one."""
_LONGEST_INDEX: Final = 10
"""Characters of the longest key that an array may leave out."""


class Cover(NamedTuple):
    """The row that holds a node, and the path from that row's node down to it.

    For a bucket the path starts at the container that the bucket's members are children of.
    """

    key: bytes
    raw: bytes
    inside: Path
    is_bucket: bool


def parse_stored(text: bytes) -> Json:
    """Parse a row without its mark, or JSON printed from rows; raise `DamagedRow`."""
    try:
        json: Json = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise DamagedRow(f"A row is not valid JSON: {error}.") from None
    return json


def encode_row(value: Value) -> bytes:
    """Return the bytes of a row that holds `value`, which is not None; a long string pauses."""
    if type(value) is dict and VALUE in value:
        leaf, priority = value[VALUE], as_priority(value[PRIORITY])
        if type(leaf) is str and len(leaf) > _AT_ONCE_BYTES:
            return (
                _MARKED_STRING[:-1] + compact(leaf) + _AFTER_STRING[1:] + compact(priority) + b"}"
            )
    text = compact(value)
    if type(value) is str:
        return text
    if _HAS_PRIORITY in text:
        return MARK + text
    if _MAYBE_ARRAY.search(text):
        return compact(plain(value))
    return text


def may_be_shown_otherwise(text: bytes) -> bool:
    """Return whether a value in export form may print as another text in the plain form."""
    return _HAS_PRIORITY in text or _MAYBE_ARRAY.search(text) is not None


def encode_priority_row(priority: Priority) -> bytes:
    """Return the bytes of the priority row of a spread container."""
    row: Json = {PRIORITY: priority}
    return MARK + compact(row)


def has_priorities(raw: bytes) -> bool:
    """Return whether there is a priority anywhere in the row."""
    return raw[0] == _MARK


def is_priority_row(raw: bytes) -> bool:
    """Return whether the row holds a priority and nothing else."""
    return raw.startswith(_PRIORITY_ROW) and _ONE_PRIORITY.fullmatch(raw) is not None


def load_row(raw: bytes) -> Value:
    """Return the value of a row in normal form; a long string pauses. Raises `DamagedRow`."""
    if len(raw) > _AT_ONCE_BYTES and is_string(raw):
        return _load_string(raw)
    json = parse_stored(raw)
    return from_plain(json) if b"[" in raw and raw[0] != _MARK else from_export(json)


def load_priority_row(raw: bytes) -> Priority:
    """Return the priority in a priority row."""
    priority: Any = load_row(raw)
    return priority[PRIORITY]  # type: ignore[no-any-return]


def print_row(raw: bytes) -> bytes:
    """Return what a plain GET of a row's value prints; a string is not parsed."""
    if raw[0] != _MARK:
        return raw
    if raw.startswith(_MARKED_STRING):
        return raw[len(_MARKED_STRING) - 1 : _end_of_string(raw) + 1]
    return compact(plain(load_row(raw)))


def export_row(raw: bytes) -> bytes:
    """Return what `format=export` prints of a row's value: priorities, and no arrays."""
    if raw[0] == _MARK:
        return raw[1:]
    return compact(from_plain(parse_stored(raw))) if b"[" in raw else raw


def is_plain_string(raw: bytes) -> bool:
    """Return whether a row holds a string without a priority: however long, nothing is below it."""
    return raw[0] == _QUOTE


def is_string(raw: bytes) -> bool:
    """Return whether a row holds a string, with a priority or without."""
    return raw[0] == _QUOTE or raw.startswith(_MARKED_STRING)


def print_part(raw: bytes, below: Path) -> bytes:
    """Return what a plain GET prints of the node at the path `below` inside a row."""
    if below and is_string(raw):
        return NULL
    part = part_at(parse_stored(raw), below)
    if isinstance(part, str | int):  # bool is an int; only doubles and containers need more
        return orjson.dumps(part)
    return compact(plain(from_export(part)) if raw[0] == _MARK else part)


def load_part(raw: bytes, below: Path) -> Value:
    """Return the node at the path `below` inside a row, in normal form."""
    if not below:
        return load_row(raw)
    if is_string(raw):
        return None
    part = part_at(parse_stored(raw), below)
    return from_plain(part) if b"[" in raw and raw[0] != _MARK else from_export(part)


def priority_of_part(raw: bytes, below: Path, charge: Charge) -> Priority | None:
    """Return the priority of the node at the path `below` inside a row; a string is not parsed.

    `charge` is called as by `type_of_part`.
    """
    if not has_priorities(raw):
        return None
    if raw.startswith(_MARKED_STRING):
        charge(len(raw) // _COPIED_AT_ONCE)
        return None if below else _priority_of_string(raw)
    charge_large(raw, charge)
    return priority_of(load_part(raw, below))


def _load_string(raw: bytes) -> Value:
    """Return what the row of a long string holds, with pauses."""
    is_marked = raw[0] == _MARK
    begin, end = (len(_MARKED_STRING), _end_of_string(raw)) if is_marked else (1, len(raw) - 1)
    if raw[end] != _QUOTE:
        raise DamagedRow("A row is not valid JSON: a string does not end.")
    ends = range(begin, end, _AT_ONCE_BYTES)
    try:
        text = parse_text(raw[at : min(at + _AT_ONCE_BYTES, end)] for at in ends)
    except InvalidData as error:
        raise DamagedRow(f"A row is not valid JSON: {error}.") from None
    return with_priority(text, _priority_of_string(raw)) if is_marked else text


def _end_of_string(raw: bytes) -> int:
    """Return the index of the quote that ends the string in a row with a priority."""
    end = raw.rfind(_AFTER_STRING)
    if end < 0:
        raise DamagedRow("A row is not valid JSON: a string does not end.")
    return end


def _priority_of_string(raw: bytes) -> Priority | None:
    return priority_of(from_export(parse_stored(b"{" + raw[_end_of_string(raw) + 2 :])))


def peek_part(raw: bytes, below: Path, charge: Charge) -> Leaf | Container | None:
    """Return the leaf at the path `below` inside a row, `CONTAINER` for one, None for nothing.

    `charge` is called with the characters of a string, or before a large row is parsed, with its
    bytes.
    """
    if not below and raw[0] in CONTAINERS:
        return CONTAINER
    is_charged = charge_large(raw, charge)
    leaf = leaf_of(load_part(raw, below))
    if type(leaf) is str and not is_charged:
        charge(len(leaf))
    return leaf


def type_of_part(raw: bytes, below: Path, charge: Charge) -> type[Leaf] | type[Container] | None:
    """Return the type of what `peek_part` returns; a row that is a string is not parsed."""
    if not below and is_string(raw):
        charge(len(raw) // _COPIED_AT_ONCE)
        return str
    leaf = peek_part(raw, below, charge)
    return None if leaf is None else type(leaf)


def charge_large(raw: bytes, charge: Charge) -> bool:
    """Charge the bytes of a row that is larger than most before it is parsed; return whether.

    Those of other scripts than ASCII count more.
    """
    if len(raw) <= LARGE_ROW_BYTES:
        return False
    charge(len(raw) if raw.isascii() else len(raw) * _DECODED)
    return True


def is_surely_longer(value: Value, limit: int) -> bool:
    """Return whether the row of `value` is certainly longer than `limit`, at a cost of `limit`.

    False means that printing the value is cheap, not that it is short enough.
    """
    return _least_length(value, limit) > limit


def _least_length(value: Value, limit: int) -> int:
    if isinstance(value, str):
        return len(value) + 2
    if not isinstance(value, dict):
        return _LEAST_DOUBLE if type(value) is float else 1
    total = len(value) * _LEAST_MEMBER
    for key, child in value.items():
        if total > limit:
            break
        if len(key) > _LONGEST_INDEX:
            total += len(key)
        total += _least_length(child, limit - total)
    return total


def part_at(json: Json, path: Path) -> Json:
    """Return what is at `path` in the JSON of a row or of a part of one."""
    for key in path:
        if isinstance(json, dict):
            json = json.get(key)
        elif isinstance(json, list):
            at = as_index(key)
            json = json[at] if at is not None and at < len(json) else None
        else:
            return None
    return json


def cut_into_chunks(text: bytes) -> Iterator[bytes]:
    """Cut text into chunks of at most twice `CHUNK_BYTES`."""
    if len(text) <= 2 * CHUNK_BYTES:
        return iter((text,))
    return (text[at : at + CHUNK_BYTES] for at in range(0, len(text), CHUNK_BYTES))
