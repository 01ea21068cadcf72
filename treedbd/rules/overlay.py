"""The tree after an edit, as a view over the tree before it; nothing of that is copied.

Theory of operation: the changes are kept as a small tree of their own, in which a node is either
*replaced* (it holds its new value, None where it is removed) or has changed nodes below it. A
question walks down that tree as long as it reaches: if it ends at or below a replaced node, the
answer lies in the new value; if it leaves the tree, nothing there has changed and the view before
the edit answers; if it ends above changed nodes, the two are put together.

Most edits set one value, and most questions are asked at or below it. Those are answered without
that tree, which is made when it is first needed.

The changes are those of one edit, in which none lies at or below another and priorities come last.
They happen at once: a container that loses all its children and gets new ones in the same edit
keeps its priority.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import merge
from typing import Final

from treedbd.tree.edit import Change, set_priority, set_value
from treedbd.tree.order import rank_key
from treedbd.tree.path import Path
from treedbd.tree.printing import compact
from treedbd.tree.value import (
    CONTAINER,
    Container,
    Leaf,
    Priority,
    Value,
    leaf_of,
    members,
    priority_of,
    sort_members,
    value_at,
    with_priority,
)
from treedbd.tree.view import View


class _Unasked:
    """Stands for an answer that nobody has asked for yet."""


class _Unchanged:
    """Stands for the priority of a node that no change names."""


_MEMBER_BYTES: Final = len('{"":,}')
_UNASKED: Final = _Unasked()
_UNCHANGED: Final = _Unchanged()


class _Node:
    """A node at or above a change."""

    __slots__ = ("below", "found", "priority", "replaced", "value")

    def __init__(self) -> None:
        self.replaced = False
        self.value: Value = None
        self.below: dict[str, _Node] = {}
        self.priority: Priority | _Unchanged | None = _UNCHANGED
        self.found: Leaf | Container | _Unasked | None = _UNASKED


class Overlay:
    """A `View` of what `base` becomes under the changes of one edit."""

    def __init__(self, base: View, changes: Iterable[Change]) -> None:
        self._base: Final = base
        self._changes: Final = tuple(changes)
        self._top: _Node | None = None
        self._only: Path | None = None
        self._only_node = _Node()
        if len(self._changes) == 1 and not self._changes[0].place.of_priority:
            (change,) = self._changes
            self._only = change.place.path
            self._only_node.replaced, self._only_node.value = True, change.value

    def _make_top(self) -> _Node:
        self._top = _Node()
        for change in self._changes:
            self._add(self._top, change)
        return self._top

    def _add(self, node: _Node, change: Change) -> None:
        path, of_priority = change.place
        for at, key in enumerate(path):
            if node.replaced:
                alter = set_priority if of_priority else set_value
                node.value = alter(node.value, path[at:], change.value)
                return
            node = node.below.setdefault(key, _Node())
        if not of_priority:
            node.replaced, node.value, node.below = True, change.value, {}
        elif node.replaced:
            node.value = with_priority(node.value, change.value)
        else:
            node.priority = change.value

    def get(self, path: Path) -> Value:
        """Return the whole subtree at `path` with its priorities."""
        node, rest = self._find(path)
        if node is None:
            return self._base.get(path)
        if node.replaced:
            return value_at(node.value, rest)
        return _combine(self._base.get(path), node)

    def peek(self, path: Path) -> Leaf | Container | None:
        """Return the leaf at `path`, `CONTAINER` where it has children, None where nothing is."""
        node, rest = self._find(path)
        if node is None:
            return self._base.peek(path)
        if node.replaced:
            return leaf_of(value_at(node.value, rest))
        return self._peek_changed(path, node)

    def size(self, path: Path, most: int) -> int:
        """Return about how many bytes the subtree at `path` has: at most what there was and is."""
        node, rest = self._find(path)
        if node is None:
            return self._base.size(path, most)
        if node.replaced:
            return len(compact(value_at(node.value, rest)))
        return self._base.size(path, most) + _size_of_changes(node)

    def priority(self, path: Path) -> Priority | None:
        """Return the priority of the node at `path`."""
        node, rest = self._find(path)
        if node is None:
            return self._base.priority(path)
        if node.replaced:
            return priority_of(value_at(node.value, rest))
        if self._peek_changed(path, node) is None:
            return None
        if isinstance(node.priority, _Unchanged):
            return self._base.priority(path)
        return node.priority

    def keys(self, path: Path) -> Iterator[str]:
        """Iterate over the keys of the children of `path` in key order."""
        node, rest = self._find(path)
        if node is None:
            return self._base.keys(path)
        if node.replaced:
            return iter([key for key, _ in members(value_at(node.value, rest))])
        below = node.below
        changed = [
            key
            for key, child in below.items()
            if self._peek_changed((*path, key), child) is not None
        ]
        kept = (key for key in self._base.keys(path) if key not in below)
        return merge(kept, sorted(changed, key=rank_key), key=rank_key)

    def _find(self, path: Path) -> tuple[_Node | None, Path]:
        """Return the node that answers for `path`, and how far below it the path ends.

        None where no change is at, above or below the path.
        """
        only = self._only
        if only is not None:
            depth = len(only)
            if path[:depth] == only:
                return self._only_node, path[depth:]
            if only[: len(path)] != path:
                return None, ()
        node = self._top or self._make_top()
        for at, key in enumerate(path):
            if node.replaced:
                return node, path[at:]
            found = node.below.get(key)
            if found is None:
                return None, ()
            node = found
        return node, ()

    def _peek_changed(self, path: Path, node: _Node) -> Leaf | Container | None:
        if node.replaced:
            return leaf_of(node.value)
        if isinstance(node.found, _Unasked):
            node.found = self._peek_above_changes(path, node)
        return node.found

    def _peek_above_changes(self, path: Path, node: _Node) -> Leaf | Container | None:
        if _adds(node):
            return CONTAINER
        before = self._base.peek(path)
        if not isinstance(before, Container) or not node.below:
            return before
        for key in self._base.keys(path):
            child = node.below.get(key)
            if child is None or self._peek_changed((*path, key), child) is not None:
                return CONTAINER
        return None


def _adds(node: _Node) -> bool:
    """Tell whether a change at or below the node sets something."""
    if node.replaced:
        return node.value is not None
    return any(_adds(child) for child in node.below.values())


def _size_of_changes(node: _Node) -> int:
    """Return the bytes of what is set at or below the node."""
    if node.replaced:
        return len(compact(node.value))
    below = node.below.items()
    return sum(len(key.encode()) + _MEMBER_BYTES + _size_of_changes(child) for key, child in below)


def _combine(before: Value, node: _Node) -> Value:
    """Return what a value of the base becomes under the changes below it."""
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


def _prioritise(value: Value, node: _Node) -> Value:
    if isinstance(node.priority, _Unchanged):
        return value
    return with_priority(value, node.priority)
