"""Rules are put, read and checked over HTTP, by admins only."""

from __future__ import annotations

import json
import pathlib
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.access import DATABASES, DOMAIN, RULES, Tree, at, trusting, user
from tests.command import mint
from tests.daemon import Daemon
from tests.rest import Client, check_error

NOTHING = '{"rules":{}}'
COMMENTED = """
/* What people may do. */
{
  "rules": {
    // Grüße, and nothing else.
    "grüße": {
      ".read":
        "auth != null &&
         auth.uid.length > 0",
      ".indexOn": ["um", ],
    },
  },
}
"""
STRICT = {
    "rules": {
        "grüße": {
            ".read": "auth != null &&\n         auth.uid.length > 0",
            ".indexOn": ["um"],
        }
    }
}
FAULTS = [
    ('{"rules": {".read": "auth.uid = 1"}}', "Rule expressions may not contain assignments."),
    ('{"rules": {\n  ".read": "nobody"}}', "2:13: Unknown variable 'nobody'."),
    ('{"rules": {".read": 1}}', "1:21: Invalid rule expression."),
    ('{"rules": {"a": "b"}}', "Expected '{'."),
    ('{"rules": {".read": "newData.exists()"}}', "newData is invalid in .read expressions."),
    ('{"rules": {}, "more": 1}', "1:15: "),
    ("{", "1:2: "),
    ("", "1:1: "),
]


@pytest.fixture(scope="module")
def shared_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("settings")
    with trusting(folder, "", ["shop", "other", "firebase", "fresh"]) as running:
        yield running


@pytest.fixture
def shop(shared_daemon: Daemon) -> Iterator[Tree]:
    with Tree(shared_daemon, "shop") as tree:
        yield tree


@pytest.fixture
def firebase(shared_daemon: Daemon) -> Iterator[Tree]:
    with Tree(shared_daemon, "firebase") as tree:
        yield tree


# Before any rules are put.


def test_before_any_are_put_the_rules_are_empty_and_deny(shared_daemon: Daemon) -> None:
    with Tree(shared_daemon, "fresh") as tree:
        response = tree.request("GET", at(RULES, tree.admin))
        assert (response.status, response.body) == (200, NOTHING.encode())
        assert tree.get(at(RULES, tree.admin, format="strict")) == {"rules": {}}
        for bearer in ("", user("fresh", "a")):
            check_error(tree.request("GET", at("/a.json", bearer)), 403, "permission_denied")
            check_error(tree.request("PUT", at("/a.json", bearer), "1"), 403, "permission_denied")
        assert not list(shared_daemon.data.glob("fresh/*"))


# Rules are stored as they were put.


@pytest.mark.parametrize("text", [COMMENTED, NOTHING, '{"rules" : {".read":true}}\r\n'])
def test_rules_read_back_as_they_were_put(shop: Tree, text: str) -> None:
    response = shop.request("PUT", at(RULES, shop.admin), text)
    assert (response.status, response.json) == (200, {"status": "ok"})
    response = shop.request("GET", at(RULES, shop.admin))
    assert response.body == text.encode()
    assert response.headers["Content-Type"] == "application/json; charset=utf-8"
    assert response.headers["Cache-Control"] == "no-store"


def test_rules_read_back_as_plain_json_if_requested(shop: Tree) -> None:
    assert shop.status("PUT", at(RULES, shop.admin), COMMENTED) == 200
    assert shop.get(at(RULES, shop.admin, format="strict")) == STRICT
    check_error(shop.request("GET", at(RULES, shop.admin, format="loose")), 400, "invalid_query")


def test_head_is_get_without_a_body(shop: Tree) -> None:
    shop.put_rules({"a": {".read": True}})
    read = shop.request("GET", at(RULES, shop.admin))
    response = shop.request("HEAD", at(RULES, shop.admin))
    assert (response.status, response.body) == (200, b"")
    assert response.headers["Content-Length"] == read.headers["Content-Length"]


@pytest.mark.parametrize("other", ["/.settings/rules/.json", "//.settings//rules//.json"])
def test_the_reserved_paths_have_a_second_form(shop: Tree, other: str) -> None:
    response = shop.request("PUT", at(other, shop.admin), COMMENTED)
    assert (response.status, response.json) == (200, {"status": "ok"})
    assert shop.request("GET", at(other, shop.admin)).body == COMMENTED.encode()
    databases = other.replace("settings", "inspect").replace("rules", "databases")
    assert shop.get(at(databases, shop.admin))
    check_error(shop.request("GET", other), 401, "auth_required")
    for unknown in ("/.settings/.json", "/.settings/rules.json/.json", "/.settings/rules/json"):
        assert shop.status("GET", at(unknown, shop.admin)) in (400, 404)


# The format of responses.


@pytest.mark.parametrize("path", [RULES, f"{RULES}?format=strict", DATABASES])
def test_print_silent_returns_no_body(shop: Tree, path: str) -> None:
    shop.put_rules({})
    for method in ("GET", "HEAD"):
        response = shop.request(method, at(path, shop.admin, print="silent"))
        assert (response.status, response.body) == (204, b"")
    check_error(shop.request("GET", at(path, shop.admin, print="loud")), 400, "invalid_query")
    check_error(shop.request("GET", at(path, "", print="silent")), 401, "auth_required")


def test_rules_may_be_put_silently(shop: Tree) -> None:
    shop.put_rules({})
    opened = '{"rules":{"a":{".read":true}}}'
    assert shop.status("PUT", at(RULES, shop.admin, print="silent", dryRun="true"), opened) == 204
    assert shop.status("GET", "/a.json") == 403
    assert shop.request("PUT", at(RULES, shop.admin), opened, {"print": "silent"}).status == 204
    assert shop.status("GET", "/a.json") == 200
    check_error(
        shop.request("PUT", at(RULES, shop.admin, print="silent"), "{"), 400, "invalid_data"
    )


def test_print_pretty_indents_json_and_returns_rules_as_they_were_put(
    shop: Tree, firebase: Tree
) -> None:
    for tree, colon in ((shop, '": '), (firebase, '" : ')):
        put = tree.request("PUT", at(RULES, tree.admin, print="pretty"), COMMENTED)
        assert put.body == f'{{\n  "status{colon}"ok"\n}}'.encode()
        strict = tree.request("GET", at(RULES, tree.admin, format="strict", print="pretty"))
        assert strict.json == STRICT
        assert strict.body.startswith(f'{{\n  "rules{colon}{{\n    "grüße'.encode())
        assert tree.request("GET", at(RULES, tree.admin, print="pretty")).body == COMMENTED.encode()
        databases = tree.request("GET", at(DATABASES, tree.admin, print="pretty")).body
        assert databases.startswith(f'[\n  {{\n    "name{colon}'.encode())


# Explanations.


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", RULES, None),
        ("PUT", RULES, '{"rules":{".read":true,".write":true}}'),
        ("PUT", f"{RULES}?dryRun=true", '{"rules":{}}'),
        ("PUT", RULES, "{"),
        ("GET", f"{RULES}?format=strict", None),
        ("GET", DATABASES, None),
    ],
)
def test_an_explanation_of_a_reserved_path_allows_an_admin_and_changes_nothing(
    shop: Tree, method: str, path: str, body: str | None
) -> None:
    shop.put_rules({"a": {".read": True}})
    before = shop.request("GET", at(RULES, shop.admin)).body
    explain = {"X-TreeDB-Explain": "true"}
    response = shop.request(method, at(path, shop.admin), body, explain)
    assert (response.status, response.json) == (200, {"allowed": True, "admin": True, "rules": []})
    assert shop.request("GET", at(RULES, shop.admin)).body == before
    assert shop.status("GET", "/b.json") == 403
    check_error(shop.request(method, path, body, explain), 401, "auth_required")
    other = at(path, user("shop", "a"))
    check_error(shop.request(method, other, body, explain), 403, "permission_denied")


def test_explanations_have_the_requested_format(shop: Tree) -> None:
    shop.put_rules({"a": {".read": True}})
    explain = {"X-TreeDB-Explain": "true"}
    for path in ("/a.json", RULES, DATABASES):
        plain = shop.request("GET", at(path, shop.admin), None, explain)
        pretty = shop.request("GET", at(path, shop.admin, print="pretty"), None, explain)
        assert pretty.body.startswith(b'{\n  "allowed": true,\n  "admin": true')
        assert pretty.json == plain.json
        assert (
            shop.request("GET", at(path, shop.admin, print="silent"), None, explain).status == 204
        )


# When rules take effect.


def test_rules_take_effect_with_the_next_request(shop: Tree) -> None:
    for allowed in (True, False, True):
        shop.put_rules({"a": {".read": allowed, ".write": allowed}})
        assert shop.status("GET", "/a.json") == (200 if allowed else 403)
        assert shop.status("PUT", "/a.json", "1") == (200 if allowed else 403)


def test_rules_apply_to_every_database_of_the_project_and_to_no_other(
    shared_daemon: Daemon,
) -> None:
    with (
        Tree(shared_daemon, "shop") as one,
        Tree(shared_daemon, "shop", "eu") as two,
        Tree(shared_daemon, "shop", "made-later") as three,
        Tree(shared_daemon, "other") as other,
    ):
        two.put_rules({"a": {".read": True, ".write": True}})
        for tree in (one, two, three):
            assert tree.status("PUT", "/a.json", "1") == 200
            assert tree.status("PUT", "/b.json", "1") == 403
            assert json.loads(tree.request("GET", at(RULES, one.admin)).body)["rules"]["a"]
        assert other.status("GET", "/a.json") == 403
        assert other.request("GET", at(RULES, other.admin)).body == NOTHING.encode()


def test_a_post_may_override_its_method_by_put(shop: Tree) -> None:
    headers = {"X-HTTP-Method-Override": "PUT"}
    target = at(RULES, shop.admin)
    assert shop.request("POST", target, '{"rules":{".read":true}}', headers).status == 200
    assert shop.status("GET", "/a.json") == 200


# Dry runs.


def test_a_dry_run_checks_and_changes_nothing(shop: Tree) -> None:
    shop.put_rules({"a": {".read": True}})
    before = shop.request("GET", at(RULES, shop.admin)).body
    target = at(RULES, shop.admin, dryRun="true")
    response = shop.request("PUT", target, NOTHING)
    assert (response.status, response.json) == (200, {"status": "ok"})
    check_error(shop.request("PUT", target, "{"), 400, "invalid_data")
    assert shop.request("GET", at(RULES, shop.admin)).body == before
    assert shop.status("GET", "/a.json") == 200
    check_error(
        shop.request("PUT", at(RULES, shop.admin, dryRun="maybe"), NOTHING), 400, "invalid_query"
    )
    assert shop.status("PUT", at(RULES, shop.admin, dryRun="false"), NOTHING) == 200
    assert shop.status("GET", "/a.json") == 403


@pytest.mark.parametrize(("document", "text"), FAULTS)
@pytest.mark.parametrize("dry", ["true", "false"])
def test_an_error_in_rules_is_reported_with_line_and_column(
    shop: Tree, firebase: Tree, document: str, text: str, dry: str
) -> None:
    for tree in (shop, firebase):
        tree.put_rules({"a": {".read": True}})
    response = shop.request("PUT", at(RULES, shop.admin, dryRun=dry), document)
    message = check_error(response, 400, "invalid_data")
    line, column, rest = message.split(":", 2)
    assert line.isdigit()
    assert column.isdigit()
    assert rest.startswith(" ")
    assert text in message
    response = firebase.request("PUT", at(RULES, firebase.admin, dryRun=dry), document)
    assert (response.status, response.json) == (400, {"error": f"{message}\n"})
    for tree in (shop, firebase):
        assert tree.status("GET", "/a.json") == 200


def test_a_document_that_is_too_large_is_refused(shop: Tree) -> None:
    comment = "/*" + " " * 1_048_576 + "*/"
    response = shop.request("PUT", at(RULES, shop.admin), comment + NOTHING)
    assert "longer than 1048576 bytes" in check_error(response, 400, "invalid_data")
    response = shop.request("PUT", at(RULES, shop.admin), " " * (16 * 1_048_576) + NOTHING)
    check_error(response, 413, "payload_too_large")


# Permissions.


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", RULES, None),
        ("HEAD", RULES, None),
        ("GET", f"{RULES}?format=strict", None),
        ("PUT", RULES, '{"rules":{".read":true}}'),
        ("PUT", f"{RULES}?dryRun=true", NOTHING),
        ("GET", DATABASES, None),
        ("HEAD", DATABASES, None),
    ],
)
def test_the_reserved_paths_are_for_admins_only(
    shop: Tree, firebase: Tree, method: str, path: str, body: str | None
) -> None:
    shop.put_rules({})
    firebase.put_rules({})
    user_of_shop = at(path, user("shop", "a", admin="true"))
    assert shop.status(method, path, body) == 401
    assert shop.status(method, user_of_shop, body) == 403
    assert firebase.status(method, path, body) == 401
    assert firebase.status(method, at(path, user("firebase", "a")), body) == 401
    assert shop.status(method, at(path, shop.admin), body) == 200
    if method != "HEAD":
        check_error(shop.request(method, path, body), 401, "auth_required")
        check_error(shop.request(method, user_of_shop, body), 403, "permission_denied")
        response = firebase.request(method, at(path, user("firebase", "a")), body)
        assert response.body == b'{\n  "error" : "Permission denied"\n}\n'
    assert firebase.request("GET", at(RULES, firebase.admin)).body == b'{"rules": {}}'


def test_no_rule_allows_access_to_the_reserved_paths(shop: Tree) -> None:
    shop.put_rules({".read": True, ".write": True})
    assert shop.status("GET", RULES) == 401
    assert shop.status("PUT", RULES, NOTHING) == 401
    assert shop.status("GET", DATABASES) == 401
    assert shop.status("GET", "/.json") == 200


def test_errors_have_the_documented_order(shop: Tree) -> None:
    bad = "?timeout=soon"
    for path, allowed in ((RULES, "GET, HEAD, PUT, OPTIONS"), (DATABASES, "GET, HEAD, OPTIONS")):
        for method in ("POST", "PATCH", "DELETE", "BREW"):
            response = shop.request(method, f"{path}{bad}&auth=rubbish", "1")
            check_error(response, 405, "method_not_allowed")
            assert response.headers["Allow"] == allowed
        overridden = shop.request("POST", path, "1", {"X-HTTP-Method-Override": "BREW"})
        check_error(overridden, 405, "method_not_allowed")
        assert overridden.headers["Allow"] == allowed
        check_error(shop.request("GET", f"{path}{bad}&auth=rubbish"), 400, "invalid_query")
        check_error(shop.request("GET", f"{path}?auth=rubbish"), 401, "auth_required")
    check_error(shop.request("PUT", DATABASES, "1"), 405, "method_not_allowed")
    check_error(shop.request("PUT", f"{RULES}?dryRun=x", "{"), 400, "invalid_query")
    with Client(shop.daemon, f"unknown.{DOMAIN}") as unknown:
        for method in ("GET", "PUT", "BREW"):
            check_error(unknown.request(method, f"{RULES}{bad}", "{"), 404, "not_found")


def test_a_preflight_lists_the_methods_of_a_reserved_path(shop: Tree) -> None:
    headers = {"Access-Control-Request-Method": "PUT", "Origin": "https://a.test"}
    for path, allowed in (
        (RULES, "GET, HEAD, PUT, OPTIONS"),
        (DATABASES, "GET, HEAD, OPTIONS"),
        ("/.health", "GET, HEAD, OPTIONS"),
    ):
        response = shop.request("OPTIONS", path, None, headers)
        assert response.status == 204
        assert response.headers["Allow"] == allowed
        assert response.headers["Access-Control-Allow-Methods"] == allowed


def test_the_databases_of_a_project_are_listed_by_their_labels(shared_daemon: Daemon) -> None:
    with Tree(shared_daemon, "other") as tree, Tree(shared_daemon, "other", "eu") as eu:
        assert tree.get(at(DATABASES, tree.admin)) == [{"name": "other"}]
        eu.seed("/a.json", 1)
        names = [{"name": "other"}, {"name": "eu--other"}]
        assert tree.get(at(DATABASES, tree.admin)) == names
        assert eu.get(at(DATABASES, tree.admin)) == names


# Storage.


@pytest.mark.parametrize("is_killed", [False, True])
def test_rules_survive_a_restart(tmp_path: pathlib.Path, is_killed: bool) -> None:
    with trusting(tmp_path, "", ["shop"]) as daemon:
        with Tree(daemon, "shop") as tree:
            tree.request("PUT", at(RULES, tree.admin), '{"rules": {"a": {".read": true}}}')
        if is_killed:
            daemon.kill()
            daemon.start()
        else:
            daemon.restart()
        with Tree(daemon, "shop") as tree:
            assert tree.status("GET", "/a.json") == 200
            assert tree.status("GET", "/b.json") == 403
            response = tree.request("GET", at(RULES, tree.admin))
            assert response.body == b'{"rules": {"a": {".read": true}}}'
        for file in daemon.data.glob("shop/**/*"):
            expected = 0o700 if file.is_dir() else 0o600
            assert stat.S_IMODE(file.stat().st_mode) == expected, file


def test_after_concurrent_puts_the_rules_in_force_are_the_stored_ones(
    tmp_path: pathlib.Path,
) -> None:
    documents = [f'{{"rules":{{"a{number}":{{".read":true}}}}}}' for number in range(40)]
    with trusting(tmp_path, "", ["shop"]) as daemon:

        def put(document: str) -> int:
            with Tree(daemon, "shop") as tree:
                return tree.status("PUT", at(RULES, tree.admin), document)

        with ThreadPoolExecutor(8) as threads:
            assert set(threads.map(put, documents)) == {200}
        with Tree(daemon, "shop") as tree:
            in_force = tree.request("GET", at(RULES, tree.admin)).body
            assert in_force.decode() in documents
        daemon.restart()
        with Tree(daemon, "shop") as tree:
            assert tree.request("GET", at(RULES, tree.admin)).body == in_force


def test_damaged_rules_deny_everything_and_are_logged(tmp_path: pathlib.Path) -> None:
    with trusting(tmp_path, "", ["shop"]) as daemon:
        with Tree(daemon, "shop") as tree:
            tree.put_rules({".read": True})
            assert tree.status("GET", "/a.json") == 200
        assert daemon.stop() == 0
        (daemon.data / "shop" / "rules.json").write_text('{"rules": {".read": tru')
        daemon.start()
        with Tree(daemon, "shop") as tree:
            assert tree.status("GET", "/a.json") == 403
            assert tree.status("GET", at("/a.json", tree.admin)) == 200
        daemon.await_line(f"The rules in {daemon.data}/shop/rules.json cannot be used")


def test_rules_that_cannot_be_stored_do_not_take_effect(tmp_path: pathlib.Path) -> None:
    with trusting(tmp_path, "", ["shop"]) as daemon, Tree(daemon, "shop") as tree:
        (daemon.data / "shop" / "rules.json").mkdir(parents=True)
        response = tree.request("PUT", at(RULES, tree.admin), '{"rules":{".read":true}}')
        check_error(response, 503, "unavailable")
        assert tree.status("GET", "/a.json") == 403


def test_development_mode_is_open_until_rules_are_put(daemon_of_development: Daemon) -> None:
    with Client.of_new_tree(daemon_of_development) as tree:
        assert tree.request("PUT", "/a.json", "1").status == 200
        check_error(tree.request("PUT", RULES, NOTHING), 401, "auth_required")
        owner = {"Authorization": "Bearer owner"}
        opened = {"rules": {".read": True, ".write": True}}
        assert tree.request("GET", RULES, None, owner).json == opened
        assert tree.request("PUT", RULES, NOTHING, owner).status == 200
        check_error(tree.request("GET", "/a.json"), 403, "permission_denied")
        assert tree.request("GET", "/a.json", None, owner).json == 1
    with Client.of_new_tree(daemon_of_development) as another:
        assert another.request("GET", "/a.json").status == 200


@pytest.fixture(scope="module")
def daemon_of_development(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("development")) as running:
        yield running


def test_in_development_mode_a_token_of_any_project_is_valid_for_that_project_only(
    daemon_of_development: Daemon,
) -> None:
    host = "mine.localhost"
    admin = mint(daemon_of_development, host, "a", "--admin")
    user = mint(daemon_of_development, host, "a")
    with Client(daemon_of_development, host) as mine:
        assert mine.request("PUT", at(RULES, admin), NOTHING).status == 200
        assert mine.request("GET", at("/a.json", admin)).status == 200
        assert mine.request("GET", at("/a.json", user)).status == 403
    with Client(daemon_of_development, "another.localhost") as another:
        check_error(another.request("GET", at(RULES, admin)), 401, "auth_required")
        check_error(another.request("GET", at("/a.json", user)), 401, "auth_required")
