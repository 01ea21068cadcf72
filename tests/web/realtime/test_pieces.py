"""Messages of clients, joined from pieces."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treedbd.web.realtime.wire import (
    END_BYTES,
    PART_BYTES,
    WHOLE_BYTES,
    LongMessage,
    OversizedMessage,
    PieceJoiner,
    TooManyPieces,
)


def joiner(max_bytes: int = 1000, max_pieces: int = 10) -> PieceJoiner:
    """Return a joiner with small limits."""
    return PieceJoiner(max_bytes, max_pieces)


def test_a_frame_that_is_no_number_is_a_message() -> None:
    for text in (b"{}", b"", b"-1", b"1.5", b"1234567", b"1 ", b"x"):
        assert joiner().add(text) == text


def test_pieces_are_joined_in_order() -> None:
    pieces = joiner()
    assert [pieces.add(text) for text in (b"3", b"a", b"", b"b", b"next")] == [
        *(None, None, None),
        b"ab",
        b"next",
    ]
    assert pieces.held_bytes == 0


def test_the_keep_alive_is_no_message_and_begins_none() -> None:
    pieces = joiner()
    assert pieces.add(b"0") is None
    assert not pieces.is_joining
    assert pieces.add(b"{}") == b"{}"


def test_a_piece_may_look_like_a_number() -> None:
    pieces = joiner()
    assert [pieces.add(text) for text in (b"2", b"1", b"2")] == [None, None, b"12"]


def test_more_pieces_than_allowed_are_refused_before_they_come() -> None:
    with pytest.raises(TooManyPieces):
        joiner(max_pieces=10).add(b"11")
    assert joiner(max_pieces=10).add(b"10") is None


def test_of_a_long_message_in_one_frame_the_ends_are_kept() -> None:
    text = b"a" * 700 + b"z" * 700
    assert joiner().add(text) == OversizedMessage(b"a" * END_BYTES, b"z" * END_BYTES)


@given(st.lists(st.integers(1, 900), min_size=2, max_size=10))
def test_of_a_long_message_in_pieces_no_more_is_held_than_its_ends(sizes: list[int]) -> None:
    pieces = joiner(max_bytes=800)
    text = bytes(at % 251 for at in range(sum(sizes)))
    assert pieces.add(b"%d" % len(sizes)) is None
    at, found = 0, None
    for size in sizes:
        found = pieces.add(text[at : at + size])
        at += size
        assert pieces.held_bytes <= max(800, 2 * END_BYTES)
    if len(text) <= 800:
        assert found == text
    else:
        assert found == OversizedMessage(text[:END_BYTES], text[-END_BYTES:])
    assert pieces.held_bytes == 0
    assert pieces.add(b"{}") == b"{}"


def test_a_frame_in_fragments_is_one_message_or_one_piece() -> None:
    pieces = joiner()
    assert [pieces.add(text, is_end=text == b"b") for text in (b"a", b"", b"b")] == [
        *(None, None),
        b"ab",
    ]
    assert pieces.add(b"2") is None
    assert pieces.add(b"c", is_end=False) is None
    assert pieces.is_joining
    assert [pieces.add(text) for text in (b"d", b"e")] == [None, b"cde"]
    assert (pieces.is_joining, pieces.held_bytes) == (False, 0)


def test_a_number_of_pieces_may_come_in_fragments() -> None:
    pieces = joiner()
    assert pieces.add(b"", is_end=False) is None
    assert pieces.add(b"2") is None
    assert [pieces.add(text) for text in (b"a", b"b")] == [None, b"ab"]


@given(st.lists(st.integers(1, 60_000), min_size=5, max_size=20))
def test_a_long_message_is_kept_in_few_parts(sizes: list[int]) -> None:
    pieces = joiner(10**7, 10**4)
    text = os.urandom(sum(sizes))
    assert pieces.add(b"%d" % len(sizes)) is None
    at, found = 0, None
    for size in sizes:
        found = pieces.add(text[at : at + size])
        at += size
    if len(text) <= WHOLE_BYTES:
        assert found == text
        return
    assert isinstance(found, LongMessage)
    assert (found.size, found.read(0, found.size)) == (len(text), text)
    assert max(map(len, found.parts)) <= PART_BYTES + max(sizes)
    for start, stop in ((0, 1), (10, len(text) - 3), (len(text) // 2, len(text))):
        assert found.read(start, stop) == text[start:stop]


def test_a_long_message_of_single_bytes_has_few_parts() -> None:
    pieces = joiner(10**7, 10**6)
    count = WHOLE_BYTES + 1
    assert pieces.add(b"%d" % count) is None
    found = None
    for _ in range(count):
        found = pieces.add(b"x")
    assert isinstance(found, LongMessage)
    assert len(found.parts) == count // PART_BYTES + 1
