"""JSON text as clients read it that take digits alone for a 64-bit integer."""

from __future__ import annotations

import re
from typing import Any

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_DIGITS = re.compile(r"(?<![0-9.eE+-])-?[0-9]+(?![0-9.eE])")


def strings_of(text: str) -> list[str]:
    """Return the strings in JSON, keys too, as they are printed."""
    return _STRING.findall(text)


def digits_of(text: str) -> list[str]:
    """Return the numbers in JSON that are digits alone, as they are printed."""
    return _DIGITS.findall(_STRING.sub('""', text))


def is_in_64_bits(digits: str) -> bool:
    """Return whether an integer has 64 bits."""
    return -(2**63) <= int(digits) < 2**63


def check_digits(text: str) -> None:
    """Check that all digits alone are integers of 64 bits."""
    assert [each for each in digits_of(text) if not is_in_64_bits(each)] == []


def as_doubles(value: Any) -> Any:
    """Return a value as a client parses it all of whose numbers are doubles."""
    if isinstance(value, dict):
        return {key: as_doubles(item) for key, item in value.items()}
    if isinstance(value, list):
        return [as_doubles(item) for item in value]
    return float(value) if type(value) is int else value
