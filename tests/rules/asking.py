"""Short ways to ask the language: what an expression yields, why a text is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from treedbd.rules.check import check_rule
from treedbd.rules.compile import compile_rule
from treedbd.rules.evaluation import Context, EvaluationError, QueryFacts, Scope
from treedbd.rules.grammar import parse_expression
from treedbd.rules.limits import RulesLimits
from treedbd.rules.refusal import Fault, InvalidRules
from treedbd.rules.ruleset import RuleSet, parse_rules
from treedbd.tree.body import normalise
from treedbd.tree.edit import Change
from treedbd.tree.path import Path, Place
from treedbd.tree.view import ValueView, View

LIMITS = RulesLimits()
ERROR = "error"
NOW = 1_700_000_000_000


def view(json_value: Any) -> ValueView:
    """Return a view of JSON."""
    return ValueView(normalise(json_value).value)


def holds(
    expression: str,
    data: Any = None,
    *,
    after: View | None = None,
    auth: Any = None,
    path: Path = (),
    query: QueryFacts | None = None,
    captures: Mapping[str, int] | None = None,
) -> bool | str:
    """Evaluate a rule at `path` over `data`: True, False or `ERROR`."""
    parsed = parse_expression(expression, LIMITS)
    names = captures or {}
    test = compile_rule(parsed, check_rule(parsed, names, for_read=False), names)
    before = view(data)
    scope = Scope(Context(auth, NOW, before, query), before, after or before)
    scope.path = path
    try:
        return test(scope)
    except EvaluationError:
        return ERROR


def complaint(expression: str, *, for_read: bool = False) -> str | None:
    """Return why an expression is refused, None where it is not; `$uid` is known in it."""
    try:
        check_rule(parse_expression(expression, LIMITS), {"$uid"}, for_read=for_read)
    except Fault as fault:
        return fault.text
    return None


def refusal(document: str | bytes, limits: RulesLimits = LIMITS) -> str | None:
    """Return the `line:column: text` that a document is refused with, None where it is not."""
    try:
        parse_rules(document, limits)
    except InvalidRules as error:
        return str(error)
    return None


def rules(nodes: Any) -> RuleSet:
    """Return the rule set of a document given as JSON, without its top."""
    return parse_rules(json.dumps({"rules": nodes}))


def place(path: str) -> Place:
    """Return the place of a slash path; a last `.priority` is the priority."""
    keys = tuple(key for key in path.split("/") if key)
    if keys and keys[-1] == ".priority":
        return Place(keys[:-1], of_priority=True)
    return Place(keys)


def may_read(
    rule_set: RuleSet,
    path: str,
    data: Any = None,
    *,
    auth: Any = None,
    query: QueryFacts | None = None,
) -> bool:
    """Judge a read."""
    context = Context(auth, NOW, view(data), query)
    return rule_set.may_read(place(path).path, context).allowed


def may_write(
    rule_set: RuleSet, changes: Mapping[str, Any], data: Any = None, *, auth: Any = None
) -> bool:
    """Judge a write of JSON to slash paths: one for a PUT, several for a PATCH."""
    listed = [
        Change(place(path), json_value if place(path).of_priority else normalise(json_value).value)
        for path, json_value in changes.items()
    ]
    return rule_set.may_write(listed, Context(auth, NOW, view(data))).allowed
