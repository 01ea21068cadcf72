"""A `where` on rows selects what an independent evaluation of the same JSON selects."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.store.normal_form import normal_form
from tests.store.test_select import BODIES, LEAVES, PATH, bounds
from treedbd.store import indexes as ranks
from treedbd.store import select as filtered
from treedbd.store.engine import Row
from treedbd.store.memory import MemoryEngine
from treedbd.store.node_writer import NodeWriter
from treedbd.store.rows import PagedRows
from treedbd.store.select import iterate_selected
from treedbd.tree.edit import make_put
from treedbd.tree.path import ValueRank
from treedbd.tree.query import Order, Query, TooManyChildren, parse_query
from treedbd.tree.types import Place
from treedbd.tree.value import members

FIELDS = st.sampled_from(["v", "w", "v/v", "0", "v/1", "long/0", "long", "$value", "$priority"])
SCALARS = LEAVES | st.sampled_from(["", "xx", 0, 3, True])
COMPARABLE = SCALARS.filter(lambda each: each is not None)
OPERATORS = st.one_of(
    st.tuples(st.sampled_from(["==", "!="]), SCALARS),
    st.tuples(st.sampled_from(["<", "<=", ">", ">="]), COMPARABLE),
    st.tuples(st.just("in"), st.lists(SCALARS, min_size=1, max_size=3)),
    st.tuples(st.just("startsWith"), st.sampled_from(["", "x", "z"])),
    st.tuples(st.just("exists"), st.booleans()),
)
WHERES = st.dictionaries(
    FIELDS,
    SCALARS | st.lists(OPERATORS, min_size=1, max_size=2).map(dict),
    min_size=1,
    max_size=2,
)


class Something:
    """Stands for an object: it is equal to nothing else, and has no order."""


def look_up(child: Any, field: str) -> Any:
    """Return what a field of a child holds, in the JSON of an export."""
    if field == "$priority":
        return child.get(".priority") if isinstance(child, dict) else None
    for step in [] if field == "$value" else field.split("/"):
        child = child.get(step) if isinstance(child, dict) else None
    if isinstance(child, dict):
        return child.get(".value", Something())
    return child


def kind_of(value: Any) -> str:
    kinds = {bool: "boolean", int: "number", float: "number", str: "string", type(None): "nothing"}
    return kinds.get(type(value), "object")


def holds(found: Any, operator: str, wanted: Any) -> bool:
    """Return whether one operator holds, by its definition."""
    if operator == "exists":
        return (found is not None) is bool(wanted)
    if operator == "in":
        return any(holds(found, "==", each) for each in wanted)
    if operator == "!=":
        return not holds(found, "==", wanted)
    if kind_of(found) != kind_of(wanted):
        return False
    if wanted is None:
        return operator == "=="
    outcomes: dict[str, bool] = {
        "startsWith": str(found).startswith(str(wanted)),
        "==": found == wanted,
        "<": found < wanted,
        "<=": not found > wanted,
        ">": found > wanted,
        ">=": not found < wanted,
    }
    return outcomes[operator]


def meets(child: Any, where: dict[str, Any]) -> bool:
    for field, wanted in where.items():
        operators = wanted if isinstance(wanted, dict) else {"==": wanted}
        for operator, operand in operators.items():
            if not holds(look_up(child, field), operator, operand):
                return False
    return True


def expected_of(body: Any, parameters: dict[str, str], where: dict[str, Any]) -> Any:
    """Return what is selected: first the bounds, then the conditions, then the limit."""
    unlimited = {name: value for name, value in parameters.items() if "limit" not in name}
    query = parse_query({"orderBy": '"$key"', **unlimited})
    assert query is not None
    found = [each for each in query.select(members(normal_form(body))) if meets(each[1], where)]
    if "limitToFirst" in parameters:
        return found[: int(parameters["limitToFirst"])]
    return found[-int(parameters.get("limitToLast", "0")) :]


@st.composite
def parameters_of(draw: st.DrawFn) -> dict[str, str]:
    order = draw(st.sampled_from([None, "$key", "$value", "$priority", "v", "v/v"]))
    limit = draw(st.sampled_from([None, "limitToFirst", "limitToLast"]))
    limits = {} if limit is None else {limit: str(draw(st.integers(1, 6)))}
    if order is None:
        return limits
    return {"orderBy": f'"{order}"', **draw(bounds(order)), **limits}


@settings(
    max_examples=examples(500),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    kept=st.sampled_from([0, 100, 1 << 22]),
    body=BODIES,
    row_bytes=st.sampled_from([30, 200, 4096]),
    parameters=parameters_of(),
    where=WHERES,
)
def test_rows_pass_as_their_json_does(
    monkeypatch: pytest.MonkeyPatch,
    kept: int,
    body: Any,
    row_bytes: int,
    parameters: dict[str, str],
    where: dict[str, Any],
) -> None:
    monkeypatch.setattr(filtered, "KEPT_BYTES", kept)
    nodes = NodeWriter(MemoryEngine().begin(), row_bytes)
    nodes.apply(make_put(Place(PATH), body).changes)
    query = parse_query({**parameters, "where": json.dumps(where)})
    assert query is not None
    expected = expected_of(body, parameters, where)
    selected = [child for child in iterate_selected(nodes, PATH, query) if child is not None]
    assert [(child.key, child.value()) for child in selected] == expected
    assert query.select(members(normal_form(body))) == expected


def make_list(count: int) -> NodeWriter:
    nodes = NodeWriter(MemoryEngine().begin())
    body: Any = {f"k{at:04}": {"v": at, "long": "t" * 40} for at in range(count)}
    nodes.apply(make_put(Place(PATH), body).changes)
    return nodes


def make_query(most: int, **parameters: str) -> Query:
    query = parse_query(parameters, most)
    assert query is not None
    return query


@pytest.mark.parametrize("order", ["$key", "v"])
@pytest.mark.parametrize("limit", ["limitToFirst", "limitToLast"])
def test_too_many_children_fail_before_the_first_is_yielded(order: str, limit: str) -> None:
    nodes = make_list(100)
    common = {"orderBy": f'"{order}"', "where": '{"v":{">=":0}}', limit: "100"}
    iteration = iterate_selected(nodes, PATH, make_query(99, **common))
    found: list[Any] = []
    with pytest.raises(TooManyChildren, match="examined 99 children"):
        found.extend(child for child in iteration if child is not None)
    assert found == []
    found = [each for each in iterate_selected(nodes, PATH, make_query(100, **common)) if each]
    assert len(found) == 100


@pytest.mark.parametrize(
    ("order", "limit", "keys"),
    [
        ("$key", "limitToFirst", ["k0000", "k0001"]),
        ("$key", "limitToLast", ["k0098", "k0099"]),
        ("v", "limitToFirst", ["k0000", "k0001"]),
        ("v", "limitToLast", ["k0098", "k0099"]),
    ],
)
def test_the_search_ends_at_the_limit(order: str, limit: str, keys: list[str]) -> None:
    common = {"orderBy": f'"{order}"', "where": '{"v":{">=":0}}', limit: "2"}
    found = list(iterate_selected(make_list(100), PATH, make_query(2, **common)))
    assert [child.key for child in found if child is not None] == keys


def test_children_beyond_the_bounds_are_not_counted() -> None:
    query = make_query(10, orderBy='"v"', startAt="50", endBefore="60", where='{"v":{"!=":55}}')
    found = [each for each in iterate_selected(make_list(100), PATH, query) if each is not None]
    assert len(found) == 9


def test_none_is_yielded_regularly_while_nothing_passes() -> None:
    query = make_query(10_000, where='{"v":-1}')
    turns = 3000 // filtered.YIELD_AFTER
    assert list(iterate_selected(make_list(3000), PATH, query)) == [None] * turns


@pytest.mark.parametrize("conditions", [{"where": '{"v":1}'}, {"orderBy": '"$value"'}])
def test_a_long_row_is_read_in_one_step_and_looked_at_in_another(
    monkeypatch: pytest.MonkeyPatch, conditions: dict[str, str]
) -> None:
    nodes = NodeWriter(MemoryEngine().begin())
    nodes.apply(make_put(Place(PATH), dict.fromkeys("abc", "x" * 100_000)).changes)
    done: list[str] = []
    scan, rank_of_row = PagedRows.scan, ranks.rank_of_row

    def scanned(
        rows: PagedRows, low: bytes, high: bytes, *, reverse: bool = False
    ) -> Iterator[Row]:
        for row in scan(rows, low, high, reverse=reverse):
            done.append("read")
            yield row

    def looked_at(raw: bytes, order: Order) -> tuple[ValueRank, bool]:
        done.append("looked at")
        return rank_of_row(raw, order)

    monkeypatch.setattr(PagedRows, "scan", scanned)
    for module in (filtered, ranks):
        monkeypatch.setattr(module, "rank_of_row", looked_at)
    query = parse_query(conditions)
    assert query is not None
    for child in iterate_selected(nodes, PATH, query):
        done += ["step"] * (child is None)
    assert [done.count(each) for each in ("read", "looked at")] == [3, 3]
    assert all("step" in pair for pair in pairwise(done))
