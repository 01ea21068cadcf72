"""Rights before bodies: what is refused before anything is read would be denied for any data."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest

from tests.rules.evaluating import may_write, place, rules
from treedbd.limits import RulesLimits
from treedbd.rules import ruleset
from treedbd.rules.document import InvalidRules
from treedbd.rules.ruleset import RuleSet, parse_rules

UID: Any = {"uid": "ann", "token": {"admin": True, "level": 3}}


def foresees(write_rule: str, *, auth: Any = None, path: str = "a/ann") -> bool:
    """Return whether a rule at `/a/$uid` may allow a write at a path."""
    rule_set = rules({"a": {"$uid": {".write": write_rule}}})
    return rule_set.may_write_somewhere(place(path).path, auth)


@pytest.mark.parametrize(
    "never",
    [
        "auth != null",
        "auth.uid != null && newData.exists()",
        "data.exists() && auth.uid == 'ann'",
        "auth.uid == $uid",
        "$uid === auth.uid",
        "root.child('admins').child(auth.uid).exists()",
        "root.child('admins').hasChild(auth.uid)",
        "root.child('roles/' + auth.uid).val() == 'editor'",
        "data.hasChildren([auth.uid, 'x'])",
        "!(auth == null || data.exists())",
        "auth.token.level > data.val()",
        "data.val() - auth.token.level > 0",
        "auth.uid.matches(/^a/) || auth.token.admin == true",
        "(auth == null ? false : data.exists())",
        "(auth.uid.length > 3) == newData.exists()",
        "auth.token[auth.uid] == true && now > 0",
        "now > auth.token.exp",
        "data.child(auth.uid).parent().exists()",
        "newData.val().contains(auth.uid)",
        "auth.uid.replace('a', 'b') == $uid",
        "auth.uid.contains($uid)",
        "false || auth.provider == 'password'",
        "-auth.token.level == data.val()",
        "(data.exists() ? auth != null : auth.uid == 'x')",
    ],
)
@pytest.mark.parametrize("path", ["", "a", "a/ann", "a/ann/below"])
def test_rules_for_callers_with_a_token_allow_an_anonymous_one_nothing(
    never: str, path: str
) -> None:
    assert not foresees(never, path=path)


@pytest.mark.parametrize(
    "maybe",
    [
        "true",
        "newData.exists()",
        "auth == null",
        "auth == null && data.exists()",
        "auth != null || data.exists()",
        "!(auth != null && data.exists())",
        "now < 2000",
        "root.child($uid).val() == 1",
        "$uid == 'ann'",
        "$uid.length > 2",
        "$uid != auth.uid",
        "!($uid == auth.uid)",
        "(data.exists() ? auth != null : auth == null)",
        "query.limitToFirst == 1",
        "data.val() + 'x' == $uid",
        "data.val().toLowerCase() == 'a'",
        "(auth == null) == newData.isString()",
    ],
)
def test_rules_that_depend_on_data_may_allow_a_write(maybe: str) -> None:
    assert foresees(maybe)


def test_captures_at_and_above_the_path_are_known() -> None:
    own = "auth.uid == $uid"
    assert foresees(own, auth=UID)
    assert foresees(own, auth=UID, path="a/ann/posts/1")
    assert foresees(own, auth=UID, path="a")
    assert foresees(own, auth=UID, path="")
    assert not foresees(own, auth=UID, path="a/bob")
    assert not foresees(own, auth=UID, path="a/bob/posts")
    assert not foresees(own, auth=UID, path="b")
    assert not foresees("auth.uid == $uid && $uid.contains('b')", auth=UID, path="a/ann")


def test_rules_above_and_below_count_and_those_beside_do_not() -> None:
    nodes = {"a": {".write": "auth.uid == 'x'", "b": {"c": {".write": True}}, "d": {}}}
    rule_set = rules(nodes)
    for path, may in (("", True), ("a", True), ("a/b", True), ("a/b/c/e", True)):
        assert rule_set.may_write_somewhere(place(path).path, None) is may
    for path in ("a/d", "a/e", "b", "a/b/x"):
        assert not rule_set.may_write_somewhere(place(path).path, None)
    assert rule_set.may_write_somewhere(("a", "d"), {"uid": "x"})


def test_the_number_of_rules_that_are_looked_at_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rule_set = rules({f"k{at}": {".write": "auth != null"} for at in range(20)})
    assert not rule_set.may_write_somewhere((), None)
    monkeypatch.setattr(ruleset, "MAX_RULES_FORESEEN", 10)
    assert rule_set.may_write_somewhere((), None)
    assert not rule_set.may_write_somewhere(("k1",), None)


def test_an_expression_of_known_strings_that_is_too_costly_may_be_true() -> None:
    document = json.dumps({"rules": {".write": "auth.uid.replace('a', 'aa').contains('b')"}})
    caller: Any = {"uid": "a" * 1000}
    assert not parse_rules(document).may_write_somewhere((), caller)
    limits = RulesLimits(judged_characters=1000)
    assert parse_rules(document, limits).may_write_somewhere((), caller)


FORMS = {
    "test": [
        *("true", "false", "data.exists()", "newData.isString()", "auth != null", "auth == null"),
        *("$uid == auth.uid", "auth.token.admin == true", "<string> == <string>"),
        *("(<test> && <test>)", "(<test> || <test>)", "!(<test>)", "(<test> ? <test> : <test>)"),
        *(
            "(<test>) == (<test>)",
            "(<test>) != (<test>)",
            "<value> == <value>",
            "<value> != <value>",
        ),
        *(
            "<value> < <value>",
            "<value> >= <value>",
            "<node>.exists()",
            "<node>.hasChild(<string>)",
        ),
        *("<node>.hasChildren([<string>, 'a'])", "<string>.contains(<string>)"),
        *(
            "<string>.matches(/^a|b$/)",
            "<string>.beginsWith(<string>)",
            "<test> && auth.uid != null",
        ),
    ],
    "value": [
        *(
            "null",
            "1",
            "now",
            "<string>",
            "<node>.val()",
            "<node>.getPriority()",
            "auth.token.level",
        ),
        *(
            "(<value> + <value>)",
            "(<value> - <value>)",
            "-<number>",
            "(<test> ? <value> : <value>)",
        ),
        *("<string>.length", "auth", "auth[<string>]", "auth.token.a.b"),
    ],
    "number": ["2", "now", "<string>.length", "data.val()", "(<number> * <number>)"],
    "string": [
        *(
            "'a'",
            "'uid'",
            "$uid",
            "auth.uid",
            "data.val()",
            "(<string> + <string>)",
            "auth.token.name",
        ),
        *("<string>.toUpperCase()", "<string>.replace('a', <string>)", "auth[<string>]"),
    ],
    "node": [
        "data",
        "newData",
        "root",
        "<node>.child(<string>)",
        "<node>.parent()",
        "root.child('a')",
    ],
}
HOLE = re.compile("<([a-z]+)>")
VALUES = [None, True, 0, 2.5, "a", "uid", {"a": 1}, {"a": {"ann": "b"}}, {"ann": True, "s": "a"}]
AUTHS: list[Any] = [
    None,
    UID,
    {"uid": "a", "token": {}},
    {},
    {"uid": 5, "token": {"name": "a"}},
    {"uid": "b"},
]


def random_expression(chance: random.Random) -> str:
    """Return an expression of the language, of which some are refused by the type checker."""
    text = chance.choice(["<test>", "<test> && auth != null", "auth.uid != null && <test>"])
    for _ in range(30):
        hole = HOLE.search(text)
        if hole is None:
            return text
        forms = FORMS[hole[1]]
        choice = chance.choice(forms if len(text) < 150 else forms[:3])
        text = text[: hole.start()] + choice + text[hole.end() :]
    return random_expression(chance)


def random_rules(chance: random.Random) -> RuleSet:
    """Return rules of which every `.write` is such an expression."""
    nodes: dict[str, Any] = {"$uid": {}}
    for _ in range(chance.randrange(1, 4)):
        node = nodes["$uid"]
        for _ in range(chance.randrange(3)):
            node = node.setdefault(chance.choice(["a", "ann", "$below"]), {})
            if "$below" in node:
                break
        node[".write"] = random_expression(chance)
    try:
        return rules(nodes)
    except InvalidRules:
        return random_rules(chance)


def random_path(chance: random.Random) -> str:
    return "/".join(chance.choices(["a", "ann", "b"], k=chance.randrange(4)))


def test_what_may_not_be_written_anywhere_is_denied_for_all_data_and_bodies() -> None:
    chance = random.Random(9)
    refused = 0
    for _ in range(400):
        rule_set = random_rules(chance)
        for auth in AUTHS:
            path = random_path(chance)
            if rule_set.may_write_somewhere(place(path).path, auth):
                continue
            refused += 1
            for _ in range(6):
                data = {"a": chance.choice(VALUES), "ann": chance.choice(VALUES), "b": "ann"}
                where = f"{path}/{random_path(chance)}"
                write = {where: chance.choice(VALUES)}
                assert not may_write(rule_set, write, data, auth=auth), (rule_set.text, path, auth)
    assert refused > 400
