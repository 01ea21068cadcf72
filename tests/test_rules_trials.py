"""Versions of rules, trials of requests, and all errors of a draft: over HTTP, by admins."""

from __future__ import annotations

import gzip
import json
import pathlib
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.access import RULES, Tree, at, token, trusting, user
from tests.daemon import Daemon, Response
from tests.rest import Client, check_error
from tests.served import ENGINES
from treedbd.limits import MAX_TRIAL_BYTES, RULES_VERSIONS
from treedbd.rules.context import MAX_READS
from treedbd.web.write import LARGE_BODY_BYTES, LARGE_BODY_NODES

VERSIONS = "/.settings/rules/versions.json"
TRIAL = "/.settings/rules/trial.json"
TAGGED = {"X-TreeDB-ETag": "true"}
OWNER = {"Authorization": "Bearer owner", "X-TreeDB-Dialect": "standard"}
TASKS = """{"rules": {
  "tasks": {"$uid": {
    ".read": "auth.uid === $uid && root.child('open').val() === true",
    ".write": "auth.uid === $uid",
    "$task": {
      "title": {".validate": "newData.isString() && newData.val().length < 10"}
    }
  }}
}}"""
ANN: Any = {"uid": "ann", "token": {}}


@pytest.fixture(scope="module")
def shared_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("trials")
    with trusting(folder, "", ["shop", "fresh", "firebase", "kept"]) as running:
        yield running


@pytest.fixture
def shop(shared_daemon: Daemon) -> Iterator[Tree]:
    with Tree(shared_daemon, "shop") as tree:
        assert tree.status("PUT", at(RULES, tree.admin), TASKS) == 200
        tree.seed("/open.json", True)
        yield tree


def try_request(tree: Tree, method: str, path: str, **members: Any) -> Any:
    trial = {"method": method, "path": path, **members}
    response = tree.request("POST", at(TRIAL, tree.admin), json.dumps(trial))
    assert response.status == 200, response
    return response.json


def refuse(tree: Tree, **members: Any) -> Any:
    trial = {"method": "GET", "path": "/a", **members}
    response = tree.request("POST", at(TRIAL, tree.admin), json.dumps(trial))
    assert response.status == 400, response
    return response.json


# Versions.


def test_versions_are_listed_with_their_origin_and_read_back(shared_daemon: Daemon) -> None:
    texts = [f'{{"rules":{{"k{number}":{{}}}}}}' for number in range(3)]
    with Tree(shared_daemon, "fresh") as tree:
        assert tree.get(at(VERSIONS, tree.admin)) == []
        named = token("fresh", admin=True, uid="ada")
        for text, bearer in zip(texts, (tree.admin, named, named), strict=True):
            assert tree.status("PUT", at(RULES, bearer), text) == 200
        assert tree.status("PUT", at(RULES, tree.admin), texts[2]) == 200  # the same text
        assert tree.status("PUT", at(RULES, tree.admin, dryRun=True), texts[0]) == 200
        listed = tree.get(at(VERSIONS, tree.admin))
        times = [datetime.fromisoformat(each.pop("time")) for each in listed]
        shared = {"admin": True, "bytes": len(texts[0])}
        assert listed == [
            {"version": 3, "uid": "ada", **shared, "is_current": True},
            {"version": 2, "uid": "ada", **shared, "is_current": False},
            {"version": 1, "uid": None, **shared, "is_current": False},
        ]
        assert times == sorted(times, reverse=True)
        assert 0 <= (datetime.now(UTC) - times[0]).total_seconds() < 600
        response = tree.request("GET", at(VERSIONS, tree.admin, version="2"))
        assert (response.status, response.body) == (200, texts[1].encode())
        assert response.headers["Cache-Control"] == "no-store"
        assert tree.request("HEAD", at(VERSIONS, tree.admin, version="2")).body == b""
        # Back to an older one: that is a version of its own.
        assert tree.status("PUT", at(RULES, tree.admin), texts[0]) == 200
        assert [each["version"] for each in tree.get(at(VERSIONS, tree.admin))] == [4, 3, 2, 1]


@pytest.mark.parametrize("version", ["0", "99", "9" * 18])
def test_a_version_that_is_not_kept_is_not_found(shop: Tree, version: str) -> None:
    response = shop.request("GET", at(VERSIONS, shop.admin, version=version))
    check_error(response, 404, "not_found")
    assert f"the last {RULES_VERSIONS} are kept" in response.json["message"]


@pytest.mark.parametrize("version", ["", "x", "-1", "1.0", "9" * 19, "\u0661"])
def test_a_version_is_a_number(shop: Tree, version: str) -> None:
    response = shop.request("GET", at(VERSIONS, shop.admin, version=version))
    check_error(response, 400, "invalid_query")


@pytest.mark.parametrize(("method", "path"), [("GET", VERSIONS), ("POST", TRIAL)])
def test_only_an_admin_sees_versions_and_tries_rules(shop: Tree, method: str, path: str) -> None:
    body = None if method == "GET" else '{"method": "GET", "path": "/"}'
    check_error(shop.request(method, path, body), 401, "auth_required")
    response = shop.request(method, at(path, user("shop", "ann")), body)
    check_error(response, 403, "permission_denied")
    check_error(shop.request("DELETE", at(path, shop.admin)), 405, "method_not_allowed")
    assert shop.status("OPTIONS", path) == 204
    explained = shop.request(method, at(path, shop.admin), body, {"X-TreeDB-Explain": "true"})
    assert explained.json == {"allowed": True, "admin": True, "rules": []}


def test_a_token_that_may_only_read_sees_versions_checks_and_tries(shop: Tree) -> None:
    bearer = token("shop", admin=True, read_only=True)
    trial = '{"method": "PUT", "path": "/tasks/ann", "value": 1}'
    assert shop.status("POST", at(TRIAL, bearer), trial) == 200
    assert shop.status("GET", at(VERSIONS, bearer)) == 200
    assert shop.status("PUT", at(RULES, bearer, dryRun=True), TASKS) == 200
    check_error(shop.request("PUT", at(RULES, bearer), TASKS), 403, "permission_denied")


def test_versions_survive_a_restart(shared_daemon: Daemon) -> None:
    with Tree(shared_daemon, "kept") as tree:
        tree.put_rules({})
        tree.put_rules({"a": {}})
        before = tree.get(at(VERSIONS, tree.admin))
    shared_daemon.restart()
    with Tree(shared_daemon, "kept") as tree:
        assert tree.get(at(VERSIONS, tree.admin)) == before
        assert [each["is_current"] for each in before] == [True, False]


def test_rules_of_an_older_release_are_the_first_version(tmp_path: pathlib.Path) -> None:
    older, newer = '{"rules":{"older":{}}}', '{"rules":{}}'
    with trusting(tmp_path, "", ["shop"]) as daemon:
        daemon.stop()
        (daemon.data / "shop").mkdir(exist_ok=True)
        (daemon.data / "shop" / "rules.json").write_text(older)
        daemon.start()
        with Tree(daemon, "shop") as tree:
            assert tree.status("PUT", at(RULES, tree.admin), newer) == 200
            listed = tree.get(at(VERSIONS, tree.admin))
            assert [(each["version"], each["admin"]) for each in listed] == [(2, True), (1, False)]
            assert tree.request("GET", at(VERSIONS, tree.admin, version="1")).body == older.encode()


def test_rules_of_a_file_have_no_versions_and_can_be_tried(tmp_path: pathlib.Path) -> None:
    (tmp_path / "rules.json").write_text(TASKS)
    with trusting(tmp_path, 'default_project = "shop"', ["shop"]) as daemon:
        daemon.stop()
        config = daemon.folder / "treedb.toml"
        config.write_text(config.read_text() + 'rules_file = "rules.json"\n')
        daemon.start()
        with Tree(daemon, "shop") as tree:
            response = tree.request("GET", at(VERSIONS, tree.admin))
            check_error(response, 409, "conflict")
            assert "managed by a file" in response.json["message"]
            assert not try_request(tree, "GET", "/tasks/ann", auth=ANN)["allowed"]


# Conditions.


def test_rules_are_replaced_by_tag(shop: Tree) -> None:
    read = shop.request("GET", at(RULES, shop.admin), None, TAGGED)
    tag = {"If-Match": read.headers["ETag"]}
    assert read.body.decode() == TASKS
    put = shop.request("PUT", at(RULES, shop.admin), '{"rules":{"a":{}}}', tag)
    assert put.status == 200
    for target in (at(RULES, shop.admin), at(RULES, shop.admin, dryRun=True)):
        refused = shop.request("PUT", target, TASKS, tag)
        check_error(refused, 412, "condition_failed")
        assert refused.headers["ETag"] == put.headers["ETag"] != tag["If-Match"]
    strict = shop.request("GET", at(RULES, shop.admin, format="strict"), None, TAGGED)
    assert strict.headers["ETag"] == put.headers["ETag"]
    assert shop.request("GET", at(RULES, shop.admin)).headers["ETag"] is None
    for condition in ("*", f'"other", {put.headers["ETag"]}'):
        again = shop.request(
            "PUT", at(RULES, shop.admin), '{"rules":{"a":{}}}', {"If-Match": condition}
        )
        assert (again.status, again.headers["ETag"]) == (200, put.headers["ETag"])


@pytest.mark.parametrize("engine", ENGINES)
def test_of_admins_who_have_read_the_same_rules_one_replaces_them(
    engine: str, tmp_path: pathlib.Path
) -> None:
    with ENGINES[engine](tmp_path) as served:
        daemons = [served.daemons[0], served.daemons[-1]]
        for turn in range(5):
            tag = ask(daemons[0], "GET", None, TAGGED).headers["ETag"]
            bodies = [f'{{"rules":{{"k{turn}{number}":{{}}}}}}' for number in range(6)]
            with ThreadPoolExecutor(len(bodies)) as pool:
                puts = [
                    pool.submit(ask, daemons[number % 2], "PUT", body, {"If-Match": tag})
                    for number, body in enumerate(bodies)
                ]
                statuses = [put.result().status for put in puts]
            assert sorted(statuses) == [200, *[412] * 5]
            (first,) = [
                body for body, status in zip(bodies, statuses, strict=True) if status == 200
            ]
            assert all(ask(daemon, "GET").body.decode() == first for daemon in daemons)


def ask(
    daemon: Daemon, method: str, body: str | None = None, headers: dict[str, str] | None = None
) -> Response:
    """Send a request for the rules by a connection of its own, as an admin."""
    with Client(daemon, "demo.localhost") as client:
        return client.request(method, RULES, body, OWNER | (headers or {}))


# Trials.


def test_a_read_is_tried_with_the_values_that_decided(shop: Tree) -> None:
    allowed = try_request(shop, "GET", "/tasks/ann", auth=ANN)
    assert allowed == {
        "allowed": True,
        "admin": False,
        "rule": "rules/tasks/$uid/.read",
        "rule_path": "/tasks/ann",
        "rule_line": 3,
        "column": 15,
        "rules": [
            {
                "rule": "rules/tasks/$uid/.read",
                "path": "/tasks/ann",
                "line": 3,
                "column": 15,
                "result": True,
                "captures": {"$uid": "ann"},
                "read": [{"from": "data", "path": "/open", "value": True}],
            }
        ],
    }
    denied = try_request(shop, "GET", "tasks/ann/", auth={"uid": "eve"})
    assert (denied["allowed"], denied["rule_line"], denied["column"]) == (False, 3, 15)
    assert denied["reason"] == "No .read rule on the path is true."
    assert denied["auth"] == {"uid": "eve"}
    assert try_request(shop, "GET", "/tasks")["rules"] == []
    assert "rule" not in try_request(shop, "GET", "/tasks")


def test_an_admin_is_allowed_whatever_the_rules_say(shop: Tree) -> None:
    found = try_request(shop, "GET", "/tasks/ann", auth="admin")
    assert (found["allowed"], found["admin"]) == (True, True)
    assert "rule" not in found
    assert found["rules"][0]["result"] is False


def test_a_write_is_tried_and_nothing_is_written(shop: Tree) -> None:
    value = {"t1": {"title": "short"}, "t2": {"title": "much too long"}}
    found = try_request(shop, "PUT", "/tasks/ann", auth=ANN, value=value)
    assert found["allowed"] is False
    assert found["reason"] == "The rule rules/tasks/$uid/$task/title/.validate is not true."
    assert (found["rule_path"], found["rule_line"], found["column"]) == (
        "/tasks/ann/t2/title",
        6,
        31,
    )
    assert found["rules"][-1]["read"][-1] == {
        "from": "newData",
        "path": "/tasks/ann/t2/title",
        "value": "much too long",
    }
    assert shop.see("/tasks.json") is None
    del value["t2"]
    found = try_request(shop, "PUT", "/tasks/ann", auth=ANN, value=value)
    assert (found["allowed"], found["rule"]) == (True, "rules/tasks/$uid/.write")
    assert shop.see("/tasks.json") is None


@pytest.mark.parametrize(
    ("method", "path", "value", "allowed"),
    [
        ("PATCH", "/tasks/ann", {"t/title": "short", "u/title": "also"}, True),
        ("PATCH", "/tasks", {"ann/t/title": "short", "eve/t/title": "short"}, False),
        ("POST", "/tasks/ann", {"title": "short"}, True),
        ("POST", "/tasks/ann", {"title": 1}, False),
        ("DELETE", "/tasks/ann", None, True),
        ("DELETE", "/tasks", None, False),
        ("PUT", "/tasks/ann/t/.priority", 3, True),
        ("PUT", "/tasks/ann/t/n", {".sv": {"increment": 1}}, True),
    ],
)
def test_each_method_is_tried(
    shop: Tree, method: str, path: str, value: Any, *, allowed: bool
) -> None:
    members = {} if method == "DELETE" else {"value": value}
    found = try_request(shop, method, path, auth=ANN, **members)
    assert found["allowed"] is allowed


def test_a_trial_says_what_an_explanation_says(shop: Tree) -> None:
    target = at("/tasks/ann/t.json", shop.admin, auth_variable_override=ANN)
    value = json.dumps({"title": 7})
    explained = shop.request("PUT", target, value, {"X-TreeDB-Explain": "true"}).json
    tried = try_request(shop, "PUT", "/tasks/ann/t", auth=ANN, value={"title": 7})
    assert {name: tried[name] for name in ("allowed", "admin", "reason", "auth")} == {
        name: explained[name] for name in ("allowed", "admin", "reason", "auth")
    }
    assert [(each["rule"], each["result"]) for each in tried["rules"]] == [
        (each["rule"], each["result"]) for each in explained["rules"]
    ]


def test_a_query_is_seen_by_the_rules(shop: Tree) -> None:
    draft = '{"rules":{".read":"query.limitToFirst <= 5 && query.orderByChild == \'age\'"}}'
    query = {"orderBy": '"age"', "limitToFirst": 5, "startAt": "3"}
    assert try_request(shop, "GET", "/a", rules=draft, query=query)["allowed"]
    query["limitToFirst"] = "6"
    assert not try_request(shop, "GET", "/a", rules=draft, query=query)["allowed"]
    in_force = try_request(shop, "GET", "/a", query=query)
    assert in_force["index"] == {"name": "age", "state": "none"}


def test_a_draft_is_tried_and_not_put_in_force(shop: Tree) -> None:
    draft = '{"rules":{".read":"data.child(\'open\').val() === true"}}'
    found = try_request(shop, "GET", "/", rules=draft)
    assert (found["allowed"], found["rule"]) == (True, "rules/.read")
    assert shop.request("GET", at(RULES, shop.admin)).body == TASKS.encode()
    assert not try_request(shop, "GET", "/")["allowed"]


def test_a_bad_draft_is_refused_with_its_errors(shop: Tree) -> None:
    answer = refuse(shop, rules='{"rules":{".read":"nobody","a":{".write":"auth ="}}}')
    assert answer["message"].startswith("1:20: Unknown variable 'nobody'.")
    assert [(each["line"], each["column"]) for each in answer["errors"]] == [(1, 20), (1, 48)]


@pytest.mark.parametrize(
    ("members", "code", "text"),
    [
        ({"method": "HEAD"}, "invalid_data", "method must be one of GET, PUT"),
        ({"method": None}, "invalid_data", "method must be one of GET, PUT"),
        ({"method": ["GET"]}, "invalid_data", "method must be one of GET, PUT"),
        ({"path": 1}, "invalid_data", "path must be a string"),
        ({"path": "/a.b"}, "invalid_path", ""),
        ({"path": "/a" * 33}, "invalid_path", "deeper than 32"),
        ({"rules": {}}, "invalid_data", "rules must be the text"),
        ({"auth": "ann"}, "invalid_data", "auth must be an object"),
        ({"auth": [1]}, "invalid_data", "auth must be an object"),
        ({"value": 1}, "invalid_data", "A GET has no value."),
        ({"method": "PUT"}, "invalid_data", "A PUT needs a value."),
        ({"method": "PUT", "value": {"a.b": 1}}, "invalid_data", ""),
        ({"method": "PATCH", "value": 1}, "invalid_data", "must be an object"),
        ({"method": "POST", "value": 1, "path": "/.priority"}, "invalid_path", "A priority"),
        ({"method": "DELETE", "query": {"orderBy": '"a"'}}, "invalid_query", "has no query"),
        ({"query": 1}, "invalid_data", "query must be an object"),
        ({"query": {"auth": "x"}}, "invalid_query", "no parameter 'auth'"),
        ({"query": {"limitToFirst": "x"}}, "invalid_query", "limitToFirst"),
        ({"more": 1}, "invalid_data", "no member 'more'"),
    ],
)
def test_what_is_no_trial_is_refused(
    shop: Tree, members: dict[str, Any], code: str, text: str
) -> None:
    answer = refuse(shop, **members)
    assert answer["error"] == code
    assert text in answer["message"]


@pytest.mark.parametrize("body", ["", "{", "[]", "null", '"x"'])
def test_a_trial_is_an_object(shop: Tree, body: str) -> None:
    response = shop.request("POST", at(TRIAL, shop.admin), body)
    check_error(response, 400, "invalid_data")


def test_a_trial_is_bounded(shop: Tree) -> None:
    def send(trial: Any) -> int:
        text = trial if isinstance(trial, str) else json.dumps(trial)
        return shop.status("POST", at(TRIAL, shop.admin), text)

    put = {"method": "PUT", "path": "/tasks/ann/t", "auth": ANN}
    assert send({**put, "value": "x" * (LARGE_BODY_BYTES - 2)}) == 200
    assert send({**put, "value": "x" * LARGE_BODY_BYTES}) == 413
    assert send({**put, "value": [1] * LARGE_BODY_NODES}) == 413
    assert send({**put, "value": {f"k{at}": "v" for at in range(LARGE_BODY_NODES - 20)}}) == 200
    assert send(json.dumps({**put, "value": 1}) + " " * MAX_TRIAL_BYTES) == 413
    assert send('["' + '","' * 20_000 + '"]') == 413
    # A draft may be longer than a value, and has quotes, commas and brackets of its own.
    nodes = ",".join(f'"k{at}": {{".read": "auth.uid == \'{at}\'"}}' for at in range(10_000))
    found = try_request(shop, "GET", "/k77", auth={"uid": "77"}, rules=f'{{"rules": {{{nodes}}}}}')
    assert found["allowed"]
    too_long = json.dumps("x" * 1024 * 1024)
    assert "longer than" in refuse(shop, rules=too_long)["message"]


def test_a_trial_may_be_compressed(shop: Tree) -> None:
    headers = {"Content-Encoding": "gzip"}

    def send(trial: bytes) -> int:
        return shop.request("POST", at(TRIAL, shop.admin), gzip.compress(trial), headers).status

    assert send(b'{"method": "GET", "path": "/"}') == 200
    assert send(b'{"method": "GET", "path": "/"}' + b" " * 100_000) == 413


def test_what_is_shown_of_a_trial_is_bounded(shop: Tree) -> None:
    reads = " || ".join(f"root.child('{at}').exists()" for at in range(3 * MAX_READS))
    found = try_request(shop, "GET", "/", rules=f'{{"rules": {{".read": "{reads}"}}}}')
    assert len(found["rules"][0]["read"]) == MAX_READS
    draft = '{"rules": {".write": true, "$k": {".validate": "newData.val() !== 299"}}}'
    value = {f"k{at:03}": at for at in range(300)}
    found = try_request(shop, "PUT", "/", rules=draft, value=value)
    assert (len(found["rules"]), found["left_out"]) == (200, 101)
    assert found["rule_path"] == "/k299"
    assert [each["path"] for each in found["rules"][-2:]] == ["/k298", "/k299"]


def test_a_trial_has_the_budget_of_its_request(tmp_path: pathlib.Path) -> None:
    with (
        trusting(tmp_path, "[rules]\njudged_characters = 10000", ["shop"]) as daemon,
        Tree(daemon, "shop") as tree,
    ):
        tree.seed("/long.json", "x" * 6000)
        rule = "root.child('long').val().length > 1"
        draft = json.dumps({"rules": {".read": rule, ".write": rule}})
        read = try_request(tree, "GET", "/a", rules=draft)
        write = try_request(tree, "PUT", "/a", rules=draft, value=1)
        assert (read["allowed"], write["allowed"]) == (False, True)
        assert "error" in read["rules"][0]


def test_a_trial_has_a_deadline(shop: Tree) -> None:
    """A rule that takes long is evaluated in slices, and not after the time is over."""
    shop.seed("/text.json", "a" * 400_000)
    rule = "root.child('text').val().matches(/^(a|b|c|d|e|f|ab|cd)*z$/)"
    draft = json.dumps({"rules": {"$k": {".write": True, "$i": {".validate": f"{rule} || true"}}}})
    trial = {"method": "PUT", "path": "/n", "rules": draft, "value": {"a": 1, "b": 2, "c": 3}}
    target = at(TRIAL, shop.admin, timeout="1ms")
    response = shop.request("POST", target, json.dumps(trial))
    check_error(response, 504, "timeout")


def test_clients_of_firebase_have_trials_too(shared_daemon: Daemon) -> None:
    with Tree(shared_daemon, "firebase") as tree:
        assert try_request(tree, "GET", "/")["allowed"] is False
        response = tree.request("POST", at(TRIAL, tree.admin), '{"method": "GET"}')
        assert response.status == 400
        assert list(response.json) == ["error"]


def test_an_absent_database_has_no_trials(tmp_path: pathlib.Path) -> None:
    with trusting(tmp_path, "", ["shop"]) as daemon:
        daemon.stop()
        config = daemon.folder / "treedb.toml"
        config.write_text(config.read_text().replace('databases = "*"', 'databases = ["a"]'))
        daemon.start()
        with Tree(daemon, "shop", "b") as tree:
            body = '{"method": "GET", "path": "/"}'
            check_error(tree.request("POST", at(TRIAL, tree.admin), body), 404, "not_found")


# The dry run.


def test_a_dry_run_shows_all_errors_with_their_positions(shop: Tree) -> None:
    text = '{"rules":{".read":"nobody",\n"a":{".write":"auth.uid + 1", ".raed": true}}}'
    for parameters in ({"dryRun": True}, {}):
        response = shop.request("PUT", at(RULES, shop.admin, **parameters), text)
        check_error(response, 400, "invalid_data")
        assert response.json["message"] == "1:20: Unknown variable 'nobody'."
        assert response.json["errors"] == [
            {"line": 1, "column": 20, "message": "Unknown variable 'nobody'."},
            {
                "line": 2,
                "column": 16,
                "message": "Expression must evaluate to a boolean.",
                "hint": "Compare it, as in … == true, or … != null.",
            },
            {
                "line": 2,
                "column": 40,
                "message": "Expected '{'.",
                "hint": "Did you mean '.read'?",
            },
        ]


def leave(tree: Tree, method: str, target: str, body: str) -> bytes:
    """Send a request and end the sending direction; return the answer, empty if there is none."""
    connection = tree.daemon.connect()
    connection.request(method, target, body, {"Host": tree.host})
    client = connection.sock
    client.shutdown(socket.SHUT_WR)
    received = b""
    with closing(connection), suppress(ConnectionResetError):
        while more := client.recv(65_536):
            received += more
    return received


LARGE_RULES = json.dumps({"rules": {f"k{at}": {".validate": True} for at in range(20_000)}})


def test_a_check_ends_with_its_client_and_a_put_does_not(shop: Tree) -> None:
    trial = json.dumps({"method": "GET", "path": "/a", "rules": LARGE_RULES})
    assert leave(shop, "PUT", at(RULES, shop.admin, dryRun=True), LARGE_RULES) == b""
    assert leave(shop, "POST", at(TRIAL, shop.admin), trial) == b""
    assert leave(shop, "PUT", at(RULES, shop.admin), LARGE_RULES).startswith(b"HTTP/1.1 200 ")


def test_a_dry_run_shows_warnings_with_their_positions(shop: Tree) -> None:
    text = '{"rules":{\n".read":"auth.uid.matches(/^a|b$/)"}}'
    answer = shop.request("PUT", at(RULES, shop.admin, dryRun=True), text).json
    (position,) = answer["positions"]
    assert answer["warnings"] == [f"2:30: {position['message']}"]
    assert (position["line"], position["column"]) == (2, 30)
    assert "positions" not in shop.request("PUT", at(RULES, shop.admin), text).json
