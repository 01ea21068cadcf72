"""Judging a read or a write: which rules run, in which order, and what follows.

Theory of operation. A read is granted by the first `.read` that holds on the way from the root to
the target; what stands below the target is never asked. A write is granted likewise by `.write`;
then every `.validate` on the way must hold where the result is something, and below the target
every one whose node the write leaves something at. Each change of a PATCH is judged as a write of
its own, against a tree that has all of them. A rule that fails to evaluate does not hold.

`data` and `newData` are the node at the place of the rule, so the scope moves along. Where changes
share a way, a rule on it is evaluated once: nothing it can see differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import attrs

from treedbd.rules.dependencies import Dependencies
from treedbd.rules.evaluation import EvaluationError, Scope
from treedbd.rules.outline import Rule, RuleNode
from treedbd.tree.edit import Change
from treedbd.tree.path import Path
from treedbd.tree.value import Value, members


@attrs.frozen
class RuleResult:
    """What became of one rule."""

    kind: str
    """`.read`, `.write` or `.validate`."""
    path: Path
    """The node the rule was evaluated at."""
    location: str
    """Where the rule stands in the document: `rules/users/$uid/.read`."""
    line: int
    column: int
    result: bool | str
    """Whether it holds, or the text of the error."""


@attrs.frozen
class Verdict:
    """Whether an operation is allowed.

    `trace` lists the rules in the order they ran, if an explanation was asked for, and
    `dependencies` what the verdict rests on, if a record was.
    """

    allowed: bool
    trace: tuple[RuleResult, ...] = ()
    dependencies: Dependencies | None = None


class Trial:
    """One operation on trial: evaluates rules, and keeps what was asked to be kept."""

    __slots__ = ("_known", "asked_time", "scope", "trace")

    def __init__(self, scope: Scope, *, explain: bool, shared: bool = False) -> None:
        self.scope: Final = scope
        self.trace: list[RuleResult] | None = [] if explain else None
        self.asked_time = False
        self._known: Final[dict[tuple[Rule, Path], bool] | None] = {} if shared else None

    def read(self, node: RuleNode | None, path: Path) -> bool:
        """Tell whether the rules from `node`, the root, allow to read `path`."""
        depth = 0
        while node is not None:
            if node.read is not None and self._holds(node.read, path[:depth]):
                return True
            if depth == len(path):
                return False
            node = node.child(path[depth])
            depth += 1
        return False

    def write(self, root: RuleNode, changes: Sequence[Change]) -> bool:
        """Tell whether the rules allow each of the changes."""
        for change in changes:  # noqa: SIM110 - a generator would cost more than it saves
            if not self._write_one(root, change):
                return False
        return True

    def _write_one(self, root: RuleNode, change: Change) -> bool:
        path, of_priority = change.place
        node: RuleNode | None = root
        granted = False
        validations: list[tuple[Rule, Path]] = []
        depth = 0
        while node is not None:
            if not granted and node.write is not None:
                granted = self._holds(node.write, path[:depth])
            if node.validate is not None:
                validations.append((node.validate, path[:depth]))
            if depth == len(path):
                break
            node = node.literals.get(path[depth], node.capture)
            depth += 1
        if not granted:
            return False
        may_be_nothing = of_priority or change.value is None
        after = self.scope.after
        for rule, place in validations:
            if may_be_nothing and after.peek(place) is None:
                continue
            if not self._holds(rule, place):
                return False
        if node is None or may_be_nothing or not node.validates_below:
            return True
        return self._validate_below(node, path, after.get(path))

    def _validate_below(self, top: RuleNode, path: Path, value: Value) -> bool:
        """Tell whether every `.validate` holds at the nodes below `path`, where `value` is."""
        waiting = [(top, path, value)]
        while waiting:
            node, path, value = waiting.pop()
            for key, child, rules in _matching(node, value):
                below = (*path, key)
                if rules.validate is not None and not self._holds(rules.validate, below):
                    return False
                if rules.validates_below:
                    waiting.append((rules, below, child))
        return True

    def _holds(self, rule: Rule, path: Path) -> bool:
        """Tell whether a rule holds at a node."""
        if self._known is None:
            return self._evaluate(rule, path)
        known = self._known.get((rule, path))
        if known is None:
            known = self._known[rule, path] = self._evaluate(rule, path)
        return known

    def _evaluate(self, rule: Rule, path: Path) -> bool:
        self.scope.path = path
        result: bool | str
        try:
            result = holds = rule.test(self.scope)
        except EvaluationError as error:
            result, holds = str(error), False
        if rule.asks_time:
            self.asked_time = True
        if self.trace is not None:
            self.trace.append(RuleResult(rule.kind, path, rule.location, *rule.position, result))
        return holds


def _matching(node: RuleNode, value: Value) -> list[tuple[str, Value, RuleNode]]:
    """Return the children of a value that have rules: key, child, rule node."""
    if not isinstance(value, dict):
        return []
    if node.capture is None:
        literals = node.literals.items()
        return [(key, value[key], rules) for key, rules in literals if key in value]
    return [(key, child, node.literals.get(key, node.capture)) for key, child in members(value)]
