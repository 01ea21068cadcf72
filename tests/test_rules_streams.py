"""Streams under rules: checked at the start, and ended when the right to read is lost."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.access import (
    AUTH_REVOKED,
    CANCEL,
    KEEP_ALIVE,
    RULES,
    Event,
    Stream,
    Tree,
    at,
    ending,
    put_event,
    token,
    trusting,
    user,
)
from tests.daemon import Daemon
from tests.rest import print_request

RACES = 1000
PATIENCE_S = 120
ALLOWED = "root.child('allowed/' + auth.uid).val() == true"
RULE_SET: dict[str, Any] = {
    "mine": {"$uid": {".read": "auth.uid == $uid"}},
    "rooms": {"$room": {".read": "data.child('members/' + auth.uid).exists()"}},
    "watched": {".read": ALLOWED, "$child": {"public": {".read": True}}},
    "chained": {
        ".read": "root.child('teams').child(root.child('teamOf').child(auth.uid).val())"
        ".child('may').val() == true"
    },
    "prioritised": {".read": "root.child('allowed').getPriority() == 1"},
    "counted": {".read": f"query.limitToFirst == 2 && {ALLOWED}"},
    "timed": {".read": "now < root.child('until').val()"},
    "public": {".read": True},
}
CONFIG = "[streams]\nkeep_alive_s = 0.2\n"


@pytest.fixture(scope="module")
def shared_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("streams")
    with trusting(folder, "", ["shop"]) as running:
        yield running


@pytest.fixture(scope="module")
def frequent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    """A project whose streams send a keep-alive every fifth of a second."""
    folder = tmp_path_factory.mktemp("frequent")
    with trusting(folder, CONFIG, ["shop"]) as running, Tree(running, "shop") as tree:
        tree.put_rules(RULE_SET)
        yield tree


@pytest.fixture
def shop(shared_daemon: Daemon) -> Iterator[Tree]:
    with Tree(shared_daemon, "shop") as tree:
        tree.seed("/.json", None)
        tree.put_rules(RULE_SET)
        yield tree


@pytest.fixture(scope="module")
def alice() -> str:
    return user("shop", "alice")


def allow(tree: Tree, uid: str, allowed: bool = True) -> None:
    tree.seed(f"/allowed/{uid}.json", allowed)


# The start.


def test_a_denied_stream_is_an_ordinary_error(shop: Tree, alice: str) -> None:
    for target, status in (
        ("/mine/bob.json", 403),
        ("/.json", 403),
        ("/mine/alice.json", 200),
        ("/mine/alice/deeper/still.json", 200),
    ):
        with shop.try_to_listen(at(target, alice)) as stream:
            assert stream.status == status
            if stream.refusal is not None:
                assert stream.refusal.json["error"] == "permission_denied"
                assert stream.headers["Content-Type"].startswith("application/json")


# New rules.


def test_new_rules_end_only_the_streams_that_they_deny(shop: Tree, alice: str) -> None:
    with (
        shop.listen(at("/mine/alice.json", alice)) as ended,
        shop.listen("/public.json") as kept,
        shop.listen(at("/mine.json", shop.admin)) as of_admin,
        shop.listen(
            at("/mine/bob.json", shop.admin, auth_variable_override={"uid": "bob"})
        ) as of_bob,
    ):
        for stream in (ended, kept, of_admin, of_bob):
            stream.expect(put_event("/", None))
        shop.put_rules({"public": {".read": "auth == null"}})
        ended.expect_end(CANCEL)
        of_bob.expect_end(CANCEL)
        shop.seed("/public.json", 1)
        shop.seed("/mine.json", {"alice": 2})
        kept.expect(put_event("/", 1))
        of_admin.expect(put_event("/", {"alice": 2}))


def test_new_rules_end_streams_of_every_database_of_the_project(
    shared_daemon: Daemon, shop: Tree
) -> None:
    with (
        Tree(shared_daemon, "shop", "eu") as eu,
        Tree(shared_daemon, "shop", "unwritten") as unwritten,
    ):
        eu.seed("/public.json", 1)
        with eu.listen("/public.json") as one, unwritten.listen("/public.json") as two:
            one.expect(put_event("/", 1))
            two.expect(put_event("/", None))
            shop.put_rules({})
            one.expect_end(CANCEL)
            two.expect_end(CANCEL)


# Data that the rules read.


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("DELETE", "/rooms/1/members/alice.json", None),
        ("DELETE", "/rooms/1/members.json", None),
        ("DELETE", "/rooms/1.json", None),
        ("PUT", "/rooms/1.json", {"secret": 1}),
        ("PUT", "/rooms.json", {"1": {"secret": 1}}),
        ("PUT", "/.json", {"rooms": {"1": {"secret": 1}}}),
        ("PATCH", "/rooms/1.json", {"members/alice": None, "secret": 1}),
        ("PATCH", "/.json", {"rooms/1/members": {"bob": 1}, "rooms/1/secret": 1}),
        ("PATCH", "/rooms/1/members.json", {"alice": None, "bob": 1}),
        ("PUT", "/rooms/1/members.json", "nobody"),
    ],
)
def test_a_write_that_revokes_the_right_is_not_sent(
    shop: Tree, alice: str, method: str, path: str, body: Any
) -> None:
    shop.seed("/rooms/1.json", {"members": {"alice": 1, "carol": 1}})
    with (
        shop.listen(at("/rooms/1.json", alice)) as stream,
        shop.listen(at("/rooms/1/secret.json", alice)) as below,
    ):
        stream.expect(put_event("/", {"members": {"alice": 1, "carol": 1}}))
        below.expect(put_event("/", None))
        shop.seed("/rooms/1/text.json", "allowed")
        stream.expect(put_event("/text", "allowed"))
        text = None if body is None else json.dumps(body)
        assert shop.status(method, at(path, shop.admin), text) == 200
        stream.expect_end(CANCEL)
        below.expect_end(CANCEL)
    assert shop.status("GET", at("/rooms/1.json", alice)) == 403


def test_a_write_that_keeps_the_right_is_sent(shop: Tree, alice: str) -> None:
    shop.seed("/rooms/1/members.json", {"alice": 1})
    with shop.listen(at("/rooms/1.json", alice)) as stream:
        stream.expect(put_event("/", {"members": {"alice": 1}}))
        for number in range(5):
            shop.seed("/rooms/1/members/alice.json", number)
            stream.expect(put_event("/members/alice", number))
        shop.seed("/rooms/1/members/alice.json", None)
        stream.expect_end(CANCEL)


def test_data_elsewhere_that_a_rule_reads_is_watched(shop: Tree, alice: str) -> None:
    allow(shop, "alice")
    with shop.listen(at("/watched.json", alice)) as stream:
        stream.expect(put_event("/", None))
        allow(shop, "bob", False)
        shop.seed("/watched.json", 1)
        stream.expect(put_event("/", 1))
        allow(shop, "alice", False)
        stream.expect_end(CANCEL)


def test_a_stream_of_changes_is_ended_too(shop: Tree, alice: str) -> None:
    allow(shop, "alice")
    with (
        shop.listen(at("/watched.json", alice, describe="true")) as stream,
        shop.listen(at("/watched.json", shop.admin, describe="true")) as of_admin,
    ):
        for each in (stream, of_admin):
            each.expect(Event("changed", {"path": "/"}))
        shop.seed("/watched/a.json", 1)
        for each in (stream, of_admin):
            each.expect(Event("changed", {"path": "/a"}))
        patch = json.dumps({"allowed/alice": False, "watched/b": "secret"})
        assert shop.status("PATCH", at("/.json", shop.admin), patch) == 200
        stream.expect_end(CANCEL)
        of_admin.expect(Event("changed", {"path": "/", "keys": ["b"]}))


def test_a_right_that_is_granted_again_needs_a_new_stream(shop: Tree, alice: str) -> None:
    for number in range(3):
        allow(shop, "alice")
        with shop.listen(at("/watched.json", alice)) as stream:
            stream.expect(put_event("/", number or None))
            allow(shop, "alice", False)
            stream.expect_end(CANCEL)
        shop.seed("/watched.json", number + 1)


def test_data_that_a_rule_begins_to_read_is_watched(shop: Tree, alice: str) -> None:
    shop.seed("/teamOf/alice.json", "red")
    shop.seed("/teams.json", {"red": {"may": True}, "blue": {"may": True}})
    with shop.listen(at("/chained.json", alice)) as stream:
        stream.expect(put_event("/", None))
        shop.seed("/teamOf/alice.json", "blue")
        shop.seed("/teams/red/may.json", False)
        shop.seed("/chained.json", "still allowed")
        stream.expect(put_event("/", "still allowed"))
        shop.seed("/teams/blue/may.json", False)
        stream.expect_end(CANCEL)


def test_a_priority_that_a_rule_reads_is_watched(shop: Tree) -> None:
    shop.seed("/allowed.json", {"x": 1, ".priority": 1})
    with shop.listen("/prioritised.json") as stream:
        stream.expect(put_event("/", None))
        shop.seed("/allowed/.priority.json", 2)
        stream.expect_end(CANCEL)


def test_a_stream_of_a_query_is_ended_too(shop: Tree, alice: str) -> None:
    allow(shop, "alice")
    target = at("/counted.json?orderBy=%22$key%22&limitToFirst=2", alice)
    with shop.listen(target) as stream:
        stream.expect(put_event("/", None))
        shop.seed("/counted/a.json", 1)
        stream.expect(put_event("/a", 1))
        patch = json.dumps({"allowed/alice": False, "counted/b": "secret"})
        assert shop.status("PATCH", at("/.json", shop.admin), patch) == 200
        stream.expect_end(CANCEL)


def test_a_right_to_a_child_is_independent(shop: Tree, alice: str) -> None:
    allow(shop, "alice")
    with (
        shop.listen(at("/watched/x.json", alice)) as ended,
        shop.listen(at("/watched/x/public.json", alice)) as kept,
    ):
        for stream in (ended, kept):
            stream.expect(put_event("/", None))
        allow(shop, "alice", False)
        ended.expect_end(CANCEL)
        shop.seed("/watched/x/public.json", 1)
        kept.expect(put_event("/", 1))


# The time.


def test_a_right_that_expires_ends_a_stream_at_a_keep_alive(frequent: Tree) -> None:
    frequent.seed("/until.json", (time.time() + 1.5) * 1000)
    with frequent.listen("/timed.json") as stream:
        stream.expect(put_event("/", None))
        while (event := stream.next()) == KEEP_ALIVE:
            pass
        assert event == CANCEL
        assert time.time() * 1000 >= frequent.see("/until.json")
    assert frequent.status("GET", "/timed.json") == 403


def test_an_expired_right_ends_a_stream_before_the_next_event(shop: Tree) -> None:
    shop.seed("/until.json", (time.time() + 1.5) * 1000)
    with shop.listen("/timed.json") as stream:
        stream.expect(put_event("/", None))
        shop.seed("/timed.json", "allowed")
        stream.expect(put_event("/", "allowed"))
        await_denial(shop, "/timed.json")
        shop.seed("/timed.json", "denied")
        stream.expect_end(CANCEL)


def test_a_right_that_is_extended_keeps_its_stream(frequent: Tree) -> None:
    end = time.time() + 1.5
    frequent.seed("/until.json", end * 1000)
    with frequent.listen("/timed.json") as stream:
        stream.next()
        frequent.seed("/until.json", (end + 1) * 1000)
        while (event := stream.next()) == KEEP_ALIVE:
            pass
        assert event == CANCEL
        assert time.time() >= end + 1


def await_denial(tree: Tree, target: str) -> None:
    until = time.monotonic() + PATIENCE_S
    while tree.status("GET", target) != 403:
        assert time.monotonic() < until


# Tokens that run out.


def test_a_token_that_expires_ends_its_streams(frequent: Tree) -> None:
    soon = ending(2)
    with (
        frequent.listen(at("/mine/alice.json", user("shop", "alice", exp=soon))) as of_alice,
        frequent.listen(at("/mine/bob.json", token("shop", admin=True, exp=soon))) as of_admin,
        frequent.listen(at("/mine/carol.json", user("shop", "carol"))) as kept,
        frequent.listen(
            at("/mine/dora.json", user("shop", "dora", exp=soon), describe="true")
        ) as of_changes,
    ):
        for stream in (of_alice, of_admin, kept):
            stream.expect(put_event("/", None))
        of_changes.expect(Event("changed", {"path": "/"}))
        frequent.seed("/mine/alice.json", 1)
        of_alice.expect(put_event("/", 1))
        of_alice.expect_end(AUTH_REVOKED)
        assert time.time() >= soon + 10
        of_admin.expect_end(AUTH_REVOKED)
        of_changes.expect_end(AUTH_REVOKED)
        frequent.seed("/mine/carol.json", 1)
        kept.expect(put_event("/", 1))


def test_nothing_is_sent_after_a_token_has_expired(shop: Tree) -> None:
    bearer = user("shop", "alice", exp=ending(1.5))
    target = at("/mine/alice.json", bearer)
    with shop.listen(target) as stream:
        until = time.monotonic() + PATIENCE_S
        while shop.status("GET", target) != 401:
            assert time.monotonic() < until
        shop.seed("/mine/alice.json", "denied")
        stream.expect(put_event("/", None))
        stream.expect_end(AUTH_REVOKED)


# Resumed streams.


def test_a_resumed_stream_omits_writes_made_while_the_right_was_lost(
    shop: Tree, alice: str
) -> None:
    allow(shop, "alice")
    target = at("/watched.json?resume=true", alice)
    with shop.listen(target) as stream:
        first = stream.next()
        assert first.id is not None
    shop.seed("/watched.json", "allowed later")
    resume = {"Last-Event-ID": first.id}
    with shop.listen(target, resume) as stream:
        received = stream.next()
        assert received[:2] == put_event("/", "allowed later")[:2]
    allow(shop, "alice", False)
    shop.seed("/watched.json", "secret")
    shop.seed("/watched.json", "after all")
    allow(shop, "alice")
    with shop.listen(target, resume) as stream:
        assert stream.next()[:2] == put_event("/", "after all")[:2]
        shop.seed("/watched.json", "the next")
        assert stream.next()[:2] == put_event("/", "the next")[:2]


def test_a_resumed_stream_omits_writes_made_under_other_rules(shop: Tree, alice: str) -> None:
    target = at("/mine/alice.json?resume=true", alice)
    with shop.listen(target) as stream:
        first = stream.next()
    shop.put_rules({})
    shop.seed("/mine/alice.json", "secret")
    shop.seed("/mine/alice.json", "after all")
    shop.put_rules(RULE_SET)
    with shop.listen(target, {"Last-Event-ID": first.id or ""}) as stream:
        assert stream.next()[:2] == put_event("/", "after all")[:2]


def test_a_resumed_stream_omits_writes_made_before_the_caller_had_the_right(
    shop: Tree, alice: str
) -> None:
    allow(shop, "bob")
    with shop.listen(at("/watched.json?resume=true", user("shop", "bob"))) as stream:
        first = stream.next()
    shop.seed("/watched.json", "secret")
    shop.seed("/watched.json", "after all")
    allow(shop, "alice")
    resume = {"Last-Event-ID": first.id or ""}
    with shop.listen(at("/watched.json?resume=true", alice), resume) as stream:
        assert stream.next()[:2] == put_event("/", "after all")[:2]


# Readers that do not read.


def test_queued_events_of_a_slow_reader_are_dropped_with_the_right(shop: Tree, alice: str) -> None:
    allow(shop, "alice")
    with shop.listen(at("/watched.json", alice)) as stream:
        for number in range(16):
            shop.seed(f"/watched/{number}.json", "x" * 1_000_000)
        allow(shop, "alice", False)
        shop.seed("/watched/secret.json", "the secret")
        received: list[Event] = [stream.next()]
        while received[-1] != CANCEL:
            received.append(stream.next())
        assert "the secret" not in json.dumps(received)
        stream.expect_end()


# The race.


def revoke_then_write(tree: Tree, number: int) -> None:
    allow(tree, "alice", False)
    tree.seed("/watched.json", f"secret {number}")


def revoke_by_the_same_write(tree: Tree, number: int) -> None:
    body = json.dumps({"allowed/alice": False, "watched": f"secret {number}"})
    assert tree.status("PATCH", at("/.json", tree.admin), body) == 200


def revoke_and_write_without_waiting(tree: Tree, number: int) -> None:
    with tree.connect() as wire:
        wire.send(
            print_request("PUT", at("/allowed/alice.json", tree.admin), "false", host=tree.host)
            + print_request(
                "PUT", at("/watched.json", tree.admin), f'"secret {number}"', host=tree.host
            )
        )
        assert [wire.receive().status for _ in range(2)] == [200, 200]


def revoke_by_new_rules(tree: Tree, number: int) -> None:
    tree.put_rules({})
    tree.seed("/watched.json", f"secret {number}")
    tree.put_rules(RULE_SET)


REVOCATIONS: list[Callable[[Tree, int], None]] = [
    revoke_then_write,
    revoke_by_the_same_write,
    revoke_and_write_without_waiting,
    revoke_by_new_rules,
]


def test_the_write_after_a_revocation_is_never_sent(shop: Tree, alice: str) -> None:
    target = at("/watched.json", alice)
    for number in range(RACES):
        reset = json.dumps({"allowed/alice": True, "watched": None})
        assert shop.status("PATCH", at("/.json", shop.admin), reset) == 200
        stream: Stream
        with shop.listen(target) as stream:
            stream.expect(put_event("/", None))
            shop.seed("/watched.json", number)
            REVOCATIONS[number % len(REVOCATIONS)](shop, number)
            stream.expect_end(put_event("/", number), CANCEL)
    assert shop.request("GET", at(RULES, shop.admin)).status == 200
