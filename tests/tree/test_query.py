from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tree.queries import query as parse
from tests.tree.strategies import FEW_KEYS, KEYS, NUMBERS, TEXTS, VALUES, normal
from treedbd.tree import query
from treedbd.tree import value as printing
from treedbd.tree.path import rank_key, rank_value, sort_keys
from treedbd.tree.query import BY_KEY, Bound, Order, Query, name_query, parse_query
from treedbd.tree.types import InvalidQuery, Value
from treedbd.tree.value import canonical_number, members

ZOO = normal(
    {
        "10": {"size": 3, "name": {"first": "Ada"}},
        "9": {"size": 3.5, "name": {"first": "Bob"}},
        "a": {"size": None, "x": 1},
        "b": {"size": False},
        "c": {"size": True},
        "d": {"size": -1, "name": "plain"},
        "e": {"size": "3"},
        "f": {"size": {"w": 1}},
        "g": {"size": ["h"]},
        "h": {"size": 3},
        "i": {"size": {".value": 3, ".priority": 9}},
        "j": 7,
    }
)
MIXED = normal(
    {
        "10": 5,
        "9": 5,
        "a": "5",
        "b": True,
        "c": {"x": 1},
        "d": 5.5,
        "e": False,
        "f": {".value": 5, ".priority": "p"},
        "g": "",
    }
)
RANKED = normal(
    {
        "n": 1,
        "s": {".value": 1, ".priority": "b"},
        "t": {".priority": "a", "x": 1},
        "u": {".value": 1, ".priority": 2},
        "v": {".value": 1, ".priority": 10},
        "w": {".value": 1, ".priority": -0.5},
        "m": {"x": 1},
    }
)


def keys_of(root: Value, **parameters: str) -> list[str]:
    """Return the keys of the children that a query selects, in order."""
    return [key for key, _ in parse(**parameters).select(members(root))]


@pytest.mark.parametrize(
    ("parameters", "keys"),
    [
        ({}, "a j b c d 10 h i 9 e f g"),
        ({"limitToFirst": "3"}, "a j b"),
        ({"limitToLast": "3"}, "e f g"),
        ({"limitToFirst": "100"}, "a j b c d 10 h i 9 e f g"),
        ({"limitToLast": "100"}, "a j b c d 10 h i 9 e f g"),
        ({"equalTo": "3"}, "10 h i"),
        ({"equalTo": "3.0"}, "10 h i"),
        ({"equalTo": "30e-1"}, "10 h i"),
        ({"equalTo": '"3"'}, "e"),
        ({"equalTo": "null"}, "a j"),
        ({"equalTo": "true"}, "c"),
        ({"equalTo": '3,"h"'}, "h"),
        ({"equalTo": '3,"zzz"'}, ""),
        ({"startAt": "3"}, "10 h i 9 e f g"),
        ({"startAfter": "3"}, "9 e f g"),
        ({"endAt": "3"}, "a j b c d 10 h i"),
        ({"endBefore": "3"}, "a j b c d"),
        ({"endAt": "5"}, "a j b c d 10 h i 9"),
        ({"startAt": '3,"h"'}, "h i 9 e f g"),
        ({"startAfter": '3,"h"'}, "i 9 e f g"),
        ({"startAt": '3,"hh"'}, "i 9 e f g"),
        ({"startAt": '3,"2"'}, "10 h i 9 e f g"),
        ({"startAt": '3,"11"'}, "h i 9 e f g"),
        ({"endAt": '3,"h"'}, "a j b c d 10 h"),
        ({"endBefore": '3,"h"'}, "a j b c d 10"),
        ({"startAt": "null"}, "a j b c d 10 h i 9 e f g"),
        ({"startAfter": "null"}, "b c d 10 h i 9 e f g"),
        ({"endAt": "null"}, "a j"),
        ({"endAt": 'null,"a"'}, "a"),
        ({"endBefore": "null"}, ""),
        ({"startAt": "false", "endAt": "true"}, "b c"),
        ({"startAt": "true", "endBefore": "3"}, "c d"),
        ({"startAfter": "true", "endAt": "3.4999"}, "d 10 h i"),
        ({"startAt": '""'}, "e f g"),
        ({"startAt": '"4"'}, "f g"),
        ({"startAt": "5", "endAt": "4"}, ""),
        ({"startAt": "3", "limitToFirst": "2"}, "10 h"),
        ({"endAt": "3", "limitToLast": "2"}, "h i"),
        ({"startAt": ' 3 , "h" '}, "h i 9 e f g"),
    ],
)
def test_children_are_ordered_and_bounded_by_a_child(parameters: dict[str, str], keys: str) -> None:
    assert keys_of(ZOO, orderBy='"size"', **parameters) == keys.split()


@pytest.mark.parametrize(
    ("parameters", "keys"),
    [
        ({}, "e b 9 10 f d g a c"),
        ({"equalTo": "5"}, "9 10 f"),
        ({"equalTo": '5,"10"'}, "10"),
        ({"equalTo": "null"}, ""),
        ({"startAfter": "5"}, "d g a c"),
        ({"startAt": '5,"10"'}, "10 f d g a c"),
        ({"limitToFirst": "1"}, "e"),
        ({"limitToLast": "2"}, "a c"),
        ({"endAt": "5"}, "e b 9 10 f"),
    ],
)
def test_children_are_ordered_and_bounded_by_their_value(
    parameters: dict[str, str], keys: str
) -> None:
    assert keys_of(MIXED, orderBy='"$value"', **parameters) == keys.split()


@pytest.mark.parametrize(
    ("parameters", "keys"),
    [
        ({}, "m n w u v t s"),
        ({"equalTo": "null"}, "m n"),
        ({"equalTo": "2"}, "u"),
        ({"equalTo": '"a"'}, "t"),
        ({"startAt": "2"}, "u v t s"),
        ({"startAfter": "2"}, "v t s"),
        ({"endAt": "2"}, "m n w u"),
        ({"startAt": 'null,"n"'}, "n w u v t s"),
        ({"startAfter": "null"}, "w u v t s"),
        ({"limitToLast": "2"}, "t s"),
    ],
)
def test_children_are_ordered_and_bounded_by_their_priority(
    parameters: dict[str, str], keys: str
) -> None:
    assert keys_of(RANKED, orderBy='"$priority"', **parameters) == keys.split()


@pytest.mark.parametrize(
    ("parameters", "keys"),
    [
        ({}, "9 10 a b c d e f g h i j"),
        ({"startAt": '"10"'}, "10 a b c d e f g h i j"),
        ({"startAfter": '"10"'}, "a b c d e f g h i j"),
        ({"endAt": '"10"'}, "9 10"),
        ({"endBefore": '"10"'}, "9"),
        ({"startAt": '"5"', "endAt": '"+9"'}, "9 10"),
        ({"startAt": '"5"', "endAt": '"09"'}, "9"),
        ({"startAt": '"09"', "endAt": '"010"'}, "10"),
        ({"startAt": '"010"'}, "a b c d e f g h i j"),
        ({"equalTo": '"c"'}, "c"),
        ({"equalTo": '"cc"'}, ""),
        ({"startAt": '"bb"', "endAt": '"d\\uf8ff"'}, "c d"),
        ({"startAfter": '"b"', "limitToFirst": "2"}, "c d"),
        ({"endBefore": '"d"', "limitToLast": "2"}, "b c"),
        ({"startAt": '"no.key/at all"'}, ""),
    ],
)
def test_children_are_ordered_and_bounded_by_key(parameters: dict[str, str], keys: str) -> None:
    assert keys_of(ZOO, orderBy='"$key"', **parameters) == keys.split()


@pytest.mark.parametrize("order", ['"name/first"', '"/name/first"', '"name//first/"'])
def test_children_can_be_ordered_by_a_deep_path(order: str) -> None:
    assert keys_of(ZOO, orderBy=order, startAfter="null") == ["10", "9"]
    assert keys_of(ZOO, orderBy=order, equalTo='"Bob"') == ["9"]


@pytest.mark.parametrize(
    "text", ["18446744073709551615", "9.223372036854775808e18", "1e20", "-0.0"]
)
def test_a_number_in_a_bound_is_canonical_as_in_data(text: str) -> None:
    root = normal({"a": printing.parse(text.encode())})
    assert keys_of(root, orderBy='"$value"', equalTo=text) == ["a"]


def test_children_can_be_ordered_by_an_array_item() -> None:
    root = normal({"a": ["x", 2], "b": ["x", 1]})
    assert keys_of(root, orderBy='"1"') == ["b", "a"]


@pytest.mark.parametrize("root", [None, 5, "x", {".value": 5, ".priority": 1}])
@pytest.mark.parametrize("order", ['"$key"', '"$value"', '"$priority"', '"a"'])
def test_a_query_of_a_node_without_children_selects_nothing(root: Value, order: str) -> None:
    selected = parse(orderBy=order).select(members(root))
    assert query.selection_to_json(selected) is None


def test_a_result_is_an_object_in_its_order_and_never_an_array() -> None:
    root = normal({"0": {"n": 2, "l": ["x"]}, "1": {"n": 1}, "2": {"n": 0}})
    selected = parse(orderBy='"n"', limitToLast="2").select(members(root))
    assert printing.compact(query.selection_to_json(selected)) == (
        b'{"1":{"n":1},"0":{"l":["x"],"n":2}}'
    )
    selected = parse(orderBy='"$key"').select(members({"0": 1, "1": 2}))
    assert printing.compact(query.selection_to_json(selected)) == b'{"0":1,"1":2}'


def test_a_result_shows_priorities_only_in_an_export() -> None:
    root = normal({"a": {".value": 1, ".priority": 2}, "b": {"0": "x"}})
    selected = parse(orderBy='"$key"').select(members(root))
    assert query.selection_to_json(selected) == {"a": 1, "b": ["x"]}
    assert query.selection_to_json(selected, is_export=True) == root


@pytest.mark.parametrize("parameters", [{}, {"print": "pretty"}, {"shallow": "true", "v": "2"}])
def test_other_parameters_are_not_a_query(parameters: dict[str, str]) -> None:
    assert parse_query(parameters) is None


@pytest.mark.parametrize(
    ("text", "order"),
    [
        ('"$key"', BY_KEY),
        ('"$value"', query.BY_VALUE),
        ('"$priority"', query.BY_PRIORITY),
        ('"a"', Order("child", ("a",))),
        ('"a/b c"', Order("child", ("a", "b c"))),
        (' "a" ', Order("child", ("a",))),
        ('"\\u00e9"', Order("child", ("é",))),
    ],
)
def test_order_by_is_a_json_string(text: str, order: Order) -> None:
    assert parse(orderBy=text) == Query(order)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "$key",
        "'a'",
        '"a',
        "5",
        "null",
        "true",
        '["a"]',
        '{"a":1}',
        '"a","b"',
        '""',
        '"/"',
        '"$keys"',
        '"$"',
        '"$key/a"',
        '"a/$key"',
        '"a.b"',
        '".value"',
        '".priority"',
        '"a/.priority"',
        '"a#"',
        '"a[0]"',
        '"\\u0000"',
        '"' + "/".join("a" * 33) + '"',
    ],
)
def test_any_other_order_by_is_refused(text: str) -> None:
    with pytest.raises(InvalidQuery, match="orderBy"):
        parse(orderBy=text)


def test_an_unknown_order_with_a_dollar_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidQuery, match=r"\$key, \$value or \$priority"):
        parse(orderBy='"$keys"')


@pytest.mark.parametrize("name", query.PARAMETERS[1:])
def test_limits_and_bounds_need_order_by(name: str) -> None:
    with pytest.raises(InvalidQuery, match=f"{name} needs orderBy"):
        parse_query({name: "1"})


EXCLUSIVE = [
    ("limitToFirst", "limitToLast"),
    ("startAt", "startAfter"),
    ("endAt", "endBefore"),
    *(("equalTo", other) for other in ("startAt", "startAfter", "endAt", "endBefore")),
]


@pytest.mark.parametrize(("one", "other"), EXCLUSIVE)
def test_parameters_that_exclude_each_other_are_refused(one: str, other: str) -> None:
    with pytest.raises(InvalidQuery, match=f"{one} and {other} cannot be combined"):
        parse_query({"orderBy": '"a"', other: "1", one: "1"})


@pytest.mark.parametrize("limit", ["limitToFirst", "limitToLast"])
@pytest.mark.parametrize("low", ["startAt", "startAfter"])
@pytest.mark.parametrize("high", ["endAt", "endBefore"])
def test_one_limit_and_one_bound_at_each_end_can_be_combined(
    limit: str, low: str, high: str
) -> None:
    parsed = parse(orderBy='"a"', **{limit: "7", low: "1", high: "2"})
    assert parsed.low == Bound(1, None, low == "startAt")
    assert parsed.high == Bound(2, None, high == "endAt")
    assert (parsed.limit_to_first, parsed.limit_to_last) == (
        (7, None) if limit == "limitToFirst" else (None, 7)
    )


@pytest.mark.parametrize("name", ["limitToFirst", "limitToLast"])
@pytest.mark.parametrize(
    "text",
    [
        *("", "0", "-1", "+5", "5.0", "1e3", "05", " 5", "5 ", '"5"', "five", "٣", "0x5", "null"),
        *("9" * 101, "1" * 100_000, "1_000", "5\n"),
    ],
)
def test_a_limit_is_a_whole_number_from_1_on(name: str, text: str) -> None:
    with pytest.raises(InvalidQuery, match=name) as error:
        parse(orderBy='"a"', **{name: text})
    assert len(str(error.value)) < 200


@pytest.mark.parametrize(("text", "limit"), [("1", 1), ("10", 10), ("9" * 15, 10**15 - 1)])
def test_a_limit_is_written_in_digits(text: str, limit: int) -> None:
    assert parse(orderBy='"a"', limitToFirst=text).limit_to_first == limit
    assert parse(orderBy='"a"', limitToLast=text).limit_to_last == limit


BOUNDS = ["startAt", "startAfter", "endAt", "endBefore", "equalTo"]


@pytest.mark.parametrize("name", BOUNDS)
@pytest.mark.parametrize(
    "text",
    [
        *("", "abc", "'a'", '"a', "[1]", "{}", '{"a":1}', "NaN", "1e999", "01", "1,", ",1", "1,2"),
        *('1,"a","b"', '1,["a"]', "1,null", "1],[2", '1 "a"', '"\\ud800"', "True"),
    ],
)
@pytest.mark.parametrize("order", ['"a"', '"$value"', '"$priority"', '"$key"'])
def test_a_bound_is_a_json_primitive_and_a_key_after_it(name: str, text: str, order: str) -> None:
    with pytest.raises(InvalidQuery, match=name):
        parse(orderBy=order, **{name: text})


@pytest.mark.parametrize("name", BOUNDS)
@pytest.mark.parametrize("text", ["5", "true", "null", '"a","b"', "5.5"])
def test_a_bound_by_key_is_one_string(name: str, text: str) -> None:
    with pytest.raises(InvalidQuery, match=rf"{name} must be one JSON string"):
        parse(orderBy='"$key"', **{name: text})


def test_a_boolean_bound_by_priority_is_between_none_and_the_numbers() -> None:
    root: Value = {
        "a": 1,
        "b": {".value": 2, ".priority": -1},
        "c": {".value": 3, ".priority": "p"},
    }
    assert keys_of(root, orderBy='"$priority"', startAt="true") == ["b", "c"]
    assert keys_of(root, orderBy='"$priority"', endAt="false") == ["a"]


@pytest.mark.parametrize(
    ("text", "value", "key"),
    [
        ("5", 5, None),
        ("5.0", 5, None),
        ("-0", 0, None),
        ("9007199254740993", 9007199254740993, None),
        ("null", None, None),
        ("true", True, None),
        ('"a,b"', "a,b", None),
        ('"a,b","c,d"', "a,b", "c,d"),
        ('null,"k"', None, "k"),
        ('5,"5"', 5, "5"),
        ('"]"', "]", None),
    ],
)
def test_a_bound_has_a_value_and_optionally_a_key(text: str, value: Any, key: str | None) -> None:
    bound = parse(orderBy='"a"', startAt=text).low
    assert bound == Bound(value, key, True)
    assert bound.rank == rank_value(value)


def test_a_query_can_be_a_key_of_a_dict() -> None:
    one, same, other = (parse(orderBy='"a"', equalTo=text) for text in ("1", "1.0", "true"))
    assert {one: "one", other: "other"}[same] == "one"


SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS.map(canonical_number), TEXTS)
SCALAR_BOUNDS = st.builds(Bound, SCALARS, st.none() | FEW_KEYS | KEYS, st.booleans())
CHILDREN = st.dictionaries(FEW_KEYS | KEYS, VALUES.filter(lambda child: child is not None))
ORDERS = st.sampled_from(
    [
        query.BY_VALUE,
        query.BY_PRIORITY,
        Order("child", ("a",)),
        Order("child", ("0", "a")),
    ]
)
LIMITS = st.integers(1, 6)


@given(CHILDREN, ORDERS | st.just(BY_KEY))
def test_a_query_without_bounds_selects_all_in_one_total_order(
    children: dict[str, Value], order: Order
) -> None:
    whole = Query(order)
    selected = whole.select(children.items())
    assert dict(selected) == children
    positions = [(whole.sort_value(child), rank_key(key)) for key, child in selected]
    assert positions == sorted(positions)
    assert len(set(positions)) == len(positions)
    assert selected == whole.select(reversed(children.items()))


@given(CHILDREN, ORDERS, st.none() | SCALAR_BOUNDS, st.none() | SCALAR_BOUNDS, LIMITS)
def test_bounds_select_one_range_and_a_limit_one_end_of_it(
    children: dict[str, Value], order: Order, low: Bound | None, high: Bound | None, limit: int
) -> None:
    whole = Query(order).select(children.items())
    bounded = Query(order, low, high)
    selected = bounded.select(children.items())
    ranked = [(bounded.sort_value(child), key, child) for key, child in whole]
    admitted = [(key, child) for rank, key, child in ranked if bounded.admits(rank, key)]
    assert selected == admitted
    if selected:
        start = whole.index(selected[0])
        assert selected == whole[start : start + len(selected)]
    first = Query(order, low, high, limit_to_first=limit)
    last = Query(order, low, high, limit_to_last=limit)
    assert first.select(children.items()) == selected[:limit]
    assert last.select(children.items()) == selected[-limit:]


@given(st.data(), st.lists(KEYS, min_size=1, unique=True))
def test_bounds_by_key_select_a_range_of_the_order_of_keys(
    data: st.DataObject, keys: list[str]
) -> None:
    edges = st.sampled_from(keys) | st.text(max_size=4)
    low, high = data.draw(edges), data.draw(edges)
    children = [(key, 1) for key in keys]
    for is_inclusive in (True, False):
        bounded = Query(BY_KEY, Bound(None, low, is_inclusive), Bound(None, high, is_inclusive))
        within = [
            key
            for key in sort_keys(keys)
            if rank_key(low) < rank_key(key) < rank_key(high)
            or (is_inclusive and key in (low, high) and rank_key(low) <= rank_key(high))
        ]
        assert [key for key, _ in bounded.select(children)] == within


@given(CHILDREN, ORDERS, SCALARS, st.none() | FEW_KEYS)
def test_every_child_is_before_at_or_after_a_bound(
    children: dict[str, Value], order: Order, value: Any, key: str | None
) -> None:
    inclusive, exclusive = Bound(value, key, True), Bound(value, key, False)
    before = Query(order, high=exclusive).select(children.items())
    exact = Query(order, inclusive, inclusive).select(children.items())
    beyond = Query(order, low=exclusive).select(children.items())
    assert before + exact + beyond == Query(order).select(children.items())
    assert Query(order, low=inclusive).select(children.items()) == exact + beyond
    assert Query(order, high=inclusive).select(children.items()) == before + exact


def test_a_limited_selection_reads_its_children_once() -> None:
    count = 0

    def read() -> Any:
        nonlocal count
        for at in range(1000):
            count += 1
            yield str(at), -at

    selected = parse(orderBy='"$value"', limitToFirst="2").select(read())
    assert selected == [("999", -999), ("998", -998)]
    assert count == 1000


def test_the_name_of_a_long_query_is_short_and_its_own() -> None:
    def by_value(start: Any) -> Query:
        return Query(Order("value"), Bound(start, None, True))

    queries = [None, by_value(1), by_value(True), by_value("a" * 9999), by_value("a" * 9998)]
    names = [name_query(each) for each in queries]
    assert len(set(names)) == len(queries)
    assert max(map(len, names)) < 1000
    assert names[3] == name_query(by_value("a" * 9999))
