"""Queries: which children of a node are returned, and in which order.

All children have one total order: by the value that the query orders by, ties by key. Bounds select
a range of that order; a limit selects the beginning or the end of the range. A query knows nothing
of rows or indexes: `select` answers it in memory, `sort_value` and `admits` decide about one child.
A caller that reads the children in order starts at one bound and stops at the other or at the
limit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b
from heapq import nlargest, nsmallest
from operator import itemgetter
from sys import getsizeof
from typing import Final, Literal, TypeAlias

import attrs
import orjson

from treedbd.limits import Limits
from treedbd.tree.path import KeyRank, ValueRank, parse_child, rank_key, rank_value
from treedbd.tree.types import ROOT, InvalidPath, InvalidQuery, Json, Path, QueryTooLarge, Value
from treedbd.tree.value import as_json, canonical_number, leaf_of, plain, priority_of, value_at
from treedbd.tree.where import Where, parse_where

OrderKind: TypeAlias = Literal["key", "value", "priority", "child"]
Selection: TypeAlias = list[tuple[str, Value]]
JsonScalar: TypeAlias = str | int | float | bool | None

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
"""The parameters of a request that make it a query; `WHERE` does as well, without `orderBy`."""
WHERE: Final = "where"
_LIMITS: Final = ("limitToFirst", "limitToLast")

_EXCLUSIVE: Final = (
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
_LONGEST_NAME: Final = 1024
"""Characters of a name; a longer one is replaced by its digest."""


class TooMuchText(QueryTooLarge):
    """A query whose children are ordered by more text than one request may keep."""

    def __init__(self, most: int) -> None:
        """`most` is how many characters of long strings it may."""
        super().__init__(
            f"The children are ordered by more than {most} characters of long strings, as many as "
            "one request may keep: use bounds or a small limit, or order by something shorter."
        )


@attrs.frozen
class Order:
    """What children are ordered by; for kind `child`, the value at `path` below each child."""

    kind: OrderKind
    path: Path = ROOT


BY_KEY: Final = Order("key")
BY_VALUE: Final = Order("value")
BY_PRIORITY: Final = Order("priority")
_SPECIAL_ORDERS: Final = {"$key": BY_KEY, "$value": BY_VALUE, "$priority": BY_PRIORITY}


@attrs.frozen
class Bound:
    """One end of the range of a query.

    A child is at the bound if its sort value has the rank of `value` and, unless `key` is None, its
    key is `key`; it belongs to the range if the bound `is_inclusive`. A query by key ranks all
    children the same and bounds them by `key` alone.
    """

    value: JsonScalar
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

    def admits_as_low(self, rank: ValueRank, key: str) -> bool:
        """Return whether a child is above this bound, or at it and the bound is inclusive."""
        side = self._side(rank, key)
        return side > 0 or (side == 0 and self.is_inclusive)

    def admits_as_high(self, rank: ValueRank, key: str) -> bool:
        """Return whether a child is below this bound, or at it and the bound is inclusive."""
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
    """A parsed query, made by `parse_query`. At most one of the limits is not None.

    Attributes:
        where: what children within the bounds must meet, before the limit is applied.

    """

    order: Order
    low: Bound | None = None
    high: Bound | None = None
    limit_to_first: int | None = None
    limit_to_last: int | None = None
    where: Where | None = None

    @property
    def is_limited(self) -> bool:
        """Whether it has a limit."""
        return self.limit_to_first is not None or self.limit_to_last is not None

    def sort_value(self, child: Value) -> ValueRank:
        """Return the rank of a child before its key; all have the same in a query by key."""
        kind = self.order.kind
        if kind == "key":
            return _SAME_RANK
        if kind == "priority":
            return rank_value(priority_of(child))
        return rank_value(leaf_of(value_at(child, self.order.path)))

    def admits(self, rank: ValueRank, key: str) -> bool:
        """Return whether a child is within the bounds, whatever the limit."""
        return (self.low is None or self.low.admits_as_low(rank, key)) and (
            self.high is None or self.high.admits_as_high(rank, key)
        )

    def passes(self, key: str, child: Value) -> bool:
        """Return whether a child meets `where`, whatever the bounds."""
        return self.where is None or self.where.passes(key, child)

    def select(self, members: Iterable[tuple[str, Value]]) -> Selection:
        """Return the children within bounds and limit, in order; `members` may come in any order.

        This defines what a query means. `store.select` reaches the same result on rows, without
        having all of them in memory.
        """
        admitted = (
            ((rank, rank_key(key)), key, child)
            for key, child in members
            if self.admits(rank := self.sort_value(child), key) and self.passes(key, child)
        )
        position = itemgetter(0)
        if self.limit_to_first is not None:
            chosen = nsmallest(self.limit_to_first, admitted, position)
        elif self.limit_to_last is not None:
            chosen = nlargest(self.limit_to_last, admitted, position)[::-1]
        else:
            chosen = sorted(admitted, key=position)
        return [(key, child) for _, key, child in chosen]


def name_query(query: Query | None) -> str:
    """Return a short text that is equal for queries that are the same, and only for these.

    As text, because 1 and True are equal, but are different bounds of a query.
    """
    text = repr(query)
    if len(text) <= _LONGEST_NAME:
        return text
    return blake2b(text.encode(errors="surrogatepass"), digest_size=32).hexdigest()


def bytes_of(query: Query | None) -> int:
    """Return about how many bytes of memory a query takes."""
    return 0 if query is None else getsizeof(repr(query))


def parse_query(
    parameters: Mapping[str, str], where_children: int = Limits().where_children
) -> Query | None:
    """Return the query in decoded request parameters, None if there is none.

    It may look through `where_children` children for a `where`. Raises `InvalidQuery`.
    """
    given = [name for name in PARAMETERS if name in parameters]
    where = parse_where(parameters[WHERE], where_children) if WHERE in parameters else None
    if not given and where is None:
        return None
    check_combination(parameters)
    order = parse_order(parameters["orderBy"]) if "orderBy" in parameters else BY_KEY
    exact = _parse_bound(parameters, "equalTo", order, True)
    start = _parse_bound(parameters, "startAt", order, True)
    end = _parse_bound(parameters, "endAt", order, True)
    return Query(
        order,
        exact or start or _parse_bound(parameters, "startAfter", order, False),
        exact or end or _parse_bound(parameters, "endBefore", order, False),
        parse_limit(parameters, "limitToFirst"),
        parse_limit(parameters, "limitToLast"),
        where,
    )


def check_combination(
    parameters: Mapping[str, object], name_of: Callable[[str], str] = str
) -> None:
    """Raise `InvalidQuery` for parameters that cannot be together, with what `name_of` calls them.

    Their values are not looked at.
    """
    may_be_unordered = _LIMITS if WHERE in parameters else ()
    for name in PARAMETERS:
        if name in parameters and "orderBy" not in parameters and name not in may_be_unordered:
            raise InvalidQuery(f"{name_of(name)} needs {name_of('orderBy')}.")
    for one, other in _EXCLUSIVE:
        if one in parameters and other in parameters:
            raise InvalidQuery(f"{name_of(one)} and {name_of(other)} cannot be combined.")


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
        raise InvalidQuery("orderBy with $ must be $key, $value or $priority.")
    try:
        return Order("child", parse_child(name))
    except InvalidPath as error:
        raise InvalidQuery(f"orderBy is not the path of a child: {error}") from None


def parse_limit(parameters: Mapping[str, str], name: str) -> int | None:
    """Return the limit called `name`, None if it is not given; raise `InvalidQuery`."""
    text = parameters.get(name)
    if text is None:
        return None
    if not _LIMIT.fullmatch(text):
        raise InvalidQuery(
            f"{name} must be an integer of at least 1, written in at most 100 digits."
        )
    return min(int(text), _HIGHEST_LIMIT)


def selection_to_json(selected: Iterable[tuple[str, Value]], *, is_export: bool = False) -> Json:
    """Return the JSON of a query's result: an object in its order, None if it is empty.

    With `is_export` the children keep their priorities and are never printed as arrays.
    """
    shown: dict[str, Json] = {
        key: as_json(child) if is_export else plain(child) for key, child in selected
    }
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


def _parse_parts(name: str, text: str) -> list[JsonScalar]:
    try:
        # A value and perhaps a key, both of which may have commas: parsed as items of an array.
        parts = orjson.loads(f"[{text}]")
        if not 1 <= len(parts) <= 2 or any(isinstance(part, dict | list) for part in parts):
            raise ValueError(text)
        return [canonical_number(part) if type(part) in (int, float) else part for part in parts]
    except ValueError:
        raise InvalidQuery(
            f"{name} must be a JSON number, string, boolean or null; a key may follow."
        ) from None
