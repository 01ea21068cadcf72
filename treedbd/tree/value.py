"""Values of the tree: the one normal form, and how it is shown.

The normal form of a node (`Value`):

- nothing is `None`; it never stands inside a container, and a container is never empty;
- a leaf is a string, a number or a boolean; with a priority it is
  `{".value": leaf, ".priority": priority}`;
- a container is a dict in key order; its priority stands first, under `.priority`.

Arrays exist only in print: an object whose keys look like indices leaves as an array. `body` makes
the form of what comes in.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, TypeAlias

from treedbd.tree.order import as_integer, sort_keys
from treedbd.tree.path import PRIORITY, VALUE, Path
from treedbd.tree.placeholder import Placeholder

Leaf: TypeAlias = str | int | float | bool
Priority: TypeAlias = int | float | str
Value: TypeAlias = Any
"""`None | Leaf | dict[str, Value]` in the normal form of this module."""
Json: TypeAlias = Any
"""What a JSON parser gives and a JSON printer takes."""


class InvalidData(ValueError):
    """A body that cannot be written; the message is a sentence for the caller."""


class Container:
    """The type of `CONTAINER`: stands for a node that has children, whatever they are."""

    def __repr__(self) -> str:
        return "CONTAINER"


CONTAINER: Final = Container()


def sort_members(children: dict[str, Value]) -> dict[str, Value]:
    """Return the members in key order, `.priority` (which sorts as text) moved to the front."""
    ordered = sort_keys(children)
    if PRIORITY in children:
        ordered.remove(PRIORITY)
        ordered.insert(0, PRIORITY)
    return {key: children[key] for key in ordered}


def with_priority(value: Value, priority: Priority | Placeholder | None) -> Value:
    """Return `value` with this priority in place of any it had; nothing stays nothing."""
    bare = without_priority(value)
    if priority is None or bare is None:
        return bare
    if isinstance(bare, dict):
        return {PRIORITY: priority, **bare}
    return {VALUE: bare, PRIORITY: priority}


def without_priority(value: Value) -> Value:
    """Return `value` without its own priority; those below it stay."""
    if not isinstance(value, dict):
        return value
    if VALUE in value:
        return value[VALUE]
    if PRIORITY in value:
        return {key: child for key, child in value.items() if key != PRIORITY}
    return value


def priority_of(value: Value) -> Priority | None:
    """Return the priority of a node."""
    return value.get(PRIORITY) if isinstance(value, dict) else None


def leaf_of(value: Value) -> Leaf | Container | None:
    """Return the leaf a node is, `CONTAINER` where it has children, None where it is nothing."""
    leaf: Leaf | Container | None = (
        value.get(VALUE, CONTAINER) if isinstance(value, dict) else value
    )
    return leaf


def value_at(value: Value, path: Path) -> Value:
    """Return what is at `path` below a node."""
    for key in path:
        if not isinstance(value, dict):
            return None
        value = value.get(key)
    return value


def members(value: Value) -> Iterator[tuple[str, Value]]:
    """Iterate over the children of a node in key order; a leaf has none."""
    if not isinstance(value, dict) or VALUE in value:
        return
    for key, child in value.items():
        if key != PRIORITY:
            yield key, child


def plain(value: Value) -> Json:
    """Return the JSON a plain GET shows: no priorities, arrays where the keys are indices."""
    if not isinstance(value, dict):
        return value
    if VALUE in value:
        return value[VALUE]
    children = dict(value)
    children.pop(PRIORITY, None)
    for key, child in value.items():
        if type(child) is dict:
            children[key] = plain(child)
    return as_array(children) or children


def as_array(children: dict[str, Json]) -> list[Json] | None:
    """Return the array that an object in key order is printed as, or None if it stays an object.

    It is one where all keys are canonical non-negative integers and the greatest is less than
    twice their count; gaps become null.
    """
    last = next(reversed(children))
    greatest = as_integer(last)
    if greatest is None or greatest >= 2 * len(children):
        return None
    first = as_integer(next(iter(children)))
    if first is None or first < 0:
        return None
    if greatest == len(children) - 1:
        return list(children.values())
    return [children.get(str(at)) for at in range(greatest + 1)]


def from_plain(json: Json) -> Value:
    """Bring JSON that `plain` made back into the normal form (without the priorities it lost)."""
    if isinstance(json, list):
        return {str(at): from_plain(item) for at, item in enumerate(json) if item is not None}
    if isinstance(json, dict):
        return {key: from_plain(item) for key, item in json.items()}
    return json


def has_priorities(value: Value) -> bool:
    """Tell whether a priority stands anywhere in the value."""
    if not isinstance(value, dict):
        return False
    if PRIORITY in value:
        return True
    for child in value.values():  # noqa: SIM110 - half the time of any() over a generator
        if type(child) is dict and has_priorities(child):
            return True
    return False
