"""What rules allow and deny over HTTP: reads, writes, queries, conditions, explanations."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.access import Tree, at, statuses_by_method, token, trusting, user
from tests.daemon import Daemon
from tests.expected import entity_tag
from tests.rest import Client, check_error, escape

DENIED_BODY = b'{\n  "error" : "Permission denied"\n}\n'
EXPLAIN = {"X-TreeDB-Explain": "true"}
TIMESTAMP = {".sv": "timestamp"}
RULE_SET: dict[str, Any] = {
    "open": {".read": True, ".write": True},
    "readable": {".read": True},
    "drop": {".write": True},
    "none": {".read": "data.hasChildren([])", ".write": "newData.hasChildren([])"},
    "some": {".read": "data.hasChildren(['a', 'b',])", ".write": True},
    "users": {
        "$uid": {
            ".read": "auth.uid == $uid",
            ".write": "auth.uid == $uid",
            "public": {".read": True},
            "secret": {".read": False, ".write": False},
        }
    },
    "owned": {
        "$id": {
            ".read": "data.child('owner').val() == auth.uid",
            ".write": "!data.exists() || data.child('owner').val() == auth.uid",
            ".validate": "newData.hasChildren(['owner', 'n'])",
            "n": {".validate": "newData.isNumber() && newData.val() <= 10"},
            "owner": {".validate": "newData.val() == auth.uid"},
            "$other": {".validate": False},
        }
    },
    "members": {".write": "root.child('roles/' + auth.uid).val() == 'chief'"},
    "roles": {},
    "once": {"$id": {".read": True, ".write": "!data.exists()"}},
    "pairs": {
        ".read": True,
        "$id": {
            "a": {".write": "newData.val() == newData.parent().child('b').val()"},
            "b": {".write": "newData.parent().child('a').exists()"},
            "c": {".write": False},
        },
    },
    "clock": {
        ".read": "now > 1700000000000 && now < 9000000000000",
        "$id": {
            ".write": True,
            "at": {".validate": "newData.val() == now"},
            "until": {".validate": "newData.val() > now"},
            "high": {".validate": "newData.getPriority() == now"},
        },
    },
    "counted": {".read": True, ".write": "newData.val() <= 5", ".validate": "newData.isNumber()"},
    "list": {
        "byKey": {".read": "query.orderByKey && query.limitToFirst <= 10"},
        "keys": {".read": "query.orderByKey && query.startAt == null"},
        "byLast": {".read": "query.orderByKey == true && query.limitToLast == 3"},
        "byChild": {".read": "query.orderByChild == 'a/b' && query.equalTo == auth.uid"},
        "byValue": {".read": "query.orderByValue && query.startAt == 1 && query.endAt == 'x'"},
        "byPriority": {".read": "query.orderByPriority"},
        "beginning": {
            ".read": "query.startAt == null && query.endAt == null && query.equalTo == null"
            " && query.where == false && query.limitToFirst <= 2"
        },
        "plain": {".read": "query.orderByKey == false && query.limitToFirst == null"},
    },
    "kept": {
        ".read": True,
        ".write": True,
        ".validate": "newData.hasChildren(['a', 'b'])",
    },
}


@pytest.fixture(scope="module")
def shared_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("access")
    config = "[limits]\nwrite_body_bytes = 10_000"
    with trusting(folder, config, ["shop", "firebase"]) as running:
        for project in ("shop", "firebase"):
            with Tree(running, project) as tree:
                tree.put_rules(RULE_SET)
        yield running


@pytest.fixture
def shop(shared_daemon: Daemon) -> Iterator[Tree]:
    with Tree(shared_daemon, "shop") as tree:
        yield tree
        assert tree.status("DELETE", at("/.json", tree.admin)) == 200


@pytest.fixture
def firebase(shared_daemon: Daemon) -> Iterator[Tree]:
    with Tree(shared_daemon, "firebase") as tree:
        yield tree


@pytest.fixture(scope="module")
def alice() -> str:
    return user("shop", "alice")


def put(tree: Tree, path: str, value: Any, bearer: str = "") -> int:
    return tree.status("PUT", at(path, bearer), json.dumps(value))


def patch(tree: Tree, path: str, value: Any, bearer: str = "") -> int:
    return tree.status("PATCH", at(path, bearer), json.dumps(value))


# Denied and allowed, with every kind of request.


def test_a_request_that_no_rule_allows_is_denied_with_every_method(
    shop: Tree, firebase: Tree
) -> None:
    for path in ("/.json", "/nowhere.json", "/users.json", "/users/bob.json"):
        for tree, bearer, status in (
            (shop, "", 403),
            (shop, user("shop", "alice"), 403),
            (firebase, "", 401),
            (firebase, user("firebase", "alice"), 401),
        ):
            assert set(statuses_by_method(tree, path, bearer).values()) == {status}


@pytest.mark.parametrize("method", ["GET", "PUT", "POST", "PATCH", "DELETE"])
def test_a_denial_has_the_form_of_the_dialect(shop: Tree, firebase: Tree, method: str) -> None:
    response = shop.request(method, "/nowhere.json", '{"a":1}')
    check_error(response, 403, "permission_denied")
    response = firebase.request(method, "/nowhere.json", '{"a":1}')
    assert (response.status, response.body) == (401, DENIED_BODY)


@pytest.mark.parametrize(
    "query",
    [
        *("shallow=true", "shallow=true&v=2", "print=pretty", "print=silent", "callback=f"),
        *("download=a.json", "format=export", 'orderBy="$key"', 'orderBy="a"&limitToFirst=1'),
        *("shallow=true&limitToFirst=1", "timeout=1s"),
    ],
)
def test_a_denied_read_is_denied_in_every_form(shop: Tree, firebase: Tree, query: str) -> None:
    for method in ("GET", "HEAD"):
        assert shop.status(method, f"/nowhere.json?{query}") == 403
        assert firebase.status(method, f"/nowhere.json?{query}") == 401
        assert shop.status(method, f"/readable.json?{query}") in (200, 204)


def test_a_denied_write_is_denied_in_every_form(shop: Tree) -> None:
    for query in ("print=silent", "print=pretty", "timeout=1s"):
        for method in ("PUT", "POST", "PATCH", "DELETE"):
            assert shop.status(method, f"/readable.json?{query}", '{"a":1}') == 403
    for method in ("PUT", "PATCH", "DELETE"):
        override = {"X-HTTP-Method-Override": method}
        assert shop.request("POST", "/readable.json", '{"a":1}', override).status == 403
        target = f"/readable.json?x-http-method-override={method}"
        assert shop.status("POST", target, '{"a":1}') == 403
    assert shop.see("/readable.json") is None


def test_rules_are_not_filters_and_a_grant_includes_everything_below(
    shop: Tree, alice: str
) -> None:
    shop.seed("/users.json", {"alice": {"public": 1, "secret": 2}, "bob": {"public": 3}})
    for path, status in (
        ("/users.json", 403),
        ("/users/alice.json", 200),
        ("/users/alice/secret.json", 200),
        ("/users/bob.json", 403),
        ("/users/bob/public.json", 200),
        ("/users/bob/public/deeper.json", 200),
    ):
        assert shop.status("GET", at(path, alice)) == status, path
    assert put(shop, "/users/alice/secret.json", 3, alice) == 200
    assert put(shop, "/users/bob/public.json", 3, alice) == 403


# The order of errors.


@pytest.mark.parametrize(
    ("method", "target", "body", "status"),
    [
        ("PUT", "/readable?timeout=soon&auth=rubbish", "x" * 500, 404),
        ("BREW", "/readable.json?timeout=soon&auth=rubbish", "x" * 500, 405),
        ("PUT", "/readable.json?timeout=soon&auth=rubbish", "x" * 20_000, 413),
        ("PUT", "/readable.json?timeout=soon&auth=rubbish", "{", 400),
        ("PUT", "/read.able.json?auth=rubbish", "1", 400),
        ("PUT", "/readable.json?auth=rubbish", "{", 401),
        ("DELETE", "/readable.json?auth=rubbish", None, 401),
        ("PUT", "/readable.json", "{", 403),
        ("POST", "/readable.json", "{", 403),
        ("PATCH", "/readable.json", '{"a":1,"a/b":2}', 403),
        ("DELETE", "/readable.json", None, 403),
        ("PUT", "/users/alice/name.json", "{", 403),
        ("PUT", "/users.json", "{", 403),
        ("PUT", "/once/a/b.json", "{", 400),
        ("PUT", "/once.json", "{", 400),
        ("POST", "/once.json", "{", 400),
        ("PATCH", "/once.json", '{"a":1,"a/b":2}', 400),
        ("PUT", "/once.json", '{"a.b":1}', 400),
        ("PUT", "/once.json", '{".sv":"x"}', 400),
        ("PUT", "/once.json", "1", 403),
        ("PUT", "/open.json", "1", 412),
        ("GET", "/nowhere.json?orderBy=a&auth=rubbish", None, 400),
        ("GET", "/nowhere.json?limitToFirst=1", None, 400),
        ("GET", "/nowhere.json?auth=rubbish", None, 401),
        ("GET", "/nowhere.json", None, 403),
    ],
)
def test_errors_have_the_documented_order(
    shop: Tree, method: str, target: str, body: str | None, status: int
) -> None:
    response = shop.request(method, target, body, {"If-Match": '"nothing like it"'})
    assert response.status == status, response


# Conditions.


def test_a_condition_is_checked_after_the_rules(shop: Tree, alice: str) -> None:
    shop.seed("/users/alice.json", 1)
    good, bad = entity_tag(1), entity_tag(2)
    for path, tag, status in (
        ("/users/alice.json", bad, 412),
        ("/users/alice.json", good, 200),
        ("/users/bob.json", entity_tag(None), 403),
        ("/users/bob.json", bad, 403),
        ("/users/bob.json", "*", 403),
    ):
        response = shop.request("PUT", at(path, alice), "2", {"If-Match": tag})
        assert response.status == status, (path, tag, response)
    response = shop.request("PUT", at("/users/alice.json", alice), "3", {"If-Match": good})
    assert (response.status, response.json["data"]) == (412, 2)
    assert shop.see("/users/alice.json") == 2


def test_of_many_concurrent_writes_allowed_once_one_succeeds(
    shared_daemon: Daemon, shop: Tree
) -> None:
    def write(number: int) -> int:
        with Tree(shared_daemon, "shop") as tree:
            return put(tree, f"/once/{number // 16}.json", number)

    with ThreadPoolExecutor(16) as threads:
        statuses = list(threads.map(write, range(64)))
    assert sorted(statuses) == [200] * 4 + [403] * 60


# Clients that may write but not read.


@pytest.mark.parametrize("method", ["PUT", "POST", "PATCH", "DELETE"])
@pytest.mark.parametrize("tag", ["*", entity_tag(None), entity_tag(7), '"no tag"'])
@pytest.mark.parametrize("present", [None, 7])
def test_a_client_that_may_not_read_may_not_compare_tags(
    shop: Tree, firebase: Tree, method: str, tag: str, present: Any
) -> None:
    for tree in (shop, firebase):
        tree.seed("/drop.json", present)
        response = tree.request(method, "/drop.json", '{"a":1}', {"If-Match": tag})
        assert response.status == 403
        assert "ETag" not in response.headers
        assert tree.see("/drop.json") == present
    check_error(
        shop.request(method, "/drop.json", '{"a":1}', {"If-Match": tag}), 403, "permission_denied"
    )


@pytest.mark.parametrize("method", ["PUT", "POST", "PATCH", "DELETE"])
def test_a_client_that_may_not_read_receives_no_tag(shop: Tree, method: str) -> None:
    headers = {"X-TreeDB-ETag": "true"}
    response = shop.request(method, "/drop.json", '{"a":1}', headers)
    assert response.status == 200
    assert "ETag" not in response.headers
    assert "ETag" in shop.request(method, "/open.json", '{"a":1}', headers).headers


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
def test_a_client_that_may_not_read_does_not_learn_the_result_of_an_increment(
    shop: Tree, firebase: Tree, method: str
) -> None:
    add = {".sv": {"increment": 5}}
    sent = {"n": add, "deep": {"n": add, "at": TIMESTAMP}, "k": 1, "at": TIMESTAMP}
    for tree in (shop, firebase):
        tree.seed("/drop.json", {"n": 10, "deep": {"n": 20}})
        tree.seed("/open.json", {"n": 10, "deep": {"n": 20}})
        response = tree.request(method, "/drop.json", json.dumps(sent))
        assert response.status == 200
        at = response.json["at"]
        assert abs(at - time.time() * 1000) < 60_000
        assert response.json == {"n": add, "deep": {"n": add, "at": at}, "k": 1, "at": at}
        stored = tree.see("/drop.json")
        assert (stored["n"], stored["deep"]["n"], stored["at"]) == (15, 25, at)
        readable = tree.request(method, "/open.json", json.dumps(sent))
        assert (readable.json["n"], readable.json["deep"]["n"]) == (15, 25)
    assert shop.request("PUT", "/drop/n.json", json.dumps(add)).json == add
    assert shop.request("PUT", "/open/n.json", json.dumps(add)).json == 20


@pytest.mark.parametrize(
    ("method", "sent"),
    [
        *(("PUT", 3), ("PUT", "high"), ("PUT", None), ("DELETE", None)),
        ("PUT", {".sv": {"increment": 2}}),
    ],
)
def test_a_client_that_may_not_read_does_not_learn_whether_a_node_exists(
    shop: Tree, method: str, sent: Any
) -> None:
    shop.seed("/drop.json", {"there": 7})
    target = "/drop/{}/.priority.json"
    for name in ("there", "nothing"):
        response = shop.request(method, target.format(name), json.dumps(sent))
        assert (response.status, response.json) == (200, sent)
    stored = 2 if isinstance(sent, dict) else sent
    assert shop.see(target.format("there")) == stored
    assert shop.see(target.format("nothing")) is None
    shop.seed("/open.json", {"there": 7})
    assert shop.request("PUT", "/open/there/.priority.json", "3").json == 3
    assert shop.request("PUT", "/open/nothing/.priority.json", "3").json is None


def test_a_client_that_may_not_read_receives_all_other_results(shop: Tree) -> None:
    assert shop.request("PUT", "/drop/a.json", "[1,null,{}]").json == [1]
    assert len(shop.request("POST", "/drop/a.json", "1").json["name"]) == 20
    assert shop.request("PATCH", "/drop/a.json", '{"b/c":1}').json == {"b/c": 1}
    assert shop.request("DELETE", "/drop/a.json").body == b"null"
    assert shop.request("PUT", "/drop/a.json?print=silent", "1").status == 204
    assert shop.status("GET", "/drop/a.json") == 403


# What the rules of a write read.


def test_a_write_without_changes_needs_no_right(shop: Tree) -> None:
    shop.seed("/never.json", 1)
    assert shop.status("PATCH", "/never.json", '{"a":1}') == 403
    response = shop.request("PATCH", "/never.json", "{}")
    assert (response.status, response.body) == (200, b"{}")
    assert shop.see("/never.json") == 1


def test_data_and_root_are_the_state_before_a_write_and_new_data_the_state_after(
    shop: Tree, alice: str
) -> None:
    bob = user("shop", "bob")
    assert put(shop, "/owned/1.json", {"owner": "alice", "n": 1}, bob) == 403
    assert put(shop, "/owned/1.json", {"owner": "alice", "n": 1}, alice) == 200
    assert put(shop, "/owned/1.json", {"owner": "bob", "n": 1}, bob) == 403
    assert put(shop, "/members/bob.json", 1, alice) == 403
    shop.seed("/roles/alice.json", "chief")
    assert put(shop, "/members/bob.json", 1, alice) == 200
    assert put(shop, "/members/bob.json", 1, bob) == 403


@pytest.mark.parametrize(
    ("method", "path", "value", "status"),
    [
        ("PUT", "/owned/1.json", {"owner": "alice", "n": 10}, 200),
        ("PUT", "/owned/1.json", {"owner": "alice", "n": 11}, 403),
        ("PUT", "/owned/1.json", {"owner": "alice", "n": "1"}, 403),
        ("PUT", "/owned/1.json", {"owner": "alice"}, 403),
        ("PUT", "/owned/1.json", {"owner": "alice", "n": 1, "more": 1}, 403),
        ("PATCH", "/owned/1.json", {"n": 2}, 200),
        ("PATCH", "/owned/1.json", {"n": None}, 403),
        ("PATCH", "/owned/1.json", {"more": 1}, 403),
        ("PUT", "/owned/1/n.json", 3, 200),
        ("PUT", "/owned/1/n.json", 30, 403),
        ("DELETE", "/owned/1/n.json", None, 403),
        ("PUT", "/owned/1.json", {}, 200),
        ("DELETE", "/owned/1.json", None, 200),
        ("PATCH", "/owned.json", {"1/n": 4}, 200),
        ("PATCH", "/owned.json", {"1/n": 4, "2/n": 4}, 403),
        ("PATCH", "/owned.json", {"1/n": 4, "2/n": 4, "2/owner": "alice"}, 200),
        ("POST", "/owned.json", {"owner": "alice", "n": 1}, 200),
        ("POST", "/owned.json", {"owner": "alice"}, 403),
        ("PUT", "/owned/1/n.json", {".sv": {"increment": 9}}, 200),
        ("PUT", "/owned/1/n.json", {".sv": {"increment": 10}}, 403),
        ("PUT", "/owned.json", {"1": {"owner": "alice", "n": 1}}, 403),
    ],
)
def test_validation_covers_the_written_path_its_ancestors_and_descendants(
    shop: Tree, alice: str, method: str, path: str, value: Any, status: int
) -> None:
    before = {"1": {"owner": "alice", "n": 1}}
    shop.seed("/owned.json", before)
    response = shop.request(method, at(path, alice), json.dumps(value))
    assert response.status == status, response
    if status == 403:
        assert shop.see("/owned.json?format=export") == before


def test_an_admin_skips_validation_too(shop: Tree) -> None:
    shop.seed("/owned/1.json", "nonsense")
    assert shop.see("/owned/1.json") == "nonsense"


def test_a_list_of_children_may_be_empty_or_end_in_a_comma(shop: Tree) -> None:
    for value in (None, 1, "leaf", {"a": 1}):
        assert shop.status("PUT", "/none.json", json.dumps(value)) == 200
        assert shop.get("/none.json") == value
    for value, status in ((None, 403), (1, 403), ({"a": 1}, 403), ({"a": 1, "b": 2}, 200)):
        shop.put("/some.json", value)
        assert shop.status("GET", "/some.json") == status


def test_removing_a_required_child_is_denied_and_removing_all_is_not(shop: Tree) -> None:
    assert put(shop, "/kept.json", {"a": 1, "b": 2}) == 200
    assert shop.status("DELETE", "/kept/a.json") == 403
    assert patch(shop, "/kept.json", {"a": None}) == 403
    assert patch(shop, "/kept.json", {"a": None, "b": None}) == 200
    assert put(shop, "/kept.json", {"a": 1, "b": 2}) == 200
    assert shop.status("DELETE", "/kept.json") == 200


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/pairs/1.json", {"a": 1, "b": 1}, 200),
        ("/pairs/1.json", {"a": 1, "b": 2}, 403),
        ("/pairs/1.json", {"a": 1}, 403),
        ("/pairs/1.json", {"b": 1}, 403),
        ("/pairs.json", {"1/a": 1, "1/b": 1, "2/a": 5, "2/b": 5}, 200),
        ("/pairs.json", {"1/a": 1, "1/b": 1, "2/a": 5}, 403),
        ("/pairs.json", {"1/a": 1, "1/b": 1, "1/c": 1}, 403),
        ("/.json", {"pairs/1/a": 1, "pairs/1/b": 1, "open/x": 1}, 200),
        ("/.json", {"pairs/1/a": 1, "pairs/1/b": 1, "readable/x": 1}, 403),
        ("/pairs.json", {}, 200),
        ("/nowhere.json", {}, 200),
    ],
)
def test_each_key_of_a_patch_is_checked_and_a_denied_patch_changes_nothing(
    shop: Tree, path: str, body: Any, status: int
) -> None:
    assert patch(shop, path, body) == status
    if status == 403:
        assert shop.see("/.json") is None


def test_a_patch_with_null_is_a_removal(shop: Tree) -> None:
    shop.seed("/open.json", 1)
    shop.seed("/readable.json", 1)
    assert shop.status("PATCH", "/readable.json", "null") == 403
    assert shop.status("PATCH", "/open.json", "null") == 200
    assert shop.see("/open.json") is None


# The time.


def test_now_equals_the_timestamp_of_the_same_request(shop: Tree) -> None:
    assert put(shop, "/clock/1.json", {"at": TIMESTAMP}) == 200
    assert put(shop, "/clock/1/at.json", TIMESTAMP) == 200
    assert patch(shop, "/clock.json", {"2/at": TIMESTAMP, "3/at": TIMESTAMP}) == 200
    assert put(shop, "/clock/1/high.json", {".value": 1, ".priority": TIMESTAMP}) == 200
    assert put(shop, "/clock/1/at.json", int(time.time() * 1000) - 1) == 403
    assert put(shop, "/clock/1/until.json", TIMESTAMP) == 403
    assert put(shop, "/clock/1/until.json", (time.time() + 60) * 1000) == 200
    assert shop.status("GET", "/clock.json") == 200
    written = shop.request("PUT", "/clock/1.json", json.dumps({"at": TIMESTAMP})).json["at"]
    assert shop.see("/clock/1/at.json") == written


def test_rules_see_the_result_of_an_increment(shop: Tree) -> None:
    one = {".sv": {"increment": 1}}
    statuses = [put(shop, "/counted.json", one) for _ in range(7)]
    assert statuses == [200] * 5 + [403] * 2
    assert shop.see("/counted.json") == 5


# Queries.


@pytest.mark.parametrize(
    ("path", "query", "status"),
    [
        ("byKey", 'orderBy="$key"&limitToFirst=10', 200),
        ("byKey", 'orderBy="$key"&limitToFirst=11', 403),
        ("byKey", 'orderBy="$key"', 403),
        ("byKey", "shallow=true&limitToFirst=10", 200),
        ("byKey", "shallow=true&limitToFirst=11", 403),
        ("byKey", "", 403),
        ("keys", "shallow=true&limitToFirst=1", 200),
        ("keys", "where={%22a%22:1}", 200),
        ("keys", 'shallow=true&startAfter="a"', 403),
        ("keys", "shallow=true&startAfter=a&limitToFirst=1&v=2", 403),
        ("keys", 'orderBy="$key"&startAfter="a"', 403),
        ("keys", 'orderBy="$key"&equalTo="a"', 200),
        ("keys", "shallow=true", 403),
        ("keys", "", 403),
        ("byLast", 'orderBy="$key"&limitToLast=3', 200),
        ("byLast", 'orderBy="$key"&limitToFirst=3', 403),
        ("byLast", 'orderBy="a"&limitToLast=3', 403),
        ("byChild", 'orderBy="a/b"&equalTo="alice"', 200),
        ("byChild", 'orderBy="a/b"&equalTo="bob"', 403),
        ("byChild", 'orderBy="a"&equalTo="alice"', 403),
        ("byChild", 'orderBy="a/b"&startAt="alice"&endAt="alice"', 403),
        ("byValue", 'orderBy="$value"&startAt=1&endAt="x"', 200),
        ("byValue", 'orderBy="$value"&startAt=1', 403),
        ("byValue", 'orderBy="$key"&startAt="1"&endAt="x"', 403),
        ("beginning", 'orderBy="$key"&limitToFirst=2', 200),
        ("beginning", 'orderBy="a"&startAt=null&limitToFirst=2', 200),
        ("beginning", "shallow=true&limitToFirst=2", 200),
        ("beginning", "where={%22a%22:1}&limitToFirst=2", 403),
        ("beginning", "shallow=true&startAfter=b&limitToFirst=2", 403),
        *(
            ("beginning", f"orderBy={order}&limitToFirst=2&{bound}", 403)
            for order, bounds in (
                ('"$key"', ('startAt="b"', 'startAfter="b"', 'endAt="b"', 'endBefore="b"')),
                ('"a"', ("startAfter=1", 'startAfter=null,"b"', "startAfter=null", "endAt=null")),
                ('"a"', ("equalTo=null", 'startAt=null,"b"', "endBefore=1", "equalTo=1")),
            )
            for bound in bounds
        ),
        ("byPriority", 'orderBy="$priority"', 200),
        ("byPriority", 'orderBy="$key"', 403),
        ("plain", "", 200),
        ("plain", 'orderBy="$key"', 403),
        ("plain", 'orderBy="a"', 200),
    ],
)
def test_rules_see_the_query_of_a_read_and_of_a_stream(
    shop: Tree, alice: str, path: str, query: str, status: int
) -> None:
    target = at(f"/list/{path}.json?{query}" if query else f"/list/{path}.json", alice)
    assert shop.status("GET", target.replace('"', escape('"'))) == status
    if "shallow" not in query:
        with shop.try_to_listen(target.replace('"', escape('"'))) as stream:
            assert stream.status == status


# Explanations.


def explain(tree: Tree, method: str, target: str, body: Any = None) -> dict[str, Any]:
    response = tree.request(method, target, None if body is None else json.dumps(body), EXPLAIN)
    assert response.status == 200, response
    assert response.headers["Content-Type"] == "application/json; charset=utf-8"
    found: dict[str, Any] = response.json
    return found


def as_user(tree: Tree, path: str, auth: Any) -> str:
    return at(path, tree.admin, auth_variable_override=json.dumps(auth))


def test_an_explanation_lists_the_evaluated_rules_with_path_and_result(shop: Tree) -> None:
    found = explain(shop, "GET", as_user(shop, "/users/bob/public/x.json", {"uid": "alice"}))
    assert found["allowed"] is True
    assert found["admin"] is False
    evaluated = [(rule["rule"], rule["path"], rule["result"]) for rule in found["rules"]]
    assert evaluated == [
        ("rules/users/$uid/.read", "/users/bob", False),
        ("rules/users/$uid/public/.read", "/users/bob/public", True),
    ]
    assert all(rule["line"] == 1 and rule["column"] > 1 for rule in found["rules"])


def test_an_explanation_includes_errors(shop: Tree) -> None:
    found = explain(shop, "GET", as_user(shop, "/list/byKey.json", None))
    assert found["allowed"] is False
    (rule,) = found["rules"]
    assert rule["result"] is False
    found = explain(shop, "GET", at("/list/byKey.json?orderBy=%22$key%22", shop.admin))
    assert (found["allowed"], found["admin"]) == (True, True)
    (rule,) = found["rules"]
    assert rule["result"] is False
    assert rule["error"]


def test_an_explanation_of_a_write_writes_nothing(shop: Tree) -> None:
    value = {"owner": "alice", "n": 99}
    target = as_user(shop, "/owned/1.json", {"uid": "alice"})
    for method in ("PUT", "PATCH"):
        found = explain(shop, method, target, value)
        assert found["allowed"] is False
        denied = [rule["rule"] for rule in found["rules"] if not rule["result"]]
        assert denied == ["rules/owned/$id/n/.validate"]
    found = explain(shop, "POST", as_user(shop, "/owned.json", {"uid": "alice"}), {**value, "n": 1})
    assert found["allowed"] is True
    assert explain(shop, "DELETE", at("/open.json", shop.admin))["allowed"] is True
    assert shop.see("/.json") is None


def test_an_explanation_is_for_admins_only(shop: Tree, firebase: Tree, alice: str) -> None:
    for method in ("GET", "PUT"):
        check_error(shop.request(method, "/open.json", "1", EXPLAIN), 401, "auth_required")
        response = shop.request(method, at("/open.json", alice), "1", EXPLAIN)
        check_error(response, 403, "permission_denied")
        target = at("/open.json", user("firebase", "alice"))
        assert firebase.request(method, target, "1", EXPLAIN).status == 401
    assert shop.see("/open.json") is None
    assert shop.request("GET", "/open.json", None, {"X-TreeDB-Explain": "no"}).status == 200


def test_a_stream_is_explained_like_a_read(shop: Tree) -> None:
    headers = {**EXPLAIN, "Accept": "text/event-stream"}
    response = shop.request("GET", at("/open.json", shop.admin), None, headers)
    assert response.json["rules"][0]["rule"] == "rules/open/.read"


# Denied writes create nothing.


def test_a_denied_write_creates_no_database(shared_daemon: Daemon) -> None:
    with Tree(shared_daemon, "shop", "never-made") as tree:
        for method in ("PUT", "POST", "PATCH", "DELETE"):
            assert tree.status(method, "/readable.json", '{"a":1}') == 403
            assert tree.status(method, at("/drop.json", "rubbish"), '{"a":1}') == 401
        assert not (shared_daemon.data / "shop" / "never-made.shelf").exists()
        assert put(tree, "/drop.json", 1) == 200
        assert (shared_daemon.data / "shop" / "never-made.shelf").exists()


def test_an_unknown_project_is_not_found_for_any_token(shared_daemon: Daemon) -> None:
    with Client(shared_daemon, "unknown.db.test") as client:
        for bearer in ("", "rubbish", token("shop", admin=True)):
            check_error(client.request("GET", at("/a.json", bearer)), 404, "not_found")
