"""Content that readers share: what is counted, for whom, and what is refused."""

from __future__ import annotations

import tempfile
from typing import IO

import pytest

from treedbd.http1.content import (
    SHARES,
    SMALL_BYTES,
    Content,
    JoinedContent,
    TooManyWaitingBytes,
    WaitingBytes,
    WaitingBytesExhausted,
    WaitingBytesRefused,
)

LIMIT = 1_000_000
SHARE = LIMIT // SHARES
ADA, ALAN = "192.0.2.1", "192.0.2.2"


@pytest.fixture
def waiting() -> WaitingBytes:
    return WaitingBytes(LIMIT)


def file_with(text: bytes) -> IO[bytes]:
    file = tempfile.TemporaryFile()  # noqa: SIM115 - the content closes it
    file.write(text)
    return file


def content(waiting: WaitingBytes, size: int) -> Content:
    return Content(waiting, b"x" * size)


@pytest.mark.parametrize("in_file", [False, True])
def test_each_reader_has_a_position_of_its_own(waiting: WaitingBytes, in_file: bool) -> None:
    shared = Content(waiting, file_with(b"abcdef") if in_file else b"abcdef")
    first, second = shared.open(ADA), shared.open(ALAN)
    assert (bytes(first.read(2)), bytes(second.peek(4)), first.remaining) == (b"ab", b"abcd", 4)
    first.skip(1)
    assert (bytes(first.read(100)), first.remaining, second.remaining) == (b"def", 0, 6)
    assert bytes(first.read(1)) == b""
    assert shared.whole() == b"abcdef"
    second.close()
    assert bytes(second.peek(4)) == b""
    first.close()
    assert shared.is_closed is in_file


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_parts_are_read_one_after_the_other_and_not_copied(
    waiting: WaitingBytes, size: int
) -> None:
    parts = [b"abc", b"", b"d", b"efghi"]
    shared = JoinedContent(waiting, iter(parts))
    reader = shared.open(ADA)
    assert (shared.size, waiting.total, shared.whole()) == (9, 9, b"abcdefghi")
    text = b""
    while reader.remaining:
        piece = reader.read(size)
        assert 0 < len(piece) <= size
        assert isinstance(piece, memoryview)
        assert any(piece.obj is part for part in parts)
        text += piece
    assert text == b"abcdefghi"
    assert bytes(reader.read(size)) == b""
    assert bytes(shared.read(2, 9)) == b"c"


def test_of_no_parts_there_is_nothing_to_read(waiting: WaitingBytes) -> None:
    shared = JoinedContent(waiting, [b""])
    assert (shared.size, bytes(shared.read(0, 5)), shared.whole()) == (0, b"", b"")


def test_it_is_counted_once_while_it_has_readers(waiting: WaitingBytes) -> None:
    shared = content(waiting, 50_000)
    assert waiting.total == 0
    readers = [shared.open(address) for address in (ADA, ADA, ALAN)]
    for reader in readers:
        assert waiting.total == 50_000
        reader.close()
        reader.close()
    assert waiting.total == 0


def test_all_of_the_bound_may_wait_and_not_one_byte_more(waiting: WaitingBytes) -> None:
    for number in range(SHARES):
        content(waiting, SHARE).open(str(number))
    assert waiting.total == LIMIT
    last = Content(waiting, b"x" * (SMALL_BYTES + 1))
    with pytest.raises(WaitingBytesExhausted):
        last.open("another")
    assert (waiting.total, waiting.refused) == (LIMIT, 1)


def test_what_is_alone_may_be_larger_than_the_bound(waiting: WaitingBytes) -> None:
    alone = content(waiting, 2 * LIMIT)
    reader = alone.open(ADA)
    with pytest.raises(WaitingBytesExhausted):
        content(waiting, SHARE).open(ALAN)
    alone.open(ALAN)
    reader.close()


def test_one_address_may_take_its_share_and_others_still_theirs(waiting: WaitingBytes) -> None:
    content(waiting, SHARE - 20_000).open(ADA)
    content(waiting, 20_000).open(ADA)
    with pytest.raises(TooManyWaitingBytes):
        content(waiting, 20_000).open(ADA)
    content(waiting, SHARE).open(ALAN)
    assert waiting.refused == 1


def test_what_waits_for_others_already_counts_for_the_address_alone(
    waiting: WaitingBytes,
) -> None:
    shared = content(waiting, SHARE)
    for number in range(100):
        shared.open(str(number))
        shared.open(str(number))
    assert waiting.total == SHARE
    with pytest.raises(TooManyWaitingBytes):
        content(waiting, 20_000).open("1")


def test_an_unknown_address_has_no_share(waiting: WaitingBytes) -> None:
    for _ in range(2):
        content(waiting, LIMIT // 2).open("")
    assert waiting.total == LIMIT


def test_small_content_and_what_must_be_sent_are_never_refused(waiting: WaitingBytes) -> None:
    content(waiting, LIMIT).open(ADA)
    content(waiting, SMALL_BYTES).open(ADA)
    content(waiting, LIMIT).open(ADA, may_refuse=False)
    assert waiting.total == 2 * LIMIT + SMALL_BYTES
    assert waiting.refused == 0


def test_a_refusal_knows_when_there_is_room(waiting: WaitingBytes) -> None:
    reader = content(waiting, SHARE).open(ADA)
    with pytest.raises(WaitingBytesRefused) as refused:
        content(waiting, 20_000).open(ADA)
    assert not refused.value.has_room(ADA)
    assert refused.value.has_room(ALAN)
    reader.close()
    assert refused.value.has_room(ADA)


def test_what_is_to_be_done_at_the_end_is_done_once(waiting: WaitingBytes) -> None:
    calls: list[None] = []
    reader = content(waiting, 10).open(ADA)
    reader.when_closed(lambda: calls.append(None))
    reader.close()
    reader.close()
    assert len(calls) == 1
