"""Where an error in a document is, and what may have been meant."""

from __future__ import annotations

import json

import pytest

from tests.rules.evaluating import document_error
from treedbd.rules.document import InvalidRules
from treedbd.rules.ruleset import MAX_ERRORS, parse_rules

NO_METHOD = "Type error: Function call on target that is not a function."
NO_OBJECT = "Invalid property access: target is not an object."


def document_of(expression: str, kind: str = ".write") -> str:
    """Return a document of two lines, the second of which is the expression alone."""
    return f'{{"rules":{{"$uid":{{"{kind}":"\n{expression}"}}}}}}'


def hint_of(document: str) -> str:
    with pytest.raises(InvalidRules) as caught:
        parse_rules(document)
    return caught.value.hint


@pytest.mark.parametrize(
    ("expression", "wrong", "text"),
    [
        ("root.child('a').exist()", "exist", "No such method/property 'exist'."),
        ("root.child('a').child('b').foo.bar()", "foo", "No such method/property 'foo'."),
        ("auth.uid == data['vall']()", "'vall'", "No such method/property 'vall'."),
        ("true && data.val().size > 1", "size", "No such method/property 'size'."),
        ("data.exists().foo", "foo", NO_OBJECT),
        ("data.val.foo()", "foo", NO_OBJECT),
        ("data.exists()()", "data", NO_METHOD),
        ("auth.token.admin()", "admin", NO_METHOD),
        ("now()", "now", NO_METHOD),
        ("root.child('a').child().exists()", "child()", "child() expects 1 argument."),
        ("data.child('a').val(1) == 1", "val", "val() expects no arguments."),
        ("root.child('a')['b' + 'c']", "['b' +", "Invalid property access."),
        ("auth.a[root] == 1", "root", "Invalid property access."),
        ("1 + 2 + data", "data", "Invalid + expression: right operand is not a number or string."),
        ("true && true && data.val()", "data", "Right operand of && must be boolean."),
    ],
)
def test_an_error_is_at_the_part_that_is_wrong(expression: str, wrong: str, text: str) -> None:
    column = expression.index(wrong) + 1
    assert document_error(document_of(expression)) == f"2:{column}: {text}"


def test_an_error_in_a_chain_of_many_lines_is_in_its_own_line() -> None:
    chain = "root\n    .child('a')\n    .child('b')\n  .exist()"
    assert document_error(document_of(chain)) == "5:4: No such method/property 'exist'."


@pytest.mark.parametrize(
    "written",
    [
        r"'\"' == '' && foo",
        r"'\u0041' == '' && foo",
        r"'\ud83d\ude00' == '' && foo",
        r"true &&\n\t foo",
        "'\U0001f600' == '' && foo",
        "true &&\t\tfoo",
        r"'\\\\' == '' && foo",
        r"'\u00e9\/\b' == '' && data\u002efoo()",
    ],
)
def test_escapes_tabs_and_wide_characters_do_not_shift_a_position(written: str) -> None:
    error = document_error(document_of(written))
    assert error is not None
    assert error.startswith(f"2:{written.index('foo') + 1}: ")


@pytest.mark.parametrize(
    ("document", "meant"),
    [
        ('{"rules":{".raed":"true"}}', ".read"),
        ('{"rules":{".wriet":true}}', ".write"),
        ('{"rules":{".indexon":"a"}}', ".indexOn"),
        ('{"rules":{".validates":{}}}', ".validate"),
        ('{"rules":{"read":"true"}}', ".read"),
        (document_of("data.exist()"), "exists"),
        (document_of("newdata.exists()"), "newData"),
        (document_of("newdata.exists()", ".read"), "newData"),
        (document_of("$user == $uidd"), "$uid"),
        (document_of("$uid.beginWith('a')"), "beginsWith"),
        (document_of("data.val().lenght > 1"), "length"),
        (document_of("query.limitTofirst < 1"), "limitToFirst"),
    ],
)
def test_a_misspelt_name_has_a_hint_and_the_text_of_firebase(document: str, meant: str) -> None:
    document = document.replace("$user == ", "")
    assert hint_of(document) == f"Did you mean '{meant}'?"
    assert "Did you mean" not in str(document_error(document))


@pytest.mark.parametrize(
    "document",
    [
        '{"rules":{".foo":"true"}}',
        '{"rules":{"a":1}}',
        document_of("foo"),
        document_of("data.numChildren() > 1"),
        document_of("data." + "exists" * 1_000 + "()"),
        document_of("true &&"),
    ],
)
def test_a_name_that_is_like_no_other_has_none(document: str) -> None:
    assert hint_of(document) == ""


def warnings_of(nodes: object) -> list[str]:
    return [str(warning) for warning in parse_rules(json.dumps({"rules": nodes})).warnings]


@pytest.mark.parametrize("pattern", ["^a|b$", "^a|b", "a|b$", "^(a)|[|]$", "^a|b|c$"])
def test_a_bar_beside_an_anchor_is_warned_of(pattern: str) -> None:
    (warning,) = warnings_of({".read": f"auth.uid.matches(/{pattern}/)"})
    column = len('{"rules": {".read": "auth.uid.matches(/') + pattern.index("|") + 1
    assert warning.startswith(f"1:{column}: ^ and $ bind the whole pattern")


@pytest.mark.parametrize("pattern", ["^(a|b)$", "a|b", "^a[|]b$", r"^a\|b$", "^ab$", r"a|b\$"])
def test_other_patterns_are_not_warned_of(pattern: str) -> None:
    assert warnings_of({".read": f"auth.uid.matches(/{pattern}/)"}) == []


def test_a_repeated_expression_is_warned_of_at_each_place_and_the_warnings_are_bounded() -> None:
    rule = {".read": "auth.uid.matches(/^a|b$/)"}
    assert len(set(warnings_of({"a": rule, "b": rule, "c": rule}))) == 3
    assert len(warnings_of({f"k{at}": rule for at in range(100)})) == 20


def errors_of(text: str) -> list[str]:
    with pytest.raises(InvalidRules) as caught:
        parse_rules(text)
    return [str(each) for each in (caught.value, *caught.value.others)]


def test_the_errors_of_several_rules_are_found_in_one_pass() -> None:
    text = """{"rules": {
  ".read": "auth.uid = 1",
  ".write": 1,
  "a": {".validate": "newdata.exists()", ".indexOn": [1, 2]},
  "$k": {"$k": {".read": "$x == 1"}, "b": "true"},
  "$m": {".read": "newData.exists()"},
  "x/y": {".write": "auth.uid + 1"},
  "c": {".read": "auth != null", ".validate": "data.val() == 1 && now"}
}, "more": {}}"""
    found = [each.split(".")[0] for each in errors_of(text)]
    assert found == [
        "2:22: Rule expressions may not contain assignments",
        "3:13: Invalid rule expression",
        "4:23: Unknown variable 'newdata'",
        "4:54: Invalid indexOn expression",
        "5:10: The variable '$k' is already bound above",
        "5:27: Unknown variable '$x'",
        "5:43: Expected '{'",
        "6:3: Cannot have multiple default rules ('$k' and '$m')",
        "6:20: newData is invalid in ",
        "7:3: String can't contain \"",
        "7:22: Expression must evaluate to a boolean",
        "8:67: Right operand of && must be boolean",
        "9:4: Unexpected property 'more'",
    ]


def test_a_document_that_is_none_has_one_error() -> None:
    assert len(errors_of('{"rules": {".read": "nobody", ')) == 1


def test_no_more_errors_are_looked_for_than_an_author_mends() -> None:
    nodes = ",".join(f'"k{number}": {{".read": "x{number}"}}' for number in range(MAX_ERRORS + 5))
    found = errors_of(f'{{"rules": {{{nodes}}}}}')
    assert len(found) == MAX_ERRORS
    assert found[0].endswith("Unknown variable 'x0'.")
