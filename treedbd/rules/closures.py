"""The closures that `compile` puts together: one factory for each form of node.

Each factory takes the functions of the children of a node and returns the function of the node.
Frequent forms (a member of `auth`, a comparison with null, a child named by a literal) have
factories or branches of their own, for speed only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from typing import Any, Final, TypeAlias

from treedbd.limits import MAX_DEPTH
from treedbd.loop import run_beside
from treedbd.rules.budget import EvaluationError
from treedbd.rules.context import Scope
from treedbd.rules.grammar import Binary, Conditional, Expression, Literal
from treedbd.rules.operators import (
    BINARY,
    CACHED_PATH,
    EQUALITIES,
    Snapshot,
    auth_member,
    contains,
    equal,
    exists_at,
    is_boolean_at,
    is_number_at,
    is_string_at,
    leaf_or_subtree_at,
    length,
    replace,
    spend_comparison,
    spend_method,
    split_path,
)
from treedbd.rules.regex import Regex
from treedbd.tree.types import ROOT, Path, View

Evaluate: TypeAlias = Callable[[Scope], Any]
"""Returns the value of a node in a scope; raises `EvaluationError` if it has none."""

QUERY_FACTS: Final = {
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
VARIABLES: Final[Mapping[str, Evaluate]] = {
    "auth": lambda scope: scope.auth,
    "now": lambda scope: scope.now,
    "query": lambda scope: scope.query,
    "root": lambda scope: Snapshot(scope.before, ROOT),
    "data": lambda scope: Snapshot(scope.before, scope.path),
    "newData": lambda scope: Snapshot(scope.after, scope.path),
}
SNAPSHOT_METHODS_WITHOUT_ARGUMENTS: Final[Mapping[str, Callable[[Snapshot], Any]]] = {
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


def fail(_: Scope) -> Any:
    """Evaluate what is not a value: a regular expression, a method that is not called."""
    raise EvaluationError("This is not a value.")


def require_string(value: Any) -> str:
    """Return a string; raise `EvaluationError` for anything else."""
    if type(value) is not str:
        raise EvaluationError("A string was expected.")
    return value


def _as_path(value: Any, scope: Scope) -> str:
    """Return a string that is used as a path; spend its characters if it has to be split."""
    path = require_string(value)
    if len(path) > CACHED_PATH:
        scope.spend(len(path) * _PATH_WEIGHT)
    return path


def literal_string(node: Expression) -> str | None:
    """Return the value of a string literal, None for any other node."""
    return node.value if isinstance(node, Literal) and isinstance(node.value, str) else None


@lru_cache(maxsize=1024, typed=True)
def constant(value: bool | float | None) -> Evaluate:
    """Make a literal that is no string; equal ones share a function, because chains have many."""
    return lambda _: value


@cache
def capture(index: int) -> Evaluate:
    """Make a capture, which is a key of the path."""
    return lambda scope: scope.path[index]


def auth_member_of(target: Evaluate, name: str) -> Evaluate:
    """Make `target.name` on `auth` and below."""
    if target is VARIABLES["auth"]:
        return lambda scope: (
            scope.auth.get(name) if type(scope.auth) is dict else auth_member(scope.auth, name)
        )

    def evaluate(scope: Scope) -> Any:
        value = target(scope)
        return value.get(name) if type(value) is dict else auth_member(value, name)

    return evaluate


def call_snapshot_method(target: Evaluate, method: Callable[[Snapshot], Any]) -> Evaluate:
    """Make a call of a snapshot method without arguments."""
    at_path = _METHODS_AT_PATH.get(method)
    if at_path is not None and target is VARIABLES["newData"]:
        return lambda scope: at_path(scope.after, scope.path)
    if at_path is not None and target is VARIABLES["data"]:
        return lambda scope: at_path(scope.before, scope.path)
    return lambda scope: method(target(scope))


def call_has_known_children(target: Evaluate, names: list[str]) -> Evaluate:
    """Make `hasChildren` of literals, which are split here, once."""
    paths = [split_path(name) for name in names]

    def evaluate(scope: Scope) -> bool:
        snapshot = target(scope)
        for keys, excess in paths:  # noqa: SIM110 - a generator would cost more than the test
            if not snapshot.has(keys, excess):
                return False
        return True

    return evaluate


def call_has_children(target: Evaluate, names: list[Evaluate]) -> Evaluate:
    """Make `hasChildren` of computed names; all are computed before the first child is read."""

    def evaluate(scope: Scope) -> bool:
        snapshot = target(scope)
        computed = [_as_path(name(scope), scope) for name in names]
        return all(snapshot.has_child(name) for name in computed)

    return evaluate


def call_child(target: Evaluate, argument: Expression, path: Evaluate) -> Evaluate:
    """Make `child(path)`; `argument` is the node that `path` was compiled from."""
    known = literal_string(argument)
    if known is not None:
        keys, excess = split_path(known)
        if target is VARIABLES["root"]:
            root_excess = max(excess, len(keys) - MAX_DEPTH)
            return lambda scope: Snapshot(scope.before, keys, root_excess)
        return lambda scope: target(scope).descend(keys, excess)
    return lambda scope: target(scope).child(_as_path(path(scope), scope))


def call_has_child(target: Evaluate, path: Evaluate) -> Evaluate:
    """Make `hasChild(path)`."""
    return lambda scope: target(scope).has_child(_as_path(path(scope), scope))


def match_regex(target: Evaluate, regex: Regex) -> Evaluate:
    """Make `matches(/regex/)`."""
    search, weight, worst_weight = regex.search, regex.weight, regex.worst_weight

    def evaluate(scope: Scope) -> bool:
        text = require_string(target(scope))
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
            text, part = require_string(target(scope)), require_string(argument(scope))
            spend_comparison(part, scope)
            return method(text, part)

        return compare
    operands = (target, *arguments)

    def evaluate(scope: Scope) -> Any:
        texts = [require_string(operand(scope)) for operand in operands]
        spend_method(method, texts, scope)
        return _count(scope, method(*texts))

    return evaluate


def length_of(target: Evaluate) -> Evaluate:
    """Make `target.length` of a string."""

    def evaluate(scope: Scope) -> int:
        text = require_string(target(scope))
        if not text.isascii():
            scope.spend(len(text))
        return length(text)

    return evaluate


def _count(scope: Scope, result: Any) -> Any:
    """Return a result; spend its characters if it is a string."""
    if type(result) is str:
        scope.spend(len(result))
    return result


def join_terms(stops_at: bool, terms: list[Evaluate]) -> Evaluate:
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


def apply_operator(node: Binary, left: Evaluate, right: Evaluate) -> Evaluate:
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


def apply_operators(operators: tuple[str, ...], terms: list[Evaluate]) -> Evaluate:
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


def choose(arms: list[tuple[Evaluate, Evaluate]], otherwise: Evaluate) -> Evaluate:
    """Make a conditional; only the chosen branch is evaluated."""

    def evaluate(scope: Scope) -> Any:
        for condition, result in arms:
            if condition(scope):
                return result(scope)
        return otherwise(scope)

    return evaluate
