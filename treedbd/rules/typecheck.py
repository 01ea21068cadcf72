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
from treedbd.rules.document import ExpressionError
from treedbd.rules.grammar import (
    ABSORBING,
    LIST_NAMES,
    NUMBERS,
    ORDERED,
    PRIMITIVES,
    QUERY_MEMBERS,
    READS_ONLY,
    SNAPSHOT_METHODS,
    STRING_METHODS,
    STRINGS,
    USE_CHILD,
    WRITE_PATTERN,
    AstNode,
    Binary,
    Call,
    Conditional,
    Expression,
    Index,
    ListLiteral,
    Literal,
    Logical,
    Member,
    MethodSignature,
    Pattern,
    Prefix,
    Type,
    Variable,
    Visit,
    fold,
    remedy_of_call,
    remedy_of_condition,
    remedy_of_member,
    remedy_of_operand,
    remedy_of_string,
    remedy_of_target,
    remedy_of_variable,
)

TypeTable: TypeAlias = Mapping[AstNode, Type]
"""The type of each node of an expression."""

_VARIABLES: Final = {
    "auth": Type.AUTH,
    "now": Type.NUMBER,
    "root": Type.SNAPSHOT,
    "data": Type.SNAPSHOT,
    "newData": Type.SNAPSHOT,
    "query": Type.QUERY,
}
_NO_MEMBERS: Final = frozenset(
    {Type.BOOLEAN, Type.NUMBER, Type.NULL, Type.REGEX, Type.QUERY_VALUE, Type.MIXED, Type.METHOD}
)
_LITERALS: Final = {
    bool: Type.BOOLEAN,
    int: Type.NUMBER,
    float: Type.NUMBER,
    str: Type.STRING,
    type(None): Type.NULL,
}
_MEMBERS: Final[Mapping[Type, Collection[str]]] = {
    Type.SNAPSHOT: SNAPSHOT_METHODS,
    Type.QUERY: QUERY_MEMBERS,
    Type.STRING: (*STRING_METHODS, "length"),
    Type.VALUE: (*STRING_METHODS, "length"),
}
"""The members that can be suggested; `auth` and what is below it may have any."""
_EQUALITY: Final = {"==": "==", "===": "==", "!=": "!=", "!==": "!="}
_ORDERINGS: Final = frozenset({"<", "<=", ">", ">="})


def typecheck_rule(
    expression: Expression, captures: Collection[str], *, for_read: bool
) -> Steps[TypeTable]:
    """Return the types of the nodes of a rule in which the variables `captures` are bound.

    `for_read` says that it is a `.read` rule, which has no `newData`. Raises `ExpressionError`.
    """
    checker = _TypeChecker(captures, for_read, expression)
    checked = yield from fold(checker.visit, checker.leaves, expression, checker.types)
    if checked is not Type.BOOLEAN:
        hint = remedy_of_condition(checked, expression)
        raise ExpressionError(expression.offset, "Expression must evaluate to a boolean.", hint)
    return checker.types


class _TypeChecker:
    """The check of one expression; each method returns the type of one form of node."""

    def __init__(self, captures: Collection[str], for_read: bool, whole: Expression) -> None:
        self.whole = whole
        self.captures = captures
        self.for_read = for_read
        self.types: dict[AstNode, Type] = {}
        self.leaves: Final[Mapping[type[AstNode], Callable[[Any], Type]]] = {
            Literal: self.literal,
            Pattern: self.pattern,
            Variable: self.variable,
            ListLiteral: self.list_literal,
        }

    def visit(self, node: Expression) -> Visit[Type]:
        return _VISITORS[type(node)](self, node)

    def literal(self, node: Literal) -> Type:
        return _LITERALS[type(node.value)]

    def pattern(self, _: Pattern) -> Type:
        return Type.REGEX

    def list_literal(self, node: ListLiteral) -> Type:
        raise ExpressionError(node.offset, "Unexpected array literal.")

    def variable(self, node: Variable) -> Type:
        name = node.name
        checked = Type.STRING if name in self.captures else _VARIABLES.get(name)
        if checked is None:
            known = (*_VARIABLES, *self.captures)
            hint = remedy_of_variable(name, known, is_whole=node is self.whole)
            raise ExpressionError(node.offset, f"Unknown variable '{name}'.", hint)
        if name == "newData" and self.for_read:
            text = "newData is invalid in .read expressions."
            raise ExpressionError(node.offset, text, READS_ONLY)
        return checked

    def member(self, node: Member) -> Visit[Type]:
        name = node.name
        target: Type = yield node.target
        if target in _NO_MEMBERS:
            text = "Invalid property access: target is not an object."
            raise ExpressionError(node.name_offset, text, remedy_of_target(target))
        found = _type_of_member(target, name)
        if found is None:
            hint = remedy_of_member(name, _MEMBERS[target])
            raise ExpressionError(node.name_offset, f"No such method/property '{name}'.", hint)
        return found

    def index(self, node: Index) -> Visit[Type]:
        target = yield node.target
        if target is not Type.AUTH:
            hint = USE_CHILD if target is Type.SNAPSHOT else ""
            raise ExpressionError(node.bracket_offset, "Invalid property access.", hint)
        if (yield node.index) not in ORDERED:
            raise ExpressionError(node.index.offset, "Invalid property access.")
        return Type.AUTH

    def call(self, node: Call) -> Visit[Type]:
        callee = node.callee
        if (yield callee) is not Type.METHOD or not isinstance(callee, Member):
            offset = callee.name_offset if isinstance(callee, Member) else callee.offset
            text = "Type error: Function call on target that is not a function."
            raise ExpressionError(offset, text, remedy_of_call(callee, self.types[callee]))
        of_snapshot = self.types[callee.target] is Type.SNAPSHOT
        method = (SNAPSHOT_METHODS if of_snapshot else STRING_METHODS)[callee.name]
        _check_arity(node, callee, method)
        # Not strict: `hasChildren` may have no argument.
        pairs = zip(method.parameters, node.arguments, strict=False)
        for number, (parameter, argument) in enumerate(pairs, 1):
            if parameter == "list":
                yield from self.child_names(argument)
            elif parameter == "regex":
                yield argument
                if not isinstance(argument, Pattern):
                    text = "matches() expects a regular expression literal argument."
                    raise ExpressionError(argument.offset, text, WRITE_PATTERN)
            elif (found := (yield argument)) not in STRINGS:
                text = _string_expected(callee.name, number)
                raise ExpressionError(argument.offset, text, remedy_of_string(found))
        return method.returns

    def child_names(self, argument: Expression) -> Visit[None]:
        if not isinstance(argument, ListLiteral):
            yield argument
            text = "hasChildren() expects an array of child names."
            raise ExpressionError(argument.offset, text, LIST_NAMES)
        for item in argument.items:
            found = yield item
            if found not in STRINGS:
                text = "hasChildren() expects an array of strings."
                raise ExpressionError(item.offset, text, remedy_of_string(found))

    def prefix(self, node: Prefix) -> Visit[Type]:
        operand = yield node.operand
        if node.operator == "!":
            if operand is not Type.BOOLEAN:
                hint = remedy_of_condition(operand, node.operand)
                raise ExpressionError(node.offset, "! only operates on booleans.", hint)
            return Type.BOOLEAN
        if operand not in NUMBERS:
            hint = remedy_of_operand(operand)
            raise ExpressionError(node.offset, "- only operates on numbers.", hint)
        return Type.NUMBER

    def logical(self, node: Logical) -> Visit[Type]:
        side = "Left"
        for term in node.terms:
            found = yield term
            if found is not Type.BOOLEAN:
                text = f"{side} operand of {node.operator} must be boolean."
                raise ExpressionError(term.offset, text, remedy_of_condition(found, term))
            side = "Right"
        return Type.BOOLEAN

    def binary(self, node: Binary) -> Visit[Type]:
        first, *rest = node.terms
        left: Type = yield first
        for operator, term in zip(node.operators, rest, strict=True):
            accepted, error_text = _operand_types(operator)
            if left not in accepted:
                raise ExpressionError(node.offset, error_text("left"), remedy_of_operand(left))
            right = yield term
            if right not in accepted:
                raise ExpressionError(term.offset, error_text("right"), remedy_of_operand(right))
            left = _result_type(operator, left, right)
        return left

    def conditional(self, node: Conditional) -> Visit[Type]:
        branches = []
        for condition, result in node.arms:
            found = yield condition
            if found is not Type.BOOLEAN:
                hint = remedy_of_condition(found, condition)
                raise ExpressionError(condition.offset, "condition of ? must be boolean.", hint)
            branches.append((yield result))
        joined: Type = yield node.otherwise
        for branch in reversed(branches):
            if branch is not joined:
                joined = Type.VALUE if {branch, joined} & ABSORBING else Type.MIXED
        return joined


_VISITORS: Final[Mapping[type[AstNode], Callable[[_TypeChecker, Any], Visit[Type]]]] = {
    Member: _TypeChecker.member,
    Index: _TypeChecker.index,
    Call: _TypeChecker.call,
    Prefix: _TypeChecker.prefix,
    Logical: _TypeChecker.logical,
    Binary: _TypeChecker.binary,
    Conditional: _TypeChecker.conditional,
}


def _type_of_member(target: Type, name: str) -> Type | None:
    """Return the type of a member, None if it has no such member."""
    if target is Type.SNAPSHOT:
        return Type.METHOD if name in SNAPSHOT_METHODS else None
    if target is Type.QUERY:
        return QUERY_MEMBERS.get(name)
    if name in STRING_METHODS:
        return Type.METHOD
    if target is Type.AUTH:
        return Type.AUTH
    return Type.NUMBER if name == "length" else None


def _check_arity(node: Call, callee: Member, method: MethodSignature) -> None:
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


def _operand_types(operator: str) -> tuple[frozenset[Type], Callable[[str], str]]:
    """Return the types an operator accepts, and the error text for a side (left or right)."""
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
        return (
            ORDERED,
            lambda side: (
                f"Invalid {operator} expression: {side} operand must be a number or string."
            ),
        )
    accepted, names = (ORDERED, "number or string") if operator == "+" else (NUMBERS, "number")
    return accepted, lambda side: f"Invalid {operator} expression: {side} operand is not a {names}."


def _result_type(operator: str, left: Type, right: Type) -> Type:
    if operator in _EQUALITY or operator in _ORDERINGS:
        return Type.BOOLEAN
    if operator != "+":
        return Type.NUMBER
    if Type.STRING in (left, right):
        return Type.STRING
    return Type.NUMBER if left is right is Type.NUMBER else Type.VALUE
