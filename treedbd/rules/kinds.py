"""The static types of expressions, and which members each has: tables, for `check` to read.

A `Kind` is what can be known of a value before there is data.
Where a table here names a method, `closures` has its meaning.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

import attrs


class Kind(enum.Enum):
    """What an expression yields."""

    BOOLEAN = enum.auto()
    NUMBER = enum.auto()
    STRING = enum.auto()
    NULL = enum.auto()
    REGEX = enum.auto()
    SNAPSHOT = enum.auto()
    METHOD = enum.auto()
    """A method that is named but not called."""
    VALUE = enum.auto()
    """What lies at a node, some primitive."""
    AUTH = enum.auto()
    """`auth` and everything below it."""
    QUERY = enum.auto()
    QUERY_VALUE = enum.auto()
    MIXED = enum.auto()
    """One of two kinds that have nothing in common."""


@attrs.frozen
class Method:
    """A method of a snapshot or of a string: what it takes and what it yields."""

    takes: tuple[str, ...]
    """For each argument `string`, `regex` or `list`."""
    yields: Kind


_TEST: Final = Method((), Kind.BOOLEAN)
_TEST_STRING: Final = Method(("string",), Kind.BOOLEAN)

SNAPSHOT_METHODS: Final[Mapping[str, Method]] = {
    "val": Method((), Kind.VALUE),
    "child": Method(("string",), Kind.SNAPSHOT),
    "parent": Method((), Kind.SNAPSHOT),
    "hasChild": _TEST_STRING,
    "hasChildren": Method(("list",), Kind.BOOLEAN),
    "exists": _TEST,
    "getPriority": Method((), Kind.VALUE),
    "isNumber": _TEST,
    "isString": _TEST,
    "isBoolean": _TEST,
}

STRING_METHODS: Final[Mapping[str, Method]] = {
    "contains": _TEST_STRING,
    "beginsWith": _TEST_STRING,
    "endsWith": _TEST_STRING,
    "replace": Method(("string", "string"), Kind.STRING),
    "toLowerCase": Method((), Kind.STRING),
    "toUpperCase": Method((), Kind.STRING),
    "matches": Method(("regex",), Kind.BOOLEAN),
}

QUERY_MEMBERS: Final[Mapping[str, Kind]] = {
    "orderByKey": Kind.BOOLEAN,
    "orderByPriority": Kind.BOOLEAN,
    "orderByValue": Kind.BOOLEAN,
    "orderByChild": Kind.QUERY_VALUE,
    "startAt": Kind.QUERY_VALUE,
    "endAt": Kind.QUERY_VALUE,
    "equalTo": Kind.QUERY_VALUE,
    "limitToFirst": Kind.QUERY_VALUE,
    "limitToLast": Kind.QUERY_VALUE,
}

NUMBERS: Final = frozenset({Kind.NUMBER, Kind.VALUE, Kind.AUTH, Kind.QUERY_VALUE, Kind.MIXED})
"""What arithmetic takes."""
ORDERED: Final = NUMBERS | {Kind.STRING}
"""What `+` and the orderings take."""
PRIMITIVES: Final = ORDERED | {Kind.BOOLEAN, Kind.NULL}
"""What can be compared for equality."""
STRINGS: Final = frozenset({Kind.STRING, Kind.VALUE, Kind.AUTH, Kind.MIXED})
"""What a method takes where it wants a string."""
ABSORBING: Final = frozenset({Kind.STRING, Kind.VALUE, Kind.AUTH})
"""Beside one of these, an unlike branch of a conditional makes a Value."""
