"""Apply many changes to one value in O(size + changes).

`edit.set_value` leaves its argument as it is, and so copies and sorts a container for each change
in it. A draft changes its own containers in place and sorts each of them once, at the end. Values
that changes bring still belong to the caller: a container of theirs is copied before it is changed.
"""

from __future__ import annotations

from treedbd.tree.types import PRIORITY, Path, Priority, Value
from treedbd.tree.value import container_of, priority_of, sort_members, value_at, with_priority


class Draft:
    """A value that is being changed; `set` and `set_priority` have the same effect as in `edit`."""

    def __init__(self, value: Value) -> None:
        """Take ownership of `value`: no other code may use it any more."""
        self._value = value
        self._borrowed: dict[int, dict[str, Value]] = {}
        self._unsorted: dict[int, dict[str, Value]] = {}

    def at(self, path: Path) -> Value:
        """Return what is at `path`, to be read only."""
        return value_at(self._value, path)

    def set(self, path: Path, value: Value) -> None:
        """Put `value` in place of what is at `path`."""
        self._value = self._set(self._value, path, value)

    def set_priority(self, path: Path, priority: Priority | None) -> None:
        """Give the node at `path` another priority; nothing stays nothing."""
        self._value = self._set_priority(self._value, path, priority)

    def finish(self) -> Value:
        """Return the changed value; the draft must not be used after that."""
        for container in self._unsorted.values():
            ordered = sort_members(container)
            container.clear()
            container.update(ordered)
        return self._value

    def _set(self, node: Value, path: Path, value: Value) -> Value:
        if not path:
            return self._borrow(value)
        key = path[0]
        container = container_of(node)
        if container is None:
            child = self._set(None, path[1:], value)
            return node if child is None else with_priority({key: child}, priority_of(node))
        own = self._own(container)
        child = self._set(own.get(key), path[1:], value)
        if child is not None:
            self._put(own, key, child)
        elif key in own:
            del own[key]
        return own if len(own) > (PRIORITY in own) else None

    def _set_priority(self, node: Value, path: Path, priority: Priority | None) -> Value:
        container = container_of(node)
        if container is None:
            return node if path else with_priority(node, priority)
        if path and path[0] not in container:
            return node
        own = self._own(container)
        if path:
            own[path[0]] = self._set_priority(own[path[0]], path[1:], priority)
            return own
        changed = with_priority(own, priority)
        if changed is not own and isinstance(changed, dict):
            self._unsorted[id(changed)] = changed
        return changed

    def _put(self, own: dict[str, Value], key: str, child: Value) -> None:
        if key not in own:
            self._unsorted[id(own)] = own
        own[key] = child

    def _borrow(self, value: Value) -> Value:
        """Record that a value still belongs to the caller."""
        if isinstance(value, dict):
            self._borrowed[id(value)] = value
        return value

    def _own(self, node: dict[str, Value]) -> dict[str, Value]:
        """Return a container that may be changed in place of `node`."""
        if self._borrowed.get(id(node)) is not node:
            return node
        for child in node.values():
            self._borrow(child)
        return dict(node)
