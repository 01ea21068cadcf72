"""The syntax tree of an expression: `grammar` builds it, `typecheck` and `compile` read it.

A chain of operators of one level is one node with many terms, and `a ? b : c ? d : e` is one node
with two arms, so the length of a chain adds no depth. Brackets have no node of their own. Nodes
compare by identity, because `typecheck` keeps a type for each. `fold` visits them without
recursion.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeAlias, TypeVar, cast

import attrs

from treedbd.rules.regex import Regex

Result = TypeVar("Result")


@attrs.frozen(eq=False)
class AstNode:
    """What all nodes have: where they begin in the text, and how deeply they are nested.

    `depth` counts nested nodes, `brackets` nested pairs of brackets; both are 0 for a single token.
    """

    offset: int
    depth: int
    brackets: int


@attrs.frozen(eq=False)
class Literal(AstNode):
    """A number, a string, true, false or null."""

    value: int | float | str | bool | None


@attrs.frozen(eq=False)
class Pattern(AstNode):
    """A regular expression between slashes."""

    regex: Regex


@attrs.frozen(eq=False)
class ListLiteral(AstNode):
    """An array in square brackets."""

    items: tuple[Expression, ...]


@attrs.frozen(eq=False)
class Variable(AstNode):
    """A name: `auth`, `now`, `root`, `data`, `newData`, `query` or a capture."""

    name: str


@attrs.frozen(eq=False)
class Member(AstNode):
    """`target.name`, also written `target['name']`."""

    target: Expression
    name: str


@attrs.frozen(eq=False)
class Index(AstNode):
    """`target[index]` where the index is not a string literal."""

    target: Expression
    index: Expression


@attrs.frozen(eq=False)
class Call(AstNode):
    """`callee(arguments)`."""

    callee: Expression
    arguments: tuple[Expression, ...]


@attrs.frozen(eq=False)
class Prefix(AstNode):
    """`!operand` or `-operand`."""

    operator: str
    operand: Expression


@attrs.frozen(eq=False)
class Logical(AstNode):
    """Terms joined by `&&`, or by `||`."""

    operator: str
    terms: tuple[Expression, ...]


@attrs.frozen(eq=False)
class Binary(AstNode):
    """Terms joined from the left by operators of one level: one operator fewer than terms."""

    operators: tuple[str, ...]
    terms: tuple[Expression, ...]


@attrs.frozen(eq=False)
class Conditional(AstNode):
    """`condition ? result : …` for each of the arms; `otherwise` where no condition is true."""

    arms: tuple[tuple[Expression, Expression], ...]
    otherwise: Expression


Expression: TypeAlias = (
    Literal
    | Pattern
    | ListLiteral
    | Variable
    | Member
    | Index
    | Call
    | Prefix
    | Logical
    | Binary
    | Conditional
)

Visit: TypeAlias = Generator[Expression, Any, Result]
"""Yields the nodes whose results it needs, is sent those results, and returns its own."""


def fold(visit: Callable[[Expression], Visit[Result]], root: Expression) -> Result:
    """Return the result of `visit` for `root`; nodes are visited in the order it yields them."""
    stack = [visit(root)]
    result: Any = None
    while True:
        try:
            node = stack[-1].send(result)
        except StopIteration as stop:
            stack.pop()
            result = stop.value
            if not stack:
                return cast(Result, result)
        else:
            stack.append(visit(node))
            result = None
