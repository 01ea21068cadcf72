"""Events in the forms of functions: what their packages make of them is what has happened."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from treedbd.hooks.functions import is_final, shape
from treedbd.store.hooks import KINDS, Form, Hook, Kind
from treedbd.tree.pattern import parse_pattern

EVENT = {
    "id": "shop/eu/7/0",
    "hook": "fn",
    "project": "shop",
    "database": "eu",
    "kind": "updated",
    "seq": 7,
    "time": "2026-11-29T11:00:00.000Z",
    "path": "/orders/a",
    "captures": {"id": "a"},
    "before": {"n": 1, "tags": ["x", "y"]},
    "after": {"n": True, "tags": ["x"]},
    "uid": "ada",
    "admin": False,
}
LEAVES = st.booleans() | st.integers(0, 2) | st.sampled_from("xy")
NODES = st.recursive(
    LEAVES,
    lambda inner: (
        st.dictionaries(st.sampled_from(["a", "b", "0", "1"]), inner, min_size=1, max_size=3)
        | st.lists(inner, min_size=1, max_size=3)
        | inner.map(lambda last: [None, last])
    ),
    max_leaves=8,
)


def make_hook(form: Form, *kinds: Kind, on: str = "/orders/$id", trigger: str = "t") -> Hook:
    return Hook("fn", parse_pattern(on), frozenset(kinds or KINDS), form=form, trigger=trigger)


def without_arrays(node: Any) -> Any:
    """Return a node as `DataSnapshot` of the packages compares them: arrays are objects."""
    if isinstance(node, list):
        node = {str(at): each for at, each in enumerate(node)}
    if not isinstance(node, dict):
        return node
    return {key: without_arrays(each) for key, each in node.items() if each is not None}


def join_all(data: Any, delta: Any) -> Any:
    """Return what `applyChange` of the packages for Node.js makes of an event."""
    if not (isinstance(data, dict | list) and isinstance(delta, dict | list)):
        return delta
    before, after = without_arrays(data), delta
    if isinstance(after, list):
        after = dict(zip(map(str, range(len(after))), after, strict=True))
    joined = {}
    for key in {**before, **after}:
        value = join_all(before.get(key), after[key]) if key in after else before[key]
        if value is not None:
            joined[key] = value
    return joined


def join_outermost(data: Any, delta: Any) -> Any:
    """Return what the package for Python makes of one."""
    return {**data, **delta} if isinstance(data, dict) and isinstance(delta, dict) else delta


def printed(node: Any) -> str:
    """Return a node as text: for Python 1 and True are the same."""
    return json.dumps(node, sort_keys=True)


@settings(max_examples=examples(200))
@given(NODES, NODES)
def test_the_packages_find_the_value_after_an_update(before: Any, after: Any) -> None:
    shown = shape(make_hook("functions-2"), {**EVENT, "before": before, "after": after}, "h")
    data, delta = shown["data"]["data"], shown["data"]["delta"]  # type: ignore[call-overload, index]
    wanted = printed(without_arrays(after))
    for join in (join_all, join_outermost):
        assert printed(without_arrays(join(data, delta))) == wanted
    assert printed(without_arrays(data)) == printed(without_arrays(before))


def test_an_event_of_the_second_generation() -> None:
    assert shape(make_hook("functions-2", "updated"), EVENT, "db.example.com") == {
        "specversion": "1.0",
        "type": "google.firebase.database.ref.v1.updated",
        "source": "//firebasedatabase.googleapis.com/projects/_/locations/us-central1"
        "/instances/eu--shop",
        "subject": "refs/orders/a",
        "id": "shop/eu/7/0",
        "time": "2026-11-29T11:00:00.000Z",
        "datacontenttype": "application/json",
        "location": "us-central1",
        "instance": "eu--shop",
        "firebasedatabasehost": "db.example.com",
        "ref": "orders/a",
        "authtype": "app_user",
        "authid": "ada",
        "data": {
            "@type": "type.googleapis.com/google.events.firebase.database.v1.ReferenceEventData",
            "data": {"n": 1, "tags": {"0": "x", "1": "y"}},
            "delta": {"n": True, "tags": {"0": "x", "1": None}},
        },
    }


def test_an_event_of_the_first_generation() -> None:
    assert shape(make_hook("functions-1", "created"), {**EVENT, "kind": "created"}, "h") == {
        "context": {
            "eventId": "shop/eu/7/0",
            "timestamp": "2026-11-29T11:00:00.000Z",
            "eventType": "providers/google.firebase.database/eventTypes/ref.create",
            "resource": "projects/_/instances/eu--shop/refs/orders/a",
            "domain": "h",
            "auth": {"admin": False, "variable": {"uid": "ada", "token": {}}},
            "params": {"id": "a"},
        },
        "data": {
            "data": {"n": 1, "tags": {"0": "x", "1": "y"}},
            "delta": {"n": True, "tags": {"0": "x", "1": None}},
        },
    }


def test_the_type_is_that_of_the_function() -> None:
    for kind in KINDS:
        event = {**EVENT, "kind": kind}
        first, second = (shape(make_hook(form), event, "h") for form in FORMS)
        assert first["context"]["eventType"].endswith("/ref.write")  # type: ignore[call-overload, index, union-attr]
        assert second["type"] == "google.firebase.database.ref.v1.written"  # type: ignore[call-overload, index]
        some = shape(make_hook("functions-2", "created", "updated", "deleted"), event, "h")
        assert some == second


FORMS: tuple[Form, Form] = ("functions-1", "functions-2")


def test_who_has_written_is_shown() -> None:
    callers = (
        (True, None, {"admin": True}, {"authtype": "admin"}),
        (False, None, {"admin": False}, {"authtype": "unauthenticated"}),
    )
    for is_admin, uid, first, second in callers:
        event = {**EVENT, "admin": is_admin, "uid": uid}
        shown: Any = shape(make_hook("functions-1"), event, "h")
        assert shown["context"]["auth"] == first
        shown = shape(make_hook("functions-2"), event, "h")
        assert {name: shown[name] for name in shown if name.startswith("auth")} == second


def test_a_value_that_is_cut_is_named() -> None:
    event = {**EVENT, "after": None, "cut": ["after"]}
    first, second = (shape(make_hook(form), event, "h") for form in FORMS)
    shown: Any = first
    assert (shown["data"]["delta"], shown["context"]["treedbcut"]) == (None, "after")
    shown = second
    assert (shown["data"]["delta"], shown["treedbcut"]) == (None, "after")


def test_the_root_has_an_empty_reference() -> None:
    event = {**EVENT, "path": "/"}
    first, second = (shape(make_hook(form, on="/"), event, "h") for form in FORMS)
    shown: Any = first
    assert shown["context"]["resource"] == "projects/_/instances/eu--shop/refs/"
    shown = second
    assert (shown["ref"], shown["subject"]) == ("", "refs/")


def test_a_capture_without_a_name_is_left_to_the_function() -> None:
    shown: Any = shape(make_hook("functions-1", on="/orders/$_1"), EVENT, "h")
    assert "params" not in shown["context"]


def test_a_function_that_has_answered_is_not_called_again() -> None:
    registered, webhook = make_hook("functions-2"), make_hook("functions-2", trigger="")
    for status in (200, 204):
        assert is_final(registered, status)
        assert is_final(webhook, status)
    for status in (400, 404, 500):
        assert is_final(registered, status)
        assert not is_final(webhook, status)
    for status in (429, 502, 503, 504):
        assert not is_final(registered, status)
