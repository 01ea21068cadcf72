"""Read grants: a watcher receives nothing from the commit on that revoked its right."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.defer import Deferred

from tests.database.world import ADMIN, Disk, World
from tests.examples import examples
from tests.rules.evaluating import NOW, rules, view
from treedbd.database.requests import Caller, PermissionDenied, Unavailable
from treedbd.database.rights import ReadRequest
from treedbd.database.slices import FIRST_SECONDS, SLICE_SECONDS
from treedbd.database.watchers import Notification, ReadGrant, ReadGrants
from treedbd.rules.context import Context, QueryFacts, WrittenPaths
from treedbd.store.engine import DiskFull
from treedbd.tree.edit import make_patch, make_put
from treedbd.tree.types import Json, Path, Place, View

ALICE = Caller({"uid": "alice"})
GUARDED: Path = ("secret",)
RULES = {
    "secret": {".read": "root.child('allowed').child(auth.uid).val() == true"},
    "mine": {"$uid": {".read": "auth.uid == $uid"}},
    "listed": {".read": "query.limitToFirst <= 10"},
    "timed": {".read": "now < 2000000000000"},
}


class GrantsWorld(World):
    """Its batches are applied and committed when the test says so."""

    def __init__(self, nodes: Any = RULES) -> None:
        super().__init__(rules=rules(nodes), disk=Disk())
        self.checks = 0
        self.now = NOW

    def patch(self, **places: Json) -> Deferred[Any]:
        """Queue one PATCH of the root; in the names of `places`, `__` is a slash."""
        body = {name.replace("__", "/"): value for name, value in places.items()}
        return self.begin(make_patch((), body), now=NOW)

    def apply(self) -> None:
        """Apply what is queued as one batch, which may take several turns."""
        while not self.disk.waiting and self.clock.take_turn():
            pass

    def do(self, **places: Json) -> None:
        """Do one write and make it durable."""
        done = self.patch(**places)
        self.apply()
        self.disk.finish()
        assert done.called

    def watch(
        self, path: Path, caller: Caller = ALICE, query: QueryFacts | None = None
    ) -> GrantedWatcher:
        return GrantedWatcher(self, path, caller, query)

    def count_check(self) -> int:
        """Return the time, which a grant reads once for each check."""
        self.checks += 1
        return self.now

    @property
    def watched_paths(self) -> int:
        """How many paths all grants together depend on."""
        return self.database._grants.watchers.count


class GrantedWatcher:
    """A watcher with a grant, as a stream is one."""

    def __init__(
        self, world: GrantsWorld, path: Path, caller: Caller, query: QueryFacts | None = None
    ) -> None:
        self.world = world
        self.path = path
        self.received: list[Any] = []
        self.revoked = 0
        self.uncertain = 0
        request = ReadRequest(caller, path, query, world.count_check)
        self.grant: ReadGrant = world.database.make_grant(request, self.end, self.start_again)
        world.database.read(self.grant.check)
        world.database.watching.watch(path, self, lambda _: None)

    def notify(self, notification: Notification) -> None:
        if self.grant.must_be_checked and not self.grant.recheck():
            return
        self.received += [event.data for _, event in notification.events]

    def end(self) -> None:
        self.revoked += 1
        self.close()

    def start_again(self) -> None:
        self.uncertain += 1
        self.world.database.watching.watch(self.path, self, lambda _: None)

    def close(self) -> None:
        self.world.database.watching.watchers.remove(self.path, self)
        self.grant.close()


@pytest.fixture
def world() -> GrantsWorld:
    return GrantsWorld()


# How often a grant is checked.


def test_a_rule_that_reads_auth_alone_is_not_evaluated_again_for_any_commit(
    world: GrantsWorld,
) -> None:
    granted = [world.watch(("mine", "alice")) for _ in range(3)]
    assert world.watched_paths == 0
    checks = world.checks
    for number in range(10):
        world.do(mine__alice=number, mine__bob=number, allowed__alice=number)
    assert world.checks == checks
    assert all(watcher.received == list(range(10)) for watcher in granted)


def test_a_rule_that_reads_the_query_alone_depends_on_no_path(world: GrantsWorld) -> None:
    world.watch(("listed",), query=QueryFacts(limit_to_first=10))
    assert world.watched_paths == 0


def test_a_rule_that_reads_data_is_evaluated_again_only_for_what_it_read(
    world: GrantsWorld,
) -> None:
    world.do(allowed__alice=True)
    watcher = world.watch(GUARDED)
    assert world.watched_paths == 1
    checks = world.checks
    for number in range(10):
        world.do(secret=number, allowed__bob=number)
    assert world.checks == checks
    world.do(allowed__alice=True)
    assert world.checks == checks + 1
    assert (watcher.received, watcher.revoked) == (list(range(10)), 0)


def test_the_right_of_an_admin_is_never_checked(world: GrantsWorld) -> None:
    watcher = world.watch(GUARDED, ADMIN)
    assert (world.checks, world.watched_paths) == (0, 0)
    world.do(allowed=None, secret=1)
    world.rules.manage_by_file(rules({}))
    assert (watcher.received, watcher.revoked) == ([1], 0)


def test_a_closed_grant_depends_on_no_path(world: GrantsWorld) -> None:
    world.do(allowed__alice=True)
    watcher = world.watch(GUARDED)
    watcher.close()
    assert world.watched_paths == 0
    assert not world.database._grants.held
    world.do(allowed__alice=False)
    assert watcher.revoked == 0


def test_a_denied_grant_depends_on_no_path(world: GrantsWorld) -> None:
    with pytest.raises(PermissionDenied):
        world.watch(GUARDED)
    assert world.watched_paths == 0
    assert not world.database._grants.held


# When a grant is revoked.


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=6), st.lists(st.booleans(), max_size=6))
def test_what_was_written_before_the_revocation_is_received_and_nothing_after_it(
    before: list[bool], after: list[bool]
) -> None:
    """Each flag says whether a batch ends after its write."""
    world = GrantsWorld()
    world.do(allowed__alice=True)
    watcher = world.watch(GUARDED)
    for number, ends_batch in enumerate(before):
        world.patch(secret=number)
        if ends_batch:
            world.apply()
            world.disk.finish()
    world.patch(allowed__alice=False)
    for ends_batch in after:
        world.patch(secret="secret")
        if ends_batch:
            world.apply()
            world.disk.finish()
    world.apply()
    while world.disk.waiting:
        world.disk.finish()
    assert (watcher.received, watcher.revoked) == (list(range(len(before))), 1)


def test_in_a_thousand_races_the_write_after_the_revocation_is_never_received() -> None:
    random_source = random.Random(4)
    world = GrantsWorld()
    for number in range(1000):
        world.do(allowed__alice=True, secret=None)
        watcher = world.watch(GUARDED)
        steps: list[dict[str, Json]] = [
            {"secret": number},
            {"allowed__alice": False},
            {"secret": "the second"},
        ]
        if number % 4 == 0:
            steps[1:] = [{"allowed__alice": False, "secret": "the second"}]
        done = []
        for step in steps:
            done.append(world.patch(**step))
            if random_source.random() < 0.5:
                world.apply()
            if world.disk.waiting and random_source.random() < 0.5:
                world.disk.finish()
        while not all(one.called for one in done):
            world.apply()
            while world.disk.waiting:
                world.disk.finish()
        assert watcher.received == [number]
        assert watcher.revoked == 1
    assert world.watched_paths == 0


def test_a_grant_that_begins_while_a_commit_waits_is_revoked_by_that_commit(
    world: GrantsWorld,
) -> None:
    world.do(allowed__alice=True)
    world.patch(allowed__alice=False)
    world.patch(secret="secret")
    world.apply()
    watcher = world.watch(GUARDED)
    world.disk.finish()
    assert (watcher.received, watcher.revoked) == ([], 1)


def test_a_failed_commit_revokes_nothing(world: GrantsWorld) -> None:
    world.do(allowed__alice=True)
    watcher = world.watch(GUARDED)
    failed: list[Any] = []
    world.patch(allowed__alice=False).addErrback(failed.append)
    world.apply()
    world.disk.fail(DiskFull("full"))
    assert failed[0].check(Unavailable)
    assert watcher.revoked == 0
    assert world.database.read(lambda nodes: nodes.peek(("allowed", "alice"))) is True


def test_after_each_check_a_grant_depends_on_what_the_rule_read_last() -> None:
    world = GrantsWorld({".read": "root.child(root.child('which').val()).val() == 1"})
    world.do(which="a", a=1, b=1)
    watcher = world.watch(())
    world.do(which="b")
    world.do(a=2)
    assert watcher.revoked == 0
    assert world.watched_paths == 2
    world.do(b=2)
    assert watcher.revoked == 1


def test_new_rules_are_evaluated_at_once(world: GrantsWorld) -> None:
    world.do(allowed__alice=True)
    granted = [world.watch(GUARDED), world.watch(("mine", "alice"))]
    world.rules.manage_by_file(rules({"mine": {".read": True}}))
    world.do(secret=1, mine__alice=1)
    assert [(watcher.received, watcher.revoked) for watcher in granted] == [([], 1), ([1], 0)]


def test_rules_with_the_same_text_are_not_evaluated_again(world: GrantsWorld) -> None:
    world.watch(("mine", "alice"))
    checks = world.checks
    world.rules.manage_by_file(rules(RULES))
    assert world.checks == checks


def test_a_grant_that_depends_on_the_time_is_checked_whenever_something_is_sent(
    world: GrantsWorld,
) -> None:
    watcher = world.watch(("timed",))
    assert watcher.grant.is_timed
    assert world.watched_paths == 0
    world.do(timed=1)
    world.now = 3_000_000_000_000
    world.do(timed=2)
    assert (watcher.received, watcher.revoked) == ([1], 1)


def test_a_grant_that_cannot_be_checked_is_revoked() -> None:
    def read(work: Callable[[View], None]) -> None:
        if is_broken:
            raise RuntimeError("a store of a test")
        work(view({"allowed": {"alice": True}}))

    is_broken = False
    revoked: list[bool] = []
    in_force = SimpleNamespace(current=rules(RULES))
    rights = SimpleNamespace(context=Context)
    database: Any = SimpleNamespace(rules=in_force, rights=rights, read=read)
    grants = ReadGrants(database)
    request = ReadRequest(ALICE, GUARDED, None, lambda: NOW)
    one = ReadGrant(grants, request, lambda: revoked.append(True), lambda: None)
    read(one.check)
    other = ReadGrant(grants, request, lambda: revoked.append(True), lambda: None)
    read(other.check)
    assert one.recheck()
    is_broken = True
    in_force.current = rules(RULES)
    assert one.must_be_checked
    assert len(list(grants.recheck())) == 2
    assert revoked == [True, True]
    assert grants.watchers.count == 0


def test_a_right_that_was_lost_only_within_a_batch_is_lost(world: GrantsWorld) -> None:
    world.do(allowed__alice=True)
    watcher = world.watch(GUARDED)
    for places in ({"allowed__alice": False}, {"secret": "x"}, {"allowed__alice": True}):
        world.patch(**places)
    world.apply()
    world.disk.finish()
    assert (watcher.received, watcher.revoked, watcher.uncertain) == ([], 1, 0)


def test_a_right_that_every_write_of_a_batch_leaves_is_certain(world: GrantsWorld) -> None:
    world.do(allowed__alice=True)
    watcher = world.watch(GUARDED)
    for number in range(5):
        world.patch(secret=number, allowed__bob=number)
        world.patch(allowed__alice=True)
    world.apply()
    world.disk.finish()
    assert (watcher.received, watcher.revoked, watcher.uncertain) == ([0, 1, 2, 3, 4], 0, 0)


def test_what_a_rule_begins_to_read_within_a_batch_is_depended_on_at_once() -> None:
    world = GrantsWorld(
        {"secret": {".read": "root.child(root.child('where').val()).val() == true"}}
    )
    world.do(where="a", a=True, b=True)
    watcher = world.watch(GUARDED)
    for places in ({"where": "b"}, {"b": False}, {"b": True}):
        world.patch(**places)
    world.apply()
    world.disk.finish()
    assert (watcher.revoked, watcher.uncertain) == (1, 0)


def test_a_batch_that_touches_no_dependency_leaves_the_grant_certain(world: GrantsWorld) -> None:
    world.do(allowed__alice=True)
    watcher = world.watch(GUARDED)
    for number in range(3):
        world.patch(secret=number, allowed__bob=number)
    world.apply()
    world.disk.finish()
    assert (watcher.received, watcher.uncertain) == ([0, 1, 2], 0)


# Many grants, checked in slices.


def test_no_watcher_is_notified_before_all_grants_have_been_checked(world: GrantsWorld) -> None:
    world.do(allowed__alice=True)
    watchers = [world.watch(GUARDED) for _ in range(20)]
    world.clock.lag = SLICE_SECONDS / 2
    checks = world.checks
    world.patch(allowed__alice=False, secret=1)
    world.apply()
    world.disk.finish()
    turns = 0
    while world.checks < checks + 20:
        assert all(watcher.received == [] for watcher in watchers)
        world.clock.take_turn()
        turns += 1
    assert turns > 5
    world.clock.run()
    assert [(watcher.received, watcher.revoked) for watcher in watchers] == [([], 1)] * 20


def test_the_checks_of_5000_grants_leave_turns_to_others_and_come_before_what_was_written(
    world: GrantsWorld,
) -> None:
    world.do(allowed__alice=True)
    watchers = [world.watch(GUARDED) for _ in range(5000)]
    world.clock.lag = SLICE_SECONDS / 200
    world.patch(allowed__alice=False, secret=1)
    world.apply()
    checks = [world.checks]
    world.disk.finish()
    checks.append(world.checks)
    while world.clock.take_turn():
        checks.append(world.checks)
    assert checks[-1] == checks[0] + 5000
    most = (FIRST_SECONDS + SLICE_SECONDS) / world.clock.lag
    assert max(later - former for former, later in pairwise(checks)) <= most
    assert {(len(watcher.received), watcher.revoked) for watcher in watchers} == {(0, 1)}


def test_grants_are_checked_against_the_commit_before_the_next_one_is_applied(
    world: GrantsWorld,
) -> None:
    world.do(allowed__alice=True)
    watchers = [world.watch(GUARDED) for _ in range(20)]
    world.clock.lag = SLICE_SECONDS / 2
    world.patch(allowed__alice=False)
    world.apply()
    world.disk.finish()
    world.patch(allowed__alice=True, secret="regained")
    while world.clock.take_turn():
        if world.disk.waiting:
            world.disk.finish()
    assert [(watcher.received, watcher.revoked) for watcher in watchers] == [([], 1)] * 20


def test_new_rules_are_checked_in_slices_and_before_anything_is_sent(world: GrantsWorld) -> None:
    watchers = [world.watch(("mine", "alice")) for _ in range(20)]
    world.clock.lag = SLICE_SECONDS / 2
    world.rules.manage_by_file(rules({"mine": {".read": "auth.uid == 'bob'"}}))
    revoked = sum(watcher.revoked for watcher in watchers)
    assert 0 < revoked < 5
    assert sum(watcher.grant.must_be_checked for watcher in watchers) == 20 - revoked
    world.patch(mine__alice=1)
    world.apply()
    world.disk.finish()
    world.clock.run()
    assert [(watcher.received, watcher.revoked) for watcher in watchers] == [([], 1)] * 20


def test_rules_that_change_twice_are_checked_once_for_each_grant_that_is_left(
    world: GrantsWorld,
) -> None:
    watchers = [world.watch(("mine", "alice")) for _ in range(20)]
    world.clock.lag = SLICE_SECONDS / 2
    world.rules.manage_by_file(rules({"mine": {".read": "auth != null"}}))
    checks = world.checks
    world.rules.manage_by_file(rules({"mine": {".read": "auth.uid == 'alice'"}}))
    world.clock.run()
    assert world.checks == checks + 20
    assert not any(watcher.grant.must_be_checked for watcher in watchers)


def test_a_watcher_that_begins_while_grants_are_checked_is_notified_of_the_next_commit(
    world: GrantsWorld,
) -> None:
    world.do(allowed__alice=True)
    watchers = [world.watch(GUARDED) for _ in range(20)]
    world.clock.lag = SLICE_SECONDS / 2
    for _ in range(2):
        world.patch(allowed__alice=True, secret=1)
    world.apply()
    world.disk.finish()
    new = world.watch(GUARDED)
    world.clock.run()
    world.clock.lag = 0
    world.do(secret=2)
    assert (new.received, new.uncertain, new.revoked) == ([2], 0, 0)
    assert [(each.received, each.uncertain) for each in watchers] == [([1, 1, 2], 0)] * 20


# Whether a grant held all the while.


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
def test_a_grant_held_while_nothing_it_depends_on_was_written(
    world: GrantsWorld, path: Path, written: list[Path], held: bool
) -> None:
    world.do(allowed__alice=True)
    grant = world.watch(path).grant
    fingerprint = world.rules.current.fingerprint

    def held_through(*then: str) -> bool:
        paths = WrittenPaths(written)
        return world.database.read(lambda nodes: grant.held_through(1, nodes, paths, then))

    assert held_through(fingerprint) is held
    assert held_through("other rules") is False
    assert held_through(fingerprint, "other rules") is False


def test_a_put_above_a_path_that_was_read_revokes_the_grant(world: GrantsWorld) -> None:
    world.do(allowed__alice=True)
    watcher = world.watch(GUARDED)
    world.begin(make_put(Place(("allowed",)), {"bob": True}), now=NOW)
    world.apply()
    world.disk.finish()
    assert watcher.revoked == 1
