"""The window of a watched query: its events bring a client to what the query shows."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tree.strategies import normal
from tests.tree.value_view import ValueView
from treedbd.tree.edit import apply, make_put
from treedbd.tree.event import Event
from treedbd.tree.query import Query, Selection, parse_query
from treedbd.tree.types import Json, Place, Value
from treedbd.tree.value import members, plain
from treedbd.tree.window import Window, written_children

PATH = ("list",)


def query(**parameters: str) -> Query:
    parsed = parse_query(parameters)
    assert parsed is not None
    return parsed


def shown(watched: Query, root: Value) -> dict[str, Json]:
    return {key: plain(child) for key, child in watched.select(members(ValueView(root).get(PATH)))}


def move(window: Window, watched: Query, root: Any, written: list[str] | None) -> list[Event]:
    view = ValueView(root)
    return list(window.move(written, PATH, view, lambda: watched.select(members(view.get(PATH)))))


def test_a_child_that_enters_is_put_and_the_one_it_pushes_out_is_removed() -> None:
    watched = query(orderBy='"$value"', limitToFirst="2")
    window = Window(watched, [("a", 1), ("b", 3)])
    events = move(window, watched, {"list": {"a": 1, "b": 3, "c": 2}}, ["c"])
    assert {(event.path, event.data) for event in events} == {(("b",), None), (("c",), 2)}


def never() -> Selection:
    raise AssertionError("The query is evaluated again.")


def events_of(window: Window, root: Any, *written: str) -> dict[str, Json]:
    """Return the events of a window that must not evaluate its query again, by key."""
    events = list(window.move(written, PATH, ValueView({"list": root}), never))
    assert len({event.path for event in events}) == len(events)
    return {event.path[0]: event.data for event in events}


def test_a_full_window_evaluates_the_query_only_if_an_unknown_child_may_enter() -> None:
    for limit, last, first in (("limitToFirst", 9, 0), ("limitToLast", 0, 9)):
        start: Selection = [("a", 3), ("b", 4), ("c", 5)]
        window = Window(query(orderBy='"$value"', **{limit: "3"}), start)
        edge, inner = ("c", "a") if first == 0 else ("a", "c")
        root: dict[str, Value] = dict(start)
        assert events_of(window, {**root, "x": last}, "x") == {}
        assert events_of(window, {**root, "b": 3}, "b") == {"b": 3}
        root["b"] = 3
        assert events_of(window, {**root, "x": first}, "x") == {"x": first, edge: None}
        with pytest.raises(AssertionError, match="evaluated again"):
            events_of(window, {**root, "x": first, inner: last}, inner)


def test_a_child_that_enters_and_leaves_within_a_commit_causes_no_event() -> None:
    window = Window(query(orderBy='"$value"', limitToFirst="2"), [("a", 5), ("b", 6)])
    root = {"a": 5, "b": 6, "c": 4, "d": 3, "e": 2}
    assert events_of(window, root, "c", "d", "e") == {"a": None, "b": None, "d": 3, "e": 2}


def test_a_window_that_is_not_full_never_evaluates_the_query() -> None:
    window = Window(query(orderBy='"$value"', limitToFirst="3"), [("a", 1), ("b", 2)])
    assert events_of(window, {"a": 1, "b": 9}, "b") == {"b": 9}
    assert events_of(window, {"b": 9}, "a") == {"a": None}
    assert events_of(window, {"b": 9, "c": 10}, "c") == {"c": 10}


def test_a_child_outside_the_bounds_causes_no_event() -> None:
    watched = query(orderBy='"$value"', endAt="5")
    window = Window(watched, [("a", 1)])
    assert move(window, watched, {"list": {"a": 1, "b": 9}}, ["b"]) == []


def test_a_child_that_leaves_the_bounds_is_removed() -> None:
    watched = query(orderBy='"$value"', endAt="5")
    window = Window(watched, [("a", 1)])
    assert move(window, watched, {"list": {"a": 7}}, ["a"]) == [Event("put", ("a",), None)]


def test_if_all_may_have_been_written_only_differences_cause_events() -> None:
    watched = query(orderBy='"$key"')
    window = Window(watched, [("a", 1), ("b", 2)])
    assert move(window, watched, {"list": {"a": 1, "b": 3}}, None) == [Event("put", ("b",), 3)]


def test_written_children_are_known_unless_an_event_replaced_all() -> None:
    events = [
        Event("put", ("a", "x"), 1),
        Event("patch", (), {"b": 1, "c/d": 2}),
        Event("patch", ("e", "y"), {"f": 1}),
    ]
    assert written_children(events) == ["a", "b", "c", "e"]
    assert written_children([*events, Event("put", (), None)]) is None


KEYS = st.sampled_from(["a", "b", "c", "d", "1", "2"])
PRIORITISED = st.builds(
    lambda value, priority: {".value": value, ".priority": priority},
    st.integers(0, 2),
    st.integers(0, 3),
)
VALUES = (
    PRIORITISED
    | st.none()
    | st.integers(0, 5)
    | st.booleans()
    | st.sampled_from(["x", {"v": 1}, {"v": 2}])
)
QUERIES = st.sampled_from(
    [
        query(orderBy='"$value"', limitToFirst="2"),
        query(orderBy='"$value"', limitToLast="2", startAt="1"),
        query(orderBy='"$key"', limitToLast="3"),
        query(orderBy='"$key"', startAt='"b"'),
        query(orderBy='"v"', startAt="1", endAt="1"),
        query(orderBy='"v"', limitToLast="1"),
        query(orderBy='"$value"', limitToFirst="3", endAt="4"),
        query(orderBy='"$priority"', limitToFirst="2"),
    ]
)


@settings(max_examples=300, deadline=None)
@given(
    QUERIES,
    st.dictionaries(KEYS, VALUES),
    st.lists(st.lists(st.tuples(KEYS, VALUES), max_size=4), max_size=8),
)
def test_a_client_that_applies_the_events_has_what_the_query_shows(
    watched: Query, start: dict[str, Any], commits: list[list[tuple[str, Any]]]
) -> None:
    root = normal({"list": start})
    window = Window(watched, watched.select(members(ValueView(root).get(PATH))))
    followed = shown(watched, root)
    for writes in commits:
        for key, value in writes:
            root = apply(root, make_put(Place((*PATH, key)), value).changes)
        for event in move(window, watched, root, [key for key, _ in writes]):
            if event.data is None:
                del followed[event.path[0]]
            else:
                followed[event.path[0]] = event.data
        assert followed == shown(watched, root)
