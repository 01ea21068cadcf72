"""A database under a disk that is slow or fails: who watches knows what is there, always.

A state machine writes, watches and lets the disk do its work step by step, so that several writes
fall into one batch and commits are seen by readers before anyone has been told of them. A model
keeps the tree as it was after every write. Whoever watches applies what it hears, and must have
what the model has at each write it has heard of.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import attrs
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from tests.database.world import bare_rulebook
from tests.mirror import Mirror
from treedbd.database.database import TRIM_EVERY, Database
from treedbd.database.permit import Claim
from treedbd.database.platform import Platform
from treedbd.database.question import (
    Caller,
    Condition,
    ConditionFailed,
    Outcome,
    Unavailable,
    Write,
)
from treedbd.database.resume import MOST_RESUMED, MOST_RESUMED_BYTES
from treedbd.database.watchers import Notice
from treedbd.store.mapping import Failed, Full
from treedbd.store.memory import MemoryMapping
from treedbd.store.nodes import Nodes
from treedbd.tree.canonical import parse_tags, tag
from treedbd.tree.edit import Edit, apply, make_patch, make_put, make_remove
from treedbd.tree.event import Position
from treedbd.tree.path import Path, Place, format_path
from treedbd.tree.query import Query, parse_query, print_selection
from treedbd.tree.value import Json, Value, members, plain
from treedbd.tree.view import ValueView
from treedbd.tree.window import Window, written_children

ADMIN = Caller(None, is_admin=True)
RETAINED = 20


class UnluckyMapping(MemoryMapping):
    """A mapping whose next commit may fail."""

    def __init__(self) -> None:
        super().__init__()
        self.trouble: Exception | None = None
        self._is_broken = False

    def begin(self) -> Any:
        """Open a transaction, unless the mapping waits to be recovered."""
        if self._is_broken:
            raise Failed("It broke before.")
        return UnluckyTransaction(super().begin(), self)

    def recover(self) -> None:
        """Be well again."""
        self._is_broken = False

    def strike(self) -> None:
        """Raise what is due, once."""
        trouble, self.trouble = self.trouble, None
        if trouble is not None:
            self._is_broken = isinstance(trouble, Failed)
            raise trouble


class UnluckyTransaction:
    """A transaction whose commit may fail."""

    def __init__(self, inner: Any, mapping: UnluckyMapping) -> None:
        self._inner = inner
        self._mapping = mapping

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def commit(self) -> None:
        """Commit, or leave nothing behind."""
        try:
            self._mapping.strike()
        except Exception:
            self._inner.rollback()
            raise
        self._inner.commit()


class Disk:
    """Where commits are run: at once, or in two steps, first done and then told."""

    def __init__(self) -> None:
        self.is_slow = False
        self.undone: list[Callable[[], None]] = []
        self.untold: list[Callable[[], None]] = []

    def run(self, work: Callable[[], None]) -> Deferred[None]:
        """Run what blocks."""
        done: Deferred[None] = Deferred()

        def step() -> None:
            result: Failure | None = None
            try:
                work()
            except Exception:
                result = Failure()
            self.untold.append(lambda: done.callback(result))

        self.undone.append(step)
        if not self.is_slow:
            self.do_one()
            self.tell_one()
        return done

    def do_one(self) -> None:
        """Do what came first."""
        self.undone.pop(0)()

    def tell_one(self) -> None:
        """Tell that it is done."""
        self.untold.pop(0)()


def query(**parameters: str) -> Query:
    parsed = parse_query(parameters)
    assert parsed is not None
    return parsed


def child_values(nodes: Nodes, path: Path) -> list[tuple[str, Value]]:
    return [(child.key, child.value()) for child in nodes.children(path)]


def show(nodes: Nodes, path: Path, asked: Query | None) -> Json:
    """Return what a watcher of a path, or of a query at it, begins with."""
    if asked is None:
        return plain(nodes.get(path))
    return print_selection(asked.select(child_values(nodes, path)))


def show_to(follower: Follower, nodes: Nodes) -> Json:
    """Return what is there for a follower to see."""
    return show(nodes, follower.path, follower.query)


class Follower:
    """Watches, applies what it hears, and compares it with the model."""

    def __init__(self, model: Model, path: Path, asked: Query | None) -> None:
        self.path = path
        self.query = asked
        self.mirror = Mirror()
        self.position = Position(0)
        self.past: list[tuple[Position, Mirror]] = []
        self.window: Window | None = None
        self.broken: Exception | None = None
        self._model = model

    def start(self) -> None:
        """Begin with what is there."""

        def work(nodes: Nodes) -> Json:
            if self.query is not None:
                selected = self.query.select(child_values(nodes, self.path))
                self.window = Window(self.query, selected)
            return show(nodes, self.path, self.query)

        database = self._model.database
        first, sequence = database.watch(self.path, self, work)
        self.mirror.apply("put", "/", first)
        self._reach(database.position(sequence))

    def resume(self, after: Position, mirror: Mirror) -> bool:
        """Go on from where another one was; tell whether that is known."""
        database = self._model.database
        claim = Claim(ADMIN, self.path, None, lambda: 0)
        self.position, self.mirror = after, mirror
        missed = database.resume(
            self.path, self, after, database.permit(claim, lambda: None, lambda: None)
        )
        for position, event in missed or ():
            self._hear(position, event.kind, event.path, event.data)
        return missed is not None

    def notify(self, notice: Notice) -> None:
        """Hear what was written; what is wrong with it is raised by `check`."""
        try:
            self._take(notice)
        except Exception as error:
            self.broken = error

    def _take(self, notice: Notice) -> None:
        if self.window is None:
            for position, event in notice.events:
                self._hear(position, event.kind, event.path, event.data)
            return
        written = written_children(event for _, event in notice.events)
        window, asked = self.window, self.query
        assert asked is not None

        def move(nodes: Nodes) -> None:
            select = lambda: asked.select(child_values(nodes, self.path))  # noqa: E731
            for event in window.move(written, self.path, nodes, select):
                assert len(event.path) == 1
                self.mirror.apply(event.kind, format_path(event.path), event.data)

        self._model.database.read(move)
        self._reach(notice.events[-1][0])

    def check(self) -> None:
        """Compare what is known with what was there at that time, if that is known yet."""
        if self.broken is not None:
            raise self.broken
        root = self._model.states.get(self.position.sequence)
        if root is None or self.position.events is not None:
            return
        there = root.value.get(self.path)
        expected = (
            plain(there)
            if self.query is None
            else print_selection(self.query.select(members(there)))
        )
        assert self.mirror.shows(expected), (self.path, self.position, expected)

    def _hear(self, position: Position, kind: str, path: Path, data: Json) -> None:
        before = self.position
        is_next_of_same = before.events is not None and (
            before.sequence == position.sequence
            and position.events in (before.events + 1, None)
            and position.op_id == before.op_id
        )
        assert position.sequence > before.sequence or is_next_of_same
        if position.sequence > before.sequence:
            assert before.events is None
            assert position.events in (1, None)
        self.mirror.apply(kind, format_path(path), data)
        self._reach(position)

    def _reach(self, position: Position) -> None:
        assert position.sequence >= self.position.sequence
        self.position = position
        if self.query is None:
            self.past.append((position, copy.deepcopy(self.mirror)))
        self.check()


@attrs.frozen
class State:
    """The tree after a write; `has_priorities` if the write set one."""

    value: ValueView
    has_priorities: bool = False


class Model:
    """A database, and what should be in it."""

    def __init__(self, retained: int = RETAINED) -> None:
        self.retained = retained
        self.clock = Clock()
        self.disk = Disk()
        self.mapping = UnluckyMapping()
        self.counter = itertools.count(1)
        rulebook = bare_rulebook(self.disk.run)
        platform = Platform(self.clock, self._op_id, self.disk.run)
        self.database = Database(self.mapping, rulebook, platform, retained)
        self.root: Value = None
        self.states = {0: State(ValueView(None))}
        self.open_writes = 0

    @property
    def last(self) -> int:
        return max(self.states)

    def write(self, edit: Edit, condition: Condition | None = None) -> None:
        self.open_writes += 1
        write = Write(edit, now=1, caller=ADMIN, condition=condition)
        self.database.write(write).addCallback(self._done).addErrback(self._refused)

    def settle(self) -> None:
        """Let everything come to rest."""
        while self.open_writes or self.disk.undone or self.disk.untold or self.database.trouble:
            while self.disk.undone or self.disk.untold:
                if self.disk.undone:
                    self.disk.do_one()
                self.disk.tell_one()
            self.clock.advance(10)

    def is_known(self, after: Position) -> bool:
        """Tell whether a watcher that has heard so far can be told the rest."""
        between = range(after.sequence if after.events else after.sequence + 1, self.last + 1)
        if any(self.states[each].has_priorities for each in between):
            return False
        return self.last - after.sequence <= self.retained

    def _done(self, outcome: Outcome) -> None:
        self.open_writes -= 1
        if outcome.telling is None:
            assert not outcome.edit.changes or outcome.edit.place.of_priority
            assert apply(self.root, outcome.edit.changes) == self.root
            return
        sequence = outcome.telling.position.sequence
        assert sequence == self.last + 1
        self.root = apply(self.root, outcome.edit.changes)
        sets_priority = any(change.place.of_priority for change in outcome.edit.changes)
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
    """Writers, watchers and a disk, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.followers: list[Follower] = []
        self.gone: list[Follower] = []

    @rule(path=PATHS, body=BODIES)
    def put(self, path: Path, body: Json) -> None:
        self.model.write(make_put(Place(path), body))

    @rule(path=PATHS)
    def put_priority(self, path: Path) -> None:
        self.model.write(make_put(Place(path, of_priority=True), 1))

    @rule(path=PATHS)
    def increment(self, path: Path) -> None:
        self.model.write(make_put(Place(path), {".sv": {"increment": 1}}))

    @initialize(body=st.dictionaries(KEYS, st.integers(-3, 3), min_size=4))
    def begin(self, body: Json) -> None:
        self.fill((), body | {"a": body})
        self.model.settle()

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
        tags = parse_tags(tag(known))
        assert tags is not None
        self.model.write(make_put(Place(path), body), Condition(Place(path), tags))

    @rule()
    def pass_a_turn(self) -> None:
        self.model.clock.advance(0)

    @rule()
    def pass_time(self) -> None:
        self.model.clock.advance(1)

    @rule(is_slow=st.booleans())
    def change_disk(self, is_slow: bool) -> None:
        self.model.disk.is_slow = is_slow

    @rule(trouble=st.sampled_from([Full("full"), Failed("failed")]))
    def break_next_commit(self, trouble: Exception) -> None:
        self.model.mapping.trouble = trouble

    @precondition(lambda self: self.model.disk.undone)
    @rule()
    def let_disk_work(self) -> None:
        self.model.disk.do_one()

    @precondition(lambda self: self.model.disk.untold)
    @rule()
    def let_disk_tell(self) -> None:
        self.model.disk.tell_one()

    @rule(path=PATHS)
    def watch(self, path: Path) -> None:
        self.follow(path, None)

    @rule(path=UPPER_PATHS, asked=QUERIES)
    def watch_query(self, path: Path, asked: Query) -> None:
        self.follow(path, asked)

    def follow(self, path: Path, asked: Query | None) -> None:
        follower = Follower(self.model, path, asked)
        follower.start()
        self.followers.append(follower)

    @precondition(lambda self: self.followers)
    @rule(number=st.integers(0, 9))
    def watch_anew(self, number: int) -> None:
        self.followers[number % len(self.followers)].start()

    @precondition(lambda self: self.followers)
    @rule(number=st.integers(0, 9))
    def unwatch(self, number: int) -> None:
        follower = self.followers.pop(number % len(self.followers))
        self.model.database.unwatch(follower.path, follower)
        self.gone.append(follower)

    @precondition(lambda self: any(each.past for each in self.gone))
    @rule(number=st.integers(0, 9), back=st.integers(0, 6))
    def resume(self, number: int, back: int) -> None:
        leavers = [each for each in self.gone if each.past]
        leaver = leavers[number % len(leavers)]
        after, mirror = leaver.past[max(-back - 1, -len(leaver.past))]
        follower = Follower(self.model, leaver.path, None)
        is_untold = bool(self.model.disk.untold)
        is_resumed = follower.resume(after, copy.deepcopy(mirror))
        if is_resumed:
            self.followers.append(follower)
        else:
            assert is_untold or not self.model.is_known(after)

    @rule()
    def settle(self) -> None:
        self.model.settle()
        assert self.model.database.read(lambda nodes: nodes.get(())) == self.model.root
        for follower in self.followers:
            shown = self.model.database.read(partial(show_to, follower))
            assert follower.mirror.shows(shown), (follower.path, follower.query)

    @invariant()
    def everyone_knows_what_was_there(self) -> None:
        for follower in self.followers:
            follower.check()

    def teardown(self) -> None:
        self.settle()
        closed = self.model.database.close()
        assert closed.called


DatabaseMachine.TestCase.settings = settings(
    max_examples=250, stateful_step_count=50, deadline=None
)
TestDatabase = DatabaseMachine.TestCase


@pytest.fixture
def model() -> Model:
    return Model()


def follow(model: Model, *path: str) -> Follower:
    follower = Follower(model, path, None)
    follower.start()
    return follower


def test_a_commit_that_fails_is_told_to_nobody(model: Model) -> None:
    follower = follow(model)
    model.mapping.trouble = Full("full")
    model.write(make_put(Place(("a",)), 1))
    model.settle()
    assert follower.position == Position(0)
    assert follower.mirror.tree is None
    model.write(make_put(Place(("a",)), 2))
    model.settle()
    assert follower.position.sequence == 1
    assert follower.mirror.tree == {"a": 2}


def test_nothing_is_heard_before_it_is_durable(model: Model) -> None:
    follower = follow(model)
    model.disk.is_slow = True
    model.write(make_put(Place(("a",)), 1))
    model.clock.advance(0)
    assert follower.position == Position(0)
    model.disk.do_one()
    assert follower.position == Position(0)
    model.disk.tell_one()
    assert follower.mirror.tree == {"a": 1}


def test_who_begins_with_a_commit_nobody_was_told_of_does_not_hear_of_it_again(
    model: Model,
) -> None:
    model.disk.is_slow = True
    model.write(make_put(Place(("a",)), 1))
    model.clock.advance(0)
    model.disk.do_one()
    follower = follow(model)
    assert follower.mirror.tree == {"a": 1}
    assert len(follower.past) == 1
    model.disk.tell_one()
    follower.check()
    assert len(follower.past) == 1


def test_who_was_cut_off_inside_a_write_hears_the_rest_of_it(model: Model) -> None:
    follower = follow(model, "a")
    model.write(make_patch((), {"a/b": 1, "a/c": 2, "a/d": 3}))
    model.settle()
    after, mirror = follower.past[2]
    assert mirror.tree == {"b": 1, "c": 2}
    other = Follower(model, ("a",), None)
    assert other.resume(after, mirror)
    assert other.mirror.tree == {"b": 1, "c": 2, "d": 3}
    assert len(other.past) == 1


def test_a_position_of_another_history_is_not_known(model: Model) -> None:
    for _ in range(3):
        model.write(make_put(Place(("a",)), 1))
    model.settle()
    other = Model()
    other.counter = itertools.count(1000)
    for _ in range(3):
        other.write(make_put(Place(("a",)), 1))
    other.settle()
    for sequence in (1, 2, 3):
        theirs = other.database.position(sequence)
        assert Follower(model, (), None).resume(model.database.position(sequence), Mirror())
        assert not Follower(model, (), None).resume(theirs, Mirror())
        assert not Follower(model, (), None).resume(Position(sequence), Mirror())
    assert not Follower(model, (), None).resume(Position(4, b"op"), Mirror())
    assert Follower(model, (), None).resume(Position(0), Mirror())


def test_who_missed_what_is_not_retained_starts_anew(model: Model) -> None:
    for _ in range(TRIM_EVERY):
        model.write(make_put(Place(("a",)), 1))
    model.settle()
    assert not Follower(model, (), None).resume(Position(0), Mirror())
    gone = model.database.position(TRIM_EVERY - RETAINED - 1)
    assert not Follower(model, (), None).resume(gone, Mirror())
    oldest = model.database.position(TRIM_EVERY - RETAINED)
    follower = Follower(model, (), None)
    assert follower.resume(oldest, Mirror())
    assert len(follower.past) == RETAINED


def test_what_is_no_longer_retained_is_not_told_though_the_log_has_it_still(model: Model) -> None:
    for _ in range(RETAINED):
        model.write(make_put(Place(("a",)), 1))
    model.settle()
    first = model.database.position(1)
    assert Follower(model, (), None).resume(Position(0), Mirror())
    for _ in range(2):
        model.write(make_put(Place(("a",)), 1))
    model.settle()
    assert not Follower(model, (), None).resume(Position(0), Mirror())
    assert not Follower(model, (), None).resume(first, Mirror())
    assert Follower(model, (), None).resume(model.database.position(2), Mirror())


def test_a_position_that_no_event_had_is_not_known(model: Model) -> None:
    model.write(make_patch((), {"a/b": 1, "a/c": 2, "d": 3}))
    model.settle()
    told = model.database.position(1)
    assert not Follower(model, (), None).resume(Position(0, told.op_id), Mirror())
    half = Mirror()
    half.apply("put", "/b", 1)
    assert Follower(model, ("a",), None).resume(told._replace(events=1), half)
    for events in (2, 99):
        nobodys = told._replace(events=events)
        assert not Follower(model, ("a",), None).resume(nobodys, Mirror())
    assert not Follower(model, ("e",), None).resume(told._replace(events=1), Mirror())


@pytest.mark.parametrize(
    ("where", "is_read"),
    [(("b",), False), (("a", "k1"), False), (("c", "d"), False), (("a",), True), ((), True)],
)
def test_a_large_node_whose_priority_is_set_is_read_only_if_somebody_hears_it(
    model: Model, where: Path, is_read: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model.write(make_put(Place(("a",)), {f"k{at}": "x" * 1000 for at in range(20)}))
    model.settle()
    Follower(model, where, None).start()
    read: list[Path] = []
    get = Nodes.get

    def noted(nodes: Nodes, path: Path) -> Value:
        read.append(path)
        return get(nodes, path)

    monkeypatch.setattr(Nodes, "get", noted)
    model.write(make_put(Place(("a",), of_priority=True), 5))
    model.settle()
    assert read == ([("a",)] if is_read else [])


def test_who_missed_a_priority_starts_anew(model: Model) -> None:
    model.write(make_put(Place(("a", "b")), 1))
    model.settle()
    before = model.database.position(1)
    model.write(make_put(Place(("a",), of_priority=True), 5))
    model.settle()
    assert not Follower(model, (), None).resume(before, Mirror())
    assert not Follower(model, ("a", "b"), None).resume(before, Mirror())
    assert Follower(model, ("c",), None).resume(before, Mirror())


def test_who_missed_too_much_starts_anew() -> None:
    model = Model(retained=2 * MOST_RESUMED)
    for _ in range(MOST_RESUMED + 1):
        model.write(make_put(Place(("a",)), 1))
    model.settle()
    second = model.database.position(1)
    model.clock.advance(0)
    assert Follower(model, (), None).resume(second, Mirror())
    assert not Follower(model, (), None).resume(Position(0), Mirror())


def test_who_missed_too_many_bytes_starts_anew() -> None:
    model = Model(retained=MOST_RESUMED)
    size = 60_000
    for _ in range(MOST_RESUMED_BYTES // size + 2):
        model.write(make_put(Place(("a",)), "x" * size))
    model.settle()
    assert not Follower(model, (), None).resume(model.database.position(1), Mirror())
    assert Follower(model, (), None).resume(model.database.position(10), Mirror())
