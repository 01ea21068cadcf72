from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tree.strategies import KEYS, PLAIN_BODIES, VALUES, normal
from tests.tree.test_normalise import assert_normal
from treedbd.tree import value
from treedbd.tree import value as printing
from treedbd.tree.path import sort_keys
from treedbd.tree.types import CONTAINER, Json, Value
from treedbd.tree.value import plain


@given(PLAIN_BODIES)
def test_the_plain_form_is_brought_back_to_the_value(body: Json) -> None:
    node = normal(body)
    shown = plain(node)
    assert value.from_plain(shown) == node
    assert normal(shown) == node
    assert printing.compact(value.from_plain(shown)) == printing.compact(node)


@given(VALUES)
def test_plain_shows_no_priority_and_does_not_modify_its_argument(node: Value) -> None:
    before = repr(node)
    text = printing.compact(plain(node))
    assert repr(node) == before
    assert b'".priority":' not in text


@pytest.mark.parametrize(
    ("node", "shown"),
    [
        (None, None),
        (5, 5),
        ({".value": 5, ".priority": 1}, 5),
        ({".priority": 1, "a": {".value": True, ".priority": 2}}, {"a": True}),
        ({"0": "x"}, ["x"]),
        ({"1": "x"}, [None, "x"]),
        ({"2": "x"}, {"2": "x"}),
        ({"0": "x", "3": "y"}, ["x", None, None, "y"]),
        ({"0": "x", "4": "y"}, {"0": "x", "4": "y"}),
        ({"1": "x", "2": "y", "3": "z"}, [None, "x", "y", "z"]),
        ({"5": "a", "6": "b", "7": "c"}, {"5": "a", "6": "b", "7": "c"}),
        ({"-1": "x", "0": "y"}, {"-1": "x", "0": "y"}),
        ({"0": "x", "00": "y"}, {"0": "x", "00": "y"}),
        ({"0": "x", "a": "y"}, {"0": "x", "a": "y"}),
        ({"0": {"0": {"1": "x"}}}, [[[None, "x"]]]),
        ({".priority": 1, "0": "x", "1": "y"}, ["x", "y"]),
        ({"0": False}, [False]),
    ],
)
def test_an_object_whose_keys_are_mostly_indices_is_shown_as_an_array(
    node: Value, shown: Json
) -> None:
    assert printing.compact(plain(node)) == printing.compact(shown)


@given(st.sets(st.integers(-2, 12), min_size=1))
def test_an_array_is_shown_if_the_greatest_index_is_below_twice_the_count(
    indices: set[int],
) -> None:
    node = normal({str(at): at for at in indices})
    is_array = min(indices) >= 0 and max(indices) < 2 * len(indices)
    assert isinstance(plain(node), list) == is_array


@pytest.mark.parametrize(
    ("node", "leaf", "priority", "keys", "bare"),
    [
        (None, None, None, [], None),
        (False, False, None, [], False),
        ({".value": 0, ".priority": "p"}, 0, "p", [], 0),
        ({"a": 1, "b": 2}, CONTAINER, None, ["a", "b"], {"a": 1, "b": 2}),
        ({".priority": 0, "a": 1}, CONTAINER, 0, ["a"], {"a": 1}),
    ],
)
def test_a_node_has_a_leaf_a_priority_and_members(
    node: Value, leaf: Any, priority: Any, keys: list[str], bare: Value
) -> None:
    assert value.leaf_of(node) == leaf
    assert value.priority_of(node) == priority
    assert [key for key, _ in value.members(node)] == keys
    assert value.without_priority(node) == bare
    assert value.with_priority(bare, priority) == node
    assert value.with_priority(node, None) == bare


@given(VALUES, st.integers() | st.text())
def test_a_new_priority_replaces_the_old_one(node: Value, priority: Any) -> None:
    changed = value.with_priority(node, priority)
    assert_normal(changed)
    assert value.priority_of(changed) == (None if node is None else priority)
    assert value.without_priority(changed) == value.without_priority(node)


@given(st.dictionaries(KEYS, st.integers(), min_size=1))
def test_members_are_sorted_and_a_priority_goes_first(children: dict[str, int]) -> None:
    ordered = value.sort_members({**children, ".priority": 1})
    assert list(ordered) == [".priority", *sort_keys(children)]
    assert ordered == {**children, ".priority": 1}
