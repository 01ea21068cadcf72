"""The mistakes that authors of rules make most, each with a remedy beside its error."""

from __future__ import annotations

import json

import pytest

from treedbd.rules.document import InvalidRules, with_hint
from treedbd.rules.ruleset import parse_rules

EXPRESSIONS = {
    "auth.uid = 'ada'": "Write == to compare.",
    "auth != null & true": "Write && for and.",
    "auth != null | true": "Write || for or.",
    "auth != null and true": "Write && for and.",
    "auth != null or true": "Write || for or.",
    "not true": "Write ! for not.",
    "data.exists(), true": "Join conditions by && or ||.",
    "true; false": "Join conditions by && or ||.",
    "'a' in data": "Write hasChild(…) for whether a key is there.",
    "2 ** 3 > 1": "Multiply by *.",
    "return true": "Leave it out: a rule is an expression.",
    "typeof 'a' == 'b'": "Use isString(), isNumber() or isBoolean().",
    "var a": "A rule is one expression, without statements.",
    "auth.uid == 'ada": "Close the string with '.",
    "auth.uid.matches(/a)": "Close the pattern with a slash.",
    "auth.uid == \u2018ada\u2019": "Write straight quotes, '…'.",
    "auth.uid == && true": "An operand is missing before it.",
    "auth.uid 'ada'": "An operator is missing before it.",
    "auth.uid == 'ada')": "An opening bracket is missing.",
    "auth.uid == ada": "If it is a text, write it in quotes: 'ada'.",
    "auth.uid == $room": "No node above this rule has the key '$room'.",
    "uid == 'ada'": "Write auth.uid.",
    "data.val() == undefined": "Write null.",
    "data.value == 1": "Did you mean 'val'?",
    "auth.uid == data.val().startsWith('a')": "Write beginsWith().",
    "data.val.length > 1": "Call the method, with () after its name.",
    "data.exists().a": "Only nodes, texts, auth and query have members.",
    "data[1] == 1": "Write .child(…) for a child of a node.",
    "data('a').exists()": "Write .child(…) for a child of a node.",
    "data.val().length() > 1": "Leave out the () after it.",
    "data.child(5).exists()": "Write the key in quotes.",
    "data.child(data).exists()": "Add .val() for the value of the node.",
    "data.hasChildren('a')": "Write the names in brackets, as in hasChildren(['name']).",
    "data.hasChildren([5])": "Write the key in quotes.",
    "auth.uid.matches('^a')": "Write the pattern between slashes instead of quotes, as in "
    "matches(/^a/).",
    "data": "Add .exists() for whether the node is there.",
    "data.exists": "Call the method, with () after its name.",
    "data.val()": "Compare it, as in … == true, or … != null.",
    "auth.uid": "Compare it, as in … == true, or … != null.",
    "!data": "Add .exists() for whether the node is there.",
    "data && true": "Add .exists() for whether the node is there.",
    "auth.uid == 'a' || 'b'": "Compare it with something: x == 'a' || x == 'b'.",
    "data ? true : false": "Add .exists() for whether the node is there.",
    "data == 1": "Add .val() for the value of the node.",
    "1 == data.val": "Call the method, with () after its name.",
    "query < 5": "Name a member, as in query.limitToLast.",
    "1 < data.val() < 5": "Join two comparisons by &&.",
    "data.val() < null": "Compare with null by == or !=.",
    "data.val() - 'a' > 1": "Only numbers can be calculated with.",
    "-data > 1": "Add .val() for the value of the node.",
    "newData.exists()": "Write data: a read changes nothing.",
}
DOCUMENTS = {
    "[]": 'Put the rules into {"rules": {…}}.',
    '{".read": true}': 'Put the rules into {"rules": {…}}.',
    '{"rules": {}, ".read": true}': "Move it below 'rules'.",
    '{"rules": {"a": "newData.isString()"}}': "A key has an object of rules, as in "
    '{".validate": "…"}.',
    '{"rules": {"a/b": {}}}': "Write a path as nodes within each other.",
    '{"rules": {".read": {}}}': "A rule has no children: write them beside it.",
    '{"rules": {"$a": {}, "$b": {}}}': "Keep one of them: it applies to every key without rules of "
    "its own.",
    '{"rules": {"$a": {"$a": {}}}}': "Give this one another name.",
    '{"rules": {".read": auth}}': "Write expressions in double quotes.",
    '{"rules": {".read": true}} }': "Remove what follows the document.",
    '{"rules": {".read": , }}': "A value is missing before the comma.",
    "{'rules': {}}": "Write keys in double quotes.",
    '{"rules" {}}': "Write a colon between a key and its value.",
    '{"rules": {,}}': "Remove the comma.",
    '{"rules": {}': "A closing } is missing.",
    '{"rules": {".read": true ".write": true}}': "Write a comma between two members.",
    '{"rules": {".read": "auth.uid == "ada""}}': "Within an expression write single quotes, as in "
    "auth.uid == 'ada'.",
    '{"rules": {".read": true]': "Close the bracket that was opened last.",
    '{"rules": {".read": "true}}': "A closing double quote is missing.",
    '{"rules": {".read": "auth.uid.matches(/\\d/)"}}': "Write \\\\ for a backslash.",
}


def remedy_in(document: str) -> str:
    with pytest.raises(InvalidRules) as caught:
        parse_rules(document)
    assert with_hint(caught.value) == f"{caught.value} {caught.value.hint}"
    return caught.value.hint


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_a_mistake_in_an_expression_has_a_remedy(expression: str) -> None:
    rules = {"rules": {".read": expression}}
    assert remedy_in(json.dumps(rules)) == EXPRESSIONS[expression]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_a_mistake_in_a_document_has_a_remedy(document: str) -> None:
    assert remedy_in(document) == DOCUMENTS[document]


def test_a_comma_at_the_end_of_a_list_is_no_mistake() -> None:
    assert not parse_rules('{"rules": {".read": true,},}').warnings


@pytest.mark.parametrize(
    ("expression", "warning"),
    [
        ("$uid == 7", "1:31: A string is never equal to a number."),
        ("true && data.exists() != 'x'", "1:39: A boolean is never equal to a string."),
        ("1 + 1 == true", "1:31: A number is never equal to a boolean."),
    ],
)
def test_a_comparison_of_kinds_that_are_never_equal_is_warned_of(
    expression: str, warning: str
) -> None:
    rules = {"rules": {"$uid": {".read": expression}}}
    assert [str(each) for each in parse_rules(json.dumps(rules)).warnings] == [warning]


@pytest.mark.parametrize(
    "expression",
    ["data.val() == 7", "auth.uid == $uid", "'a' == data.val()", "auth.a == null", "1 == 1.5"],
)
def test_other_comparisons_are_not_warned_of(expression: str) -> None:
    rules = {"rules": {"$uid": {".read": expression}}}
    assert not parse_rules(json.dumps(rules)).warnings


BOUNDED = "query.limitToFirst <= 2 && query.startAt == null"


@pytest.mark.parametrize(
    ("expression", "forgotten"),
    [
        (BOUNDED, "query.where and query.equalTo,"),
        (f"auth != null && query['endAt'] == null && {BOUNDED}", "query.where and query.equalTo,"),
        (f"{BOUNDED} && !query.where", "at query.equalTo,"),
        (f"query.equalTo == null && {BOUNDED}", "at query.where,"),
    ],
)
def test_a_rule_that_forgets_a_way_of_selecting_is_warned_of(
    expression: str, forgotten: str
) -> None:
    rules = {"rules": {"r": {".read": expression}}}
    (warning,) = parse_rules(json.dumps(rules)).warnings
    assert forgotten in warning.text
    assert "add !query.where && query.equalTo == null." in warning.text
    assert warning.is_advice


@pytest.mark.parametrize(
    "expression",
    [
        "query.limitToFirst <= 1000",
        "query.orderByChild == 'owner' && query.equalTo == auth.uid",
        "query.orderByKey && query.startAt >= auth.uid",
        f"{BOUNDED} && query.endAt == null && !query.where && query.equalTo == null",
    ],
)
def test_other_rules_of_queries_are_not_warned_of(expression: str) -> None:
    rules = {"rules": {"r": {".read": expression}}}
    assert parse_rules(json.dumps(rules)).warnings == ()
