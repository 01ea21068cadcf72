"""Rules put, read and checked over HTTP, by administrators and nobody else."""

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


# Before there are any.


def test_before_any_are_put_the_rules_are_empty_and_deny(shared_daemon: Daemon) -> None:
    with Tree(shared_daemon, "fresh") as tree:
        answer = tree.ask("GET", at(RULES, tree.admin))
        assert (answer.status, answer.body) == (200, NOTHING.encode())
        assert tree.get(at(RULES, tree.admin, format="strict")) == {"rules": {}}
        for bearer in ("", user("fresh", "a")):
            check_error(tree.ask("GET", at("/a.json", bearer)), 403, "permission_denied")
            check_error(tree.ask("PUT", at("/a.json", bearer), "1"), 403, "permission_denied")
        assert not list(shared_daemon.data.glob("fresh/*"))


# What is put is kept as it is.


@pytest.mark.parametrize("text", [COMMENTED, NOTHING, '{"rules" : {".read":true}}\r\n'])
def test_rules_read_back_as_they_were_put(shop: Tree, text: str) -> None:
    answer = shop.ask("PUT", at(RULES, shop.admin), text)
    assert (answer.status, answer.json) == (200, {"status": "ok"})
    answer = shop.ask("GET", at(RULES, shop.admin))
    assert answer.body == text.encode()
    assert answer.headers["Content-Type"] == "application/json; charset=utf-8"
    assert answer.headers["Cache-Control"] == "no-store"


def test_rules_read_back_as_plain_json_where_that_is_asked(shop: Tree) -> None:
    assert shop.status("PUT", at(RULES, shop.admin), COMMENTED) == 200
    assert shop.get(at(RULES, shop.admin, format="strict")) == STRICT
    check_error(shop.ask("GET", at(RULES, shop.admin, format="loose")), 400, "invalid_query")


def test_head_is_get_without_a_body(shop: Tree) -> None:
    shop.put_rules({"a": {".read": True}})
    got = shop.ask("GET", at(RULES, shop.admin))
    answer = shop.ask("HEAD", at(RULES, shop.admin))
    assert (answer.status, answer.body) == (200, b"")
    assert answer.headers["Content-Length"] == got.headers["Content-Length"]


@pytest.mark.parametrize("other", ["/.settings/rules/.json", "//.settings//rules//.json"])
def test_the_places_may_be_named_in_the_other_form_too(shop: Tree, other: str) -> None:
    answer = shop.ask("PUT", at(other, shop.admin), COMMENTED)
    assert (answer.status, answer.json) == (200, {"status": "ok"})
    assert shop.ask("GET", at(other, shop.admin)).body == COMMENTED.encode()
    listed = other.replace("settings", "inspect").replace("rules", "databases")
    assert shop.get(at(listed, shop.admin))
    check_error(shop.ask("GET", other), 401, "auth_required")
    for unknown in ("/.settings/.json", "/.settings/rules.json/.json", "/.settings/rules/json"):
        assert shop.status("GET", at(unknown, shop.admin)) in (400, 404)


# How answers are printed.


@pytest.mark.parametrize("place", [RULES, f"{RULES}?format=strict", DATABASES])
def test_print_silent_answers_without_a_body(shop: Tree, place: str) -> None:
    shop.put_rules({})
    for method in ("GET", "HEAD"):
        answer = shop.ask(method, at(place, shop.admin, print="silent"))
        assert (answer.status, answer.body) == (204, b"")
    check_error(shop.ask("GET", at(place, shop.admin, print="loud")), 400, "invalid_query")
    check_error(shop.ask("GET", at(place, "", print="silent")), 401, "auth_required")


def test_rules_may_be_put_in_silence(shop: Tree) -> None:
    shop.put_rules({})
    opened = '{"rules":{"a":{".read":true}}}'
    assert shop.status("PUT", at(RULES, shop.admin, print="silent", dryRun="true"), opened) == 204
    assert shop.status("GET", "/a.json") == 403
    assert shop.ask("PUT", at(RULES, shop.admin), opened, {"print": "silent"}).status == 204
    assert shop.status("GET", "/a.json") == 200
    check_error(shop.ask("PUT", at(RULES, shop.admin, print="silent"), "{"), 400, "invalid_data")


def test_print_pretty_indents_what_is_printed_and_leaves_a_text_as_it_was_put(
    shop: Tree, firebase: Tree
) -> None:
    for tree, colon in ((shop, '": '), (firebase, '" : ')):
        put = tree.ask("PUT", at(RULES, tree.admin, print="pretty"), COMMENTED)
        assert put.body == f'{{\n  "status{colon}"ok"\n}}'.encode()
        strict = tree.ask("GET", at(RULES, tree.admin, format="strict", print="pretty"))
        assert strict.json == STRICT
        assert strict.body.startswith(f'{{\n  "rules{colon}{{\n    "grüße'.encode())
        assert tree.ask("GET", at(RULES, tree.admin, print="pretty")).body == COMMENTED.encode()
        listed = tree.ask("GET", at(DATABASES, tree.admin, print="pretty")).body
        assert listed.startswith(f'[\n  {{\n    "name{colon}'.encode())


# Explanations.


@pytest.mark.parametrize(
    ("method", "place", "body"),
    [
        ("GET", RULES, None),
        ("PUT", RULES, '{"rules":{".read":true,".write":true}}'),
        ("PUT", f"{RULES}?dryRun=true", '{"rules":{}}'),
        ("PUT", RULES, "{"),
        ("GET", f"{RULES}?format=strict", None),
        ("GET", DATABASES, None),
    ],
)
def test_an_explanation_of_the_places_says_that_an_admin_may_and_does_nothing(
    shop: Tree, method: str, place: str, body: str | None
) -> None:
    shop.put_rules({"a": {".read": True}})
    before = shop.ask("GET", at(RULES, shop.admin)).body
    explain = {"X-TreeDB-Explain": "true"}
    answer = shop.ask(method, at(place, shop.admin), body, explain)
    assert (answer.status, answer.json) == (200, {"allowed": True, "admin": True, "rules": []})
    assert shop.ask("GET", at(RULES, shop.admin)).body == before
    assert shop.status("GET", "/b.json") == 403
    check_error(shop.ask(method, place, body, explain), 401, "auth_required")
    other = at(place, user("shop", "a"))
    check_error(shop.ask(method, other, body, explain), 403, "permission_denied")


def test_explanations_are_printed_as_it_is_asked(shop: Tree) -> None:
    shop.put_rules({"a": {".read": True}})
    explain = {"X-TreeDB-Explain": "true"}
    for place in ("/a.json", RULES, DATABASES):
        plain = shop.ask("GET", at(place, shop.admin), None, explain)
        pretty = shop.ask("GET", at(place, shop.admin, print="pretty"), None, explain)
        assert pretty.body.startswith(b'{\n  "allowed": true,\n  "admin": true')
        assert pretty.json == plain.json
        assert shop.ask("GET", at(place, shop.admin, print="silent"), None, explain).status == 204


# When they hold.


def test_rules_hold_from_the_next_request_on(shop: Tree) -> None:
    for allowed in (True, False, True):
        shop.put_rules({"a": {".read": allowed, ".write": allowed}})
        assert shop.status("GET", "/a.json") == (200 if allowed else 403)
        assert shop.status("PUT", "/a.json", "1") == (200 if allowed else 403)


def test_rules_hold_for_every_database_of_the_project_and_for_no_other(
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
            assert json.loads(tree.ask("GET", at(RULES, one.admin)).body)["rules"]["a"]
        assert other.status("GET", "/a.json") == 403
        assert other.ask("GET", at(RULES, other.admin)).body == NOTHING.encode()


def test_a_post_may_stand_for_a_put(shop: Tree) -> None:
    headers = {"X-HTTP-Method-Override": "PUT"}
    target = at(RULES, shop.admin)
    assert shop.ask("POST", target, '{"rules":{".read":true}}', headers).status == 200
    assert shop.status("GET", "/a.json") == 200


# Checking alone.


def test_a_dry_run_checks_and_changes_nothing(shop: Tree) -> None:
    shop.put_rules({"a": {".read": True}})
    before = shop.ask("GET", at(RULES, shop.admin)).body
    target = at(RULES, shop.admin, dryRun="true")
    answer = shop.ask("PUT", target, NOTHING)
    assert (answer.status, answer.json) == (200, {"status": "ok"})
    check_error(shop.ask("PUT", target, "{"), 400, "invalid_data")
    assert shop.ask("GET", at(RULES, shop.admin)).body == before
    assert shop.status("GET", "/a.json") == 200
    check_error(
        shop.ask("PUT", at(RULES, shop.admin, dryRun="maybe"), NOTHING), 400, "invalid_query"
    )
    assert shop.status("PUT", at(RULES, shop.admin, dryRun="false"), NOTHING) == 200
    assert shop.status("GET", "/a.json") == 403


@pytest.mark.parametrize(("document", "text"), FAULTS)
@pytest.mark.parametrize("dry", ["true", "false"])
def test_a_fault_is_told_with_its_place(
    shop: Tree, firebase: Tree, document: str, text: str, dry: str
) -> None:
    for tree in (shop, firebase):
        tree.put_rules({"a": {".read": True}})
    answer = shop.ask("PUT", at(RULES, shop.admin, dryRun=dry), document)
    message = check_error(answer, 400, "invalid_data")
    line, column, rest = message.split(":", 2)
    assert line.isdigit()
    assert column.isdigit()
    assert rest.startswith(" ")
    assert text in message
    answer = firebase.ask("PUT", at(RULES, firebase.admin, dryRun=dry), document)
    assert (answer.status, answer.json) == (400, {"error": f"{message}\n"})
    for tree in (shop, firebase):
        assert tree.status("GET", "/a.json") == 200


def test_a_document_that_is_too_large_is_refused(shop: Tree) -> None:
    comment = "/*" + " " * 1_048_576 + "*/"
    answer = shop.ask("PUT", at(RULES, shop.admin), comment + NOTHING)
    assert "longer than 1048576 bytes" in check_error(answer, 400, "invalid_data")
    answer = shop.ask("PUT", at(RULES, shop.admin), " " * (16 * 1_048_576) + NOTHING)
    check_error(answer, 413, "payload_too_large")


# Who may.


@pytest.mark.parametrize(
    ("method", "place", "body"),
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
def test_the_places_of_administrators_are_for_them_alone(
    shop: Tree, firebase: Tree, method: str, place: str, body: str | None
) -> None:
    shop.put_rules({})
    firebase.put_rules({})
    user_of_shop = at(place, user("shop", "a", admin="true"))
    assert shop.status(method, place, body) == 401
    assert shop.status(method, user_of_shop, body) == 403
    assert firebase.status(method, place, body) == 401
    assert firebase.status(method, at(place, user("firebase", "a")), body) == 401
    assert shop.status(method, at(place, shop.admin), body) == 200
    if method != "HEAD":
        check_error(shop.ask(method, place, body), 401, "auth_required")
        check_error(shop.ask(method, user_of_shop, body), 403, "permission_denied")
        answer = firebase.ask(method, at(place, user("firebase", "a")), body)
        assert answer.body == b'{\n  "error" : "Permission denied"\n}\n'
    assert firebase.ask("GET", at(RULES, firebase.admin)).body == b'{"rules": {}}'


def test_no_rule_opens_the_places_of_administrators(shop: Tree) -> None:
    shop.put_rules({".read": True, ".write": True})
    assert shop.status("GET", RULES) == 401
    assert shop.status("PUT", RULES, NOTHING) == 401
    assert shop.status("GET", DATABASES) == 401
    assert shop.status("GET", "/.json") == 200


def test_refusals_come_in_their_order(shop: Tree) -> None:
    bad = "?timeout=soon"
    for place, allowed in ((RULES, "GET, HEAD, PUT, OPTIONS"), (DATABASES, "GET, HEAD, OPTIONS")):
        for method in ("POST", "PATCH", "DELETE", "BREW"):
            answer = shop.ask(method, f"{place}{bad}&auth=rubbish", "1")
            check_error(answer, 405, "method_not_allowed")
            assert answer.headers["Allow"] == allowed
        overridden = shop.ask("POST", place, "1", {"X-HTTP-Method-Override": "BREW"})
        check_error(overridden, 405, "method_not_allowed")
        assert overridden.headers["Allow"] == allowed
        check_error(shop.ask("GET", f"{place}{bad}&auth=rubbish"), 400, "invalid_query")
        check_error(shop.ask("GET", f"{place}?auth=rubbish"), 401, "auth_required")
    check_error(shop.ask("PUT", DATABASES, "1"), 405, "method_not_allowed")
    check_error(shop.ask("PUT", f"{RULES}?dryRun=x", "{"), 400, "invalid_query")
    with Client(shop.daemon, f"unknown.{DOMAIN}") as nobody:
        for method in ("GET", "PUT", "BREW"):
            check_error(nobody.ask(method, f"{RULES}{bad}", "{"), 404, "not_found")


def test_whoever_asks_first_is_told_the_methods_of_the_place(shop: Tree) -> None:
    asked = {"Access-Control-Request-Method": "PUT", "Origin": "https://a.test"}
    for place, allowed in (
        (RULES, "GET, HEAD, PUT, OPTIONS"),
        (DATABASES, "GET, HEAD, OPTIONS"),
        ("/.health", "GET, HEAD, OPTIONS"),
    ):
        answer = shop.ask("OPTIONS", place, None, asked)
        assert answer.status == 204
        assert answer.headers["Allow"] == allowed
        assert answer.headers["Access-Control-Allow-Methods"] == allowed


def test_the_databases_of_a_project_are_listed_by_their_labels(shared_daemon: Daemon) -> None:
    with Tree(shared_daemon, "other") as tree, Tree(shared_daemon, "other", "eu") as eu:
        assert tree.get(at(DATABASES, tree.admin)) == [{"name": "other"}]
        eu.seed("/a.json", 1)
        names = [{"name": "other"}, {"name": "eu--other"}]
        assert tree.get(at(DATABASES, tree.admin)) == names
        assert eu.get(at(DATABASES, tree.admin)) == names


# What becomes of them.


@pytest.mark.parametrize("is_killed", [False, True])
def test_rules_outlive_a_restart(tmp_path: pathlib.Path, is_killed: bool) -> None:
    with trusting(tmp_path, "", ["shop"]) as daemon:
        with Tree(daemon, "shop") as tree:
            tree.ask("PUT", at(RULES, tree.admin), '{"rules": {"a": {".read": true}}}')
        if is_killed:
            daemon.kill()
            daemon.start()
        else:
            daemon.restart()
        with Tree(daemon, "shop") as tree:
            assert tree.status("GET", "/a.json") == 200
            assert tree.status("GET", "/b.json") == 403
            answer = tree.ask("GET", at(RULES, tree.admin))
            assert answer.body == b'{"rules": {"a": {".read": true}}}'
        for file in daemon.data.glob("shop/*"):
            assert stat.S_IMODE(file.stat().st_mode) == 0o600, file


def test_rules_that_are_put_all_at_once_are_in_force_as_they_are_kept(
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
            in_force = tree.ask("GET", at(RULES, tree.admin)).body
            assert in_force.decode() in documents
        daemon.restart()
        with Tree(daemon, "shop") as tree:
            assert tree.ask("GET", at(RULES, tree.admin)).body == in_force


def test_rules_that_were_damaged_deny_everything_and_say_so(tmp_path: pathlib.Path) -> None:
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
        daemon.await_line(f"The rules in {daemon.data}/shop/rules.json are no good")


def test_rules_that_cannot_be_kept_are_not_in_force(tmp_path: pathlib.Path) -> None:
    with trusting(tmp_path, "", ["shop"]) as daemon, Tree(daemon, "shop") as tree:
        (daemon.data / "shop" / "rules.json").mkdir(parents=True)
        answer = tree.ask("PUT", at(RULES, tree.admin), '{"rules":{".read":true}}')
        check_error(answer, 503, "unavailable")
        assert tree.status("GET", "/a.json") == 403


def test_development_mode_is_open_until_rules_are_put(daemon_of_development: Daemon) -> None:
    with Client.of_new_tree(daemon_of_development) as tree:
        assert tree.ask("PUT", "/a.json", "1").status == 200
        check_error(tree.ask("PUT", RULES, NOTHING), 401, "auth_required")
        owner = {"Authorization": "Bearer owner"}
        opened = {"rules": {".read": True, ".write": True}}
        assert tree.ask("GET", RULES, None, owner).json == opened
        assert tree.ask("PUT", RULES, NOTHING, owner).status == 200
        check_error(tree.ask("GET", "/a.json"), 403, "permission_denied")
        assert tree.ask("GET", "/a.json", None, owner).json == 1
    with Client.of_new_tree(daemon_of_development) as another:
        assert another.ask("GET", "/a.json").status == 200


@pytest.fixture(scope="module")
def daemon_of_development(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("development")) as running:
        yield running


def test_in_development_mode_tokens_are_made_for_any_project_and_good_for_that_alone(
    daemon_of_development: Daemon,
) -> None:
    host = "mine.localhost"
    admin = mint(daemon_of_development, host, "a", "--admin")
    user = mint(daemon_of_development, host, "a")
    with Client(daemon_of_development, host) as mine:
        assert mine.ask("PUT", at(RULES, admin), NOTHING).status == 200
        assert mine.ask("GET", at("/a.json", admin)).status == 200
        assert mine.ask("GET", at("/a.json", user)).status == 403
    with Client(daemon_of_development, "another.localhost") as another:
        check_error(another.ask("GET", at(RULES, admin)), 401, "auth_required")
        check_error(another.ask("GET", at("/a.json", user)), 401, "auth_required")
