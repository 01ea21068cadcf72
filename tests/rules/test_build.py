"""The members of a rules document, and its errors with their positions."""

from __future__ import annotations

import json

import pytest

from tests.rules.evaluating import document_error, may_read, rules
from treedbd.limits import RulesLimits

BAD_KEY = 'String can\'t contain ".", "#", "$", "/", "[", or "]"'
BAD_RULE = "Invalid rule expression.  Expected 'true', 'false', or an expression string."
BAD_INDEX = "Invalid indexOn expression. Must be either a string or an array of strings"


@pytest.mark.parametrize(
    ("document", "error"),
    [
        ("{}", "1:2: Expected 'rules' property."),
        ('{"rule":{}}', "1:2: Expected 'rules' property."),
        ('{"a":1,"rules":{}}', "1:2: Expected 'rules' property."),
        ('{"rules":{},"more":{}}', "1:13: Unexpected property 'more'."),
        ("[]", "1:1: Expected '{'."),
        ('"rules"', "1:1: Expected '{'."),
        ("null", "1:1: Expected '{'."),
        ('{"rules":true}', "1:10: Expected '{'."),
        ('{"rules":[]}', "1:10: Expected '{'."),
        ('{"rules":{"a":"b"}}', "1:15: Expected '{'."),
        ('{"rules":{"a":null}}', "1:15: Expected '{'."),
        ('{"rules":{"a":1}}', "1:15: Expected '{'."),
        ('{"rules":{"a":[]}}', "1:15: Expected '{'."),
        ('{"rules":{".foo":"true"}}', "1:18: Expected '{'."),
        ('{"rules":{".foo":{}}}', f"1:11: {BAD_KEY}"),
        ('{"rules":{".Read":{}}}', f"1:11: {BAD_KEY}"),
        ('{"rules":{".read":1}}', f"1:19: {BAD_RULE}"),
        ('{"rules":{".read":null}}', f"1:19: {BAD_RULE}"),
        ('{"rules":{".read":{}}}', f"1:19: {BAD_RULE}"),
        ('{"rules":{".write":[]}}', f"1:20: {BAD_RULE}"),
        ('{"rules":{".validate":1.5}}', f"1:23: {BAD_RULE}"),
        ('{"rules":{".indexOn":1}}', f"1:22: {BAD_INDEX}"),
        ('{"rules":{".indexOn":{}}}', f"1:22: {BAD_INDEX}"),
        ('{"rules":{".indexOn":["a",1]}}', f"1:22: {BAD_INDEX}"),
        ('{"rules":{".indexOn":[["a"]]}}', f"1:22: {BAD_INDEX}"),
        (
            '{"rules":{"$a":{},"$b":{}}}',
            "1:19: Cannot have multiple default rules ('$a' and '$b').",
        ),
        (
            '{"rules":{"$a":{"b":{"$a":{}}}}}',
            "1:22: The variable '$a' is already bound above.",
        ),
        ('{"rules":{"a":{".read":"x"},"b":3}}', "1:25: Unknown variable 'x'."),
        ('{"rules":{"a":3,"b":{".read":"x"}}}', "1:15: Expected '{'."),
        ('{"rules":{".read":"$a == \'\'","$a":{}}}', "1:20: Unknown variable '$a'."),
        ('{"rules":{"$a":{},"b":{".read":"$a == \'\'"}}}', "1:33: Unknown variable '$a'."),
        (
            '{"rules":{".read":"newData.exists()"}}',
            "1:20: newData is invalid in .read expressions.",
        ),
        ('{"rules":{".read":"now"}}', "1:20: Expression must evaluate to a boolean."),
        ('{"rules":{"":{}}}', "1:11: A key must not be empty."),
    ],
)
def test_an_error_in_a_document_has_its_position(document: str, error: str) -> None:
    assert document_error(document) == error


@pytest.mark.parametrize("letter", [*".#$/[]"])
@pytest.mark.parametrize("form", ["a{}", "a{}b", "${}", "$a{}b"])
def test_keys_and_captures_have_no_special_characters(form: str, letter: str) -> None:
    document = json.dumps({"rules": {form.format(letter): {}}})
    assert document_error(document) == f"1:12: {BAD_KEY}"


def test_a_dollar_alone_is_not_a_capture() -> None:
    assert document_error('{"rules":{"$":{}}}') == f"1:11: {BAD_KEY}"


@pytest.mark.parametrize("key", ["a" * 769, "é" * 385, "\x7f"])
def test_a_key_that_no_data_can_have_is_refused(key: str) -> None:
    assert "key" in str(document_error(json.dumps({"rules": {key: {}}})))


@pytest.mark.parametrize(
    "nodes",
    [
        {},
        {".read": True, ".write": False},
        {".read": "true", ".write": "false", ".validate": True},
        {".indexOn": "a", "b": {".indexOn": ["c", ".value", "d/e"]}},
        {".indexOn": []},
        {"$a": {"$b": {".read": "$a == $b"}}, "c": {"$a": {}}},
        {"a-b c": {}, "$user-id": {}, "é": {}, "0": {}},
        {"read": {}, "rules": {"rules": {}}},
    ],
)
def test_a_valid_document_has_no_error(nodes: object) -> None:
    assert document_error(json.dumps({"rules": nodes})) is None


def test_an_empty_document_denies_all() -> None:
    assert not may_read(rules({}), "", {"a": 1})


def nested(depth: int) -> str:
    return '{"rules":' + '{"a":' * depth + '{".indexOn":["b"]}' + "}" * depth + "}"


def test_rules_are_as_deep_as_data_can_be() -> None:
    assert document_error(nested(32)) is None
    assert document_error(nested(33)) == "1:171: Rules are nested deeper than 32 levels."
    assert "nested too deeply" in str(document_error(nested(1_000)))


def test_limits_on_a_document_can_be_lowered() -> None:
    limits = RulesLimits(document_bytes=40, node_depth=1)
    assert document_error('{"rules":{"a":{}}}', limits) is None
    assert document_error('{"rules":{"a":{"b":{}}}}', limits) == (
        "1:16: Rules are nested deeper than 1 levels."
    )
    assert document_error('{"rules":{}}' + " " * 40, limits) == (
        "1:1: The rules are longer than 40 bytes."
    )


def test_a_document_has_at_most_a_mebibyte() -> None:
    padded = '{"rules":{}}'.ljust(1_048_576)
    assert document_error(padded) is None
    assert document_error(padded + " ") == "1:1: The rules are longer than 1048576 bytes."
    assert (
        document_error('{"rules":{}}//' + "é" * 600_000)
        == "1:1: The rules are longer than 1048576 bytes."
    )


def test_a_document_is_utf_8() -> None:
    assert document_error(b'{"rules":{"\xc3\xa9":{}}}') is None
    assert document_error(b'{"rules":{\n"\xff":{}}}') == "2:2: The text is not UTF-8."
    assert document_error('{"rules":{"\ud800":{}}}') == "1:12: The text is not UTF-8."


@pytest.mark.parametrize(
    ("codec", "text"),
    [
        (
            "utf-8-sig",
            "The text begins with a byte order mark (U+FEFF): save it as UTF-8 without one.",
        ),
        ("utf-16", "The text is UTF-16: save it as UTF-8."),
    ],
)
def test_a_byte_order_mark_is_named(codec: str, text: str) -> None:
    document = '{"rules":{}}'
    assert document_error(document.encode(codec)) == f"1:1: {text}"
    assert document_error(f"\ufeff{document}".encode()) == (
        "1:1: The text begins with a byte order mark (U+FEFF): save it as UTF-8 without one."
    )
