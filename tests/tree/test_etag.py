from __future__ import annotations

from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from tests.tree.strategies import FEW_KEYS, LEGAL, VALUES, normal
from treedbd.tree import value as printing
from treedbd.tree.hashes import NULL_ETAG, ETagSet, canonicalise, etag, has_bare_tag, parse_etags
from treedbd.tree.types import Json
from treedbd.tree.value import plain

SAMPLE = rb"""{
  "numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
  "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
  "literals": [null, true, false]
}"""
SAMPLE_CANONICAL = (
    r'{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
    '"string":"€$'
    r"""\u000f\nA'B\"\\\\\"/"}"""
)
SAMPLE_BYTES = bytes.fromhex(
    "7b 22 6c 69 74 65 72 61 6c 73 22 3a 5b 6e 75 6c 6c 2c 74 72"
    "75 65 2c 66 61 6c 73 65 5d 2c 22 6e 75 6d 62 65 72 73 22 3a"
    "5b 33 33 33 33 33 33 33 33 33 2e 33 33 33 33 33 33 33 2c 31"
    "65 2b 33 30 2c 34 2e 35 2c 30 2e 30 30 32 2c 31 65 2d 32 37"
    "5d 2c 22 73 74 72 69 6e 67 22 3a 22 e2 82 ac 24 5c 75 30 30"
    "30 66 5c 6e 41 27 42 5c 22 5c 5c 5c 5c 5c 22 2f 22 7d"
)
UNSORTED = rb"""{
  "\u20ac": "Euro Sign",
  "\r": "Carriage Return",
  "\ufb33": "Hebrew Letter Dalet With Dagesh",
  "1": "One",
  "\ud83d\ude00": "Emoji: Grinning Face",
  "\u0080": "Control",
  "\u00f6": "Latin Small Letter O With Diaeresis"
}"""
SORTED = [
    "Carriage Return",
    "One",
    "Control",
    "Latin Small Letter O With Diaeresis",
    "Euro Sign",
    "Emoji: Grinning Face",
    "Hebrew Letter Dalet With Dagesh",
]

WIDE_KEYS = st.text(st.sampled_from(["a", "\u0080", "\ud7ff", "\ue000", "\uffff", "\U00010000"]))
SAFE_NUMBERS = st.one_of(
    st.integers(-(2**53) + 1, 2**53 - 1),
    st.floats(allow_nan=False, allow_infinity=False).filter(
        lambda number: not number.is_integer() or abs(number) >= 2**64
    ),
)
SHOWN = st.recursive(
    st.none() | st.booleans() | SAFE_NUMBERS | st.text(LEGAL, max_size=4) | WIDE_KEYS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(WIDE_KEYS | FEW_KEYS | st.text(max_size=3), inner, max_size=6)
    ),
    max_leaves=12,
)


def test_the_sample_of_rfc_8785_has_the_canonical_form_of_section_3_2_2() -> None:
    assert canonicalise(printing.parse(SAMPLE)).decode() == SAMPLE_CANONICAL


def test_the_sample_of_rfc_8785_has_the_bytes_of_section_3_2_4() -> None:
    assert canonicalise(printing.parse(SAMPLE)) == SAMPLE_BYTES


def test_members_are_sorted_as_in_rfc_8785_section_3_2_3() -> None:
    canonical = printing.parse(canonicalise(printing.parse(UNSORTED)))
    assert isinstance(canonical, dict)
    assert list(canonical.values()) == SORTED


@pytest.mark.parametrize(
    ("json", "canonical"),
    [
        (None, "null"),
        ("\u2028\x7f\x1f/", '"\u2028\x7f\\u001f/"'),
        ({"\ue000": 1, "\U00010000": 2}, '{"\U00010000":2,"\ue000":1}'),
        ({"\ud7ff": 1, "\U00010000": 2}, '{"\ud7ff":1,"\U00010000":2}'),
        ({"a": {"\uffff": 1e21, "\U0001f600": {}}}, '{"a":{"\U0001f600":{},"\uffff":1e+21}}'),
        ([{"\ufb33": 1, "\U0001f600": 2}], '[{"\U0001f600":2,"\ufb33":1}]'),
        ({"10": 1, "9": 2, "A": 3, "a": 4}, '{"10":1,"9":2,"A":3,"a":4}'),
        (9007199254740993, "9007199254740993"),
        (-9223372036854775808, "-9223372036854775808"),
        (9223372036854775807, "9223372036854775807"),
    ],
)
def test_json_has_one_canonical_form(json: Json, canonical: str) -> None:
    assert canonicalise(json) == canonical.encode()


@given(SHOWN)
def test_the_canonical_form_is_that_of_the_reference_implementation(json: Json) -> None:
    assert canonicalise(json) == rfc8785.dumps(json)


@given(VALUES)
def test_a_value_that_is_printed_and_parsed_has_the_same_tag(node: Any) -> None:
    shown = plain(node)
    again = plain(normal(printing.parse(printing.compact(shown))))
    assert etag(again) == etag(shown)


@pytest.mark.parametrize(
    ("header", "is_so"),
    [
        *(("abc", True), ("null_etag", True), (" abc ", True), ("W/abc", True), ("a*", True)),
        *(('"a", b', True), ('b, "a"', True), ("*, b", True), ('"a",b,"c"', True)),
        *(('"abc"', False), ('W/"abc"', False), ('"null_etag"', False), ('"a b"', False)),
        *(("*", False), (" * ", False), ('*, "a"', False), ('"*"', False), ("*, *", False)),
        *(("", False), (" ", False), (",", False), ('""', False), ('"a","b, c"', False)),
        *(("a b", False), ('"abc', False), ('abc"', False), ('a"b"', False)),
    ],
)
def test_a_tag_without_quotes_is_bare(header: str, is_so: bool) -> None:
    assert has_bare_tag(header) is is_so


def test_a_tag_is_a_sha256_in_quotes() -> None:
    assert etag({"b": 2, "a": 1}) == (
        '"43258cff783fe7036d8a43033f830adfc60ec037382473548ac742b888292777"'
    )
    assert NULL_ETAG == '"74234e98afe7498fb5daf1f36ac2d78acc339464f950703b8c019892f982b90b"'


def test_different_values_have_different_tags() -> None:
    shown: list[Json] = [None, 0, "0", False, "", [0], {"0": 0}, 0.5, 2**53, 2**53 + 1]
    assert len({etag(json) for json in shown}) == len(shown)


@pytest.mark.parametrize(
    ("header", "tags"),
    [
        ('"a"', {"a"}),
        ("a", {"a"}),
        ('"a","b"', {"a", "b"}),
        ('"a" , b,"c"', {"a", "b", "c"}),
        (' , "a",, ', {"a"}),
        ('"a,b"', {"a,b"}),
        ('"*"', {"*"}),
        ("null_etag", {"null_etag"}),
        ("", set()),
        (",", set()),
        ('W/"a"', {"a"}),
        ('W/"a","b"', {"a", "b"}),
        ("W/a, b", {"a", "b"}),
        ('"a', set()),
        ('a"', set()),
        ('"a"x', set()),
        ('x"a"', set()),
        ('"a""b"', set()),
        ('"a" "b"', set()),
        ("a b", set()),
        ('w/"a"', set()),
        ('W/ "a"', set()),
        ('"a"x, "b"', {"b"}),
        ('x"a,b", "c"', {"c"}),
    ],
)
def test_a_header_lists_tags(header: str, tags: set[str]) -> None:
    assert parse_etags(header) == ETagSet(False, frozenset(tags))


@pytest.mark.parametrize("header", ["*", " * ", '"a", *', "*,*"])
def test_a_star_means_any_value(header: str) -> None:
    assert parse_etags(header).is_any


@pytest.mark.parametrize(
    ("header", "current", "exists", "matches"),
    [
        ('"a"', '"a"', True, True),
        ("a", '"a"', True, True),
        ('"b", "a"', '"a"', True, True),
        ('"A"', '"a"', True, False),
        ('"b"', '"a"', True, False),
        ("", '"a"', True, False),
        ("*", '"a"', True, True),
        ('W/"a"', '"a"', True, True),
        ('"x", W/"a"', '"a"', True, True),
        ("W/a", '"a"', True, True),
        ('W/"b"', '"a"', True, False),
        ("*", NULL_ETAG, False, False),
        (NULL_ETAG, NULL_ETAG, False, True),
        (f"*, {NULL_ETAG}", NULL_ETAG, False, True),
        ("null_etag", "null_etag", False, True),
        ('"null_etag"', "null_etag", False, True),
    ],
)
def test_a_tag_matches_if_the_header_lists_it_or_a_star(
    header: str, current: str, exists: bool, matches: bool
) -> None:
    assert parse_etags(header).matches(current, exists) is matches


@given(st.text())
def test_any_header_can_be_parsed(header: str) -> None:
    assert "" not in parse_etags(header).opaque or '""' in header
