"""What a query selects from the nodes of one moment, reading no more than it has to.

A query by key is a range of rows and reads only what it shows. Any other looks at every child.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice, takewhile
from typing import TypeVar

from treedbd.store.layout import Span
from treedbd.store.nodes import Nodes
from treedbd.tree.path import Path
from treedbd.tree.query import Query, Selection

T = TypeVar("T")


def select(nodes: Nodes, path: Path, query: Query) -> Selection:
    """Return the children of `path` that a query shows, in its order."""
    if query.order.kind != "key":
        return query.select(nodes.child_values(path))
    return list(select_by_key(query, lambda span: nodes.child_values(path, span)))


def select_by_key(
    query: Query, children: Callable[[Span], Iterable[tuple[str, T]]]
) -> Iterable[tuple[str, T]]:
    """Return what a query by key shows, in its order, of `children`, which reads a span of them."""
    is_reverse = query.limit_to_last is not None
    near, far = (query.high, query.low) if is_reverse else (query.low, query.high)
    span = Span(reverse=is_reverse)
    if near is not None:
        span = Span(reverse=is_reverse, **{"at" if near.is_inclusive else "after": near.key})
    found = children(span)
    if far is not None:
        found = takewhile(lambda child: query.admits(far.rank, child[0]), found)
    found = islice(found, query.limit_to_last or query.limit_to_first)
    return reversed(list(found)) if is_reverse else found
