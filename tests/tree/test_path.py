from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tree.strategies import KEYS, PATHS
from treedbd.tree import path
from treedbd.tree.types import ROOT, InvalidPath, Path, Place

LONG_TEXTS = st.builds(str.__mul__, st.text(min_size=1, max_size=1), st.integers(180, 780))
"""Texts of about the greatest length of a key, in characters of one to four bytes."""


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
def test_a_key_with_a_reserved_or_control_character_is_refused(character: str) -> None:
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


def test_the_length_of_a_key_is_measured_in_bytes() -> None:
    with pytest.raises(InvalidPath, match="longer than"):
        path.check_key("\U0001f600" * 200)


def test_the_error_shows_only_the_beginning_of_a_long_key() -> None:
    with pytest.raises(InvalidPath) as error:
        path.check_key("a" * 100_000)
    assert len(str(error.value)) < 200


def test_an_empty_key_is_refused() -> None:
    with pytest.raises(InvalidPath, match="empty"):
        path.check_key("")
    with pytest.raises(InvalidPath, match="empty"):
        path.check_keys(["a", ""])


def test_an_empty_list_of_keys_is_legal() -> None:
    path.check_keys([])


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("a", Place(("a",))),
        ("/a", Place(("a",))),
        ("a/b", Place(("a", "b"))),
        ("/a//b/", Place(("a", "b"))),
        ("a%20b", Place(("a%20b",))),
        (".priority", Place((), is_priority=True)),
        ("/a/.priority", Place(("a",), is_priority=True)),
    ],
)
def test_a_relative_path_names_a_place(text: str, place: Place) -> None:
    assert path.parse_relative(text) == place


@pytest.mark.parametrize("text", ["", "/", "//", "a.b", ".value", "a/.value", ".priority/a"])
def test_a_relative_path_that_names_nothing_legal_is_refused(text: str) -> None:
    with pytest.raises(InvalidPath):
        path.parse_relative(text)


def test_a_priority_is_not_a_child() -> None:
    assert path.parse_child("a/b") == ("a", "b")
    with pytest.raises(InvalidPath, match="not a child"):
        path.parse_child("a/.priority")


@given(PATHS, PATHS)
def test_a_path_is_an_ancestor_of_itself_and_of_every_path_below_it(
    upper: Path, rest: Path
) -> None:
    assert path.is_at_or_above(upper, upper + rest)
    assert path.is_at_or_above(ROOT, upper)
    assert path.is_at_or_above(upper + rest, upper) == (not rest)


@given(PATHS)
def test_a_formatted_path_is_parsed_to_itself(keys: Path) -> None:
    printed = path.format_path(keys)
    assert printed.startswith("/")
    assert path.parse_relative(printed + "/x").path == (*keys, "x")


def error_of(check: Callable[[Any], object], checked: Any) -> str | None:
    """Return the error that a check raises, None if it raises none."""
    try:
        check(checked)
    except InvalidPath as error:
        return str(error)
    return None


@given(st.lists(KEYS | st.text() | LONG_TEXTS, max_size=4))
def test_checking_many_keys_agrees_with_checking_each(keys: list[str]) -> None:
    each = [error_of(path.check_key, key) for key in keys]
    assert error_of(path.check_keys, keys) == next(filter(None, each), None)
