"""The window of a watched query: its events bring a client to what the query shows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tree.strategies import normal
from tests.tree.value_view import ValueView
from treedbd.tree.edit import apply, make_put
from treedbd.tree.event import Event
from treedbd.tree.printing import compact
from treedbd.tree.query import Query, Selection, parse_query
from treedbd.tree.types import Json, Place, Value
from treedbd.tree.value import members, plain
from treedbd.tree.window import RESERVE, Digest, Window, written_children

PATH = ("list",)


def query(**parameters: str) -> Query:
    parsed = parse_query(parameters)
    assert parsed is not None
    return parsed


def shown(watched: Query, root: Value) -> dict[str, Json]:
    return {key: plain(child) for key, child in selected_of(watched, root)}


def selected_of(watched: Query, root: Value) -> Selection:
    return watched.select(members(ValueView(root).get(PATH)))


def draw(watched: Query, root: Any, reserve: int = RESERVE) -> Window:
    """Return the window that shows what a query selects of the list in a tree."""
    window = Window(watched, reserve)
    children = list(members(ValueView(root).get(PATH)))
    selected = dict(watched.select(children))
    for key, child in window.wider_query.select(children):
        if key in selected:
            window.show(key, watched.sort_value(child), Digest(compact(plain(child))).value)
        else:
            window.keep(key, watched.sort_value(child))
    window.finish()
    return window


def move(window: Window, root: Any, written: Iterable[str]) -> list[Event] | None:
    """Move a window; None if the query has to be evaluated again."""

    def read(keys: Sequence[str]) -> list[Value]:
        return [ValueView(root).get((*PATH, key)) for key in keys]

    steps = window.move(written, read)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            events: list[Event] | None = end.value
            return events


def events_of(window: Window, root: dict[str, Any], *written: str) -> dict[str, Json] | None:
    """Return the events of a window by key, None if the query has to be evaluated again."""
    events = move(window, {"list": root}, written)
    if events is None:
        return None
    assert len({event.path for event in events}) == len(events)
    return {event.path[0]: event.data for event in events}


def test_a_child_that_enters_is_put_and_the_one_it_pushes_out_is_removed() -> None:
    window = draw(query(orderBy='"$value"', limitToFirst="2"), {"list": {"a": 1, "b": 3}})
    assert events_of(window, {"a": 1, "b": 3, "c": 2}, "c") == {"b": None, "c": 2}


@pytest.mark.parametrize("limit", ["limitToFirst", "limitToLast"])
def test_a_child_that_leaves_is_replaced_from_the_reserve_until_it_has_run_out(limit: str) -> None:
    watched = query(orderBy='"$value"', **{limit: "2"})
    keys = "abcde" if limit == "limitToFirst" else "edcba"
    root: dict[str, Any] = {key: number for number, key in enumerate("abcde")}
    window = draw(watched, {"list": root}, reserve=2)
    for leaving, entering in ((0, 2), (1, 3)):
        del root[keys[leaving]]
        assert events_of(window, root, keys[leaving]) == {
            keys[leaving]: None,
            keys[entering]: root[keys[entering]],
        }
    del root[keys[2]]
    assert events_of(window, root, keys[2]) is None


@pytest.mark.parametrize("limit", ["limitToFirst", "limitToLast"])
def test_children_that_enter_and_leave_at_the_edge_never_use_up_the_reserve(limit: str) -> None:
    watched = query(orderBy='"$value"', **{limit: "50"})
    root: dict[str, Any] = {f"k{number}": number for number in range(1000)}
    window = draw(watched, {"list": root})
    sign = 1 if limit == "limitToLast" else -1
    for number in range(1000):
        root[f"n{number}"] = sign * (2000 + number)
        entered = events_of(window, root, f"n{number}")
        assert entered is not None
        assert len(entered) == 2
        del root[f"n{number}"]
        left = events_of(window, root, f"n{number}")
        assert left is not None
        assert len(left) == 2


def test_a_reserve_keeps_no_more_children_than_it_may() -> None:
    window = draw(query(orderBy='"$value"', limitToFirst="2"), {"list": {"a": 1, "b": 2}}, 3)
    root: dict[str, Any] = {"a": 1, "b": 2, **{f"k{number}": -number for number in range(20)}}
    assert events_of(window, root, *root) is not None
    assert len(window._in_order) == len(window._positions) == 5


@pytest.mark.parametrize("limit", ["limitToFirst", "limitToLast"])
def test_a_reserve_keeps_no_long_strings(limit: str) -> None:
    watched = query(orderBy='"$value"', **{limit: "1"})
    root = {letter: letter * 2000 for letter in "bcde"}
    window = draw(watched, {"list": root})
    assert len(window._in_order) == 1
    nearer, edge = ("a", "b") if limit == "limitToFirst" else ("f", "e")
    root[nearer] = nearer
    assert events_of(window, root, nearer) == {edge: None, nearer: nearer}
    assert len(window._in_order) == 1
    del root[nearer]
    assert events_of(window, root, nearer) is None


def test_a_write_beyond_the_horizon_changes_nothing() -> None:
    watched = query(orderBy='"$value"', limitToFirst="1")
    window = draw(watched, {"list": {"a": 1, "b": 2, "c": 3}}, reserve=1)
    root: dict[str, Any] = {"a": 1, "b": 2, "c": 3, "d": 9}
    assert events_of(window, root, "d") == {}
    assert len(window._in_order) == 2
    del root["a"]
    assert events_of(window, root, "a") == {"a": None, "b": 2}


def test_a_child_that_enters_and_leaves_within_a_commit_causes_no_event() -> None:
    window = draw(query(orderBy='"$value"', limitToFirst="2"), {"list": {"a": 5, "b": 6}})
    root = {"a": 5, "b": 6, "c": 4, "d": 3, "e": 2}
    assert events_of(window, root, "c", "d", "e") == {"a": None, "b": None, "d": 3, "e": 2}


def test_a_child_that_only_moves_to_another_position_is_not_read_again() -> None:
    window = draw(query(orderBy='"$value"', limitToFirst="2"), {"list": {"a": 1, "b": 2, "c": 3}})
    reads: list[Sequence[str]] = []

    def read(keys: Sequence[str]) -> list[Value]:
        reads.append(keys)
        return [4 for _ in keys]

    assert [step for step in window.move(["c"], read) if step is not None] == []
    assert reads == [["c"]]


def test_a_window_that_is_not_full_always_knows_all_its_children() -> None:
    window = draw(query(orderBy='"$value"', limitToFirst="3"), {"list": {"a": 1, "b": 2}})
    assert events_of(window, {"a": 1, "b": 9}, "b") == {"b": 9}
    assert events_of(window, {"b": 9}, "a") == {"a": None}
    assert events_of(window, {"b": 9, "c": 10}, "c") == {"c": 10}


def test_a_child_outside_the_bounds_causes_no_event() -> None:
    window = draw(query(orderBy='"$value"', endAt="5"), {"list": {"a": 1}})
    assert events_of(window, {"a": 1, "b": 9}, "b") == {}


def test_a_child_that_leaves_the_bounds_is_removed() -> None:
    window = draw(query(orderBy='"$value"', endAt="5"), {"list": {"a": 1}})
    assert events_of(window, {"a": 7}, "a") == {"a": None}


def test_the_difference_of_two_windows_is_known_by_key() -> None:
    watched = query(orderBy='"$key"')
    former = draw(watched, {"list": {"a": 1, "b": 2, "c": 3}})
    window = draw(watched, {"list": {"a": 1, "b": 3, "d": 4}})
    assert [key for key in "abcd" if not window.shows_as(former, key)] == ["b", "c", "d"]
    assert window.keys_left_since(former) == ["c"]


def test_the_keys_of_a_window_with_a_limit_are_known_in_order() -> None:
    root = {"list": {"a": 3, "b": 2, "c": 1}}
    assert draw(query(orderBy='"$value"', limitToFirst="2"), root).keys() == ["c", "b"]
    assert draw(query(orderBy='"$value"', limitToLast="2"), root).keys() == ["b", "a"]
    assert draw(query(orderBy='"$value"'), root).keys() is None


def test_written_children_are_known_unless_an_event_replaced_all() -> None:
    events = [
        Event("put", ("a", "x"), 1),
        Event("patch", (), {"b": 1, "c/d": 2}),
        Event("patch", ("e", "y"), {"f": 1}),
    ]
    assert written_children(events) == ["a", "b", "c", "e"]
    assert written_children([*events, Event("put", (), None)]) is None


KEYS = st.sampled_from(["a", "b", "c", "d", "e", "f", "1", "2", "3"])
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


@settings(max_examples=500, deadline=None)
@given(
    QUERIES,
    st.integers(0, 3),
    st.dictionaries(KEYS, VALUES),
    st.lists(st.lists(st.tuples(KEYS, VALUES), max_size=4), max_size=12),
)
def test_a_client_that_applies_the_events_has_what_the_query_shows(
    watched: Query,
    reserve: int,
    start: dict[str, Any],
    commits: list[list[tuple[str, Any]]],
) -> None:
    root = normal({"list": start})
    window = draw(watched, root, reserve)
    followed = shown(watched, root)
    for writes in commits:
        for key, value in writes:
            root = apply(root, make_put(Place((*PATH, key)), value).changes)
        events = move(window, root, [key for key, _ in writes])
        if events is None:
            window, followed = draw(watched, root, reserve), shown(watched, root)
            continue
        for event in events:
            if event.data is None:
                del followed[event.path[0]]
            else:
                followed[event.path[0]] = event.data
        assert followed == shown(watched, root)
        assert window.keys() in (None, [key for key, _ in selected_of(watched, root)])
