"""Values of the tree: their one normal form, and how it is shown.

The normal form of a node (`Value`):

- nothing is `None`; it never occurs inside a container, and a container is never empty;
- a leaf is a string, a number or a boolean; with a priority it is
  `{".value": leaf, ".priority": priority}`;
- a container is a dict in key order; its priority comes first, under `.priority`.

Arrays exist only in output: an object whose keys look like indices is printed as an array.
`normalise` brings incoming JSON into this form.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from treedbd.tree.order import as_index, sort_keys
from treedbd.tree.types import (
    CONTAINER,
    PRIORITY,
    VALUE,
    Container,
    Json,
    Leaf,
    Path,
    Priority,
    Value,
)


def sort_members(children: dict[str, Value]) -> dict[str, Value]:
    """Return the members in key order, `.priority` (which sorts as text) moved to the front."""
    ordered = sort_keys(children)
    if PRIORITY in children:
        ordered.remove(PRIORITY)
        ordered.insert(0, PRIORITY)
    return {key: children[key] for key in ordered}


def with_priority(value: Value, priority: Priority | None) -> Value:
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
    priority: Any = value.get(PRIORITY) if isinstance(value, dict) else None
    return priority  # type: ignore[no-any-return]  # by the normal form


def leaf_of(value: Value) -> Leaf | Container | None:
    """Return the leaf at a node, `CONTAINER` if it has children, None if nothing is there."""
    leaf: Any = value.get(VALUE, CONTAINER) if isinstance(value, dict) else value
    return leaf  # type: ignore[no-any-return]  # by the normal form


def container_of(value: Value) -> dict[str, Value] | None:
    """Return `value` if it is a container, else None."""
    return value if isinstance(value, dict) and VALUE not in value else None


def value_at(value: Value, path: Path) -> Value:
    """Return what is at `path` below a node."""
    for key in path:
        if not isinstance(value, dict):
            return None
        value = value.get(key)
    return value


def nest(path: Path, value: Value) -> Value:
    """Return the containers that lead to `value` along a path; nothing if it is nothing."""
    if value is None:
        return None
    for key in reversed(path):
        value = {key: value}
    return value


def members(value: Value) -> Iterator[tuple[str, Value]]:
    """Iterate over the children of a node in key order; a leaf has none."""
    if not isinstance(value, dict) or VALUE in value:
        return
    for key, child in value.items():
        if key != PRIORITY:
            yield key, child


def as_priority(value: Value) -> Priority | None:
    """Return the value of a change that sets a priority, as a priority."""
    priority: Any = value
    return priority  # type: ignore[no-any-return]  # `normalise.check_priority` has checked it


def as_json(value: Value) -> Json:
    """Return a value as JSON with its priorities, which it is already: only the type differs."""
    json: Any = value
    return json  # type: ignore[no-any-return]


def from_export(json: Json) -> Value:
    """Return JSON that `format=export` shows as the value that it is: only the type differs."""
    value: Any = json
    return value  # type: ignore[no-any-return]


def plain(value: Value) -> Json:
    """Return the JSON of a plain GET: no priorities, arrays where the keys are indices."""
    if not isinstance(value, dict):
        return value
    if VALUE in value:
        return plain(value[VALUE])
    # Most children are leaves: copying all and replacing a few is faster than a comprehension.
    children: dict[str, Any] = dict(value)
    children.pop(PRIORITY, None)
    for key, child in value.items():
        if type(child) is dict:
            children[key] = plain(child)
    return as_array(children) or children


def as_array(children: dict[str, Json]) -> list[Json] | None:
    """Return the array that an object in key order is printed as, or None if it stays an object.

    It is an array if all keys are canonical non-negative integers and the greatest is less than
    twice their count; gaps become null.
    """
    greatest = as_index(next(reversed(children)))
    if greatest is None or greatest >= 2 * len(children):
        return None
    if as_index(next(iter(children))) is None:
        return None
    # All keys are integers by now. After the first one, those in another form are `0…` or `-0…`.
    joined = ",".join(children)
    if ",0" in joined or ",-" in joined:
        return None
    if greatest == len(children) - 1:
        return list(children.values())
    return [children.get(str(at)) for at in range(greatest + 1)]


def from_plain(json: Json) -> Value:
    """Bring JSON that `plain` returned back into the normal form, without the lost priorities."""
    if isinstance(json, list):
        return {str(at): from_plain(item) for at, item in enumerate(json) if item is not None}
    if isinstance(json, dict):
        return {key: from_plain(item) for key, item in json.items()}
    return json
