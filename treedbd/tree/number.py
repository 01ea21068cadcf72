"""Numbers: which number the tree stores for a number in JSON, and how it is printed.

An integer within 64 bits is exact; anything else is an IEEE double, printed as ECMAScript prints
it (RFC 8785, section 3.2.2.3). A double whose printed form is a plain integer below 2^64 is stored
as that integer, so a number that is printed and parsed again is the same number.
"""

from __future__ import annotations

import math
from decimal import Decimal

INT64_LOW, INT64_HIGH = -(2**63), 2**63 - 1
_EXACT = 1e16
_UINT64_END = 2.0**64
_LEAST_PLAIN, _LEAST_LONG = -6, 21
"""Exponents from the first on and below the second are not printed."""


def canonical_number(number: int | float) -> int | float:
    """Return the number that the tree stores for a number in JSON.

    Raises ValueError if it is not finite.
    """
    if isinstance(number, int):
        if INT64_LOW <= number <= INT64_HIGH:
            return number
        number = float(number)
    if not math.isfinite(number):
        raise ValueError("The number is out of range.")
    if not number.is_integer():
        return number
    if -_EXACT < number < _EXACT:
        return int(number)
    if INT64_LOW < number < _UINT64_END:
        return int(Decimal(repr(number)))
    return number


def add(left: int | float, right: int | float) -> int | float:
    """Add two numbers of the tree: exact within 64 bits, a double beyond.

    Raises ValueError if the sum is not finite.
    """
    total = left + right
    if isinstance(total, int) and not INT64_LOW <= total <= INT64_HIGH:
        total = float(left) + float(right)
    return canonical_number(total)


def print_double(number: float) -> str:
    """Print a finite double as ECMAScript's Number::toString does."""
    if number == 0:
        return "0"
    mantissa, _, exponent_text = repr(number).partition("e")
    if not exponent_text:
        return mantissa.removesuffix(".0")
    if not _LEAST_PLAIN <= int(exponent_text) < _LEAST_LONG:
        return f"{mantissa}e{int(exponent_text):+d}"
    sign, digits, exponent = Decimal(repr(number)).as_tuple()
    text = "".join(map(str, digits)).rstrip("0")
    point = len(digits) + int(exponent)
    return ("-" if sign else "") + _place_point(text, point)


def _place_point(digits: str, point: int) -> str:
    count = len(digits)
    if count <= point <= 21:
        return digits + "0" * (point - count)
    if 0 < point <= 21:
        return f"{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return "0." + "0" * -point + digits
    mantissa = digits if count == 1 else f"{digits[0]}.{digits[1:]}"
    return f"{mantissa}e{point - 1:+d}"
