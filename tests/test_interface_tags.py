"""Entity tags: when one is returned, what it is the hash of, and conditions on it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest
import rfc8785
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import expected
from tests.examples import examples
from tests.rest import JSON_TYPE, Client, check_error, configured
from tests.tree.strategies import LEGAL, TEXTS

WANTS_TAG = {"X-Vendor-ETag": "true"}
NULL_TAG = f'"{hashlib.sha256(b"null").hexdigest()}"'
OTHER_TAG = f'"{hashlib.sha256(b"other").hexdigest()}"'

KEYS = st.one_of(
    st.integers(0, 5).map(str),
    st.sampled_from(["a", "é", "\u20ac", "\ufb33", "\U0001f600", "10", "9"]),
    st.text(LEGAL, min_size=1, max_size=3),
)
EXACT = 2**53 - 1
BODIES = st.recursive(
    st.none()
    | st.booleans()
    | TEXTS
    | st.integers(-EXACT, EXACT)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=15,
)


def tag_of(tree: Client, target: str) -> str:
    headers = {**dict(WANTS_TAG), "Sec-Fetch-Site": "none"}
    tag = tree.request("GET", target, headers=headers).headers["ETag"]
    assert isinstance(tag, str)
    return tag


# When a tag is returned, and what it is


@pytest.mark.parametrize("name", ["X-Vendor-ETag", "X-Firebase-ETag", "X-TreeDB-ETag"])
@pytest.mark.parametrize("make", [str, str.lower, str.upper])
def test_a_tag_is_returned_if_requested(
    tree: Client, name: str, make: Callable[[str], str]
) -> None:
    tree.put("/a.json", {"x": 1})
    tag = expected.entity_tag({"x": 1})
    for method in ("GET", "HEAD"):
        response = tree.request(method, "/a.json", headers={make(name): "true"})
        assert response.status == 200
        assert response.headers.get_all("ETag") == [tag.strip('"') if "Fire" in name else tag]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"X-Vendor-ETag": "false"},
        {"X-Other-ETag": "true"},
        {"ETag": "true"},
        {"X-ETag": "true"},
    ],
)
def test_no_tag_is_returned_if_not_requested(tree: Client, headers: dict[str, str]) -> None:
    for method, body in (("PUT", "1"), ("GET", None), ("PATCH", '{"a":1}'), ("DELETE", None)):
        assert "ETag" not in tree.request(method, "/a.json", body, headers).headers


def test_the_header_that_requests_a_tag_can_be_configured(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    config = """
default_project = "shop"
[http]
etag_headers = ["Acme"]
[projects.shop]
rules_file = "open.json"
"""
    folder = tmp_path_factory.mktemp("acme")
    with configured(folder, config) as daemon, Client(daemon) as client:
        response = client.request("GET", "/a.json", headers={"X-ACME-Etag": "true"})
        assert response.headers["ETag"] == NULL_TAG
        assert "ETag" not in client.request("GET", "/a.json", headers=WANTS_TAG).headers


@settings(max_examples=examples(150), deadline=None)
@given(body=BODIES)
def test_a_tag_is_the_hash_of_the_canonical_form_of_the_value(
    shared_tree: Client, body: Any
) -> None:
    response = shared_tree.request("PUT", "/a/b.json", json.dumps(body), WANTS_TAG)
    assert response.status == 200
    shown = expected.shown(body)
    assert response.headers["ETag"] == expected.entity_tag(_as_doubles(shown))
    read = shared_tree.request("GET", "/a/b.json", headers=WANTS_TAG)
    assert read.headers["ETag"] == response.headers["ETag"]
    assert tag_of(shared_tree, "/a.json") == expected.entity_tag(
        _as_doubles(expected.shown({"b": body}))
    )


def _as_doubles(value: Any) -> Any:
    """Convert integers that are not exact as doubles, for the reference implementation."""
    if isinstance(value, dict):
        return {key: _as_doubles(child) for key, child in value.items()} or None
    if isinstance(value, list):
        return [_as_doubles(item) for item in value]
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > EXACT:
        return float(value)
    return value


@pytest.mark.parametrize(
    ("body", "canonical"),
    [
        ("null", b"null"),
        ("{}", b"null"),
        ('{"b":1,"a":2}', b'{"a":2,"b":1}'),
        ('{"10":"x","9":"y","a":1}', b'{"10":"x","9":"y","a":1}'),
        ('{"1":"b","0":"a"}', b'["a","b"]'),
        ("[1,null,3]", b"[1,null,3]"),
        ("9007199254740993", b"9007199254740993"),
        ("9223372036854775807", b"9223372036854775807"),
        ("-9223372036854775808", b"-9223372036854775808"),
        ("9223372036854775808", b"9223372036854776000"),
        ("1e21", b"1e+21"),
        ("1.0", b"1"),
        ('{"\ufb33":1,"\U0001f600":2}', '{"\U0001f600":2,"\ufb33":1}'.encode()),
        (r'"\u0007\u000a\u2028\u00e9\/"', '"\\u0007\\n\u2028\u00e9/"'.encode()),
        ('{".value":1,".priority":2}', b"1"),
        ('{"a":{".value":1,".priority":2},".priority":3}', b'{"a":1}'),
    ],
)
def test_the_canonical_form_is_that_of_rfc_8785(tree: Client, body: str, canonical: bytes) -> None:
    tag = f'"{hashlib.sha256(canonical).hexdigest()}"'
    assert tree.request("PUT", "/a.json", body, WANTS_TAG).headers["ETag"] == tag
    assert tag_of(tree, "/a.json") == tag
    assert tag_of(tree, "/a.json?format=export") == tag
    assert tag_of(tree, "/a.json?print=pretty") == tag
    assert tag_of(tree, "/a.json?callback=f") == tag
    assert tree.request("GET", "/a.json?print=silent", headers=WANTS_TAG).headers["ETag"] == tag


def test_the_tag_of_the_example_of_rfc_8785(tree: Client) -> None:
    numbers = "[333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001]"
    text = r'"\u20ac$\u000F\u000aA' + "'" + r'\u0042\u0022\u005c\\\"\/"'
    body = f'{{"numbers": {numbers}, "string": {text}, "literals": [null, true, false]}}'
    canonical = rfc8785.dumps(json.loads(body))
    assert canonical.startswith(b'{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30')
    tag = f'"{hashlib.sha256(canonical).hexdigest()}"'
    assert tree.request("PUT", "/a.json", body, WANTS_TAG).headers["ETag"] == tag


def test_a_priority_has_a_tag_at_its_own_path(tree: Client) -> None:
    tree.put("/a.json", {".value": 1, ".priority": "p"})
    assert tag_of(tree, "/a/.priority.json") == expected.entity_tag("p")
    assert tag_of(tree, "/none/.priority.json") == NULL_TAG


def test_a_large_value_has_the_same_kind_of_tag(tree: Client) -> None:
    large = {f"k{at}": {"name": "x" * 100, "at": at, "l": [at, at / 7]} for at in range(5000)}
    response = tree.request("PUT", "/a.json", json.dumps(large), WANTS_TAG)
    assert response.headers["ETag"] == expected.entity_tag(large)
    assert tag_of(tree, "/a.json") == expected.entity_tag(large)
    assert tag_of(tree, "/.json") == expected.entity_tag({"a": large})


def test_a_value_of_any_size_has_a_tag(tree: Client) -> None:
    part = {f"k{at}": "x" * 1_000_000 for at in range(12)}
    for key in "abc":
        tree.put(f"/big/{key}.json", part)
    before = expected.entity_tag(dict.fromkeys("abc", part))
    after = expected.entity_tag({**dict.fromkeys("abc", part), "z": 1})
    response = tree.request("GET", "/big.json", headers=WANTS_TAG)
    assert (response.status, response.headers["ETag"]) == (200, before)
    patch = json.dumps({"z": 1})
    response = tree.request("PATCH", "/big.json", patch, {**WANTS_TAG, "If-Match": before})
    assert (response.status, response.json, response.headers["ETag"]) == (200, {"z": 1}, after)
    assert tree.request("GET", "/big.json", headers={"If-None-Match": after}).status == 304
    response = tree.request("DELETE", "/big.json", headers={"If-Match": OTHER_TAG})
    check_error(response, 412, "condition_failed")
    assert response.headers["ETag"] == after
    # A client of Firebase would take the body of a 412 for the value.
    response = tree.request("DELETE", "/big.json", headers={"If-Match": "another"})
    assert (response.status, list(response.json)) == (413, ["error"])
    assert response.headers["ETag"] == after.strip('"')
    response = tree.request("DELETE", "/big.json", headers=WANTS_TAG)
    assert (response.status, response.headers["ETag"]) == (200, NULL_TAG)


@pytest.mark.parametrize(
    "query",
    ["shallow=true", "shallow=true&v=2", 'orderBy="$key"', 'orderBy="$value"&limitToFirst=1'],
)
def test_shallow_reads_and_queries_have_no_tag(tree: Client, query: str) -> None:
    tree.put("/a.json", {"x": 1})
    response = tree.request("GET", f"/a.json?{query}", headers=WANTS_TAG)
    assert (response.status, response.headers["ETag"]) == (200, None)
    response = tree.request("GET", f"/a.json?{query}", headers={**WANTS_TAG, "If-None-Match": "*"})
    assert (response.status, response.headers["ETag"]) == (200, None)


@pytest.mark.parametrize("query", ["", "?print=silent", "?print=pretty"])
@pytest.mark.parametrize("extra", [WANTS_TAG, {"If-Match": "*"}, {**WANTS_TAG, "If-Match": "*"}])
def test_a_write_returns_the_tag_of_the_new_value_at_its_path(
    tree: Client, query: str, extra: dict[str, str]
) -> None:
    tree.put("/a.json", {"x": 1})
    response = tree.request("PUT", f"/a.json{query}", '{"y":[1]}', extra)
    assert response.headers["ETag"] == expected.entity_tag({"y": [1]})
    response = tree.request("PATCH", f"/a.json{query}", '{"z/deep":2,"y":null}', extra)
    assert response.headers["ETag"] == expected.entity_tag({"z": {"deep": 2}})
    response = tree.request("POST", f"/a.json{query}", '{"pushed":true}', extra)
    assert response.headers["ETag"] == expected.entity_tag({"pushed": True})
    response = tree.request("DELETE", f"/a.json{query}", None, extra)
    assert response.headers["ETag"] == NULL_TAG


def test_the_tag_of_a_write_is_that_of_resolved_server_values(tree: Client) -> None:
    tree.put("/a.json", {"n": 41})
    response = tree.request("PATCH", "/a.json", '{"n":{".sv":{"increment":1}}}', WANTS_TAG)
    assert response.headers["ETag"] == expected.entity_tag({"n": 42})
    response = tree.request("PUT", "/t.json", '{".sv":"timestamp"}', WANTS_TAG)
    assert response.headers["ETag"] == expected.entity_tag(response.json)


# If-None-Match


@pytest.mark.parametrize("value", [None, 1, {"x": [1, 2]}])
@pytest.mark.parametrize(
    "form",
    ["{tag}", "{bare}", "{other}, {tag}", "{bare_other},{bare}", '"", {tag} ,{other}', "W/{tag}"],
)
def test_a_read_with_a_matching_tag_is_304(tree: Client, value: Any, form: str) -> None:
    tree.put("/a.json", value)
    tag = expected.entity_tag(value)
    condition = form.format(
        tag=tag, bare=tag.strip('"'), other=OTHER_TAG, bare_other=OTHER_TAG.strip('"')
    )
    for method in ("GET", "HEAD"):
        response = tree.request(method, "/a.json", headers={"If-None-Match": condition})
        assert (response.status, response.body) == (304, b"")
        assert response.headers["ETag"] == tag
    assert tree.get("/a.json") == value


@pytest.mark.parametrize(
    "condition", [OTHER_TAG, OTHER_TAG.strip('"'), f"{OTHER_TAG}, x", "x", '""']
)
def test_a_read_without_a_matching_tag_is_200_with_the_tag(tree: Client, condition: str) -> None:
    tree.put("/a.json", {"x": 1})
    response = tree.request("GET", "/a.json", headers={"If-None-Match": condition})
    assert (response.status, response.body) == (200, b'{"x":1}')
    assert response.headers["ETag"] == expected.entity_tag({"x": 1})


def test_a_star_matches_any_value_but_not_absence(tree: Client) -> None:
    response = tree.request("GET", "/a.json", headers={"If-None-Match": "*"})
    assert (response.status, response.body, response.headers["ETag"]) == (200, b"null", NULL_TAG)
    tree.put("/a.json", False)
    response = tree.request("GET", "/a.json", headers={"If-None-Match": "*"})
    assert (response.status, response.headers["ETag"]) == (304, expected.entity_tag(False))


@pytest.mark.parametrize("method", ["PUT", "POST", "PATCH", "DELETE"])
def test_if_none_match_has_no_effect_on_writes(tree: Client, method: str) -> None:
    tree.put("/a.json", {"x": 1})
    for condition in ("*", expected.entity_tag({"x": 1})):
        response = tree.request(method, "/a.json", '{"x":1}', {"If-None-Match": condition})
        assert response.status == 200
        assert "ETag" not in response.headers


# If-Match


WRITES = [("PUT", "2"), ("POST", "2"), ("PATCH", '{"y":2}'), ("DELETE", None)]


@pytest.mark.parametrize(("method", "body"), WRITES)
@pytest.mark.parametrize(
    "form",
    [
        *("{tag}", "{bare}", "*", "{other}, {tag}", "{tag},{other}", "{bare_other} , {bare}"),
        *("W/{tag}", "W/{other}, W/{tag}"),
    ],
)
def test_a_write_whose_condition_holds_is_done(
    tree: Client, method: str, body: str | None, form: str
) -> None:
    tree.put("/a.json", {"x": 1})
    tag = expected.entity_tag({"x": 1})
    condition = form.format(
        tag=tag, bare=tag.strip('"'), other=OTHER_TAG, bare_other=OTHER_TAG.strip('"')
    )
    response = tree.request(method, "/a.json", body, {"If-Match": condition})
    assert response.status == 200, response
    assert response.headers["ETag"].startswith('"') is ("{bare" not in form)
    assert tree.get("/a.json") != {"x": 1}


@pytest.mark.parametrize(("method", "body"), WRITES)
@pytest.mark.parametrize("condition", [OTHER_TAG, "a b", NULL_TAG, f'{OTHER_TAG}, "x"', '""', ""])
@pytest.mark.parametrize("query", ["", "?print=silent"])
def test_a_write_whose_condition_fails_is_412_with_the_present_value(
    tree: Client, method: str, body: str | None, condition: str, query: str
) -> None:
    tree.put("/a.json", {"x": [1, "é"]})
    response = tree.request(method, f"/a.json{query}", body, {"If-Match": condition})
    assert response.status == 412
    assert response.headers["Content-Type"] == JSON_TYPE
    assert response.headers["ETag"] == expected.entity_tag({"x": [1, "é"]})
    body_bytes = '{"error":"condition_failed","message":"ETag mismatch","data":{"x":[1,"é"]}}'
    assert response.body == body_bytes.encode()
    assert tree.get("/a.json") == {"x": [1, "é"]}


@pytest.mark.parametrize(("method", "body"), WRITES)
@pytest.mark.parametrize("condition", ["*", OTHER_TAG])
def test_a_condition_fails_on_absence_with_the_null_tag(
    tree: Client, method: str, body: str | None, condition: str
) -> None:
    response = tree.request(method, "/a.json", body, {"If-Match": condition})
    assert response.status == 412
    assert response.headers["ETag"] == NULL_TAG
    assert response.body == b'{"error":"condition_failed","message":"ETag mismatch","data":null}'
    assert tree.get("/.json") is None


@pytest.mark.parametrize(("method", "body"), WRITES)
def test_the_null_tag_allows_creation(tree: Client, method: str, body: str | None) -> None:
    assert tree.request(method, "/a.json", body, {"If-Match": NULL_TAG}).status == 200


def test_several_lines_of_a_condition_are_one_list(tree: Client) -> None:
    tree.put("/a.json", 1)
    tag = expected.entity_tag(1)
    lines = [("If-Match", OTHER_TAG), ("If-Match", tag)]
    assert tree.request("PUT", "/a.json", "1", lines).status == 200
    lines = [("If-None-Match", OTHER_TAG), ("If-None-Match", tag)]
    assert tree.request("GET", "/a.json", None, lines).status == 304


def test_a_condition_applies_to_the_path_of_the_request(tree: Client) -> None:
    tree.put("/.json", {"a": {"x": 1}, "b": 1})
    tag = tag_of(tree, "/a.json")
    tree.put("/b.json", 2)
    assert tree.request("PATCH", "/a.json", '{"y":1}', {"If-Match": tag}).status == 200
    assert tree.request("PATCH", "/a.json", '{"y":2}', {"If-Match": tag}).status == 412
    name = tree.request("POST", "/list.json", "1").json["name"]
    tag = tag_of(tree, "/list.json")
    assert tree.request("POST", "/list.json", "2", {"If-Match": tag}).status == 200
    assert tree.request("POST", "/list.json", "3", {"If-Match": tag}).status == 412
    tag = tag_of(tree, f"/list/{name}.json")
    assert tree.request("DELETE", f"/list/{name}.json", None, {"If-Match": tag}).status == 200


def test_a_priority_does_not_change_a_tag(tree: Client) -> None:
    tree.put("/a.json", {"x": 1})
    tag = tag_of(tree, "/a.json")
    assert tree.request("PUT", "/a/.priority.json", "5").status == 200
    assert tag_of(tree, "/a.json") == tag


def test_the_intended_loop_of_read_write_retry_works(tree: Client) -> None:
    tree.put("/a.json", 10)
    stale = tag_of(tree, "/a.json")
    tree.put("/a.json", 20)
    failed = tree.request("PUT", "/a.json", "11", {"If-Match": stale})
    assert (failed.status, failed.json["data"]) == (412, 20)
    again = tree.request("PUT", "/a.json", "21", {"If-Match": failed.headers["ETag"]})
    assert (again.status, again.body) == (200, b"21")
    last = tree.request("PUT", "/a.json", "22", {"If-Match": again.headers["ETag"]})
    assert (last.status, last.body) == (200, b"22")
