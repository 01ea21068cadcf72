"""Numbers beyond 64 bits leave a socket with an exponent, and all else as it was printed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.digits import as_doubles, check_digits, digits_of, is_in_64_bits, strings_of
from tests.tree.strategies import normal
from treedbd.store.nodes import spell_chunks, spell_numbers
from treedbd.tree import value as printing
from treedbd.tree.hashes import data_hash
from treedbd.tree.types import Json
from treedbd.tree.value import as_json, canonical_number, from_export

LONG_DIGITS = st.integers(10**17, 10**22).map(str)
NUMBERS = (
    st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.floats(-1e22, 1e22)
    | st.sampled_from([2**63 - 1, 2**63, -(2**63), 1e19, 1e20, 1e21, 0.0000012345678901234567])
)
TEXTS = (
    st.text(max_size=8)
    | LONG_DIGITS
    | st.tuples(st.sampled_from(['"', "\\", "\\\\", ",", ":", "[", "-", "\n", '",']), LONG_DIGITS)
    .map("".join)
    .flatmap(lambda text: st.sampled_from([text + ",", text + '"', text + "]}", text + "\\"]))
)
KEYS = st.text("abc,:", min_size=1, max_size=4) | LONG_DIGITS
JSON = st.recursive(
    NUMBERS | TEXTS | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=12,
)


def check(spelled: bytes, printed: bytes) -> None:
    """Check that text has the value of what was printed, and no digits beyond 64 bits."""
    shown, text = spelled.decode(), printed.decode()
    assert as_doubles(json.loads(shown)) == as_doubles(json.loads(text))
    check_digits(shown)
    # What is within 64 bits keeps its digits, and strings keep all.
    assert digits_of(shown) == [each for each in digits_of(text) if is_in_64_bits(each)]
    assert strings_of(shown) == strings_of(text)


def cut(text: bytes, ends: Sequence[int]) -> Iterator[bytes]:
    """Yield a text in chunks that end at these places, modulo its length."""
    places = sorted({end % (len(text) + 1) for end in ends})
    for start, end in zip([0, *places], [*places, len(text)], strict=True):
        yield text[start:end]


@pytest.mark.parametrize(
    ("number", "spelled"),
    [
        (2**63 - 1, b"9223372036854775807"),
        (2**63, b"9.223372036854775808e18"),
        (2.0**63, b"9.223372036854776e18"),
        (-(2**63), b"-9223372036854775808"),
        (-(2.0**63), b"-9.223372036854776e18"),
        (10**19, b"1e19"),
        (1e19, b"1e19"),
        (-1e19, b"-1e19"),
        (1e20, b"1e20"),
        (1.5e20, b"1.5e20"),
        (123456789012345680000.0, b"1.2345678901234568e20"),
        (9e20, b"9e20"),
        (1e21, b"1e+21"),
        (1e300, b"1e+300"),
        (10**18, b"1000000000000000000"),
        (0.0000012345678901234567, b"0.0000012345678901234567"),
        (-0.0000012345678901234567, b"-0.0000012345678901234567"),
        (0.1, b"0.1"),
    ],
)
def test_a_number_is_spelled_wherever_it_stands(number: float, spelled: bytes) -> None:
    for before, after in ((b"", b""), (b'{"a":', b"}"), (b"[", b",1]"), (b'["a",', b"]")):
        printed = before + printing.compact(number) + after
        assert spell_numbers(printed) == before + spelled + after
        if canonical_number(number) != number:
            continue  # it is not of the tree
        for size in range(1, len(printed) + 1):
            chunks = [printed[at : at + size] for at in range(0, len(printed), size)]
            assert b"".join(spell_chunks(chunks)) == before + spelled + after


@pytest.mark.parametrize(
    "text",
    [
        "12345678901234567890",
        "a,12345678901234567890,b",
        '",12345678901234567890,"',
        "\\,12345678901234567890,\\",
        '\\",12345678901234567890,',
        ":12345678901234567890",
        "[-12345678901234567890]",
        "x" * 100_000 + ",12345678901234567890,",
        "1" * 100_000,
        "\\" * 99_999 + ",12345678901234567890,",
        '"' * 99_999 + ",12345678901234567890,",
        ",12345678901234567890" * 10_000,
    ],
    ids=lambda text: text[:20],
)
def test_strings_and_keys_stay_as_they_are(text: str) -> None:
    values: list[Json] = [text, [text], {"a": text}, {text: 1e19}, [text, 1e19, text]]
    for value in values:
        printed = printing.compact(value)
        expected = printed.replace(b"10000000000000000000", b"1e19")
        assert spell_numbers(printed) == expected
        assert b"".join(spell_chunks([printed])) == expected
        for size in (1, 7, 4096) if len(printed) < 1000 else (997, 4096, 32_768):
            chunks = [printed[at : at + size] for at in range(0, len(printed), size)]
            assert b"".join(spell_chunks(chunks)) == expected


@given(JSON, st.lists(st.integers(0, 500), max_size=6))
@example(["a\\", 1e19, "\\\\"], [5, 6, 7, 8])
@example({"k": 1e19, "l": "12345678901234567890"}, [6, 20, 40])
def test_whatever_is_printed_the_value_is_the_same(value: Any, ends: list[int]) -> None:
    printed = printing.compact(value)
    check(spell_numbers(printed), printed)
    of_tree = printing.compact(as_json(normal(value)))
    check(spell_numbers(of_tree), of_tree)
    assert b"".join(spell_chunks(cut(of_tree, ends))) == spell_numbers(of_tree)


@given(JSON)
def test_the_hash_of_a_value_does_not_change(value: Any) -> None:
    shown = as_json(normal(value))
    printed = printing.compact(shown)
    spelled = printing.parse(spell_numbers(printed))
    assert data_hash(from_export(spelled)) == data_hash(from_export(printing.parse(printed)))


def test_what_has_no_such_number_is_not_copied() -> None:
    value: Json = {"a": [1, 2.5, "text", 1_700_000_000_000], "b": "1" * 18}
    printed = printing.compact(value)
    assert spell_numbers(printed) is printed
    assert list(spell_chunks([printed, b"", printed])) == [printed, b"", printed]


def test_chunks_come_one_by_one_and_none_is_long() -> None:
    printed = printing.compact([1e19] * 20_000)
    taken = []

    def chunks() -> Iterator[bytes]:
        for part in (printed[:100], printed[100:]):
            taken.append(part)
            yield part

    spelled = spell_chunks(chunks())
    assert next(spelled) == printing.compact([1e19] * 20_000)[:1] + b"1e19," * 4
    assert len(taken) == 1
    assert max(map(len, spelled)) <= 65_536 + 32
