"""Outlines: how many children a spread container has, how many bytes, and which is at a position.

Theory of operation. A container of a million children is spread over thousands of pages. To count
them all takes some hundred milliseconds, so what has been counted is kept. An `Outline` divides the
rows below the container into *segments*: ranges of row keys, in order, each with the number of its
children and the bytes that they are printed with. The child at a position, and the position of a
child, are found in the segment that the sums of the others lead to, by reading only this segment.
A segment has about `SEGMENT_BYTES` of rows. If there are more than `MAX_SEGMENTS`, neighbours are
joined, so the memory of an outline is bounded however large the container is.

Rows are counted page by page, from the heads of the pages; no value is parsed unless it has a
priority. A child that is itself spread is printed to be counted, but only up to a bound; beyond,
its segment has that `bound`, and its bytes are a lower bound. The number of children is always
exact. One request has a `Budget`; where that is spent, counting ends, and the next request goes on
there (`tail`), or counts with a higher bound.

A write does not make a kept outline worthless: `note` marks the segment of the child that was
written, and the next request counts this segment again (`renew`). Marks are numbers of writes,
and each segment has the number of the state that it was counted in: so a request that counts from
a snapshot, while others write, never unmarks a change that it has not seen.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Generator, Iterator
from sys import getsizeof
from typing import Final, TypeAlias

import attrs

from treedbd.limits import KIB, MIB
from treedbd.store.nodes import SPREAD, Nodes, Spread
from treedbd.store.rows import (
    ROW_KEY_BYTES,
    Page,
    PagedRows,
    below,
    decode_key,
    end_of_key,
    is_page,
    is_priority_row,
    load_row,
    print_key,
    print_row,
)
from treedbd.tree.path import (
    BEYOND,
    INT_TAG,
    are_indices,
    encode_key,
    encode_path,
    rank_key,
)
from treedbd.tree.types import Path, Value
from treedbd.tree.value import compact, members, plain

SEGMENT_BYTES: Final = 128 * KIB
"""Stored bytes of a segment, which are counted in one step, unless a child of it is spread."""
MAX_SEGMENTS: Final = 4096
LARGEST_CHILD_BYTES: Final = 4 * MIB
"""Bytes up to which a spread child is counted; less if that is more than a part of the budget:"""
_CHILD_SHARE: Final = 32
_LEAST_CHILD_BYTES: Final = 4 * KIB
_ROW_COST: Final = 512
_LOOKUP_COST: Final = 8 * KIB
"""What a row, and a range that is looked up, cost beside the bytes that are read."""
_MAX_LATE: Final = 1000
"""Changed children that are remembered where nothing is counted yet; beyond, all count as such."""
_SEGMENT_MEMORY: Final = 250

Steps: TypeAlias = Generator[None, None, None]
FindOutline: TypeAlias = Callable[[Path], "Outline | None"]
"""Returns the outline of a path that is kept, None if none is."""


@attrs.define
class Budget:
    """How many stored bytes may still be read to count."""

    left: int

    @property
    def is_spent(self) -> bool:
        """Whether nothing more is to be read, unless it is needed."""
        return self.left <= 0

    @property
    def child_bytes(self) -> int:
        """Bytes up to which a spread child is counted."""
        return min(LARGEST_CHILD_BYTES, max(_LEAST_CHILD_BYTES, self.left // _CHILD_SHARE))


@attrs.define(eq=False)
class Segment:
    """Children that follow each other; the first row key is at least `low`.

    Attributes:
        count: how many there are.
        text: their bytes as members of an object, with a comma each.
        values: the bytes of their values alone; only if they are `indexed`.
        last: the last index; -1 unless all keys are indices (`tree.path.as_index`).
        bound: beyond how many bytes a spread child was not counted, so that the bytes are a lower
            bound; 0 if all was counted.
        sequence: the number of the state in which they were counted.
        changed: the number of the last write that is known to have changed one.

    """

    low: bytes
    sequence: int
    count: int = 0
    text: int = 0
    values: int = 0
    last: int = -1
    bound: int = 0
    changed: int = 0

    @property
    def is_stale(self) -> bool:
        """Whether a child has changed since they were counted."""
        return self.changed > self.sequence

    def add(self, printed: int, count: int = 1) -> None:
        """Add children whose members have so many bytes, each with its comma."""
        self.count += count
        self.text += printed

    def add_page(self, page: Page) -> None:
        """Add all members of a page of children."""
        if page.is_marked or (page.has_integers and self.last != _NO_ARRAY):
            keys = page.member_keys()
            sizes = [len(print_row(raw)) if page.is_marked else len(raw) for raw in page.raws()]
            names = sum(len(print_key(key)) for key in keys)
            self.add(names + sum(sizes) + 2 * len(keys), len(keys))
            self._add_values(keys, sum(sizes))
        else:
            self.add(len(page.content) - page.body_at + 1, page.count)
            self.last = _NO_ARRAY

    def add_child(self, segment: bytes, size: int) -> None:
        """Add one child by its encoded key; its value has `size` bytes."""
        self.add(len(print_key(segment)) + size + 2)
        self._add_values([segment], size)

    def _add_values(self, keys: list[bytes], size: int) -> None:
        """Add to what an array needs, while all keys are indices."""
        self.values += size
        if self.last == _NO_ARRAY:
            return
        if keys[0][0] == INT_TAG and are_indices(keys):
            self.last = int(decode_key(keys[-1]))
        else:
            self.last = _NO_ARRAY

    def join(self, other: Segment) -> Segment:
        """Return this segment and the one that follows it as one."""
        is_stale = self.is_stale or other.is_stale
        return Segment(
            low=self.low,
            sequence=min(self.sequence, other.sequence),
            count=self.count + other.count,
            text=self.text + other.text,
            values=self.values + other.values,
            last=_later(self.last, other.last),
            bound=_least(self.bound, other.bound),
            changed=max(self.changed, other.changed) if is_stale else 0,
        )


_NO_ARRAY: Final = -2


def _least(one: int, other: int) -> int:
    return min(one, other) if one and other else one or other


def _later(one: int, other: int) -> int:
    return _NO_ARRAY if _NO_ARRAY in (one, other) else max(one, other)


@attrs.frozen
class Totals:
    """What an outline knows of its container.

    Attributes:
        count: children.
        size: bytes of the JSON that a GET prints.
        is_counted: whether `count` is that of all children.
        is_least: whether `size`, and `count` unless it is counted, are lower bounds.
        is_about: whether something has changed that is not counted again yet.

    """

    count: int
    size: int
    is_counted: bool
    is_least: bool
    is_about: bool


class Outline:
    """What is known of the children of one spread container.

    Attributes:
        tail: the row key from which nothing is counted yet; None if all is.
        changed: the number of the last write that is known to have changed a child.
        since: the number of the state from which on it notes all writes; 0 if it is not kept.

    """

    def __init__(self, path: Path) -> None:
        self.tail: bytes | None = below(encode_path(path))[0]
        self.changed = 0
        self.since = 0
        self._path = path
        self._container = encode_path(path)
        self._segments: list[Segment] = []
        self._lows: list[bytes] = []
        self._grain = SEGMENT_BYTES
        self._late: dict[bytes, int] = {}
        self._all_late = 0
        self._count = 0

    @property
    def size(self) -> int:
        """About how many bytes of memory it takes."""
        return sum(map(getsizeof, self._lows)) + _SEGMENT_MEMORY * (len(self._lows) + 1)

    @property
    def is_exact(self) -> bool:
        """Whether all is counted, and nothing has changed since."""
        totals = self.totals
        return totals.is_counted and not (totals.is_least or totals.is_about)

    @property
    def totals(self) -> Totals:
        """What is known of the whole container."""
        count, text, values, last = 0, 0, 0, -1
        is_least, is_stale = self.tail is not None, False
        for segment in self._segments:
            count += segment.count
            text += segment.text
            values += segment.values
            last = _later(last, segment.last)
            is_least = is_least or segment.bound > 0
            is_stale = is_stale or segment.is_stale
        if 0 <= last < 2 * count and self.tail is None:
            size = 1 + values + (last + 1 - count) * len("null") + last + 1
        else:
            size = max(2, 1 + text)
        return Totals(
            count=count,
            size=size,
            is_counted=self.tail is None,
            is_least=is_least,
            is_about=is_stale,
        )

    def note(self, key: str, sequence: int) -> None:
        """Record that the write with this number has changed the child `key`."""
        self.changed = sequence
        row_key = self._row_key(key)
        if self.tail is None or row_key < self.tail:
            at = bisect_right(self._lows, row_key) - 1
            if at >= 0:
                self._segments[at].changed = sequence
        elif len(self._late) < _MAX_LATE:
            self._late[row_key] = sequence
        else:
            self._all_late = sequence

    def extend(self, nodes: Nodes, find: FindOutline, budget: Budget, position: int = -1) -> Steps:
        """Count what is not counted yet, within the budget, in any case up to a position."""
        sequence = nodes.rows.sequence()
        high = below(self._container)[1]
        while self.tail is not None and (self._count <= position or not budget.is_spent):
            tail = self.tail
            counting = _Counting(nodes, self._path, find, budget)
            counted = yield from counting.count(tail, high, self._grain, sequence)
            if self.tail == tail:  # else another request has counted it meanwhile
                self._append(counted, counting.following)
            yield

    def renew(self, nodes: Nodes, find: FindOutline, budget: Budget) -> Steps:
        """Count the segments again that have changed, or can be counted further, in the budget."""
        sequence = nodes.rows.sequence()
        for segment in [each for each in self._segments if each.is_stale or each.bound]:
            if budget.is_spent:
                return
            if segment.is_stale:
                if segment.sequence >= sequence:
                    continue  # it was counted in a later state than this one
            elif budget.child_bytes < 2 * segment.bound or segment.sequence > sequence:
                continue
            following: bytes | None
            following, high = self._range(segment)
            counted: list[Segment] = []
            while following is not None:
                counting = _Counting(nodes, self._path, find, budget)
                part = yield from counting.count(following, high, self._grain, sequence)
                counted.append(part)
                following = counting.following
            self._replace(segment, counted)
            yield

    def key_at(self, nodes: Nodes, position: int) -> str | None:
        """Return the key of the child at a position, None if none is known there."""
        before = 0
        for segment in self._segments:
            if position < before + segment.count:
                return _find_key(
                    nodes.rows, self._container, self._range(segment), position - before
                )
            before += segment.count
        return None

    def position_of(self, nodes: Nodes, key: str) -> int | None:
        """Return the position of the child `key`, None if it is not counted yet."""
        row_key = self._row_key(key)
        if self.tail is not None and row_key >= self.tail:
            return None
        at = bisect_right(self._lows, row_key) - 1
        if at < 0:
            return None
        before = sum(segment.count for segment in self._segments[:at])
        return before + _count_before(nodes.rows, self._container, (self._lows[at], row_key), key)

    def _row_key(self, key: str) -> bytes:
        """Return the key of the row that holds a child, or of its bucket."""
        return (self._container + encode_key(key))[:ROW_KEY_BYTES]

    def _range(self, segment: Segment) -> tuple[bytes, bytes]:
        at = bisect_left(self._lows, segment.low) + 1
        end = self.tail or below(self._container)[1]
        return segment.low, self._lows[at] if at < len(self._lows) else end

    def _append(self, segment: Segment, following: bytes | None) -> None:
        late = [key for key in self._late if following is None or key < following]
        self._mark(segment, max([self._all_late, *map(self._late.pop, late)]))
        self.tail = following
        self._count += segment.count
        if segment.count or not self._segments:
            self._segments.append(segment)
            self._lows.append(segment.low)
            self._join_if_many()

    def _replace(self, segment: Segment, counted: list[Segment]) -> None:
        """Put what was counted in place of a segment, unless another request has done so."""
        at = bisect_left(self._lows, segment.low)
        if at >= len(self._lows) or self._segments[at] is not segment:
            return
        counted = [each for each in counted if each.count] or ([counted[0]] if at == 0 else [])
        if counted:
            counted[0].low = segment.low
        for each in counted:
            self._mark(each, segment.changed)
        self._count += sum(each.count for each in counted) - segment.count
        self._segments[at : at + 1] = counted
        self._lows[at : at + 1] = [each.low for each in counted]
        self._join_if_many()

    def _mark(self, segment: Segment, changed: int) -> None:
        """Record by which write a segment was changed last, as far as that can be known."""
        is_older = segment.sequence < self.since  # what was written in between was not noted
        segment.changed = max(changed, self.since) if is_older else changed

    def _join_if_many(self) -> None:
        if len(self._segments) <= MAX_SEGMENTS:
            return
        self._grain *= 2
        pairs = zip(self._segments[::2], [*self._segments[1::2], None], strict=False)
        self._segments = [one if two is None else one.join(two) for one, two in pairs]
        self._lows = [segment.low for segment in self._segments]


class _Counting:
    """Counts children of a spread container into one segment.

    Attributes:
        following: the row key from which is not counted; None if that is the end of the range.

    """

    def __init__(self, nodes: Nodes, path: Path, find: FindOutline, budget: Budget) -> None:
        self.following: bytes | None = None
        self._nodes = nodes
        self._path = path
        self._find = find
        self._budget = budget

    def count(
        self, low: bytes, high: bytes, grain: int, sequence: int
    ) -> Generator[None, None, Segment]:
        """Count from a row key on, up to another one or until about `grain` bytes are read."""
        self.following = None
        segment = Segment(low, sequence)
        container = encode_path(self._path)
        start, cost = len(container), 0
        for key, end, part in child_parts(self._nodes.rows, container, low, high):
            if cost >= grain:
                self.following = key[:end] if part is SPREAD else _without_page(key)
                break
            if isinstance(part, Spread):
                spent = yield from self._add_spread(segment, key[start:end])
            elif isinstance(part, Page):
                segment.add_page(part)
                spent = len(part.content) + _ROW_COST
            else:
                _add_row(segment, key[start:], part, is_bucket=not end)
                spent = len(part) + _ROW_COST
            cost += spent
            self._budget.left -= spent
        return segment

    def _add_spread(self, segment: Segment, key: bytes) -> Generator[None, None, int]:
        """Add a spread child; return what that has cost."""
        path = (*self._path, decode_key(key))
        known = self._find(path)
        if known is not None and known.is_exact:
            segment.add_child(key, known.totals.size)
            return _LOOKUP_COST
        most = self._budget.child_bytes
        size = 0
        for chunk in self._nodes.chunks(path):
            if size > most:
                segment.bound = _least(segment.bound, most)
                break
            size += len(chunk)
            yield
        segment.add_child(key, size)
        return size + _LOOKUP_COST


ChildPart: TypeAlias = tuple[bytes, int, "Page | Spread | bytes"]
"""A row key, where the key of the child ends in it, 0 for a bucket, and what is stored there: a
page of children, the row of one or of a bucket, or `SPREAD`."""


def child_parts(rows: PagedRows, container: bytes, low: bytes, high: bytes) -> Iterator[ChildPart]:
    """Iterate over the children of a spread container by what is stored, within row keys."""
    start = len(container)
    while True:
        for key, content in rows.scan_whole(low, high):
            if is_page(key):
                page = Page(key, content)
                if len(page.container) == start:
                    yield key, len(key) - 1, page
                    continue
            end = end_of_key(key, start)
            if end and (end != len(key) or is_priority_row(content)):
                yield key, end, SPREAD
                low = max(key[:end] + BEYOND, key + b"\0")
                break
            yield key, end, content
        else:
            return


def _without_page(key: bytes) -> bytes:
    return key[:-1] if is_page(key) else key


def _add_row(segment: Segment, key: bytes, raw: bytes, *, is_bucket: bool) -> None:
    """Add the child that a row holds, or the children in a bucket."""
    if not is_bucket:
        segment.add_child(key, len(print_row(raw)))
        return
    for name, child in _bucket(raw):
        segment.add_child(encode_key(name), len(compact(plain(child))))


def _bucket(raw: bytes) -> Iterator[tuple[str, Value]]:
    return members(load_row(raw))


def _find_key(
    rows: PagedRows, container: bytes, span: tuple[bytes, bytes], position: int
) -> str | None:
    """Return the key of a child by its position among those within row keys."""
    start = len(container)
    for key, end, part in child_parts(rows, container, *span):
        if isinstance(part, Page):
            if position < part.count:
                return decode_key(part.member_keys()[position])
            position -= part.count
        elif not end and isinstance(part, bytes):
            names = [name for name, _ in _bucket(part)]
            if position < len(names):
                return names[position]
            position -= len(names)
        elif not position:
            return decode_key(key[start:end])
        else:
            position -= 1
    return None


def _count_before(rows: PagedRows, container: bytes, span: tuple[bytes, bytes], name: str) -> int:
    """Return how many children are within row keys, and of a bucket after them before `name`."""
    count = 0
    for _, end, part in child_parts(rows, container, *span):
        if isinstance(part, Page):
            count += part.count
        elif not end and isinstance(part, bytes):
            count += sum(1 for _ in _bucket(part))
        else:
            count += 1
    if len(span[1]) == ROW_KEY_BYTES:
        bucket = rows.get(span[1])
        if bucket is not None and not end_of_key(span[1], len(container)):
            rank = rank_key(name)
            count += sum(1 for each, _ in _bucket(bucket) if rank_key(each) < rank)
    return count
