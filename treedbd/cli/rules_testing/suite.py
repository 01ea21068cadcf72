"""A test file of rules: which rules, which data, and the cases that are judged by them.

Everything in a file is checked before the first case is judged. What is wrong with it is one
sentence that names the file, the number of the case, and the remedy.
"""

from __future__ import annotations

import pathlib
from codecs import BOM_UTF8
from collections.abc import Iterable
from typing import Any, Final, NoReturn

import attrs
import orjson

from treedbd.cli.exit import CommandFailed
from treedbd.cli.rules_check import parse_rules_of
from treedbd.cli.rules_testing.requests import CaseRequest, InvalidCase, parse_request
from treedbd.database.requests import Caller
from treedbd.database.rules_trial import RulesTrial
from treedbd.limits import RulesLimits
from treedbd.loop import finish
from treedbd.rules.document import InvalidRules, ObjectItem, Source, parse_document, suggest
from treedbd.rules.ruleset import RuleSet
from treedbd.tree.types import InvalidData, Json

ADMIN: Final = "admin"
_MEMBERS: Final = ("rules", "data", "now", "cases")
_CASE_MEMBERS: Final = (
    *("name", "as", "read", "write", "method", "value", "query", "now", "allowed"),
)
_DEPTH: Final = 200
"""Brackets that a test file with rules in it may have within each other."""
_LATEST_MS: Final = 2**53


@attrs.frozen
class RulesCase:
    """One case: who requests what, and whether the rules are to allow it.

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
        rules_file: the name of the rules document, which is `file` if the rules are in it.
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


class _SuiteParser:
    """The parse of one file; what raises `InvalidCase` does so without the file's name."""

    def __init__(self, file: str, raw: bytes, limits: RulesLimits, now: int) -> None:
        self.file = file
        self.raw = raw
        self.limits = limits
        self.now = now

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
        return RulesSuite(self.file, rules_file, rules, trial, parsed)

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
        """Return the text of the rules in the file, at the line and column that it has there."""
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
        return RulesCase(number, name, _parse_caller(case), request, now, case["allowed"])


def name_case(number: int, case: object) -> str:
    """Return how sentences name a case: its number, and its name if it has one."""
    name = case.get("name") if isinstance(case, dict) else None
    return f'{number} "{name}"' if isinstance(name, str) and name else str(number)


def check_members(given: Iterable[str], known: tuple[str, ...]) -> None:
    """Raise `InvalidCase` for a member that is not known."""
    for name in given:
        if name not in known:
            hint = suggest(name, known) or f"Members are {', '.join(known)}."
            raise InvalidCase(f'"{name}" is no member here. {hint}')


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
    """Return the content of a file that is needed for the test file `file`.

    A byte order mark at its beginning is left out.
    """
    try:
        return path.read_bytes().removeprefix(BOM_UTF8)
    except OSError as error:
        _fail_to_read(path, file, error)


def _fail_to_read(path: pathlib.Path, file: str, error: OSError) -> NoReturn:
    if str(path) == str(pathlib.Path(file)):
        raise CommandFailed(f"{file} cannot be read ({error.strerror}).") from None
    raise CommandFailed(
        f"{file}: The rules {path} cannot be read ({error.strerror}): the name is relative to the "
        "folder of the test file."
    ) from None
