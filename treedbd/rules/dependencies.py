"""What a verdict depends on, recorded while the rules are evaluated.

The rules are evaluated once for a stream, and again only when a commit touches a node that they
read. `Recorder` is a view that records the paths that are read; `Dependencies` is the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Final

import attrs

from treedbd.tree.types import Charge, Container, Leaf, Path, Priority, Value, View, free


class WrittenPaths:
    """Paths that were written.

    Attributes:
        paths, prefixes: the paths; and these with all that are above them.

    """

    def __init__(self, paths: Iterable[Path] = ()) -> None:
        self.paths: Final[set[Path]] = set()
        self.prefixes: Final[set[Path]] = set()
        for path in paths:
            self.add(path)

    def add(self, path: Path) -> None:
        """Add a path."""
        self.paths.add(path)
        while path not in self.prefixes:
            self.prefixes.add(path)
            path = path[:-1]


@attrs.frozen(slots=False)
class Dependencies:
    """What a verdict depended on besides the caller; if any of it changes, evaluate again.

    `paths` are the nodes that were read, each with everything below it; `reads_time` says whether a
    rule read `now`.
    """

    paths: frozenset[Path]
    reads_time: bool

    def touched_by(self, written: WrittenPaths) -> bool:
        """Return whether a change of these paths may change the verdict, however many they are.

        It may if one of them is at, above or below one that was read.
        """
        is_beside = written.paths.isdisjoint(self._ancestors)
        return not (is_beside and written.prefixes.isdisjoint(self.paths))

    @cached_property
    def _ancestors(self) -> frozenset[Path]:
        return frozenset(path[:end] for path in self.paths for end in range(len(path)))


class Recorder:
    """A `View` that adds the paths that are read to `paths`."""

    def __init__(self, view: View, paths: set[Path]) -> None:
        self._view: Final = view
        self.paths: Final = paths

    def get(self, path: Path) -> Value:
        """Return the whole subtree at `path`."""
        self.paths.add(path)
        return self._view.get(path)

    def peek(self, path: Path, charge: Charge = free) -> Leaf | Container | None:
        """Return the leaf at `path`, `CONTAINER` if it has children, None if nothing is there."""
        self.paths.add(path)
        return self._view.peek(path, charge)

    def type_at(self, path: Path, charge: Charge = free) -> type[Leaf] | type[Container] | None:
        """Return the type of what `peek` returns."""
        self.paths.add(path)
        return self._view.type_at(path, charge)

    def size(self, path: Path, limit: int) -> int:
        """Return the approximate number of bytes of the subtree at `path`."""
        self.paths.add(path)
        return self._view.size(path, limit)

    def priority(self, path: Path, charge: Charge = free) -> Priority | None:
        """Return the priority of the node at `path`."""
        self.paths.add(path)
        return self._view.priority(path, charge)

    def keys(self, path: Path) -> Iterator[str]:
        """Iterate over the keys of the children of `path`."""
        self.paths.add(path)
        return self._view.keys(path)
