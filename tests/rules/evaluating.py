"""Short ways to evaluate rules: the result of an expression, the error in a text, a verdict."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

from tests.tree.value_view import ValueView
from treedbd.limits import RulesLimits
from treedbd.loop import finish
from treedbd.rules.compile import compile_rule
from treedbd.rules.context import Budget, Context, EvaluationError, QueryFacts, Scope
from treedbd.rules.document import ExpressionError, InvalidRules
from treedbd.rules.grammar import parse_expression
from treedbd.rules.ruleset import RuleSet, parse_rules
from treedbd.rules.typecheck import typecheck_rule
from treedbd.tree.edit import normalise
from treedbd.tree.types import Change, Path, Place, Value, View

LIMITS = RulesLimits()
ERROR = "error"
NOW = 1_700_000_000_000


def normal(json_value: Any) -> Value:
    """Return JSON without placeholders in normal form."""
    return cast(Value, normalise(json_value).value)


def view(json_value: Any) -> ValueView:
    """Return a view of JSON."""
    return ValueView(normal(json_value))


def evaluate(
    expression: str,
    data: Any = None,
    *,
    after: View | None = None,
    auth: Any = None,
    path: Path = (),
    query: QueryFacts | None = None,
    captures: Mapping[str, int] | None = None,
) -> bool | str:
    """Evaluate a rule at `path` of `data`; return True, False or `ERROR`."""
    parsed = finish(parse_expression(expression, LIMITS))
    names = captures or {}
    types = finish(typecheck_rule(parsed, names, for_read=False))
    test = finish(compile_rule(parsed, types, names))
    before = view(data)
    scope = Scope(Context(auth, NOW, before, query), before, after or before, Budget())
    scope.path = path
    try:
        return test(scope)
    except EvaluationError:
        return ERROR


def expression_error(expression: str, *, for_read: bool = False) -> str | None:
    """Return the error in an expression, None if it is valid; `$uid` is bound in it."""
    try:
        parsed = finish(parse_expression(expression, LIMITS))
        finish(typecheck_rule(parsed, {"$uid"}, for_read=for_read))
    except ExpressionError as error:
        return error.text
    return None


def document_error(document: str | bytes, limits: RulesLimits = LIMITS) -> str | None:
    """Return the `line:column: text` of the error in a document, None if it is valid."""
    try:
        parse_rules(document, limits)
    except InvalidRules as error:
        return str(error)
    return None


def rules(nodes: Any) -> RuleSet:
    """Return the rule set of a document; `nodes` is the JSON of its member `rules`."""
    return parse_rules(json.dumps({"rules": nodes}))


def place(path: str) -> Place:
    """Return the place of a slash path; a path that ends with `.priority` names the priority."""
    keys = tuple(key for key in path.split("/") if key)
    if keys and keys[-1] == ".priority":
        return Place(keys[:-1], is_priority=True)
    return Place(keys)


def may_read(
    rule_set: RuleSet,
    path: str,
    data: Any = None,
    *,
    auth: Any = None,
    query: QueryFacts | None = None,
) -> bool:
    """Return whether the rules allow a read."""
    context = Context(auth, NOW, view(data), query)
    return rule_set.may_read(place(path).path, context).allowed


def may_write(
    rule_set: RuleSet, changes: Mapping[str, Any], data: Any = None, *, auth: Any = None
) -> bool:
    """Return whether the rules allow a write; `changes` maps slash paths to JSON."""
    listed = [
        Change(place(path), json_value if place(path).is_priority else normal(json_value))
        for path, json_value in changes.items()
    ]
    return rule_set.may_write(listed, Context(auth, NOW, view(data))).allowed
