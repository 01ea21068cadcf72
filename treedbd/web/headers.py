"""Header fields of a request as one plain dictionary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

Header: TypeAlias = tuple[bytes, bytes]
"""Name and value of a field of a response."""

Headers: TypeAlias = Mapping[bytes, Sequence[bytes]]
"""The values of each field, by its name in lower case, in the order in which they came.

Nobody changes them: requests with the same head share them."""


def first(headers: Headers, name: bytes) -> str | None:
    """Return the first value of a field as text, None if the field is absent."""
    values = headers.get(name)
    return values[0].decode("latin-1") if values else None


def joined(headers: Headers, name: bytes) -> str | None:
    """Return all values of a list field, joined by commas; None if the field is absent."""
    values = headers.get(name)
    return b", ".join(values).decode("latin-1") if values else None


def is_true(headers: Headers, name: bytes) -> bool:
    """Return whether the first value of a field is `true`, in either case."""
    values = headers.get(name)
    return values is not None and values[0].lower() == b"true"
