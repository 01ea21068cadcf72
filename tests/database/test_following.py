"""Two databases over one shelf, as two workers have it; each has its own descriptors and locks."""

from __future__ import annotations

import contextlib
import itertools
import os
import pathlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import attrs
import pytest
from twisted.internet.defer import Deferred

from tests.database.world import NAME, PROJECT, Disk, TurnClock, make_active_rules
from treedbd.database.database import Database
from treedbd.database.errors import ConditionFailed, Unavailable
from treedbd.database.requests import Caller, Condition, Outcome, Write
from treedbd.database.runtime import Runtime
from treedbd.database.shared_writing import SharedWriting
from treedbd.database.watchers import Notification
from treedbd.names import DatabaseName
from treedbd.store import changelog
from treedbd.store.changelog import describe_entry
from treedbd.store.sqlite.engine import SqliteEngine
from treedbd.store.sqlite.shared_shelf import SharedShelf
from treedbd.store.sqlite.shelf_lock import ShelfLock
from treedbd.tree.edit import Edit, make_patch, make_put
from treedbd.tree.etag import etag, parse_etags
from treedbd.tree.event import Event
from treedbd.tree.types import Json, Path, Place
from treedbd.tree.value import plain

ADMIN = Caller(None, is_admin=True)
_numbers = itertools.count(1)


@attrs.define(eq=False)
class Recorder:
    """A watcher that keeps what it is notified of."""

    events: list[tuple[int, Event]] = attrs.field(factory=list)

    def notify(self, notification: Notification) -> None:
        self.events += [(position.sequence, event) for position, event in notification.events]

    @property
    def data(self) -> list[tuple[int, Json]]:
        return [(number, event.data) for number, event in self.events]


class Worker:
    """One of the processes that share a shelf."""

    def __init__(self, path: pathlib.Path, clock: TurnClock, others: list[Worker]) -> None:
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
        rules = make_active_rules(self.disk.run)
        self.database = Database(
            NAME,
            self.engine,
            PROJECT,
            rules,
            runtime,
            100,
            partial(SharedWriting, self.shelf, NAME, runtime),
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

    def get(self, path: Path) -> Json:
        """Read as a request does."""
        assert self.database.make_current() is None
        return self.database.read(lambda nodes: plain(nodes.get(path)))

    def watch(self, path: Path) -> Recorder:
        recorder = Recorder()
        assert self.database.make_current() is None
        self.database.watching.watch(path, recorder, lambda nodes: None)
        return recorder


@pytest.fixture
def workers(tmp_path: pathlib.Path) -> Iterator[list[Worker]]:
    clock = TurnClock()
    made: list[Worker] = []
    for _ in range(2):
        made.append(Worker(tmp_path / "x.shelf", clock, made))
    yield made
    for each in made:
        each.engine.close()


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
    assert [recorder.data for recorder in recorders] == [expected, expected]


def test_a_patch_of_another_is_a_patch(workers: list[Worker]) -> None:
    recorder = workers[1].watch(("a",))
    workers[0].do(make_patch(("a",), {"b/c": 1, "d": None}, 1000))
    workers[1].follow()
    ((_, event),) = recorder.events
    assert (event.kind, event.path, event.data) == ("patch", (), {"b/c": 1, "d": None})


def test_a_watcher_begins_with_a_state_and_has_all_that_comes_after(workers: list[Worker]) -> None:
    first, second = workers
    first.put(("a",), 1)
    recorder = second.watch(("a",))
    first.put(("a",), 2)
    late = second.watch(("b",))
    second.follow()
    assert recorder.data == [(2, 2)]
    assert late.data == []


def test_more_writes_than_are_read_at_once_are_notified_one_by_one(workers: list[Worker]) -> None:
    recorder = workers[1].watch(("a",))
    for number in range(1, 100):
        workers[0].put(("a",), number)
    workers[1].follow()
    assert recorder.data == [(number, number) for number in range(1, 100)]


def test_after_writes_that_are_not_retained_a_watcher_reads_again(workers: list[Worker]) -> None:
    recorder = workers[1].watch(("a",))
    for number in range(1, 300):
        workers[0].put(("a",), number)
    workers[1].follow()
    ((sequence, event),) = recorder.events
    assert event.is_missed
    assert sequence == 299
    workers[0].put(("a",), 300)
    workers[1].follow()
    assert recorder.data[1:] == [(300, 300)]


def test_a_body_that_is_too_long_for_the_log_is_read_again(workers: list[Worker]) -> None:
    recorder, below = workers[1].watch(("a",)), workers[1].watch(("a", "b"))
    workers[0].put(("a",), {"b": "x" * 100_000})
    workers[1].follow()
    ((_, event),) = recorder.events
    assert event.printed == b'{"b":"%s"}' % (b"x" * 100_000)
    assert [event.is_missed for _, event in below.events] == [True]


def test_bodies_for_those_who_follow_are_cut_soon(tmp_path: pathlib.Path) -> None:
    with contextlib.closing(SqliteEngine.create(tmp_path / "x.shelf")) as engine:
        for number in range(10):
            transaction = engine.begin()
            edit = make_put(Place((f"k{number}",)), "x" * 1000)
            content = changelog.encode(edit, 1000, 10_000)
            changelog.append(transaction, b"op", content, 100, 500)
            transaction.commit()
        entries = engine.read(lambda view: list(view.entries(0)))
        assert [len(each.content) > 500 for each in entries] == [False] * 6 + [True] * 4
        assert all(describe_entry(each).size == 1002 for each in entries)
        assert [describe_entry(each).has_body for each in entries] == [False] * 6 + [True] * 4


def test_the_priority_of_a_node_is_read_where_it_is_watched(workers: list[Worker]) -> None:
    workers[0].put(("a",), {"b": 1})
    recorder = workers[1].watch(())
    workers[0].do(make_put(Place(("a",), is_priority=True), 5))
    workers[1].follow()
    ((_, event),) = recorder.events
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
    assert recorder.data == [(2, 1), (3, 2)]
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
    first.engine.fail("The disk has failed.")
    first.engine._writer._has_reported = False
    first.shelf.try_hold()
    first.shelf.let_go()
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


def test_the_log_is_restarted_though_others_read(workers: list[Worker]) -> None:
    first, second = workers
    sizes = []
    for number in range(1500):
        first.put(("a", f"k{number % 50}"), "x" * 200)
        if number % 7 == 0:
            second.get(("a", "k1"))
        second.follow()
        if number % 50 == 0:
            sizes.append(first.engine.size())
    assert max(sizes) < 20 * 1024 * 1024


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
    first.engine._writer._transaction.rollback()  # type: ignore[union-attr]
    second.put(("b",), 3)
    assert second.get(()) == {"a": 1, "b": 3}
    first.shelf._lock = ShelfLock(first.engine.path)
