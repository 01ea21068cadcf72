"""What rules see of the query of a read, for every way in which a request can select."""

from __future__ import annotations

import pytest

from treedbd.rules.context import NullBound, QueryFacts
from treedbd.web.request import parse_read_options

NULL = NullBound.NULL


def value(
    start_at: float | NullBound | None = None,
    end_at: float | NullBound | None = None,
    equal_to: float | NullBound | None = None,
) -> QueryFacts:
    """Return the facts of a query by value."""
    return QueryFacts(order_by_value=True, start_at=start_at, end_at=end_at, equal_to=equal_to)


@pytest.mark.parametrize(
    ("parameters", "facts"),
    [
        ({}, None),
        ({"shallow": "true"}, None),
        ({"shallow": "true", "limitToFirst": "2"}, QueryFacts(True, limit_to_first=2)),
        ({"shallow": "true", "startAfter": "k"}, QueryFacts(True, start_at="k")),
        (
            {"shallow": "true", "startAfter": '"k"', "limitToFirst": "2", "v": "2"},
            QueryFacts(True, start_at="k", limit_to_first=2),
        ),
        ({"where": '{"a":1}'}, QueryFacts(True, has_where=True)),
        (
            {"where": '{"a":1}', "limitToLast": "3"},
            QueryFacts(True, limit_to_last=3, has_where=True),
        ),
        (
            {"where": '{"a":1}', "orderBy": '"a/b"', "endBefore": '"x"'},
            QueryFacts(order_by_child="a/b", end_at="x", has_where=True),
        ),
        ({"orderBy": '"$key"', "startAt": '"a"'}, QueryFacts(True, start_at="a")),
        ({"orderBy": '"$key"', "startAfter": '"a"'}, QueryFacts(True, start_at="a")),
        ({"orderBy": '"$key"', "endAt": '"a"'}, QueryFacts(True, end_at="a")),
        ({"orderBy": '"$key"', "endBefore": '"a"'}, QueryFacts(True, end_at="a")),
        ({"orderBy": '"$key"', "equalTo": '"a"'}, QueryFacts(True, equal_to="a")),
        ({"orderBy": '"$value"', "startAfter": '5,"k"'}, value(start_at=5)),
        ({"orderBy": '"$value"', "startAt": '5,"k"', "endBefore": "7"}, value(5, 7)),
        ({"orderBy": '"$value"', "startAfter": '5,"[MAX_NAME]"'}, value(start_at=5)),
        ({"orderBy": '"$value"', "endBefore": 'false,"[MIN_NAME]"'}, value(end_at=False)),
        ({"orderBy": '"$value"', "equalTo": '5,"k"'}, value(equal_to=5)),
        ({"orderBy": '"$priority"', "startAfter": "1"}, QueryFacts(False, True, start_at=1)),
    ],
)
def test_rules_see_each_way_of_selecting(
    parameters: dict[str, str], facts: QueryFacts | None
) -> None:
    assert parse_read_options(parameters).facts == facts


@pytest.mark.parametrize(
    ("parameters", "facts"),
    [
        ({"startAt": "null"}, value()),  # which selects all children
        ({"startAt": 'null,"[MIN_NAME]"'}, value()),
        ({"startAt": 'null,"k"'}, value(NULL)),
        ({"startAfter": "null"}, value(NULL)),
        ({"startAfter": 'null,"k"'}, value(NULL)),
        ({"endAt": "null"}, value(end_at=NULL)),
        ({"endBefore": 'null,"k"'}, value(end_at=NULL)),
        ({"equalTo": "null"}, value(equal_to=NULL)),
        ({"equalTo": 'null,"k"'}, value(equal_to=NULL)),
    ],
)
def test_a_bound_of_null_is_seen_if_it_leaves_out_children(
    parameters: dict[str, str], facts: QueryFacts
) -> None:
    assert parse_read_options({"orderBy": '"$value"', **parameters}).facts == facts
