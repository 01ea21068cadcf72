"""Children are ranked in batches of bounded size, and damage in a batch is found."""

from __future__ import annotations

import pytest

from treedbd.store import indexes as store_ranks
from treedbd.store.engine import DamagedRow
from treedbd.store.indexes import BATCH_BYTES, BATCH_CHILDREN, Member, batched, ranks_of
from treedbd.store.memory import MemoryEngine
from treedbd.store.nodes import SPREAD, Nodes
from treedbd.store.rows import parse_stored
from treedbd.tree.path import rank_value
from treedbd.tree.query import BY_PRIORITY, BY_VALUE, Order, Query
from treedbd.tree.types import CONTAINER, Json

BY_AGE = Query(Order("child", ("age",)))


def ranks(query: Query, *raws: bytes) -> list[tuple[int, object]]:
    batch: list[Member] = [(str(at), raw) for at, raw in enumerate(raws)]
    return ranks_of(Nodes(MemoryEngine().begin()), (), query, batch)


def test_a_batch_has_a_bounded_number_of_children() -> None:
    found: list[Member] = [(str(at), b"1") for at in range(2 * BATCH_CHILDREN + 1)]
    batches = list(batched(found))
    assert [len(batch) for batch in batches] == [BATCH_CHILDREN, BATCH_CHILDREN, 1]
    assert [member for batch in batches for member in batch] == found


def test_no_child_joins_a_batch_that_has_its_bytes() -> None:
    large = b'"%b"' % (b"x" * BATCH_BYTES)
    batches = list(batched([("a", b"1"), ("b", large), ("c", large), ("d", b"1")]))
    assert [[key for key, _ in batch] for batch in batches] == [["a", "b"], ["c"], ["d"]]


def test_few_spread_children_are_a_batch_because_each_needs_a_lookup() -> None:
    sizes = [len(batch) for batch in batched([(str(at), SPREAD) for at in range(32)])]
    assert sizes == [16, 16]


@pytest.mark.parametrize(
    "raws",
    [
        pytest.param([b'{"age":1}', b'{"age":'], id="one is cut off"),
        pytest.param([b'[{"age":1}', b'{"age":2}]'], id="two are damaged, but valid together"),
        pytest.param([b'{"age":1}', b""], id="one is empty"),
    ],
)
def test_a_damaged_row_is_found_in_a_batch(raws: list[bytes]) -> None:
    with pytest.raises(DamagedRow):
        ranks(BY_AGE, *raws)


def test_two_rows_in_one_are_damage_although_another_row_is_missing() -> None:
    with pytest.raises(DamagedRow):
        ranks(BY_AGE, b'{"age":1},{"age":2}', b'{"age":3}')


def test_a_query_by_priority_parses_only_rows_with_priorities() -> None:
    marked = b' {".value":1,".priority":2}'
    assert ranks(Query(BY_PRIORITY), b"not JSON", marked) == [rank_value(None), rank_value(2)]


def test_a_query_by_value_does_not_parse_containers() -> None:
    assert ranks(Query(BY_VALUE), b"{not JSON", b"5") == [rank_value(CONTAINER), rank_value(5)]


@pytest.mark.parametrize("query", [BY_AGE, Query(BY_PRIORITY)])
def test_a_long_string_is_not_parsed_for_an_order_that_has_nothing_of_it(
    monkeypatch: pytest.MonkeyPatch, query: Query
) -> None:
    text = b'"%b"' % (b"x" * BATCH_BYTES)
    rows = text, b' {".value":%b,".priority":5}' % text
    expected = [ranks(query, raw.replace(b"x", b"")) for raw in rows]
    parsed: list[int] = []
    parse = parse_stored

    def noted(row: bytes) -> Json:
        parsed.append(len(row))
        return parse(row)

    monkeypatch.setattr(store_ranks, "parse_stored", noted)
    assert [ranks(query, raw) for raw in rows] == expected
    assert max(parsed) < 30
