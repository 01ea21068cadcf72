"""The type checker: every row of the table of types, and every error text."""

from __future__ import annotations

import pytest

from tests.rules.evaluating import expression_error

BOOLEAN = "true"
NUMBER = "now"
STRING = "$uid"
NULL = "null"
REGEX = "/a/"
SNAPSHOT = "data"
METHOD = "data.val"
VALUE = "data.val()"
AUTH = "auth.uid"
QUERY = "query"
QUERY_VALUE = "query.startAt"
MIXED = "(true ? 1 : null)"
EXPRESSIONS = {
    "boolean": BOOLEAN,
    "number": NUMBER,
    "string": STRING,
    "null": NULL,
    "regex": REGEX,
    "snapshot": SNAPSHOT,
    "method": METHOD,
    "value": VALUE,
    "auth": AUTH,
    "query": QUERY,
    "query value": QUERY_VALUE,
    "mixed": MIXED,
}
COMPARED = {"boolean", "number", "string", "null", "value", "auth", "query value", "mixed"}
ORDERED = {"number", "string", "value", "auth", "query value", "mixed"}
NUMBERS = ORDERED - {"string"}
STRINGS = {"string", "value", "auth", "mixed"}


@pytest.mark.parametrize("name", EXPRESSIONS)
@pytest.mark.parametrize(
    ("pattern", "accepted", "text"),
    [
        ("{}", {"boolean"}, "Expression must evaluate to a boolean."),
        ("!{}", {"boolean"}, "! only operates on booleans."),
        ("{} && true", {"boolean"}, "Left operand of && must be boolean."),
        ("true && {}", {"boolean"}, "Right operand of && must be boolean."),
        ("true && true && {}", {"boolean"}, "Right operand of && must be boolean."),
        ("{} || true", {"boolean"}, "Left operand of || must be boolean."),
        ("true || {}", {"boolean"}, "Right operand of || must be boolean."),
        ("{} ? true : false", {"boolean"}, "condition of ? must be boolean."),
        (
            "{} == 1",
            COMPARED,
            "Invalid == expression: left operand is not a number, boolean, string, null.",
        ),
        (
            "1 == {}",
            COMPARED,
            "Invalid == expression: right operand is not a number, boolean, string, or null.",
        ),
        (
            "{} === 1",
            COMPARED,
            "Invalid == expression: left operand is not a number, boolean, string, null.",
        ),
        (
            "1 === {}",
            COMPARED,
            "Invalid == expression: right operand is not a number, boolean, string, or null.",
        ),
        (
            "{} != 1",
            COMPARED,
            "Invalid != expression: left operand is not a number, boolean, string, or null.",
        ),
        (
            "1 !== {}",
            COMPARED,
            "Invalid != expression: right operand is not a number, boolean, string, or null.",
        ),
        (
            "{} < 1",
            ORDERED,
            "Invalid < expression: left operand must be a number or string.",
        ),
        (
            "1 <= {}",
            ORDERED,
            "Invalid <= expression: right operand must be a number or string.",
        ),
        (
            "'a' > {}",
            ORDERED,
            "Invalid > expression: right operand must be a number or string.",
        ),
        (
            "{} >= 'a'",
            ORDERED,
            "Invalid >= expression: left operand must be a number or string.",
        ),
        (
            "{} + 1 == 1",
            ORDERED,
            "Invalid + expression: left operand is not a number or string.",
        ),
        (
            "1 + {} == 1",
            ORDERED,
            "Invalid + expression: right operand is not a number or string.",
        ),
        ("{} - 1 == 1", NUMBERS, "Invalid - expression: left operand is not a number."),
        ("1 - {} == 1", NUMBERS, "Invalid - expression: right operand is not a number."),
        ("1 * {} == 1", NUMBERS, "Invalid * expression: right operand is not a number."),
        ("{} / 1 == 1", NUMBERS, "Invalid / expression: left operand is not a number."),
        ("1 % {} == 1", NUMBERS, "Invalid % expression: right operand is not a number."),
        ("-{} == 1", NUMBERS, "- only operates on numbers."),
        ("data.child({}).exists()", STRINGS, "child() expects a string argument."),
        ("data.hasChild({})", STRINGS, "hasChild() expects a string argument."),
        ("$uid.contains({})", STRINGS, "contains() expects a string argument."),
        ("$uid.beginsWith({})", STRINGS, "beginsWith() expects a string argument."),
        ("$uid.endsWith({})", STRINGS, "endsWith() expects a string argument."),
        (
            "$uid.replace({}, 'a') == ''",
            STRINGS,
            "Argument 1 of replace() must be a string.",
        ),
        (
            "$uid.replace('a', {}) == ''",
            STRINGS,
            "Argument 2 of replace() must be a string.",
        ),
        (
            "$uid.matches({})",
            {"regex"},
            "matches() expects a regular expression literal argument.",
        ),
        (
            "data.hasChildren({})",
            set(),
            "hasChildren() expects an array of child names.",
        ),
        ("data.hasChildren([{}])", STRINGS, "hasChildren() expects an array of strings."),
        ("auth[{}] == 1", ORDERED, "Invalid property access."),
    ],
)
def test_each_position_accepts_its_types(
    pattern: str, accepted: set[str], text: str, name: str
) -> None:
    expected = None if name in accepted else text
    assert expression_error(pattern.format(EXPRESSIONS[name])) == expected


@pytest.mark.parametrize("left", sorted(COMPARED))
@pytest.mark.parametrize("right", sorted(COMPARED))
def test_sides_need_not_agree(left: str, right: str) -> None:
    assert expression_error(f"{EXPRESSIONS[left]} == {EXPRESSIONS[right]}") is None
    ordering = expression_error(f"{EXPRESSIONS[left]} < {EXPRESSIONS[right]}")
    assert (ordering is None) == (left in ORDERED and right in ORDERED)


@pytest.mark.parametrize(
    ("expression", "type_name"),
    [
        ("'a' + 1", "string"),
        ("1 + 'a'", "string"),
        ("auth.a + 'b'", "string"),
        ("1 + 1", "number"),
        ("1 + 1 + 1", "number"),
        ("1 + auth.a", "value"),
        ("auth.a + auth.b", "value"),
        ("query.startAt + 1", "value"),
        ("1 - auth.a", "number"),
        ("-auth.a", "number"),
        ("true ? 1 : 2", "number"),
        ("true ? 'a' : 'b'", "string"),
        ("true ? null : null", "null"),
        ("true ? 1 : 'a'", "value"),
        ("true ? auth : null", "value"),
        ("true ? data.val() : 1", "value"),
        ("true ? 1 : true", "mixed"),
        ("true ? 1 : false ? true : 'a'", "value"),
        ("true ? 1 : false ? 2 : 3", "number"),
        ("true ? 1 : false ? 'a' : 1", "value"),
        ("true ? 1 : false ? true : 1", "mixed"),
        ("true ? data : newData", "snapshot"),
        ("true ? auth.a : auth.b", "auth"),
        ("true ? query.startAt : query.endAt", "query value"),
        ("true ? data : 1", "mixed"),
        ("$uid", "string"),
        ("now", "number"),
        ("root", "snapshot"),
        ("data.parent()", "snapshot"),
        ("data.child('a')", "snapshot"),
        ("data.getPriority()", "value"),
        ("$uid.length", "number"),
        ("data.val().length", "number"),
        ("auth.uid.length", "auth"),
        ("$uid.toLowerCase()", "string"),
        ("$uid.toUpperCase()", "string"),
        ("$uid.replace('a', 'b')", "string"),
        ("auth.a.b['c'][$uid][0]", "auth"),
        ("query.orderByKey", "boolean"),
        ("query.orderByPriority", "boolean"),
        ("query.orderByValue", "boolean"),
        ("query.orderByChild", "query value"),
        ("query.endAt", "query value"),
        ("query.equalTo", "query value"),
        ("query.limitToFirst", "query value"),
        ("query.limitToLast", "query value"),
        ("query['limitToLast']", "query value"),
    ],
)
def test_an_expression_has_a_type(expression: str, type_name: str) -> None:
    """The type is identified by the operations that accept the expression."""
    bracketed = f"({expression})"
    assert (expression_error(f"{bracketed} == 1") is None) == (type_name in COMPARED)
    assert (expression_error(f"{bracketed} < 1") is None) == (type_name in ORDERED)
    assert (expression_error(f"{bracketed} * 1 == 1") is None) == (type_name in NUMBERS)
    assert (expression_error(f"data.hasChild({bracketed})") is None) == (type_name in STRINGS)
    assert (expression_error(bracketed) is None) == (type_name == "boolean")
    assert (expression_error(f"{bracketed}.exists()") is None) == (type_name == "snapshot")
    assert (expression_error(f"{bracketed}.contains('')") is None) == (
        type_name in STRINGS - {"mixed"}
    )
    assert (expression_error(f"{bracketed}.length * 1 == 1") is None) == (
        type_name in STRINGS - {"mixed"}
    )
    assert (expression_error(f"{bracketed}.foo == 1") is None) == (type_name == "auth")


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("foo == 1", "Unknown variable 'foo'."),
        ("$other == 1", "Unknown variable '$other'."),
        ("this == 1", "Unknown variable 'this'."),
        ("f()", "Unknown variable 'f'."),
        ("data.foo()", "No such method/property 'foo'."),
        ("data.numChildren() > 1", "No such method/property 'numChildren'."),
        ("data.length > 1", "No such method/property 'length'."),
        ("data['foo']()", "No such method/property 'foo'."),
        ("data.val().foo == 1", "No such method/property 'foo'."),
        ("$uid.foo == 1", "No such method/property 'foo'."),
        ("$uid.val()", "No such method/property 'val'."),
        ("query.foo == 1", "No such method/property 'foo'."),
        ("query.startAfter == 1", "No such method/property 'startAfter'."),
        ("true.foo", "Invalid property access: target is not an object."),
        ("now.foo", "Invalid property access: target is not an object."),
        ("null.foo", "Invalid property access: target is not an object."),
        ("/a/.foo", "Invalid property access: target is not an object."),
        ("query.startAt.length", "Invalid property access: target is not an object."),
        ("(true ? 1 : null).foo", "Invalid property access: target is not an object."),
        ("data.val.foo", "Invalid property access: target is not an object."),
        ("$uid.length.foo", "Invalid property access: target is not an object."),
        ("data[$uid]", "Invalid property access."),
        ("data.val()[0]", "Invalid property access."),
        ("$uid[0] == 'a'", "Invalid property access."),
        ("query[$uid]", "Invalid property access."),
        ("auth()", "Type error: Function call on target that is not a function."),
        ("auth.uid()", "Type error: Function call on target that is not a function."),
        ("data()", "Type error: Function call on target that is not a function."),
        ("data.exists()()", "Type error: Function call on target that is not a function."),
        ("$uid.length()", "Type error: Function call on target that is not a function."),
        ("query.orderByKey()", "Type error: Function call on target that is not a function."),
        (
            "(true ? data.exists : data.isString)()",
            "Type error: Function call on target that is not a function.",
        ),
        ("[] == 1", "Unexpected array literal."),
        ("1 == ['a']", "Unexpected array literal."),
        ("['a']", "Unexpected array literal."),
        ("['a'].contains('a')", "Unexpected array literal."),
        ("data.hasChild(['a'])", "Unexpected array literal."),
        ("$uid.matches(['a'])", "Unexpected array literal."),
        ("data.hasChildren([['a']])", "Unexpected array literal."),
        ("true ? ['a'] : ['b']", "Unexpected array literal."),
        ("data.val(1) == 1", "val() expects no arguments."),
        ("data.exists(1)", "exists() expects no arguments."),
        ("data.parent('a').exists()", "parent() expects no arguments."),
        ("data.getPriority(1) == 1", "getPriority() expects no arguments."),
        ("data.isNumber(1)", "isNumber() expects no arguments."),
        ("data.isString(1)", "isString() expects no arguments."),
        ("data.isBoolean(1)", "isBoolean() expects no arguments."),
        ("$uid.toLowerCase(1) == ''", "toLowerCase() expects no arguments."),
        ("$uid.toUpperCase(1) == ''", "toUpperCase() expects no arguments."),
        ("data.child().exists()", "child() expects 1 argument."),
        ("data.child('a', 'b').exists()", "child() expects 1 argument."),
        ("data.hasChild()", "hasChild() expects 1 argument."),
        ("$uid.contains()", "contains() expects 1 argument."),
        ("$uid.beginsWith('a', 'b')", "beginsWith() expects 1 argument."),
        ("$uid.endsWith()", "endsWith() expects 1 argument."),
        ("$uid.replace('a') == ''", "replace() expects two arguments."),
        ("$uid.replace('a', 'b', 'c') == ''", "replace() expects two arguments."),
        ("$uid.matches()", "matches() expects 1 regular expression literal argument."),
        ("$uid.matches(/a/, /b/)", "matches() expects 1 regular expression literal argument."),
        (
            "data.hasChildren('a', 'b')",
            "hasChildren() expects only a single argument (containing an array of child names).",
        ),
        ("$uid.replace(/a/, 'b') == ''", "Argument 1 of replace() must be a string."),
        ("$uid.matches('a')", "matches() expects a regular expression literal argument."),
        ("$uid.matches(auth.a)", "matches() expects a regular expression literal argument."),
    ],
)
def test_a_type_error_has_its_text(expression: str, text: str) -> None:
    assert expression_error(expression) == text


@pytest.mark.parametrize(
    "expression",
    [
        "data['exists']()",
        "data['child']('a')['val']() == 1",
        "$uid['length'] == 1",
        "auth['token']['a'] == 1",
        "data.hasChildren()",
        "data.hasChildren([])",
        "data.hasChildren(['a', $uid, auth.a, data.val()])",
        "(true ? data : root).exists()",
        "(data.exists)()",
        "newData.val() == data.val()",
        "query.limitToFirst <= 100",
        "auth.token.firebase.identities == null",
        "1 < 'a'",
    ],
)
def test_a_well_typed_expression_is_accepted(expression: str) -> None:
    assert expression_error(expression) is None


def test_new_data_is_only_for_writes() -> None:
    text = "newData is invalid in .read expressions."
    assert expression_error("newData.exists()", for_read=True) == text
    assert expression_error("newData.exists()") is None
    assert expression_error("query.orderByKey && data.exists()", for_read=True) is None


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("foo && bar", "Unknown variable 'foo'."),
        ("1 && bar", "Left operand of && must be boolean."),
        ("true && 1 && bar", "Right operand of && must be boolean."),
        ("!(1 && bar) && 2", "Left operand of && must be boolean."),
        ("null + foo == 1", "Invalid + expression: left operand is not a number or string."),
        ("data.child(null).foo()", "child() expects a string argument."),
        ("data.child(foo, bar)", "child() expects 1 argument."),
        ("1 ? foo : bar", "condition of ? must be boolean."),
        ("data.hasChildren([1, foo])", "hasChildren() expects an array of strings."),
    ],
)
def test_the_leftmost_error_is_reported(expression: str, text: str) -> None:
    assert expression_error(expression) == text
