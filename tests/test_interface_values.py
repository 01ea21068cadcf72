"""Stored values: absence, arrays, numbers, text, priorities and server values."""

from __future__ import annotations

import json
import math
import random
import struct
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import expected
from tests.examples import examples
from tests.rest import JSON_TYPE, Client, check_error, configured
from tests.tree.strategies import LEGAL, TEXTS

MIB = 1_048_576
STRING_BYTES = 10 * MIB
BODY_BYTES = 16 * MIB

KEYS = st.one_of(
    st.integers(0, 8).map(str),
    st.sampled_from(["-1", "01", "a", "é", "\U0001f600", "2147483648", "a b", '"', "\\", "%"]),
    st.text(LEGAL, min_size=1, max_size=4),
)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    TEXTS,
)
BODIES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=20,
)


# Absence and arrays


@pytest.mark.parametrize(
    "body",
    ["null", "{}", "[]", '{"a":null}', '{"a":{}}', '{"a":{"b":[]}}', "[null]", "[[],{},null]"],
)
def test_absence_may_be_written_in_many_ways(tree: Client, body: str) -> None:
    tree.put("/a.json", 1)
    response = tree.request("PUT", "/a.json", body)
    assert (response.status, response.body) == (200, b"null")
    assert tree.request("GET", "/.json").body == b"null"


def test_containers_without_children_are_removed(tree: Client) -> None:
    tree.put("/.json", {"a": {"b": {"c": 1}}, "x": 1})
    assert tree.request("DELETE", "/a/b/c.json").body == b"null"
    assert tree.get("/.json") == {"x": 1}
    assert tree.get("/a.json?shallow=true") is None
    tree.put("/x.json", None)
    assert tree.request("GET", "/.json").body == b"null"


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        ("[1,2,3]", "[1,2,3]"),
        ("[1,null,3]", "[1,null,3]"),
        ("[null,null,3]", '{"2":3}'),
        ("[null,2]", "[null,2]"),
        ("[null,null,3,4]", "[null,null,3,4]"),
        ("[1,null,null,null]", "[1]"),
        ("[[1],[null,[2]]]", "[[1],[null,[2]]]"),
        ('{"0":1}', "[1]"),
        ('{"1":1}', "[null,1]"),
        ('{"2":1}', '{"2":1}'),
        ('{"0":1,"2":1}', "[1,null,1]"),
        ('{"0":1,"3":1}', "[1,null,null,1]"),
        ('{"0":1,"4":1}', '{"0":1,"4":1}'),
        ('{"1":1,"0":0}', "[0,1]"),
        ('{"0":1,"a":2}', '{"0":1,"a":2}'),
        ('{"0":1,"01":2}', '{"0":1,"01":2}'),
        ('{"2":2,"0":0,"00":1}', '{"0":0,"00":1,"2":2}'),
        ('{"2":2,"0":0,"-0":1}', '{"0":0,"-0":1,"2":2}'),
        ('{"0":1,"-1":2}', '{"-1":2,"0":1}'),
        ('{"0":1,"+1":2}', '{"0":1,"+1":2}'),
        ('{"0":1,"1e0":2}', '{"0":1,"1e0":2}'),
        ('{"0":1,"\u0661":2}', '{"0":1,"\u0661":2}'),
        ('{"00":1}', '{"00":1}'),
        ('{"-0":1}', '{"-0":1}'),
        ('{"a":{"0":{"0":1}}}', '{"a":[[1]]}'),
    ],
)
def test_arrays_are_stored_as_objects_and_printed_as_arrays(
    tree: Client, body: str, shown: str
) -> None:
    response = tree.request("PUT", "/a.json", body)
    assert (response.status, response.body) == (200, shown.encode())
    response = tree.request("GET", "/a.json")
    assert (response.status, response.body) == (200, shown.encode())
    assert response.headers["Content-Type"] == JSON_TYPE


def test_array_items_are_children(tree: Client) -> None:
    tree.put("/a.json", ["x", "y", "z"])
    assert tree.get("/a/1.json") == "y"
    assert tree.request("DELETE", "/a/1.json").status == 200
    assert tree.get("/a.json") == ["x", None, "z"]
    assert tree.get("/a.json?format=export") == {"0": "x", "2": "z"}
    assert tree.request("DELETE", "/a/0.json").status == 200
    assert tree.get("/a.json") == {"2": "z"}


def test_an_export_prints_no_arrays(tree: Client) -> None:
    tree.put("/a.json", [[1, 2], {"0": {"0": 3}}])
    response = tree.request("GET", "/a.json?format=export")
    assert response.body == b'{"0":{"0":1,"1":2},"1":{"0":{"0":3}}}'
    check_error(tree.request("GET", "/a.json?format=other"), 400, "invalid_query")


def test_a_leaf_that_gets_a_child_becomes_a_container(tree: Client) -> None:
    tree.put("/a.json", "leaf")
    tree.put("/a/b/c.json", 1)
    assert tree.get("/.json") == {"a": {"b": {"c": 1}}}
    tree.put("/a.json", "leaf")
    assert tree.get("/a/b.json") is None
    assert tree.get("/.json") == {"a": "leaf"}


@settings(max_examples=examples(200), deadline=None)
@given(body=BODIES)
def test_any_body_reads_back_as_documented(shared_tree: Client, body: Any) -> None:
    shown = expected.shown(body)
    response = shared_tree.request("PUT", "/a/b.json", json.dumps(body))
    assert response.status == 200, response
    assert expected.comparable(response.json) == expected.comparable(shown)
    assert len(response.body) == len(expected.compact(shown))
    assert shared_tree.request("GET", "/a/b.json").body == response.body
    around = expected.shown({"a": {"b": body}})
    assert expected.comparable(shared_tree.get("/.json")) == expected.comparable(around)


# Numbers


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        *(("0", "0"), ("-0", "0"), ("-0.0", "0"), ("0.0", "0"), ("0e0", "0"), ("-0e5", "0")),
        *(("1", "1"), ("1.0", "1"), ("-1.0", "-1"), ("1e2", "100"), ("1E+2", "100")),
        *(("1e-2", "0.01"), ("0.1", "0.1"), ("100e-1", "10"), ("1.5", "1.5"), ("-1.50", "-1.5")),
        ("9007199254740991", "9007199254740991"),
        ("9007199254740993", "9007199254740993"),
        ("9007199254740993.0", "9007199254740992"),
        ("-9007199254740993", "-9007199254740993"),
        ("9223372036854775807", "9223372036854775807"),
        ("-9223372036854775808", "-9223372036854775808"),
        ("9223372036854775808", "9223372036854776000"),
        ("-9223372036854775809", "-9223372036854776000"),
        ("18446744073709551615", "18446744073709552000"),
        ("18446744073709551616", "18446744073709552000"),
        ("100000000000000000000", "100000000000000000000"),
        ("1000000000000000000000", "1e+21"),
        ("123456789012345678901234567890", "1.2345678901234568e+29"),
        *(("1e20", "100000000000000000000"), ("1e21", "1e+21"), ("1.5e300", "1.5e+300")),
        *(("1e-6", "0.000001"), ("1e-7", "1e-7"), ("123e-9", "1.23e-7")),
        ("0.000001234", "0.000001234"),
        *(("5e-324", "5e-324"), ("1e-400", "0"), ("-1e-400", "0")),
        ("1.7976931348623157e308", "1.7976931348623157e+308"),
        ("2.2250738585072014e-308", "2.2250738585072014e-308"),
        ("333333333.33333329", "333333333.3333333"),
        ("1e23", "1e+23"),
        ("4.50", "4.5"),
        ("2e-3", "0.002"),
        ("0.000000000000000000000000001", "1e-27"),
        ("295147905179352830000", "295147905179352830000"),
        ("999999999999999700000.0", "999999999999999700000"),
        ("9007199254740992.5", "9007199254740992"),
        ("4611686018427387904.0", "4611686018427388000"),
    ],
)
def test_numbers_are_stored_and_printed_as_documented(
    tree: Client, written: str, shown: str
) -> None:
    for target, body, printed in (
        ("/a.json", "{}", "{}"),
        ("/o.json", '{{"x":{}}}', '{{"x":{}}}'),
        ("/l.json", "[{}]", "[{}]"),
    ):
        response = tree.request("PUT", target, body.format(written))
        assert (response.status, response.body) == (200, printed.format(shown).encode())
        assert tree.request("GET", target).body == printed.format(shown).encode()
    assert tree.request("GET", "/o.json?print=pretty").body == f'{{\n  "x": {shown}\n}}'.encode()
    assert tree.request("GET", '/o.json?orderBy="$value"').body == f'{{"x":{shown}}}'.encode()
    assert tree.request("GET", "/o.json?shallow=true&v=2").body == f'{{"x":{shown}}}'.encode()
    size = len(f'{{"x":{shown}}}')
    assert tree.get("/.json?shallow=true&v=2")["o"] == {".sz": size}


@pytest.mark.parametrize(
    "written",
    [
        *("1e309", "-1e309", "1e999", "1e999999999", "1" + "0" * 400, "-" + "9" * 400),
        *("NaN", "nan", "Infinity", "-Infinity", "inf"),
        *("01", "+1", ".5", "1.", "1.e2", "1e", "1e+", "--1", "-", "0x10", "1_000", "٣", "1n"),
        *("True", "nul", "undefined", "'a'", "a"),
    ],
)
def test_an_invalid_number_is_refused(tree: Client, written: str) -> None:
    for method, body in (
        ("PUT", written),
        ("PUT", f"[{written}]"),
        ("PATCH", f'{{"a":{written}}}'),
        ("POST", f'{{"a":{{"b":{written}}}}}'),
        ("PUT", f'{{".value":1,".priority":{written}}}'),
        ("PUT", f'{{".sv":{{"increment":{written}}}}}'),
    ):
        check_error(tree.request(method, "/a.json", body), 400, "invalid_data")
    assert tree.get("/.json") is None


def test_doubles_are_printed_as_rfc_8785_prints_them(tree: Client) -> None:
    rng = random.Random(8785)
    doubles: list[float] = []
    while len(doubles) < 2000:
        (double,) = struct.unpack("<d", rng.randbytes(8))
        if math.isfinite(double):
            doubles.append(double)
    doubles += [rng.uniform(-1, 1) * 10 ** rng.randint(-10, 25) for _ in range(2000)]
    body = b"[%b]" % b",".join(repr(double).encode() for double in doubles)
    shown = expected.compact(doubles)
    response = tree.request("PUT", "/a.json", body)
    assert (response.status, response.body) == (200, shown)
    assert tree.request("GET", "/a.json").body == shown


# Text


@pytest.mark.parametrize(
    "body",
    [
        *(rb'"\ud800"', rb'"\udfff"', rb'"\udc00\ud800"', rb'"a\ud83dz"', rb'{"a":"\ud800"}'),
        *(rb'{"\ud800":1}', b'"\xed\xa0\x80"', b'{"\xed\xa0\x80":1}', b'"\xff"', b'"\xc0\x80"'),
        *(b'"\xc3"', b'"\xf4\x90\x80\x80"', b"\xff", b"\xef\xbb\xbf1", b'\xef\xbb\xbf{"a":1}'),
        *('"a"'.encode("utf-16"), '"a"'.encode("utf-16-le"), '{"a":1}'.encode("utf-32")),
        *(b'"\x00"', b'"\x1f"', b'"\n"', b'"\t"', rb'"\x41"', rb'"\u00g0"', rb'"\a"', b'"'),
        *(b"{", b"[", b"[1,]", b'{"a":1,}', b"{a:1}", b"{1:1}", b"1 2", b"[1] []", b"// a\n1"),
        *(
            b"\x0c1",
            b"\xa01",
            b"\xe2\x80\xa81",
            b"[1",
            b"]",
            b'{"a"}',
            b'{"a":}',
            b"[1 2]",
            b"\x00",
        ),
    ],
)
@pytest.mark.parametrize("method", ["PUT", "POST", "PATCH"])
def test_invalid_json_is_refused(tree: Client, method: str, body: bytes) -> None:
    check_error(tree.request(method, "/a.json", body), 400, "invalid_data")
    assert tree.get("/.json") is None


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (b' \t\r\n{ "a" : 1 } \n', b'{"a":1}'),
        (rb'"\ud83d\ude00"', '"\U0001f600"'.encode()),
        ('"\U0010ffff"'.encode(), '"\U0010ffff"'.encode()),
        (rb'"\u0000\u001f\b\f\n\r\t\"\\\/"', rb'"\u0000\u001f\b\f\n\r\t\"\\/"'),
        (rb'"\u00e9\u007f\u2028"', '"\u00e9\u007f\u2028"'.encode()),
        (b'""', b'""'),
        ('{"é":"è"}'.encode(), '{"é":"è"}'.encode()),
        (b'{"\\u0061":1}', b'{"a":1}'),
        (b'"\xef\xbb\xbf"', b'"\xef\xbb\xbf"'),
        (b"true", b"true"),
        (b"false", b"false"),
    ],
)
def test_text_reads_back_as_it_was_written(tree: Client, body: bytes, shown: bytes) -> None:
    response = tree.request("PUT", "/a.json", body)
    assert (response.status, response.body) == (200, shown)
    assert tree.request("GET", "/a.json").body == shown


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        ('{"a":1,"a":2}', '{"a":2}'),
        ('{"a":1,"b":3,"a":null}', '{"b":3}'),
        ('{"a":{"x":1},"a":{"y":2}}', '{"a":{"y":2}}'),
        ('{"a":null,"\\u0061":7}', '{"a":7}'),
    ],
)
def test_the_last_of_duplicate_members_wins(tree: Client, body: str, shown: str) -> None:
    assert tree.request("PUT", "/x.json", body).body == shown.encode()
    assert tree.request("GET", "/x.json").body == shown.encode()


@pytest.mark.parametrize(
    "key", ["", "a.b", "a#b", "a$b", "a[b", "a]b", "a/b", *map(chr, range(32))]
)
@pytest.mark.parametrize("shape", ["{{{}:1}}", '{{"x":{{{}:1}}}}', "[{{{}:1}}]"])
def test_an_illegal_key_in_a_body_is_refused(tree: Client, key: str, shape: str) -> None:
    body = shape.format(json.dumps(key))
    check_error(tree.request("PUT", "/a.json", body), 400, "invalid_data")
    check_error(tree.request("POST", "/a.json", body), 400, "invalid_data")
    check_error(tree.request("PATCH", "/.json", f'{{"a":{body}}}'), 400, "invalid_data")


@pytest.mark.parametrize("body", ['{"\x7f":1}', '{"a":{".x":1}}', '{".":1}', '{"..":{}}'])
def test_del_and_leading_dots_are_illegal_in_keys(tree: Client, body: str) -> None:
    check_error(tree.request("PUT", "/a.json", body), 400, "invalid_data")


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_a_body_nested_too_deeply_is_refused(tree: Client, opening: str) -> None:
    for depth in (33, 200, 1000, 5000, 200_000):
        closing = ("]" if opening == "[" else "}") * depth
        body = opening * depth + "1" + closing
        check_error(tree.request("PUT", "/.json", body), 400, "invalid_data")
        check_error(tree.request("PUT", "/.json", opening * depth), 400, "invalid_data")


def test_a_string_has_10_mib_of_utf_8_at_most(tree: Client) -> None:
    longest = "x" * STRING_BYTES
    response = tree.request("PUT", "/a.json", f'"{longest}"')
    assert response.status == 200
    assert response.body == tree.request("GET", "/a.json").body == f'"{longest}"'.encode()
    check_error(tree.request("PUT", "/a.json", f'"{longest}x"'), 400, "invalid_data")
    check_error(tree.request("PUT", "/b.json", f'{{"c":["{longest}x"]}}'), 400, "invalid_data")
    check_error(tree.request("PATCH", "/.json", f'{{"b":"{longest}x"}}'), 400, "invalid_data")
    assert tree.get("/.json?shallow=true") == {"a": True}


def test_a_string_is_measured_in_bytes_of_utf_8(tree: Client) -> None:
    fits = "é" * (STRING_BYTES // 2)
    assert tree.request("PUT", "/a.json", f'"{fits}"').status == 200
    check_error(tree.request("PUT", "/a.json", f'"{fits}x"'), 400, "invalid_data")
    check_error(tree.request("PUT", "/a.json", f'"{fits[1:]}€"'), 400, "invalid_data")
    escaped = "\\n" * (BODY_BYTES // 2 - 8)
    assert tree.request("PUT", "/a.json", f'"{escaped}"').status == 200


def test_a_body_has_16_mib_at_most(tree: Client) -> None:
    body = json.dumps(["x" * MIB] * 15).ljust(BODY_BYTES)
    assert tree.request("PUT", "/a.json", body, {"print": "silent"}).status == 204
    check_error(tree.request("PUT", "/a.json", body + " "), 413, "payload_too_large")
    check_error(tree.request("PUT", "/a.json", body + " " * MIB), 413, "payload_too_large")
    assert tree.request("DELETE", "/a.json").status == 200


def test_the_limits_can_be_configured(tmp_path_factory: pytest.TempPathFactory) -> None:
    config = """
default_project = "shop"
[limits]
write_body_bytes = 1000
write_nodes = 20
string_bytes = 10
[projects.shop]
rules_file = "open.json"
"""
    with (
        configured(tmp_path_factory.mktemp("small"), config) as daemon,
        Client(daemon) as client,
    ):
        assert client.request("PUT", "/a.json", b"1".ljust(1000)).status == 200
        check_error(client.request("PUT", "/a.json", b"1".ljust(1001)), 413, "payload_too_large")
        assert client.request("PUT", "/a.json", '"0123456789"').status == 200
        check_error(client.request("PUT", "/a.json", '"01234567890"'), 400, "invalid_data")
        for body, status in ([1] * 20, 200), ([1] * 21, 400), ({"a": [1] * 19}, 200):
            assert client.request("PUT", "/a.json", json.dumps(body)).status == status
        patch, post = json.dumps({"a": [1] * 20}), json.dumps([[[]] * 10, [1] * 10])
        refused = check_error(client.request("PATCH", "/a.json", patch), 400, "invalid_data")
        assert "20 members and array items (write_nodes)" in refused
        check_error(client.request("POST", "/a.json", post), 400, "invalid_data")


def test_a_write_body_may_be_set_to_256_mib_and_no_more(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    config = """
default_project = "shop"
[limits]
write_body_bytes = {}
[projects.shop]
rules_file = "open.json"
"""
    folder = tmp_path_factory.mktemp("large")
    with configured(folder, config.format(256 * MIB)) as daemon, Client(daemon) as client:
        body = b"1".ljust(40 * MIB)
        assert client.request("PUT", "/a.json", body).status == 200
    done = configured(folder, config.format(256 * MIB + 1)).run()
    assert done.returncode == 1
    assert "write_body_bytes" in done.stderr


# Priority


def test_a_priority_is_shown_by_an_export_only(tree: Client) -> None:
    tree.put("/a.json", {".priority": 1, "x": {".value": "leaf", ".priority": "p"}, "y": 2})
    assert tree.get("/a.json") == {"x": "leaf", "y": 2}
    assert tree.get("/a.json?format=export") == {
        ".priority": 1,
        "x": {".value": "leaf", ".priority": "p"},
        "y": 2,
    }
    assert tree.get("/a/x.json?format=export") == {".value": "leaf", ".priority": "p"}
    assert tree.get("/a/x.json") == "leaf"
    assert tree.get("/a/y.json?format=export") == 2
    assert tree.get("/a/.priority.json") == 1
    assert tree.get("/a/x/.priority.json") == "p"
    assert tree.get("/a/y/.priority.json") is None
    assert tree.get("/none/.priority.json") is None


def test_an_export_can_be_put_back(tree: Client) -> None:
    body = {".priority": 2.5, "l": {".value": True, ".priority": "z"}, "c": {"d": [1, None, 2]}}
    tree.put("/a.json", body)
    export = tree.request("GET", "/a.json?format=export").body
    assert tree.request("PUT", "/b.json", export).status == 200
    assert tree.request("GET", "/b.json?format=export").body == export


def test_a_put_without_a_priority_drops_it_and_a_patch_keeps_it(tree: Client) -> None:
    tree.put("/a.json", {".priority": 1, "x": 1})
    assert tree.request("PATCH", "/a.json", '{"y":2}').status == 200
    assert tree.get("/a/.priority.json") == 1
    tree.put("/a/x.json", 5)
    assert tree.get("/a/.priority.json") == 1
    assert tree.request("PATCH", "/a.json", '{".priority":"new","x":null}').status == 200
    assert tree.get("/a.json?format=export") == {".priority": "new", "y": 2}
    tree.put("/a.json", {"y": 3})
    assert tree.get("/a/.priority.json") is None
    assert tree.get("/a.json?format=export") == {"y": 3}


def test_a_priority_is_set_and_removed_at_its_own_path(tree: Client) -> None:
    tree.put("/a.json", {"x": 1})
    for priority in (7, 1.5, "text", ""):
        response = tree.request("PUT", "/a/.priority.json", json.dumps(priority))
        assert (response.status, response.json) == (200, priority)
        assert tree.get("/a/.priority.json") == priority
        assert tree.get("/a.json?format=export")[".priority"] == priority
    assert tree.request("PUT", "/a/x/.priority.json", "3").status == 200
    assert tree.get("/a/x.json?format=export") == {".value": 1, ".priority": 3}
    response = tree.request("DELETE", "/a/.priority.json")
    assert (response.status, response.body) == (200, b"null")
    assert tree.get("/a/.priority.json") is None
    response = tree.request("PUT", "/a/x/.priority.json", "null")
    assert (response.status, response.body) == (200, b"null")
    assert tree.get("/a.json?format=export") == {"x": 1}


def test_a_priority_without_a_value_is_absence(tree: Client) -> None:
    for body in ('{".priority":1}', '{".value":null,".priority":1}', '{".priority":1,"a":{}}'):
        response = tree.request("PUT", "/a.json", body)
        assert (response.status, response.body) == (200, b"null")
        assert tree.get("/.json?format=export") is None
    response = tree.request("PUT", "/none/.priority.json", "1")
    assert response.status == 200
    assert tree.get("/.json?format=export") is None
    assert tree.get("/none/.priority.json") is None


def test_a_priority_is_removed_with_its_node(tree: Client) -> None:
    tree.put("/a.json", {".priority": 1, "x": 1})
    assert tree.request("DELETE", "/a/x.json").status == 200
    tree.put("/a/x.json", 1)
    assert tree.get("/a/.priority.json") is None


@pytest.mark.parametrize("priority", ["true", "{}", "[]", '{"a":1}', "[1]", '{".value":1}'])
def test_a_priority_must_be_a_number_or_a_string(tree: Client, priority: str) -> None:
    tree.put("/a.json", 1)
    for method, target, body in (
        ("PUT", "/a.json", f'{{".value":1,".priority":{priority}}}'),
        ("PUT", "/a.json", f'{{"x":1,".priority":{priority}}}'),
        ("PATCH", "/a.json", f'{{".priority":{priority}}}'),
        ("PUT", "/a/.priority.json", priority),
    ):
        check_error(tree.request(method, target, body), 400, "invalid_data")
    assert tree.get("/.json?format=export") == {"a": 1}


@pytest.mark.parametrize(
    "body", ['{".value":1,"x":2}', '{".value":{"a":1}}', '{".value":[1]}', '{".value":1,".x":2}']
)
def test_a_value_member_must_hold_a_leaf(tree: Client, body: str) -> None:
    check_error(tree.request("PUT", "/a.json", body), 400, "invalid_data")


def test_a_value_member_without_a_priority_is_the_leaf(tree: Client) -> None:
    assert tree.request("PUT", "/a.json", '{".value":5}').body == b"5"
    assert tree.request("GET", "/a.json?format=export").body == b"5"


# Server values


def test_a_timestamp_is_the_time_of_the_request(tree: Client) -> None:
    stamp = {".sv": "timestamp"}
    before = int(time.time() * 1000)
    response = tree.request("PUT", "/a.json", json.dumps(stamp))
    after = int(time.time() * 1000)
    assert response.status == 200
    assert before <= response.json <= after
    assert tree.get("/a.json") == response.json


def test_all_timestamps_of_a_request_are_the_same(tree: Client) -> None:
    stamp = {".sv": "timestamp"}
    body = {
        "a": stamp,
        "b": [stamp, {"c": stamp}],
        "d": {".value": stamp, ".priority": stamp},
        ".priority": stamp,
    }
    now = tree.request("PUT", "/x.json", json.dumps(body)).json["a"]
    assert tree.get("/x.json?format=export") == {
        ".priority": now,
        "a": now,
        "b": {"0": now, "1": {"c": now}},
        "d": {".value": now, ".priority": now},
    }
    response = tree.request(
        "PATCH", "/x.json", json.dumps({"a": stamp, "e/f": stamp, ".priority": stamp})
    )
    now = response.json["a"]
    assert response.json == {"a": now, "e/f": now, ".priority": now}
    assert tree.get("/x.json")["e"] == {"f": now}
    assert tree.get("/x/.priority.json") == now


def test_a_push_resolves_server_values(tree: Client) -> None:
    name = tree.request("POST", "/log.json", '{"at":{".sv":"timestamp"}}').json["name"]
    assert abs(tree.get(f"/log/{name}/at.json") - time.time() * 1000) < 10_000


@pytest.mark.parametrize(
    ("present", "by", "result"),
    [
        ("null", "1", "1"),
        ("null", "-2.5", "-2.5"),
        ('"text"', "3", "3"),
        ("true", "3", "3"),
        ('{"a":1}', "3", "3"),
        ("5", "3", "8"),
        ("5", "-6", "-1"),
        ("5", "0", "5"),
        ("5", "0.5", "5.5"),
        ("1.5", "0.5", "2"),
        ("0.1", "0.2", "0.30000000000000004"),
        ("9007199254740993", "1", "9007199254740994"),
        ("9223372036854775806", "1", "9223372036854775807"),
        ("9223372036854775807", "1", "9223372036854776000"),
        ("9223372036854775807", "9223372036854775807", "18446744073709552000"),
        ("-9223372036854775808", "-1", "-9223372036854776000"),
        ("1e300", "1e300", "2e+300"),
    ],
)
def test_an_increment_adds_to_what_is_there(
    tree: Client, present: str, by: str, result: str
) -> None:
    increment = f'{{".sv":{{"increment":{by}}}}}'
    for method, target, body, echo in (
        ("PUT", "/a/n.json", "{}", "{}"),
        ("PUT", "/a.json", '{{"n":{}}}', '{{"n":{}}}'),
        ("PATCH", "/a.json", '{{"n":{}}}', '{{"n":{}}}'),
        ("PATCH", "/.json", '{{"a/n":{}}}', '{{"a/n":{}}}'),
    ):
        assert tree.request("PUT", "/a/n.json", present).status == 200
        response = tree.request(method, target, body.format(increment))
        assert (response.status, response.body) == (200, echo.format(result).encode())
        assert tree.request("GET", "/a/n.json").body == result.encode()


def test_an_increment_that_leaves_the_range_is_refused(tree: Client) -> None:
    assert tree.request("PUT", "/a.json", "1e308").status == 200
    body = '{".sv":{"increment":1e308}}'
    check_error(tree.request("PUT", "/a.json", body), 400, "invalid_data")
    check_error(tree.request("PATCH", "/.json", f'{{"b":1,"a":{body}}}'), 400, "invalid_data")
    assert tree.request("GET", "/.json").body == b'{"a":1e+308}'


def test_an_increment_works_on_a_priority_and_in_an_array(tree: Client) -> None:
    increment = {".sv": {"increment": 2}}
    tree.put("/a.json", {".value": "x", ".priority": 40})
    assert tree.request("PUT", "/a/.priority.json", json.dumps(increment)).body == b"42"
    assert tree.get("/a/.priority.json") == 42
    tree.put("/l.json", [1, 2])
    assert tree.request("PUT", "/l.json", json.dumps([increment, increment])).json == [3, 4]


@pytest.mark.parametrize(
    "body",
    [
        *('{".sv":"now"}', '{".sv":1}', '{".sv":null}', '{".sv":{}}', '{".sv":[]}', '{".sv":true}'),
        *('{".sv":{"increment":"1"}}', '{".sv":{"increment":null}}', '{".sv":{"increment":true}}'),
        *('{".sv":{"increment":1,"x":2}}', '{".sv":{"decrement":1}}', '{".sv":"timestamp","a":1}'),
        *('{".sv":"TIMESTAMP"}', '{".sv":{"increment":{}}}', '{".sv":{".sv":"timestamp"}}'),
    ],
)
def test_an_unknown_server_value_is_refused(tree: Client, body: str) -> None:
    for method, whole in (
        ("PUT", body),
        ("PUT", f'{{"x":{body}}}'),
        ("PUT", f"[{body}]"),
        ("POST", body),
        ("PATCH", f'{{"x":{body}}}'),
        ("PUT", f'{{".value":1,".priority":{body}}}'),
    ):
        check_error(tree.request(method, "/a.json", whole), 400, "invalid_data")
    assert tree.get("/.json") is None


def test_a_server_value_is_not_a_patch_body(tree: Client) -> None:
    check_error(tree.request("PATCH", "/a.json", '{".sv":"timestamp"}'), 400, "invalid_data")
