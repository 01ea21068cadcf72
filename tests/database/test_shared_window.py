"""Shared windows: each stream of a query has what the query selects."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.database.world import (
    Disk,
    TurnClock,
    logged_failures,
    make_active_rules,
    make_database,
    run_at_once,
)
from tests.store.index_checks import check_entries
from treedbd.database import shared_window
from treedbd.database.requests import Caller, Write
from treedbd.database.runtime import Runtime
from treedbd.database.watchers import Notification
from treedbd.rules.ruleset import parse_rules
from treedbd.store import select
from treedbd.store.index_states import read_states
from treedbd.store.index_writer import make_writer
from treedbd.store.memory import MemoryEngine
from treedbd.store.nodes import HeldNodes, Nodes
from treedbd.store.pages import PAGE_BYTES
from treedbd.store.select import iterate_selected
from treedbd.tree.edit import Edit, make_patch, make_put, make_remove
from treedbd.tree.query import Query, parse_query, selection_to_json
from treedbd.tree.types import Json, Path, Place
from treedbd.tree.value import members
from treedbd.tree.window import RESERVE, Window

ADMIN = Caller(None, is_admin=True)
LIST: Path = ("list",)


def query(**parameters: str) -> Query:
    parsed = parse_query(parameters)
    assert parsed is not None
    return parsed


FIRST = query(orderBy='"$value"', limitToFirst="2")
LAST = query(orderBy='"$value"', limitToLast="2")
ALL = query(orderBy='"$key"')


class World:
    """A database whose writes are committed, and whose turns are taken, when the test says so."""

    def __init__(self, lag: float = 0.0, rules: str = '{"rules":{}}') -> None:
        self.clock = TurnClock(lag)
        self.disk = Disk()
        self.engine = MemoryEngine()
        runtime = Runtime(self.clock, os.urandom, self.disk.run)
        active = make_active_rules(run_at_once, first=parse_rules(rules))
        self.database = make_database(self.engine, runtime, active)
        self.followers: list[Follower] = []
        self.failures = 0

    def write(self, edit: Edit) -> None:
        """Queue a write."""
        self.database.write(Write(edit, 0, ADMIN))

    def put(self, path: Path, value: Json) -> None:
        """Do a write, and all that follows from it."""
        self.write(make_put(Place(path), value))
        self.settle()

    def settle(self) -> None:
        """Go on until nothing is under way."""
        while self.clock.take_turn() or self.disk.waiting:
            if self.disk.waiting:
                self.disk.finish()

    def selected(self, watched: Query, path: Path = LIST) -> dict[str, Json]:
        """Return what a query selects now."""
        children = self.database.read(lambda nodes: list(members(nodes.get(path))))
        selected: Any = selection_to_json(watched.select(children))
        return selected or {}

    def follow(self, watched: Query = FIRST, path: Path = LIST) -> Follower:
        """Return a new follower that has begun."""
        follower = Follower(self, watched, path)
        follower.begin()
        return follower

    def check(self) -> None:
        """Compare each follower with what the query selects now."""
        self.settle()
        for follower in self.followers:
            follower.render()
        self.settle()
        assert self.failures == 0
        for follower in self.followers:
            assert follower.shown == self.selected(follower.query, follower.path)


class Follower:
    """A stream of a query that applies its events to what it shows."""

    def __init__(self, world: World, watched: Query, path: Path) -> None:
        self.world = world
        self.query = watched
        self.path = path
        self.shown: dict[str, Json] = {}
        self.received: list[tuple[int, str, Json]] = []
        self.state = -1
        self.is_revoked = False
        self.on_event: Callable[[], None] = lambda: None
        self._rendering: Iterator[bytes] | None = None
        self._rendered: list[bytes] = []
        self._held: HeldNodes | None = None
        self._waiting: list[Notification] = []
        self.subscription = world.database.subscribe(path, watched, self)
        world.followers.append(self)

    def begin(self) -> None:
        """Begin, or begin again, with the present value."""

        def work(nodes: Nodes) -> bytes:
            return b"".join(self.subscription.chunks(nodes))

        self._stop_rendering()
        body, self.state = self.subscription.watch(work)
        self.shown = json.loads(body) or {}

    def begin_slowly(self) -> None:
        """Begin with a value that is rendered chunk by chunk, from a moment that is held."""
        self._stop_rendering()
        self._held = self.world.database.hold()
        self.state = self._held.sequence
        self.subscription.watch_from(self.state)
        self._rendering = self.subscription.chunks(self._held)

    def render(self, chunks: int | None = None) -> None:
        """Render some chunks, or all that are left."""
        while self._rendering is not None and chunks != 0:
            chunk = next(self._rendering, None)
            chunks = None if chunks is None else chunks - 1
            if chunk is not None:
                self._rendered.append(chunk)
                continue
            self.shown = json.loads(b"".join(self._rendered)) or {}
            waiting = self._waiting
            self._stop_rendering()
            for notification in waiting:
                self.notify(notification)

    def notify(self, notification: Notification) -> None:
        """Apply the events, after the first value."""
        if self._rendering is not None:
            self._waiting.append(notification)
            return
        for position, event in notification.events:
            assert position.sequence > self.state
            (key,) = event.path
            self.received.append((position.sequence, key, event.data))
            if event.data is None:
                del self.shown[key]
            else:
                self.shown[key] = event.data
        self.on_event()

    def fail(self) -> None:
        """End after an error."""
        self.world.failures += 1
        self.end()

    def revoke(self) -> None:
        """End because the window cannot be shown any longer."""
        self.is_revoked = True
        self.end()

    def end(self) -> None:
        """Show nothing any more."""
        self._stop_rendering()
        self.subscription.unwatch()
        self.world.followers.remove(self)

    def _stop_rendering(self) -> None:
        self._rendering, self._rendered, self._waiting = None, [], []
        if self._held is not None:
            self._held.close()
            self._held = None


KEYS = st.sampled_from(["a", "b", "c", "d", "1", "2"])
LEAVES = st.none() | st.booleans() | st.integers(0, 4) | st.sampled_from(["x", "y"])
CHILDREN = (
    LEAVES
    | st.builds(lambda v, p: {".value": v, ".priority": p}, st.integers(0, 2), st.integers(0, 3))
    | st.builds(lambda v, w: {"v": v, "w": {"x": w}}, LEAVES, LEAVES)
)
LISTS = st.dictionaries(KEYS, CHILDREN, max_size=6)
EDITS = st.one_of(
    st.builds(lambda key, value: make_put(Place((*LIST, key)), value), KEYS, CHILDREN),
    st.builds(lambda key, value: make_put(Place((*LIST, key, "v")), value), KEYS, LEAVES),
    st.builds(lambda key: make_remove(Place((*LIST, key))), KEYS),
    st.builds(
        lambda key, value: make_put(Place((*LIST, key), True), value), KEYS, st.integers(0, 3)
    ),
    st.builds(lambda value: make_put(Place(LIST), value), LISTS),
    st.builds(lambda value: make_put(Place(()), {"list": value, "other": 1}), LISTS),
    st.builds(lambda value: make_patch(LIST, value), LISTS),
    st.builds(
        lambda key, v, other: make_patch((), {f"list/{key}/w/x": v, "other": other}),
        KEYS,
        LEAVES,
        LEAVES,
    ),
)
QUERIES = st.sampled_from(
    [
        FIRST,
        LAST,
        ALL,
        query(orderBy='"$value"', limitToLast="1", endAt="3"),
        query(orderBy='"$key"', limitToFirst="2"),
        query(orderBy='"$key"', limitToLast="3", startAt='"1"'),
        query(orderBy='"v"', limitToFirst="2", startAt="1"),
        query(orderBy='"w/x"', limitToLast="2"),
        query(orderBy='"$priority"', limitToFirst="1"),
        query(orderBy='"$priority"', limitToLast="2", startAfter="0"),
        query(orderBy='"v"', equalTo="1"),
        query(where='{"v":{">=":1}}'),
        query(where='{"v":{"!=":null},"w/x":{"!=":2}}', limitToLast="2"),
        query(orderBy='"v"', limitToFirst="1", where='{"w/x":{"in":[0,1,null]}}'),
        query(orderBy='"$value"', limitToLast="2", where='{"$priority":{"<":2}}'),
        query(orderBy='"$value"', limitToFirst="2", where='{"$key":{">":"1"}}'),
    ]
)
STEPS = st.one_of(
    st.tuples(st.just("write"), EDITS),
    st.tuples(st.just("commit"), EDITS),
    st.tuples(st.just("commit"), EDITS),
    st.tuples(st.just("follow"), QUERIES),
    st.tuples(st.just("follow slowly"), QUERIES),
    st.tuples(st.sampled_from(["again", "again slowly", "end", "render"]), st.integers(0, 5)),
    st.tuples(st.just("turns"), st.integers(1, 4)),
    st.tuples(st.sampled_from(["turns", "disk", "check"]), st.just(1)),
)


def take(world: World, kind: str, what: Any) -> None:
    """Do one step of a random history."""
    if kind in ("write", "commit"):
        world.write(what)
    if kind == "turns":
        for _ in range(what):
            world.clock.take_turn()
    if kind == "commit":
        world.clock.take_turn()
    if kind in ("disk", "commit") and world.disk.waiting:
        world.disk.finish()
    if kind == "check":
        world.check()
    if kind == "follow":
        world.follow(what)
    if kind == "follow slowly":
        Follower(world, what, LIST).begin_slowly()
    if kind in ("again", "again slowly", "end", "render") and world.followers:
        follower = world.followers[what % len(world.followers)]
        steps = {"again": follower.begin, "again slowly": follower.begin_slowly}
        steps.get(kind, follower.end if kind == "end" else lambda: follower.render(2))()


INDEXED = '{"rules":{"list":{".indexOn":["v","w/x",".value",".priority"]}}}'


@settings(max_examples=700, deadline=None)
@given(
    st.booleans(),
    st.integers(0, 2),
    st.sampled_from([2, 1024]),
    st.sampled_from([0.0, 0.0015, 0.005]),
    LISTS,
    st.lists(STEPS, max_size=50),
)
def test_each_stream_has_what_its_query_selects(
    is_indexed: bool,
    reserve: int,
    moved_at_once: int,
    lag: float,
    start: Any,
    steps: list[tuple[str, Any]],
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Window.__init__, "__defaults__", (reserve,))
        patch.setattr(shared_window, "MOVED_AT_ONCE", moved_at_once)
        if is_indexed:  # only what is spread over rows has entries
            patch.setattr(make_writer, "__defaults__", (12, PAGE_BYTES))
        world = World(lag, INDEXED if is_indexed else '{"rules":{}}')
        world.put(LIST, start)
        for watched in (FIRST, LAST, ALL, FIRST):
            world.follow(watched)
        for kind, what in steps:
            take(world, kind, what)
        world.check()
        world.engine.read(lambda view: check_entries(view, read_states(view).kept))
        for follower in list(world.followers):
            follower.end()
        world.settle()
        assert not world.database._windows._newest
        assert world.database._watchers.count == 0


def test_a_window_is_revoked_when_it_would_look_through_too_many_children() -> None:
    world = World()
    world.put(LIST, large(10))
    narrow = parse_query({"where": '{"$value":{">=":0}}', "limitToFirst": "2"}, 12)
    assert narrow is not None
    follower = world.follow(narrow)
    assert list(follower.shown) == ["k000", "k001"]
    world.put(LIST, dict.fromkeys(large(12), -1))
    world.check()
    assert not follower.is_revoked
    world.put(LIST, dict.fromkeys(large(13), -1))
    assert follower.is_revoked
    assert world.failures == 0


def large(count: int) -> dict[str, Json]:
    return {f"k{number:03}": number for number in range(count)}


def test_the_first_value_of_many_streams_is_read_from_the_window_that_they_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    world.put(LIST, large(100))
    reads: list[Query] = []

    def count(nodes: Nodes, path: Path, watched: Query) -> Any:
        reads.append(watched)
        return iterate_selected(nodes, path, watched)

    monkeypatch.setattr(select, "iterate_selected", count)
    followers = [world.follow(LAST) for _ in range(20)]
    assert [list(each.shown) for each in followers] == [["k098", "k099"]] * 20
    assert len(reads) == 1
    world.put((*LIST, "k100"), 100)
    assert list(world.follow(LAST).shown) == ["k099", "k100"]
    assert len(reads) == 1
    world.check()


def test_a_window_that_moves_reads_the_collection_again_only_if_its_reserve_has_run_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads: list[Path] = []

    def count(nodes: Nodes, path: Path, watched: Query) -> Any:
        reads.append(path)
        return iterate_selected(nodes, path, watched)

    monkeypatch.setattr(select, "iterate_selected", count)
    world = World()
    world.put(LIST, large(1000))
    follower = world.follow(query(orderBy='"$value"', limitToFirst="10"))
    for number in range(RESERVE):
        world.put((*LIST, f"k{number:03}"), None)
    assert len(reads) == 1
    world.put((*LIST, f"k{RESERVE:03}"), None)
    assert len(reads) == 2
    assert len(follower.received) == 2 * (RESERVE + 1)
    world.check()


def test_a_window_that_is_drawn_again_takes_many_turns_and_writers_do_not_wait() -> None:
    world = World()
    world.put(LIST, large(500))
    follower = world.follow(FIRST)
    world.clock.lag = 0.001
    world.write(make_put(Place(LIST), {**large(500), "k000": 2000}))
    world.clock.run_until(lambda: world.disk.waiting)
    world.disk.finish()
    turns = world.clock.turns
    world.write(make_put(Place((*LIST, "k001")), 3000))
    while not world.disk.waiting:  # until the round is over
        world.clock.run_until(lambda: world.disk.waiting)
    world.disk.finish()
    assert follower.received == []
    world.clock.run()
    assert world.clock.turns > turns + 5
    # The moment at which it was drawn, or the present, but nothing older.
    assert {sequence for sequence, _, _ in follower.received} <= {2, 3}
    world.check()


def test_what_was_drawn_during_a_commit_is_sent_after_all_were_notified_of_it() -> None:
    world = World()
    world.put(LIST, large(500))
    follower = world.follow(FIRST)
    log: list[str] = []

    class LoggingWatcher:
        def notify(self, notification: Notification) -> None:
            log.append("other")

    follower.on_event = lambda: log.append("window")
    world.clock.lag = 0.001
    world.write(make_put(Place(LIST), {**large(500), "k000": 2000}))
    world.clock.run_until(lambda: world.disk.waiting)
    world.disk.finish()
    world.database.watching.watch((), LoggingWatcher(), lambda _: None)
    world.write(make_put(Place((*LIST, "k001")), 3000))
    world.clock.run()
    assert world.disk.waiting
    assert log == []
    world.settle()
    assert log == ["other", "window", "window"]
    world.check()


def test_a_move_in_slices_sees_one_state_and_the_next_batch_waits() -> None:
    world = World()
    world.put(LIST, large(200))
    follower = world.follow(ALL)
    world.clock.lag = 0.001
    world.write(make_patch(LIST, dict.fromkeys(large(200), -1)))
    world.clock.run_until(lambda: world.disk.waiting)
    world.disk.finish()
    world.write(make_put(Place((*LIST, "k199")), "later"))
    while not follower.received:
        world.clock.take_turn()
        assert not world.disk.waiting
    world.settle()
    assert (2, "k199", -1) in follower.received
    assert follower.received[-1] == (3, "k199", "later")


def test_a_stream_that_begins_again_between_two_notifications_receives_nothing_twice() -> None:
    world = World()
    world.put(LIST, {"a": 1})
    first, second = world.follow(ALL), world.follow(ALL)
    first.on_event = second.begin
    world.put((*LIST, "b"), 2)
    assert second.received == []
    world.check()


def test_a_stream_that_ends_between_two_notifications_receives_no_more() -> None:
    world = World()
    world.put(LIST, {"a": 1})
    first, second = world.follow(ALL), world.follow(ALL)
    first.on_event = second.end
    world.put((*LIST, "b"), 2)
    assert second.received == []
    assert len(first.received) == 1


def test_a_window_that_fails_ends_its_streams_and_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    world.put(LIST, {"a": 1})
    failing, other = world.follow(FIRST), world.follow(LAST)

    def fail(window: Window, *arguments: Any) -> Any:
        if window.keys() == ["a"] and window.wider_query.limit_to_first is not None:
            raise OSError("the disk of a test")
        return move(window, *arguments)

    move = Window.move
    monkeypatch.setattr(Window, "move", fail)
    with logged_failures() as failures:
        world.put((*LIST, "b"), 2)
    assert failures == [OSError]
    assert (failing in world.followers, world.failures) == (False, 1)
    assert other.shown == {"a": 1, "b": 2}


def test_a_drawing_whose_streams_have_left_is_given_up() -> None:
    world = World()
    world.put(LIST, large(500))
    follower = world.follow(FIRST)
    world.clock.lag = 0.001
    world.write(make_put(Place(LIST), large(400)))
    world.clock.run_until(lambda: world.disk.waiting)
    world.disk.finish()
    turns = world.clock.turns
    follower.end()
    world.clock.run()
    assert world.clock.turns <= turns + 2
    assert not world.engine._store.snapshots


def test_many_changes_at_once_are_sent_in_many_steps() -> None:
    world = World()
    world.put(LIST, large(2000))
    followers = [world.follow(ALL) for _ in range(3)]
    sizes: list[int] = []
    followers[0].on_event = lambda: sizes.append(len(followers[0].received))
    world.put(LIST, dict.fromkeys(large(2000), "new"))
    assert max(later - former for former, later in zip([0, *sizes], sizes, strict=False)) <= 64
    assert [len(each.received) for each in followers] == [2000] * 3
    world.check()
