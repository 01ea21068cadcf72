"""A value under many changes, at the cost of its size and theirs, and not of their product.

`edit.set_value` leaves the value that it is given as it is, and so copies and sorts a container for
each change in it. A draft changes its own containers where they stand and sorts each of them once,
at the end. What the changes bring is theirs: a container of it is copied before it is changed.
"""

from __future__ import annotations

from treedbd.tree.path import PRIORITY, Path
from treedbd.tree.value import (
    CONTAINER,
    Priority,
    Value,
    leaf_of,
    priority_of,
    sort_members,
    value_at,
    with_priority,
)


class Draft:
    """One value; `set` and `set_priority` mean what `edit.set_value` and `set_priority` do."""

    def __init__(self, value: Value) -> None:
        """Take over `value`, which nobody else may use any more."""
        self._value = value
        self._given: dict[int, Value] = {}
        self._unsorted: dict[int, dict[str, Value]] = {}

    def at(self, path: Path) -> Value:
        """Return what is at `path`, to be looked at and not changed."""
        return value_at(self._value, path)

    def set(self, path: Path, value: Value) -> None:
        """Put `value` in place of what is at `path`."""
        self._value = self._set(self._value, path, value)

    def set_priority(self, path: Path, priority: Priority | None) -> None:
        """Give the node at `path` another priority; nothing stays nothing."""
        self._value = self._set_priority(self._value, path, priority)

    def finish(self) -> Value:
        """Return what the value has become; the draft is of no more use."""
        for container in self._unsorted.values():
            ordered = sort_members(container)
            container.clear()
            container.update(ordered)
        return self._value

    def _set(self, node: Value, path: Path, value: Value) -> Value:
        if not path:
            return self._give(value)
        key = path[0]
        if leaf_of(node) is not CONTAINER:
            child = self._set(None, path[1:], value)
            return node if child is None else with_priority({key: child}, priority_of(node))
        own = self._own(node)
        child = self._set(own.get(key), path[1:], value)
        if child is not None:
            self._put(own, key, child)
        elif key in own:
            del own[key]
        return own if len(own) > (PRIORITY in own) else None

    def _set_priority(self, node: Value, path: Path, priority: Priority | None) -> Value:
        if not path:
            own = self._own(node) if leaf_of(node) is CONTAINER else node
            changed = with_priority(own, priority)
            if changed is not own and leaf_of(changed) is CONTAINER:
                self._unsorted[id(changed)] = changed
            return changed
        if leaf_of(node) is CONTAINER and path[0] in node:
            node = self._own(node)
            node[path[0]] = self._set_priority(node[path[0]], path[1:], priority)
        return node

    def _put(self, own: dict[str, Value], key: str, child: Value) -> None:
        if key not in own:
            self._unsorted[id(own)] = own
        own[key] = child

    def _give(self, value: Value) -> Value:
        """Take note that a value is somebody else's."""
        if isinstance(value, dict):
            self._given[id(value)] = value
        return value

    def _own(self, node: dict[str, Value]) -> dict[str, Value]:
        """Return a container that may be changed in place of `node`."""
        if self._given.get(id(node)) is not node:
            return node
        for child in node.values():
            self._give(child)
        return dict(node)
