"""What a verdict rests on, recorded while it is reached.

A stream is judged once and then only when a commit touches what its rules read. `Recorder` is a
view that keeps the paths it was asked about; `Dependencies` is what came of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Final

import attrs

from treedbd.tree.path import Path
from treedbd.tree.value import Container, Leaf, Priority, Value
from treedbd.tree.view import View


@attrs.frozen(slots=False)
class Dependencies:
    """What else the same caller's verdict would have to be reached for again.

    `paths` are the nodes that were read, each with all that is below it; `now` tells that a rule
    asked for the time.
    """

    paths: frozenset[Path]
    now: bool

    def touched_by(self, paths: Iterable[Path]) -> bool:
        """Tell whether a change of one of these paths may change the verdict."""
        return any(self._reaches(path) for path in paths)

    def _reaches(self, path: Path) -> bool:
        """Tell whether a path lies at, above or below one that was read."""
        if path in self._above:
            return True
        return any(path[:end] in self.paths for end in range(len(path) + 1))

    @cached_property
    def _above(self) -> frozenset[Path]:
        return frozenset(path[:end] for path in self.paths for end in range(len(path)))


class Recorder:
    """A `View` that keeps which paths were asked about."""

    def __init__(self, view: View) -> None:
        self._view: Final = view
        self.paths: Final[set[Path]] = set()

    def get(self, path: Path) -> Value:
        """Return the whole subtree at `path`."""
        self.paths.add(path)
        return self._view.get(path)

    def peek(self, path: Path) -> Leaf | Container | None:
        """Return the leaf at `path`, `CONTAINER`, or None."""
        self.paths.add(path)
        return self._view.peek(path)

    def size(self, path: Path, most: int) -> int:
        """Return about how many bytes the subtree at `path` has."""
        self.paths.add(path)
        return self._view.size(path, most)

    def priority(self, path: Path) -> Priority | None:
        """Return the priority of the node at `path`."""
        self.paths.add(path)
        return self._view.priority(path)

    def keys(self, path: Path) -> Iterator[str]:
        """Iterate over the keys of the children of `path`."""
        self.paths.add(path)
        return self._view.keys(path)
