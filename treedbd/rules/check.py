"""The static check: what an expression yields, or what is wrong with it.

Theory of operation: each part is visited once, from left to right, its operands first; the first
operand that does not fit ends the check with a `Fault`. So an operand is never blamed for what is
wrong inside it, and of several errors the leftmost is told. What is found out of each part is kept
in a table, for `compile`. Texts are those of the rules language.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, TypeAlias

from treedbd.rules.expression import (
    Binary,
    Call,
    Conditional,
    Expression,
    Index,
    ListLiteral,
    Literal,
    Logical,
    Member,
    Part,
    Pattern,
    Prefix,
    Variable,
    Visit,
    fold,
)
from treedbd.rules.kinds import (
    ABSORBING,
    NUMBERS,
    ORDERED,
    PRIMITIVES,
    QUERY_MEMBERS,
    SNAPSHOT_METHODS,
    STRING_METHODS,
    STRINGS,
    Kind,
    Method,
)
from treedbd.rules.refusal import Fault

Kinds: TypeAlias = Mapping[Part, Kind]
"""What each part of an expression yields."""

_VARIABLES: Final = {
    "auth": Kind.AUTH,
    "now": Kind.NUMBER,
    "root": Kind.SNAPSHOT,
    "data": Kind.SNAPSHOT,
    "newData": Kind.SNAPSHOT,
    "query": Kind.QUERY,
}
_NO_MEMBERS: Final = frozenset(
    {
        Kind.BOOLEAN,
        Kind.NUMBER,
        Kind.NULL,
        Kind.REGEX,
        Kind.QUERY_VALUE,
        Kind.MIXED,
        Kind.METHOD,
    }
)
_EQUALITY: Final = {"==": "==", "===": "==", "!=": "!=", "!==": "!="}
_ORDERINGS: Final = frozenset({"<", "<=", ">", ">="})


def check_rule(expression: Expression, captures: Collection[str], *, for_read: bool) -> Kinds:
    """Check a whole rule, in which the variables `captures` are known.

    `for_read` tells that it is a `.read` rule, which has no `newData`. Raises `Fault`.
    """
    checker = _Checker(captures, for_read)
    if fold(checker.visit, expression) is not Kind.BOOLEAN:
        raise Fault(expression.at, "Expression must evaluate to a boolean.")
    return checker.kinds


class _Checker:
    """One check of one expression."""

    def __init__(self, captures: Collection[str], for_read: bool) -> None:
        self.captures = captures
        self.for_read = for_read
        self.kinds: dict[Part, Kind] = {}

    def visit(self, part: Expression) -> Visit[Kind]:
        kind = yield from _VISITS[type(part)](self, part)
        self.kinds[part] = kind
        return kind

    def literal(self, part: Literal) -> Visit[Kind]:
        yield from ()
        value = part.value
        if value is None:
            return Kind.NULL
        if isinstance(value, bool):
            return Kind.BOOLEAN
        return Kind.STRING if isinstance(value, str) else Kind.NUMBER

    def pattern(self, part: Pattern) -> Visit[Kind]:
        yield from ()
        return Kind.REGEX

    def list_literal(self, part: ListLiteral) -> Visit[Kind]:
        yield from ()
        raise Fault(part.at, "Unexpected array literal.")

    def variable(self, part: Variable) -> Visit[Kind]:
        yield from ()
        name = part.name
        if name in self.captures:
            return Kind.STRING
        if name not in _VARIABLES:
            raise Fault(part.at, f"Unknown variable '{name}'.")
        if name == "newData" and self.for_read:
            raise Fault(part.at, "newData is invalid in .read expressions.")
        return _VARIABLES[name]

    def member(self, part: Member) -> Visit[Kind]:
        name = part.name
        target = yield part.target
        if target in _NO_MEMBERS:
            raise Fault(part.at, "Invalid property access: target is not an object.")
        if target is Kind.SNAPSHOT:
            found = Kind.METHOD if name in SNAPSHOT_METHODS else None
        elif target is Kind.QUERY:
            found = QUERY_MEMBERS.get(name)
        elif name in STRING_METHODS:
            found = Kind.METHOD
        elif target is Kind.AUTH:
            found = Kind.AUTH
        else:
            found = Kind.NUMBER if name == "length" else None
        if found is None:
            raise Fault(part.at, f"No such method/property '{name}'.")
        return found

    def index(self, part: Index) -> Visit[Kind]:
        if (yield part.target) is not Kind.AUTH:
            raise Fault(part.at, "Invalid property access.")
        if (yield part.index) not in ORDERED:
            raise Fault(part.index.at, "Invalid property access.")
        return Kind.AUTH

    def call(self, part: Call) -> Visit[Kind]:
        callee = part.callee
        if (yield callee) is not Kind.METHOD or not isinstance(callee, Member):
            raise Fault(part.at, "Type error: Function call on target that is not a function.")
        of_snapshot = self.kinds[callee.target] is Kind.SNAPSHOT
        method = (SNAPSHOT_METHODS if of_snapshot else STRING_METHODS)[callee.name]
        _check_count(part, callee.name, method)
        for number, (takes, argument) in enumerate(
            zip(method.takes, part.arguments, strict=False), 1
        ):
            if takes == "list":
                yield from self.child_names(argument)
            elif takes == "regex":
                if not isinstance(argument, Pattern):
                    yield argument
                    text = "matches() expects a regular expression literal argument."
                    raise Fault(argument.at, text)
            elif (yield argument) not in STRINGS:
                raise Fault(argument.at, _wants_string(callee.name, number))
        return method.yields

    def child_names(self, argument: Expression) -> Visit[None]:
        if not isinstance(argument, ListLiteral):
            yield argument
            raise Fault(argument.at, "hasChildren() expects an array of child names.")
        for item in argument.items:
            if (yield item) not in STRINGS:
                raise Fault(item.at, "hasChildren() expects an array of strings.")

    def prefix(self, part: Prefix) -> Visit[Kind]:
        operand = yield part.operand
        if part.operator == "!":
            if operand is not Kind.BOOLEAN:
                raise Fault(part.at, "! only operates on booleans.")
            return Kind.BOOLEAN
        if operand not in NUMBERS:
            raise Fault(part.at, "- only operates on numbers.")
        return Kind.NUMBER

    def logical(self, part: Logical) -> Visit[Kind]:
        side = "Left"
        for term in part.terms:
            if (yield term) is not Kind.BOOLEAN:
                raise Fault(term.at, f"{side} operand of {part.operator} must be boolean.")
            side = "Right"
        return Kind.BOOLEAN

    def binary(self, part: Binary) -> Visit[Kind]:
        first, *rest = part.terms
        kind: Kind = yield first
        for operator, term in zip(part.operators, rest, strict=True):
            accepts, fault = _operands(operator)
            if kind not in accepts:
                raise Fault(part.at, fault("left"))
            right = yield term
            if right not in accepts:
                raise Fault(term.at, fault("right"))
            kind = _result(operator, kind, right)
        return kind

    def conditional(self, part: Conditional) -> Visit[Kind]:
        branches = []
        for condition, result in part.arms:
            if (yield condition) is not Kind.BOOLEAN:
                raise Fault(condition.at, "condition of ? must be boolean.")
            branches.append((yield result))
        kind: Kind = yield part.otherwise
        for branch in reversed(branches):
            if branch is not kind:
                kind = Kind.VALUE if {branch, kind} & ABSORBING else Kind.MIXED
        return kind


_VISITS: Final[Mapping[type[Part], Callable[[_Checker, Any], Visit[Kind]]]] = {
    Literal: _Checker.literal,
    Pattern: _Checker.pattern,
    ListLiteral: _Checker.list_literal,
    Variable: _Checker.variable,
    Member: _Checker.member,
    Index: _Checker.index,
    Call: _Checker.call,
    Prefix: _Checker.prefix,
    Logical: _Checker.logical,
    Binary: _Checker.binary,
    Conditional: _Checker.conditional,
}


def _check_count(part: Call, name: str, method: Method) -> None:
    given, wanted = len(part.arguments), len(method.takes)
    if given == wanted or (name == "hasChildren" and not given):
        return
    if name == "hasChildren":
        wants = "only a single argument (containing an array of child names)."
    elif name == "matches":
        wants = "1 regular expression literal argument."
    else:
        wants = ("no arguments.", "1 argument.", "two arguments.")[wanted]
    raise Fault(part.at, f"{name}() expects {wants}")


def _wants_string(name: str, number: int) -> str:
    if name == "replace":
        return f"Argument {number} of replace() must be a string."
    return f"{name}() expects a string argument."


def _operands(operator: str) -> tuple[frozenset[Kind], Callable[[str], str]]:
    """Return the kinds an operator takes, and the text for a side (left, right) that is none."""
    if operator in _EQUALITY:
        shown = _EQUALITY[operator]
        return (
            PRIMITIVES,
            lambda side: (
                f"Invalid {shown} expression: {side} operand is not a number, boolean, string, "
                f"{'' if (shown, side) == ('==', 'left') else 'or '}null."
            ),
        )
    if operator in _ORDERINGS:
        must = "must be a number or string."
        return ORDERED, lambda side: f"Invalid {operator} expression: {side} operand {must}"
    accepts, what = (ORDERED, "number or string") if operator == "+" else (NUMBERS, "number")
    return accepts, lambda side: f"Invalid {operator} expression: {side} operand is not a {what}."


def _result(operator: str, left: Kind, right: Kind) -> Kind:
    if operator in _EQUALITY or operator in _ORDERINGS:
        return Kind.BOOLEAN
    if operator != "+":
        return Kind.NUMBER
    if Kind.STRING in (left, right):
        return Kind.STRING
    return Kind.NUMBER if left is right is Kind.NUMBER else Kind.VALUE
