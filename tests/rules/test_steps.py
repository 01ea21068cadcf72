"""The steps of a check: many and short, with the same result as all at once."""

from __future__ import annotations

import gc
import json
import sys
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.rules.evaluating import document_error, may_read
from treedbd.limits import RulesLimits
from treedbd.loop import Steps, finish
from treedbd.rules.document import InvalidRules, Source
from treedbd.rules.grammar import parse_expression
from treedbd.rules.ruleset import check_rules_in_steps, parse_rules, parse_rules_in_steps

LONG = RulesLimits(expression_bytes=1_048_576, chain_terms=100_000)


def count(steps: Steps[Any]) -> int:
    return sum(1 for _ in steps)


def nested(depth: int) -> dict[str, Any]:
    return {"a": nested(depth - 1)} if depth else {".read": "true"}


@pytest.mark.parametrize(
    "expression",
    [
        "&&".join(["true"] * 3_000),
        "+".join(["1"] * 3_000) + ">1",
        "true?true:" * 3_000 + "true",
        "||".join(["(((true)))"] * 3_000),
        "data.hasChildren([" + ",".join(["'a'"] * 3_000) + "])",
        "||".join(["!data.child('a').exists()"] * 3_000),
    ],
)
def test_a_step_reads_some_hundred_tokens_of_an_expression(expression: str) -> None:
    assert count(parse_expression(expression, LONG)) >= 3_000 // 200
    document = json.dumps({"rules": {".read": expression}})
    # It is parsed, type-checked and compiled.
    assert count(parse_rules_in_steps(document, LONG)) >= 3_000 // 200


@pytest.mark.parametrize(
    "document",
    [
        json.dumps({"rules": {f"k{at}": {} for at in range(3_000)}}),
        json.dumps({"rules": {f"k{at}": nested(30) for at in range(100)}}),
        json.dumps({"rules": {f"k{at}": {".read": f"now > {at}"} for at in range(3_000)}}),
        json.dumps({"rules": {f"k{at}": {".read": True} for at in range(3_000)}}),
        json.dumps({"rules": {".indexOn": [f"k{at}" for at in range(3_000)]}}),
        '{"rules":{' + "/**/" * 25_000 + "}}",
        '{"rules":' + "\n//\n" * 25_000 + "{}}",
        '{"rules"' + " /**/" * 25_000 + ":{}}",
        "/**/" * 25_000 + '{"rules":{}}',
        '{"rules":{}}' + "/**/" * 25_000,
    ],
)
def test_a_step_reads_some_hundred_items_of_a_document(document: str) -> None:
    assert count(parse_rules_in_steps(document)) >= 3_000 // 100


def test_the_plain_json_of_a_document_is_made_in_steps() -> None:
    nodes = {f"k{at}": {".indexOn": ["a"]} for at in range(3_000)}
    rules = parse_rules(json.dumps({"rules": nodes}))
    assert count(rules.as_json()) >= 3_000
    assert finish(rules.as_json()) == {"rules": nodes}


def test_an_expression_that_a_document_repeats_is_compiled_once() -> None:
    rule = {".read": "&&".join(["auth != null"] * 500)}
    once = count(parse_rules_in_steps(json.dumps({"rules": {"a": rule}})))
    often = count(parse_rules_in_steps(json.dumps({"rules": {"a": rule, "b": rule, "c": rule}})))
    assert once > 5
    assert often == once


def test_an_expression_is_compiled_for_each_place_of_its_captures_and_each_kind() -> None:
    rule = {".read": "$a == 'x'"}
    rules = parse_rules(json.dumps({"rules": {"$a": rule, "b": {"$a": rule}}}))
    assert [may_read(rules, path) for path in ("x", "b/x", "y", "b/y")] == [
        True,
        True,
        False,
        False,
    ]
    error = '{"rules":{"a":{".write":"newData.exists()",".read":"newData.exists()"}}}'
    assert document_error(error) == "1:53: newData is invalid in .read expressions."
    unbound = '{"rules":{"$a":{".read":"$a == \'x\'"},"b":{".read":"$a == \'x\'"}}}'
    assert document_error(unbound) == "1:52: Unknown variable '$a'."


def test_positions_may_be_asked_for_in_any_order() -> None:
    source = Source("ab\ncd\n\ne")
    offsets = [7, 0, 4, 3, 8, 2, 6]
    assert [tuple(source.position(at)) for at in offsets] == [
        *((4, 1), (1, 1), (2, 2), (2, 1)),
        *((4, 2), (1, 3), (3, 1)),
    ]


TOKENS = st.sampled_from(
    [
        *("{", "}", "[", "]", ":", ",", '"', "\\", "\n", "\r\n", "\t", " ", "//", "/*", "*/"),
        *('{"rules":', '{"rules":{', '".read":', '".write":"', '".raed":"', '".indexOn":', '"$a":'),
        *('"a":{', "true", "null", "1e3", "\\u0041", "\\ud83d", "\\n", "\ufeff", "é", "\U0001f600"),
        *("data", ".exist", ".val()", "(", ")", "'", "&&", "?", "==", "auth.uid", "$a", "newdata"),
        *(".matches(", "/^a|b$/", "/(a/", "!", "-", "+", ";", "=", "in ", "typeof "),
    ]
)
DOCUMENTS = st.one_of(
    st.text(),
    st.binary(),
    st.lists(TOKENS).map("".join),
    st.lists(TOKENS).map(lambda tokens: '{"rules":{".write":"' + "".join(tokens) + '"}}'),
)


def outcome(document: str | bytes) -> object:
    """Return what a check finds; raise anything but the documented error."""
    try:
        rules = parse_rules(document)
    except InvalidRules as error:
        return error.line, error.column, error.text, error.hint
    return rules.text, rules.warnings


@settings(max_examples=examples(300))
@given(DOCUMENTS)
def test_any_text_is_a_rule_set_or_has_an_error_within_it(document: str | bytes) -> None:
    found = outcome(document)
    text = document.decode(errors="replace") if isinstance(document, bytes) else document
    match found:
        case int(line), int(column), str(message), str():
            lines = text.split("\n")
            assert message
            assert 1 <= line <= len(lines)
            assert 1 <= column <= len(lines[line - 1]) + 1
        case _:
            assert found == (text, parse_rules(text).warnings)
    assert outcome(document) == found


def test_the_document_and_the_rules_of_a_check_are_freed_in_steps() -> None:
    members = 10_000
    text = json.dumps({"rules": {f"k{at}": {".validate": True} for at in range(members)}})
    gc.disable()
    try:
        held = [sys.getallocatedblocks()]
        checking = check_rules_in_steps(text)
        held.extend(sys.getallocatedblocks() for _ in checking)
        held.append(sys.getallocatedblocks())
    finally:
        gc.enable()
    assert max(held) - held[0] > 10 * members
    assert max(before - after for before, after in pairwise(held)) < members
    assert held[-1] - held[0] < members
