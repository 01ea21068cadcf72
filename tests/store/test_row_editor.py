from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tree.strategies import FEW_PATHS, PRIORITIES, VALUES
from treedbd.store.memory import MemoryEngine
from treedbd.store.node_writer import NodeWriter
from treedbd.store.rows import Cover, RowEditor, encode_row
from treedbd.tree.edit import apply
from treedbd.tree.path import encode_path
from treedbd.tree.types import Change, Path, Place, Value
from treedbd.tree.value import compact

CHANGES = st.one_of(
    st.builds(lambda path, value: Change(Place(path), value), FEW_PATHS, VALUES | st.none()),
    st.builds(lambda path, to: Change(Place(path, True), to), FEW_PATHS, PRIORITIES | st.none()),
)


def open_row(value: Value, limit: int | None) -> RowEditor | None:
    return RowEditor.open(
        ("row",), Cover(encode_path(("row",)), encode_row(value), (), False), limit
    )


@given(VALUES.filter(lambda value: value is not None), st.lists(CHANGES), st.integers(0, 300))
def test_a_row_is_never_too_long_after_a_change_that_is_made(
    value: Value, changes: list[Change], limit: int
) -> None:
    editor = open_row(value, limit)
    assert editor is None or len(encode_row(value)) <= limit
    for change in changes:
        path, is_priority = change.place
        if editor is None or not editor.change(path, change.value, is_priority):
            continue
        value = apply(value, [change])
        assert value is None or len(encode_row(value)) <= limit
    if editor is not None:
        assert compact(editor.finish()) == compact(value)


def test_many_changes_that_do_not_make_a_row_longer_are_made() -> None:
    editor = open_row({f"k{at}": 100 + at for at in range(30)}, 400)
    assert editor is not None
    assert all(editor.change((f"k{at % 30}",), 500 + at, False) for at in range(200))
    assert editor.change(("k1",), "x" * 300, False) is False
    assert editor.change((), 1, False) is False


def test_any_change_is_made_in_a_row_without_a_limit() -> None:
    editor = open_row({"a": 1}, None)
    assert editor is not None
    assert editor.change(("b",), "x" * 10_000, False)
    assert editor.change((), 1, False)
    assert editor.finish() == 1


def test_a_row_knows_what_it_covers() -> None:
    path: Path = ("row", "a")
    row = RowEditor.open(path, Cover(encode_path(path[:1]), b'{"a":1}', path[1:], False), None)
    assert row is not None
    assert row.inside(("row", "b", "c")) == ("b", "c")
    assert row.inside(("row",)) == ()
    assert row.inside(("rows", "a")) is None
    path = ("c", "k" * 600)
    key = encode_path(path)[:480]
    bucket = RowEditor.open(path, Cover(key, b'{"%b":1}' % (b"k" * 600), path[1:], True), None)
    assert bucket is not None
    assert bucket.inside(("c", "k" * 500, "x")) == ("k" * 500, "x")
    assert bucket.inside(("c", "k" * 400)) is None
    assert bucket.inside(("c",)) is None
    assert bucket.inside(("d", "k" * 600)) is None


@pytest.mark.parametrize("length", [1, 300, 500])
def test_a_row_that_is_left_empty_is_removed_before_it_is_filled_again(length: int) -> None:
    place = Place(("k" * length,))
    writer = NodeWriter(MemoryEngine().begin(), row_bytes=20, page_bytes=100)
    writer.apply([Change(place, True)])
    writer.apply([Change(Place((), is_priority=True), 1), Change(place, None), Change(place, True)])
    assert writer.get(()) == {place.path[0]: True}  # without the priority of the root
