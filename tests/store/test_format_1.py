"""Rows of format 1 become sound rows of the present format that hold the same tree."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.store import format_1 as frozen
from tests.store.normal_form import normal_form
from treedbd.store.engine import Row, Transaction
from treedbd.store.memory import MemoryEngine
from treedbd.store.nodes import Nodes
from treedbd.store.rows import seal
from treedbd.store.sqlite.convert import OLDER
from treedbd.store.verify import verify
from treedbd.tree.path import encode_path

MONTHS = [f"{month:02d}" for month in range(1, 13)]
PLAIN_KEYS = st.sampled_from(["a", "b", "é", "+5", "2147483648", "000000000012", "k" * 470])
KEYS = PLAIN_KEYS | st.sampled_from(
    ["0", "-0", "00", "1", "01", "001", "9", "09", "10", "-1", "-01", "00000000012"]
)
LONG_KEYS = st.builds(
    lambda start, length: start + "k" * length,
    st.sampled_from(["", "0", "00000000012", "é"]),
    st.integers(420, 490),
)
LEAVES = st.sampled_from([1, "x", "x" * 30, True, '"01":1', {".value": 5, ".priority": "p"}])
PRIORITIES = st.sampled_from([1, "p"])


def trees(keys: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        bare = st.dictionaries(keys, inner, min_size=1, max_size=5)
        return bare | st.builds(lambda body, at: {**body, ".priority": at}, bare, PRIORITIES)

    return st.recursive(LEAVES, containers, max_leaves=12)


def below(path: list[str], body: Any) -> Any:
    for key in reversed(path):
        body = {key: body}
    return body


DEEP_TREES = st.builds(
    below, st.lists(st.sampled_from(["0", "7", "01"]), max_size=8), trees(KEYS | LONG_KEYS)
)
"""Trees in which many row keys are about as long as they may be."""


def stored(rows: list[Row]) -> Transaction:
    transaction = MemoryEngine().begin()
    for key, raw in rows:
        assert transaction.get(key) is None
        transaction.put(key, seal(key, raw))
    return transaction


def check_conversion(body: Any, row_bytes: int) -> None:
    old = frozen.rows_of(body, row_bytes)
    new = list(OLDER[1].convert(old))
    view = stored(new)
    assert verify(view) == []
    assert Nodes(view).get(()) == normal_form(body)
    assert all(map(OLDER[1].is_same, old)) == (sorted(new) == old)


@given(trees(KEYS), st.sampled_from([20, 60, 4096]))
def test_converted_rows_hold_the_same_tree(body: Any, row_bytes: int) -> None:
    check_conversion(body, row_bytes)


@given(DEEP_TREES, st.sampled_from([20, 60]))
def test_rows_whose_keys_are_longer_now_are_stored_where_they_belong(
    body: Any, row_bytes: int
) -> None:
    check_conversion(body, row_bytes)


@given(trees(PLAIN_KEYS), st.sampled_from([20, 60, 4096]))
def test_rows_without_integers_stay_as_they_are(body: Any, row_bytes: int) -> None:
    rows = frozen.rows_of(body, row_bytes)
    assert all(map(OLDER[1].is_same, rows))
    assert list(OLDER[1].convert(rows)) == rows


def test_a_member_is_in_its_new_place() -> None:
    (row,) = frozen.rows_of({"a": {"10": 1, "09": 1, "9": 1}})
    assert row == (b"", b'{"a":{"9":1,"10":1,"09":1}}')
    assert not OLDER[1].is_same(row)
    assert list(OLDER[1].convert([row])) == [(b"", b'{"a":{"9":1,"09":1,"10":1}}')]


def test_text_that_looks_like_a_member_does_not_change_a_row() -> None:
    (row,) = frozen.rows_of({"a": '{"01":1}', "b": '"01":'})
    assert OLDER[1].is_same(row)


def test_a_container_that_cannot_be_spread_any_more_becomes_one_row() -> None:
    path = ["0"] * 8 + ["b" * 425]  # 467 bytes in format 1, 475 now
    body = below(path, {f"k{at}": "x" * 90 for at in range(50)} | {".priority": 2})
    assert len(frozen.rows_of(body)) == 51
    ((key, raw),) = OLDER[1].convert(frozen.rows_of(body))
    assert key == encode_path(tuple(path))
    assert raw.startswith(b' {".priority":2,"k0":')
    check_conversion(body, 4096)


@pytest.mark.parametrize("length", range(455, 480))
def test_children_are_put_into_buckets_and_taken_out_of_them(length: int) -> None:
    children = {"00000000012": 1, "000000000" + "1" * 30: 2, "z" * 40: 3, "zz": 4, "01": 5}
    check_conversion({"c" * (length - 2): children}, 20)
    check_conversion({"5": {"c" * (length - 7): children}}, 20)
    check_conversion({"00000000005": {"c" * (length - 13): children}}, 20)


def test_only_the_rows_of_one_container_are_kept_in_memory() -> None:
    consumed = 0

    def rows() -> Any:
        nonlocal consumed
        for row in frozen.rows_of({f"{at:03d}": {"k" * 475: "x" * 50} for at in range(100)}, 20):
            consumed += 1
            yield row

    for produced, _ in enumerate(OLDER[1].convert(rows()), 1):
        assert consumed - produced <= 1
    assert consumed == 100


@pytest.mark.parametrize(
    "row",
    [
        (b"\x02\x80", b"1"),
        (b"\x02\x80\x00\x00\x01\x01x\x00", b"1"),
        (b"\x02\x80\x00\x00\x01\x03\xff\x00", b"1"),
        (b"\x03" + b"01\x00\x03x", b'{"x":1}'),
        (b"\x02\x80\x00\x00\x01\x03" + b"x" * 474, b'{"y":1}'),
        (b"\x02\x80\x00\x00\x01\x03" + b"x" * 474, b"1"),
        (b"\x03a\x00", b'{"01":1'),
    ],
)
def test_a_row_that_format_1_does_not_have_is_an_error(row: Row) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        OLDER[1].is_same(row)
    with pytest.raises(ValueError, match=r"\w"):
        list(OLDER[1].convert([row]))
