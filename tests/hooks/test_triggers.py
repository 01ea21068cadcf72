"""Functions that register: what is accepted, and the hooks that are made of them."""

from __future__ import annotations

from typing import Any

import pytest

from treedbd.database.first_hooks import is_label_of
from treedbd.hooks.triggers import parse_trigger, show_trigger
from treedbd.store.hooks import HOOK_NAME, KINDS
from treedbd.tree.types import InvalidData

SECOND: dict[str, Any] = {
    "name": "projects/demo-x/locations/us-central1/triggers/us-central1-orderCreated-0",
    "path": "orders/{id}",
    "event": "google.firebase.database.ref.v1.created",
    "topic": "projects/demo-x/topics/us-central1-orderCreated-0",
    "namespacePattern": "*",
}
FIRST: dict[str, Any] = {
    "name": "projects/demo-x/locations/_/functions/us-central1-orderWritten-0",
    "path": "/orders/{id}/lines/{line}",
    "event": "providers/google.firebase.database/eventTypes/ref.write",
    "topic": "projects/demo-x/topics/us-central1-orderWritten-0",
}
URL = "http://127.0.0.1:5001"


def test_a_function_of_the_second_generation() -> None:
    trigger = parse_trigger(SECOND)
    assert (trigger.is_pattern, trigger.instances) == (True, "*")
    hook = trigger.make_hook(URL, 5)
    assert (hook.form, hook.on.text, hook.kinds) == (
        "functions-2",
        "/orders/$id",
        frozenset({"created"}),
    )
    key = "us-central1-orderCreated-0"
    assert hook.url == f"{URL}/functions/projects/demo-x/triggers/{key}"
    assert (hook.trigger, hook.created_ms) == (SECOND["name"], 5)
    shown = {**SECOND, "path": "/orders/{id}"}
    del shown["namespacePattern"]
    assert show_trigger(hook) == shown


def test_a_function_of_the_first_generation() -> None:
    trigger = parse_trigger(FIRST)
    assert (trigger.is_pattern, trigger.instances) == (False, None)
    hook = trigger.make_hook(URL, 5)
    assert (hook.form, hook.kinds) == ("functions-1", frozenset(KINDS))
    assert hook.on.text == "/orders/$id/lines/$line"
    assert show_trigger(hook) == FIRST
    short = {**FIRST, "event": "google.firebase.database.ref.write"}
    assert parse_trigger(short).make_hook(URL, 5) == hook


def test_generations_of_a_function_have_one_name() -> None:
    def name_of(key: str) -> str:
        name = f"projects/demo-x/locations/us-central1/triggers/{key}"
        return parse_trigger({**SECOND, "name": name}).make_hook(URL, 1).name

    assert name_of("us-central1-f-0") == name_of("us-central1-f-12")
    others = {"us-central1-f-1-0", "us-central1-F-0", "europe-west1-f-0", "post-1", "post-2"}
    names = {*map(name_of, others), name_of("us-central1-f-0")}
    assert len(names) == len(others) + 1
    for name in (*names, name_of("us-central1-" + "a" * 150 + "-0"), name_of("_")):
        assert HOOK_NAME.fullmatch(name)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        *(("/", "/"), ("a//b/", "/a/b"), ("/a/{b=*}", "/a/$b"), ("/a/*/{c}", "/a/$_1/$c")),
        *(("{}", "/$_0"), ("/{user-id}", "/$_0"), ("/{_1}/{_0}", "/$_0/$_1")),
    ],
)
def test_captures_are_whole_keys(path: str, text: str) -> None:
    assert parse_trigger({**SECOND, "path": path}).on.text == text


@pytest.mark.parametrize(
    "path",
    ["/a/**", "/a/{b=**}", "/a/x-*", "/a/{b=x-*}", "/a/{b}-{c}", "/{a}/{a}", "/a.b", "/a" * 2000],
)
def test_other_paths_are_refused(path: str) -> None:
    with pytest.raises(InvalidData, match=r"^The path of projects/demo-x/.* is not valid"):
        parse_trigger({**SECOND, "path": path})


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"name": None}, "name, a string"),
        ({"name": "createOrder"}, "name must be projects/"),
        ({"name": "projects/a/locations/b/triggers/../../x"}, "name must be projects/"),
        ({"path": ""}, "path, a string"),
        ({"event": "google.cloud.firestore.document.v1.created"}, "event must be one"),
        ({"event": ["created"]}, "event, a string"),
        ({"namespacePattern": "a/b"}, "namespacePattern must be"),
        ({"namespacePattern": 1}, "namespacePattern, a string"),
    ],
)
def test_a_function_that_is_not_one_is_refused(changed: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidData, match=problem):
        parse_trigger({**SECOND, **changed})


def test_what_is_no_object_is_refused() -> None:
    for json in (None, 1, "a", [SECOND]):
        with pytest.raises(InvalidData):
            parse_trigger(json)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("pattern", "instances"),
    [
        *(("Shop", "shop"), ("{any}", "*"), ("{any=shop-*}", "shop-*"), ("a**b", "a*b")),
        ("demo-x-default-rtdb", "demo-x-default-rtdb"),
    ],
)
def test_patterns_of_databases(pattern: str, instances: str) -> None:
    assert parse_trigger({**SECOND, "namespacePattern": pattern}).instances == instances


def test_labels_of_a_pattern() -> None:
    for pattern, label, is_one in (
        *(("*", "shop", True), ("shop", "shop", True), ("shop", "shops", False)),
        *(("sh*", "shop", True), ("*op", "shop", True), ("sh*op", "shop", True)),
        *(("sho*hop", "shop", False), ("*-eu-*", "a-eu-b", True), ("*-eu-*", "a-eu", False)),
        *(("a*a", "a", False), ("*a*a*", "ba", False), ("*a*a*", "aa", True)),
    ):
        assert is_label_of(pattern, label) is is_one, (pattern, label)
