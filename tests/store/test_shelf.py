from __future__ import annotations

import shelve
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treedbd.store.layout import END, FIRST, KEY_BYTES
from treedbd.store.mapping import Transaction
from treedbd.store.memory import MemoryMapping
from treedbd.store.shelf import ReadOnly, Shelf
from treedbd.tree.order import encode_path, rank_key
from treedbd.tree.path import Path

keys = st.sampled_from(["a", "b", "é", "0", "10", "9", "-1", "01"])
paths = st.lists(keys, max_size=3).map(tuple)
values = st.sampled_from(
    [1, "x", True, 2.5, {"0": "a", "1": {"b": 1}}, {".value": 1, ".priority": 2}, {"a": 1}]
)


@pytest.fixture
def transaction() -> Iterator[Transaction]:
    transaction = MemoryMapping().begin()
    yield transaction
    transaction.rollback()


@pytest.fixture
def shelf(transaction: Transaction) -> Any:
    return Shelf.writing(transaction)


def new_shelf() -> Any:
    """Typeshed has it that the keys of every shelf are strings: so no type."""
    return Shelf.writing(MemoryMapping().begin())


def rank(path: Path) -> list[Any]:
    return [rank_key(key) for key in path]


def test_it_is_a_shelf_of_the_standard_library(shelf: Any) -> None:
    assert isinstance(shelf, shelve.Shelf)


def test_it_is_used_as_a_dictionary_with_paths_for_keys(shelf: Any) -> None:
    shelf[("users", "ada")] = {"age": 36}
    assert shelf[("users", "ada")] == {"age": 36}
    assert ("users", "ada") in shelf
    assert dict(shelf) == {("users", "ada"): {"age": 36}}
    assert shelf.pop(("users", "ada")) == {"age": 36}
    assert not shelf
    assert shelf.setdefault((), 1) == 1


@given(content=st.dictionaries(paths, values), removed=st.sets(paths))
def test_it_holds_what_a_dictionary_would_in_key_order(
    content: dict[Path, Any], removed: set[Path]
) -> None:
    shelf = new_shelf()
    shelf.update(content)
    for path in removed & content.keys():
        del shelf[path]
        del content[path]
    assert list(shelf) == sorted(content, key=rank)
    assert list(shelf.items()) == [(path, content[path]) for path in shelf]
    assert len(shelf) == len(content)
    assert all(path not in shelf and shelf.get(path) is None for path in removed)


def test_a_missing_path_is_a_key_error(shelf: Any) -> None:
    with pytest.raises(KeyError):
        shelf[("a",)]
    with pytest.raises(KeyError):
        del shelf[("a",)]
    assert shelf.get(("a",), 7) == 7
    assert "a" not in shelf


@given(content=st.dictionaries(paths, values), path=paths)
def test_floor_is_the_greatest_path_that_is_at_most_the_one_asked_for(
    content: dict[Path, Any], path: Path
) -> None:
    shelf = new_shelf()
    shelf.update(content)
    floor = max((other for other in content if rank(other) <= rank(path)), key=rank, default=None)
    assert shelf.floor(path) == (None if floor is None else (floor, content[floor]))


@given(content=st.dictionaries(paths, values), path=paths)
def test_below_gives_the_rows_below_a_path_both_ways(content: dict[Path, Any], path: Path) -> None:
    shelf = new_shelf()
    shelf.update(content)
    expected = [(p, v) for p, v in shelf.items() if p[: len(path)] == path and p != path]
    assert list(shelf.below(path)) == expected
    assert list(shelf.below(path, reverse=True)) == expected[::-1]


def test_rows_are_json_and_never_pickled(shelf: Any, transaction: Transaction) -> None:
    shelf[("a", "1")] = {"0": "x", "1": "y"}
    shelf[("b",)] = {".value": 5, ".priority": 1}
    assert list(transaction.scan(FIRST, END)) == [
        (encode_path(("a", "1")), b'["x","y"]'),
        (encode_path(("b",)), b' {".value":5,".priority":1}'),
    ]


def test_the_raw_face_is_the_same_store(shelf: Any) -> None:
    a, b = encode_path(("a",)), encode_path(("b",))
    shelf.raw_put(a, b'{"x":1}')
    shelf[("b",)] = 2
    assert shelf[("a",)] == {"x": 1}
    assert shelf.raw_get(b) == b"2"
    assert shelf.raw_get(b"") is None
    assert shelf.raw_floor(b + b"z") == (b, b"2")
    assert list(shelf.raw_scan(FIRST, END)) == [(a, b'{"x":1}'), (b, b"2")]
    assert list(shelf.raw_keys(FIRST, END, reverse=True)) == [b, a]
    shelf.raw_delete(a)
    assert ("a",) not in shelf
    shelf.raw_delete_range(FIRST, END)
    assert len(shelf) == 0


@pytest.mark.parametrize("name", ["x" * 600, "x" * 475 + "éé", "é" * 384])
def test_a_row_key_is_cut_and_iteration_gives_a_path_that_finds_it(shelf: Any, name: str) -> None:
    shelf[("a", name)] = 1
    (path,) = shelf
    assert [len(key) for key in shelf.raw_keys(FIRST, END)] == [KEY_BYTES]
    assert path[0] == "a"
    assert name.encode().startswith(path[1].encode(errors="surrogateescape"))
    assert shelf[path] == 1
    assert path in shelf
    assert shelf.floor(("a", name)) == (path, 1)


def test_clear_removes_every_row_of_the_tree_and_no_other(
    shelf: Any, transaction: Transaction
) -> None:
    transaction.put(END + b"index", b"")
    shelf.update({(): 1, ("a",): 2, ("5",): 3})
    shelf.clear()
    assert len(shelf) == 0
    assert transaction.get(END + b"index") == b""


def test_a_shelf_for_reading_refuses_to_be_written() -> None:
    mapping = MemoryMapping()
    transaction = mapping.begin()
    Shelf.writing(transaction)[("a",)] = 1
    transaction.commit()
    reading = mapping.read(lambda rows: _try_to_write(Shelf(rows)))
    assert reading == 1


def _try_to_write(shelf: Any) -> Any:
    for change in (
        lambda: shelf.__setitem__(("a",), 2),
        lambda: shelf.__delitem__(("a",)),
        shelf.clear,
        lambda: shelf.raw_put(b"", b"1"),
    ):
        with pytest.raises(ReadOnly):
            change()
    return shelf[("a",)]


def test_close_lets_go_of_the_rows_and_leaves_the_transaction_open() -> None:
    mapping = MemoryMapping()
    transaction = mapping.begin()
    shelf: Any = Shelf.writing(transaction)
    with shelf:
        shelf[("a",)] = 1
        shelf.sync()
    with pytest.raises(ValueError, match="closed"):
        shelf[("a",)]
    with pytest.raises(ValueError, match="closed"):
        shelf.raw_floor(b"")
    transaction.commit()
    assert mapping.read(lambda rows: Shelf(rows)[("a",)]) == 1
