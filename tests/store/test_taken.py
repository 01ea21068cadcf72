from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.tree.strategies import FEW_PATHS, PRIORITIES, VALUES
from treedbd.store.nodes import Cover
from treedbd.store.row import encode_row
from treedbd.store.taken import Taken
from treedbd.tree.edit import Change, apply
from treedbd.tree.order import encode_path
from treedbd.tree.path import Path, Place
from treedbd.tree.printing import compact
from treedbd.tree.value import Value

CHANGES = st.one_of(
    st.builds(lambda path, value: Change(Place(path), value), FEW_PATHS, VALUES | st.none()),
    st.builds(lambda path, to: Change(Place(path, True), to), FEW_PATHS, PRIORITIES | st.none()),
)


def take(value: Value, most: int | None) -> Taken | None:
    return Taken.take(("row",), Cover(encode_path(("row",)), encode_row(value), (), False), most)


@given(VALUES.filter(lambda value: value is not None), st.lists(CHANGES), st.integers(0, 300))
def test_a_row_is_never_too_long_after_a_change_that_it_takes(
    value: Value, changes: list[Change], most: int
) -> None:
    taken = take(value, most)
    assert taken is None or len(encode_row(value)) <= most
    for change in changes:
        path, of_priority = change.place
        if taken is None or not taken.change(path, change.value, of_priority):
            continue
        value = apply(value, [change])
        assert value is None or len(encode_row(value)) <= most
    if taken is not None:
        assert compact(taken.finish()) == compact(value)


def test_a_row_takes_many_changes_that_leave_it_as_long_as_it_is() -> None:
    taken = take({f"k{at}": 100 + at for at in range(30)}, 400)
    assert taken is not None
    assert all(taken.change((f"k{at % 30}",), 500 + at, False) for at in range(200))
    assert taken.change(("k1",), "x" * 300, False) is False
    assert taken.change((), 1, False) is False


def test_a_row_of_any_length_takes_any_change() -> None:
    taken = take({"a": 1}, None)
    assert taken is not None
    assert taken.change(("b",), "x" * 10_000, False)
    assert taken.change((), 1, False)
    assert taken.finish() == 1


def test_a_row_knows_what_it_covers() -> None:
    path: Path = ("row", "a")
    row = Taken.take(path, Cover(encode_path(path[:1]), b'{"a":1}', path[1:], False), None)
    assert row is not None
    assert row.inside(("row", "b", "c")) == ("b", "c")
    assert row.inside(("row",)) == ()
    assert row.inside(("rows", "a")) is None
    path = ("c", "k" * 600)
    key = encode_path(path)[:480]
    bucket = Taken.take(path, Cover(key, b'{"%b":1}' % (b"k" * 600), path[1:], True), None)
    assert bucket is not None
    assert bucket.inside(("c", "k" * 500, "x")) == ("k" * 500, "x")
    assert bucket.inside(("c", "k" * 400)) is None
    assert bucket.inside(("c",)) is None
    assert bucket.inside(("d", "k" * 600)) is None
