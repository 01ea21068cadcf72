"""Prints a spread container: its JSON is put together from the bytes of its rows.

Rows come in key order, and key order is the order of the output. So one scan over all rows below a
container is enough: a stack holds the containers that are open; for each row, those that it is not
in are closed, those in between are opened, and the row becomes a member of the innermost. Plain
rows are copied as they are; only marked rows and buckets are parsed. Only a container whose first
key is an index needs a lookup: whether it is an array (`children.is_array`).

Most rows are plain and have simple keys, and many of them are children of the same container. Such
runs are printed at once (`_print_run`), which takes a fraction of the time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import chain, islice, repeat
from operator import itemgetter
from typing import Final

import attrs

from treedbd.store.children import is_array
from treedbd.store.engine import ReadView
from treedbd.store.row_codec import (
    MARK,
    encode_row,
    export_row,
    is_priority_row,
    load_priority_row,
    load_row,
    print_row,
)
from treedbd.store.row_keys import below, decode_key, end_of_key
from treedbd.tree.order import BEYOND, INT_TAG, TEXT_END, TEXT_TAG, encode_key
from treedbd.tree.printing import compact
from treedbd.tree.types import PRIORITY, Priority
from treedbd.tree.value import members

CHUNK_BYTES: Final = 32_768
RUN_ROWS: Final = 64
SHORT_RUN: Final = 3
"""Fewer rows are faster one by one."""
_TEXT: Final = bytes((TEXT_TAG,))
_MARK: Final = MARK[0]


@attrs.define
class _Open:
    """A container whose members are being printed."""

    key: bytes
    is_array: bool
    next_index: int = 0


class Serialiser:
    """Prints one spread container, once: plain, or in export form."""

    def __init__(self, rows: ReadView, export: bool = False) -> None:
        self._rows = rows
        self._export = export
        self._render = export_row if export else print_row
        self._open: list[_Open] = []
        self._parts: list[bytes] = []
        self._separator = b""

    def chunks(self, container: bytes, priority: Priority | None) -> Iterator[bytes]:
        """Print what is below an encoded path, in chunks of at most twice `CHUNK_BYTES`.

        There must be something; `priority` is the container's own. Reads rows as it is consumed.
        """
        self._begin(container, priority)
        parts = self._parts
        size = 0
        rows = self._rows.scan(*below(container))
        while batch := list(islice(rows, RUN_ROWS)):
            keys, raws = zip(*batch, strict=True)
            at = 0
            while at < len(keys):
                end = bisect_left(keys, self._open[-1].key + BEYOND, at)
                if not self._print_run(keys[at:end], raws[at:end]):
                    end = max(end, at + 1)
                    for key, raw in batch[at:end]:
                        self._add(key, raw)
                at = end
            size += len(keys[-1]) * len(keys) + sum(map(len, raws))
            if size > CHUNK_BYTES:
                yield from cut_into_chunks(b"".join(parts))
                parts.clear()
                size = 0
        while self._open:
            self._end()
        yield from cut_into_chunks(b"".join(parts))

    def _print_run(self, keys: tuple[bytes, ...], raws: tuple[bytes, ...]) -> bool:
        """Print rows if all are plain members of the open container; return whether they are."""
        if len(keys) < SHORT_RUN or self._export or _MARK in bytes(map(itemgetter(0), raws)):
            return False
        container = self._open[-1]
        start = len(container.key)
        joined = b"".join([key[start:] for key in keys])
        if container.is_array:
            return self._print_items(container, joined, raws)
        return self._print_members(joined, raws)

    def _print_items(self, array: _Open, joined: bytes, raws: tuple[bytes, ...]) -> bool:
        """Print rows if they are the next items of an array; return whether they are.

        `joined` are their encoded keys. No key is shorter than an index. So if the keys are as long
        together as that many indices, each is one; they are in order, so the first and the last
        show whether any is missing.
        """
        end = array.next_index + len(raws)
        first, last = encode_key(str(array.next_index)), encode_key(str(end - 1))
        is_gapless = joined.startswith(first) and joined.endswith(last)
        if not is_gapless or len(joined) != len(raws) * len(first):
            return False
        array.next_index = end
        self._put(self._separator + b",".join(raws))
        return True

    def _print_members(self, joined: bytes, raws: tuple[bytes, ...]) -> bool:
        """Print rows if their keys are text that needs no escape; return whether they are.

        `joined` are their encoded keys. Text cannot contain a tag or an end. So if there are as
        many of both as keys, and each end is followed by a tag, each key is the text of one child.
        """
        if joined[0] != TEXT_TAG or not joined.endswith(TEXT_END):
            return False
        names = joined[1:-1].split(TEXT_END + _TEXT)
        is_flat = len(names) == joined.count(TEXT_END) == joined.count(_TEXT) == len(raws)
        if not is_flat or b'"' in joined or b"\\" in joined:
            return False
        parts = chain.from_iterable(zip(repeat(b',"'), names, repeat(b'":'), raws))
        next(parts)  # the first comma, in place of which the separator is printed
        self._parts.append(self._separator + b'"')
        self._parts += parts
        self._separator = b","
        return True

    def _add(self, key: bytes, raw: bytes) -> None:
        while not key.startswith(self._open[-1].key):
            self._end()
        start = len(self._open[-1].key)
        end = end_of_key(key, start)
        while 0 < end < len(key):
            self._name(decode_key(key[start:end]))
            self._begin(key[:end], None, key[end])
            start, end = end, end_of_key(key, end)
        if not end:
            for name, child in members(load_row(raw)):
                self._name(name)
                self._put(self._render(encode_row(child)))
            return
        self._name(decode_key(key[start:]))
        if is_priority_row(raw):
            self._begin(key, load_priority_row(raw))
        else:
            self._put(self._render(raw))

    def _begin(self, key: bytes, priority: Priority | None, first_tag: int = INT_TAG) -> None:
        """Open a container; `first_tag` is that of its first child, if it is known."""
        array = first_tag == INT_TAG and not self._export and is_array(self._rows, key)
        self._open.append(_Open(key, array))
        self._parts.append(b"[" if array else b"{")
        self._separator = b""
        if self._export and priority is not None:
            self._name(PRIORITY)
            self._put(compact(priority))

    def _end(self) -> None:
        self._put(b"]" if self._open.pop().is_array else b"}")

    def _name(self, name: str) -> None:
        """Print what comes before a member: a comma and its name, or nulls for a gap."""
        container = self._open[-1]
        if container.is_array:
            index = int(name)
            self._parts.append(self._separator + b"null," * (index - container.next_index))
            container.next_index = index + 1
        else:
            self._parts.append(self._separator + compact(name) + b":")

    def _put(self, text: bytes) -> None:
        self._parts.append(text)
        self._separator = b","


def cut_into_chunks(text: bytes) -> Iterator[bytes]:
    """Cut text into chunks of at most twice `CHUNK_BYTES`."""
    if len(text) <= 2 * CHUNK_BYTES:
        yield text
        return
    for at in range(0, len(text), CHUNK_BYTES):
        yield text[at : at + CHUNK_BYTES]
