"""The parts that an expression is made of, as `grammar` builds and `check` and `compile` read them.

Operators of one level that follow each other are one part with many terms, and
`a ? b : c ? d : e` is one part with two arms: however long such a chain, it costs no depth.
Brackets leave no part behind. Parts compare by identity: `check` keeps what it found out about
each. `fold` visits them without the interpreter's stack.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeAlias, TypeVar

import attrs

from treedbd.rules.regex import Regex

Result = TypeVar("Result")


@attrs.frozen(eq=False)
class Part:
    """What all parts have: where they begin in the text, and how much lies in each other in them.

    `depth` counts parts, `brackets` the pairs of them; both are 0 for a single word.
    """

    at: int
    depth: int
    brackets: int


@attrs.frozen(eq=False)
class Literal(Part):
    """A number, a string, true, false or null."""

    value: int | float | str | bool | None


@attrs.frozen(eq=False)
class Pattern(Part):
    """A regular expression between slashes."""

    regex: Regex


@attrs.frozen(eq=False)
class ListLiteral(Part):
    """An array in square brackets."""

    items: tuple[Expression, ...]


@attrs.frozen(eq=False)
class Variable(Part):
    """A name: `auth`, `now`, `root`, `data`, `newData`, `query` or a capture."""

    name: str


@attrs.frozen(eq=False)
class Member(Part):
    """`target.name`, also written `target['name']`."""

    target: Expression
    name: str


@attrs.frozen(eq=False)
class Index(Part):
    """`target[index]` where the index is no string literal."""

    target: Expression
    index: Expression


@attrs.frozen(eq=False)
class Call(Part):
    """`callee(arguments)`."""

    callee: Expression
    arguments: tuple[Expression, ...]


@attrs.frozen(eq=False)
class Prefix(Part):
    """`!operand` or `-operand`."""

    operator: str
    operand: Expression


@attrs.frozen(eq=False)
class Logical(Part):
    """Terms joined by `&&`, or by `||`."""

    operator: str
    terms: tuple[Expression, ...]


@attrs.frozen(eq=False)
class Binary(Part):
    """Terms joined from the left by operators of one level; one operator less than terms."""

    operators: tuple[str, ...]
    terms: tuple[Expression, ...]


@attrs.frozen(eq=False)
class Conditional(Part):
    """`condition ? result : …` for each of the arms, and what holds where no condition does."""

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
"""Yields the parts it wants to know the results of, is sent them, and returns its own."""


def fold(visit: Callable[[Expression], Visit[Result]], root: Expression) -> Result:
    """Return what `visit` makes of `root`, visiting the parts it asks for in the order it asks."""
    under_way = [visit(root)]
    result: Any = None
    while True:
        try:
            wanted = under_way[-1].send(result)
        except StopIteration as done:
            under_way.pop()
            result = done.value
            if not under_way:
                return result  # type: ignore[no-any-return]
        else:
            under_way.append(visit(wanted))
            result = None
