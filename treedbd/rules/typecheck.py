"""The type checker: the static type of an expression, or the error in it.

Theory of operation: each node is visited once, from left to right, its operands first; the first
operand of a wrong type ends the check with an `ExpressionError`. So an error inside an operand is
not reported again for the operand, and of several errors the leftmost is reported. The type of each
node is kept in a table, for `compile` and `rights`. The error texts are those of Firebase, which
people look up; the hints beside them are the remedies of `grammar`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, TypeAlias

from treedbd.loop import Steps
from treedbd.rules import grammar
from treedbd.rules.document import ExpressionError

TypeTable: TypeAlias = Mapping[grammar.AstNode, grammar.Type]
"""The type of each node of an expression."""

_VARIABLES: Final = {
    "auth": grammar.Type.AUTH,
    "now": grammar.Type.NUMBER,
    "root": grammar.Type.SNAPSHOT,
    "data": grammar.Type.SNAPSHOT,
    "newData": grammar.Type.SNAPSHOT,
    "query": grammar.Type.QUERY,
}
_NO_MEMBERS: Final = frozenset(
    {
        grammar.Type.BOOLEAN,
        grammar.Type.NUMBER,
        grammar.Type.NULL,
        grammar.Type.REGEX,
        grammar.Type.QUERY_VALUE,
        grammar.Type.MIXED,
        grammar.Type.METHOD,
    }
)
_LITERALS: Final = {
    bool: grammar.Type.BOOLEAN,
    int: grammar.Type.NUMBER,
    float: grammar.Type.NUMBER,
    str: grammar.Type.STRING,
    type(None): grammar.Type.NULL,
}
_MEMBERS: Final[Mapping[grammar.Type, Collection[str]]] = {
    grammar.Type.SNAPSHOT: grammar.SNAPSHOT_METHODS,
    grammar.Type.QUERY: grammar.QUERY_MEMBERS,
    grammar.Type.STRING: (*grammar.STRING_METHODS, "length"),
    grammar.Type.VALUE: (*grammar.STRING_METHODS, "length"),
}
"""The members that can be suggested; `auth` and what is below it may have any."""
_EQUALITY: Final = {"==": "==", "===": "==", "!=": "!=", "!==": "!="}
_ORDERINGS: Final = frozenset({"<", "<=", ">", ">="})


def typecheck_rule(
    expression: grammar.Expression, captures: Collection[str], *, for_read: bool
) -> Steps[TypeTable]:
    """Return the types of the nodes of a rule in which the variables `captures` are bound.

    `for_read` says that it is a `.read` rule, which has no `newData`. Raises `ExpressionError`.
    """
    checker = _TypeChecker(captures, for_read, expression)
    checked = yield from grammar.fold(checker.visit, checker.leaves, expression, checker.types)
    if checked is not grammar.Type.BOOLEAN:
        hint = grammar.remedy_of_condition(checked, expression)
        raise ExpressionError(expression.offset, "Expression must evaluate to a boolean.", hint)
    return checker.types


def typecheck_ttl(expression: grammar.Expression, captures: Collection[str]) -> Steps[TypeTable]:
    """Return the types of the nodes of a `.ttl`, whose value is a number, or null for never.

    When a node goes is known when it is written, so only the node itself may be read: `data`, and
    the variables `captures`. Raises `ExpressionError`.
    """
    checker = _LifetimeChecker(captures, False, expression)
    yield from grammar.fold(checker.visit, checker.leaves, expression, checker.types)
    for node, found in checker.types.items():
        if found is grammar.Type.METHOD and isinstance(node, grammar.Member):
            checker.check_method(node)
    _check_moment(expression, checker.types)
    names = {node.name for node in checker.types if isinstance(node, grammar.Variable)}
    if "data" not in names:
        raise ExpressionError(expression.offset, _NOT_OF_DATA, _WRITE_SECONDS)
    return checker.types


_OF_THE_NODE: Final = frozenset({"data"})
_ONLY_THE_NODE: Final = "A .ttl reads nothing but its own node: 'data' and the captures."
_NOT_OF_DATA: Final = "A .ttl expression must read 'data'."
_WRITE_SECONDS: Final = "For seconds after the last write, write a number without quotes."
_WRITE_MOMENT: Final = (
    "It is the time at which the node goes, in milliseconds since 1970, as in "
    "data.child('at').val() + 86400000; null is never."
)


def _check_moment(expression: grammar.Expression, types: TypeTable) -> None:
    """Raise `ExpressionError` unless each value that an expression may have is a number or null."""
    results = [expression]
    while results:
        result = results.pop()
        if isinstance(result, grammar.Conditional):
            results += [result.otherwise, *(each for _, each in result.arms)]
        elif types[result] not in _MOMENTS:
            text = "A .ttl must evaluate to a number."
            raise ExpressionError(result.offset, text, _WRITE_MOMENT)


_MOMENTS: Final = frozenset({grammar.Type.NUMBER, grammar.Type.VALUE, grammar.Type.NULL})


class _TypeChecker:
    """The check of one expression; each method returns the type of one form of node."""

    def __init__(
        self, captures: Collection[str], for_read: bool, whole: grammar.Expression
    ) -> None:
        self.whole = whole
        self.captures = captures
        self.for_read = for_read
        self.types: dict[grammar.AstNode, grammar.Type] = {}
        self.leaves: Final[Mapping[type[grammar.AstNode], Callable[[Any], grammar.Type]]] = {
            grammar.Literal: self.literal,
            grammar.Pattern: self.pattern,
            grammar.Variable: self.variable,
            grammar.ListLiteral: self.list_literal,
        }

    def visit(self, node: grammar.Expression) -> grammar.Visit[grammar.Type]:
        return _VISITORS[type(node)](self, node)

    def literal(self, node: grammar.Literal) -> grammar.Type:
        return _LITERALS[type(node.value)]

    def pattern(self, _: grammar.Pattern) -> grammar.Type:
        return grammar.Type.REGEX

    def list_literal(self, node: grammar.ListLiteral) -> grammar.Type:
        raise ExpressionError(node.offset, "Unexpected array literal.")

    def variable(self, node: grammar.Variable) -> grammar.Type:
        name = node.name
        checked = grammar.Type.STRING if name in self.captures else _VARIABLES.get(name)
        if checked is None:
            known = (*_VARIABLES, *self.captures)
            hint = grammar.remedy_of_variable(name, known, is_whole=node is self.whole)
            raise ExpressionError(node.offset, f"Unknown variable '{name}'.", hint)
        if name == "newData" and self.for_read:
            text = "newData is invalid in .read expressions."
            raise ExpressionError(node.offset, text, grammar.READS_ONLY)
        return checked

    def member(self, node: grammar.Member) -> grammar.Visit[grammar.Type]:
        name = node.name
        target: grammar.Type = yield node.target
        if target in _NO_MEMBERS:
            text = "Invalid property access: target is not an object."
            raise ExpressionError(node.name_offset, text, grammar.remedy_of_target(target))
        found = _type_of_member(target, name)
        if found is None:
            hint = grammar.remedy_of_member(name, _MEMBERS[target])
            raise ExpressionError(node.name_offset, f"No such method/property '{name}'.", hint)
        return found

    def index(self, node: grammar.Index) -> grammar.Visit[grammar.Type]:
        target: grammar.Type = yield node.target
        if target is not grammar.Type.AUTH:
            hint = grammar.USE_CHILD if target is grammar.Type.SNAPSHOT else ""
            raise ExpressionError(node.bracket_offset, "Invalid property access.", hint)
        if (yield node.index) not in grammar.ORDERED:
            raise ExpressionError(node.index.offset, "Invalid property access.")
        return grammar.Type.AUTH

    def call(self, node: grammar.Call) -> grammar.Visit[grammar.Type]:
        callee = node.callee
        if (yield callee) is not grammar.Type.METHOD or not isinstance(callee, grammar.Member):
            offset = callee.name_offset if isinstance(callee, grammar.Member) else callee.offset
            text = "Type error: Function call on target that is not a function."
            raise ExpressionError(offset, text, grammar.remedy_of_call(callee, self.types[callee]))
        of_snapshot = self.types[callee.target] is grammar.Type.SNAPSHOT
        method = (grammar.SNAPSHOT_METHODS if of_snapshot else grammar.STRING_METHODS)[callee.name]
        _check_arity(node, callee, method)
        # Not strict: `hasChildren` may have no argument.
        pairs = zip(method.parameters, node.arguments, strict=False)
        for number, (parameter, argument) in enumerate(pairs, 1):
            if parameter == "list":
                yield from self.child_names(argument)
            elif parameter == "regex":
                yield argument
                if not isinstance(argument, grammar.Pattern):
                    text = "matches() expects a regular expression literal argument."
                    raise ExpressionError(argument.offset, text, grammar.WRITE_PATTERN)
            elif (found := (yield argument)) not in grammar.STRINGS:
                text = _string_expected(callee.name, number)
                raise ExpressionError(argument.offset, text, grammar.remedy_of_string(found))
        return method.returns

    def child_names(self, argument: grammar.Expression) -> grammar.Visit[None]:
        if not isinstance(argument, grammar.ListLiteral):
            yield argument
            text = "hasChildren() expects an array of child names."
            raise ExpressionError(argument.offset, text, grammar.LIST_NAMES)
        for item in argument.items:
            found = yield item
            if found not in grammar.STRINGS:
                text = "hasChildren() expects an array of strings."
                raise ExpressionError(item.offset, text, grammar.remedy_of_string(found))

    def prefix(self, node: grammar.Prefix) -> grammar.Visit[grammar.Type]:
        operand: grammar.Type = yield node.operand
        if node.operator == "!":
            if operand is not grammar.Type.BOOLEAN:
                hint = grammar.remedy_of_condition(operand, node.operand)
                raise ExpressionError(node.offset, "! only operates on booleans.", hint)
            return grammar.Type.BOOLEAN
        if operand not in grammar.NUMBERS:
            hint = grammar.remedy_of_operand(operand)
            raise ExpressionError(node.offset, "- only operates on numbers.", hint)
        return grammar.Type.NUMBER

    def logical(self, node: grammar.Logical) -> grammar.Visit[grammar.Type]:
        side = "Left"
        for term in node.terms:
            found = yield term
            if found is not grammar.Type.BOOLEAN:
                text = f"{side} operand of {node.operator} must be boolean."
                raise ExpressionError(term.offset, text, grammar.remedy_of_condition(found, term))
            side = "Right"
        return grammar.Type.BOOLEAN

    def binary(self, node: grammar.Binary) -> grammar.Visit[grammar.Type]:
        first, *rest = node.terms
        left: grammar.Type = yield first
        for operator, term in zip(node.operators, rest, strict=True):
            accepted, error_text = _operand_types(operator)
            if left not in accepted:
                raise ExpressionError(
                    node.offset, error_text("left"), grammar.remedy_of_operand(left)
                )
            right = yield term
            if right not in accepted:
                raise ExpressionError(
                    term.offset, error_text("right"), grammar.remedy_of_operand(right)
                )
            left = _result_type(operator, left, right)
        return left

    def conditional(self, node: grammar.Conditional) -> grammar.Visit[grammar.Type]:
        branches = []
        for condition, result in node.arms:
            found = yield condition
            if found is not grammar.Type.BOOLEAN:
                hint = grammar.remedy_of_condition(found, condition)
                raise ExpressionError(condition.offset, "condition of ? must be boolean.", hint)
            branches.append((yield result))
        joined: grammar.Type = yield node.otherwise
        for branch in reversed(branches):
            if branch is not joined:
                joined = (
                    grammar.Type.VALUE
                    if {branch, joined} & grammar.ABSORBING
                    else grammar.Type.MIXED
                )
        return joined


class _LifetimeChecker(_TypeChecker):
    """The check of a `.ttl`."""

    def variable(self, node: grammar.Variable) -> grammar.Type:
        name = node.name
        if name in _VARIABLES and name not in _OF_THE_NODE and name not in self.captures:
            hint = _WRITE_SECONDS if name == "now" else ""
            raise ExpressionError(node.offset, f"{_ONLY_THE_NODE} Not '{name}'.", hint)
        return super().variable(node)

    def check_method(self, node: grammar.Member) -> None:
        """Raise `ExpressionError` for a method that leads out of the node."""
        if node.name == "parent" and self.types[node.target] is grammar.Type.SNAPSHOT:
            raise ExpressionError(node.name_offset, f"{_ONLY_THE_NODE} Not its parent.")


_VISITORS: Final[
    Mapping[type[grammar.AstNode], Callable[[_TypeChecker, Any], grammar.Visit[grammar.Type]]]
] = {
    grammar.Member: _TypeChecker.member,
    grammar.Index: _TypeChecker.index,
    grammar.Call: _TypeChecker.call,
    grammar.Prefix: _TypeChecker.prefix,
    grammar.Logical: _TypeChecker.logical,
    grammar.Binary: _TypeChecker.binary,
    grammar.Conditional: _TypeChecker.conditional,
}


def _type_of_member(target: grammar.Type, name: str) -> grammar.Type | None:
    """Return the type of a member, None if it has no such member."""
    if target is grammar.Type.SNAPSHOT:
        return grammar.Type.METHOD if name in grammar.SNAPSHOT_METHODS else None
    if target is grammar.Type.QUERY:
        return grammar.QUERY_MEMBERS.get(name)
    if name in grammar.STRING_METHODS:
        return grammar.Type.METHOD
    if target is grammar.Type.AUTH:
        return grammar.Type.AUTH
    return grammar.Type.NUMBER if name == "length" else None


def _check_arity(
    node: grammar.Call, callee: grammar.Member, method: grammar.MethodSignature
) -> None:
    name = callee.name
    given, expected = len(node.arguments), len(method.parameters)
    if given == expected or (name == "hasChildren" and not given):
        return
    if name == "hasChildren":
        text = "only a single argument (containing an array of child names)."
    elif name == "matches":
        text = "1 regular expression literal argument."
    else:
        text = ("no arguments.", "1 argument.", "two arguments.")[expected]
    raise ExpressionError(callee.name_offset, f"{name}() expects {text}")


def _string_expected(name: str, number: int) -> str:
    if name == "replace":
        return f"Argument {number} of replace() must be a string."
    return f"{name}() expects a string argument."


def _operand_types(operator: str) -> tuple[frozenset[grammar.Type], Callable[[str], str]]:
    """Return the types an operator accepts, and the error text for a side (left or right)."""
    if operator in _EQUALITY:
        shown = _EQUALITY[operator]
        return (
            grammar.PRIMITIVES,
            lambda side: (
                f"Invalid {shown} expression: {side} operand is not a number, boolean, string, "
                f"{'' if (shown, side) == ('==', 'left') else 'or '}null."
            ),
        )
    if operator in _ORDERINGS:
        return (
            grammar.ORDERED,
            lambda side: (
                f"Invalid {operator} expression: {side} operand must be a number or string."
            ),
        )
    accepted, names = (
        (grammar.ORDERED, "number or string") if operator == "+" else (grammar.NUMBERS, "number")
    )
    return accepted, lambda side: f"Invalid {operator} expression: {side} operand is not a {names}."


def _result_type(operator: str, left: grammar.Type, right: grammar.Type) -> grammar.Type:
    if operator in _EQUALITY or operator in _ORDERINGS:
        return grammar.Type.BOOLEAN
    if operator != "+":
        return grammar.Type.NUMBER
    if grammar.Type.STRING in (left, right):
        return grammar.Type.STRING
    return grammar.Type.NUMBER if left is right is grammar.Type.NUMBER else grammar.Type.VALUE
