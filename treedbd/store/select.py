"""The children of a node that a query selects, in its order, reading only what it needs.

There are three ways. A query by key is a range of rows and reads only what it selects. A query by
an index reads its entries (`by_index`), and of the children only those that are shown. Any other
query reads every child, and sorts what it may select (`indexes.Ranking`); it keeps their positions,
and of the children at most a few megabytes: one that is selected and no longer in memory is read
again.

A `where` is tested on the children that the query selects without its limit (`select_passing`), in
whichever way these are found.

`iterate_selected` yields None now and then, so that its caller can do other work in between,
however many children there are.

The children of a collection of a few pages can be sorted as a whole (`sort_children`): then every
query in that order, except one with a `where`, is a slice of what is printed already.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import accumulate, islice, takewhile
from operator import itemgetter
from typing import Any, Final

import attrs

from treedbd.loop import free_beside
from treedbd.store.indexes import (
    CHILD_BYTES,
    VALUE_BYTES,
    ChildIndex,
    Entry,
    Member,
    Ranking,
    batched,
    decode_entry,
    ends_of_orders,
    look_up_rank,
    rank_of_row,
    ranks_in_steps,
    ranks_of,
    read_states,
)
from treedbd.store.nodes import Child, ChildRows, Nodes, Spread, print_source
from treedbd.store.rows import (
    CHUNK_BYTES,
    LARGE_ROW_BYTES,
    Span,
    decode_key,
    parse_stored,
    part_at,
    unseal,
)
from treedbd.tree.path import (
    SAME_RANK,
    ValueRank,
    decode_value,
    encode_key,
    encode_path,
    encode_value,
    rank_key,
    rank_value,
)
from treedbd.tree.query import Bound, Order, Query, TooManyChildren, Where, WhereCondition
from treedbd.tree.types import Path
from treedbd.tree.value import NULL, compact, leaf_of, priority_of
from treedbd.tree.window import Placed

ENTRIES_AT_ONCE: Final = 64
"""Entries of an index that are read in one step, and the children that they name in another."""
YIELD_AFTER: Final = 16
"""Entries, keys or children that are examined between two pauses."""
KEPT_BYTES: Final = 4 * 1_048_576
"""Bytes of rows of children that meet the conditions, kept in memory until all are found."""
_ABOVE_ALL: Final = b"\xff"


def iterate_selected(nodes: Nodes, path: Path, query: Query) -> Iterator[Child | None]:
    """Iterate over the selected children of `path` in order, with a None at each pause."""
    if query.where is not None:
        return select_passing(iterate_in_order(nodes, path, query), nodes, path, query)
    if query.order.kind == "key":
        return _by_key(nodes, path, query)
    index = find_index(nodes, path, query)
    if index is None:
        return _by_rank(nodes, path, query)
    return _limited(by_index(nodes, path, query, index), query)


SORTED_ROWS: Final = 8
"""Pages and rows of the collections whose children are sorted and kept (`sort_children`)."""
SORTED_BYTES: Final = 65_536
"""Bytes of all their children as they are printed, of which each counts `_SORTED_CHILD` more."""
_SORTED_CHILD: Final = 64
_CHILD_MEMORY: Final = 250
"""Bytes of memory that a sorted child takes beside what is printed of it."""


class SortedChildren:
    """All children of a small collection in one order, printed: any query in it shows a slice.

    A collection that is not small has none: `is_small` is False. `size` is about how many bytes of
    memory they take.
    """

    __slots__ = ("_body", "_ends", "_keys", "_ranks", "is_small", "size")

    def __init__(self, children: Sequence[tuple[ValueRank, str, bytes]] | None) -> None:
        """Keep children in their order, each with its rank and as a member of an object."""
        self.is_small: Final = children is not None
        ranks, keys, members = zip(*children, strict=True) if children else ((), (), ())
        self._ranks: Sequence[ValueRank] = ranks
        self._keys: Sequence[str] = keys
        self._body = b",".join(members)
        self._ends = list(accumulate([len(member) + 1 for member in members], initial=0))
        self.size: Final = len(self._body) + _CHILD_MEMORY * len(members)

    def print(self, query: Query) -> bytes:
        """Return the JSON of what a query in their order selects; it has no `where`."""
        ranks, keys, low, high = self._ranks, self._keys, query.low, query.high
        places = range(len(keys))
        start, end = 0, len(keys)
        if low is not None:
            start = bisect_left(places, True, key=lambda at: low.admits_as_low(ranks[at], keys[at]))
        if high is not None:
            end = bisect_left(
                places, True, key=lambda at: not high.admits_as_high(ranks[at], keys[at])
            )
        if query.limit_to_first is not None:
            end = min(end, start + query.limit_to_first)
        if query.limit_to_last is not None:
            start = max(start, end - query.limit_to_last)
        if start >= end:
            return NULL
        return b"{%b}" % self._body[self._ends[start] : self._ends[end] - 1]


def sort_children(nodes: Nodes, path: Path, order: Order, *, is_export: bool) -> SortedChildren:
    """Sort the children of `path` if it is a collection of a few pages, in one short step.

    Of any other only the keys of its first rows are read, or the rows until there are too many.
    """
    if not nodes.is_short(path, SORTED_ROWS, SORTED_BYTES):
        return SortedChildren(None)
    batch: list[Member] = []
    printed: list[bytes] = []
    size = 0
    for key, source in nodes.sources(path):
        if isinstance(source, Spread) or (type(source) is bytes and len(source) > SORTED_BYTES):
            return SortedChildren(None)
        batch.append((key, source))
        printed.append(b"%b:%b" % (compact(key), print_source(source, export=is_export)))
        size += len(printed[-1]) + _SORTED_CHILD
        if size > SORTED_BYTES:
            return SortedChildren(None)
    by_key = order.kind == "key"
    ranks = [SAME_RANK] * len(batch) if by_key else ranks_of(nodes, path, Query(order), batch)
    keys = [key for key, _ in batch]
    # They come in the order of their keys, which stays among those of one rank.
    return SortedChildren(sorted(zip(ranks, keys, printed, strict=True), key=itemgetter(0)))


def draw(
    nodes: Nodes, path: Path, query: Query, wider: Query, placed: list[Placed], *, is_export: bool
) -> Iterator[tuple[str, Iterator[bytes]] | None]:
    """Yield the children that `query` selects in its order, each with its JSON in chunks.

    Those that `wider` selects, the same query with a greater limit, are added to `placed`. The JSON
    of each must be consumed. At a pause None is yielded.
    """
    children: Iterator[Child | None] = iterate_selected(nodes, path, wider)
    shown = range(query.limit_to_first or 2**63)
    if query.limit_to_last is not None:
        found = []
        for child in children:
            if child is not None:
                found.append(child)
            yield None
        shown = range(max(0, len(found) - query.limit_to_last), len(found))
        children = iter(found)
    number = 0
    for child in children:
        if child is None:
            yield None
            continue
        placed.append(((child.rank, rank_key(child.key)), child.key))
        yield (child.key, child.chunks(export=is_export)) if number in shown else None
        number += 1


def find_index(nodes: Nodes, path: Path, query: Query) -> ChildIndex | None:
    """Return the index by which a query of `path` can be answered, None if there is none.

    A collection that is not spread is short: it needs no index, and has no entries.
    """
    if query.order.kind == "key":
        return None
    index = read_states(nodes.rows.stored).find(path, query.order)
    if index is None or index.collection(path) is None or not nodes.is_spread(path):
        return None
    if nodes.rows.is_merged(encode_path(path)):
        return None  # it has no entries of what is volatile
    return index


def iterate_in_order(nodes: Nodes, path: Path, query: Query) -> Iterator[Child | None]:
    """Iterate over the children within bounds from the end where the limit begins.

    The limit itself is ignored. At a pause None is yielded.
    """
    if query.order.kind != "key":
        index = find_index(nodes, path, query)
        if index is not None:
            return by_index(nodes, path, query, index)
        return _all_by_rank(nodes, path, query)
    if query.limit_to_last is None:
        return _by_key(nodes, path, attrs.evolve(query, limit_to_first=None))
    low, high = query.low, query.high
    found: Iterable[Child] = nodes.children(path, _span_from(high, reverse=True))
    if low is not None:
        found = takewhile(lambda child: query.admits(low.rank, child.key), found)
    return iter(found)


def _limited(children: Iterator[Child | None], query: Query) -> Iterator[Child | None]:
    """Yield the children up to the limit, in the order of the query."""
    limit = query.limit_to_first or query.limit_to_last
    last: list[Child] = []
    number = 0
    for child in children:
        if child is None:
            yield None
            continue
        if query.limit_to_last is None:
            yield child
        else:
            last.append(child)
        number += 1
        if number == limit:
            break
    yield from reversed(last)


def _by_key(nodes: Nodes, path: Path, query: Query) -> Iterator[Child | None]:
    low, high = query.low, query.high
    span = _span_from(low)
    if query.limit_to_last is not None:
        first = None
        for number, key in enumerate(_last_keys(nodes, path, query)):
            first = key
            if number % YIELD_AFTER == 0:
                yield None
        if first is None:
            return
        span = Span(at=first)
    found: Iterable[Child] = nodes.children(path, span)
    if high is not None:
        found = takewhile(lambda child: query.admits(high.rank, child.key), found)
    yield from islice(found, query.limit_to_first)


def _last_keys(nodes: Nodes, path: Path, query: Query) -> Iterator[str]:
    """Return as many keys from the end as the query selects, in reverse order."""
    low, high = query.low, query.high
    keys: Iterable[str] = nodes.keys(path, _span_from(high, reverse=True))
    if low is not None:
        keys = takewhile(lambda key: query.admits(low.rank, key), keys)
    return islice(keys, query.limit_to_last)


def _span_from(bound: Bound | None, *, reverse: bool = False) -> Span:
    if bound is None:
        return Span(reverse=reverse)
    if bound.is_inclusive:
        return Span(at=bound.key, reverse=reverse)
    return Span(after=bound.key, reverse=reverse)


def _by_rank(nodes: Nodes, path: Path, query: Query) -> Iterator[Child | None]:
    yield None
    ranking = Ranking(query)
    selected: list[Child] = []
    ranked = _ranked(nodes, path, query, ranking)
    try:
        if query.limit_to_last is None:
            yield from ranked
            return
        for number, child in enumerate(ranked):
            if child is not None:
                selected.append(child)
            if child is None or number % YIELD_AFTER == 0:
                yield None
        while selected:
            yield selected.pop()
    finally:
        ranked.close()
        ranking.free_beside()
        free_beside(selected)


def _ranked(
    nodes: Nodes, path: Path, query: Query, ranking: Ranking
) -> Generator[Child | None, None, None]:
    """Yield the children that `ranking` selects, from the end where its limit begins."""
    for batch in batched(nodes.sources(path)):
        yield None  # to read a long row is a step, and to parse it is another
        ranking.add(batch, (yield from ranks_in_steps(nodes, path, query, batch)))
        yield None
    for tag, content, _, key, source in ranking.in_order():
        yield Child(nodes, path, key, source, (tag, content))
    yield from ranking.forget()


def _all_by_rank(nodes: Nodes, path: Path, query: Query) -> Iterator[Child | None]:
    yield None
    is_last = query.limit_to_last is not None
    unlimited = attrs.evolve(query, limit_to_first=None, limit_to_last=None)
    ranking = Ranking(unlimited, is_last=is_last)
    try:
        yield from _ranked(nodes, path, query, ranking)
    finally:
        ranking.free_beside()


def by_index(nodes: Nodes, path: Path, query: Query, index: ChildIndex) -> Iterator[Child | None]:
    """Iterate in order along the entries of an index.

    Only the entries between the bounds are read, from the end where the limit begins, a run of them
    at a time. Their children are read together, as soon as one of them is shown (`ChildRows`).

    The key of an entry is as long as a row key may be, so of a long string or key only the
    beginning is in it, and the content has the rest: entries that are equal up to there are put in
    order by what their children hold (`Ranking`). All others are read from their keys alone.
    """
    tied: list[Entry] = []
    tie = b""
    collection = index.collection(path) or b""
    for keys in _entries(nodes, query, collection):
        ends = ends_of_orders(keys, len(collection))
        start = 0
        for at in [*[at for at, end in enumerate(ends) if not end], len(keys)]:
            if tied and (at > start or (at < len(keys) and not keys[at].startswith(tie))):
                yield from _in_order(nodes, path, query, tied)
                tied = []
            yield from _children(
                nodes, path, query, len(collection), keys[start:at], ends[start:at]
            )
            if at < len(keys):
                content = unseal(keys[at], nodes.rows.stored.get(keys[at]) or b"")
                tied.append(decode_entry(collection, keys[at], content))
                tie = keys[at][: tied[-1].tie]
            start = at + 1
        yield None
    yield from _in_order(nodes, path, query, tied)


def _entries(nodes: Nodes, query: Query, collection: bytes) -> Iterator[list[bytes]]:
    """Iterate over the keys of entries that may be within the bounds, some at a time."""
    low = collection if query.low is None else collection + _edge(query.low, is_low=True)
    high = collection + (_ABOVE_ALL if query.high is None else _edge(query.high, is_low=False))
    keys = nodes.rows.stored.scan_keys(low, high, reverse=query.limit_to_last is not None)
    count = min(query.limit_to_first or query.limit_to_last or ENTRIES_AT_ONCE, ENTRIES_AT_ONCE)
    while some := list(islice(keys, count)):
        yield some
        count = ENTRIES_AT_ONCE


def _children(
    nodes: Nodes, path: Path, query: Query, start: int, keys: Sequence[bytes], ends: Sequence[int]
) -> Iterator[Child]:
    """Iterate over the children within the bounds, by the keys of entries that are not cut.

    What a child is ordered by is at `start` in the key of its entry, and ends where `ends` says.
    """
    names = [decode_key(key[end:]) for key, end in zip(keys, ends, strict=True)]

    def admits(at: int) -> bool:
        return query.admits(decode_value(keys[at], start)[0], names[at])

    places: Sequence[int] = range(len(keys))
    if keys and not (admits(0) and admits(-1)):  # else those between are within the bounds too
        places = list(filter(admits, places))
    segments = [keys[at][ends[at] :] for at in places]
    rows = ChildRows(nodes.rows, encode_path(path), segments)
    for at, segment in zip(places, segments, strict=True):
        encoded = keys[at][start : ends[at]]
        yield Child(nodes, path, names[at], None, SAME_RANK, rows, segment, encoded)


def _edge(bound: Bound, *, is_low: bool) -> bytes:
    """Return where the entries that a bound admits begin or end; it may include a few more."""
    value = encode_value(bound.value)
    has_others = len(value) > VALUE_BYTES or bound.key is not None
    if len(value) > VALUE_BYTES:
        value = value[:VALUE_BYTES]
    elif bound.key is not None:
        value += encode_key(bound.key)[:CHILD_BYTES]
    # With an exclusive bound of a value alone, all entries at it are left out.
    is_beyond = is_low != (bound.is_inclusive or has_others)
    return value + _ABOVE_ALL if is_beyond else value


def _in_order(nodes: Nodes, path: Path, query: Query, tied: list[Entry]) -> Iterator[Child | None]:
    """Iterate over children whose entries are equal, in the order of what the children hold."""
    ranking = Ranking(
        # Of those that pass a `where`, it is not known yet how many come before.
        query
        if query.where is None
        else attrs.evolve(query, limit_to_first=None, limit_to_last=None),
        is_last=query.limit_to_last is not None,
    )
    try:
        while tied:
            some = tied[-YIELD_AFTER:]
            del tied[-YIELD_AFTER:]
            ranks = []
            for entry in some:
                rank, is_long = entry.rank, False
                if rank is None:
                    rank, is_long = look_up_rank(nodes, (*path, entry.child), query.order)
                ranks.append(rank)
                if is_long:
                    yield None
            places = [rank_key(entry.child) for entry in some]
            ranking.add([(entry.child, None) for entry in some], ranks, places)
            yield None
        for number, (tag, content, _, key, _) in enumerate(ranking.in_order()):
            yield Child(nodes, path, key, None, (tag, content))
            if number % YIELD_AFTER == 0:
                yield None
        yield from ranking.forget()
    finally:
        ranking.free_beside()


def select_passing(
    children: Iterator[Child | None], nodes: Nodes, path: Path, query: Query
) -> Iterator[Child | None]:
    """Yield those of the children that meet `query.where`, in the query's order, within its limit.

    Of each child only what the conditions name is read: rows are parsed some at a time, and of
    a spread child single places are looked up. All children are examined before the first is
    yielded, so that a read which would have to look through too many fails before any of its answer
    is sent. Their rows are kept in memory up to `KEPT_BYTES`; the others are read again.

    `children` are those of `path` within the bounds, from the end where the limit begins. At a
    pause None is yielded. Raises `TooManyChildren` before any child is yielded.
    """
    if query.where is None:
        raise ValueError("The query has no where.")
    limit = query.limit_to_first or query.limit_to_last
    found: list[Child] = []
    kept_bytes = 0
    for child in _passing(children, nodes, path, query.where):
        if child is None:
            yield None
            continue
        kept_bytes += child.row_bytes
        found.append(child if kept_bytes <= KEPT_BYTES else child.without_row())
        if len(found) == limit:
            break
    if query.limit_to_last is not None:
        found.reverse()
    for number, child in enumerate(found):
        if number % YIELD_AFTER == 0:
            yield None
        yield child


def _passing(
    children: Iterator[Child | None], nodes: Nodes, path: Path, where: Where
) -> Iterator[Child | None]:
    looked_at = 0
    for found in children:
        if found is None:
            yield None
            continue
        if looked_at >= where.most_children:
            raise TooManyChildren(where.most_children)
        looked_at += 1
        child = found.with_row()
        if child.row_bytes > CHUNK_BYTES:
            yield None  # to read it was a step, and to parse it is another
        passes = _passes_at_once(child, where.conditions)
        if passes is None:
            passes = yield from _passes(child, nodes, path, where.conditions)
        if passes:
            yield child
        if looked_at % YIELD_AFTER == 0 or child.row_bytes > LARGE_ROW_BYTES:
            yield None


def _passes_at_once(child: Child, conditions: Sequence[WhereCondition]) -> bool | None:
    """Return whether a child passes; None unless its row is known and short."""
    row: Any = child.source
    if isinstance(row, bytes) and len(row) <= LARGE_ROW_BYTES:
        row = parse_stored(row)
    elif row is None or isinstance(row, bytes | Spread):
        return None
    return all(each.is_met(_rank(row, child.key, each)) for each in conditions)


def _passes(
    child: Child, nodes: Nodes, path: Path, conditions: Sequence[WhereCondition]
) -> Generator[None, None, bool]:
    """Return whether a child passes by what the rows hold; a step ends when much was read."""
    place, source = (*path, child.key), child.source
    found: dict[Order, ValueRank] = {}
    for each in conditions:
        if each.kind == "key":
            rank = rank_value(child.key)
        else:
            field = Order(each.kind, each.path)
            if field not in found:
                found[field], is_long = (
                    rank_of_row(source, field)
                    if isinstance(source, bytes)
                    else look_up_rank(nodes, place, field)
                )
                if is_long:
                    yield
            rank = found[field]
        if not each.is_met(rank):
            return False
    return True


def _rank(row: Any, key: str, condition: WhereCondition) -> ValueRank:
    """Return the rank of a field of a child, in normal form or as in a plain row."""
    if condition.kind == "key":
        return rank_value(key)
    if condition.kind == "priority":
        return rank_value(priority_of(row))
    part: Any = part_at(row, condition.path)
    return rank_value(leaf_of(part) if isinstance(part, dict) else part)
