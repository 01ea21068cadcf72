"""Queries: which children a read selects, in which order; shallow reads, descriptions.

All children have one total order: by the value that the query orders by, ties by key. Bounds select
a range of that order; `where` leaves out the children that do not meet its conditions; a limit
selects the beginning or the end of what is left. A query knows nothing of rows or indexes:
`Query.select` answers it in memory, `sort_value` and `admits` decide about one child. A caller that
reads the children in order starts at one bound and stops at the other or at the limit.

`where` is a JSON object. Each member names a place below a child, as `orderBy` does, or its `$key`,
`$value` or `$priority`; its value is a scalar, which must be equal, or an object of operators. All
of these conditions must be met. A condition compares the rank of what is there
(`path.rank_value`), so it knows no rows either.

A shallow read shows the keys of a node's children, without what is below them. Version 1 shows
`true` for each child; version 2 (`v=2`) shows leaves as they are and the size of containers. A
description shows of each child its type and size, and leaves cut to what fits a line. The caller
reads the rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b
from heapq import nlargest, nsmallest
from operator import ge, gt, itemgetter, le, lt
from sys import getsizeof
from typing import Any, Final, Literal, TypeAlias

import attrs
import orjson

from treedbd.caches import bounded_cache
from treedbd.limits import (
    MAX_DESCRIBED_CHILDREN,
    MAX_WHERE_CONDITIONS,
    MAX_WHERE_ITEMS,
    Limits,
)
from treedbd.tree.path import (
    SAME_RANK,
    KeyRank,
    ValueRank,
    check_key,
    parse_child,
    rank_key,
    rank_value,
)
from treedbd.tree.types import ROOT, InvalidPath, InvalidQuery, Json, Path, QueryTooLarge, Value
from treedbd.tree.value import as_json, canonical_number, leaf_of, plain, priority_of, value_at

FieldKind: TypeAlias = Literal["key", "value", "priority", "child"]
"""What a condition reads: the key, value or priority of a child, or the value at a path in it."""
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
_LIMIT_DIGITS = re.compile(r"[1-9][0-9]{0,99}")
_HIGHEST_LIMIT: Final = 2**53
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


class TooManyChildren(QueryTooLarge):
    """A `where` would examine more children than one request may."""

    def __init__(self, most: int) -> None:
        """`most` is how many it may."""
        super().__init__(
            f"where has examined {most} children, as many as one request may: use bounds "
            "with orderBy, or raise where_children."
        )


@attrs.frozen
class Order:
    """What children are ordered by; for kind `child`, the value at `path` below each child."""

    kind: FieldKind
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

    value: Scalar
    key: str | None
    is_inclusive: bool
    rank: ValueRank = attrs.field(init=False, repr=False)
    _key_rank: KeyRank | None = attrs.field(init=False, repr=False)

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
            return SAME_RANK
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

    def select(self, members: Iterable[tuple[str, Value]]) -> list[tuple[str, Value]]:
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
    # Each value is there twice: as it is shown, and as it is ranked.
    return 0 if query is None else 2 * getsizeof(repr(query))


def selection_to_json(selected: Iterable[tuple[str, Value]], *, is_export: bool = False) -> Json:
    """Return the JSON of a query's result: an object in its order, None if it is empty.

    With `is_export` the children keep their priorities and are never printed as arrays.
    """
    shown: dict[str, Json] = {
        key: as_json(child) if is_export else plain(child) for key, child in selected
    }
    return shown or None


def parse_query(
    parameters: Mapping[str, str], where_children: int = Limits().where_children
) -> Query | None:
    """Return the query in decoded request parameters, None if there is none.

    A `where` may examine `where_children` children. Raises `InvalidQuery`.
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
        order=order,
        low=exact or start or _parse_bound(parameters, "startAfter", order, False),
        high=exact or end or _parse_bound(parameters, "endBefore", order, False),
        limit_to_first=parse_limit(parameters, "limitToFirst"),
        limit_to_last=parse_limit(parameters, "limitToLast"),
        where=where,
    )


def check_combination(
    parameters: Mapping[str, object], name_of: Callable[[str], str] = str
) -> None:
    """Raise `InvalidQuery` for parameters that cannot be together, with what `name_of` calls them.

    Their values are not read.
    """
    may_be_unordered = _LIMITS if WHERE in parameters else ()
    for name in PARAMETERS:
        if name in parameters and "orderBy" not in parameters and name not in may_be_unordered:
            raise InvalidQuery(f"{name_of(name)} needs {name_of('orderBy')}.")
    check_exclusive(parameters, name_of)


def check_exclusive(parameters: Mapping[str, object], name_of: Callable[[str], str] = str) -> None:
    """Raise `InvalidQuery` for two parameters that exclude each other."""
    for one, other in _EXCLUSIVE:
        if one in parameters and other in parameters:
            raise InvalidQuery(f"{name_of(one)} and {name_of(other)} cannot be combined.")


@bounded_cache(1024)
def parse_order(text: str) -> Order:
    """Parse the value of `orderBy`; raise `InvalidQuery`. Results are cached."""
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
    if not _LIMIT_DIGITS.fullmatch(text):
        raise InvalidQuery(
            f"{name} must be an integer of at least 1, written in at most 100 digits."
        )
    return min(int(text), _HIGHEST_LIMIT)


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
        # A value and perhaps a key, both of which may have commas: parsed as items of an array.
        parts = orjson.loads(f"[{text}]")
        if not 1 <= len(parts) <= 2 or any(isinstance(part, dict | list) for part in parts):
            raise ValueError(text)
        return [canonical_number(part) if type(part) in (int, float) else part for part in parts]
    except ValueError:
        raise InvalidQuery(
            f"{name} must be a JSON number, string, boolean or null; a key may follow."
        ) from None


Operand: TypeAlias = Scalar | tuple[Scalar, ...]
RankTest: TypeAlias = Callable[[ValueRank], bool]

_KINDS: Final[Mapping[str, FieldKind]] = {"$key": "key", "$value": "value", "$priority": "priority"}
_COMPARISONS: Final = {"<": lt, "<=": le, ">": gt, ">=": ge}
_OPERATORS: Final = ("==", "!=", *_COMPARISONS, "in", "startsWith", "exists")
_NOTHING: Final = rank_value(None)
_FALSE: Final = rank_value(False)[0]
_TRUE: Final = rank_value(True)[0]
_STRING: Final = rank_value("")[0]


@attrs.frozen
class WhereCondition:
    """One condition on one field of a child; `path` is that of a field of the kind `child`."""

    kind: FieldKind
    path: Path
    operator: str
    operand: Operand
    is_met: RankTest = attrs.field(init=False, repr=False, eq=False)
    """Whether the rank of the field meets the condition; of `$key`, the rank of the string."""

    @is_met.default
    def _(self) -> RankTest:
        return _make_test(self.kind, self.operator, self.operand)

    def rank(self, key: str, child: Value) -> ValueRank:
        """Return the rank of the field in a child, in normal form."""
        if self.kind == "key":
            return rank_value(key)
        if self.kind == "priority":
            return rank_value(priority_of(child))
        return rank_value(leaf_of(value_at(child, self.path)))


@attrs.frozen
class Where:
    """Conditions that a child must meet, and how many children one read may examine."""

    conditions: tuple[WhereCondition, ...]
    most_children: int

    def passes(self, key: str, child: Value) -> bool:
        """Return whether a child, in normal form, meets all conditions."""
        return all(each.is_met(each.rank(key, child)) for each in self.conditions)


def parse_where(text: str, most_children: int) -> Where:
    """Parse the value of `where`; raise `InvalidQuery`."""
    try:
        fields = orjson.loads(text)
    except orjson.JSONDecodeError:
        fields = None
    if not isinstance(fields, dict):
        raise InvalidQuery('where must be a JSON object, such as {"age":{">=":18}}.')
    if not fields:
        raise InvalidQuery("where needs at least one condition.")
    conditions: list[WhereCondition] = []
    for name, wanted in fields.items():
        kind, path = _parse_field(name)
        for operator, operand in _operators_of(name, wanted).items():
            parsed = _parse_operand(operator, operand)
            conditions.append(WhereCondition(kind, path, operator, parsed))
    if len(conditions) > MAX_WHERE_CONDITIONS:
        raise InvalidQuery(f"where takes at most {MAX_WHERE_CONDITIONS} conditions.")
    return Where(tuple(conditions), most_children)


def _parse_field(name: str) -> tuple[FieldKind, Path]:
    kind = _KINDS.get(name)
    if kind is not None:
        return kind, ROOT
    if name.startswith("$"):
        raise InvalidQuery("A field of where with $ must be $key, $value or $priority.")
    try:
        return "child", parse_child(name)
    except InvalidPath as error:
        raise InvalidQuery(f"A field of where is not the path of a child: {error}") from None


def _operators_of(name: str, wanted: Json) -> dict[str, Json]:
    if isinstance(wanted, list):
        raise InvalidQuery('A list in where needs an operator: {"in":[…]}.')
    if not isinstance(wanted, dict):
        return {"==": wanted}
    if not wanted:
        raise InvalidQuery("A field of where needs at least one operator.")
    for operator in wanted:
        if operator not in _OPERATORS:
            raise InvalidQuery(f"The operators of where are {' '.join(_OPERATORS)}.")
    return wanted


def _parse_operand(operator: str, operand: Json) -> Operand:
    if operator == "exists":
        if not isinstance(operand, bool):
            raise InvalidQuery("exists in where takes true or false.")
        return operand
    if operator == "startsWith":
        if not isinstance(operand, str):
            raise InvalidQuery("startsWith in where takes a string.")
        return operand
    if operator == "in":
        if not isinstance(operand, list) or not 1 <= len(operand) <= MAX_WHERE_ITEMS:
            raise InvalidQuery(f"in of where takes a list of 1 to {MAX_WHERE_ITEMS} values.")
        return tuple([_parse_scalar(operator, item) for item in operand])
    scalar = _parse_scalar(operator, operand)
    if scalar is None and operator in _COMPARISONS:
        raise InvalidQuery(f"{operator} in where takes a number, a string or a boolean.")
    return scalar


def _parse_scalar(operator: str, json: Json) -> Scalar:
    if isinstance(json, dict | list):
        raise InvalidQuery(f"{operator} in where compares with no object and no list.")
    if type(json) not in (int, float):
        return json
    try:
        return canonical_number(json)  # type: ignore[arg-type]  # it is one of the two
    except ValueError:
        raise InvalidQuery(f"The number for {operator} in where is too large.") from None


def _make_test(kind: FieldKind, operator: str, operand: Operand) -> RankTest:
    if operator == "exists":
        return lambda rank: (rank != _NOTHING) is operand
    if isinstance(operand, tuple):
        ranks = frozenset(map(rank_value, operand))
        return lambda rank: rank in ranks
    if operator == "startsWith":
        start = str(operand)
        return lambda rank: rank[0] == _STRING and rank[1].startswith(start)
    wanted = rank_value(operand)
    if operator in _COMPARISONS:
        return _make_comparison(kind, _COMPARISONS[operator], operand)
    is_equal = operator == "=="
    return lambda rank: (rank == wanted) is is_equal


def _make_comparison(
    kind: FieldKind, compare: Callable[[Any, Any], bool], operand: Operand
) -> RankTest:
    """Return a test that holds only between values of one kind; false and true are one."""
    wanted = rank_value(operand)
    if kind == "key":
        if not isinstance(operand, str):
            return lambda _: False
        wanted_key = rank_key(operand)
        return lambda rank: compare(rank_key(rank[1]), wanted_key)
    kinds = (_FALSE, _TRUE) if isinstance(operand, bool) else (wanted[0],)
    return lambda rank: rank[0] in kinds and compare(rank, wanted)


DESCRIBE: Final = "describe"
AT: Final = "at"
_DEFAULT_DESCRIBED: Final = 50
_POSITION = re.compile(r"[0-9]{1,15}")
_NOT_WITH_AT: Final = ("limitToLast", "startAt", "startAfter", "endAt", "endBefore")


@attrs.frozen
class Description:
    """Which children a description shows, of a read that is one.

    Attributes:
        page: the query that selects them: by key, unless the read `is_query`.
        at: the position of the first of them; None if `page` alone says which they are.
        is_query: whether it describes what a query selects.

    """

    page: Query
    at: int | None = None
    is_query: bool = False


def parse_description(
    parameters: Mapping[str, str], query_of: Callable[[], Query | None]
) -> Description | None:
    """Return the description in decoded request parameters, None if there is none.

    `query_of` parses the query that they have. Raises `InvalidQuery`.
    """
    wanted = parameters.get(DESCRIBE, "false")
    if wanted not in ("true", "false"):
        raise InvalidQuery("describe must be true or false.")
    if wanted == "false":
        return None
    if "orderBy" in parameters or WHERE in parameters:
        query = query_of() or Query(BY_KEY)
        if AT in parameters:
            raise InvalidQuery("at does not work with a query.")
        return Description(_limit_described(query), is_query=True)
    if "equalTo" in parameters:
        raise InvalidQuery("equalTo needs orderBy.")
    check_exclusive(parameters)
    page = Query(
        BY_KEY,
        low=_key_bound(parameters, "startAt", True) or _key_bound(parameters, "startAfter", False),
        high=_key_bound(parameters, "endAt", True) or _key_bound(parameters, "endBefore", False),
        limit_to_first=parse_limit(parameters, "limitToFirst"),
        limit_to_last=parse_limit(parameters, "limitToLast"),
    )
    return Description(_limit_described(page), _parse_position(parameters))


def _limit_described(query: Query) -> Query:
    limit = query.limit_to_first or query.limit_to_last
    if limit is None:
        return attrs.evolve(query, limit_to_first=_DEFAULT_DESCRIBED)
    if limit > MAX_DESCRIBED_CHILDREN:
        raise InvalidQuery(f"describe shows at most {MAX_DESCRIBED_CHILDREN} children.")
    return query


def _parse_position(parameters: Mapping[str, str]) -> int | None:
    text = parameters.get(AT)
    if text is None:
        return None
    for name in _NOT_WITH_AT:
        if name in parameters:
            raise InvalidQuery(f"at and {name} cannot be combined.")
    if not _POSITION.fullmatch(text):
        raise InvalidQuery("at must be a position: an integer of at least 0.")
    return int(text)


def _key_bound(parameters: Mapping[str, str], name: str, is_inclusive: bool) -> Bound | None:
    key = _parse_key(name, parameters.get(name))
    return None if key is None else Bound(None, key, is_inclusive)


Version: TypeAlias = Literal[1, 2]

_PAGING = frozenset({"limitToFirst", "startAfter"})


@attrs.frozen
class Shallow:
    """A shallow read: which version, and which page of the keys."""

    version: Version = 1
    limit: int | None = None
    start_after: str | None = None


def parse_shallow(parameters: Mapping[str, str]) -> Shallow | None:
    """Return the shallow read in decoded request parameters, None if there is none.

    Raises `InvalidQuery`.
    """
    version = _parse_version(parameters.get("v"))
    wanted = parameters.get("shallow", "false")
    if wanted not in ("true", "false"):
        raise InvalidQuery("shallow must be true or false.")
    if wanted == "false":
        return None
    for name in (*PARAMETERS, WHERE):
        if name in parameters and name not in _PAGING:
            raise InvalidQuery(f"shallow works with limitToFirst and startAfter, not with {name}.")
    return Shallow(
        version,
        parse_limit(parameters, "limitToFirst"),
        _parse_key("startAfter", parameters.get("startAfter")),
    )


def _parse_version(text: str | None) -> Version:
    if text is None:
        return 1
    if text != "2":
        raise InvalidQuery("v must be 2, or absent.")
    return 2


def _parse_key(name: str, text: str | None) -> str | None:
    """Return the key in a parameter: as it is, or as a JSON string."""
    if text is None:
        return None
    try:
        return check_key(orjson.loads(text) if text.startswith('"') else text)
    except InvalidPath as error:
        raise InvalidQuery(f"{name} is not a key: {error}") from None
    except orjson.JSONDecodeError:
        raise InvalidQuery(f"{name} begins with a quote but is not a JSON string.") from None
