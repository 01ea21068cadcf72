"""The children of a spread container, found by seeking from one to the next.

A child of a spread container has a row of its own, is a member of a bucket, or is spread itself
(see `nodes`). The iterations here visit each child once, in key order or backwards, and never read
the rows below a spread child.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from itertools import islice
from typing import Final, TypeAlias, TypeVar

from treedbd.store.engine import DamagedRow
from treedbd.store.rows import (
    ALL,
    PagedRows,
    Span,
    below,
    decode_key,
    end_of_key,
    is_priority_row,
    load_row,
)
from treedbd.tree.path import BEYOND, INT_BYTES, INT_TAG, are_indices
from treedbd.tree.types import Value
from treedbd.tree.value import members


class Spread:
    """The type of `SPREAD`: a child that is spread over the rows of its children."""


SPREAD: Final = Spread()
_KEYS_AT_ONCE: Final = 64

T = TypeVar("T")

ChildSource: TypeAlias = "bytes | Spread | Value"
"""What is known of a child: the bytes of its row, `SPREAD`, or its value in a bucket."""


def child_sources(
    rows: PagedRows, container: bytes, span: Span = ALL
) -> Iterator[tuple[str, ChildSource]]:
    """Iterate over the children of a node that no row covers; `container` is its encoded path."""
    start = len(container)
    low, high = span.bounds(container)
    while True:
        for key, raw in rows.scan(low, high, reverse=span.reverse):
            end = end_of_key(key, start)
            if not end:
                yield from _bucket_members(raw, span)
            elif end == len(key) and not is_priority_row(raw):
                yield decode_key(key[start:]), raw
            else:
                yield decode_key(key[start:end]), SPREAD
                low, high = (low, key[:end]) if span.reverse else (_after(key, end), high)
                break
        else:
            return


def child_keys(rows: PagedRows, container: bytes, span: Span = ALL) -> Iterator[str]:
    """Iterate over the keys of those children, reading no rows but buckets."""
    start = len(container)
    for key, end in _child_keys(rows, container, span):
        if end:
            yield decode_key(key[start:end])
        else:
            for name, _ in _bucket_members(rows.get(key) or b"{}", span):
                yield name


def find_array(rows: PagedRows, container: bytes) -> Generator[None, None, bool]:
    """Return in steps whether a spread container is printed as an array (`tree.value.as_array`).

    Reads the first key, which is text in most objects, and in them all others are too; then the
    last one; only if that is an index, the other keys.
    """
    start = len(container)
    end = start + INT_BYTES
    low, high = below(container)
    first = next(rows.scan_keys(low, high), None)
    if first is None or first[start] != INT_TAG:
        return False
    last = next(rows.scan_keys(low, high, reverse=True), None)
    if last is None or last[start] != INT_TAG:
        return False
    count = 0
    scan = rows.scan_keys(low, high)
    previous = b""
    while keys := list(islice(scan, _KEYS_AT_ONCE)):
        if min(map(len, keys)) < end:
            raise DamagedRow("The key of a row is incomplete.")
        indices = list(dict.fromkeys([key[start:end] for key in keys]))
        if not are_indices(indices):
            return False
        count += len(indices) - (indices[0] == previous)
        previous = indices[-1]
        if len(keys[-1]) > end:  # of a spread child, whose other rows are not read
            scan = rows.scan_keys(_after(keys[-1], end), high)
        yield
    return int(decode_key(last[start:end])) < 2 * count


def empty_chunks(steps: Generator[None, None, T]) -> Generator[bytes, None, T]:
    """Take steps within what is printed: each is an empty chunk. Return their result."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: T = stop.value
            return result
        yield b""


def _child_keys(rows: PagedRows, container: bytes, span: Span) -> Iterator[tuple[bytes, int]]:
    """Iterate over one row key for each child or bucket, with the end of the child's key in it.

    The end is 0 for a bucket.
    """
    start = len(container)
    low, high = span.bounds(container)
    seen = b""
    while True:
        for key in rows.scan_keys(low, high, reverse=span.reverse):
            end = end_of_key(key, start)
            # The priority row of a spread child comes directly before the rows below it.
            if key[:end] != seen or not end:
                yield key, end
            if end < len(key) and end:
                low, high = (low, key[:end]) if span.reverse else (_after(key, end), high)
                break
            seen = key
        else:
            return


def _after(key: bytes, end: int) -> bytes:
    """Return the least key after those below the child that `key[:end]` is of, and after `key`.

    A key that no path has may be beyond the child: such a row is damaged, and must not be found
    again and again.
    """
    return max(key[:end] + BEYOND, key + b"\0")


def _bucket_members(raw: bytes, span: Span) -> list[tuple[str, Value]]:
    found = [member for member in members(load_row(raw)) if span.holds(member[0])]
    return found[::-1] if span.reverse else found
