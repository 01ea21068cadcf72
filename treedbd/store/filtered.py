"""The children of a node that meet a `where`, of those that a query selects without its limit.

Of each child only what the conditions name is looked at: rows are parsed some at a time, and of a
spread child single places are looked up. All children are looked through before the first is
yielded, so that a read which would have to look through too many fails before any of its answer is
sent. Their rows are kept in memory up to a few megabytes; the others are read again.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import Any, Final

from treedbd.store.child import Child, ReadsNodes
from treedbd.store.children import Spread
from treedbd.store.ranks import look_up_rank, rank_of_row
from treedbd.store.rows import CHUNK_BYTES, LARGE_ROW_BYTES, parse_stored, part_at
from treedbd.tree.path import ValueRank, rank_value
from treedbd.tree.query import Order, Query, TooManyChildren, Where, WhereCondition
from treedbd.tree.types import Path
from treedbd.tree.value import leaf_of, priority_of

YIELD_AFTER: Final = 16
"""Children that are looked at between two pauses."""
KEPT_BYTES: Final = 4 * 1_048_576
"""Bytes of rows of children that meet the conditions, kept in memory until all are found."""


def select_passing(
    children: Iterator[Child | None], nodes: ReadsNodes, path: Path, query: Query
) -> Iterator[Child | None]:
    """Yield those of the children that meet `query.where`, in the query's order, within its limit.

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
    children: Iterator[Child | None], nodes: ReadsNodes, path: Path, where: Where
) -> Iterator[Child | None]:
    looked_at = 0
    for child in children:
        if child is None:
            yield None
            continue
        if looked_at >= where.most_children:
            raise TooManyChildren(where.most_children)
        looked_at += 1
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
    """Return whether a child passes whose row is known, and not long; None for any other."""
    row: Any = child.found_source()
    if isinstance(row, bytes) and len(row) <= LARGE_ROW_BYTES:
        row = parse_stored(row)
    elif row is None or isinstance(row, bytes | Spread):
        return None
    return all(each.is_met(_rank(row, child.key, each)) for each in conditions)


def _passes(
    child: Child, nodes: ReadsNodes, path: Path, conditions: Sequence[WhereCondition]
) -> Generator[None, None, bool]:
    """Return whether a child passes by what the rows hold; a step ends when much was read."""
    place, source = (*path, child.key), child.found_source()
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
