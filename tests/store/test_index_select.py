"""A query over an index selects what brute force selects, and reads only what it selects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from treedbd.store import indexes as ranks
from treedbd.store.engine import DamagedRow, ReadView, Row
from treedbd.store.indexes import (
    INDEX_FIRST,
    ChildIndex,
    IndexState,
    IndexStates,
    make_writer,
    order_named,
    write_states,
)
from treedbd.store.memory import MemoryEngine
from treedbd.store.nodes import Child, Nodes
from treedbd.store.select import ENTRIES_AT_ONCE, iterate_in_order, iterate_selected
from treedbd.tree.edit import make_put
from treedbd.tree.query import BY_KEY, Bound, Query, parse_where
from treedbd.tree.types import Place, Value
from treedbd.tree.value import compact, members, plain

PATH = ("c",)
LONG = "long" * 30
ORDERS = [order_named(name) for name in ("v", ".value", "$priority", "d/e")]
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 3),
    st.sampled_from([0.5, -0.5, 2**53 + 1, "", "a", "b\x00", LONG, LONG + "a", LONG + "b", "z"]),
)
CHILD_KEYS = st.one_of(
    st.sampled_from(["a", "b", "1", "02", "2", "k" * 140, "k" * 140 + "a", "é"]),
    st.text("xyz", min_size=1, max_size=3),
)
CHILDREN = st.one_of(
    SCALARS,
    st.fixed_dictionaries(
        {"pad": st.just("p" * 20)},
        optional={
            "v": SCALARS,
            "d": st.fixed_dictionaries({}, optional={"e": SCALARS}),
            ".priority": st.sampled_from([1, 2, "p", "q"]),
        },
    ),
)
COLLECTIONS = st.dictionaries(CHILD_KEYS, CHILDREN, min_size=6, max_size=25)
BOUNDS = st.one_of(
    st.none(),
    st.builds(Bound, SCALARS, st.one_of(st.none(), CHILD_KEYS), st.booleans()),
)
LIMITS: st.SearchStrategy[dict[str, int]] = st.one_of(
    st.just({}),
    st.integers(1, 8).map(lambda limit: {"limit_to_first": limit}),
    st.integers(1, 8).map(lambda limit: {"limit_to_last": limit}),
)
QUERIES = st.builds(
    lambda order, low, high, limit: Query(order, low, high, **limit),
    st.sampled_from(ORDERS),
    BOUNDS,
    BOUNDS,
    LIMITS,
)


def stored(
    collection: Any, indexes: list[ChildIndex], sizes: tuple[int, int] = (60, 200)
) -> tuple[MemoryEngine, Value]:
    """Return a store of a collection with indexes, and the collection.

    `sizes` are the most bytes of a row and of a page.
    """
    engine = MemoryEngine()
    transaction = engine.begin()
    write_states(transaction, IndexStates(tuple(IndexState(each, "built") for each in indexes)))
    edit = make_put(Place(PATH), collection)
    make_writer(transaction, indexes, *sizes).apply(edit.changes)
    transaction.commit()
    return engine, edit.changes[0].value


def children_of(found: Iterator[Child | None]) -> list[Child]:
    return [child for child in found if child is not None]


@settings(max_examples=examples(400), deadline=None)
@given(COLLECTIONS, st.lists(QUERIES, min_size=1, max_size=8))
def test_a_query_selects_what_brute_force_selects(collection: Any, queries: list[Query]) -> None:
    engine, value = stored(collection, [ChildIndex(PATH, order) for order in ORDERS])
    nodes = Nodes(engine.snapshot())
    for query in queries:
        expected = query.select(members(value))
        found = children_of(iterate_selected(nodes, PATH, query))
        assert [(child.key, child.value()) for child in found] == expected
        assert [child.rank for child in found] == [query.sort_value(each) for _, each in expected]
        for is_export in (False, True):
            printed = [b"".join(child.chunks(export=is_export)) for child in found]
            assert printed == [compact(each if is_export else plain(each)) for _, each in expected]


@settings(max_examples=examples(150), deadline=None)
@given(COLLECTIONS, QUERIES, st.sampled_from(['{"v":{">=":1}}', '{"pad":{"exists":true}}']))
def test_a_where_filters_along_the_index(collection: Any, query: Query, where: str) -> None:
    engine, value = stored(collection, [ChildIndex(PATH, order) for order in ORDERS])
    nodes = Nodes(engine.snapshot())
    filtered = attrs.evolve(query, where=parse_where(where, 1000))
    found = children_of(iterate_selected(nodes, PATH, filtered))
    expected = filtered.select(members(value))
    assert [(child.key, child.value()) for child in found] == expected


class CountingView:
    """A view that counts what is read: entries of indexes, and other rows."""

    def __init__(self, view: ReadView) -> None:
        self._view = view
        self.entries = 0
        self.others = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._view, name)

    def floor(self, key: bytes) -> Row | None:
        self.others += 1
        return self._view.floor(key)

    def scan(self, low: bytes, high: bytes, *, reverse: bool = False) -> Iterator[Row]:
        for row in self._view.scan(low, high, reverse=reverse):
            if row[0] >= INDEX_FIRST:
                self.entries += 1
            else:
                self.others += 1
            yield row

    def floors(self, keys: Sequence[bytes], longest: int) -> list[Row]:
        found = self._view.floors(keys, longest)
        self.others += len(found)
        return found

    def scan_keys(self, low: bytes, high: bytes, *, reverse: bool = False) -> Iterator[bytes]:
        for key in self._view.scan_keys(low, high, reverse=reverse):
            if key >= INDEX_FIRST:
                self.entries += 1
            else:
                self.others += 1
            yield key


RECORDS: Any = {f"k{at:05}": {"v": at % 100, "name": "n" * 60} for at in range(5000)}
INDEX = ChildIndex(PATH, order_named("v"))


@pytest.fixture(scope="module")
def view() -> ReadView:
    engine = MemoryEngine()
    transaction = engine.begin()
    write_states(transaction, IndexStates((IndexState(INDEX, "built"),)))
    make_writer(transaction, [INDEX]).apply(make_put(Place(PATH), RECORDS).changes)
    transaction.commit()
    return engine.snapshot()


@pytest.mark.parametrize(
    ("query", "count"),
    [
        (Query(INDEX.order, limit_to_last=20), 20),
        (Query(INDEX.order, limit_to_first=20), 20),
        (Query(INDEX.order, Bound(7, None, True), Bound(7, None, True)), 50),
        (Query(INDEX.order, Bound(98, None, False)), 50),
        (Query(INDEX.order, None, Bound(1, None, False)), 50),
        (Query(INDEX.order, Bound(7, "k00507", True), limit_to_first=10), 10),
    ],
)
def test_only_what_is_selected_is_read(view: ReadView, query: Query, count: int) -> None:
    counting: Any = CountingView(view)
    found = children_of(iterate_selected(Nodes(counting), PATH, query))
    assert len(found) == count
    assert counting.entries <= count + 1
    assert counting.others <= 4
    assert found[0].value() == RECORDS[found[0].key]


@pytest.mark.parametrize("limit", [{"limit_to_last": 20}, {"limit_to_first": 20}])
def test_a_query_by_key_reads_the_pages_that_it_shows(view: ReadView, limit: Any) -> None:
    counting: Any = CountingView(view)
    found = children_of(iterate_selected(Nodes(counting), PATH, Query(BY_KEY, **limit)))
    assert len([child.value() for child in found]) == 20
    assert counting.entries == 0
    assert counting.others <= 10


def test_a_filter_stops_at_the_limit(view: ReadView) -> None:
    counting: Any = CountingView(view)
    where = parse_where('{"v":{"<":50}}', 1000)
    query = Query(INDEX.order, limit_to_first=10, where=where)
    found = children_of(iterate_selected(Nodes(counting), PATH, query))
    assert [child.value() for child in found] == [RECORDS[child.key] for child in found]
    assert len(found) == 10
    assert counting.entries <= 11
    assert counting.others <= 4 + len(found)  # each row is read once, to be tested and shown


def test_an_index_that_is_not_built_is_not_used() -> None:
    engine, value = stored(RECORDS, [INDEX])
    transaction = engine.begin()
    write_states(transaction, IndexStates((IndexState(INDEX, "building"),)))
    transaction.delete_range(*INDEX.range)
    transaction.commit()
    query = Query(INDEX.order, limit_to_last=3)
    found = children_of(iterate_selected(Nodes(engine.snapshot()), PATH, query))
    assert [(child.key, child.value()) for child in found] == query.select(members(value))
    in_order = children_of(iterate_in_order(Nodes(engine.snapshot()), PATH, query))
    assert [child.key for child in in_order[:3]] == [child.key for child in reversed(found)]


@pytest.mark.parametrize("value", [7, LONG * 2])
def test_the_content_of_an_entry_is_read_and_checked_if_its_key_is_cut(value: Any) -> None:
    engine, _ = stored({f"k{at:04}": {"v": value, "pad": "p" * 60} for at in range(300)}, [INDEX])
    transaction = engine.begin()
    key = next(transaction.scan_keys(*INDEX.range))
    transaction.put(key, b"damaged")
    transaction.commit()
    query = Query(INDEX.order, limit_to_first=3)

    def select() -> list[str]:
        found = children_of(iterate_selected(Nodes(engine.snapshot()), PATH, query))
        return [child.key for child in found]

    if value == 7:
        assert select() == ["k0000", "k0001", "k0002"]
    else:
        with pytest.raises(DamagedRow):
            select()


@pytest.mark.parametrize("limit", [{"limit_to_first": 50}, {"limit_to_last": 50}, {}])
@pytest.mark.parametrize("order", ["along", "across"])
def test_a_page_is_read_once_for_all_children_of_a_run_that_lie_in_it(
    order: str, limit: Any
) -> None:
    across = order == "across"
    records: Any = {
        f"k{at:04}": {"v": at * 37 % 1000 if across else at, "pad": "p" * 60} for at in range(1000)
    }
    engine, value = stored(records, [INDEX], (4096, 4040))
    counting: Any = CountingView(engine.snapshot())
    query = Query(INDEX.order, Bound(200, None, True), **limit)
    found = children_of(iterate_selected(Nodes(counting), PATH, query))
    shown = [(child.key, b"".join(child.chunks())) for child in found]
    assert shown == [(key, compact(child)) for key, child in query.select(members(value))]
    assert counting.others <= (4 + len(found) if across else 6 + len(found) // 20)
    assert counting.entries <= len(found) + 1


def test_children_without_a_short_row_of_their_own_are_looked_up_one_by_one() -> None:
    records: Any = {
        "spread": {"v": 1, "many": {f"m{at:03}": "x" * 80 for at in range(100)}},
        "marked": {"v": 2, ".priority": 3},
        "long": {"v": 3, "text": "y" * 100_000},
        "k" * 400: {"v": 4},
        "5": {"v": 5, "pad": ["a", "b"]},
        "spread with priority": {
            "v": 6,
            "many": {f"m{at:03}": "x" * 80 for at in range(100)},
            ".priority": 1,
        },
        **{f"z{at:03}": {"v": 10 + at, "pad": "p" * 60} for at in range(100)},
    }
    engine, value = stored(records, [INDEX], (4096, 4040))
    for is_export in (False, True):
        found = children_of(iterate_selected(Nodes(engine.snapshot()), PATH, Query(INDEX.order)))
        shown = [(child.key, b"".join(child.chunks(export=is_export))) for child in found]
        assert shown == [
            (key, compact(child if is_export else plain(child)))
            for key, child in Query(INDEX.order).select(members(value))
        ]


@pytest.mark.parametrize("limit", [{}, {"limit_to_first": 7}, {"limit_to_last": 7}])
def test_many_entries_that_are_equal_as_far_as_they_go_are_sorted_in_runs(
    monkeypatch: pytest.MonkeyPatch, limit: dict[str, int]
) -> None:
    collection = {f"k{at:04}": {"v": LONG * 2 + str(at * 7919 % 3000)} for at in range(3000)}
    engine, value = stored(collection, [INDEX])
    sorted_at_once: list[int] = []
    end_run = ranks.Ranking._end_run

    def ended(ranking: ranks.Ranking) -> None:
        sorted_at_once.append(len(ranking._run))
        end_run(ranking)

    monkeypatch.setattr(ranks.Ranking, "_end_run", ended)
    query = Query(INDEX.order, **limit)  # type: ignore[arg-type]
    selected = list(iterate_selected(Nodes(engine.snapshot()), PATH, query))
    found = [child.key for child in selected if child is not None]
    assert found == [key for key, _ in query.select(members(value))]
    assert max(sorted_at_once) <= ranks.RUN_CHILDREN + 16
    assert selected.count(None) >= 3000 // ENTRIES_AT_ONCE + (len(found) + 3000) // 16
