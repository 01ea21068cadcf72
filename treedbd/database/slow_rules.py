"""The warning of slow rules, with the one that takes longest and what helps."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from twisted.logger import Logger

from treedbd.errors import LineBudget
from treedbd.names import DatabaseName
from treedbd.rules.context import MakeEvaluation, SlowRules, SlowRulesReport
from treedbd.rules.evaluate import TimedEvaluation

FIELDS: Final = ("project", "database", "rule", "line", "column", "rules_ms")
"""The names of the fields of the warning."""


class SlowRulesLog:
    """Logs rules that are slow, of all databases, but only so many lines a minute."""

    _log = Logger()

    def __init__(self, least_s: float, seconds: Callable[[], float]) -> None:
        """Rules are slow that take `least_s` seconds for one request; `seconds` is the clock."""
        self._least_s = least_s
        self._lines = LineBudget(seconds)

    def measure(self, name: DatabaseName) -> MakeEvaluation:
        """Return what measures the rules of a database."""
        report = SlowRulesReport(self._least_s, partial(self._warn, name))
        return partial(TimedEvaluation, report)

    def _warn(self, name: DatabaseName, slow: SlowRules) -> None:
        note = self._lines.take()
        if note is None:
            return
        self._log.warn(
            "Rules were slow: {ms} ms for one request to {label}, {slowest_ms} ms of them in "
            "{location} at {line}:{column} of the rules, which was evaluated {count} times. Let it "
            "read less: a small node in place of a large one, no long regular expression, no "
            ".validate for each of many children.{note}",
            ms=round(slow.seconds * 1000, 1),
            label=name.label,
            slowest_ms=round(slow.slowest_s * 1000, 1),
            location=slow.location,
            line=slow.position.line,
            column=slow.position.column,
            count=slow.count,
            note=note,
            treedb_fields={
                "project": name.project,
                "database": name.database,
                "rule": slow.location,
                "line": slow.position.line,
                "column": slow.position.column,
                "rules_ms": round(slow.seconds * 1000, 1),
            },
        )
