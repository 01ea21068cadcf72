"""A watched query's window: the events it tells bring a reader to what the query shows."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treedbd.tree.body import normalise
from treedbd.tree.edit import apply, make_put
from treedbd.tree.event import Event
from treedbd.tree.path import Place
from treedbd.tree.query import Query, Selection, parse_query
from treedbd.tree.value import Value, members, plain
from treedbd.tree.view import ValueView
from treedbd.tree.window import Window, written_children

PATH = ("list",)


def query(**parameters: str) -> Query:
    parsed = parse_query(parameters)
    assert parsed is not None
    return parsed


def shown(asked: Query, root: Value) -> dict[str, Value]:
    return {key: plain(child) for key, child in asked.select(members(ValueView(root).get(PATH)))}


def move(window: Window, asked: Query, root: Value, written: list[str] | None) -> list[Event]:
    view = ValueView(root)
    return list(window.move(written, PATH, view, lambda: asked.select(members(view.get(PATH)))))


def test_a_child_that_comes_in_is_put_and_the_one_it_pushes_out_is_removed() -> None:
    asked = query(orderBy='"$value"', limitToFirst="2")
    window = Window(asked, [("a", 1), ("b", 3)])
    events = move(window, asked, {"list": {"a": 1, "b": 3, "c": 2}}, ["c"])
    assert {(event.path, event.data) for event in events} == {(("b",), None), (("c",), 2)}


def never() -> Selection:
    raise AssertionError("The query is asked anew.")


def told(window: Window, root: Value, *written: str) -> dict[str, Value]:
    """Return what a full window tells that must not ask its query anew."""
    events = list(window.move(written, PATH, ValueView({"list": root}), never))
    assert len({event.path for event in events}) == len(events)
    return {event.path[0]: event.data for event in events}


def test_a_full_window_moves_by_itself_unless_somebody_unknown_may_move_up() -> None:
    for limit, last, first in (("limitToFirst", 9, 0), ("limitToLast", 0, 9)):
        start = [("a", 3), ("b", 4), ("c", 5)]
        window = Window(query(orderBy='"$value"', **{limit: "3"}), start)
        edge, inner = ("c", "a") if first == 0 else ("a", "c")
        root: dict[str, Value] = dict(start)
        assert told(window, {**root, "x": last}, "x") == {}
        assert told(window, {**root, "b": 3}, "b") == {"b": 3}
        root["b"] = 3
        assert told(window, {**root, "x": first}, "x") == {"x": first, edge: None}
        with pytest.raises(AssertionError, match="asked anew"):
            told(window, {**root, "x": first, inner: last}, inner)


def test_one_that_comes_and_goes_within_a_commit_is_not_told() -> None:
    window = Window(query(orderBy='"$value"', limitToFirst="2"), [("a", 5), ("b", 6)])
    root = {"a": 5, "b": 6, "c": 4, "d": 3, "e": 2}
    assert told(window, root, "c", "d", "e") == {"a": None, "b": None, "d": 3, "e": 2}


def test_a_window_that_is_not_full_takes_and_loses_children_by_itself() -> None:
    window = Window(query(orderBy='"$value"', limitToFirst="3"), [("a", 1), ("b", 2)])
    assert told(window, {"a": 1, "b": 9}, "b") == {"b": 9}
    assert told(window, {"b": 9}, "a") == {"a": None}
    assert told(window, {"b": 9, "c": 10}, "c") == {"c": 10}


def test_a_child_outside_the_bounds_is_not_told() -> None:
    asked = query(orderBy='"$value"', endAt="5")
    window = Window(asked, [("a", 1)])
    assert move(window, asked, {"list": {"a": 1, "b": 9}}, ["b"]) == []


def test_a_child_that_leaves_the_bounds_is_removed() -> None:
    asked = query(orderBy='"$value"', endAt="5")
    window = Window(asked, [("a", 1)])
    assert move(window, asked, {"list": {"a": 7}}, ["a"]) == [Event("put", ("a",), None)]


def test_when_all_may_have_been_written_only_what_differs_is_told() -> None:
    asked = query(orderBy='"$key"')
    window = Window(asked, [("a", 1), ("b", 2)])
    assert move(window, asked, {"list": {"a": 1, "b": 3}}, None) == [Event("put", ("b",), 3)]


def test_the_children_that_events_wrote_are_known_unless_one_replaced_all() -> None:
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
def test_who_applies_the_events_shows_what_the_query_shows(
    asked: Query, start: dict[str, Value], commits: list[list[tuple[str, Value]]]
) -> None:
    root = normalise({"list": start}).value
    window = Window(asked, asked.select(members(ValueView(root).get(PATH))))
    mine = shown(asked, root)
    for writes in commits:
        for key, value in writes:
            root = apply(root, make_put(Place((*PATH, key)), value).changes)
        for event in move(window, asked, root, [key for key, _ in writes]):
            if event.data is None:
                del mine[event.path[0]]
            else:
                mine[event.path[0]] = event.data
        assert mine == shown(asked, root)
