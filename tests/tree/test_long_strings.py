"""Long strings come in pieces of any length, and are what a parser makes of the whole."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from treedbd.loop import in_steps
from treedbd.tree.fragments import LongString, count_bytes, parse_text
from treedbd.tree.types import InvalidData
from treedbd.tree.value import TEXT_AT_ONCE, compact

TEXTS = st.text(max_size=40) | st.sampled_from(['"\\\n' * 9, "é€😀" * 9, "\\" * 7])


def pieces(text: bytes, step: int) -> list[bytes]:
    return [text[at : at + step] for at in range(0, len(text), step)]


def printed(text: str, form: int) -> bytes:
    """Print a string without its quotation marks, in one of the ways that JSON allows."""
    if form == 0:
        return orjson.dumps(text)[1:-1]
    units = text.encode("utf-16-be")
    return b"".join(b"\\u%02x%02x" % (units[at], units[at + 1]) for at in range(0, len(units), 2))


@given(TEXTS, st.sampled_from([0, 1]), st.integers(1, 20))
@example("😀" * 5, 1, 6)
@example("\ud7ff\ue000", 1, 7)
def test_a_string_in_parts_is_parsed_as_the_whole(text: str, form: int, step: int) -> None:
    assert parse_text(pieces(printed(text, form), step)) == text


UNITS = [
    *("a", "u", "d83d", "é", "€", "😀", r"\\", r"\n", r"\"", r"\u0041", r"\ud7ff"),
    *(r"\ud83d\ude00", r"\uD83D\uDE00", r"\ud83d", r"\ude00", r"\u00", "\\"),
]


@given(st.lists(st.sampled_from(UNITS), max_size=9).map("".join), st.integers(1, 14))
@example(r"\\ud83d\u0041", 9)
@example(r"\\\ud83d\ude00", 10)
def test_a_string_is_cut_between_characters_however_they_are_spelled(text: str, step: int) -> None:
    """Parts of it that are cut elsewhere are refused, though the whole is valid."""
    whole = text.encode()
    try:
        expected: Any = orjson.loads(b'"%b"' % whole)
    except orjson.JSONDecodeError:
        with pytest.raises(InvalidData):
            parse_text(pieces(whole, step))
    else:
        assert parse_text(pieces(whole, step)) == expected


@given(TEXTS, st.integers(1, 20), st.binary(max_size=6))
def test_a_string_is_collected_up_to_its_end(text: str, step: int, rest: bytes) -> None:
    string, found = LongString(), b""
    json = printed(text, 0)
    for piece in pieces(json + b'"' + rest, step):
        if string.is_open:
            found = string.add(piece)
        else:
            found += piece
    assert not string.is_open
    assert b"".join(string.parts) == json
    assert found == b'"' + rest


@pytest.mark.parametrize(
    "text", [b"\\x", b"\\ud800", b"\\ud800\\u0041", b"\xff", b"\xc3", b"\\u12", b"a\nb", b'"']
)
@pytest.mark.parametrize("step", [1, 3, 100])
def test_what_is_no_string_is_refused(text: bytes, step: int) -> None:
    for around in (b"", b"x" * 50):
        with pytest.raises(InvalidData):
            parse_text(pieces(around + text + around, step))


@pytest.mark.parametrize("character", ["a", '"', "é", "😀", "e9"])
def test_no_step_takes_more_than_a_part_of_a_long_string(character: str) -> None:
    text = character * (10 * TEXT_AT_ONCE // len(character))

    def work() -> Any:
        return compact(text), count_bytes(text)

    taken = in_steps(work)
    steps = 0
    while True:
        try:
            next(taken)
        except StopIteration as stop:
            result = stop.value
            break
        steps += 1
    assert result == (orjson.dumps(text), len(text.encode()))
    assert steps >= 10
