from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treedbd.store.rows import (
    ALL,
    ROW_KEY_BYTES,
    SPREAD_BYTES,
    Span,
    below,
    decode_key,
    end_of_key,
    shared_keys,
)
from treedbd.tree.path import encode_key, encode_path, rank_key

keys = st.sampled_from(
    ["a", "ab", "é", "0", "7", "-7", "07", "007", "-0", "x" * 300, "x" * 301, "y" * 768]
)
edges = keys | st.sampled_from(["", "a\x00", "7\x00", "7\x00b", "x" * 500, "y" * 1000])
paths = st.lists(keys, max_size=4).map(tuple)
containers = paths.map(encode_path).filter(lambda encoded: len(encoded) <= SPREAD_BYTES)


@given(path=paths, other=paths)
def test_rows_below_a_path_are_those_of_its_descendants(
    path: tuple[str, ...], other: tuple[str, ...]
) -> None:
    low, high = below(encode_path(path))
    is_below = other[: len(path)] == path and other != path
    assert (low <= encode_path(other) < high) is is_below


@given(path=paths)
def test_the_keys_of_a_path_are_found_one_by_one(path: tuple[str, ...]) -> None:
    encoded, found, at = encode_path(path), [], 0
    while at < len(encoded):
        end = end_of_key(encoded, at)
        found.append(decode_key(encoded[at:end]))
        at = end
    assert tuple(found) == path


@given(key=keys, data=st.data())
def test_a_key_that_is_cut_off_has_no_end(key: str, data: st.DataObject) -> None:
    encoded = b"\x03p\x00" + encode_key(key)
    cut = data.draw(st.integers(4, len(encoded) - 1))
    assert end_of_key(encoded[:cut], 3) == 0


@given(path=paths, other=paths)
def test_shared_keys_counts_the_common_beginning(
    path: tuple[str, ...], other: tuple[str, ...]
) -> None:
    count = 0
    while path[count : count + 1] == other[count : count + 1] != ():
        count += 1
    assert shared_keys(path, encode_path(other)) == count


@given(container=containers, key=keys, edge=edges, spec=st.tuples(*[st.booleans()] * 2))
def test_the_bounds_of_a_span_include_its_children_and_no_other_row(
    container: bytes, key: str, edge: str, spec: tuple[bool, bool]
) -> None:
    inclusive, reverse = spec
    span = Span(at=edge, reverse=reverse) if inclusive else Span(after=edge, reverse=reverse)
    order = (rank_key(key) > rank_key(edge)) - (rank_key(key) < rank_key(edge))
    holds = inclusive if order == 0 else (order < 0) is reverse
    assert span.holds(key) is holds
    low, high = span.bounds(container)
    child = container + encode_key(key)
    if len(child) <= ROW_KEY_BYTES:
        assert (low <= child < high) is holds
        assert (low <= child + encode_key("z") < high) is holds
    elif holds:
        assert low <= child[:ROW_KEY_BYTES] < high


@given(container=containers, key=keys)
def test_a_span_without_an_edge_includes_all_children(container: bytes, key: str) -> None:
    assert ALL.holds(key)
    assert ALL.bounds(container) == below(container)


def test_a_span_has_one_edge() -> None:
    with pytest.raises(ValueError, match="not both"):
        Span(after="a", at="b")
