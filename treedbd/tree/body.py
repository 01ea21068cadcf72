"""Bodies of writes: from parsed JSON to the one normal form of `value`, made once at the door.

Keys, depth, strings and numbers are checked here, and everything behind trusts what comes out.
Arrays come in as objects with the keys 0, 1, …; placeholders stay in the value until
`placeholder.resolve` replaces them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Final

import attrs

from treedbd.tree.number import INT64_HIGH, INT64_LOW, settle
from treedbd.tree.order import sort_keys
from treedbd.tree.path import MAX_DEPTH, PRIORITY, VALUE, InvalidPath, check_keys
from treedbd.tree.placeholder import PLACEHOLDER, Placeholder, parse_placeholder
from treedbd.tree.value import InvalidData, Json, Priority, Value, with_priority

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
