"""Printing a spread container: its JSON spliced from the bytes of its rows.

Rows come in key order, and key order is the order of the print. So one scan over all rows below a
container is enough: a stack holds the containers that are open; each row first closes those that
it does not lie in, then opens those that lie between, then is a member of the innermost. Plain rows
are put in as they lie; nothing is parsed but marked rows and buckets. Only for a container whose
first key is an index is there anything to look up: whether it is an array (`children.is_array`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
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
from treedbd.tree.order import INT_TAG
from treedbd.tree.path import PRIORITY
from treedbd.tree.printing import compact
from treedbd.tree.value import Priority, members

PIECE_BYTES: Final = 32_768
_SIMPLE_CHILD: Final = re.compile(rb'\x03([^\x00"\\]+)\x00')
"""The encoded key of a child that is text and is printed without an escape."""
_MARK: Final = MARK[0]
_NONE: Final = b"\xff"
"""No row's key begins so."""


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
        Most rows are plain, have simple keys and follow another child of the same container: for
        them the loop has a way of its own.
        """
        self._begin(container, priority)
        parts, export, render = self._parts, self._export, self._render
        simple_child = _SIMPLE_CHILD.fullmatch
        present, start, weight = _NONE, 0, 0
        for key, raw in self._shelf.raw_scan(*below(container)):
            child = simple_child(key, start)
            if child and raw[0] != _MARK and key.startswith(present):
                parts.append(b',"%b":%b' % (child[1], render(raw) if export else raw))
            else:
                self._add(key, raw)
                present = self._open[-1].key if self._joint else _NONE
                start = len(present)
            weight += len(key) + len(raw)
            if weight > PIECE_BYTES:
                yield from cut(b"".join(parts))
                parts.clear()
                weight = 0
        while self._open:
            self._end()
        yield from cut(b"".join(parts))

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
