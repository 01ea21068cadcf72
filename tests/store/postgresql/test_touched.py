from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treedbd.store.postgresql.commits import MAX_KEYS, Touched

keys = st.binary(max_size=6) | st.sampled_from([b"", b"\x00", b"\xff" * 480, b"a" * 300 + b"b"])
touched = st.builds(
    Touched.of, st.lists(keys, max_size=8), st.lists(st.tuples(keys, keys), max_size=4)
)


def holds(touched: Touched, key: bytes) -> bool:
    return key in touched.keys or any(low <= key < high for low, high in touched.ranges)


@given(touched)
def test_what_is_encoded_is_decoded(touched: Touched) -> None:
    assert Touched.decode(touched.encode()) == touched


@given(st.lists(keys, max_size=8), st.lists(st.tuples(keys, keys), max_size=4), keys)
def test_it_holds_what_was_touched_and_nothing_else(
    single: list[bytes], ranges: list[tuple[bytes, bytes]], probe: bytes
) -> None:
    found = Touched.of(single, ranges)
    wanted = probe in single or any(low <= probe < high for low, high in ranges)
    assert holds(found, probe) is wanted
    assert all(holds(found, key) for key in single)


@given(touched)
def test_keys_and_ranges_are_in_order_and_apart(touched: Touched) -> None:
    assert list(touched.keys) == sorted(set(touched.keys))
    ends = [end for each in touched.ranges for end in each]
    assert ends == sorted(set(ends))
    assert not [key for key in touched.keys if holds(Touched((), touched.ranges), key)]


@given(st.lists(touched, max_size=4), keys)
def test_a_union_holds_what_any_part_holds(parts: list[Touched], probe: bytes) -> None:
    assert holds(Touched.union(parts), probe) is any(holds(part, probe) for part in parts)


def test_very_many_keys_become_one_range() -> None:
    many = [number.to_bytes(4, "big") for number in range(MAX_KEYS + 1)]
    found = Touched.of(many, [])
    assert (found.keys, len(found.ranges)) == ((), 1)
    assert all(holds(found, key) for key in many)
    assert not holds(found, (MAX_KEYS + 1).to_bytes(4, "big"))


def test_keys_with_a_common_beginning_are_short() -> None:
    beginning = b"x" * 400
    many = [beginning + b"%04d" % number for number in range(1000)]
    assert len(Touched.of(many, []).encode()) < 1000 * 10


@pytest.mark.parametrize("encoded", [b"", b"\x02\x00", b"\x01", b"\x01\x05", b"\x01\x01\x00\x05ab"])
def test_other_bytes_are_refused(encoded: bytes) -> None:
    with pytest.raises(ValueError, match=r"touched rows|Touched rows"):
        Touched.decode(encoded)
