"""The hash of a node (`tree.hashes`), computed from its rows in steps."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Protocol

from treedbd.limits import MAX_SHOWN_BYTES
from treedbd.loop import pause
from treedbd.store.child import Child, ReadsNodes
from treedbd.tree.hashes import HashedChild, data_hash, hash_container, hash_leaf
from treedbd.tree.types import Path, Place
from treedbd.tree.value import priority_of


class ReadsSizes(ReadsNodes, Protocol):
    """What a hash is made with: `nodes.Nodes`, which has the same methods."""

    def size(self, path: Path, limit: int) -> int:
        """Return the bytes of the rows of `path`; counting stops beyond `limit`."""

    def is_spread(self, path: Path) -> bool:
        """Return whether `path` has rows of its own for its children."""

    def children(self, path: Path) -> Iterator[Child]:
        """Yield the children of `path` by key."""


def hash_at(nodes: ReadsSizes, place: Place) -> str | None:
    """Return the hash of what is at a place, None if it is larger than `MAX_SHOWN_BYTES`.

    It pauses between the children of a container that is spread over rows.
    """
    if place.is_priority:
        priority = nodes.priority(place.path)
        return "" if priority is None else hash_leaf(priority, None)
    if nodes.size(place.path, MAX_SHOWN_BYTES) > MAX_SHOWN_BYTES:
        return None
    return _hash(nodes, place.path)


def _hash(nodes: ReadsSizes, path: Path) -> str:
    if not nodes.is_spread(path):
        return data_hash(nodes.get(path))
    return hash_container(partial(_children, nodes, path), nodes.priority(path))


def _children(nodes: ReadsSizes, path: Path) -> Iterator[HashedChild]:
    for child in nodes.children(path):
        below = (*path, child.key)
        if child.is_spread:
            yield HashedChild(child.key, nodes.priority(below), _hash(nodes, below))
        else:
            value = child.value()
            yield HashedChild(child.key, priority_of(value), data_hash(value))
        pause()
