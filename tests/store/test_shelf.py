"""A database as a mapping of the standard library."""

from __future__ import annotations

import collections
import collections.abc
import datetime
import pathlib
import shelve
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.store.normal_form import normal_form
from tests.store.shelf_files import entries_of, read_once
from treedbd.limits import MAX_DEPTH
from treedbd.store.shelf import KEYS_AT_ONCE, Shelf, open_shelf
from treedbd.tree.path import rank_key
from treedbd.tree.types import InvalidData, InvalidPath
from treedbd.tree.value import plain

KEYS = st.sampled_from(["a", "b", "é", "0", "10", "9", "-1", "01", "k" * 500])
BODIES = st.recursive(
    st.sampled_from([1, "x", True, 2.5, {".value": 1, ".priority": 2}]),
    lambda inner: st.lists(inner, min_size=1) | st.dictionaries(KEYS, inner, min_size=1),
    max_leaves=6,
)


# the mapping


def test_it_is_a_shelf_of_the_standard_library_and_a_mapping(shelf: Shelf) -> None:
    for kind in (shelve.Shelf, collections.abc.MutableMapping):
        assert isinstance(shelf, kind)
        assert isinstance(shelf.at("a"), kind)


def test_it_is_used_as_a_dictionary_with_paths_for_keys(shelf: Shelf) -> None:
    shelf["users/ada"] = {"age": 36}
    assert shelf["users/ada/age"] == 36
    assert "users/ada" in shelf
    assert dict(shelf) == {"users": {"ada": {"age": 36}}}
    assert shelf.pop("users/ada") == {"age": 36}
    assert not shelf
    assert shelf.setdefault("b", 1) == 1
    shelf.update({"c": 2}, d=3)
    assert shelf.popitem() == ("b", 1)
    assert list(shelf.items()) == [("c", 2), ("d", 3)]


@given(body=st.dictionaries(KEYS, BODIES, max_size=6), removed=st.sets(KEYS))
def test_it_holds_what_a_dictionary_would_in_key_order(
    tmp_path_factory: pytest.TempPathFactory, body: dict[str, Any], removed: set[str]
) -> None:
    path = tmp_path_factory.mktemp("data") / "demo" / "default.shelf"
    with open_shelf(path, "c") as shelf:
        shelf.update(body)
        for key in removed & body.keys():
            del shelf[key]
            del body[key]
    with open_shelf(path) as shelf:
        assert list(shelf) == sorted(body, key=rank_key)
        assert len(shelf) == len(body)
        assert list(shelf.items()) == [(key, plain(normal_form(body[key]))) for key in shelf]
        assert shelf.export() == normal_form(body)
        assert all(key not in shelf and shelf.get(key) is None for key in removed)


def test_keys_are_iterated_in_key_order(shelf: Shelf) -> None:
    shelf[""] = dict.fromkeys(["b", "10", "a", "9", "-1", "01", "é"], 1)
    assert list(shelf) == ["-1", "01", "9", "10", "a", "b", "é"]


def test_a_path_is_of_any_depth_and_the_empty_one_is_the_root(shelf: Shelf) -> None:
    deep = "/".join("k" * MAX_DEPTH)
    assert "" not in shelf
    shelf[deep] = 1
    assert shelf[deep] == 1
    assert "" in shelf
    assert "k/k/k" in shelf
    assert "k/k/x" not in shelf
    shelf["/a//b/"] = 2
    assert shelf["a"] == {"b": 2}
    shelf[""] = {"c": 3}
    assert shelf[""] == dict(shelf) == {"c": 3}
    shelf[""] = 4
    assert shelf.export() == 4
    assert list(shelf) == []
    del shelf[""]
    assert "" not in shelf


def test_a_missing_path_is_a_key_error(shelf: Shelf) -> None:
    shelf["a"] = 1
    for key in ("b", "a/b", "b/.priority", "a/.priority"):
        with pytest.raises(KeyError, match=key):
            shelf[key]
        with pytest.raises(KeyError, match=key):
            del shelf[key]
        assert key not in shelf
        assert shelf.get(key) is None
        assert shelf.get(key, 7) == 7
    others: list[object] = [5, None, ("a",)]
    for other in others:
        assert other not in shelf


def test_none_removes(shelf: Shelf) -> None:
    shelf[""] = {"a": {"b": 1}, "c": 2}
    shelf["a/b"] = None
    assert shelf[""] == {"c": 2}


def test_arrays_are_read_as_arrays(shelf: Shelf) -> None:
    shelf["a"] = [1, None, (2, 3)]  # type: ignore[list-item]  # as `json.dumps`
    assert shelf["a"] == [1, None, [2, 3]]
    assert shelf["a/2/1"] == 3
    assert list(shelf.at("a")) == ["0", "2"]


def test_server_values_are_resolved(shelf: Shelf) -> None:
    shelf["n"] = 5
    shelf["n"] = {".sv": {"increment": 2}}
    shelf["at"] = {".sv": "timestamp"}
    now = datetime.datetime.now(tz=datetime.UTC).timestamp() * 1000
    assert shelf["n"] == 7
    assert abs(shelf["at"] - now) < 60_000  # type: ignore[operator]  # a number


def test_a_priority_has_a_path_of_its_own(shelf: Shelf) -> None:
    shelf["a"] = {"b": 1}
    shelf["a/.priority"] = 5
    shelf["missing/.priority"] = 5
    assert shelf["a/.priority"] == shelf.at("a")[".priority"] == 5
    assert "a/.priority" in shelf
    assert shelf[""] == {"a": {"b": 1}}
    assert list(shelf.at("a")) == ["b"]
    shelf["a/b/.priority"] = "p"
    del shelf["a/.priority"]
    assert "a/.priority" not in shelf
    assert shelf.export() == {"a": {"b": {".value": 1, ".priority": "p"}}}


def test_an_export_has_priorities_and_no_arrays(shelf: Shelf) -> None:
    shelf["a"] = {"l": [1, 2], "p": {".value": 1, ".priority": 2}, ".priority": 3}
    whole = {".priority": 3, "l": {"0": 1, "1": 2}, "p": {".value": 1, ".priority": 2}}
    assert shelf["a"] == {"l": [1, 2], "p": 1}
    assert shelf.export("a") == shelf.at("a").export() == whole
    assert shelf.export() == {"a": whole}
    assert shelf.export("a/l/1") == 2
    assert shelf.export("a/.priority") == 3
    assert shelf.export("b") is None


def test_at_is_a_shelf_of_the_children_of_another_node(shelf: Shelf) -> None:
    users = shelf.at("users")
    assert list(users) == []
    users["ada/age"] = 36
    users.at("bob")["age"] = 7
    assert shelf["users"] == {"ada": {"age": 36}, "bob": {"age": 7}}
    assert list(users) == ["ada", "bob"]
    assert len(users) == 2
    assert users[""] == shelf["users"]
    del users["ada"]
    assert "users/ada" not in shelf
    assert shelf.at("users/bob")["age"] == shelf.at("users").at("bob")["age"] == 7
    with pytest.raises(InvalidPath, match="not a node"):
        shelf.at("users/.priority")


def test_shelves_of_one_file_are_closed_together(shelf: Shelf, path: pathlib.Path) -> None:
    with shelf.at("a") as below:
        below["b"] = 1
    with pytest.raises(ValueError, match="closed"):
        shelf["a"]
    assert read_once(path, "a") == {"b": 1}


def test_clear_removes_all_children_in_one_write(shelf: Shelf, path: pathlib.Path) -> None:
    shelf[""] = {"a": {str(at): at for at in range(3000)}, "b": 1}
    shelf.at("a").clear()
    assert shelf[""] == {"b": 1}
    shelf.at("b").clear()
    assert shelf[""] == {"b": 1}
    shelf.clear()
    assert shelf.export() is None
    shelf.close()
    assert len(entries_of(path)) == 3


# iteration


def test_an_iteration_reads_some_keys_at_a_time_and_sees_later_writes(shelf: Shelf) -> None:
    keys = [f"k{at:04}" for at in range(2 * KEYS_AT_ONCE + 500)]
    shelf[""] = dict.fromkeys(keys, 1)
    iteration = iter(shelf)
    seen = [next(iteration)]
    shelf[keys[1] + "-new"] = 1  # among the keys that have been read
    shelf[keys[KEYS_AT_ONCE] + "-new"] = 1
    del shelf[keys[1]]
    del shelf[keys[-1]]
    seen += iteration
    assert seen == sorted([*keys[:-1], keys[KEYS_AT_ONCE] + "-new"])
    assert len(shelf) == len(keys)


@pytest.mark.parametrize("count", [KEYS_AT_ONCE - 1, KEYS_AT_ONCE, 2 * KEYS_AT_ONCE + 1])
def test_all_children_can_be_changed_and_removed_during_an_iteration(
    shelf: Shelf, count: int
) -> None:
    shelf["a"] = {str(at): {"n": at} for at in range(count)}
    children = shelf.at("a")
    for key in children:
        children[f"{key}/n"] = -1
    assert all(child == {"n": -1} for child in children.values())
    assert [int(key) for key in children] == list(range(count))
    for key in children:
        del children[key]
    assert "a" not in shelf


def test_an_iteration_over_a_file_goes_on_over_later_commits(
    shelf: Shelf, path: pathlib.Path
) -> None:
    keys = [f"k{at:04}" for at in range(KEYS_AT_ONCE + 10)]
    shelf[""] = dict.fromkeys(keys, 1)
    shelf.sync()
    with open_shelf(path) as reader:
        iteration = iter(reader)
        next(iteration)
        shelf[keys[-1] + "-new"] = 1
        shelf.sync()
        assert list(iteration)[-1] == keys[-1] + "-new"


# what a tree cannot hold


@pytest.mark.parametrize("key", ["a.b", "a/b#", "$", "[0]", "a\nb", "k" * 769, "\ud800", "a/" * 33])
def test_an_illegal_key_is_an_error_and_never_there(shelf: Shelf, key: str) -> None:
    shelf["a"] = 1
    with pytest.raises(InvalidPath):
        shelf[key] = 1
    with pytest.raises(InvalidPath):
        shelf[key]
    with pytest.raises(InvalidPath):
        del shelf[key]
    assert key not in shelf
    assert shelf[""] == {"a": 1}


@pytest.mark.parametrize(
    "value",
    [
        {"a.b": 1},
        [{"a.b": 1}],
        ({"a.b": 1},),
        collections.OrderedDict({"a.b": 1}),
        {".value": 1, "x": 2},
        {"x": {".priority": True}},
        {"x": {".sv": "unknown"}},
        {"x": {"y": "\ud800"}},
        {"\ud800": 1},
        {"x": {1, 2}},
        {("x",): 1},
        b"x",
        object(),
        datetime.date(2000, 1, 1),
        float("nan"),
        {"x": -float("inf")},
        10**400,
        "x" * (10 * 1024 * 1024 + 1),
    ],
)
def test_an_illegal_value_is_an_error_and_changes_nothing(
    shelf: Shelf, path: pathlib.Path, value: Any
) -> None:
    shelf["a"] = {f"k{at}": "x" * 100 for at in range(100)}  # several rows, which a PUT replaces
    before = shelf.export()
    with pytest.raises(InvalidData):
        shelf["a"] = value
    with pytest.raises(InvalidData):
        shelf["b"] = value
    assert shelf.export() == before
    shelf.close()
    assert len(entries_of(path)) == 1
    with open_shelf(path) as reader:
        assert reader.export() == before


@pytest.mark.parametrize(
    ("value", "reason"), [(float("nan"), "Out of range float"), ({1}, "set is not JSON")]
)
def test_an_illegal_value_is_explained(shelf: Shelf, value: Any, reason: str) -> None:
    with pytest.raises(InvalidData, match=reason):
        shelf["a"] = value


def test_an_endless_value_is_an_error(shelf: Shelf) -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(InvalidData):
        shelf["a"] = value
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InvalidData):
        shelf["a"] = deep
    assert "a" not in shelf


def test_a_sum_that_is_no_number_is_an_error_and_loses_nothing(shelf: Shelf) -> None:
    shelf["n"] = 1.7e308
    with pytest.raises(InvalidData):
        shelf["n"] = {".sv": {"increment": 1.7e308}}
    shelf["m"] = 1
    assert shelf[""] == {"m": 1, "n": 1.7e308}
