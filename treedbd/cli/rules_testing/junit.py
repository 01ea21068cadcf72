"""The report of a run as JUnit's XML, which continuous integration shows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from xml.etree import ElementTree

from treedbd.cli.exit import make_printable
from treedbd.cli.rules_testing.judging import CaseResult
from treedbd.cli.rules_testing.report import RulesReport, missing_lines, word_of


def to_junit(report: RulesReport) -> bytes:
    """Return the report as JUnit's XML: a suite for each file, a failure for each surprise.

    Coverage that is lower than required is a failure of a case of its own.
    """
    root = ElementTree.Element("testsuites", name="treedb rules test")
    for file, results in groupby(report.results, lambda result: result.suite.file):
        _add_suite(root, file, list(results))
    if report.required is not None:
        element = ElementTree.SubElement(root, "testsuite", name="coverage", tests="1")
        element.set("failures", str(int(not report.is_covered)))
        element.set("errors", "0")
        case = ElementTree.SubElement(element, "testcase", classname="coverage", name="coverage")
        if not report.is_covered:
            _add_failure(case, report.coverage_line, list(missing_lines(report)))
    xml: bytes = ElementTree.tostring(root, "utf-8", xml_declaration=True)
    return xml + b"\n"


def _add_suite(root: ElementTree.Element, file: str, results: Sequence[CaseResult]) -> None:
    failures = sum(not result.is_expected for result in results)
    shown = make_printable(file)
    suite = ElementTree.SubElement(root, "testsuite", name=shown, tests=str(len(results)))
    suite.set("failures", str(failures))
    suite.set("errors", "0")
    suite.set("time", f"{sum(result.seconds for result in results):.6f}")
    for result in results:
        case = ElementTree.SubElement(suite, "testcase", classname=shown, name=result.title)
        case.set("time", f"{result.seconds:.6f}")
        if not result.is_expected:
            message = f"{word_of(result.allowed)}, expected {word_of(result.case.allowed)}"
            _add_failure(case, f"{message}: {result.reason}", result.details)


def _add_failure(case: ElementTree.Element, message: str, details: Sequence[str]) -> None:
    failure = ElementTree.SubElement(case, "failure", message=make_printable(message))
    failure.text = "\n".join(details)
