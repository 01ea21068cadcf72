"""The reference `View`, over one value in memory: every other view must return the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from treedbd.tree.types import Charge, Container, Leaf, Path, Priority, Value, free
from treedbd.tree.value import compact, leaf_of, members, priority_of, value_at


class ValueView:
    """A tree that is one value."""

    def __init__(self, root: Value) -> None:
        self.root: Final = root

    def get(self, path: Path) -> Value:
        """Return the subtree at `path`."""
        return value_at(self.root, path)

    def peek(self, path: Path, charge: Charge = free) -> Leaf | Container | None:
        """Return the leaf, `CONTAINER`, or None; a string costs its characters."""
        leaf = leaf_of(self.get(path))
        if type(leaf) is str:
            charge(len(leaf))
        return leaf

    def type_at(self, path: Path, _: Charge = free) -> type[Leaf] | type[Container] | None:
        """Return the type of what `peek` returns."""
        leaf = leaf_of(self.get(path))
        return None if leaf is None else type(leaf)

    def size(self, path: Path, limit: int) -> int:
        """Return the bytes of the subtree as printed."""
        return len(compact(self.get(path)))

    def priority(self, path: Path, _: Charge = free) -> Priority | None:
        """Return the priority of the node."""
        return priority_of(self.get(path))

    def keys(self, path: Path) -> Iterator[str]:
        """Iterate over the keys of the children."""
        return iter([key for key, _ in members(self.get(path))])
