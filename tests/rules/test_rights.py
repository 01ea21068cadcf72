"""Verdicts without a view: what the rules alone tell is what their whole evaluation tells."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.rules.evaluating import NOW, place, rules, view
from tests.rules.test_partial import AUTHS, VALUES, random_expression, random_path
from treedbd.rules.context import Context, QueryFacts
from treedbd.rules.document import InvalidRules
from treedbd.rules.ruleset import MAX_CHANGES_KNOWN, RuleSet
from treedbd.tree.edit import make_patch, make_put
from treedbd.tree.types import Place

ANN: Any = {"uid": "ann", "token": {"admin": True}}
WITHOUT_DATA = [True, False, "auth != null", "auth.uid == 'ann'", "$a == auth.uid"]
OWN = "auth.uid === $uid"


def find_read(rule: object, auth: Any = None, query: QueryFacts | None = None) -> bool | None:
    """Return what a rule at `/a/$uid` tells of a read of `/a/ann/b`."""
    return rules({"a": {"$uid": {".read": rule}}}).find_read(("a", "ann", "b"), auth, query)


def find_put(nodes: Any, path: str, value: Any, auth: Any = None) -> bool | None:
    """Return what rules tell of a PUT."""
    return rules(nodes).find_write(make_put(place(path), value).changes, auth)


@pytest.mark.parametrize(
    ("rule", "anonymous", "ann"),
    [
        (True, True, True),
        (False, False, False),
        ("auth != null", False, True),
        (OWN, False, True),
        ("auth.uid === $uid && auth.token.admin == true", False, True),
        ("$uid.length > 3", False, False),
        ("query.limitToFirst == 2", False, False),
        ("$uid == 'ann' || data.exists()", None, None),
        ("root.child('a').exists()", None, None),
        ("now > 0", None, None),
    ],
)
def test_a_read_verdict_is_told_by_rules_that_read_neither_data_nor_time(
    rule: object, anonymous: bool | None, ann: bool | None
) -> None:
    assert find_read(rule) is anonymous
    assert find_read(rule, ANN) is ann


def test_the_query_of_a_read_is_known() -> None:
    rule = "query.limitToFirst <= 2"
    assert find_read(rule, query=QueryFacts(limit_to_first=2)) is True
    assert find_read(rule, query=QueryFacts(limit_to_first=3)) is False


def test_the_first_rule_that_is_true_tells_the_verdict_on_a_read() -> None:
    above = {".read": "auth != null", "a": {".read": "data.exists()", "b": {".read": True}}}
    assert rules(above).find_read(("a", "b"), ANN) is True
    assert rules(above).find_read(("a", "b"), None) is None
    assert rules({"a": {".read": OWN.replace("$uid", "'ann'")}}).find_read((), ANN) is False


def test_a_write_verdict_is_told_by_rules_that_read_neither_data_nor_time() -> None:
    own = {"$uid": {".write": OWN}}
    assert find_put(own, "ann/b", 1, ANN) is True
    assert find_put(own, "bob/b", 1, ANN) is False
    assert find_put(own, "ann", None, ANN) is True
    assert find_put({".write": "newData.exists()"}, "a", 1) is None
    assert find_put({".write": "data.exists() || true"}, "a", 1) is None


def test_rules_that_validate_need_what_is_written_unless_they_read_no_data() -> None:
    assert find_put({".write": True, "a": {".validate": False}}, "a", 1) is False
    assert find_put({".write": True, "a": {".validate": "auth == null"}}, "a", 1) is True
    assert find_put({".write": True, "a": {".validate": "auth == null"}}, "a", None) is None
    assert find_put({".write": True, "a": {".validate": "newData.isString()"}}, "a", 1) is None
    below = {".write": True, "a": {"b": {".validate": False}}}
    assert find_put(below, "a", 1) is True
    assert find_put(below, "a", {"b": 1}) is None
    assert find_put(below, "a", None) is True


def test_an_edit_of_many_changes_is_left_to_the_evaluation_with_a_deadline() -> None:
    own = rules({"$uid": {".write": OWN}})
    members: Any = {str(at): at for at in range(MAX_CHANGES_KNOWN)}
    assert own.find_write(make_patch(("ann",), members).changes, ANN) is True
    assert own.find_write(make_patch(("ann",), {**members, "x": 1}).changes, ANN) is None


def test_what_one_change_of_an_edit_may_says_nothing_about_places_beside_it() -> None:
    some = rules({"a": {".write": True}, "b": {".write": OWN.replace("$uid", "'ann'")}, "c": {}})
    assert some.find_write(make_patch((), {"a/x": 1, "a/y": 2, "b": 3}).changes, ANN) is True
    assert some.find_write(make_patch((), {"a/x": 1, "b": 3}).changes, None) is False
    assert some.find_write(make_patch((), {"a/x": 1, "ab": 3}).changes, ANN) is False
    under = rules({".write": True, "a": {"b": {".validate": "newData.isString()"}}})
    assert under.find_write(make_patch((), {"a/a": 1, "a/b": "x"}).changes, None) is None
    assert under.find_write(make_patch((), {"a/a": 1, "c/b": "x"}).changes, None) is True


def test_a_rule_that_costs_anything_is_left_to_the_evaluation_with_a_budget() -> None:
    caller: Any = {"uid": "a" * 5000}
    assert find_read("auth.uid.replace('a', 'b') == 'b'", caller) is None
    assert find_read("auth.uid.replace('a', 'b') == 'b'", {"uid": 1}) is False


def test_what_is_told_without_a_view_is_the_verdict_of_the_whole_evaluation() -> None:
    chance = random.Random(10)
    told = 0
    for _ in range(1500):
        rule_set = draw_rules(chance)
        auth, data = chance.choice(AUTHS), chance.choice(VALUES)
        value: Any = chance.choice(VALUES)
        path = place(random_path(chance)).path
        query = chance.choice([None, QueryFacts(limit_to_first=1)])
        found = rule_set.find_read(path, auth, query)
        whole = rule_set.may_read(path, Context(auth, NOW, view(data), query)).allowed
        assert found in (None, whole), (rule_set.text, path, auth)
        edit = make_put(Place(path), value)
        if chance.random() < 0.3:
            edit = make_patch(path, {"a": value, "b/c": 1})
        done = rule_set.find_write(edit.changes, auth)
        whole = rule_set.may_write(edit.changes, Context(auth, NOW, view(data))).allowed
        assert done in (None, whole), (rule_set.text, path, auth)
        told += (found is not None) + (done is not None)
    assert told > 1000


def draw_rules(chance: random.Random) -> RuleSet:
    """Return rules of random expressions, some without data, at nodes from the root down."""

    def node() -> dict[str, Any]:
        found: dict[str, Any] = {}
        for kind in (".read", ".write", ".validate"):
            if chance.random() < 0.5:
                rule = chance.choice([*WITHOUT_DATA, None])
                if rule is None:
                    rule = random_expression(chance).replace("$uid", "$a")
                found[kind] = rule
        return found

    below = {**node(), "a": node(), "$b": node()}
    try:
        return rules({"$a": below, "a": {"ann": node()}})
    except InvalidRules:
        return draw_rules(chance)
