"""The results of expressions: sections 1.4, 1.7, 1.8, 1.9 and 1.12 of the rules language."""

from __future__ import annotations

from typing import Any

import pytest

from tests.rules.evaluating import ERROR, NOW, evaluate, view
from treedbd.rules.compile import MAX_STRING
from treedbd.rules.context import NullBound, QueryFacts

NODE = {
    "s": "text",
    "n": 3,
    "f": 1.5,
    "t": True,
    "z": 0,
    "e": "",
    "o": {"a": 1, "b": {"c": "x"}},
    "same": {"a": 1.0, "b": {"c": "x", ".priority": 7}},
    "other": {"a": True, "b": {"c": "x"}},
    "list": ["p", "q"],
    "pair": {"0": "p", "1": "q"},
    "ranked": {".value": 5, ".priority": "high"},
}
AUTH: Any = {
    "uid": "u1",
    "provider": "anonymous",
    "token": {
        "admin": True,
        "level": 3,
        "name": "Ann",
        "list": ["p", None, "q"],
        "nested": {"a": 1, "b": {"c": "x"}},
        "nothing": None,
        "firebase": {"sign_in_provider": "anonymous"},
        "length": 9,
    },
}


def value(name: str) -> str:
    return f"data.child('{name}').val()"


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("1 == 1.0", True),
        ("1 == '1'", False),
        ("1 === '1'", False),
        ("1 == true", False),
        ("0 == false", False),
        ("'true' == true", False),
        ("'' == null", False),
        ("0 == null", False),
        ("false == null", False),
        ("null == null", True),
        ("null === null", True),
        ("null != 1", True),
        ("'a' != 'b'", True),
        ("'a' !== 'a'", False),
        ("true == true", True),
        ("true != false", True),
        ("9007199254740993 == 9007199254740992", False),
        ("1 < 2", True),
        ("2 <= 2", True),
        ("1 > 2", False),
        ("2 >= 3", False),
        ("'a' < 'b'", True),
        ("'a' < 'B'", False),
        ("'b' >= 'b'", True),
        ("'Z' < 'a'", True),
        ("1 < 'a'", ERROR),
        ("'1' < 2", ERROR),
        (f"{value('gone')} < 1", ERROR),
        (f"1 > {value('gone')}", ERROR),
        (f"{value('gone')} <= {value('gone')}", ERROR),
        (f"{value('t')} < 1", ERROR),
        (f"{value('o')} < 1", ERROR),
        (f"{value('o')} <= {value('o')}", ERROR),
        ("1 + 2 == 3", True),
        ("'a' + 'b' == 'ab'", True),
        ("'a' + 1 == 'a1'", True),
        ("1 + 'a' == '1a'", True),
        ("1.0 + 'a' == '1a'", True),
        ("1.5 + '' == '1.5'", True),
        ("1e21 + '' == '1e+21'", True),
        ("1e-7 + '' == '1e-7'", True),
        ("1 + 2 + 'a' == '3a'", True),
        ("'a' + 1 + 2 == 'a12'", True),
        ("4 / 2 + '' == '2'", True),
        ("0 / 0 + '' == 'NaN'", True),
        (f"'a' + {value('t')} == ''", ERROR),
        (f"{value('t')} + 'a' == ''", ERROR),
        (f"'a' + {value('gone')} == ''", ERROR),
        (f"1 + {value('gone')} == 1", ERROR),
        (f"1 + {value('t')} == 1", ERROR),
        (f"1 + {value('o')} == 1", ERROR),
        ("5 - 2 == 3", True),
        ("5 * 2 == 10", True),
        ("1 / 2 == 0.5", True),
        ("7 % 3 == 1", True),
        ("-7 % 3 == -1", True),
        ("7 % -3 == 1", True),
        ("-7.5 % 2 == -1.5", True),
        ("- 2 == 0 - 2", True),
        (f"{value('s')} - 1 == 0", ERROR),
        (f"{value('t')} * 1 == 1", ERROR),
        (f"{value('gone')} - 1 == 0", ERROR),
        (f"1 - {value('gone')} == 1", ERROR),
        (f"-{value('gone')} == 0", ERROR),
        (f"-{value('s')} == 0", ERROR),
        (f"-{value('t')} == 0", ERROR),
        ("1 / 0 == 1 / 0", False),
        ("1 / 0 != 1 / 0", True),
        ("1 / 0 > 0", False),
        ("1 / 0 < 0", False),
        ("1 / 0 <= 1 / 0", False),
        ("1 % 0 == 0", False),
        ("1.5 % 0 >= 0", False),
        ("9223372036854775807 + 1 == 9223372036854775808", True),
        ("9223372036854775807 * 9223372036854775807 > 1e37", True),
        ("1e308 * 10 > 1e308", True),
        ("1e308 * 10 + '' == 'Infinity'", True),
        ("-1e308 * 10 + '' == '-Infinity'", True),
        ("1e308 * 10 % 2 == 0", False),
        ("true && false", False),
        ("true && true && false", False),
        ("false || false || true", True),
        ("!true", False),
        ("!!true", True),
        ("true ? true : false", True),
        ("false ? true : false", False),
        ("(true ? 1 : 2) == 1", True),
        ("false ? true : true ? false : true", False),
    ],
)
def test_operators(expression: str, result: bool | str) -> None:
    assert evaluate(expression, NODE) == result


BAD = f"{value('gone')}.contains('a')"


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        (BAD, ERROR),
        (f"false && {BAD}", False),
        (f"true || {BAD}", True),
        (f"true && false && {BAD}", False),
        (f"false || true || {BAD}", True),
        (f"true && {BAD}", ERROR),
        (f"false || {BAD}", ERROR),
        (f"{BAD} || true", ERROR),
        (f"{BAD} && false", ERROR),
        (f"!{BAD}", ERROR),
        (f"{BAD} == false", ERROR),
        (f"{BAD} ? true : true", ERROR),
        (f"true ? true : {BAD}", True),
        (f"false ? {BAD} : true", True),
        (f"false ? true : {BAD}", ERROR),
        (f"false ? {BAD} : false ? {BAD} : true", True),
    ],
)
def test_an_error_fails_the_whole_rule_if_it_is_evaluated(
    expression: str, result: bool | str
) -> None:
    assert evaluate(expression, NODE) == result


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        (f"{value('s')} == 'text'", True),
        (f"{value('n')} == 3", True),
        (f"{value('f')} == 1.5", True),
        (f"{value('t')} == true", True),
        (f"{value('gone')} == null", True),
        (f"{value('o')} != null", True),
        (f"{value('o')} == null", False),
        (f"{value('o')} == 1", False),
        (f"1 == {value('o')}", False),
        (f"'a' == {value('o')}", False),
        (f"null == {value('o')}", False),
        (f"{value('o')} == {value('same')}", True),
        (f"{value('o')} == {value('other')}", False),
        (f"{value('o')} != {value('other')}", True),
        (f"{value('o')} == {value('list')}", False),
        (f"{value('list')} == {value('pair')}", True),
        (f"{value('o')} == auth.token.nested", True),
        (f"auth.token.nested == {value('o')}", True),
        (f"auth.token.list == {value('list')}", False),
        ("auth.token.nested == auth.token.nested", True),
        ("auth.token.nested != auth.token.list", True),
        (f"{value('ranked')} == 5", True),
        ("data.child('ranked').getPriority() == 'high'", True),
        ("data.child('same/b').getPriority() == 7", True),
        ("data.child('n').getPriority() == null", True),
        ("data.child('gone').getPriority() == null", True),
        ("data.child('s').exists()", True),
        ("data.child('z').exists()", True),
        ("data.child('e').exists()", True),
        ("data.child('o').exists()", True),
        ("data.child('gone').exists()", False),
        ("data.child('o/b/c').val() == 'x'", True),
        ("data.child('/o//b/c/').val() == 'x'", True),
        ("data.child('o').child('b').child('c').val() == 'x'", True),
        ("data.child('o/b/c').parent().parent().child('a').val() == 1", True),
        ("data.child('').child('n').val() == 3", True),
        ("data.child('o').child('').hasChild('a')", True),
        ("data.child('/').exists()", True),
        ("data.child('.').exists()", False),
        ("data.child('o/../n').exists()", False),
        ("data.child('a#b').exists()", False),
        ("data.child('o/$a').exists()", False),
        ("data.child('o[0]').val() == null", True),
        ("data.child('a.b').parent().hasChild('n')", True),
        ("data.child('a.b/c').parent().exists()", False),
        ("data.child('a.b/c').parent().parent().exists()", True),
        ("data.child('a.b').child('n').exists()", False),
        ("data.child('a.b').getPriority() == null", True),
        ("data.child('a.b').isString()", False),
        ("data.child('a.b').hasChildren()", False),
        ("data.child('s/deeper').exists()", False),
        (f"data.child({value('gone')}).exists()", ERROR),
        (f"data.child({value('n')}).exists()", ERROR),
        (f"data.hasChild({value('gone')})", ERROR),
        ("data.parent().exists()", ERROR),
        ("root.parent().exists()", ERROR),
        ("data.child('o').parent().parent().exists()", ERROR),
        ("data.hasChild('o')", True),
        ("data.hasChild('o/b/c')", True),
        ("data.hasChild('gone')", False),
        ("data.hasChild('s/x')", False),
        ("data.hasChild('a.b')", False),
        ("data.hasChildren()", True),
        ("data.child('s').hasChildren()", False),
        ("data.child('gone').hasChildren()", False),
        ("data.hasChildren(['s', 'n'])", True),
        ("data.hasChildren(['s', 'gone'])", False),
        ("data.hasChildren(['o/b/c', '/s'])", True),
        ("data.hasChildren(['a.b'])", False),
        ("data.hasChildren([])", True),
        ("data.child('s').hasChildren([])", True),
        ("data.child('gone').hasChildren([])", True),
        ("data.child('a.b').hasChildren([])", True),
        ("data.hasChildren(['s', 'n',])", True),
        ("data.hasChildren(['s' , 'gone' , ])", False),
        (f"data.hasChildren(['s', {value('s')},])", False),
        ("root.parent().hasChildren([])", ERROR),
        ("data.child('list').hasChildren(['0', '1'])", True),
        ("data.child('list').hasChildren(['2'])", False),
        (f"data.hasChildren(['s', {value('s')}])", False),
        (f"data.hasChildren(['gone', {value('gone')}])", ERROR),
        (f"data.hasChildren(['gone', {value('n')}])", ERROR),
        ("data.child('n').isNumber()", True),
        ("data.child('f').isNumber()", True),
        ("data.child('t').isNumber()", False),
        ("data.child('s').isNumber()", False),
        ("data.child('ranked').isNumber()", True),
        ("data.child('s').isString()", True),
        ("data.child('e').isString()", True),
        ("data.child('n').isString()", False),
        ("data.child('t').isBoolean()", True),
        ("data.child('z').isBoolean()", False),
        ("data.child('o').isString()", False),
        ("data.child('o').isNumber()", False),
        ("data.child('o').isBoolean()", False),
        ("data.child('gone').isString()", False),
    ],
)
def test_snapshots(expression: str, result: bool | str) -> None:
    assert evaluate(expression, NODE, auth=AUTH) == result


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("'abc'.length == 3", True),
        ("''.length == 0", True),
        ("'é'.length == 1", True),
        ("'😀'.length == 2", True),
        ("'abc'.contains('b')", True),
        ("'abc'.contains('')", True),
        ("'abc'.contains('B')", False),
        ("'a.c'.contains('.')", True),
        ("'abc'.contains('.')", False),
        ("'abc'.beginsWith('ab')", True),
        ("'abc'.beginsWith('bc')", False),
        ("'abc'.endsWith('bc')", True),
        ("'abc'.endsWith('ab')", False),
        ("'a.b.c'.replace('.', '-') == 'a-b-c'", True),
        ("'abc'.replace('x', 'y') == 'abc'", True),
        ("'abc'.replace('', 'y') == 'abc'", True),
        ("'a/b/c'.replace('/b/', 'x') == 'axc'", True),
        ("'aaa'.replace('aa', 'b') == 'ba'", True),
        ("'AbÉ'.toLowerCase() == 'abé'", True),
        ("'abé'.toUpperCase() == 'ABÉ'", True),
        ("'ß'.toUpperCase() == 'SS'", True),
        ("'I'.toLowerCase() == 'i'", True),
        ("'abc'.matches(/b/)", True),
        ("'abc'.matches(/^b/)", False),
        ("'ABC'.matches(/b/i)", True),
        ("'abc'['contains']('b')", True),
        (f"{value('s')}.length == 4", True),
        (f"{value('s')}.contains('ex')", True),
        (f"{value('n')}.length == 1", ERROR),
        (f"{value('gone')}.length == 0", ERROR),
        (f"{value('n')}.contains('3')", ERROR),
        (f"{value('t')}.contains('t')", ERROR),
        (f"{value('gone')}.contains('')", ERROR),
        (f"{value('o')}.contains('a')", ERROR),
        (f"{value('n')}.matches(/3/)", ERROR),
        (f"{value('gone')}.matches(/a/)", ERROR),
        (f"{value('n')}.toLowerCase() == ''", ERROR),
        (f"'abc'.contains({value('gone')})", ERROR),
        (f"'abc'.contains({value('n')})", ERROR),
        (f"'abc'.beginsWith({value('gone')})", ERROR),
        (f"'abc'.endsWith({value('t')})", ERROR),
        (f"'abc'.replace({value('gone')}, 'a') == ''", ERROR),
        (f"'abc'.replace('a', {value('gone')}) == ''", ERROR),
        ("auth.token.name.contains('nn')", True),
        ("auth.token.gone.contains('a')", ERROR),
        ("auth.token.level.contains('3')", ERROR),
        ("auth.token.gone.toLowerCase() == ''", ERROR),
        ("auth.token.name.length == 3", True),
        ("auth.uid['length'] > 1", True),
        ("auth.token.level.length == null", True),
        ("auth.token.list.length == null", True),
        ("auth.token.gone.length == null", True),
        ("auth.token.name.size == null", True),
        ("auth.token.length == 9", True),
    ],
)
def test_strings(expression: str, result: bool | str) -> None:
    assert evaluate(expression, NODE, auth=AUTH) == result


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("auth != null", True),
        ("auth.uid == 'u1'", True),
        ("auth.provider == 'anonymous'", True),
        ("auth.token.firebase.sign_in_provider == auth.provider", True),
        ("auth.token.admin == true", True),
        ("auth.token.level > 2", True),
        ("auth.token['level'] > 2", True),
        ("auth.token[$key] > 2", True),
        ("auth['to' + 'ken'].level == 3", True),
        ("auth.token.list[0] == 'p'", True),
        ("auth.token.list['2'] == 'q'", True),
        ("auth.token.list[1] == null", True),
        ("auth.token.list[9] == null", True),
        ("auth.token.list['01'] == null", True),
        ("auth.token.list['-1'] == null", True),
        ("auth.token.list[0.5] == null", True),
        ("auth.gone == null", True),
        ("auth.gone.deeper.still == null", True),
        ("auth.uid.deeper == null", True),
        ("auth.token.nothing == null", True),
        ("auth.token.nothing.deeper == null", True),
        ("auth.token[auth.gone] == null", ERROR),
        ("auth.token[data.val()] == null", ERROR),
    ],
)
def test_auth(expression: str, result: bool | str) -> None:
    found = evaluate(expression, None, auth=AUTH, path=("level",), captures={"$key": 0})
    assert found == result


@pytest.mark.parametrize("expression", ["auth", "auth.uid", "auth.token.a.b", "auth['a'][0]"])
def test_auth_and_its_members_are_null_for_an_anonymous_caller(expression: str) -> None:
    assert evaluate(f"{expression} == null") is True


def test_auth_may_be_any_json() -> None:
    assert evaluate("auth == 'me'", auth="me") is True
    assert evaluate("auth.role == 'boss'", auth={"role": "boss"}) is True
    deep: Any = 0
    for _ in range(900):
        deep = [deep]
    assert evaluate("auth.a == auth.b", auth={"a": deep, "b": deep}) is True
    assert evaluate("auth + 1 > 0", auth=10**400) is True
    assert evaluate("auth * 1.5 % 7 == 0", auth=10**400) is False
    assert evaluate("auth + '' == 'Infinity'", auth=10**5000) is True


def test_now_is_the_time_of_the_request() -> None:
    assert evaluate(f"now == {NOW}") is True


def test_captures_are_strings() -> None:
    assert evaluate("$n == '7'", path=("a", "7"), captures={"$n": 1}) is True
    assert evaluate("$n == 7", path=("a", "7"), captures={"$n": 1}) is False
    assert evaluate("$n.length == 1", path=("a", "7"), captures={"$n": 1}) is True


def test_root_and_data_are_before_the_write_and_new_data_after() -> None:
    before = {"a": {"b": 1}, "c": 2}
    after = view({"a": {"b": 3}, "c": 4})
    for expression in (
        "root.child('c').val() == 2",
        "data.child('b').val() == 1",
        "newData.child('b').val() == 3",
        "data.parent().child('c').val() == 2",
        "newData.parent().child('c').val() == 4",
    ):
        assert evaluate(expression, before, after=after, path=("a",)) is True


@pytest.mark.parametrize(
    ("facts", "truths"),
    [
        (
            None,
            [
                "!query.orderByKey",
                "!query.orderByPriority",
                "!query.orderByValue",
                "query.orderByChild == null",
                "query.startAt == null",
                "query.endAt == null",
                "query.equalTo == null",
                "query.limitToFirst == null",
                "query.limitToLast == null",
                "!query.where",
            ],
        ),
        (QueryFacts(has_where=True), ["query.where", "query.orderByKey"]),
        (QueryFacts(order_by_key=True), ["query.orderByKey", "!query.orderByValue"]),
        (QueryFacts(order_by_priority=True), ["query.orderByPriority", "!query.orderByKey"]),
        (QueryFacts(order_by_value=True, start_at=1), ["query.orderByValue", "!query.orderByKey"]),
        (
            QueryFacts(order_by_child="a/b", equal_to="x", limit_to_last=3),
            [
                "query.orderByChild == 'a/b'",
                "query.equalTo == 'x'",
                "query.limitToLast <= 3",
                "!query.orderByKey",
            ],
        ),
        (QueryFacts(limit_to_first=10), ["query.orderByKey", "query.limitToFirst <= 10"]),
        (QueryFacts(start_at=1, end_at=True), ["query.startAt == 1", "query.endAt == true"]),
    ],
)
def test_query(facts: QueryFacts | None, truths: list[str]) -> None:
    for truth in truths:
        assert evaluate(truth, query=facts) is True, truth


def test_a_bound_of_null_is_equal_to_no_value_and_has_no_order() -> None:
    bounds = QueryFacts(start_at=NullBound.NULL, equal_to=NullBound.NULL)
    for other in ("null", "''", "0", "false", "auth", "data.val()", "auth.none", "query.endAt"):
        for auth in (None, {"a": 1}):
            for one, two in (("query.startAt", other), (other, "query.startAt")):
                assert evaluate(f"{one} == {two}", auth=auth, query=bounds) is False
                assert evaluate(f"{one} != {two}", auth=auth, query=bounds) is True
    assert evaluate("query.startAt == query.equalTo", query=bounds) is True
    for failing in ("query.startAt >= ''", "query.startAt < 5", "query.startAt + '' == ''"):
        assert evaluate(failing, query=bounds) == ERROR


def test_a_missing_limit_is_null_and_has_no_order() -> None:
    assert evaluate("query.limitToFirst <= 10") == ERROR
    assert evaluate("query.limitToFirst == null") is True


@pytest.mark.parametrize(
    "expression",
    [
        "(true ? data : 1) == 1",
        "1 == (true ? data : 1)",
        "'a' == (true ? data : 1)",
        "(true ? data : 1) == null",
        "(true ? /a/ : 1) == 1",
        "(true ? data.val : 1) == 1",
        "(true ? query : 1) == 1",
        "(true ? data : 1) + 'a' == ''",
        "(true ? data : 1) < 1",
        "data.hasChild(true ? 1 : null)",
    ],
)
def test_what_is_not_a_value_is_an_error_everywhere(expression: str) -> None:
    assert evaluate(expression, NODE) == ERROR


def test_the_length_of_strings_is_bounded() -> None:
    data = {"s": "a" * 8_000_000}
    assert evaluate(f"{value('s')} + {value('s')} == ''", data) == ERROR
    assert evaluate(f"{value('s')}.replace('a', {value('s')}) == ''", data) == ERROR
    assert evaluate(f"{value('s')}.replace('a', 'b').length == 8000000", data) is True
    assert evaluate(f"{value('s')}.replace('b', {value('s')}).length < {MAX_STRING}", data) is True
