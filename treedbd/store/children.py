"""The children of a spread container, found by seeking from one to the next.

A child of a spread container lies in a row of its own, is a member of a bucket, or is spread itself
(see `nodes`). The walks here see each child once, in key order or backwards, and never read the
rows below a spread child. They know rows and keys; what is printed or built of them is for others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypeAlias

from treedbd.store.layout import ALL, Span, below, end_of_key, name_of
from treedbd.store.row import is_crown, load_row
from treedbd.store.shelf import Shelf
from treedbd.tree.order import BEYOND, INT_TAG
from treedbd.tree.value import Value, members


class Spread:
    """The type of `SPREAD`: stands for a child whose own children have rows."""


SPREAD: Final = Spread()

Source: TypeAlias = bytes | Spread | Value
"""Where a child comes from: the bytes of its row, `SPREAD`, or its value out of a bucket."""


def child_sources(shelf: Shelf, container: bytes, span: Span = ALL) -> Iterator[tuple[str, Source]]:
    """Iterate over the children of an encoded path that has no row of its own but a crown."""
    start = len(container)
    low, high = span.bounds(container)
    while True:
        for key, raw in shelf.raw_scan(low, high, reverse=span.reverse):
            end = end_of_key(key, start)
            if not end:
                yield from _bucket_members(raw, span)
            elif end == len(key) and not is_crown(raw):
                yield name_of(key[start:]), raw
            else:
                yield name_of(key[start:end]), SPREAD
                low, high = _past(key[:end], low, high, span)
                break
        else:
            return


def child_names(shelf: Shelf, container: bytes, span: Span = ALL) -> Iterator[str]:
    """Iterate over the keys of the same children without reading their rows."""
    start = len(container)
    for key, end in _child_keys(shelf, container, span):
        if end:
            yield name_of(key[start:end])
        else:
            for name, _ in _bucket_members(shelf.raw_get(key) or b"{}", span):
                yield name


def is_array(shelf: Shelf, container: bytes) -> bool:
    """Tell whether a spread container is printed as an array (see `tree.value.as_array`).

    Looks at the first and the last key; the keys are counted only where both are indices.
    """
    start = len(container)
    low, high = below(container)
    first = next(shelf.raw_keys(low, high), None)
    last = next(shelf.raw_keys(low, high, reverse=True), None)
    if first is None or last is None or last[start] != INT_TAG:
        return False
    if int(name_of(first[start:])) < 0:
        return False
    greatest = int(name_of(last[start:]))
    return any(
        greatest < 2 * count for count, _ in enumerate(_child_keys(shelf, container, ALL), 1)
    )


def _child_keys(shelf: Shelf, container: bytes, span: Span) -> Iterator[tuple[bytes, int]]:
    """Iterate over one row key for each child or bucket, and the end of the child's own key in it.

    The end is 0 for a bucket.
    """
    start = len(container)
    low, high = span.bounds(container)
    seen = b""
    while True:
        for key in shelf.raw_keys(low, high, reverse=span.reverse):
            end = end_of_key(key, start)
            if key[:end] != seen or not end:
                yield key, end
            if end < len(key) and end:
                low, high = _past(key[:end], low, high, span)
                break
            seen = key
        else:
            return


def _past(child: bytes, low: bytes, high: bytes, span: Span) -> tuple[bytes, bytes]:
    return (low, child) if span.reverse else (child + BEYOND, high)


def _bucket_members(raw: bytes, span: Span) -> list[tuple[str, Value]]:
    found = [member for member in members(load_row(raw)) if span.holds(member[0])]
    return found[::-1] if span.reverse else found
