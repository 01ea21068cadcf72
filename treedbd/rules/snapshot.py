"""Snapshots: what `data`, `newData` and `root` are while a rule is evaluated.

Theory of operation: a snapshot is a view and a path, nothing is read to make one. A question reads
what it names and no more: `exists()`, `isString()` and the value of a leaf ask for the node alone;
the value of a container is a `Subtree`, which reads itself only when two of them are compared.
A path that no node can have (`child('a.b')`) names an absent node, never an error; the view is not
asked about it, for views trust their paths.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

from treedbd.rules.evaluation import EvaluationError
from treedbd.tree.path import MAX_DEPTH, MAX_KEY_BYTES, VALUE, InvalidPath, Path, check_key
from treedbd.tree.value import CONTAINER, Container, Value, members
from treedbd.tree.view import View

_MAX_PATH = MAX_DEPTH * (MAX_KEY_BYTES + 1)
_CACHED_PATH = 256


class Snapshot:
    """A node of a view; `beyond` counts the last keys of the path, from the first illegal one."""

    __slots__ = ("beyond", "path", "view")

    def __init__(self, view: View, path: Path, beyond: int = 0) -> None:
        self.view: Final = view
        self.path: Final = path
        self.beyond: Final = beyond

    def child(self, path: str) -> Snapshot:
        """Return the node at a slash path below this one; the empty path is the node itself."""
        keys, beyond = split_path(path)
        return self.descend(keys, beyond)

    def descend(self, keys: Path, beyond: int) -> Snapshot:
        """Return the node at the keys below this one, as `split_path` gives them."""
        if self.beyond:
            beyond = self.beyond + len(keys)
        path = self.path + keys
        return Snapshot(self.view, path, max(beyond, len(path) - MAX_DEPTH))

    def parent(self) -> Snapshot:
        """Return the node above; raise `EvaluationError` at the root."""
        if not self.path:
            raise EvaluationError("The root has no parent.")
        return Snapshot(self.view, self.path[:-1], max(self.beyond - 1, 0))

    def has(self, keys: Path, beyond: int) -> bool:
        """Tell whether anything is at the keys below this one, as `split_path` gives them."""
        if self.beyond or beyond:
            return False
        path = self.path + keys
        return len(path) <= MAX_DEPTH and self.view.peek(path) is not None

    def val(self) -> Any:
        """Return the leaf, a `Subtree` for a container, None for nothing."""
        return None if self.beyond else value_at(self.view, self.path)

    def exists(self) -> bool:
        """Tell whether anything is there."""
        return not self.beyond and self.view.peek(self.path) is not None

    def has_child(self, path: str) -> bool:
        """Tell whether anything is at a slash path below."""
        return self.child(path).exists()

    def has_children(self) -> bool:
        """Tell whether the node has a child."""
        return not self.beyond and isinstance(self.view.peek(self.path), Container)

    def get_priority(self) -> int | float | str | None:
        """Return the priority, None where there is none."""
        return None if self.beyond else self.view.priority(self.path)

    def is_number(self) -> bool:
        """Tell whether a number is there."""
        return not self.beyond and is_number_at(self.view, self.path)

    def is_string(self) -> bool:
        """Tell whether a string is there."""
        return not self.beyond and is_string_at(self.view, self.path)

    def is_boolean(self) -> bool:
        """Tell whether true or false is there."""
        return not self.beyond and is_boolean_at(self.view, self.path)


def value_at(view: View, path: Path) -> Any:
    """Return the leaf at a path that can be, a `Subtree` for a container, None for nothing."""
    value = view.peek(path)
    return Subtree(view, path) if value is CONTAINER else value


def exists_at(view: View, path: Path) -> bool:
    """Tell whether anything is at a path that can be."""
    return view.peek(path) is not None


def is_number_at(view: View, path: Path) -> bool:
    """Tell whether a number is at a path that can be."""
    kind = type(view.peek(path))
    return kind is int or kind is float


def is_string_at(view: View, path: Path) -> bool:
    """Tell whether a string is at a path that can be."""
    return type(view.peek(path)) is str


def is_boolean_at(view: View, path: Path) -> bool:
    """Tell whether true or false is at a path that can be."""
    return type(view.peek(path)) is bool


class Subtree:
    """The value of a container, not read yet."""

    __slots__ = ("path", "view")

    def __init__(self, view: View, path: Path) -> None:
        self.view: Final = view
        self.path: Final = path

    def size(self, most: int) -> int:
        """Return about how many bytes it has; what goes beyond `most` need not be counted."""
        return self.view.size(self.path, most)

    def read(self) -> dict[str, Any]:
        """Return it as JSON without priorities and without arrays."""
        return dict(_bare_members(self.view.get(self.path)))


def _bare(value: Value) -> Any:
    bare = dict(_bare_members(value))
    if bare:
        return bare
    return value[VALUE] if isinstance(value, dict) else value


def _bare_members(value: Value) -> list[tuple[str, Any]]:
    return [(key, _bare(child)) for key, child in members(value)]


def split_path(path: str) -> tuple[Path, int]:
    """Return the keys of a slash path, and how many of the last to drop for a path that can be.

    Empty pieces collapse.
    """
    if len(path) <= _CACHED_PATH:
        return _split_short_path(path)
    if len(path) > _MAX_PATH:
        return (path,), 1
    return _split_path(path)


def _split_path(path: str) -> tuple[Path, int]:
    keys = tuple([key for key in path.split("/") if key])
    for at, key in enumerate(keys):
        try:
            check_key(key)
        except InvalidPath:
            return keys, len(keys) - at
    return keys, 0


_split_short_path = lru_cache(maxsize=4096)(_split_path)
