"""Patterns of paths: their syntax, what they match, and the places that an edit may change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.tree.strategies import FEW_KEYS, VALUES
from tests.tree.test_overlay import edits, paths_of
from tests.tree.value_view import ValueView
from treedbd.limits import MAX_DEPTH, MAX_PATTERN_CHARACTERS
from treedbd.tree.edit import apply
from treedbd.tree.overlay import Overlay
from treedbd.tree.pattern import InvalidPattern, PatternSet, parse_pattern
from treedbd.tree.types import Change, Path, Place, Value
from treedbd.tree.value import plain, value_at

PATTERNS = st.lists(st.none() | FEW_KEYS, max_size=4).map(tuple)


@pytest.mark.parametrize(
    ("text", "keys", "names"),
    [
        ("/orders/$id", ("orders", None), ("id",)),
        ("orders/$id/", ("orders", None), ("id",)),
        ("//a//$x/b/$_Y9", ("a", None, "b", None), ("x", "_Y9")),
        ("/", (), ()),
        ("", (), ()),
        ("/é/{id}", ("é", "{id}"), ()),
    ],
)
def test_a_pattern_is_parsed(text: str, keys: Path, names: tuple[str, ...]) -> None:
    pattern = parse_pattern(text)
    assert (pattern.keys, pattern.names) == (keys, names)
    assert parse_pattern(pattern.text) == pattern


def test_captures_may_be_in_braces() -> None:
    assert parse_pattern("/orders/{id}", has_braces=True) == parse_pattern("/orders/$id")
    with pytest.raises(InvalidPattern):
        parse_pattern("/orders/$id", has_braces=True)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("/a/$", "The name of a capture has letters"),
        ("/a/$1", "The name of a capture has letters"),
        ("/a/$b-c", "The name of a capture has letters"),
        ("/a/$" + "b" * 65, "The name of a capture has letters"),
        ("/$a/$a", "Two captures have the name a"),
        ("/a.b", "The key 'a.b' is not allowed"),
        ("/.priority", "not allowed"),
        ("/a/b$c", "not allowed"),
        ("/" + "k" * 769, "768"),
        ("/a" * (MAX_DEPTH + 1), "at most 32 keys"),
        ("/" * (MAX_PATTERN_CHARACTERS + 1), "at most 2048 characters"),
    ],
)
def test_what_is_no_pattern_is_said(text: str, sentence: str) -> None:
    with pytest.raises(InvalidPattern, match=sentence) as error:
        parse_pattern(text)
    assert str(error.value).endswith(".")


def test_a_pattern_matches_paths_of_its_depth() -> None:
    pattern = parse_pattern("/a/$x/b/$y")
    assert pattern.match(("a", "1", "b", "2")) == {"x": "1", "y": "2"}
    for path in ((), ("a", "1", "b"), ("a", "1", "c", "2"), ("a", "1", "b", "2", "c")):
        assert pattern.match(path) is None
    assert parse_pattern("/").match(()) == {}


def matches(pattern: Sequence[str | None], path: Path) -> bool:
    return len(pattern) == len(path) and all(
        wanted in (None, key) for wanted, key in zip(pattern, path, strict=True)
    )


def changed(before: Value, after: Value) -> Iterator[Path]:
    """Yield all places whose values differ, by a look at each."""
    for path in {(), *paths_of(before), *paths_of(after)}:
        if plain(value_at(before, path)) != plain(value_at(after, path)):
            yield path


@settings(max_examples=examples(400), deadline=None)
@given(VALUES, edits(), st.lists(PATTERNS, max_size=5))
def test_no_place_that_an_edit_changes_is_missed(
    before: Value, changes: list[Change], patterns: list[tuple[str | None, ...]]
) -> None:
    after, view = apply(before, changes), ValueView(before)
    for seen in (ValueView(after), Overlay(view, changes)):
        touched = list(PatternSet(patterns).touched(changes, view, seen))
        assert len(touched) == len(set(touched))
        assert all(any(matches(each, path) for each in patterns) for path in touched)
        expected = {
            path for path in changed(before, after) if any(matches(each, path) for each in patterns)
        }
        assert expected <= set(touched)
        for path in touched:  # nothing is looked at that the edit cannot have changed
            at = [each.place.path[: len(path)] for each in changes if not each.place.is_priority]
            assert any(path[: len(each)] == each for each in at)


def test_a_change_above_touches_what_was_there_and_what_is_there() -> None:
    before: Value = {"orders": {"a": 1, "b": {"lines": {"x": 1}}}, "other": 1}
    changes = [Change(Place(("orders",)), {"b": 2, "c": 3})]
    patterns = PatternSet([("orders", None), ("orders", None, "lines", None), ("other",)])
    view = ValueView(before)
    touched = list(patterns.touched(changes, view, Overlay(view, changes)))
    assert touched == [
        ("orders", "a"),
        ("orders", "b"),
        ("orders", "b", "lines", "x"),
        ("orders", "c"),
    ]


def test_places_are_found_lazily_and_in_order() -> None:
    before: Value = {"a": {str(number): 1 for number in range(100_000)}}
    changes = [Change(Place(("a",)), None)]
    view = ValueView(before)
    found = PatternSet([("a", None)]).touched(changes, view, Overlay(view, changes))
    assert [next(found) for _ in range(3)] == [("a", "0"), ("a", "1"), ("a", "2")]


def test_a_priority_is_no_change() -> None:
    view = ValueView({"a": 1})
    changes = [Change(Place(("a",), is_priority=True), 5)]
    assert list(PatternSet([("a",)]).touched(changes, view, view)) == []


def test_a_set_of_no_patterns_is_empty() -> None:
    assert not PatternSet([])
    assert PatternSet([()])
