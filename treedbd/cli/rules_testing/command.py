"""The run of `treedb rules test`: reads the files, judges the cases, and reports.

The modules of this package import no Twisted, so that the command starts in a moment.
"""

from __future__ import annotations

import os
import pathlib
import sys
import time
from argparse import Namespace
from fractions import Fraction
from importlib import import_module

from treedbd.cli.exit import DONE, FAILED, CommandFailed, Status, print_line, write_out
from treedbd.cli.rules_testing.coverage import Coverage
from treedbd.cli.rules_testing.judging import CaseResult, judge_suite
from treedbd.cli.rules_testing.report import RulesReport, to_json, to_lines
from treedbd.cli.rules_testing.suite import read_suite
from treedbd.limits import RulesLimits
from treedbd.rules.ruleset import DEFAULT_LIMITS


def run(arguments: Namespace) -> Status:
    """Judge the cases of some files, and report; return the exit status."""
    report = _test(arguments.files, _limits(arguments), arguments.required)
    if arguments.junit is not None:
        junit = import_module("treedbd.cli.rules_testing.junit")  # rarely needed
        _write(arguments.junit, junit.to_junit(report))
    if arguments.json:
        write_out(to_json(report) + b"\n")
    else:
        lines = to_lines(report, is_verbose=arguments.verbose, has_colour=_has_colour())
        print_line("\n".join(lines))
    return DONE if report.is_success else FAILED


def _test(files: list[str], limits: RulesLimits, required: Fraction | None) -> RulesReport:
    now = time.time_ns() // 1_000_000
    suites = [read_suite(file, limits, now) for file in files]
    # Several test files may be about the same rules: then they cover them together.
    coverages: dict[str, Coverage] = {}
    results: list[CaseResult] = []
    for suite in suites:
        key = str(pathlib.Path(suite.rules_file).resolve())
        coverage = coverages.setdefault(key, Coverage(suite.rules_file, suite.rules))
        results += judge_suite(suite, coverage)
    return RulesReport(results, tuple(coverages.values()), required)


def _limits(arguments: Namespace) -> RulesLimits:
    if getattr(arguments, "config", None) is None:
        return DEFAULT_LIMITS
    # Imported only where it is needed: it takes longer to import than the cases to judge.
    limits: RulesLimits = import_module("treedbd.cli.options").read_settings(arguments).rules
    return limits


def _write(file: pathlib.Path, content: bytes) -> None:
    try:
        file.write_bytes(content)
    except OSError as error:
        raise CommandFailed(f"{file} cannot be written ({error.strerror}).") from None


def _has_colour() -> bool:
    """Return whether the output is a terminal that shows colours (https://no-color.org)."""
    is_wanted = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return is_wanted and sys.stdout.isatty()
