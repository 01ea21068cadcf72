"""Prints a spread container: its JSON is put together from the bytes of its rows.

Rows come in key order, and key order is the order of the output. So one scan over all rows below a
container is enough: a stack holds the containers that are open; for each row, those that it is not
in are closed, those in between are opened, and the row becomes a member of the innermost. A page is
printed at once, since its body is the members as they are printed; plain rows are copied as they
are; only marked rows and buckets are parsed. Only a container whose first key is an index needs a
lookup: whether it is an array (`children.find_array`). Its steps are empty chunks.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TypeAlias

import attrs

from treedbd.store.children import empty_chunks, find_array
from treedbd.store.rows import (
    CHUNK_BYTES,
    Page,
    PagedRows,
    below,
    cut_into_chunks,
    decode_key,
    encode_row,
    end_of_key,
    export_row,
    is_page,
    is_priority_row,
    load_priority_row,
    load_row,
    print_key,
    print_row,
)
from treedbd.tree.path import INT_TAG
from treedbd.tree.types import PRIORITY, Priority
from treedbd.tree.value import compact, members

_EmptyChunks: TypeAlias = Generator[bytes, None, None]


@attrs.define
class _Open:
    """A container whose members are being printed."""

    key: bytes
    is_array: bool
    next_index: int = 0


class Serialiser:
    """Prints one spread container, once: plain, or in export form."""

    def __init__(self, rows: PagedRows, export: bool = False) -> None:
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
        yield from self._begin(container, priority)
        parts = self._parts
        size = 0
        for key, content in self._rows.scan_stored(*below(container)):
            if is_page(key):
                yield from self._add_page(key, Page(key, content))
            else:
                yield from self._add(key, content)
            size += len(key) + len(content)
            if size > CHUNK_BYTES:
                yield from cut_into_chunks(b"".join(parts))
                parts.clear()
                size = 0
        while self._open:
            self._end()
        yield from cut_into_chunks(b"".join(parts))

    def _add_page(self, key: bytes, page: Page) -> _EmptyChunks:
        start, stop = self._close(key), len(page.container)
        while start < stop:
            end = end_of_key(key, start)
            yield from self._descend(key, start, end)
            start = end
        container = self._open[-1]
        if page.is_marked or (self._export and b"[" in page.body):
            for segment, raw in zip(page.member_keys(), page.raws(), strict=True):
                self._name_child(segment)
                self._put(self._render(raw))
            yield b""  # each was parsed and printed
        elif container.is_array:
            self._add_items(container, page)
        else:
            self._put(self._separator + page.body)

    def _add_items(self, array: _Open, page: Page) -> None:
        """Print the items of a page of an array; nulls are where any are missing."""
        keys, raws = page.member_keys(), page.raws()
        first, last = int(decode_key(keys[0])), int(decode_key(keys[-1]))
        if first == array.next_index and last - first == len(keys) - 1:
            self._put(self._separator + b",".join(raws))
            array.next_index = last + 1
            return
        for key, raw in zip(keys, raws, strict=True):
            self._name_child(key)
            self._put(raw)

    def _add(self, key: bytes, raw: bytes) -> _EmptyChunks:
        start = self._close(key)
        end = end_of_key(key, start)
        while 0 < end < len(key):
            yield from self._descend(key, start, end)
            start, end = end, end_of_key(key, end)
        if not end:
            for name, child in members(load_row(raw)):
                self._name(name)
                self._put(self._render(encode_row(child)))
            return
        self._name_child(key[start:])
        if is_priority_row(raw):
            yield from self._begin(key, load_priority_row(raw))
        else:
            self._put(self._render(raw))

    def _close(self, key: bytes) -> int:
        """Close the containers that a row is not in; return the length of the innermost's key."""
        while not key.startswith(self._open[-1].key):
            self._end()
        return len(self._open[-1].key)

    def _descend(self, key: bytes, start: int, end: int) -> _EmptyChunks:
        """Open the container at `key[:end]`, a child of the open one, for a row below it."""
        self._name_child(key[start:end])
        yield from self._begin(key[:end], None, key[end])

    def _begin(
        self, key: bytes, priority: Priority | None, first_tag: int = INT_TAG
    ) -> _EmptyChunks:
        """Open a container; `first_tag` is that of its first child, if it is known."""
        array = False
        if first_tag == INT_TAG and not self._export:
            array = yield from empty_chunks(find_array(self._rows, key))
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

    def _name_child(self, segment: bytes) -> None:
        """Print what comes before a member with an encoded key."""
        if self._open[-1].is_array:
            self._name(decode_key(segment))
        else:
            self._parts.append(b"%b%b:" % (self._separator, print_key(segment)))

    def _put(self, text: bytes) -> None:
        self._parts.append(text)
        self._separator = b","
