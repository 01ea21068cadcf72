"""What a query selects from the nodes of one moment, reading no more than it has to.

A query by key is a range of rows and reads only what it shows. Any other looks at every child.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice, takewhile

from treedbd.store.layout import Span
from treedbd.store.nodes import Nodes
from treedbd.tree.path import Path
from treedbd.tree.query import Query, Selection
from treedbd.tree.value import Value


def select(nodes: Nodes, path: Path, query: Query) -> Selection:
    """Return the children of `path` that a query shows, in its order."""
    if query.order.kind != "key":
        return query.select(nodes.child_values(path))
    return query.select(_in_reach(nodes, path, query))


def _in_reach(nodes: Nodes, path: Path, query: Query) -> Iterable[tuple[str, Value]]:
    """Iterate from the bound that a query by key starts at, up to the other one or its limit."""
    is_reverse = query.limit_to_last is not None
    near, far = (query.high, query.low) if is_reverse else (query.low, query.high)
    span = Span(reverse=is_reverse)
    if near is not None:
        span = Span(reverse=is_reverse, **{"at" if near.is_inclusive else "after": near.key})
    children: Iterable[tuple[str, Value]] = nodes.child_values(path, span)
    if far is not None:
        children = takewhile(lambda child: query.admits(far.rank, child[0]), children)
    return islice(children, query.limit_to_last or query.limit_to_first)
