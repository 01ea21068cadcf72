from __future__ import annotations

from typing import Any, cast

import pytest

from tests.tree.value_view import ValueView
from treedbd.tree import edit as server_values
from treedbd.tree.edit import Increment, Resolver, Timestamp, normalise
from treedbd.tree.types import Path, Place, Value, View

NOW = 1_700_000_000_123
STAMP = {".sv": "timestamp"}


def plus(by: float) -> dict[str, Any]:
    return {".sv": {"increment": by}}


TREE: Any = {
    "n": {".value": 5, ".priority": 10},
    "t": "text",
    "b": True,
    "c": {"d": 1},
    "l": [1],
}
BEFORE = ValueView(cast(Value, normalise(TREE).value))


def resolve(json: Any, path: Path, before: View = BEFORE) -> Any:
    """Return a resolved body; check that the normal form is resolved to the same."""
    resolver = Resolver(NOW, before)
    sent = resolver.resolve_sent(json, path)
    assert resolver.resolve_value(normalise(json).value, path) == normalise(sent).value
    return sent


@pytest.mark.parametrize(
    ("json", "parsed"),
    [
        (STAMP, Timestamp()),
        (plus(1), Increment(1)),
        (plus(-1.5), Increment(-1.5)),
        (plus(2.0), Increment(2)),
    ],
)
def test_a_server_value_is_parsed(json: dict[str, Any], parsed: object) -> None:
    assert server_values.parse_placeholder(json) == parsed


@pytest.mark.parametrize(
    "json",
    [
        {".sv": "Timestamp"},
        {".sv": "now"},
        {".sv": None},
        {".sv": 1},
        {".sv": []},
        {".sv": {}},
        {".sv": {"increment": True}},
        {".sv": {"increment": "1"}},
        {".sv": {"increment": None}},
        {".sv": {"increment": 1, "other": 2}},
        {".sv": {"decrement": 1}},
        {".sv": "timestamp", "a": 1},
        {".sv": "timestamp", ".priority": 1},
    ],
)
def test_any_other_object_with_sv_is_refused(json: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\.sv"):
        server_values.parse_placeholder(json)


@pytest.mark.parametrize(
    ("json", "resolved"),
    [
        (None, None),
        (1, 1),
        (STAMP, NOW),
        ({"a": {"b": STAMP}, "c": "x"}, {"a": {"b": NOW}, "c": "x"}),
        ([STAMP, 1, [STAMP]], [NOW, 1, [NOW]]),
        ({"n": plus(2)}, {"n": 7}),
        ({"n": plus(-0.5)}, {"n": 4.5}),
        ({"t": plus(2)}, {"t": 2}),
        ({"b": plus(2)}, {"b": 2}),
        ({"c": plus(2)}, {"c": 2}),
        ({"absent": plus(2)}, {"absent": 2}),
        ({"l": [plus(1), plus(1)]}, {"l": [2, 1]}),
        ({"n": {".value": plus(2), ".priority": 3}}, {"n": {".value": 7, ".priority": 3}}),
        ({"n": {".value": 1, ".priority": plus(3)}}, {"n": {".value": 1, ".priority": 13}}),
        ({"x": 1, ".priority": plus(3)}, {"x": 1, ".priority": 3}),
        ({"x": 1, ".priority": STAMP}, {"x": 1, ".priority": NOW}),
    ],
)
def test_server_values_are_replaced_and_nothing_else(json: Any, resolved: Any) -> None:
    assert resolve(json, ()) == resolved


def test_an_increment_reads_below_the_path_of_the_write() -> None:
    assert resolve([plus(1)], ("l",)) == [2]
    assert resolve(plus(1), ("n",)) == 6


def test_an_increment_beyond_64_bits_becomes_a_double() -> None:
    by = Increment(2**63 - 1)
    total = Resolver(NOW, BEFORE).resolve_placeholder(by, Place(("n",)))
    assert total == 9223372036854776000


def test_an_increment_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match="out of range"):
        resolve(plus(1.7e308), (), ValueView(1.7e308))
