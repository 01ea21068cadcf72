"""The events that a write causes at a watched path."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.tree.strategies import normal
from tests.tree.value_view import ValueView
from treedbd.limits import MAX_CHANGED_KEY_BYTES, MAX_CHANGED_KEYS
from treedbd.store.changelog import commit_of, large_commit_of
from treedbd.tree.edit import Edit, apply, make_patch, make_put, make_remove, set_value
from treedbd.tree.event import Event, complete
from treedbd.tree.types import STORED, Change, Json, Path, Place, Value
from treedbd.tree.value import compact, plain

PUT_DEEP = make_put(Place(("a", "b")), {"c": 1})
PATCH_A = make_patch(("a",), {"b": {"c": 1}, "/d/e": 2, "f": {}})


def events_of(edit: Edit, watched: Path, after: Any = None) -> list[tuple[str, Path, Json]]:
    event = complete(commit_of(7, edit), ValueView(after)).event_at(watched)
    return [] if event is None else [(event.kind, event.path, event.data)]


@pytest.mark.parametrize(
    ("edit", "watched", "expected"),
    [
        (PUT_DEEP, (), [("put", ("a", "b"), {"c": 1})]),
        (PUT_DEEP, ("a",), [("put", ("b",), {"c": 1})]),
        (PUT_DEEP, ("a", "b"), [("put", (), {"c": 1})]),
        (PUT_DEEP, ("a", "b", "c"), [("put", (), 1)]),
        (PUT_DEEP, ("a", "b", "x", "y"), [("put", (), None)]),
        (PUT_DEEP, ("a", "x"), []),
        (PUT_DEEP, ("z",), []),
        (make_remove(Place(("a",))), ("a", "b"), [("put", (), None)]),
        (make_remove(Place(("a", "b"))), ("a",), [("put", ("b",), None)]),
        (PATCH_A, (), [("patch", ("a",), {"b": {"c": 1}, "d/e": 2, "f": None})]),
        (PATCH_A, ("a",), [("patch", (), {"b": {"c": 1}, "d/e": 2, "f": None})]),
        (PATCH_A, ("a", "b"), [("put", (), {"c": 1})]),
        (PATCH_A, ("a", "b", "c"), [("put", (), 1)]),
        (PATCH_A, ("a", "d"), [("patch", (), {"e": 2})]),
        (PATCH_A, ("a", "d", "e"), [("put", (), 2)]),
        (PATCH_A, ("a", "d", "x"), []),
        (PATCH_A, ("a", "x"), []),
        (
            make_patch((), {"a/b": 1, "x": 3, "a/c/d": {}}),
            ("a",),
            [("patch", (), {"b": 1, "c/d": None})],
        ),
        (make_patch((), {"a/b": 1, "x": 3}), ("a", "b", "c"), [("put", (), None)]),
        (make_patch(("a",), None), ("a", "b"), [("put", (), None)]),
        (make_put(Place(("a",)), [1, 2]), (), [("put", ("a",), [1, 2])]),
        (make_put(Place(("a",)), {".value": 1, ".priority": 2}), (), [("put", ("a",), 1)]),
    ],
)
def test_a_watcher_receives_what_a_write_changed_at_its_path(
    edit: Edit, watched: Path, expected: list[tuple[str, Path, Json]]
) -> None:
    assert events_of(edit, watched) == expected


def test_a_write_to_a_priority_is_a_put_of_its_node() -> None:
    edit = make_put(Place(("a",), is_priority=True), 5)
    after = {"a": {".priority": 5, "b": 1}}
    assert events_of(edit, (), after) == [("put", ("a",), {"b": 1})]
    assert events_of(edit, ("a",), after) == [("put", (), {"b": 1})]
    assert events_of(edit, ("a", "b"), after) == []


def test_a_patch_with_a_priority_is_one_patch_that_shows_it_as_sent() -> None:
    edit = make_patch(("a",), {".priority": 5, "b": 2, "c/.priority": 1})
    after = {"a": {".priority": 5, "b": 2, "c": {".value": 3, ".priority": 1}}}
    assert events_of(edit, ("a",), after) == [
        ("patch", (), {".priority": 5, "b": 2, "c/.priority": 1})
    ]
    assert events_of(edit, ("a", "c"), after) == [("put", (), 3)]
    above = make_patch((), {"a/.priority": 5, "a/b": 2, "a/c/.priority": 1})
    assert events_of(above, ("a",), after) == events_of(edit, ("a",), after)


def test_a_patch_event_has_its_members_in_the_order_in_which_they_were_sent() -> None:
    ((_, _, data),) = events_of(make_patch((), {"b": None, "a": 1, "c": {}, "A": 2}), ())
    assert isinstance(data, dict)
    assert list(data.items()) == [("b", None), ("a", 1), ("c", None), ("A", 2)]


def test_a_patch_event_shows_the_values_of_its_members_as_sent() -> None:
    body: Json = {"a": {"0": "x", "1": None}, "b": {".value": 1, ".priority": 2}, "c": [1, None]}
    assert events_of(make_patch((), body), ()) == [("patch", (), body)]


def test_an_event_prints_its_path_before_its_data() -> None:
    assert Event("put", (), None).print() == b'{"path":"/","data":null}'
    assert (
        Event("patch", ("é", "b"), {"x": 1.0}).print()
        == '{"path":"/é/b","data":{"x":1.0}}'.encode()
    )


def changed_of(edit: Edit, watched: Path) -> list[tuple[Path, Json]]:
    event = commit_of(7, edit).changed_at(watched)
    return [] if event is None else [(event.path, event.data)]


MANY_KEYS = make_patch((), {f"k{number:03}": 1 for number in range(MAX_CHANGED_KEYS + 1)})


@pytest.mark.parametrize(
    ("edit", "watched", "expected"),
    [
        (PUT_DEEP, (), [(("a", "b"), None)]),
        (PUT_DEEP, ("a",), [(("b",), None)]),
        (PUT_DEEP, ("a", "b"), [((), None)]),
        (PUT_DEEP, ("a", "b", "x", "y"), [((), None)]),
        (PUT_DEEP, ("a", "x"), []),
        (make_remove(Place(("a",))), ("a", "b"), [((), None)]),
        (PATCH_A, (), [(("a",), ["b", "d/e", "f"])]),
        (PATCH_A, ("a",), [((), ["b", "d/e", "f"])]),
        (PATCH_A, ("a", "b"), [((), None)]),
        (PATCH_A, ("a", "b", "c"), [((), None)]),
        (PATCH_A, ("a", "d"), [((), ["e"])]),
        (PATCH_A, ("a", "d", "x"), []),
        (make_patch((), {"a/b": 1, "x": 3, "a/c/d": {}}), ("a",), [((), ["b", "c/d"])]),
        (make_put(Place(("a",), is_priority=True), 5), (), [(("a",), None)]),
        (make_put(Place(("a",), is_priority=True), 5), ("a",), [((), None)]),
        (make_put(Place(("a",), is_priority=True), 5), ("a", "b"), []),
        (make_patch(("a",), {".priority": 5, "b": 2}), (), [(("a",), [".priority", "b"])]),
        (make_patch((), {"a/.priority": 5, "c": 2}), ("a",), [((), [".priority"])]),
        (make_patch((), {"a/.priority": 5, "c": 2}), ("a", "b"), []),
        (MANY_KEYS, (), [((), None)]),
        (MANY_KEYS, ("k007",), [((), None)]),
    ],
)
def test_a_watcher_of_changes_receives_the_places_without_values(
    edit: Edit, watched: Path, expected: list[tuple[Path, Json]]
) -> None:
    assert changed_of(edit, watched) == expected


@pytest.mark.parametrize("character", ["x", "ä", '"'])
def test_a_changed_names_keys_up_to_a_number_and_a_length(character: str) -> None:
    fits: dict[str, Json] = {f"k{number}": 1 for number in range(MAX_CHANGED_KEYS)}
    assert changed_of(make_patch((), fits), ()) == [((), [*fits])]
    size = len(compact(character)) - 2
    long: dict[str, Json] = {f"{number}{character * (700 // size)}": 1 for number in range(11)}
    whole = len(compact([*long]))
    room = "x" * (MAX_CHANGED_KEY_BYTES - whole - len(',""'))
    assert changed_of(make_patch((), long | {room: 1}), ()) == [((), [*long, room])]
    assert changed_of(make_patch((), long | {f"{room}x": 1}), ()) == [((), None)]


def test_the_keys_of_a_patch_that_the_log_no_longer_has_are_left_out() -> None:
    edit = Edit("patch", Place(("a",)), None, (Change(Place(("a",)), STORED),))
    commit = large_commit_of(7, edit)
    for watched, path in (((), ("a",)), (("a",), ()), (("a", "b"), ())):
        assert commit.changed_at(watched) == Event("changed", path, None)


def test_a_changed_prints_its_path_and_then_the_keys_if_they_are_known() -> None:
    assert Event("changed", ("a", "b"), None).print() == b'{"path":"/a/b"}'
    assert Event("changed", (), ["b", "c/d"]).print() == b'{"path":"/","keys":["b","c/d"]}'


KEYS = st.sampled_from(["a", "b", "1", "10"])
PATHS = st.lists(KEYS, max_size=3).map(tuple)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9),
    lambda inner: st.dictionaries(KEYS, inner, max_size=3) | st.lists(inner, max_size=3),
    max_leaves=6,
)


def make_edit(path: Path, body: Json, is_patch: bool) -> Edit:
    if is_patch and isinstance(body, dict):
        return make_patch(path, body)
    return make_put(Place(path), body)


def follow(value: Value, events: list[tuple[str, Path, Any]]) -> Value:
    """Return a value with events applied to it."""
    for kind, path, data in events:
        members = (
            [((), data)] if kind == "put" else [(tuple(k.split("/")), v) for k, v in data.items()]
        )
        for below, member in members:
            value = set_value(value, path + below, normal(member))
    return value


@settings(max_examples=examples(300), deadline=None)
@given(JSON, st.lists(st.tuples(PATHS, JSON, st.booleans()), max_size=5), PATHS)
def test_a_client_that_applies_the_events_has_the_present_value(
    start: Json, writes: list[tuple[Path, Json, bool]], watched: Path
) -> None:
    root = normal(start)
    followed = ValueView(root).get(watched)
    for path, body, is_patch in writes:
        edit = make_edit(path, body, is_patch)
        root = apply(root, edit.changes)
        followed = follow(followed, events_of(edit, watched, root))
        assert plain(followed) == plain(ValueView(root).get(watched))
