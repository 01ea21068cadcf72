"""The door of the room: text in, text out, explanations, records, indexes."""

from __future__ import annotations

import json

import pytest

from tests.rules.asking import NOW, rules, view
from treedbd.rules.evaluation import Context
from treedbd.rules.overlay import Overlay
from treedbd.rules.refusal import InvalidRules
from treedbd.rules.ruleset import DENY, OPEN, parse_rules
from treedbd.tree.edit import Change
from treedbd.tree.path import Place
from treedbd.tree.view import ValueView

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


def test_rules_can_be_had_as_plain_json() -> None:
    plain = parse_rules(TEXT).as_json()
    assert json.dumps(plain) == json.dumps(
        {
            "rules": {
                ".read": "auth != null && // signed in\n              auth.uid == 'a'",
                "b": {".write": True, ".indexOn": ["x", "y"]},
            }
        }
    )
    assert parse_rules(json.dumps(plain)).as_json() == plain


def test_refused_rules_say_line_column_and_why() -> None:
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


def test_nothing_is_explained_or_recorded_unless_asked() -> None:
    verdict = OPEN.may_read((), ANYONE)
    assert verdict.trace == ()
    assert verdict.dependencies is None


def test_a_write_can_be_judged_against_a_view_of_its_result() -> None:
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
