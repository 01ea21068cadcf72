"""Evaluation that measures its rules, for the warning of slow ones.

Only the rules themselves count, not what others do in pauses between them. It costs two readings of
the clock for each rule, so it is used only if slow rules are to be reported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter

from treedbd.rules.context import Context, Scope
from treedbd.rules.evaluate import Evaluation, Rule, RuleNode
from treedbd.rules.slow_rules import SlowRules, SlowRulesReport
from treedbd.rules.traced import TracedRead
from treedbd.tree.types import Change, Path


class TimedEvaluation(Evaluation):
    """An evaluation that reports its rules if they are slow."""

    __slots__ = ("_paused_s", "_report", "_spent", "_wait")

    def __init__(
        self,
        report: SlowRulesReport,
        context: Context,
        make_scope: Callable[[], Scope],
        *,
        reads: dict[TracedRead, None] | None,
        shared: bool = False,
    ) -> None:
        """Evaluate as an `Evaluation` with the same arguments."""
        super().__init__(context, make_scope, reads=reads, shared=shared)
        self._report = report
        self._paused_s = 0.0
        self._spent: dict[Rule, tuple[float, int]] = {}
        self._wait = self._check
        if self._wait is not None:
            self._check = self._pause

    def allows_read(self, node: RuleNode | None, path: Path) -> bool:
        """Return whether the rules from `node`, the root, allow reading `path`."""
        try:
            return super().allows_read(node, path)
        finally:
            self._end()

    def allows_write(self, root: RuleNode, changes: Sequence[Change]) -> bool:
        """Return whether the rules allow each of the changes."""
        try:
            return super().allows_write(root, changes)
        finally:
            self._end()

    def _evaluate(self, rule: Rule, path: Path) -> bool:
        paused, began = self._paused_s, perf_counter()
        try:
            return super()._evaluate(rule, path)
        finally:
            spent = perf_counter() - began - (self._paused_s - paused)
            seconds, count = self._spent.get(rule, (0.0, 0))
            self._spent[rule] = seconds + spent, count + 1

    def _pause(self) -> None:
        began = perf_counter()
        try:
            if self._wait is not None:
                self._wait()
        finally:
            self._paused_s += perf_counter() - began

    def _end(self) -> None:
        seconds = sum(spent for spent, _ in self._spent.values())
        if self._spent and seconds >= self._report.least_s:
            rule = max(self._spent, key=self._spent.__getitem__)
            self._report.report(
                SlowRules(seconds, rule.location, rule.position, *self._spent[rule])
            )
