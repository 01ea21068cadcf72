"""The options of a query as a program gives them, and the parameters that they become."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias, TypedDict

from treedbd.embedding.values import encode
from treedbd.tree.query import check_combination
from treedbd.tree.types import InvalidData, InvalidQuery, Json
from treedbd.web.request import Parameters

Scalar: TypeAlias = str | int | float | bool | None
Bound: TypeAlias = Scalar | tuple[Scalar, str]
"""A value; or a value and, for children that have equal ones, a key."""


class QueryOptions(TypedDict, total=False):
    """Which children are read, by the names that the command has for it.

    Attributes:
        order_by: the path of a field of each child, or `$key`, `$value` or `$priority`.
        limit_to_first: how many, at most.
        limit_to_last: how many, at most, counted from the end.
        start_at: the least value; with a tuple the least value and key.
        start_after: what comes before the first.
        end_at: the greatest value.
        end_before: what comes after the last.
        equal_to: the value.
        where: conditions on each child, such as `{"age": {">=": 18}}`.

    """

    order_by: str
    limit_to_first: int
    limit_to_last: int
    start_at: Bound
    start_after: Bound
    end_at: Bound
    end_before: Bound
    equal_to: Bound
    where: Mapping[str, Json]


_BOUNDS: Final = ("start_at", "start_after", "end_at", "end_before", "equal_to")
_ORDER: Final = "order_by"
_LIMITS: Final = ("limit_to_first", "limit_to_last")


def make_parameters(options: Mapping[str, Any]) -> Parameters:
    """Return the parameters of options; raise `InvalidQuery`, or `TypeError` for an unknown one."""
    parameters: Parameters = {}
    names: dict[str, str] = {}
    for name, value in options.items():
        if name not in QueryOptions.__annotations__:
            raise TypeError(f"{name} is not an option of a query")
        first, *more = name.split("_")
        parameter = first + "".join(map(str.capitalize, more))
        names[parameter] = name
        parameters[parameter] = _text_of(name, value)
    check_combination(parameters, lambda parameter: names.get(parameter, _ORDER))
    return parameters


def _text_of(name: str, value: Any) -> str:
    if name in _LIMITS:
        if not isinstance(value, int) or isinstance(value, bool):
            raise InvalidQuery(f"{name} must be an int of at least 1.")
        return str(value)
    parts = value if name in _BOUNDS and isinstance(value, tuple) else (value,)
    try:
        return ",".join(encode(part).decode() for part in parts)
    except InvalidData as error:
        raise InvalidQuery(f"{name} cannot be used: {error}") from None
