"""The children of a node that a query selects, in its order, reading no more than it needs.

A query by key is a range of rows and reads only what it selects, and so does one with an index
(`index_select`). Any other query reads every child; it keeps their positions, and of the children
at most a few megabytes: one that is selected and no longer in memory is read again.
`iterate_selected` yields None now and then, so that its caller can do other work in between,
however many children there are.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from itertools import islice, takewhile
from typing import Final

import attrs

from treedbd.loop import free_beside
from treedbd.store.child import Child
from treedbd.store.filtered import select_passing
from treedbd.store.index_keys import ChildIndex
from treedbd.store.index_select import by_index
from treedbd.store.index_states import read_states
from treedbd.store.nodes import Nodes
from treedbd.store.ranks import Ranking, batched, ranks_in_steps
from treedbd.store.rows import Span
from treedbd.tree.path import rank_key
from treedbd.tree.query import Bound, Query
from treedbd.tree.types import Path
from treedbd.tree.window import Placed

YIELD_AFTER: Final = 16
"""Of the keys of a query by key, and of children that are put in reverse, a None after so many."""


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
    ranking = Ranking(unlimited, is_last=is_last)
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
