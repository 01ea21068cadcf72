"""Admins whose tokens may only read: they see everything, and change nothing in any way."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.access import DATABASES, RULES, Tree, at, put_event, token, trusting
from tests.daemon import Daemon
from tests.realtime import RealtimeClient
from tests.rest import Headers, check_error
from treedbd.web.resource import TreeResource

REFUSAL = "This token may only read."
READER = token("shop", uid="root", admin=True, read_only=True)
OPEN = {".read": True, ".write": True}
LARGE = json.dumps({"a": "x" * 300_000})
OVERRIDES: list[dict[str, Any]] = [
    {},
    {"auth_variable_override": None},
    {"auth_variable_override": {"uid": "ada", "admin": True}},
]
WRITES: list[tuple[str, str, str | None, Headers]] = [
    ("PUT", "/kept.json", "2", ()),
    ("PUT", "/kept.json?print=silent", "2", ()),
    ("PUT", "/kept.json", LARGE, ()),
    ("PUT", "/kept.json", "{not json", ()),
    ("PUT", "/kept/.priority.json", "2", ()),
    ("POST", "/kept.json", "2", ()),
    ("PATCH", "/.json", '{"kept":2}', ()),
    ("PATCH", "/.json", '{"kept":2,"a/b":3}', ()),
    ("PATCH", "/.json", "{}", ()),
    ("DELETE", "/kept.json", None, ()),
    ("POST", "/kept.json", "2", {"X-HTTP-Method-Override": "PUT"}),
    ("POST", "/.json", '{"kept":2}', {"X-HTTP-Method-Override": "PATCH"}),
    ("POST", "/kept.json", None, {"X-HTTP-Method-Override": "DELETE"}),
    ("POST", "/kept.json?x-http-method-override=DELETE", None, ()),
    ("PUT", "/kept.json", "2", {"If-Match": "*"}),
]
READS = {"/.settings/rules/trial.json"}
"""Paths at which a POST writes nothing."""
SETTINGS = sorted(
    (method, rule.rule)
    for rule in TreeResource.app.url_map.iter_rules()
    for method in (rule.methods or set()) & {"PUT", "POST", "PATCH", "DELETE"}
    if not rule.arguments and rule.rule.startswith("/.") and rule.rule not in READS
)
"""Each method that changes a setting, and its path: also those that are declared later."""


@pytest.fixture(scope="module")
def reading_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with trusting(tmp_path_factory.mktemp("reading"), "", ["shop", "firebase"]) as running:
        yield running


@pytest.fixture
def shop(reading_daemon: Daemon) -> Iterator[Tree]:
    with Tree(reading_daemon, "shop") as tree:
        tree.put_rules({"open": OPEN, "kept": OPEN})
        tree.seed("/.json", {"kept": 1, "secret": {"a": 1}})
        yield tree
        assert tree.see("/.json") == {"kept": 1, "secret": {"a": 1}}


def test_it_reads_everything(shop: Tree) -> None:
    assert shop.get(at("/secret.json", READER)) == {"a": 1}
    assert shop.get(at("/.json", READER, shallow=True)) == {"kept": True, "secret": True}
    assert shop.get(at(DATABASES, READER)) == [{"name": "shop"}]
    for path in (RULES, "/.settings/log.json", "/.inspect/activity.json", "/.inspect/caller.json"):
        assert shop.status("GET", at(path, READER)) == 200, path
        assert shop.status("HEAD", at(path, READER)) == 200, path
    with shop.listen(at("/secret.json", READER)) as stream:
        stream.expect(put_event("/", {"a": 1}))
    with RealtimeClient(shop) as client:
        client.succeed("auth", {"cred": READER})
        assert client.listen("secret") == {"a": 1}
        assert client.get("secret/a") == 1


@pytest.mark.parametrize("override", OVERRIDES)
@pytest.mark.parametrize(("method", "target", "body", "headers"), WRITES)
def test_no_request_writes(
    shop: Tree, method: str, target: str, body: str | None, headers: Headers, override: Any
) -> None:
    for _ in range(2):  # the first verifies the token, the second remembers it
        response = shop.request(method, at(target, READER, **override), body, headers)
        assert check_error(response, 403, "permission_denied") == REFUSAL


@pytest.mark.parametrize("override", OVERRIDES)
@pytest.mark.parametrize(("method", "path"), SETTINGS)
def test_no_setting_changes(shop: Tree, method: str, path: str, override: Any) -> None:
    rules = shop.request("GET", at(RULES, READER)).body
    for body in ('{"uid":"ada"}', '{"rules":{".read":true}}'):
        response = shop.request(method, at(path, READER, **override), body)
        if path != "/.settings/tokens.json" or "uid" in body:
            assert check_error(response, 403, "permission_denied") == REFUSAL
        assert response.status >= 400
    assert shop.request("GET", at(RULES, READER)).body == rules


def test_rules_are_not_put_by_an_overridden_method(shop: Tree) -> None:
    headers = {"X-HTTP-Method-Override": "PUT"}
    response = shop.request("POST", at(RULES, READER), '{"rules":{}}', headers)
    assert response.status in (403, 405)


@pytest.mark.parametrize("override", OVERRIDES)
def test_no_stream_writes_when_it_ends(shop: Tree, override: Any) -> None:
    target = at("/.json", READER, onDisconnect={"kept": 2}, **override)
    with shop.try_to_listen(target) as stream:
        assert stream.refusal is not None
        assert check_error(stream.refusal, 403, "permission_denied") == REFUSAL
    response = shop.request("HEAD", target, None, {"Accept": "text/event-stream"})
    assert response.status == 403


@pytest.mark.parametrize("override", [{}, {"authvar": {"uid": "ada"}}, {"noauth": True}])
def test_no_message_of_a_socket_writes(shop: Tree, override: Any) -> None:
    refused = ("permission_denied", REFUSAL)
    with RealtimeClient(shop) as client:
        client.succeed("auth", {"cred": READER, **override})
        assert client.request("p", {"p": "kept", "d": 2}) == refused
        assert client.request("p", {"p": "kept", "d": "x" * 100_000}) == refused
        assert client.request("p", {"p": "kept", "d": 2, "h": "wrong"}) == refused
        assert client.request("m", {"p": "/", "d": {"kept": 2, "open/a": 2}}) == refused
        assert client.request("o", {"p": "kept", "d": 2}) == refused
        assert client.request("om", {"p": "/", "d": {"kept": 2}}) == refused
        client.succeed("oc", {"p": "kept", "d": None})
        write = json.dumps({"t": "d", "d": {"r": 99, "a": "p", "b": {"p": "kept", "d": LARGE}}})
        client.send_long(write)
        assert client.await_answer(99) == refused
        assert client.get("kept") == 1


def test_a_socket_writes_again_with_another_identity(shop: Tree) -> None:
    with RealtimeClient(shop) as client:
        client.succeed("auth", {"cred": READER})
        assert client.request("p", {"p": "open", "d": 2}).status == "permission_denied"
        client.succeed("unauth")
        client.put("open", 2)
        client.put("open", None)


def test_explanations_and_dry_runs_are_reads(shop: Tree) -> None:
    for method, body in (("PUT", "2"), ("PATCH", '{"a":2}'), ("POST", "2"), ("DELETE", None)):
        target = at("/kept.json", READER, auth_variable_override={"uid": "ada"})
        response = shop.request(method, target, body, {"X-TreeDB-Explain": "true"})
        assert (response.status, response.json["allowed"]) == (200, True), response
    response = shop.request("PUT", at(RULES, READER, dryRun=True), '{"rules":{".read":true}}')
    assert response.json == {"status": "ok"}
    response = shop.request("PUT", at(RULES, READER, dryRun=False), '{"rules":{".read":true}}')
    assert check_error(response, 403, "permission_denied") == REFUSAL


def test_an_explanation_says_that_a_write_is_not_allowed(shop: Tree) -> None:
    explained = [
        *(("PUT", "/kept.json", "2"), ("PATCH", "/kept.json", '{"a":2}'), ("POST", "/a.json", "2")),
        *(("DELETE", "/kept.json", None), ("PUT", RULES, '{"rules":{}}')),
        *(("PUT", "/.settings/database.json", None), ("DELETE", "/.settings/database.json", None)),
        *(("POST", "/.settings/compact.json", None), ("POST", "/.settings/backup.json", None)),
        ("POST", "/.settings/tokens.json", '{"uid":"ada"}'),
        ("DELETE", "/.settings/cursors.json?cursor=archive", None),
        ("PUT", "/.settings/webhooks.json", "{}"),
        ("DELETE", "/.settings/webhooks.json?name=a", None),
        *(("PUT", "/.settings/events.json", "{}"), ("POST", "/.settings/events.json", "{}")),
        ("DELETE", "/.settings/events.json?name=a", None),
        ("POST", "/.settings/functionTriggers.json", "[]"),
    ]
    for method, path, body in explained:
        response = shop.request(method, at(path, READER), body, {"X-TreeDB-Explain": "true"})
        shown = response.json
        assert (response.status, shown["allowed"], shown["admin"]) == (200, False, True), response
        assert shown["reason"] == REFUSAL
    reads = [
        *(("GET", "/kept.json", None), ("GET", RULES, None)),
        *(
            ("PUT", RULES + "?dryRun=true", '{"rules":{}}'),
            ("POST", RULES.replace(".json", "/trial.json"), "{}"),
        ),
        ("POST", "/.settings/tokens.json", '{"renew":true}'),
    ]
    for method, path, body in reads:
        response = shop.request(method, at(path, READER), body, {"X-TreeDB-Explain": "true"})
        assert (response.status, response.json["allowed"]) == (200, True), (path, response)


def test_in_the_dialect_of_firebase_it_is_a_denial_as_any_other(reading_daemon: Daemon) -> None:
    reader = token("firebase", admin=True, read_only=True)
    with Tree(reading_daemon, "firebase") as tree:
        response = tree.request("PUT", at("/a.json", reader), "1")
        assert (response.status, response.json) == (401, {"error": "Permission denied"})


def test_what_is_neither_true_nor_false_makes_no_admin(shop: Tree) -> None:
    for value in ("true", 1, None):
        bad = token("shop", admin=True, read_only=value)
        message = check_error(shop.request("GET", at("/kept.json", bad)), 401, "auth_required")
        assert message == "The token is malformed: its read_only must be true or false."


def test_a_daemon_says_at_its_log_nothing_of_the_token(shop: Tree) -> None:
    shop.request("PUT", at("/kept.json", READER), "2")
    assert READER not in shop.daemon.log
    assert "Traceback" not in shop.daemon.log
