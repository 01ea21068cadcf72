"""Which rules are evaluated, in which order, and what they read."""

from __future__ import annotations

from typing import Any

import pytest

from tests.rules.evaluating import NOW, may_read, may_write, normal, place, rules, view
from treedbd.rules.context import Context, QueryFacts
from treedbd.rules.evaluate import RuleResult
from treedbd.tree.types import Change

ERROR = "auth.x.contains('a')"


@pytest.mark.parametrize(
    ("nodes", "path", "allowed"),
    [
        ({}, "", False),
        ({}, "a/b", False),
        ({".read": True}, "", True),
        ({".read": True}, "a/b/c", True),
        ({".read": False}, "", False),
        ({"a": {".read": True}}, "", False),
        ({"a": {".read": True}}, "a", True),
        ({"a": {".read": True}}, "a/b", True),
        ({"a": {".read": True}}, "b", False),
        ({".read": True, "a": {".read": False}}, "a", True),
        ({"a": {".read": False, "b": {".read": True}}}, "a", False),
        ({"a": {".read": False, "b": {".read": True}}}, "a/b", True),
        ({"a": {".read": True, "b": {".read": ERROR}}}, "a/b", True),
        ({".read": ERROR, "a": {".read": True}}, "a", True),
        ({".read": ERROR}, "a", False),
        ({".write": True}, "a", False),
        ({"$k": {".read": True}}, "a", True),
        ({"$k": {".read": "$k == 'a'"}}, "a/b", True),
        ({"$k": {".read": "$k == 'a'"}}, "b", False),
        ({"$k": {"$l": {".read": "$k + $l == 'ab'"}}}, "a/b", True),
        ({"$k": {".read": True}, "a": {".read": False}}, "a", False),
        ({"a": {".read": False}, "$k": {".read": True}}, "a", False),
        ({"a": {".read": True}, "$k": {".read": False}}, "a", True),
        ({"$k": {".read": False}, "a": {".read": True}}, "a", True),
        ({"a": {}, "$k": {".read": True}}, "a", False),
        ({"a": {}, "$k": {"b": {".read": True}}}, "a/b", False),
    ],
)
def test_a_read_is_allowed_by_a_rule_at_or_above_its_path(
    nodes: Any, path: str, allowed: bool
) -> None:
    assert may_read(rules(nodes), path) is allowed


def test_a_read_rule_reads_its_own_node() -> None:
    owner = {"$room": {".read": "data.child('owner').val() == auth.uid", "log": {}}}
    data = {"one": {"owner": "u"}, "two": {"owner": "v"}}
    for path, allowed in (("one", True), ("one/log/1", True), ("two", False), ("", False)):
        assert may_read(rules(owner), path, data, auth={"uid": "u"}) is allowed


def test_a_query_is_evaluated_as_a_read_with_query_defined() -> None:
    first_ten = rules({"list": {".read": "query.orderByKey && query.limitToFirst <= 10"}})
    assert not may_read(first_ten, "list")
    assert may_read(first_ten, "list", query=QueryFacts(order_by_key=True, limit_to_first=10))
    assert not may_read(first_ten, "list", query=QueryFacts(order_by_key=True, limit_to_first=11))


@pytest.mark.parametrize(
    ("nodes", "path", "allowed"),
    [
        ({}, "a", False),
        ({".write": True}, "a/b", True),
        ({".write": True}, "", True),
        ({"a": {".write": True}}, "", False),
        ({"a": {".write": True}}, "a", True),
        ({"a": {".write": True}}, "a/b/c", True),
        ({"a": {".write": True, "b": {".write": False}}}, "a/b", True),
        ({"a": {".write": False, "b": {".write": True}}}, "a/b", True),
        ({"a": {".write": False, "b": {".write": True}}}, "a", False),
        ({".write": ERROR, "a": {".write": True}}, "a", True),
        ({".write": ERROR}, "a", False),
        ({".read": True}, "a", False),
        ({"$k": {".write": "$k == 'a'"}}, "a", True),
        ({"$k": {".write": True}, "a": {}}, "a", False),
    ],
)
def test_a_write_is_allowed_by_a_rule_at_or_above_its_path(
    nodes: Any, path: str, allowed: bool
) -> None:
    assert may_write(rules(nodes), {path: {"x": 1}}) is allowed


def validated(nodes: Any) -> Any:
    return rules({".write": True, **nodes})


RECORD = {"users": {"$u": {".validate": "newData.hasChildren(['name', 'age'])"}}}
SUM = {"a": {".validate": "newData.child('n').val() + newData.child('m').val() == 10"}}


@pytest.mark.parametrize(
    ("nodes", "changes", "data", "allowed"),
    [
        ({".validate": True}, {"a": 1}, None, True),
        ({".validate": False}, {"a": 1}, None, False),
        ({".validate": ERROR}, {"a": 1}, None, False),
        ({".validate": False}, {"": None}, {"a": 1}, True),
        # on the path: the merged result at an ancestor
        (RECORD, {"users/u": {"name": "A", "age": 1}}, None, True),
        (RECORD, {"users/u": {"name": "A"}}, None, False),
        (RECORD, {"users/u/name": "B"}, {"users": {"u": {"name": "A", "age": 1}}}, True),
        (RECORD, {"users/u/name": "B"}, {"users": {"u": {"name": "A"}}}, False),
        (RECORD, {"users/u/name/deep": "B"}, {"users": {"u": {"name": "A"}}}, False),
        # below the target: every written node that has a rule, changed or not
        (RECORD, {"users": {"u": {"name": "A"}, "v": {"name": "B", "age": 1}}}, None, False),
        (RECORD, {"": {"users": {"u": {"name": "A", "age": 1}}}}, None, True),
        (RECORD, {"": {"users": {"u": 1}}}, {"users": {"u": 1}}, False),
        ({"a": {"b": {".validate": "newData.isString()"}}}, {"a": {"b": 1}}, None, False),
        ({"a": {"b": {".validate": "newData.isString()"}}}, {"a": {"c": 1}}, None, True),
        ({"a": {"b": {".validate": "newData.isString()"}}}, {"a": 1}, None, True),
        ({"$k": {".validate": False}, "a": {}}, {"": {"a": 1}}, None, True),
        ({"$k": {".validate": False}, "a": {}}, {"": {"b": 1}}, None, False),
        ({"$k": {"$l": {".validate": "$k == $l"}}}, {"": {"x": {"x": 1}}}, None, True),
        ({"$k": {"$l": {".validate": "$k == $l"}}}, {"": {"x": {"y": 1}}}, None, False),
        # siblings that are not written are never validated
        (RECORD, {"users/u": {"name": "A", "age": 1}}, {"users": {"v": 1}}, True),
        # all must be true
        (
            {".validate": True, "a": {".validate": True, "b": {".validate": False}}},
            {"a/b": 1},
            None,
            False,
        ),
        (
            {".validate": False, "a": {".validate": True}},
            {"a": 1},
            None,
            False,
        ),
        # removals
        (RECORD, {"users/u/name": None}, {"users": {"u": {"name": "A", "age": 1}}}, False),
        (RECORD, {"users/u": None}, {"users": {"u": {"name": "A", "age": 1}}}, True),
        (RECORD, {"users/u/name": None}, {"users": {"u": {"name": "A"}}}, True),
        (RECORD, {"users/u/gone": None}, {"users": {"u": {"name": "A"}}}, False),
        (RECORD, {"users/u": {}}, {"users": {"u": {"name": "A", "age": 1}}}, True),
        (RECORD, {"users/v": None}, {"users": {"u": {"name": "A", "age": 1}}}, True),
        # several changes at once
        (SUM, {"a/n": 4, "a/m": 6}, {"a": {"n": 1, "m": 9}}, True),
        (SUM, {"a/n": 4, "a/m": 7}, {"a": {"n": 1, "m": 9}}, False),
        (SUM, {"a/n": 4}, {"a": {"n": 1, "m": 9}}, False),
        (SUM, {"a": None, "b": 1}, {"a": {"n": 1, "m": 9}}, True),
        # only a priority
        ({"a": {".validate": "newData.getPriority() == 2"}}, {"a/.priority": 2}, {"a": 1}, True),
        ({"a": {".validate": "newData.getPriority() == 2"}}, {"a/.priority": 3}, {"a": 1}, False),
        ({"a": {".validate": False}}, {"a/.priority": 3}, None, True),
        ({"a": {"b": {".validate": False}}}, {"a/.priority": 3}, {"a": {"b": 1}}, True),
        ({".validate": False}, {"a/.priority": 3}, {"a": 1}, False),
    ],
)
def test_validation(nodes: Any, changes: dict[str, Any], data: Any, allowed: bool) -> None:
    assert may_write(validated(nodes), changes, data) is allowed


def test_a_validate_rule_allows_nothing_by_itself() -> None:
    assert not may_write(rules({".validate": True}), {"a": 1})


def test_a_write_without_changes_is_allowed() -> None:
    assert may_write(rules({}), {})


@pytest.mark.parametrize(
    ("changes", "allowed"),
    [({"a": 1}, True), ({"b": 1}, False), ({"a": 1, "b": 1}, False), ({"a/x": 1, "a/y": 1}, True)],
)
def test_each_key_of_a_patch_must_be_allowed_by_itself(
    changes: dict[str, Any], allowed: bool
) -> None:
    assert may_write(rules({"a": {".write": True}}), changes) is allowed


def test_each_key_of_a_patch_is_evaluated_with_all_the_others() -> None:
    linked = rules(
        {
            "posts": {"$p": {".write": "newData.parent().parent().hasChild('index/' + $p)"}},
            "index": {"$p": {".write": "newData.parent().parent().hasChild('posts/' + $p)"}},
        }
    )
    assert may_write(linked, {"posts/x": 1, "index/x": 1})
    assert not may_write(linked, {"posts/x": 1})
    assert may_write(linked, {"posts/x": None, "index/y": None}, {"posts": {"y": 1}}) is False


def test_data_and_new_data_are_the_node_of_the_rule() -> None:
    counter = rules(
        {
            "n": {
                ".write": "newData.val() == data.val() + 1 || !data.exists()",
                ".validate": "newData.isNumber() && newData.parent().child('n').exists()",
            }
        }
    )
    assert may_write(counter, {"n": 8}, {"n": 7})
    assert not may_write(counter, {"n": 9}, {"n": 7})
    assert not may_write(counter, {"n": "x"})


def test_root_is_the_tree_before_the_write() -> None:
    locked = rules({".write": "!root.child('locked').exists()"})
    assert may_write(locked, {"locked": True})
    assert not may_write(locked, {"locked": None}, {"locked": True})


def test_val_is_without_the_priority_of_a_write() -> None:
    ranked = rules(
        {".write": "newData.val() == 5 && newData.getPriority() == 1 && data.getPriority() == 2"}
    )
    before = {".value": 4, ".priority": 2}
    assert may_write(ranked, {"": {".value": 5, ".priority": 1}}, before)
    assert not may_write(ranked, {"": 5}, before)


def trace(nodes: Any, changes: dict[str, Any], data: Any = None) -> list[tuple[str, str, object]]:
    listed = [Change(place(path), normal(value)) for path, value in changes.items()]
    verdict = rules(nodes).may_write(listed, Context(None, NOW, view(data)), explain=True)
    return [(rule.location, "/".join(rule.path), rule.result) for rule in verdict.trace]


def test_the_trace_lists_the_rules_in_the_order_of_evaluation() -> None:
    nodes = {
        ".write": False,
        ".validate": True,
        "a": {
            ".write": True,
            "$k": {".write": ERROR, ".validate": "$k != 'bad'"},
        },
    }
    assert trace(nodes, {"a/x": 1}) == [
        ("rules/.write", "", False),
        ("rules/a/.write", "a", True),
        ("rules/.validate", "", True),
        ("rules/a/$k/.validate", "a/x", True),
    ]
    assert trace(nodes, {"a": {"bad": 1}})[-1] == ("rules/a/$k/.validate", "a/bad", False)
    assert trace(nodes, {"b": 1}) == [("rules/.write", "", False)]


def test_a_rule_at_a_shared_ancestor_is_evaluated_once_for_all_keys() -> None:
    nodes = {
        ".write": True,
        ".validate": True,
        "a": {".validate": True, "$k": {".validate": True}},
    }
    evaluated = [location for location, _, _ in trace(nodes, {"a/x": 1, "a/y": 2})]
    assert evaluated.count("rules/.write") == 1
    assert evaluated.count("rules/.validate") == 1
    assert evaluated.count("rules/a/.validate") == 1
    assert evaluated.count("rules/a/$k/.validate") == 2


def test_the_trace_has_positions_and_errors() -> None:
    verdict = rules({"$u": {".read": ERROR}}).may_read(
        ("x",), Context(None, NOW, view(None)), explain=True
    )
    assert verdict.trace == (
        RuleResult(
            ".read",
            ("x",),
            "rules/$u/.read",
            1,
            29,
            "A string was expected.",
            {"$u": "x"},
        ),
    )
    assert not verdict.allowed
