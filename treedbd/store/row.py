"""How a value lies in a row: the codec of the shelf.

A row without a priority anywhere is *plain*: it holds exactly the bytes that a plain GET prints,
arrays as arrays, so that reads hand them on unparsed. A row with a priority somewhere is *marked*:
one space, then the normal form of `tree.value` printed as JSON, which is what `format=export`
prints. The *crown* of a spread container (see `nodes`) is a marked row that holds its priority and
nothing else. This module knows nothing of keys, paths and engines.
"""

from __future__ import annotations

import re
from typing import Final

import orjson

from treedbd.tree.order import as_integer
from treedbd.tree.path import PRIORITY, Path
from treedbd.tree.printing import compact
from treedbd.tree.value import Json, Priority, Value, from_plain, plain

MARK: Final = b" "
_MARK: Final = MARK[0]
_HAS_PRIORITY: Final = b'"%b":' % PRIORITY.encode()
"""Stands in printed JSON only as a member's name: inside a string its quotes are escaped."""
_MAYBE_ARRAY: Final = re.compile(rb'\{"[0-9]')
"""Stands in the print of every object that could leave as an array: an index is its first key."""
_CROWN: Final = MARK + b"{" + _HAS_PRIORITY
_LEAST_MEMBER: Final = 1
"""What a member takes beside its value where all of them are printed as an array: a comma."""
_LONGEST_INDEX: Final = 10


class Damaged(ValueError):
    """What lies in a row is not what was put there."""


def parse_stored(text: bytes) -> Json:
    """Parse a row without its mark, or what was printed from rows; raise `Damaged`."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise Damaged(f"A row is not JSON: {error}.") from None


def encode_row(value: Value) -> bytes:
    """Return the bytes of a row that holds `value`, which is not nothing."""
    text = compact(value)
    if _HAS_PRIORITY in text:
        return MARK + text
    if _MAYBE_ARRAY.search(text):
        return compact(plain(value))
    return text


def encode_crown(priority: Priority) -> bytes:
    """Return the bytes of a row that holds nothing but the priority of a spread container."""
    return MARK + compact({PRIORITY: priority})


def is_marked(raw: bytes) -> bool:
    """Tell whether a priority stands somewhere in the row."""
    return raw[0] == _MARK


def is_crown(raw: bytes) -> bool:
    """Tell whether the row holds a priority and nothing else."""
    return raw.startswith(_CROWN) and len(parse_stored(raw)) == 1


def is_container(raw: bytes) -> bool:
    """Tell whether an unmarked row holds a container."""
    return raw[0] in b"{["


def load_row(raw: bytes) -> Value:
    """Return the value of a row in normal form; raises `Damaged` for what is not JSON."""
    json = parse_stored(raw)
    return from_plain(json) if b"[" in raw and not is_marked(raw) else json


def load_crown(raw: bytes) -> Priority:
    """Return the priority that a crown holds."""
    priority: Priority = parse_stored(raw)[PRIORITY]
    return priority


def print_row(raw: bytes) -> bytes:
    """Return what a plain GET of a row's value prints."""
    return compact(plain(parse_stored(raw))) if raw[0] == _MARK else raw


def export_row(raw: bytes) -> bytes:
    """Return what `format=export` prints of a row's value: priorities, and no arrays."""
    if raw[0] == _MARK:
        return raw[1:]
    return compact(from_plain(parse_stored(raw))) if b"[" in raw else raw


def print_part(raw: bytes, below: Path) -> bytes:
    """Return what a plain GET prints of the node at the path `below` inside a row."""
    json = parse_stored(raw)
    if raw[0] == _MARK:
        return compact(plain(_descend(json, below)))
    return compact(_descend(json, below))


def load_part(raw: bytes, below: Path) -> Value:
    """Return the node at the path `below` inside a row, in normal form."""
    part = _descend(parse_stored(raw), below)
    return from_plain(part) if b"[" in raw and raw[0] != _MARK else part


def is_surely_longer(value: Value, limit: int) -> bool:
    """Tell, at a cost bound by `limit`, whether the row of `value` is certainly longer than that.

    False means that printing it is cheap, not that it is short enough.
    """
    return _least_length(value, limit) > limit


def _least_length(value: Value, limit: int) -> int:
    if isinstance(value, str):
        return len(value) + 2
    if not isinstance(value, dict):
        return 1
    total = len(value) * _LEAST_MEMBER
    for key, child in value.items():
        if total > limit:
            break
        if len(key) > _LONGEST_INDEX:
            total += len(key)
        total += _least_length(child, limit - total)
    return total


def _descend(json: Json, keys: Path) -> Json:
    for key in keys:
        if isinstance(json, dict):
            json = json.get(key)
        elif isinstance(json, list):
            at = as_integer(key)
            json = json[at] if at is not None and 0 <= at < len(json) else None
        else:
            return None
    return json
