"""Listens to queries and gets of them: every kind of query object, tags, and what is pushed."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest

from tests.expected import QueryModel
from tests.realtime import Push, RealtimeClient
from tests.realtime_copy import Copy, normalised
from tests.rest import Client
from treedbd.web.realtime.listens import KEPT_TAGS

PEOPLE: dict[str, Any] = {
    "10": {"age": 30, "name": {"first": "Zoe"}},
    "2": {"age": 30, "name": {"first": "Abe"}},
    "ann": {"age": 25, "name": {"first": "Ann"}},
    "bob": {"age": "old"},
    "eve": {"age": False},
    "joe": {"age": 40.5, "name": {"first": "Joe"}},
    "kim": "a leaf",
    "max": {"age": {"years": 3}},
    "tim": {"age": True},
}
SCORES: dict[str, Any] = {"a": 3, "b": 1, "c": "x", "d": True, "e": 2.5, "f": False, "g": {"h": 1}}

# A query object, and the same for the model of REST's queries.
QUERIES: list[tuple[dict[str, Any], str, dict[str, Any]]] = [
    ({"i": "age", "l": 2, "vf": "l"}, "age", {"limitToFirst": 2}),
    ({"i": "age", "l": 2, "vf": "r"}, "age", {"limitToLast": 2}),
    ({"i": "age", "l": 2}, "age", {"limitToLast": 2}),
    ({"i": "age", "sp": 30, "l": 2}, "age", {"startAt": (30,), "limitToFirst": 2}),
    ({"i": "age", "sp": 30}, "age", {"startAt": (30,)}),
    ({"i": "age", "sp": 30, "sin": True}, "age", {"startAt": (30,)}),
    ({"i": "age", "sp": 30, "sn": "10"}, "age", {"startAt": (30, "10")}),
    ({"i": "age", "sp": 30, "sn": "2", "sin": False}, "age", {"startAfter": (30, "2")}),
    ({"i": "age", "sp": 30, "sn": "[MAX_NAME]"}, "age", {"startAfter": (30,)}),
    ({"i": "age", "sp": 30, "sn": "[MAX_NAME]", "sin": False}, "age", {"startAfter": (30,)}),
    ({"i": "age", "sp": 30, "sn": "[MIN_NAME]"}, "age", {"startAt": (30,)}),
    ({"i": "age", "ep": 30}, "age", {"endAt": (30,)}),
    ({"i": "age", "ep": 30, "en": "2"}, "age", {"endAt": (30, "2")}),
    ({"i": "age", "ep": 30, "en": "10", "ein": False}, "age", {"endBefore": (30, "10")}),
    ({"i": "age", "ep": 30, "en": "[MIN_NAME]"}, "age", {"endBefore": (30,)}),
    ({"i": "age", "ep": 30, "en": "[MIN_NAME]", "ein": False}, "age", {"endBefore": (30,)}),
    ({"i": "age", "ep": 30, "en": "[MAX_NAME]"}, "age", {"endAt": (30,)}),
    ({"i": "age", "sp": 25, "ep": 30, "l": 2, "vf": "r"}, "age",
     {"startAt": (25,), "endAt": (30,), "limitToLast": 2}),
    ({"i": "age", "sp": 30, "ep": 30}, "age", {"equalTo": (30,)}),
    ({"i": "age", "sp": 30, "sn": "2", "ep": 30, "en": "2"}, "age", {"equalTo": (30, "2")}),
    ({"i": "age", "sp": None, "ep": None}, "age", {"equalTo": (None,)}),
    ({"i": "age", "sp": "old", "ep": "old"}, "age", {"equalTo": ("old",)}),
    ({"i": "age", "sp": True}, "age", {"startAt": (True,)}),
    ({"i": "age", "sp": False, "ep": 40.5}, "age", {"startAt": (False,), "endAt": (40.5,)}),
    ({"i": "name/first", "sp": "Abe", "l": 2}, "name/first",
     {"startAt": ("Abe",), "limitToFirst": 2}),
    ({"i": "/name/first", "ep": "Joe"}, "name/first", {"endAt": ("Joe",)}),
    ({"i": ".key", "sp": "ann"}, "$key", {"startAt": ("ann",)}),
    ({"i": ".key", "sp": "10", "ep": "bob"}, "$key", {"startAt": ("10",), "endAt": ("bob",)}),
    ({"i": ".key", "sp": "bob", "sin": False}, "$key", {"startAfter": ("bob",)}),
    ({"i": ".key", "ep": "bob", "ein": False, "l": 2, "vf": "r"}, "$key",
     {"endBefore": ("bob",), "limitToLast": 2}),
    ({"i": ".key", "l": 3, "vf": "l"}, "$key", {"limitToFirst": 3}),
    ({"i": ".value", "sp": "a leaf", "ep": "a leaf"}, "$value", {"equalTo": ("a leaf",)}),
]  # fmt: skip
MODELS = [(wire, QueryModel(order, bounds)) for wire, order, bounds in QUERIES]


def apply_all(copy: Copy, client: RealtimeClient, tag: int | None) -> None:
    """Apply everything that was pushed with a tag."""
    for push in client.pushed:
        if push.body.get("t") == tag:
            copy.apply(push.action, push.keys, push.body["d"])


@pytest.fixture
def people(tree: Client) -> Client:
    tree.put("/people.json", PEOPLE)
    tree.put("/scores.json", SCORES)
    return tree


@pytest.mark.parametrize(("wire", "model"), MODELS, ids=[json.dumps(wire) for wire, _ in MODELS])
def test_a_query_selects_what_the_same_query_of_rest_selects(
    people: Client, wire: Mapping[str, Any], model: QueryModel
) -> None:
    expected = normalised(model.result(PEOPLE))
    with RealtimeClient(people) as client:
        assert normalised(client.get("people", wire)) == expected
        assert normalised(client.listen("people", wire, 5)) == expected
        assert all(push.body["t"] == 5 for push in client.pushed)


def test_queries_by_value_select_by_value(people: Client) -> None:
    with RealtimeClient(people) as client:
        assert client.get("scores", {"i": ".value", "sp": 2, "ep": 3}) == {"a": 3, "e": 2.5}
        assert client.listen("scores", {"i": ".value", "l": 2, "vf": "r"}, 1) == {
            "c": "x",
            "g": {"h": 1},
        }


def test_queries_without_an_index_order_by_priority(tree: Client) -> None:
    values = {
        key: {".value": key, ".priority": priority}
        for key, priority in (("a", 3), ("b", 1), ("c", "x"), ("d", 2))
    }
    tree.put("/p.json", values | {"e": "none"})
    with RealtimeClient(tree) as client:
        assert set(client.get("p", {"l": 2, "vf": "l"})) == {"e", "b"}
        assert set(client.get("p", {"i": ".priority", "l": 2, "vf": "r"})) == {"a", "c"}
        assert set(client.listen("p", {"sp": 2, "ep": 3}, 1)) == {"d", "a"}
        assert client.listen("p", {"sp": 2, "ep": 3}, 2)["d"] == values["d"]
        tree.put("/p/b/.priority.json", 2.5)
        copy = Copy("p", None)
        client.put("end", 1)
        apply_all(copy, client, 2)
        assert set(copy.value) == {"a", "b", "d"}


@pytest.mark.parametrize(("wire", "model"), MODELS, ids=[json.dumps(wire) for wire, _ in MODELS])
def test_a_listened_query_follows_every_write(
    people: Client, wire: Mapping[str, Any], model: QueryModel
) -> None:
    writes: list[tuple[str, Any]] = [
        ("people/new", {"age": 30}),
        ("people/ann/age", 31),
        ("people/10/age", 1),
        ("people/10/age", 30),
        ("people/bob", None),
        ("people/joe/name", None),
        ("people/2", {"age": 30, "name": {"first": "Abel"}}),
        ("people", {"x": {"age": 30}, "bob": {"age": 30}, "ann": {"age": 25}}),
        ("people/ann", None),
        ("people", None),
        ("people/2", {"age": 30}),
    ]
    with RealtimeClient(people) as client:
        copy = Copy("people", client.listen("people", wire, 3))
        for path, value in writes:
            for push in client.pushes_during(partial(people.put, f"/{path}.json", value)):
                assert push.body["t"] == 3
                copy.apply(push.action, push.keys, push.body["d"])
            assert normalised(copy.value) == normalised(client.get("people", wire)), path
    assert model.order


def test_two_queries_of_one_place_have_their_tags(people: Client) -> None:
    with RealtimeClient(people) as client:
        first = Copy("people", client.listen("people", {"i": "age", "l": 1, "vf": "l"}, 1))
        last = Copy("people", client.listen("people", {"i": "age", "l": 1, "vf": "r"}, 2))
        whole = Copy("people", client.listen("people"))
        people.put("/people/aaa.json", {"age": None, "x": 1})
        people.put("/people/zzz.json", {"age": {"y": 1}})
        client.put("end", 1)
        for copy, tag in ((first, 1), (last, 2), (whole, None)):
            apply_all(copy, client, tag)
        assert list(first.value) == ["aaa"]
        assert list(last.value) == ["zzz"]
        assert len(whole.value) == len(PEOPLE) + 2


def test_clients_of_one_query_have_their_own_tags_however_many_there_are(people: Client) -> None:
    query = {"i": "age", "l": 1, "vf": "l"}
    tags = [*range(1, KEPT_TAGS + 3), 1, 2, KEPT_TAGS + 2]
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(RealtimeClient(people)) for _ in tags]
        copies = [
            Copy("people", client.listen("people", query, tag))
            for client, tag in zip(clients, tags, strict=True)
        ]
        people.put("/people/aaa.json", {"age": None, "x": 1})
        for client, copy, tag in zip(clients, copies, tags, strict=True):
            client.put("end", tag)
            assert [push.body.get("t") for push in client.pushed[1:]] == [tag]
            apply_all(copy, client, tag)
            assert list(copy.value) == ["aaa"]


def test_ending_a_query_ends_only_that_one(people: Client) -> None:
    first, second = {"i": "age", "l": 1, "vf": "l"}, {"i": "age", "l": 2, "vf": "l"}
    with RealtimeClient(people) as client:
        client.listen("people")
        client.listen("people", first, 1)
        client.listen("people", second, 2)
        client.succeed("n", {"p": "people", "q": first, "t": 1})

        def tags(value: Any) -> set[Any]:
            pushed = client.pushes_during(lambda: people.put("/people/a.json", {"age": value}))
            return {push.body.get("t") for push in pushed}

        assert tags(None) <= {None, 2}
        assert 2 in tags(False)
        client.succeed("n", {"p": "people"})
        assert tags(None) <= {2}
        client.succeed("n", {"p": "people", "q": second, "t": 2})
        assert tags(False) == set()


def test_the_same_query_with_another_tag_takes_the_place_of_the_former(people: Client) -> None:
    query = {"i": "age", "l": 1, "vf": "l"}
    with RealtimeClient(people) as client:
        client.listen("people", query, 1)
        client.listen("people", query, 2)
        pushed = client.pushes_during(lambda: people.put("/people/0.json", {"x": 1}))
        assert {push.body["t"] for push in pushed} == {2}


@pytest.mark.parametrize("query", [None, {"i": "age", "l": 1, "vf": "l"}])
def test_equal_listens_that_are_sent_together_all_receive_a_first_value(
    people: Client, query: Any
) -> None:
    """The outbox is busy with a large value when the second one replaces the first."""
    tags = [None] * 3 if query is None else [1, 2, 2]
    with RealtimeClient(people) as client:
        client.put("large", "x" * 3_000_000)
        client.received.clear()
        client.send_request("g", {"p": "large"})
        bodies = [
            {"p": "people", "h": ""} | ({"q": query, "t": tag} if tag else {}) for tag in tags
        ]
        numbers = [client.send_request("q", body) for body in bodies]
        client.await_answer(numbers[-1])
        order = [
            each.body.get("t") if isinstance(each, Push) else each[0] for each in client.received
        ]
        assert order[1:] == [each for pair in zip(tags, numbers, strict=True) for each in pair]
        pushed = client.pushes_during(lambda: people.put("/people/0.json", {"x": 1}))
        assert {push.body.get("t") for push in pushed} == {tags[-1]}
        client.succeed("n", bodies[-1])
        assert client.pushes_during(lambda: people.put("/people/0.json", {"x": 2})) == []


def test_a_query_ends_whatever_the_order_of_its_members_is(people: Client) -> None:
    with RealtimeClient(people) as client:
        client.listen("people", {"i": "age", "l": 1, "vf": "l"}, 1)
        client.succeed("n", {"p": "/people/", "q": {"vf": "l", "l": 1, "i": "age"}, "t": 1})
        assert client.pushes_during(lambda: people.put("/people/0.json", {"x": 1})) == []


def test_a_query_of_a_leaf_or_of_nothing_has_no_children(people: Client) -> None:
    with RealtimeClient(people) as client:
        assert client.get("people/kim", {"i": ".key", "l": 1}) is None
        assert client.listen("nothing", {"i": ".key", "l": 1}, 1) is None


def test_a_query_without_an_index_is_answered_with_a_warning(people: Client) -> None:
    with RealtimeClient(people) as client:
        data = client.succeed("q", {"p": "people", "h": "", "q": {"i": "age", "l": 1}, "t": 1})
        assert data in ({}, {"w": ["no_index"]})
        assert (
            client.succeed("q", {"p": "people", "h": "", "q": {"i": ".key", "l": 1}, "t": 2}) == {}
        )


BAD_QUERIES: list[Any] = [
    *({"l": 0}, {"l": -1}, {"l": 1.5}, {"l": "1"}, {"l": True}, {"l": 2**70}),
    *({"i": 7}, {"i": ".x"}, {"i": "a.b"}, {"i": ""}, {"i": "[]"}, {"i": None}),
    *({"i": ".key", "sp": 1}, {"i": ".key", "sp": None}, {"sp": {}}, {"sp": [1]}, {"ep": {"a": 1}}),
    *({"sp": 1, "sn": 2}, {"sp": 1, "sn": "a/b"}, {"sp": 1, "sin": 1}, {"vf": "x", "l": 1}),
    *([], "x", 7, True),
]


@pytest.mark.parametrize("query", BAD_QUERIES, ids=json.dumps)
def test_a_query_that_is_none_is_refused_or_answered_without_harm(
    people: Client, query: Any
) -> None:
    with RealtimeClient(people) as client:
        statuses = {
            client.request("q", {"p": "people", "h": "", "q": query, "t": 1}).status,
            client.request("g", {"p": "people", "q": query}).status,
        }
        assert statuses <= {"ok", "failure"}
        client.put("a", 1)


@pytest.mark.parametrize(
    "query", [{"l": 0}, {"l": "1"}, {"i": ".x"}, {"sp": {}}, [], 7], ids=json.dumps
)
def test_a_query_that_is_malformed_fails(people: Client, query: Any) -> None:
    with RealtimeClient(people) as client:
        assert client.request("g", {"p": "people", "q": query}).status == "failure"
        answer = client.request("q", {"p": "people", "h": "", "q": query, "t": 1})
        assert answer.status == "failure"
        assert client.pushed == []


@pytest.mark.parametrize("tag", [None, "1", 1.5, [], -1, True], ids=json.dumps)
def test_a_query_whose_tag_is_no_number_is_refused_or_keeps_it(people: Client, tag: Any) -> None:
    query = {"i": ".key", "l": 1}
    with RealtimeClient(people) as client:
        answer = client.request("q", {"p": "people", "h": "", "q": query, "t": tag})
        assert answer.status in ("ok", "failure")
        assert all(push.body.get("t") == tag for push in client.pushed)
        client.put("a", 1)
