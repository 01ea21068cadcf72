"""Group commit: what is answered is durable, what fails was not applied, and it goes on after."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import ILogObserver, LogEvent, globalLogPublisher
from twisted.python.failure import Failure
from zope.interface import implementer

from tests.database.world import Disk, bare_rulebook
from treedbd.database import tagging
from treedbd.database.care import ROOM_PAUSE
from treedbd.database.database import Database
from treedbd.database.platform import Platform
from treedbd.database.question import (
    Caller,
    Condition,
    ConditionFailed,
    DeadlinePassed,
    Outcome,
    Unavailable,
    Write,
)
from treedbd.database.watchers import Notice
from treedbd.store.mapping import Failed, Full
from treedbd.store.memory import MemoryMapping
from treedbd.store.nodes import Nodes
from treedbd.tree.canonical import parse_tags
from treedbd.tree.edit import Edit, make_patch, make_put, make_remove
from treedbd.tree.path import Place
from treedbd.tree.value import Json, plain

NO_CHANGES: Any = (None,)
ADMIN = Caller(None, is_admin=True)


class SmallDisk(MemoryMapping):
    """A mapping whose reserve and recovery can be out of reach."""

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
            raise Failed("the test says so")


@attrs.define
class House:
    """A database with its disk and its clock in the test's hands."""

    clock: Clock = attrs.field(factory=Clock)
    disk: Disk = attrs.field(factory=Disk)
    mapping: SmallDisk = attrs.field(factory=SmallDisk)
    database: Database = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        platform = Platform(self.clock, bytes, self.disk.run)
        self.database = Database(self.mapping, bare_rulebook(self.disk.run), platform, 100)

    def write(
        self, edit: Edit, condition: Condition | None = None, deadline: float | None = None
    ) -> Deferred[Outcome]:
        return self.database.write(Write(edit, 0, ADMIN, condition, deadline))

    def turn(self, seconds: float = 0) -> None:
        self.clock.advance(seconds)

    def shown(self) -> Json:
        return self.database.read(lambda nodes: plain(nodes.get(())))


def put(value: Json, *path: str) -> Edit:
    return make_put(Place(path), value)


def result(waiting: Deferred[Outcome]) -> Outcome | Exception | None:
    """Return what a write has come to, None while it waits."""
    found: list[Outcome | Exception] = []
    waiting.addCallbacks(found.append, lambda failure: found.append(failure.value))
    return found[0] if found else None


def crammed_house() -> House:
    """Return one that holds `{"a": {"b": 1, "c": 2}}`, and has no room for more."""
    house = House()
    house.write(put({"b": 1, "c": 2}, "a"))
    house.turn()
    house.disk.finish()
    house.mapping.has_room = False
    return house


def full_house() -> House:
    """Return a crammed one that has found its disk full."""
    house = crammed_house()
    failed = house.write(put(2, "x"))
    house.turn()
    house.disk.fail(Full("no room"))
    assert isinstance(result(failed), Unavailable)
    house.disk.finish()
    return house


def test_nothing_is_answered_or_seen_before_the_commit_is_durable() -> None:
    house = House()
    write = house.write(put(1, "a"))
    house.turn()
    assert not write.called
    assert house.shown() is None
    house.disk.finish()
    assert write.called
    assert house.shown() == {"a": 1}


def test_writes_that_wait_for_a_commit_go_down_together() -> None:
    house = House()
    first = house.write(put(1, "a"))
    house.turn()
    others = [house.write(put(number, "b", str(number))) for number in range(5)]
    house.turn()
    assert len(house.disk.waiting) == 1
    house.disk.finish()
    assert first.called
    house.turn()
    assert len(house.disk.waiting) == 1
    house.disk.finish()
    assert all(other.called for other in others)
    assert house.shown() == {"a": 1, "b": [0, 1, 2, 3, 4]}


def test_a_failed_condition_disturbs_no_other_write_of_the_batch() -> None:
    house = House()
    good = house.write(put(1, "a"))
    condition = Condition(Place(("a",)), parse_tags('"other"'))
    bad = house.write(put(2, "a"), condition)
    also_good = house.write(put(3, "b"))
    house.turn()
    assert not bad.called
    house.disk.finish()
    refusal = result(bad)
    assert isinstance(refusal, ConditionFailed)
    assert refusal.current == 1
    assert isinstance(result(good), Outcome)
    assert isinstance(result(also_good), Outcome)
    assert house.shown() == {"a": 1, "b": 3}


def test_refusals_alone_are_answered_without_a_commit() -> None:
    house = House()
    bad = house.write(put(2, "a"), Condition(Place(("a",)), parse_tags("*")))
    house.turn()
    assert house.disk.waiting == []
    assert isinstance(result(bad), ConditionFailed)


def test_a_patch_without_members_is_done_and_tells_nobody() -> None:
    house = House()
    write = house.write(make_patch((), {}))
    house.turn()
    done = result(write)
    assert isinstance(done, Outcome)
    assert done.telling is None
    assert house.disk.waiting == []


def test_a_write_whose_time_is_over_before_its_turn_is_withdrawn() -> None:
    house = House()
    house.write(put(1, "a"))
    house.turn()
    late = house.write(put(2, "a"), deadline=house.clock.seconds() + 5)
    in_time = house.write(put(3, "b"), deadline=house.clock.seconds() + 50)
    house.turn(5)
    assert isinstance(result(late), DeadlinePassed)
    house.disk.finish()
    house.turn()
    house.disk.finish()
    assert isinstance(result(in_time), Outcome)
    assert house.shown() == {"a": 1, "b": 3}


def test_a_write_whose_time_is_over_when_it_has_been_judged_is_not_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    house = House()

    def check_slowly(_: Nodes, __: Condition) -> None:
        house.clock.rightNow += 10

    monkeypatch.setattr(tagging, "check", check_slowly)
    condition = Condition(Place(("a",)), parse_tags("*"))
    late = house.write(put(2, "a"), condition, deadline=house.clock.seconds() + 5)
    in_time = house.write(put(3, "b"))
    house.turn()
    house.disk.finish()
    assert isinstance(result(late), DeadlinePassed)
    assert isinstance(result(in_time), Outcome)
    assert house.shown() == {"b": 3}


def test_a_write_that_is_being_made_durable_is_answered_with_its_outcome() -> None:
    house = House()
    write = house.write(put(1, "a"), deadline=house.clock.seconds() + 5)
    house.turn()
    house.turn(10)
    assert not write.called
    house.disk.finish()
    assert isinstance(result(write), Outcome)


def test_on_a_full_disk_nothing_was_applied_and_only_removals_are_taken() -> None:
    house = full_house()
    assert house.mapping.released == 1
    refused, removal = house.write(put(3, "x")), house.write(make_remove(Place(("a", "b"))))
    house.turn()
    house.disk.finish()
    assert isinstance(result(refused), Unavailable)
    assert isinstance(result(removal), Outcome)
    assert house.shown() == {"a": {"c": 2}}
    assert house.database.trouble == "The disk is full; only removals are taken."


def test_a_removal_that_finds_no_room_either_says_what_to_do() -> None:
    house = crammed_house()
    removal = house.write(make_remove(Place(("a",))))
    house.turn()
    house.disk.fail(Full("no room"))
    house.disk.finish()
    house.turn()
    house.disk.fail(Full("no room"))
    house.disk.finish()
    refusal = result(removal)
    assert str(refusal) == "The disk is full: remove smaller parts first."
    assert house.shown() == {"a": {"b": 1, "c": 2}}


def test_writes_are_taken_again_when_the_disk_has_room() -> None:
    house = House()
    house.mapping.has_room = False
    house.write(put(2, "x")).addErrback(lambda _: None)
    house.turn()
    house.disk.fail(Full("no room"))
    house.disk.finish()
    house.turn(ROOM_PAUSE)
    house.disk.finish()
    assert house.database.trouble is not None
    house.mapping.has_room = True
    house.turn(ROOM_PAUSE)
    house.disk.finish()
    assert house.database.trouble is None
    write = house.write(put(3, "x"))
    house.turn()
    house.disk.finish()
    assert isinstance(result(write), Outcome)


def test_a_removal_that_made_room_is_followed_by_writes_at_once() -> None:
    house = full_house()
    for key, has_room in (("b", False), ("c", True)):
        removal = house.write(make_remove(Place(("a", key))))
        house.turn()
        house.mapping.has_room = has_room
        house.disk.finish()
        assert isinstance(result(removal), Outcome)
        write = house.write(put(3, "x"))
        house.turn()
        assert not write.called
        house.disk.finish()
        house.turn()
        assert write.called is not has_room
        if not has_room:
            assert isinstance(result(write), Unavailable)
    house.disk.finish()
    assert isinstance(result(write), Outcome)
    house.turn(2 * ROOM_PAUSE)
    assert house.disk.waiting == []


def test_after_a_failed_sync_nothing_is_acknowledged_until_recovery() -> None:
    house = House()
    house.mapping.can_recover = False
    failed = house.write(put(1, "a"))
    house.turn()
    waiting = house.write(put(2, "b"))
    house.disk.fail(Failed("a sync failed"))
    assert isinstance(result(failed), Unavailable)
    assert isinstance(result(waiting), Unavailable)
    assert isinstance(result(house.write(put(3, "c"))), Unavailable)
    house.turn()
    house.disk.waiting[0][1].errback(Failure(Failed("still bad")))
    house.disk.waiting.clear()
    assert isinstance(result(house.write(put(4, "d"))), Unavailable)
    house.mapping.can_recover = True
    house.turn(1)
    house.disk.finish()
    assert house.database.trouble is None
    write = house.write(put(5, "e"))
    house.turn()
    house.disk.finish()
    assert isinstance(result(write), Outcome)
    assert house.shown() == {"e": 5}


def test_a_write_that_breaks_is_alone_in_it() -> None:
    house = House()
    logged: list[LogEvent] = []

    @implementer(ILogObserver)
    def observe(event: LogEvent) -> None:
        logged.append(event)

    globalLogPublisher.addObserver(observe)
    before = house.write(put(1, "a"))
    broken = house.write(attrs.evolve(put(2, "b"), changes=NO_CHANGES))
    after = house.write(put(3, "c"))
    house.turn()
    house.disk.finish()
    globalLogPublisher.removeObserver(observe)
    assert isinstance(result(broken), AttributeError)
    assert isinstance(result(before), Outcome)
    assert isinstance(result(after), Outcome)
    assert house.shown() == {"a": 1, "c": 3}
    assert logged


def test_closing_answers_what_is_under_way_and_takes_no_more() -> None:
    house = House()
    under_way = house.write(put(1, "a"))
    house.turn()
    waiting = house.write(put(2, "b"))
    closed = house.database.close()
    late = house.write(put(3, "c"))
    assert isinstance(result(late), Unavailable)
    house.disk.finish()
    house.turn()
    assert not closed.called
    house.disk.finish()
    assert closed.called
    assert isinstance(result(under_way), Outcome)
    assert isinstance(result(waiting), Outcome)
    assert house.clock.getDelayedCalls() == []


def test_watchers_hear_a_batch_after_its_writers_and_never_a_failed_one() -> None:
    house = House()
    heard: list[str] = []

    class Listener:
        def notify(self, notice: Notice) -> None:
            heard.append(f"told {[event.data for _, event in notice.events]}")

    house.database.watch(("a",), Listener(), lambda nodes: None)
    house.write(put(1, "a")).addErrback(lambda _: heard.append("refused"))
    house.turn()
    house.disk.fail(Full("no room"))
    house.disk.finish()
    house.turn(ROOM_PAUSE)
    house.disk.finish()
    house.write(put(2, "a")).addCallback(lambda _: heard.append("answered"))
    house.turn()
    house.disk.finish()
    assert heard == ["refused", "answered", "told [2]"]


def test_a_removal_that_finds_the_disk_full_is_tried_again_with_the_reserve_free() -> None:
    house = House()
    house.mapping.has_room = False
    removal, other = house.write(make_remove(Place(("a",)))), house.write(put(1, "b"))
    house.turn()
    house.disk.fail(Full("no room"))
    assert isinstance(result(other), Unavailable)
    assert not removal.called
    house.disk.finish()
    house.turn()
    house.disk.finish()
    assert isinstance(result(removal), Outcome)


def test_a_removal_that_finds_no_room_without_the_reserve_either_is_refused() -> None:
    house = House()
    house.mapping.has_room = False
    removal = house.write(make_remove(Place(("a",))))
    house.turn()
    house.disk.fail(Full("no room"))
    house.disk.finish()
    house.turn()
    house.disk.fail(Full("no room"))
    assert isinstance(result(removal), Unavailable)
