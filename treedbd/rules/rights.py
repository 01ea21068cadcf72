"""Rights that the rules alone can tell, without a view of the tree.

`may_allow_write` returns whether a caller may write anything at all at a place. `find_read` and
`find_write` return the verdict on one operation if no rule on the way to it reads the data or the
time, as for `true`, `auth != null` and `auth.uid === $uid`. It is the verdict that the whole
evaluation has (`evaluate`), without what only other rules need: views, an overlay, a budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from treedbd.rules.budget import BudgetExceeded, EvaluationError
from treedbd.rules.context import KnownScope
from treedbd.rules.evaluate import Rule, RuleNode
from treedbd.tree.types import Change

MAX_RULES_FORESEEN: Final = 1000
"""Rule nodes below a place that are looked at for `may_allow_write`."""


def may_allow_write(root: RuleNode, scope: KnownScope) -> bool:
    """Return whether any `.write` at, above or below the path of a request can be true.

    Where more than `MAX_RULES_FORESEEN` rules would have to be looked at, one of them may be.
    """
    node: RuleNode | None = root
    for key in (*scope.path, None):
        if node is None:
            return False
        if node.write is not None and _may_be_true(node.write, scope):
            return True
        if key is not None:
            node = node.literals.get(key, node.capture)
    pending = [node] if node is not None and node.writes_below else []
    left = MAX_RULES_FORESEEN
    while pending:
        for _, below in pending.pop().below():
            left -= 1
            if not left or (below.write is not None and _may_be_true(below.write, scope)):
                return True
            if below.writes_below:
                pending.append(below)
    return False


def _may_be_true(rule: Rule, scope: KnownScope) -> bool:
    if rule.may_be_true is None:
        return rule.constant is not False
    return rule.may_be_true(scope)


def find_read(root: RuleNode, scope: KnownScope) -> bool | None:
    """Return whether the rules allow a read of the path of `scope`; None if more must be known."""
    path = scope.path
    node: RuleNode | None = root
    depth = 0
    while node is not None:
        rule = node.read
        if rule is not None:
            result = rule.constant if rule.constant is not None else _find_result(rule, scope)
            if result is not False:
                return result
        if depth == len(path):
            return False
        node = node.literals.get(path[depth], node.capture)
        depth += 1
    return False


def find_write(root: RuleNode, changes: Sequence[Change], scope: KnownScope) -> bool | None:
    """Return whether the rules allow all of the changes of an edit; None if more must be known."""
    for change in changes:
        scope.path = change.place.path
        verdict = _find_change(root, change, scope)
        if verdict is not True:
            return verdict
    return True


def _find_change(root: RuleNode, change: Change, scope: KnownScope) -> bool | None:
    path, is_priority = change.place
    node: RuleNode | None = root
    allowed: bool | None = False
    validations: list[Rule] = []
    depth = 0
    while node is not None:
        if allowed is False and node.write is not None:
            allowed = _find_result(node.write, scope)
        if node.validate is not None:
            validations.append(node.validate)
        if depth == len(path):
            break
        node = node.literals.get(path[depth], node.capture)
        depth += 1
    if not allowed:
        return allowed
    may_be_absent = is_priority or change.value is None
    if validations and may_be_absent:
        return None  # which of them count depends on what exists afterwards
    for rule in validations:
        result = _find_result(rule, scope)
        if result is not True:
            return result
    is_unvalidated = node is None or may_be_absent or not node.validates_below
    return True if is_unvalidated or not isinstance(change.value, dict) else None


def _find_result(rule: Rule, scope: KnownScope) -> bool | None:
    """Return the result of a rule, None if more must be known, or its evaluation costs anything.

    Captures are keys of the path above the rule, so the path of the operation serves as well as
    that of the rule.
    """
    if rule.constant is not None:
        return rule.constant
    if rule.reads_data or rule.reads_time:
        return None
    try:
        return rule.test(scope)
    except BudgetExceeded:
        return None
    except EvaluationError:
        return False
