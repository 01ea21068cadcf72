"""The compiler: from the type-checked syntax tree of a rule to closures that evaluate it.

Theory of operation: each node becomes a function of a `Scope`, which calls the functions of its
children. No code is generated as text, and no name is looked up while a rule runs: variables,
members, methods and operators are bound here, once. A chain becomes one function with a loop, so
its length uses no stack; the grammar bounds the depth of the rest.

The closures do not repeat what the type checker has proved, for example that conditions are
booleans. A Value may be of any type, so a closure that needs a string or a number checks it, and
raises an `EvaluationError`. A capture is a key of the path that the rule is evaluated at, so it is
read by its index there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, Final

from treedbd.loop import Steps
from treedbd.rules import closures
from treedbd.rules.closures import Evaluate
from treedbd.rules.context import Scope
from treedbd.rules.grammar import (
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
from treedbd.rules.operators import Snapshot, auth_member, index_name, negate
from treedbd.rules.typecheck import TypeTable


def compile_rule(
    expression: Expression, types: TypeTable, captures: Mapping[str, int]
) -> Steps[Callable[[Scope], bool]]:
    """Compile a rule that has been type-checked.

    `captures` maps the names of captures to their indices in the path of the rule.
    """
    compiler = _Compiler(types, captures)
    return fold(compiler.visit, compiler.leaves, expression)


class _Compiler:
    """The compilation of one expression; each method returns the closure of one form of node."""

    def __init__(self, types: TypeTable, captures: Mapping[str, int]) -> None:
        self.types = types
        self.captures = captures
        self.leaves: Final[Mapping[type[AstNode], Callable[[Any], Evaluate]]] = {
            Literal: self.literal,
            Pattern: self.not_a_value,
            ListLiteral: self.not_a_value,
            Variable: self.variable,
        }

    def visit(self, node: Expression) -> Visit[Evaluate]:
        return _VISITORS[type(node)](self, node)

    def literal(self, node: Literal) -> Evaluate:
        value = node.value
        return (lambda _: value) if isinstance(value, str) else closures.constant(value)

    def not_a_value(self, _: Pattern | ListLiteral) -> Evaluate:
        return closures.fail

    def variable(self, node: Variable) -> Evaluate:
        if node.name in self.captures:
            return closures.capture(self.captures[node.name])
        return closures.VARIABLES[node.name]

    def member(self, node: Member) -> Visit[Evaluate]:
        result_type = self.types[node]
        if result_type is Type.METHOD:
            return closures.fail
        target: Evaluate = yield node.target
        if self.types[node.target] is Type.QUERY:
            fact = attrgetter(closures.QUERY_FACTS[node.name])
            return lambda scope: fact(target(scope))
        if result_type is Type.AUTH:
            return closures.auth_member_of(target, node.name)
        return closures.length_of(target)

    def index(self, node: Index) -> Visit[Evaluate]:
        target, index = yield from each((node.target, node.index))
        return lambda scope: auth_member(target(scope), index_name(index(scope)))

    def call(self, node: Call) -> Visit[Evaluate]:
        callee = node.callee
        assert isinstance(callee, Member)  # noqa: S101 - the type checker ensures it
        target: Evaluate = yield callee.target
        if self.types[callee.target] is Type.SNAPSHOT:
            return (yield from self.snapshot_call(target, callee.name, node.arguments))
        if callee.name == "matches":
            (pattern,) = node.arguments
            assert isinstance(pattern, Pattern)  # noqa: S101 - the type checker ensures it
            return closures.match_regex(target, pattern.regex)
        arguments = yield from each(node.arguments)
        method = closures.STRING_FUNCTIONS[callee.name]
        return closures.call_string_method(target, method, arguments)

    def snapshot_call(
        self, target: Evaluate, name: str, arguments: tuple[Expression, ...]
    ) -> Visit[Evaluate]:
        if name == "hasChildren":
            return (yield from self.has_children(target, arguments))
        if not arguments:
            method = closures.SNAPSHOT_METHODS_WITHOUT_ARGUMENTS[name]
            return closures.call_snapshot_method(target, method)
        (path,) = yield from each(arguments)
        if name == "hasChild":
            return closures.call_has_child(target, path)
        return closures.call_child(target, arguments[0], path)

    def has_children(self, target: Evaluate, arguments: tuple[Expression, ...]) -> Visit[Evaluate]:
        if not arguments:
            return closures.call_snapshot_method(target, Snapshot.has_children)
        (names,) = arguments
        assert isinstance(names, ListLiteral)  # noqa: S101 - the type checker ensures it
        literals = [closures.literal_string(item) for item in names.items]
        known = [literal for literal in literals if literal is not None]
        if len(known) == len(literals):
            return closures.call_has_known_children(target, known)
        return closures.call_has_children(target, (yield from each(names.items)))

    def prefix(self, node: Prefix) -> Visit[Evaluate]:
        operand: Evaluate = yield node.operand
        if node.operator == "!":
            return lambda scope: not operand(scope)
        return lambda scope: negate(operand(scope))

    def logical(self, node: Logical) -> Visit[Evaluate]:
        return closures.join_terms(node.operator == "||", (yield from each(node.terms)))

    def binary(self, node: Binary) -> Visit[Evaluate]:
        terms = yield from each(node.terms)
        if len(terms) == 2:
            return closures.apply_operator(node, *terms)
        return closures.apply_operators(node.operators, terms)

    def conditional(self, node: Conditional) -> Visit[Evaluate]:
        conditions = yield from each(condition for condition, _ in node.arms)
        results = yield from each(result for _, result in node.arms)
        otherwise: Evaluate = yield node.otherwise
        return closures.choose(list(zip(conditions, results, strict=True)), otherwise)


_VISITORS: Final[Mapping[type[AstNode], Callable[[_Compiler, Any], Visit[Evaluate]]]] = {
    Member: _Compiler.member,
    Index: _Compiler.index,
    Call: _Compiler.call,
    Prefix: _Compiler.prefix,
    Logical: _Compiler.logical,
    Binary: _Compiler.binary,
    Conditional: _Compiler.conditional,
}
