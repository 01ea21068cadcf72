"""A database over a disk that is slow or fails: what a watcher receives is what was committed.

A state machine writes, watches and runs the work of the disk step by step, so that several writes
are in one batch, and readers see a commit before any watcher has been notified of it. A model keeps
the tree as it was after every write. A follower applies the events that it receives, and must have
the tree of the model at each write up to which it has received them.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import attrs
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from tests.database.world import make_active_rules, make_database, run_at_once
from tests.examples import examples
from tests.replica import Replica
from tests.rules.evaluating import NOW, rules
from tests.tree.queries import query
from tests.tree.value_view import ValueView
from treedbd.database.database import Database
from treedbd.database.requests import (
    Caller,
    Condition,
    ConditionFailed,
    Outcome,
    PermissionDenied,
    Unavailable,
    Write,
)
from treedbd.database.resume import Resumption
from treedbd.database.rights import ReadRequest
from treedbd.database.runtime import Runtime
from treedbd.database.watchers import Notification
from treedbd.limits import MAX_RESUMED_BYTES, MAX_RESUMED_WRITES
from treedbd.rules.context import QueryFacts
from treedbd.store.changelog import TRIM_EVERY
from treedbd.store.engine import DiskFull, ReadView, StoreFailed
from treedbd.store.memory import MemoryEngine
from treedbd.store.node_writer import NodeWriter
from treedbd.store.nodes import Nodes
from treedbd.tree import value as printing
from treedbd.tree.edit import Edit, apply, make_patch, make_put, make_remove
from treedbd.tree.event import Position
from treedbd.tree.hashes import etag, parse_etags
from treedbd.tree.path import format_path
from treedbd.tree.query import Query, selection_to_json
from treedbd.tree.types import Json, Path, Place, Value
from treedbd.tree.value import members, plain

ADMIN = Caller(None, is_admin=True)
ALICE = Caller({"uid": "alice"})
RETAINED = 20

T = TypeVar("T")


class FailingEngine(MemoryEngine):
    """An engine whose next commit raises `error`, if it is set."""

    def __init__(self) -> None:
        super().__init__()
        self.error: Exception | None = None
        self._has_failed = False

    def begin(self) -> Any:
        """Open a transaction, unless the engine must be recovered first."""
        if self._has_failed:
            raise StoreFailed("An earlier commit failed.")
        return FailingTransaction(super().begin(), self)

    def recover(self) -> None:
        """Open transactions again."""
        self._has_failed = False

    def fail_once(self) -> None:
        """Raise the error, if it is set, and clear it."""
        error, self.error = self.error, None
        if error is not None:
            self._has_failed = isinstance(error, StoreFailed)
            raise error


class FailingTransaction:
    """A transaction whose commit may fail."""

    def __init__(self, inner: Any, engine: FailingEngine) -> None:
        self._inner = inner
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def commit(self) -> None:
        """Commit, or roll back and raise the error of the engine."""
        try:
            self._engine.fail_once()
        except Exception:
            self._inner.rollback()
            raise
        self._inner.commit()


class TwoStepDisk:
    """Runs commits at once or, if it `is_slow`, in two steps: the work, then its result."""

    def __init__(self) -> None:
        self.is_slow = False
        self.queued: list[Callable[[], None]] = []
        self.unreported: list[Callable[[], None]] = []

    def run(self, work: Callable[[], None]) -> Deferred[None]:
        """Queue blocking work; if the disk is not slow, run it and fire with its result."""
        done: Deferred[None] = Deferred()

        def step() -> None:
            result: Failure | None = None
            try:
                work()
            except Exception:
                result = Failure()
            self.unreported.append(lambda: done.callback(result))

        self.queued.append(step)
        if not self.is_slow:
            self.run_one()
            self.report_one()
        return done

    def run_one(self) -> None:
        """Run the oldest work."""
        self.queued.pop(0)()

    def report_one(self) -> None:
        """Fire with the oldest result."""
        self.unreported.pop(0)()


def child_values(nodes: Nodes, path: Path) -> list[tuple[str, Value]]:
    return [(child.key, child.value()) for child in nodes.children(path)]


class Follower:
    """A watcher that applies its events to a replica and compares that with the model."""

    def __init__(self, model: Model, path: Path, watched: Query | None) -> None:
        self.path = path
        self.query = watched
        self.replica = Replica()
        self.position = Position(0)
        self.history: list[tuple[Position, Replica]] = []
        self.error: Exception | None = None
        self._model = model

    def start(self) -> None:
        """Watch, starting with the present state."""
        database = self._model.database
        subscription = database.subscribe(self.path, self.query, self)

        def work(nodes: Nodes) -> Json:
            return printing.parse(b"".join(subscription.chunks(nodes)))

        first, sequence = subscription.watch(work)
        self.replica.apply("put", "/", first)
        self._move_to(database.watching.position(sequence))

    def resume(self, after: Position, replica: Replica) -> bool:
        """Watch from the position and replica of another one; return whether that is possible."""
        database = self._model.database
        request = ReadRequest(ADMIN, self.path, None, lambda: 0)
        grant = database.make_grant(request, lambda: None, lambda: None)
        self.position, self.replica = after, replica

        begun: list[Notification | None] = []
        may_continue = partial(grant.held_through, database.read(grant.check) or 0)
        database.resume(Resumption(self.path, after, self, may_continue, begun.append))
        while not begun:
            self._model.clock.advance(0)
        if begun[0] is None:
            return False
        for position, event in begun[0].events:
            self._receive(position, event.kind, event.path, event.data)
        return True

    def notify(self, notification: Notification) -> None:
        """Apply what was written; `check` raises the error if that fails."""
        try:
            assert not notification.is_missed
            for position, event in notification.events:
                self._receive(position, event.kind, event.path, event.data)
        except Exception as error:
            self.error = error

    def fail(self) -> None:
        """Let `check` raise the error that is being handled."""
        self.error = RuntimeError("The window has failed.")

    def revoke(self) -> None:
        """Let `check` raise an error: nothing is revoked here."""
        self.error = RuntimeError("The window was revoked.")

    def check(self) -> None:
        """Compare the replica with the model at its position, if the model has that state yet."""
        if self.error is not None:
            raise self.error
        self.check_at(self.position.sequence)

    def check_at(self, sequence: int) -> None:
        """Compare the replica with the model after a write, if the model has that state yet."""
        root = self._model.states.get(sequence)
        if root is None:
            return
        present = root.value.get(self.path)
        expected = (
            plain(present)
            if self.query is None
            else selection_to_json(self.query.select(members(present)))
        )
        assert self.replica.equals(expected), (self.path, self.position, expected)

    def _receive(self, position: Position, kind: str, path: Path, data: Json) -> None:
        assert position.sequence > self.position.sequence
        self.replica.apply(kind, format_path(path), data)
        self._move_to(position)

    def _move_to(self, position: Position) -> None:
        assert position.sequence >= self.position.sequence
        self.position = position
        if self.query is None:
            self.history.append((position, copy.deepcopy(self.replica)))
        self.check()


@attrs.frozen
class State:
    """The tree after a write; `sets_priority` if the write set the priority of a place."""

    value: ValueView
    sets_priority: bool = False


class Model:
    """A database, and the tree that it should hold after each write."""

    def __init__(self, retained: int = RETAINED) -> None:
        self.retained = retained
        self.clock = Clock()
        self.disk = TwoStepDisk()
        self.engine = FailingEngine()
        self.counter = itertools.count(1)
        runtime = Runtime(self.clock, self._op_id, self.disk.run)
        self.database = make_database(self.engine, runtime, retain_events=retained)
        self.root: Value = None
        self.states = {0: State(ValueView(None))}
        self.open_writes = 0

    @property
    def last(self) -> int:
        return max(self.states)

    def write(self, edit: Edit, condition: Condition | None = None) -> None:
        self.open_writes += 1
        write = Write(edit, now=1, caller=ADMIN, condition=condition)
        self.database.write(write).addCallback(self._succeeded).addErrback(self._refused)

    def finish(self) -> None:
        """Run until every write has been answered and no disk work remains."""
        disk = self.disk
        while self.open_writes or disk.queued or disk.unreported or self.database.write_problem:
            while disk.queued or disk.unreported:
                if disk.queued:
                    disk.run_one()
                disk.report_one()
            self.clock.advance(10)

    def is_resumable(self, after: Position) -> bool:
        """Return whether the events after a position can be computed from the log."""
        between = range(after.sequence + 1, self.last + 1)
        if any(self.states[each].sets_priority for each in between):
            return False
        return self.last - after.sequence <= self.retained

    def _succeeded(self, outcome: Outcome) -> None:
        self.open_writes -= 1
        if outcome.commit is None:
            assert not outcome.edit.changes or outcome.edit.place.is_priority
            assert apply(self.root, outcome.edit.changes) == self.root
            return
        sequence = outcome.commit.position.sequence
        assert sequence == self.last + 1
        self.root = apply(self.root, outcome.edit.changes)
        sets_priority = any(change.place.is_priority for change in outcome.edit.changes)
        self.states[sequence] = State(ValueView(self.root), sets_priority)

    def _refused(self, failure: Failure) -> None:
        failure.trap(ConditionFailed, Unavailable)
        self.open_writes -= 1

    def _op_id(self, size: int) -> bytes:
        return next(self.counter).to_bytes(8, "big") + bytes(size - 8)


def with_priority(pair: tuple[Any, int]) -> Any:
    body, priority = pair
    if isinstance(body, dict) and ".value" not in body:
        return {**body, ".priority": priority}
    is_leaf = not isinstance(body, dict | list)
    return {".value": body, ".priority": priority} if is_leaf else body


KEYS = st.sampled_from(["a", "b", "1", "2"])
UPPER_PATHS = st.sampled_from([(), ("a",)])
PATHS = UPPER_PATHS | st.lists(KEYS, max_size=3).map(tuple)
LEAVES = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["x", "y"])
BODIES = st.recursive(
    LEAVES,
    lambda inner: (
        st.dictionaries(KEYS, inner, max_size=3)
        | st.lists(inner, max_size=3)
        | st.tuples(inner, st.integers(0, 2)).map(with_priority)
    ),
    max_leaves=5,
)
PARTS = st.sampled_from(
    ["a", "a/b", "b/1", "/b/2", "1", "2/a/b", "a/1", "1/a/b", "1/a/.priority", "a/.priority"]
)
QUERIES = st.sampled_from(
    [
        query(orderBy='"$value"', limitToFirst="2"),
        query(orderBy='"$value"', startAt="0"),
        query(orderBy='"$key"', limitToLast="2"),
        query(orderBy='"$priority"', limitToFirst="1"),
        query(orderBy='"a"', limitToLast="1"),
        query(orderBy='"a/b"', endAt="1"),
    ]
)


class DatabaseMachine(RuleBasedStateMachine):
    """Writes, watchers and disk work in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.followers: list[Follower] = []
        self.former: list[Follower] = []

    @rule(path=PATHS, body=BODIES)
    def put(self, path: Path, body: Json) -> None:
        self.model.write(make_put(Place(path), body))

    @rule(path=PATHS)
    def put_priority(self, path: Path) -> None:
        self.model.write(make_put(Place(path, is_priority=True), 1))

    @rule(path=PATHS)
    def increment(self, path: Path) -> None:
        self.model.write(make_put(Place(path), {".sv": {"increment": 1}}))

    @initialize(body=st.dictionaries(KEYS, st.integers(-3, 3), min_size=4))
    def begin(self, body: dict[str, Json]) -> None:
        self.fill((), body | {"a": body})
        self.model.finish()

    @rule(path=UPPER_PATHS, body=st.dictionaries(KEYS, st.integers(-3, 3), min_size=3))
    def fill(self, path: Path, body: Json) -> None:
        self.model.write(make_put(Place(path), body))

    @rule(path=UPPER_PATHS, key=KEYS, body=LEAVES)
    def put_child(self, path: Path, key: str, body: Json) -> None:
        self.model.write(make_put(Place((*path, key)), body))

    @rule(path=PATHS)
    def remove(self, path: Path) -> None:
        self.model.write(make_remove(Place(path)))

    @rule(path=st.just(()) | PATHS, parts=st.dictionaries(PARTS, BODIES, max_size=4))
    def patch(self, path: Path, parts: dict[str, Json]) -> None:
        names = [tuple(name.strip("/").split("/")) for name in parts]
        pairs = itertools.permutations(names, 2)
        if not any(low[: len(high)] == high for high, low in pairs):
            sent = {k: 1 if k.endswith(".priority") else v for k, v in parts.items()}
            self.model.write(make_patch(path, sent))

    @rule(path=PATHS, body=BODIES, is_right=st.booleans())
    def compare_and_swap(self, path: Path, body: Json, is_right: bool) -> None:
        known = plain(ValueView(self.model.root).get(path)) if is_right else "something else"
        tags = parse_etags(etag(known))
        assert tags is not None
        self.model.write(make_put(Place(path), body), Condition(Place(path), tags))

    @rule()
    def advance_turn(self) -> None:
        self.model.clock.advance(0)

    @rule()
    def advance_time(self) -> None:
        self.model.clock.advance(1)

    @rule(is_slow=st.booleans())
    def change_disk(self, is_slow: bool) -> None:
        self.model.disk.is_slow = is_slow

    @rule(error=st.sampled_from([DiskFull("full"), StoreFailed("failed")]))
    def fail_next_commit(self, error: Exception) -> None:
        self.model.engine.error = error

    @precondition(lambda self: self.model.disk.queued)
    @rule()
    def run_disk_work(self) -> None:
        self.model.disk.run_one()

    @precondition(lambda self: self.model.disk.unreported)
    @rule()
    def report_disk_work(self) -> None:
        self.model.disk.report_one()

    @rule(path=PATHS)
    def watch(self, path: Path) -> None:
        self.follow(path, None)

    @rule(path=UPPER_PATHS, watched=QUERIES)
    def watch_query(self, path: Path, watched: Query) -> None:
        self.follow(path, watched)

    def follow(self, path: Path, watched: Query | None) -> None:
        follower = Follower(self.model, path, watched)
        follower.start()
        self.followers.append(follower)

    @precondition(lambda self: self.followers)
    @rule(number=st.integers(0, 9))
    def watch_again(self, number: int) -> None:
        self.followers[number % len(self.followers)].start()

    @precondition(lambda self: self.followers)
    @rule(number=st.integers(0, 9))
    def unwatch(self, number: int) -> None:
        follower = self.followers.pop(number % len(self.followers))
        self.model.database.watching.watchers.remove(follower.path, follower)
        self.former.append(follower)

    @precondition(lambda self: any(each.history for each in self.former))
    @rule(number=st.integers(0, 9), back=st.integers(0, 6))
    def resume(self, number: int, back: int) -> None:
        candidates = [each for each in self.former if each.history]
        former = candidates[number % len(candidates)]
        after, replica = former.history[max(-back - 1, -len(former.history))]
        follower = Follower(self.model, former.path, None)
        is_unreported = bool(self.model.disk.unreported)
        is_resumed = follower.resume(after, copy.deepcopy(replica))
        if is_resumed:
            self.followers.append(follower)
        else:
            assert is_unreported or not self.model.is_resumable(after)

    @rule()
    def finish(self) -> None:
        self.model.finish()
        assert self.model.database.read(lambda nodes: nodes.get(())) == self.model.root
        for follower in self.followers:
            follower.check_at(self.model.last)

    @invariant()
    def followers_agree_with_the_model(self) -> None:
        for follower in self.followers:
            follower.check()

    def teardown(self) -> None:
        self.finish()
        closed = self.model.database.close()
        assert closed.called


DatabaseMachine.TestCase.settings = settings(
    max_examples=examples(250), stateful_step_count=50, deadline=None
)
TestDatabase = DatabaseMachine.TestCase


@pytest.fixture
def model() -> Model:
    return Model()


def follow(model: Model, *path: str) -> Follower:
    follower = Follower(model, path, None)
    follower.start()
    return follower


def test_watchers_are_not_notified_of_a_commit_that_fails(model: Model) -> None:
    follower = follow(model)
    model.engine.error = DiskFull("full")
    model.write(make_put(Place(("a",)), 1))
    model.finish()
    assert follower.position == Position(0)
    assert follower.replica.tree is None
    model.write(make_put(Place(("a",)), 2))
    model.finish()
    assert follower.position.sequence == 1
    assert follower.replica.tree == {"a": 2}


def test_watchers_are_notified_only_of_what_is_durable(model: Model) -> None:
    follower = follow(model)
    model.disk.is_slow = True
    model.write(make_put(Place(("a",)), 1))
    model.clock.advance(0)
    assert follower.position == Position(0)
    model.disk.run_one()
    assert follower.position == Position(0)
    model.disk.report_one()
    assert follower.replica.tree == {"a": 1}


def test_a_watcher_that_starts_before_a_commit_is_reported_receives_it_when_it_is(
    model: Model,
) -> None:
    model.disk.is_slow = True
    model.write(make_put(Place(("a",)), 1))
    model.clock.advance(0)
    model.disk.run_one()
    follower = follow(model)
    assert follower.replica.tree is None
    assert len(follower.history) == 1
    model.disk.report_one()
    follower.check()
    assert follower.replica.tree == {"a": 1}
    assert len(follower.history) == 2


def test_a_position_of_another_history_cannot_be_resumed(model: Model) -> None:
    for _ in range(3):
        model.write(make_put(Place(("a",)), 1))
    model.finish()
    other = Model()
    other.counter = itertools.count(1000)
    for _ in range(3):
        other.write(make_put(Place(("a",)), 1))
    other.finish()
    for sequence in (1, 2, 3):
        foreign = other.database.watching.position(sequence)
        assert Follower(model, (), None).resume(
            model.database.watching.position(sequence), Replica()
        )
        assert not Follower(model, (), None).resume(foreign, Replica())
        assert not Follower(model, (), None).resume(Position(sequence), Replica())
    assert not Follower(model, (), None).resume(Position(4, b"op"), Replica())
    assert Follower(model, (), None).resume(Position(0), Replica())


def test_a_client_that_missed_more_than_the_log_has_starts_again(model: Model) -> None:
    for _ in range(TRIM_EVERY):
        model.write(make_put(Place(("a",)), 1))
    model.finish()
    assert not Follower(model, (), None).resume(Position(0), Replica())
    dropped = model.database.watching.position(TRIM_EVERY - RETAINED - 1)
    assert not Follower(model, (), None).resume(dropped, Replica())
    oldest = model.database.watching.position(TRIM_EVERY - RETAINED)
    follower = Follower(model, (), None)
    assert follower.resume(oldest, Replica())
    assert len(follower.history) == RETAINED


def test_what_is_no_longer_retained_is_not_sent_though_the_log_still_has_it(model: Model) -> None:
    for _ in range(RETAINED):
        model.write(make_put(Place(("a",)), 1))
    model.finish()
    first = model.database.watching.position(1)
    assert Follower(model, (), None).resume(Position(0), Replica())
    for _ in range(2):
        model.write(make_put(Place(("a",)), 1))
    model.finish()
    assert not Follower(model, (), None).resume(Position(0), Replica())
    assert not Follower(model, (), None).resume(first, Replica())
    assert Follower(model, (), None).resume(model.database.watching.position(2), Replica())


def test_a_position_before_the_first_write_names_none(model: Model) -> None:
    model.write(make_put(Place(("a",)), 1))
    model.finish()
    known = model.database.watching.position(1)
    assert Follower(model, (), None).resume(Position(0), Replica())
    assert not Follower(model, (), None).resume(Position(0, known.op_id), Replica())


@pytest.mark.parametrize(
    ("watched", "is_read"),
    [(("b",), False), (("a", "k1"), False), (("c", "d"), False), (("a",), True), ((), True)],
)
def test_a_large_node_whose_priority_is_set_is_read_only_if_it_is_watched(
    model: Model, watched: Path, is_read: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model.write(make_put(Place(("a",)), {f"k{at}": "x" * 1000 for at in range(20)}))
    model.finish()
    Follower(model, watched, None).start()
    read: list[Path] = []
    get = Nodes.get

    def record(nodes: Nodes, path: Path) -> Value:
        read.append(path)
        return get(nodes, path)

    monkeypatch.setattr(Nodes, "get", record)
    model.write(make_put(Place(("a",), is_priority=True), 5))
    model.finish()
    assert read == ([("a",)] if is_read else [])


def test_a_client_that_missed_a_priority_starts_again(model: Model) -> None:
    model.write(make_put(Place(("a", "b")), 1))
    model.finish()
    before = model.database.watching.position(1)
    model.write(make_put(Place(("a",), is_priority=True), 5))
    model.finish()
    assert not Follower(model, (), None).resume(before, Replica())
    assert not Follower(model, ("a", "b"), None).resume(before, Replica())
    assert Follower(model, ("c",), None).resume(before, Replica())


def test_a_client_that_missed_too_many_writes_starts_again() -> None:
    model = Model(retained=2 * MAX_RESUMED_WRITES)
    for _ in range(MAX_RESUMED_WRITES + 1):
        model.write(make_put(Place(("a",)), 1))
    model.finish()
    second = model.database.watching.position(1)
    model.clock.advance(0)
    assert Follower(model, (), None).resume(second, Replica())
    assert not Follower(model, (), None).resume(Position(0), Replica())


def test_a_client_that_missed_too_many_bytes_starts_again() -> None:
    model = Model(retained=MAX_RESUMED_WRITES)
    size = 60_000
    for _ in range(MAX_RESUMED_BYTES // size + 2):
        model.write(make_put(Place(("a",)), "x" * size))
    model.finish()
    assert not Follower(model, (), None).resume(model.database.watching.position(1), Replica())
    assert Follower(model, (), None).resume(model.database.watching.position(10), Replica())


# Reads that the rules allow, and how often a database does its work.


def open_database(nodes: Any, content: Json = None) -> tuple[Database, Clock]:
    """Return a database with rules and content; its writes are done when the clock advances."""
    clock = Clock()
    runtime = Runtime(clock, bytes, run_at_once)
    active = make_active_rules(run_at_once, rules(nodes))
    database = make_database(MemoryEngine(), runtime, active)
    database.write(Write(make_put(Place(()), content), NOW, ADMIN))
    clock.advance(0)
    return database, clock


def may_read(database: Database, caller: Caller, now: int, query_facts: QueryFacts | None) -> bool:
    def work(nodes: Nodes) -> bool:
        try:
            database.check_read(ReadRequest(caller, ("a",), query_facts, lambda: now), nodes)
        except PermissionDenied:
            return False
        return True

    return database.read(work)


def test_a_read_that_the_rules_deny_is_refused_but_never_to_an_admin() -> None:
    database, _ = open_database({})
    assert not may_read(database, ALICE, NOW, None)
    assert may_read(database, ADMIN, NOW, None)


def test_a_read_is_allowed_by_auth_time_data_and_query() -> None:
    test = f"auth.uid == 'alice' && now == {NOW} && data.val() == 1 && query.limitToFirst == 2"
    nodes = {"a": {".read": test}}
    database, _ = open_database(nodes, {"a": 1})
    empty, _ = open_database(nodes)
    facts = QueryFacts(limit_to_first=2)
    assert may_read(database, ALICE, NOW, facts)
    assert not may_read(database, Caller(None), NOW, facts)
    assert not may_read(database, ALICE, NOW + 1, facts)
    assert not may_read(empty, ALICE, NOW, facts)
    assert not may_read(database, ALICE, NOW, None)


def test_a_write_is_authorised_compared_and_applied_on_one_view(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    test = "root.child('a').val() < 9"
    database, clock = open_database({".read": test, ".write": test, ".validate": test}, {"a": 1})
    views: list[type[Nodes]] = []
    init = Nodes.__init__

    def record(nodes: Nodes, rows: ReadView) -> None:
        views.append(type(nodes))
        init(nodes, rows)

    monkeypatch.setattr(Nodes, "__init__", record)
    edit = make_patch((), {"a": {".sv": {"increment": 1}}, "b": [2]})
    condition = Condition(Place(()), parse_etags(etag({"a": 1})))
    outcomes: list[Outcome] = []
    write = Write(edit, NOW, ALICE, condition, wants_etag=True)
    database.write(write).addCallback(outcomes.append)
    clock.advance(0)
    assert [outcome.etag for outcome in outcomes] == [etag({"a": 2, "b": [2]})]
    assert views == [NodeWriter]


def test_watching_reads_the_first_state_once() -> None:
    database, _ = open_database({}, {"a": 1})
    states: list[Value] = []

    class IgnoringWatcher:
        def notify(self, notification: Notification) -> None: ...

    def work(nodes: Nodes) -> str:
        states.append(nodes.get(()))
        return "result"

    assert database.watching.watch((), IgnoringWatcher(), work) == ("result", 1)
    assert states == [{"a": 1}]
