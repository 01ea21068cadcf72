"""The children of a node that a query selects, in its order, reading no more than it needs.

A query by key is a range of rows and reads only what it selects, and so does one with an index
(`index_select`). Any other query reads every child; it keeps their positions, and of the children
at most a few megabytes: one that is selected and no longer in memory is read again.
`iterate_selected` yields None now and then, so that its caller can do other work in between,
however many children there are.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from heapq import merge
from itertools import count, islice, takewhile
from typing import Any, Final, TypeAlias

import attrs

from treedbd.pauses import free_beside
from treedbd.store.child import Child
from treedbd.store.children import ChildSource
from treedbd.store.filtered import select_passing
from treedbd.store.index_keys import ChildIndex
from treedbd.store.index_select import by_index
from treedbd.store.index_states import read_states
from treedbd.store.nodes import Nodes
from treedbd.store.ranks import Member, batched, ranks_of
from treedbd.store.row_keys import Span
from treedbd.tree.order import ABOVE_ALL, BELOW_ALL, ValueRank, rank_key
from treedbd.tree.query import Bound, Query
from treedbd.tree.types import Path
from treedbd.tree.window import Placed

RUN_CHILDREN: Final = 1024
"""Children that are sorted at a time."""
YIELD_AFTER: Final = 16
"""Of the keys of a query by key, and of children that are put in reverse, a None after so many."""
KEPT_BYTES: Final = 4 * 1_048_576
"""Bytes of children that are kept in memory while they are sorted."""

_Found: TypeAlias = tuple[int, Any, int, str, ChildSource]
"""A child: its rank, its number among the children, its key, and its row unless it was released.

No two have the same number, so tuples compare by rank, then in key order.
"""


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


def find_index(nodes: Nodes, path: Path, query: Query) -> ChildIndex | None:
    """Return the index by which a query of `path` can be answered, None if there is none.

    A collection that is not spread is short: it needs no index, and has no entries.
    """
    if query.order.kind == "key":
        return None
    index = read_states(nodes.rows.stored).find(path, query.order)
    if index is None or index.collection(path) is None or not nodes.is_spread(path):
        return None
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


def _all_by_rank(nodes: Nodes, path: Path, query: Query) -> Iterator[Child | None]:
    yield None
    is_last = query.limit_to_last is not None
    unlimited = attrs.evolve(query, limit_to_first=None, limit_to_last=None)
    ranking = _Ranking(unlimited, is_last=is_last)
    try:
        yield from _ranked(nodes, path, query, ranking)
    finally:
        ranking.free_beside()


def draw(
    nodes: Nodes,
    path: Path,
    query: Query,
    wider: Query,
    placed: list[Placed],
    *,
    is_export: bool,
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
    ranking = _Ranking(query)
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
    nodes: Nodes, path: Path, query: Query, ranking: _Ranking
) -> Generator[Child | None, None, None]:
    """Yield the children that `ranking` selects, from the end where its limit begins."""
    for batch in batched(nodes.sources(path)):
        yield None  # to read a long row is a step, and to parse it is another
        ranking.add(batch, ranks_of(nodes, path, query, batch))
        yield None
    for tag, content, _, key, source in ranking.in_order():
        yield Child(nodes, path, key, source, (tag, content))
    yield from ranking.forget()


class _Ranking:
    """The children that a query may select, of those that were added; in key order they must be.

    They are sorted in runs. With a short limit there is one run, and as soon as it is as long as
    the limit, its last child narrows the range of the ranks that need be looked at.
    """

    def __init__(self, query: Query, *, is_last: bool = False) -> None:
        self._query = query
        self._limit = query.limit_to_first or query.limit_to_last
        self._is_last = is_last or query.limit_to_last is not None
        self._is_short = self._limit is not None and self._limit <= RUN_CHILDREN
        self._lowest = BELOW_ALL if query.low is None else query.low.rank
        self._highest = ABOVE_ALL if query.high is None else query.high.rank
        self._numbers = count()
        self._run: list[_Found] = []
        # Tuples, since those of mere texts and numbers cost the garbage collector nothing.
        self._runs: list[tuple[_Found, ...]] = []
        self._kept_bytes = 0

    def add(self, batch: Sequence[Member], ranks: Sequence[ValueRank]) -> None:
        """Add children that follow those before."""
        lowest, highest, admits = self._lowest, self._highest, self._query.admits
        found: list[_Found] = [
            (*rank, number, key, source)
            for rank, number, (key, source) in zip(ranks, self._numbers, batch, strict=False)
            if lowest < rank < highest or (lowest <= rank <= highest and admits(rank, key))
        ]
        self._kept_bytes += _row_bytes(found)
        if self._kept_bytes > KEPT_BYTES:
            found = [_release(child) for child in found]
        self._run += found
        if len(self._run) >= (2 * (self._limit or 0) if self._is_short else RUN_CHILDREN):
            self._end_run()

    def in_order(self) -> Iterator[_Found]:
        """Return the selected children from the end where the limit begins."""
        self._end_run()
        return islice(merge(*self._runs, reverse=self._is_last), self._limit)

    def forget(self) -> Iterator[None]:
        """Forget the children, some of them in each step."""
        while self._runs:
            self._runs.pop()
            yield None

    def free_beside(self) -> None:
        """Forget the children that are left: who asked for them has gone."""
        free_beside(self._runs)

    def _end_run(self) -> None:
        run = self._run
        run.sort(reverse=self._is_last)
        if not self._is_short:
            self._runs.append(tuple(run))
            self._run = []
            return
        del run[self._limit :]
        self._runs = [tuple(run)]
        self._kept_bytes = _row_bytes(run)
        if len(run) == self._limit:
            last = run[-1][:2]
            if self._is_last:
                self._lowest = last
            else:
                self._highest = last


def _row_bytes(found: Iterable[_Found]) -> int:
    return sum([len(child[4]) for child in found if type(child[4]) is bytes])


def _release(child: _Found) -> _Found:
    """Release the row of a child; it is read again if it is needed."""
    return (*child[:4], None) if isinstance(child[4], bytes) else child
