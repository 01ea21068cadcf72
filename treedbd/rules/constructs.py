"""The constructs of an expression while it is parsed, and the nodes that they become.

`grammar` opens a construct when its first operand or its bracket has been read, and closes it when
all of its operands have been.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Final

import attrs

from treedbd.rules.ast import (
    Binary,
    Call,
    Conditional,
    Expression,
    Index,
    ListLiteral,
    Literal,
    Logical,
    Member,
    Prefix,
)

OPEN: Final = 0
"""The level of what only a closing bracket, or the colon of a choice, can close."""
CHOICE: Final = 1
LEVELS: Final = {
    **dict.fromkeys(["||"], 2),
    **dict.fromkeys(["&&"], 3),
    **dict.fromkeys(["==", "===", "!=", "!=="], 4),
    **dict.fromkeys(["<", "<=", ">", ">="], 5),
    **dict.fromkeys(["+", "-"], 6),
    **dict.fromkeys(["*", "/", "%"], 7),
}
"""The levels of the operators between two operands: a higher one binds tighter."""
PREFIX: Final = 8


class Form(enum.Enum):
    """What a construct is."""

    WHOLE = enum.auto()
    """The whole text, which no token closes."""
    GROUP = enum.auto()
    LIST = enum.auto()
    CALL = enum.auto()
    INDEX = enum.auto()
    CONDITIONAL = enum.auto()
    LOGICAL = enum.auto()
    BINARY = enum.auto()
    PREFIX = enum.auto()


FORMS_CLOSED_BY: Final = {")": (Form.GROUP, Form.CALL), "]": (Form.LIST, Form.INDEX)}


def form_of(operator: str) -> Form:
    """Return the form that an operator between two operands makes."""
    return Form.LOGICAL if operator in ("||", "&&") else Form.BINARY


@attrs.define(eq=False)
class Construct:
    """A construct that is still open.

    `level` is that of its operators; `operands` and `operators` are those read so far, `depth` and
    `brackets` the greatest of these operands.
    """

    form: Form
    level: int
    offset: int
    operands: list[Expression] = attrs.field(factory=list)
    operators: list[str] = attrs.field(factory=list)
    depth: int = 0
    brackets: int = 0

    def node(self) -> Expression:
        """Return the node that the construct becomes; a group has none of its own."""
        return _NODES[self.form](self)


def _conditional(construct: Construct) -> Expression:
    *terms, otherwise = construct.operands
    arms = tuple(zip(terms[::2], terms[1::2], strict=True))
    return Conditional(construct.offset, arms, otherwise)


def _call(construct: Construct) -> Expression:
    callee, *arguments = construct.operands
    return Call(callee.offset, callee, tuple(arguments))


def _index(construct: Construct) -> Expression:
    target, index = construct.operands
    if isinstance(index, Literal) and isinstance(index.value, str):
        return Member(target.offset, target, index.value, index.offset)
    return Index(target.offset, target, index, construct.offset)


_NODES: Final[dict[Form, Callable[[Construct], Expression]]] = {
    Form.GROUP: lambda group: group.operands[0],
    Form.LIST: lambda items: ListLiteral(items.offset, tuple(items.operands)),
    Form.CALL: _call,
    Form.INDEX: _index,
    Form.CONDITIONAL: _conditional,
    Form.LOGICAL: lambda chain: Logical(chain.offset, chain.operators[0], tuple(chain.operands)),
    Form.BINARY: lambda chain: Binary(chain.offset, tuple(chain.operators), tuple(chain.operands)),
    Form.PREFIX: lambda prefix: Prefix(prefix.offset, prefix.operators[0], prefix.operands[0]),
}
