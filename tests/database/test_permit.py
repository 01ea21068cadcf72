"""Permits: who loses the right to watch hears nothing from the commit on that took it."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from tests.database.world import Disk, bare_rulebook
from tests.rules.asking import NOW, rules, view
from treedbd.database.database import Database
from treedbd.database.permit import Claim, Permit, Permits
from treedbd.database.platform import Platform
from treedbd.database.question import Caller, PermissionDenied, Unavailable, Write
from treedbd.database.watchers import Notice
from treedbd.rules.evaluation import QueryFacts
from treedbd.store.mapping import Full
from treedbd.store.memory import MemoryMapping
from treedbd.tree.edit import make_patch, make_put
from treedbd.tree.path import Path, Place
from treedbd.tree.value import Json
from treedbd.tree.view import View

ADMIN = Caller(None, is_admin=True)
ALICE = Caller({"uid": "alice"})
GUARDED: Path = ("secret",)
RULES = {
    "secret": {".read": "root.child('allowed').child(auth.uid).val() == true"},
    "mine": {"$uid": {".read": "auth.uid == $uid"}},
    "listed": {".read": "query.limitToFirst <= 10"},
    "timed": {".read": "now < 2000000000000"},
}


class World:
    """A database whose batches are made when the test says so."""

    def __init__(self, nodes: Any = RULES) -> None:
        self.clock = Clock()
        self.disk = Disk()
        self.judgements = 0
        self.now = NOW
        self.rulebook = bare_rulebook(self.disk.run, rules(nodes), self.hear)
        platform = Platform(self.clock, os.urandom, self.disk.run)
        self.database = Database(MemoryMapping(), self.rulebook, platform, 1000)

    def hear(self) -> None:
        self.database.recheck_permits()

    def write(self, **places: Json) -> Deferred[Any]:
        """Queue one write that sets places, named by their first key or by a slash path."""
        body = {name.replace("__", "/"): value for name, value in places.items()}
        return self.database.write(Write(make_patch((), body), NOW, ADMIN))

    def begin(self) -> None:
        """Judge and apply what is queued, as one batch."""
        self.clock.advance(0)

    def do(self, **places: Json) -> None:
        """Do one write, durably."""
        done = self.write(**places)
        self.begin()
        self.disk.finish()
        assert done.called

    def listen(self, path: Path, caller: Caller = ALICE, query: QueryFacts | None = None) -> Ear:
        return Ear(self, path, caller, query)

    def count_judgement(self) -> int:
        """Tell the time, which is what a permit asks for whenever it is judged."""
        self.judgements += 1
        return self.now

    @property
    def guards(self) -> int:
        return self.database._permits.guards.count


class Ear:
    """A watcher with a permit, as a stream is one."""

    def __init__(
        self, world: World, path: Path, caller: Caller, query: QueryFacts | None = None
    ) -> None:
        self.world = world
        self.path = path
        self.heard: list[Any] = []
        self.ended = 0
        self.doubts = 0
        claim = Claim(caller, path, query, world.count_judgement)
        self.permit: Permit = world.database.permit(claim, self.revoke, self.begin_anew)
        world.database.read(self.permit.judge)
        world.database.watch(path, self, lambda _: None)

    def notify(self, notice: Notice) -> None:
        if self.permit.is_timed and not self.permit.recheck():
            return
        self.heard += [event.data for _, event in notice.events]

    def revoke(self) -> None:
        self.ended += 1
        self.leave()

    def begin_anew(self) -> None:
        self.doubts += 1
        self.world.database.watch(self.path, self, lambda _: None)

    def leave(self) -> None:
        self.world.database.unwatch(self.path, self)
        self.permit.close()


@pytest.fixture
def world() -> World:
    return World()


# What it costs.


def test_a_rule_that_reads_auth_alone_costs_nothing_when_something_is_committed(
    world: World,
) -> None:
    ears = [world.listen(("mine", "alice")) for _ in range(3)]
    assert world.guards == 0
    judged = world.judgements
    for number in range(10):
        world.do(mine__alice=number, mine__bob=number, allowed__alice=number)
    assert world.judgements == judged
    assert all(ear.heard == list(range(10)) for ear in ears)


def test_a_rule_that_reads_the_query_alone_costs_nothing_either(world: World) -> None:
    world.listen(("listed",), query=QueryFacts(limit_to_first=10))
    assert world.guards == 0


def test_a_rule_that_reads_data_is_asked_again_only_for_what_it_read(world: World) -> None:
    world.do(allowed__alice=True)
    ear = world.listen(GUARDED)
    assert world.guards == 1
    judged = world.judgements
    for number in range(10):
        world.do(secret=number, allowed__bob=number)
    assert world.judgements == judged
    world.do(allowed__alice=True)
    assert world.judgements == judged + 1
    assert (ear.heard, ear.ended) == (list(range(10)), 0)


def test_an_administrator_is_not_judged(world: World) -> None:
    ear = world.listen(GUARDED, ADMIN)
    assert (world.judgements, world.guards) == (0, 0)
    world.do(allowed=None, secret=1)
    world.rulebook.govern(rules({}))
    assert (ear.heard, ear.ended) == ([1], 0)


def test_a_permit_that_is_closed_hangs_on_nothing(world: World) -> None:
    world.do(allowed__alice=True)
    ear = world.listen(GUARDED)
    ear.leave()
    assert world.guards == 0
    assert not world.database._permits.held
    world.do(allowed__alice=False)
    assert ear.ended == 0


def test_a_permit_that_is_not_granted_hangs_on_nothing(world: World) -> None:
    with pytest.raises(PermissionDenied):
        world.listen(GUARDED)
    assert world.guards == 0
    assert not world.database._permits.held


# When it is withdrawn.


@settings(max_examples=300, deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=6), st.lists(st.booleans(), max_size=6))
def test_no_write_of_the_batch_that_takes_the_right_away_is_heard(
    before: list[bool], after: list[bool]
) -> None:
    """Each flag tells whether a batch ends behind its write."""
    world = World()
    world.do(allowed__alice=True)
    ear = world.listen(GUARDED)
    expected: list[int] = []
    pending: list[int] = []
    for number, ends_batch in enumerate(before):
        world.write(secret=number)
        pending.append(number)
        if ends_batch:
            world.begin()
            world.disk.finish()
            expected += pending
            pending = []
    world.write(allowed__alice=False)
    for ends_batch in after:
        world.write(secret="secret")
        if ends_batch:
            world.begin()
            world.disk.finish()
    world.begin()
    while world.disk.waiting:
        world.disk.finish()
    assert (ear.heard, ear.ended) == (expected, 1)


def test_in_a_thousand_races_the_second_write_is_never_heard() -> None:
    random_turns = random.Random(4)
    world = World()
    for number in range(1000):
        world.do(allowed__alice=True, secret=None)
        ear = world.listen(GUARDED)
        steps: list[dict[str, Json]] = [
            {"secret": number},
            {"allowed__alice": False},
            {"secret": "the second"},
        ]
        if number % 4 == 0:
            steps[1:] = [{"allowed__alice": False, "secret": "the second"}]
        done = []
        for step in steps:
            done.append(world.write(**step))
            if random_turns.random() < 0.5:
                world.begin()
            if world.disk.waiting and random_turns.random() < 0.5:
                world.disk.finish()
        while not all(one.called for one in done):
            world.begin()
            while world.disk.waiting:
                world.disk.finish()
        assert ear.heard in ([], [number])
        assert ear.ended == 1
    assert world.guards == 0


def test_a_stream_that_begins_while_the_commit_waits_loses_the_right_with_it(
    world: World,
) -> None:
    world.do(allowed__alice=True)
    world.write(allowed__alice=False)
    world.write(secret="secret")
    world.begin()
    ear = world.listen(GUARDED)
    world.disk.finish()
    assert (ear.heard, ear.ended) == ([], 1)


def test_a_commit_that_fails_takes_nothing_away(world: World) -> None:
    world.do(allowed__alice=True)
    ear = world.listen(GUARDED)
    failed: list[Any] = []
    world.write(allowed__alice=False).addErrback(failed.append)
    world.begin()
    world.disk.fail(Full("full"))
    assert failed[0].check(Unavailable)
    assert ear.ended == 0
    assert world.database.read(lambda nodes: nodes.peek(("allowed", "alice"))) is True


def test_what_a_rule_comes_to_read_is_watched_and_what_it_leaves_is_not() -> None:
    world = World({".read": "root.child(root.child('which').val()).val() == 1"})
    world.do(which="a", a=1, b=1)
    ear = world.listen(())
    world.do(which="b")
    world.do(a=2)
    assert ear.ended == 0
    assert world.guards == 2
    world.do(b=2)
    assert ear.ended == 1


def test_other_rules_are_asked_at_once(world: World) -> None:
    world.do(allowed__alice=True)
    ears = [world.listen(GUARDED), world.listen(("mine", "alice"))]
    world.rulebook.govern(rules({"mine": {".read": True}}))
    world.do(secret=1, mine__alice=1)
    assert [(ear.heard, ear.ended) for ear in ears] == [([], 1), ([1], 0)]


def test_rules_with_the_same_text_are_not_asked_again(world: World) -> None:
    world.listen(("mine", "alice"))
    judged = world.judgements
    world.rulebook.govern(rules(RULES))
    assert world.judgements == judged


def test_a_right_that_rests_on_the_time_is_judged_whenever_something_is_sent(
    world: World,
) -> None:
    ear = world.listen(("timed",))
    assert ear.permit.is_timed
    assert world.guards == 0
    world.do(timed=1)
    world.now = 3_000_000_000_000
    world.do(timed=2)
    assert (ear.heard, ear.ended) == ([1], 1)


def test_a_permit_that_cannot_be_judged_is_withdrawn() -> None:
    def read(work: Callable[[View], None]) -> None:
        if is_broken:
            raise RuntimeError("a store of a test")
        work(view({"allowed": {"alice": True}}))

    is_broken = False
    ended: list[bool] = []
    permits = Permits(World().rulebook, read)
    permit = Permit(
        permits, Claim(ALICE, GUARDED, None, lambda: NOW), lambda: ended.append(True), lambda: None
    )
    read(permit.judge)
    other = Permit(
        permits, Claim(ALICE, GUARDED, None, lambda: NOW), lambda: ended.append(True), lambda: None
    )
    read(other.judge)
    assert permit.recheck()
    is_broken = True
    permits.recheck()
    assert ended == [True, True]
    assert permits.guards.count == 0


def test_what_was_written_while_the_right_was_gone_is_not_heard_if_it_is_back_by_the_end(
    world: World,
) -> None:
    world.do(allowed__alice=True)
    ear = world.listen(GUARDED)
    for places in ({"allowed__alice": False}, {"secret": "x"}, {"allowed__alice": True}):
        world.write(**places)
    world.begin()
    world.disk.finish()
    assert (ear.heard, ear.ended, ear.doubts) == ([], 0, 1)
    world.do(secret="y")
    assert ear.heard == ["y"]


def test_a_batch_that_changes_nothing_the_right_rests_on_leaves_no_doubt(world: World) -> None:
    world.do(allowed__alice=True)
    ear = world.listen(GUARDED)
    for number in range(3):
        world.write(secret=number, allowed__bob=number)
    world.begin()
    world.disk.finish()
    assert (ear.heard, ear.doubts) == ([0, 1, 2], 0)


# Whether it was there all the time.


@pytest.mark.parametrize(
    ("path", "written", "held"),
    [
        (GUARDED, [], True),
        (GUARDED, [("secret",), ("allowed", "bob")], True),
        (GUARDED, [("secret",), ("allowed", "alice")], False),
        (GUARDED, [("allowed",)], False),
        (GUARDED, [()], False),
        (("mine", "alice"), [(), ("mine",)], True),
        (("timed",), [("x",)], False),
    ],
)
def test_a_right_is_known_for_the_time_in_which_nothing_it_rests_on_was_written(
    world: World, path: Path, written: list[Path], held: bool
) -> None:
    world.do(allowed__alice=True)
    permit = world.listen(path).permit
    assert permit.held_through(written, world.rulebook.rules.fingerprint) is held
    assert permit.held_through(written, "other rules") is False


def test_a_put_of_the_place_itself_is_one_of_what_was_read(world: World) -> None:
    world.do(allowed__alice=True)
    ear = world.listen(GUARDED)
    write = Write(make_put(Place(("allowed",)), {"bob": True}), NOW, ADMIN)
    world.database.write(write)
    world.begin()
    world.disk.finish()
    assert ear.ended == 1
