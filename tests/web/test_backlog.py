"""The way of a stream's bytes: in order, whole, bounded, and at the speed of the reader."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.task import Clock

from treedbd.web.backlog import PIECE_BYTES, PIECES_PER_TURN, Backlog, cut

BOUND = 100_000


class Sink:
    """Takes the place of a request."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)


class Source:
    """Fills a backlog with frames that are numbered; what stands for several is in brackets."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.sink = Sink()
        sink: Any = self.sink
        self.backlog = Backlog(sink, BOUND, self, self.clock)
        self.last = 0
        self.refills = 0
        self.failures = 0

    def send(self, size: int = 0) -> None:
        self.last += 1
        self.backlog.send(b"<%d%b>" % (self.last, b"." * size))

    def refill(self) -> None:
        self.refills += 1
        self.backlog.put_first(cut((b"[%d]" % self.last,)))

    def fail(self) -> None:
        self.failures += 1
        self.backlog.close()

    def wake(self) -> None:
        self.backlog.is_paused = False
        self.backlog.resume()

    @property
    def sent(self) -> bytes:
        return b"".join(self.sink.written)

    @property
    def numbers(self) -> list[int | str]:
        """What was sent: numbers of frames, and in brackets of what stands for several."""
        found = re.findall(rb"<(\d+)\.*>|(\[\d+\])", self.sent)
        return [int(frame) if frame else refill.decode() for frame, refill in found]


@pytest.fixture
def source() -> Source:
    return Source()


def test_frames_are_written_at_once_while_the_reader_keeps_up(source: Source) -> None:
    source.send()
    source.send()
    assert source.sink.written == [b"<1>", b"<2>"]
    assert not source.clock.getDelayedCalls()


def test_what_waited_is_written_together_when_the_reader_reads_again(source: Source) -> None:
    source.backlog.is_paused = True
    for _ in range(5):
        source.send()
    assert source.sink.written == []
    source.wake()
    assert source.sink.written == [b"<1><2><3><4><5>"]


def test_past_the_bound_what_waits_is_dropped_and_made_good_once(source: Source) -> None:
    source.backlog.is_paused = True
    source.send(BOUND // 2)
    assert not source.backlog.is_stale
    source.send(BOUND // 2)
    assert source.backlog.is_stale
    source.send()
    source.wake()
    assert (source.numbers, source.refills) == (["[3]"], 1)
    source.send()
    assert source.numbers == ["[3]", 4]


def test_a_long_frame_goes_out_in_pieces_and_others_wait_behind_it(source: Source) -> None:
    source.send(PIECE_BYTES * (PIECES_PER_TURN + 2))
    assert len(source.sink.written) == PIECES_PER_TURN
    source.send()
    assert max(map(len, source.sink.written)) == PIECE_BYTES
    source.clock.advance(0)
    assert source.numbers == [1, 2]
    assert source.backlog.is_idle


def test_a_long_frame_stops_where_the_reader_stops(source: Source) -> None:
    source.send(PIECE_BYTES * (PIECES_PER_TURN + 2))
    source.backlog.is_paused = True
    source.clock.advance(0)
    assert len(source.sink.written) == PIECES_PER_TURN
    source.wake()
    assert source.numbers == [1]


def test_while_something_is_to_be_put_first_all_the_rest_waits(source: Source) -> None:
    source.backlog.is_held = True
    source.send()
    source.wake()
    assert source.sink.written == []
    source.backlog.put_first(iter([b"[0", b"]"]))
    source.backlog.is_held = False
    source.backlog.resume()
    assert source.numbers == ["[0]", 1]


def test_to_begin_anew_drops_what_waits_and_ends_what_is_on_its_way(source: Source) -> None:
    source.send(PIECE_BYTES * (PIECES_PER_TURN + 1))
    source.send()
    source.backlog.begin_anew()
    source.send()
    source.clock.advance(0)
    assert source.numbers == [1, "[3]"]


def test_the_end_comes_behind_the_frame_that_is_on_its_way(source: Source) -> None:
    source.send(PIECE_BYTES * (PIECES_PER_TURN + 1))
    source.send()
    source.backlog.finish(lambda: source.sink.write(b"the end"))
    assert not source.sent.endswith(b"the end")
    source.clock.advance(0)
    assert source.numbers == [1]
    assert source.sent.endswith(b">the end")


def test_the_end_comes_at_once_where_nothing_is_on_its_way(source: Source) -> None:
    source.backlog.is_paused = True
    source.send()
    source.backlog.finish(lambda: source.sink.write(b"the end"))
    assert source.sent == b"the end"


def test_what_breaks_on_its_way_is_told_and_nothing_more_is_sent(source: Source) -> None:
    def break_down() -> Iterator[bytes]:
        yield b"[0"
        raise OSError

    source.backlog.put_first(break_down())
    source.backlog.resume()
    source.send()
    assert source.failures == 1
    assert source.sent == b"[0"


def test_what_is_closed_has_no_turn_left(source: Source) -> None:
    source.send(PIECE_BYTES * (PIECES_PER_TURN + 1))
    source.backlog.close()
    assert not source.clock.getDelayedCalls()


def test_it_knows_when_it_sent_something(source: Source) -> None:
    source.clock.advance(5)
    source.send()
    assert source.backlog.last_sent == 5


STEPS = st.lists(
    st.sampled_from(["pause", "wake", "turn"])
    | st.sampled_from([0, 10, 60_000, PIECE_BYTES, 3 * PIECE_BYTES, 20 * PIECE_BYTES]),
    max_size=30,
)


@settings(deadline=None)
@given(STEPS)
def test_whatever_the_reader_does_it_knows_everything_in_the_end(steps: list[str | int]) -> None:
    source = Source()
    for step in steps:
        if isinstance(step, int):
            source.send(step)
        elif step == "pause":
            source.backlog.is_paused = True
        elif step == "wake":
            source.wake()
        else:
            source.clock.advance(0)
    source.wake()
    while source.clock.getDelayedCalls():
        source.clock.advance(0)
    assert source.backlog.is_idle
    known = 0
    for each in source.numbers:
        if isinstance(each, int):
            assert each == known + 1
            known = each
        else:
            assert int(each[1:-1]) >= known
            known = int(each[1:-1])
    assert known == source.last
    assert re.fullmatch(rb"(?:<\d+\.*>|\[\d+\])*", source.sent)


@given(st.lists(st.integers(0, 3 * PIECE_BYTES), max_size=8))
def test_what_is_cut_is_the_same_put_together(sizes: list[int]) -> None:
    frames = [bytes([number]) * size for number, size in enumerate(sizes)]
    pieces = list(cut(frames))
    assert b"".join(pieces) == b"".join(frames)
    assert max(map(len, pieces), default=0) <= PIECE_BYTES
    assert len(pieces) <= 2 * sum(sizes) / PIECE_BYTES + 1 + len(sizes)
