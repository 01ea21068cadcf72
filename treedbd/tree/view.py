"""What can be read from a tree without knowing how it is stored.

Edits, rules and events read a `View`; the store implements it on its rows, and the rules on top of
another view (`overlay`). A path that holds nothing reads as None, never as an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol, TypeAlias

from treedbd.tree.types import Container, Leaf, Path, Priority, Value

Charge: TypeAlias = Callable[[int], None]
"""Is called with the bytes that a read is about to cost; what it raises prevents the read."""


def free(_: int) -> None:
    """Charge nothing."""


class View(Protocol):
    """A tree at one moment."""

    def get(self, path: Path) -> Value:
        """Return the whole subtree at `path` with its priorities."""
        ...

    def peek(self, path: Path, charge: Charge = free) -> Leaf | Container | None:
        """Return the leaf at `path`, `CONTAINER` if it has children, None if nothing is there.

        The cost is that of the node itself, however much is below it: the stored bytes that have to
        be parsed.
        """
        ...

    def type_at(self, path: Path, charge: Charge = free) -> type[Leaf] | type[Container] | None:
        """Return the type of what `peek` returns; a large leaf is not parsed for it."""
        ...

    def size(self, path: Path, limit: int) -> int:
        """Return the approximate number of bytes of the subtree at `path`, as it is stored.

        Counting, and reading, may stop beyond `limit`.
        """
        ...

    def priority(self, path: Path, charge: Charge = free) -> Priority | None:
        """Return the priority of the node at `path`."""
        ...

    def keys(self, path: Path) -> Iterator[str]:
        """Iterate over the keys of the children of `path` in key order."""
        ...
