"""Rounds: the state stands still in them, they do not overlap, and writers get their turn."""

from __future__ import annotations

import itertools

import attrs

from tests.database.world import Disk, TurnClock, logged_failures, make_database
from treedbd.database.group_commit import Rounds
from treedbd.database.requests import Caller, Write
from treedbd.database.runtime import Runtime
from treedbd.database.slices import FIRST_SECONDS, SLICE_SECONDS, Slices, Steps
from treedbd.database.watchers import Notification
from treedbd.store.memory import MemoryEngine
from treedbd.tree.edit import make_put
from treedbd.tree.types import Json, Place


@attrs.define
class LoggedRounds:
    """Rounds that log what they run, and when a batch may begin."""

    clock: TurnClock = attrs.field(factory=lambda: TurnClock(FIRST_SECONDS / 2))
    log: list[str] = attrs.field(factory=list)
    is_writer_waiting: bool = False
    rounds: Rounds = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.rounds = Rounds(Slices(self.clock), lambda: self.is_writer_waiting, self.done)

    def done(self) -> None:
        assert not self.rounds.is_busy
        self.log.append("done")

    def steps(self, name: str, count: int = 1) -> Steps:
        for _ in range(count):
            self.log.append(name)
            yield


def test_a_short_round_is_over_in_the_turn_in_which_it_begins() -> None:
    world = LoggedRounds()
    world.rounds.add(world.steps("notify"))
    world.rounds.start()
    assert world.log == ["notify", "done"]
    assert world.clock.getDelayedCalls() == []


def test_no_batch_may_begin_before_a_long_round_is_over() -> None:
    world = LoggedRounds()
    world.rounds.add(world.steps("notify", 40))
    world.rounds.start()
    turns = 0
    while world.rounds.is_busy:
        assert "done" not in world.log
        world.clock.take_turn()
        turns += 1
    assert turns > 2
    assert world.log == ["notify"] * 40 + ["done"]


def test_what_is_added_in_a_round_belongs_to_it() -> None:
    world = LoggedRounds()

    def add() -> Steps:
        world.rounds.add(world.steps("move", 3))
        yield

    world.is_writer_waiting = True
    world.rounds.add(add())
    world.rounds.start()
    world.clock.run()
    assert world.log == ["move"] * 3 + ["done"]


def test_a_round_ends_with_what_was_added_last_until_that_begins() -> None:
    world = LoggedRounds()
    found = []

    def first() -> Steps:
        found.append(world.rounds.ends_with(steps))
        yield

    steps = first()
    assert not world.rounds.ends_with(steps)
    world.rounds.add(steps)
    assert world.rounds.ends_with(steps)
    last = world.steps("last")
    world.rounds.add(last)
    assert not world.rounds.ends_with(steps)
    assert world.rounds.ends_with(last)
    world.rounds.start()
    world.clock.run()
    assert (found, world.log) == ([False], ["last", "done"])


def test_other_work_runs_at_once_if_nothing_is_under_way() -> None:
    world = LoggedRounds()
    world.rounds.run_later(world.steps("other"))
    assert world.log == ["other", "done"]


def test_other_work_waits_while_a_batch_is_committed_and_for_its_round() -> None:
    world = LoggedRounds()
    world.rounds.is_held = True
    world.rounds.run_later(world.steps("other", 3))
    world.rounds.start()
    assert world.log == []
    assert not world.rounds.is_busy
    world.rounds.add(world.steps("notify", 3))
    world.rounds.is_held = False
    world.rounds.start()
    world.clock.run()
    assert world.log == ["notify"] * 3 + ["other"] * 3 + ["done"]


def test_waiting_writes_and_other_work_take_turns() -> None:
    world = LoggedRounds(is_writer_waiting=True)
    for name in ("first", "second"):
        world.rounds.run_later(world.steps(name))
    assert world.log == []
    for number in range(2):
        world.rounds.add(world.steps(f"round {number}"))
        world.rounds.start()
        world.clock.run()
    assert world.log == ["round 0", "first", "done", "round 1", "second", "done"]


def test_a_round_to_which_other_work_adds_is_not_over() -> None:
    world = LoggedRounds()

    def other() -> Steps:
        world.is_writer_waiting = True
        world.rounds.add(world.steps("notify"))
        yield

    world.rounds.run_later(other())
    world.clock.run()
    assert world.log == ["notify", "done"]


def test_a_failure_ends_neither_the_round_nor_the_rounds() -> None:
    def fail() -> Steps:
        raise OSError("a watcher of a test")
        yield

    world = LoggedRounds()
    with logged_failures() as failures:
        world.rounds.add(fail())
        world.rounds.add(world.steps("notify"))
        world.rounds.start()
        world.clock.run()
    assert failures == [OSError]
    assert world.log == ["notify", "done"]


class Listener:
    """A watcher that keeps what it receives."""

    def __init__(self) -> None:
        self.received: list[Json] = []

    def notify(self, notification: Notification) -> None:
        self.received += [event.data for _, event in notification.events]


class Database:
    """A database with listeners, whose disk works when the test says so."""

    def __init__(self, listeners: int) -> None:
        self.clock, self.disk = TurnClock(), Disk()
        self.runtime = Runtime(self.clock, bytes, self.disk.run)
        self.database = make_database(MemoryEngine(), self.runtime)
        self.listeners = [Listener() for _ in range(listeners)]
        for listener in self.listeners:
            self.database.watching.watch(("a",), listener, lambda _: None)
        self.answered: list[Json] = []

    def write(self, value: Json) -> None:
        write = Write(make_put(Place(("a",)), value), 0, Caller(None, is_admin=True))
        done = self.database.write(write)
        done.addCallback(lambda _: self.answered.append(value))

    def count(self, value: Json) -> int:
        """Return how many listeners have received a value."""
        return sum(value in listener.received for listener in self.listeners)


def test_few_listeners_are_notified_in_the_turn_of_the_commit() -> None:
    world = Database(100)
    world.write(1)
    world.clock.run_until(lambda: world.disk.waiting)
    world.disk.finish()
    assert world.count(1) == 100


def test_many_listeners_are_notified_in_slices_after_the_writer_was_answered() -> None:
    world = Database(100)
    world.clock.lag = SLICE_SECONDS / 4
    world.write(1)
    world.clock.run_until(lambda: world.disk.waiting)
    world.disk.finish()
    assert world.answered == [1]
    counts = [world.count(1)]
    while world.clock.take_turn():
        counts.append(world.count(1))
    assert counts[-1] == 100
    assert max(later - former for former, later in itertools.pairwise([0, *counts])) <= 4


def test_others_are_answered_between_the_slices_of_a_round_of_5000_listeners() -> None:
    world, lag = Database(5000), SLICE_SECONDS / 200
    others = make_database(MemoryEngine(), world.runtime)
    answered: list[int] = []
    write = Write(make_put(Place(()), 1), 0, Caller(None, is_admin=True))
    world.clock.lag = lag
    world.write(1)
    world.clock.run_until(lambda: world.disk.waiting)
    world.disk.finish()
    counts = [world.count(1)]
    while counts[-1] < 5000:
        others.write(write).addCallback(lambda _: answered.append(counts[-1]))
        world.clock.take_turn()
        counts.append(world.count(1))
        if world.disk.waiting:
            world.disk.finish()  # the write of the other database
    sizes = [later - former for former, later in itertools.pairwise([0, *counts])]
    assert sizes[0] <= FIRST_SECONDS / lag
    assert max(sizes) <= (FIRST_SECONDS + SLICE_SECONDS) / lag
    assert len(set(answered) - {0, 5000}) > 20


def test_the_next_batch_begins_after_the_round_and_is_notified_after_it() -> None:
    world = Database(100)
    world.clock.lag = SLICE_SECONDS / 4
    world.write(1)
    world.clock.run_until(lambda: world.disk.waiting)
    world.disk.finish()
    for value in (2, 3):
        world.write(value)
    while world.count(1) < 100:
        assert not world.disk.waiting
        world.clock.take_turn()
    while world.clock.take_turn() or world.disk.waiting:
        if world.disk.waiting:
            world.disk.finish()
    assert [listener.received for listener in world.listeners] == [[1, 2, 3]] * 100


def test_a_round_does_not_wait_for_writes_that_wait() -> None:
    world = Database(1)
    world.write(1)
    world.clock.take_turn()
    world.write(2)
    world.disk.finish()
    assert world.count(1) == 1
    assert world.count(2) == 0


def test_a_database_closes_after_the_round_under_way() -> None:
    world = Database(100)
    world.clock.lag = SLICE_SECONDS / 4
    world.write(1)
    world.clock.run_until(lambda: world.disk.waiting)
    world.disk.finish()
    closed = world.database.close()
    while world.count(1) < 100:
        assert not closed.called
        world.clock.take_turn()
    world.clock.run()
    assert closed.called
    assert world.clock.getDelayedCalls() == []
