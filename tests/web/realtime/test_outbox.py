"""The outbox of a WebSocket: one order, bounded, and no answer before what precedes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from tests.database.world import TurnClock
from treedbd.database.slices import FIRST_SECONDS, Slices
from treedbd.http1.content import (
    Content,
    FrameReader,
    WaitingBytes,
    WaitingBytesExhausted,
    WaitingBytesRefused,
)
from treedbd.web.realtime.socket import JOB_BYTES, Outbox
from treedbd.web.realtime.wire import BytesReader, UnframedMessage, frame_message

LIMIT = 1000


class Connection:
    """Records what is written."""

    def __init__(self) -> None:
        self.sentLength = 0
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def write_content(self, content: Content) -> None:
        self.written.append(content.whole())

    def find_free_send(self) -> tuple[None, None]:
        return None, None

    def continue_after(self, rest: bytes) -> None:
        assert not rest


class Owner:
    """A session that records what its outbox wants."""

    def __init__(self) -> None:
        self.reading: list[bool] = []
        self.postponements = 0
        self.overflows = 0

    def set_reading(self, is_reading: bool) -> None:
        self.reading.append(is_reading)

    def postponed(self, error: WaitingBytesRefused) -> None:
        self.postponements += 1

    def overflowed(self) -> None:
        self.overflows += 1

    def fail(self) -> None:
        raise AssertionError("The outbox failed.")


class Listen:
    """A listen that sends a value, or is not ready, or finds no room."""

    def __init__(self, value: bytes) -> None:
        self.is_stale = False
        self.value = value
        self.is_ready = True
        self.refusals = 0

    def open(self) -> Sequence[FrameReader] | None:
        if self.refusals:
            self.refusals -= 1
            raise WaitingBytesExhausted("no room", WaitingBytes(1), 1)
        self.is_stale = False
        return [BytesReader(self.value)] if self.is_ready else None


class ClientOutbox:
    """An outbox with all that it needs."""

    def __init__(self) -> None:
        self.clock = TurnClock(FIRST_SECONDS / 8)
        self.memory = WaitingBytes(10**6)
        self.connection = Connection()
        self.owner = Owner()
        slices = Slices(self.clock)
        self.outbox = Outbox(self.connection, LIMIT, self.owner, slices, "here")  # type: ignore[arg-type]

    def event(self, text: bytes, listen: Listen) -> None:
        if not listen.is_stale:
            self.outbox.send_event(Content(self.memory, text), cast(Any, listen))

    def resume(self) -> None:
        self.outbox.is_paused = False
        self.outbox.resume()
        self.clock.run()

    @property
    def sent(self) -> bytes:
        return b"".join(self.connection.written)


def test_what_is_sent_while_the_client_reads_goes_out_at_once_in_order() -> None:
    world = ClientOutbox()
    listen = Listen(b"V")
    world.event(b"e1", listen)
    world.outbox.send_answer(b"a1")
    world.outbox.add(listen)
    world.event(b"e2", listen)
    assert world.connection.written == [b"e1", b"a1", b"V", b"e2"]


def test_what_waits_for_the_client_keeps_its_order() -> None:
    world = ClientOutbox()
    listen = Listen(b"V")
    world.outbox.is_paused = True
    world.event(b"e1", listen)
    world.outbox.send_answer(b"a1")
    world.outbox.send_answer(b"a2")
    world.event(b"e2", listen)
    assert world.sent == b""
    world.resume()
    assert world.sent == b"e1a1a2e2"
    assert world.memory.total == 0


def test_events_beyond_the_bound_are_replaced_by_the_value_in_the_place_of_the_first() -> None:
    world = ClientOutbox()
    slow, other = Listen(b"SLOW"), Listen(b"OTHER")
    world.outbox.is_paused = True
    world.outbox.send_answer(b"a1")
    world.event(b"s" * 600, slow)
    world.outbox.send_answer(b"a2")
    world.event(b"o" * 300, other)
    world.event(b"s" * 600, slow)
    world.event(b"lost", other)
    world.outbox.send_answer(b"a3")
    assert world.owner.overflows == 1
    assert slow.is_stale
    assert other.is_stale
    assert world.memory.total == 0
    world.resume()
    assert world.sent == b"a1SLOWa2OTHERa3"


def test_nothing_behind_a_job_that_is_not_ready_is_sent_before_it() -> None:
    world = ClientOutbox()
    listen = Listen(b"")
    listen.is_ready = False
    world.outbox.add(listen)
    world.outbox.send_answer(b"a1")
    world.event(b"e1", Listen(b""))
    assert world.sent == b""
    world.outbox.release([BytesReader(b"V")])
    world.clock.run()
    assert world.sent == b"Va1e1"


def test_a_job_without_room_is_asked_again() -> None:
    world = ClientOutbox()
    listen = Listen(b"V")
    listen.refusals = 2
    world.outbox.add(listen)
    world.outbox.send_answer(b"a1")
    world.outbox.retry()
    assert world.owner.postponements == 2
    assert world.sent == b""
    world.outbox.retry()
    assert world.sent == b"Va1"


def test_while_too_many_answers_wait_the_client_is_not_read() -> None:
    world = ClientOutbox()
    world.outbox.is_paused = True
    for _ in range(LIMIT // 100 + 1):
        world.outbox.send_answer(b"a" * 100)
    assert world.owner.reading == [False]
    world.resume()
    assert world.owner.reading == [False, True]
    assert len(world.sent) == LIMIT + 100


def test_jobs_count_as_answers_that_wait() -> None:
    world = ClientOutbox()
    world.outbox.is_paused = True
    for _ in range(LIMIT // JOB_BYTES + 1):
        world.outbox.add(Listen(b"V"))
    assert world.owner.reading == [False]


def test_a_long_value_is_sent_in_chunks_in_several_turns() -> None:
    world = ClientOutbox()
    value = bytes(range(256)) * 20_000
    world.outbox.add(Listen(value))
    world.outbox.send_answer(b"end")
    assert len(world.sent) < len(value)
    for _ in range(10):
        world.clock.run()
    assert world.sent == value + b"end"


def test_a_long_message_is_framed_as_it_is_sent_and_keeps_its_place() -> None:
    world = ClientOutbox()
    listen = Listen(b"V")
    text = b"0123456789" * 200_000
    message = UnframedMessage(world.memory, [text[:70_000], text[70_000:]])
    world.event(b"e1", listen)
    world.outbox.send_event(message, cast(Any, listen))
    world.event(b"e2", listen)
    world.outbox.send_answer(b"a1")
    assert 0 < len(world.sent) < len(text)
    assert world.memory.total == len(text) + 2
    world.resume()
    assert world.sent == b"e1" + frame_message(text) + b"e2a1"
    assert (world.owner.overflows, world.memory.total) == (0, 0)


def test_refreshing_a_listen_drops_its_events_and_no_others() -> None:
    world = ClientOutbox()
    first, second = Listen(b"FIRST"), Listen(b"SECOND")
    world.outbox.is_paused = True
    world.event(b"f1", first)
    world.event(b"s1", second)
    world.event(b"f2", first)
    world.outbox.refresh(cast(Any, first))
    world.outbox.refresh(cast(Any, first))
    world.resume()
    assert world.sent == b"FIRSTs1"
    assert world.owner.overflows == 0


def test_closing_drops_everything() -> None:
    world = ClientOutbox()
    world.outbox.is_paused = True
    world.event(b"e1", Listen(b""))
    world.outbox.send_answer(b"a1")
    world.outbox.close()
    world.outbox.is_paused = False
    world.outbox.resume()
    world.outbox.send_answer(b"a2")
    world.outbox.release([BytesReader(b"V")])
    assert world.sent == b""
    assert world.memory.total == 0


def test_answers_that_are_sent_together_are_one_write_in_their_order() -> None:
    world = ClientOutbox()

    def send() -> None:
        for answer in (b"a1", b"a2"):
            world.outbox.send_answer(answer)
        world.outbox.add(Listen(b"V"))
        world.outbox.send_answer(b"a3")

    world.outbox.gather(send)
    assert world.connection.written == [b"a1a2", b"V", b"a3"]
    world.outbox.send_answer(b"a4")
    assert world.connection.written[3:] == [b"a4"]


def test_answers_that_are_sent_together_come_after_what_waits() -> None:
    world = ClientOutbox()
    world.outbox.is_paused = True
    world.event(b"e1", Listen(b"V"))
    world.outbox.gather(lambda: world.outbox.send_answer(b"a1"))
    assert world.sent == b""
    world.resume()
    assert world.sent == b"e1a1"


def test_after_a_failure_the_outbox_sends_again() -> None:
    world = ClientOutbox()

    def fail() -> None:
        world.outbox.send_answer(b"a1")
        raise ValueError("a failure of a test")

    with pytest.raises(ValueError, match="of a test"):
        world.outbox.gather(fail)
    world.outbox.send_answer(b"a2")
    assert world.sent == b"a1a2"
