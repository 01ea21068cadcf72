"""Writing a document that comes in fragments (`tree.fragments`), however large it is.

The result is what the same document leaves that is written at once. In memory is one fragment at a
time, and what is known of the containers that are open: those that came in several fragments, of
which more may come. Their priorities are set when they have ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

from treedbd.loop import pause, paused
from treedbd.tree.edit import (
    SERVER_VALUE,
    Increment,
    Resolver,
    Timestamp,
    check_priority,
    count_nodes,
    normalise,
)
from treedbd.tree.fragments import Fragment
from treedbd.tree.path import is_at_or_above
from treedbd.tree.types import (
    PRIORITY,
    VALUE,
    Change,
    Chunks,
    Container,
    InvalidData,
    Json,
    Leaf,
    Path,
    Place,
    Value,
)
from treedbd.tree.value import nest, print_text

_OTHER_MEMBERS: Final = f"An object with {VALUE} must have no other member but {PRIORITY}."


class WritesNodes(Protocol):
    """What documents are written by: `node_writer.NodeWriter`."""

    def apply(self, changes: Sequence[Change]) -> None:
        """Apply changes one after the other."""

    def add_children(self, path: Path, children: dict[str, Value]) -> None:
        """Set children of a container, in key order."""

    def peek(self, path: Path) -> Leaf | Container | None:
        """Return the leaf at `path`, `CONTAINER` if it has children, None if nothing is there."""


class BulkWriter:
    """Sets the node at a path to a document.

    Attributes:
        nodes: how many members and items have come.
        has_placeholders: whether there were server values.
        has_begun: whether anything has been written.
        printed: the document if it is a long string, which is not read again then; else None.

    """

    def __init__(
        self, writer: WritesNodes, path: Path, resolver: Resolver, max_string_bytes: int
    ) -> None:
        """Write by `writer`; `resolver` replaces server values, and reads the tree before."""
        self.nodes = 0
        self.has_placeholders = False
        self.printed: Chunks | None = None
        self._writer = writer
        self._path = path
        self._resolver = resolver
        self._max_string_bytes = max_string_bytes
        self.has_begun = False
        # Of open containers, which are at or above the last fragment:
        self._priorities: dict[Path, Any] = {}
        self._leaves: set[Path] = set()
        self._containers: set[Path] = set()

    def add(self, fragment: Fragment) -> None:
        """Write a fragment; raise `InvalidData`."""
        _check_path(fragment.path)
        json = fragment.parse()
        pause()
        self.nodes += count_nodes(json)
        path = (*self._path, *fragment.path)
        above = path[: len(self._path) + fragment.begun]
        self._end_others(path)
        if fragment.begun <= len(fragment.path):
            self._forget(above)
        members, value = self._read(json, path, fragment.first)
        if path == self._path and type(value) is str and fragment.long_parts:
            self.printed = tuple(print_text(value))
        pause()
        if not self.has_begun:
            self._replace(self._path, path, value)
        elif fragment.begun <= len(fragment.path) and self._writer.peek(above) is not None:
            # An earlier member of the same name; the last one counts.
            self._replace(above, path, value)
        else:
            self._add_members(path, members, value)
        pause()

    def finish(self) -> None:
        """Write what can only be written when all fragments have been added."""
        if not self.has_begun:
            self._writer.apply([Change(Place(self._path), None)])
        self._set_priorities(list(self._priorities))

    def _read(self, json: Json, path: Path, first: int) -> tuple[Json, Value]:
        """Return the members of a fragment as they came, and its value in normal form."""
        if isinstance(json, list):
            json = {str(at): item for at, item in enumerate(paused(json), first)}
        for depth in range(len(self._path), len(path)):
            self._note_container(path[:depth])
        if isinstance(json, dict):
            if VALUE in json or path in self._leaves:
                self._expect_leaf(json, path)
            elif json.keys() - {PRIORITY}:
                self._note_container(path)
            if PRIORITY in json and VALUE not in json:
                json = dict(json)
                self._keep_priority(json.pop(PRIORITY), path)
            if SERVER_VALUE in json and self._writer.peek(path) is not None and self.has_begun:
                raise InvalidData(f"An object with {SERVER_VALUE} must have no other member.")
        normal = normalise(json, len(path), self._max_string_bytes)
        value: Any = normal.value
        if normal.has_placeholders:
            self.has_placeholders = True
            value = self._resolver.resolve_value(value, path)
        return json, value

    def _note_container(self, path: Path) -> None:
        if path in self._leaves:
            raise InvalidData(_OTHER_MEMBERS)
        self._containers.add(path)

    def _expect_leaf(self, json: dict[str, Json], path: Path) -> None:
        """Check that a container that came in several fragments holds a leaf and a priority."""
        if path in self._containers or json.keys() - {VALUE, PRIORITY}:
            raise InvalidData(_OTHER_MEMBERS)
        self._leaves.add(path)

    def _keep_priority(self, json: Json, path: Path) -> None:
        priority: Any = check_priority(json, self._max_string_bytes)
        if isinstance(priority, Timestamp | Increment):
            self.has_placeholders = True
            priority = self._resolver.resolve_placeholder(priority, Place(path, True))
        self._priorities[path] = priority

    def _end_others(self, path: Path) -> None:
        """End the containers that are not at or above `path`: they are complete."""
        ended = [each for each in self._priorities if not is_at_or_above(each, path)]
        if ended:
            self._set_priorities(ended)
        for seen in (self._leaves, self._containers):
            seen.difference_update([each for each in seen if not is_at_or_above(each, path)])

    def _set_priorities(self, paths: Sequence[Path]) -> None:
        priorities = [Change(Place(path, True), self._priorities.pop(path)) for path in paths]
        self._writer.apply(priorities)

    def _forget(self, above: Path) -> None:
        """Forget what was kept of an earlier member of the same name, and of all below it."""
        depth = len(above)
        for path in [path for path in self._priorities if len(path) >= depth]:
            del self._priorities[path]
        for seen in (self._leaves, self._containers):
            seen.difference_update([path for path in seen if len(path) >= depth])

    def _replace(self, above: Path, path: Path, value: Value) -> None:
        """Set the node at `above` to nothing but `value` at `path`."""
        if value is None and not self.has_begun:
            return  # what is there stays until there is something in its place
        self.has_begun = True
        self._writer.apply([Change(Place(above), nest(path[len(above) :], value))])

    def _add_members(self, path: Path, members: Json, value: Value) -> None:
        writer = self._writer
        if not isinstance(members, dict) or VALUE in members:
            writer.apply([Change(Place(path), value)])
            return
        children: dict[str, Value] = value if isinstance(value, dict) else {}
        gone = [key for key in members if key not in children]
        removed = [(*path, key) for key in gone if writer.peek((*path, key)) is not None]
        if removed:
            writer.apply([Change(Place(each), None) for each in removed])
        if children:
            writer.add_children(path, children)


def _check_path(path: Path) -> None:
    """Raise `InvalidData` for a container where only a leaf can be."""
    if PRIORITY in path:
        raise InvalidData("A priority must be a number or a string.")
    if VALUE in path:
        raise InvalidData(f"{VALUE} must be a string, a number, a boolean or null.")
    if SERVER_VALUE in path:
        raise InvalidData(f"An object with {SERVER_VALUE} must have no other member.")
