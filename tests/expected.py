"""A model of the interface, independent of the product and as simple as possible.

JSON is what the standard library parses. The model has neither priorities nor server values: the
tests that write these contain what they expect.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import rfc8785

Json: TypeAlias = Any
Rank: TypeAlias = tuple[Any, ...]

INT32: Final = range(-(2**31), 2**31)


def number(given: int | float) -> int | float:
    """Return the number that is stored: an integer of 64 bits, or a double."""
    if isinstance(given, int) and -(2**63) <= given < 2**63:
        return given
    double = float(given)
    return int(double) if double.is_integer() and abs(double) < 2**53 else double


def tree(body: Json) -> Json:
    """Return the tree that a body is stored as: arrays become objects, empty values are removed."""
    if isinstance(body, list):
        body = {str(at): item for at, item in enumerate(body)}
    if isinstance(body, dict):
        children = {key: tree(item) for key, item in body.items()}
        return {key: child for key, child in children.items() if child is not None} or None
    if isinstance(body, int | float) and not isinstance(body, bool):
        return number(body)
    return body


def set_at(value: Json, path: str, below: Json) -> Json:
    """Return a tree with `below` at a slash path; None removes, and may leave an empty dict."""
    if not path:
        return below
    key, _, rest = path.partition("/")
    children = value if isinstance(value, dict) else {}
    child = set_at(children.get(key), rest, below)
    if child not in (None, {}):
        return {**children, key: child}
    if key not in children:
        return value
    return {name: item for name, item in children.items() if name != key}


def printed(value: Json) -> Json:
    """Return a tree as it is printed: objects that look like arrays become arrays."""
    if not isinstance(value, dict):
        return value
    items = {key: printed(child) for key, child in value.items()}
    if not all(key.isascii() and key.isdecimal() and str(int(key)) == key for key in items):
        return items
    numbers = [int(key) for key in items]
    if max(numbers) >= 2 * len(numbers):
        return items
    return [items.get(str(at)) for at in range(max(numbers) + 1)]


def shown(body: Json) -> Json:
    """Return what a GET returns after a body was PUT."""
    return printed(tree(body))


def compact(value: Json) -> bytes:
    """Print a value without white space, members in their order, numbers as RFC 8785 does."""
    if isinstance(value, dict):
        members = (b"%b:%b" % (compact(key), compact(child)) for key, child in value.items())
        return b"{%b}" % b",".join(members)
    if isinstance(value, list):
        return b"[%b]" % b",".join(map(compact, value))
    if isinstance(value, float):
        return rfc8785.dumps(value)
    return json.dumps(value, ensure_ascii=False).encode()


def comparable(value: Json) -> str:
    """Print a value for comparison: equal texts mean equal values, and `1` is not `true`.

    Members are sorted, and numbers are printed as a client parses them.
    """
    return json.dumps(json.loads(compact(value)), sort_keys=True)


def entity_tag(value: Json) -> str:
    """Return the entity tag of a value, given as a GET returns it."""
    return f'"{hashlib.sha256(rfc8785.dumps(value)).hexdigest()}"'


def rank_key(key: str) -> Rank:
    """Return the sort key of a key: 32-bit integers by number, length and bytes, then text."""
    digits = key.removeprefix("-")
    if digits.isascii() and digits.isdecimal() and len(key) <= 11 and int(key) in INT32:
        return (0, int(key), len(key), key.encode())
    return (1, key.encode())


def rank_value(value: Json) -> Rank:
    """Return the sort key of a value: none, false, true, numbers, strings, containers."""
    if value is None:
        return (0,)
    if isinstance(value, bool):
        return (2,) if value else (1,)
    if isinstance(value, int | float):
        return (3, value)
    if isinstance(value, str):
        return (4, value.encode())
    return (5,)


def child_at(value: Json, path: str) -> Json:
    """Return the value at a slash path below a tree, None if there is none."""
    for key in path.split("/"):
        value = value.get(key) if isinstance(value, dict) else None
    return value


class QueryModel:
    """A query over the children of a tree, as the interface defines it."""

    def __init__(self, order: str, parameters: Mapping[str, Json]) -> None:
        """Order by `order`; bounds are `(value,)` or `(value, key)`, by `$key` `(key,)`."""
        self.order = order
        self.parameters = parameters

    def result(self, value: Json) -> dict[str, Json] | None:
        """Return the members of the result in order, None if there are none."""
        members = value.items() if isinstance(value, dict) else ()
        ranked = sorted(members, key=lambda member: self._rank(*member))
        kept = [member for member in ranked if self._is_selected(self._rank(*member))]
        first, last = (self.parameters.get(f"limitTo{end}") for end in ("First", "Last"))
        if first is not None:
            kept = kept[:first]
        if last is not None:
            kept = kept[-last:]
        return {key: printed(child) for key, child in kept} or None

    def query_string(self) -> str:
        """Print the query string; its JSON is raw but for the characters that would end it."""
        parts = [f"orderBy={_raw(self.order)}"]
        for name, bound in self.parameters.items():
            text = str(bound) if isinstance(bound, int) else ",".join(map(_raw, bound))
            parts.append(f"{name}={text}")
        return "&".join(parts)

    def _rank(self, key: str, child: Json) -> Rank:
        if self.order == "$key":
            return (rank_key(key),)
        if self.order == "$value":
            return (rank_value(child), rank_key(key))
        return (rank_value(child_at(child, self.order)), rank_key(key))

    def _is_selected(self, rank: Rank) -> bool:
        comparisons: dict[str, Callable[[Rank, Rank], bool]] = {
            "startAt": lambda rank, bound: rank >= bound,
            "startAfter": lambda rank, bound: rank > bound,
            "endAt": lambda rank, bound: rank <= bound,
            "endBefore": lambda rank, bound: rank < bound,
            "equalTo": lambda rank, bound: rank == bound,
        }
        for name, holds in comparisons.items():
            if name in self.parameters:
                bound = self._rank_bound(self.parameters[name])
                if not holds(rank[: len(bound)], bound):
                    return False
        return True

    def _rank_bound(self, bound: tuple[Json, ...]) -> Rank:
        if self.order == "$key":
            return (rank_key(bound[0]),)
        return (rank_value(bound[0]), *map(rank_key, bound[1:]))


def _raw(value: Json) -> str:
    text = compact(value).decode()
    for character in "%&+# ":
        text = text.replace(character, f"%{ord(character):02X}")
    return text
