"""Writing a document that comes in fragments (`tree.fragments`), however large it is.

The result is what the same document leaves that is written at once. In memory is one fragment at a
time, and the priorities of containers that came in several, which are set at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

from treedbd.pauses import pause
from treedbd.tree.errors import InvalidData
from treedbd.tree.fragments import Fragment
from treedbd.tree.normalise import check_priority, count_nodes, normalise
from treedbd.tree.printing import parse
from treedbd.tree.server_values import SERVER_VALUE, Increment, Resolver, Timestamp
from treedbd.tree.types import (
    PRIORITY,
    VALUE,
    Change,
    Container,
    Json,
    Leaf,
    Path,
    Place,
    Value,
)
from treedbd.tree.value import nest

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

    """

    def __init__(
        self, writer: WritesNodes, path: Path, resolver: Resolver, max_string_bytes: int
    ) -> None:
        """Write by `writer`; `resolver` replaces server values, and reads the tree before."""
        self.nodes = 0
        self.has_placeholders = False
        self._writer = writer
        self._path = path
        self._resolver = resolver
        self._max_string_bytes = max_string_bytes
        self.has_begun = False
        self._priorities: dict[Path, Any] = {}
        self._leaves: set[Path] = set()
        self._containers: set[Path] = set()  # of those that came in several fragments

    def add(self, fragment: Fragment) -> None:
        """Write a fragment; raise `InvalidData`."""
        _check_path(fragment.path)
        json = parse(fragment.json)
        self.nodes += count_nodes(json)
        path = (*self._path, *fragment.path)
        above = path[: len(self._path) + fragment.begun]
        if fragment.begun <= len(fragment.path):
            self._forget(above)
        members, value = self._read(json, path, fragment.first)
        if isinstance(members, dict):
            self._forget(path, members)
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
        priorities = [Change(Place(path, True), each) for path, each in self._priorities.items()]
        self._writer.apply(priorities)

    def _read(self, json: Json, path: Path, first: int) -> tuple[Json, Value]:
        """Return the members of a fragment as they came, and its value in normal form."""
        if isinstance(json, list):
            json = {str(first + at): item for at, item in enumerate(json)}
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

    def _forget(self, above: Path, keys: dict[str, Json] | None = None) -> None:
        """Forget what was kept of earlier members of the same name: a node, or children of it."""
        depth = len(above)
        at = depth if keys is None else depth + 1

        def is_past(path: Path) -> bool:
            is_below = len(path) >= at and path[:depth] == above
            return is_below and (keys is None or path[depth] in keys)

        for path in [path for path in self._priorities if is_past(path)]:
            del self._priorities[path]
        for seen in (self._leaves, self._containers):
            seen.difference_update([path for path in seen if is_past(path)])

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
