"""The queries of the real-time protocol: from a query object to a `Query`.

`i` is what children are ordered by: `.key`, `.value`, `.priority` or a child path; without it, by
their priorities. `sp`, `sn` and `sin` are the value, the key and the inclusiveness of the start,
`ep`, `en` and `ein` those of the end, `l` is the limit and `vf` the side that it begins from.
"""

from __future__ import annotations

from typing import Any, Final

from treedbd.tree.path import parse_child
from treedbd.tree.query import BY_KEY, BY_PRIORITY, BY_VALUE, Bound, JsonScalar, Order, Query
from treedbd.tree.types import InvalidPath, InvalidQuery
from treedbd.tree.value import canonical_number

_ORDERS: Final = {".key": BY_KEY, ".value": BY_VALUE, ".priority": BY_PRIORITY}
_FIRST_KEY: Final = "[MIN_NAME]"
_LAST_KEY: Final = "[MAX_NAME]"
"""What clients send for a key before all others and for one after them; neither can be a key."""
_MEMBERS: Final = frozenset({"i", "sp", "sn", "sin", "ep", "en", "ein", "l", "vf"})
_HIGHEST_LIMIT: Final = 2**53


def parse_query_object(json: object) -> Query | None:
    """Return the query of a listen or a get, None if it selects everything, by priority.

    Raises `InvalidQuery`.
    """
    if json is None:
        return None
    if not isinstance(json, dict) or not json.keys() <= _MEMBERS:
        raise InvalidQuery("The query must be an object of i, sp, sn, sin, ep, en, ein, l and vf.")
    if not json:
        return None
    order = _parse_order(json.get("i", ".priority"))
    low = _parse_bound(json, "sp", "sn", "sin", order, is_start=True)
    high = _parse_bound(json, "ep", "en", "ein", order, is_start=False)
    if low is not None and low.is_inclusive and low == high:
        high = low  # rules know an exact query by that
    limit = _parse_limit(json.get("l"))
    side = json.get("vf", "l" if "sp" in json or "sn" in json else "r")
    if side not in ("l", "r"):
        raise InvalidQuery('The side of a limit (vf) must be "l" or "r".')
    first, last = (limit, None) if side == "l" else (None, limit)
    return Query(order, low, high, first, last)


def _parse_order(name: object) -> Order:
    if not isinstance(name, str):
        raise InvalidQuery("What a query is ordered by (i) must be a string.")
    if name in _ORDERS:
        return _ORDERS[name]
    try:
        return Order("child", parse_child(name))
    except InvalidPath as error:
        raise InvalidQuery(f"What a query is ordered by (i) is not a path: {error}") from None


def _parse_bound(
    json: dict[str, Any], value: str, key: str, inclusive: str, order: Order, *, is_start: bool
) -> Bound | None:
    if value not in json and key not in json:
        return None
    bound, name, is_inclusive = json.get(value), json.get(key), json.get(inclusive, True)
    if not isinstance(is_inclusive, bool):
        raise InvalidQuery(f"{inclusive} must be a boolean.")
    if not isinstance(name, str | None):
        raise InvalidQuery(f"{key} must be a key.")
    if order.kind == "key":
        return _parse_key_bound(value, bound, name, is_inclusive, is_start=is_start)
    if isinstance(bound, dict | list):
        raise InvalidQuery(f"{value} must be a string, a number, a boolean or null.")
    scalar: JsonScalar = bound
    if type(scalar) in (int, float):
        try:
            scalar = canonical_number(scalar)  # type: ignore[arg-type]  # it is a number
        except (ValueError, OverflowError):
            raise InvalidQuery(f"{value} is beyond the range of numbers.") from None
    if name in (_FIRST_KEY, _LAST_KEY):
        # Before or after all children with this value: they are in the range, or none is.
        is_inclusive, name = (name == _FIRST_KEY) is is_start, None
    return Bound(scalar, name, is_inclusive)


def _parse_key_bound(
    member: str, value: object, name: str | None, is_inclusive: bool, *, is_start: bool
) -> Bound | None:
    """Return the bound of a query by key, whose value is a key."""
    if value is None and name is not None:
        value = name
    if not isinstance(value, str):
        raise InvalidQuery(f"{member} must be a key in a query by key.")
    if value in (_FIRST_KEY, _LAST_KEY):
        if (value == _FIRST_KEY) is is_start:
            return None
        raise InvalidQuery(f"{member} leaves nothing that the query could select.")
    return Bound(None, value, is_inclusive)


def _parse_limit(limit: object) -> int | None:
    if limit is None:
        return None
    if isinstance(limit, float) and limit.is_integer():
        limit = int(limit)
    if type(limit) is not int or limit < 1:
        raise InvalidQuery("The limit (l) must be an integer of at least 1.")
    return min(limit, _HIGHEST_LIMIT)
