"""Hostile rules give a verdict or an error, never a crash, and a rule that fails denies."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.rules.evaluating import (
    ERROR,
    NOW,
    document_error,
    evaluate,
    expression_error,
    may_read,
    may_write,
    rules,
    view,
)
from treedbd.limits import RulesLimits
from treedbd.loop import finish
from treedbd.rules.context import Context, QueryFacts
from treedbd.rules.ruleset import parse_rules
from treedbd.store.memory import MemoryEngine
from treedbd.store.node_writer import NodeWriter
from treedbd.store.nodes import Nodes
from treedbd.tree.types import Change, Path, Place, Value

METHODS = st.sampled_from(
    [
        *("val", "child", "parent", "hasChild", "hasChildren", "exists", "getPriority"),
        *("isNumber", "contains", "beginsWith", "endsWith", "replace", "toLowerCase", "matches"),
        *("length", "foo"),
    ]
)
EXPRESSIONS_BY_TYPE: dict[str, st.SearchStrategy[str]] = {}
"""Expressions by type."""


def expressions_of(type_name: str) -> st.SearchStrategy[str]:
    return st.deferred(lambda: EXPRESSIONS_BY_TYPE[type_name])


def form(pattern: str, *types: str) -> st.SearchStrategy[str]:
    """Fill a pattern with expressions of these types."""
    return st.tuples(*map(expressions_of, types)).map(lambda texts: pattern.format(*texts))


def one_of(leaves: list[str], *forms: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(st.sampled_from(leaves), *forms)


EXPRESSIONS_BY_TYPE["boolean"] = one_of(
    ["true", "false", "data.exists()", "query.orderByKey", "newData.isString()"],
    *[form(f"({{}} {sign} {{}})", "boolean", "boolean") for sign in ("&&", "||", "==", "!=")],
    *[form(f"({{}} {sign} {{}})", "value", "value") for sign in ("==", "!==", "<", ">=")],
    form("!{}", "boolean"),
    form("({} ? {} : {})", "boolean", "boolean", "boolean"),
    form("{}.hasChild({})", "snapshot", "string"),
    form("{}.hasChildren([{}, {}])", "snapshot", "string", "string"),
    form("{}.exists()", "snapshot"),
    form("{}.isNumber()", "snapshot"),
    form("{}.contains({})", "string", "string"),
    form("{}.matches(/a+|^b/)", "string"),
    form("{}.matches(/[a-z]{{2}}$/i)", "string"),
)
EXPRESSIONS_BY_TYPE["value"] = one_of(
    ["null", "query.limitToFirst", "auth", "(true ? 1 : null)", "(false ? data : 1)"],
    form("{}", "number"),
    form("{}", "string"),
    form("({} ? {} : {})", "boolean", "value", "value"),
    form("({} + {})", "value", "value"),
)
EXPRESSIONS_BY_TYPE["number"] = one_of(
    ["now", "0", "1", "2.5", "9223372036854775807", "1e308", "data.val()", "auth.token.a"],
    *[form(f"({{}} {sign} {{}})", "number", "number") for sign in "+-*/%"],
    form("-{}", "number"),
    form("({}).length", "string"),
    form("{}.getPriority()", "snapshot"),
)
EXPRESSIONS_BY_TYPE["string"] = one_of(
    ["''", "'a'", "'a/b'", "'a.b'", "'😀'", "$uid", "auth.uid", "data.child('s').val()"],
    form("({} + {})", "string", "value"),
    form("{}.val()", "snapshot"),
    form("{}.toUpperCase()", "string"),
    form("{}.replace({}, {})", "string", "string", "string"),
    form("auth[{}]", "string"),
)
EXPRESSIONS_BY_TYPE["snapshot"] = one_of(
    ["data", "newData", "root", "root.child('s')"],
    form("{}.child({})", "snapshot", "string"),
    form("{}.parent()", "snapshot"),
    form("({} ? {} : {})", "boolean", "snapshot", "snapshot"),
)
ODD = one_of(
    ["foo", "/a+/", "data.val", "query", "['a', 'b']", "auth()", "data.foo"],
    st.tuples(st.deferred(lambda: EXPRESSIONS), METHODS).map(".".join),
    st.tuples(st.deferred(lambda: EXPRESSIONS), METHODS).map(lambda both: "{}.{}()".format(*both)),
    st.deferred(lambda: form("({} && {})", *["snapshot", "value"])),
    st.deferred(lambda: form("{}[{}]", *["value", "string"])),
)
EXPRESSIONS: st.SearchStrategy[str] = st.one_of(
    *EXPRESSIONS_BY_TYPE.values(), EXPRESSIONS_BY_TYPE["boolean"], ODD
)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from([None, True, False, 0, 1, 2.5, "", "a", "s", "é😀", 2**63 - 1]),
    lambda inner: st.one_of(
        st.dictionaries(st.sampled_from(["a", "b", "s", "uid", "token"]), inner, max_size=3),
        st.lists(inner, max_size=2),
    ),
    max_leaves=8,
)


@settings(max_examples=examples(300), deadline=None)
@given(EXPRESSIONS, JSON, JSON, JSON, st.booleans())
def test_any_expression_has_an_error_or_a_result(
    expression: str, data: Any, after: Any, auth: Any, queried: bool
) -> None:
    """An expression that is not boolean is compared, so that most of them can be evaluated."""
    whole = next(
        (text for text in (expression, f"{expression} == 1") if expression_error(text) is None),
        None,
    )
    if whole is None:
        return
    query = QueryFacts(limit_to_first=3) if queried else None
    path: Path = ("a", "b")
    found = evaluate(
        whole,
        data,
        after=view(after),
        auth=auth,
        path=path,
        query=query,
        captures={"$uid": 1},
    )
    assert found is True or found is False or found == ERROR


@settings(max_examples=examples(150), deadline=None)
@given(EXPRESSIONS, JSON, JSON)
def test_a_rule_that_fails_denies(expression: str, data: Any, auth: Any) -> None:
    whole = next(
        (text for text in (expression, f"{expression} == 1") if expression_error(text) is None),
        None,
    )
    if whole is None or "$uid" in whole:
        return
    result = evaluate(whole, data, auth=auth)
    assert may_write(rules({".write": whole}), {"": data}, data, auth=auth) is (result is True)
    valid = result is True or view(data).peek(()) is None
    validating = rules({".write": True, ".validate": whole})
    assert may_write(validating, {"": data}, data, auth=auth) is valid
    if "newData" not in whole:
        assert may_read(rules({".read": whole}), "", data, auth=auth) is (result is True)


TOKENS = st.sampled_from(
    [
        *"()[]{}.,;:?!=<>&|+-*/%'\"\\$#@~^ \n0aé",
        "&&",
        "==",
        "auth",
        "data",
        "null",
        "/a/",
        "//",
        "/*",
    ]
)


@settings(max_examples=examples(600), deadline=None)
@given(st.lists(TOKENS, max_size=14).map("".join))
def test_any_text_is_an_expression_or_has_an_error_inside_it(text: str) -> None:
    document = json.dumps({"rules": {".read": text}})
    error = document_error(document)
    if error is not None:
        line, column, _ = error.split(":", 2)
        assert line == "1"
        assert document.index(".read") < int(column) <= len(document)


MEMBERS = st.sampled_from(
    [".read", ".write", ".validate", ".indexOn", ".foo", "$a", "$b", "a", "b", "a.b", "", "rules"]
)
ITEMS = st.recursive(
    st.sampled_from([True, False, None, 1, "true", "auth != null", "$a == 'a'", "x", ["a"], "=="]),
    lambda inner: st.dictionaries(MEMBERS, inner, max_size=4),
    max_leaves=10,
)


@settings(max_examples=examples(400), deadline=None)
@given(ITEMS, st.lists(MEMBERS, max_size=3))
def test_any_json_is_a_rule_set_or_has_an_error(nodes: Any, keys: list[str]) -> None:
    document = json.dumps({"rules": nodes}, indent=1)
    error = document_error(document)
    if error is not None:
        assert 1 <= int(error.split(":")[0]) <= document.count("\n") + 1
        return
    rule_set = parse_rules(document)
    context = Context(None, NOW, view({"a": {"b": 1}}))
    path = tuple(key for key in keys if "." not in key and key)
    assert rule_set.may_read(path, context).allowed in (True, False)
    assert finish(rule_set.as_json()) == json.loads(document)


@settings(max_examples=examples(400), deadline=None)
@given(st.lists(st.sampled_from([*'{}[]":,/* \n\\tru.read', "rules", "true"]), max_size=20))
def test_any_text_is_a_document_or_has_an_error(pieces: list[str]) -> None:
    text = "".join(['{"rules":', *pieces, "}"])
    assert document_error(text) is None or ": " in str(document_error(text))


def with_stack(frames: int, work: Callable[[], object]) -> object:
    """Call `work` below so many more frames of the interpreter's stack."""
    return work() if frames == 0 else with_stack(frames - 1, work)


@pytest.mark.parametrize(
    "text",
    [
        "!(true && " * 200 + "auth == null" + ")" * 200 + " || true",
        "-(1 + " * 200 + "1" + ")" * 200 + " != 7",
        "(true ? " * 200 + "true" + " : false)" * 200,
        "'a'" + ".replace('a', 'a')" * 200 + " == 'a'",
    ],
)
def test_the_deepest_rule_runs_on_a_stack_that_is_already_deep(text: str) -> None:
    rule_set = rules({".read": text})
    context = Context(None, NOW, view(None))
    assert with_stack(300, lambda: parse_rules(rule_set.text).may_read((), context).allowed)


@pytest.mark.parametrize(
    "document",
    [
        '{"rules":' * 100_000,
        "[" * 1_000_000,
        '{"rules":{' + '"a":{' * 200_000,
        "/*" * 500_000,
        '"' + "\\u" * 300_000,
        '{"rules":{".read":"' + "(" * 1_000_000 + '"}}',
        '{"rules":{".read":"' + "true&&" * 100_000 + 'true"}}',
        '{"rules":{".read":"' + "a." * 300_000 + 'a"}}',
        '{"rules":{' + ",".join(f'"k{at}":{{}}' for at in range(20_000)) + ',"k1":{}}}',
        '{"rules":{".read":"auth.a.matches(/' + "(a*)*" * 3_000 + '/)"}}',
        '{"rules":{".read":"auth.a.matches(/' + "[^a]{1000}" * 100 + '/)"}}',
    ],
)
def test_large_and_hostile_documents_are_refused_quickly(document: str) -> None:
    begin = time.thread_time()
    assert document_error(document) is not None
    assert time.thread_time() - begin < 10


BIG = {"s": "a" * 5_000_000, "é": "é" * 2_000_000, "n": 1}


@pytest.mark.parametrize(
    "term",
    [
        "data.child('s').val().replace('a', 'bb').length > 0",
        "!data.child('s').val().contains('ab')",
        "data.child('s').val().toUpperCase() != ''",
        "data.child('é').val().toLowerCase() != ''",
        "!data.child('s').val().matches(/b$/)",
        "data.child('é').val().length > 0",
        "data.child('s').val() + 'a' + 'b' != ''",
        "data.child('s').val() + 1 != ''",
        "'aaaaaaaaaa'.replace('a', data.child('s').val().replace('aaaaaaaaaa', 'a')) != ''",
        "!'b'.contains(data.child('s').val())",
    ],
)
def test_the_text_that_the_rules_of_a_request_read_is_bounded(term: str) -> None:
    data = view(BIG)
    few, many = rules({".read": term}), rules({".read": f"{term} && " * 150 + "true"})
    assert few.may_read((), Context(None, NOW, data)).allowed
    begin = time.thread_time()
    verdict = many.may_read((), Context(None, NOW, data), explain=True)
    assert time.thread_time() - begin < 3
    assert not verdict.allowed
    assert verdict.trace[0].result == "The rules read too much text."


def test_a_large_pattern_spends_more_for_a_character() -> None:
    data = view({"s": "ab" * 1_000_000})
    context = Context(None, NOW, data)
    assert (
        rules({".read": "!data.child('s').val().matches(/a[ab]c/)"}).may_read((), context).allowed
    )
    hostile = rules({".read": "!data.child('s').val().matches(/a[ab]{500}c/)"})
    begin = time.thread_time()
    assert not hostile.may_read((), context).allowed
    assert time.thread_time() - begin < 1


def test_all_rules_of_one_request_share_one_bound_on_characters() -> None:
    limits = RulesLimits(judged_characters=1000)
    rule = "newData.val().contains('a')"
    document = json.dumps({"rules": {".write": True, "$key": {".validate": rule}}})
    rule_set = parse_rules(document, limits)
    children = {f"k{at}": "a" * 99 for at in range(10)}
    assert may_write(rule_set, {"": children})
    assert may_write(rule_set, {"": children})
    assert not may_write(rule_set, {"": {**children, "k": "a"}})
    assert not may_write(rule_set, children | {"k": "a"})
    assert not may_write(rule_set, {"k": "a" * 1000})


SAME = {f"k{at}": at for at in range(1_000)}


@pytest.mark.parametrize(
    "term",
    [
        "data.child('a').val() == data.child('b').val()",
        "!(data.child('a').val() != data.child('b').val())",
        "data.child('a').val() === data.child('b').val() === true",
    ],
)
def test_the_size_of_compared_objects_is_spent_before_they_are_read(term: str) -> None:
    data = view({"a": SAME, "b": SAME})
    few, many = rules({".read": term}), rules({".read": f"{term} && " * 250 + "true"})
    assert few.may_read((), Context(None, NOW, data)).allowed
    verdict = many.may_read((), Context(None, NOW, data), explain=True)
    assert not verdict.allowed
    assert verdict.trace[0].result == "The rules read too much text."


class NodesWithoutGet(Nodes):
    """Nodes of which no whole subtree may be read."""

    def get(self, path: Path) -> Value:
        raise AssertionError(path)


def test_an_object_too_large_to_compare_is_not_read() -> None:
    transaction = MemoryEngine().begin()
    nodes = NodeWriter(transaction)
    nodes.apply([Change(Place(()), {"a": {f"k{at:06}": at for at in range(100_000)}})])
    document = {".read": "data.child('a').val() == root.child('a').val()"}
    rule_set = parse_rules(json.dumps({"rules": document}), RulesLimits(judged_characters=100_000))
    unread = NodesWithoutGet(transaction)
    assert not rule_set.may_read((), Context(None, NOW, unread)).allowed
    assert unread.size(("a",), 1_000) < 2_000


def test_comparisons_of_strings_spend_no_characters() -> None:
    term = (
        "data.child('s').val().beginsWith('aa') && data.child('s').val() == data.child('s').val()"
    )
    rule_set = rules({".read": f"{term} && data.child('s').val().length > 1 && " * 100 + "true"})
    assert rule_set.may_read((), Context(None, NOW, view(BIG))).allowed


def test_a_thousand_rules_compile_in_bounded_time() -> None:
    nodes = {f"k{at}": {".read": f"auth.uid == 'u{at}'"} for at in range(1_000)}
    begin = time.thread_time()
    assert may_read(rules(nodes), "k7", auth={"uid": "u7"})
    assert time.thread_time() - begin < 20
