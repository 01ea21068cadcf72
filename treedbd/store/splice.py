"""Printing a spread container: its JSON spliced from the bytes of its rows.

Rows come in key order, and key order is the order of the print. So one scan over all rows below a
container is enough: a stack holds the containers that are open; each row first closes those that
it does not lie in, then opens those that lie between, then is a member of the innermost. Plain rows
are put in as they lie; nothing is parsed but marked rows and buckets. Only for a container whose
first key is an index is there anything to look up: whether it is an array (`children.is_array`).

Most rows are plain and have simple keys, and many of them are children of the same container. Such
runs are put in at once (`_print_run`), which takes a fraction of the time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import chain, islice, repeat
from operator import itemgetter
from typing import Final

import attrs

from treedbd.store.children import is_array
from treedbd.store.layout import below, end_of_key, name_of
from treedbd.store.row import (
    MARK,
    encode_row,
    export_row,
    is_crown,
    load_crown,
    load_row,
    print_row,
)
from treedbd.store.shelf import Shelf
from treedbd.tree.order import BEYOND, INT_TAG, TEXT_END, TEXT_TAG, encode_key
from treedbd.tree.path import PRIORITY
from treedbd.tree.printing import compact
from treedbd.tree.value import Priority, members

PIECE_BYTES: Final = 32_768
RUN_ROWS: Final = 64
SHORT_RUN: Final = 3
"""Fewer rows are sooner put in one by one."""
_TEXT: Final = bytes((TEXT_TAG,))
_MARK: Final = MARK[0]


@attrs.define
class _Open:
    """A container that has been begun and not ended."""

    key: bytes
    is_array: bool
    next_index: int = 0


class Splice:
    """One print of one spread container: plain, or in export form."""

    def __init__(self, shelf: Shelf, export: bool = False) -> None:
        self._shelf = shelf
        self._export = export
        self._render = export_row if export else print_row
        self._open: list[_Open] = []
        self._parts: list[bytes] = []
        self._joint = b""

    def pieces(self, container: bytes, priority: Priority | None) -> Iterator[bytes]:
        """Print what lies below an encoded path, in pieces of at most twice `PIECE_BYTES`.

        There must be something; `priority` is the container's own. Reads as it is driven.
        """
        self._begin(container, priority)
        parts = self._parts
        weight = 0
        rows = self._shelf.raw_scan(*below(container))
        while taken := list(islice(rows, RUN_ROWS)):
            keys, raws = zip(*taken, strict=True)
            at = 0
            while at < len(keys):
                end = bisect_left(keys, self._open[-1].key + BEYOND, at)
                if not self._print_run(keys[at:end], raws[at:end]):
                    end = max(end, at + 1)
                    for key, raw in taken[at:end]:
                        self._add(key, raw)
                at = end
            weight += len(keys[-1]) * len(keys) + sum(map(len, raws))
            if weight > PIECE_BYTES:
                yield from cut(b"".join(parts))
                parts.clear()
                weight = 0
        while self._open:
            self._end()
        yield from cut(b"".join(parts))

    def _print_run(self, keys: tuple[bytes, ...], raws: tuple[bytes, ...]) -> bool:
        """Print rows that lie in the open container if all are plain members of it, else not."""
        if len(keys) < SHORT_RUN or self._export or _MARK in bytes(map(itemgetter(0), raws)):
            return False
        container = self._open[-1]
        start = len(container.key)
        joined = b"".join([key[start:] for key in keys])
        if container.is_array:
            return self._print_items(container, joined, raws)
        return self._print_members(joined, raws)

    def _print_items(self, array: _Open, joined: bytes, raws: tuple[bytes, ...]) -> bool:
        """Print the next items of an array; `joined` are their encoded keys. False for others.

        No key is shorter than one index. So if they are as long together as so many indices, each
        is one; they are in order, so the first and the last tell whether any is missing.
        """
        end = array.next_index + len(raws)
        first, last = encode_key(str(array.next_index)), encode_key(str(end - 1))
        is_gapless = joined.startswith(first) and joined.endswith(last)
        if not is_gapless or len(joined) != len(raws) * len(first):
            return False
        array.next_index = end
        self._put(self._joint + b",".join(raws))
        return True

    def _print_members(self, joined: bytes, raws: tuple[bytes, ...]) -> bool:
        """Print members whose encoded keys are `joined`, if all are text that needs no escape.

        A tag or an end cannot stand inside of text. So if there are as many of both as keys, and
        each end is followed by a tag, each key is the text of one child.
        """
        if joined[0] != TEXT_TAG or not joined.endswith(TEXT_END):
            return False
        names = joined[1:-1].split(TEXT_END + _TEXT)
        is_flat = len(names) == joined.count(TEXT_END) == joined.count(_TEXT) == len(raws)
        if not is_flat or b'"' in joined or b"\\" in joined:
            return False
        pieces = chain.from_iterable(zip(repeat(b',"'), names, repeat(b'":'), raws))
        next(pieces)
        self._parts.append(self._joint + b'"')
        self._parts += pieces
        self._joint = b","
        return True

    def _add(self, key: bytes, raw: bytes) -> None:
        while not key.startswith(self._open[-1].key):
            self._end()
        start = len(self._open[-1].key)
        end = end_of_key(key, start)
        while 0 < end < len(key):
            self._name(name_of(key[start:end]))
            self._begin(key[:end], None, key[end])
            start, end = end, end_of_key(key, end)
        if not end:
            for name, child in members(load_row(raw)):
                self._name(name)
                self._put(self._render(encode_row(child)))
            return
        self._name(name_of(key[start:]))
        if is_crown(raw):
            self._begin(key, load_crown(raw))
        else:
            self._put(self._render(raw))

    def _begin(self, key: bytes, priority: Priority | None, first_tag: int = INT_TAG) -> None:
        """Begin a container; `first_tag` is that of its first child, if it is known."""
        array = first_tag == INT_TAG and not self._export and is_array(self._shelf, key)
        self._open.append(_Open(key, array))
        self._parts.append(b"[" if array else b"{")
        self._joint = b""
        if self._export and priority is not None:
            self._name(PRIORITY)
            self._put(compact(priority))

    def _end(self) -> None:
        self._put(b"]" if self._open.pop().is_array else b"}")

    def _name(self, name: str) -> None:
        """Print what stands before a member: a comma, and its name, or nulls for a gap."""
        container = self._open[-1]
        if container.is_array:
            index = int(name)
            self._parts.append(self._joint + b"null," * (index - container.next_index))
            container.next_index = index + 1
        else:
            self._parts.append(self._joint + compact(name) + b":")

    def _put(self, text: bytes) -> None:
        self._parts.append(text)
        self._joint = b","


def cut(text: bytes) -> Iterator[bytes]:
    """Cut a print into pieces of at most twice `PIECE_BYTES`."""
    if len(text) <= 2 * PIECE_BYTES:
        yield text
        return
    for at in range(0, len(text), PIECE_BYTES):
        yield text[at : at + PIECE_BYTES]
