"""What a client of the real-time protocol holds: a value with priorities, and its hash.

Independent of the product and of the SDKs on purpose: it follows the text of the protocol alone.
A value is in the export form: `.priority` beside members, `{".value": …, ".priority": …}` for a
leaf with a priority.
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
from collections.abc import Sequence
from typing import Any, Final

from tests.expected import rank_value

Json = Any
INT32: Final = range(-(2**31), 2**31)


def normalised(value: Json) -> Json:
    """Return an export form without arrays, empty members and needless `.value`."""
    if isinstance(value, list):
        value = {str(at): item for at, item in enumerate(value)}
    if not isinstance(value, dict):
        return value
    priority = value.get(".priority")
    beside = {} if priority is None else {".priority": priority}
    if ".value" in value:
        leaf = value[".value"]
        return leaf if leaf is None or not beside else {".value": leaf} | beside
    children = {key: normalised(child) for key, child in value.items() if key != ".priority"}
    kept = {key: child for key, child in children.items() if child is not None}
    return kept | beside if kept else None


class Copy:
    """A copy of the value at a path, kept up to date by what the server pushes."""

    def __init__(self, path: str, value: Json) -> None:
        """Start with the first value."""
        self.keys: Final = split(path)
        self.value: Json = normalised(value)

    def apply(self, action: str, keys: Sequence[str], data: Json) -> None:
        """Apply an overwrite (`d`) or a merge (`m`), whose path is at or below that of the copy."""
        assert list(keys[: len(self.keys)]) == self.keys, "A change of another place."
        below = list(keys[len(self.keys) :])
        if action == "d":
            self.value = set_value(self.value, below, normalised(data))
            return
        assert action == "m", action
        for path, value in data.items():
            self.value = set_value(self.value, below + split(path), normalised(value))

    def equals(self, export: Json) -> bool:
        """Return whether the copy equals what a GET with `format=export` returned."""
        return comparable(self.value) == comparable(normalised(export))


def split(path: str) -> list[str]:
    """Return the keys of a path."""
    return [key for key in path.split("/") if key]


def comparable(value: Json) -> str:
    """Print a value so that equal texts mean equal values; `1` and `1.0` are one number."""
    return json.dumps(_as_doubles(value), sort_keys=True)


def set_value(value: Json, keys: Sequence[str], new: Json) -> Json:
    """Return a normalised value with another one at a path below it.

    A leaf that gets a child keeps its priority; a priority of nothing has no effect.
    """
    if not keys:
        return new
    if list(keys) == [".priority"]:
        return _with_priority(value, new)
    members = dict(value) if isinstance(value, dict) and ".value" not in value else {}
    child = set_value(members.pop(keys[0], None), keys[1:], new)
    if child is None and not isinstance(value, dict | None):
        return value
    if child is None and isinstance(value, dict) and ".value" in value:
        return value
    priority = {".priority": value[".priority"]} if _priority(value) is not None else {}
    members |= priority
    return normalised(members if child is None else members | {keys[0]: child})


def hash_of(value: Json) -> str:
    """Return the hash of a normalised value, as section 3 of the protocol defines it."""
    priority = _priority(value)
    text = "" if priority is None else f"priority:{_typed(priority)}:"
    if isinstance(value, dict) and ".value" not in value:
        names = [name for name in value if name != ".priority"]
        for name in sorted(names, key=lambda name: _rank(name, value[name])):
            text += f":{name}:{hash_of(value[name])}"
        return _digest(text)
    leaf = value[".value"] if isinstance(value, dict) else value
    return "" if leaf is None else _digest(text + _typed(leaf))


def _priority(value: Json) -> Json:
    return value.get(".priority") if isinstance(value, dict) else None


def _with_priority(value: Json, priority: Json) -> Json:
    if value is None:
        return None
    members = value if isinstance(value, dict) else {".value": value}
    kept = {name: item for name, item in members.items() if name != ".priority"}
    return normalised(kept if priority is None else kept | {".priority": priority})


def _typed(value: Json) -> str:
    if isinstance(value, bool):
        return f"boolean:{str(value).lower()}"
    if isinstance(value, str):
        return f"string:{value}"
    return f"number:{struct.pack('>d', float(value)).hex()}"


def _rank(name: str, value: Json) -> tuple[Any, ...]:
    digits = name.removeprefix("-")
    if digits.isascii() and digits.isdecimal() and len(name) <= 11 and int(name) in INT32:
        key: tuple[Any, ...] = (0, int(name), len(name))
    else:
        key = (1, name.encode("utf-16-be"))
    return (*rank_value(_priority(value)), 0, *key)


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha1(text.encode()).digest()).decode() if text else ""


def _as_doubles(value: Json) -> Json:
    if isinstance(value, dict):
        return {key: _as_doubles(item) for key, item in value.items()}
    if isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    return value
