"""The syntax tree of an expression: `grammar` builds it, `typecheck` and `compile` read it.

A chain of operators of one level is one node with many terms, and `a ? b : c ? d : e` is one node
with two arms, so the length of a chain adds no depth. Brackets have no node of their own. Nodes
compare by identity, because `typecheck` keeps a type for each. `fold` visits them without
recursion, in steps.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any, Final, TypeAlias, TypeVar, cast

import attrs

from treedbd.loop import Steps
from treedbd.rules.regex import Regex

Result = TypeVar("Result")

_NODES_PER_STEP: Final = 200


@attrs.frozen(eq=False)
class AstNode:
    """What all nodes have: where they begin in the text."""

    offset: int


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
    """`target.name`, also written `target['name']`; `name_offset` is where the name begins."""

    target: Expression
    name: str
    name_offset: int


@attrs.frozen(eq=False)
class Index(AstNode):
    """`target[index]` where the index is not a string literal.

    `bracket_offset` is that of the opening bracket.
    """

    target: Expression
    index: Expression
    bracket_offset: int


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


def each(nodes: Iterable[Expression]) -> Visit[list[Any]]:
    """Return the results of several nodes, within a visit."""
    results = []
    for node in nodes:
        results.append((yield node))  # noqa: PERF401 - a comprehension cannot yield
    return results


def fold(
    visit: Callable[[Expression], Visit[Result]],
    leaves: Mapping[type[AstNode], Callable[[Any], Result]],
    root: Expression,
    results: dict[AstNode, Result] | None = None,
) -> Steps[Result]:
    """Return the result of `visit` for `root`; nodes are visited in the order it yields them.

    `leaves` has functions for the forms of node without operands: half of all nodes, which need no
    generator of their own. The result of each node is added to `results`, if given.
    """
    stack: list[tuple[Expression, Visit[Result]]] = []
    node = root
    remaining = _NODES_PER_STEP
    while True:
        remaining -= 1
        if not remaining:
            remaining = _NODES_PER_STEP
            yield
        leaf = leaves.get(type(node))
        result: Any = None
        if leaf is None:
            stack.append((node, visit(node)))
        else:
            result = leaf(node)
            if results is not None:
                results[node] = result
        # Continue the innermost visit until it needs the result of another node.
        while stack:
            try:
                node = stack[-1][1].send(result)
                break
            except StopIteration as stop:
                visited, _ = stack.pop()
                result = stop.value
                if results is not None:
                    results[visited] = result
        else:
            return cast(Result, result)
