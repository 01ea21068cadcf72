"""Partial evaluation: whether a rule can be true, known before any data is read.

`auth` and the keys of the request's path are known; `data`, `newData`, `root`, `now`, `query` and
the captures below that path are not. A rule for which the result of `compile_partial` returns False
is not true for any data, so if that holds for all `.write` rules, the caller may write nothing.

Theory of operation: as in `compile`, each node of the syntax tree becomes a function that calls
those of its children, but of values that may be `Unknown`. An `Unknown` is the set of the kinds of
results that are possible. It may be too large, never too small: what is not in it cannot happen.
Both sides of `&&` and `||` count: what is known to be false decides, on either side. An evaluation
that is certain to fail is the unknown `FAILS`. The operators of the language over known values and
unknown ones are the functions at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import attrs

from treedbd.loop import Steps
from treedbd.rules.compile import (
    BINARY,
    EQUALITIES,
    STRING_FUNCTIONS,
    Evaluate,
    auth_member,
    call_string_method,
    equal,
    index_name,
    length,
    match_regex,
    negate,
)
from treedbd.rules.context import BudgetExceeded, EvaluationError, KnownScope
from treedbd.rules.grammar import (
    STRING_METHODS,
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
    Pattern,
    Prefix,
    Type,
    Variable,
    Visit,
    each,
    fold,
)
from treedbd.rules.typecheck import TypeTable

# The kinds of results.
TRUE: Final = 1
FALSE: Final = 2
TEXT: Final = 4
OTHER: Final = 8
"""A number, null or an object."""
ERROR: Final = 16


@attrs.frozen
class Unknown:
    """One of several results; `kinds` is the sum of the kinds that it can be of."""

    kinds: int


ANYTHING: Final = Unknown(TRUE | FALSE | TEXT | OTHER | ERROR)
SOME_TEXT: Final = Unknown(TEXT)
SOME_NUMBER: Final = Unknown(OTHER)
SOME_TEST: Final = Unknown(TRUE | FALSE | ERROR)
FAILS: Final = Unknown(ERROR)
_Foresee: TypeAlias = Callable[[KnownScope], Any]
"""Returns the value of a node, or an `Unknown`."""


def compile_partial(
    expression: Expression, types: TypeTable, captures: Mapping[str, int]
) -> Steps[Callable[[KnownScope], bool]]:
    """Compile a rule that has been type-checked; the result returns whether it can be true.

    `captures` maps the names of captures to their indices in the path of the rule.
    """
    compiler = _PartialCompiler(types, captures)
    foresee: _Foresee = yield from fold(compiler.visit, compiler.leaves, expression)
    return lambda scope: _may_be_true(foresee(scope))


class _PartialCompiler:
    """The compilation of one expression; each method returns the function of one form of node."""

    def __init__(self, types: TypeTable, captures: Mapping[str, int]) -> None:
        self.types = types
        self.captures = captures
        self.leaves: Final[Mapping[type[AstNode], Callable[[Any], _Foresee]]] = {
            Literal: self.literal,
            Pattern: self.not_a_value,
            ListLiteral: self.not_a_value,
            Variable: self.variable,
        }

    def visit(self, node: Expression) -> Visit[_Foresee]:
        return _VISITORS[type(node)](self, node)

    def literal(self, node: Literal) -> _Foresee:
        value = node.value
        return lambda _: value

    def not_a_value(self, _: Pattern | ListLiteral) -> _Foresee:
        return lambda _: FAILS

    def variable(self, node: Variable) -> _Foresee:
        index = self.captures.get(node.name)
        if index is not None:
            return lambda scope: scope.path[index] if index < len(scope.path) else SOME_TEXT
        if node.name == "auth":
            return lambda scope: scope.auth
        result = SOME_NUMBER if node.name == "now" else ANYTHING
        return lambda _: result

    def member(self, node: Member) -> Visit[_Foresee]:
        target: _Foresee = yield node.target
        name = node.name
        if self.types[node] is Type.METHOD:
            return lambda _: FAILS
        if self.types[node] is Type.AUTH:
            return lambda scope: _member(target(scope), name)
        if self.types[node.target] is Type.QUERY:
            return lambda _: ANYTHING
        return lambda scope: _call_with_strings(length, [target(scope)], ANYTHING)

    def index(self, node: Index) -> Visit[_Foresee]:
        target, index = yield from each((node.target, node.index))

        def foresee(scope: KnownScope) -> Any:
            key = index(scope)
            name = key if isinstance(key, Unknown) else _attempt(index_name, key)
            return _member(target(scope), name)

        return foresee

    def call(self, node: Call) -> Visit[_Foresee]:
        callee = node.callee
        assert isinstance(callee, Member)  # noqa: S101 - the type checker ensures it
        target: _Foresee = yield callee.target
        if self.types[callee.target] is Type.SNAPSHOT:
            return (yield from self.snapshot_call(target, node))
        arguments = yield from each(
            argument for argument in node.arguments if not isinstance(argument, Pattern)
        )
        operands = [target, *arguments]
        is_test = STRING_METHODS[callee.name].returns is Type.BOOLEAN
        result = SOME_TEST if is_test else ANYTHING

        def foresee(scope: KnownScope) -> Any:
            found = [operand(scope) for operand in operands]

            def call(*texts: str) -> Any:
                return _string_method(node, texts)(scope)

            return _call_with_strings(call, found, result)

        return foresee

    def snapshot_call(self, target: _Foresee, node: Call) -> Visit[_Foresee]:
        names: list[Expression] = []
        for argument in node.arguments:
            names += argument.items if isinstance(argument, ListLiteral) else [argument]
        arguments = yield from each(names)
        result = SOME_TEST if self.types[node] is Type.BOOLEAN else ANYTHING

        def foresee(scope: KnownScope) -> Any:
            if _certainly_fails(target(scope)):
                return FAILS
            found = [argument(scope) for argument in arguments]
            return _call_with_strings(lambda *_: result, found, result)

        return foresee

    def prefix(self, node: Prefix) -> Visit[_Foresee]:
        operand: _Foresee = yield node.operand
        if node.operator == "!":
            return lambda scope: _negate_test(operand(scope))

        def foresee(scope: KnownScope) -> Any:
            value = operand(scope)
            return ANYTHING if isinstance(value, Unknown) else _attempt(negate, value)

        return foresee

    def logical(self, node: Logical) -> Visit[_Foresee]:
        terms = yield from each(node.terms)
        stops_at = node.operator == "||"
        return lambda scope: _join_tests(stops_at, [term(scope) for term in terms])

    def binary(self, node: Binary) -> Visit[_Foresee]:
        first, *rest = yield from each(node.terms)
        steps = list(zip(node.operators, rest, strict=True))

        def foresee(scope: KnownScope) -> Any:
            value = first(scope)
            for operator, term in steps:
                value = _operate(operator, value, term(scope), scope)
            return value

        return foresee

    def conditional(self, node: Conditional) -> Visit[_Foresee]:
        conditions = yield from each(condition for condition, _ in node.arms)
        results = yield from each(result for _, result in node.arms)
        otherwise: _Foresee = yield node.otherwise
        arms = list(zip(conditions, results, strict=True))

        def foresee(scope: KnownScope) -> Any:
            found = [(condition(scope), result(scope)) for condition, result in arms]
            return _choose(found, otherwise(scope))

        return foresee


def _member(value: Any, name: Any) -> Any:
    """Return a member of a value of `auth`."""
    if _certainly_fails(value) or _certainly_fails(name):
        return FAILS
    if isinstance(value, Unknown) or isinstance(name, Unknown):
        return ANYTHING
    return auth_member(value, name)


def _string_method(node: Call, texts: tuple[str, ...]) -> Evaluate:
    """Return the call of a string method for known strings."""
    target, *arguments = [_constant(text) for text in texts]
    name = node.callee.name if isinstance(node.callee, Member) else ""
    pattern = node.arguments[0] if node.arguments else None
    if isinstance(pattern, Pattern):
        return match_regex(target, pattern.regex)
    return call_string_method(target, STRING_FUNCTIONS[name], arguments)


def _constant(value: Any) -> Evaluate:
    return lambda _: value


def _operate(operator: str, left: Any, right: Any, scope: KnownScope) -> Any:
    expected = EQUALITIES.get(operator)
    if expected is None:
        return _operate_on(BINARY[operator], left, right)
    result = _are_equal(left, right, lambda one, other: equal(one, other, scope))
    return result if expected else _negate_test(result)


_VISITORS: Final[Mapping[type[AstNode], Callable[[_PartialCompiler, Any], Visit[_Foresee]]]] = {
    Member: _PartialCompiler.member,
    Index: _PartialCompiler.index,
    Call: _PartialCompiler.call,
    Prefix: _PartialCompiler.prefix,
    Logical: _PartialCompiler.logical,
    Binary: _PartialCompiler.binary,
    Conditional: _PartialCompiler.conditional,
}


def _kinds_of(value: Any) -> int:
    """Return the kinds of a known or unknown value."""
    if isinstance(value, Unknown):
        return value.kinds
    if isinstance(value, bool):
        return TRUE if value else FALSE
    return TEXT if isinstance(value, str) else OTHER


def _certainly_fails(value: Any) -> bool:
    """Return whether the evaluation of a value is certain to fail."""
    return isinstance(value, Unknown) and value.kinds == ERROR


def _may_be_true(value: Any) -> bool:
    """Return whether a value can be true."""
    return bool(_kinds_of(value) & TRUE)


def _attempt(operate: Callable[..., Any], *operands: Any) -> Any:
    """Apply an operator to known operands."""
    try:
        return operate(*operands)
    except BudgetExceeded:  # which the evaluation of fewer rules might not exceed
        return ANYTHING
    except EvaluationError:
        return FAILS


def _negate_test(value: Any) -> Any:
    """Return `!value`."""
    if not isinstance(value, Unknown):
        return not value
    kinds = value.kinds & ERROR
    kinds |= FALSE if value.kinds & TRUE else 0
    return Unknown(kinds | (TRUE if value.kinds & FALSE else 0))


def _are_equal(left: Any, right: Any, compare: Callable[[Any, Any], bool]) -> Any:
    """Return `left == right`; `compare` compares known values."""
    if _certainly_fails(left) or _certainly_fails(right):
        return FAILS
    if not isinstance(left, Unknown) and not isinstance(right, Unknown):
        return _attempt(compare, left, right)
    ones, others = _kinds_of(left), _kinds_of(right)
    kinds = FALSE | ((ones | others) & ERROR)
    return Unknown(kinds | (TRUE if ones & others & ~ERROR else 0))


def _operate_on(operate: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    """Return the result of an ordering or of arithmetic."""
    if not isinstance(left, Unknown) and not isinstance(right, Unknown):
        return _attempt(operate, left, right)
    if _is_no_operand(left) or _is_no_operand(right):
        return FAILS
    return ANYTHING


def _is_no_operand(value: Any) -> bool:
    """Return whether every ordering and all arithmetic fails with an operand."""
    if isinstance(value, Unknown):
        return value.kinds == ERROR
    return type(value) not in (str, int, float)


def _call_with_strings(call: Callable[..., Any], operands: list[Any], unknown: Unknown) -> Any:
    """Return the result of a method of strings; `unknown` is what it may be for unknown ones."""
    is_known = True
    for operand in operands:
        if isinstance(operand, Unknown):
            if not operand.kinds & TEXT:
                return FAILS
            is_known = False
        elif type(operand) is not str:
            return FAILS
    return _attempt(call, *operands) if is_known else unknown


def _join_tests(stops_at: bool, terms: list[Any]) -> Any:
    """Return what `&&` or `||` yields, which stops at the first term that is `stops_at`."""
    stop, go_on = (TRUE, FALSE) if stops_at else (FALSE, TRUE)
    kinds = 0
    for term in terms:
        found = _kinds_of(term)
        kinds |= found & (stop | ERROR)
        if not found & go_on:
            return Unknown(kinds)
    return Unknown(kinds | go_on)


def _choose(arms: list[tuple[Any, Any]], otherwise: Any) -> Any:
    """Return what a conditional yields: the result beside the first condition that is true."""
    kinds = 0
    for condition, result in arms:
        found = _kinds_of(condition)
        kinds |= found & ERROR
        if found & TRUE:
            kinds |= _kinds_of(result)
        if not found & FALSE:
            return Unknown(kinds)
    return Unknown(kinds | _kinds_of(otherwise))
