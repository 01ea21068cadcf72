"""The subset of regular expressions: matches, errors and time."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from treedbd.rules.document import ExpressionError
from treedbd.rules.regex import Regex, parse_regex

SIZE = 10_000


def compiled(literal: str, max_size: int = SIZE) -> Regex:
    """Compile `/pattern/flags`."""
    pattern, _, flags = literal[1:].rpartition("/")
    return parse_regex(pattern, flags, 0, max_size)


def matches(literal: str, text: str) -> bool:
    return compiled(literal).search(text.encode()) is not None


@pytest.mark.parametrize(
    ("literal", "yes", "no"),
    [
        ("/a/", ["a", "xay"], ["", "b", "A"]),
        ("/a/i", ["a", "A", "xAy"], ["b"]),
        ("/é/i", ["É", "é"], ["e"]),
        ("/^a/", ["ab"], ["ba"]),
        ("/a$/", ["ba"], ["ab", "a\n"]),
        ("/^a$/", ["a"], ["aa", "\na", "a\n"]),
        ("/^$/", [""], ["a"]),
        ("/^/", ["", "a"], []),
        ("/$/", ["", "a"], []),
        ("/ab*c/", ["ac", "abc", "abbbc"], ["abxc"]),
        ("/ab+c/", ["abc", "abbc"], ["ac"]),
        ("/^ab?c$/", ["ac", "abc"], ["abbc"]),
        ("/^a{2}$/", ["aa"], ["a", "aaa"]),
        ("/^a{2,}$/", ["aa", "aaaa"], ["a"]),
        ("/^a{2,3}$/", ["aa", "aaa"], ["a", "aaaa"]),
        ("/^a{0}$/", [""], ["a"]),
        ("/^a.c$/", ["abc", "a.c", "a😀c", "aéc"], ["ac", "a\nc"]),
        ("/^(ab)+$/", ["abab"], ["aba"]),
        ("/^(a|bc)$/", ["a", "bc"], ["ac", "b"]),
        ("/^a|b$/", ["a", "b"], ["ax", "xb"]),
        ("/a|bc/", ["xa", "bc"], ["b", "c"]),
        ("/^[abc]$/", ["a", "c"], ["d", "ab"]),
        ("/^[a-z]+$/", ["az"], ["aZ", "a-z"]),
        ("/^[^a-z]+$/", ["AZ9\n"], ["Az"]),
        ("/^[a^]$/", ["a", "^"], ["b"]),
        ("/^[-a]$/", ["-", "a"], ["b"]),
        ("/^[a-]$/", ["-", "a"], ["b"]),
        (r"/^[\w-]+$/", ["a-b_9"], ["a b"]),
        (r"/^[\w-z]+$/", ["a-z"], ["a+"]),
        (r"/^[a-\d]$/", ["a", "-", "7"], ["b"]),
        (r"/^[a\-c]$/", ["a", "-", "c"], ["b"]),
        (r"/^[\]\[]+$/", ["[]"], ["a"]),
        ("/^[[]$/", ["["], ["]"]),
        ("/^[.$*+?(){}|]+$/", [".$*+?(){}|"], ["a"]),
        ("/^[[:alpha:]]$/", ["a]", ":]", "[]"], ["b", "z]"]),
        (r"/^\s\w\d$/", [" a1", "\t_9", "\v\u0041\u0031"], ["aa1", " -1", " aa"]),
        (r"/^\S\W\D$/", ["a-x"], [" -x", "aax", "a-1"]),
        (r"/^[\S]$/", ["a", "é"], [" ", "\v"]),
        (r"/^[\W]$/", ["-", "é"], ["a", "_"]),
        (r"/^[\D]$/", ["a"], ["1"]),
        (r"/^\W+$/i", ["-"], ["s", "k"]),
        (r"/^\d$/", ["5"], ["٣"]),
        (r"/^\.\*\/\\$/", [".*/\\"], ["a"]),
        (r"/^\b\n\1\t$/", ["bn1t"], ["\b\n1\t"]),
        (r"/^a\$$/", ["a$"], ["a"]),
        (r"/^a\\$/", ["a\\"], ["a\\x"]),
        (r"/^\{a}$/", ["{a}"], ["a"]),
        (r"/^\^$/", ["^"], [""]),
        ("/a]/", ["a]"], ["a"]),
        ("/^a*?b+?c??$/", ["b", "aabbc"], ["c"]),
        ("/^a{1,2}?$/", ["a", "aa"], ["aaa"]),
        ("/^((a|b)(c|d))*$/", ["", "acbd"], ["ab"]),
        ("/^(19|20)[0-9][0-9][-\\/. ](0[1-9]|1[012])$/", ["1999-12", "2001/01"], ["1899-12"]),
        (r"/^[A-Z0-9._%+-]+@[A-Z0-9.-]+\.[A-Z]{2,4}$/i", ["a.b@c.org"], ["a@b", "a b@c.org"]),
    ],
)
def test_a_pattern_matches(literal: str, yes: list[str], no: list[str]) -> None:
    for text in yes:
        assert matches(literal, text), text
    for text in no:
        assert not matches(literal, text), text


@pytest.mark.parametrize(
    ("literal", "offset", "error"),
    [
        ("/a/g", 0, "regular expressions do not support flags other than i"),
        ("/a/ii", 0, "regular expressions do not support flags other than i"),
        ("/[a/", 1, "unterminated regular expression literal"),
        ("/[a-/", 1, "unterminated regular expression literal"),
        ("/a|/", 3, "empty alternative in regular expression"),
        ("/|a/", 1, "empty alternative in regular expression"),
        ("/a||b/", 3, "empty alternative in regular expression"),
        ("/(a|)/", 4, "empty alternative in regular expression"),
        ("/()/", 2, "empty alternative in regular expression"),
        ("/(^a)/", 2, "^ is only allowed at the beginning of a regular expression"),
        ("/a|^b/", 3, "^ is only allowed at the beginning of a regular expression"),
        ("/(a$)/", 3, "$ is only allowed at the end of a regular expression"),
        ("/a$|b/", 2, "$ is only allowed at the end of a regular expression"),
        ("/^^/", 2, "^ is only allowed at the beginning of a regular expression"),
        ("/(?:a)/", 1, "regular expressions do not support groups that begin with (?"),
        ("/a(?=a)/", 2, "regular expressions do not support groups that begin with (?"),
        ("/*a/", 1, "nothing to repeat in regular expression"),
        ("/+a/", 1, "nothing to repeat in regular expression"),
        ("/?a/", 1, "nothing to repeat in regular expression"),
        ("/{2}a/", 1, "nothing to repeat in regular expression"),
        ("/^*/", 2, "nothing to repeat in regular expression"),
        ("/a**/", 3, "nothing to repeat in regular expression"),
        ("/a*??/", 4, "nothing to repeat in regular expression"),
        ("/a++/", 3, "nothing to repeat in regular expression"),
        ("/a{x}/", 2, "{ must be escaped, or begin a count, in a regular expression"),
        ("/a{,3}/", 2, "{ must be escaped, or begin a count, in a regular expression"),
        ("/a{3,2}/", 2, "the count in the regular expression is out of range"),
        ("/a{1001}/", 2, "the count in the regular expression is out of range"),
        ("/(a{100}){11}/", 9, "the count in the regular expression is out of range"),
        ("/(a/", 1, "unterminated group in regular expression"),
        ("/a)/", 2, "unmatched ) in regular expression"),
        ("/[]/", 1, "empty class in regular expression"),
        ("/[^]/", 1, "empty class in regular expression"),
        ("/[z-a]/", 3, "a range in the regular expression is out of order"),
        ("/[é]{1000}/", 10, "the regular expression is too large"),
        ("/([^a]{500}|[^b]{500})/", 11, "the regular expression is too large"),
    ],
)
def test_an_error_has_its_offset(literal: str, offset: int, error: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        compiled(literal, 3_000)
    assert (caught.value.offset, caught.value.text) == (offset, error)


@pytest.mark.parametrize(
    "hostile",
    [
        r"/^(a+)+$/",
        r"/^(a*)*$/",
        r"/^(a|a)*$/",
        r"/^(a|aa)+$/",
        r"/(.*a){20}/",
        r"/^([a-zA-Z0-9])(([\-.]|[_]+)?([a-zA-Z0-9]+))*(@){1}[a-z0-9]+$/",
    ],
)
def test_no_pattern_takes_more_than_linear_time(hostile: str) -> None:
    pattern = compiled(hostile)
    begin = time.thread_time()
    for text in ("a" * 30 + "!", "a" * 20_000 + "!"):
        pattern.search(text.encode())
    assert time.thread_time() - begin < 1


def test_ten_thousand_groups_are_refused() -> None:
    with pytest.raises(ExpressionError, match="nested too deeply"):
        compiled("/" + "(" * 10_000 + "a" + ")" * 10_000 + "/")
    assert compiled("/" + "(" * 200 + "a" + ")" * 200 + "/")


PIECES = st.sampled_from([*"ab-^$.|()[]*+?{}1,\\/sSwW éK", "{2}", "{1,3}", "[a-z]", "(a|b)", "\\d"])
PATTERNS = st.lists(PIECES, max_size=12).map("".join)


@settings(max_examples=examples(400))
@given(PATTERNS, st.sampled_from(["", "i"]), st.integers(1, 400))
def test_any_text_compiles_or_has_an_error(pattern: str, flags: str, max_size: int) -> None:
    try:
        regex = parse_regex(pattern, flags, 0, max_size)
    except ExpressionError as error:
        assert 0 < error.offset <= len(pattern) + 1  # noqa: PT017
    else:
        regex.search(b"ab-1")


SIMPLE = st.recursive(
    st.sampled_from(["a", "b", "[ab]", "[^a]", r"\d", r"\w", "."]),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda both: f"({both[0]}|{both[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,}", "{0,2}"])).map(
            lambda both: f"({both[0]}){both[1]}"
        ),
    ),
    max_leaves=6,
)


@settings(max_examples=examples(200))
@given(SIMPLE, st.text(st.sampled_from("ab1 \n"), max_size=6), st.booleans())
def test_a_pattern_means_what_it_means_in_python(pattern: str, text: str, whole: bool) -> None:
    found = (re.fullmatch if whole else re.search)(pattern, text, re.ASCII)
    literal = f"/^({pattern})$/" if whole else f"/{pattern}/"
    assert matches(literal, text) == (found is not None)


def test_the_size_of_a_pattern_is_never_an_error_of_re2() -> None:
    """The estimate is no less than what RE2 itself counts."""
    for pattern in ("a{1000}", "[^a]{900}", "é{900}", r"\W{400}", ".{800}", r"[\S]{400}"):
        for flags in ("", "i"):
            try:
                parse_regex(pattern, flags, 0, 20_000)
            except ExpressionError as error:
                assert error.offset > 0  # noqa: PT017 - an error of RE2 is at the slash


@pytest.mark.parametrize("pattern", ["a\\", "[a\\", "[\\"])
def test_a_pattern_cannot_end_in_a_backslash(pattern: str) -> None:
    with pytest.raises(ExpressionError, match="unterminated regular expression literal"):
        parse_regex(pattern, "", 0, SIZE)


def test_sizes_are_bounded_by_the_limit() -> None:
    assert compiled("/[^\\n]{100}/", 5_000)
    with pytest.raises(ExpressionError, match="too large"):
        compiled("/[^\\n]{100}/", 1_000)
