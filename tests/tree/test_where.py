"""What `where` accepts, and which children meet it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from treedbd.limits import MAX_WHERE_CONDITIONS, MAX_WHERE_ITEMS
from treedbd.tree.query import BY_KEY, Query, parse_query, parse_shallow, parse_where
from treedbd.tree.types import InvalidQuery


def passes(where: Any, child: Any, key: str = "key") -> bool:
    return parse_where(json.dumps(where), 1).passes(key, child)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must be a JSON object"),
        ("[]", "must be a JSON object"),
        ("{", "must be a JSON object"),
        ("{}", "at least one condition"),
        ('{"a":{}}', "at least one operator"),
        ('{"a":[1]}', "needs an operator"),
        ('{"a":{"=":1}}', "operators of where are =="),
        ('{"a":{"b":1}}', "operators of where are =="),
        ('{"":1}', "not the path of a child"),
        ('{"a.b":1}', "not the path of a child"),
        ('{"a/.priority":1}', "not the path of a child"),
        ('{"$other":1}', r"\$key, \$value or \$priority"),
        ('{"a":{"exists":1}}', "exists in where takes true or false"),
        ('{"a":{"startsWith":1}}', "startsWith in where takes a string"),
        ('{"a":{"in":1}}', "in of where takes a list"),
        ('{"a":{"in":[]}}', "in of where takes a list"),
        ('{"a":{"in":[[1]]}}', "in in where compares with no object"),
        ('{"a":{"==":{"b":1}}}', "== in where compares with no object"),
        ('{"a":{"<":null}}', "< in where takes a number"),
        ('{"a":1e999}', "must be a JSON object"),
    ],
)
def test_what_is_malformed_is_refused_with_a_reason(text: str, message: str) -> None:
    with pytest.raises(InvalidQuery, match=message):
        parse_where(text, 1)


def test_conditions_are_counted_by_operators() -> None:
    many = {f"c{at}": {">": 1, "<": 5} for at in range(MAX_WHERE_CONDITIONS // 2)}
    assert len(parse_where(json.dumps(many), 1).conditions) == MAX_WHERE_CONDITIONS
    with pytest.raises(InvalidQuery, match="at most 16 conditions"):
        parse_where(json.dumps({**many, "more": 1}), 1)


def test_a_list_has_a_bound() -> None:
    most = list(range(MAX_WHERE_ITEMS))
    assert passes({"$value": {"in": most}}, 5)
    with pytest.raises(InvalidQuery, match="1 to 1000"):
        passes({"$value": {"in": [*most, 0]}}, 5)


@pytest.mark.parametrize(
    ("where", "child", "expected"),
    [
        ({"a": 1}, {"a": 1}, True),
        ({"a": 1.0}, {"a": 1}, True),
        ({"a": 1}, {"a": True}, False),
        ({"a": True}, {"a": 1}, False),
        ({"a": None}, {"b": 1}, True),
        ({"a": None}, 5, True),
        ({"a": {"!=": None}}, {"a": {"b": 1}}, True),
        ({"a": {"==": None}}, {"a": {"b": 1}}, False),
        ({"a": {"!=": 1}}, {"b": 1}, True),
        ({"a": {"!=": 1}}, {"a": "1"}, True),
        ({"a": {"!=": 1}}, {"a": 1}, False),
        ({"a/b": "x"}, {"a": {"b": "x"}}, True),
        ({"a": 1}, {"a": {".value": 1, ".priority": 2}}, True),
        ({"a": {"<": 5}}, {"a": "4"}, False),
        ({"a": {"<": 5}}, {}, False),
        ({"a": {"<": 5}}, {"a": 4.5}, True),
        ({"a": {">": "x"}}, {"a": "y"}, True),
        ({"a": {">": "\uffff"}}, {"a": "\U0001f600"}, True),
        ({"a": {"<": True}}, {"a": False}, True),
        ({"a": {"<=": False}}, {"a": True}, False),
        ({"a": {"<": True}}, {"a": 0}, False),
        ({"a": {">=": 1, "<": 3}}, {"a": 3}, False),
        ({"a": {">=": 1, "<": 3}}, {"a": 1}, True),
        ({"a": {"in": [1, None]}}, {"b": 1}, True),
        ({"a": {"in": [1, "x"]}}, {"a": "x"}, True),
        ({"a": {"in": [1]}}, {"a": True}, False),
        ({"a": {"startsWith": "ab"}}, {"a": "abc"}, True),
        ({"a": {"startsWith": "1"}}, {"a": 12}, False),
        ({"a": {"exists": True}}, {"a": {"b": 1}}, True),
        ({"a": {"exists": True}}, {"b": 1}, False),
        ({"a": {"exists": False}}, {"b": 1}, True),
        ({"$value": 5}, {".value": 5, ".priority": 1}, True),
        ({"$value": {"exists": True}}, {"a": 1}, True),
        ({"$priority": 1}, {".value": 5, ".priority": 1}, True),
        ({"$priority": None}, {"a": 1}, True),
        ({"a": 1, "b": 2}, {"a": 1, "b": 3}, False),
    ],
)
def test_what_meets_the_conditions(where: Any, child: Any, expected: bool) -> None:
    assert passes(where, child) is expected


@pytest.mark.parametrize(
    ("condition", "key", "expected"),
    [
        ({"<": "10"}, "9", True),
        ({"<": "10"}, "a", False),
        ({">": "10"}, "a", True),
        ({">": 10}, "a", False),
        ({"!=": 10}, "10", True),
        ("9", "9", True),
        ({"startsWith": "1"}, "10", True),
        ({"in": ["a", "10"]}, "10", True),
        ({"exists": True}, "10", True),
    ],
)
def test_a_key_is_compared_in_the_order_of_keys(condition: Any, key: str, expected: bool) -> None:
    assert passes({"$key": condition}, 1, key) is expected


def test_without_order_by_the_order_is_that_of_keys_and_limits_work() -> None:
    query = parse_query({"where": '{"a":1}', "limitToLast": "2"}, 7)
    assert query == Query(BY_KEY, limit_to_last=2, where=parse_where('{"a":1}', 7))


@pytest.mark.parametrize("name", ["startAt", "startAfter", "endAt", "endBefore", "equalTo"])
def test_without_order_by_bounds_are_refused(name: str) -> None:
    with pytest.raises(InvalidQuery, match=f"{name} needs orderBy"):
        parse_query({"where": '{"a":1}', "limitToLast": "2", name: '"x"'})


def test_it_does_not_work_with_shallow() -> None:
    with pytest.raises(InvalidQuery, match="not with where"):
        parse_shallow({"shallow": "true", "where": '{"a":1}'})
