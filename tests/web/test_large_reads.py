"""Shared reads: one rendering for all who want the same, slices of work, turns, and bounds.

What is read holds its moment in some tests from the first turn on, as an engine can.
"""

from __future__ import annotations

import errno
import io
import tempfile
from collections.abc import Callable, Hashable, Iterator
from typing import Any, TypeVar

import pytest
from twisted.internet.defer import CancelledError, Deferred

from tests.database.world import TurnClock, World
from treedbd.database.requests import DeadlinePassed, PermissionDenied
from treedbd.database.slices import SLICE_SECONDS, Slices
from treedbd.database.watched_queries import QuerySubscription
from treedbd.database.watchers import Notification
from treedbd.http1.content import SHARES, ContentReader, TooManyWaitingBytes, WaitingBytesExhausted
from treedbd.limits import Limits
from treedbd.store.engine import DiskFull, StoreFailed
from treedbd.store.memory import MemoryEngine
from treedbd.store.nodes import HeldNodes, Nodes, PresentNodes
from treedbd.tree.edit import make_put
from treedbd.tree.event import Event
from treedbd.tree.query import BY_VALUE, Query
from treedbd.tree.types import Path, Place
from treedbd.web.reading import (
    IN_MEMORY_BYTES,
    MAX_CONCURRENT_RENDERS,
    MAX_TURN_BYTES,
    BegunRendering,
    FirstValue,
    LargeRead,
    Rendering,
    SharedReads,
    TooMuchWork,
    Waiter,
    before_deadline,
    first_source,
)

T = TypeVar("T")

LAG_S = 0.001
ADDRESS = "192.0.2.1"
PIECE = b"x" * 1000
FILE_BYTES = 2 * IN_MEMORY_BYTES
LIMITS = Limits(waiting_bytes=1_000_000, waiting_file_bytes=2 * SHARES * FILE_BYTES)


class Text:
    """A source that renders the same pieces from every state, and counts its work."""

    def __init__(self, *pieces: bytes, fails: bool = False) -> None:
        self.key: Hashable = self
        self.can_share = True
        self.begun = 0
        self.rendered = 0
        self._pieces = pieces
        self._fails = fails

    def shares(self, other: object) -> bool:
        return self.can_share or other is self

    def chunks(self, _: Nodes) -> Iterator[bytes]:
        self.begun += 1
        for piece in self._pieces:
            self.rendered += 1
            yield piece
        if self._fails:
            raise StoreFailed("The disk failed.")

    @property
    def text(self) -> bytes:
        return b"".join(self._pieces)


def many() -> Text:
    return Text(*[PIECE] * 50)


def long_text() -> Text:
    return Text(*[b"y" * (FILE_BYTES // 50)] * 50)


class Reader:
    """One who waits for a large read, opens it, and records what happens."""

    def __init__(self, world: ReadWorld, source: Text, *, address: str = ADDRESS) -> None:
        self.judged: list[int] = []
        self.begun: list[int] = []
        self.is_allowed = True
        self.result: Any = None
        self.reader: ContentReader | None = None
        self._address = address
        waiter = Waiter(source, self._judge, world.sequence, self.begun.append)
        self.waiting: Deferred[Any] = world.reads.render_large(world.hold, waiter, address)
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


class Moment(HeldNodes):
    """A moment that counts how often it is closed."""

    closed = 0

    def close(self) -> None:
        self.closed += 1
        super().close()


class Present(PresentNodes):
    """The present state of a world, which can be held."""

    def __init__(self, world: ReadWorld) -> None:
        snapshot = world.engine.snapshot()
        self.moment = Moment(snapshot)
        super().__init__(snapshot)
        self._world = world

    def hold(self) -> HeldNodes | None:
        if not self._world.can_hold:
            return None
        self._world.moments.append(self.moment)
        return self.moment


class ReadWorld(World):
    """A database whose large reads are shared.

    Attributes:
        can_hold: whether a present read can be held.
        moments: all that were held.

    """

    engine: MemoryEngine

    def __init__(self, limits: Limits = LIMITS) -> None:
        super().__init__(clock=TurnClock(LAG_S), retain_events=10)
        self.reads = SharedReads(limits, self.clock)
        self.can_hold = True
        self.moments: list[Moment] = []

    @property
    def sequence(self) -> int:
        return self.database.read(lambda nodes: nodes.rows.sequence())

    def render(self, source: Text) -> bytes | Rendering | TooMuchWork:
        return self.database.read(lambda nodes: self.reads.render(source, nodes))

    def present(self, work: Callable[[Nodes], T]) -> T:
        """Return what `work` makes of the present state."""
        present = Present(self)
        try:
            return work(present)
        finally:
            if present.moment not in self.moments:
                present.moment.close()

    def render_present(self, source: Text) -> bytes | Rendering | TooMuchWork:
        return self.present(lambda nodes: self.reads.render(source, nodes))

    def hold(self) -> HeldNodes:
        moment = Moment(self.engine.snapshot())
        self.moments.append(moment)
        return moment

    def put(self, path: Path, value: Any) -> None:
        """Do a write, and not what else is due."""
        written = self.begin(make_put(Place(path), value, 100))
        self.clock.run_until(lambda: written.called)

    def count(self) -> None:
        """Write the sequence number."""
        self.put(("n",), self.sequence)

    def finish(self) -> None:
        self.clock.run_until(lambda: not self.reads._under_way)


def expect_large(world: ReadWorld, source: Text, *, address: str = ADDRESS) -> Reader:
    """Read what must be too much for one turn, as a handler does."""
    assert world.render_present(source) == TooMuchWork(world.sequence)
    return Reader(world, source, address=address)


def check_idle(world: ReadWorld) -> None:
    """Check that nothing is under way or counted, and no slot is taken."""
    assert not world.reads._under_way
    world.clock.take_turn()  # the slices find out that there is nothing left to do
    assert not world.clock.getDelayedCalls()
    assert world.reads._slots.tokens == MAX_CONCURRENT_RENDERS


@pytest.fixture
def world() -> ReadWorld:
    return ReadWorld()


# In one turn.


def test_little_work_is_rendered_at_once_and_much_work_is_not(world: ReadWorld) -> None:
    assert world.render(Text(b"a", b"", b"b")) == b"ab"
    readings = int(SLICE_SECONDS / LAG_S)
    assert world.render(Text(*[b""] * 3 * readings)) == TooMuchWork(0)
    assert world.render(Text(b"x" * (MAX_TURN_BYTES + 1), b"y")) == TooMuchWork(0)


def test_what_is_being_read_is_not_rendered_again(world: ReadWorld) -> None:
    source = Text(b"x" * 100_000)
    rendering = world.render(source)
    assert isinstance(rendering, Rendering)
    reader = rendering.open(ADDRESS)
    assert world.render(source) is rendering
    assert source.begun == 1
    reader.close()


def test_what_nobody_reads_any_more_is_rendered_again_and_forgotten(world: ReadWorld) -> None:
    source = Text(b"x" * 100_000)
    first = world.render(source)
    assert isinstance(first, Rendering)
    first.open(ADDRESS).close()
    del first
    assert not world.reads._being_read
    assert isinstance(world.render(source), Rendering)
    assert source.begun == 2


def test_after_a_write_it_is_rendered_again(world: ReadWorld) -> None:
    source = Text(b"x" * 100_000)
    rendering = world.render(source)
    world.count()
    assert world.render(source) is not rendering
    assert source.begun == 2


# In slices.


def test_other_calls_run_while_a_body_is_rendered(world: ReadWorld) -> None:
    reader = Reader(world, many())
    turns = 0
    while reader.result is None:
        world.clock.take_turn()
        turns += 1
    assert reader.text == many().text
    assert turns > 5


@pytest.mark.parametrize(("source", "in_file"), [(many(), False), (long_text(), True)])
def test_a_long_one_is_in_a_file_and_counted_where_it_is(
    world: ReadWorld, source: Text, in_file: bool
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
    world: ReadWorld,
) -> None:
    readers = [Reader(world, many()) for _ in range(MAX_CONCURRENT_RENDERS)]
    patient = Reader(world, many())
    world.clock.run_until(lambda: all(each.begun for each in readers))
    assert not patient.begun
    world.finish()
    for each in (*readers, patient):
        assert each.text == many().text


def test_one_who_waits_too_long_gets_an_error(world: ReadWorld) -> None:
    results: list[Any] = []
    waiter = Waiter(many(), lambda _: None, 0, lambda _: None)
    waiting = world.reads.render_large(world.database.hold, waiter, ADDRESS)
    before_deadline(waiting, world.clock.seconds() + 0.002, world.clock)
    waiting.addErrback(lambda failure: results.append(failure.value))
    world.clock.advance(1)
    assert isinstance(results[0], DeadlinePassed)
    world.finish()


def test_a_rendered_body_no_longer_occupies_a_turn(world: ReadWorld) -> None:
    for _ in range(3 * MAX_CONCURRENT_RENDERS):
        reader = Reader(world, many())
        world.finish()
        assert reader.text == many().text
        assert reader.reader is not None
        reader.reader.close()


# Together.


def test_all_who_wait_for_the_same_share_one_rendering(world: ReadWorld) -> None:
    source = long_text()
    readers = [Reader(world, source) for _ in range(100)]
    world.finish()
    assert source.begun == 1
    assert len({id(each.result) for each in readers}) == 1
    assert all(each.begun == [0] and each.judged == [] for each in readers)
    assert world.reads.files.total == len(source.text)


def test_one_who_comes_while_it_is_under_way_joins(world: ReadWorld) -> None:
    source = many()
    first = Reader(world, source)
    world.clock.run_until(lambda: source.rendered > 10)
    assert isinstance(world.render(source), TooMuchWork)
    assert source.begun == 1
    second = Reader(world, source)
    world.finish()
    assert first.result is second.result
    assert second.begun == [0]
    assert source.begun == 1


def test_one_who_has_seen_a_later_state_does_not_join(world: ReadWorld) -> None:
    source = many()
    first = Reader(world, source)
    world.clock.run_until(lambda: source.rendered > 10)
    world.count()
    second, third = Reader(world, source), Reader(world, source)
    world.finish()
    assert (first.begun, second.begun, third.begun) == ([0], [1], [1])
    assert first.result is not second.result
    assert second.result is third.result
    assert source.begun == 2


def test_the_rules_are_evaluated_again_for_those_who_have_seen_an_earlier_state(
    world: ReadWorld,
) -> None:
    others = [Reader(world, many()) for _ in range(MAX_CONCURRENT_RENDERS)]
    source = many()
    early, denied = Reader(world, source), Reader(world, source)
    denied.is_allowed = False
    world.count()
    late = Reader(world, source)
    world.finish()
    assert all(each.text for each in others)
    assert isinstance(denied.result, PermissionDenied)
    assert (early.judged, denied.judged, late.judged) == ([1], [1], [])
    assert early.text == late.text == source.text
    assert source.begun == 1


def test_if_all_are_denied_nothing_is_rendered(world: ReadWorld) -> None:
    others = [Reader(world, many()) for _ in range(MAX_CONCURRENT_RENDERS)]
    source = many()
    denied = Reader(world, source)
    denied.is_allowed = False
    world.count()
    world.finish()
    assert isinstance(denied.result, PermissionDenied)
    assert source.rendered <= 1
    assert all(each.text for each in others)


def test_one_who_leaves_does_not_stop_the_others(world: ReadWorld) -> None:
    source = many()
    gone, waiting = Reader(world, source), Reader(world, source)
    world.clock.run_until(lambda: source.rendered > 10)
    gone.waiting.cancel()
    world.finish()
    assert isinstance(gone.result, CancelledError)
    assert waiting.text == source.text


@pytest.mark.parametrize("rendered", [0, 10])
def test_the_last_one_who_leaves_stops_the_work(world: ReadWorld, rendered: int) -> None:
    source = long_text()
    readers = [Reader(world, source) for _ in range(2)]
    world.clock.run_until(lambda: source.rendered >= rendered)
    for each in readers:
        each.waiting.cancel()
    assert not world.reads._under_way
    assert world.reads.files.total == 0
    world.clock.take_turn()
    assert not world.clock.getDelayedCalls()
    assert source.rendered < 50


def test_many_who_wait_receive_it_in_slices(world: ReadWorld) -> None:
    source = many()
    readers = [Reader(world, source) for _ in range(100)]
    turns = 0
    while any(each.result is None for each in readers):
        before = sum(each.result is not None for each in readers)
        world.clock.take_turn()
        assert sum(each.result is not None for each in readers) - before < 20
        turns += 1
    assert turns > 5
    assert all(each.text == source.text for each in readers)


# What has begun.


def test_what_was_made_in_the_first_turn_is_not_made_again(world: ReadWorld) -> None:
    for source in (many(), long_text()):
        reader = expect_large(world, source)
        first_turn = source.rendered
        assert 0 < first_turn <= SLICE_SECONDS / LAG_S + 2
        world.finish()
        assert (source.begun, source.rendered) == (1, 50)
        assert reader.text == source.text
        assert (reader.begun, reader.judged) == ([0], [])
    assert [moment.closed for moment in world.moments] == [1, 1]


def test_little_work_is_not_held(world: ReadWorld) -> None:
    assert world.render_present(Text(b"a", b"b")) == b"ab"
    assert world.moments == []


def test_all_who_ask_for_what_has_begun_share_it(world: ReadWorld) -> None:
    source = long_text()
    readers = [expect_large(world, source) for _ in range(3)]
    world.clock.run_until(lambda: source.rendered > 20)
    readers.append(expect_large(world, source))
    world.finish()
    assert (source.begun, source.rendered) == (1, 50)
    assert len({id(each.result) for each in readers}) == 1
    assert all((each.begun, each.judged) == ([0], []) for each in readers)
    assert [moment.closed for moment in world.moments] == [1]
    assert world.reads.files.total == len(source.text)


def test_what_has_begun_shows_its_moment_only_to_those_who_have_seen_it(world: ReadWorld) -> None:
    source = many()
    first = expect_large(world, source)
    world.count()
    second = expect_large(world, source)
    world.finish()
    assert (first.begun, second.begun) == ([0], [1])
    assert first.result is not second.result
    assert source.begun == 2
    assert [moment.closed for moment in world.moments] == [1, 1]


def test_what_has_begun_is_shared_only_by_a_source_that_can_show_it(world: ReadWorld) -> None:
    source, other = many(), many()
    other.key, other.can_share = source.key, False
    first = expect_large(world, source)
    second = expect_large(world, other)
    world.finish()
    assert (source.begun, other.begun) == (1, 1)
    assert first.text == second.text
    assert first.result is not second.result


def test_what_nobody_joins_ends_in_the_next_turn(world: ReadWorld) -> None:
    source = many()
    assert world.render_present(source) == TooMuchWork(0)
    rendered = source.rendered
    assert [moment.closed for moment in world.moments] == [0]
    world.clock.take_turn()
    assert [moment.closed for moment in world.moments] == [1]
    assert source.rendered == rendered
    check_idle(world)


def test_what_has_begun_cannot_be_joined_after_its_first_caller_has_left(world: ReadWorld) -> None:
    source, held = many(), world.hold()
    begun = BegunRendering(source, held, source.chunks(held))
    read = LargeRead(world.hold, Slices(world.clock), world.clock, begun)
    assert read.can_join(source, 0)
    waiting = read.join(Waiter(source, lambda _: None, 0, lambda _: None))
    waiting.addErrback(lambda failure: failure.trap(CancelledError))
    waiting.cancel()
    assert not read.can_join(source, 0)


def test_one_who_is_refused_leaves_what_has_begun_to_others() -> None:
    world = ReadWorld(Limits(waiting_file_bytes=SHARES * FILE_BYTES))
    world.reads.files.add_for(ADDRESS, FILE_BYTES)
    source = long_text()
    refused = expect_large(world, source)
    other = expect_large(world, source, address="192.0.2.2")
    world.finish()
    assert isinstance(refused.result, TooManyWaitingBytes)
    assert other.text == source.text
    assert source.begun == 1
    check_idle(world)


@pytest.mark.parametrize("rendered", [0, 20])
def test_the_last_one_who_leaves_ends_what_has_begun(world: ReadWorld, rendered: int) -> None:
    source = long_text()
    readers = [expect_large(world, source) for _ in range(2)]
    world.clock.run_until(lambda: source.rendered >= rendered)
    for each in readers:
        assert [moment.closed for moment in world.moments] == [0]
        each.waiting.cancel()
    assert [moment.closed for moment in world.moments] == [1]
    assert source.rendered < 50
    check_idle(world)


def test_a_failure_ends_what_has_begun(world: ReadWorld) -> None:
    source = Text(*[PIECE] * 50, fails=True)
    readers = [expect_large(world, source) for _ in range(2)]
    world.finish()
    assert all(isinstance(each.result, StoreFailed) for each in readers)
    assert [moment.closed for moment in world.moments] == [1]
    check_idle(world)


def test_many_who_wait_for_what_fails_are_refused_in_slices(world: ReadWorld) -> None:
    source = Text(*[PIECE] * 50, fails=True)
    readers = [expect_large(world, source) for _ in range(40)]
    refused = 0
    while refused < 40:
        world.clock.take_turn()
        before, refused = refused, sum(each.result is not None for each in readers)
        assert refused - before <= SLICE_SECONDS / LAG_S * 2
    assert all(isinstance(each.result, StoreFailed) for each in readers)
    world.finish()
    check_idle(world)


def test_of_those_who_wait_for_what_fails_some_may_leave_meanwhile(world: ReadWorld) -> None:
    source = Text(*[PIECE] * 50, fails=True)
    readers = [expect_large(world, source) for _ in range(40)]
    world.clock.run_until(lambda: readers[0].result is not None)
    for each in readers:
        each.waiting.cancel()
    world.finish()
    assert isinstance(readers[-1].result, CancelledError)
    check_idle(world)


def test_without_a_free_slot_it_begins_again_and_nothing_is_held_meanwhile(
    world: ReadWorld,
) -> None:
    others = [expect_large(world, many()) for _ in range(MAX_CONCURRENT_RENDERS)]
    source = many()
    patient = expect_large(world, source)
    assert len(world.moments) == MAX_CONCURRENT_RENDERS
    assert patient.begun == []
    world.finish()
    assert source.begun == 2
    assert all(each.text == source.text for each in (*others, patient))
    assert [moment.closed for moment in world.moments] == [1] * (MAX_CONCURRENT_RENDERS + 1)
    check_idle(world)


def test_what_cannot_be_held_begins_again(world: ReadWorld) -> None:
    world.can_hold = False
    source = many()
    reader = expect_large(world, source)
    assert world.moments == []
    world.finish()
    assert reader.text == source.text
    assert source.begun == 2
    assert [moment.closed for moment in world.moments] == [1]


def test_without_room_for_a_file_nothing_is_held() -> None:
    world = ReadWorld(Limits(waiting_file_bytes=FILE_BYTES))
    world.reads.files.add(FILE_BYTES)
    refused = expect_large(world, many())
    assert isinstance(refused.result, WaitingBytesExhausted)
    assert world.reads.files.refused == 1
    assert world.moments == []


class Follower:
    """A stream of a query, which records its first value and the events that follow."""

    def __init__(self, world: ReadWorld, path: Path, query: Query) -> None:
        self.received: list[bytes] = []
        self.events: list[Event] = []
        subscription = world.database.subscribe(path, query, self)
        assert isinstance(subscription, QuerySubscription)
        self.subscription = subscription
        source = first_source(world.database, path, query, subscription)
        first = FirstValue(source, lambda _: None, world.reads, ADDRESS)
        rendered, state = subscription.watch(lambda _: world.present(first.render))
        assert rendered == TooMuchWork(state)
        first.render_large(world.hold, state, subscription).addCallback(self._receive)

    def _receive(self, rendering: Rendering) -> None:
        self.received.append(rendering.whole())

    def notify(self, notification: Notification) -> None:
        self.events += [event for _, event in notification.events]

    def revoke(self) -> None:
        raise AssertionError("The stream has been revoked.")

    def fail(self) -> None:
        raise AssertionError("The stream has failed.")


@pytest.mark.parametrize("can_hold", [True, False])
def test_the_first_value_of_a_stream_goes_on_and_fills_its_window(can_hold: bool) -> None:
    world = ReadWorld()
    world.can_hold = can_hold
    path, query = ("a",), Query(BY_VALUE, limit_to_last=2)
    world.put(path, {f"k{number:03}": number for number in range(300)})
    streams = [Follower(world, path, query) for _ in range(2)]
    world.finish()
    assert [each.received for each in streams] == [[b'{"k298":298,"k299":299}']] * 2
    assert [moment.closed for moment in world.moments] == [1]
    world.put((*path, "k300"), 300)
    world.clock.run_until(lambda: all(len(each.events) == 1 for each in streams))
    for each in streams:
        assert each.events[-1] == Event("patch", (), {"k298": None, "k300": 300})


def test_a_stream_whose_value_begins_again_is_notified_of_nothing_before_it(
    world: ReadWorld,
) -> None:
    path = ("a",)
    world.put(path, {f"k{number:03}": number for number in range(300)})
    world.can_hold = False
    stream = Follower(world, path, Query(BY_VALUE, limit_to_last=1))
    assert stream.subscription.window is not None
    assert not stream.subscription.window.audience.watchers
    world.finish()
    assert list[object](stream.subscription.window.audience.watchers) == [stream]


# Bounds and errors.


def test_a_full_disk_for_temporary_files_is_reported_as_full(
    world: ReadWorld, monkeypatch: pytest.MonkeyPatch
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
    world = ReadWorld(Limits(waiting_file_bytes=FILE_BYTES + 100))
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
    world = ReadWorld(Limits(waiting_file_bytes=1000))
    reader = Reader(world, long_text())
    world.finish()
    assert reader.text == long_text().text


def test_one_address_may_have_no_more_than_its_share_in_files() -> None:
    world = ReadWorld(Limits(waiting_file_bytes=SHARES * FILE_BYTES))
    both = [Reader(world, long_text()) for _ in range(2)]
    world.finish()
    assert sorted(type(each.result) is TooManyWaitingBytes for each in both) == [False, True]
    other = Reader(world, long_text(), address="192.0.2.2")
    world.finish()
    assert other.text
    assert world.reads.files.total == 2 * (FILE_BYTES // 50 * 50)


def test_what_takes_long_and_is_short_is_bounded_as_memory() -> None:
    world = ReadWorld(Limits(waiting_bytes=70_000))
    both = [Reader(world, many(), address=address) for address in (ADDRESS, "192.0.2.2")]
    world.finish()
    assert sorted(type(each.result) is WaitingBytesExhausted for each in both) == [False, True]
    assert world.reads.memory.total == 50_000
