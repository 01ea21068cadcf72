from __future__ import annotations

import json
import re
import tracemalloc
from collections.abc import Callable
from itertools import accumulate, pairwise
from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from tests.tree.strategies import BODIES, VALUES, normal
from treedbd.tree import value as printing
from treedbd.tree.types import Json, Value
from treedbd.tree.value import canonical_number, plain


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (None, "null"),
        (True, "true"),
        ("", '""'),
        ('"\\/\b\f\n\r\t\x00\x1f\x7f', '"\\"\\\\/\\b\\f\\n\\r\\t\\u0000\\u001f\x7f"'),
        ("é日\U0001f600\u2028", '"é日\U0001f600\u2028"'),
        ({"b": 1, "a": [1, 2]}, '{"b":1,"a":[1,2]}'),
        (1e21, "1e+21"),
        (1e-7, "1e-7"),
        (1e-6, "0.000001"),
        (1.5e-5, "0.000015"),
        ([1e22, 1.25, "1e22"], '[1e+22,1.25,"1e22"]'),
        ({"a": {"b": [1.5e-9]}, "c": 1e300}, '{"a":{"b":[1.5e-9]},"c":1e+300}'),
        (2.0**64, "18446744073709552000"),
        (-(2.0**64), "-18446744073709552000"),
        ({"a": "x1e5,", "b": 1e-9}, '{"a":"x1e5,","b":1e-9}'),
        ("1e5,", '"1e5,"'),
        ("1e5}\n", '"1e5}\\n"'),
    ],
)
def test_json_is_printed_compactly(shown: Any, text: str) -> None:
    assert printing.compact(shown) == text.encode()


@pytest.mark.parametrize("to_text", [printing.compact, printing.pretty])
@pytest.mark.parametrize("shown", [None, {"a": 1}, "é" * 600, [1e22] * 300])
def test_what_is_printed_has_memory_of_its_own_size(
    to_text: Callable[[Json], bytes], shown: Json
) -> None:
    length = len(to_text(shown))
    tracemalloc.start()
    kept = [to_text(shown) for _ in range(50)]
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken < len(kept) * (length + 100)


def test_pretty_json_is_indented_by_two_spaces() -> None:
    shown: Json = {"a": {"b": [1, 1e21]}, "c": 1e-7}
    expected = '{\n  "a": {\n    "b": [\n      1,\n      1e+21\n    ]\n  },\n  "c": 1e-7\n}'
    assert printing.pretty(shown) == expected.encode()
    assert printing.pretty(1e21) == b"1e+21"


_NAME = re.compile(rb'^( *"(?:[^"\\]|\\.)*"): ', re.MULTILINE)
"""A name of a member in indented JSON, whatever is in it."""
_TEXTS = st.lists(
    st.sampled_from(['"', "\\", ": ", '": ', ' ": ', ",", "{", "]", "a", "é", "x" * 40])
)
_JSON: st.SearchStrategy[Any] = st.recursive(
    _TEXTS.map("".join) | st.sampled_from([None, True, 0, -1.5, 1e22, 1e-9]),
    lambda below: (
        st.lists(below) | st.dictionaries(_TEXTS.map(lambda texts: "".join(texts) or "k"), below)
    ),
)


@given(shown=_JSON, at_once=st.integers(1, 60), sizes=st.lists(st.integers(1, 50)))
def test_json_is_indented_in_chunks_as_it_is_at_once(
    shown: Any, at_once: int, sizes: list[int]
) -> None:
    text, indented = printing.compact(shown), printing.pretty(shown)
    ends = [0, *accumulate(sizes), len(text)]
    chunks = [text[start:end] for start, end in pairwise(ends)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(printing, "INDENTED_AT_ONCE", at_once)
        patch.setattr(printing, "TEXT_AT_ONCE", 500)
        assert b"".join(printing.indent(chunks)) == indented
        spaced = b"".join(printing.indent(chunks, spaces_colons=True))
    assert spaced == printing.space_colons(indented) == _NAME.sub(rb"\1 : ", indented)


@pytest.mark.parametrize(
    "shown",
    [
        {f"k{at}": {"a": [at, "x"], "b": "\\" * (at % 5)} for at in range(30_000)},
        ["short", 'long "quoted" \\ \n é' * 100_000, {"a": "y" * 100_000, "b": ["z" * 50_000]}],
        "\\" * 300_000,
    ],
)
def test_no_step_of_indenting_prints_much(shown: Any) -> None:
    text = printing.compact(shown)
    chunks = [text[at : at + 50_000] for at in range(0, len(text), 50_000)]
    steps = list(printing.indent(chunks))
    assert b"".join(steps) == printing.pretty(shown)
    assert max(map(len, steps)) < 4 * printing.INDENTED_AT_ONCE


def test_sorted_members_are_in_the_order_of_their_utf8_bytes() -> None:
    shown: Json = {"b": 1e21, "\U0001f600": 1, "\ufb33": {"d": 1, "c": 2}, "10": 1, "9": 1}
    expected = '{"10":1,"9":1,"b":1e+21,"\ufb33":{"c":2,"d":1},"\U0001f600":1}'
    assert printing.compact_sorted(shown) == expected.encode()


def test_a_repeated_member_counts_once_with_its_last_value() -> None:
    assert printing.parse(b'{"a":1,"b":2,"a":3}') == {"a": 3, "b": 2}


@given(VALUES)
def test_printed_json_is_parsed_to_the_same_value(node: Value) -> None:
    shown = plain(node)
    for text in (printing.compact(shown), printing.pretty(shown), printing.compact_sorted(shown)):
        assert normal(printing.parse(text)) == normal(shown)


@given(BODIES)
def test_every_way_to_print_shows_the_same_numbers(body: Any) -> None:
    shown = plain(normal(body))
    from_pretty = json.dumps(json.loads(printing.pretty(shown)), separators=(",", ":"))
    assert from_pretty == json.dumps(json.loads(printing.compact(shown)), separators=(",", ":"))


@given(st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=5))
def test_a_double_is_printed_the_same_in_any_position(double: float, other: str) -> None:
    number: Json = canonical_number(double)
    with_other: Json = {other: other, "a": [number]}
    text = rfc8785.dumps(double)
    assert printing.compact(number) == text
    assert printing.compact([number, number]) == b"[%b,%b]" % (text, text)
    assert printing.compact({"a": number}) == b'{"a":%b}' % text
    assert printing.compact(with_other).endswith(b"[%b]}" % text)
    assert printing.pretty([number]) == b"[\n  %b\n]" % text
    assert printing.pretty({"a": number}) == b'{\n  "a": %b\n}' % text


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 200])
def test_keys_are_printed_as_an_object_of_true_in_their_order(count: int) -> None:
    keys = [f'{count - at} "é\\' for at in range(count)]
    printed = b"".join(printing.print_keys(keys))
    shown: Json = dict.fromkeys(keys, True)
    assert printed == printing.compact(shown or None)


def test_keys_are_read_only_as_they_are_printed() -> None:
    remaining = iter([str(at) for at in range(1000)])
    next(printing.print_keys(remaining))
    assert next(remaining) == str(printing.KEYS_AT_ONCE)


def test_short_members_share_chunks_which_end_at_pauses() -> None:
    short = [(f"k{at}", [b"%d" % at]) for at in range(printing.PARTS_AT_ONCE)]
    long = b'"%b"' % (b"x" * printing.SHORT_BYTES)
    members = [*short[:3], None, None, ("a", [b"[", b"", b"1]"]), ("b", [long]), *short[3:]]
    chunks = list(printing.print_members(members))
    assert chunks[:4] == [b'{"k0":0,"k1":1,"k2":2', b"", b',"a":[', b'1],"b":' + long]
    assert all(len(chunk) < 10 * printing.PARTS_AT_ONCE for chunk in chunks[4:])
    assert len(chunks) == 4 + 2
    assert json.loads(b"".join(chunks)) == {"a": [1], "b": long[1:-1].decode()} | {
        key: int(text) for key, (text,) in short
    }
