"""The closures that `compile` puts together: one maker for each form that a part can take.

Each maker takes the functions of the parts below and returns the function of the part itself.
Frequent forms (a member of `auth`, a comparison with null, a child named by a literal) have makers
of their own, for speed alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from treedbd.rules.evaluation import EvaluationError, Scope
from treedbd.rules.expression import Binary, Conditional, Expression, Literal
from treedbd.rules.operators import BINARY, EQUALITIES, claim, equal, length, replace
from treedbd.rules.regex import Regex
from treedbd.rules.snapshot import (
    Snapshot,
    exists_at,
    is_boolean_at,
    is_number_at,
    is_string_at,
    split_path,
    value_at,
)
from treedbd.tree.path import MAX_DEPTH, ROOT, Path
from treedbd.tree.view import View

Evaluate: TypeAlias = Callable[[Scope], Any]

QUERY_FACTS: Final = {
    "orderByKey": "ordered_by_key",
    "orderByPriority": "order_by_priority",
    "orderByValue": "order_by_value",
    "orderByChild": "order_by_child",
    "startAt": "start_at",
    "endAt": "end_at",
    "equalTo": "equal_to",
    "limitToFirst": "limit_to_first",
    "limitToLast": "limit_to_last",
}
VARIABLES: Final[Mapping[str, Evaluate]] = {
    "auth": lambda scope: scope.auth,
    "now": lambda scope: scope.now,
    "query": lambda scope: scope.query,
    "root": lambda scope: Snapshot(scope.before, ROOT),
    "data": lambda scope: Snapshot(scope.before, scope.path),
    "newData": lambda scope: Snapshot(scope.after, scope.path),
}
SNAPSHOT_QUESTIONS: Final[Mapping[str, Callable[[Snapshot], Any]]] = {
    "val": Snapshot.val,
    "parent": Snapshot.parent,
    "exists": Snapshot.exists,
    "getPriority": Snapshot.get_priority,
    "isNumber": Snapshot.is_number,
    "isString": Snapshot.is_string,
    "isBoolean": Snapshot.is_boolean,
}
# The same questions, asked of the node at the place of the rule without making a snapshot of it.
_QUESTIONS_HERE: Final[Mapping[Callable[[Snapshot], Any], Callable[[View, Path], Any]]] = {
    Snapshot.val: value_at,
    Snapshot.exists: exists_at,
    Snapshot.is_number: is_number_at,
    Snapshot.is_string: is_string_at,
    Snapshot.is_boolean: is_boolean_at,
}
STRING_OPERATIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "contains": lambda text, part: part in text,
    "beginsWith": str.startswith,
    "endsWith": str.endswith,
    "toLowerCase": str.lower,
    "toUpperCase": str.upper,
    "replace": replace,
}


_COMPARISONS: Final = frozenset({str.startswith, str.endswith})
"""What only compares, like `==`, is not counted: it goes at the speed of memory."""


def fail(_: Scope) -> Any:
    """Evaluate what is no value: a regular expression, a method that nobody calls."""
    raise EvaluationError("This is no value.")


def take_text(value: Any) -> str:
    """Return a string; raise `EvaluationError` for anything else."""
    if type(value) is not str:
        raise EvaluationError("A string was expected.")
    return value


def literal_text(part: Expression) -> str | None:
    """Return the string that a part is, None for a part that is none."""
    return part.value if isinstance(part, Literal) and isinstance(part.value, str) else None


def read_claim(target: Evaluate, name: str) -> Evaluate:
    """Make `target.name` on `auth` and below."""
    if target is VARIABLES["auth"]:
        return lambda scope: (
            scope.auth.get(name) if type(scope.auth) is dict else claim(scope.auth, name)
        )

    def evaluate(scope: Scope) -> Any:
        value = target(scope)
        return value.get(name) if type(value) is dict else claim(value, name)

    return evaluate


def ask_snapshot(target: Evaluate, ask: Callable[[Snapshot], Any]) -> Evaluate:
    """Make a call of a snapshot method without arguments."""
    here = _QUESTIONS_HERE.get(ask)
    if here is not None and target is VARIABLES["newData"]:
        return lambda scope: here(scope.after, scope.path)
    if here is not None and target is VARIABLES["data"]:
        return lambda scope: here(scope.before, scope.path)
    return lambda scope: ask(target(scope))


def ask_known_children(target: Evaluate, names: list[str]) -> Evaluate:
    """Make `hasChildren` of names that are known beforehand."""
    paths = [split_path(name) for name in names]

    def evaluate(scope: Scope) -> bool:
        node = target(scope)
        for keys, beyond in paths:  # noqa: SIM110 - a generator would cost more than the test
            if not node.has(keys, beyond):
                return False
        return True

    return evaluate


def ask_children(target: Evaluate, names: list[Evaluate]) -> Evaluate:
    """Make `hasChildren` of names that are computed: all of them, before any is looked for."""

    def evaluate(scope: Scope) -> bool:
        node = target(scope)
        wanted = [take_text(name(scope)) for name in names]
        return all(node.has_child(name) for name in wanted)

    return evaluate


def reach_child(target: Evaluate, argument: Expression, path: Evaluate) -> Evaluate:
    """Make `child(path)`; `argument` is the part that `path` was made of."""
    known = literal_text(argument)
    if known is not None:
        keys, beyond = split_path(known)
        if target is VARIABLES["root"]:
            excess = max(beyond, len(keys) - MAX_DEPTH)
            return lambda scope: Snapshot(scope.before, keys, excess)
        return lambda scope: target(scope).descend(keys, beyond)
    return lambda scope: target(scope).child(take_text(path(scope)))


def ask_child(target: Evaluate, path: Evaluate) -> Evaluate:
    """Make `hasChild(path)`."""
    return lambda scope: target(scope).has_child(take_text(path(scope)))


def match_regex(target: Evaluate, regex: Regex) -> Evaluate:
    """Make `matches(/regex/)`."""
    search, weight = regex.search, regex.weight

    def evaluate(scope: Scope) -> bool:
        text = take_text(target(scope))
        scope.spend(len(text) * weight)
        return search(text.encode("utf-8", "surrogatepass")) is not None

    return evaluate


def ask_string(target: Evaluate, method: Callable[..., Any], arguments: list[Evaluate]) -> Evaluate:
    """Make a call of a string method; receiver and arguments must all be strings."""
    if method in _COMPARISONS:
        (only,) = arguments
        return lambda scope: method(take_text(target(scope)), take_text(only(scope)))

    def evaluate(scope: Scope) -> Any:
        texts = [take_text(part(scope)) for part in parts]
        scope.spend(sum(map(len, texts)))
        return _count(scope, method(*texts))

    parts = (target, *arguments)
    return evaluate


def measure(target: Evaluate) -> Evaluate:
    """Make `target.length` of a string."""

    def evaluate(scope: Scope) -> int:
        text = take_text(target(scope))
        if not text.isascii():
            scope.spend(len(text))
        return length(text)

    return evaluate


def _count(scope: Scope, result: Any) -> Any:
    """Count the characters of a result, if it has any."""
    if type(result) is str:
        scope.spend(len(result))
    return result


def join_terms(stops_at: bool, terms: list[Evaluate]) -> Evaluate:
    """Make `&&` or `||`: the first term that is `stops_at` is the result, and none after it runs.

    Terms are booleans.
    """
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


def operate_once(part: Binary, left: Evaluate, right: Evaluate) -> Evaluate:
    """Make a binary operation of two operands."""
    left_part, right_part = part.terms
    (operator,) = part.operators
    against_null = isinstance(right_part, Literal) and right_part.value is None
    if against_null and operator[0] in "=!" and not isinstance(left_part, Conditional):
        if operator[0] == "!":
            return lambda scope: left(scope) is not None
        return lambda scope: left(scope) is None
    wanted = EQUALITIES.get(operator)
    if wanted is not None:
        return lambda scope: equal(left(scope), right(scope), scope) is wanted
    operate = BINARY[operator]
    if operator == "+":
        return lambda scope: _count(scope, operate(left(scope), right(scope)))
    if isinstance(right_part, Literal):
        value = right_part.value
        return lambda scope: operate(left(scope), value)
    return lambda scope: operate(left(scope), right(scope))


def operate_often(operators: tuple[str, ...], terms: list[Evaluate]) -> Evaluate:
    """Make a chain of binary operations, from the left."""
    first, *others = terms
    rest = list(zip(map(_operation, operators), others, strict=True))

    def evaluate(scope: Scope) -> Any:
        value = first(scope)
        for operate, term in rest:
            value = _count(scope, operate(value, term(scope), scope))
        return value

    return evaluate


def _operation(operator: str) -> Callable[[Any, Any, Scope], Any]:
    """Return what an operator does with two values."""
    wanted = EQUALITIES.get(operator)
    if wanted is not None:
        return lambda left, right, scope: equal(left, right, scope) is wanted
    operate = BINARY[operator]
    return lambda left, right, _: operate(left, right)


def choose(arms: list[tuple[Evaluate, Evaluate]], otherwise: Evaluate) -> Evaluate:
    """Make a conditional; no branch runs but the chosen one."""

    def evaluate(scope: Scope) -> Any:
        for condition, result in arms:
            if condition(scope):
                return result(scope)
        return otherwise(scope)

    return evaluate
