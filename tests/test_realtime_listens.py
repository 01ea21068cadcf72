"""Listens to values: the first value, what each write pushes, the export form, ends of listens."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest

from tests.realtime import RealtimeClient
from tests.realtime_copy import Copy, hash_of, normalised
from tests.rest import Client

VALUES: list[Any] = [
    *(None, True, False, 0, -1.5, 1e300, 2**53, "", "é\n\U0001f600", "0"),
    *([1, None, 3], {"a": {"b": {}}}, {"a": {"b": [True]}, "é": "x"}),
    *({"1": "a", "2": "b"}, {"a": {".value": 1, ".priority": 2}, "b": 1}),
    *({".priority": "x", "a": 1}, {".value": "v", ".priority": -1.5}),
]


def export(tree: Client, path: str) -> Any:
    return tree.get(f"/{path}.json?format=export")


def changes(client: RealtimeClient, *writes: Any) -> list[Any]:
    """Return what is pushed for writes, each of which is a function."""
    return [push.change for write in writes for push in client.pushes_during(write)]


@pytest.mark.parametrize("value", VALUES)
def test_the_first_value_is_pushed_in_the_export_form(tree: Client, value: Any) -> None:
    tree.put("/a.json", value)
    with RealtimeClient(tree) as client:
        assert normalised(client.listen("a")) == normalised(export(tree, "a"))


@pytest.mark.parametrize("value", VALUES)
def test_a_change_is_pushed_in_the_export_form(tree: Client, value: Any) -> None:
    with RealtimeClient(tree) as client:
        client.listen("a")
        [push] = client.pushes_during(lambda: tree.put("/a/b.json", value))
        assert (push.action, push.keys) == ("d", ["a", "b"])
        assert normalised(push.body["d"]) == normalised(export(tree, "a/b"))


@pytest.mark.parametrize("path", ["a/b", "/a/b", "a/b/", "/a/b/", "//a//b"])
def test_paths_have_or_lack_slashes(tree: Client, path: str) -> None:
    tree.put("/a/b.json", 1)
    with RealtimeClient(tree) as client:
        assert client.listen(path) == 1
        assert client.get(path) == 1
        client.put(path, 2)
        assert tree.get("/a/b.json") == 2
        client.succeed("n", {"p": path})
        assert changes(client, lambda: tree.put("/a/b.json", 3)) == []


@pytest.mark.parametrize("root", ["", "/"])
def test_the_root_can_be_listened_to(tree: Client, root: str) -> None:
    tree.put("/.json", {"a": 1})
    with RealtimeClient(tree) as client:
        assert client.listen(root) == {"a": 1}
        assert changes(client, lambda: tree.put("/a.json", 2)) == [("d", "a", 2, None)]
        assert changes(client, lambda: tree.put("/.json", {"b": 1})) == [("d", "", {"b": 1}, None)]


def test_paths_are_not_percent_encoded(tree: Client) -> None:
    with RealtimeClient(tree) as client:
        client.put("a/%41 é+?&=\U0001f600", 1)
        assert client.get("a") == {"%41 é+?&=\U0001f600": 1}
        assert client.listen("a/%41 é+?&=\U0001f600") == 1


def test_a_write_at_above_or_below_is_pushed_at_its_place(tree: Client) -> None:
    tree.put("/a/b.json", {"c": 1, "d": 2})
    with RealtimeClient(tree) as client:
        client.listen("a/b")
        assert changes(client, lambda: tree.put("/a/b/c.json", 5)) == [("d", "a/b/c", 5, None)]
        assert changes(client, lambda: tree.put("/a/b.json", {"e": 1})) == [
            ("d", "a/b", {"e": 1}, None)
        ]
        assert changes(client, lambda: tree.put("/a.json", {"b": {"f": 1}, "x": 2})) == [
            ("d", "a/b", {"f": 1}, None)
        ]
        assert changes(client, lambda: tree.put("/.json", None)) == [("d", "a/b", None, None)]


def test_a_write_elsewhere_is_not_pushed(tree: Client) -> None:
    with RealtimeClient(tree) as client:
        client.listen("a/b")
        assert changes(client, lambda: tree.put("/a/c.json", 1)) == []
        assert changes(client, lambda: tree.put("/ab.json", 1)) == []


def test_a_patch_is_pushed_as_a_merge_at_its_place(tree: Client) -> None:
    tree.put("/a.json", {"b": 1, "c": {"d": 2}})
    with RealtimeClient(tree) as client:
        copy = Copy("a", client.listen("a"))
        members = {"b": 3, "c/d": 4, "e": {"f": None, "g": 1}}
        pushed = client.pushes_during(lambda: tree.request("PATCH", "/a.json", json.dumps(members)))
        assert [push.action for push in pushed] == ["m"]
        copy.apply("m", pushed[0].keys, pushed[0].body["d"])
        assert copy.value == {"b": 3, "c": {"d": 4}, "e": {"g": 1}}
        assert copy.equals(export(tree, "a"))


def test_a_patch_above_is_pushed_for_what_it_reaches(tree: Client) -> None:
    tree.put("/a.json", {"b": {"x": 1}, "c": 2})
    with RealtimeClient(tree) as client:
        copy = Copy("a/b", client.listen("a/b"))
        for members in ({"c": 3}, {"b": {"y": 1}}, {"b/z": 1, "c": 4}, {"b": None}):
            body = json.dumps(members)
            for push in client.pushes_during(partial(tree.request, "PATCH", "/a.json", body)):
                copy.apply(push.action, push.keys, push.body["d"])
            assert copy.equals(export(tree, "a/b"))


def test_a_priority_that_changes_is_pushed(tree: Client) -> None:
    tree.put("/a.json", {"b": 1, "c": {"d": 1}})
    with RealtimeClient(tree) as client:
        copy = Copy("a", client.listen("a"))
        for path in ("a/b", "a/c", "a"):
            for priority in (1, "x", None):
                target = f"/{path}/.priority.json"
                pushed = client.pushes_during(partial(tree.put, target, priority))
                assert pushed
                for push in pushed:
                    copy.apply(push.action, push.keys, push.body["d"])
                assert copy.equals(export(tree, "a"))


def test_two_listens_of_one_place_are_both_served_by_each_event(tree: Client) -> None:
    with RealtimeClient(tree) as client:
        client.listen("a")
        client.listen("a/b")
        pushed = changes(client, lambda: tree.put("/a/b.json", 1))
        assert pushed in ([("d", "a/b", 1, None)], [("d", "a/b", 1, None)] * 2)
        client.succeed("n", {"p": "a"})
        assert changes(client, lambda: tree.put("/a/b.json", 2)) == [("d", "a/b", 2, None)]


def test_a_wider_listen_takes_over_without_a_gap(tree: Client) -> None:
    with RealtimeClient(tree) as client:
        copy = Copy("a", None)
        client.listen("a/b")
        numbers = [client.send_request("p", {"p": "a/b", "d": at}) for at in range(20)]
        numbers.append(client.send_request("q", {"p": "a", "h": ""}))
        numbers.append(client.send_request("n", {"p": "a/b"}))
        numbers += [client.send_request("p", {"p": "a/b", "d": at}) for at in range(20, 40)]
        assert {client.await_answer(number).status for number in numbers} == {"ok"}
        for push in client.pushed:
            copy.apply(push.action, push.keys, push.body["d"])
        assert copy.value == {"b": 39}


def test_a_listen_that_ended_is_not_served(tree: Client) -> None:
    with RealtimeClient(tree) as client:
        for _ in range(3):
            client.listen("a")
            assert len(changes(client, lambda: tree.put("/a.json", 1))) == 1
            client.succeed("n", {"p": "a"})
            assert changes(client, lambda: tree.put("/a.json", 2)) == []


def test_ending_what_nobody_listens_to_succeeds(tree: Client) -> None:
    with RealtimeClient(tree) as client:
        for body in ({"p": "a"}, {"p": "a", "q": {"l": 1}, "t": 9}, {"p": ""}):
            assert client.request("n", body).status == "ok"


def test_listening_again_to_the_same_place_pushes_once_for_each_write(tree: Client) -> None:
    with RealtimeClient(tree) as client:
        client.listen("a")
        client.listen("a")
        assert len(changes(client, lambda: tree.put("/a.json", 1))) == 1
        client.succeed("n", {"p": "a"})
        assert changes(client, lambda: tree.put("/a.json", 2)) == []


# Hashes.


@pytest.mark.parametrize("value", [value for value in VALUES if normalised(value) is not None])
def test_what_the_client_holds_by_its_hash_is_not_sent_again(tree: Client, value: Any) -> None:
    tree.put("/a.json", value)
    held = hash_of(normalised(export(tree, "a")))
    with RealtimeClient(tree) as client:
        client.succeed("q", {"p": "a", "h": held})
        assert client.pushed == []
        assert changes(client, lambda: tree.put("/a.json", "new")) == [("d", "a", "new", None)]


@pytest.mark.parametrize("held", ["x", "A" * 28, "é", "0" * 10_000])
def test_a_hash_that_does_not_fit_costs_a_full_value(tree: Client, held: str) -> None:
    tree.put("/a.json", {"b": 1})
    with RealtimeClient(tree) as client:
        client.succeed("q", {"p": "a", "h": held})
        assert [push.change for push in client.pushed] == [("d", "a", {"b": 1}, None)]


def test_a_compound_hash_may_be_sent(tree: Client) -> None:
    tree.put("/a.json", {"b": 1, "c": 2})
    compound = {"hs": ["x", "y", "z"], "ps": ["b", "c"]}
    with RealtimeClient(tree) as client:
        client.succeed("q", {"p": "a", "h": "other", "ch": compound})
        assert [push.change for push in client.pushed] == [("d", "a", {"b": 1, "c": 2}, None)]


# What is refused.


@pytest.mark.parametrize("path", ["a.b", "a#", "$x", "[0]", "a/\x00", ".info/connected", "k" * 769])
def test_an_illegal_path_fails_and_the_connection_goes_on(tree: Client, path: str) -> None:
    with RealtimeClient(tree) as client:
        for action in "qgpmoc":
            answer = client.request(action, {"p": path, "d": {"x": 1}, "h": ""})
            assert answer.status == "failure", action
        client.put("a", 1)


def test_a_path_that_is_too_deep_fails(tree: Client) -> None:
    with RealtimeClient(tree) as client:
        deep = "/".join(["a"] * 33)
        assert client.request("p", {"p": deep, "d": 1}).status == "failure"
        client.put("/".join(["a"] * 32), 1)


# Gets.


@pytest.mark.parametrize("value", VALUES)
def test_a_get_answers_with_the_export_form(tree: Client, value: Any) -> None:
    tree.put("/a.json", value)
    with RealtimeClient(tree) as client:
        assert normalised(client.get("a")) == normalised(export(tree, "a"))
        assert client.pushed == []


def test_a_get_of_nothing_answers_null_and_not_nothing(tree: Client) -> None:
    with RealtimeClient(tree) as client:
        client.send_json({"t": "d", "d": {"r": 7, "a": "g", "b": {"p": "none"}}})
        assert json.loads(client.next_text()) == {
            "t": "d",
            "d": {"r": 7, "b": {"s": "ok", "d": None}},
        }


def test_a_get_sees_the_writes_of_its_client_before_it(tree: Client) -> None:
    """Clients do not wait for the answer to a put before they ask for the value."""
    with RealtimeClient(tree) as client:
        numbers = []
        for at in range(50):
            client.send_request("p", {"p": "a", "d": at})
            numbers.append(client.send_request("g", {"p": "a"}))
        assert [client.await_answer(number).data for number in numbers] == list(range(50))


def test_a_get_behind_a_write_that_fails_is_answered(tree: Client) -> None:
    with RealtimeClient(tree) as client:
        client.send_request("p", {"p": "a", "d": 1, "h": "another"})
        assert client.await_answer(client.send_request("g", {"p": "a"})).data is None


def test_a_get_of_a_listened_place_comes_after_its_events(tree: Client) -> None:
    with RealtimeClient(tree) as client:
        client.listen("a")
        for at in range(50):
            tree.put("/a.json", at)
            assert client.get("a") == at
