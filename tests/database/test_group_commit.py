"""Group commit: an answered write is durable, a failed one was not applied and stops no other."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import (
    ILogObserver,
    LogEvent,
    capturedLogs,
    formatEvent,
    globalLogPublisher,
)
from twisted.python.failure import Failure
from zope.interface import implementer

from tests.database.world import Disk, make_database
from treedbd.database import etags
from treedbd.database.database import Database
from treedbd.database.errors import ConditionFailed, DeadlinePassed, Unavailable
from treedbd.database.recovery import SPACE_CHECK_S
from treedbd.database.requests import Caller, Condition, Outcome, Write
from treedbd.database.runtime import Runtime
from treedbd.database.watchers import Notification
from treedbd.store.engine import DiskFull, StoreFailed
from treedbd.store.memory import MemoryEngine
from treedbd.store.nodes import Nodes
from treedbd.tree.edit import Edit, make_patch, make_put, make_remove
from treedbd.tree.etag import parse_etags
from treedbd.tree.types import Json, Place
from treedbd.tree.value import plain

NO_CHANGES: Any = (None,)
ADMIN = Caller(None, is_admin=True)


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


@attrs.define
class World:
    """A database whose disk and clock the test controls."""

    clock: Clock = attrs.field(factory=Clock)
    disk: Disk = attrs.field(factory=Disk)
    engine: FailingEngine = attrs.field(factory=FailingEngine)
    database: Database = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        runtime = Runtime(self.clock, bytes, self.disk.run)
        self.database = make_database(self.engine, runtime)

    def write(
        self, edit: Edit, condition: Condition | None = None, deadline: float | None = None
    ) -> Deferred[Outcome]:
        return self.database.write(Write(edit, 0, ADMIN, condition, deadline))

    def advance(self, seconds: float = 0) -> None:
        self.clock.advance(seconds)

    def root(self) -> Json:
        return self.database.read(lambda nodes: plain(nodes.get(())))


def put(value: Json, *path: str) -> Edit:
    return make_put(Place(path), value)


def result(waiting: Deferred[Outcome]) -> Outcome | Exception | None:
    """Return the outcome of a write or its error, None while it waits."""
    found: list[Outcome | Exception] = []
    waiting.addCallbacks(found.append, lambda failure: found.append(failure.value))
    return found[0] if found else None


def world_without_room() -> World:
    """Return one that holds `{"a": {"b": 1, "c": 2}}`, with no room for more."""
    world = World()
    world.write(put({"b": 1, "c": 2}, "a"))
    world.advance()
    world.disk.finish()
    world.engine.has_room = False
    return world


def world_with_full_disk() -> World:
    """Return one without room in which a write has found the disk full."""
    world = world_without_room()
    failed = world.write(put(2, "x"))
    world.advance()
    world.disk.fail(DiskFull("no room"))
    assert isinstance(result(failed), Unavailable)
    world.disk.finish()
    return world


def test_nothing_is_answered_or_seen_before_the_commit_is_durable() -> None:
    world = World()
    write = world.write(put(1, "a"))
    world.advance()
    assert not write.called
    assert world.root() is None
    world.disk.finish()
    assert write.called
    assert world.root() == {"a": 1}


def test_writes_that_wait_for_a_commit_are_committed_together() -> None:
    world = World()
    first = world.write(put(1, "a"))
    world.advance()
    others = [world.write(put(number, "b", str(number))) for number in range(5)]
    world.advance()
    assert len(world.disk.waiting) == 1
    world.disk.finish()
    assert first.called
    world.advance()
    assert len(world.disk.waiting) == 1
    world.disk.finish()
    assert all(other.called for other in others)
    assert world.root() == {"a": 1, "b": [0, 1, 2, 3, 4]}


def test_a_failed_condition_does_not_affect_other_writes_of_the_batch() -> None:
    world = World()
    good = world.write(put(1, "a"))
    condition = Condition(Place(("a",)), parse_etags('"other"'))
    bad = world.write(put(2, "a"), condition)
    also_good = world.write(put(3, "b"))
    world.advance()
    assert not bad.called
    world.disk.finish()
    refusal = result(bad)
    assert isinstance(refusal, ConditionFailed)
    assert refusal.current == 1
    assert isinstance(result(good), Outcome)
    assert isinstance(result(also_good), Outcome)
    assert world.root() == {"a": 1, "b": 3}


def test_refusals_alone_are_answered_without_a_commit() -> None:
    world = World()
    bad = world.write(put(2, "a"), Condition(Place(("a",)), parse_etags("*")))
    world.advance()
    assert world.disk.waiting == []
    assert isinstance(result(bad), ConditionFailed)


def test_a_patch_without_members_succeeds_without_a_commit() -> None:
    world = World()
    write = world.write(make_patch((), {}))
    world.advance()
    outcome = result(write)
    assert isinstance(outcome, Outcome)
    assert outcome.commit is None
    assert world.disk.waiting == []


def test_a_write_whose_deadline_passes_in_the_queue_is_refused() -> None:
    world = World()
    world.write(put(1, "a"))
    world.advance()
    late = world.write(put(2, "a"), deadline=world.clock.seconds() + 5)
    in_time = world.write(put(3, "b"), deadline=world.clock.seconds() + 50)
    world.advance(5)
    assert isinstance(result(late), DeadlinePassed)
    world.disk.finish()
    world.advance()
    world.disk.finish()
    assert isinstance(result(in_time), Outcome)
    assert world.root() == {"a": 1, "b": 3}


def test_a_write_whose_deadline_passes_while_it_is_checked_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()

    def check_slowly(_: Nodes, __: Condition) -> None:
        world.clock.rightNow += 10

    monkeypatch.setattr(etags, "check_condition", check_slowly)
    condition = Condition(Place(("a",)), parse_etags("*"))
    late = world.write(put(2, "a"), condition, deadline=world.clock.seconds() + 5)
    in_time = world.write(put(3, "b"))
    world.advance()
    world.disk.finish()
    assert isinstance(result(late), DeadlinePassed)
    assert isinstance(result(in_time), Outcome)
    assert world.root() == {"b": 3}


def test_a_write_whose_deadline_passes_during_its_commit_is_answered_with_its_outcome() -> None:
    world = World()
    write = world.write(put(1, "a"), deadline=world.clock.seconds() + 5)
    world.advance()
    world.advance(10)
    assert not write.called
    world.disk.finish()
    assert isinstance(result(write), Outcome)


def test_on_a_full_disk_nothing_was_applied_and_only_removals_are_accepted() -> None:
    world = world_with_full_disk()
    assert world.engine.released == 1
    refused, removal = world.write(put(3, "x")), world.write(make_remove(Place(("a", "b"))))
    world.advance()
    world.disk.finish()
    assert isinstance(result(refused), Unavailable)
    assert isinstance(result(removal), Outcome)
    assert world.root() == {"a": {"c": 2}}
    assert world.database.write_problem == "The disk is full; only removals are accepted."


def test_a_removal_that_finds_no_room_either_is_refused_with_a_remedy() -> None:
    world = world_without_room()
    removal = world.write(make_remove(Place(("a",))))
    world.advance()
    world.disk.fail(DiskFull("no room"))
    world.disk.finish()
    world.advance()
    world.disk.fail(DiskFull("no room"))
    world.disk.finish()
    refusal = result(removal)
    assert str(refusal) == "The disk is full: remove smaller parts first."
    assert world.root() == {"a": {"b": 1, "c": 2}}


def test_writes_are_accepted_again_when_the_disk_has_room() -> None:
    world = World()
    world.engine.has_room = False
    world.write(put(2, "x")).addErrback(lambda _: None)
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
    write = world.write(put(3, "x"))
    world.advance()
    world.disk.finish()
    assert isinstance(result(write), Outcome)


def test_after_a_removal_that_made_room_writes_are_accepted_at_once() -> None:
    world = world_with_full_disk()
    for key, has_room in (("b", False), ("c", True)):
        removal = world.write(make_remove(Place(("a", key))))
        world.advance()
        world.engine.has_room = has_room
        world.disk.finish()
        assert isinstance(result(removal), Outcome)
        write = world.write(put(3, "x"))
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
    world = World()
    world.engine.can_recover = False
    failed = world.write(put(1, "a"))
    world.advance()
    waiting = world.write(put(2, "b"))
    world.disk.fail(StoreFailed("a sync failed"))
    assert isinstance(result(failed), Unavailable)
    assert isinstance(result(waiting), Unavailable)
    assert isinstance(result(world.write(put(3, "c"))), Unavailable)
    world.advance()
    world.disk.waiting[0][1].errback(Failure(StoreFailed("still bad")))
    world.disk.waiting.clear()
    assert isinstance(result(world.write(put(4, "d"))), Unavailable)
    world.engine.can_recover = True
    world.advance(1)
    world.disk.finish()
    assert world.database.write_problem is None
    write = world.write(put(5, "e"))
    world.advance()
    world.disk.finish()
    assert isinstance(result(write), Outcome)
    assert world.root() == {"e": 5}


def test_a_recovery_that_keeps_failing_is_logged_when_its_reason_changes() -> None:
    world = World()
    failed = world.write(put(1, "a"))
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
    world = World()
    logged: list[LogEvent] = []

    @implementer(ILogObserver)
    def observe(event: LogEvent) -> None:
        logged.append(event)

    globalLogPublisher.addObserver(observe)
    before = world.write(put(1, "a"))
    broken = world.write(attrs.evolve(put(2, "b"), changes=NO_CHANGES))
    after = world.write(put(3, "c"))
    world.advance()
    world.disk.finish()
    globalLogPublisher.removeObserver(observe)
    assert isinstance(result(broken), AttributeError)
    assert isinstance(result(before), Outcome)
    assert isinstance(result(after), Outcome)
    assert world.root() == {"a": 1, "c": 3}
    assert logged


def test_closing_answers_writes_under_way_and_refuses_all_others() -> None:
    world = World()
    under_way = world.write(put(1, "a"))
    world.advance()
    waiting = [world.write(put(number, "b")) for number in range(12)]
    closed: list[None] = []
    world.database.close().addCallback(closed.append)
    late = world.write(put(3, "c"))
    assert {str(result(each)) for each in (*waiting, late)} == {"The server is shutting down."}
    world.disk.finish()
    assert isinstance(result(under_way), Outcome)
    assert world.root() == {"a": 1}
    world.advance()
    assert closed == []
    world.disk.finish()
    assert closed == [None]
    assert world.clock.getDelayedCalls() == []


def test_a_removal_that_would_be_tried_again_is_refused_when_the_database_closes() -> None:
    world = World()
    done = world.write(put(1, "a"))
    world.advance()
    world.disk.finish()
    assert isinstance(result(done), Outcome)
    removal = world.write(make_remove(Place(("a",))))
    world.advance()
    world.database.refuse_writes()
    world.disk.fail(DiskFull("no room"))
    assert isinstance(result(removal), Unavailable)


def test_watchers_are_notified_after_the_writers_and_never_of_a_failed_batch() -> None:
    world = World()
    log: list[str] = []

    class LoggingWatcher:
        def notify(self, notification: Notification) -> None:
            log.append(f"notified {[event.data for _, event in notification.events]}")

    world.database.watch(("a",), LoggingWatcher(), lambda nodes: None)
    world.write(put(1, "a")).addErrback(lambda _: log.append("refused"))
    world.advance()
    world.disk.fail(DiskFull("no room"))
    world.disk.finish()
    world.advance(SPACE_CHECK_S)
    world.disk.finish()
    world.write(put(2, "a")).addCallback(lambda _: log.append("answered"))
    world.advance()
    world.disk.finish()
    assert log == ["refused", "answered", "notified [2]"]


def test_a_removal_that_finds_the_disk_full_is_tried_again_after_the_reserve_is_released() -> None:
    world = World()
    world.engine.has_room = False
    removal, other = world.write(make_remove(Place(("a",)))), world.write(put(1, "b"))
    world.advance()
    world.disk.fail(DiskFull("no room"))
    assert isinstance(result(other), Unavailable)
    assert not removal.called
    world.disk.finish()
    world.advance()
    world.disk.finish()
    assert isinstance(result(removal), Outcome)


def test_a_removal_that_finds_no_room_after_the_reserve_is_released_is_refused() -> None:
    world = World()
    world.engine.has_room = False
    removal = world.write(make_remove(Place(("a",))))
    world.advance()
    world.disk.fail(DiskFull("no room"))
    world.disk.finish()
    world.advance()
    world.disk.fail(DiskFull("no room"))
    assert isinstance(result(removal), Unavailable)
