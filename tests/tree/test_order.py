from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.expected import rank_key as expected_rank
from tests.tree.strategies import KEYS, LEAVES, NUMBERS, PATHS, TEXTS
from treedbd.tree import path as order
from treedbd.tree.types import Path
from treedbd.tree.value import canonical_number

KEYS_IN_ORDER = [
    "-2147483648",
    "-2147483647",
    "-10",
    "-9",
    "-09",
    "-2",
    "-1",
    "-01",
    "-001",
    "-0000000001",
    "0",
    "-0",
    "00",
    "-00",
    "000",
    "-0000000000",
    "00000000000",
    "1",
    "01",
    "001",
    "00000000001",
    "2",
    "02",
    "9",
    "09",
    "10",
    "010",
    "99",
    "100",
    "2147483646",
    "2147483647",
    "02147483647",
    "",
    " 1",
    "+5",
    "-",
    "--1",
    "-00000000001",
    "-02147483649",
    "-2147483649",
    "-A",
    "000000000001",
    "02147483648",
    "1 ",
    "1e3",
    "2147483648",
    "3000000000",
    "A",
    "Z",
    "a",
    "aa",
    "b",
    "é",
    "٣",
    "\ufb33",
    "\uffff",
    "\U0001f600",
]
VALUES_IN_ORDER = [
    None,
    False,
    True,
    -1.7976931348623157e308,
    -1e20,
    -(2**63),
    -(2**63) + 1,
    -(2**53) - 1,
    -(2**53),
    -1.5,
    -1,
    -5e-324,
    0,
    5e-324,
    0.1,
    1,
    1.5,
    2**53 - 1,
    2**53,
    2**53 + 1,
    2**53 + 2,
    2**63 - 2,
    2**63 - 1,
    canonical_number(2**63),
    1e19,
    1e308,
    "",
    "\x00",
    "\x00\x00",
    "\x00a",
    "\x01",
    "0",
    "10",
    "9",
    "A",
    "a",
    "a\x00",
    "a\x00\x00",
    "a\x00b",
    "a\x01",
    "ab",
    "é",
    "\uffff",
    "\U00010000",
    {"a": 1},
]


def test_keys_are_in_the_documented_order() -> None:
    shuffled = KEYS_IN_ORDER[::-1]
    assert order.sort_keys(shuffled) == KEYS_IN_ORDER
    assert sorted(shuffled, key=order.rank_key) == KEYS_IN_ORDER
    assert sorted(shuffled, key=order.encode_key) == KEYS_IN_ORDER


def test_values_are_in_the_documented_order() -> None:
    backwards = VALUES_IN_ORDER[::-1]
    assert sorted(backwards, key=order.rank_value) == VALUES_IN_ORDER
    for lower, upper in pairwise(VALUES_IN_ORDER):
        assert order.rank_value(lower) < order.rank_value(upper)
        assert order.encode_value(lower) < order.encode_value(upper)
        assert not order.encode_value(upper).startswith(order.encode_value(lower))


def test_containers_are_all_equal() -> None:
    assert order.rank_value({"a": 1}) == order.rank_value({"b": {"c": 2}})
    assert order.encode_value({"a": 1}) == order.encode_value({"b": {"c": 2}})


def test_a_boolean_is_not_a_number() -> None:
    assert order.rank_value(True) < order.rank_value(-1e308)
    assert order.rank_value(False) != order.rank_value(0)


@pytest.mark.parametrize(
    "key",
    [
        *("+5", "", "-", "--1", "1.5", "1e3", "٣", "1\n", " 1"),
        *("2147483648", "-2147483649", "02147483648", "000000000001", "-00000000001"),
    ],
)
def test_a_key_that_does_not_read_as_a_32_bit_integer_sorts_as_text(key: str) -> None:
    assert order.rank_key(key) == (1, 0, key)
    assert order.encode_key(key) == b"\x03" + key.encode() + b"\x00"


@given(KEYS, KEYS)
def test_keys_compare_as_the_interface_defines_it(left: str, right: str) -> None:
    expected = expected_rank(left) < expected_rank(right)
    assert (order.rank_key(left) < order.rank_key(right)) == expected
    assert (order.encode_key(left) < order.encode_key(right)) == expected


@given(KEYS)
def test_a_position_in_an_array_is_a_canonical_integer_from_0(key: str) -> None:
    is_index = expected_rank(key)[0] == 0 and int(key) >= 0 and key == str(int(key))
    assert order.as_index(key) == (int(key) if is_index else None)


@given(st.sets(KEYS.filter(lambda key: expected_rank(key)[0] == 0), min_size=1))
def test_encoded_integers_are_indices_if_each_is_one(keys: set[str]) -> None:
    encoded = sorted(map(order.encode_key, keys))
    assert {len(each) for each in encoded} == {order.INT_BYTES}
    assert order.are_indices(encoded) == (None not in map(order.as_index, keys))


@pytest.mark.parametrize("count", [1, 9, 10, 11, 100, 101, 1001])
def test_one_padded_integer_among_many_is_noticed(count: int) -> None:
    keys = [str(number) for number in range(count)]
    assert order.are_indices([order.encode_key(key) for key in keys])
    for odd in (0, count // 2, count - 1):
        padded = [*keys[:odd], f"0{odd}", *keys[odd + 1 :]]
        assert not order.are_indices([order.encode_key(key) for key in padded])


@given(KEYS, KEYS)
def test_encoded_keys_keep_the_order_of_keys(left: str, right: str) -> None:
    assert (order.encode_key(left) < order.encode_key(right)) == (
        order.rank_key(left) < order.rank_key(right)
    )
    assert (order.encode_key(left) == order.encode_key(right)) == (left == right)


@given(KEYS, KEYS)
def test_no_encoded_key_is_a_prefix_of_another(left: str, right: str) -> None:
    if left != right:
        assert not order.encode_key(left).startswith(order.encode_key(right))


@given(st.lists(KEYS, unique=True))
def test_sorting_keys_agrees_with_their_ranks(keys: list[str]) -> None:
    assert order.sort_keys(keys) == sorted(keys, key=order.rank_key)


@given(PATHS, PATHS)
def test_encoded_paths_keep_the_order_of_their_keys(left: Path, right: Path) -> None:
    ranks = [[order.rank_key(key) for key in path] for path in (left, right)]
    assert (order.encode_path(left) < order.encode_path(right)) == (ranks[0] < ranks[1])


@given(PATHS)
def test_an_encoded_path_decodes_to_itself(path: Path) -> None:
    assert order.decode_path(order.encode_path(path)) == (path, b"")


@given(PATHS, st.integers(min_value=0))
def test_a_prefix_of_an_encoded_path_decodes_to_its_whole_keys(path: Path, cut: int) -> None:
    encoded = order.encode_path(path)
    cut %= len(encoded) + 1
    keys, rest = order.decode_path(encoded[:cut])
    assert path[: len(keys)] == keys
    assert order.encode_path(keys) + rest == encoded[:cut]
    if len(keys) < len(path):
        assert order.encode_key(path[len(keys)]).startswith(rest)
        assert len(rest) < len(order.encode_key(path[len(keys)]))


@given(PATHS, PATHS)
def test_an_encoded_subtree_is_one_range_without_other_paths(upper: Path, other: Path) -> None:
    low = order.encode_path(upper)
    is_inside = low <= order.encode_path(other) < low + order.BEYOND
    assert is_inside == (other[: len(upper)] == upper)
    assert order.encode_path(other).startswith(low) == is_inside


CANONICAL_VALUES = st.one_of(
    st.none(), st.booleans(), TEXTS, NUMBERS.map(canonical_number), st.just({"a": 1})
)


@given(CANONICAL_VALUES, CANONICAL_VALUES)
def test_encoded_values_keep_the_order_of_values(left: Any, right: Any) -> None:
    left_rank, right_rank = order.rank_value(left), order.rank_value(right)
    left_bytes, right_bytes = order.encode_value(left), order.encode_value(right)
    assert (left_bytes < right_bytes) == (left_rank < right_rank)
    assert (left_bytes == right_bytes) == (left_rank == right_rank)


@given(st.integers(-(2**63), 2**63 - 1), st.integers(-3, 3))
def test_integers_that_share_a_double_have_different_encodings(number: int, step: int) -> None:
    other = number + step
    assert (order.encode_value(number) < order.encode_value(other)) == (number < other)


@given(CANONICAL_VALUES, CANONICAL_VALUES)
def test_no_encoded_value_is_a_prefix_of_another(left: Any, right: Any) -> None:
    if order.rank_value(left) != order.rank_value(right):
        assert not order.encode_value(left).startswith(order.encode_value(right))


@given(st.lists(LEAVES.map(lambda leaf: leaf if isinstance(leaf, str) else str(leaf))))
def test_strings_order_as_their_utf8_bytes(texts: list[str]) -> None:
    by_rank = sorted(texts, key=order.rank_value)
    assert by_rank == sorted(texts, key=str.encode)
