"""The tree after edits, as a view over the tree before them, of which nothing is copied.

Theory of operation: the changes form a small tree of their own, in which a node is either
*replaced* (it has its new value, None if it is removed) or has changed nodes below it. A read walks
down that tree along its path. If the path ends at or below a replaced node, the result is part of
the new value; if it leaves the tree, nothing there has changed and the view before the edit is
read; if it ends above changed nodes, the two are combined.

Most edits set one value, and most reads are at or below it. Those need no tree of changes; it is
built when it is first needed.

The changes of an `Overlay` are those of one edit, in which none is at or below another and
priorities come last. They apply at once: a container that loses all its children and gets new ones
in the same edit keeps its priority. An `EditedTree` takes edits one after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import merge
from typing import Final

from treedbd.tree.edit import in_order, set_priority, set_value
from treedbd.tree.path import is_at_or_above, rank_key
from treedbd.tree.types import (
    CONTAINER,
    Change,
    Charge,
    Container,
    Leaf,
    Path,
    Place,
    Priority,
    Value,
    View,
    free,
)
from treedbd.tree.value import (
    as_priority,
    compact,
    leaf_of,
    members,
    priority_of,
    sort_members,
    value_at,
    with_priority,
)


class StateUnknown(Exception):
    """What is read depends on a write whose values are not known."""


class _NotRead:
    """The type of the result of a read that has not happened yet."""


class _Unchanged:
    """The type of the priority of a node whose priority no change sets."""


_MEMBER_BYTES: Final = len('{"":,}')
_NOT_READ: Final = _NotRead()
_UNCHANGED: Final = _Unchanged()


class _OverlayNode:
    """A node at or above a change; `peeked` caches the result of `peek`."""

    __slots__ = ("below", "peeked", "priority", "replaced", "value")

    def __init__(self) -> None:
        self.replaced = False
        self.value: Value = None
        self.below: dict[str, _OverlayNode] = {}
        self.priority: Priority | _Unchanged | None = _UNCHANGED
        self.peeked: Leaf | Container | _NotRead | None = _NOT_READ


_REPLACED: Final = _OverlayNode()
"""The node of an edit that sets one value, whatever it is."""
_REPLACED.replaced = True
_NOTHING_CHANGED: Final[tuple[None, Value]] = (None, None)


class Overlay:
    """A `View` of `base` with the changes of one edit applied."""

    def __init__(self, base: View, changes: Iterable[Change]) -> None:
        self._base: Final = base
        self._changes: Final = tuple(changes)
        self._top: _OverlayNode | None = None
        self._only_path: Path | None = None
        self._only_value: Value = None
        self._found_at: Path | None = None
        self._found: tuple[_OverlayNode | None, Value] = _NOTHING_CHANGED
        if len(self._changes) == 1 and not self._changes[0].place.is_priority:
            (change,) = self._changes
            self._only_path, self._only_value = change.place.path, change.value

    def _make_top(self) -> _OverlayNode:
        self._top = _OverlayNode()
        for change in self._changes:
            self._add(self._top, change)
        return self._top

    def _add(self, node: _OverlayNode, change: Change) -> None:
        path, is_priority = change.place
        for depth, key in enumerate(path):
            node.peeked = _NOT_READ
            if node.replaced:
                rest = path[depth:]
                if is_priority:
                    node.value = set_priority(node.value, rest, as_priority(change.value))
                else:
                    node.value = set_value(node.value, rest, change.value)
                return
            below = node.below.get(key)
            if below is None:
                below = node.below[key] = _OverlayNode()
            node = below
        node.peeked = _NOT_READ
        if not is_priority:
            node.replaced, node.value, node.below = True, change.value, {}
        elif node.replaced:
            node.value = with_priority(node.value, as_priority(change.value))
        else:
            node.priority = as_priority(change.value)

    def get(self, path: Path) -> Value:
        """Return the whole subtree at `path` with its priorities."""
        node, value = self._find(path)
        if node is None:
            return self._base.get(path)
        if node.replaced:
            return value
        return _combine(self._base.get(path), node)

    def peek(self, path: Path, charge: Charge = free) -> Leaf | Container | None:
        """Return the leaf at `path`, `CONTAINER` if it has children, None if nothing is there."""
        node, value = self._find(path)
        if node is None:
            return self._base.peek(path, charge)
        if node.replaced:
            return leaf_of(value) if isinstance(value, dict) else value  # most are leaves
        return self._peek_changed(path, node)

    def type_at(self, path: Path, charge: Charge = free) -> type[Leaf] | type[Container] | None:
        """Return the type of what `peek` returns."""
        node, value = self._find(path)
        if node is None:
            return self._base.type_at(path, charge)
        found = leaf_of(value) if node.replaced else self._peek_changed(path, node)
        return None if found is None else type(found)

    def size(self, path: Path, limit: int) -> int:
        """Return the approximate bytes of the subtree at `path`: the base plus the changes."""
        node, value = self._find(path)
        if node is None:
            return self._base.size(path, limit)
        if node.replaced:
            return len(compact(value))
        return self._base.size(path, limit) + _size_of_changes(node)

    def priority(self, path: Path, charge: Charge = free) -> Priority | None:
        """Return the priority of the node at `path`."""
        node, value = self._find(path)
        if node is None:
            return self._base.priority(path, charge)
        if node.replaced:
            return priority_of(value)
        if self._peek_changed(path, node) is None:
            return None
        if isinstance(node.priority, _Unchanged):
            return self._base.priority(path, charge)
        return node.priority

    def keys(self, path: Path) -> Iterator[str]:
        """Iterate over the keys of the children of `path` in key order."""
        node, value = self._find(path)
        if node is None:
            return self._base.keys(path)
        if node.replaced:
            return iter([key for key, _ in members(value)])
        below = node.below
        changed = [
            key
            for key, child in below.items()
            if self._peek_changed((*path, key), child) is not None
        ]
        kept = (key for key in self._base.keys(path) if key not in below)
        return merge(kept, sorted(changed, key=rank_key), key=rank_key)

    def _find(self, path: Path) -> tuple[_OverlayNode | None, Value]:
        """Return the node of the changes to read for `path`; of a replaced one, the value there.

        The node is None if no change is at, above or below the path.
        """
        only = self._only_path
        if only is not None:
            if path is self._found_at:  # a rule often reads the node at its place several times
                return self._found
            depth = len(only)
            if path[:depth] == only:
                value = value_at(self._only_value, path[depth:])
                self._found_at, self._found = path, (_REPLACED, value)
                return self._found
            if only[: len(path)] != path:
                return _NOTHING_CHANGED
        node = self._top or self._make_top()
        for depth, key in enumerate(path):
            if node.replaced:
                return node, value_at(node.value, path[depth:])
            child = node.below.get(key)
            if child is None:
                return _NOTHING_CHANGED
            node = child
        return node, node.value

    def _peek_changed(self, path: Path, node: _OverlayNode) -> Leaf | Container | None:
        if node.replaced:
            return leaf_of(node.value)
        if isinstance(node.peeked, _NotRead):
            node.peeked = self._peek_above_changes(path, node)
        return node.peeked

    def _peek_above_changes(self, path: Path, node: _OverlayNode) -> Leaf | Container | None:
        if _sets_value(node):
            return CONTAINER
        before = self._base.peek(path)
        if not isinstance(before, Container) or not node.below:
            return before
        return CONTAINER if self._keeps_child(path, node, self._base.keys(path)) else None

    def _keeps_child(self, path: Path, node: _OverlayNode, keys: Iterator[str]) -> str | None:
        """Return the first of these keys of the base whose child the changes leave there."""
        for key in keys:
            child = node.below.get(key)
            if child is None or self._peek_changed((*path, key), child) is not None:
                return key
        return None


def _sets_value(node: _OverlayNode) -> bool:
    """Return whether a change at or below the node sets a value."""
    if node.replaced:
        return node.value is not None
    return any(_sets_value(child) for child in node.below.values())


def _size_of_changes(node: _OverlayNode) -> int:
    """Return the bytes of the values that are set at or below the node."""
    if node.replaced:
        return len(compact(node.value))
    below = node.below.items()
    return sum(len(key.encode()) + _MEMBER_BYTES + _size_of_changes(child) for key, child in below)


def _combine(before: Value, node: _OverlayNode) -> Value:
    """Return a value of the base with the changes below it applied."""
    children = dict(members(before))
    for key, changed in node.below.items():
        after = changed.value if changed.replaced else _combine(children.get(key), changed)
        if after is None:
            children.pop(key, None)
        else:
            children[key] = after
    if not children:
        return None if isinstance(leaf_of(before), Container) else _prioritise(before, node)
    return _prioritise(with_priority(sort_members(children), priority_of(before)), node)


def _prioritise(value: Value, node: _OverlayNode) -> Value:
    if isinstance(node.priority, _Unchanged):
        return value
    return with_priority(value, node.priority)


class EditedTree(Overlay):
    """A `View` of `base` under any number of edits, applied one after the other.

    Each edit applies to what those before it have left. Changes that are kept side by side would
    lose that: a container without children no longer exists, and the next write there makes another
    one, without its priority; a leaf that gets a child stops being one, also when the child is
    removed again. So where an edit makes or removes a node, that node is replaced as a whole.
    """

    def __init__(self, base: View) -> None:
        """Begin with `base` itself."""
        super().__init__(base, ())
        self._unknown: list[Path] = []
        self._survivors: dict[_OverlayNode, tuple[str | None, Iterator[str]]] = {}

    def apply(self, changes: Iterable[Change]) -> None:
        """Apply one edit, whose server values are resolved."""
        removed: list[Path] = []
        for change in in_order(changes):
            path, is_priority = change.place
            try:
                if not is_priority and change.value is not None:
                    self._set(path, change.value)
                elif self._is_there(path):
                    self._put(change)
                    if not is_priority:
                        removed.append(path)
            except StateUnknown:
                self.forget(path)
        for path in removed:
            self._remove_empty_above(path)

    def forget(self, path: Path) -> None:
        """Record that what is at `path` is not known: reading it raises `StateUnknown`."""
        self._unknown = [each for each in self._unknown if not is_at_or_above(path, each)]
        self._unknown.append(path)

    def changed_children(self, path: Path) -> list[str] | None:
        """Return the keys of the children of `path` that were written; None if all may be."""
        node, _ = self._find(path)
        if node is None:
            return []
        return None if node.replaced else list(node.below)

    def _set(self, path: Path, value: Value) -> None:
        """Set a place to a value; what is not a container on the way to it becomes one."""
        depth = len(path)
        while depth and not self._has_children(path[: depth - 1]):
            depth -= 1
        if depth < len(path):
            value = set_value(self.get(path[:depth]), path[depth:], value)
        self._put(Change(Place(path[:depth]), value))

    def _put(self, change: Change) -> None:
        path, is_priority = change.place
        if self._unknown and not is_priority:
            self._unknown = [each for each in self._unknown if not is_at_or_above(path, each)]
        self._add(self._top or self._make_top(), change)

    def _remove_empty_above(self, path: Path) -> None:
        """Remove the containers above a removed place that are left without children."""
        for depth in range(len(path) - 1, -1, -1):
            if self._is_there(path[:depth]):
                return
            self._put(Change(Place(path[:depth]), None))

    def _is_there(self, path: Path) -> bool:
        """Return whether anything is at a path, which may be above what is not known."""
        return self._is_above_unknown(path) or self.peek(path) is not None

    def _has_children(self, path: Path) -> bool:
        return self._is_above_unknown(path) or isinstance(self.peek(path), Container)

    def _is_above_unknown(self, path: Path) -> bool:
        return any(is_at_or_above(path, each) for each in self._unknown)

    def _find(self, path: Path) -> tuple[_OverlayNode | None, Value]:
        if self._unknown:
            for each in self._unknown:
                if is_at_or_above(each, path) or is_at_or_above(path, each):
                    raise StateUnknown
        return super()._find(path)

    def _keeps_child(self, path: Path, node: _OverlayNode, keys: Iterator[str]) -> str | None:
        """Return the same, but read each key of the base once for all edits.

        A key that was passed is removed, or was set again: then the node is known to have children.
        """
        survivor, keys = self._survivors.get(node, (None, keys))
        if survivor is not None:
            survivor = super()._keeps_child(path, node, iter((survivor,)))
        survivor = survivor or super()._keeps_child(path, node, keys)
        self._survivors[node] = survivor, keys
        return survivor
