"""All open streams of a service: how many, how silent, how long; told by a clock of the test."""

from __future__ import annotations

from itertools import pairwise

import pytest
from twisted.internet.task import Clock

from treedbd.database.catalog import DatabaseName
from treedbd.tree.query import Query, parse_query
from treedbd.tree.window import Window
from treedbd.web.frame import AUTH_REVOKED
from treedbd.web.identity.identity import ANONYMOUS, Identity
from treedbd.web.streams import (
    SENT_AT_ONCE,
    Holder,
    NoRoomForStreams,
    StreamLimits,
    Streams,
    TooManyStreams,
)

SHOP = DatabaseName("shop")
WALL = 1_700_000_000.0
LIMITS = StreamLimits(streams=4, streams_per_database=3, streams_per_address=2)


class World:
    """A clock, and streams that say what they are told to do."""

    def __init__(self, limits: StreamLimits = LIMITS) -> None:
        self.clock = Clock()
        self.streams = Streams(limits, self.clock, lambda: WALL + self.clock.seconds())

    def open(
        self,
        name: DatabaseName = SHOP,
        address: str = "192.0.2.1",
        expires_at: float | None = None,
    ) -> Speaker:
        self.streams.check(name, address)
        speaker = Speaker(self)
        identity = ANONYMOUS if expires_at is None else Identity(False, None, expires_at)
        self.streams.add(speaker, Holder(name, address, identity))
        return speaker

    def pass_time(self, seconds: int) -> None:
        """Let time pass, second by second, and in each whoever waits for a turn have it."""
        for _ in range(seconds):
            self.clock.advance(1)
            self.clock.pump([0.0] * 10)


class Speaker:
    """A stream that keeps what it was told, with the time."""

    def __init__(self, world: World) -> None:
        self.said: list[tuple[float, object]] = []
        self.last_sent = world.clock.seconds()
        self._world = world

    def keep_alive(self) -> None:
        self._say("alive")

    def end(self, last_words: bytes = b"") -> None:
        self._say(last_words)
        self._world.streams.remove(self)

    def abort(self) -> None:
        self._say("aborted")
        self._world.streams.remove(self)

    def _say(self, what: object) -> None:
        self.last_sent = self._world.clock.seconds()
        self.said.append((self.last_sent, what))


@pytest.fixture
def world() -> World:
    return World()


def test_a_silent_stream_is_kept_alive_again_and_again(world: World) -> None:
    speaker = world.open()
    world.pass_time(29)
    assert speaker.said == []
    world.pass_time(61)
    assert speaker.said == [(30, "alive"), (60, "alive"), (90, "alive")]


def test_whatever_else_was_sent_puts_it_off(world: World) -> None:
    speaker = world.open()
    world.pass_time(20)
    speaker.last_sent = 20
    world.pass_time(29)
    assert speaker.said == []
    world.pass_time(1)
    assert speaker.said == [(50, "alive")]


@pytest.mark.parametrize("every_s", [0.5, 1.0, 2.0, 30.0])
def test_keep_alives_come_at_their_rate_though_each_is_sent_behind_a_tick(every_s: float) -> None:
    world = World(StreamLimits(keep_alive_s=every_s))
    speaker = world.open()
    times: list[float] = []
    while len(times) < 5:
        world.clock.advance(every_s / 64)
        if len(speaker.said) > len(times):
            times.append(world.clock.seconds())
            speaker.last_sent += every_s / 100
    gaps = [later - sooner for sooner, later in pairwise([0.0, *times])]
    assert all(0.95 * every_s < gap <= 1.15 * every_s for gap in gaps)


def test_between_many_keep_alives_others_have_their_turn() -> None:
    world = World(StreamLimits(streams_per_address=10_000))
    speakers = [world.open() for _ in range(2 * SENT_AT_ONCE + 1)]
    spoken_before: list[int] = []
    world.clock.callLater(30, world.clock.callLater, 0, lambda: spoken_before.append(count()))

    def count() -> int:
        return sum(len(speaker.said) for speaker in speakers)

    world.pass_time(30)
    assert spoken_before[0] <= SENT_AT_ONCE
    assert count() == len(speakers)


def test_one_that_leaves_before_its_turn_is_not_kept_alive() -> None:
    world = World(StreamLimits(streams_per_address=10_000))
    *_, last = [world.open() for _ in range(2 * SENT_AT_ONCE + 1)]
    world.clock.callLater(30, world.clock.callLater, 0, world.streams.remove, last)
    world.pass_time(30)
    assert last.said == []


def test_one_whose_token_has_run_out_is_told_so(world: World) -> None:
    speaker, other = world.open(expires_at=WALL + 5), world.open()
    world.pass_time(10)
    assert speaker.said == [(5, AUTH_REVOKED)]
    assert other.said == []
    assert len(world.streams) == 1


def test_one_whose_reader_does_not_read_for_too_long_is_dropped(world: World) -> None:
    speaker, other = world.open(), world.open()
    world.pass_time(10)
    world.streams.pause(speaker)
    world.streams.pause(other)
    world.pass_time(30)
    world.streams.resume(other)
    world.pass_time(29)
    assert (69, "aborted") not in speaker.said
    world.pass_time(1)
    assert speaker.said[-1] == (70, "aborted")
    world.streams.pause(other)
    world.pass_time(59)
    assert len(world.streams) == 1


def test_one_that_left_is_heard_of_no_more(world: World) -> None:
    speaker = world.open(expires_at=WALL + 5)
    world.streams.pause(speaker)
    world.streams.remove(speaker)
    world.streams.remove(speaker)
    assert len(world.streams) == 0
    assert not world.clock.getDelayedCalls()
    world.open()
    world.pass_time(100)
    assert speaker.said == []


def test_nothing_of_one_that_left_is_kept(world: World) -> None:
    speaker = world.open(expires_at=WALL + 1000)
    world.streams.pause(speaker)
    world.streams.remove(speaker)
    kept = [held for held in vars(world.streams).values() if isinstance(held, dict)]
    assert [len(held) for held in kept] == [0] * len(kept)


def test_there_are_so_many_and_no_more(world: World) -> None:
    one, other = DatabaseName("one"), DatabaseName("other")
    first = world.open(one, "192.0.2.1")
    world.open(one, "192.0.2.1")
    with pytest.raises(TooManyStreams, match="address"):
        world.open(other, "192.0.2.1")
    world.open(one, "192.0.2.2")
    with pytest.raises(TooManyStreams, match="database"):
        world.open(one, "192.0.2.3")
    world.open(other, "192.0.2.3")
    with pytest.raises(NoRoomForStreams):
        world.open(other, "192.0.2.4")
    world.streams.remove(first)
    world.open(one, "192.0.2.1")


def test_all_end_together(world: World) -> None:
    speakers = [world.open(address=str(number)) for number in range(3)]
    world.streams.end()
    assert [speaker.said for speaker in speakers] == [[(0, b"")]] * 3
    assert len(world.streams) == 0


def test_those_who_are_not_trusted_any_more_are_told_so(world: World) -> None:
    speaker, other = world.open(), world.open(DatabaseName("other"))
    world.streams.recheck(lambda project, _: project == "other")
    assert speaker.said == [(0, AUTH_REVOKED)]
    assert other.said == []


def test_streams_of_a_query_that_show_the_same_share_one_window(world: World) -> None:
    query: Query | None = parse_query({"orderBy": '"$key"'})
    assert query is not None
    first = Window(query, [("a", 1)])
    assert world.streams.share("key", first) is first
    assert world.streams.share("key", Window(query, [("a", 1)])) is first
    assert world.streams.share("other", Window(query, [("a", 1)])) is not first
    later = Window(query, [("a", 2)])
    assert world.streams.share("key", later) is later
    assert world.streams.share("key", Window(query, [("a", 2)])) is later
