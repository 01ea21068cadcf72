"""From parsed JSON to the one normal form of `value`, once for each body.

Keys, depth, strings and numbers are checked here, and all other code relies on the result. Arrays
become objects with the keys 0, 1, …; placeholders stay in the value until
`server_values.Resolver` replaces them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, Final

import attrs

from treedbd.limits import MAX_BODY_NESTING, MAX_DEPTH, Limits
from treedbd.loop import PAUSE_AFTER, pause, paused
from treedbd.tree.long_strings import count_bytes
from treedbd.tree.path import check_keys, sort_keys
from treedbd.tree.server_values import SERVER_VALUE, Placeholder, Unresolved, parse_placeholder
from treedbd.tree.types import PRIORITY, VALUE, InvalidData, InvalidPath, Json, Priority
from treedbd.tree.value import INT64_HIGH, INT64_LOW, canonical_number, with_priority

DEFAULT_STRING_BYTES: Final = Limits().string_bytes
ANY_LENGTH: Final = sys.maxsize
"""The limit for bodies whose strings have been checked before."""

_TOO_DEEP = f"The data is deeper than {MAX_DEPTH} keys from the root."
_MAX_CHARACTER_BYTES = 4
_REMEMBERED_KEYS = 64
_REMEMBERED_ORDERS = 1024


@attrs.frozen
class Normalised:
    """A value in normal form, in which placeholders may be left.

    `has_changed_numbers` says whether a number became another one, or one of another type.
    """

    value: Unresolved
    has_placeholders: bool
    has_changed_numbers: bool


def normalise(
    json: Json, depth: int = 0, max_string_bytes: int = DEFAULT_STRING_BYTES
) -> Normalised:
    """Bring parsed JSON, to be written `depth` keys below the root, into the normal form.

    Raises `InvalidData` for what the tree cannot hold.
    """
    if depth <= MAX_DEPTH and _is_plain_leaf(json, max_string_bytes):
        return Normalised(json, False, False)  # type: ignore[arg-type]  # it is a leaf
    walk = _Normaliser(max_string_bytes)
    value = walk.node(json, depth)
    if value is not None and depth > MAX_DEPTH:
        raise InvalidData(_TOO_DEEP)
    return Normalised(value, walk.has_placeholders, walk.has_changed_numbers)


def _is_plain_leaf(json: Json, max_string_bytes: int) -> bool:
    """Return whether a body is a string or an integer that is in the normal form as it is."""
    if type(json) is str:
        return len(json) <= max_string_bytes // _MAX_CHARACTER_BYTES
    return type(json) is int and INT64_LOW <= json <= INT64_HIGH


def check_priority(
    json: Json, max_string_bytes: int = DEFAULT_STRING_BYTES
) -> Priority | Placeholder | None:
    """Return the priority in parsed JSON: a number, a string, None or a placeholder.

    Raises `InvalidData` for anything else.
    """
    return _Normaliser(max_string_bytes).priority(json)


class _Normaliser:
    """One walk over one body.

    The records of a collection mostly have the same members in the same order, so what is known of
    a sequence of keys is kept: that all are legal, and their order.
    """

    # This is the hot loop of every write, so it distinguishes types by `type(x) is`, which mypy
    # follows only for values of type Any.

    def __init__(self, max_string_bytes: int) -> None:
        self.max_string_bytes = max_string_bytes
        self.has_placeholders = False
        self.has_changed_numbers = False
        self._surely_short = max_string_bytes // _MAX_CHARACTER_BYTES
        self._orders: dict[tuple[str, ...], list[str]] = {}
        self._since_pause = 0

    def node(self, json: Any, depth: int) -> Any:
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
        if type(json) is int and INT64_LOW <= json <= INT64_HIGH:
            return json
        canonical = _canonical_number(json)
        if canonical != json or type(canonical) is not type(json):
            self.has_changed_numbers = True
        return canonical

    def string(self, text: str) -> str:
        if len(text) > self._surely_short and count_bytes(text) > self.max_string_bytes:
            raise InvalidData(f"A string is longer than {self.max_string_bytes} bytes of UTF-8.")
        return text

    def object(self, json: dict[str, Any], depth: int) -> Any:
        keys = tuple(json)
        order = self._orders.get(keys)
        if order is None:
            if SERVER_VALUE in json:
                self.has_placeholders = True
                return parse_placeholder(json)
            if VALUE in json:
                return self.leaf(json)
            if PRIORITY in json:
                priority: Any = self.priority(json[PRIORITY])
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

    def container(self, json: dict[str, Any], order: Iterable[str], depth: int) -> Any:
        below = depth + 1
        if below > MAX_BODY_NESTING:
            raise InvalidData(f"The data is nested deeper than {MAX_BODY_NESTING} levels.")
        children = {}
        self._since_pause += len(json)
        if self._since_pause > PAUSE_AFTER:
            self._since_pause = 0
            pause()
        for key in order if len(json) <= PAUSE_AFTER else paused(order):
            child = json[key]
            kind = type(child)
            # The two commonest leaves are checked in place: a call would cost more than the rest.
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

    def leaf(self, json: dict[str, Any]) -> Any:
        if json.keys() - {VALUE, PRIORITY}:
            raise InvalidData(f"An object with {VALUE} must have no other member but {PRIORITY}.")
        leaf = json[VALUE]
        if isinstance(leaf, list) or (isinstance(leaf, dict) and SERVER_VALUE not in leaf):
            raise InvalidData(f"{VALUE} must be a string, a number, a boolean or null.")
        priority: Any = self.priority(json.get(PRIORITY))
        return with_priority(self.node(leaf, 0), priority)

    def priority(self, json: Any) -> Priority | Placeholder | None:
        if isinstance(json, dict) and SERVER_VALUE in json:
            self.has_placeholders = True
            return parse_placeholder(json)
        if json is not None and (isinstance(json, bool) or not isinstance(json, str | int | float)):
            raise InvalidData("A priority must be a number or a string.")
        priority: Priority | None = self.node(json, 0)
        return priority


def has_more_nodes(json: Json, limit: int) -> bool:
    """Return whether parsed JSON has more than `limit` members and items; stops counting there."""
    waiting = [json]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict | list):
            limit -= len(node)
            if limit < 0:
                return True
            children = node.values() if isinstance(node, dict) else node
            waiting.extend(child for child in children if type(child) in (dict, list))
    return False


def count_nodes(json: Json) -> int:
    """Return how many members and items parsed JSON has, at all levels."""
    count, waiting = 0, [json]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict | list):
            count += len(node)
            children = node.values() if isinstance(node, dict) else node
            waiting.extend(child for child in children if type(child) in (dict, list))
    return count


def canonicalise_numbers(json: Json) -> Json:
    """Return a legal body with each number as the tree stores it."""
    if isinstance(json, dict):
        return {key: canonicalise_numbers(item) for key, item in json.items()}
    if isinstance(json, list):
        return [canonicalise_numbers(item) for item in json]
    if isinstance(json, int | float) and not isinstance(json, bool):
        return _canonical_number(json)
    return json


def _canonical_number(json: int | float) -> int | float:
    try:
        return canonical_number(json)
    except (ValueError, OverflowError):
        raise InvalidData("A number is out of range.") from None
