"""How much a database holds: counted by its rows, and kept in the transaction of every write.

Theory of operation. Bytes are those of the rows of the tree: the JSON of each, with the key that it
is stored under; of a page, the JSON of its members and the key of their container. That is the JSON
of all data, with a path for each part of it, and does not depend on where a row begins in a file.
Nodes are strings, numbers and booleans; a priority is not a node. Both are sums over what is
stored, so a write is counted by what it puts and removes (`CountedRows`), however it came to do so.

One row holds the sums, and the number of the last write that they include. If that is not the last
write of the database, something else has written meanwhile that did not count: then all rows are
counted again. That is done in steps, in key order (`count_some`): what is stored before `position`
is counted and kept by the writes that come meanwhile, what is beyond is not counted yet.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from itertools import islice
from typing import Any, Final

import attrs
import orjson

from treedbd.limits import KIB, MIB
from treedbd.loop import pause
from treedbd.store.engine import DamagedRow, ReadView, Transaction, WrappedTransaction
from treedbd.store.indexes import USAGE_KEY
from treedbd.store.rows import END, FIRST, SUM_BYTES, Page, is_page, seal, unseal
from treedbd.tree.types import PRIORITY, Json
from treedbd.tree.value import compact

UNDO_BYTES: Final = 16 * MIB
"""Rows of removed ranges that are kept to undo a write; one that removes more has shrunk."""
_STEP_BYTES: Final = MIB
_PAUSE_BYTES: Final = 64 * KIB
_ROWS_AT_ONCE: Final = 256


@attrs.frozen
class Usage:
    """How much a database holds.

    `size` are its bytes; `nodes` is None if they are not counted. `sequence` is the number of the
    last write that is included. The rows from `position` on are not counted yet; None if all are.
    """

    size: int
    nodes: int | None
    sequence: int
    position: bytes | None = None

    @property
    def is_complete(self) -> bool:
        """Whether all is counted."""
        return self.position is None


def read_usage(view: ReadView, *, counts_nodes: bool) -> Usage:
    """Return how much a database holds; what is out of date counts as nothing."""
    stored, sequence = view.get(USAGE_KEY), view.sequence()
    usage = None if stored is None else _decode(stored)
    if usage is not None and usage.sequence == sequence:
        if not counts_nodes:
            return attrs.evolve(usage, nodes=None)
        if usage.nodes is not None:
            return usage
    is_empty = not sequence and next(view.scan_keys(FIRST, END), None) is None
    return Usage(0, 0 if counts_nodes else None, sequence, None if is_empty else FIRST)


def write_usage(transaction: Transaction, usage: Usage) -> None:
    """Record how much a database holds."""
    position = None if usage.position is None else usage.position.hex()
    json: Json = {
        "bytes": usage.size,
        "nodes": usage.nodes,
        "sequence": usage.sequence,
        "position": position,
    }
    transaction.put(USAGE_KEY, seal(USAGE_KEY, compact(json)))


def _decode(stored: bytes) -> Usage | None:
    try:
        json: Any = orjson.loads(unseal(USAGE_KEY, stored))
        position = None if json["position"] is None else bytes.fromhex(json["position"])
        return Usage(json["bytes"], json["nodes"], json["sequence"], position)
    except (DamagedRow, ValueError, LookupError, TypeError):
        return None  # then it is counted again


def count_some(transaction: Transaction, *, counts_nodes: bool) -> bool:
    """Count some rows that are not counted yet; return False if all are. It pauses."""
    usage = read_usage(transaction, counts_nodes=counts_nodes)
    if usage.position is None:
        return False
    total, nodes, seen, paused_at = usage.size, usage.nodes or 0, 0, 0
    position = None
    for key, stored in transaction.scan(usage.position, END):
        if seen >= _STEP_BYTES:
            position = key
            break
        size, count = weigh(key, stored, counts_nodes=counts_nodes)
        total, nodes, seen = total + size, nodes + count, seen + len(key) + len(stored)
        if seen - paused_at >= _PAUSE_BYTES:
            paused_at = seen
            pause()
    write_usage(
        transaction, Usage(total, nodes if counts_nodes else None, usage.sequence, position)
    )
    return True


def weigh(key: bytes, stored: bytes, *, counts_nodes: bool) -> tuple[int, int]:
    """Return the bytes and the nodes of what is stored at a key of the tree.

    Nodes are 0 without `counts_nodes`, and in what is damaged.
    """
    try:
        if is_page(key):
            page = Page(key, stored[SUM_BYTES:])
            body = page.body
            size, text = len(page.container) + len(body), b"{%b}" % body
        else:
            size = len(key) + len(stored) - SUM_BYTES
            if stored[SUM_BYTES : SUM_BYTES + 1] == b'"':  # which may be long
                return size, int(counts_nodes)
            text = stored[SUM_BYTES:]
        return size, _count_nodes(orjson.loads(text)) if counts_nodes else 0
    except (struct.error, ValueError):
        return len(key) + len(stored), 0


def _count_nodes(json: Any) -> int:
    if isinstance(json, dict):
        return sum(_count_nodes(each) for key, each in json.items() if key != PRIORITY)
    if isinstance(json, list):
        return sum(map(_count_nodes, json))
    return 0 if json is None else 1


def _count_changed(key: bytes, old: bytes, new: bytes) -> int | None:
    """Return by how many nodes a page has more than before, None if that cannot be found.

    Most writes change one of its members: what the others hold need not be counted.
    """
    try:
        before = Page(key, old[SUM_BYTES:]).raws()
        after = Page(key, new[SUM_BYTES:]).raws()
        while before and after and before[-1] == after[-1]:
            before.pop()
            after.pop()
        same = next(
            (at for at, pair in enumerate(zip(before, after, strict=False)) if pair[0] != pair[1]),
            min(len(before), len(after)),
        )
        gone, come = (sum(map(_count_row, each[same:])) for each in (before, after))
    except (struct.error, ValueError):
        return None
    return come - gone


def _count_row(raw: bytes) -> int:
    return _count_nodes(orjson.loads(raw))


class CountedRows(WrappedTransaction):
    """A `Transaction` in which one write is counted, and can be undone.

    Attributes:
        size, nodes: by how many bytes and nodes there is more than before.

    """

    def __init__(
        self,
        transaction: Transaction,
        position: bytes | None = None,
        *,
        counts_nodes: bool,
        keeps_undo: bool = True,
    ) -> None:
        """Count what is before `position`, None for all; without `keeps_undo` nothing is undone."""
        super().__init__(transaction)
        self.size = 0
        self.nodes = 0
        self._end = END if position is None else position
        self._counts_nodes = counts_nodes
        self._keeps_undo = keeps_undo
        self._undo: list[tuple[bytes, bytes | None]] | None = [] if keeps_undo else None
        self._removed = 0

    @property
    def has_shrunk(self) -> bool:
        """Whether more was removed than a write brings that is not large."""
        return self._keeps_undo and self._undo is None

    def undo(self) -> None:
        """Bring all rows back; without `keeps_undo` that is left to the end of the transaction."""
        changed, self._undo = self._undo or [], []
        for key, old in reversed(changed):
            if old is None:
                self._transaction.delete(key)
            else:
                self._transaction.put(key, old)
        self.size = self.nodes = 0

    def put(self, key: bytes, value: bytes) -> None:
        """Set the value of `key`."""
        self._note(key, self._transaction.get(key), value)
        self._transaction.put(key, value)

    def put_all(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Set the values of many keys."""
        rows = iter(rows)
        while some := list(islice(rows, _ROWS_AT_ONCE)):
            for key, value in some:
                self._note(key, self._transaction.get(key), value)
            self._transaction.put_all(some)

    def delete(self, key: bytes) -> None:
        """Remove `key` if it exists."""
        self._note(key, self._transaction.get(key), None)
        self._transaction.delete(key)

    def delete_range(self, low: bytes, high: bytes) -> None:
        """Remove every key with `low <= key < high`; it pauses."""
        seen = 0
        for key, old in self._transaction.scan(low, high):
            self._note(key, old, None)
            self._removed += len(old)
            if self._removed > UNDO_BYTES:
                self._undo = None
            seen += len(key) + len(old)
            if seen >= _PAUSE_BYTES:
                seen = 0
                pause()
        self._transaction.delete_range(low, high)

    def _note(self, key: bytes, old: bytes | None, new: bytes | None) -> None:
        if old == new:
            return
        if self._undo is not None:
            self._undo.append((key, old))
        if key >= self._end:
            return
        nodes_by_change = None
        if self._counts_nodes and old is not None and new is not None and is_page(key):
            nodes_by_change = _count_changed(key, old, new)
        counts_nodes = self._counts_nodes and nodes_by_change is None
        for stored, sign in ((old, -1), (new, 1)):
            if stored is not None:
                size, nodes = weigh(key, stored, counts_nodes=counts_nodes)
                self.size += sign * size
                self.nodes += sign * nodes
        self.nodes += nodes_by_change or 0
