"""What the entries of indexes must be, computed from the tree alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from treedbd.store.engine import ReadView
from treedbd.store.indexes import INDEX_END, INDEX_FIRST, ChildIndex, encode_entry
from treedbd.store.nodes import Nodes
from treedbd.store.rows import unseal
from treedbd.tree.types import Path, Value
from treedbd.tree.value import leaf_of, members, priority_of, value_at


def ordered_by(index: ChildIndex, child: Value) -> object:
    """Return what an index orders a child by."""
    kind = index.order.kind
    if kind == "priority":
        return priority_of(child)
    return leaf_of(child) if kind == "value" else leaf_of(value_at(child, index.order.path))


def collections(value: Value, index: ChildIndex, path: Path = ()) -> Iterator[tuple[Path, Value]]:
    """Iterate over everything whose path matches the pattern of an index."""
    if len(path) == len(index.pattern):
        yield path, value
        return
    for key, child in members(value):
        if index.pattern[len(path)] in (None, key):
            yield from collections(child, index, (*path, key))


def expected_entries(view: ReadView, indexes: Iterable[ChildIndex]) -> list[tuple[bytes, bytes]]:
    """Return all entries that there must be, with their contents."""
    nodes = Nodes(view)
    tree = nodes.get(())
    found = []
    for index in indexes:
        for path, value in collections(tree, index):
            collection = index.collection(path)
            if collection is not None and nodes.is_spread(path):
                found += [
                    encode_entry(collection, ordered_by(index, child), key)
                    for key, child in members(value)
                ]
    return sorted(found)


def check_entries(view: ReadView, indexes: Iterable[ChildIndex]) -> None:
    """Assert that exactly the entries are there that must be."""
    rows = view.scan(INDEX_FIRST, INDEX_END)
    assert [(key, unseal(key, stored)) for key, stored in rows] == expected_entries(view, indexes)
