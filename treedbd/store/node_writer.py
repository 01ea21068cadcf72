"""Changing the tree on the shelf.

Theory of operation (`nodes` tells how the tree lies in rows)
---------------------------------------------------------------
A change of a node that a row covers is made in memory, by `tree.edit`, on the value of that row,
which is put back, or split where it has become longer than `row_bytes`: then the container is
spread, its children get rows by the same rule, and so on down.

A change of a node that no row covers, because it is spread or absent, first removes the rows that
are the node. A new value then becomes a row (or rows) directly below the deepest container on the
way that is spread: the row of the child through which the way leads on, with the value at the end
of nested containers. That container is found from the two rows beside the node's key: whatever is
spread above the node has one of them below it, or is left with its crown alone and gets a child
again. An empty tree becomes one row at the root.

Where rows have been removed, the containers above are looked at, upwards: one without rows below it
is gone, with its crown; one with few rows (at most `GATHER_ROWS`) that together are short is
gathered into one row of its own. Short means half of `row_bytes`, so that a container whose size
moves to and fro around the limit is not split and gathered at every write; few, so that a look
costs no more than reading a handful of keys. A container that became short through changes inside
its rows is gathered when next a row below it is removed, or never; that is as good for readers.

The cost of a change follows its own size and that of the row it touches, never that of the tree.
Many changes in one call must not multiply what they have in common; three things see to that:

- A row is *taken*: changed as a draft of its value, and put back when a change falls elsewhere, or
  might make it too long.
- Where a child has been inserted, the *gap* behind it is remembered: up to the next row there is
  nothing, so whoever inserts there next need not look.
- Where a row was removed, how many rows its container has *left* at least is remembered.

Each holds for changes that come in the order of their paths, in which a PATCH brings them, and is
forgotten when anything else is changed. The rows of a PATCH become what they would become change by
change. The writer neither commits nor rolls back: it only changes the transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, zip_longest
from typing import Final, NamedTuple

from treedbd.store.layout import END, FIRST, KEY_BYTES, SPREAD_BYTES, below, shared_keys
from treedbd.store.mapping import Transaction
from treedbd.store.nodes import Cover, Nodes
from treedbd.store.row import encode_crown, encode_row, is_surely_longer, load_row
from treedbd.store.shelf import Shelf
from treedbd.store.taken import Taken
from treedbd.tree.edit import Change, set_priority, set_value
from treedbd.tree.order import BEYOND, encode_key, encode_path
from treedbd.tree.path import Path
from treedbd.tree.printing import compact
from treedbd.tree.value import CONTAINER, Priority, Value, leaf_of, members, priority_of

ROW_BYTES: Final = 4096
GATHER_ROWS: Final = 8
_MOST_COUNTED: Final = 1024


class _Gap(NamedTuple):
    """Below `high` there is no row from `low` on, which begins with the key of the node before."""

    low: bytes
    high: bytes | None

    def holds(self, encoded: bytes) -> bool:
        """Tell whether nothing is at an encoded path, and that because of this."""
        if self.high is None:
            return self.low <= encoded
        return self.low <= encoded < self.high and not self.high.startswith(encoded)


class _Left(NamedTuple):
    """A spread container, how many rows it has below it at least, and how many were looked at."""

    container: bytes
    rows: int
    counted: int


class NodeWriter(Nodes):
    """The tree in a transaction; reads see what has been applied."""

    def __init__(self, transaction: Transaction, row_bytes: int = ROW_BYTES) -> None:
        """`row_bytes` is how long the row of a container may be before it is spread."""
        super().__init__(transaction)
        self.shelf = Shelf.writing(transaction)
        self._row_bytes = row_bytes
        self._ahead: Path | None = None
        self._taken: Taken | None = None
        self._gap: _Gap | None = None
        self._left: _Left | None = None

    def apply(self, changes: Sequence[Change]) -> None:
        """Make the changes one after the other, as `tree.edit.apply` does."""
        paths = [change.place.path for change in changes]
        for change, self._ahead in zip_longest(changes, paths[1:]):
            path, of_priority = change.place
            if self._taken is not None:
                inside = self._taken.inside(path)
                if inside is not None and self._taken.change(inside, change.value, of_priority):
                    continue
                self._put_back()
            self._change(path, change.value, of_priority)
        self._put_back()
        self._gap = self._left = None

    def _change(self, path: Path, value: Value, of_priority: bool) -> None:
        gap, left = self._gap, self._left
        self._gap = self._left = None
        if of_priority:
            self._set_priority(path, value)
        elif value is None:
            self._left = left
            self._remove(path)
        else:
            self._set_value(path, value, gap)

    def _remove(self, path: Path) -> None:
        encoded, cover = self._find(path)
        if cover is not None:
            self._set_inside(path, cover, None)
        elif self._is_spread(encoded):
            self._left = None
            self._remove_below(encoded)
            self._settle(path)

    def _set_value(self, path: Path, value: Value, gap: _Gap | None) -> None:
        if gap is not None:
            encoded = encode_path(path)
            if gap.holds(encoded):
                self._insert(path, value, gap.low, gap.high)
                return
        encoded, cover = self._find(path)
        if cover is not None:
            self._set_inside(path, cover, value)
            return
        was_spread = self._is_spread(encoded)
        if was_spread:
            self._remove_below(encoded)
        before = self.shelf.raw_floor(encoded)
        after = next(self.shelf.raw_keys(encoded, END), None)
        self._insert(path, value, before and before[0], after)
        if was_spread:
            self._gap = None
            self._settle(path)

    def _set_inside(self, path: Path, cover: Cover, value: Value) -> None:
        """Set a node in the row that covers it."""
        if not cover.inside:
            self._replace(path, cover, value)
        elif not self._take(path, cover, value, of_priority=False):
            self._replace(path, cover, set_value(load_row(cover.raw), cover.inside, value))

    def _set_priority(self, path: Path, priority: Priority | None) -> None:
        encoded, cover = self._find(path)
        if cover is None:
            if self._is_spread(encoded):
                self._put_crown(encoded, priority)
        elif not self._take(path, cover, priority, of_priority=True):
            self._replace(path, cover, set_priority(load_row(cover.raw), cover.inside, priority))

    def _take(self, path: Path, cover: Cover, value: Value, *, of_priority: bool) -> bool:
        """Take a row to make a change in it if another may follow; tell whether it was made."""
        depth = len(path) - len(cover.inside)
        if self._ahead is None or self._ahead[:depth] != path[:depth]:
            return False
        is_never_split = cover.is_bucket or len(cover.key) > SPREAD_BYTES
        taken = Taken.take(path, cover, None if is_never_split else self._row_bytes)
        if taken is None or not taken.change(cover.inside, value, of_priority):
            return False
        self._taken = taken
        return True

    def _put_back(self) -> None:
        taken, self._taken = self._taken, None
        if taken is not None:
            self._replace(taken.path, taken.cover, taken.finish())

    def _replace(self, path: Path, cover: Cover, value: Value) -> None:
        """Put another value into the row that covers `path`."""
        key, _, inside, is_bucket = cover
        if value is None:
            self.shelf.raw_delete(key)
            depth = len(path) - len(inside)
            self._settle(path[: depth + 1] if is_bucket else path[:depth])
        elif is_bucket:
            self.shelf.raw_put(key, encode_row(value))
        else:
            self._store(key, value)

    def _insert(self, path: Path, value: Value, before: bytes | None, after: bytes | None) -> None:
        """Put a value where nothing is and no row covers, between the rows that are beside it."""
        if before is None and after is None:
            self._store(FIRST, _nest(path, value))
            return
        depth = max(
            0 if before is None else shared_keys(path, before),
            0 if after is None else shared_keys(path, after),
        )
        container = encode_path(path[:depth])
        self._add_children(container, [(path[depth], _nest(path[depth + 1 :], value))])
        child = container + encode_key(path[depth])
        if len(child) <= KEY_BYTES:
            self._gap = _Gap(child + BEYOND, after)

    def _store(self, key: bytes, value: Value) -> None:
        """Make `value` the node of an encoded path that has no rows below it."""
        raw = self._row_of(key, value)
        if raw is None:
            self._spread(key, value)
        else:
            self.shelf.raw_put(key, raw)

    def _spread(self, key: bytes, value: Value) -> None:
        self._put_crown(key, priority_of(value))
        self._add_children(key, members(value))

    def _add_children(self, container: bytes, children: Iterable[tuple[str, Value]]) -> None:
        """Give rows to children of a spread container for which there are none."""
        self.shelf.raw_put_all(self._rows_of(container, children))

    def _rows_of(
        self, container: bytes, children: Iterable[tuple[str, Value]]
    ) -> Iterator[tuple[bytes, bytes]]:
        """Make the rows of children of a spread container."""
        buckets: dict[bytes, dict[str, Value]] = {}
        for name, child in children:
            key = container + encode_key(name)
            if len(key) > KEY_BYTES:
                buckets.setdefault(key[:KEY_BYTES], {})[name] = child
            elif type(child) is not dict:
                yield key, compact(child)
            elif (raw := self._row_of(key, child)) is not None:
                yield key, raw
            else:
                if (priority := priority_of(child)) is not None:
                    yield key, encode_crown(priority)
                yield from self._rows_of(key, members(child))
        for key, bucket in buckets.items():
            yield key, encode_row(bucket)

    def _row_of(self, key: bytes, value: Value) -> bytes | None:
        """Return the row of a node at an encoded path, None if it is to be spread."""
        may_spread = leaf_of(value) is CONTAINER and len(key) <= SPREAD_BYTES
        if may_spread and is_surely_longer(value, self._row_bytes):
            return None
        raw = encode_row(value)
        return None if may_spread and len(raw) > self._row_bytes else raw

    def _put_crown(self, key: bytes, priority: Priority | None) -> None:
        if priority is None:
            self.shelf.raw_delete(key)
        else:
            self.shelf.raw_put(key, encode_crown(priority))

    def _remove_below(self, key: bytes) -> None:
        self.shelf.raw_delete(key)
        self.shelf.raw_delete_range(*below(key))

    def _settle(self, path: Path) -> None:
        """Look at the containers above `path` after rows at or below it were removed."""
        for depth in reversed(range(len(path))):
            key = encode_path(path[:depth])
            left = self._count_left(key)
            if left > GATHER_ROWS or (left and not self._gather(key)):
                return
            if not left and self._crown(key) is not None:
                self.shelf.raw_delete(key)

    def _count_left(self, container: bytes) -> int:
        """Return how many rows a container has left, more than `GATHER_ROWS` only at least.

        If it is the one that was asked for last, one row has been removed since, and no other.
        """
        rows, most = 0, GATHER_ROWS + 1
        if self._left is not None and self._left.container == container:
            rows, most = self._left.rows - 1, self._left.counted
            if rows <= GATHER_ROWS:
                rows, most = 0, min(2 * most, _MOST_COUNTED)
        if not rows:
            rows = sum(1 for _ in islice(self.shelf.raw_keys(*below(container)), most))
        self._left = _Left(container, rows, most) if rows > GATHER_ROWS else None
        return rows

    def _gather(self, key: bytes) -> bool:
        """Make one row of a spread container that is short; tell whether it is."""
        limit = self._row_bytes // 2
        size = 0
        for _, raw in self.shelf.raw_scan(*below(key)):
            size += len(raw)
            if size > limit:
                return False
        raw = encode_row(self._assemble(key))
        if len(raw) > limit:
            return False
        self._remove_below(key)
        self.shelf.raw_put(key, raw)
        return True


def _nest(path: Path, value: Value) -> Value:
    """Return the containers that lead to `value` along a path."""
    for key in reversed(path):
        value = {key: value}
    return value
