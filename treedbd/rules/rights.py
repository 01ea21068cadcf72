"""Rights that the rules alone can tell: whether a caller may write anything at all at a place."""

from __future__ import annotations

from typing import Final

from treedbd.rules.context import KnownScope
from treedbd.rules.evaluate import Rule, RuleNode

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
