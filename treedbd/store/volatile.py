"""Volatile nodes: values in memory that are merged over the rows of a store.

Theory of operation. A *top* is a volatile node that has a value (`Top`): its place, its value in
normal form, and the row that it would have. `Tops` are those of one database; they are changed by
their owner, and frozen for readers, who see one moment. `MergedRows` shows rows as if each top were
a row of its own. Where a stored row holds a container above a few tops, their values are put into
it; a row above many is shown as if its containers above them were spread (`_Parts`). So reads,
queries, hashes and tags need not know of volatile nodes.

What is stored at or below a top is not shown. The path of a top has at most `TOP_KEY_BYTES` bytes,
encoded, so that no bucket is on its way.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from heapq import merge
from itertools import islice
from typing import Any, Final

import attrs

from treedbd.store.engine import EngineSnapshot, PresentView, Row
from treedbd.store.nodes import HeldNodes, Nodes, PresentNodes
from treedbd.store.rows import (
    ROW_KEY_BYTES,
    SPREAD_BYTES,
    PagedRows,
    decode_key,
    encode_row,
    end_of_key,
    is_priority_row,
    load_part,
    load_row,
)
from treedbd.tree.edit import Draft
from treedbd.tree.event import Moment
from treedbd.tree.path import BEYOND, encode_key, encode_path
from treedbd.tree.types import (
    PRIORITY,
    VALUE,
    Charge,
    Container,
    Leaf,
    Path,
    Priority,
    Value,
    free,
)
from treedbd.tree.value import compact, leaf_of, members, priority_of, value_at

TOP_KEY_BYTES: Final = SPREAD_BYTES
"""The most bytes of the encoded path of a volatile node."""
MERGED_TOPS: Final = 64
"""Volatile nodes that are put into one stored row above them; above more, it is shown as spread."""
RUN_LENGTH: Final = 256
"""Volatile nodes that are copied when one of them is changed that a reader may still see."""


class Top:
    """A volatile node that has a value; `size` are about the bytes that it takes as JSON."""

    __slots__ = ("_row", "key", "path", "size", "value")

    def __init__(self, path: Path, key: bytes, value: Value, size: int) -> None:
        self.path: Final = path
        self.key: Final = key
        self.value: Final = value
        self.size: Final = size
        self._row: bytes | None = None

    @property
    def row(self) -> bytes:
        """The row that it would have in a store."""
        if self._row is None:
            self._row = encode_row(self.value)
        return self._row


class _Run:
    """Some tops that follow each other, with their keys; only its `owner` may change it."""

    __slots__ = ("keys", "owner", "tops")

    def __init__(self, keys: list[bytes], tops: list[Top], owner: object) -> None:
        self.keys = keys
        self.tops = tops
        self.owner = owner


class Tops:
    """The volatile nodes of one database that have values.

    They are kept in the order of their keys, in runs. Copies share the runs, and a run that others
    may have is copied before it is changed, so to freeze all takes no longer if they are many.
    """

    def __init__(self) -> None:
        self._runs: list[_Run] = []
        self._firsts: list[bytes] = []  # the first key of each run
        self._count = 0
        self._owner = object()
        self._by_path: dict[Path, Top] | None = {}  # None: they are found by their keys alone
        self._frozen: Tops | None = None

    def __len__(self) -> int:
        """Return how many there are."""
        return self._count

    def __iter__(self) -> Iterator[Top]:
        """Iterate over them in the order of their keys."""
        return iter([top for run in self._runs for top in run.tops])

    def at(self, path: Path) -> Top | None:
        """Return the top at a path."""
        if self._by_path is not None:
            return self._by_path.get(path)
        key = encode_path(path)
        found = self.over(key)
        return None if found is None or found.key != key else found

    def over(self, encoded: bytes) -> Top | None:
        """Return the top at or above an encoded path."""
        number = bisect_right(self._firsts, encoded)
        if not number:
            return None
        run = self._runs[number - 1]
        at = bisect_right(run.keys, encoded) - 1
        return run.tops[at] if encoded.startswith(run.keys[at]) else None

    def iterate(self, low: bytes, high: bytes, *, reverse: bool = False) -> Iterator[Top]:
        """Iterate over those whose keys are in a range, in the order of their keys, or backwards.

        They must not be changed meanwhile.
        """
        first = max(0, bisect_right(self._firsts, low) - 1)
        runs = self._runs[first : bisect_left(self._firsts, high)]
        for run in reversed(runs) if reverse else runs:
            tops, keys = run.tops, run.keys
            if keys[0] < low or keys[-1] >= high:
                tops = tops[bisect_left(keys, low) : bisect_left(keys, high)]
            yield from reversed(tops) if reverse else tops

    def has_within(self, low: bytes, high: bytes) -> bool:
        """Return whether the key of any is in a range."""
        return next(self.iterate(low, high), None) is not None

    def has_below(self, encoded: bytes) -> bool:
        """Return whether any is at or below an encoded path."""
        return self.has_within(encoded, encoded + BEYOND) if encoded else self._count > 0

    def below(self, encoded: bytes) -> list[Top]:
        """Return those at or below an encoded path, in the order of their keys."""
        return list(self.iterate(encoded, encoded + BEYOND)) if encoded else list(self)

    def put(self, top: Top) -> None:
        """Add a top, or replace the one at its place."""
        self._frozen = None
        key = top.key
        if self._by_path is not None:
            self._by_path[top.path] = top
        if not self._runs:
            self._runs, self._firsts = [_Run([], [], self._owner)], [key]
        number = max(0, bisect_right(self._firsts, key) - 1)
        run = self._runs[number]
        if run.owner is not self._owner:
            run = self._own(number)
        at = bisect_left(run.keys, key)
        if at < len(run.keys) and run.keys[at] == key:
            run.tops[at] = top
            return
        run.keys.insert(at, key)
        run.tops.insert(at, top)
        self._count += 1
        if not at:
            self._firsts[number] = key
        if len(run.keys) > RUN_LENGTH:
            self._split(number)

    def remove(self, top: Top) -> None:
        """Remove a top."""
        self._frozen = None
        if self._by_path is not None:
            del self._by_path[top.path]
        number = bisect_right(self._firsts, top.key) - 1
        run = self._own(number)
        at = bisect_left(run.keys, top.key)
        del run.keys[at], run.tops[at]
        self._count -= 1
        if not run.keys:
            del self._runs[number], self._firsts[number]
        elif not at:
            self._firsts[number] = run.keys[0]

    def copy(self) -> Tops:
        """Return the same tops, to be changed by themselves."""
        copied = Tops()
        copied._runs, copied._firsts = self._runs.copy(), self._firsts.copy()
        copied._count, copied._by_path = self._count, None
        self._owner = object()  # neither may change a run that both have
        return copied

    def freeze(self) -> Tops:
        """Return these tops as they are now; the result must not be changed."""
        if self._frozen is None:
            self._frozen = self.copy()
        return self._frozen

    def _own(self, number: int) -> _Run:
        """Return a run that may be changed, a copy if others have it, too."""
        run = self._runs[number]
        if run.owner is not self._owner:
            run = self._runs[number] = _Run(run.keys.copy(), run.tops.copy(), self._owner)
        return run

    def _split(self, number: int) -> None:
        run = self._runs[number]
        half = len(run.keys) // 2
        after = _Run(run.keys[half:], run.tops[half:], self._owner)
        del run.keys[half:], run.tops[half:]
        self._runs.insert(number + 1, after)
        self._firsts.insert(number + 1, after.keys[0])


@attrs.frozen
class _Parts:
    """A stored row whose containers above tops are shown as spread: the rows of what else it holds.

    They are in the order of their keys.
    """

    keys: list[bytes]
    rows: list[Row]

    def get(self, key: bytes) -> Row | None:
        """Return the row at `key`."""
        at = bisect_left(self.keys, key)
        return self.rows[at] if self.keys[at : at + 1] == [key] else None

    def between(self, low: bytes, high: bytes) -> list[Row]:
        """Return the rows with `low <= key < high`."""
        return self.rows[bisect_left(self.keys, low) : bisect_left(self.keys, high)]


class MergedRows(PagedRows):
    """The rows of a store with those of volatile nodes; `turn` is that of the moment."""

    __slots__ = ("_base", "_merged", "_parts", "_tops", "_turn")

    def __init__(self, base: PagedRows, tops: Tops, turn: int) -> None:
        """Merge `tops`, which must not be changed, over the rows of `base`."""
        super().__init__(base.stored)
        self._base: Final = base
        self._tops: Final = tops
        self._turn: Final = turn
        self._merged: Final[dict[bytes, Row]] = {}
        self._parts: Final[dict[bytes, _Parts | None]] = {}

    def find(self, key: bytes) -> Row | None:
        """Return the row whose key is `key` or begins it; None if there is none."""
        tops = self._tops
        if not tops:
            return self._base.find(key)
        over = tops.over(key)
        if over is not None:
            return over.key, over.row
        row = self._base.find(key)
        if row is None or is_priority_row(row[1]) or not tops.has_below(key):
            return row
        parts = self._parts_of(row)
        return self._merge(key, row) if parts is None else parts.get(key)

    def find_children(self, container: bytes, segments: Iterable[bytes]) -> dict[bytes, bytes]:
        """Return the rows of children of a spread container, by their encoded keys."""
        found = self._base.find_children(container, segments)
        for top in self._tops.below(container):
            for segment in [each for each in found if top.key.startswith(container + each)]:
                del found[segment]
        return found

    def floor(self, key: bytes) -> Row | None:
        """Return the row with the greatest key that is at most `key`."""
        row = self.find(key)
        if row is not None and row[0] != key:
            return row
        return next(self.scan(b"", key + b"\0", reverse=True), None)

    def scan(self, low: bytes, high: bytes, *, reverse: bool = False) -> Iterator[Row]:
        """Iterate over the rows with `low <= key < high` in key order, or backwards."""
        if not self._concerns(low, high):
            return self._base.scan(low, high, reverse=reverse)
        rows = self._rows(low, high, reverse=reverse)
        tops = list(self._tops.iterate(low, high))
        return self._backwards(rows, tops) if reverse else self._forwards(rows, tops)

    def scan_keys(self, low: bytes, high: bytes, *, reverse: bool = False) -> Iterator[bytes]:
        """Iterate over keys, of volatile nodes also those within another row."""
        if not self._concerns(low, high):
            return self._base.scan_keys(low, high, reverse=reverse)
        rows = self._rows(low, high, reverse=reverse)
        keys = (key for key, _ in rows if self._tops.over(key) is None)
        tops = (top.key for top in self._tops.iterate(low, high, reverse=reverse))
        return merge(keys, tops, reverse=reverse)

    def scan_whole(self, low: bytes, high: bytes) -> Iterator[Row]:
        """Iterate as `scan_stored` does; of pages that are partly outside come single rows."""
        if self._concerns(low, high):
            return self.scan(low, high)
        return self._base.scan_whole(low, high)

    def scan_stored(self, low: bytes, high: bytes) -> Iterator[Row]:
        """Iterate over rows and pages; where volatile nodes are, over rows alone."""
        if self._concerns(low, high):
            return self.scan(low, high)
        return self._base.scan_stored(low, high)

    def is_merged(self, encoded: bytes) -> bool:
        """Return whether a volatile node is at, above or below a path."""
        return self._tops.has_below(encoded) or self._tops.over(encoded) is not None

    def sequence(self) -> int:
        """Return the moment that is shown."""
        return Moment(self._base.sequence(), self._turn)

    def _concerns(self, low: bytes, high: bytes) -> bool:
        """Return whether the rows in a range may be others than those of the store."""
        if not self._tops:
            return False
        return self._tops.has_within(low, high) or bool(self._around(low) or self._around(high))

    def _around(self, key: bytes) -> _Parts | None:
        """Return the parts of the row that begins before `key` and covers it, if it has parts."""
        row = self._base.find(key) if key else None
        return None if row is None or row[0] == key else self._parts_of(row)

    def _parts_of(self, row: Row) -> _Parts | None:
        """Return the parts of a stored row, None if it is shown as one row."""
        key, raw = row
        if key not in self._parts:
            inside = self._tops.iterate(key, key + BEYOND)
            is_many = next(islice(inside, MERGED_TOPS, None), None) is not None
            parts = None
            if is_many and not is_priority_row(raw) and self._tops.over(key) is None:
                parts = self._divide(key, load_row(raw))
            self._parts[key] = parts
        return self._parts[key]

    def _divide(self, key: bytes, value: Value) -> _Parts | None:
        """Return the parts of a row; None if one of them could have no row of its own."""
        rows: list[Row] = []
        waiting = [(key, value)]
        while waiting:
            at, found = waiting.pop()
            if at != key and not self._tops.has_below(at):
                if len(at) > ROW_KEY_BYTES:
                    return None
                rows.append((at, encode_row(found)))
            elif isinstance(found, dict) and VALUE not in found and self._tops.over(at) is None:
                if PRIORITY in found:
                    rows.append((at, encode_row({PRIORITY: found[PRIORITY]})))
                waiting += [(at + encode_key(name), child) for name, child in members(found)]
        rows.sort()
        return _Parts([each for each, _ in rows], rows)

    def _rows(self, low: bytes, high: bytes, *, reverse: bool) -> Iterator[Row]:
        """Iterate over the rows of the store in a range, those that have them in parts."""
        around = self._around(low)
        before = [] if around is None else around.between(low, high)
        if not reverse:
            yield from before
        for row in self._base.scan(low, high, reverse=reverse):
            parts = self._parts_of(row) if self._tops.has_below(row[0]) else None
            if parts is None:
                yield row
            else:
                some = parts.between(low, high)
                yield from reversed(some) if reverse else some
        if reverse:
            yield from reversed(before)

    def _merge(self, key: bytes, row: Row) -> Row:
        """Return the row at `key`, which `row` covers, with the values of the tops below it."""
        found = self._merged.get(key)
        if found is None:
            inside = _keys_between(row[0], key)
            draft = Draft(load_part(row[1], inside) if inside else load_row(row[1]))
            depth = len(_keys_between(b"", key))
            for top in self._tops.below(key):
                draft.set(top.path[depth:], top.value)
            found = self._merged[key] = key, encode_row(draft.finish())
        return found

    def _forwards(self, rows: Iterator[Row], tops: list[Top]) -> Iterator[Row]:
        waiting, over = deque(tops), b""
        for key, raw in rows:
            while waiting and waiting[0].key < key:
                over = waiting[0].key
                yield over, waiting.popleft().row
            if waiting and waiting[0].key == key:
                over = key
                yield key, waiting.popleft().row
            if over and key.startswith(over):
                continue  # what is stored there is not shown
            if not waiting or is_priority_row(raw) or not waiting[0].key.startswith(key):
                yield key, raw
                continue
            yield self._merge(key, (key, raw))
            while waiting and waiting[0].key.startswith(key):
                waiting.popleft()
        for top in waiting:
            yield top.key, top.row

    def _backwards(self, rows: Iterator[Row], tops: list[Top]) -> Iterator[Row]:
        waiting = deque(reversed(tops))
        for key, raw in rows:
            is_priority, is_above = is_priority_row(raw), False
            while waiting and waiting[0].key > key:
                top = waiting.popleft()
                if is_priority or not top.key.startswith(key):
                    yield top.key, top.row
                else:
                    is_above = True
            if waiting and key.startswith(waiting[0].key):
                continue  # what is stored there is not shown
            yield self._merge(key, (key, raw)) if is_above else (key, raw)
        for top in waiting:
            yield top.key, top.row


def _keys_between(container: bytes, key: bytes) -> Path:
    """Return the keys that lead from one encoded path to another one at or below it."""
    found, start = [], len(container)
    while start < len(key):
        end = end_of_key(key, start)
        found.append(decode_key(key[start:end]))
        start = end
    return tuple(found)


class MergedNodes(Nodes):
    """The tree of a transaction, or of another moment in one turn, with volatile nodes."""

    def __init__(self, base: PagedRows, tops: Tops, turn: int) -> None:
        super().__init__(MergedRows(base, tops, turn))


class MergedPresentNodes(PresentNodes):
    """The tree at the present moment, with volatile nodes; `turn` is that of the moment."""

    def __init__(self, view: PresentView, tops: Tops, turn: int) -> None:
        super().__init__(view, MergedRows(PagedRows(view), tops, turn))
        self._tops, self.turn = tops, turn

    def hold(self) -> HeldNodes | None:
        """Hold this moment; None if it cannot be held now."""
        snapshot = self.view.hold()
        return None if snapshot is None else MergedHeldNodes(snapshot, self._tops, self.turn)


class ShownNodes(MergedPresentNodes):
    """The same with the volatile nodes that watchers know of, which may be older ones."""


class MergedHeldNodes(HeldNodes):
    """The tree at one moment that is held, with volatile nodes."""

    def __init__(self, snapshot: EngineSnapshot, tops: Tops, turn: int) -> None:
        super().__init__(snapshot, MergedRows(PagedRows(snapshot), tops, turn))


class VolatileView:
    """A `View` of the present moment, whose volatile nodes are read where they are.

    The nodes of a whole moment take as long to make as there are volatile nodes. A write of a
    volatile node mostly needs that node alone.
    """

    def __init__(
        self,
        tops: Tops,
        depth: Callable[[Path], int],
        read: Callable[[Callable[[Nodes], Any]], Any],
    ) -> None:
        """Find how many keys of a path lead to a top by `depth`, and `read` all else."""
        self._tops: Final = tops
        self._depth: Final = depth
        self._read: Final = read

    def find(self, path: Path) -> Value:
        """Return the value at a path, at or below a volatile node."""
        depth = self._depth(path)
        top = self._tops.at(path[:depth])
        return None if top is None else value_at(top.value, path[depth:])

    def get(self, path: Path) -> Value:
        """Return the whole subtree at `path` with its priorities."""
        if self._depth(path) > 0:
            return self.find(path)
        value: Value = self._read(lambda nodes: nodes.get(path))
        return value

    def peek(self, path: Path, charge: Charge = free) -> Leaf | Container | None:
        """Return the leaf at `path`, `CONTAINER` if it has children, None if nothing is there."""
        if self._depth(path) > 0:
            return leaf_of(self.find(path))
        found: Leaf | Container | None = self._read(lambda nodes: nodes.peek(path, charge))
        return found

    def type_at(self, path: Path, charge: Charge = free) -> type[Leaf] | type[Container] | None:
        """Return the type of what `peek` returns."""
        found = self.peek(path, charge)
        return None if found is None else type(found)

    def size(self, path: Path, limit: int) -> int:
        """Return the approximate bytes of the subtree at `path`."""
        if self._depth(path) > 0:
            return len(compact(self.find(path)))
        size: int = self._read(lambda nodes: nodes.size(path, limit))
        return size

    def priority(self, path: Path, charge: Charge = free) -> Priority | None:
        """Return the priority of the node at `path`."""
        if self._depth(path) > 0:
            return priority_of(self.find(path))
        found: Priority | None = self._read(lambda nodes: nodes.priority(path, charge))
        return found

    def keys(self, path: Path) -> Iterator[str]:
        """Iterate over the keys of the children of `path` in key order."""
        if self._depth(path) > 0:
            return iter([key for key, _ in members(self.find(path))])
        keys: list[str] = self._read(lambda nodes: list(nodes.keys(path)))
        return iter(keys)
