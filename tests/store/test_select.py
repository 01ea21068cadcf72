"""What a query selects from rows is what it selects from the same tree in memory."""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.store.normal_form import normal_form
from treedbd.store import indexes as ranks_module
from treedbd.store import select as select_module
from treedbd.store.indexes import BATCH_CHILDREN
from treedbd.store.memory import MemoryEngine
from treedbd.store.node_writer import NodeWriter
from treedbd.store.rows import ALL, Span
from treedbd.store.select import YIELD_AFTER, iterate_selected, sort_children
from treedbd.tree.edit import make_put
from treedbd.tree.query import (
    BY_KEY,
    BY_VALUE,
    Order,
    Query,
    TooMuchText,
    parse_query,
    selection_to_json,
)
from treedbd.tree.types import Charge, Path, Place, free
from treedbd.tree.value import compact, members

PATH = ("list",)
KEYS = st.sampled_from(["a", "b", "c", "10", "2", "-1", "é", "k" * 300, "k" * 500, "k" * 500 + "l"])
LEAVES = st.sampled_from([None, False, True, 1, 2, 2.5, "x", "y", "z" * 80])
CHILDREN: st.SearchStrategy[Any] = (
    LEAVES
    | st.builds(lambda v, p: {".value": v, ".priority": p}, st.integers(0, 2), st.integers(0, 2))
    | st.dictionaries(st.sampled_from(["v", "w", ".priority"]), st.integers(0, 3), max_size=3)
    | st.builds(lambda v: {"v": v, "long": ["t" * 40, "u" * 40]}, LEAVES)
    | st.lists(LEAVES | st.lists(LEAVES, max_size=2), max_size=3)
    | st.builds(lambda child: {"v": child}, st.deferred(lambda: CHILDREN))
)
BODIES = (
    st.dictionaries(KEYS, CHILDREN, max_size=10)
    | st.dictionaries(KEYS, st.builds(lambda v: {"v": v}, LEAVES), max_size=10)
    | st.lists(CHILDREN, max_size=10)
    | st.builds(
        lambda children, priority: {**children, ".priority": priority},
        st.dictionaries(KEYS, CHILDREN, min_size=1, max_size=5),
        st.integers(0, 2),
    )
)
ORDERS = st.sampled_from(["$key", "$value", "$priority", "v", "v/v", "0", "1", "v/1", "long/0"])


@functools.cache
def bounds(order: str) -> st.SearchStrategy[dict[str, str]]:
    keys = st.sampled_from(['"a"', '"b"', '"10"', '"k"'])
    values = keys if order == "$key" else st.sampled_from(["null", "false", "1", "2", '"x"'])
    low = st.sampled_from([None, "startAt", "startAfter"])
    high = st.sampled_from([None, "endAt", "endBefore"])
    return st.builds(
        lambda low, high, one, other: {
            name: value for name, value in ((low, one), (high, other)) if name is not None
        },
        low,
        high,
        values,
        values,
    )


@st.composite
def queries(draw: st.DrawFn) -> Query:
    order = draw(ORDERS)
    limit = draw(st.sampled_from([None, "limitToFirst", "limitToLast"]))
    limits = {} if limit is None else {limit: str(draw(st.integers(1, 6)))}
    query = parse_query({"orderBy": f'"{order}"', **draw(bounds(order)), **limits})
    assert query is not None
    return query


@settings(
    max_examples=examples(400),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    sizes=st.sampled_from([(1, 0), (3, 60), (8, 60), (1024, 1 << 22)]),
    batch=st.sampled_from([(1, 1), (4, 100), (64, 65_536)]),
    body=BODIES,
    row_bytes=st.sampled_from([30, 200, 4096]),
    query=queries(),
)
def test_rows_and_memory_select_the_same(
    monkeypatch: pytest.MonkeyPatch,
    sizes: tuple[int, int],
    batch: tuple[int, int],
    body: Any,
    row_bytes: int,
    query: Query,
) -> None:
    monkeypatch.setattr(ranks_module, "RUN_CHILDREN", sizes[0])
    monkeypatch.setattr(ranks_module, "KEPT_BYTES", sizes[1])
    monkeypatch.setattr(ranks_module, "BATCH_CHILDREN", batch[0])
    monkeypatch.setattr(ranks_module, "BATCH_BYTES", batch[1])
    nodes = NodeWriter(MemoryEngine().begin(), row_bytes)
    nodes.apply(make_put(Place(PATH), body).changes)
    expected = query.select(members(normal_form(body)))
    selected = [child for child in iterate_selected(nodes, PATH, query) if child is not None]
    assert [(child.key, child.value()) for child in selected] == expected
    assert [child.rank for child in selected] == [query.sort_value(value) for _, value in expected]


@settings(max_examples=examples(400), deadline=None)
@given(
    body=BODIES,
    row_bytes=st.sampled_from([30, 4096]),
    asked=st.lists(queries(), min_size=1, max_size=5),
    is_export=st.booleans(),
)
def test_sorted_children_print_what_a_query_selects(
    body: Any, row_bytes: int, asked: list[Query], is_export: bool
) -> None:
    nodes = NodeWriter(MemoryEngine().begin(), row_bytes)
    nodes.apply(make_put(Place(PATH), body).changes)
    for query in asked:
        children = sort_children(nodes, PATH, query.order, is_export=is_export)
        selected = query.select(members(normal_form(body)))
        expected = compact(selection_to_json(selected, is_export=is_export))
        if children.is_small:
            assert children.print(query) == expected
        else:
            assert row_bytes == 30  # a child, or what is in a row of its own, is spread


@pytest.mark.parametrize("order", [BY_KEY, BY_VALUE])
@pytest.mark.parametrize(
    ("body", "is_small"),
    [
        ({}, True),
        ({f"k{at}": at for at in range(300)}, True),
        ({f"k{at}": "x" * 900 for at in range(40)}, False),
        ({f"k{at}": at for at in range(2000)}, False),
        ({"a": "x" * 4100, "b": "x" * 60_000}, True),
        ({"a": "x" * 4100, "b": "x" * 70_000}, False),
        ({"a": 1, "b": {"c": "x" * 5000, "d": 1}}, False),
        ("x" * 100_000, False),
    ],
)
def test_only_small_collections_are_sorted(body: Any, is_small: bool, order: Order) -> None:
    nodes = NodeWriter(MemoryEngine().begin())
    nodes.apply(make_put(Place(PATH), body).changes)
    children = sort_children(nodes, PATH, order, is_export=False)
    assert children.is_small is is_small
    assert children.size < 500_000


def test_none_is_yielded_regularly_while_nothing_is_found() -> None:
    nodes = NodeWriter(MemoryEngine().begin())
    nodes.apply(make_put(Place(PATH), {f"k{at}": {"v": at} for at in range(3000)}).changes)
    for parameters in (
        {"orderBy": '"v"', "limitToFirst": "1"},
        {"orderBy": '"v"', "equalTo": "5000"},
        {"orderBy": '"$key"', "limitToLast": "2999"},
    ):
        query = parse_query(parameters)
        assert query is not None
        turns = 2999 // max(YIELD_AFTER, BATCH_CHILDREN)
        assert list(iterate_selected(nodes, PATH, query))[:turns] == [None] * turns


@pytest.mark.parametrize(
    "values",
    [
        pytest.param(list(range(300)), id="rising"),
        pytest.param(list(range(300, 0, -1)), id="falling"),
        pytest.param([at * 7919 % 300 for at in range(300)], id="mixed"),
        pytest.param([at % 3 for at in range(300)], id="many ties"),
    ],
)
@pytest.mark.parametrize("limit", [1, 5, 64, 200, 2000])
@pytest.mark.parametrize("end", ["limitToFirst", "limitToLast"])
def test_a_limit_selects_from_many_batches(values: list[int], limit: int, end: str) -> None:
    body: Any = {f"k{at:03}": {"v": value, "text": "x" * 20} for at, value in enumerate(values)}
    nodes = NodeWriter(MemoryEngine().begin())
    nodes.apply(make_put(Place(PATH), body).changes)
    for bound in ({}, {"startAt": "1"}, {"startAfter": '1,"k100"', "endBefore": '2,"k200"'}):
        query = parse_query({"orderBy": '"v"', end: str(limit), **bound})
        assert query is not None
        expected = [key for key, _ in query.select(members(normal_form(body)))]
        selected = [child.key for child in iterate_selected(nodes, PATH, query) if child]
        assert selected == expected


@pytest.mark.parametrize("end", [{}, {"limitToFirst": "2500"}, {"limitToLast": "2500"}])
@pytest.mark.parametrize("steps", [1000, 4000, 6000])
def test_what_a_query_has_sorted_is_freed_beside_if_it_is_left_before_its_end(
    monkeypatch: pytest.MonkeyPatch, end: dict[str, str], steps: int
) -> None:
    nodes = NodeWriter(MemoryEngine().begin())
    nodes.apply(make_put(Place(PATH), {f"k{at}": {"v": at} for at in range(3000)}).changes)
    query = parse_query({"orderBy": '"v"', **end})
    assert query is not None
    freed: list[int] = []

    def free(collected: list[Any]) -> None:
        # Nothing else refers to them, but to the one that was seen last.
        assert sum([sys.getrefcount(item) > 3 for item in collected]) <= 1
        freed.append(len(collected))

    monkeypatch.setattr(select_module, "free_beside", free)
    monkeypatch.setattr(ranks_module, "free_beside", free)
    monkeypatch.setattr(select_module, "YIELD_AFTER", 1)
    selected = iterate_selected(nodes, PATH, query)
    is_over = len(list(itertools.islice(selected, steps))) < steps
    selected.close()  # type: ignore[attr-defined]
    assert bool(sum(freed)) is not is_over


LONG = 20_000
"""Characters of a string that is long."""


class CountingNodes(NodeWriter):
    """Nodes that count the long strings that are looked up, or come with a scan."""

    longs = 0

    def peek(self, path: Path, charge: Charge = free) -> Any:
        found = super().peek(path, charge)
        self.longs += isinstance(found, str) and len(found) >= LONG
        return found

    def sources(self, path: Path, span: Span = ALL) -> Iterator[tuple[str, Any]]:
        for key, source in super().sources(path, span):
            self.longs += isinstance(source, bytes) and len(source) >= LONG
            yield key, source


def longs_in_a_step(nodes: CountingNodes, query: Query) -> int:
    """Return the most long strings that one step of a query has read."""
    most, before = 0, nodes.longs
    for _ in iterate_selected(nodes, PATH, query):
        most, before = max(most, nodes.longs - before), nodes.longs
    return most


@pytest.mark.parametrize(
    "parameters",
    [
        {"orderBy": '"v"'},
        {"orderBy": '"v"', "limitToLast": "3"},
        {"orderBy": '"v"', "where": '{"w":{"!=":1,"startsWith":"z"}}'},
        {"where": '{"v":{"!=":1,"startsWith":"y","exists":true},"w":{"startsWith":"u"}}'},
    ],
)
def test_no_step_reads_more_than_one_long_string(parameters: dict[str, str]) -> None:
    nodes = CountingNodes(MemoryEngine().begin())
    body: Any = {f"k{at}": {"v": "y" * LONG + str(at), "w": "u" * LONG} for at in range(30)}
    nodes.apply(make_put(Place(PATH), body).changes)
    query = parse_query(parameters)
    assert query is not None
    assert longs_in_a_step(nodes, query) == 1
    selected = [child.key for child in iterate_selected(nodes, PATH, query) if child]
    assert selected == [key for key, _ in query.select(members(normal_form(body)))]


def test_a_where_on_leaves_reads_one_long_string_in_a_step() -> None:
    nodes = CountingNodes(MemoryEngine().begin())
    nodes.apply(make_put(Place(PATH), {f"k{at}": "y" * LONG for at in range(30)}).changes)
    query = parse_query({"where": '{"$value":{"startsWith":"x"}}'})
    assert query is not None
    assert longs_in_a_step(nodes, query) == 1
    by_key = parse_query({"where": '{"$key":"k7"}'})
    assert by_key is not None
    assert longs_in_a_step(nodes, by_key) == 1
    assert [child.key for child in iterate_selected(nodes, PATH, by_key) if child] == ["k7"]


@pytest.mark.parametrize("end", [{}, {"limitToFirst": "20"}, {"limitToLast": "20"}])
def test_a_query_keeps_no_more_than_so_much_text_to_order_by(
    monkeypatch: pytest.MonkeyPatch, end: dict[str, str]
) -> None:
    nodes = NodeWriter(MemoryEngine().begin())
    body: Any = {f"k{at:02}": {"v": "y" * LONG + str(at * 7 % 50)} for at in range(50)}
    nodes.apply(make_put(Place(PATH), body).changes)
    monkeypatch.setattr(ranks_module, "RUN_TEXT", 3 * LONG)
    query = parse_query({"orderBy": '"v"', **end})
    assert query is not None
    expected = [key for key, _ in query.select(members(normal_form(body)))]
    assert [child.key for child in iterate_selected(nodes, PATH, query) if child] == expected
    monkeypatch.setattr(ranks_module, "TEXT_BYTES", 15 * LONG)
    with pytest.raises(TooMuchText, match="ordered by more than 300000 characters"):
        list(iterate_selected(nodes, PATH, query))
    few = parse_query({"orderBy": '"v"', "limitToFirst": "4"})
    assert few is not None
    assert len([child for child in iterate_selected(nodes, PATH, few) if child]) == 4
