"""A replica of a value: what a client has that applies the events of a stream.

It is independent of the product on purpose, and follows the text of the interface alone.
"""

from __future__ import annotations

from typing import Any


class Replica:
    """A value kept up to date by events, whose paths are relative to the watched path."""

    def __init__(self) -> None:
        self.tree: Any = None

    def apply(self, kind: str, path: str, data: Any) -> None:
        """Apply one event."""
        keys = _split(path)
        if kind == "put":
            self._put(keys, data)
            return
        assert kind == "patch", kind
        for key, value in data.items():
            if not key.endswith(".priority"):
                self._put(keys + _split(key), value)

    def equals(self, json: Any) -> bool:
        """Return whether the value equals the JSON that a GET returned."""
        return bool(self.tree == to_tree(json))

    def _put(self, keys: list[str], data: Any) -> None:
        self.tree = _replace(self.tree, keys, to_tree(data))


def to_tree(json: Any) -> Any:
    """Return JSON with arrays as objects, without empty values and without priorities."""
    if isinstance(json, list):
        json = {str(at): item for at, item in enumerate(json)}
    if not isinstance(json, dict):
        return json
    if ".value" in json:
        return json[".value"]
    members = {key: to_tree(item) for key, item in json.items() if key != ".priority"}
    return {key: item for key, item in members.items() if item is not None} or None


def _replace(tree: Any, keys: list[str], value: Any) -> Any:
    if not keys:
        return value
    members = dict(tree) if isinstance(tree, dict) else {}
    child = _replace(members.pop(keys[0], None), keys[1:], value)
    if child is not None:
        return members | {keys[0]: child}
    # A leaf stays a leaf if nothing is put below it.
    return members or (None if isinstance(tree, dict) else tree)


def _split(path: str) -> list[str]:
    return [key for key in path.split("/") if key]
