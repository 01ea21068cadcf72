"""The hash of a node (`tree.data_hash`), computed from its rows in steps."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from treedbd.limits import MAX_SHOWN_BYTES
from treedbd.pauses import pause
from treedbd.store.nodes import Nodes
from treedbd.tree.data_hash import HashedChild, data_hash, hash_container, hash_leaf
from treedbd.tree.types import Path, Place
from treedbd.tree.value import priority_of


def hash_at(nodes: Nodes, place: Place) -> str | None:
    """Return the hash of what is at a place, None if it is larger than `MAX_SHOWN_BYTES`.

    It pauses between the children of a container that is spread over rows.
    """
    if place.is_priority:
        priority = nodes.priority(place.path)
        return "" if priority is None else hash_leaf(priority, None)
    if nodes.size(place.path, MAX_SHOWN_BYTES) > MAX_SHOWN_BYTES:
        return None
    return _hash(nodes, place.path)


def _hash(nodes: Nodes, path: Path) -> str:
    if not nodes.is_spread(path):
        return data_hash(nodes.get(path))
    return hash_container(partial(_children, nodes, path), nodes.priority(path))


def _children(nodes: Nodes, path: Path) -> Iterator[HashedChild]:
    for child in nodes.children(path):
        below = (*path, child.key)
        if child.is_spread:
            yield HashedChild(child.key, nodes.priority(below), _hash(nodes, below))
        else:
            value = child.value()
            yield HashedChild(child.key, priority_of(value), data_hash(value))
        pause()
