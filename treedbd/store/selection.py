"""What a query shows of the children of a node, in its order, reading no more than it has to.

A query by key is a range of rows and reads only what it shows. Any other looks at every child; it
remembers positions, and of the children no more than a few megabytes: one that is shown later and
not held any more is read again. Whoever drives `choose` gets None now and then, so that others can
have their turn however many children there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import islice, takewhile
from operator import itemgetter
from typing import Final, TypeAlias

from treedbd.store.layout import Span
from treedbd.store.nodes import Child, Nodes
from treedbd.tree.order import KeyRank, ValueRank, rank_key
from treedbd.tree.path import Path
from treedbd.tree.query import Bound, Query, Selection

RUN: Final = 1024
"""So many children are sorted at a time."""
LOOKED_AT: Final = 16
"""After so many children at most comes a None, or one that is shown."""
HELD_BYTES: Final = 4 * 1_048_576

_Found: TypeAlias = tuple[tuple[ValueRank, KeyRank], Child]
_position = itemgetter(0)


def select(nodes: Nodes, path: Path, query: Query) -> Selection:
    """Return the children of `path` that a query shows, in its order, with their values."""
    chosen = choose(nodes, path, query)
    return [(child.key, child.value()) for child in chosen if child is not None]


def choose(nodes: Nodes, path: Path, query: Query) -> Iterator[Child | None]:
    """Iterate over the children of `path` that a query shows, in its order; None now and then."""
    return (_by_key if query.order.kind == "key" else _by_rank)(nodes, path, query)


def _by_key(nodes: Nodes, path: Path, query: Query) -> Iterator[Child | None]:
    low, high = query.low, query.high
    span = _span_from(low)
    if query.limit_to_last is not None:
        first = None
        for count, key in enumerate(_last_keys(nodes, path, query)):
            first = key
            if count % LOOKED_AT == 0:
                yield None
        if first is None:
            return
        span = Span(at=first)
    found: Iterable[Child] = nodes.children(path, span)
    if high is not None:
        found = takewhile(lambda child: query.admits(high.rank, child.key), found)
    yield from islice(found, query.limit_to_first)


def _last_keys(nodes: Nodes, path: Path, query: Query) -> Iterator[str]:
    """Return as many keys from the end as the query shows, in reverse order."""
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
    runs: list[list[_Found]] = []
    run: list[_Found] = []
    held = 0
    for count, child in enumerate(nodes.children(path)):
        if count % LOOKED_AT == 0:
            yield None
        rank = child.rank(query)
        if not query.admits(rank, child.key):
            continue
        held += child.weight
        if held > HELD_BYTES:
            child.forget()
        run.append(((rank, rank_key(child.key)), child))
        if len(run) >= RUN:
            run = _store(runs, run, query)
    _store(runs, run, query)
    is_last = query.limit_to_last is not None
    in_order = merge(*runs, key=_position, reverse=is_last)
    if not is_last:
        yield from (child for _, child in islice(in_order, query.limit_to_first))
        return
    shown: list[Child] = []
    for count, (_, child) in enumerate(islice(in_order, query.limit_to_last)):
        shown.append(child)
        if count % LOOKED_AT == 0:
            yield None
    yield from reversed(shown)


def _store(runs: list[list[_Found]], run: list[_Found], query: Query) -> list[_Found]:
    """Sort a run, and keep it as far as the limit may let it through; return the next one."""
    limit = query.limit_to_first or query.limit_to_last
    is_short = limit is not None and limit <= RUN
    if is_short and runs:
        run += runs.pop()
    run.sort(key=_position, reverse=query.limit_to_last is not None)
    runs.append(run[:limit] if is_short else run)
    return []
