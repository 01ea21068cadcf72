"""Group commit: an answered write is durable, a failed one was not applied and stops no other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import attrs
import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import ILogObserver, LogEvent, capturedLogs, formatEvent, globalLogPublisher
from twisted.python.failure import Failure
from zope.interface import implementer

from tests.database.world import ADMIN, Disk, TurnClock, World
from treedbd.database import apply as etags
from treedbd.database import group_commit as write_queue
from treedbd.database.group_commit import (
    BATCH_SECONDS,
    LOOK_SECONDS,
    SPACE_CHECK_S,
    GroupCommit,
    QueuedWrite,
    State,
)
from treedbd.database.requests import (
    Condition,
    ConditionFailed,
    DeadlinePassed,
    Outcome,
    Unavailable,
    Write,
)
from treedbd.database.runtime import Runtime
from treedbd.database.slices import FIRST_SECONDS, SLICE_SECONDS, Steps
from treedbd.database.watchers import Notification
from treedbd.loop import do_nothing
from treedbd.rules.context import KeptReads
from treedbd.store.changelog import commit_of
from treedbd.store.engine import DiskFull, StoreFailed, Transaction
from treedbd.store.memory import MemoryEngine
from treedbd.store.nodes import Nodes
from treedbd.tree.edit import Edit, make_patch, make_put, make_remove
from treedbd.tree.hashes import parse_etags
from treedbd.tree.types import Json, Place

NO_CHANGES: Any = (None,)


class FailingEngine(MemoryEngine):
    """An engine whose reserve may find no room, and whose recovery may fail."""

    def __init__(self) -> None:
        super().__init__()
        self.has_room = True
        self.can_recover = True
        self.released = 0

    def release_reserve(self) -> None:
        self.released += 1

    def restore_reserve(self) -> bool:
        return self.has_room

    def recover(self) -> None:
        if not self.can_recover:
            raise StoreFailed("the test says so")


class BatchedWorld(World):
    """Its batches are committed, and its time passes, when the test says so."""

    engine: FailingEngine

    def __init__(self, clock: TurnClock | None = None) -> None:
        super().__init__(FailingEngine(), clock=clock, disk=Disk())

    def advance(self, seconds: float = 0) -> None:
        self.clock.advance(seconds)


def put(value: Json, *path: str) -> Edit:
    return make_put(Place(path), value)


def result(waiting: Deferred[Outcome]) -> Outcome | Exception | None:
    """Return the outcome of a write or its error, None while it waits."""
    found: list[Outcome | Exception] = []
    waiting.addCallbacks(found.append, lambda failure: found.append(failure.value))
    return found[0] if found else None


def world_without_room() -> BatchedWorld:
    """Return one that holds `{"a": {"b": 1, "c": 2}}`, with no room for more."""
    world = BatchedWorld()
    world.begin(put({"b": 1, "c": 2}, "a"))
    world.advance()
    world.disk.finish()
    world.engine.has_room = False
    return world


def world_with_full_disk() -> BatchedWorld:
    """Return one without room in which a write has found the disk full."""
    world = world_without_room()
    failed = world.begin(put(2, "x"))
    world.advance()
    world.disk.fail(DiskFull("no room"))
    assert isinstance(result(failed), Unavailable)
    world.disk.finish()
    return world


def test_nothing_is_answered_or_seen_before_the_commit_is_durable() -> None:
    world = BatchedWorld()
    write = world.begin(put(1, "a"))
    world.advance()
    assert not write.called
    assert world.get() is None
    world.disk.finish()
    assert write.called
    assert world.get() == {"a": 1}


def test_writes_that_wait_for_a_commit_are_committed_together() -> None:
    world = BatchedWorld()
    first = world.begin(put(1, "a"))
    world.advance()
    others = [world.begin(put(number, "b", str(number))) for number in range(5)]
    world.advance()
    assert len(world.disk.waiting) == 1
    world.disk.finish()
    assert first.called
    world.advance()
    assert len(world.disk.waiting) == 1
    world.disk.finish()
    assert all(other.called for other in others)
    assert world.get() == {"a": 1, "b": [0, 1, 2, 3, 4]}


def test_a_failed_condition_does_not_affect_other_writes_of_the_batch() -> None:
    world = BatchedWorld()
    good = world.begin(put(1, "a"))
    condition = Condition(Place(("a",)), parse_etags('"other"'))
    bad = world.begin(put(2, "a"), condition)
    also_good = world.begin(put(3, "b"))
    world.advance()
    assert not bad.called
    world.disk.finish()
    refusal = result(bad)
    assert isinstance(refusal, ConditionFailed)
    assert refusal.current == 1
    assert isinstance(result(good), Outcome)
    assert isinstance(result(also_good), Outcome)
    assert world.get() == {"a": 1, "b": 3}


def test_refusals_alone_are_answered_without_a_commit() -> None:
    world = BatchedWorld()
    bad = world.begin(put(2, "a"), Condition(Place(("a",)), parse_etags("*")))
    world.advance()
    assert world.disk.waiting == []
    assert isinstance(result(bad), ConditionFailed)


def test_a_patch_without_members_succeeds_without_a_commit() -> None:
    world = BatchedWorld()
    write = world.begin(make_patch((), {}))
    world.advance()
    outcome = result(write)
    assert isinstance(outcome, Outcome)
    assert outcome.commit is None
    assert world.disk.waiting == []


def test_a_write_whose_deadline_passes_in_the_queue_is_refused() -> None:
    world = BatchedWorld()
    world.begin(put(1, "a"))
    world.advance()
    late = world.begin(put(2, "a"), deadline=world.clock.seconds() + 5)
    in_time = world.begin(put(3, "b"), deadline=world.clock.seconds() + 50)
    world.advance(5)
    assert isinstance(result(late), DeadlinePassed)
    world.disk.finish()
    world.advance()
    world.disk.finish()
    assert isinstance(result(in_time), Outcome)
    assert world.get() == {"a": 1, "b": 3}


def test_a_write_whose_deadline_passes_while_it_is_checked_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = BatchedWorld()

    def check_slowly(_: Nodes, __: Condition, ___: KeptReads) -> None:
        world.clock.rightNow += 10

    monkeypatch.setattr(etags, "check_condition", check_slowly)
    condition = Condition(Place(("a",)), parse_etags("*"))
    late = world.begin(put(2, "a"), condition, deadline=world.clock.seconds() + 5)
    in_time = world.begin(put(3, "b"))
    world.advance()
    world.disk.finish()
    assert isinstance(result(late), DeadlinePassed)
    assert isinstance(result(in_time), Outcome)
    assert world.get() == {"b": 3}


def test_a_write_whose_deadline_passes_during_its_commit_is_answered_with_its_outcome() -> None:
    world = BatchedWorld()
    write = world.begin(put(1, "a"), deadline=world.clock.seconds() + 5)
    world.advance()
    world.advance(10)
    assert not write.called
    world.disk.finish()
    assert isinstance(result(write), Outcome)


def test_on_a_full_disk_nothing_was_applied_and_only_removals_are_accepted() -> None:
    world = world_with_full_disk()
    assert world.engine.released == 1
    refused, removal = world.begin(put(3, "x")), world.begin(make_remove(Place(("a", "b"))))
    world.advance()
    world.disk.finish()
    assert isinstance(result(refused), Unavailable)
    assert isinstance(result(removal), Outcome)
    assert world.get() == {"a": {"c": 2}}
    assert world.database.write_problem == "The disk is full; only removals are accepted."


def test_a_removal_that_finds_no_room_either_is_refused_with_a_remedy() -> None:
    world = world_without_room()
    removal = world.begin(make_remove(Place(("a",))))
    world.advance()
    world.disk.fail(DiskFull("no room"))
    world.disk.finish()
    world.advance()
    world.disk.fail(DiskFull("no room"))
    world.disk.finish()
    refusal = result(removal)
    assert str(refusal) == "The disk is full: remove smaller parts first."
    assert world.get() == {"a": {"b": 1, "c": 2}}


def test_writes_are_accepted_again_when_the_disk_has_room() -> None:
    world = BatchedWorld()
    world.engine.has_room = False
    world.begin(put(2, "x")).addErrback(lambda _: None)
    world.advance()
    world.disk.fail(DiskFull("no room"))
    world.disk.finish()
    world.advance(SPACE_CHECK_S)
    world.disk.finish()
    assert world.database.write_problem is not None
    world.engine.has_room = True
    world.advance(SPACE_CHECK_S)
    world.disk.finish()
    assert world.database.write_problem is None
    write = world.begin(put(3, "x"))
    world.advance()
    world.disk.finish()
    assert isinstance(result(write), Outcome)


def test_after_a_removal_that_made_room_writes_are_accepted_at_once() -> None:
    world = world_with_full_disk()
    for key, has_room in (("b", False), ("c", True)):
        removal = world.begin(make_remove(Place(("a", key))))
        world.advance()
        world.engine.has_room = has_room
        world.disk.finish()
        assert isinstance(result(removal), Outcome)
        write = world.begin(put(3, "x"))
        world.advance()
        assert not write.called
        world.disk.finish()
        world.advance()
        assert write.called is not has_room
        if not has_room:
            assert isinstance(result(write), Unavailable)
    world.disk.finish()
    assert isinstance(result(write), Outcome)
    world.advance(2 * SPACE_CHECK_S)
    assert world.disk.waiting == []


def test_after_a_failed_sync_nothing_is_acknowledged_until_recovery() -> None:
    world = BatchedWorld()
    world.engine.can_recover = False
    failed = world.begin(put(1, "a"))
    world.advance()
    waiting = world.begin(put(2, "b"))
    world.disk.fail(StoreFailed("a sync failed"))
    assert isinstance(result(failed), Unavailable)
    assert isinstance(result(waiting), Unavailable)
    assert isinstance(result(world.begin(put(3, "c"))), Unavailable)
    world.advance()
    world.disk.waiting[0][1].errback(Failure(StoreFailed("still bad")))
    world.disk.waiting.clear()
    assert isinstance(result(world.begin(put(4, "d"))), Unavailable)
    world.engine.can_recover = True
    world.advance(1)
    world.disk.finish()
    assert world.database.write_problem is None
    write = world.begin(put(5, "e"))
    world.advance()
    world.disk.finish()
    assert isinstance(result(write), Outcome)
    assert world.get() == {"e": 5}


def test_a_recovery_that_keeps_failing_is_logged_when_its_reason_changes() -> None:
    world = BatchedWorld()
    failed = world.begin(put(1, "a"))
    world.advance()
    with capturedLogs() as events:
        world.disk.fail(StoreFailed("a file is missing"))
        for reason in ("first", "first", "first", "second", "second", "first"):
            world.advance(10)
            world.disk.waiting.pop()[1].errback(Failure(StoreFailed(reason)))
    assert isinstance(result(failed), Unavailable)
    logged = [formatEvent(event) for event in events]
    assert logged == ["The store failed: a file is missing"] + [
        f"The store could not be recovered: {reason}" for reason in ("first", "second", "first")
    ]


def test_a_write_with_an_unexpected_error_does_not_affect_other_writes() -> None:
    world = BatchedWorld()
    logged: list[LogEvent] = []

    @implementer(ILogObserver)
    def observe(event: LogEvent) -> None:
        logged.append(event)

    globalLogPublisher.addObserver(observe)
    before = world.begin(put(1, "a"))
    broken = world.begin(attrs.evolve(put(2, "b"), changes=NO_CHANGES))
    after = world.begin(put(3, "c"))
    world.advance()
    world.disk.finish()
    globalLogPublisher.removeObserver(observe)
    assert isinstance(result(broken), AttributeError)
    assert isinstance(result(before), Outcome)
    assert isinstance(result(after), Outcome)
    assert world.get() == {"a": 1, "c": 3}
    assert logged


def test_closing_answers_writes_under_way_and_refuses_all_others() -> None:
    world = BatchedWorld()
    under_way = world.begin(put(1, "a"))
    world.advance()
    waiting = [world.begin(put(number, "b")) for number in range(12)]
    closed: list[None] = []
    world.database.close().addCallback(closed.append)
    late = world.begin(put(3, "c"))
    assert {str(result(each)) for each in (*waiting, late)} == {"The server is shutting down."}
    world.disk.finish()
    assert isinstance(result(under_way), Outcome)
    assert world.get() == {"a": 1}
    world.advance()
    assert closed == []
    world.disk.finish()
    assert closed == [None]
    assert world.clock.getDelayedCalls() == []


def test_a_removal_that_would_be_tried_again_is_refused_when_the_database_closes() -> None:
    world = BatchedWorld()
    done = world.begin(put(1, "a"))
    world.advance()
    world.disk.finish()
    assert isinstance(result(done), Outcome)
    removal = world.begin(make_remove(Place(("a",))))
    world.advance()
    world.database.refuse_writes()
    world.disk.fail(DiskFull("no room"))
    assert isinstance(result(removal), Unavailable)


def test_watchers_are_notified_after_the_writers_and_never_of_a_failed_batch() -> None:
    world = BatchedWorld()
    log: list[str] = []

    class LoggingWatcher:
        def notify(self, notification: Notification) -> None:
            log.append(f"notified {[event.data for _, event in notification.events]}")

    world.database.watching.watch(("a",), LoggingWatcher(), lambda nodes: None)
    world.begin(put(1, "a")).addErrback(lambda _: log.append("refused"))
    world.advance()
    world.disk.fail(DiskFull("no room"))
    world.disk.finish()
    world.advance(SPACE_CHECK_S)
    world.disk.finish()
    world.begin(put(2, "a")).addCallback(lambda _: log.append("answered"))
    world.advance()
    world.disk.finish()
    assert log == ["refused", "answered", "notified [2]"]


def test_a_removal_that_finds_the_disk_full_is_tried_again_after_the_reserve_is_released() -> None:
    world = BatchedWorld()
    world.engine.has_room = False
    removal, other = world.begin(make_remove(Place(("a",)))), world.begin(put(1, "b"))
    world.advance()
    world.disk.fail(DiskFull("no room"))
    assert isinstance(result(other), Unavailable)
    assert not removal.called
    world.disk.finish()
    world.advance()
    world.disk.finish()
    assert isinstance(result(removal), Outcome)


def test_a_removal_that_finds_no_room_after_the_reserve_is_released_is_refused() -> None:
    world = BatchedWorld()
    world.engine.has_room = False
    removal = world.begin(make_remove(Place(("a",))))
    world.advance()
    world.disk.fail(DiskFull("no room"))
    world.disk.finish()
    world.advance()
    world.disk.fail(DiskFull("no room"))
    assert isinstance(result(removal), Unavailable)


def test_what_is_kept_in_memory_is_brought_up_to_date_before_a_writer_is_answered() -> None:
    disk, clock = Disk(), Clock()
    seen: list[str] = []
    rows = MemoryEngine()
    commits = GroupCommit(
        SimpleNamespace(
            committed=lambda found: seen.append(f"committed {[commit.path for commit in found]}"),
            notify=lambda _: iter(()),
            leave=lambda: rows.advance() is not None,
        ),  # type: ignore[arg-type]
        rows,
        SimpleNamespace(apply=_apply, finish=do_nothing),  # type: ignore[arg-type]
        Runtime(clock, bytes, disk.run),
    )
    for name in ("a", "b"):
        write = commits.submit(Write(put(1, name), 0, ADMIN))
        write.addCallback(lambda outcome: seen.append(f"answered {outcome.edit.place.path}"))
    clock.advance(0)
    assert not seen
    disk.finish()
    assert seen == ["committed [('a',), ('b',)]", "answered ('a',)", "answered ('b',)"]


def _apply(transaction: Transaction, write: Write) -> Outcome:
    return Outcome(write.edit, commit_of(transaction.append(b"", b""), write.edit), None, None)


# Batches that are applied over several turns of the reactor.


class SlowWorld(BatchedWorld):
    """A world whose clock goes on at each look, so that a write fills a slice."""

    def __init__(self) -> None:
        super().__init__(TurnClock(lag=FIRST_SECONDS / 2))

    def apply(self, *edits: Edit) -> list[Deferred[Outcome]]:
        """Queue writes and apply the first slice of them."""
        queued = [self.begin(edit) for edit in edits]
        self.clock.take_turn()
        assert not self.disk.waiting
        return queued


def puts(*names: str) -> list[Edit]:
    return [put(1, name) for name in names]


def test_a_batch_is_applied_in_slices_and_reads_in_between_see_the_durable_state() -> None:
    world = SlowWorld()
    writes = world.apply(*puts("a", "b", "c"))
    assert world.get() is None
    assert world.database.is_writing
    world.clock.run()
    assert world.clock.turns > 1
    assert len(world.disk.waiting) == 1
    assert world.get() is None
    world.disk.finish()
    assert not all(write.called for write in writes)  # they are answered in slices, too
    world.clock.run()
    assert all(isinstance(result(write), Outcome) for write in writes)
    assert world.get() == {"a": 1, "b": 1, "c": 1}


def test_a_write_that_comes_between_two_slices_waits_for_the_next_batch() -> None:
    world = SlowWorld()
    first = world.apply(*puts("a", "b"))
    later = world.begin(put(2, "a"))
    world.clock.run()
    world.disk.finish()
    assert all(write.called for write in first)
    assert not later.called
    world.clock.run()
    world.disk.finish()
    assert isinstance(result(later), Outcome)
    assert world.get() == {"a": 2, "b": 1}


def test_a_round_does_not_begin_while_a_batch_is_applied() -> None:
    world = SlowWorld()
    world.apply(*puts("a", "b"))
    done: list[Json] = []

    def look() -> Steps:
        done.append(world.get())
        yield

    world.database._group_commit.rounds.run_later(look())
    world.clock.run()
    assert not done
    world.disk.finish()
    world.clock.run()
    assert done == [{"a": 1, "b": 1}]


def test_a_write_with_an_unexpected_error_in_a_later_slice_restarts_the_batch() -> None:
    world = SlowWorld()
    broken = attrs.evolve(put(2, "b"), changes=NO_CHANGES)
    before, failing, after = world.apply(put(1, "a"), broken, put(3, "c"))
    world.clock.run()
    assert isinstance(result(failing), AttributeError)
    assert not before.called
    world.disk.finish()
    assert isinstance(result(before), Outcome)
    assert isinstance(result(after), Outcome)
    assert world.get() == {"a": 1, "c": 3}


def test_a_database_that_closes_while_a_batch_is_applied_answers_it_first() -> None:
    world = SlowWorld()
    writes = world.apply(*puts("a", "b"))
    closed = world.database.close()
    refused = world.begin(put(1, "late"))
    assert isinstance(result(refused), Unavailable)
    world.clock.run()
    assert not closed.called
    world.disk.finish()
    world.clock.run()
    assert all(isinstance(result(write), Outcome) for write in writes)
    world.disk.finish()  # the close of the store
    assert closed.called


def hurried_world(*names: str, deadline: float | None = None) -> tuple[SlowWorld, list[Any]]:
    """Return a world whose batches have time for one write, and writes of which one is applied."""
    world = SlowWorld()
    writes = [world.begin(edit, deadline=deadline) for edit in puts(*names)]
    world.clock.lag = BATCH_SECONDS * 1.1
    return world, writes


def test_writes_for_which_a_batch_has_no_time_are_done_by_the_next() -> None:
    world, writes = hurried_world("a", "b", "c")
    world.clock.run()
    world.disk.finish()
    assert [write.called for write in writes] == [True, False, False]
    while world.clock.take_turn() or world.disk.waiting:
        if world.disk.waiting:
            world.disk.finish()
    assert all(isinstance(result(write), Outcome) for write in writes)
    assert world.get() == {"a": 1, "b": 1, "c": 1}


def test_a_write_for_which_a_batch_had_no_time_is_refused_at_its_deadline() -> None:
    world, (first, second) = hurried_world("a", "b", deadline=10)
    world.clock.run()
    world.clock.advance(20)
    assert isinstance(result(second), DeadlinePassed)
    assert not first.called
    world.disk.finish()
    assert isinstance(result(first), Outcome)


def test_writes_for_which_a_batch_had_no_time_are_refused_if_the_database_closes() -> None:
    world, _ = hurried_world()
    world.clock.lag = BATCH_SECONDS * 0.3
    writes = world.apply(*puts("a", "b", "c", "d"))
    world.database.refuse_writes()
    assert not any(write.called for write in writes)
    world.clock.run()
    world.disk.finish()
    world.clock.run()
    results = [result(write) for write in writes]
    assert isinstance(results[0], Outcome)
    assert isinstance(results[-1], Unavailable)
    assert len(world.get()) == sum(isinstance(each, Outcome) for each in results)


def test_a_later_write_with_an_earlier_deadline_is_refused_at_it() -> None:
    world = BatchedWorld()
    world.begin(put(1, "x"))
    world.advance()
    patient = world.begin(put(1, "a"), deadline=world.clock.seconds() + 50)
    hurried = world.begin(put(2, "b"), deadline=world.clock.seconds() + 5)
    world.advance(5)
    assert isinstance(result(hurried), DeadlinePassed)
    assert not patient.called
    world.advance(45)
    assert isinstance(result(patient), DeadlinePassed)


def test_a_deadline_counts_again_for_a_write_that_a_batch_has_put_back() -> None:
    world = SlowWorld()
    # The timer of this deadline fires while all of them are taken from the queue.
    world.begin(put(1, "first"), deadline=BATCH_SECONDS / 2)
    writes = [world.begin(put(1, str(at)), deadline=50) for at in range(20)]
    world.clock.run()
    assert len(world.disk.waiting) == 1
    assert not any(write.called for write in writes)
    world.clock.rightNow += 50
    world.clock.run()
    assert isinstance(result(writes[-1]), DeadlinePassed)
    assert not writes[0].called


# Many writes that are refused together.

MANY = 40


def answered_in_turns(world: SlowWorld, waiting: list[Deferred[Outcome]]) -> list[list[int]]:
    """Return which writes are answered now, and which in each turn after that."""
    turns: list[list[int]] = [[]]

    def note(_: object, number: int) -> None:
        turns[-1].append(number)

    for number, each in enumerate(waiting):
        each.addBoth(note, number)
    while sum(map(len, turns)) < len(waiting):
        turns.append([])
        assert world.clock.take_turn()
    return turns


def assert_in_slices(turns: list[list[int]]) -> None:
    assert sum(turns, []) == list(range(MANY))  # noqa: RUF017 - it is short
    assert max(map(len, turns)) <= SLICE_SECONDS / FIRST_SECONDS * 2 + 1


def test_writes_whose_deadline_passes_together_are_refused_in_slices_in_order() -> None:
    world = SlowWorld()
    under_way = world.begin(put(1, "a"))
    world.clock.run_until(lambda: world.disk.waiting)
    waiting = [world.begin(put(1, "b"), deadline=world.clock.seconds() + 1) for _ in range(MANY)]
    world.clock.rightNow += 2
    assert_in_slices(answered_in_turns(world, waiting))
    assert not under_way.called


@pytest.mark.parametrize("step", [1, -1])
def test_the_writes_that_wait_are_not_looked_at_for_each_of_many_deadlines(
    monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    world = SlowWorld()
    world.begin(put(1, "a"))
    world.clock.run_until(lambda: world.disk.waiting)
    world.clock.lag = 0
    looked: list[float] = []
    is_late = write_queue._is_late

    def noted(queued: QueuedWrite, now: float) -> bool:
        looked.append(now)
        return is_late(queued, now)

    monkeypatch.setattr(write_queue, "_is_late", noted)
    count, apart = 400, 0.000_1
    begin = world.clock.seconds() + 1
    deadlines = [begin + number * apart for number in range(count)][::step]
    waiting = [world.begin(put(1, "b"), deadline=each) for each in deadlines]
    while not all(each.called for each in waiting):
        world.clock.rightNow += apart / 2
        world.clock.run()
    assert world.clock.seconds() < deadlines[0 if step < 0 else -1] + count * LOOK_SECONDS + apart
    assert len(looked) < count * count / 4
    assert all(isinstance(result(each), DeadlinePassed) for each in waiting)


def test_writes_that_wait_when_a_database_closes_are_refused_in_slices_before_it_is_closed() -> (
    None
):
    world = SlowWorld()
    waiting = [world.begin(put(1, "a")) for _ in range(MANY)]
    for each in waiting:
        each.addErrback(lambda _: None)
    closed: list[bool] = []
    world.database.close().addCallback(lambda _: closed.append(is_answered()))

    def is_answered() -> bool:
        return all(each.called for each in waiting)

    assert not is_answered()
    world.clock.run_until(lambda: world.disk.waiting)
    world.disk.finish()
    assert closed == [True]


@pytest.mark.parametrize("error", [StoreFailed("no sync"), Unavailable("not now")])
def test_the_writes_of_a_batch_that_fails_are_refused_in_slices_before_the_next_begins(
    error: Exception,
) -> None:
    world = SlowWorld()
    world.clock.lag = 0
    waiting = [world.begin(put(1, "a")) for _ in range(MANY)]
    world.clock.run_until(lambda: world.disk.waiting)
    world.clock.lag = FIRST_SECONDS / 2
    after = world.begin(put(1, "b"))
    world.disk.fail(error)
    assert_in_slices(answered_in_turns(world, waiting))
    assert not isinstance(result(after), Outcome)


def test_writes_that_find_the_disk_full_are_refused_in_slices() -> None:
    world = SlowWorld()
    world.engine.has_room = False
    failed = world.begin(put(1, "a"))
    world.clock.run_until(lambda: world.disk.waiting)
    waiting = [world.begin(put(1, "b")) for _ in range(MANY)]
    world.disk.fail(DiskFull("no room"))
    assert isinstance(result(failed), Unavailable)
    world.disk.finish()
    assert_in_slices(answered_in_turns(world, waiting))


def test_the_state_says_what_the_next_batch_waits_for() -> None:
    world = BatchedWorld()
    commits = world.database._group_commit
    seen = [commits.state]
    commits.rounds.add(note_state(commits, seen))
    world.begin(put(1, "a"))
    seen.append(commits.state)
    world.advance()
    seen.append(commits.state)
    world.disk.finish()
    world.advance()
    seen.append(commits.state)
    assert seen == [State.IDLE, State.IDLE, State.COMMITTING, State.ROUND, State.IDLE]


def note_state(commits: GroupCommit, seen: list[State]) -> Steps:
    seen.append(commits.state)
    yield


def test_no_maintenance_is_begun_before_a_failed_store_is_recovered() -> None:
    world = BatchedWorld()
    world.engine.can_recover = False
    failed = world.begin(put(1, "a"))
    world.advance()
    steps: list[Transaction] = []

    def fail(transaction: Transaction) -> bool:
        steps.append(transaction)
        if not world.engine.can_recover:
            raise StoreFailed("the test says so")
        return False

    world.database._group_commit._maintenance.add(fail)
    world.disk.fail(StoreFailed("a sync failed"))
    assert isinstance(result(failed), Unavailable)
    for _ in range(20):
        world.advance()
        world.disk.finish_all()
    assert steps == []
    world.engine.can_recover = True
    world.advance(10)
    world.disk.finish_all()
    world.advance()
    assert len(steps) == 1


def compact_beside_a_commit() -> tuple[BatchedWorld, list[Any]]:
    """Return a world in which a batch is being committed, and what becomes of a compaction."""
    world, found = BatchedWorld(), list[Any]()
    world.begin(put(1, "a"))
    world.advance()
    world.disk.finish()
    world.begin(put(2, "b"))
    world.advance()
    Deferred.fromCoroutine(world.database.compact()).addBoth(found.append)
    return world, found


def test_a_compaction_goes_before_the_writes_that_wait() -> None:
    world, found = compact_beside_a_commit()
    write = world.begin(put(3, "c"))
    world.disk.finish()
    world.advance()
    assert world.database._group_commit.state is State.MAINTAINING
    assert found == []
    world.disk.finish()
    world.advance()
    assert len(found) == 1
    assert found[0][0] > 0
    assert world.disk.commits_next()
    world.disk.finish()
    assert isinstance(result(write), Outcome)


def test_a_compaction_that_waits_ends_with_the_server() -> None:
    world, found = compact_beside_a_commit()
    closed = world.database._group_commit.close()
    assert [type(each.value) for each in found] == [Unavailable]
    world.disk.finish()
    world.advance()
    assert closed.called
