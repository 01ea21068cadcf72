"""Large reads: slices of work, turns, and the limit of bytes in files for slow clients."""

from __future__ import annotations

import errno
import io
import os
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.web.test.requesthelper import DummyRequest

from tests.database.world import make_database, run_at_once
from tests.web.tree_server import SlowClock
from treedbd.database.errors import DeadlinePassed, Unavailable
from treedbd.database.runtime import Runtime
from treedbd.store.engine import DiskFull
from treedbd.store.memory import MemoryEngine
from treedbd.store.nodes import Nodes
from treedbd.web import large_reads
from treedbd.web.http1.adapter import AdaptedRequest
from treedbd.web.large_reads import MAX_CONCURRENT_RENDERS, LargeReads
from treedbd.web.representation import MAX_TURN_SECONDS, Chunks, Wrapping, render_at_once

LAG_S = 0.001


class World:
    """An empty database, and the large reads of it."""

    def __init__(self) -> None:
        self.clock = SlowClock()
        self.clock.lag = LAG_S
        self.database = make_database(
            MemoryEngine(), Runtime(self.clock, os.urandom, run_at_once), retain_events=10
        )
        self.reads = LargeReads(self.clock)

    def render(self, chunks: Chunks, wait_s: float = 1000.0) -> Deferred[Any]:
        deadline = self.clock.seconds() + wait_s
        return Deferred.fromCoroutine(self.reads.render(self.database.hold, chunks, deadline))

    def finish(self) -> None:
        for _ in range(100):
            self.clock.advance(0)


class SlowRequest(DummyRequest):
    """A request whose client has not read yet."""

    content = None
    producer: Any = None

    def registerProducer(self, prod: Any, s: bool) -> None:
        """Keep the producer, for the test to call."""
        self.producer = prod

    def unregisterProducer(self) -> None:
        """Release the producer."""
        self.producer = None


@pytest.fixture
def world() -> World:
    return World()


def outcome(waiting: Deferred[Any]) -> Any:
    """Return what a Deferred has fired with, an exception for a failure."""
    results: list[Any] = []
    waiting.addCallbacks(results.append, lambda failure: results.append(failure.value))
    return results[0] if results else None


def chunks_of(*texts: bytes) -> Chunks:
    def chunks(_: Nodes) -> Iterator[bytes]:
        yield from texts

    return chunks


MANY = chunks_of(*[b"x"] * 50)


def test_little_work_is_rendered_at_once_and_much_work_is_not(world: World) -> None:
    nodes = world.database.hold()
    assert render_at_once(nodes, chunks_of(b"a", b"", b"b"), world.clock) == b"ab"
    readings = int(MAX_TURN_SECONDS / LAG_S)
    assert render_at_once(nodes, chunks_of(*[b""] * 3 * readings), world.clock) is None
    assert render_at_once(nodes, chunks_of(b"x" * 2_000_000, b"y"), world.clock) is None


def test_other_calls_run_while_a_body_is_rendered(world: World) -> None:
    is_rendering: list[bool] = []
    rendering = world.render(MANY)

    def take_turn() -> None:
        is_rendering.append(not rendering.called)
        if len(is_rendering) < 20:
            world.clock.callLater(0, take_turn)

    take_turn()
    world.finish()
    with outcome(rendering) as file:
        assert file.read() == b"x" * 50
    assert sum(is_rendering) > 5


def test_a_limited_number_is_rendered_at_a_time_and_others_wait_for_their_turn(
    world: World,
) -> None:
    renderings = [world.render(MANY) for _ in range(MAX_CONCURRENT_RENDERS)]
    late = world.render(MANY, wait_s=0.5)
    patient = world.render(MANY)
    world.clock.advance(1)
    assert isinstance(outcome(late), DeadlinePassed)
    world.finish()
    for each in (*renderings, patient):
        with outcome(each) as file:
            assert file.read() == b"x" * 50


def test_a_rendered_body_no_longer_occupies_a_turn(world: World) -> None:
    for _ in range(3 * MAX_CONCURRENT_RENDERS):
        rendering = world.render(MANY)
        world.finish()
        assert outcome(rendering).read() == b"x" * 50


def test_a_full_disk_for_temporary_files_is_reported_as_full(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    class FullFile(io.BytesIO):
        def write(self, _: Any) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "SpooledTemporaryFile", lambda _: FullFile())
    renderings = [world.render(MANY) for _ in range(2 * MAX_CONCURRENT_RENDERS)]
    world.finish()
    assert all(isinstance(outcome(each), DiskFull) for each in renderings)


def test_the_files_for_slow_clients_together_are_limited(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(large_reads, "MAX_WAITING_BYTES", 60)
    slow = SlowRequest([])
    request: Any = AdaptedRequest(slow, 0)
    alone = world.render(MANY)
    world.finish()
    deadline = world.clock.seconds() + 1000
    world.reads.send(request, outcome(alone), Wrapping(b"(", b")", ()), (), deadline)
    refused = world.render(MANY)
    world.finish()
    assert isinstance(outcome(refused), Unavailable)
    while slow.producer is not None:
        slow.producer.resumeProducing()
    assert b"".join(slow.written) == b"(" + b"x" * 50 + b")"
    again = world.render(MANY)
    world.finish()
    assert outcome(again).read() == b"x" * 50
