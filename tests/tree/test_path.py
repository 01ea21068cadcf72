from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tree.strategies import KEYS, PATHS
from treedbd.tree import path
from treedbd.tree.path import InvalidPath, MissingSuffix, Place

LONG_TEXTS = st.builds(str.__mul__, st.text(min_size=1, max_size=1), st.integers(180, 780))
"""About as long as keys may be, in characters of one to four bytes."""


@pytest.mark.parametrize(
    "key",
    [
        "a",
        "0",
        "-Nabc_1",
        "with space",
        "ünï",
        "日本",
        "\U0001f600",
        "\x80",
        "a" * 768,
        "é" * 384,
        "日" * 256,
        "\U0001f600" * 192,
        '"',
        "·",
    ],
)
def test_a_legal_key_is_returned_as_it_is(key: str) -> None:
    assert path.check_key(key) == key
    path.check_keys(["a", key])


@pytest.mark.parametrize("character", [*".#$[]/", *map(chr, range(0x20)), "\x7f"])
def test_no_key_holds_a_reserved_or_control_character(character: str) -> None:
    for key in (character, f"a{character}", f"{character}a", f"a{character}b"):
        with pytest.raises(InvalidPath, match="not allowed"):
            path.check_key(key)
        with pytest.raises(InvalidPath, match="not allowed"):
            path.check_keys(["fine", key])


@pytest.mark.parametrize(
    "key", ["a" * 769, "é" * 384 + "a", "日" * 256 + "a", "\U0001f600" * 192 + "a"]
)
def test_a_key_of_769_bytes_is_too_long(key: str) -> None:
    assert len(key.encode()) == 769
    with pytest.raises(InvalidPath, match="longer than 768 bytes"):
        path.check_key(key)
    with pytest.raises(InvalidPath, match="longer than 768 bytes"):
        path.check_keys(["fine", key])


def test_a_key_of_characters_of_four_bytes_is_measured_in_bytes() -> None:
    with pytest.raises(InvalidPath, match="longer than"):
        path.check_key("\U0001f600" * 200)


def test_the_error_does_not_repeat_a_long_key_whole() -> None:
    with pytest.raises(InvalidPath) as error:
        path.check_key("a" * 100_000)
    assert len(str(error.value)) < 200


def test_an_empty_key_is_refused() -> None:
    with pytest.raises(InvalidPath, match="empty"):
        path.check_key("")
    with pytest.raises(InvalidPath, match="empty"):
        path.check_keys(["a", ""])


def test_no_keys_at_all_are_all_legal() -> None:
    path.check_keys([])


@pytest.mark.parametrize(
    ("address", "place"),
    [
        (b".json", Place(())),
        (b"/.json", Place(())),
        (b"a.json", Place(("a",))),
        (b"a/b.json", Place(("a", "b"))),
        (b"a/b/.json", Place(("a", "b"))),
        (b"//a///b//.json", Place(("a", "b"))),
        (b"a%20b/c+d.json", Place(("a b", "c+d"))),
        (b"%C3%BC.json", Place(("ü",))),
        ("ü.json".encode(), Place(("ü",))),
        (b"a%2Ejson", Place(("a",))),
        (b"a/.priority.json", Place(("a",), of_priority=True)),
        (b".priority.json", Place((), of_priority=True)),
        (b"a/.priority/.json", Place(("a",), of_priority=True)),
    ],
)
def test_an_address_names_a_place(address: bytes, place: Place) -> None:
    assert path.parse_address(address.split(b"/")) == place


@pytest.mark.parametrize(
    "address",
    [
        b"a%2Fb.json",
        b"a.b.json",
        b"a.json.json",
        b"a%00b.json",
        b"a%7F.json",
        b"a%2.json",
        b"a%.json",
        b"a%zz.json",
        b"%zz%2Ejson",
        b"%zz/a.json",
        b"%zz/.json/",
        b"%%2Ejson",
        b"%FF.json",
        b"%ED%A0%80.json",
        b"\xff.json",
        b".value/a.json",
        b"a/.value.json",
        b".settings/rules2.json",
        b".priority/a.json",
        b"../a.json",
        b"./a.json",
        b"/".join([b"a"] * 33) + b".json",
        b"a" * 769 + b".json",
    ],
)
def test_an_address_that_no_node_can_have_is_refused(address: bytes) -> None:
    with pytest.raises(InvalidPath):
        path.parse_address(address.split(b"/"))


@pytest.mark.parametrize(
    "address",
    [
        *(b"", b"a", b"a/b", b"a.json/b", b"a.JSON", b"a/", b"a.b"),
        *(b"%zz", b"%zz/a", b"a/%", b"%ff", b"\xff", b"a.json/%zz", b"%2Ejso%6", b"a%2Ejson%zz"),
    ],
)
def test_an_address_without_the_suffix_names_nothing(address: bytes) -> None:
    with pytest.raises(MissingSuffix, match=r"\.json"):
        path.parse_address(address.split(b"/"))


def test_a_path_has_at_most_32_keys() -> None:
    keys = [b"k"] * 31
    assert len(path.parse_address([*keys, b"k.json"]).path) == 32
    assert len(path.parse_address([*keys, b"k", b".priority.json"]).path) == 32
    with pytest.raises(InvalidPath, match="deeper than 32"):
        path.parse_address([*keys, b"k", b"k.json"])


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("a", Place(("a",))),
        ("/a", Place(("a",))),
        ("a/b", Place(("a", "b"))),
        ("/a//b/", Place(("a", "b"))),
        ("a%20b", Place(("a%20b",))),
        (".priority", Place((), of_priority=True)),
        ("/a/.priority", Place(("a",), of_priority=True)),
    ],
)
def test_a_relative_path_names_a_place_below(text: str, place: Place) -> None:
    assert path.parse_relative(text) == place


@pytest.mark.parametrize("text", ["", "/", "//", "a.b", ".value", "a/.value", ".priority/a"])
def test_a_relative_path_names_something(text: str) -> None:
    with pytest.raises(InvalidPath):
        path.parse_relative(text)


def test_a_priority_is_not_a_child() -> None:
    assert path.parse_child("a/b") == ("a", "b")
    with pytest.raises(InvalidPath, match="not a child"):
        path.parse_child("a/.priority")


@given(PATHS, PATHS)
def test_a_path_is_an_ancestor_of_itself_and_of_all_below(
    upper: path.Path, rest: path.Path
) -> None:
    assert path.is_ancestor(upper, upper + rest)
    assert path.is_ancestor(path.ROOT, upper)
    assert path.is_ancestor(upper + rest, upper) == (not rest)


@given(PATHS)
def test_a_path_reads_back_from_its_print(keys: path.Path) -> None:
    printed = path.format_path(keys)
    assert printed.startswith("/")
    assert path.parse_relative(printed + "/x").path == (*keys, "x")


def refusal(check: Callable[[Any], object], asked: Any) -> str | None:
    """Return why a check refuses, None where it does not."""
    try:
        check(asked)
    except InvalidPath as error:
        return str(error)
    return None


@given(st.lists(KEYS | st.text() | LONG_TEXTS, max_size=4))
def test_checking_many_keys_agrees_with_checking_one(keys: list[str]) -> None:
    each = [refusal(path.check_key, key) for key in keys]
    assert refusal(path.check_keys, keys) == next(filter(None, each), None)
