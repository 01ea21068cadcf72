"""The compiler: from the type-checked syntax tree of a rule to closures that evaluate it.

Theory of operation: each node becomes a function of a `Scope`, which calls the functions of its
children. No code is generated as text, and no name is looked up while a rule runs: variables,
members, methods and operators are bound here, once. A chain becomes one function with a loop, so
its length uses no stack; the grammar bounds the depth of the rest.

The compiler walks the tree and puts the closures together. For each form of node there is one
factory, which takes the functions of the children of a node and returns the function of the node.
Frequent forms (a member of `auth`, a comparison with null, a child named by a literal) have
factories or branches of their own, for speed only.

The closures do not repeat what the type checker has proved, for example that conditions are
booleans. A Value may be of any type, so a closure that needs a string or a number checks it, and
raises an `EvaluationError`. A capture is a key of the path that the rule is evaluated at, so it is
read by its index there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from operator import attrgetter
from typing import Any, Final, TypeAlias

from treedbd.limits import MAX_DEPTH
from treedbd.loop import Steps, run_beside
from treedbd.rules.context import EvaluationError, Scope
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
from treedbd.rules.operators import (
    BINARY,
    CACHED_PATH,
    EQUALITIES,
    Snapshot,
    auth_member,
    contains,
    equal,
    exists_at,
    index_name,
    is_boolean_at,
    is_number_at,
    is_string_at,
    leaf_or_subtree_at,
    length,
    negate,
    replace,
    spend_comparison,
    spend_method,
    split_path,
)
from treedbd.rules.regex import Regex
from treedbd.rules.typecheck import TypeTable
from treedbd.tree.types import ROOT, Path, View

Evaluate: TypeAlias = Callable[[Scope], Any]
"""Returns the value of a node in a scope; raises `EvaluationError` if it has none."""

_QUERY_FACTS: Final = {
    "orderByKey": "is_ordered_by_key",
    "orderByPriority": "order_by_priority",
    "orderByValue": "order_by_value",
    "orderByChild": "order_by_child",
    "startAt": "start_at",
    "endAt": "end_at",
    "equalTo": "equal_to",
    "limitToFirst": "limit_to_first",
    "limitToLast": "limit_to_last",
    "where": "has_where",
}
_VARIABLES: Final[Mapping[str, Evaluate]] = {
    "auth": lambda scope: scope.auth,
    "now": lambda scope: scope.now,
    "query": lambda scope: scope.query,
    "root": lambda scope: Snapshot(scope.before, ROOT),
    "data": lambda scope: Snapshot(scope.before, scope.path),
    "newData": lambda scope: Snapshot(scope.after, scope.path),
}
_SNAPSHOT_METHODS_WITHOUT_ARGUMENTS: Final[Mapping[str, Callable[[Snapshot], Any]]] = {
    "val": Snapshot.val,
    "parent": Snapshot.parent,
    "exists": Snapshot.exists,
    "getPriority": Snapshot.get_priority,
    "isNumber": Snapshot.is_number,
    "isString": Snapshot.is_string,
    "isBoolean": Snapshot.is_boolean,
}
# The same methods for the node at the place of the rule, without making a snapshot of it.
_METHODS_AT_PATH: Final[Mapping[Callable[[Snapshot], Any], Callable[[View, Path], Any]]] = {
    Snapshot.val: leaf_or_subtree_at,
    Snapshot.exists: exists_at,
    Snapshot.is_number: is_number_at,
    Snapshot.is_string: is_string_at,
    Snapshot.is_boolean: is_boolean_at,
}
# All string methods but `matches`.
STRING_FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "contains": contains,
    "beginsWith": str.startswith,
    "endsWith": str.endswith,
    "toLowerCase": str.lower,
    "toUpperCase": str.upper,
    "replace": replace,
}
_COMPARISONS: Final = frozenset({str.startswith, str.endswith})
"""They count as `==` does, since they compare at the speed of memory."""
_MATCHED_BESIDE: Final = 65_536
"""Bytes of a text that is matched in another thread, if the caller may wait for it."""
_PATH_WEIGHT: Final = 16
"""Characters that a character of a long path counts for: it may be a key."""


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
        return (lambda _: value) if isinstance(value, str) else _constant(value)

    def not_a_value(self, _: Pattern | ListLiteral) -> Evaluate:
        return _fail

    def variable(self, node: Variable) -> Evaluate:
        if node.name in self.captures:
            return _capture(self.captures[node.name])
        return _VARIABLES[node.name]

    def member(self, node: Member) -> Visit[Evaluate]:
        result_type = self.types[node]
        if result_type is Type.METHOD:
            return _fail
        target: Evaluate = yield node.target
        if self.types[node.target] is Type.QUERY:
            fact = attrgetter(_QUERY_FACTS[node.name])
            return lambda scope: fact(target(scope))
        if result_type is Type.AUTH:
            return _auth_member_of(target, node.name)
        return _length_of(target)

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
            return match_regex(target, pattern.regex)
        arguments = yield from each(node.arguments)
        method = STRING_FUNCTIONS[callee.name]
        return call_string_method(target, method, arguments)

    def snapshot_call(
        self, target: Evaluate, name: str, arguments: tuple[Expression, ...]
    ) -> Visit[Evaluate]:
        if name == "hasChildren":
            return (yield from self.has_children(target, arguments))
        if not arguments:
            method = _SNAPSHOT_METHODS_WITHOUT_ARGUMENTS[name]
            return _call_snapshot_method(target, method)
        (path,) = yield from each(arguments)
        if name == "hasChild":
            return _call_has_child(target, path)
        return _call_child(target, arguments[0], path)

    def has_children(self, target: Evaluate, arguments: tuple[Expression, ...]) -> Visit[Evaluate]:
        if not arguments:
            return _call_snapshot_method(target, Snapshot.has_children)
        (names,) = arguments
        assert isinstance(names, ListLiteral)  # noqa: S101 - the type checker ensures it
        literals = [_literal_string(item) for item in names.items]
        known = [literal for literal in literals if literal is not None]
        if len(known) == len(literals):
            return _call_has_known_children(target, known)
        return _call_has_children(target, (yield from each(names.items)))

    def prefix(self, node: Prefix) -> Visit[Evaluate]:
        operand: Evaluate = yield node.operand
        if node.operator == "!":
            return lambda scope: not operand(scope)
        return lambda scope: negate(operand(scope))

    def logical(self, node: Logical) -> Visit[Evaluate]:
        return _join_terms(node.operator == "||", (yield from each(node.terms)))

    def binary(self, node: Binary) -> Visit[Evaluate]:
        terms = yield from each(node.terms)
        if len(terms) == 2:
            return _apply_operator(node, *terms)
        return _apply_operators(node.operators, terms)

    def conditional(self, node: Conditional) -> Visit[Evaluate]:
        conditions = yield from each(condition for condition, _ in node.arms)
        results = yield from each(result for _, result in node.arms)
        otherwise: Evaluate = yield node.otherwise
        return _choose(list(zip(conditions, results, strict=True)), otherwise)


_VISITORS: Final[Mapping[type[AstNode], Callable[[_Compiler, Any], Visit[Evaluate]]]] = {
    Member: _Compiler.member,
    Index: _Compiler.index,
    Call: _Compiler.call,
    Prefix: _Compiler.prefix,
    Logical: _Compiler.logical,
    Binary: _Compiler.binary,
    Conditional: _Compiler.conditional,
}


def _fail(_: Scope) -> Any:
    """Evaluate what is not a value: a regular expression, a method that is not called."""
    raise EvaluationError("This is not a value.")


def _require_string(value: Any) -> str:
    """Return a string; raise `EvaluationError` for anything else."""
    if type(value) is not str:
        raise EvaluationError("A string was expected.")
    return value


def _as_path(value: Any, scope: Scope) -> str:
    """Return a string that is used as a path; spend its characters if it has to be split."""
    path = _require_string(value)
    if len(path) > CACHED_PATH:
        scope.spend(len(path) * _PATH_WEIGHT)
    return path


def _literal_string(node: Expression) -> str | None:
    """Return the value of a string literal, None for any other node."""
    return node.value if isinstance(node, Literal) and isinstance(node.value, str) else None


@lru_cache(maxsize=1024, typed=True)
def _constant(value: bool | float | None) -> Evaluate:
    """Make a literal other than a string; equal ones share a function, because chains have many."""
    return lambda _: value


@cache
def _capture(index: int) -> Evaluate:
    """Make a capture, which is a key of the path."""
    return lambda scope: scope.path[index]


def _auth_member_of(target: Evaluate, name: str) -> Evaluate:
    """Make `target.name` on `auth` and below."""
    if target is _VARIABLES["auth"]:
        return lambda scope: (
            scope.auth.get(name) if type(scope.auth) is dict else auth_member(scope.auth, name)
        )

    def evaluate(scope: Scope) -> Any:
        value = target(scope)
        return value.get(name) if type(value) is dict else auth_member(value, name)

    return evaluate


def _call_snapshot_method(target: Evaluate, method: Callable[[Snapshot], Any]) -> Evaluate:
    """Make a call of a snapshot method without arguments."""
    at_path = _METHODS_AT_PATH.get(method)
    if at_path is not None and target is _VARIABLES["newData"]:
        return lambda scope: at_path(scope.after, scope.path)
    if at_path is not None and target is _VARIABLES["data"]:
        return lambda scope: at_path(scope.before, scope.path)
    return lambda scope: method(target(scope))


def _call_has_known_children(target: Evaluate, names: list[str]) -> Evaluate:
    """Make `hasChildren` of literals, which are split here, once."""
    paths = [split_path(name) for name in names]

    def evaluate(scope: Scope) -> bool:
        snapshot = target(scope)
        for keys, excess in paths:  # noqa: SIM110 - a generator would cost more than the test
            if not snapshot.has(keys, excess):
                return False
        return True

    return evaluate


def _call_has_children(target: Evaluate, names: list[Evaluate]) -> Evaluate:
    """Make `hasChildren` of computed names; all are computed before the first child is read."""

    def evaluate(scope: Scope) -> bool:
        snapshot = target(scope)
        computed = [_as_path(name(scope), scope) for name in names]
        return all(snapshot.has_child(name) for name in computed)

    return evaluate


def _call_child(target: Evaluate, argument: Expression, path: Evaluate) -> Evaluate:
    """Make `child(path)`; `argument` is the node that `path` was compiled from."""
    known = _literal_string(argument)
    if known is not None:
        keys, excess = split_path(known)
        if target is _VARIABLES["root"]:
            root_excess = max(excess, len(keys) - MAX_DEPTH)
            return lambda scope: Snapshot(scope.before, keys, root_excess)
        return lambda scope: target(scope).descend(keys, excess)
    return lambda scope: target(scope).child(_as_path(path(scope), scope))


def _call_has_child(target: Evaluate, path: Evaluate) -> Evaluate:
    """Make `hasChild(path)`."""
    return lambda scope: target(scope).has_child(_as_path(path(scope), scope))


def match_regex(target: Evaluate, regex: Regex) -> Evaluate:
    """Make `matches(/regex/)`."""
    search, weight, worst_weight = regex.search, regex.weight, regex.worst_weight

    def evaluate(scope: Scope) -> bool:
        text = _require_string(target(scope))
        scope.spend(len(text) * (worst_weight if scope.budget.at_once else weight))
        encoded = text.encode("utf-8", "surrogatepass")
        if len(encoded) > _MATCHED_BESIDE:
            return run_beside(lambda: regex.search_beside(encoded)) is not None
        return search(encoded) is not None

    return evaluate


def call_string_method(
    target: Evaluate, method: Callable[..., Any], arguments: list[Evaluate]
) -> Evaluate:
    """Make a call of a string method; target and arguments must all be strings."""
    if method in _COMPARISONS:
        (argument,) = arguments

        def compare(scope: Scope) -> Any:
            text, part = _require_string(target(scope)), _require_string(argument(scope))
            spend_comparison(part, scope)
            return method(text, part)

        return compare
    operands = (target, *arguments)

    def evaluate(scope: Scope) -> Any:
        texts = [_require_string(operand(scope)) for operand in operands]
        spend_method(method, texts, scope)
        return _count(scope, method(*texts))

    return evaluate


def _length_of(target: Evaluate) -> Evaluate:
    """Make `target.length` of a string."""

    def evaluate(scope: Scope) -> int:
        text = _require_string(target(scope))
        if not text.isascii():
            scope.spend(len(text))
        return length(text)

    return evaluate


def _count(scope: Scope, result: Any) -> Any:
    """Return a result; spend its characters if it is a string."""
    if type(result) is str:
        scope.spend(len(result))
    return result


def _join_terms(stops_at: bool, terms: list[Evaluate]) -> Evaluate:
    """Make `&&` or `||` of booleans: terms after the first that is `stops_at` are not evaluated."""
    if len(terms) == 2:
        left, right = terms
        if stops_at:
            return lambda scope: left(scope) or right(scope)
        return lambda scope: left(scope) and right(scope)

    def evaluate(scope: Scope) -> Any:
        for term in terms:
            if term(scope) is stops_at:
                return stops_at
        return not stops_at

    return evaluate


def _apply_operator(node: Binary, left: Evaluate, right: Evaluate) -> Evaluate:
    """Make a binary operation of two operands."""
    left_node, right_node = node.terms
    (operator,) = node.operators
    is_null = isinstance(right_node, Literal) and right_node.value is None
    # A conditional may yield what is not a value, for which `equal` raises.
    if is_null and operator[0] in "=!" and not isinstance(left_node, Conditional):
        if operator[0] == "!":
            return lambda scope: left(scope) is not None
        return lambda scope: left(scope) is None
    expected = EQUALITIES.get(operator)
    if expected is not None:
        return lambda scope: equal(left(scope), right(scope), scope) is expected
    operate = BINARY[operator]
    if operator == "+":
        return lambda scope: _count(scope, operate(left(scope), right(scope)))
    if isinstance(right_node, Literal):
        value = right_node.value
        return lambda scope: operate(left(scope), value)
    operation = _operation(operator)
    return lambda scope: operation(left(scope), right(scope), scope)


def _apply_operators(operators: tuple[str, ...], terms: list[Evaluate]) -> Evaluate:
    """Make a chain of binary operations, evaluated from the left."""
    first, *others = terms
    rest = list(zip(map(_operation, operators), others, strict=True))

    def evaluate(scope: Scope) -> Any:
        value = first(scope)
        for operate, term in rest:
            value = _count(scope, operate(value, term(scope), scope))
        return value

    return evaluate


@cache
def _operation(operator: str) -> Callable[[Any, Any, Scope], Any]:
    """Return the function of an operator."""
    expected = EQUALITIES.get(operator)
    if expected is not None:
        return lambda left, right, scope: equal(left, right, scope) is expected
    operate = BINARY[operator]
    if operator[0] in "<>":
        return lambda left, right, scope: _order(operate, left, right, scope)
    return lambda left, right, _: operate(left, right)


def _order(operate: Callable[[Any, Any], Any], left: Any, right: Any, scope: Scope) -> Any:
    """Return the result of an ordering; two strings spend what their comparison costs."""
    if type(left) is str and type(right) is str:
        spend_comparison(left, scope)
    return operate(left, right)


def _choose(arms: list[tuple[Evaluate, Evaluate]], otherwise: Evaluate) -> Evaluate:
    """Make a conditional; only the chosen branch is evaluated."""

    def evaluate(scope: Scope) -> Any:
        for condition, result in arms:
            if condition(scope):
                return result(scope)
        return otherwise(scope)

    return evaluate
