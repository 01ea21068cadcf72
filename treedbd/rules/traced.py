"""What a rule has read, for an explanation of why it is not true."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

import attrs

from treedbd.tree.types import Charge, Container, Leaf, Path, Priority, Value, View, free

MAX_READS: Final = 20
"""Reads of one rule that are shown."""


@attrs.frozen
class TracedRead:
    """One read of a rule.

    Attributes:
        tree: `data` for the tree before the operation, `newData` for the one after it.
        path: the node.
        found: the leaf, None for nothing; if only that was read, its type, or `Container`.

    """

    tree: Literal["data", "newData"]
    path: Path
    found: Leaf | type[Leaf] | type[Container] | None


class TracedView:
    """A `View` that adds what is read to `reads`, as far as it is shown."""

    def __init__(
        self, view: View, tree: Literal["data", "newData"], reads: dict[TracedRead, None]
    ) -> None:
        self._view: Final = view
        self._tree: Final = tree
        self._reads: Final = reads

    def get(self, path: Path) -> Value:
        """Return the whole subtree at `path`."""
        self._trace(path, Container)
        return self._view.get(path)

    def peek(self, path: Path, charge: Charge = free) -> Leaf | Container | None:
        """Return the leaf at `path`, `CONTAINER` if it has children, None if nothing is there."""
        found = self._view.peek(path, charge)
        self._trace(path, Container if isinstance(found, Container) else found)
        return found

    def type_at(self, path: Path, charge: Charge = free) -> type[Leaf] | type[Container] | None:
        """Return the type of what `peek` returns."""
        found = self._view.type_at(path, charge)
        self._trace(path, found)
        return found

    def size(self, path: Path, limit: int) -> int:
        """Return the approximate number of bytes of the subtree at `path`."""
        return self._view.size(path, limit)

    def priority(self, path: Path, charge: Charge = free) -> Priority | None:
        """Return the priority of the node at `path`."""
        return self._view.priority(path, charge)

    def keys(self, path: Path) -> Iterator[str]:
        """Iterate over the keys of the children of `path`."""
        return self._view.keys(path)

    def _trace(self, path: Path, found: Leaf | type[Leaf] | type[Container] | None) -> None:
        if len(self._reads) < MAX_READS:
            self._reads[TracedRead(self._tree, path, found)] = None
