"""Rows of older formats, and how they become rows of the next one.

`sqlite/convert` brings a file from one format to the next, step by step; here is what each step
does to the rows.

**1 to 2.** In format 1 only an integer in canonical form was an integer among the keys; `01` was
text. Its encoding was a tag and four bytes. So in format 2 a row has another key if there is an
integer in its path, in either sense, and other content if such a key is inside the row: members are
in key order.

Row keys become longer or shorter by that, and where a row is stored depends on their length
(`nodes`). Most rows stay rows of the same node. But a container whose key is now longer than
`SPREAD_BYTES` cannot be spread any more, and a key that is now longer than `ROW_KEY_BYTES` belongs
into a bucket. What several rows held becomes one row then, a *group*. In format 1 the rows of a
group begin with a prefix that hardly any other row begins with, so only a group whose prefix the
present row has must be kept in memory.

A row may stay longer than `row_bytes` where it could be split now; the first change of it does so.
The encoding of format 1 that is defined here must never change.

**2 to 3.** In format 2 every row was stored by itself, under its own key and without a check sum.
In format 3 rows begin with one, and short rows of siblings share pages (`pages`).

**3 to 4.** The rows are the same. In format 4 a file may have indexes (`indexes`), which every
write must keep. A program that does not know them must not write to such a file, so the format was
raised.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator
from typing import Final

import attrs

from treedbd.store.engine import ReadView, Row
from treedbd.store.pages import PAGE_BYTES, pack
from treedbd.store.rows import (
    END,
    FIRST,
    ROW_KEY_BYTES,
    SPREAD_BYTES,
    encode_row,
    is_priority_row,
    load_priority_row,
    load_row,
    seal_row,
)
from treedbd.store.verify import check_row, check_stored_rows, verify
from treedbd.tree.edit import Draft
from treedbd.tree.path import encode_key, encode_path
from treedbd.tree.types import VALUE, Path, Priority, Value
from treedbd.tree.value import members, sort_members

_INT_TAG: Final = 0x02
_TEXT_TAG: Final = 0x03
_TEXT_END: Final = b"\x00"
_INT_BYTES: Final = 5
_LOW, _HIGH = -(2**31), 2**31 - 1
_CANONICAL: Final = re.compile(r"0|-?[1-9][0-9]{0,9}")

_MAYBE_CHANGED_KEY: Final = re.compile(rb"\x02|\x03(?:-0|0[0-9])[0-9]*\x00")
_MAYBE_CHANGED_NAME: Final = re.compile(rb'"(?:-0|0[0-9])[0-9]*":')
"""Occurs in printed JSON only as the name of a member: in a string its quotes are escaped."""


@attrs.define
class _MergedRow:
    """A row of format 2 that is put together from several of format 1."""

    key: bytes
    prefix: bytes
    draft: Draft = attrs.field(factory=lambda: Draft(None))
    priorities: list[tuple[Path, Priority]] = attrs.field(factory=list)

    def add(self, inside: Path, raw: bytes) -> None:
        """Add the row of the node at `inside` below the row's own."""
        if is_priority_row(raw):
            self.priorities.append((inside, load_priority_row(raw)))  # the node comes after it
        else:
            self.draft.set(inside, load_row(raw))

    def finish(self) -> Row:
        """Return the row."""
        for inside, priority in self.priorities:
            self.draft.set_priority(inside, priority)
        return self.key, encode_row(self.draft.finish())


def _may_change(key: bytes, raw: bytes) -> bool:
    # The first condition is many times faster than the search, and most rows do not meet it.
    has_name = (b'"0' in raw or b'"-0' in raw) and _MAYBE_CHANGED_NAME.search(raw) is not None
    return has_name or _MAYBE_CHANGED_KEY.search(key) is not None


def _nodes_of(key: bytes, raw: bytes) -> Iterator[tuple[Path, bytes]]:
    """Return the nodes that a row holds, with the content of a row of format 2 for each.

    It is one node, or for a bucket each of its children.
    """
    path, cut = _decode_path(key)
    if _encode_path(path) + cut != key:
        raise ValueError("A row has a key that no path encodes to")
    if is_priority_row(raw):
        yield path, raw
        return
    if _MAYBE_CHANGED_NAME.search(raw):
        raw = encode_row(_sort(load_row(raw)))
    if not cut:
        yield path, raw
        return
    children = list(members(load_row(raw)))
    belong = all(_encode_key(name).startswith(cut) for name, _ in children)
    if len(key) != ROW_KEY_BYTES or not children or not belong:
        raise ValueError("A row holds children that do not belong there")
    for name, child in children:
        yield (*path, name), encode_row(child)


def _locate(path: Path) -> tuple[bytes, int]:
    """Return the key of the row that holds a node, and how many keys lead to that row's own node.

    For a bucket they lead to the container.
    """
    key = b""
    for depth, name in enumerate(path):
        if len(key) > SPREAD_BYTES:
            return key, depth
        key += encode_key(name)
        if len(key) > ROW_KEY_BYTES:
            return key[:ROW_KEY_BYTES], depth
    return key, len(path)


def _prefix(key: bytes, node: Path) -> bytes:
    """Return what the rows of a group begin with in format 1; text was encoded as it is now."""
    return _encode_path(node) + key[len(encode_path(node)) :]


def _sort(value: Value) -> Value:
    """Bring the members of all containers into key order."""
    if not isinstance(value, dict) or VALUE in value:
        return value
    return sort_members({key: _sort(child) for key, child in value.items()})


def _encode_path(path: Path) -> bytes:
    return b"".join([_encode_key(key) for key in path])


def _encode_key(key: str) -> bytes:
    if _CANONICAL.fullmatch(key) and _LOW <= int(key) <= _HIGH:
        return struct.pack(">BI", _INT_TAG, int(key) - _LOW)
    return bytes((_TEXT_TAG,)) + key.encode() + _TEXT_END


def _decode_path(encoded: bytes) -> tuple[Path, bytes]:
    """Return the keys that are whole, and the bytes of a key that was cut off."""
    keys = []
    at, end = 0, len(encoded)
    while at < end:
        if encoded[at] == _INT_TAG:
            stop = at + _INT_BYTES
            if stop > end:
                break
            keys.append(str(struct.unpack_from(">I", encoded, at + 1)[0] + _LOW))
        else:
            stop = encoded.find(_TEXT_END, at) + 1
            if not stop:
                break
            keys.append(encoded[at + 1 : stop - 1].decode())
        at = stop
    return tuple(keys), encoded[at:]


class RowFormat:
    """How the rows of an older format become those of the next one; here they stay as they are.

    The methods, and the iterators that they return, raise ValueError for a row that the format does
    not have.

    Attributes:
        has_other_pages: whether a file is written again even if its rows stay as they are.

    """

    def __init__(self, *, has_other_pages: bool = False) -> None:
        self.has_other_pages: Final = has_other_pages

    def is_same(self, _: Row) -> bool:
        """Return whether a row stays as it is."""
        return True

    def convert(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Convert all rows of a tree, which come in their order."""
        return iter(rows)

    def check(self, view: ReadView) -> Iterator[str]:
        """Yield what is wrong with the rows of a view, a sentence each."""
        return iter(verify(view))


class RowFormat1(RowFormat):
    """Keys are in another order than in format 2."""

    def is_same(self, row: Row) -> bool:
        """Return whether a row stays as it is."""
        return not _may_change(*row) or list(self.convert([row])) == [row]

    def convert(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Convert all rows, to rows in any order; memory is bounded by the largest rows."""
        groups: dict[bytes, _MergedRow] = {}
        for key, raw in rows:
            for done in [each for each in groups.values() if not key.startswith(each.prefix)]:
                yield groups.pop(done.key).finish()
            if not _may_change(key, raw):
                yield key, raw
                continue
            for path, part in _nodes_of(key, raw):
                new_key, depth = _locate(path)
                is_spread = len(new_key) <= SPREAD_BYTES or not is_priority_row(part)
                if depth == len(path) and is_spread:
                    yield new_key, part
                    continue
                if new_key not in groups:
                    groups[new_key] = _MergedRow(new_key, _prefix(new_key, path[:depth]))
                groups[new_key].add(path[depth:], part)
        for group in groups.values():
            yield group.finish()

    def check(self, view: ReadView) -> Iterator[str]:
        """Yield what would keep the rows from being converted, a sentence each."""
        rows = self.convert(view.scan(FIRST, END))
        return filter(None, (check_row(*row) for row in rows))


class RowFormat2(RowFormat):
    """Each row is stored by itself, without a check sum."""

    def is_same(self, _: Row) -> bool:
        """Return False."""
        return False

    def convert(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Convert all rows, with one page in memory at most."""
        return map(seal_row, pack(rows, PAGE_BYTES))

    def check(self, view: ReadView) -> Iterator[str]:
        """Yield what is wrong with the rows of a view, a sentence each."""
        return check_stored_rows(view.scan(FIRST, END))


OLDER: Final = {
    1: RowFormat1(),
    2: RowFormat2(),
    3: RowFormat(),
    # Its rows are those of format 5, in pages without check sums.
    4: RowFormat(has_other_pages=True),
}
"""The older formats by their numbers."""
