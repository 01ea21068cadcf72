"""Shared reads: one rendering for all who want the same, slices of work, turns, and bounds."""

from __future__ import annotations

import errno
import io
import os
import tempfile
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import pytest
from twisted.internet.defer import CancelledError, Deferred

from tests.database.world import make_database, run_at_once
from tests.web.tree_server import SlowClock
from treedbd.database.errors import DeadlinePassed, PermissionDenied
from treedbd.database.requests import Caller, Write
from treedbd.database.runtime import Runtime
from treedbd.limits import Limits
from treedbd.store.engine import DiskFull
from treedbd.store.memory import MemoryEngine
from treedbd.store.nodes import Nodes
from treedbd.tree.edit import make_put
from treedbd.tree.types import Place
from treedbd.web.content import (
    SHARES,
    ContentReader,
    TooManyWaitingBytes,
    WaitingBytesExhausted,
)
from treedbd.web.large_reads import Waiter, before_deadline
from treedbd.web.rendering import IN_MEMORY_BYTES, Rendering
from treedbd.web.shared_reads import (
    MAX_CONCURRENT_RENDERS,
    MAX_TURN_BYTES,
    MAX_TURN_SECONDS,
    SharedReads,
    TooMuchWork,
)

LAG_S = 0.001
ADDRESS = "192.0.2.1"
PIECE = b"x" * 1000
FILE_BYTES = 2 * IN_MEMORY_BYTES
LIMITS = Limits(waiting_bytes=1_000_000, waiting_file_bytes=2 * SHARES * FILE_BYTES)


class Text:
    """A source that renders the same pieces from every state, and counts its work."""

    def __init__(self, *pieces: bytes, key: Hashable = None) -> None:
        self.key = key or self
        self.begun = 0
        self.rendered = 0
        self._pieces = pieces

    def shares(self, _: object) -> bool:
        return True

    def chunks(self, _: Nodes) -> Iterator[bytes]:
        self.begun += 1
        for piece in self._pieces:
            self.rendered += 1
            yield piece

    @property
    def text(self) -> bytes:
        return b"".join(self._pieces)


def many() -> Text:
    return Text(*[PIECE] * 50)


def long_text() -> Text:
    return Text(*[b"y" * (FILE_BYTES // 50)] * 50)


class Reader:
    """One who waits for a large read, opens it, and records what happens."""

    def __init__(self, world: World, source: Text, *, address: str = ADDRESS) -> None:
        self.judged: list[int] = []
        self.begun: list[int] = []
        self.is_allowed = True
        self.result: Any = None
        self.reader: ContentReader | None = None
        self._address = address
        waiter = Waiter(source, self._judge, world.sequence, self.begun.append)
        self.waiting: Deferred[Any] = world.reads.render_large(world.database.hold, waiter, address)
        self.waiting.addCallback(self._open).addErrback(self._fail)

    @property
    def text(self) -> bytes:
        assert self.reader is not None, self.result
        text: bytes = self.result.whole()
        return text

    def _judge(self, nodes: Nodes) -> None:
        self.judged.append(nodes.rows.sequence())
        if not self.is_allowed:
            raise PermissionDenied("this read")

    def _open(self, rendering: Rendering) -> None:
        self.result = rendering
        self.reader = rendering.open(self._address)

    def _fail(self, failure: Any) -> None:
        self.result = failure.value


class World:
    """A database, and the reads of it."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self.clock = SlowClock()
        self.clock.lag = LAG_S
        runtime = Runtime(self.clock, os.urandom, run_at_once)
        self.database = make_database(MemoryEngine(), runtime, retain_events=10)
        self.reads = SharedReads(limits, self.clock)

    @property
    def sequence(self) -> int:
        return self.database.read(lambda nodes: nodes.rows.sequence())

    def render(self, source: Text) -> bytes | Rendering | TooMuchWork:
        return self.database.read(lambda nodes: self.reads.render(source, nodes))

    def write(self) -> None:
        edit = make_put(Place(("n",)), self.sequence, 100)
        written = self.database.write(Write(edit, 0, Caller(None, is_admin=True)))
        self.take_turns_until(lambda: written.called)

    def turn(self) -> None:
        """Run what is due now, and not what that schedules, as a turn of a reactor does."""
        due: list[Any] = sorted(self.clock.getDelayedCalls(), key=lambda call: call.getTime())
        for call in due:
            if call.active() and call.getTime() <= self.clock.rightNow:
                self.clock.calls.remove(call)
                call.called = 1
                call.func(*call.args, **call.kw)

    def take_turns_until(self, is_so: Callable[[], object]) -> None:
        for _ in range(1000):
            if is_so():
                return
            self.turn()
        raise AssertionError("It does not happen.")

    def finish(self) -> None:
        self.take_turns_until(lambda: not self.reads._under_way)


@pytest.fixture
def world() -> World:
    return World()


# In one turn.


def test_little_work_is_rendered_at_once_and_much_work_is_not(world: World) -> None:
    assert world.render(Text(b"a", b"", b"b")) == b"ab"
    readings = int(MAX_TURN_SECONDS / LAG_S)
    assert world.render(Text(*[b""] * 3 * readings)) == TooMuchWork(0)
    assert world.render(Text(b"x" * (MAX_TURN_BYTES + 1), b"y")) == TooMuchWork(0)


def test_what_is_being_read_is_not_rendered_again(world: World) -> None:
    source = Text(b"x" * 100_000)
    rendering = world.render(source)
    assert isinstance(rendering, Rendering)
    reader = rendering.open(ADDRESS)
    assert world.render(source) is rendering
    assert source.begun == 1
    reader.close()


def test_what_nobody_reads_any_more_is_rendered_again_and_forgotten(world: World) -> None:
    source = Text(b"x" * 100_000)
    first = world.render(source)
    assert isinstance(first, Rendering)
    first.open(ADDRESS).close()
    del first
    assert not world.reads._being_read
    assert isinstance(world.render(source), Rendering)
    assert source.begun == 2


def test_after_a_write_it_is_rendered_again(world: World) -> None:
    source = Text(b"x" * 100_000)
    rendering = world.render(source)
    world.write()
    assert world.render(source) is not rendering
    assert source.begun == 2


# In slices.


def test_other_calls_run_while_a_body_is_rendered(world: World) -> None:
    reader = Reader(world, many())
    turns = 0
    while reader.result is None:
        world.turn()
        turns += 1
    assert reader.text == many().text
    assert turns > 5


@pytest.mark.parametrize(("source", "in_file"), [(many(), False), (long_text(), True)])
def test_a_long_one_is_in_a_file_and_counted_where_it_is(
    world: World, source: Text, in_file: bool
) -> None:
    reader = Reader(world, source)
    world.finish()
    assert reader.result.is_in_file is in_file
    assert reader.text == source.text
    here, there = (world.reads.memory, world.reads.files)[:: -1 if in_file else 1]
    assert (here.total, there.total) == (len(source.text), 0)
    assert reader.reader is not None
    reader.reader.close()
    assert here.total == 0
    assert reader.result.is_closed is in_file


def test_a_limited_number_is_rendered_at_a_time_and_others_wait_for_their_turn(
    world: World,
) -> None:
    readers = [Reader(world, many()) for _ in range(MAX_CONCURRENT_RENDERS)]
    patient = Reader(world, many())
    world.take_turns_until(lambda: all(each.begun for each in readers))
    assert not patient.begun
    world.finish()
    for each in (*readers, patient):
        assert each.text == many().text


def test_one_who_waits_too_long_gets_an_error(world: World) -> None:
    results: list[Any] = []
    waiter = Waiter(many(), lambda _: None, 0, lambda _: None)
    waiting = world.reads.render_large(world.database.hold, waiter, ADDRESS)
    before_deadline(waiting, world.clock.seconds() + 0.002, world.clock)
    waiting.addErrback(lambda failure: results.append(failure.value))
    world.clock.advance(1)
    assert isinstance(results[0], DeadlinePassed)
    world.finish()


def test_a_rendered_body_no_longer_occupies_a_turn(world: World) -> None:
    for _ in range(3 * MAX_CONCURRENT_RENDERS):
        reader = Reader(world, many())
        world.finish()
        assert reader.text == many().text
        assert reader.reader is not None
        reader.reader.close()


# Together.


def test_all_who_wait_for_the_same_share_one_rendering(world: World) -> None:
    source = long_text()
    readers = [Reader(world, source) for _ in range(100)]
    world.finish()
    assert source.begun == 1
    assert len({id(each.result) for each in readers}) == 1
    assert all(each.begun == [0] and each.judged == [] for each in readers)
    assert world.reads.files.total == len(source.text)


def test_one_who_comes_while_it_is_under_way_joins(world: World) -> None:
    source = many()
    first = Reader(world, source)
    world.take_turns_until(lambda: source.rendered > 10)
    assert isinstance(world.render(source), TooMuchWork)
    assert source.begun == 1
    second = Reader(world, source)
    world.finish()
    assert first.result is second.result
    assert second.begun == [0]
    assert source.begun == 1


def test_one_who_has_seen_a_later_state_does_not_join(world: World) -> None:
    source = many()
    first = Reader(world, source)
    world.take_turns_until(lambda: source.rendered > 10)
    world.write()
    second, third = Reader(world, source), Reader(world, source)
    world.finish()
    assert (first.begun, second.begun, third.begun) == ([0], [1], [1])
    assert first.result is not second.result
    assert second.result is third.result
    assert source.begun == 2


def test_the_rules_are_evaluated_again_for_those_who_have_seen_an_earlier_state(
    world: World,
) -> None:
    others = [Reader(world, many()) for _ in range(MAX_CONCURRENT_RENDERS)]
    source = many()
    early, denied = Reader(world, source), Reader(world, source)
    denied.is_allowed = False
    world.write()
    late = Reader(world, source)
    world.finish()
    assert all(each.text for each in others)
    assert isinstance(denied.result, PermissionDenied)
    assert (early.judged, denied.judged, late.judged) == ([1], [1], [])
    assert early.text == late.text == source.text
    assert source.begun == 1


def test_if_all_are_denied_nothing_is_rendered(world: World) -> None:
    others = [Reader(world, many()) for _ in range(MAX_CONCURRENT_RENDERS)]
    source = many()
    denied = Reader(world, source)
    denied.is_allowed = False
    world.write()
    world.finish()
    assert isinstance(denied.result, PermissionDenied)
    assert source.rendered <= 1
    assert all(each.text for each in others)


def test_one_who_leaves_does_not_stop_the_others(world: World) -> None:
    source = many()
    gone, waiting = Reader(world, source), Reader(world, source)
    world.take_turns_until(lambda: source.rendered > 10)
    gone.waiting.cancel()
    world.finish()
    assert isinstance(gone.result, CancelledError)
    assert waiting.text == source.text


@pytest.mark.parametrize("rendered", [0, 10])
def test_the_last_one_who_leaves_stops_the_work(world: World, rendered: int) -> None:
    source = long_text()
    readers = [Reader(world, source) for _ in range(2)]
    world.take_turns_until(lambda: source.rendered >= rendered)
    for each in readers:
        each.waiting.cancel()
    assert not world.clock.getDelayedCalls()
    assert not world.reads._under_way
    assert world.reads.files.total == 0
    assert source.rendered < 50


def test_many_who_wait_receive_it_in_slices(world: World) -> None:
    source = many()
    readers = [Reader(world, source) for _ in range(100)]
    turns = 0
    while any(each.result is None for each in readers):
        before = sum(each.result is not None for each in readers)
        world.turn()
        assert sum(each.result is not None for each in readers) - before < 20
        turns += 1
    assert turns > 5
    assert all(each.text == source.text for each in readers)


# Bounds and errors.


def test_a_full_disk_for_temporary_files_is_reported_as_full(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    class FullFile(io.BytesIO):
        def write(self, _: Any) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", FullFile)
    readers = [Reader(world, long_text()) for _ in range(2 * MAX_CONCURRENT_RENDERS)]
    world.finish()
    assert all(isinstance(each.result, DiskFull) for each in readers)
    assert world.reads.files.total == 0


def test_the_files_of_all_clients_together_are_bounded_while_they_grow() -> None:
    world = World(Limits(waiting_file_bytes=FILE_BYTES + 100))
    alone = Reader(world, long_text())
    world.finish()
    source = long_text()
    refused = Reader(world, source, address="192.0.2.2")
    world.finish()
    assert isinstance(refused.result, WaitingBytesExhausted)
    assert source.rendered < 50
    assert world.reads.files.total == FILE_BYTES // 50 * 50
    assert alone.reader is not None
    alone.reader.close()
    again = Reader(world, source, address="192.0.2.2")
    world.finish()
    assert again.text == source.text


def test_a_file_that_is_alone_may_be_larger_than_the_bound() -> None:
    world = World(Limits(waiting_file_bytes=1000))
    reader = Reader(world, long_text())
    world.finish()
    assert reader.text == long_text().text


def test_one_address_may_have_no_more_than_its_share_in_files() -> None:
    world = World(Limits(waiting_file_bytes=SHARES * FILE_BYTES))
    first, second = Reader(world, long_text()), Reader(world, long_text())
    world.finish()
    assert first.text
    assert isinstance(second.result, TooManyWaitingBytes)
    other = Reader(world, long_text(), address="192.0.2.2")
    world.finish()
    assert other.text
    assert world.reads.files.total == 2 * (FILE_BYTES // 50 * 50)


def test_what_takes_long_and_is_short_is_bounded_as_memory() -> None:
    world = World(Limits(waiting_bytes=70_000))
    first, second = Reader(world, many()), Reader(world, many(), address="192.0.2.2")
    world.finish()
    assert first.text
    assert isinstance(second.result, WaitingBytesExhausted)
    assert world.reads.memory.total == 50_000
