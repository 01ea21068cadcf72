"""The window of a watched query: who enters, leaves and stays with each write."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.tree.queries import query
from tests.tree.strategies import normal
from tests.tree.value_view import ValueView
from treedbd.loop import finish
from treedbd.tree.edit import set_value
from treedbd.tree.path import rank_key
from treedbd.tree.query import Query
from treedbd.tree.types import Value
from treedbd.tree.value import members
from treedbd.tree.window import (
    MOST_RESERVE,
    Moved,
    Placed,
    Window,
    bytes_of,
    fields_of,
    position_of,
    position_of_value,
    read_facts,
)


def placed(watched: Query, children: Value) -> list[Placed]:
    """Return the children that a query selects, each in its position."""
    selected = watched.select(members(children))
    return [((watched.sort_value(child), rank_key(key)), key) for key, child in selected]


def draw(watched: Query, children: Value, reserve: int = MOST_RESERVE) -> Window:
    """Return the window that shows what a query selects."""
    window = Window(watched, reserve)
    window.fill(placed(window.wider_query, children))
    return window


def move(window: Window, watched: Query, children: Value, *written: str) -> Moved | None:
    """Move a window after some children were written; None if its reserve has run out."""
    view, fields = ValueView(children), fields_of(watched)
    for key in written:
        window.place(key, position_of(watched, key, finish(read_facts(view, (key,), fields))))
    assert window.bytes == sum(map(bytes_of, window._in_order))
    return window.move()


def moved(window: Window, watched: Query, children: Value, *written: str) -> Moved:
    """Move a window, and extend it if its reserve has run out."""
    found = move(window, watched, children, *written)
    if found is not None:
        return found
    beyond = window.beyond(window.missing + 1)
    following = placed(beyond, children)
    found = window.extend(following, is_all=len(following) <= window.missing)
    assert window.bytes == sum(map(bytes_of, window._in_order))
    return found


FIRST_TWO = query(orderBy='"$value"', limitToFirst="2")


def test_a_child_that_enters_pushes_another_one_out() -> None:
    window = draw(FIRST_TWO, {"a": 1, "b": 3})
    assert move(window, FIRST_TWO, {"a": 1, "b": 3, "c": 2}, "c") == (["c"], ["b"], [])


def test_a_child_that_is_written_to_and_still_shown_stays() -> None:
    window = draw(FIRST_TWO, {"a": 1, "b": 2, "c": 3})
    assert move(window, FIRST_TWO, {"a": 1, "b": 0, "c": 3}, "b") == ([], [], ["b"])
    assert window.keys == ["b", "a"]
    assert move(window, FIRST_TWO, {"a": 1, "b": 0, "c": 4}, "c") == ([], [], [])


@pytest.mark.parametrize("limit", ["limitToFirst", "limitToLast"])
def test_a_child_that_leaves_is_replaced_from_the_reserve_until_it_has_run_out(limit: str) -> None:
    watched = query(orderBy='"$value"', **{limit: "2"})
    keys = "abcdefg" if limit == "limitToFirst" else "gfedcba"
    children: dict[str, Any] = {key: number for number, key in enumerate("abcdefg")}
    window = draw(watched, children, reserve=2)
    for leaving, entering in ((0, 2), (1, 3)):
        del children[keys[leaving]]
        expected = Moved([keys[entering]], [keys[leaving]], [])
        assert move(window, watched, children, keys[leaving]) == expected
    del children[keys[2]]
    assert move(window, watched, children, keys[2]) is None
    following = placed(window.beyond(window.missing + 1), children)
    assert [key for _, key in following] == sorted(keys[4:7])
    assert window.extend(following, is_all=False) == ([keys[4]], [keys[2]], [])
    del children[keys[3]]
    assert move(window, watched, children, keys[3]) == ([keys[5]], [keys[3]], [])


@pytest.mark.parametrize("limit", ["limitToFirst", "limitToLast"])
def test_children_that_enter_and_leave_at_the_edge_never_use_up_the_reserve(limit: str) -> None:
    watched = query(orderBy='"$value"', **{limit: "50"})
    children: dict[str, Any] = {f"k{number}": number for number in range(1000)}
    window = draw(watched, children)
    sign = 1 if limit == "limitToLast" else -1
    for number in range(1000):
        key = f"n{number}"
        children[key] = sign * (2000 + number)
        entered = move(window, watched, children, key)
        assert entered is not None
        assert (entered.entered, len(entered.left)) == ([key], 1)
        del children[key]
        assert move(window, watched, children, key) == (entered.left, [key], [])


def test_a_reserve_keeps_no_more_children_than_it_may() -> None:
    window = draw(FIRST_TWO, {"a": 1, "b": 2}, 3)
    children: dict[str, Any] = {"a": 1, "b": 2, **{f"k{number}": -number for number in range(20)}}
    assert move(window, FIRST_TWO, children, *children) is not None
    assert len(window._in_order) == len(window._positions) == 5


@pytest.mark.parametrize("limit", ["limitToFirst", "limitToLast"])
def test_a_reserve_keeps_no_long_strings(limit: str) -> None:
    watched = query(orderBy='"$value"', **{limit: "1"})
    children: dict[str, Any] = {letter: letter * 2000 for letter in "bcde"}
    window = draw(watched, children)
    assert len(window._in_order) == 1
    nearer, edge = ("a", "b") if limit == "limitToFirst" else ("f", "e")
    children[nearer] = nearer
    assert move(window, watched, children, nearer) == ([nearer], [edge], [])
    assert len(window._in_order) == 1
    del children[nearer]
    assert move(window, watched, children, nearer) is None


def test_a_write_beyond_the_horizon_changes_nothing() -> None:
    watched = query(orderBy='"$value"', limitToFirst="1")
    window = draw(watched, {"a": 1, "b": 2, "c": 3}, reserve=1)
    children: dict[str, Any] = {"a": 1, "b": 2, "c": 3, "d": 9}
    assert move(window, watched, children, "d") == ([], [], [])
    assert len(window._in_order) == 2
    del children["a"]
    assert move(window, watched, children, "a") == (["b"], ["a"], [])


def test_a_child_that_enters_and_leaves_within_a_write_is_not_concerned() -> None:
    window = draw(FIRST_TWO, {"a": 5, "b": 6})
    children: Value = {"a": 5, "b": 6, "c": 4, "d": 3, "e": 2}
    found = move(window, FIRST_TWO, children, "c", "d", "e")
    assert found is not None
    assert (sorted(found.entered), sorted(found.left), found.stayed) == (
        ["d", "e"],
        ["a", "b"],
        [],
    )


def test_a_child_that_leaves_for_beyond_the_horizon_and_returns_has_stayed() -> None:
    watched = query(orderBy='"$value"', limitToFirst="1")
    window = draw(watched, {"a": 1, "b": 2, "c": 3}, reserve=0)
    assert moved(window, watched, {"a": 2, "b": 3, "c": 4}, "a", "b", "c") == ([], [], ["a"])


def test_a_window_that_is_not_full_always_knows_all_its_children() -> None:
    watched = query(orderBy='"$value"', limitToFirst="3")
    window = draw(watched, {"a": 1, "b": 2})
    assert move(window, watched, {"a": 1, "b": 9}, "b") == ([], [], ["b"])
    assert move(window, watched, {"b": 9}, "a") == ([], ["a"], [])
    assert move(window, watched, {"b": 9, "c": 10}, "c") == (["c"], [], [])


def test_the_keys_of_a_window_are_known_in_order() -> None:
    children: Value = {"a": 3, "b": 2, "c": 1}
    assert draw(FIRST_TWO, children).keys == ["c", "b"]
    assert draw(query(orderBy='"$value"', limitToLast="2"), children).keys == ["b", "a"]


@pytest.mark.parametrize("value", [None, False, True, 3, 2.5, "text", {"x": 1}])
def test_what_is_beyond_a_horizon_of_any_kind_is_found(value: Value) -> None:
    watched = query(orderBy='"v"', limitToFirst="1")
    children: dict[str, Value] = {f"k{at}": normal({"v": value, "w": at}) for at in range(5)}
    window = draw(watched, children, reserve=0)
    del children["k0"]
    assert moved(window, watched, children, "k0") == (["k1"], ["k0"], [])


def test_the_facts_about_a_child_are_the_fields_that_decide_about_it() -> None:
    watched = query(orderBy='"a/b"', where='{"$priority":1,"c":{">":2},"$key":{"!=":"x"}}')
    fields = fields_of(watched)
    assert fields == {("child", ("a", "b")), ("priority", ()), ("child", ("c",))}
    view = ValueView({"k": {".priority": 1, "a": {"b": 5}, "c": 3}, "leaf": 7})
    facts = finish(read_facts(view, ("k",), fields))
    assert facts is not None
    assert position_of(watched, "k", facts) == ((3, 5), rank_key("k"))
    assert position_of(watched, "x", facts) is None
    assert position_of(watched, "leaf", finish(read_facts(view, ("leaf",), fields))) is None
    assert finish(read_facts(view, ("none",), fields)) is None


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
        query(orderBy='"v"', limitToFirst="2", where='{"$value":{"exists":true}}'),
        query(orderBy='"v"', limitToLast="1", where='{"$priority":{">":0},"$key":{"<":"e"}}'),
    ]
)


@settings(max_examples=examples(500), deadline=None)
@given(QUERIES, st.dictionaries(KEYS, VALUES), KEYS)
def test_a_position_is_the_same_from_facts_and_from_a_value(
    watched: Query, drawn: dict[str, Any], key: str
) -> None:
    children: Any = normal(drawn) or {}
    facts = finish(read_facts(ValueView(children), (key,), fields_of(watched)))
    expected = position_of_value(watched, key, children[key]) if key in children else None
    assert position_of(watched, key, facts) == expected


@settings(max_examples=examples(500), deadline=None)
@given(
    QUERIES.filter(lambda each: each.is_limited),
    st.integers(0, 3),
    st.dictionaries(KEYS, VALUES),
    st.lists(st.lists(st.tuples(KEYS, VALUES), max_size=4), max_size=12),
)
def test_a_window_shows_what_its_query_selects_and_knows_what_has_changed(
    watched: Query,
    reserve: int,
    start: dict[str, Any],
    commits: list[list[tuple[str, Any]]],
) -> None:
    children: Any = normal(start)
    window = draw(watched, children, reserve)
    for writes in commits:
        before = [key for key, _ in watched.select(members(children))]
        for key, value in writes:
            children = set_value(children, (key,), normal(value))
        written = list(dict(writes))
        found = moved(window, watched, children, *written)
        after = [key for key, _ in watched.select(members(children))]
        assert window.keys == after
        assert sorted(found.entered) == sorted(set(after) - set(before))
        assert sorted(found.left) == sorted(set(before) - set(after))
        assert sorted(found.stayed) == sorted(set(before) & set(after) & set(written))
