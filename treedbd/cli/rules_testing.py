"""`treedb rules test`: cases judged by rules, without a daemon.

`run` takes these steps:

- `read_suite` reads a test file: the rules, the data, and the cases. All of it is checked before
  the first case is judged. An error is one sentence that names the file, the number of the case,
  and the remedy.
- `parse_request` parses the request of a case as the REST interface does, from JSON instead of
  HTTP.
- `judge_suite` returns the verdict on each case with its reason, and counts the `Coverage` of the
  rules: which were never true, never false, or never evaluated.
- The report is lines for a person, JSON for a program, or JUnit's XML for continuous integration.
"""

from __future__ import annotations

import pathlib
import time
from argparse import Namespace
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import groupby
from time import perf_counter
from typing import Any, Final
from xml.etree import ElementTree

import attrs
import orjson

from treedbd.cli.exit import (
    DONE,
    FAILED,
    CommandFailed,
    Status,
    has_colour,
    make_printable,
    print_line,
    write_out,
)
from treedbd.cli.options import read_settings, reported
from treedbd.cli.rules import parse_rules_of
from treedbd.database.requests import Caller
from treedbd.database.rights import RulesTrial, TrialVerdict
from treedbd.limits import RulesLimits
from treedbd.loop import finish
from treedbd.rules.context import QueryFacts
from treedbd.rules.document import (
    InvalidRules,
    ObjectItem,
    Source,
    TextPosition,
    parse_document,
    suggest,
)
from treedbd.rules.evaluate import READ, WRITE, Rule, RuleResult, explanation
from treedbd.rules.ruleset import DEFAULT_LIMITS, RuleSet, format_auth, format_rules
from treedbd.tree.edit import Edit, make_patch, make_put, make_remove
from treedbd.tree.path import PushIds, make_place
from treedbd.tree.query import PARAMETERS, WHERE
from treedbd.tree.types import InvalidData, InvalidPath, InvalidQuery, Json, Place
from treedbd.tree.value import compact
from treedbd.web.request import parse_read_options

NEVER_EVALUATED: Final = "never evaluated"
NEVER_TRUE: Final = "never true"
NEVER_FALSE: Final = "never false"
_METHODS_BY_NAME: Final = {
    "put": "PUT",
    "set": "PUT",
    "patch": "PATCH",
    "update": "PATCH",
    "post": "POST",
    "push": "POST",
    "delete": "DELETE",
    "remove": "DELETE",
}
"""The methods of a write, by their names in HTTP and those of the commands."""
_BOUNDS: Final = ("startAt", "startAfter", "endAt", "endBefore", "equalTo")
_QUERY: Final = (*PARAMETERS, WHERE, "shallow", "format")
ADMIN: Final = "admin"
_MEMBERS: Final = ("rules", "data", "now", "cases")
_CASE_MEMBERS: Final = ("name", "as", "read", "write", "method", "value", "query", "now", "allowed")
_DEPTH: Final = 200
"""How deep brackets may be nested in a test file that contains rules."""
_LATEST_MS: Final = 2**53
RED: Final = "31"
GREEN: Final = "32"
YELLOW: Final = "33"


class InvalidCase(Exception):
    """An error in a case or a test file; `str()` is a sentence with the remedy."""


@attrs.frozen
class CaseRequest:
    """The request of a case.

    Attributes:
        method: `GET`, `PUT`, `PATCH`, `POST` or `DELETE`.
        path: the path as it was given.
        place: the place that is read or written; of a `POST` the new child.
        edit: the edit of a write, None for a read.
        query: the facts about the query of a read that rules see.

    """

    method: str
    path: str
    place: Place
    edit: Edit | None = None
    query: QueryFacts | None = None


def parse_request(case: Mapping[str, Any], now: int) -> CaseRequest:
    """Return the request of a case at `now`, in milliseconds since 1970; raise `InvalidCase`."""
    if ("read" in case) is ("write" in case):
        raise InvalidCase('A case has either "read" or "write", with the path.')
    if "read" in case:
        return _parse_read(case)
    if "query" in case:
        raise InvalidCase('"query" belongs to a "read".')
    try:
        return _parse_write(case, now)
    except InvalidData as error:
        raise InvalidCase(f'"value" is not valid: {error}') from None


def _parse_read(case: Mapping[str, Any]) -> CaseRequest:
    for name in ("value", "method"):
        if name in case:
            raise InvalidCase(f'"{name}" belongs to a "write".')
    return CaseRequest(
        "GET", case["read"], _parse_path(case["read"]), query=_parse_query(case.get("query", {}))
    )


def _parse_write(case: Mapping[str, Any], now: int) -> CaseRequest:
    path, place = case["write"], _parse_path(case["write"])
    method = _parse_method(case)
    if ("value" in case) is (method == "DELETE"):
        raise InvalidCase(
            'A write with the method "delete" has no "value".'
            if method == "DELETE"
            else 'A write has a "value", or "method": "delete".'
        )
    if place.is_priority and method in ("PATCH", "POST"):
        raise InvalidCase("A priority can only be read, put and deleted.")
    value: Json = case.get("value")
    if method == "PATCH":
        return CaseRequest(method, path, place, make_patch(place.path, value))
    if method == "DELETE":
        return CaseRequest(method, path, place, make_remove(place))
    if method == "POST":
        # The same key for the same time, so that the verdict on a case is always the same.
        key = PushIds(bytes, lambda: -1).next(now)
        try:
            place = make_place((*place.path, key))
        except InvalidPath as error:
            raise InvalidCase(f'"write": {error}') from None
    return CaseRequest(method, path, place, make_put(place, value))


def _parse_method(case: Mapping[str, Any]) -> str:
    given = case.get("method", "put")
    method = _METHODS_BY_NAME.get(given.lower()) if isinstance(given, str) else None
    if method is None:
        hint = suggest(given, _METHODS_BY_NAME) if isinstance(given, str) else ""
        raise InvalidCase(f'"method" must be put, patch, post or delete. {hint}'.rstrip())
    return method


def _parse_path(path: object) -> Place:
    if not isinstance(path, str):
        raise InvalidCase('A path is a string, such as "/users/ada".')
    if not path.startswith("/"):
        raise InvalidCase(f'The path "{path}" must begin with a slash.')
    try:
        return make_place([segment for segment in path.split("/") if segment])
    except InvalidPath as error:
        hint = " Paths are written without .json here." if ".json" in path else ""
        raise InvalidCase(f'The path "{path}" is not valid: {error}{hint}') from None


def _parse_query(query: object) -> QueryFacts | None:
    """Return the facts about a query that rules see; parameters of REST with JSON values."""
    if not isinstance(query, dict):
        raise InvalidCase('"query" must be an object, such as {"orderBy": "age"}.')
    for name in query:
        if name not in _QUERY:
            hint = suggest(name, _QUERY) or f"Parameters are {', '.join(_QUERY)}."
            raise InvalidCase(f'"{name}" is not a parameter of a query. {hint}')
    try:
        return parse_read_options(
            {name: _parameter(name, value) for name, value in query.items()}
        ).facts
    except InvalidQuery as error:
        raise InvalidCase(f'"query": {error}') from None


def _parameter(name: str, value: Any) -> str:
    """Return the text that a parameter has in a URL."""
    if name in _BOUNDS and isinstance(value, list):  # a value, and the key that follows it
        return ",".join(orjson.dumps(part).decode() for part in value)
    if name == "format" and isinstance(value, str):
        return value
    if name == "orderBy" and isinstance(value, str) and value.startswith('"'):
        raise InvalidCase('"orderBy" is the name itself here, without quotes in it.')
    return orjson.dumps(value).decode()


@attrs.frozen
class RulesCase:
    """One case: the caller, the request, and the expected verdict.

    `number` counts from 1; `now` is in milliseconds since 1970.
    """

    number: int
    name: str
    caller: Caller
    request: CaseRequest
    now: int
    allowed: bool


@attrs.frozen(eq=False)
class RulesSuite:
    """A test file, parsed.

    Attributes:
        file: its name, as it was given.
        rules_file: the name of the rules document; `file` if it contains the rules.
        rules: the rules.
        trial: the rules and the data, which judge the cases.
        cases: the cases.

    """

    file: str
    rules_file: str
    rules: RuleSet
    trial: RulesTrial
    cases: tuple[RulesCase, ...]


def read_suite(file: str, limits: RulesLimits, now: int) -> RulesSuite:
    """Return the suite in a file; raise `CommandFailed`.

    `now` is the time of a case that has none, in milliseconds since 1970.
    """
    raw = _read(pathlib.Path(file), file)
    try:
        return _SuiteParser(file, raw, limits, now).parse()
    except InvalidCase as error:
        raise CommandFailed(f"{file}: {error}") from None


@attrs.define
class _SuiteParser:
    """Parses one file; an `InvalidCase` that it raises does not have the name of the file."""

    file: str
    raw: bytes
    limits: RulesLimits
    now: int

    def parse(self) -> RulesSuite:
        document = self.load()
        check_members(document, _MEMBERS)
        if "rules" not in document:
            raise InvalidCase('There is no "rules": name the file of the rules.')
        self.now = _parse_now(document.get("now", self.now))
        cases = document.get("cases")
        if not isinstance(cases, list) or not cases:
            raise InvalidCase('"cases" must be an array of at least one case.')
        rules_file, rules = self.find_rules(document["rules"])
        parsed = tuple(self.case(number, case) for number, case in enumerate(cases, 1))
        try:
            trial = RulesTrial(rules, document.get("data"), self.now)
        except InvalidData as error:
            raise InvalidCase(f'"data" is not valid: {error}') from None
        return RulesSuite(
            file=self.file, rules_file=rules_file, rules=rules, trial=trial, cases=parsed
        )

    def load(self) -> dict[str, Any]:
        try:
            document = orjson.loads(self.raw)
        except orjson.JSONDecodeError as error:
            where = f"{self.file}:{error.lineno}:{error.colno}"
            raise CommandFailed(f"{where}: Not valid JSON: {error.msg}.") from None
        if not isinstance(document, dict):
            raise InvalidCase('A test file is an object with "rules", "data" and "cases".')
        return document

    def find_rules(self, rules: object) -> tuple[str, RuleSet]:
        """Return the file of the rules, and the rules."""
        if isinstance(rules, dict):
            return self.file, parse_rules_of(self.file, self.cut_out_rules(), self.limits, self.raw)
        if not isinstance(rules, str) or not rules:
            raise InvalidCase('"rules" must be the name of a file, or a rules document.')
        path = pathlib.Path(self.file).parent / rules
        return str(path), parse_rules_of(str(path), _read(path, self.file), self.limits)

    def cut_out_rules(self) -> bytes:
        """Return the text of the rules in the file, padded to its line and column there."""
        source = Source(self.raw.decode())
        try:
            document = finish(parse_document(source, _DEPTH))
        except InvalidRules as error:
            raise CommandFailed(f"{self.file}:{error}") from None
        if not isinstance(document, ObjectItem):
            raise InvalidCase("A test file is an object.")
        item = next(value for key, value in document.members if key.value == "rules")
        if not isinstance(item, ObjectItem):
            raise InvalidCase('The member "rules" is given twice.')
        line, column = source.position(item.offset)
        text = source.text[item.offset : item.end + 1]
        return ("\n" * (line - 1) + " " * (column - 1) + text).encode()

    def case(self, number: int, given: Any) -> RulesCase:
        try:
            if not isinstance(given, dict):
                raise InvalidCase("A case is an object.")
            return self.parse_case(number, given)
        except InvalidCase as error:
            raise InvalidCase(f"case {name_case(number, given)}: {error}") from None

    def parse_case(self, number: int, case: dict[str, Any]) -> RulesCase:
        check_members(case, _CASE_MEMBERS)
        name = case.get("name", "")
        if not isinstance(name, str):
            raise InvalidCase('"name" must be a string.')
        if type(case.get("allowed")) is not bool:
            raise InvalidCase('"allowed" must be true or false: what you expect of the rules.')
        now = _parse_now(case.get("now", self.now))
        request = parse_request(case, now)
        return RulesCase(
            number=number,
            name=name,
            caller=_parse_caller(case),
            request=request,
            now=now,
            allowed=case["allowed"],
        )


def name_case(number: int, case: object) -> str:
    """Return the label of a case in sentences: its number, and its name if it has one."""
    name = case.get("name") if isinstance(case, dict) else None
    return f'{number} "{name}"' if isinstance(name, str) and name else str(number)


def check_members(given: Iterable[str], known: tuple[str, ...]) -> None:
    """Raise `InvalidCase` for a member that is not known."""
    for name in given:
        if name not in known:
            hint = suggest(name, known) or f"Members are {', '.join(known)}."
            raise InvalidCase(f'"{name}" is not a member here. {hint}')


def _parse_caller(case: dict[str, Any]) -> Caller:
    auth: Json | str = case.get("as", "")
    if auth == ADMIN:
        return Caller(None, is_admin=True)
    if isinstance(auth, dict) or auth is None:
        return Caller(auth)
    raise InvalidCase(
        '"as" must say who requests it: null for a caller without a token, the value of auth such '
        'as {"uid": "ada"}, or "admin".'
    )


def _parse_now(now: object) -> int:
    if type(now) is not int or not 0 <= now <= _LATEST_MS:
        raise InvalidCase('"now" must be a whole number of milliseconds since 1970.')
    return now


def _read(path: pathlib.Path, file: str) -> bytes:
    """Return the content of the test file `file`, or of the rules that it names.

    A byte order mark at its beginning is left out.
    """
    try:
        return path.read_bytes().removeprefix(BOM_UTF8)
    except OSError as error:
        if path == pathlib.Path(file):
            raise CommandFailed(f"{file} cannot be read ({error.strerror}).") from None
        raise CommandFailed(
            f"{file}: The rules {path} cannot be read ({error.strerror}): the name is relative to "
            "the folder of the test file."
        ) from None


@attrs.define(eq=False)
class RuleCoverage:
    """How often a rule was true, was false, and failed, which counts as false."""

    rule: Rule
    true: int = 0
    false: int = 0
    failed: int = 0

    @property
    def missing(self) -> str:
        """The result that is missing; empty if none is.

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
        """How many of the possible results it had."""
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


def format_percent(percent: Fraction) -> str:
    """Return a percentage with one decimal, rounded down: 100 % is everything."""
    tenths = percent * 10 // 1
    return f"{tenths // 10}.{tenths % 10} %" if tenths % 10 else f"{tenths // 10} %"


@attrs.frozen(eq=False)
class CaseResult:
    """The verdict on a case; `explanation` is the JSON of an explained request."""

    suite: RulesSuite
    case: RulesCase
    allowed: bool
    explanation: dict[str, Any]
    seconds: float

    @property
    def is_expected(self) -> bool:
        """Whether the verdict is the expected one."""
        return self.allowed is self.case.allowed

    @property
    def title(self) -> str:
        """The case in one line: its number, its name, its request and its caller."""
        case = self.case
        named = name_case(case.number, {"name": case.name})
        return make_printable(f"{named}: {case.request.method} {case.request.path} as {self.who}")

    @property
    def who(self) -> str:
        """The caller in a word: the uid if there is one, as most cases have."""
        caller = self.case.caller
        if caller.is_admin:
            return ADMIN
        auth: Any = caller.auth
        if isinstance(auth, dict) and isinstance(auth.get("uid"), str):
            return str(auth["uid"])
        return orjson.dumps(auth).decode()

    @property
    def reason(self) -> str:
        """Why the request was allowed or denied, in one sentence."""
        if not self.allowed:
            return str(self.explanation["reason"])
        if self.case.caller.is_admin:
            return "Rules do not apply to an admin."
        granting = [
            rule
            for rule in self.explanation["rules"]
            if rule["result"] is True and rule["rule"].endswith((f"/{READ}", f"/{WRITE}"))
        ]
        if not granting:
            return "A write that changes nothing is allowed."
        rule = granting[-1]
        return f"The rule {rule['rule']} ({rule['line']}:{rule['column']}) is true."

    @property
    def details(self) -> list[str]:
        """The values that the rules read, as lines."""
        lines = format_rules(self.explanation["rules"])
        if not self.case.caller.is_admin:
            lines = [format_auth(self.case.caller.auth), *lines]
        return list(map(make_printable, lines))


def judge_suite(suite: RulesSuite, coverage: Coverage) -> list[CaseResult]:
    """Judge the cases of a suite independently; add the results of rules to `coverage`."""
    return [_judge(suite, case, coverage) for case in suite.cases]


def _judge(suite: RulesSuite, case: RulesCase, coverage: Coverage) -> CaseResult:
    begin = perf_counter()
    try:
        verdict = _request(suite, case)
    except InvalidData as error:
        named = name_case(case.number, {"name": case.name})
        raise CommandFailed(f'{suite.file}: case {named}: "value" is not valid: {error}') from None
    seconds = perf_counter() - begin
    coverage.add(verdict.explained.trace)
    caller = case.caller
    shown = explanation(
        verdict.explained, is_admin=caller.is_admin, auth=caller.auth, shows_all=True
    )
    return CaseResult(
        suite=suite, case=case, allowed=verdict.allowed, explanation=shown, seconds=seconds
    )


def _request(suite: RulesSuite, case: RulesCase) -> TrialVerdict:
    request, trial = case.request, suite.trial
    if request.edit is None:
        return trial.judge_read(request.place.path, case.caller, case.now, request.query)
    return trial.judge_write(request.edit, case.caller, case.now)


@attrs.frozen
class RulesReport:
    """The result of a run.

    Attributes:
        results: the results of all cases of all files.
        coverages: the coverage of each rules document.
        required: the required coverage in percent, None without one.

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
        """The share of the results of all rules that were seen; 100 without rules."""
        return Fraction(100 * self.seen, self.possible) if self.possible else Fraction(100)

    @property
    def seen(self) -> int:
        """How many results of rules were seen."""
        return sum(rule.seen for each in self.coverages for rule in each.rules)

    @property
    def possible(self) -> int:
        """How many results the rules can have."""
        return sum(rule.possible for each in self.coverages for rule in each.rules)

    @property
    def is_covered(self) -> bool:
        """Whether the coverage is at least the required one."""
        return self.required is None or self.percent >= self.required

    @property
    def is_success(self) -> bool:
        """Whether all is as expected and required."""
        return self.is_covered and not self.surprises

    @property
    def coverage_line(self) -> str:
        """The coverage in one line, with the required one if that is higher."""
        share = f"{self.seen} of {self.possible} results of rules"
        shown = f"coverage {format_percent(self.percent)}: {share}"
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
    """Return a line for each rule with a missing result."""
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


def to_junit(report: RulesReport) -> bytes:
    """Return the report as JUnit's XML: a suite for each file, a failure for each surprise.

    Insufficient coverage is a failure of a case of its own.
    """
    root = ElementTree.Element("testsuites", name="treedb rules test")
    for file, results in groupby(report.results, lambda result: result.suite.file):
        _add_suite(root, file, list(results))
    if report.required is not None:
        failures = str(int(not report.is_covered))
        element = ElementTree.SubElement(
            root, "testsuite", name="coverage", tests="1", failures=failures, errors="0"
        )
        case = ElementTree.SubElement(element, "testcase", classname="coverage", name="coverage")
        if not report.is_covered:
            _add_failure(case, report.coverage_line, list(missing_lines(report)))
    xml: bytes = ElementTree.tostring(root, "utf-8", xml_declaration=True)
    return xml + b"\n"


def _add_suite(root: ElementTree.Element, file: str, results: Sequence[CaseResult]) -> None:
    failures = str(sum(not result.is_expected for result in results))
    shown, seconds = make_printable(file), sum(result.seconds for result in results)
    suite = ElementTree.SubElement(
        root, "testsuite", name=shown, tests=str(len(results)), failures=failures, errors="0"
    )
    suite.set("time", f"{seconds:.6f}")
    for result in results:
        case = ElementTree.SubElement(suite, "testcase", classname=shown, name=result.title)
        case.set("time", f"{result.seconds:.6f}")
        if not result.is_expected:
            message = f"{word_of(result.allowed)}, expected {word_of(result.case.allowed)}"
            _add_failure(case, f"{message}: {result.reason}", result.details)


def _add_failure(case: ElementTree.Element, message: str, details: Sequence[str]) -> None:
    failure = ElementTree.SubElement(case, "failure", message=make_printable(message))
    failure.text = "\n".join(details)


def run(arguments: Namespace) -> Status:
    """Judge the cases of some files, and report; return the exit status."""
    report = _test(arguments.files, _limits(arguments), arguments.required)
    if arguments.junit is not None:
        _write(arguments.junit, to_junit(report))
    if arguments.json:
        write_out(to_json(report) + b"\n")
    else:
        lines = to_lines(report, is_verbose=arguments.verbose, has_colour=has_colour())
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
    return read_settings(arguments).rules


def _write(file: pathlib.Path, content: bytes) -> None:
    with reported(file, "written"):
        file.write_bytes(content)
