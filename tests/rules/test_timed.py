from __future__ import annotations

import json
from typing import Any

import pytest

from tests.rules.evaluating import NOW, normal, place
from tests.tree.value_view import ValueView
from treedbd.rules.context import Context, SlowRules, SlowRulesReport
from treedbd.rules.ruleset import RuleSet, parse_rules
from treedbd.tree.types import Change

RULES = """{"rules": {
  ".read": "auth != null",
  "list": {".write": true, "$key": {
    ".validate": "newData.isString() && newData.val().matches(/^(a|b)*$/)"
  }}
}}"""
LONG = {f"k{number}": "ab" * 2000 for number in range(50)}


class Reports:
    def __init__(self, least_s: float = 0.0) -> None:
        self.slow: list[SlowRules] = []
        self.report = SlowRulesReport(least_s, self.slow.append)

    def context(self, value: Any, check: Any = None) -> Context:
        view = ValueView(normal(value))
        return Context({"uid": "a"}, NOW, view, check=check, slow_rules=self.report)


@pytest.fixture
def rules() -> RuleSet:
    return parse_rules(RULES)


def test_the_rule_that_takes_longest_is_named_with_its_position_and_its_count(
    rules: RuleSet,
) -> None:
    reports = Reports()
    change = Change(place("list"), normal(LONG))
    assert rules.may_write([change], reports.context(None)).allowed
    (slow,) = reports.slow
    assert (slow.location, slow.count) == ("rules/list/$key/.validate", 50)
    assert (slow.position.line, slow.position.column) == (4, 19)
    assert slow.seconds >= slow.slowest_s > 0


def test_a_verdict_is_the_same_measured_or_not(rules: RuleSet) -> None:
    for value in ({"a": "ab"}, {"a": 1}, {"a": "c"}):
        change = Change(place("list"), normal(value))
        measured = rules.may_write([change], Reports().context(None))
        plain = rules.may_write([change], Context({"uid": "a"}, NOW, ValueView(None)))
        assert measured == plain
    assert rules.may_read(("x",), Reports().context(None)).allowed


def test_fast_rules_are_not_reported(rules: RuleSet) -> None:
    reports = Reports(least_s=60.0)
    assert rules.may_read(("x",), reports.context(None)).allowed
    assert reports.slow == []


def test_an_evaluation_that_is_stopped_is_reported_too(rules: RuleSet) -> None:
    checks = iter([None] * 5)
    reports = Reports()

    def check() -> None:
        if next(checks, "end") == "end":
            raise TimeoutError

    change = Change(place("list"), normal(LONG))
    with pytest.raises(TimeoutError):
        rules.may_write([change], reports.context(None, check))
    (slow,) = reports.slow
    assert 0 < slow.count < 50


def test_what_others_do_in_pauses_does_not_count(
    rules: RuleSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0

    def pause() -> None:
        nonlocal now
        now += 1000.0

    monkeypatch.setattr("treedbd.rules.evaluate.perf_counter", lambda: now)
    reports = Reports()
    change = Change(place("list"), normal({"a": "ab"}))
    assert rules.may_write([change], reports.context(None, pause)).allowed
    assert [slow.seconds for slow in reports.slow] == [0.0]


def test_explanations_are_the_same(rules: RuleSet) -> None:
    change = Change(place("list"), normal({"a": 1}))
    verdict = rules.may_write([change], Reports().context(None), explain=True)
    assert [result.result for result in verdict.trace] == [True, False]
    assert json.dumps(verdict.trace[1].location) == '"rules/list/$key/.validate"'
