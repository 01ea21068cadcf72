"""Shapes: sets of paths of one depth, and what two have in common."""

from __future__ import annotations

from itertools import product

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from treedbd.tree.shape import (
    Shape,
    all_but,
    count_hashes,
    hash_key,
    holds,
    meet,
    parse_shape,
    shape_json,
)

KEYS = ["a", "b", "é/\n", "other"]
PATHS = [path for depth in range(4) for path in product(KEYS, repeat=depth)]
LEVELS = st.sampled_from(KEYS).map(hash_key) | st.sets(st.sampled_from(KEYS[:3])).map(all_but)
SHAPES = st.lists(LEVELS, max_size=3).map(tuple)


def test_a_shape_holds_the_paths_of_its_depth_with_its_keys() -> None:
    shape = (hash_key("a"), all_but(["b", "é/\n"]))
    assert [path for path in PATHS if holds(shape, path)] == [("a", "a"), ("a", "other")]
    assert count_hashes(shape) == 3


@settings(max_examples=examples(300))
@given(SHAPES, SHAPES)
def test_what_two_shapes_have_in_common_is_a_shape(one: Shape, other: Shape) -> None:
    common = meet(one, other)
    for path in PATHS:
        is_common = common is not None and holds(common, path)
        assert is_common == (holds(one, path) and holds(other, path))


@given(SHAPES)
def test_a_shape_is_read_from_its_json(shape: Shape) -> None:
    assert parse_shape(orjson.loads(orjson.dumps(shape_json(shape)))) == shape


@pytest.mark.parametrize("json", [None, "a", {}, [1], [{"a": 1}], [None]])
def test_what_is_no_shape_is_refused(json: object) -> None:
    with pytest.raises(ValueError, match="shape"):
        parse_shape(json)  # type: ignore[arg-type]
