"""The interface of the package: text, plain JSON, verdicts, explanations, dependencies, indexes."""

from __future__ import annotations

import json

import pytest

from tests.rules.evaluating import NOW, rules, view
from tests.tree.value_view import ValueView
from treedbd.loop import finish
from treedbd.rules import ruleset
from treedbd.rules.context import Context
from treedbd.rules.document import InvalidRules
from treedbd.rules.ruleset import DENY, OPEN, parse_rules
from treedbd.tree.overlay import Overlay
from treedbd.tree.types import Change, Place

TEXT = """{
  // who may
  "rules": {
    ".read": "auth != null && // signed in
              auth.uid == 'a'",
    "b": { ".write": true, ".indexOn": ["x", "y",], },
  },
}
"""
ANYONE = Context(None, NOW, view(None))
WRITE = (Change(Place(("a",)), 1),)


def test_rules_read_back_as_they_were_put() -> None:
    assert parse_rules(TEXT).text == TEXT
    assert parse_rules(TEXT.encode()).text == TEXT


def test_rules_are_available_as_plain_json() -> None:
    plain = finish(parse_rules(TEXT).as_json())
    assert json.dumps(plain) == json.dumps(
        {
            "rules": {
                ".read": "auth != null && // signed in\n              auth.uid == 'a'",
                "b": {".write": True, ".indexOn": ["x", "y"]},
            }
        }
    )
    assert finish(parse_rules(json.dumps(plain)).as_json()) == plain


def test_an_error_has_line_column_and_text() -> None:
    with pytest.raises(InvalidRules) as caught:
        parse_rules('{"rules": {\n  ".read": "foo"}}')
    error = caught.value
    assert (error.line, error.column, error.text) == (2, 13, "Unknown variable 'foo'.")
    assert str(error) == "2:13: Unknown variable 'foo'."


def test_open_allows_and_deny_denies() -> None:
    assert OPEN.may_read((), ANYONE).allowed
    assert OPEN.may_write(WRITE, ANYONE).allowed
    assert not DENY.may_read((), ANYONE).allowed
    assert not DENY.may_write(WRITE, ANYONE).allowed
    assert DENY.text == '{"rules":{}}'


@pytest.mark.parametrize("rule", ['".write": true', '".write": "true"'])
@pytest.mark.parametrize("validate", ['".validate": false', '"a": {".validate": false}'])
def test_a_write_that_is_allowed_everywhere_is_still_validated(rule: str, validate: str) -> None:
    limited = parse_rules(f'{{"rules": {{{rule}, {validate}}}}}')
    assert not limited.may_write(WRITE, ANYONE).allowed


def test_a_constant_at_the_root_that_is_false_allows_what_a_rule_below_allows() -> None:
    partly = parse_rules('{"rules": {".read": false, ".write": false, "a": {".read": true}}}')
    assert partly.may_read(("a",), ANYONE).allowed
    assert not partly.may_read((), ANYONE).allowed
    assert not partly.may_write(WRITE, ANYONE).allowed


def test_open_rules_are_explained_and_recorded_when_requested() -> None:
    assert OPEN.may_read(("a",), ANYONE, explain=True).trace
    assert OPEN.may_read(("a",), ANYONE, record=True).dependencies is not None
    assert OPEN.may_write(WRITE, ANYONE, explain=True).trace


def test_nothing_is_explained_or_recorded_unless_requested() -> None:
    verdict = OPEN.may_read((), ANYONE)
    assert verdict.trace == ()
    assert verdict.dependencies is None


def test_constant_rules_need_no_scope_and_no_overlay(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    for name in ("Scope", "Overlay"):
        monkeypatch.setattr(ruleset, name, lambda *_, name=name: made.append(name))
    nodes = {".read": False, ".write": True, ".validate": True, "a": {".read": True}}
    constant = rules(nodes | {"b": {".validate": False}})
    assert constant.may_read(("a",), ANYONE).allowed
    assert not constant.may_read(("b",), ANYONE, record=True).allowed
    assert constant.may_write(WRITE, ANYONE).allowed
    assert not constant.may_write((*WRITE, Change(Place(("b",)), 1)), ANYONE).allowed
    assert made == []


def test_a_write_can_be_evaluated_against_a_view_of_its_result() -> None:
    sums = rules({".write": "newData.child('a').val() == 1"})
    after = Overlay(ValueView(None), WRITE)
    assert sums.may_write(WRITE, ANYONE, after=after).allowed
    assert not sums.may_write(WRITE, ANYONE, after=view({"a": 2})).allowed


INDEXED = rules(
    {
        ".indexOn": ".value",
        "users": {"$u": {".indexOn": ["name", "/at//x/"]}, "me": {}},
        "list": {".indexOn": []},
    }
)


def test_indexes_are_known_by_path() -> None:
    assert INDEXED.indexed(()) == {".value"}
    assert INDEXED.indexed(("users", "u")) == {"name", "at/x"}
    assert INDEXED.indexed(("users", "me")) == frozenset()
    assert INDEXED.indexed(("users",)) == frozenset()
    assert INDEXED.indexed(("users", "u", "x")) == frozenset()
    assert INDEXED.indexed(("no", "where")) == frozenset()


def test_the_rules_are_listed_in_the_order_of_the_document() -> None:
    document = {"b": {".write": True, "$k": {".read": "true"}}, ".read": "data.exists()", "a": {}}
    listed = [(rule.location, rule.constant) for rule in rules(document).rules()]
    assert listed == [
        ("rules/b/.write", True),
        ("rules/b/$k/.read", True),
        ("rules/.read", None),
    ]
