"""The report of a run: as lines for a person, and as JSON for a program."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Final

import attrs

from treedbd.cli.exit import make_printable
from treedbd.cli.rules_testing.coverage import Coverage, RuleCoverage, format_percent, percent_of
from treedbd.cli.rules_testing.judging import CaseResult
from treedbd.tree.types import Json
from treedbd.tree.value import compact

RED: Final = "31"
GREEN: Final = "32"
YELLOW: Final = "33"


@attrs.frozen
class RulesReport:
    """What a run has found.

    Attributes:
        results: those of all cases of all files.
        coverages: one for each rules document.
        required: the coverage that was required, in percent; None if none was.

    """

    results: Sequence[CaseResult]
    coverages: Sequence[Coverage]
    required: Fraction | None

    @property
    def surprises(self) -> list[CaseResult]:
        """The cases whose verdict is not the expected one."""
        return [result for result in self.results if not result.is_expected]

    @property
    def percent(self) -> Fraction:
        """The coverage of all rules, in percent."""
        return percent_of(self.coverages)

    @property
    def is_covered(self) -> bool:
        """Whether the coverage is as high as required."""
        return self.required is None or self.percent >= self.required

    @property
    def is_success(self) -> bool:
        """Whether all is as expected and required."""
        return self.is_covered and not self.surprises

    @property
    def coverage_line(self) -> str:
        """The coverage in one line, with what was required if that is more."""
        seen = sum(each.seen for each in self.coverages)
        possible = sum(each.possible for each in self.coverages)
        shown = f"coverage {format_percent(self.percent)}: {seen} of {possible} results of rules"
        if self.is_covered or self.required is None:
            return shown
        return f"{shown}, {format_percent(self.required)} is required"


def to_lines(report: RulesReport, *, is_verbose: bool, has_colour: bool) -> Iterator[str]:
    """Return the report for a person."""

    def paint(colour: str, text: str) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if has_colour else text

    for result in report.results:
        file = make_printable(result.suite.file)
        found, expected = word_of(result.allowed), word_of(result.case.allowed)
        if not result.is_expected:
            title = f"{file}: case {result.title} is {found}, expected {expected}"
            yield paint(RED, f"{title}: {make_printable(result.reason)}")
            yield from result.details
        elif is_verbose:
            yield f"{file}: case {result.title} is {paint(GREEN, found)}, as expected"
    yield _count(report, paint)
    missing = list(missing_lines(report))
    colour = RED if not report.is_covered else YELLOW if missing else GREEN
    yield paint(colour, report.coverage_line)
    yield from missing


def _count(report: RulesReport, paint: Callable[[str, str], str]) -> str:
    cases, surprises = len(report.results), len(report.surprises)
    counted = f"{cases} case{'s' * (cases != 1)}"
    if surprises:
        return paint(RED, f"{counted}, {surprises} not as expected")
    return paint(GREEN, f"{counted}, all as expected")


def missing_lines(report: RulesReport) -> Iterator[str]:
    """Return a line for each rule to which something has not happened yet."""
    for coverage in report.coverages:
        yield from (_show_missing(coverage, each) for each in coverage.rules if each.missing)


def _show_missing(coverage: Coverage, covered: RuleCoverage) -> str:
    rule = covered.rule
    line, column = rule.position
    return make_printable(
        f"  {coverage.rules_file}:{line}:{column}: {rule.location}: {covered.missing}"
    )


def word_of(allowed: bool) -> str:
    """Return the word for a verdict."""
    return "allowed" if allowed else "denied"


def to_json(report: RulesReport) -> bytes:
    """Return the report for a program, as one line of JSON."""
    cases: list[Json] = [_case_to_json(result) for result in report.results]
    rules: list[Json] = [
        {"file": each.rules_file, "rules": [_covered_to_json(rule) for rule in each.rules]}
        for each in report.coverages
    ]
    percent = float(report.percent)
    required = None if report.required is None else float(report.required)
    shown: Json = {
        "success": report.is_success,
        "cases": cases,
        "surprises": len(report.surprises),
        "coverage": {"percent": percent, "required": required, "documents": rules},
    }
    return compact(shown)


def _case_to_json(result: CaseResult) -> Json:
    case, request = result.case, result.case.request
    return {
        "file": result.suite.file,
        "case": case.number,
        "name": case.name,
        "as": "admin" if case.caller.is_admin else case.caller.auth,
        "method": request.method,
        "path": request.path,
        "expected": case.allowed,
        "allowed": result.allowed,
        "reason": result.reason,
        "rules": result.explanation["rules"],
        "seconds": result.seconds,
    }


def _covered_to_json(covered: RuleCoverage) -> Json:
    rule = covered.rule
    line, column = rule.position
    return {
        "rule": rule.location,
        "line": line,
        "column": column,
        "true": covered.true,
        "false": covered.false,
        "failed": covered.failed,
        "missing": covered.missing or None,
    }
