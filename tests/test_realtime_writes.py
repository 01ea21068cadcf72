"""Writes of the real-time protocol: puts, merges, priorities, transactions, and their order."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from tests.realtime import Answer, Push, RealtimeClient
from tests.realtime_copy import Copy, hash_of, normalised
from tests.rest import Client


def export(tree: Client, path: str) -> Any:
    return normalised(tree.get(f"/{path}.json?format=export"))


VALUES: list[Any] = [
    *(None, True, False, 0, -0.5, 1e-300, 2**53 - 1, "", "é\n\U0001f600", "a" * 5000),
    *([], {}, [1, None, 3], {"a": {"b": {}}}, {"a": [None], "b": 0}),
    *({".value": 7, ".priority": 1}, {".value": 7, ".priority": None}, {".priority": 3}),
    *({"a": {".value": 1, ".priority": "p"}, ".priority": -1}, {"0": 1, "1": 2}),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: json.dumps(value)[:40])
def test_a_put_stores_what_a_put_of_rest_stores(tree: Client, value: Any) -> None:
    tree.put("/rest.json", value)
    with RealtimeClient(tree) as client:
        client.put("mine", "old")
        client.put("mine", value)
        assert export(tree, "mine") == export(tree, "rest")


def test_a_put_answers_after_its_events(tree: Client) -> None:
    with RealtimeClient(tree) as client:
        client.listen("a")
        client.listen("a/b")
        client.listen("a", {"i": ".key", "l": 5}, 1)
        client.received.clear()
        for at in range(30):
            number = client.send_request("p", {"p": "a/b", "d": at})
            client.await_answer(number)
        answered = 0
        events: list[Push] = []
        for each in client.received:
            if isinstance(each, Push):
                events.append(each)
                continue
            assert {push.body["d"] for push in events} == {answered}
            assert {push.body.get("t") for push in events} == {None, 1}
            answered, events = answered + 1, []
        assert (answered, events) == (30, [])


def test_a_merge_changes_only_its_members_in_one_step(tree: Client) -> None:
    tree.put("/a.json", {"b": 1, "c": {"d": 2, "e": 3}, "f": 4})
    with RealtimeClient(tree) as client:
        client.listen("a")
        client.received.clear()
        client.succeed("m", {"p": "a", "d": {"b": 9, "c/d": 8, "f": None, "/g/h": 7}})
        assert tree.get("/a.json") == {"b": 9, "c": {"d": 8, "e": 3}, "g": {"h": 7}}
        assert [push.action for push in client.pushed] == ["m"]


def test_a_merge_of_nothing_succeeds(tree: Client) -> None:
    tree.put("/a.json", 1)
    with RealtimeClient(tree) as client:
        client.succeed("m", {"p": "a", "d": {}})
        assert tree.get("/a.json") == 1


@pytest.mark.parametrize(
    "members",
    [7, "x", [1], {"a": 1, "a/b": 2}, {"a.b": 1}, {"": 1}, {"a": {"b#": 1}}, {"a//b": {"$": 1}}],
)
def test_a_malformed_merge_fails_and_changes_nothing(tree: Client, members: Any) -> None:
    tree.put("/m.json", {"z": 1})
    with RealtimeClient(tree) as client:
        assert client.request("m", {"p": "m", "d": members}).status == "failure"
        assert tree.get("/m.json") == {"z": 1}


@pytest.mark.parametrize(
    "value",
    [
        *({"a.b": 1}, {"": 1}, {"a/b": 1}, {"$": 1}, {"k" * 769: 1}, {".sv": "x"}, {".x": 1}),
        *({".sv": {"increment": "1"}}, {".value": {"a": 1}}, {".value": 1, "a": 2}),
        {".priority": {}, "a": 1},
    ],
    ids=lambda value: json.dumps(value)[:40],
)
def test_a_value_that_rest_refuses_fails_and_changes_nothing(tree: Client, value: Any) -> None:
    assert tree.request("PUT", "/rest.json", json.dumps(value)).status == 400
    tree.put("/a.json", 1)
    with RealtimeClient(tree) as client:
        answer = client.request("p", {"p": "a", "d": value})
        assert answer.status == "failure"
        assert isinstance(answer.data, str)
        assert tree.get("/a.json") == 1


def test_a_write_without_data_fails(tree: Client) -> None:
    with RealtimeClient(tree) as client:
        for action in "pmo":
            assert client.request(action, {"p": "a"}).status == "failure"
        assert client.request("p", {"d": 1}).status == "failure"


# Priorities.


def test_a_priority_is_written_at_its_own_path(tree: Client) -> None:
    tree.put("/a.json", {"b": 1})
    with RealtimeClient(tree) as client:
        copy = Copy("a", client.listen("a"))
        for path, priority in (("a", 1), ("a/b", "x"), ("a/b", None), ("a", None), ("a/no", None)):
            client.put(f"{path}/.priority", priority)
            for push in client.pushed:
                copy.apply(push.action, push.keys, push.body["d"])
            assert copy.equals(export(tree, "a"))
        assert export(tree, "a") == {"b": 1}


LONE = "There is nothing at {} that could have a priority."


@pytest.mark.parametrize("priority", [1, "text", 1e19, {".sv": "timestamp"}])
def test_the_priority_of_nothing_is_refused_and_nothing_is_written(
    tree: Client, priority: Any
) -> None:
    tree.put("/a.json", {"b": 1})
    before = tree.request("GET", "/.json?format=export").body
    with RealtimeClient(tree) as client:
        client.listen("")
        seen = len(client.received)
        for path in ("no", "a/no", "a/b/c", "a/no/deep"):
            answer = client.request("p", {"p": f"{path}/.priority", "d": priority})
            assert answer == Answer("failure", LONE.format(f"/{path}"))
        for path, members in (
            ("a", {"no/.priority": priority, "c": 2}),
            ("no", {".priority": priority}),
            ("", {"a/b": 2, "x/.priority": priority, "y/z": 1}),
            ("", {"a": None, "x/.priority": priority}),
            ("", {"x/y": None, "x/.priority": priority}),
            ("", {"x/y": {}, "x/z": [], "x/.priority": priority, "x0": 1}),
        ):
            answer = client.request("m", {"p": path, "d": members})
            assert answer.status == "failure", members
            assert answer.data.endswith("that could have a priority.")
        assert tree.request("GET", "/.json?format=export").body == before
        assert [each for each in client.received[seen:] if isinstance(each, Push)] == []
        # Over REST it is as before: done, without effect.
        assert tree.request("PUT", "/no/.priority.json", json.dumps(priority)).status == 200
        assert tree.request("GET", "/.json?format=export").body == before


def test_the_priority_of_what_a_merge_writes_too_is_written(tree: Client) -> None:
    with RealtimeClient(tree) as client:
        client.succeed(
            "m", {"p": "", "d": {"a/b": 1, "a/.priority": 2, "c/d/.priority": 3, "c/d/e": 4}}
        )
        assert export(tree, "a") == {"b": 1, ".priority": 2}
        assert export(tree, "c") == {"d": {"e": 4, ".priority": 3}}
        client.succeed("m", {"p": "x", "d": {"y": 1, ".priority": "p"}})
        assert export(tree, "x") == {"y": 1, ".priority": "p"}
        # What goes by the same merge was there.
        client.succeed("m", {"p": "x", "d": {"y": None, ".priority": "q"}})
        assert export(tree, "x") is None


def test_the_order_of_requests_decides_whether_there_is_a_node(tree: Client) -> None:
    with RealtimeClient(tree) as client:
        asked = [
            client.send_request("p", {"p": "a/.priority", "d": 1}),
            client.send_request("p", {"p": "a", "d": "there"}),
            client.send_request("p", {"p": "a/.priority", "d": 2}),
            client.send_request("p", {"p": "a", "d": None}),
            client.send_request("p", {"p": "a/.priority", "d": 3}),
        ]
        statuses = [client.await_answer(number).status for number in asked]
        assert statuses == ["failure", "ok", "ok", "ok", "failure"]
        assert export(tree, "a") is None


def test_a_long_merge_with_the_priority_of_nothing_is_refused_too(tree: Client) -> None:
    members = {f"k{number:05}": number for number in range(12_000)}
    with RealtimeClient(tree) as client:
        answer = client.request("m", {"p": "", "d": members | {"no/.priority": 1}})
        assert answer == Answer("failure", LONE.format("/no"))
        assert export(tree, "") is None
        client.succeed("m", {"p": "", "d": members | {"no/.priority": 1, "no/x": 2}})
        assert export(tree, "no") == {"x": 2, ".priority": 1}


def test_rules_are_evaluated_before_it_is_known_whether_there_is_a_node(tree: Client) -> None:
    rules = {"rules": {"a": {".write": True, ".read": True}}}
    assert tree.request("PUT", "/.settings/rules.json?auth=owner", json.dumps(rules)).status == 200
    with RealtimeClient(tree) as client:
        denied = client.request("p", {"p": "b/.priority", "d": 1})
        assert denied == Answer("permission_denied", "Permission denied")
        assert client.request("p", {"p": "a/.priority", "d": 1}).status == "failure"


def test_a_put_without_a_priority_drops_it_and_a_merge_keeps_it(tree: Client) -> None:
    with RealtimeClient(tree) as client:
        client.put("a", {"b": 1, ".priority": 5})
        client.succeed("m", {"p": "a", "d": {"c": 2}})
        assert export(tree, "a") == {"b": 1, "c": 2, ".priority": 5}
        client.succeed("m", {"p": "a", "d": {".priority": 6}})
        assert export(tree, "a") == {"b": 1, "c": 2, ".priority": 6}
        client.put("a", {"b": 1})
        assert export(tree, "a") == {"b": 1}


def test_a_leaf_with_a_priority_that_gets_a_child_keeps_the_priority(tree: Client) -> None:
    with RealtimeClient(tree) as client:
        client.put("a", {".value": 1, ".priority": 5})
        copy = Copy("a", client.listen("a"))
        client.put("a/b", 2)
        copy.apply(*[(push.action, push.keys, push.body["d"]) for push in client.pushed][-1])
        assert copy.value == export(tree, "a") == {"b": 2, ".priority": 5}


# Server values.


def test_server_values_are_resolved_once_and_pushed_resolved(tree: Client) -> None:
    with RealtimeClient(tree) as client:
        client.put("a/count", 5)
        client.listen("a")
        client.received.clear()
        client.succeed("m", {
            "p": "a",
            "d": {
                "count": {".sv": {"increment": 2}},
                "one": {".sv": "timestamp"},
                "two": {"x": {".sv": "timestamp"}},
            },
        })  # fmt: skip
        stored = tree.get("/a.json")
        assert stored["count"] == 7
        assert stored["one"] == stored["two"]["x"]
        assert abs(stored["one"] - client.hello["ts"]) < 60_000
        copy = Copy("a", {"count": 5})
        for push in client.pushed:
            copy.apply(push.action, push.keys, push.body["d"])
        assert copy.equals(stored)


def test_a_priority_may_be_the_time(tree: Client) -> None:
    with RealtimeClient(tree) as client:
        client.put("a", {".value": 1, ".priority": {".sv": "timestamp"}})
        assert abs(export(tree, "a")[".priority"] - client.hello["ts"]) < 60_000
        client.put("a/.priority", {".sv": "timestamp"})
        assert export(tree, "a")[".value"] == 1


# Transactions.

HASHED: list[Any] = [
    *(None, True, 0, 1, -2.5, 1e21, 2**60, "", "é", "\U0001f600", {"a": 1}, [1, 2, 3]),
    *({"10": 1, "9": 2, "a": 3, "01": 4}, {"a": {".value": 1, ".priority": 2}, "b": 1}),
    *({".value": 1, ".priority": "p"}, {"a": 1, "b": {"c": True}, ".priority": -1.5}),
    *({"a": {".value": 1, ".priority": 10}, "b": {".value": 1, ".priority": 9}},),
    *({"x": {".value": 1, ".priority": "10"}, "y": {".value": 1, ".priority": 9}, "z": 0},),
    {"\uffff": 1, "\U00010000": 2, "\ue000": 3},
]


@pytest.mark.parametrize("value", HASHED, ids=lambda value: json.dumps(value)[:40])
def test_a_transaction_whose_hash_fits_is_written(tree: Client, value: Any) -> None:
    tree.put("/a.json", value)
    held = hash_of(export(tree, "a"))
    with RealtimeClient(tree) as client:
        assert client.request("p", {"p": "a", "d": "new", "h": held}).status == "ok"
        assert tree.get("/a.json") == "new"


@pytest.mark.parametrize("value", HASHED, ids=lambda value: json.dumps(value)[:40])
def test_a_transaction_whose_hash_does_not_fit_is_stale_after_the_newest_value(
    tree: Client, value: Any
) -> None:
    tree.put("/a.json", value)
    with RealtimeClient(tree) as client:
        client.listen("a")
        client.received.clear()
        tree.put("/a.json", {"newer": 1})
        number = client.send_request("p", {"p": "a", "d": "x", "h": hash_of(normalised(value))})
        assert client.await_answer(number).status == "datastale"
        assert client.received[-1][0] == number
        assert client.pushed[-1].change == ("d", "a", {"newer": 1}, None)
        assert tree.get("/a.json") == {"newer": 1}


def test_a_transaction_that_nobody_listens_to_is_stale_without_a_value_or_with_it(
    tree: Client,
) -> None:
    tree.put("/a.json", 1)
    with RealtimeClient(tree) as client:
        assert client.request("p", {"p": "a", "d": 2, "h": hash_of(7)}).status == "datastale"
        assert all(push.change == ("d", "a", 1, None) for push in client.pushed)
        assert tree.get("/a.json") == 1


def test_a_hash_of_nothing_is_that_of_an_empty_place(tree: Client) -> None:
    with RealtimeClient(tree) as client:
        assert client.request("p", {"p": "a", "d": 1, "h": ""}).status == "ok"
        assert client.request("p", {"p": "a", "d": 2, "h": ""}).status == "datastale"
        assert client.request("p", {"p": "a", "d": None, "h": hash_of(1)}).status == "ok"
        assert tree.get("/a.json") is None


@pytest.mark.parametrize("held", [7, [], {}, True], ids=json.dumps)
def test_a_hash_that_is_no_text_fails(tree: Client, held: Any) -> None:
    with RealtimeClient(tree) as client:
        assert client.request("p", {"p": "a", "d": 1, "h": held}).status == "failure"
        assert tree.get("/a.json") is None


def test_one_of_two_transactions_on_the_same_value_is_stale(tree: Client) -> None:
    with RealtimeClient(tree) as one, RealtimeClient(tree) as two:
        for at in range(40):
            held = hash_of(tree.get("/a.json"))
            numbers = [
                (each, each.send_request("p", {"p": "a", "d": at, "h": held}))
                for each in (one, two)
            ]
            statuses = [each.await_answer(number).status for each, number in numbers]
            if at:  # the second write of the same value fits the first
                assert sorted(statuses) == ["datastale", "ok"]


# Order and durability.


def test_events_of_others_come_in_the_order_of_the_commits(tree: Client) -> None:
    with RealtimeClient(tree) as client, RealtimeClient(tree) as writer:
        client.listen("n")
        client.received.clear()
        numbers = [writer.send_request("p", {"p": "n", "d": at}) for at in range(300)]
        client.read_until(lambda: bool(client.pushed) and client.pushed[-1].body["d"] == 299)
        assert [push.body["d"] for push in client.pushed] == list(range(300))
        for number in numbers:
            assert writer.await_answer(number).status == "ok"


def test_a_write_that_was_answered_is_read_by_rest_at_once(tree: Client) -> None:
    with RealtimeClient(tree) as client:
        for at in range(100):
            client.put("a", at)
            assert tree.get("/a.json") == at


def test_writes_of_rest_and_of_sockets_meet_in_one_order(tree: Client) -> None:
    ended = threading.Event()

    def write() -> None:
        with Client(tree.daemon, tree.host) as other:
            for at in range(100):
                other.put("/o.json", {"rest": at})
        ended.set()

    with RealtimeClient(tree) as one, RealtimeClient(tree) as two:
        one.listen("o")
        two.listen("o")
        thread = threading.Thread(target=write)
        thread.start()
        at = 0
        while not ended.is_set():
            one.put("o", {"socket": at})
            at += 1
        thread.join()
        one.put("o", "end")
        two.put("barrier", 1)
        values = [[push.body["d"] for push in each.pushed] for each in (one, two)]
        assert values[0] == values[1]
        assert values[0][-1] == "end"
        rest = [value["rest"] for value in values[0][1:-1] if "rest" in value]
        assert rest == list(range(100))
        socket = [value["socket"] for value in values[0][1:-1] if "socket" in value]
        assert socket == list(range(at))
