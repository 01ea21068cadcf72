"""Values in memory, merged over the rows of a store: read as if they were stored with the rest."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from treedbd.store.indexes import WriterMaker
from treedbd.store.memory import MemoryEngine
from treedbd.store.nodes import etag_in_steps, hash_at
from treedbd.store.rows import END, Span
from treedbd.store.volatile import MERGED_TOPS, RUN_LENGTH, MergedPresentNodes, Top, Tops
from treedbd.tree.edit import make_put, set_value
from treedbd.tree.event import Moment
from treedbd.tree.hashes import data_hash, etag
from treedbd.tree.path import encode_path
from treedbd.tree.types import Container, Path, Place, Value
from treedbd.tree.value import as_json, compact, members, plain, value_at

KEYS = st.sampled_from(["a", "b", "0", "1", "10", "z"])
LEAVES = st.sampled_from([1, 2.5, True, "x", "y" * 700])
VALUES = st.recursive(
    LEAVES, lambda inner: st.dictionaries(KEYS, inner, min_size=1, max_size=5), max_leaves=12
)
STORED = st.lists(st.tuples(st.lists(KEYS, max_size=4).map(tuple), st.none() | VALUES), max_size=6)
TOPS = st.dictionaries(
    st.one_of(
        st.tuples(KEYS, st.just("v")),
        st.tuples(KEYS, KEYS, st.just("v")),
        st.tuples(st.just("v"), KEYS),
        st.tuples(st.just("b"), KEYS, st.just("w"), KEYS),
    ),
    VALUES,
    max_size=5,
)


def normal(value: Any) -> Value:
    """Return a value in normal form."""
    return make_put(Place(()), value).changes[0].value


def store(writes: list[tuple[Path, Any]]) -> tuple[MemoryEngine, Value]:
    """Return an engine that has what was written, and the same as a value."""
    engine, root = MemoryEngine(), None
    transaction = engine.begin()
    maker = WriterMaker(list)
    writer = maker.make(transaction)
    for path, value in writes:
        edit = make_put(Place(path), value)
        writer.apply(edit.changes)
        root = set_value(root, path, edit.changes[0].value)
    maker.finish()
    transaction.commit()
    return engine, root


def paths_of(value: Value, path: Path = ()) -> list[Path]:
    """Return the paths of all nodes of a value."""
    found = [path]
    for key, child in members(value):
        found += paths_of(child, (*path, key))
    return found


def check(nodes: MergedPresentNodes, root: Value, path: Path) -> None:
    """Compare all that can be read of a node with a value."""
    value = value_at(root, path)
    keys = [key for key, _ in members(value)]
    assert nodes.get(path) == value
    assert b"".join(nodes.chunks(path)) == compact(plain(value))
    assert b"".join(nodes.chunks(path, export=True)) == compact(as_json(value))
    kind = Container if isinstance(value, dict) else type(value)
    assert nodes.type_at(path) is (None if value is None else kind)
    assert list(nodes.keys(path)) == keys
    for at, key in enumerate(keys):
        assert list(nodes.keys(path, Span(after=key))) == keys[at + 1 :]
    assert [child.key for child in nodes.children(path, Span(reverse=True))] == keys[::-1]
    assert {child.key: child.value() for child in nodes.children(path)} == dict(members(value))
    assert [tag for tag in etag_in_steps(nodes, path) if tag] == [etag(plain(value))]
    assert hash_at(nodes, Place(path)) == data_hash(value)


@settings(deadline=None, max_examples=examples(200))
@given(STORED, TOPS, st.sampled_from([MERGED_TOPS, 0]))
def test_all_reads_show_both(
    writes: list[tuple[Path, Any]], values: dict[Path, Any], merged: int
) -> None:
    engine, root = store(writes)
    tops = Tops()
    for path, value in values.items():
        above = [value_at(root, path[:depth]) for depth in range(len(path))]
        if value_at(root, path) is None and all(isinstance(each, dict | None) for each in above):
            tops.put(Top(path, encode_path(path), normal(value), 0))
            root = set_value(root, path, normal(value))

    def read(view: Any) -> None:
        nodes = MergedPresentNodes(view, tops.freeze(), 7)
        for path in [*paths_of(root), ("q",), ("a", "v"), ("b", "w"), ("z", "z", "z")]:
            check(nodes, root, path)
        assert nodes.rows.sequence() == Moment(view.sequence(), 7)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("treedbd.store.volatile.MERGED_TOPS", merged)
        engine.read(read)


def test_frozen_tops_stay_as_they_were() -> None:
    tops = Tops()
    first, second = (Top((key,), encode_path((key,)), key, 0) for key in "ab")
    tops.put(first)
    frozen = tops.freeze()
    tops.put(second)
    tops.remove(first)
    assert [top.path for top in frozen] == [("a",)]
    assert [top.path for top in tops] == [("b",)]


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        (4, Moment(4, 1)),
        (Moment(4, 1), Moment(4, 2)),
        (Moment(4, 9), 5),
        (Moment(4, 9), Moment(5, 1)),
    ],
)
def test_a_moment_is_after_its_number_and_before_the_next(earlier: int, later: int) -> None:
    assert earlier < later
    assert later > earlier
    assert earlier <= later
    assert not later <= earlier
    assert earlier != later
    assert {earlier: 1}.get(later) is None
    assert max(earlier, later) is later


def test_many_tops_are_found_and_changed_in_copies_by_themselves() -> None:
    choice, tops = random.Random(5), Tops()
    expected: dict[str, Top] = {}
    frozen: list[tuple[Tops, list[Top]]] = []

    def in_order() -> list[Top]:
        return sorted(expected.values(), key=lambda top: top.key)

    for number in range(6 * RUN_LENGTH):
        key = f"k{choice.randrange(3 * RUN_LENGTH)}"
        if key in expected and (choice.random() < 0.3 or number > 4 * RUN_LENGTH):
            tops.remove(expected.pop(key))
        else:
            expected[key] = Top((key,), encode_path((key,)), number, 0)
            tops.put(expected[key])
        if number % 97 == 0:
            frozen.append((tops.freeze(), in_order()))
            tops = tops.copy() if number % 2 else tops
    frozen.append((tops, in_order()))
    for each, found in frozen:
        assert list(each) == found
        assert len(each) == len(found)
        low, high = encode_path(("k2",)), encode_path(("k6",))
        within = [top for top in found if low <= top.key < high]
        assert list(each.iterate(low, high)) == within
        assert list(each.iterate(low, high, reverse=True)) == within[::-1]
        assert each.has_within(low, high) == bool(within)
        assert [each.at(top.path) for top in found] == found
        assert [each.over(top.key + b"more") for top in found] == found
        assert each.at(("none",)) is each.over(encode_path(("none",))) is None


def check_scans(nodes: MergedPresentNodes) -> None:
    """Compare what is scanned between any two keys with all rows."""
    found = list(nodes.rows.scan(b"", END))
    keys = [key for key, _ in found[:: max(1, len(found) // 9)]]
    for low, high in itertools.combinations([b"", *keys, found[-1][0] + b"\1", END], 2):
        rows = [row for row in found if low <= row[0] < high]
        assert list(nodes.rows.scan(low, high)) == rows
        assert list(nodes.rows.scan(low, high, reverse=True)) == rows[::-1]
        assert list(nodes.rows.scan_keys(low, high)) == [key for key, _ in rows]


@pytest.mark.parametrize("key", ["long", "l" * 700])
@pytest.mark.parametrize("others", [0, 60])
def test_a_row_above_many_tops_is_shown_as_spread_if_it_can_be(key: str, others: int) -> None:
    kept = {f"k{number}": "y" * 900 for number in range(others)}
    stored = {**kept, "b": {key: {"x": 1}, "c": {".priority": 3, "title": "C", "v": {"x": 2}}}}
    engine, root = store([((), stored)])
    tops = Tops()
    for name in ["v", *(f"u{number:03}" for number in range(MERGED_TOPS))]:
        path = ("b", "c", name)
        tops.put(Top(path, encode_path(path), name, 0))
        root = set_value(root, path, name)

    def read(view: Any) -> None:
        nodes = MergedPresentNodes(view, tops.freeze(), 1)
        for path in paths_of(root):
            if path[:1] == ("b",) or not path:
                check(nodes, root, path)
        if key == "long":
            assert len(list(nodes.rows.scan(b"", END))) == MERGED_TOPS + 4 + others
            check_scans(nodes)

    engine.read(read)


@pytest.mark.parametrize("reverse", [False, True])
def test_what_is_stored_at_or_below_a_top_is_not_shown(reverse: bool) -> None:
    many = {f"k{number}": "y" * 900 for number in range(60)}
    engine, root = store([((), {"a": {**many, "v": many}, "b": many | {".priority": 5}})])
    tops = Tops()
    for path in [("a", "v"), ("b",)]:
        tops.put(Top(path, encode_path(path), {"x": 1}, 0))
        root = set_value(root, path, {"x": 1})

    def read(view: Any) -> None:
        nodes = MergedPresentNodes(view, tops.freeze(), 1)
        for path in [(), ("a",), ("a", "v"), ("b",)]:
            check(nodes, root, path)
        keys = [key for key, _ in nodes.rows.scan(b"", END, reverse=reverse)]
        assert [key for key in keys if tops.over(key) is not None] == [
            top.key for top in (reversed(list(tops)) if reverse else tops)
        ]

    engine.read(read)
