"""Long reads: slices of work, turns, and what may lie in files for slow clients."""

from __future__ import annotations

import errno
import io
import os
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.web.test.requesthelper import DummyRequest

from tests.database.world import bare_rulebook, run_at_once
from treedbd.database.database import Database
from treedbd.database.platform import Platform
from treedbd.database.question import DeadlinePassed, Unavailable
from treedbd.store.mapping import Full
from treedbd.store.memory import MemoryMapping
from treedbd.store.nodes import Nodes
from treedbd.web import transfer
from treedbd.web.read import Pieces
from treedbd.web.shape import Envelope
from treedbd.web.transfer import DRAWN_AT_ONCE, FIRST_SLICE_SECONDS, LongReads, draw_at_once


class SlowClock(Clock):
    """A clock by which each look takes a millisecond."""

    def seconds(self) -> float:
        """Return the time."""
        self.rightNow += 0.001
        return super().seconds()


class World:
    """A database that holds nothing, and whoever reads it at length."""

    def __init__(self) -> None:
        self.clock = SlowClock()
        self.database = Database(
            MemoryMapping(),
            bare_rulebook(run_at_once),
            Platform(self.clock, os.urandom, run_at_once),
            retain_events=10,
        )
        self.reads = LongReads(self.clock)

    def draw(self, pieces: Pieces, wait_s: float = 1000.0) -> Deferred[Any]:
        deadline = self.clock.seconds() + wait_s
        return Deferred.fromCoroutine(self.reads.draw(self.database, pieces, deadline))

    def finish(self) -> None:
        for _ in range(100):
            self.clock.advance(0)


class SlowRequest(DummyRequest):
    """A request whose client has yet to read."""

    reading: Any = None

    def registerProducer(self, prod: Any, s: bool) -> None:
        """Keep what is to be driven."""
        self.reading = prod

    def unregisterProducer(self) -> None:
        """Let it go."""
        self.reading = None


@pytest.fixture
def world() -> World:
    return World()


def outcome(waiting: Deferred[Any]) -> Any:
    """Return what a Deferred has fired with, an exception for a failure."""
    results: list[Any] = []
    waiting.addCallbacks(results.append, lambda failure: results.append(failure.value))
    return results[0] if results else None


def pieces_of(*texts: bytes) -> Pieces:
    def pieces(_: Nodes) -> Iterator[bytes]:
        yield from texts

    return pieces


MANY = pieces_of(*[b"x"] * 50)


def test_short_work_is_drawn_at_once_and_long_work_is_not(world: World) -> None:
    nodes = world.database.hold().nodes
    assert draw_at_once(nodes, pieces_of(b"a", b"", b"b"), world.clock) == b"ab"
    looks = int(FIRST_SLICE_SECONDS / 0.001)
    assert draw_at_once(nodes, pieces_of(*[b""] * 3 * looks), world.clock) is None
    assert draw_at_once(nodes, pieces_of(b"x" * 2_000_000, b"y"), world.clock) is None


def test_others_have_their_turn_while_a_body_is_drawn(world: World) -> None:
    before: list[bool] = []
    drawing = world.draw(MANY)

    def take_turn() -> None:
        before.append(not drawing.called)
        if len(before) < 20:
            world.clock.callLater(0, take_turn)

    take_turn()
    world.finish()
    with outcome(drawing) as file:
        assert file.read() == b"x" * 50
    assert sum(before) > 5


def test_so_many_are_drawn_at_a_time_and_others_wait_for_a_turn(world: World) -> None:
    drawings = [world.draw(MANY) for _ in range(DRAWN_AT_ONCE)]
    late = world.draw(MANY, wait_s=0.5)
    patient = world.draw(MANY)
    world.clock.advance(1)
    assert isinstance(outcome(late), DeadlinePassed)
    world.finish()
    for each in (*drawings, patient):
        with outcome(each) as file:
            assert file.read() == b"x" * 50


def test_what_has_been_drawn_keeps_nobody_from_a_turn(world: World) -> None:
    for _ in range(3 * DRAWN_AT_ONCE):
        drawing = world.draw(MANY)
        world.finish()
        assert outcome(drawing).read() == b"x" * 50


def test_a_full_disk_for_temporary_files_is_said_to_be_full(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    class FullFile(io.BytesIO):
        def write(self, _: Any) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "SpooledTemporaryFile", lambda _: FullFile())
    drawings = [world.draw(MANY) for _ in range(2 * DRAWN_AT_ONCE)]
    world.finish()
    assert all(isinstance(outcome(each), Full) for each in drawings)


def test_files_for_slow_clients_have_a_bound_all_together(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "MOST_WAITING_BYTES", 60)
    request: Any = SlowRequest([])
    alone = world.draw(MANY)
    world.finish()
    deadline = world.clock.seconds() + 1000
    world.reads.send(request, outcome(alone), Envelope(b"(", b")", ()), (), deadline)
    refused = world.draw(MANY)
    world.finish()
    assert isinstance(outcome(refused), Unavailable)
    while request.reading is not None:
        request.reading.resumeProducing()
    assert b"".join(request.written) == b"(" + b"x" * 50 + b")"
    again = world.draw(MANY)
    world.finish()
    assert outcome(again).read() == b"x" * 50
