"""What rules read for one request: each node once, within one budget, until they are stopped."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.rules.evaluating import NOW, evaluate, normal, place, rules
from tests.tree.value_view import ValueView
from treedbd.limits import MIB, RulesLimits
from treedbd.loop import in_steps, run_beside
from treedbd.rules.context import REMEMBERED_NODES, Context
from treedbd.rules.document import TextPosition
from treedbd.rules.ruleset import RuleSet, parse_rules
from treedbd.store.engine import DamagedRow
from treedbd.store.memory import MemoryEngine
from treedbd.store.node_writer import NodeWriter
from treedbd.store.nodes import Nodes
from treedbd.store.rows import seal
from treedbd.tree.path import encode_path
from treedbd.tree.types import Change, Charge, Container, Leaf, Path, free

BIG = "x" * 100_000


class CountingView(ValueView):
    """A view that counts how often each node is read."""

    def __init__(self, json_value: Any) -> None:
        super().__init__(normal(json_value))
        self.reads: Counter[Path] = Counter()

    def peek(self, path: Path, charge: Charge = free) -> Leaf | Container | None:
        self.reads[path] += 1
        return super().peek(path, charge)


def limited(nodes: Any, characters: int) -> RuleSet:
    """Return rules for which one request may read that many characters."""
    document = json.dumps({"rules": nodes})
    return parse_rules(document, RulesLimits(judged_characters=characters))


def put(rule_set: RuleSet, value: Any, context: Context) -> bool:
    """Return whether the rules allow a PUT at the root."""
    return rule_set.may_write([Change(place(""), normal(value))], context).allowed


VALIDATED = {
    ".write": True,
    "$record": {".validate": "newData.val() != root.child('big').val()"},
}


def test_three_hundred_records_read_the_leaf_that_they_are_compared_with_once() -> None:
    data = CountingView({"big": BIG})
    rule_set = limited(VALIDATED, len(BIG) + 1000)
    assert put(rule_set, {f"r{at}": "short" for at in range(300)}, Context(None, NOW, data))
    assert data.reads[("big",)] == 1


def test_a_leaf_is_charged_for_each_request_once() -> None:
    rule_set = limited(VALIDATED, len(BIG) + 1000)
    for _ in range(3):
        assert put(rule_set, {"r": "short"}, Context(None, NOW, CountingView({"big": BIG})))
    small = limited(VALIDATED, len(BIG) - 1)
    assert not put(small, {"r": "short"}, Context(None, NOW, CountingView({"big": BIG})))


def test_long_strings_stay_remembered_among_many_nodes() -> None:
    document = {
        ".write": True,
        "$record": {
            ".validate": "root.child('a').child($record).val() == null"
            " && newData.val() != root.child('big').val()"
        },
    }
    data = CountingView({"big": BIG})
    records = {f"r{at}": "short" for at in range(2 * REMEMBERED_NODES + 10)}
    assert put(rules(document), records, Context(None, NOW, data))
    assert data.reads[("big",)] == 1


@pytest.mark.parametrize(
    "term",
    [
        "data.child('s').val() == 'a'",
        "data.child('s').val().length > 0",
        "data.child('s').val() < 'b'",
        "'b'.contains(data.child('s').val()) == false",
        "!data.parent().child('s').child(data.child('s').val()).exists()",
    ],
)
def test_every_way_to_read_a_leaf_is_charged(term: str) -> None:
    data = {"a": {"s": BIG}}
    document = {"a": {".read": f"({term}) || true"}}
    for characters, allowed in ((40 * len(BIG), True), (len(BIG) - 1, False)):
        context = Context(None, NOW, ValueView(normal(data)))
        assert limited(document, characters).may_read(("a",), context).allowed is allowed


def test_a_write_and_the_read_for_its_response_share_one_budget() -> None:
    nodes = {".read": "data.child('one').val() != 1", ".write": "data.child('two').val() != 1"}
    data = ValueView(normal({"one": "x" * 600, "two": "x" * 600}))
    rule_set = limited(nodes, 1000)
    context = Context(None, NOW, data)
    assert rule_set.may_write([Change(place(""), 1)], context).allowed
    assert not rule_set.may_read((), context).allowed
    assert rule_set.may_read((), Context(None, NOW, data)).allowed


def test_the_rule_that_exceeds_the_budget_is_reported_with_its_position() -> None:
    reported: list[tuple[str, TextPosition]] = []

    def exceeded(location: str, position: TextPosition) -> None:
        reported.append((location, position))

    text = '{"rules": {\n  "a": {".read": "data.val() != 1", ".write": "data.val() != 1"}}}'
    rule_set = parse_rules(text, RulesLimits(judged_characters=10))
    context = Context(None, NOW, ValueView({"a": "x" * 11}), exceeded=exceeded)
    assert not rule_set.may_read(("a",), context).allowed
    assert reported == [("rules/a/.read", TextPosition(2, 19))]


def test_evaluations_stop_where_the_check_between_them_raises() -> None:
    class TimeOver(Exception):
        pass

    left = 100

    def check() -> None:
        nonlocal left
        left -= 1
        if not left:
            raise TimeOver

    data = CountingView({})
    document = {".write": True, "$r": {".validate": "root.child($r).val() == null"}}
    with pytest.raises(TimeOver):
        put(
            rules(document),
            {f"r{at}": 1 for at in range(1000)},
            Context(None, NOW, data, None, check),
        )
    assert len(data.reads) < 100


def test_the_type_of_a_large_leaf_is_found_without_parsing_it() -> None:
    transaction = MemoryEngine().begin()
    not_json = b'"' + b"x" * 1_000_000
    for name, raw in (("s", not_json), ("t", b' {".value":' + not_json)):
        key = encode_path((name,))
        transaction.put(key, seal(key, raw))
    nodes = Nodes(transaction)
    document = {
        ".read": "data.child('s').exists() && data.child('s').isString()"
        " && data.hasChild('t') && !data.child('t').isNumber() && !data.child('s').hasChildren()"
    }
    assert limited(document, 1_000_000).may_read((), Context(None, NOW, nodes)).allowed
    with pytest.raises(DamagedRow):
        nodes.peek(("s",))


@pytest.mark.parametrize("value", ["text", "", 5, -1, 2.5, True, False, {"a": 1}, ["a"], None])
@pytest.mark.parametrize("size", [0, 10_000])
@pytest.mark.parametrize("priority", [None, 3])
def test_the_type_of_a_node_is_that_of_its_value(value: Any, size: int, priority: Any) -> None:
    body = {".value": value} if not isinstance(value, dict | list) else value
    if priority is not None and isinstance(body, dict):
        body = {**body, ".priority": priority}
    transaction = MemoryEngine().begin()
    nodes = NodeWriter(transaction)
    nodes.apply([Change(place(""), normal({"n": body, "other": "x" * size}))])
    found = nodes.peek(("n",))
    assert nodes.type_at(("n",)) is (None if found is None else type(found))


def test_a_path_of_more_than_32_keys_is_nothing_and_costs_its_length() -> None:
    assert evaluate("root.child(data.val()).exists()", "a/" * 12_000) is False
    deep = "root.child(data.val() + '/a/a').parent().parent().exists()"
    assert evaluate(deep, "/".join("a" * 32)) is False
    long_path = {".read": "!root.child(data.child('p').val()).exists()"}
    view = ValueView(normal({"p": "a/" * 12_000}))
    assert limited(long_path, 1_000_000).may_read((), Context(None, NOW, view)).allowed
    assert not limited(long_path, 48_000).may_read((), Context(None, NOW, view)).allowed


@pytest.mark.parametrize(
    "term",
    [
        "root.child(data.child('p').val()).exists()",
        "root.hasChild(data.child('p').val())",
        "root.hasChildren([data.child('p').val()])",
    ],
)
def test_many_long_paths_exceed_the_budget(term: str) -> None:
    view = ValueView(normal({"p": "a/" * 12_000}))
    few, many = rules({".read": f"!{term}"}), rules({".read": f"!{term} && " * 300 + "true"})
    assert few.may_read((), Context(None, NOW, view)).allowed
    assert not many.may_read((), Context(None, NOW, view)).allowed


@pytest.mark.parametrize("term", ["{} == {}", "{} >= {}", "{} == {} == true", "{}.beginsWith({})"])
def test_comparisons_of_long_strings_cost_a_part_of_their_length(term: str) -> None:
    view = ValueView(normal({"a": BIG, "b": BIG}))
    text = term.format("data.child('a').val()", "data.child('b').val()")
    few, many = rules({".read": text}), limited({".read": f"{text} && " * 50 + "true"}, 450_000)
    assert few.may_read((), Context(None, NOW, view)).allowed
    assert not many.may_read((), Context(None, NOW, view)).allowed


SLOW_PATTERN = "(a|b)*a(a|b){20}c"
"""A text of `a` and `b` leads to ever new states, so a character takes a hundred nanoseconds."""


def judged(rule: str, text: str, *, at_once: bool) -> bool:
    """Return whether a rule is true of a leaf, within the default budget."""
    context = Context(None, NOW, ValueView(text), at_once=at_once)
    return rules({".read": rule}).may_read((), context).allowed


def test_a_pattern_is_charged_what_it_takes_at_the_worst_where_nothing_can_pause() -> None:
    slow = f"!data.val().matches(/{SLOW_PATTERN}/)"
    assert judged(slow, "ab" * MIB, at_once=False)
    assert not judged(slow, "ab" * MIB, at_once=True)
    assert judged(slow, "ab" * 50_000, at_once=True)
    assert judged("data.val().matches(/^[a-z]+$/)", "ab" * 500_000, at_once=True)


def test_rules_that_cannot_pause_have_half_the_budget() -> None:
    rule = "data.val() != 1 && data.val().toUpperCase() != ''"
    for characters, allowed in ((2 * 6 * MIB, True), (2 * 6 * MIB - 1, False)):
        context = Context(None, NOW, ValueView("x" * (2 * MIB)), at_once=True)
        assert limited({".read": rule}, characters).may_read((), context).allowed is allowed


def count_steps(rule: str, text: str) -> int:
    """Return in how many steps a rule is evaluated, which has to be true."""
    context = Context(None, NOW, ValueView(text))
    evaluation = in_steps(lambda: rules({".read": rule}).may_read((), context).allowed)
    steps, allowed = 1, None
    while allowed is None:
        try:
            next(evaluation)
            steps += 1
        except StopIteration as stop:
            allowed = stop.value
    assert allowed
    return steps


def test_a_long_text_is_matched_in_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    results: list[Any] = []

    def record(work: Callable[[], object]) -> object:
        results.append(run_beside(work))
        return results[-1]

    monkeypatch.setattr("treedbd.rules.compile.run_beside", record)
    rule = "data.val().matches(/^[a-z]+$/)"
    assert count_steps(rule, "ab" * 100) == 1
    assert not results
    assert count_steps(rule, "ab" * 100_000) >= 2
    assert len(results) == 1


@pytest.mark.parametrize(
    "term",
    [
        "!data.val().contains('abba')",
        "data.val().replace('ab', '') == ''",
        "data.val().toUpperCase() != ''",
        "data.val() + 'a' != ''",
    ],
)
def test_there_is_a_pause_between_the_texts_that_a_rule_reads(term: str) -> None:
    assert count_steps(" && ".join([term] * 5), "ab" * 200_000) > 5


@pytest.mark.parametrize(
    ("term", "characters"),
    [
        ("!{}.contains('abbaba')", 4),
        ("!{}.contains('abba')", 2),
        ("{}.replace('x', '') != ''", 7),
        ("{}.toLowerCase() != ''", 2),
    ],
)
def test_a_long_text_in_a_method_counts_as_long_as_it_takes(term: str, characters: int) -> None:
    text = term.format("data.val()")
    for needed, allowed in ((characters + 1, True), (characters, False)):
        limit = needed * len(BIG) + 100
        context = Context(None, NOW, ValueView("ab" * (len(BIG) // 2)))
        assert limited({".read": text}, limit).may_read((), context).allowed is allowed


def test_a_long_text_beyond_ascii_counts_more_where_its_case_is_changed() -> None:
    assert judged("data.val().toUpperCase() != ''", "ß" * 1_000_000, at_once=True)
    assert not judged("data.val().toUpperCase() != ''", "ß" * 3_000_000, at_once=False)


def test_objects_that_are_compared_count_by_what_their_nodes_take() -> None:
    transaction = MemoryEngine().begin()
    nodes = NodeWriter(transaction)
    for name, count in (("small", 400), ("large", 8_000)):
        value: Any = {f"{at:05}": {"a": {"b": {"c": {"d": 1}}}} for at in range(count)}
        nodes.apply([Change(place(name), {"one": value, "two": value})])
    document = {
        name: {".read": "data.child('one').val() == data.child('two').val()"}
        for name in ("small", "large")
    }
    context = Context(None, NOW, Nodes(transaction), at_once=True)
    assert rules(document).may_read(("small",), context).allowed
    context = Context(None, NOW, Nodes(transaction))
    assert not rules(document).may_read(("large",), context).allowed
