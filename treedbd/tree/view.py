"""What can be read from a tree without knowing how it is stored.

Edits, rules and events read a `View`; the store implements it on its rows, and the rules on top of
another view (`rules.overlay`). A path that holds nothing reads as None, never as an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from treedbd.tree.types import Container, Leaf, Path, Priority, Value


class View(Protocol):
    """A tree at one moment."""

    def get(self, path: Path) -> Value:
        """Return the whole subtree at `path` with its priorities."""
        ...

    def peek(self, path: Path) -> Leaf | Container | None:
        """Return the leaf at `path`, `CONTAINER` if it has children, None if nothing is there.

        The cost is that of the node itself, however much is below it.
        """
        ...

    def size(self, path: Path, limit: int) -> int:
        """Return the approximate number of bytes of the subtree at `path`, as it is stored.

        Counting, and reading, may stop beyond `limit`.
        """
        ...

    def priority(self, path: Path) -> Priority | None:
        """Return the priority of the node at `path`."""
        ...

    def keys(self, path: Path) -> Iterator[str]:
        """Iterate over the keys of the children of `path` in key order."""
        ...
