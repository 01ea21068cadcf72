"""The results of cases: the verdict on each, and why it was reached."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import attrs
import orjson

from treedbd.cli.exit import CommandFailed, make_printable
from treedbd.cli.rules_testing.coverage import Coverage
from treedbd.cli.rules_testing.suite import ADMIN, RulesCase, RulesSuite, name_case
from treedbd.database.rules_trial import TrialVerdict
from treedbd.rules.evaluate import READ, WRITE
from treedbd.rules.ruleset import format_auth, format_rules
from treedbd.tree.types import InvalidData
from treedbd.web.reading import explanation


@attrs.frozen(eq=False)
class CaseResult:
    """The verdict on a case; `explanation` is JSON as an explained request has it."""

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
        """The case in one line: its number, its name, who requests what."""
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
        """What the rules saw, as lines."""
        lines = format_rules(self.explanation["rules"])
        if not self.case.caller.is_admin:
            lines = [format_auth(self.case.caller.auth), *lines]
        return list(map(make_printable, lines))


def judge_suite(suite: RulesSuite, coverage: Coverage) -> list[CaseResult]:
    """Judge the cases of a suite, each for itself; add what rules were evaluated to `coverage`."""
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
    return CaseResult(suite, case, verdict.allowed, shown, seconds)


def _request(suite: RulesSuite, case: RulesCase) -> TrialVerdict:
    request, trial = case.request, suite.trial
    if request.edit is None:
        return trial.judge_read(request.place.path, case.caller, case.now, request.query)
    return trial.judge_write(request.edit, case.caller, case.now)
