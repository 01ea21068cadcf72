"""Snapshots: what `data`, `newData` and `root` are while a rule is evaluated.

Theory of operation: a snapshot is a view and a path; nothing is read to make one. A method reads
only what it needs: `exists()` and `isString()` the type of the node, the value of a leaf the node
alone; the value of a container is a `Subtree`, which is read only when two of them are compared.

A path that no node can have (`child('a.b')`) names an absent node, and is not an error. It is not
passed to the view, because views rely on valid paths.
"""

from __future__ import annotations

from typing import Any, Final

from treedbd.caches import short_cache
from treedbd.limits import MAX_DEPTH, MAX_KEY_BYTES
from treedbd.rules.budget import EvaluationError
from treedbd.rules.context import Subtree
from treedbd.tree.path import check_key
from treedbd.tree.types import CONTAINER, Container, InvalidPath, Path, View

_MAX_PATH = MAX_DEPTH * (MAX_KEY_BYTES + 1)
_UNKNOWN_EXCESS: Final = 1 << 30
"""More keys than any path has, so no `parent()` leads back to a node."""
CACHED_PATH: Final = 256
"""Characters of the longest path that is split once for all requests."""


class Snapshot:
    """A node of a view.

    `excess` is the number of keys after the longest prefix of the path that a node can have, by its
    keys and its depth; above 0 the node is absent.
    """

    __slots__ = ("excess", "path", "view")

    def __init__(self, view: View, path: Path, excess: int = 0) -> None:
        self.view: Final = view
        self.path: Final = path
        self.excess: Final = excess

    def child(self, path: str) -> Snapshot:
        """Return the node at a slash path below this one, this node for the empty path."""
        keys, excess = split_path(path)
        return self.descend(keys, excess)

    def descend(self, keys: Path, excess: int) -> Snapshot:
        """Return the node at keys below this one, which are a result of `split_path`."""
        if self.excess:
            excess = self.excess + len(keys)
        path = self.path + keys
        return Snapshot(self.view, path, max(excess, len(path) - MAX_DEPTH))

    def parent(self) -> Snapshot:
        """Return the parent; raise `EvaluationError` at the root."""
        if not self.path:
            raise EvaluationError("The root has no parent.")
        return Snapshot(self.view, self.path[:-1], max(self.excess - 1, 0))

    def has(self, keys: Path, excess: int) -> bool:
        """Return whether a node exists at keys below, which are a result of `split_path`."""
        if self.excess or excess:
            return False
        path = self.path + keys
        return len(path) <= MAX_DEPTH and exists_at(self.view, path)

    def val(self) -> Any:
        """Return the leaf, a `Subtree` for a container, None for an absent node."""
        return None if self.excess else leaf_or_subtree_at(self.view, self.path)

    def exists(self) -> bool:
        """Return whether the node exists."""
        return not self.excess and exists_at(self.view, self.path)

    def has_child(self, path: str) -> bool:
        """Return whether a node exists at a slash path below."""
        return self.child(path).exists()

    def has_children(self) -> bool:
        """Return whether the node has a child."""
        return not self.excess and self.view.type_at(self.path) is Container

    def get_priority(self) -> int | float | str | None:
        """Return the priority, None if there is none."""
        return None if self.excess else self.view.priority(self.path)

    def is_number(self) -> bool:
        """Return whether the value is a number."""
        return not self.excess and is_number_at(self.view, self.path)

    def is_string(self) -> bool:
        """Return whether the value is a string."""
        return not self.excess and is_string_at(self.view, self.path)

    def is_boolean(self) -> bool:
        """Return whether the value is true or false."""
        return not self.excess and is_boolean_at(self.view, self.path)


def leaf_or_subtree_at(view: View, path: Path) -> Any:
    """Return the leaf at a valid path, a `Subtree` for a container, None for an absent node."""
    value = view.peek(path)
    return Subtree(view, path) if value is CONTAINER else value


def exists_at(view: View, path: Path) -> bool:
    """Return whether a node exists at a valid path."""
    return view.type_at(path) is not None


def is_number_at(view: View, path: Path) -> bool:
    """Return whether the value at a valid path is a number."""
    value_type = view.type_at(path)
    return value_type is int or value_type is float


def is_string_at(view: View, path: Path) -> bool:
    """Return whether the value at a valid path is a string."""
    return view.type_at(path) is str


def is_boolean_at(view: View, path: Path) -> bool:
    """Return whether the value at a valid path is true or false."""
    return view.type_at(path) is bool


def split_path(path: str) -> tuple[Path, int]:
    """Return the keys of a slash path, and its excess: the number of keys from an invalid one on.

    Empty keys are skipped. Keys below the depth of any node are not checked, and a text longer than
    the path of any node is not split: then the node is absent, and so are the nodes above it.
    """
    if len(path) <= CACHED_PATH:
        return _split_short_path(path)
    if len(path) > _MAX_PATH:
        return (path,), _UNKNOWN_EXCESS
    return _split_path(path)


def _split_path(path: str) -> tuple[Path, int]:
    keys = tuple([key for key in path.split("/") if key])
    for index, key in enumerate(keys[:MAX_DEPTH]):
        try:
            check_key(key)
        except InvalidPath:
            return keys, len(keys) - index
    return keys, max(0, len(keys) - MAX_DEPTH)


_split_short_path = short_cache(4096)(_split_path)
