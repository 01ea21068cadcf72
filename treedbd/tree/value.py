"""Values of the tree: from JSON as it comes to the one normal form, and back out.

The normal form of a node (`Value`):

- nothing is `None`; it never stands inside a container, and a container is never empty;
- a leaf is a string, a number or a boolean; with a priority it is
  `{".value": leaf, ".priority": priority}`;
- a container is a dict in key order; its priority stands first, under `.priority`.

Arrays exist only in print: they come in as objects with the keys 0, 1, … and an object whose keys
look like indices leaves as an array. `normalise` makes the form once at the door; everything
behind it trusts it. Placeholders stay in the value until `placeholder.resolve` replaces them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeAlias

import attrs

from treedbd.tree.number import INT64_HIGH, INT64_LOW, settle
from treedbd.tree.order import as_integer, sort_keys
from treedbd.tree.path import MAX_DEPTH, PRIORITY, VALUE, InvalidPath, Path, check_keys
from treedbd.tree.placeholder import PLACEHOLDER, Placeholder, parse_placeholder

Leaf: TypeAlias = str | int | float | bool
Priority: TypeAlias = int | float | str
Value: TypeAlias = Any
"""`None | Leaf | dict[str, Value]` in the normal form of this module."""
Json: TypeAlias = Any
"""What a JSON parser gives and a JSON printer takes."""

MAX_STRING_BYTES: Final = 10 * 1_048_576
ANY_LENGTH: Final = sys.maxsize
"""For bodies whose strings were judged when they came in."""
MAX_NESTING: Final = 4 * MAX_DEPTH
"""Levels that may be written below the root even where nothing but empty containers stands there:
a bound for everything that walks a body by recursion."""

_TOO_DEEP = f"The data is deeper than {MAX_DEPTH} keys from the root."
_MAX_CHARACTER_BYTES = 4
_REMEMBERED_KEYS = 64
_REMEMBERED_ORDERS = 1024


class InvalidData(ValueError):
    """A body that cannot be written; the message is a sentence for the caller."""


class Container:
    """The type of `CONTAINER`: stands for a node that has children, whatever they are."""

    def __repr__(self) -> str:
        return "CONTAINER"


CONTAINER: Final = Container()


@attrs.frozen
class Normalised:
    """A value in normal form, and whether placeholders are left in it.

    `has_settled` tells that a number became another one, or one of another type (`number.settle`).
    """

    value: Value
    has_placeholders: bool
    has_settled: bool


def normalise(json: Json, depth: int = 0, max_string_bytes: int = MAX_STRING_BYTES) -> Normalised:
    """Bring parsed JSON, to be written `depth` keys below the root, into the normal form.

    Raises `InvalidData` for what the tree cannot hold.
    """
    walk = _Normaliser(max_string_bytes)
    value = walk.node(json, depth)
    if value is not None and depth > MAX_DEPTH:
        raise InvalidData(_TOO_DEEP)
    return Normalised(value, walk.has_placeholders, walk.has_settled)


def check_priority(
    json: Json, max_string_bytes: int = MAX_STRING_BYTES
) -> Priority | Placeholder | None:
    """Return the priority that parsed JSON stands for: a number, a string, None or a placeholder.

    Raises `InvalidData` for anything else.
    """
    return _Normaliser(max_string_bytes).priority(json)


class _Normaliser:
    """One walk over one body.

    The records of a collection mostly have the same members in the same order, so what was found
    out about a sequence of keys is remembered: that all are legal, and their order.
    """

    def __init__(self, max_string_bytes: int) -> None:
        self.max_string_bytes = max_string_bytes
        self.has_placeholders = False
        self.has_settled = False
        self._surely_short = max_string_bytes // _MAX_CHARACTER_BYTES
        self._orders: dict[tuple[str, ...], list[str]] = {}

    def node(self, json: Json, depth: int) -> Value:
        kind = type(json)
        if kind is dict:
            return self.object(json, depth)
        if kind is list:
            items = {str(at): item for at, item in enumerate(json)}
            return self.container(items, items, depth)
        if kind is str:
            return self.string(json)
        if kind is int or kind is float:
            return self.number(json)
        return json

    def number(self, json: int | float) -> int | float:
        settled = _settle(json)
        if settled != json or type(settled) is not type(json):
            self.has_settled = True
        return settled

    def string(self, text: str) -> str:
        if len(text) > self._surely_short and len(text.encode()) > self.max_string_bytes:
            raise InvalidData(f"A string is longer than {self.max_string_bytes} bytes of UTF-8.")
        return text

    def object(self, json: dict[str, Json], depth: int) -> Value:
        keys = tuple(json)
        order = self._orders.get(keys)
        if order is None:
            if PLACEHOLDER in json:
                return self.placeholder(json)
            if VALUE in json:
                return self.leaf(json)
            if PRIORITY in json:
                priority = self.priority(json[PRIORITY])
                rest = {key: item for key, item in json.items() if key != PRIORITY}
                return with_priority(self.object(rest, depth), priority)
            order = self.order(keys)
        return self.container(json, order, depth)

    def order(self, keys: tuple[str, ...]) -> list[str]:
        try:
            check_keys(keys)
        except InvalidPath as error:
            raise InvalidData(str(error)) from None
        order = sort_keys(keys)
        if len(keys) <= _REMEMBERED_KEYS and len(self._orders) < _REMEMBERED_ORDERS:
            self._orders[keys] = order
        return order

    def container(self, json: dict[str, Json], order: Iterable[str], depth: int) -> Value:
        below = depth + 1
        if below > MAX_NESTING:
            raise InvalidData(f"The data is nested deeper than {MAX_NESTING} levels.")
        children = {}
        for key in order:
            child = json[key]
            kind = type(child)
            # The two commonest leaves are settled in place: a call would cost more than the rest.
            if kind is str:
                if len(child) > self._surely_short:
                    self.string(child)
            elif kind is not int or not INT64_LOW <= child <= INT64_HIGH:
                child = self.node(child, below)
                if child is None:
                    continue
            children[key] = child
        if children and below > MAX_DEPTH:
            raise InvalidData(_TOO_DEEP)
        return children or None

    def leaf(self, json: dict[str, Json]) -> Value:
        if json.keys() - {VALUE, PRIORITY}:
            raise InvalidData(f"Beside {VALUE} only {PRIORITY} may stand.")
        leaf = json[VALUE]
        if isinstance(leaf, list) or (isinstance(leaf, dict) and PLACEHOLDER not in leaf):
            raise InvalidData(f"{VALUE} must be a string, a number, a boolean or null.")
        return with_priority(self.node(leaf, 0), self.priority(json.get(PRIORITY)))

    def placeholder(self, json: dict[str, Json]) -> Placeholder:
        self.has_placeholders = True
        try:
            return parse_placeholder(json)
        except ValueError as error:
            raise InvalidData(str(error)) from None

    def priority(self, json: Json) -> Priority | Placeholder | None:
        if isinstance(json, dict) and PLACEHOLDER in json:
            return self.placeholder(json)
        if json is not None and (isinstance(json, bool) or not isinstance(json, str | int | float)):
            raise InvalidData("A priority must be a number or a string.")
        priority: Priority | None = self.node(json, 0)
        return priority


def has_more_nodes(json: Json, most: int) -> bool:
    """Tell, at a cost bound by `most`, whether parsed JSON has more members and items than that."""
    waiting = [json]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict | list):
            most -= len(node)
            if most < 0:
                return True
            children = node.values() if isinstance(node, dict) else node
            waiting.extend(child for child in children if type(child) in (dict, list))
    return False


def settle_numbers(json: Json) -> Json:
    """Return a legal body with each number as the one that the tree holds for it."""
    if isinstance(json, dict):
        return {key: settle_numbers(item) for key, item in json.items()}
    if isinstance(json, list):
        return [settle_numbers(item) for item in json]
    return _settle(json) if type(json) in (int, float) else json


def _settle(json: int | float) -> int | float:
    try:
        return settle(json)
    except (ValueError, OverflowError):
        raise InvalidData("A number is out of range.") from None


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
