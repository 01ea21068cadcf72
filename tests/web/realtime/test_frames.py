"""Messages as frames: short ones whole, long ones in pieces that end with a character."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode
from websockets.streams import StreamReader

from treedbd.http1.content import Content, WaitingBytes
from treedbd.web.realtime.wire import (
    PIECE_BYTES,
    BytesReader,
    FramingReader,
    UnframedMessage,
    contents_of,
    frame_message,
    text_frame,
)


def texts(sent: bytes) -> Iterator[bytes]:
    """Yield the texts of the frames that were sent."""
    reader = StreamReader()
    reader.feed_data(sent)
    reader.feed_eof()
    while reader.buffer:
        parsing = Frame.parse(reader.read_exact, mask=False)
        try:
            next(parsing)
        except StopIteration as stop:
            frame = stop.value
            assert frame.opcode is Opcode.TEXT
            assert frame.fin
            yield bytes(frame.data)


def joined(sent: bytes) -> bytes:
    """Return the message in frames, as a client joins it; check the pieces."""
    first, *pieces = texts(sent)
    if not pieces:
        return first
    assert int(first) == len(pieces)
    for piece in pieces:
        assert len(piece) <= PIECE_BYTES
        piece.decode()
    return b"".join(pieces)


@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 2**16 - 1, 2**16, 2**17])
def test_a_frame_is_the_one_that_the_library_would_make(size: int) -> None:
    text = b"x" * size
    assert text_frame(text) == Frame(Opcode.TEXT, text).serialize(mask=False)


def test_a_message_that_fits_is_one_frame() -> None:
    for size in (1, 125, 126, PIECE_BYTES):
        assert list(texts(frame_message(b"x" * size))) == [b"x" * size]


def test_a_longer_one_is_pieces_after_their_number() -> None:
    for size in (PIECE_BYTES + 1, 2 * PIECE_BYTES, 10 * PIECE_BYTES + 7):
        assert joined(frame_message(b"x" * size)) == b"x" * size


@given(st.integers(0, 3), st.sampled_from(["é", "€", "\U0001f600"]), st.integers(1, 40_000))
def test_no_piece_ends_within_a_character(offset: int, character: str, count: int) -> None:
    message = ("x" * offset + character * count).encode()
    assert joined(frame_message(message)) == message


@given(
    st.lists(st.integers(1, 40_000), min_size=1, max_size=4),
    st.lists(st.integers(1, 20_000), min_size=1, max_size=5),
)
def test_a_message_in_parts_is_framed_as_a_whole_one(sizes: list[int], reads: list[int]) -> None:
    parts = [("aé€\U0001f600" * size).encode()[:size] for size in sizes]
    message = b"".join(parts)
    reader = FramingReader([BytesReader(each) for each in parts], len(message))
    sent, number = b"", 0
    while reader.remaining:
        size = reads[number % len(reads)]
        piece = reader.read(size)
        assert len(piece) <= size
        sent += piece
        number += 1
    found = list(texts(sent))
    assert b"".join(found[1:] if len(message) > PIECE_BYTES else found) == message


def test_several_messages_keep_their_order_and_only_short_ones_are_framed_at_once() -> None:
    long = b"x" * PIECE_BYTES
    messages = [(b"a", b"b"), (b"c",), (long,), (long, b"y"), (b"d", b""), (b"e",)]
    contents = contents_of(messages, WaitingBytes(10**6))
    assert [type(each) for each in contents] == [Content, UnframedMessage, Content]
    first, second, third = (each.whole() for each in contents)
    assert list(texts(first)) == [b"ab", b"c", long]
    assert second == long + b"y"
    assert list(texts(third)) == [b"d", b"e"]
    assert contents_of([], WaitingBytes(1)) == []


def test_closing_closes_all_parts() -> None:
    waiting = WaitingBytes(10**6)
    contents = [Content(waiting, b"x" * 30_000) for _ in range(3)]
    reader = FramingReader([each.open("here") for each in contents], 90_000)
    reader.read(50)
    assert waiting.total == 90_000
    reader.close()
    assert waiting.total == 0
    assert not reader.remaining
