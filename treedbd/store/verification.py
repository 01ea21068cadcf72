"""Reading all rows of the tree and saying what is wrong with them.

The engine checks its own pages (`Mapping.verify`); this checks that the rows are a tree as `nodes`
describes it. It only reads, and believes nothing: a damaged row becomes a sentence, not an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

import attrs

from treedbd.store.layout import END, FIRST, KEY_BYTES, SPREAD_BYTES
from treedbd.store.mapping import Rows
from treedbd.store.row import (
    Damaged,
    encode_row,
    is_crown,
    load_crown,
    load_row,
    parse_stored,
)
from treedbd.tree.body import check_priority, normalise
from treedbd.tree.order import TEXT_TAG, decode_path, encode_key, encode_path
from treedbd.tree.path import PRIORITY, Path, check_depth, check_key, format_path
from treedbd.tree.value import members

MAX_FINDINGS: Final = 100
_SHOWN: Final = 200


class _Malformed(ValueError):
    """What is wrong with one row, as the end of a sentence about it."""


@attrs.frozen
class _Address:
    """What a row's key says: a path, and the beginning of a child's encoded key for a bucket."""

    path: Path
    cut: bytes


def verify(rows: Rows, limit: int = MAX_FINDINGS) -> list[str]:
    """Return what is malformed, a sentence each, at most `limit` of them; none: all is well."""
    return list(islice(_findings(rows), limit))


def find_unreadable(rows: Rows) -> str | None:
    """Return the first row that cannot be read at all, as the subject of a sentence says it.

    This is the quick look, for a start: a damaged text within a row is not found by it.
    """
    for key, raw in rows.scan(FIRST, END):
        try:
            parse_stored(raw)
        except Damaged:
            return f"{_shown(key)} cannot be read"
    return None


def _findings(rows: Rows) -> Iterator[str]:
    previous: bytes | None = None
    cover: bytes | None = None
    crown: bytes | None = None
    for key, raw in rows.scan(FIRST, END):
        if previous is not None and key <= previous:
            yield f"{_shown(key)} is out of order."
        if crown is not None and not key.startswith(crown):
            yield f"{_shown(crown)} holds a priority, but nothing lies below it."
        has_cover = cover is not None and key.startswith(cover)
        if has_cover:
            yield f"{_shown(key)} lies below another row."
        try:
            _check(_address(key), raw)
        except (ValueError, RecursionError) as error:
            yield f"{_shown(key)} {_reason(error)}."
        crown = key if _looks_like_crown(raw) else None
        if crown is None and not has_cover:
            cover = key
        previous = key
    if crown is not None:
        yield f"{_shown(crown)} holds a priority, but nothing lies below it."


def _address(key: bytes) -> _Address:
    if len(key) > KEY_BYTES:
        raise _Malformed(f"has a key of more than {KEY_BYTES} bytes")
    try:
        path, cut = decode_path(key)
        for name in check_depth(path):
            check_key(name)
    except ValueError:
        raise _Malformed("has a key that no path encodes to") from None
    container = encode_path(path)
    if container + cut != key:
        raise _Malformed("has a key that no path encodes to")
    if cut and (len(key) < KEY_BYTES or len(container) > SPREAD_BYTES or cut[0] != TEXT_TAG):
        raise _Malformed("has a key that is cut off")
    return _Address(path, cut)


def _check(address: _Address, raw: bytes) -> None:
    if _looks_like_crown(raw):
        check_priority(load_crown(raw))
        return
    value = load_row(raw) if raw else None
    normal = normalise(value, len(address.path), len(raw)).value
    if normal is None or encode_row(normal) != raw:
        raise _Malformed("is not in normal form")
    if not address.cut:
        return
    names = [name for name, _ in members(normal)]
    belong = all(encode_key(name).startswith(address.cut) for name in names)
    if not names or not belong or PRIORITY in normal:
        raise _Malformed("holds children that do not belong there")


def _looks_like_crown(raw: bytes) -> bool:
    try:
        return is_crown(raw)
    except ValueError:
        return False


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, _Malformed) else "cannot be read"


def _shown(key: bytes) -> str:
    try:
        path, cut = decode_path(key)
        text = format_path(path) + ("/…" if cut else "")
    except ValueError:
        text = f"0x{key.hex()}"
    return f"The row {text[:_SHOWN]}"
