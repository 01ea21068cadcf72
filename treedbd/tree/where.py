"""The `where` of a read: conditions on what children hold, all of which must be met.

`where` is a JSON object. Each member names a place below a child, as `orderBy` does, or its `$key`,
`$value` or `$priority`; its value is a scalar, which must be equal, or an object of operators. A
condition looks at the rank of what is there (`order.rank_value`), so this module knows no rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import ge, gt, le, lt
from typing import Any, Final, Literal, TypeAlias

import attrs
import orjson

from treedbd.limits import MAX_WHERE_CONDITIONS, MAX_WHERE_ITEMS
from treedbd.tree.path import ValueRank, parse_child, rank_key, rank_value
from treedbd.tree.types import ROOT, InvalidPath, InvalidQuery, Json, Path, QueryTooLarge, Value
from treedbd.tree.value import canonical_number, leaf_of, priority_of, value_at

FieldKind: TypeAlias = Literal["key", "value", "priority", "child"]
Scalar: TypeAlias = str | int | float | bool | None
Operand: TypeAlias = Scalar | tuple[Scalar, ...]
Test: TypeAlias = Callable[[ValueRank], bool]

_KINDS: Final[Mapping[str, FieldKind]] = {
    "$key": "key",
    "$value": "value",
    "$priority": "priority",
}
_COMPARISONS: Final = {"<": lt, "<=": le, ">": gt, ">=": ge}
_OPERATORS: Final = ("==", "!=", *_COMPARISONS, "in", "startsWith", "exists")
_NOTHING: Final = rank_value(None)
_FALSE: Final = rank_value(False)[0]
_TRUE: Final = rank_value(True)[0]
_STRING: Final = rank_value("")[0]


class TooManyChildren(QueryTooLarge):
    """A `where` would look through more children than one request may."""

    def __init__(self, most: int) -> None:
        """`most` is how many it may."""
        super().__init__(
            f"where has looked through {most} children, as many as one request may: use bounds "
            "with orderBy, or raise where_children."
        )


@attrs.frozen
class WhereCondition:
    """One condition on one field of a child; `path` is that of a field of the kind `child`."""

    kind: FieldKind
    path: Path
    operator: str
    operand: Operand
    is_met: Test = attrs.field(init=False, repr=False, eq=False)
    """Whether the rank of the field meets the condition; of `$key`, the rank of the string."""

    @is_met.default
    def _(self) -> Test:
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
    """Conditions that a child must meet, and how many children one read may look through."""

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


def _make_test(kind: FieldKind, operator: str, operand: Operand) -> Test:
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
) -> Test:
    """Return a test that holds only between values of one kind; false and true are one."""
    wanted = rank_value(operand)
    if kind == "key":
        if not isinstance(operand, str):
            return lambda _: False
        wanted_key = rank_key(operand)
        return lambda rank: compare(rank_key(rank[1]), wanted_key)
    kinds = (_FALSE, _TRUE) if isinstance(operand, bool) else (wanted[0],)
    return lambda rank: rank[0] in kinds and compare(rank, wanted)
