"""Compiling: from checked parts to closures that evaluate them.

Theory of operation: each part becomes a function of a `Scope`, which calls the functions of the
parts below it. Nothing is generated as text and nothing is looked up by name while a rule runs: a
variable, a member, a method and an operator are each bound here, once. A chain becomes one function
with a loop, so its length costs no stack; the levels that do are bounded by the grammar.

What the static check settled is not asked again: conditions are booleans. What it left open is:
a Value may be of any type, so whoever needs a string or a number looks, and raises an
`EvaluationError`. A capture is a key of the path of the rule, so it is known by its index there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any, Final

from treedbd.rules import closures
from treedbd.rules.check import Kinds
from treedbd.rules.closures import Evaluate
from treedbd.rules.evaluation import Scope
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
from treedbd.rules.kinds import Kind
from treedbd.rules.operators import claim, name_index, negate
from treedbd.rules.snapshot import Snapshot


def compile_rule(
    expression: Expression, kinds: Kinds, captures: Mapping[str, int]
) -> Callable[[Scope], bool]:
    """Compile a rule that has been checked.

    `captures` maps the names of captures to their indices in the path of the rule.
    """
    return fold(_Compiler(kinds, captures).visit, expression)


class _Compiler:
    """One compilation of one expression."""

    def __init__(self, kinds: Kinds, captures: Mapping[str, int]) -> None:
        self.kinds = kinds
        self.captures = captures

    def visit(self, part: Expression) -> Visit[Evaluate]:
        return _VISITS[type(part)](self, part)

    def each(self, parts: Iterable[Expression]) -> Visit[list[Evaluate]]:
        found = []
        for part in parts:
            found.append((yield part))  # noqa: PERF401 - a comprehension cannot yield
        return found

    def literal(self, part: Literal) -> Visit[Evaluate]:
        yield from ()
        value = part.value
        return lambda _: value

    def nothing(self, part: Pattern | ListLiteral) -> Visit[Evaluate]:
        yield from ()
        return closures.fail

    def variable(self, part: Variable) -> Visit[Evaluate]:
        yield from ()
        if part.name in self.captures:
            at = self.captures[part.name]
            return lambda scope: scope.path[at]
        return closures.VARIABLES[part.name]

    def member(self, part: Member) -> Visit[Evaluate]:
        kind = self.kinds[part]
        if kind is Kind.METHOD:
            return closures.fail
        target: Evaluate = yield part.target
        if self.kinds[part.target] is Kind.QUERY:
            fact = attrgetter(closures.QUERY_FACTS[part.name])
            return lambda scope: fact(target(scope))
        if kind is Kind.AUTH:
            return closures.read_claim(target, part.name)
        return closures.measure(target)

    def index(self, part: Index) -> Visit[Evaluate]:
        target, index = yield from self.each((part.target, part.index))
        return lambda scope: claim(target(scope), name_index(index(scope)))

    def call(self, part: Call) -> Visit[Evaluate]:
        callee = part.callee
        assert isinstance(callee, Member)  # noqa: S101 - the check has seen to it
        target: Evaluate = yield callee.target
        if self.kinds[callee.target] is Kind.SNAPSHOT:
            return (yield from self.snapshot_call(target, callee.name, part.arguments))
        if callee.name == "matches":
            (pattern,) = part.arguments
            assert isinstance(pattern, Pattern)  # noqa: S101 - the check has seen to it
            return closures.match_regex(target, pattern.regex)
        arguments = yield from self.each(part.arguments)
        return closures.ask_string(target, closures.STRING_OPERATIONS[callee.name], arguments)

    def snapshot_call(
        self, target: Evaluate, name: str, given: tuple[Expression, ...]
    ) -> Visit[Evaluate]:
        if name == "hasChildren":
            return (yield from self.has_children(target, given))
        if not given:
            return closures.ask_snapshot(target, closures.SNAPSHOT_QUESTIONS[name])
        (path,) = yield from self.each(given)
        if name == "hasChild":
            return closures.ask_child(target, path)
        return closures.reach_child(target, given[0], path)

    def has_children(self, target: Evaluate, given: tuple[Expression, ...]) -> Visit[Evaluate]:
        if not given:
            return closures.ask_snapshot(target, Snapshot.has_children)
        (names,) = given
        assert isinstance(names, ListLiteral)  # noqa: S101 - the check has seen to it
        known = [closures.literal_text(item) for item in names.items]
        texts = [text for text in known if text is not None]
        if len(texts) == len(known):
            return closures.ask_known_children(target, texts)
        return closures.ask_children(target, (yield from self.each(names.items)))

    def prefix(self, part: Prefix) -> Visit[Evaluate]:
        operand: Evaluate = yield part.operand
        if part.operator == "!":
            return lambda scope: not operand(scope)
        return lambda scope: negate(operand(scope))

    def logical(self, part: Logical) -> Visit[Evaluate]:
        return closures.join_terms(part.operator == "||", (yield from self.each(part.terms)))

    def binary(self, part: Binary) -> Visit[Evaluate]:
        terms = yield from self.each(part.terms)
        if len(terms) == 2:
            return closures.operate_once(part, *terms)
        return closures.operate_often(part.operators, terms)

    def conditional(self, part: Conditional) -> Visit[Evaluate]:
        conditions = yield from self.each(condition for condition, _ in part.arms)
        results = yield from self.each(result for _, result in part.arms)
        otherwise: Evaluate = yield part.otherwise
        return closures.choose(list(zip(conditions, results, strict=True)), otherwise)


_VISITS: Final[Mapping[type[Part], Callable[[_Compiler, Any], Visit[Evaluate]]]] = {
    Literal: _Compiler.literal,
    Pattern: _Compiler.nothing,
    ListLiteral: _Compiler.nothing,
    Variable: _Compiler.variable,
    Member: _Compiler.member,
    Index: _Compiler.index,
    Call: _Compiler.call,
    Prefix: _Compiler.prefix,
    Logical: _Compiler.logical,
    Binary: _Compiler.binary,
    Conditional: _Compiler.conditional,
}
