"""The reference `View`, over one value in memory: every other view must return the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from treedbd.tree.printing import compact
from treedbd.tree.types import Container, Leaf, Path, Priority, Value
from treedbd.tree.value import leaf_of, members, priority_of, value_at


class ValueView:
    """A tree that is one value."""

    def __init__(self, root: Value) -> None:
        self.root: Final = root

    def get(self, path: Path) -> Value:
        """Return the subtree at `path`."""
        return value_at(self.root, path)

    def peek(self, path: Path) -> Leaf | Container | None:
        """Return the leaf, `CONTAINER`, or None."""
        return leaf_of(self.get(path))

    def size(self, path: Path, limit: int) -> int:
        """Return the bytes of the subtree as printed."""
        return len(compact(self.get(path)))

    def priority(self, path: Path) -> Priority | None:
        """Return the priority of the node."""
        return priority_of(self.get(path))

    def keys(self, path: Path) -> Iterator[str]:
        """Iterate over the keys of the children."""
        return iter([key for key, _ in members(self.get(path))])
