"""The overlay reads like the tree after an edit, without a copy of the tree."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.tree.strategies import FEW_PATHS, PRIORITIES, VALUES
from tests.tree.value_view import ValueView
from treedbd.tree.edit import apply
from treedbd.tree.overlay import EditedTree, Overlay, StateUnknown
from treedbd.tree.path import is_at_or_above
from treedbd.tree.types import CONTAINER, PRIORITY, VALUE, Change, Path, Place, Value
from treedbd.tree.value import members


def put(path: str, value: Value) -> Change:
    return Change(Place(tuple(path.split())), value)


def rank(path: str, priority: Value) -> Change:
    return Change(Place(tuple(path.split()), is_priority=True), priority)


BASE: Value = {
    PRIORITY: 1,
    "a": {PRIORITY: 2, "b": 1, "c": {"d": 2}},
    "leaf": {VALUE: 5, PRIORITY: "p"},
    "z": 0,
}


@pytest.mark.parametrize(
    ("changes", "path", "value"),
    [
        ([], "a b", 1),
        ([put("a b", 9)], "a", {PRIORITY: 2, "b": 9, "c": {"d": 2}}),
        ([put("a b", 9)], "a b", 9),
        ([put("a b", 9)], "a c d", 2),
        ([put("a", {"x": 1})], "a", {"x": 1}),
        ([put("a", {"x": 1})], "a x", 1),
        ([put("a", {"x": 1})], "a b", None),
        ([put("a", {"x": 1})], "a x y", None),
        ([put("a b", None)], "a", {PRIORITY: 2, "c": {"d": 2}}),
        ([put("a c d", None)], "a", {PRIORITY: 2, "b": 1}),
        ([put("a b", None), put("a c", None)], "a", None),
        ([put("a b", None), put("a c d", None), put("leaf", None), put("z", None)], "", None),
        ([put("a b", None), put("a c", None), put("a x", 1)], "a", {PRIORITY: 2, "x": 1}),
        ([put("leaf x", 1)], "leaf", {PRIORITY: "p", "x": 1}),
        ([put("leaf x", None)], "leaf", {VALUE: 5, PRIORITY: "p"}),
        ([put("leaf x y", None)], "leaf", {VALUE: 5, PRIORITY: "p"}),
        ([put("z x", 1)], "z", {"x": 1}),
        ([put("gone x", None)], "gone", None),
        ([put("new x y", 1)], "new", {"x": {"y": 1}}),
        ([rank("a", 7)], "a", {PRIORITY: 7, "b": 1, "c": {"d": 2}}),
        ([rank("a", None)], "a", {"b": 1, "c": {"d": 2}}),
        ([rank("z", 7)], "z", {VALUE: 0, PRIORITY: 7}),
        ([rank("gone", 7)], "gone", None),
        ([rank("gone deeper", 7)], "", BASE),
        ([put("a b", 3), rank("a", 7)], "a", {PRIORITY: 7, "b": 3, "c": {"d": 2}}),
        ([put("new x", 3), rank("new", 7)], "new", {PRIORITY: 7, "x": 3}),
        ([put("a b", None), put("a c", None), rank("a", 7)], "a", None),
        ([put("a", {"x": 1}), rank("a", 7)], "a", {PRIORITY: 7, "x": 1}),
        ([put("a", {"x": 1}), rank("a x", 7)], "a x", {VALUE: 1, PRIORITY: 7}),
        ([put("", None)], "a", None),
        ([put("", {"q": 1})], "", {"q": 1}),
    ],
)
def test_the_overlay_shows_an_edit(changes: list[Change], path: str, value: Value) -> None:
    overlay = Overlay(ValueView(BASE), changes)
    assert overlay.get(tuple(path.split())) == value


def test_keys_come_in_order() -> None:
    base = ValueView({"2": 1, "10": 1, "b": 1})
    changes = [put("1", 1), put("a", 1), put("10", None), put("c d", 1), put("2 x", None)]
    assert list(Overlay(base, changes).keys(())) == ["1", "2", "a", "b", "c"]
    assert list(Overlay(base, changes).keys(("c",))) == ["d"]
    assert list(Overlay(base, changes).keys(("b",))) == []


def is_apart(place: Place, others: list[Place]) -> bool:
    """Return whether a place is at, above or below none of the others, as a PATCH requires."""
    full = (*place.path, PRIORITY) if place.is_priority else place.path
    for other in others:
        whole = (*other.path, PRIORITY) if other.is_priority else other.path
        if is_at_or_above(full, whole) or is_at_or_above(whole, full):
            return False
    return True


@st.composite
def edits(draw: st.DrawFn) -> list[Change]:
    """Draw the changes of one edit, apart from each other: values, removals, then priorities."""
    changes: list[Change] = []
    for path in draw(st.lists(FEW_PATHS, max_size=6)):
        place = Place(path, draw(st.integers(0, 3)) == 0)
        if is_apart(place, [change.place for change in changes]):
            values = st.one_of(st.none(), PRIORITIES) if place.is_priority else VALUES
            changes.append(Change(place, draw(values)))
    return sorted(changes, key=lambda change: (change.place.is_priority, change.value is None))


NO_LIMIT = 2**40
SLACK = 64
"""Bytes that a change may add beyond its size: a priority, escapes in a key."""


def paths_of(value: Value, path: Path = ()) -> Iterator[Path]:
    yield path
    for key, child in members(value):
        yield from paths_of(child, (*path, key))


@settings(max_examples=examples(500), deadline=None)
@given(VALUES, edits(), FEW_PATHS)
def test_an_overlay_reads_like_the_edited_tree(
    base: Value, changes: list[Change], elsewhere: Path
) -> None:
    after = apply(base, changes)
    expected, overlay = ValueView(after), Overlay(ValueView(base), changes)
    places = {elsewhere, *paths_of(after), *paths_of(base)}
    for path in (*places, *(change.place.path for change in changes)):
        assert overlay.peek(path) == expected.peek(path)
        assert (overlay.peek(path) is CONTAINER) == (expected.peek(path) is CONTAINER)
        assert overlay.priority(path) == expected.priority(path)
        assert list(overlay.keys(path)) == list(expected.keys(path))
        assert repr(overlay.get(path)) == repr(expected.get(path))
        assert overlay.size(path, NO_LIMIT) + SLACK * len(changes) >= expected.size(path, NO_LIMIT)


@settings(max_examples=examples(300), deadline=None)
@given(VALUES, st.lists(st.tuples(FEW_PATHS, VALUES), max_size=4))
def test_a_later_change_below_an_earlier_one_applies_after_it(
    base: Value, drawn: list[tuple[Path, Value]]
) -> None:
    changes: list[Change] = []
    for path, value in drawn:
        inside = any(is_at_or_above(change.place.path, path) for change in changes)
        outside = not any(is_at_or_above(path, change.place.path) for change in changes)
        if value is not None and (inside or outside):
            changes.append(Change(Place(path), value))
    assert repr(Overlay(ValueView(base), changes).get(())) == repr(apply(base, changes))


class CountingView(ValueView):
    """A view that counts the keys that are read."""

    keys_read = 0

    def keys(self, path: Path) -> Iterator[str]:
        for key in super().keys(path):
            self.keys_read += 1
            yield key


def test_a_large_base_is_neither_copied_nor_walked() -> None:
    base = CountingView({f"k{at:05}": 1 for at in range(10_000)})
    overlay = Overlay(base, [put("k00000", None), put("k00001", None)])
    assert overlay.peek(()) is CONTAINER
    assert base.keys_read == 3
    keys = overlay.keys(())
    assert next(keys) == "k00002"
    assert base.keys_read < 10


def test_the_keys_of_many_removals_are_read_once() -> None:
    base = CountingView({"a": {f"k{at:04}": 1 for at in range(2_000)}})
    overlay = Overlay(base, [put(f"a k{at:04}", None) for at in range(2_000)])
    for _ in range(50):
        assert overlay.peek(("a",)) is None
    assert base.keys_read <= 2_000


@settings(max_examples=examples(700), deadline=None)
@given(VALUES, st.lists(edits(), max_size=8), FEW_PATHS)
def test_an_edited_tree_reads_like_the_tree_after_each_edit(
    base: Value, several: list[list[Change]], elsewhere: Path
) -> None:
    edited, after = EditedTree(ValueView(base)), base
    places = {elsewhere, *paths_of(base)}
    for changes in several:
        edited.apply(changes)
        after = apply(after, changes)
        expected = ValueView(after)
        places |= {*paths_of(after), *(change.place.path for change in changes)}
        for path in places:
            assert edited.peek(path) == expected.peek(path)
            assert edited.priority(path) == expected.priority(path)
            assert list(edited.keys(path)) == list(expected.keys(path))
            assert repr(edited.get(path)) == repr(expected.get(path))


@pytest.mark.parametrize(
    ("several", "path", "value"),
    [
        ([[put("a b", None), put("a c", None)], [put("a x", 1)]], "a", {"x": 1}),
        ([[put("leaf x", 1)], [put("leaf x", None)]], "leaf", None),
        ([[rank("new", 3)], [put("new", 1)]], "new", 1),
        ([[put("a b", None)], [put("a c d", None)]], "a", None),
        ([[put("a c d", None), put("a c e", 1)], [put("a b", 2)]], "a c", {"e": 1}),
    ],
)
def test_an_edit_applies_to_what_those_before_it_have_left(
    several: list[list[Change]], path: str, value: Value
) -> None:
    edited = EditedTree(ValueView(BASE))
    for changes in several:
        edited.apply(changes)
    assert edited.get(tuple(path.split())) == value


def test_removals_one_by_one_read_the_keys_of_their_container_once() -> None:
    base = CountingView({"a": {f"k{at:04}": 1 for at in range(500)}, "b": 1})
    edited = EditedTree(base)
    for at in range(500):
        assert edited.peek(("a",)) is CONTAINER
        edited.apply([put(f"a k{at:04}", None)])
    assert edited.peek(("a",)) is None
    assert base.keys_read <= 510


def test_the_children_that_edits_have_reached_are_known() -> None:
    edited = EditedTree(ValueView(BASE))
    assert edited.changed_children(("a",)) == []
    edited.apply([put("a c d", 5), put("z", 1)])
    edited.apply([put("a x", None), put("a y", 3)])
    assert edited.changed_children(("a",)) == ["c", "y"]
    assert edited.changed_children(("a", "b")) == []
    edited.apply([put("a", {"q": 1})])
    assert edited.changed_children(("a",)) is None


def test_what_was_written_without_its_values_cannot_be_read() -> None:
    edited = EditedTree(ValueView(BASE))
    edited.forget(("a", "c"))
    for path in ((), ("a",), ("a", "c"), ("a", "c", "d")):
        with pytest.raises(StateUnknown):
            edited.get(path)
    assert edited.get(("a", "b")) == 1
    edited.apply([put("a c e", 1)])
    with pytest.raises(StateUnknown):
        edited.peek(("a", "c"))
    assert edited.peek(("z",)) == 0
    edited.apply([put("a", {"c": 1})])
    assert edited.get(("a",)) == {"c": 1}
