from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from tests.tree.strategies import BODIES, VALUES, normal
from treedbd.tree import value as printing
from treedbd.tree.edit import Increment, Timestamp, check_priority, has_more_nodes, normalise
from treedbd.tree.path import sort_keys
from treedbd.tree.types import InvalidData, Json, Value


def nest(levels: int, leaf: Any) -> Json:
    """Return `leaf` below `levels` keys."""
    nested: Json = leaf
    for _ in range(levels):
        nested = {"k": nested}
    return nested


def parse(text: str) -> Value:
    """Return the normal form of a body, which is JSON text."""
    return normal(printing.parse(text.encode()))


def assert_normal(node: Value) -> None:
    """Fail unless a value and everything below it are in the normal form."""
    if not isinstance(node, dict):
        return
    if ".value" in node:
        assert list(node) == [".value", ".priority"]
        assert not isinstance(node[".value"], dict | list | None)
        return
    keys = list(node)
    if ".priority" in node:
        assert keys.pop(0) == ".priority"
        assert isinstance(node[".priority"], int | float | str)
    assert keys, "a container is never empty"
    assert keys == sort_keys(keys)
    for key in keys:
        assert node[key] is not None
        assert not isinstance(node[key], list)
        assert_normal(node[key])


@pytest.mark.parametrize(
    "body",
    [
        "null",
        "{}",
        "[]",
        "[null]",
        "[null,null]",
        "[[],{}]",
        '{"a":null}',
        '{"a":{}}',
        '{"a":[]}',
        '{"a":{"b":{"c":null,"d":[]}}}',
        '{".priority":1}',
        '{".priority":null}',
        '{".priority":1,"a":null}',
        '{".value":null}',
        '{".value":null,".priority":1}',
        '{"a":{".priority":"x"}}',
    ],
)
def test_a_body_without_a_leaf_is_nothing(body: str) -> None:
    assert parse(body) is None


@pytest.mark.parametrize(
    ("body", "normalised"),
    [
        ('"x"', "x"),
        ('""', ""),
        ("true", True),
        ("false", False),
        ("0", 0),
        ('{".value":5}', 5),
        ('{".value":5,".priority":null}', 5),
        ('{".value":false,".priority":1}', {".value": False, ".priority": 1}),
        ('{".priority":"p",".value":"v"}', {".value": "v", ".priority": "p"}),
        ('{"b":1,".priority":2,"a":{"c":3}}', {".priority": 2, "a": {"c": 3}, "b": 1}),
        ('{"a":1,".priority":null}', {"a": 1}),
        ('{"a":1,".priority":2.0}', {".priority": 2, "a": 1}),
        ('["x","y"]', {"0": "x", "1": "y"}),
        ('[null,"y",null,[]]', {"1": "y"}),
        ('[[1],{"a":null}]', {"0": {"0": 1}}),
        ('{"a":1,"a":2}', {"a": 2}),
        ('{"a":1,"a":null}', None),
        ('{"a":null,"b":1}', {"b": 1}),
        ('{"x":1.0,"y":-0.0}', {"x": 1, "y": 0}),
        ('{"\\u0061\\u00e9":"\\ud83d\\ude00\\u0000"}', {"aé": "\U0001f600\0"}),
    ],
)
def test_a_body_has_one_normal_form(body: str, normalised: Value) -> None:
    written = parse(body)
    assert written == normalised
    assert printing.compact(written) == printing.compact(normalised)


def test_members_are_in_key_order() -> None:
    body = '{"b":1,"10":1,"9":1,"-1":1,"01":1,"a":1,"2147483648":1,"0":1}'
    written = parse(body)
    assert isinstance(written, dict)
    assert list(written) == ["-1", "0", "01", "9", "10", "2147483648", "a", "b"]


def test_each_of_several_records_of_one_shape_is_sorted() -> None:
    body: Json = [{"b": at, "a": None if at % 2 else at, "2": {}} for at in range(4)]
    records: Any = normal(body)
    assert [list(record) for record in records.values()] == [["a", "b"], ["b"], ["a", "b"], ["b"]]
    assert records["2"] == {"a": 2, "b": 2}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"{",
        b"[1,]",
        b'{"a":1,}',
        b"{'a':1}",
        b"{a:1}",
        b"nul",
        b"NaN",
        b"Infinity",
        b"-Infinity",
        b"1e999",
        b"-1e999",
        b"1" + b"0" * 400,
        b"01",
        b"+1",
        b".5",
        b"1.",
        b"1 2",
        b'"a',
        b'"\x01"',
        b'"\\x"',
        b'"\\ud800"',
        b'"\\udc00\\ud800"',
        b'{"\\ud800":1}',
        b'"\xff"',
        b'"\xed\xa0\x80"',
        b'"\xc0\x80"',
        b"\xef\xbb\xbf1",
        b"[" * 100_000,
        b"// x\n1",
    ],
)
def test_text_that_is_not_json_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidData, match="Not valid JSON"):
        printing.parse(body)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 10**400])
def test_a_number_out_of_range_is_refused(number: float) -> None:
    with pytest.raises(InvalidData, match="out of range"):
        normalise({"a": number})


@pytest.mark.parametrize("key", ["", "a.b", "a#", "$a", "[", "]", "a/b", "\x00", "\x1f", "\x7f"])
def test_an_illegal_key_is_refused_even_if_nothing_is_below_it(key: str) -> None:
    items: list[Json] = [1, None, {}, {"a": 1}]
    for item in items:
        bodies: list[Json] = [{key: item}, {"a": {"b": 1, key: item}}, [{key: item}]]
        for body in bodies:
            with pytest.raises(InvalidData, match="key"):
                normalise(body)


@pytest.mark.parametrize("character", ["a", "é", "日", "\U0001f600"])
def test_a_key_has_at_most_768_bytes(character: str) -> None:
    longest = character * (768 // len(character.encode()))
    assert normalise({longest: 1}).value == {longest: 1}
    with pytest.raises(InvalidData, match="longer than 768 bytes"):
        normalise({longest + "a": 1})


@pytest.mark.parametrize(
    "body",
    [
        '{".value":{}}',
        '{".value":[]}',
        '{".value":{"a":1}}',
        '{".value":{".value":1}}',
        '{".value":1,"a":1}',
        '{".value":1,"a":null}',
        '{".value":1,".priority":true}',
        '{".value":1,".priority":{}}',
        '{".value":1,".other":1}',
        '{"a":1,".priority":false}',
        '{"a":1,".priority":[1]}',
        '{"a":1,".priority":{"b":1}}',
        '{".priority":{}}',
        '{".other":1}',
        '{"a":{".other":1}}',
    ],
)
def test_members_with_a_dot_are_refused_if_they_have_no_meaning_there(body: str) -> None:
    with pytest.raises(InvalidData):
        parse(body)


def test_a_leaf_is_at_most_32_keys_below_the_root() -> None:
    assert normalise(nest(32, 1)).value == nest(32, 1)
    assert normalise(nest(12, 1), depth=20).value == nest(12, 1)
    assert normalise(1, depth=32).value == 1
    too_deep: list[tuple[Json, int]]
    too_deep = [(nest(33, 1), 0), (nest(13, 1), 20), ({"a": 1}, 32), (1, 33), ("", 33)]
    for body, depth in too_deep:
        with pytest.raises(InvalidData, match="deeper than 32"):
            normalise(body, depth)


def test_items_of_arrays_count_as_keys() -> None:
    assert normalise(nest(31, [1])).value == nest(31, {"0": 1})
    for body in (nest(32, [1]), nest(31, [[1]]), nest(32, [None, 1])):
        with pytest.raises(InvalidData, match="deeper than 32"):
            normalise(body)


def test_a_priority_does_not_count_as_a_key() -> None:
    deepest = {".value": 1, ".priority": 2}
    assert normalise(nest(32, deepest)).value == nest(32, deepest)
    with pytest.raises(InvalidData, match="deeper than 32"):
        normalise(nest(33, deepest))


def test_server_values_are_at_most_32_keys_below_the_root() -> None:
    assert normalise(nest(32, {".sv": "timestamp"})).has_placeholders
    with pytest.raises(InvalidData, match="deeper than 32"):
        normalise(nest(33, {".sv": "timestamp"}))


def test_empty_objects_may_be_deeper_than_32_keys() -> None:
    assert normalise(nest(60, {})).value is None
    assert normalise(nest(60, None), depth=20).value is None


def test_empty_objects_nested_beyond_a_limit_are_refused() -> None:
    assert normalise(nest(127, {})).value is None
    for body in (nest(128, {}), nest(1000, {}), printing.parse(b"[" * 1000 + b"]" * 1000)):
        with pytest.raises(InvalidData, match="nested deeper than 128"):
            normalise(body)


@pytest.mark.parametrize("character", ["a", "é", "日", "\U0001f600"])
def test_a_string_has_at_most_max_string_bytes(character: str) -> None:
    longest = character * (24 // len(character.encode()))
    legal: list[Json] = [longest, {"a": longest}, [longest]]
    legal += [{".value": longest, ".priority": longest}]
    for body in legal:
        assert normalise(body, max_string_bytes=24).value is not None
    longer = longest + "a"
    bodies: list[Json] = [longer, {"a": longer}, [longer], {"a": {".value": longer}}]
    bodies += [{".value": 1, ".priority": longer}, {"a": 1, ".priority": longer}]
    for body in bodies:
        with pytest.raises(InvalidData, match="longer than 24 bytes"):
            normalise(body, max_string_bytes=24)


def test_by_default_a_string_has_at_most_10_mib() -> None:
    assert normalise({"a": "x" * 10_485_760}).value
    with pytest.raises(InvalidData, match="longer than 10485760 bytes"):
        normalise({"a": "x" * 10_485_761})


def test_server_values_stay_until_they_are_resolved() -> None:
    body: Json = {
        "at": {".sv": "timestamp"},
        "n": {".value": {".sv": {"increment": 2.0}}, ".priority": {".sv": "timestamp"}},
    }
    unresolved = normalise(body)
    assert unresolved.has_placeholders
    assert unresolved.value == {
        "at": Timestamp(),
        "n": {".value": Increment(2), ".priority": Timestamp()},
    }
    assert not normalise({"a": 1}).has_placeholders


@pytest.mark.parametrize("body", [{".sv": "now"}, {"a": {".sv": "timestamp", "b": 1}}, {".sv": {}}])
def test_an_unknown_server_value_is_refused(body: Json) -> None:
    with pytest.raises(InvalidData, match=r"\.sv"):
        normalise(body)


@pytest.mark.parametrize(
    ("json", "priority"),
    [
        (1, 1),
        (1.0, 1),
        ("x", "x"),
        ("", ""),
        (None, None),
        ({".sv": "timestamp"}, Timestamp()),
        ({".sv": {"increment": 1}}, Increment(1)),
    ],
)
def test_a_priority_is_a_number_a_string_or_null(json: Json, priority: Any) -> None:
    assert check_priority(json) == priority


@pytest.mark.parametrize("json", [True, False, {}, [], [1], {"a": 1}, {".value": 1}, {".sv": 1}])
def test_any_other_json_is_refused_as_a_priority(json: Json) -> None:
    with pytest.raises(InvalidData):
        check_priority(json)


@given(BODIES)
def test_a_normalised_body_is_in_normal_form(body: Json) -> None:
    assert_normal(normal(body))


@given(VALUES)
def test_normalising_again_changes_nothing(node: Value) -> None:
    again = normal(printing.parse(printing.compact(node)))
    assert again == node
    assert printing.compact(again) == printing.compact(node)


@given(BODIES)
def test_normalising_does_not_modify_the_body(body: Json) -> None:
    before = repr(body)
    normalise(body)
    assert repr(body) == before


@pytest.mark.parametrize(
    ("json", "nodes"),
    [
        (1, 0),
        ("[1,2]", 0),
        ([[]], 1),
        ([1, None, "x"], 3),
        ({"a": [1, 2], "b": {"c": []}}, 5),
        ([[1] * 10] * 10, 110),
    ],
)
def test_members_and_items_are_counted_up_to_a_limit(json: Json, nodes: int) -> None:
    assert not has_more_nodes(json, nodes)
    assert has_more_nodes(json, nodes - 1) is (nodes > 0)
