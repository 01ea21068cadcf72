"""The entries of an index: computed, entered, found, and an index built or dropped in small steps.

The reader and the transaction are given separately, so that writers, building and the check use the
same functions. Each step of building is a transaction of its own and begins where the one before it
ended, whatever has been written in between: entries are put again without harm, and of what writes
have entered or removed nothing is left to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

from treedbd.loop import pause
from treedbd.store.engine import Row, Transaction
from treedbd.store.index_keys import VALUE_BYTES, ChildIndex, Pattern, encode_entry
from treedbd.store.index_states import BuildPosition
from treedbd.store.nodes import Nodes, ReadsNodes
from treedbd.store.ranks import Member, batched, ranks_of
from treedbd.store.rows import ALL, Span, seal_row
from treedbd.tree.path import ValueRank
from treedbd.tree.query import Order, Query
from treedbd.tree.types import CONTAINER, Container, Leaf, Path

_LEAVES: Final = {0: None, 1: False, 2: True, 5: CONTAINER}


def value_of(rank: ValueRank) -> Leaf | Container | None:
    """Return what has a rank; of a string as much as an entry may hold."""
    kind, content = rank
    if isinstance(content, str):
        return content[:VALUE_BYTES]
    found: Leaf | Container | None = _LEAVES.get(kind, content)
    return found


def look_up(nodes: Nodes, order: Order, child: Path) -> tuple[bool, Leaf | Container | None]:
    """Return whether a child exists, and what it is ordered by; raise `DamagedRow`."""
    found = nodes.peek(child)
    if found is None:
        return False, None
    if order.kind == "priority":
        return True, nodes.priority(child)
    return True, found if order.kind == "value" else nodes.peek((*child, *order.path))


def entries_of(
    nodes: ReadsNodes, index: ChildIndex, path: Path, batch: Sequence[Member]
) -> list[Row]:
    """Return the entries of children of a collection, in the order of their keys."""
    collection = index.collection(path)
    if collection is None:
        return []
    ranks = ranks_of(nodes, path, Query(index.order), batch)
    return sorted(
        encode_entry(collection, value_of(rank), key)
        for rank, (key, _) in zip(ranks, batch, strict=True)
    )


def enter(transaction: Transaction, entries: Iterable[Row]) -> None:
    """Store entries."""
    transaction.put_all(map(seal_row, entries))


def enter_collection(transaction: Transaction, nodes: Nodes, index: ChildIndex, path: Path) -> None:
    """Enter all children of a spread collection; pauses."""
    if index.collection(path) is None:
        return
    for batch in batched(nodes.sources(path)):
        enter(transaction, entries_of(nodes, index, path, batch))
        pause()


def find_collections(
    nodes: Nodes, pattern: Pattern, above: Path, start: Path = ()
) -> Iterator[Path]:
    """Iterate over the spread collections of a pattern at or below a path, in key order.

    `above` matches the beginning of the pattern. With `start`, the path of a collection, those
    before it are left out. What is looked at for each is one row key, at least.
    """
    if not nodes.is_spread(above):
        return
    depth = len(above)
    if depth == len(pattern):
        yield above
        return
    wanted = pattern[depth]
    if wanted is not None:
        yield from find_collections(nodes, pattern, (*above, wanted), start)
        return
    first = start[depth] if len(start) > depth and start[:depth] == above else None
    for key in nodes.keys(above, ALL if first is None else Span(at=first)):
        below = start if key == first else ()
        yield from find_collections(nodes, pattern, (*above, key), below)


def matches_above(pattern: Pattern, path: Path) -> bool:
    """Return whether a path is that of a collection of a pattern, or above one."""
    return len(path) <= len(pattern) and all(
        wanted is None or wanted == key for wanted, key in zip(pattern, path, strict=False)
    )


def build_some(
    transaction: Transaction, index: ChildIndex, position: BuildPosition | None, budget: int
) -> BuildPosition | None:
    """Enter about `budget` children after a position; return the new one, None at the end."""
    nodes = Nodes(transaction)
    start = () if position is None else position.collection
    for path in find_collections(nodes, index.pattern, (), start):
        if budget <= 0:
            return BuildPosition(path)
        budget -= 1
        if index.collection(path) is None:
            continue
        is_begun = position is not None and path == position.collection
        after = position.child if is_begun and position is not None else None
        for batch in batched(nodes.sources(path, ALL if after is None else Span(after=after))):
            enter(transaction, entries_of(nodes, index, path, batch))
            budget -= len(batch)
            if budget <= 0:
                return BuildPosition(path, batch[-1][0])
    return None


def drop_some(transaction: Transaction, index: ChildIndex, budget: int) -> bool:
    """Remove at most `budget` entries; return whether there are none left."""
    low, high = index.range
    keys = list(islice(transaction.scan_keys(low, high), budget))
    if keys:
        transaction.delete_range(low, keys[-1] + b"\0")
    return len(keys) < budget
