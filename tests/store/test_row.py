from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treedbd.store.row import (
    encode_crown,
    encode_row,
    export_row,
    is_crown,
    is_marked,
    is_surely_longer,
    load_crown,
    load_part,
    load_row,
    print_part,
    print_row,
)
from treedbd.tree.body import normalise
from treedbd.tree.printing import compact
from treedbd.tree.value import has_priorities, plain

names = st.sampled_from(["0", "1", "2", "-1", "01", "a", '".priority":', "é\\"]).filter(
    lambda name: "." not in name
) | st.text("ab01", min_size=1, max_size=12)
leaves = (
    st.booleans()
    | st.integers(-(2**63), 2**64)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(['".priority":', '{"0":', '{".priority":1}', "", " "])
)
bodies = st.recursive(
    leaves
    | st.builds(lambda v, p: {".value": v, ".priority": p}, leaves, st.sampled_from([1, "p"])),
    lambda inner: st.lists(inner, min_size=1) | st.dictionaries(names, inner, min_size=1),
    max_leaves=12,
)
values = bodies.map(lambda body: normalise(body).value)


@given(value=values)
def test_a_value_comes_back_from_its_row(value: Any) -> None:
    assert compact(load_row(encode_row(value))) == compact(value)


@given(value=values)
def test_a_row_prints_as_its_value(value: Any) -> None:
    raw = encode_row(value)
    assert print_row(raw) == compact(plain(value))
    assert export_row(raw) == compact(value)


@given(value=values)
def test_a_row_is_marked_where_it_holds_a_priority_and_only_there(value: Any) -> None:
    raw = encode_row(value)
    assert is_marked(raw) is has_priorities(value)
    assert raw == (b" " + compact(value) if has_priorities(value) else compact(plain(value)))
    assert orjson.loads(raw) is not None


@given(value=values, limit=st.integers(0, 60))
def test_only_rows_that_are_longer_are_surely_longer(value: Any, limit: int) -> None:
    if is_surely_longer(value, limit):
        assert len(encode_row(value)) > limit


@pytest.mark.parametrize(
    "body", [[1] * 1366, [1] * 2047, {"a": [0] * 2000}, {str(at): "" for at in range(0, 800, 2)}]
)
def test_what_fits_is_never_found_to_be_longer(body: Any) -> None:
    value = normalise(body).value
    size = len(encode_row(value))
    assert size <= 4096
    assert not is_surely_longer(value, size)


@pytest.mark.parametrize("value", [{"k" * 300: {str(at): 1 for at in range(5000)}}, "x" * 5000])
def test_what_is_much_longer_is_found_to_be_so(value: Any) -> None:
    assert is_surely_longer(value, 4096)


@pytest.mark.parametrize("priority", [1, 2.5, "p", 'q"},'])
def test_a_crown_holds_a_priority_and_nothing_else(priority: Any) -> None:
    raw = encode_crown(priority)
    assert is_crown(raw)
    assert is_marked(raw)
    assert load_crown(raw) == priority


@pytest.mark.parametrize(
    "value", [{".priority": 1, "a": 2}, {".value": 1, ".priority": 1}, {"a": {".priority": 1}}, 1]
)
def test_other_rows_are_no_crowns(value: Any) -> None:
    assert not is_crown(encode_row(value))


@pytest.mark.parametrize(
    ("inside", "text"),
    [
        ((), b'{"l":[1,null,{"m":2}],"t":"x"}'),
        (("l",), b'[1,null,{"m":2}]'),
        (("l", "0"), b"1"),
        (("l", "1"), b"null"),
        (("l", "2", "m"), b"2"),
        (("l", "3"), b"null"),
        (("l", "-1"), b"null"),
        (("l", "00"), b"null"),
        (("l", "m"), b"null"),
        (("t", "x"), b"null"),
        (("n", "x"), b"null"),
    ],
)
def test_a_part_of_a_row_is_found_by_its_path(inside: tuple[str, ...], text: bytes) -> None:
    value = normalise({"l": [1, None, {"m": 2}], "t": "x"}).value
    marked = normalise({"l": [1, None, {"m": 2}], "t": {".value": "x", ".priority": 1}}).value
    assert print_part(encode_row(value), inside) == text
    assert print_part(encode_row(marked), inside) == text
    assert compact(plain(load_part(encode_row(value), inside))) == text
    assert compact(plain(load_part(encode_row(marked), inside))) == text


def test_a_part_keeps_its_priorities() -> None:
    raw = encode_row(normalise({"a": {"b": {".value": 1, ".priority": 2}}}).value)
    assert load_part(raw, ("a",)) == {"b": {".value": 1, ".priority": 2}}
