"""The hash of a node (`tree.data_hash`), computed from its rows in steps."""

from __future__ import annotations

from typing import Protocol

from treedbd.limits import MAX_SHOWN_BYTES
from treedbd.pauses import pause
from treedbd.tree.data_hash import HashedChild, data_hash, hash_container, hash_leaf
from treedbd.tree.types import Path, Place
from treedbd.tree.view import View


class SpreadView(View, Protocol):
    """A tree at one moment, in rows (`store.nodes.Nodes`)."""

    def is_spread(self, path: Path) -> bool:
        """Return whether the node at `path` is spread over the rows of its children."""
        ...


def hash_at(nodes: SpreadView, place: Place) -> str | None:
    """Return the hash of what is at a place, None if it is larger than `MAX_SHOWN_BYTES`.

    It pauses between the children of a container that is spread over rows.
    """
    if place.is_priority:
        priority = nodes.priority(place.path)
        return "" if priority is None else hash_leaf(priority, None)
    if nodes.size(place.path, MAX_SHOWN_BYTES) > MAX_SHOWN_BYTES:
        return None
    return _hash(nodes, place.path)


def _hash(nodes: SpreadView, path: Path) -> str:
    if not nodes.is_spread(path):
        return data_hash(nodes.get(path))
    children = []
    for key in nodes.keys(path):
        below = (*path, key)
        children.append(HashedChild(key, nodes.priority(below), _hash(nodes, below)))
        pause()
    return hash_container(children, nodes.priority(path))
