"""What may be asked about a tree without knowing where it lies.

The rules, the edits and the events of a write ask a `View`, and the store answers from its rows.
Paths that hold nothing answer None, never an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol

from treedbd.tree.path import Path
from treedbd.tree.printing import compact
from treedbd.tree.value import Container, Leaf, Value, leaf_of, members, priority_of, value_at


class View(Protocol):
    """A tree at one moment."""

    def get(self, path: Path) -> Value:
        """Return the whole subtree at `path` with its priorities."""
        ...

    def peek(self, path: Path) -> Leaf | Container | None:
        """Return the leaf at `path`, `CONTAINER` where it has children, None where nothing is.

        Costs no more than the node itself, however much lies below it.
        """
        ...

    def size(self, path: Path, most: int) -> int:
        """Return about how many bytes the subtree at `path` has, as it is stored.

        What goes beyond `most` need not be counted. No more is read than that.
        """
        ...

    def priority(self, path: Path) -> int | float | str | None:
        """Return the priority of the node at `path`."""
        ...

    def keys(self, path: Path) -> Iterator[str]:
        """Iterate over the keys of the children of `path` in key order."""
        ...


class ValueView:
    """The reference `View`, over one value in memory.

    It says in a few lines what every other one must answer. The daemon makes none: tests ask it,
    and models that the store is compared with.
    """

    def __init__(self, root: Value) -> None:
        self.root: Final = root

    def get(self, path: Path) -> Value:
        """Return the subtree at `path`."""
        return value_at(self.root, path)

    def peek(self, path: Path) -> Leaf | Container | None:
        """Return the leaf, `CONTAINER`, or None."""
        return leaf_of(self.get(path))

    def size(self, path: Path, most: int) -> int:
        """Return how many bytes the subtree has when it is printed."""
        return len(compact(self.get(path)))

    def priority(self, path: Path) -> int | float | str | None:
        """Return the priority of the node."""
        return priority_of(self.get(path))

    def keys(self, path: Path) -> Iterator[str]:
        """Iterate over the children's keys."""
        return iter([key for key, _ in members(self.get(path))])
