"""The static types of expressions, and the members of each, as tables for `typecheck`.

A `Type` is what is known of a value before any data is read. `closures` implements the methods that
the tables name.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

import attrs


class Type(enum.Enum):
    """The type of an expression."""

    BOOLEAN = enum.auto()
    NUMBER = enum.auto()
    STRING = enum.auto()
    NULL = enum.auto()
    REGEX = enum.auto()
    SNAPSHOT = enum.auto()
    METHOD = enum.auto()
    """A method of a snapshot or of a string, named but not called."""
    VALUE = enum.auto()
    """The value of a node: a primitive whose type is unknown."""
    AUTH = enum.auto()
    """`auth` and everything below it."""
    QUERY = enum.auto()
    QUERY_VALUE = enum.auto()
    MIXED = enum.auto()
    """One of several types that have nothing in common."""


@attrs.frozen
class MethodSignature:
    """The parameters and the result type of a method of a snapshot or of a string."""

    parameters: tuple[str, ...]
    """`string`, `regex` or `list` for each argument."""
    returns: Type


_TEST: Final = MethodSignature((), Type.BOOLEAN)
_TEST_STRING: Final = MethodSignature(("string",), Type.BOOLEAN)

SNAPSHOT_METHODS: Final[Mapping[str, MethodSignature]] = {
    "val": MethodSignature((), Type.VALUE),
    "child": MethodSignature(("string",), Type.SNAPSHOT),
    "parent": MethodSignature((), Type.SNAPSHOT),
    "hasChild": _TEST_STRING,
    "hasChildren": MethodSignature(("list",), Type.BOOLEAN),
    "exists": _TEST,
    "getPriority": MethodSignature((), Type.VALUE),
    "isNumber": _TEST,
    "isString": _TEST,
    "isBoolean": _TEST,
}

STRING_METHODS: Final[Mapping[str, MethodSignature]] = {
    "contains": _TEST_STRING,
    "beginsWith": _TEST_STRING,
    "endsWith": _TEST_STRING,
    "replace": MethodSignature(("string", "string"), Type.STRING),
    "toLowerCase": MethodSignature((), Type.STRING),
    "toUpperCase": MethodSignature((), Type.STRING),
    "matches": MethodSignature(("regex",), Type.BOOLEAN),
}

QUERY_MEMBERS: Final[Mapping[str, Type]] = {
    "orderByKey": Type.BOOLEAN,
    "orderByPriority": Type.BOOLEAN,
    "orderByValue": Type.BOOLEAN,
    "orderByChild": Type.QUERY_VALUE,
    "startAt": Type.QUERY_VALUE,
    "endAt": Type.QUERY_VALUE,
    "equalTo": Type.QUERY_VALUE,
    "limitToFirst": Type.QUERY_VALUE,
    "limitToLast": Type.QUERY_VALUE,
    "where": Type.BOOLEAN,
}

NUMBERS: Final = frozenset({Type.NUMBER, Type.VALUE, Type.AUTH, Type.QUERY_VALUE, Type.MIXED})
"""Operands of arithmetic."""
ORDERED: Final = NUMBERS | {Type.STRING}
"""Operands of `+` and of the orderings."""
PRIMITIVES: Final = ORDERED | {Type.BOOLEAN, Type.NULL}
"""Operands of the equality operators."""
STRINGS: Final = frozenset({Type.STRING, Type.VALUE, Type.AUTH, Type.MIXED})
"""Arguments of a method that expects a string."""
ABSORBING: Final = frozenset({Type.STRING, Type.VALUE, Type.AUTH})
"""If branches of a conditional differ and one has such a type, the result is a Value."""
