"""Query objects of clients, as queries of the tree."""

from __future__ import annotations

import pytest

from treedbd.rules.context import NullBound
from treedbd.tree.query import BY_KEY, BY_PRIORITY, BY_VALUE, Bound, Order, Query
from treedbd.tree.types import InvalidQuery, Json
from treedbd.web.realtime.messages import parse_query_object
from treedbd.web.request import ReadOptions

BY_NAME = Order("child", ("name",))
NULL = NullBound.NULL


@pytest.mark.parametrize(
    ("json", "query"),
    [
        (None, None),
        ({}, None),
        ({"i": ".key"}, Query(BY_KEY)),
        ({"i": ".value"}, Query(BY_VALUE)),
        ({"i": ".priority", "l": 2}, Query(BY_PRIORITY, limit_to_last=2)),
        ({"i": "name/first"}, Query(Order("child", ("name", "first")))),
        ({"l": 3, "vf": "l"}, Query(BY_PRIORITY, limit_to_first=3)),
        ({"l": 3.0, "vf": "r"}, Query(BY_PRIORITY, limit_to_last=3)),
        ({"i": "name", "sp": "b"}, Query(BY_NAME, Bound("b", None, True))),
        ({"i": "name", "sp": "b", "sin": False}, Query(BY_NAME, Bound("b", None, False))),
        ({"i": "name", "sp": "b", "sn": "k"}, Query(BY_NAME, Bound("b", "k", True))),
        ({"i": "name", "sp": None, "l": 1}, Query(BY_NAME, Bound(None, None, True), None, 1)),
        ({"i": "name", "ep": 5, "ein": False}, Query(BY_NAME, None, Bound(5, None, False))),
        ({"i": "name", "ep": 5, "l": 1}, Query(BY_NAME, None, Bound(5, None, True), None, 1)),
        ({"i": ".key", "sp": "a", "sin": False}, Query(BY_KEY, Bound(None, "a", False))),
        ({"i": ".key", "ep": "a"}, Query(BY_KEY, None, Bound(None, "a", True))),
        ({"i": ".key", "sp": "[MIN_NAME]", "ep": "[MAX_NAME]"}, Query(BY_KEY)),
    ],
)
def test_a_query_object_is_a_query(json: Json, query: Query | None) -> None:
    assert parse_query_object(json) == query


@pytest.mark.parametrize(
    ("start", "end", "low", "high"),
    [
        ("[MIN_NAME]", "[MAX_NAME]", True, True),
        ("[MAX_NAME]", "[MIN_NAME]", False, False),
    ],
)
def test_the_ends_of_all_keys_stand_for_a_bound_without_a_key(
    start: str, end: str, low: bool, high: bool
) -> None:
    json: Json = {"i": ".value", "sp": 1, "sn": start, "sin": low, "ep": 9, "en": end, "ein": high}
    assert parse_query_object(json) == Query(BY_VALUE, Bound(1, None, low), Bound(9, None, high))


def test_rules_see_an_exact_query() -> None:
    query = parse_query_object({"i": "name", "sp": "x", "ep": "x"})
    facts = ReadOptions(None, query, True, None, None).facts
    assert facts is not None
    assert (facts.equal_to, facts.start_at, facts.end_at) == ("x", None, None)


@pytest.mark.parametrize(
    ("json", "start_at", "end_at", "equal_to"),
    [
        ({"i": ".key", "sp": "k", "sin": False}, "k", None, None),
        ({"i": ".key", "sn": "k"}, "k", None, None),
        ({"i": ".key", "ep": "k", "ein": False, "l": 2}, None, "k", None),
        ({"i": ".key", "sp": "k", "ep": "k"}, None, None, "k"),
        ({"i": "name", "sp": 5, "sin": False, "ep": 7, "ein": False}, 5, 7, None),
        ({"i": "name", "sp": 5, "sin": False, "ep": 5}, 5, 5, None),
        ({"i": "name", "sp": 5, "sn": "k", "sin": False}, 5, None, None),
        ({"i": "name", "sp": 5, "sn": "[MAX_NAME]"}, 5, None, None),
        ({"i": "name", "ep": 5, "en": "[MIN_NAME]", "ein": False}, None, 5, None),
        ({"i": "name", "sp": 5, "sn": "k", "ep": 5, "en": "k"}, None, None, 5),
        ({"sp": 1, "sin": False, "l": 2}, 1, None, None),
        ({"sn": "k", "l": 2}, NULL, None, None),
        ({"sp": None, "sn": "k", "l": 2}, NULL, None, None),
        ({"sp": None, "sin": False, "l": 2}, NULL, None, None),
        ({"sp": None, "sn": "[MAX_NAME]"}, NULL, None, None),
        ({"sp": None, "sn": "[MIN_NAME]", "l": 2}, None, None, None),  # selects as without it
        ({"sp": None, "l": 2}, None, None, None),
        ({"ep": None, "l": 2}, None, NULL, None),
        ({"sp": None, "ep": None}, None, None, NULL),
    ],
)
def test_rules_see_each_bound(
    json: Json, start_at: object, end_at: object, equal_to: object
) -> None:
    facts = ReadOptions(None, parse_query_object(json), True, None, None).facts
    assert facts is not None
    assert (facts.start_at, facts.end_at, facts.equal_to) == (start_at, end_at, equal_to)


@pytest.mark.parametrize(
    "json",
    [
        *(5, [], "x", {"x": 1}, {"i": 5}, {"i": "a.b"}, {"i": ""}),
        *({"l": 0}, {"l": -1}, {"l": True}, {"l": "1"}, {"l": 1.5}, {"l": 1, "vf": "x"}),
        *({"i": ".value", "sp": {}}, {"i": ".value", "sp": []}, {"i": ".value", "sn": 5}),
        *({"i": ".value", "sp": 1, "sin": 1}, {"i": ".value", "sp": 10**400}),
        *({"i": ".key", "sp": 5}, {"i": ".key", "ep": None}, {"i": ".key", "sp": "[MAX_NAME]"}),
    ],
)
def test_what_is_malformed_is_refused(json: Json) -> None:
    with pytest.raises(InvalidQuery):
        parse_query_object(json)
