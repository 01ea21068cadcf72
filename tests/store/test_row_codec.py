from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.store.normal_form import normal_form
from treedbd.loop import in_steps
from treedbd.store import rows as row_codec
from treedbd.store.engine import DamagedRow
from treedbd.store.rows import (
    encode_priority_row,
    encode_row,
    export_row,
    has_priorities,
    is_priority_row,
    is_surely_longer,
    load_part,
    load_priority_row,
    load_row,
    print_part,
    print_row,
    priority_of_part,
)
from treedbd.tree.types import Json, Value, free
from treedbd.tree.value import compact, plain

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
values = bodies.map(normal_form)


def holds_priority(value: Value) -> bool:
    if not isinstance(value, dict):
        return False
    return ".priority" in value or any(map(holds_priority, value.values()))


@given(value=values)
def test_a_value_is_loaded_as_it_was_encoded(value: Any) -> None:
    assert compact(load_row(encode_row(value))) == compact(value)


@given(value=values)
def test_a_row_prints_as_its_value(value: Any) -> None:
    raw = encode_row(value)
    assert print_row(raw) == compact(plain(value))
    assert export_row(raw) == compact(value)


@given(value=values)
def test_a_row_is_marked_if_it_holds_a_priority_and_only_then(value: Any) -> None:
    raw = encode_row(value)
    assert has_priorities(raw) is holds_priority(value)
    assert raw == (b" " + compact(value) if holds_priority(value) else compact(plain(value)))
    assert orjson.loads(raw) is not None


@given(value=values, limit=st.integers(0, 60))
def test_only_rows_that_are_longer_are_surely_longer(value: Any, limit: int) -> None:
    if is_surely_longer(value, limit):
        assert len(encode_row(value)) > limit


@pytest.mark.parametrize(
    "body", [[1] * 1366, [1] * 2047, {"a": [0] * 2000}, {str(at): "" for at in range(0, 800, 2)}]
)
def test_a_row_that_fits_is_never_surely_longer(body: Any) -> None:
    value = normal_form(body)
    size = len(encode_row(value))
    assert size <= 4096
    assert not is_surely_longer(value, size)


@pytest.mark.parametrize("value", [{"k" * 300: {str(at): 1 for at in range(5000)}}, "x" * 5000])
def test_a_row_that_is_much_longer_is_surely_longer(value: Any) -> None:
    assert is_surely_longer(value, 4096)


@pytest.mark.parametrize("priority", [1, -2.5e-300, "", "p", 'q"},', "\\", '\\"', "\n,", ',"a":1'])
def test_a_priority_row_holds_a_priority_and_nothing_else(priority: Any) -> None:
    raw = encode_priority_row(priority)
    assert is_priority_row(raw)
    assert not is_priority_row(encode_row({".priority": priority, "a": 1}))
    assert not is_priority_row(encode_row({".priority": priority, "a": {".priority": priority}}))
    assert has_priorities(raw)
    assert load_priority_row(raw) == priority


@pytest.mark.parametrize(
    "value", [{".priority": 1, "a": 2}, {".value": 1, ".priority": 1}, {"a": {".priority": 1}}, 1]
)
def test_other_rows_are_not_priority_rows(value: Any) -> None:
    assert not is_priority_row(encode_row(value))


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
    value = normal_form({"l": [1, None, {"m": 2}], "t": "x"})
    marked = normal_form({"l": [1, None, {"m": 2}], "t": {".value": "x", ".priority": 1}})
    assert print_part(encode_row(value), inside) == text
    assert print_part(encode_row(marked), inside) == text
    assert compact(plain(load_part(encode_row(value), inside))) == text
    assert compact(plain(load_part(encode_row(marked), inside))) == text


def test_a_part_keeps_its_priorities() -> None:
    raw = encode_row(normal_form({"a": {"b": {".value": 1, ".priority": 2}}}))
    assert load_part(raw, ("a",)) == {"b": {".value": 1, ".priority": 2}}


LONG_TEXTS = ["x" * 70_000, '",".priority":7}' * 5000, '\x01\\"\u00e9\U0001f600' * 10_000]


@pytest.mark.parametrize("priority", [1, 2.5, "p", '",".priority":8}', None])
@pytest.mark.parametrize("text", LONG_TEXTS)
def test_a_long_string_is_encoded_and_loaded_as_any_value_is(text: str, priority: Any) -> None:
    value = text if priority is None else {".value": text, ".priority": priority}
    raw = encode_row(value)
    assert raw == (compact(text) if priority is None else b" " + orjson.dumps(value))
    assert load_row(raw) == load_part(raw, ()) == value
    assert load_part(raw, ("a",)) is None
    assert print_row(raw) == compact(text)
    assert export_row(raw) == orjson.dumps(value)
    assert priority_of_part(raw, (), free) == priority
    assert priority_of_part(raw, ("a",), free) is None


def test_a_long_string_with_a_priority_is_parsed_only_for_its_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    raw = encode_row({".value": "x" * 70_000, ".priority": 1})
    parsed: list[int] = []
    parse = row_codec.parse_stored

    def noted(text: bytes) -> Json:
        parsed.append(len(text))
        return parse(text)

    monkeypatch.setattr(row_codec, "parse_stored", noted)
    print_row(raw)
    export_row(raw)
    print_part(raw, ("a",))
    priority_of_part(raw, (), free)
    assert max(parsed, default=0) < 30


def test_a_long_string_with_a_priority_is_printed_and_parsed_in_steps() -> None:
    value: Any = {".value": "\n" * 1_000_000, ".priority": 1}
    raw = encode_row(value)
    assert len(list(in_steps(lambda: encode_row(value)))) > 50
    assert len(list(in_steps(lambda: load_row(raw)))) > 20


@pytest.mark.parametrize("end", [b"", b"x", b"}"])
def test_a_long_string_that_is_cut_off_is_damaged(end: bytes) -> None:
    raw = b' {".value":"' + b"x" * 70_000 + end
    for read in (load_row, print_row):
        with pytest.raises(DamagedRow):
            read(raw)


def test_a_row_is_not_parsed_to_find_out_whether_it_is_a_priority_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [encode_row({".priority": 1, "a": "x" * 70_000}), encode_priority_row(1)]
    monkeypatch.setattr(row_codec, "parse_stored", None)
    assert list(map(is_priority_row, rows)) == [False, True]
