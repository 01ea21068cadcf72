"""What a stream sends: in order, whole, bounded, and at the speed of the reader."""

from __future__ import annotations

import re
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from twisted.internet.task import Clock

from tests.database.world import TurnClock
from treedbd.database.slices import FIRST_SECONDS, SLICE_SECONDS, Slices
from treedbd.http1.content import Buffer, Content, ContentReader, WaitingBytes
from treedbd.http1.senders import CHUNK_BYTES, DirectSend
from treedbd.web.streams import (
    SendQueue,
)

LIMIT = 100_000
PLENTY = 10_000_000
ADDRESS = "192.0.2.1"
CHUNKS_AT_ONCE = 8
"""Chunks for which the first slice of a turn has room."""


class RecordingRequest:
    """Stands in for a request, and records what is written."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.has_free_socket = False
        self.sent_directly = b""
        self.sentLength = 0

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def write_content(self, content: Content) -> None:
        self.written.append(content.whole())

    def find_free_send(self) -> tuple[DirectSend | None, object]:
        connections = SimpleNamespace(sent_past_bytes=0)
        return (self._send, connections) if self.has_free_socket else (None, None)

    def continue_after(self, rest: bytes) -> None:
        self.written += [rest] if rest else []

    def _send(self, data: Buffer) -> int:
        self.sent_directly += bytes(data)
        return len(data)


class Sender:
    """Sends numbered frames through a queue, `<2>`; a refill replaces several, `[3]`."""

    def __init__(self, waiting_bytes: int = PLENTY, slices: Slices | None = None) -> None:
        self.clock = Clock()
        self.turns = TurnClock(FIRST_SECONDS / CHUNKS_AT_ONCE)
        slices = Slices(self.turns) if slices is None else slices
        self.waiting = WaitingBytes(waiting_bytes)
        self.request = RecordingRequest()
        request: Any = self.request
        owner: Any = self  # in place of a stream
        self.queue = SendQueue(request, LIMIT, owner, self.clock, slices, ADDRESS)
        self.last = 0
        self.refills = 0
        self.failures = 0

    def send(self, size: int = 0) -> None:
        self.last += 1
        was_taken = self.queue.send(Content(self.waiting, b"<%d%b>" % (self.last, b"." * size)))
        assert was_taken is not self.queue.has_overflowed

    def read(self, data: bytes) -> ContentReader:
        return Content(self.waiting, data).open(ADDRESS, may_refuse=False)

    def refill(self) -> None:
        self.refills += 1
        self.queue.send_next([self.read(b"[%d]" % self.last)])

    def fail(self) -> None:
        self.failures += 1
        self.queue.close()

    def resume(self) -> None:
        self.queue.is_paused = False
        self.queue.resume()

    @property
    def sent(self) -> bytes:
        return b"".join(self.request.written)

    @property
    def numbers(self) -> list[int | str]:
        """What was sent: numbers of frames, and refills with the last number that they replace."""
        found = re.findall(rb"<(\d+)\.*>|(\[\d+\])", self.sent)
        return [int(frame) if frame else refill.decode() for frame, refill in found]


@pytest.fixture
def sender() -> Sender:
    return Sender()


def test_frames_are_written_at_once_while_the_reader_keeps_up(sender: Sender) -> None:
    sender.send()
    sender.send()
    assert sender.request.written == [b"<1>", b"<2>"]
    assert not sender.turns.getDelayedCalls()


def test_waiting_frames_are_written_together_when_the_reader_reads_again(sender: Sender) -> None:
    sender.queue.is_paused = True
    for _ in range(5):
        sender.send()
    assert sender.request.written == []
    sender.resume()
    assert sender.request.written == [b"<1><2><3><4><5>"]


def test_beyond_the_limit_waiting_frames_are_dropped_and_replaced_by_one_refill(
    sender: Sender,
) -> None:
    sender.queue.is_paused = True
    sender.send(LIMIT // 2)
    assert not sender.queue.has_overflowed
    sender.send(LIMIT // 2)
    assert sender.queue.has_overflowed
    sender.send()
    sender.resume()
    assert (sender.numbers, sender.refills) == (["[3]"], 1)
    sender.send()
    assert sender.numbers == ["[3]", 4]


def test_a_long_frame_is_sent_in_chunks_and_others_wait_until_after_it(sender: Sender) -> None:
    sender.send(CHUNK_BYTES * (CHUNKS_AT_ONCE + 2))
    assert len(sender.request.written) == CHUNKS_AT_ONCE
    sender.send()
    assert max(map(len, sender.request.written)) == CHUNK_BYTES
    sender.turns.take_turn()
    assert sender.numbers == [1, 2]
    assert sender.queue.is_idle


def test_a_long_frame_pauses_while_the_reader_does_not_read(sender: Sender) -> None:
    sender.send(CHUNK_BYTES * (CHUNKS_AT_ONCE + 2))
    sender.queue.is_paused = True
    sender.turns.take_turn()
    assert len(sender.request.written) == CHUNKS_AT_ONCE
    sender.resume()
    sender.turns.run()
    assert sender.numbers == [1]


def test_while_the_queue_is_held_for_what_is_put_first_frames_wait(sender: Sender) -> None:
    sender.queue.is_held = True
    sender.send()
    sender.resume()
    assert sender.request.written == []
    sender.queue.send_next([sender.read(b"[0"), sender.read(b"]")])
    sender.queue.is_held = False
    sender.queue.resume()
    assert sender.numbers == ["[0]", 1]


def test_overflow_drops_what_waits_and_completes_the_frame_being_sent(sender: Sender) -> None:
    sender.send(CHUNK_BYTES * (CHUNKS_AT_ONCE + 1))
    sender.send()
    sender.queue.overflow()
    sender.send()
    sender.turns.take_turn()
    assert sender.numbers == [1, "[3]"]


def test_the_end_is_sent_after_the_frame_being_sent(sender: Sender) -> None:
    sender.send(CHUNK_BYTES * (CHUNKS_AT_ONCE + 1))
    sender.send()
    sender.queue.finish(lambda: sender.request.write(b"the end"))
    assert not sender.sent.endswith(b"the end")
    sender.turns.take_turn()
    assert sender.numbers == [1]
    assert sender.sent.endswith(b">the end")


def test_the_end_is_sent_at_once_if_no_frame_is_being_sent(sender: Sender) -> None:
    sender.queue.is_paused = True
    sender.send()
    sender.queue.finish(lambda: sender.request.write(b"the end"))
    assert sender.sent == b"the end"


def test_after_an_error_the_owner_is_notified_and_nothing_more_is_sent(sender: Sender) -> None:
    class Broken(Content):
        def read(self, at: int, size: int) -> bytes:
            raise OSError

    broken = Broken(sender.waiting, b"0]").open(ADDRESS)
    sender.queue.send_next([sender.read(b"[0" + b"." * (CHUNK_BYTES - 2)), broken])
    sender.queue.resume()
    sender.send()
    assert sender.failures == 1
    assert sender.sent == b"[0" + b"." * (CHUNK_BYTES - 2)


def test_a_closed_queue_sends_nothing(sender: Sender) -> None:
    sender.send(CHUNK_BYTES * (CHUNKS_AT_ONCE + 1))
    sender.queue.close()
    sender.turns.run()
    assert len(sender.request.written) == CHUNKS_AT_ONCE


def test_what_is_sent_to_several_shares_one_slice_of_each_turn() -> None:
    slices = Slices(turns := TurnClock(SLICE_SECONDS / 8))
    senders = [Sender(slices=slices) for _ in range(4)]
    for each in senders:
        each.send(20 * CHUNK_BYTES)
    sent = [sum(len(each.request.written) for each in senders)]
    while turns.take_turn():
        sent.append(sum(len(each.request.written) for each in senders))
    assert max(later - earlier for earlier, later in pairwise(sent)) <= 8
    assert [each.numbers for each in senders] == [[1]] * 4


def test_what_is_sent_past_the_request_is_counted_for_it(sender: Sender) -> None:
    sender.request.has_free_socket = True
    for _ in range(3):
        sender.send()
    assert sender.sent == b"<1>"
    assert sender.request.sent_directly == b"<2><3>"
    assert sender.queue.sent_bytes == 6
    sender.queue.close()
    assert (sender.request.sentLength, sender.queue.sent_bytes) == (6, 6)


def test_after_a_frame_that_went_past_the_request_the_request_sends_again(sender: Sender) -> None:
    sender.request.has_free_socket = True
    for _ in range(2):
        sender.send()
    sender.queue.send_at_once(b"alive")
    assert (sender.sent, sender.request.sentLength) == (b"<1>alive", 3)


def test_it_records_when_something_was_sent_last(sender: Sender) -> None:
    sender.clock.advance(5)
    sender.send()
    assert sender.queue.last_sent == 5


STEPS = st.lists(
    st.sampled_from(["pause", "resume", "turn"])
    | st.sampled_from([0, 10, 60_000, CHUNK_BYTES, 3 * CHUNK_BYTES, 20 * CHUNK_BYTES]),
    max_size=30,
)


@settings(deadline=None)
@given(STEPS)
@example([20 * CHUNK_BYTES, "turn", "pause", 0, "resume", 20 * CHUNK_BYTES, 0])
def test_however_the_reader_pauses_it_has_everything_at_the_end(steps: list[str | int]) -> None:
    sender = Sender()
    for step in steps:
        if isinstance(step, int):
            sender.send(step)
        elif step == "pause":
            sender.queue.is_paused = True
        elif step == "resume":
            sender.resume()
        else:
            sender.turns.take_turn()
    sender.resume()
    sender.turns.run()
    assert sender.queue.is_idle
    known = 0
    for each in sender.numbers:
        if isinstance(each, int):
            assert each == known + 1
            known = each
        else:
            assert int(each[1:-1]) >= known
            known = int(each[1:-1])
    assert known == sender.last
    assert re.fullmatch(rb"(?:<\d+\.*>|\[\d+\])*", sender.sent)


# What waits.


def frame(size: int) -> bytes:
    return b"." * size


def test_as_many_bytes_as_the_limit_wait_and_not_one_more(sender: Sender) -> None:
    sender.queue.is_paused = True
    for size in (LIMIT - 10, 10):
        sender.queue.send(Content(sender.waiting, frame(size)))
    assert not sender.queue.has_overflowed
    assert sender.waiting.total == LIMIT
    sender.queue.send(Content(sender.waiting, frame(1)))
    assert sender.queue.has_overflowed
    assert sender.waiting.total == 0


def test_the_frame_being_sent_is_not_among_those_that_wait(sender: Sender) -> None:
    sender.send(CHUNK_BYTES * (CHUNKS_AT_ONCE + 1))
    sender.queue.send(Content(sender.waiting, frame(LIMIT)))
    assert not sender.queue.has_overflowed


def test_frames_that_several_readers_wait_for_are_counted_once() -> None:
    first, second = Sender(), Sender()
    shared = Content(first.waiting, frame(50_000))
    for each in (first, second):
        each.queue.is_paused = True
        each.queue.send(shared)
    assert first.waiting.total == 50_000
    first.queue.close()
    assert first.waiting.total == 50_000
    second.resume()
    assert (first.waiting.total, second.sent) == (0, frame(50_000))


def test_a_long_frame_is_counted_until_it_is_sent(sender: Sender) -> None:
    sender.send(CHUNK_BYTES * (CHUNKS_AT_ONCE + 2))
    assert sender.waiting.total > 0
    sender.turns.take_turn()
    assert (sender.numbers, sender.waiting.total) == ([1], 0)


def fill(waiting: WaitingBytes) -> ContentReader:
    """Let others take what can wait."""
    return Content(waiting, frame(LIMIT)).open("192.0.2.9")


def test_if_too_much_waits_for_all_a_paused_queue_overflows() -> None:
    sender = Sender(LIMIT)
    others = fill(sender.waiting)
    sender.queue.is_paused = True
    sender.send(CHUNK_BYTES)
    assert sender.queue.has_overflowed
    others.close()
    sender.resume()
    assert sender.numbers == ["[1]"]


def test_if_too_much_waits_for_all_a_few_bytes_still_wait() -> None:
    sender = Sender(LIMIT)
    fill(sender.waiting)
    sender.queue.is_paused = True
    for _ in range(5):
        sender.send(100)
    assert not sender.queue.has_overflowed
    sender.resume()
    assert sender.numbers == [1, 2, 3, 4, 5]


def test_if_too_much_waits_for_all_a_long_frame_is_replaced_and_a_short_one_sent() -> None:
    sender = Sender(LIMIT)
    fill(sender.waiting)
    sender.send(CHUNK_BYTES - 10)
    sender.send(2 * CHUNK_BYTES)
    assert sender.numbers == [1, "[2]"]


def test_a_queue_that_could_not_be_refilled_is_asked_again_once_released(sender: Sender) -> None:
    sender.queue.is_paused = True
    sender.queue.overflow()
    sender.queue.postpone()
    sender.resume()
    assert sender.refills == 0
    sender.queue.is_held = False
    sender.queue.resume()
    assert (sender.refills, sender.numbers) == (1, ["[0]"])
