"""The ranks of children in a query that is not by key, of many children at once.

Of each child only what it is ordered by is looked at. The rows of a batch are parsed by one call,
which takes a fraction of the time of one call for each. They are not brought into normal form: in a
plain row an array is an array, and an index in the path of the order finds its item.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TypeAlias

from treedbd.store.child import ReadsNodes
from treedbd.store.children import ChildSource, Spread
from treedbd.store.engine import DamagedRow
from treedbd.store.row_codec import (
    CONTAINERS,
    has_priorities,
    parse_stored,
    part_at,
    without_string,
)
from treedbd.tree.order import ValueRank, rank_value, rank_values
from treedbd.tree.printing import NULL
from treedbd.tree.query import Order, OrderKind, Query
from treedbd.tree.types import CONTAINER, Json, Path
from treedbd.tree.value import leaf_of, priority_of

BATCH_CHILDREN: Final = 64
"""Children whose ranks are found in one step."""
BATCH_BYTES: Final = 65_536
"""Bytes of rows beyond which no other child joins a batch."""
_SPREAD_BYTES: Final = 4096
"""Bytes whose parsing costs less than the lookup that a spread child needs."""

Member: TypeAlias = tuple[str, ChildSource]


def batched(members: Iterable[Member]) -> Iterator[list[Member]]:
    """Yield the children, some at a time."""
    batch: list[Member] = []
    size = 0
    for member in members:
        batch.append(member)
        source = member[1]
        if isinstance(source, bytes):
            size += len(source)
        elif isinstance(source, Spread):
            size += _SPREAD_BYTES
        if len(batch) >= BATCH_CHILDREN or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def ranks_of(
    nodes: ReadsNodes, path: Path, query: Query, batch: Sequence[Member]
) -> list[ValueRank]:
    """Return the rank of each child of `path` in a batch; raise `DamagedRow`."""
    sources: list[Any] = [source for _, source in batch]
    raws = [source for source in sources if type(source) is bytes]
    if len(raws) == len(sources):
        return _ranks(_parse(raws, query.order.kind), query.order)
    parsed = iter(_parse(raws, query.order.kind))
    children = [next(parsed) if type(source) is bytes else source for source in sources]
    ranks = _ranks(children, query.order)
    for at, (key, source) in enumerate(batch):
        if isinstance(source, Spread):
            ranks[at] = _rank_spread(nodes, (*path, key), query)
    return ranks


def _parse(raws: Sequence[bytes], kind: OrderKind) -> list[Json]:
    """Parse rows; what a query of this kind need not look at is replaced by something shorter."""
    if kind == "priority":
        raws = [without_string(raw) if has_priorities(raw) else NULL for raw in raws]
    elif kind == "value":
        raws = [b"{}" if raw[0] in CONTAINERS else raw for raw in raws]
    elif raws:  # no row is long but the last of a batch
        raws = [*raws[:-1], without_string(raws[-1])]
    try:
        rows = parse_stored(b"[%b]" % b",".join(raws))
    except DamagedRow:
        rows = None
    if isinstance(rows, list) and len(rows) == len(raws):
        return rows
    return [parse_stored(raw) for raw in raws]


def _ranks(children: Sequence[Any], order: Order) -> list[ValueRank]:
    """Return the ranks of children, each in normal form or as in a plain row."""
    path = order.path
    if order.kind == "priority":
        return rank_values([priority_of(child) for child in children])
    parts: list[Any]
    if len(path) == 1:
        key = path[0]
        parts = [
            child.get(key) if type(child) is dict else part_at(child, path) for child in children
        ]
    else:
        parts = [part_at(child, path) for child in children]
    return rank_values([leaf_of(part) if type(part) is dict else part for part in parts])


def _rank_spread(nodes: ReadsNodes, path: Path, query: Query) -> ValueRank:
    kind = query.order.kind
    if kind == "priority":
        return rank_value(nodes.priority(path))
    if kind == "child":
        return rank_value(nodes.peek((*path, *query.order.path)))
    return rank_value(CONTAINER)
