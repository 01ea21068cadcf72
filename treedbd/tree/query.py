"""Queries: which children of a node are shown, and in which order.

All children stand in one total order: by what the query orders by, ties by key. Bounds cut a piece
out of that order, a limit takes the beginning or the end of the piece. A query knows nothing about
rows or indexes: `select` answers it in memory, `sort_value` and `admits` judge one child. Whoever
has the children in order already starts at one bound and stops at the other or at the limit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from heapq import nlargest, nsmallest
from operator import itemgetter
from typing import Final, Literal, TypeAlias

import attrs
import orjson

from treedbd.tree.number import settle
from treedbd.tree.order import KeyRank, ValueRank, rank_key, rank_value
from treedbd.tree.path import ROOT, InvalidPath, Path, parse_child
from treedbd.tree.value import Json, Value, leaf_of, plain, priority_of, value_at

OrderKind: TypeAlias = Literal["key", "value", "priority", "child"]
Selection: TypeAlias = list[tuple[str, Value]]
Scalar: TypeAlias = str | int | float | bool | None

PARAMETERS: Final = (
    "orderBy",
    "limitToFirst",
    "limitToLast",
    "startAt",
    "startAfter",
    "endAt",
    "endBefore",
    "equalTo",
)
"""The query parameters that make a query."""

_RIVALS: Final = (
    ("limitToFirst", "limitToLast"),
    ("equalTo", "startAt"),
    ("equalTo", "startAfter"),
    ("equalTo", "endAt"),
    ("equalTo", "endBefore"),
    ("startAt", "startAfter"),
    ("endAt", "endBefore"),
)
_LIMIT = re.compile(r"[1-9][0-9]{0,99}")
_HIGHEST_LIMIT: Final = 2**53
_SAME_RANK: ValueRank = rank_value(None)


class InvalidQuery(ValueError):
    """Query parameters that mean nothing; the message is a sentence for the caller."""


@attrs.frozen
class Order:
    """What children are ordered by; `path` leads from a child to what counts, for kind `child`."""

    kind: OrderKind
    path: Path = ROOT


BY_KEY: Final = Order("key")
BY_VALUE: Final = Order("value")
BY_PRIORITY: Final = Order("priority")
_SPECIAL_ORDERS: Final = {"$key": BY_KEY, "$value": BY_VALUE, "$priority": BY_PRIORITY}


@attrs.frozen
class Bound:
    """One end of the piece that a query cuts out.

    A child lies at the bound if its sort value has the rank of `value` and, where `key` is not
    None, its key is `key`; it belongs to the piece if `is_inclusive`. A query by key ranks all
    children the same and bounds them by `key` alone.
    """

    value: Scalar
    key: str | None
    is_inclusive: bool
    rank: ValueRank = attrs.field(init=False)
    _key_rank: KeyRank | None = attrs.field(init=False)

    @rank.default
    def _(self) -> ValueRank:
        return rank_value(self.value)

    @_key_rank.default
    def _(self) -> KeyRank | None:
        return None if self.key is None else rank_key(self.key)

    def is_passed(self, rank: ValueRank, key: str) -> bool:
        """Tell whether a child lies above this bound, or at it and that is inclusive."""
        side = self._side(rank, key)
        return side > 0 or (side == 0 and self.is_inclusive)

    def is_kept(self, rank: ValueRank, key: str) -> bool:
        """Tell whether a child lies below this bound, or at it and that is inclusive."""
        side = self._side(rank, key)
        return side < 0 or (side == 0 and self.is_inclusive)

    def _side(self, rank: ValueRank, key: str) -> int:
        if rank != self.rank:
            return 1 if rank > self.rank else -1
        if self._key_rank is None:
            return 0
        key_rank = rank_key(key)
        return (key_rank > self._key_rank) - (key_rank < self._key_rank)


@attrs.frozen
class Query:
    """A parsed query; make it with `parse_query`. At most one of the limits is not None."""

    order: Order
    low: Bound | None = None
    high: Bound | None = None
    limit_to_first: int | None = None
    limit_to_last: int | None = None

    def sort_value(self, child: Value) -> ValueRank:
        """Return what a child is ordered by, before its key; the same for all in a query by key."""
        kind = self.order.kind
        if kind == "key":
            return _SAME_RANK
        if kind == "priority":
            return rank_value(priority_of(child))
        return rank_value(leaf_of(value_at(child, self.order.path)))

    def admits(self, rank: ValueRank, key: str) -> bool:
        """Tell whether a child lies within the bounds, whatever the limit."""
        return (self.low is None or self.low.is_passed(rank, key)) and (
            self.high is None or self.high.is_kept(rank, key)
        )

    def select(self, members: Iterable[tuple[str, Value]]) -> Selection:
        """Return the children within bounds and limit, in order; `members` may come in any.

        This is the meaning of a query, told on values in memory. `store.selection` reaches the same
        on rows, without holding all of them.
        """
        admitted = (
            ((rank, rank_key(key)), key, child)
            for key, child in members
            if self.admits(rank := self.sort_value(child), key)
        )
        position = itemgetter(0)
        if self.limit_to_first is not None:
            chosen = nsmallest(self.limit_to_first, admitted, position)
        elif self.limit_to_last is not None:
            chosen = nlargest(self.limit_to_last, admitted, position)[::-1]
        else:
            chosen = sorted(admitted, key=position)
        return [(key, child) for _, key, child in chosen]


def parse_query(parameters: Mapping[str, str]) -> Query | None:
    """Return the query that decoded query parameters ask for, None if they ask for none.

    Raises `InvalidQuery`.
    """
    given = [name for name in PARAMETERS if name in parameters]
    if not given:
        return None
    if "orderBy" not in parameters:
        raise InvalidQuery(f"{given[0]} needs orderBy beside it.")
    for one, other in _RIVALS:
        if one in parameters and other in parameters:
            raise InvalidQuery(f"{one} and {other} exclude each other.")
    order = parse_order(parameters["orderBy"])
    exact = _parse_bound(parameters, "equalTo", order, True)
    start = _parse_bound(parameters, "startAt", order, True)
    end = _parse_bound(parameters, "endAt", order, True)
    return Query(
        order,
        exact or start or _parse_bound(parameters, "startAfter", order, False),
        exact or end or _parse_bound(parameters, "endBefore", order, False),
        parse_limit(parameters, "limitToFirst"),
        parse_limit(parameters, "limitToLast"),
    )


def parse_order(text: str) -> Order:
    """Parse the value of `orderBy`; raise `InvalidQuery`."""
    try:
        name = orjson.loads(text)
    except orjson.JSONDecodeError:
        name = None
    if not isinstance(name, str):
        raise InvalidQuery('orderBy must be a JSON string, in double quotes: orderBy="name".')
    if name in _SPECIAL_ORDERS:
        return _SPECIAL_ORDERS[name]
    if name.startswith("$"):
        raise InvalidQuery("Of the names that begin with $, orderBy takes $key, $value, $priority.")
    try:
        return Order("child", parse_child(name))
    except InvalidPath as error:
        raise InvalidQuery(f"orderBy names no child: {error}") from None


def parse_limit(parameters: Mapping[str, str], name: str) -> int | None:
    """Return the limit called `name`, None if it is not given; raise `InvalidQuery`."""
    text = parameters.get(name)
    if text is None:
        return None
    if not _LIMIT.fullmatch(text):
        raise InvalidQuery(
            f"{name} must be a whole number from 1 on, in digits alone, 100 of them at most."
        )
    return min(int(text), _HIGHEST_LIMIT)


def print_selection(selected: Iterable[tuple[str, Value]], *, is_export: bool = False) -> Json:
    """Return the JSON of a query's result: an object in its order, None if it is empty.

    With `is_export` the children keep their priorities and are never printed as arrays.
    """
    shown = {key: child if is_export else plain(child) for key, child in selected}
    return shown or None


def _parse_bound(
    parameters: Mapping[str, str], name: str, order: Order, is_inclusive: bool
) -> Bound | None:
    text = parameters.get(name)
    if text is None:
        return None
    value, *rest = _parse_parts(name, text)
    if order.kind == "key":
        if rest or not isinstance(value, str):
            raise InvalidQuery(f'{name} must be one JSON string, a key, with orderBy="$key".')
        return Bound(None, value, is_inclusive)
    if not rest:
        return Bound(value, None, is_inclusive)
    key = rest[0]
    if not isinstance(key, str):
        raise InvalidQuery(f"The second part of {name} must be a key, in double quotes.")
    return Bound(value, key, is_inclusive)


def _parse_parts(name: str, text: str) -> list[Scalar]:
    try:
        # One part or two, and each may hold a comma: as the items of an array they are JSON.
        parts = orjson.loads(f"[{text}]")
        if not 1 <= len(parts) <= 2 or any(isinstance(part, dict | list) for part in parts):
            raise ValueError(text)
        return [settle(part) if type(part) in (int, float) else part for part in parts]
    except ValueError:
        raise InvalidQuery(
            f"{name} must be a JSON number, string, boolean or null; a key may follow it."
        ) from None
