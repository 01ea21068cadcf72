"""The dialect of rules files: what it adds to JSON, and its errors with their positions."""

from __future__ import annotations

import pytest

from tests.rules.evaluating import document_error
from treedbd.loop import finish
from treedbd.rules.document import (
    ArrayItem,
    InvalidRules,
    ObjectItem,
    Source,
    TextItem,
    as_json,
    parse_document,
)


def parsed(text: str) -> object:
    return finish(as_json(finish(parse_document(Source(text), 10))))


@pytest.mark.parametrize(
    ("text", "json"),
    [
        ('{"a":1}', {"a": 1}),
        (' \t\r\n{ "a" : [ true , false , null ] } ', {"a": [True, False, None]}),
        ("[-1.5e2, 0, 7]", [-150, 0, 7]),
        ('{"a": // why\n true}', {"a": True}),
        ('/* one\n two */{"a":/**/true/***/}// end', {"a": True}),
        ('{"a":true,}', {"a": True}),
        ('{"a":["b",],}', {"a": ["b"]}),
        ('{"a":true, // last\n}', {"a": True}),
        ('{"a":["b", /* last */ ]}', {"a": ["b"]}),
        ('"one\ntwo"', "one\ntwo"),
        ('"one\r\ntwo"', "one\r\ntwo"),
        ('"one\ttwo"', "one\ttwo"),
        ('"// no comment"', "// no comment"),
        (r'"\"\\\/\b\f\n\r\tA"', '"\\/\b\f\n\r\tA'),
        ('"\\u0041\\ud83d\\ude00"', "A😀"),
        ("{}", {}),
        ("[]", []),
    ],
)
def test_the_dialect_parses(text: str, json: object) -> None:
    assert parsed(text) == json


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{"a":true,,"b":true}', "1:11: Expected '\"'."),
        ('{,"a":true}', "1:2: Unexpected ','."),
        ('{"a":[,]}', "1:7: Unexpected ','."),
        ('{"a":["b",,]}', "1:11: Unexpected ','."),
        ('{"a":,}', "1:6: Unexpected ','."),
        ("{'a':true}", "1:2: Expected '\"'."),
        ("{a:true}", "1:2: Expected '\"'."),
        ("{\"a\":'b'}", "1:6: Parse error."),
        ('{"a":b}', "1:6: Parse error."),
        ('{"a" true}', "1:6: Expected ':'."),
        ('{"a":true "b":true}', "1:11: Expected ',' or '}'."),
        ('["a" "b"]', "1:6: Expected ',' or ']'."),
        ('{"a":true', "1:10: Unexpected end of the document."),
        ('{"a":', "1:6: Parse error."),
        ('{"a":true]', "1:10: Expected ',' or '}'."),
        ("{}x", "1:3: Parse error."),
        ("", "1:1: Parse error."),
        ("// nothing", "1:11: Parse error."),
        ("{/* open", "1:2: Expected '\"'."),
        ("rules_version = '2';", "1:1: Parse error."),
        ('{"a":1,"a":2}', "1:8: The member 'a' is given twice."),
        ('{"a":{"b":1,\n"b":2}}', "2:1: The member 'b' is given twice."),
        ('"one\\\ntwo"', "1:5: Invalid escape: '\\\\n'"),
        (r'"a\d"', r"1:3: Invalid escape: '\d'"),
        (r'"\u12G4"', r"1:2: Invalid escape: '\u12G4'"),
        (r'"\ud83d"', r"1:2: Invalid escape: '\ud83d'"),
        (r'"\ude00\ud83d"', r"1:2: Invalid escape: '\ude00'"),
        ('"abc', "1:1: Unterminated string."),
        ('"ab\\', "1:4: Invalid escape: '\\'"),
        ('"a\x00"', "1:3: A string must not hold control characters."),
        ("\ufeff{}", "1:1: Parse error."),
        ("NaN", "1:1: Parse error."),
        ("01", "1:2: Parse error."),
    ],
)
def test_a_syntax_error_has_its_position(text: str, error: str) -> None:
    with pytest.raises(InvalidRules) as caught:
        parsed(text)
    assert str(caught.value) == error


def test_every_character_of_a_string_has_its_offset() -> None:
    text = '[ "a\\n😀b\nc\\"d" ]'
    document = finish(parse_document(Source(text), 10))
    assert isinstance(document, ArrayItem)
    (string,) = document.items
    assert isinstance(string, TextItem)
    assert string.value == 'a\n😀b\nc"d'
    found = [text[string.offset_of(at)] for at in range(len(string.value) + 1)]
    assert found == ["a", "\\", "😀", "b", "\n", "c", "\\", "d", '"']


def test_lines_and_columns_count_from_one() -> None:
    source = Source("ab\ncd\r\n\né")
    assert [tuple(source.position(at)) for at in (0, 1, 2, 3, 6, 7, 8)] == [
        (1, 1),
        (1, 2),
        (1, 3),
        (2, 1),
        (2, 4),
        (3, 1),
        (4, 1),
    ]


def test_an_object_has_the_offsets_of_its_brackets() -> None:
    document = finish(parse_document(Source(' {"a":{}} '), 10))
    assert isinstance(document, ObjectItem)
    assert (document.offset, document.end) == (1, 8)


@pytest.mark.parametrize("bracket", ["[", '{"a":'])
def test_ten_thousand_brackets_are_refused(bracket: str) -> None:
    assert "nested too deeply" in str(document_error(bracket * 10_000))


def test_errors_inside_an_expression_have_their_position_in_the_document() -> None:
    document = '{"rules":{\n  ".read": "auth != null &&\n\\tnow > \\"x\\" && foo"}}'
    assert document_error(document) == "3:18: Unknown variable 'foo'."


@pytest.mark.parametrize(
    ("document", "error"),
    [
        ('{\n  "rules": {\n    ".read": "tr"}}', "3:15: Unknown variable 'tr'."),
        ('{"rules":{".read":""}}', "1:20: Unexpected end of expression."),
        ('{"rules":{".read":"\\\\ "}}', "1:20: Unexpected '\\'."),
        ('{"rules":{".read":"😀 "}}', "1:20: Unexpected '😀'."),
        ('{"rules":{".read":"\'😀\' == bar"}}', "1:27: Unknown variable 'bar'."),
    ],
)
def test_an_expression_error_has_line_and_column(document: str, error: str) -> None:
    assert document_error(document) == error
