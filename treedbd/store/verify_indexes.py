"""Proves the entries of indexes against the tree.

Collection by collection: each entry must be that of a child, and there must be as many entries as
children. So no more than one child is in memory, however large the database is. It only reads, and
reports what it cannot read.
"""

from __future__ import annotations

from collections.abc import Iterator

from treedbd.store.disconnect_rows import check_rows
from treedbd.store.engine import DamagedRow, ReadView
from treedbd.store.indexes import (
    DISCONNECT_END,
    DISCONNECT_FIRST,
    INDEX_END,
    INDEX_FIRST,
    STATE_KEY,
    USAGE_KEY,
    ChildIndex,
    IndexStates,
    decode_entry,
    encode_entry,
    find_collections,
    look_up,
    read_states,
)
from treedbd.store.nodes import Nodes
from treedbd.store.rows import unseal
from treedbd.tree.path import format_path
from treedbd.tree.types import Path

_BEYOND_STATES = b"\xff"


def verify_indexes(view: ReadView) -> Iterator[str]:
    """Yield a sentence for each thing that is wrong with the indexes of a database."""
    try:
        states = read_states(view)
    except DamagedRow as error:
        yield f"The indexes cannot be checked: {error}"
        return
    others = {STATE_KEY, USAGE_KEY}
    for low, high in ((STATE_KEY, DISCONNECT_FIRST), (DISCONNECT_END, _BEYOND_STATES)):
        if any(key not in others for key in view.scan_keys(low, high)):
            yield "There are rows that belong to nothing."
    yield from check_rows(view)
    yield from _verify_unknown(view, states)
    nodes = Nodes(view)
    for state in states.states:
        if state.stage != "dropping":
            try:
                yield from _verify(nodes, state.index, is_built=state.stage == "built")
            except (DamagedRow, ValueError) as error:
                yield f"The index {state.index.name} cannot be checked: {error}"


def _verify_unknown(view: ReadView, states: IndexStates) -> Iterator[str]:
    """Look for entries of indexes that there are not."""
    low = INDEX_FIRST
    for begin, end in sorted(each.index.range for each in states.states):
        if next(view.scan_keys(low, begin), None) is not None:
            yield "There are entries of an index that does not exist."
        low = end
    if next(view.scan_keys(low, INDEX_END), None) is not None:
        yield "There are entries of an index that does not exist."


def _verify(nodes: Nodes, index: ChildIndex, *, is_built: bool) -> Iterator[str]:
    counted = 0
    for path in find_collections(nodes, index.pattern, ()):
        collection = index.collection(path)
        if collection is None:
            continue
        found = 0
        for finding in _verify_collection(nodes, index, path, collection):
            found += finding is None
            if finding is not None:
                yield finding
        counted += found
        if is_built:
            missing = sum(1 for _ in nodes.keys(path)) - found
            if missing:
                yield f"{_name(index, path)} lacks the entries of {missing} children."
    if sum(1 for _ in nodes.rows.stored.scan_keys(*index.range)) > counted:
        yield f"The index {index.name} has entries that belong to no child."


def _verify_collection(
    nodes: Nodes, index: ChildIndex, path: Path, collection: bytes
) -> Iterator[str | None]:
    """Yield None for each entry of a collection that is right, else a sentence."""
    end = collection[:-1] + bytes((collection[-1] + 1,))
    for key, stored in nodes.rows.stored.scan(collection, end):
        try:
            content = unseal(key, stored)
            child = decode_entry(collection, key, content).child
        except (ValueError, IndexError):
            yield f"{_name(index, path)} has an entry that cannot be read."
            continue
        exists, value = look_up(nodes, index.order, (*path, child))
        if exists and encode_entry(collection, value, child) == (key, content):
            yield None
        else:
            yield f"{_name(index, path)} has a wrong entry of {child[:200]!r}."


def _name(index: ChildIndex, path: Path) -> str:
    return f"The index {index.name} of {format_path(path)[:200]}"
