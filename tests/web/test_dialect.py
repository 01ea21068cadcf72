"""The differences of the dialects, byte for byte, and how a dialect is chosen."""

from __future__ import annotations

import pytest

from treedbd.http1.parser import Headers
from treedbd.names import DialectName
from treedbd.tree.hashes import NULL_ETAG, ETagSet, etag, parse_etags
from treedbd.tree.types import Chunks, Json
from treedbd.web.request import FIREBASE, STANDARD, Dialect, Parameters, choose_dialect

TEXT = 'Not "this": one\\.'


def test_an_error_is_a_code_and_a_sentence_in_the_standard_dialect() -> None:
    expected = rb'{"error":"invalid_data","message":"Not \"this\": one\\."}'
    assert STANDARD.error_body("invalid_data", TEXT) == expected


def test_an_error_is_one_indented_member_in_the_firebase_dialect() -> None:
    expected = b'{\n  "error" : "Not \\"this\\": one\\\\."\n}\n'
    assert FIREBASE.error_body("invalid_data", TEXT) == expected


def test_a_denial_by_the_rules_has_the_text_and_status_of_each_dialect() -> None:
    body = b'{"error":"permission_denied","message":"The rules do not allow this."}'
    sentence = "The rules do not allow this."
    assert STANDARD.error_body("permission_denied", STANDARD.denial(sentence)) == body
    body = b'{\n  "error" : "Permission denied"\n}\n'
    assert FIREBASE.error_body("permission_denied", FIREBASE.denial(sentence)) == body
    assert (STANDARD.denied_status, FIREBASE.denied_status) == (403, 401)


@pytest.mark.parametrize("printed", [(b"null",), (b'{"a":', b"[1", b',"x"]}'), (b'"text"',)])
def test_the_body_of_a_mismatch_shows_the_current_value(printed: Chunks) -> None:
    code, message = "condition_failed", "ETag mismatch"
    assert FIREBASE.mismatch_body(code, message, printed) == printed
    assert b"".join(STANDARD.mismatch_body(code, message, printed)) == (
        b'{"error":"condition_failed","message":"ETag mismatch","data":%b}' % b"".join(printed)
    )


def test_the_tag_of_null_has_a_name_in_the_firebase_dialect() -> None:
    assert STANDARD.etag(NULL_ETAG) == NULL_ETAG.encode()
    assert FIREBASE.etag(NULL_ETAG) == b"null_etag"
    other = etag({"a": 1})
    assert STANDARD.etag(other) == b'"%b"' % FIREBASE.etag(other) == other.encode()


@pytest.mark.parametrize(
    "header", ["null_etag", '"null_etag"', 'W/"null_etag"', '"x", null_etag', NULL_ETAG]
)
def test_null_etag_matches_the_tag_of_null_in_the_firebase_dialect(header: str) -> None:
    tags = FIREBASE.parse_etags(header)
    assert tags.matches(NULL_ETAG, False)
    assert not tags.matches(etag(0), True)


def test_null_etag_is_an_ordinary_tag_in_the_standard_dialect() -> None:
    assert STANDARD.parse_etags("null_etag") == ETagSet(False, frozenset({"null_etag"}))


@pytest.mark.parametrize("dialect", [STANDARD, FIREBASE])
def test_other_tags_are_the_same_in_both_dialects(dialect: Dialect) -> None:
    for header in ("*", '"a", b, W/"c"'):
        assert dialect.parse_etags(header) == parse_etags(header)


@pytest.mark.parametrize(
    ("json", "standard", "firebase"),
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
def test_pretty_json_has_a_space_before_the_colon_in_the_firebase_dialect(
    json: Json, standard: bytes, firebase: bytes
) -> None:
    assert STANDARD.pretty(json) == standard
    assert FIREBASE.pretty(json) == firebase


def test_an_error_in_rules_ends_with_a_line_break_in_the_firebase_dialect() -> None:
    assert STANDARD.rules_error("1:2: No.") == "1:2: No."
    assert FIREBASE.rules_error("1:2: No.") == "1:2: No.\n"


@pytest.mark.parametrize(
    ("setting", "parameters", "headers", "dialect"),
    [
        ("auto", {}, {}, STANDARD),
        ("auto", {"auth": "a.b.c", "print": "pretty"}, {b"host": [b"x"]}, STANDARD),
        ("auto", {"ns": "shop"}, {}, FIREBASE),
        ("auto", {"ns": ""}, {}, FIREBASE),
        ("auto", {}, {b"authorization": [b"Bearer x"]}, FIREBASE),
        ("auto", {}, {b"authorization": [b""]}, FIREBASE),
        ("standard", {"ns": "shop"}, {b"authorization": [b"Bearer x"]}, STANDARD),
        ("firebase", {}, {}, FIREBASE),
        ("auto", {}, {b"x-firebase-etag": [b"true"]}, FIREBASE),
        ("auto", {}, {b"x-firebase-etag": [b"TRUE", b"false"]}, FIREBASE),
        ("auto", {}, {b"x-firebase-etag": [b"false"]}, STANDARD),
        ("auto", {}, {b"x-firebase-etag": [b""]}, STANDARD),
        ("auto", {}, {b"x-treedb-etag": [b"true"]}, STANDARD),
        ("standard", {}, {b"x-firebase-etag": [b"true"]}, STANDARD),
        ("auto", {}, {b"if-match": [b"abc"]}, FIREBASE),
        ("auto", {}, {b"if-match": [b"null_etag"]}, FIREBASE),
        ("auto", {}, {b"if-match": [b'"abc"']}, STANDARD),
        ("auto", {}, {b"if-match": [b"*"]}, STANDARD),
        ("auto", {}, {b"if-match": [b""]}, STANDARD),
        ("auto", {}, {b"if-match": [b'"abc"', b"def"]}, FIREBASE),
        ("auto", {}, {b"if-none-match": [b"abc"]}, STANDARD),
        ("standard", {}, {b"if-match": [b"abc"]}, STANDARD),
        (
            "auto",
            {"ns": "a"},
            {b"authorization": [b"Bearer x"], b"x-treedb-dialect": [b"standard"]},
            STANDARD,
        ),
        ("auto", {"ns": "a"}, {b"x-treedb-dialect": [b"other"]}, FIREBASE),
        ("firebase", {}, {b"x-treedb-dialect": [b"standard"]}, FIREBASE),
    ],
)
def test_the_project_sets_the_dialect_or_else_the_request_chooses_it(
    setting: DialectName, parameters: Parameters, headers: Headers, dialect: Dialect
) -> None:
    assert choose_dialect(setting, headers, parameters) is dialect
