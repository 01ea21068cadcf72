"""Coverage of rules: which of them were never true, never false, or never evaluated."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import Final

import attrs

from treedbd.rules.document import TextPosition
from treedbd.rules.evaluate import Rule, RuleResult
from treedbd.rules.ruleset import RuleSet

NEVER_EVALUATED: Final = "never evaluated"
NEVER_TRUE: Final = "never true"
NEVER_FALSE: Final = "never false"


@attrs.define(eq=False)
class RuleCoverage:
    """How often a rule was true, was false, and failed, which counts as false."""

    rule: Rule
    true: int = 0
    false: int = 0
    failed: int = 0

    @property
    def missing(self) -> str:
        """What has not happened yet; empty if nothing is missing.

        A rule that is `true` or `false` itself only has to be evaluated.
        """
        if not self.true + self.false + self.failed:
            return NEVER_EVALUATED
        if self.rule.constant is not None:
            return ""
        if not self.true:
            return NEVER_TRUE
        return "" if self.false + self.failed else NEVER_FALSE

    @property
    def possible(self) -> int:
        """How many results the rule can have."""
        return 2 if self.rule.constant is None else 1

    @property
    def seen(self) -> int:
        """How many of them it had."""
        return bool(self.true) + bool(self.false + self.failed)


class Coverage:
    """The coverage of one rules document; `rules_file` is its name."""

    def __init__(self, rules_file: str, rules: RuleSet) -> None:
        self.rules_file: Final = rules_file
        self.rules: Final = [RuleCoverage(rule) for rule in rules.rules()]
        self._by_position: Final = {each.rule.position: each for each in self.rules}

    def add(self, trace: Iterable[RuleResult]) -> None:
        """Count the results of the rules of one case."""
        for result in trace:
            covered = self._by_position[TextPosition(result.line, result.column)]
            if isinstance(result.result, str):
                covered.failed += 1
            elif result.result:
                covered.true += 1
            else:
                covered.false += 1

    @property
    def seen(self) -> int:
        """How many results were seen, of all rules."""
        return sum(each.seen for each in self.rules)

    @property
    def possible(self) -> int:
        """How many results there can be."""
        return sum(each.possible for each in self.rules)


def percent_of(coverages: Iterable[Coverage]) -> Fraction:
    """Return the share of the results that were seen, in percent; 100 where there are no rules."""
    seen = possible = 0
    for each in coverages:
        seen += each.seen
        possible += each.possible
    return Fraction(100 * seen, possible) if possible else Fraction(100)


def format_percent(percent: Fraction) -> str:
    """Return a percentage with one decimal, rounded down: 100 % is everything."""
    tenths = percent * 10 // 1
    return f"{tenths // 10}.{tenths % 10} %" if tenths % 10 else f"{tenths // 10} %"
