"""The tree changed in a transaction: which rows a write puts, splits, merges and removes.

Theory of operation (`nodes` says how the tree is stored in rows)
-----------------------------------------------------------------
A change of a node that a row covers is made in memory, as `tree.edit` defines it, on the value of
that row. The row is written back, or split if it has become longer than `row_bytes`: then the
container is spread, its children get rows by the same rule, and so on down.

A change of a node that no row covers, because it is spread or absent, first removes the rows of the
node. A new value is then stored below its deepest spread ancestor: in the row of that ancestor's
child, wrapped in the containers that are missing in between. The ancestor is found from the two
rows next to the node's key: a spread ancestor has one of them below it, or has only its priority
row left and receives a child again. An empty tree becomes one row at the root.

Where rows have been removed, the containers above are checked, upwards: one without rows below it
is removed with its priority row; one with few rows (at most `MERGE_ROWS`) that are short together
is merged into one row of its own. Short means half of `row_bytes`, so that a container whose size
varies around the limit is not split and merged at every write; few, so that a check costs at
most the reading of some keys. A container that became short through changes inside its rows is
merged when a row below it is removed, or never; for readers it makes no difference.

The cost of a change depends on its own size and on that of the row it touches, never on that of the
tree. Many changes in one call must not multiply what they share; three things prevent that:

- A row that several changes touch is changed in a `RowEditor`, and written back when a change falls
  outside it or might make it too long.
- After a child has been inserted, the empty key range that follows it is remembered
  (`EmptyRange`), so the next insertion there needs no lookup.
- After a row has been removed, a lower bound of the rows that its container has left is remembered
  (`RowCount`).

Each works for changes in the order of their paths, which is that of a PATCH, and is dropped when
anything else is changed. The rows after a PATCH are those that its changes would leave one by
one. The writer neither commits nor rolls back: it only changes the transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from treedbd.limits import MAX_WHOLE_BYTES, MAX_WHOLE_NODES, MIN_WHOLE_BYTES
from treedbd.loop import pause, paused
from treedbd.store.engine import DamagedRow, Transaction
from treedbd.store.nodes import Nodes
from treedbd.store.pages import LONG_ROW_BYTES, PAGE_BYTES, PageWriter, PlacedRow
from treedbd.store.rows import (
    END,
    FIRST,
    ROW_KEY_BYTES,
    SPREAD_BYTES,
    Cover,
    RowEditor,
    below,
    count_keys,
    encode_priority_row,
    encode_row,
    end_of_key,
    is_plain_string,
    is_surely_longer,
    load_row,
    shared_keys,
)
from treedbd.tree.edit import has_more_nodes, set_priority, set_value
from treedbd.tree.path import BEYOND, MAX_CHARACTER_BYTES, encode_key, encode_path
from treedbd.tree.types import VALUE, Change, InvalidData, Path, Place, Priority, Value
from treedbd.tree.value import as_priority, compact, members, nest, priority_of

if TYPE_CHECKING:
    from treedbd.store.indexes import IndexWriter

ROW_BYTES: Final = 4096
MERGE_ROWS: Final = 8
_MAX_COUNTED: Final = 1024


class EmptyRange(NamedTuple):
    """A range without rows, from `low` to `high`; `low` is just after the subtree of a node."""

    low: bytes
    high: bytes | None

    def holds(self, encoded: bytes) -> bool:
        """Return whether an encoded path is in the range, so that nothing is there."""
        if self.high is None:
            return self.low <= encoded
        return self.low <= encoded < self.high and not self.high.startswith(encoded)


class RowCount(NamedTuple):
    """A lower bound of the rows below a spread container, found by reading `counted` keys."""

    container: bytes
    rows: int
    counted: int


class NodeWriter(Nodes):
    """The tree in a transaction; reads see what has been applied.

    `indexes` keeps the indexes (`IndexWriter`), None if there are none. With `checks_room` each
    change is checked (`check_room`): of one that is refused, those before it are applied. `flush`
    stores what `change` has kept in memory.
    `printable` are the bytes that may be printed to find which containers are short. That is the
    fastest way, but what is longer is printed in vain, in one step: so what is written meanwhile
    must not be long, and have no long string.
    """

    def __init__(
        self, transaction: Transaction, row_bytes: int = ROW_BYTES, page_bytes: int = PAGE_BYTES
    ) -> None:
        """Write into `transaction`; spread containers whose row would exceed `row_bytes`.

        Short rows of siblings share pages of at most `page_bytes`.
        """
        self._transaction = PageWriter(transaction, page_bytes)
        self.flush: Final = self._transaction.flush
        super().__init__(self._transaction)
        self._row_bytes = row_bytes
        self.indexes: IndexWriter | None = None
        self._editor: RowEditor | None = None
        self._empty: EmptyRange | None = None
        self._count: RowCount | None = None
        self.checks_room = False
        self.printable = 0

    def check_room(self, paths: Iterable[Path]) -> None:
        """Raise `InvalidData` if values are to be set in a row that must no longer grow.

        Most rows are spread when they grow; one cannot be if its key, or those below it, are too
        long (see `nodes`), and each change of it takes as long as it is.
        """
        checked: Path = ()
        for path in paths:
            is_short = MAX_CHARACTER_BYTES * len("".join(path)) + 2 * len(path) <= SPREAD_BYTES
            if not is_short and not (checked and path[: len(checked)] == checked):
                checked = self._check_row(path)

    def _check_row(self, path: Path) -> Path:
        """Check the row that covers a path; return the path of what is checked with it."""
        try:
            _, cover = self._find(path)
        except DamagedRow:
            return ()  # it may be what is replaced
        if cover is None or not cover.inside:
            return ()
        if len(cover.raw) > MIN_WHOLE_BYTES and (cover.is_bucket or len(cover.key) > SPREAD_BYTES):
            is_too_long = len(cover.raw) > MAX_WHOLE_BYTES
            value: Any = None if is_too_long else _load(cover.raw)
            if is_too_long or has_more_nodes(value, MAX_WHOLE_NODES):
                raise InvalidData(
                    f"What is below keys of more than {SPREAD_BYTES} bytes together may have at "
                    f"most {MAX_WHOLE_NODES} members and items, and {MAX_WHOLE_BYTES} bytes: use "
                    "shorter keys."
                )
        return path[: len(path) - len(cover.inside) + cover.is_bucket]

    def apply(self, changes: Sequence[Change]) -> None:
        """Apply the changes one after the other, as `tree.edit.apply` defines them."""
        self.change(changes)
        self._transaction.flush()

    def change(self, changes: Sequence[Change]) -> None:
        """Do as `apply`, but keep a page that was changed in memory for the changes that follow.

        Only `flush` stores it. That reads nothing, so damage nearby fails the changes that meet it.
        """
        if self.indexes is not None:
            self.indexes.note(changes)
        for change in changes:
            path, is_priority = change.place
            if self._editor is not None:
                inside = self._editor.inside(path)
                if inside is not None and self._editor.change(inside, change.value, is_priority):
                    continue
                self._write_back()
            if self.checks_room and change.value is not None:
                self.check_room((path,))
            self._change(path, change.value, is_priority)
            pause()
        if self._editor is not None:
            self._write_back()
        self._transaction.flush_if_short()
        self._empty = self._count = None
        if self.indexes is not None:
            self.indexes.update()

    def add_children(self, path: Path, children: dict[str, Value]) -> None:
        """Set children of a container, in key order; fast if nothing is there or between them."""
        encoded, cover = self._find(path)
        segments = [encode_key(key) for key in paused(children)]
        is_free = (
            cover is None
            and len(encoded) + max(map(len, segments)) <= ROW_KEY_BYTES
            and self._is_spread(encoded)
            and next(self._keys_between(encoded, segments[0], segments[-1]), None) is None
        )
        if is_free:
            self._transaction.put_all(self._rows_of(encoded, children.items(), iter(segments)))
            self._transaction.flush()
            if self.indexes is not None:
                self.indexes.enter_added(path, children)
        else:
            self.apply([Change(Place((*path, key)), child) for key, child in children.items()])

    def _keys_between(self, container: bytes, first: bytes, last: bytes) -> Iterator[bytes]:
        """Iterate over the keys of rows from a child of a container to what is below another."""
        return self.rows.scan_keys(container + first, container + last + BEYOND)

    def _change(self, path: Path, value: Value, is_priority: bool) -> None:
        empty, count = self._empty, self._count
        self._empty = self._count = None
        if is_priority:
            self._set_priority(path, as_priority(value))
        elif value is None:
            self._count = count
            self._remove(path)
        else:
            self._set_value(path, value, empty)

    def _is_spread(self, encoded: bytes) -> bool:
        return self._transaction.has_open_run(encoded) or super()._is_spread(encoded)

    def _find_replaced(self, path: Path) -> tuple[bytes, Cover | None]:
        """Find the row of a node that is replaced as a whole, so that the row may be damaged."""
        try:
            return self._find(path)
        except DamagedRow:
            if not self._transaction.discard(encode_path(path)):
                raise
            return self._find(path)

    def _remove(self, path: Path) -> None:
        encoded, cover = self._find_replaced(path)
        if cover is not None:
            self._set_inside(path, cover, None)
        elif self._is_spread(encoded):
            self._count = None
            self._remove_below(encoded)
            self._merge_above(path)

    def _set_value(self, path: Path, value: Value, empty: EmptyRange | None) -> None:
        if empty is not None:
            encoded = encode_path(path)
            if empty.holds(encoded):
                self._insert(encoded, path, value, before=empty.low, after=empty.high)
                return
        encoded, cover = self._find_replaced(path)
        if cover is not None:
            self._set_inside(path, cover, value)
            return
        container = self._transaction.container_around(encoded)
        if container is not None:
            self._insert_below(container, encoded, path, value)
            return
        after = next(self.rows.scan_keys(encoded, END), None)
        was_spread = after is not None and after.startswith(encoded) and self._is_spread(encoded)
        if was_spread:
            self._remove_below(encoded)
            after = next(self.rows.scan_keys(encoded, END), None)
        before = self._transaction.key_before(encoded)
        self._insert(encoded, path, value, before=before, after=after)
        if was_spread:
            self._empty = None
            self._merge_above(path)

    def _set_inside(self, path: Path, cover: Cover, value: Value) -> None:
        """Set a node in the row that covers it."""
        if not cover.inside:
            self._replace(path, cover, value)
        elif is_plain_string(cover.raw):  # it may be long, and need not be parsed
            if value is not None:
                self._replace(path, cover, nest(cover.inside, value))
        elif not self._edit(path, cover, value, is_priority=False):
            self._replace(path, cover, set_value(_load(cover.raw), cover.inside, value))

    def _set_priority(self, path: Path, priority: Priority | None) -> None:
        encoded, cover = self._find(path)
        if cover is None:
            if self._is_spread(encoded):
                self._put_priority_row(encoded, priority)
        elif not self._edit(path, cover, priority, is_priority=True):
            self._replace(path, cover, set_priority(_load(cover.raw), cover.inside, priority))

    def _edit(self, path: Path, cover: Cover, value: Value, *, is_priority: bool) -> bool:
        """Change a row in an editor, which stays open for others; return whether it was changed."""
        is_never_split = cover.is_bucket or len(cover.key) > SPREAD_BYTES
        editor = RowEditor.open(path, cover, None if is_never_split else self._row_bytes)
        if editor is None or not editor.change(cover.inside, value, is_priority):
            return False
        if len(cover.raw) > LONG_ROW_BYTES:
            pause()
        self._editor = editor
        return True

    def _write_back(self) -> None:
        editor, self._editor = self._editor, None
        if editor is None:
            return
        value = editor.finish()
        if value is None:
            self._replace(editor.path, editor.cover, value)
        else:
            self._put(editor.cover.key, encode_row(value))  # it is not too long for one row

    def _replace(self, path: Path, cover: Cover, value: Value) -> None:
        """Put another value into the row that covers `path`."""
        key, _, inside, is_bucket = cover
        if value is None:
            self._transaction.delete(key)
            depth = len(path) - len(inside)
            self._merge_above(path[: depth + 1] if is_bucket else path[:depth])
        elif is_bucket:
            self._put(key, encode_row(value))
        else:
            self._store(key, value)

    def _insert(
        self, encoded: bytes, path: Path, value: Value, *, before: bytes | None, after: bytes | None
    ) -> None:
        """Put a value where nothing is and no row covers, between the rows next to it."""
        if before is None and after is None:
            self._store(FIRST, nest(path, value))
            return
        depth = max(shared_keys(path, key) for key in (before, after) if key is not None)
        child = self._insert_below(encode_path(path[:depth]), encoded, path, value)
        if len(child) <= ROW_KEY_BYTES:
            self._empty = EmptyRange(child + BEYOND, after)

    def _insert_below(self, container: bytes, encoded: bytes, path: Path, value: Value) -> bytes:
        """Put a value below its deepest spread ancestor; return the encoded path of its child.

        `container` is the encoded path of the ancestor, `encoded` that of the value.
        """
        depth = count_keys(container)
        name, child = path[depth], nest(path[depth + 1 :], value)
        key = encoded[: end_of_key(encoded, len(container))]
        if len(key) <= ROW_KEY_BYTES:
            self._store(key, child)
        else:
            self._add_children(container, [(name, child)])
        return key

    def _store(self, key: bytes, value: Value) -> None:
        """Store `value` at an encoded path that has no rows below it."""
        raw = self._row_of(key, value)
        if raw is None:
            self._spread(key, value)
        else:
            self._put(key, raw)

    def _put(self, key: bytes, raw: bytes) -> None:
        if len(raw) > LONG_ROW_BYTES:
            pause()
        self._transaction.put(key, raw)

    def _spread(self, key: bytes, value: Value) -> None:
        self._put_priority_row(key, priority_of(value))
        self._add_children(key, members(value))

    def _add_children(self, container: bytes, children: Iterable[tuple[str, Value]]) -> None:
        """Store children of a spread container that have no rows yet."""
        self._transaction.put_all(self._rows_of(container, children))

    def _rows_of(
        self,
        container: bytes,
        children: Iterable[tuple[str, Value]],
        segments: Iterator[bytes] | None = None,
    ) -> Iterator[PlacedRow]:
        """Yield the rows of children of a spread container, in key order.

        `segments` are their encoded keys, None if these are not known yet.
        """
        bucket: dict[str, Value] = {}
        bucket_key = b""
        for name, child in children:
            segment = encode_key(name) if segments is None else next(segments)
            key = container + segment
            if type(child) is dict:
                pause()
            if bucket and key[:ROW_KEY_BYTES] != bucket_key:
                yield None, bucket_key, encode_row(bucket)
                bucket = {}
            if len(key) > ROW_KEY_BYTES:
                bucket_key = key[:ROW_KEY_BYTES]
                bucket[name] = child
            elif type(child) is not dict:
                yield container, segment, compact(child)
            elif (raw := self._row_of(key, child)) is not None:
                yield container, segment, raw
            else:
                if (priority := priority_of(child)) is not None:
                    yield None, key, encode_priority_row(priority)
                yield from self._rows_of(key, members(child))
        if bucket:
            yield None, bucket_key, encode_row(bucket)

    def _row_of(self, key: bytes, value: Value) -> bytes | None:
        """Return the row of a node at an encoded path, None if it is to be spread."""
        is_container = type(value) is dict and VALUE not in value
        if not is_container or len(key) > SPREAD_BYTES:
            return encode_row(value)
        limit = self._row_bytes
        text = None
        if self.printable > 0:
            text = compact(value)
            self.printable -= len(text)
        if (text is None or len(text) > limit) and is_surely_longer(value, limit):
            return None
        raw = encode_row(value, text)
        return None if len(raw) > limit else raw

    def _put_priority_row(self, key: bytes, priority: Priority | None) -> None:
        if priority is None:
            self._transaction.delete(key)
        else:
            self._transaction.put(key, encode_priority_row(priority))

    def _remove_below(self, key: bytes) -> None:
        self._transaction.delete(key)
        self._transaction.delete_range(*below(key))

    def _merge_above(self, path: Path) -> None:
        """Check the containers above `path` after rows at or below it were removed."""
        for depth in reversed(range(len(path))):
            key = encode_path(path[:depth])
            rows = self._count_rows(key)
            if rows > MERGE_ROWS or (rows and not self._merge(key)):
                return
            if not rows and self._priority(key) is not None:
                self._transaction.delete(key)

    def _count_rows(self, container: bytes) -> int:
        """Return how many rows are below a container; above `MERGE_ROWS` a lower bound.

        If it is the container of the last call, one row has been removed since, and no other.
        """
        rows, limit = 0, MERGE_ROWS + 1
        if self._count is not None and self._count.container == container:
            rows, limit = self._count.rows - 1, self._count.counted
            if rows <= MERGE_ROWS:
                rows, limit = 0, min(2 * limit, _MAX_COUNTED)
        if not rows:
            rows = sum(1 for _ in islice(self.rows.scan_keys(*below(container)), limit))
        self._count = RowCount(container, rows, limit) if rows > MERGE_ROWS else None
        return rows

    def _merge(self, key: bytes) -> bool:
        """Merge a spread container into one row if it is short; return whether it is."""
        limit = self._row_bytes // 2
        size = 0
        for row in map(self.rows.find, list(self.rows.scan_keys(*below(key)))):
            size += len(row[1]) if row is not None else 0  # a scan would read a long one at once
            if size > limit:
                return False
        raw = encode_row(self._assemble(key))
        if len(raw) > limit:
            return False
        self._remove_below(key)
        self._transaction.put(key, raw)
        return True


def _load(raw: bytes) -> Value:
    """Return what a row holds; a long one is parsed in a step of its own."""
    value = load_row(raw)
    if len(raw) > LONG_ROW_BYTES:
        pause()
    return value
