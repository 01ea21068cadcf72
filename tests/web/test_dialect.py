"""The five rows in which the dialects differ, byte for byte, and how one of them is chosen."""

from __future__ import annotations

import pytest

from treedbd.database.catalog import DialectChoice
from treedbd.tree.canonical import NULL_TAG, Tags, parse_tags, tag
from treedbd.tree.value import Json
from treedbd.web.dialect import FIREBASE, STANDARD, Dialect, choose
from treedbd.web.head import Head
from treedbd.web.parameters import Parameters

TEXT = 'Not "this": one\\.'


def test_an_error_is_a_code_and_a_sentence_in_the_standard() -> None:
    expected = rb'{"error":"invalid_data","message":"Not \"this\": one\\."}'
    assert STANDARD.error_body("invalid_data", TEXT) == expected


def test_an_error_is_one_indented_member_for_the_vendors_clients() -> None:
    expected = b'{\n  "error" : "Not \\"this\\": one\\\\."\n}\n'
    assert FIREBASE.error_body("invalid_data", TEXT) == expected


def test_what_the_rules_deny_is_told_in_the_words_of_each() -> None:
    told = b'{"error":"permission_denied","message":"The rules do not allow this."}'
    sentence = "The rules do not allow this."
    assert STANDARD.error_body("permission_denied", sentence) == told
    told = b'{\n  "error" : "Permission denied"\n}\n'
    assert FIREBASE.error_body("permission_denied", sentence) == told
    assert (STANDARD.denied_status, FIREBASE.denied_status) == (403, 401)


@pytest.mark.parametrize(
    ("current", "printed"),
    [(None, b"null"), ({"a": [1, "x"]}, b'{"a":[1,"x"]}'), ("text", b'"text"'), (0, b"0")],
)
def test_a_mismatch_tells_what_is_there(current: Json, printed: bytes) -> None:
    code, message = "condition_failed", "ETag mismatch"
    assert FIREBASE.mismatch_body(code, message, current) == printed
    assert STANDARD.mismatch_body(code, message, current) == (
        b'{"error":"condition_failed","message":"ETag mismatch","data":%b}' % printed
    )


def test_nothing_has_a_tag_that_the_vendors_clients_know_by_name() -> None:
    assert STANDARD.tag(NULL_TAG) == NULL_TAG.encode()
    assert FIREBASE.tag(NULL_TAG) == b"null_etag"
    other = tag({"a": 1})
    assert STANDARD.tag(other) == FIREBASE.tag(other) == other.encode()


@pytest.mark.parametrize("header", ["null_etag", '"null_etag"', '"x", null_etag', NULL_TAG])
@pytest.mark.parametrize("is_weak", [False, True])
def test_the_vendors_tag_of_nothing_matches_nothing(header: str, is_weak: bool) -> None:
    tags = FIREBASE.parse_tags(header, is_weak=is_weak)
    assert tags is not None
    assert tags.matches(NULL_TAG, False)
    assert not tags.matches(tag(0), True)


def test_the_vendors_tag_of_nothing_is_any_tag_in_the_standard() -> None:
    assert STANDARD.parse_tags("null_etag", is_weak=False) == Tags(False, frozenset({"null_etag"}))


@pytest.mark.parametrize("dialect", [STANDARD, FIREBASE])
def test_other_tags_are_the_same_in_both(dialect: Dialect) -> None:
    assert dialect.parse_tags(None, is_weak=True) is None
    for header in ("*", '"a", b, W/"c"'):
        assert dialect.parse_tags(header, is_weak=True) == parse_tags(header, is_weak=True)


@pytest.mark.parametrize(
    ("json", "standard", "vendors"),
    [
        (1, b"1", b"1"),
        ('a": 1', b'"a\\": 1"', b'"a\\": 1"'),
        ({"a": 1}, b'{\n  "a": 1\n}', b'{\n  "a" : 1\n}'),
        (
            {'q": "\\': {"b": ['x": 1', "y"]}, "č": '": '},
            b'{\n  "q\\": \\"\\\\": {\n    "b": [\n      "x\\": 1",\n      "y"\n    ]\n  },\n'
            b'  "\xc4\x8d": "\\": "\n}',
            b'{\n  "q\\": \\"\\\\" : {\n    "b" : [\n      "x\\": 1",\n      "y"\n    ]\n  },\n'
            b'  "\xc4\x8d" : "\\": "\n}',
        ),
    ],
)
def test_pretty_print_has_a_space_before_the_colon_for_the_vendors_clients(
    json: Json, standard: bytes, vendors: bytes
) -> None:
    assert STANDARD.pretty(json) == standard
    assert FIREBASE.pretty(json) == vendors


def test_a_fault_in_rules_ends_with_a_line_break_for_the_vendors_clients() -> None:
    assert STANDARD.rules_fault("1:2: No.") == "1:2: No."
    assert FIREBASE.rules_fault("1:2: No.") == "1:2: No.\n"


@pytest.mark.parametrize(
    ("choice", "parameters", "head", "dialect"),
    [
        ("auto", {}, {}, STANDARD),
        ("auto", {"auth": "a.b.c", "print": "pretty"}, {b"host": [b"x"]}, STANDARD),
        ("auto", {"ns": "shop"}, {}, FIREBASE),
        ("auto", {"ns": ""}, {}, FIREBASE),
        ("auto", {}, {b"authorization": [b"Bearer x"]}, FIREBASE),
        ("auto", {}, {b"authorization": [b""]}, FIREBASE),
        ("standard", {"ns": "shop"}, {b"authorization": [b"Bearer x"]}, STANDARD),
        ("firebase", {}, {}, FIREBASE),
    ],
)
def test_the_project_chooses_or_else_the_request(
    choice: DialectChoice, parameters: Parameters, head: Head, dialect: Dialect
) -> None:
    assert choose(choice, parameters, head) is dialect
