"""Two databases over one shelf, as two workers have it; each has its own descriptors and locks."""

from __future__ import annotations

import contextlib
import itertools
import os
import pathlib
import tempfile
from collections.abc import Iterator
from functools import partial
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from twisted.internet.defer import Deferred

from tests.database.catalogs import TIMEOUT_S, acquire, find, make_catalog, make_write
from tests.database.test_watched_queries import (
    ALL,
    EDITS,
    FIRST,
    LAST,
    LIST,
    QUERIES,
    FollowedWorld,
)
from tests.database.world import NAME, PROJECT, Disk, Recorder, TurnClock, make_active_rules
from tests.examples import examples
from tests.replica import Replica
from treedbd.database.database import Database
from treedbd.database.requests import (
    Caller,
    Condition,
    ConditionFailed,
    Outcome,
    ProjectSpec,
    Unavailable,
    Write,
)
from treedbd.database.runtime import Runtime
from treedbd.database.write_lock import FileWriteLock
from treedbd.names import DatabaseName
from treedbd.rules.ruleset import OPEN, RuleSet, parse_rules
from treedbd.store import changelog
from treedbd.store.changelog import describe_entry
from treedbd.store.sqlite.engine import SqliteEngine
from treedbd.store.sqlite.file import connect_reader
from treedbd.store.sqlite.reader import SqliteReader
from treedbd.store.sqlite.shared import SharedShelf, ShelfLock
from treedbd.tree.edit import Edit, apply, make_patch, make_put, make_remove
from treedbd.tree.hashes import etag, parse_etags
from treedbd.tree.types import Change, Json, Path, Place, Value
from treedbd.tree.value import plain

ADMIN = Caller(None, is_admin=True)
_numbers = itertools.count(1)


class Worker:
    """One of the processes that share a shelf; with `heeds_hints` it follows each at once."""

    heeds_hints = False

    def __init__(
        self,
        path: pathlib.Path,
        clock: TurnClock,
        others: list[Worker],
        allowed: RuleSet = OPEN,
    ) -> None:
        self.shelf = SharedShelf(path)
        self.disk = Disk()
        self.hints = 0
        self.engine = self.shelf.open(lambda is_alone: self._open(path, is_alone))
        runtime = Runtime(
            clock,
            lambda size: next(_numbers).to_bytes(size, "big"),
            self.disk.run,
            send_hint=lambda name: self._send(name, others),
        )
        rules = make_active_rules(self.disk.run, allowed)
        self.database = Database(
            NAME,
            self.engine,
            PROJECT,
            rules,
            runtime,
            100,
            partial(FileWriteLock, self.shelf, NAME, runtime),
        )
        self.database.file_opened()
        self.clock = clock

    def _open(self, path: pathlib.Path, is_alone: bool) -> SqliteEngine:
        if path.exists():
            return SqliteEngine.open(path, is_alone=is_alone)
        return SqliteEngine.create(path)

    def _send(self, _: DatabaseName, others: list[Worker]) -> None:
        for each in others:
            if each is not self:
                each.hints += 1
                if each.heeds_hints:
                    each.clock.callLater(0, each.database.hinted)

    def follow(self) -> None:
        """Follow hints, and do what comes of it."""
        self.database.hinted()
        self.clock.run()

    def submit(self, edit: Edit, condition: Condition | None = None) -> Deferred[Outcome]:
        return self.database.write(Write(edit, 1000, ADMIN, condition))

    def put(self, path: Path, value: Json) -> None:
        """Write, which must succeed."""
        self.do(make_put(Place(path), value))

    def do(self, edit: Edit) -> None:
        self.finish(self.submit(edit))

    def finish(self, done: Deferred[Outcome]) -> Outcome:
        """Return what becomes of a write, which must succeed."""
        results: list[Any] = []
        done.addBoth(results.append)
        while not results:
            self.clock.run()
            if self.disk.waiting:
                self.disk.finish()
            elif not results:
                self.clock.advance(0.002)
        outcome = results[0]
        assert isinstance(outcome, Outcome), outcome
        return outcome

    def push(self, now: int, text: str) -> str:
        """Push a child by a clock that shows `now`; return its key."""
        key = self.database.push_ids.next(now)
        body: Json = {"text": text, "at": {".sv": "timestamp"}}
        edit = make_put(Place(("list", key)), body)
        outcome = self.finish(self.database.write(Write(edit, now, ADMIN, is_push=True)))
        return outcome.edit.place.path[-1]

    def hold(self) -> None:
        """Begin a read that goes on in later turns, and end it."""
        held = self.database.read(lambda nodes: nodes.hold())
        if held is not None:
            held.close()

    def get(self, path: Path) -> Json:
        """Read as a request does."""
        assert self.database.make_current() is None
        return self.database.read(lambda nodes: plain(nodes.get(path)))

    def watch(self, path: Path) -> Recorder:
        recorder = Recorder()
        assert self.database.make_current() is None
        self.database.watching.watch(path, recorder, lambda nodes: None)
        return recorder


@contextlib.contextmanager
def two_workers(allowed: RuleSet = OPEN) -> Iterator[list[Worker]]:
    """Make two workers over one shelf, with these rules."""
    with tempfile.TemporaryDirectory() as folder:
        clock = TurnClock()
        made: list[Worker] = []
        for _ in range(2):
            made.append(Worker(pathlib.Path(folder, "x.shelf"), clock, made, allowed))
        yield made
        for each in made:
            each.engine.close()


@pytest.fixture
def workers() -> Iterator[list[Worker]]:
    with two_workers() as made:
        yield made


def test_a_read_is_never_older_than_an_acknowledged_write(workers: list[Worker]) -> None:
    for number in range(20):
        writer, reader = workers[number % 2], workers[1 - number % 2]
        writer.put(("a",), number)
        assert reader.get(("a",)) == number
        assert writer.get(("a",)) == number


def test_kept_answers_fall_with_the_writes_of_others(workers: list[Worker]) -> None:
    first, second = workers
    first.put(("a",), 1)
    second.get(("a",))
    answers = second.database.answers
    answers.is_active = True
    answers.keep(Place(("a",)), "", b"1")
    answers.keep(Place(("b",)), "", b"null")
    first.put(("a",), 2)
    assert second.database.is_current()
    assert answers.find(Place(("a",)), "") is None
    assert answers.find(Place(("b",)), "") is not None


def test_watchers_have_the_events_of_all_in_the_order_of_the_log(workers: list[Worker]) -> None:
    recorders = [each.watch(()) for each in workers]
    for number in range(1, 11):
        workers[number % 2].put(("a",), number)
        for each in workers:
            each.follow()
    expected = [(number, number) for number in range(1, 11)]
    assert [recorder.numbered for recorder in recorders] == [expected, expected]


def test_a_hint_reads_nothing_while_the_shelf_is_being_closed(workers: list[Worker]) -> None:
    first, second = workers
    recorder = second.watch(())
    first.put(("a",), 1)
    second.database.close()
    assert second.disk.waiting  # a thread closes it
    second.follow()
    assert recorder.events == []


def test_a_patch_of_another_is_a_patch(workers: list[Worker]) -> None:
    recorder = workers[1].watch(("a",))
    workers[0].do(make_patch(("a",), {"b/c": 1, "d": None}, 1000))
    workers[1].follow()
    (event,) = recorder.events
    assert (event.kind, event.path, event.data) == ("patch", (), {"b/c": 1, "d": None})


def test_a_watcher_begins_with_a_state_and_has_all_that_comes_after(workers: list[Worker]) -> None:
    first, second = workers
    first.put(("a",), 1)
    recorder = second.watch(("a",))
    first.put(("a",), 2)
    late = second.watch(("b",))
    second.follow()
    assert recorder.numbered == [(2, 2)]
    assert late.numbered == []


@pytest.mark.parametrize("is_late", [False, True])
def test_what_others_store_above_volatile_nodes_leaves_watchers_with_their_values(
    *, is_late: bool
) -> None:
    rules = """{"rules": {".read": true, ".write": true,
        "a": {"$any": {"v": {".volatile": {"hz": 1}}}}}}"""
    with two_workers(parse_rules(rules)) as (first, second):
        first.put(("a", "b"), {"s": 0})
        first.put(("exists",), True)
        recorder, volatile = second.watch(()), second.database.volatile
        assert volatile is not None
        first.put(("a", "b"), {"s": 1, "v": 1})
        if is_late:
            second.follow()
        volatile.apply_received([Change(Place(("a", "b", "v")), 1)])
        second.clock.run()
        second.follow()
        second.clock.run()
        replica = Replica()
        for event in recorder.events:
            replica.apply(event.kind, "/".join(event.path), event.data)
        assert second.get(("a", "b")) == {"s": 1, "v": 1}
        assert replica.tree == {"a": {"b": {"s": 1, "v": 1}}}


@pytest.mark.parametrize("is_early", [False, True])
def test_a_leaf_that_another_stores_above_volatile_nodes_remains(*, is_early: bool) -> None:
    rules = """{"rules": {".read": true, ".write": true,
        "a": {"$any": {"v": {".volatile": {"hz": 1}}}}}}"""
    with two_workers(parse_rules(rules)) as (first, second):
        first.put(("exists",), True)
        recorder, volatile = second.watch(()), second.database.volatile
        assert volatile is not None
        written = [Change(Place(("a", "b", "v")), 1)]
        if is_early:
            volatile.apply_received(written)
            second.clock.run()
        first.put(("a", "b"), "leaf")
        second.follow()
        if not is_early:
            volatile.apply_received(written)
        second.clock.advance(1)
        second.clock.run()
        replica = Replica()
        for event in recorder.events:
            value = "leaf" if event.is_missed else event.data  # it is read again then
            replica.apply(event.kind, "/".join(event.path), value)
        assert second.get(("a", "b")) == "leaf"
        assert replica.tree == {"a": {"b": "leaf"}}


def test_more_writes_than_are_read_at_once_are_notified_one_by_one(workers: list[Worker]) -> None:
    recorder = workers[1].watch(("a",))
    for number in range(1, 100):
        workers[0].put(("a",), number)
    workers[1].follow()
    assert recorder.numbered == [(number, number) for number in range(1, 100)]


def test_who_waits_for_the_end_of_a_batch_goes_on_though_another_has_advanced(
    workers: list[Worker],
) -> None:
    first, second = workers
    done = first.submit(make_put(Place(("a",)), 1))
    first.clock.run_until(lambda: first.disk.waiting)
    work, reported = first.disk.waiting.pop()
    work()  # it is durable, and the reactor of the first does not know yet
    second.put(("b",), 2)
    waiting = first.database.make_current()
    assert waiting is not None
    done.addCallback(lambda _: first.database.is_current())
    reported.callback(None)
    first.clock.run()
    assert waiting.called
    assert first.get(("b",)) == 2


class WorkerWorld(FollowedWorld):
    """The world of followers at one of two workers, both of which write."""

    def __init__(self, workers: list[Worker], at: int) -> None:
        self.workers = workers
        self.database = workers[at].database
        self.followers = []
        self.failures = 0
        self._values: list[Value] = [None]
        self._connection = connect_reader(workers[at].engine.path)
        self._log = SqliteReader(self._connection)

    def close(self) -> None:
        """Read the log no longer."""
        self._connection.close()

    @property
    def values(self) -> list[Value]:  # type: ignore[override]
        """The tree after each write, from the log that is on the disk."""
        known = self._values
        for entry in self._log.read(lambda view: list(view.entries(len(known) - 1))):
            edit = changelog.decode(entry.content)
            assert not isinstance(edit, changelog.NotRetained)
            known.append(apply(known[-1], edit.changes))
        return known


STEPS = st.one_of(
    st.tuples(st.just("write"), st.integers(0, 1), EDITS),
    st.tuples(st.just("write"), st.integers(0, 1), EDITS),
    st.tuples(st.just("write"), st.integers(0, 1), EDITS),
    st.tuples(st.just("turn"), st.integers(0, 1), st.none()),
    st.tuples(st.just("turn"), st.integers(0, 1), st.none()),
    st.tuples(st.just("disk"), st.integers(0, 1), st.none()),
    st.tuples(st.just("durable"), st.integers(0, 1), st.none()),
    st.tuples(st.just("hint"), st.integers(0, 1), st.none()),
    st.tuples(st.just("read"), st.integers(0, 1), st.none()),
    st.tuples(st.just("hold"), st.integers(0, 1), st.none()),
    st.tuples(st.just("follow"), st.integers(0, 1), QUERIES),
)


REMOVAL = make_remove(Place((*LIST, "a")))
HELD_BETWEEN: list[tuple[str, int, Any]] = [
    ("write", 1, REMOVAL),
    ("write", 0, REMOVAL),
    ("turn", 0, None),
    ("disk", 1, None),
    ("write", 1, REMOVAL),
    ("write", 0, REMOVAL),
    ("hold", 0, None),
]
"""A long read holds the moment that is shown, and another process commits after it."""


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@example(0.0, HELD_BETWEEN)
@given(st.sampled_from([0.0, 0.0015]), st.lists(STEPS, max_size=60))
def test_at_each_process_a_stream_shows_what_its_query_selects_after_each_write(
    lag: float, steps: list[tuple[str, int, Any]]
) -> None:
    with two_workers() as workers:
        worlds = [WorkerWorld(workers, at) for at in range(2)]
        for world in worlds:
            for watched in (FIRST, LAST, ALL):
                world.follow(watched)
        workers[0].clock.lag = lag
        for kind, at, what in steps:
            take(workers[at], worlds[at], kind, what)
        workers[0].clock.lag = 0.0
        settle(workers)
        for world in worlds:
            assert world.failures == 0
            for follower in world.followers:
                assert follower.missed == 0
                follower.skip_to(len(world.values) - 1)
            world.close()


def take(worker: Worker, world: WorkerWorld, kind: str, what: Any) -> None:
    """Do one step of a random history at one of two workers."""
    disk = worker.disk
    if kind == "write":
        worker.submit(what)
    elif kind == "turn":
        worker.clock.take_turn()
    elif kind == "disk" and disk.waiting:
        disk.finish()
    elif kind == "durable" and disk.waiting and disk.commits_next():
        work, done = disk.waiting.pop(0)
        work()
        disk.waiting.insert(0, (lambda: None, done))
    elif kind == "hint":
        worker.database.hinted()
    elif kind == "read" and worker.database.is_current():
        worker.database.read(lambda nodes: nodes.get(()))
    elif kind == "hold" and worker.database.is_current():
        worker.hold()
    elif kind == "follow" and worker.database.is_current():
        world.follow(what)


def settle(workers: list[Worker]) -> None:
    """Go on until nothing is under way at any worker."""
    clock = workers[0].clock
    for _ in range(3):
        for each in workers:
            each.database.hinted()
        while clock.take_turn() or any(each.disk.waiting for each in workers):
            for each in workers:
                if each.disk.waiting:
                    each.disk.finish()
            if not any(each.disk.waiting for each in workers):
                clock.advance(0.002)


def test_after_writes_that_are_not_retained_a_watcher_reads_again(workers: list[Worker]) -> None:
    recorder = workers[1].watch(("a",))
    for number in range(1, 300):
        workers[0].put(("a",), number)
    workers[1].follow()
    ((position, event),) = recorder.received
    assert event.is_missed
    assert position.sequence == 299
    workers[0].put(("a",), 300)
    workers[1].follow()
    assert recorder.numbered[1:] == [(300, 300)]


def test_a_body_that_is_too_long_for_the_log_is_read_again(workers: list[Worker]) -> None:
    recorder, below = workers[1].watch(("a",)), workers[1].watch(("a", "b"))
    workers[0].put(("a",), {"b": "x" * 100_000})
    workers[1].follow()
    (event,) = recorder.events
    assert b"".join(event.printed or ()) == b'{"b":"%s"}' % (b"x" * 100_000)
    assert [event.is_missed for event in below.events] == [True]


@pytest.mark.parametrize(
    ("size", "kept"),
    [(1000, changelog.FOLLOWED), (changelog.LARGE_BYTES, changelog.FOLLOWED_LARGE)],
)
def test_bodies_for_those_who_follow_are_cut_soon(
    tmp_path: pathlib.Path, size: int, kept: int
) -> None:
    with contextlib.closing(SqliteEngine.create(tmp_path / "x.shelf")) as engine:
        for number in range(kept + 6):
            transaction = engine.begin()
            edit = make_put(Place((f"k{number}",)), "x" * size)
            content = changelog.encode(edit, 1000, 2 * size)
            changelog.append(transaction, b"op", content, 100, 500)
            transaction.commit()
        entries = engine.read(lambda view: list(view.entries(0)))
        assert [len(each.content) > 500 for each in entries] == [False] * 6 + [True] * kept
        assert all(describe_entry(each).size == size + 2 for each in entries)
        assert [describe_entry(each).has_body for each in entries] == [False] * 6 + [True] * kept


def test_the_priority_of_a_node_is_read_where_it_is_watched(workers: list[Worker]) -> None:
    workers[0].put(("a",), {"b": 1})
    recorder = workers[1].watch(())
    workers[0].do(make_put(Place(("a",), is_priority=True), 5))
    workers[1].follow()
    (event,) = recorder.events
    assert (event.path, event.data) == (("a",), {"b": 1})


def test_conditions_are_compared_with_what_others_have_written(workers: list[Worker]) -> None:
    first, second = workers
    first.put(("a",), 1)
    tag = parse_etags(f'"{etag(1)}"')
    first.put(("a",), 2)
    done = second.submit(make_put(Place(("a",)), 3), Condition(Place(("a",)), tag))
    failures: list[Any] = []
    done.addErrback(failures.append)
    second.clock.run()
    assert failures[0].check(ConditionFailed)
    assert failures[0].value.current == 2


def test_a_write_waits_for_its_turn_and_takes_it_when_it_is_free(workers: list[Worker]) -> None:
    first, second = workers
    first.put(("a",), 0)
    first.submit(make_put(Place(("a",)), 1))
    first.clock.run()
    assert len(first.disk.waiting) == 1
    done = second.submit(make_put(Place(("b",)), 2))
    second.clock.run()
    assert not second.disk.waiting, "it commits though another process does"
    first.disk.finish()
    second.follow()
    assert len(second.disk.waiting) == 1
    second.disk.finish()
    second.clock.run()
    assert done.called
    assert first.get(()) == {"a": 1, "b": 2}


def test_a_write_that_nobody_tells_of_its_turn_takes_it_soon(workers: list[Worker]) -> None:
    first, second = workers
    first.put(("a",), 0)
    first.submit(make_put(Place(("a",)), 1))
    first.clock.run()
    second.submit(make_put(Place(("b",)), 2))
    second.clock.run()
    first.disk.finish()
    second.clock.advance(0.01)
    second.clock.run()
    assert len(second.disk.waiting) == 1
    second.disk.finish()
    second.clock.run()


def test_a_write_whose_turn_does_not_come_is_unavailable(workers: list[Worker]) -> None:
    first, second = workers
    first.put(("a",), 0)
    first.submit(make_put(Place(("a",)), 1))
    first.clock.run()
    write = Write(make_put(Place(("b",)), 2), 1000, ADMIN, None, second.clock.seconds() + 5.0)
    failures: list[Any] = []
    second.database.write(write).addErrback(failures.append)
    second.clock.run()
    for _ in range(6):
        second.clock.advance(1.0)
        second.clock.run()
    assert failures[0].check(Unavailable)
    first.disk.finish()
    first.clock.run()
    assert second.get(("b",)) is None


def test_others_may_write_before_the_reactor_notices_the_commit(workers: list[Worker]) -> None:
    first, second = workers
    first.put(("a",), 0)
    recorder = first.watch(())
    first.submit(make_put(Place(("a",)), 1))
    first.clock.run()
    commit, done = first.disk.waiting.pop()
    commit()
    second.put(("a",), 2)
    assert first.database.make_current() is not None, "it cannot show that it is not the last"
    done.callback(None)
    first.clock.run()
    assert recorder.numbered == [(2, 1), (3, 2)]
    assert first.get(("a",)) == 2


def test_who_waits_for_the_end_of_a_batch_reads_what_was_acknowledged(
    workers: list[Worker],
) -> None:
    first, second = workers
    first.put(("a",), 0)
    first.submit(make_put(Place(("b",)), 1))
    first.clock.run()
    commit, done = first.disk.waiting.pop()
    commit()
    second.put(("a",), 2)
    waiting = first.database.make_current()
    assert waiting is not None
    read: list[Json] = []
    waiting.addCallback(lambda _: read.append(first.get(("a",))))
    assert read == []
    done.callback(None)
    first.clock.run()
    assert read == [2]


def test_a_read_waits_for_a_commit_that_others_show_already(workers: list[Worker]) -> None:
    first, second = workers
    first.put(("a",), 0)
    first.submit(make_put(Place(("a",)), 1))
    first.clock.run()
    commit, done = first.disk.waiting.pop()
    commit()
    assert second.get(("a",)) == 1
    assert first.database.make_current() is not None, "it would read what is older"
    done.callback(None)
    first.clock.run()
    assert first.get(("a",)) == 1


class Others:
    """The other processes of a catalog, of which none is asked for anything here."""

    checks_files = True

    def rules_of(self, _: str) -> None:
        """Nobody stores rules."""


def test_a_write_does_not_wait_for_what_reads_wait_for(tmp_path: pathlib.Path) -> None:
    disk = Disk()
    catalog, clock = make_catalog(
        tmp_path, ProjectSpec("p", None), run_in_thread=disk.run, others=cast(Any, Others())
    )
    database = find(catalog, "d")
    acquire(catalog, database)
    database.write(make_write(1))
    clock.run_until(lambda: disk.waiting)
    disk.finish()
    clock.run()
    done = database.write(make_write(2))
    clock.run_until(lambda: disk.waiting)
    work, reported = disk.waiting.pop()
    work()  # it is durable, and the reactor does not know yet
    assert acquire(catalog, database) is not None
    assert catalog.acquire(database, TIMEOUT_S, is_write=True) is None
    reported.callback(None)
    clock.run()
    assert done.called


def count_reads(worker: Worker) -> list[None]:
    """Return a list that grows with each read of the engine of a worker."""
    reads: list[None] = []
    following = worker.database.shared_lock.following  # type: ignore[union-attr]
    read = following._engine.read
    following._engine.read = lambda work: reads.append(None) or read(work)  # type: ignore
    return reads


def test_nothing_is_read_at_a_hint_where_nothing_depends_on_it(workers: list[Worker]) -> None:
    first, second = workers
    second.get(("a",))
    reads = count_reads(second)
    first.put(("a",), 1)
    second.follow()
    assert reads == []
    assert second.get(("a",)) == 1
    second.watch(("a",))
    del reads[:]
    first.put(("a",), 2)
    second.follow()
    assert reads != []


def test_a_hint_within_a_commit_leaves_the_moment_that_is_shown(workers: list[Worker]) -> None:
    first, second = workers
    first.put(("a",), 1)
    second.submit(make_put(Place(("a",)), 2))
    second.clock.run_until(lambda: second.disk.waiting)
    second.database.hinted()
    work, done = second.disk.waiting.pop()
    work()
    assert second.database.read(lambda nodes: plain(nodes.get(("a",)))) == 1
    done.callback(None)
    second.clock.run()
    assert second.get(("a",)) == 2


def test_after_a_batch_nothing_is_read_for_nobody(workers: list[Worker]) -> None:
    first, second = workers
    first.put(("a",), 0)
    done = first.submit(make_put(Place(("a",)), 1))
    first.clock.run_until(lambda: first.disk.waiting)
    work, reported = first.disk.waiting.pop()
    work()
    second.put(("a",), 2)
    assert not first.database.is_current()
    reads = count_reads(first)
    reported.callback(None)
    first.clock.run()
    assert done.called
    assert reads == []
    assert first.get(("a",)) == 2


def test_push_ids_go_on_after_those_of_others(workers: list[Worker]) -> None:
    first, second = workers
    names: list[str] = []
    for number in range(20):
        worker = workers[number % 2]
        worker.get(())
        names.append(worker.database.push_ids.next(1000))
        worker.put(("list", names[-1]), 1)
    assert names == sorted(names)
    assert len(set(names)) == len(names)
    assert first.get(("list",)) == second.get(("list",))


def test_a_push_id_made_before_others_pushed_in_its_millisecond_is_made_again(
    workers: list[Worker],
) -> None:
    first, second = workers
    second.push(900, "before")
    key = second.database.push_ids.next(1000)  # its request has come
    other = first.push(1000, "other")
    edit = make_put(Place(("list", key)), "late")
    outcome = second.finish(second.database.write(Write(edit, 1000, ADMIN, is_push=True)))
    assert outcome.edit.place.path[-1] > other
    again = first.push(1000, "again")
    assert again > outcome.edit.place.path[-1]


def test_times_and_push_ids_do_not_go_back_though_a_clock_is_behind(workers: list[Worker]) -> None:
    ahead, behind = workers
    late, early = 2_000_000_000_000, 1_000_000_000_000
    names = [ahead.push(late, "first"), behind.push(early, "second"), ahead.push(late, "third")]
    assert names == sorted(names)
    list_: Any = behind.get(("list",))
    assert [list_[name]["text"] for name in names] == ["first", "second", "third"]
    times = [list_[name]["at"] for name in names]
    assert times == sorted(times)
    assert times[0] == late


def test_a_failed_store_is_verified_by_all_before_they_write(
    workers: list[Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = workers
    first.put(("a",), 1)
    first.engine.writer.fail("The disk has failed.")
    first.engine.writer._has_reported = False
    first.shelf.try_hold()
    first.shelf.release_lock()
    recovered: list[bool] = []
    recover = second.engine.recover

    def count() -> None:
        recovered.append(True)
        recover()

    monkeypatch.setattr(second.engine, "recover", count)
    failures: list[Any] = []
    second.submit(make_put(Place(("a",)), 2)).addErrback(failures.append)
    second.clock.run()
    assert failures[0].check(Unavailable)
    second.clock.advance(1)
    second.disk.finish()
    second.clock.run()
    assert recovered == [True]
    second.put(("a",), 3)
    assert second.get(("a",)) == 3


@pytest.mark.parametrize("is_watched", [False, True])
def test_the_log_is_restarted_though_others_read(workers: list[Worker], is_watched: bool) -> None:
    first, second = workers
    for each in workers:
        each.heeds_hints = True
        if is_watched:
            each.watch(("a",))
    sizes = []
    for number in range(1500):
        first.put(("a", f"k{number % 50}"), "x" * 200)
        if number % 7 == 0:
            second.get(("a", "k1"))
        if number % 50 == 0:
            sizes.append(first.engine.size())
    assert max(sizes) < 7_000_000  # without a restart the log alone has 20 MB


def test_the_last_one_to_close_leaves_no_log(tmp_path: pathlib.Path) -> None:
    clock = TurnClock()
    made: list[Worker] = []
    made += [Worker(tmp_path / "x.shelf", clock, made) for _ in range(2)]
    made[0].put(("a",), 1)
    made[1].put(("b",), 2)
    for each in made:
        each.engine.confirm_sound()
    made[0].engine.close()
    assert (tmp_path / "x.shelf-wal").exists()
    made[1].put(("b",), 3)
    made[1].engine.close()
    assert not (tmp_path / "x.shelf-wal").exists()
    with contextlib.closing(SqliteEngine.open(tmp_path / "x.shelf")) as engine:
        assert engine.was_closed_cleanly


def test_a_process_that_dies_leaves_all_that_was_acknowledged(workers: list[Worker]) -> None:
    first, second = workers
    first.put(("a",), 1)
    first.submit(make_put(Place(("a",)), 2))
    first.clock.run()
    os.close(first.shelf._existing_lock()._descriptor)  # as the kernel does it
    first.engine.writer._transaction.rollback()  # type: ignore[union-attr]
    second.put(("b",), 3)
    assert second.get(()) == {"a": 1, "b": 3}
    first.shelf._lock = ShelfLock(first.engine.path)
