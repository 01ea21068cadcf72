"""Explanations say why a request is denied, and show what made a rule false."""

from __future__ import annotations

from typing import Any

from tests.rules.evaluating import NOW, normal, place, rules, view
from treedbd.rules.context import MAX_READS, Context
from treedbd.rules.evaluate import MAX_SHOWN_CHARACTERS, explanation
from treedbd.tree.types import Change

NODES = {
    "posts": {
        "$post": {
            ".read": "data.child('owner').val() == auth.uid",
            ".write": "auth != null",
            ".validate": "newData.child('text').isString() && root.child('open').val() == true",
        }
    }
}
AUTH: Any = {"uid": "ann"}


def explain_write(changes: dict[str, Any], data: Any = None, nodes: Any = NODES) -> Any:
    listed = [Change(place(path), normal(value)) for path, value in changes.items()]
    verdict = rules(nodes).may_write(listed, Context(AUTH, NOW, view(data)), explain=True)
    return explanation(verdict, is_admin=False, auth=AUTH)


def explain_read(path: str, data: Any = None, nodes: Any = NODES) -> Any:
    context = Context(AUTH, NOW, view(data))
    verdict = rules(nodes).may_read(place(path).path, context, explain=True)
    return explanation(verdict, is_admin=False, auth=AUTH)


def test_a_place_without_rules_is_denied_with_a_sentence_that_says_so() -> None:
    reason = "There is no rule on the path, and what no rule allows is denied."
    for found in (explain_read("other"), explain_write({"other": 1})):
        assert found == {
            "allowed": False,
            "admin": False,
            "reason": reason,
            "auth": AUTH,
            "rules": [],
        }
    data = {"open": True}
    mixed = explain_write({"posts/1": {"text": "a"}, "other": 1}, data)
    assert mixed["reason"] == reason
    assert [rule["result"] for rule in mixed["rules"]] == [True, True]


def test_a_rule_that_is_not_true_shows_its_captures_and_what_it_read() -> None:
    found = explain_read("posts/7", {"posts": {"7": {"owner": "bob"}}})
    assert found["reason"] == "No .read rule on the path is true."
    (rule,) = found["rules"]
    assert rule["captures"] == {"$post": "7"}
    assert rule["read"] == [{"from": "data", "path": "/posts/7/owner", "value": "bob"}]
    found = explain_write({"posts/7": {"text": "a"}}, {"open": False})
    assert found["reason"] == "The rule rules/posts/$post/.validate is not true."
    assert "read" not in found["rules"][0]
    assert found["rules"][1]["read"] == [
        {"from": "newData", "path": "/posts/7/text", "type": "string"},
        {"from": "data", "path": "/open", "value": False},
    ]


def test_what_is_allowed_has_no_reason() -> None:
    found = explain_read("posts/7", {"posts": {"7": {"owner": "ann"}}})
    assert found["allowed"] is True
    assert found.keys() == {"allowed", "admin", "rules"}
    assert found["rules"][0].keys() == {"rule", "path", "line", "column", "result"}


def test_what_was_read_is_bounded() -> None:
    terms = " || ".join(f"data.child('k{at}').val() == 1" for at in range(2 * MAX_READS))
    found = explain_read("", {"k0": "x" * 1000, "k1": {"a": 1}}, {".read": f"{terms} || false"})
    (rule,) = found["rules"]
    assert len(rule["read"]) == MAX_READS
    first, second, third = rule["read"][:3]
    assert first["value"] == "x" * MAX_SHOWN_CHARACTERS + "…"
    assert second == {"from": "data", "path": "/k1", "type": "object"}
    assert third == {"from": "data", "path": "/k2", "value": None}


def test_what_a_true_rule_saw_is_shown_if_all_is() -> None:
    context = Context({"uid": "ada"}, NOW, view({"a": 1}))
    verdict = rules({"$k": {".read": "data.val() == 1"}}).may_read(("a",), context, explain=True)
    brief: Any = explanation(verdict, is_admin=False)["rules"]
    full: Any = explanation(verdict, is_admin=False, shows_all=True)["rules"]
    assert "captures" not in brief[0]
    assert full[0]["captures"] == {"$k": "a"}
    assert full[0]["read"] == [{"from": "data", "path": "/a", "value": 1}]
