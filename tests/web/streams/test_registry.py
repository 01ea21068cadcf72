"""All open streams of a service: limits, keep-alives and expiry, by a simulated clock."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from tests.database.world import TurnClock
from treedbd.limits import Limits, StreamLimits
from treedbd.names import DatabaseName
from treedbd.web.auth.identity import ANONYMOUS, Identity
from treedbd.web.listeners import (
    ENDED_AT_ONCE,
    SENT_AT_ONCE,
    StreamRegistry,
    StreamsExhausted,
    TooManyStreams,
)
from treedbd.web.streams import (
    AUTH_REVOKED,
    CANCEL,
)

SHOP = DatabaseName("shop")
WALL = 1_700_000_000.0
LIMITS = Limits(streams=4, streams_per_database=3, streams_per_address=2)


class RecordedStreams:
    """A clock, a registry and its streams, which record what it calls."""

    def __init__(self, limits: Limits = LIMITS, stream_limits: StreamLimits | None = None) -> None:
        self.clock = TurnClock()
        context: Any = SimpleNamespace(
            settings=SimpleNamespace(limits=limits, streams=stream_limits or StreamLimits()),
            clock=self.clock,
            wall_clock=lambda: WALL + self.clock.seconds(),
            counts=None,
            rates=None,
        )
        self.registry = StreamRegistry(context)

    def open(
        self,
        name: DatabaseName = SHOP,
        address: str = "192.0.2.1",
        expires_at: float | None = None,
    ) -> RecordingStream:
        self.registry.check(name, address)
        identity = ANONYMOUS if expires_at is None else Identity(False, None, expires_at)
        stream = RecordingStream(self, name, address, identity)
        self.registry.add(stream)
        return stream

    def tick(self, time: float) -> None:
        """Pass the time until the next tick of the registry, without the turns after it."""
        self.clock.rightNow = time
        self.clock.take_turn()

    def pass_time(self, seconds: int) -> None:
        """Advance the clock second by second, and run all calls that are due in each."""
        for _ in range(seconds):
            self.clock.advance(1)
            self.clock.pump([0.0] * 10)


class RecordingStream:
    """A stream that records the calls of the registry, each with its time."""

    sent_bytes = 0

    def __init__(
        self, world: RecordedStreams, name: DatabaseName, address: str, identity: Identity
    ) -> None:
        self.name = name
        self.address = address
        self.identity = identity
        self.calls: list[tuple[float, object]] = []
        self.last_sent = world.clock.seconds()
        self._world = world

    def retry(self) -> None:
        self._record("retried")

    def keep_alive(self) -> None:
        self._record("alive")

    def lose_identity(self) -> None:
        self.end(AUTH_REVOKED)

    def revoke(self) -> None:
        self.end(CANCEL)

    def end(self, last_frame: bytes = b"") -> None:
        self._record(last_frame)
        self._world.registry.remove(self)

    def abort(self) -> None:
        self._record("aborted")
        self._world.registry.remove(self)

    def _record(self, what: object) -> None:
        self.last_sent = self._world.clock.seconds()
        self.calls.append((self.last_sent, what))


@pytest.fixture
def world() -> RecordedStreams:
    return RecordedStreams()


def test_a_silent_stream_is_kept_alive_again_and_again(world: RecordedStreams) -> None:
    stream = world.open()
    world.pass_time(29)
    assert stream.calls == []
    world.pass_time(61)
    assert stream.calls == [(30, "alive"), (60, "alive"), (90, "alive")]


def test_anything_else_that_is_sent_postpones_the_keep_alive(world: RecordedStreams) -> None:
    stream = world.open()
    world.pass_time(20)
    stream.last_sent = 20
    world.pass_time(29)
    assert stream.calls == []
    world.pass_time(1)
    assert stream.calls == [(50, "alive")]


@pytest.mark.parametrize("every_s", [0.5, 1.0, 2.0, 30.0])
def test_keep_alives_keep_their_rate_although_each_is_sent_after_a_tick(every_s: float) -> None:
    world = RecordedStreams(stream_limits=StreamLimits(keep_alive_s=every_s))
    stream = world.open()
    times: list[float] = []
    while len(times) < 5:
        world.clock.advance(every_s / 64)
        if len(stream.calls) > len(times):
            times.append(world.clock.seconds())
            stream.last_sent += every_s / 100
    intervals = [later - sooner for sooner, later in pairwise([0.0, *times])]
    assert all(0.95 * every_s < interval <= 1.15 * every_s for interval in intervals)


def test_many_keep_alives_are_sent_over_several_turns() -> None:
    world = RecordedStreams(Limits(streams_per_address=10_000))
    streams = [world.open() for _ in range(2 * SENT_AT_ONCE + 1)]
    sent_before: list[int] = []
    world.clock.callLater(30, world.clock.callLater, 0, lambda: sent_before.append(count()))

    def count() -> int:
        return sum(len(stream.calls) for stream in streams)

    world.pass_time(30)
    assert sent_before[0] <= SENT_AT_ONCE
    assert count() == len(streams)


def test_a_stream_removed_before_its_turn_gets_no_keep_alive() -> None:
    world = RecordedStreams(Limits(streams_per_address=10_000))
    *_, last = [world.open() for _ in range(2 * SENT_AT_ONCE + 1)]
    world.clock.callLater(30, world.clock.callLater, 0, world.registry.remove, last)
    world.pass_time(30)
    assert last.calls == []


def test_a_stream_whose_token_has_expired_ends_with_auth_revoked(world: RecordedStreams) -> None:
    stream, other = world.open(expires_at=WALL + 5), world.open()
    world.pass_time(10)
    assert stream.calls == [(5, AUTH_REVOKED)]
    assert other.calls == []
    assert len(world.registry) == 1


def test_many_expired_streams_end_over_several_turns() -> None:
    world = RecordedStreams(Limits(streams_per_address=10_000))
    streams = [world.open(expires_at=WALL + 5) for _ in range(3 * ENDED_AT_ONCE)]
    world.tick(5)
    ended = [sum(bool(stream.calls) for stream in streams)]
    while world.clock.take_turn():
        ended.append(sum(bool(stream.calls) for stream in streams))
    assert ended == [ENDED_AT_ONCE, 2 * ENDED_AT_ONCE, 3 * ENDED_AT_ONCE]
    assert {call for stream in streams for call in stream.calls} == {(5, AUTH_REVOKED)}


def test_many_stalled_streams_are_dropped_over_several_turns_but_not_those_that_read_again() -> (
    None
):
    world = RecordedStreams(Limits(streams_per_address=10_000))
    streams = [world.open() for _ in range(2 * ENDED_AT_ONCE)]
    for stream in streams:
        world.registry.pause(stream)
    world.tick(60)
    assert len(world.registry) == ENDED_AT_ONCE
    world.registry.resume(streams[-1])
    world.pass_time(1)
    assert len(world.registry) == 1
    assert (60, "aborted") not in streams[-1].calls


def test_a_stream_whose_reader_does_not_read_for_too_long_is_dropped(
    world: RecordedStreams,
) -> None:
    stream, other = world.open(), world.open()
    world.pass_time(10)
    world.registry.pause(stream)
    world.registry.pause(other)
    world.pass_time(30)
    world.registry.resume(other)
    world.pass_time(29)
    assert (69, "aborted") not in stream.calls
    world.pass_time(1)
    assert stream.calls[-1] == (70, "aborted")
    world.registry.pause(other)
    world.pass_time(59)
    assert len(world.registry) == 1


def test_a_removed_stream_is_not_called_again(world: RecordedStreams) -> None:
    stream = world.open(expires_at=WALL + 5)
    world.registry.pause(stream)
    world.registry.remove(stream)
    world.registry.remove(stream)
    assert len(world.registry) == 0
    assert not world.clock.getDelayedCalls()
    world.open()
    world.pass_time(100)
    assert stream.calls == []


def test_nothing_of_a_removed_stream_is_kept(world: RecordedStreams) -> None:
    stream = world.open(expires_at=WALL + 1000)
    world.registry.pause(stream)
    world.registry.remove(stream)
    tables = [each for each in vars(world.registry).values() if isinstance(each, dict)]
    assert [len(table) for table in tables] == [0] * len(tables)


def test_the_numbers_of_streams_are_limited(world: RecordedStreams) -> None:
    one, other = DatabaseName("one"), DatabaseName("other")
    first = world.open(one, "192.0.2.1")
    world.open(one, "192.0.2.1")
    with pytest.raises(TooManyStreams, match="address"):
        world.open(other, "192.0.2.1")
    world.open(one, "192.0.2.2")
    with pytest.raises(TooManyStreams, match="database"):
        world.open(one, "192.0.2.3")
    world.open(other, "192.0.2.3")
    with pytest.raises(StreamsExhausted):
        world.open(other, "192.0.2.4")
    world.registry.remove(first)
    world.open(one, "192.0.2.1")


def test_all_streams_end_together(world: RecordedStreams) -> None:
    streams = [world.open(address=str(number)) for number in range(3)]
    world.registry.end()
    assert [stream.calls for stream in streams] == [[(0, b"")]] * 3
    assert len(world.registry) == 0


def test_streams_of_an_identity_no_longer_trusted_end_with_auth_revoked(
    world: RecordedStreams,
) -> None:
    stream, other = world.open(), world.open(DatabaseName("other"))
    world.registry.recheck(lambda project, _: project == "other")
    assert stream.calls == [(0, AUTH_REVOKED)]
    assert other.calls == []
