"""The children of a node that a query selects, in its order, reading no more than it needs.

A query by key is a range of rows and reads only what it selects. Any other query reads every child;
it keeps their positions, and of the children at most a few megabytes: one that is selected and no
longer in memory is read again. `iterate_selected` yields None now and then, so that its caller can
do other work in between, however many children there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import islice, takewhile
from operator import itemgetter
from typing import Final, TypeAlias

from treedbd.store.nodes import Child, Nodes
from treedbd.store.row_codec import parse_stored
from treedbd.store.row_keys import Span
from treedbd.tree.event import Event
from treedbd.tree.order import KeyRank, ValueRank, rank_key, rank_value
from treedbd.tree.query import Bound, Query
from treedbd.tree.types import Path
from treedbd.tree.window import Digest, Window

RUN_CHILDREN: Final = 1024
"""Children that are sorted at a time."""
YIELD_AFTER: Final = 16
"""At least once in this many children a None or a selected child is yielded."""
KEPT_BYTES: Final = 4 * 1_048_576
"""Bytes of children that are kept in memory while they are sorted."""

_SAME_RANK: Final = rank_value(None)

_Found: TypeAlias = tuple[tuple[ValueRank, KeyRank], Child]
_position = itemgetter(0)


def iterate_selected(nodes: Nodes, path: Path, query: Query) -> Iterator[Child | None]:
    """Iterate over the selected children of `path` in order, with a None at each pause."""
    return (_by_key if query.order.kind == "key" else _by_rank)(nodes, path, query)


def draw(
    nodes: Nodes, path: Path, query: Query, window: Window
) -> Iterator[tuple[str, Iterator[bytes]] | None]:
    """Yield the children that `query` selects in its order, each with its JSON in chunks.

    The JSON of each must be consumed. At a pause None is yielded.
    """
    children: Iterator[Child | None] = iterate_selected(nodes, path, window.wider_query)
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
        if number in shown:
            yield child.key, _show(child, query, window)
        else:
            window.keep(child.key, _rank(child, query))
            yield None
        number += 1
    window.finish()


def redraw(
    nodes: Nodes, path: Path, query: Query, window: Window, former: Window, events: list[Event]
) -> Iterator[None]:
    """Add to `events` what brings a client from what `former` shows to what `window` shows."""
    for member in draw(nodes, path, query, window):
        if member is not None:
            key, chunks = member
            printed = b"".join(chunks)
            if not window.shows_as(former, key):
                events.append(Event("put", (key,), parse_stored(printed)))
        yield
    events += [Event("put", (key,), None) for key in window.keys_left_since(former)]


def _by_key(nodes: Nodes, path: Path, query: Query) -> Iterator[Child | None]:
    low, high = query.low, query.high
    span = _span_from(low)
    if query.limit_to_last is not None:
        first = None
        for count, key in enumerate(_last_keys(nodes, path, query)):
            first = key
            if count % YIELD_AFTER == 0:
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
    runs: list[list[_Found]] = []
    run: list[_Found] = []
    kept_bytes = 0
    for count, child in enumerate(nodes.children(path)):
        if count % YIELD_AFTER == 0:
            yield None
        rank = child.rank(query)
        if not query.admits(rank, child.key):
            continue
        kept_bytes += child.cached_bytes
        if kept_bytes > KEPT_BYTES:
            child.release()
        run.append(((rank, rank_key(child.key)), child))
        if len(run) >= RUN_CHILDREN:
            run = _add_run(runs, run, query)
    _add_run(runs, run, query)
    is_last = query.limit_to_last is not None
    in_order = merge(*runs, key=_position, reverse=is_last)
    if not is_last:
        yield from (child for _, child in islice(in_order, query.limit_to_first))
        return
    selected: list[Child] = []
    for count, (_, child) in enumerate(islice(in_order, query.limit_to_last)):
        selected.append(child)
        if count % YIELD_AFTER == 0:
            yield None
    yield from reversed(selected)


def _add_run(runs: list[list[_Found]], run: list[_Found], query: Query) -> list[_Found]:
    """Sort a run and add what the limit may select to `runs`; return the next run."""
    limit = query.limit_to_first or query.limit_to_last
    is_short = limit is not None and limit <= RUN_CHILDREN
    if is_short and runs:
        run += runs.pop()
    run.sort(key=_position, reverse=query.limit_to_last is not None)
    runs.append(run[:limit] if is_short else run)
    return []


def _show(child: Child, query: Query, window: Window) -> Iterator[bytes]:
    digest = Digest()
    for chunk in child.chunks():
        digest.update(chunk)
        yield chunk
    window.show(child.key, _rank(child, query), digest.value)


def _rank(child: Child, query: Query) -> ValueRank:
    return _SAME_RANK if query.order.kind == "key" else child.rank(query)
