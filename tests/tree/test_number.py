from __future__ import annotations

import math
import struct

import orjson
import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from treedbd.tree import value as number
from treedbd.tree import value as printing

DOUBLES = st.floats(allow_nan=False, allow_infinity=False)
BIT_PATTERNS = st.integers(0, 2**64 - 1).map(lambda bits: _double(f"{bits:016x}"))

RFC_8785_APPENDIX_B = [
    ("0000000000000000", "0"),
    ("8000000000000000", "0"),
    ("0000000000000001", "5e-324"),
    ("8000000000000001", "-5e-324"),
    ("7fefffffffffffff", "1.7976931348623157e+308"),
    ("ffefffffffffffff", "-1.7976931348623157e+308"),
    ("4340000000000000", "9007199254740992"),
    ("c340000000000000", "-9007199254740992"),
    ("4430000000000000", "295147905179352830000"),
    ("44b52d02c7e14af5", "9.999999999999997e+22"),
    ("44b52d02c7e14af6", "1e+23"),
    ("44b52d02c7e14af7", "1.0000000000000001e+23"),
    ("444b1ae4d6e2ef4e", "999999999999999700000"),
    ("444b1ae4d6e2ef4f", "999999999999999900000"),
    ("444b1ae4d6e2ef50", "1e+21"),
    ("3eb0c6f7a0b5ed8c", "9.999999999999997e-7"),
    ("3eb0c6f7a0b5ed8d", "0.000001"),
    ("41b3de4355555553", "333333333.3333332"),
    ("41b3de4355555554", "333333333.33333325"),
    ("41b3de4355555555", "333333333.3333333"),
    ("41b3de4355555556", "333333333.3333334"),
    ("41b3de4355555557", "333333333.33333343"),
    ("becbf647612f3696", "-0.0000033333333333333333"),
    ("43143ff3c1cb0959", "1424953923781206.2"),
]

WRITTEN_AND_PRINTED = [
    ("0", "0"),
    ("-0", "0"),
    ("0.0", "0"),
    ("-0.0", "0"),
    ("-0e5", "0"),
    ("1.0", "1"),
    ("-1.0", "-1"),
    ("1e0", "1"),
    ("1e2", "100"),
    ("1.50", "1.5"),
    ("0.1e1", "1"),
    ("123e-2", "1.23"),
    ("1e-5", "0.00001"),
    ("1e-6", "0.000001"),
    ("1.5e-6", "0.0000015"),
    ("1e-7", "1e-7"),
    ("1.5e-7", "1.5e-7"),
    ("-1e-7", "-1e-7"),
    ("5e-324", "5e-324"),
    ("1e-400", "0"),
    ("1e15", "1000000000000000"),
    ("1e16", "10000000000000000"),
    ("1e18", "1000000000000000000"),
    ("1e19", "10000000000000000000"),
    ("1e20", "100000000000000000000"),
    ("123456789012345678901", "123456789012345680000"),
    ("1e21", "1e+21"),
    ("-1e20", "-100000000000000000000"),
    ("-1e21", "-1e+21"),
    ("1.5e300", "1.5e+300"),
    ("1e308", "1e+308"),
    ("9007199254740991", "9007199254740991"),
    ("9007199254740992", "9007199254740992"),
    ("9007199254740993", "9007199254740993"),
    ("9007199254740993.0", "9007199254740992"),
    ("-9007199254740993", "-9007199254740993"),
    ("9223372036854775806", "9223372036854775806"),
    ("9223372036854775807", "9223372036854775807"),
    ("9223372036854775808", "9223372036854776000"),
    ("-9223372036854775807", "-9223372036854775807"),
    ("-9223372036854775808", "-9223372036854775808"),
    ("-9223372036854775809", "-9223372036854776000"),
    ("9.223372036854775807e18", "9223372036854776000"),
    ("18446744073709551614", "18446744073709552000"),
    ("18446744073709551615", "18446744073709552000"),
    ("18446744073709551616", "18446744073709552000"),
    ("18446744073709549568", "18446744073709550000"),
    ("100000000000000000000000", "1e+23"),
    ("1234567890123456768e0", "1234567890123456800"),
    ("9999999999999998.0", "9999999999999998"),
    ("333333333.33333329", "333333333.3333333"),
]


def _double(bits: str) -> float:
    double: float = struct.unpack(">d", bytes.fromhex(bits))[0]
    return double


@pytest.mark.parametrize(("bits", "text"), RFC_8785_APPENDIX_B)
def test_doubles_print_as_in_rfc_8785_appendix_b(bits: str, text: str) -> None:
    assert number.print_double(_double(bits)) == text
    assert printing.compact(number.canonical_number(_double(bits))) == text.encode()


@pytest.mark.parametrize("bits", ["7fffffffffffffff", "7ff0000000000000", "fff0000000000000"])
def test_a_number_that_is_not_finite_is_refused(bits: str) -> None:
    with pytest.raises(ValueError, match="out of range"):
        number.canonical_number(_double(bits))


@given(DOUBLES | BIT_PATTERNS.filter(math.isfinite))
def test_doubles_print_as_the_reference_implementation_prints_them(double: float) -> None:
    expected = rfc8785.dumps(double)
    assert number.print_double(double).encode() == expected
    assert printing.compact(number.canonical_number(double)) == expected


@pytest.mark.parametrize(("written", "printed"), WRITTEN_AND_PRINTED)
def test_a_written_number_is_printed_in_one_way(written: str, printed: str) -> None:
    canonical = number.canonical_number(orjson.loads(written))
    assert printing.compact(canonical) == printed.encode()
    again = number.canonical_number(orjson.loads(printed))
    assert (again, type(again)) == (canonical, type(canonical))


@given(DOUBLES | st.integers(-(2**64), 2**65))
def test_a_printed_canonical_number_is_parsed_to_itself(written: float) -> None:
    canonical = number.canonical_number(written)
    again = number.canonical_number(orjson.loads(printing.compact(canonical)))
    assert (again, type(again)) == (canonical, type(canonical))
    assert number.canonical_number(canonical) == canonical


@given(st.integers(number.INT64_LOW, number.INT64_HIGH))
def test_an_integer_of_64_bits_is_exact(integer: int) -> None:
    assert number.canonical_number(integer) == integer
    assert printing.compact(integer) == str(integer).encode()


@pytest.mark.parametrize(
    ("left", "right", "total"),
    [
        (1, 2, 3),
        (0.1, 0.2, 0.30000000000000004),
        (0.5, 0.5, 1),
        (2**53, 1, 2**53 + 1),
        (2**63 - 1, 0, 2**63 - 1),
        (2**63 - 1, 1, number.canonical_number(2.0**63)),
        (-(2**63), -1, -(2.0**63)),
        (2**63 - 1, -(2**63), -1),
        (1, -1.0, 0),
    ],
)
def test_sums_are_exact_within_64_bits_and_doubles_beyond(
    left: float, right: float, total: float
) -> None:
    result = number.add(left, right)
    assert (result, type(result)) == (total, type(total))


def test_a_sum_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match="out of range"):
        number.add(1.7e308, 1.7e308)
