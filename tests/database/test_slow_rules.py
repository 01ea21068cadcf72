from __future__ import annotations

import json

from twisted.internet.task import Clock

from tests.http1.test_reply import RecordedLog
from treedbd.database.active_rules import FIELDS, SlowRulesLog
from treedbd.errors import BUDGET_LINES
from treedbd.names import DatabaseName
from treedbd.operating.log import entry_of, format_json
from treedbd.rules.context import SlowRules
from treedbd.rules.document import TextPosition

SLOW = SlowRules(0.25, "rules/users/$uid/.read", TextPosition(3, 12), 0.2, 7)
NAME = DatabaseName("shop", "eu")


def warn(times: int, clock: Clock) -> list[str]:
    log = SlowRulesLog(0.1, clock.seconds)
    report = log.measure(NAME)
    with RecordedLog() as recorded:
        for _ in range(times):
            report.report(SLOW)
    return [format_json(entry_of(event)) for event in recorded.events]


def test_the_warning_names_the_rule_its_position_and_the_remedy() -> None:
    (line,) = warn(1, Clock())
    shown = json.loads(line)
    assert shown["level"] == "warn"
    assert "250.0 ms for one request to eu--shop" in shown["message"]
    assert "rules/users/$uid/.read at 3:12 of the rules" in shown["message"]
    assert "evaluated 7 times" in shown["message"]
    assert "Make it read less" in shown["message"]
    assert {name: shown[name] for name in FIELDS} == {
        "project": "shop",
        "database": "eu",
        "rule": SLOW.location,
        "line": 3,
        "column": 12,
        "rules_ms": 250.0,
    }


def test_the_warnings_of_a_minute_are_bounded() -> None:
    assert len(warn(10 * BUDGET_LINES, Clock())) == BUDGET_LINES
