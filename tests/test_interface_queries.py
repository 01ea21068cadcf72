"""Queries: every order, bound and limit, compared with a simple model of the interface."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import expected
from tests.daemon import Daemon
from tests.examples import examples
from tests.expected import QueryModel
from tests.rest import Client, check_error, escape, print_request

KEYS = [
    *("0", "1", "2", "10", "9", "-1", "-2147483648", "2147483647", "2147483648", "01", "-0", "+5"),
    *("a", "b", "B", "aa", "é", "z z", "\U0001f600", "\ufb33", '"', "10000000000"),
]
LEAVES: list[Any] = [
    *(False, True, 0, 1, -1, 1.5, 10, 9, 1e300, -1e300, 9007199254740993, 9007199254740992),
    *("", "a", "b", "B", "10", "9", "é", "\U0001f600", "\ufb33", "a b", "true", "\x00"),
]
CONTAINERS: list[Any] = [{"x": 1}, [1, 2], {"v": {"v": 1}}]
RECORD_KEYS = st.sampled_from(KEYS)
VALUES = st.sampled_from([*LEAVES, *CONTAINERS])
RECORDS = st.fixed_dictionaries(
    {}, optional={"v": VALUES, "w": st.fixed_dictionaries({}, optional={"v": VALUES})}
)
COLLECTIONS = st.dictionaries(RECORD_KEYS, RECORDS | VALUES, max_size=12)
ORDERS = ["$key", "$value", "v", "w/v", "none"]


@st.composite
def bounds(draw: st.DrawFn, order: str) -> tuple[Any, ...]:
    if order == "$key":
        return (draw(RECORD_KEYS),)
    value = draw(st.sampled_from([None, *LEAVES]))
    return (value, draw(RECORD_KEYS)) if draw(st.booleans()) else (value,)


@st.composite
def query_models(draw: st.DrawFn) -> QueryModel:
    order = draw(st.sampled_from(ORDERS))
    parameters: dict[str, Any] = {}
    if draw(st.integers(0, 4)) == 0:
        parameters["equalTo"] = draw(bounds(order))
    else:
        for names in (["startAt", "startAfter"], ["endAt", "endBefore"]):
            name = draw(st.sampled_from([None, *names]))
            if name is not None:
                parameters[name] = draw(bounds(order))
    limit = draw(st.sampled_from([None, "limitToFirst", "limitToLast"]))
    if limit is not None:
        parameters[limit] = draw(st.integers(1, 6))
    return QueryModel(order, parameters)


def check(client: Client, target: str, value: Any, query: QueryModel) -> None:
    response = client.request("GET", f"{target}?{query.query_string()}")
    assert response.status == 200, (query.query_string(), response)
    result = query.result(value)
    assert expected.comparable(response.json) == expected.comparable(result), query.query_string()
    assert list(response.json or ()) == list(result or ()), query.query_string()


@settings(max_examples=examples(100), deadline=None)
@given(collection=COLLECTIONS, queries=st.lists(query_models(), min_size=1, max_size=8))
def test_every_query_equals_the_model(
    shared_tree: Client, collection: dict[str, Any], queries: list[QueryModel]
) -> None:
    shared_tree.put("/a.json", collection)
    value = expected.tree(collection)
    for query in queries:
        check(shared_tree, "/a.json", value, query)


def make_large_collection() -> dict[str, Any]:
    rng = random.Random(7)
    keys = [*KEYS, *(f"record {at:04}" for at in range(400)), *map(str, range(100, 300))]
    return {
        key: {
            "v": rng.choice([*LEAVES, *range(20)]),
            "w": {"v": rng.choice(LEAVES)},
            "fill": "x" * rng.randrange(0, 300),
        }
        for key in keys
    }


def make_queries(count: int) -> Iterator[QueryModel]:
    rng = random.Random(8)
    keys = [*KEYS, "record 0200", "record 9", "150", "150.", "zzz"]

    def bound(order: str) -> tuple[Any, ...]:
        if order == "$key":
            return (rng.choice(keys),)
        value = rng.choice([None, *LEAVES, *range(20)])
        return (value, rng.choice(keys)) if rng.random() < 0.5 else (value,)

    for _ in range(count):
        order = rng.choice(ORDERS)
        parameters: dict[str, Any] = {}
        if rng.random() < 0.2:
            parameters["equalTo"] = bound(order)
        else:
            for names in (("startAt", "startAfter"), ("endAt", "endBefore")):
                if rng.random() < 0.6:
                    parameters[rng.choice(names)] = bound(order)
        if rng.random() < 0.6:
            parameters[rng.choice(["limitToFirst", "limitToLast"])] = rng.choice([1, 5, 100])
        yield QueryModel(order, parameters)


def test_queries_of_a_large_collection_equal_the_model(tree: Client) -> None:
    collection = make_large_collection()
    tree.put("/a/b.json", collection)
    value = expected.tree(collection)
    for query in make_queries(250):
        check(tree, "/a/b.json", value, query)


def test_queries_of_a_large_collection_of_leaves_equal_the_model(tree: Client) -> None:
    rng = random.Random(9)
    keys = [*KEYS, *(f"record {at:04}" for at in range(800))]
    collection = {key: rng.choice([*LEAVES, *range(20)]) for key in keys}
    tree.put("/a.json", collection)
    value = expected.tree(collection)
    for query in make_queries(120):
        check(tree, "/a.json", value, query)


def test_queries_of_a_large_array_equal_the_model(tree: Client) -> None:
    array = [{"v": at % 7, "fill": "x" * (at % 90)} for at in range(500)]
    tree.put("/a.json", array)
    value = expected.tree(array)
    for query in make_queries(60):
        check(tree, "/a.json", value, query)


# The orders, with literal examples


def test_keys_are_ordered_integers_first_then_utf_8(tree: Client) -> None:
    tree.put("/a.json", dict.fromkeys(KEYS, 1))
    response = tree.request("GET", '/a.json?orderBy="$key"').json
    assert list(response) == [
        *("-2147483648", "-1", "0", "-0", "1", "01", "2", "9", "10", "2147483647"),
        *('"', "+5", "10000000000", "2147483648"),
        *("B", "a", "aa", "b", "z z", "é", "\ufb33", "\U0001f600"),
    ]


@pytest.mark.parametrize("fill", ["", "x" * 2000])
def test_months_are_in_the_order_of_the_year(tree: Client, fill: str) -> None:
    months = [f"{month:02d}" for month in range(1, 13)]
    tree.put("/year.json", {month: {"t": fill} for month in reversed(months)})

    def keys(query: str) -> list[str]:
        return list(tree.get(f'/year.json?orderBy="$key"&{query}'))

    assert list(tree.get("/year.json")) == months
    assert keys("limitToFirst=3") == ["01", "02", "03"]
    assert keys("limitToLast=3") == ["10", "11", "12"]
    assert keys('startAt="09"&limitToFirst=2') == ["09", "10"]
    assert keys('startAt="9"&endAt="10"') == ["09", "10"]
    assert keys('startAfter="09"&endBefore="12"') == ["10", "11"]
    assert list(tree.get("/year.json?shallow=true&startAfter=09")) == ["10", "11", "12"]


def test_equal_numbers_are_ordered_by_length_and_then_by_bytes(tree: Client) -> None:
    keys = ["-01", "-1", "-0", "0", "00", "000", "-00", "1", "001", "01", "00000000001"]
    tree.put("/a.json", dict.fromkeys([*keys, "000000000001"], 1))
    in_order = ["-1", "-01", "0", "-0", "00", "-00", "000", "1", "01", "001", "00000000001"]
    assert list(tree.get("/a.json")) == [*in_order, "000000000001"]
    assert list(tree.get('/a.json?orderBy="$value"&equalTo=1')) == [*in_order, "000000000001"]


def test_values_are_ordered_by_kind_then_by_value(tree: Client) -> None:
    values: dict[str, dict[str, Any]] = {
        "nothing": {"w": 0},
        "no": {"v": False},
        "yes": {"v": True},
        "minus": {"v": -5},
        "half": {"v": 0.5},
        "nine": {"v": 9},
        "ten": {"v": 10},
        "empty": {"v": ""},
        "text ten": {"v": "10"},
        "text nine": {"v": "9"},
        "upper": {"v": "B"},
        "lower": {"v": "a"},
        "accent": {"v": "é"},
        "container a": {"v": {"x": 1}},
        "container b": {"v": [1]},
    }
    tree.put("/a.json", dict(reversed(values.items())))
    assert list(tree.request("GET", '/a.json?orderBy="v"').json) == list(values)
    leaves = {key: record["v"] for key, record in values.items() if "v" in record}
    tree.put("/b.json", leaves)
    assert list(tree.request("GET", '/b.json?orderBy="$value"').json) == list(leaves)


def test_priorities_are_ordered_none_then_numbers_then_strings(tree: Client) -> None:
    ranked = {
        "a none": {"x": 1},
        "b none": 2,
        "minus": {".value": 1, ".priority": -1},
        "one": {"x": 1, ".priority": 1},
        "half": {".value": "x", ".priority": 1.5},
        "ten": {"x": {"y": 1}, ".priority": 10},
        "text 10": {".value": 5, ".priority": "10"},
        "text 9": {"x": 1, ".priority": "9"},
        "text a": {".value": True, ".priority": "a"},
    }
    tree.put("/a.json", dict(reversed(ranked.items())))
    response = tree.request("GET", '/a.json?orderBy="$priority"')
    assert list(response.json) == list(ranked)
    assert response.json["one"] == {"x": 1}

    def keys_of(query: str) -> list[str]:
        return list(tree.get(f'/a.json?orderBy="$priority"&{query}') or ())

    in_order = list(ranked)
    assert keys_of("startAt=1") == in_order[3:]
    assert keys_of("endAt=1") == in_order[:4]
    assert keys_of("equalTo=null") == in_order[:2]
    assert keys_of('equalTo="10"') == ["text 10"]
    assert keys_of("startAfter=1&limitToFirst=2") == ["half", "ten"]
    assert keys_of('limitToLast=1&endBefore="9"') == ["text 10"]
    assert keys_of('startAt=null,"b%20none"&limitToFirst=2') == ["b none", "minus"]
    exported = tree.request("GET", '/a.json?orderBy="$priority"&startAt=10&format=export').json
    assert exported == {key: ranked[key] for key in in_order[5:]}


def test_bounds_follow_one_total_order(tree: Client) -> None:
    tree.put("/a.json", {"n": {"x": 1}, "f": {"v": False}, "5": {"v": 5}, "s": {"v": "s"}})

    def keys_of(query: str) -> list[str]:
        return list(tree.get(f'/a.json?orderBy="v"&{query}') or ())

    assert keys_of("endAt=5") == ["n", "f", "5"]
    assert keys_of("startAt=5") == ["5", "s"]
    assert keys_of("startAt=false&endAt=5") == ["f", "5"]
    assert keys_of("equalTo=null") == ["n"]
    assert keys_of("startAfter=null") == ["f", "5", "s"]
    assert keys_of("endBefore=false") == ["n"]
    assert keys_of("equalTo=true") == []


def test_an_exclusive_bound_without_a_key_excludes_all_equal_values(tree: Client) -> None:
    tree.put("/a.json", {key: {"v": at // 2} for at, key in enumerate("abcdef")})

    def keys_of(query: str) -> str:
        return "".join(tree.get(f'/a.json?orderBy="v"&{query}') or ())

    assert keys_of("startAfter=0") == "cdef"
    assert keys_of("endBefore=2") == "abcd"
    assert keys_of('startAfter=1,"c"') == "def"
    assert keys_of('startAt=1,"d"') == "def"
    assert keys_of('endBefore=1,"d"') == "abc"
    assert keys_of('endAt=1,"c"') == "abc"
    assert keys_of('equalTo=1,"c"') == "c"
    assert keys_of('equalTo=1,"a"') == ""
    assert keys_of('startAt=1,"bb"&limitToFirst=1') == "c"
    assert keys_of("startAfter=0&endBefore=2&limitToLast=1") == "d"


def test_limits_select_the_beginning_or_the_end(tree: Client) -> None:
    tree.put("/a.json", {key: at for at, key in enumerate("abcdef")})

    def keys_of(query: str) -> str:
        return "".join(tree.get(f"/a.json?{query}") or ())

    for order in ('"$key"', '"$value"'):
        assert keys_of(f"orderBy={order}&limitToFirst=2") == "ab"
        assert keys_of(f"orderBy={order}&limitToLast=2") == "ef"
        assert keys_of(f"orderBy={order}&limitToFirst=100") == "abcdef"
        assert keys_of(f"orderBy={order}&limitToLast=100") == "abcdef"
    assert keys_of('orderBy="$key"&startAt="b"&limitToFirst=2') == "bc"
    assert keys_of('orderBy="$key"&startAt="b"&endAt="d"&limitToLast=2') == "cd"
    assert keys_of('orderBy="$value"&startAfter=3&limitToFirst=1') == "e"


def test_an_order_may_be_by_a_deep_child(tree: Client) -> None:
    tree.put("/a.json", {key: {"b": {"c": {"d": at}}} for at, key in enumerate("zyx")})
    assert list(tree.get('/a.json?orderBy="b/c/d"')) == ["z", "y", "x"]
    assert list(tree.get('/a.json?orderBy="b%2Fc%2Fd"&startAt=1')) == ["y", "x"]
    assert list(tree.get('/a.json?orderBy="b/c"&limitToFirst=1')) == ["x"]


def test_the_result_is_an_object_in_order_whatever_its_keys(tree: Client) -> None:
    tree.put("/a.json", [30, 10, 20])
    assert tree.request("GET", '/a.json?orderBy="$value"').body == b'{"1":10,"2":20,"0":30}'
    assert tree.request("GET", '/a.json?orderBy="$key"').body == b'{"0":30,"1":10,"2":20}'
    tree.put("/b.json", [[1, 2], {"0": "x"}])
    assert tree.request("GET", '/b.json?orderBy="$key"').body == b'{"0":[1,2],"1":["x"]}'
    exported = tree.request("GET", '/b.json?orderBy="$key"&format=export')
    assert exported.body == b'{"0":{"0":1,"1":2},"1":{"0":"x"}}'


@pytest.mark.parametrize("value", [None, "leaf", 1, True])
@pytest.mark.parametrize("order", ["$key", "$value", "$priority", "x"])
def test_a_query_of_a_leaf_or_of_nothing_is_null(tree: Client, value: object, order: str) -> None:
    tree.put("/a.json", value)
    response = tree.request("GET", f'/a.json?orderBy="{order}"&limitToFirst=3')
    assert (response.status, response.body) == (200, b"null")


def test_an_empty_result_is_null(tree: Client) -> None:
    tree.put("/a.json", {"x": {"v": 1}})
    for query in ('"v"&equalTo=2', '"v"&startAfter=1', '"$key"&startAt="y"', '"$value"&endAt=1'):
        assert tree.request("GET", f"/a.json?orderBy={query}").body == b"null"


def test_json_in_the_query_may_be_escaped_in_any_way(tree: Client) -> None:
    tree.put("/a.json", {"x": {"full name": "Ada"}, "y": {"full name": "Bob & Co"}})
    for order in ('"full+name"', '"full%20name"', "%22full%20name%22", r'"full\u0020name"'):
        found = tree.get(f'/a.json?orderBy={order}&equalTo="Bob%20%26%20Co"')
        assert list(found) == ["y"]


# Errors


@pytest.mark.parametrize(
    "query",
    [
        # limits and bounds without orderBy
        *("limitToFirst=1", "limitToLast=1", "startAt=1", "endAt=1", "equalTo=1"),
        *('startAfter="a"', "endBefore=1", "limitToFirst=1&startAfter=a"),
        # combinations that exclude each other
        'orderBy="v"&limitToFirst=1&limitToLast=1',
        'orderBy="v"&equalTo=1&startAt=1',
        'orderBy="v"&equalTo=1&startAfter=1',
        'orderBy="v"&equalTo=1&endAt=1',
        'orderBy="v"&equalTo=1&endBefore=1',
        'orderBy="v"&startAt=1&startAfter=1',
        'orderBy="v"&endAt=1&endBefore=1',
        # orderBy
        *("orderBy=v", "orderBy=$key", "orderBy=", "orderBy='v'", "orderBy=1", "orderBy=null"),
        *('orderBy="v', 'orderBy=v"', 'orderBy=["v"]', 'orderBy={"v":1}', 'orderBy=""'),
        *('orderBy="$other"', 'orderBy="$"', 'orderBy="a.b"', 'orderBy="a/$key"', 'orderBy="/"'),
        *('orderBy="a[0]"', 'orderBy="v"x', 'orderBy="v","w"', 'orderBy=".priority"'),
        # limits
        *(f'orderBy="v"&limitToFirst={text}' for text in ("0", "-1", "1.0", "1e2", "x", '"1"')),
        *(f'orderBy="v"&limitToLast={text}' for text in ("0", "-1", "1.5", "", "null", "0x1")),
        *(f'orderBy="v"&limitToFirst={text}' for text in ("%201", "1%20", "+1", "%D9%A1", "true")),
        # bounds
        *(f'orderBy="v"&startAt={text}' for text in ("", "x", "'a'", "{}", "[]", "[1]", "NaN")),
        *(f'orderBy="v"&endAt={text}' for text in ('"a', "1,2", '1,"a",2', ",", "1,", '{"a":1}')),
        *(f'orderBy="v"&equalTo={text}' for text in ("1,null", "1,true", "1e999", "undefined")),
        *(f'orderBy="$key"&startAt={text}' for text in ("1", "null", "true", "a", '"a","b"')),
        *(f'orderBy="$key"&equalTo={text}' for text in ("1", "1.5", "{}", '["a"]')),
    ],
)
def test_an_invalid_query_is_refused(tree: Client, query: str) -> None:
    tree.put("/a.json", {"x": {"v": 1}})
    check_error(tree.request("GET", f"/a.json?{query}"), 400, "invalid_query")
    check_error(tree.request("GET", f"/none.json?{query}"), 400, "invalid_query")


def test_a_query_without_an_index_works_and_is_logged(shared_daemon: Daemon, tree: Client) -> None:
    tree.put("/unindexed.json", {"x": {"v": 1}})
    assert tree.get('/unindexed.json?orderBy="v"&equalTo=1') == {"x": {"v": 1}}
    shared_daemon.await_line(r'".indexOn".*/unindexed')


def test_a_project_may_require_indexes(tmp_path_factory: pytest.TempPathFactory) -> None:
    config = """
default_project = "shop"
[projects.shop]
rules_file = "rules.json"
require_index = true
"""
    folder = tmp_path_factory.mktemp("strict")
    rules = {".read": True, ".write": True, "indexed": {".indexOn": ["v", "w/v", ".value"]}}
    (folder / "rules.json").write_text(json.dumps({"rules": rules}))
    with Daemon(folder, config=config) as daemon, Client(daemon) as client:
        for path in ("indexed", "plain"):
            client.put(f"/{path}.json", {"x": {"v": 1, "w": {"v": 2}}})
        for order, name in (("v", "v"), ("w/v", "w/v"), ("$value", ".value")):
            query = f'orderBy="{order}"&limitToFirst=1'
            assert list(client.get(f"/indexed.json?{query}")) == ["x"]
            message = check_error(
                client.request("GET", f"/plain.json?{query}"), 400, "invalid_query"
            )
            text = f'Index not defined, add ".indexOn": "{name}", for path "/plain", to the rules'
            assert message == text
        assert list(client.get('/plain.json?orderBy="$key"')) == ["x"]


def test_control_characters_in_the_logged_advice_are_escaped(
    shared_daemon: Daemon, tree: Client
) -> None:
    tree.get("/%C2%9B%E2%80%A8.json?orderBy=%22%C2%9B2J%22")
    advice = r'no ".indexOn" names "\\x9b2J" for path "/\\x9b\\u2028", by which a query orders'
    shared_daemon.await_line(advice)


@pytest.mark.parametrize(
    "query", ['orderBy="$key"', 'orderBy="x"&limitToFirst=1', "orderBy=%22$value%22"]
)
def test_a_priority_has_no_children_to_query(tree: Client, query: str) -> None:
    tree.put("/a.json", {".value": 1, ".priority": 5})
    assert tree.get("/a/.priority.json") == 5
    assert tree.get(f"/a/.priority.json?{query}") is None


def test_integer_bounds_are_exact_beyond_doubles(tree: Client) -> None:
    numbers: Mapping[str, int] = {"a": 2**53, "b": 2**53 + 1, "c": 2**53 + 2, "d": 2**63 - 1}
    tree.put("/a.json", numbers)
    for first, second in itertools.combinations(numbers, 2):
        found = tree.get(
            f'/a.json?orderBy="$value"&startAt={numbers[first]}&endBefore={numbers[second]}'
        )
        assert list(found) == [key for key in numbers if first <= key < second]
    assert tree.get(f'/a.json?orderBy="$value"&equalTo={2**53 + 1}') == {"b": 2**53 + 1}


def test_the_examples_of_the_interface_work(tree: Client) -> None:
    dinosaurs = {
        "bruhathkayosaurus": {"height": 25, "length": 44},
        "lambeosaurus": {"height": 2.1, "length": 12.5},
        "linhenykus": {"height": 0.6, "length": 1},
        "pterodactyl": {"height": 0.6, "length": 0.8},
        "stegosaurus": {"height": 4, "length": 9},
        "triceratops": {"height": 3, "length": 8},
    }
    tree.put("/dinosaurs.json", dinosaurs)

    def keys_of(query: str) -> list[str]:
        return list(tree.get(f"/dinosaurs.json?{query}"))

    assert keys_of('orderBy="height"&startAt=3') == [
        "triceratops",
        "stegosaurus",
        "bruhathkayosaurus",
    ]
    assert keys_of(f"orderBy={escape(json.dumps('height'))}&equalTo=0.6") == [
        "linhenykus",
        "pterodactyl",
    ]
    assert keys_of('orderBy="$key"&startAt="a"&endAt="m"') == [
        "bruhathkayosaurus",
        "lambeosaurus",
        "linhenykus",
    ]
    assert keys_of('orderBy="height"&limitToLast=1') == ["bruhathkayosaurus"]


# Many children


def test_a_query_over_many_children_blocks_no_other_client_and_can_time_out(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with Daemon(tmp_path_factory.mktemp("many")) as daemon, Client(daemon) as client:
        children = {f"k{at:05}": {"n": at * 7919 % 60_000, "t": "x" * 20} for at in range(60_000)}
        client.put("/many.json", children)
        with client.connect() as wire:
            for target, count in (
                ('/many.json?orderBy="n"', 60_000),
                ('/many.json?orderBy="n"&limitToLast=50000', 50_000),
                ('/many.json?orderBy="$key"&limitToLast=59999', 59_999),
            ):
                wire.send(print_request("GET", target, host=client.host))
                served = 0
                while not wire.has_response():
                    assert client.get("/none.json") is None
                    served += 1
                assert served >= 2, target
                assert len(wire.receive().json) == count
        for query in ('orderBy="n"', 'orderBy="n"&limitToFirst=1'):
            response = client.request("GET", f"/many.json?{query}&timeout=30ms")
            check_error(response, 504, "timeout")
