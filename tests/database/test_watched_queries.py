"""Watched queries: after each event a stream shows the query as it was after that write.

The writes of a batch are committed together and told one by one, so a follower compares what it
shows with a model of the tree after each write.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.defer import Deferred

from tests.database.world import Disk, TurnClock, World, logged_failures
from tests.examples import examples
from tests.store.index_checks import check_entries
from tests.tree.queries import query
from tests.tree.value_view import ValueView
from treedbd.database import watched_queries
from treedbd.database import watched_queries as written_children
from treedbd.database.requests import Outcome
from treedbd.database.watchers import Notification
from treedbd.loop import SORTED_AT_ONCE, finish, sort_in_steps
from treedbd.rules.ruleset import parse_rules
from treedbd.store import select
from treedbd.store.indexes import make_writer, read_states
from treedbd.store.memory import MemoryEngine
from treedbd.store.nodes import HeldNodes, Nodes
from treedbd.store.pages import PAGE_BYTES
from treedbd.store.select import iterate_selected
from treedbd.tree.edit import Edit, apply, has_effect, make_patch, make_put, make_remove, set_value
from treedbd.tree.event import Commit, CommittedChange, Event, Position
from treedbd.tree.query import Query, parse_query, selection_to_json
from treedbd.tree.types import Json, Path, Place, Value
from treedbd.tree.value import from_plain, members, plain, value_at
from treedbd.tree.window import LEAST_RESERVE, Window

LIST: Path = ("list",)


FIRST = query(orderBy='"$value"', limitToFirst="2")
LAST = query(orderBy='"$value"', limitToLast="2")
ALL = query(orderBy='"$key"')


class FollowedWorld(World):
    """Its writes are committed, and its turns are run, when the test says so.

    Attributes:
        values: the tree after each write, by its number.

    """

    engine: MemoryEngine

    def __init__(self, lag: float = 0.0, rules: str = '{"rules":{}}') -> None:
        super().__init__(rules=parse_rules(rules), clock=TurnClock(lag), disk=Disk())
        self.values: list[Value] = [None]
        self.followers: list[Follower] = []
        self.failures = 0

    def begin(self, edit: Edit, *args: Any, **options: Any) -> Deferred[Outcome]:
        before = self.values[-1]
        if has_effect(edit, ValueView(before)):
            self.values.append(apply(before, edit.changes))
        return super().begin(edit, *args, **options)

    def put(self, path: Path, value: Json) -> None:
        """Do a write, and all that follows from it."""
        self.begin(make_put(Place(path), value))
        self.settle()

    def settle(self) -> None:
        """Go on until nothing is under way."""
        while self.clock.take_turn() or self.disk.waiting:
            if self.disk.waiting:
                self.disk.finish()

    def go_on(self, turns: int) -> None:
        """Run some turns, and finish what waits for the disk after each."""
        for _ in range(turns):
            self.clock.take_turn()
            if self.disk.waiting:
                self.disk.finish()

    def selected(self, watched: Query, path: Path, state: int) -> dict[str, Json]:
        """Return what a query selects after a write."""
        children = list(members(value_at(self.values[state], path)))
        selected: Any = selection_to_json(watched.select(children))
        return selected or {}

    def follow(self, watched: Query = FIRST, path: Path = LIST) -> Follower:
        """Return a new follower that has begun."""
        follower = Follower(self, watched, path)
        follower.begin()
        return follower

    def check(self) -> None:
        """Compare each follower with what the query selects at the end."""
        self.settle()
        for follower in self.followers:
            follower.render()
        self.settle()
        assert self.failures == 0
        for follower in self.followers:
            follower.skip_to(len(self.values) - 1)


class Follower:
    """A stream of a query that applies its events to what it shows, and checks each of them.

    Attributes:
        received: the events, each with the number of its write.
        missed: how often it had to begin again.

    """

    def __init__(self, world: FollowedWorld, watched: Query, path: Path) -> None:
        self.world = world
        self.query = watched
        self.path = path
        self.shown: dict[str, Json] = {}
        self.received: list[tuple[int, Event]] = []
        self.missed = 0
        self.state = -1
        self.is_revoked = False
        self.on_event: Callable[[], None] = lambda: None
        self._rendering: Iterator[bytes] | None = None
        self._rendered: list[bytes] = []
        self._held: HeldNodes | None = None
        self._waiting: list[Notification] = []
        self.subscription: Any = world.database.subscribe(path, watched, self)
        world.followers.append(self)

    def begin(self) -> None:
        """Begin, or begin again, with the present value."""

        def work(nodes: Nodes) -> bytes:
            return b"".join(self.subscription.chunks(nodes))

        self._stop_rendering()
        body, self.state = self.subscription.watch(work)
        self._show(body)

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
            waiting, body = self._waiting, b"".join(self._rendered)
            self._stop_rendering()
            self._show(body)
            for notification in waiting:
                self.notify(notification)

    def _show(self, body: bytes) -> None:
        self.shown = json.loads(body) or {}
        assert list(self.shown) == list(self.expected(self.state))
        assert self.shown == self.expected(self.state)

    def expected(self, state: int) -> dict[str, Json]:
        """Return what it shows after a write."""
        return self.world.selected(self.query, self.path, state)

    def skip_to(self, state: int) -> None:
        """Check that no write up to one changes what is shown."""
        for number in range(self.state, state + 1):
            assert self.shown == self.expected(number), number
        self.state = state

    def notify(self, notification: Notification) -> None:
        """Apply the events, after the first value."""
        if self._rendering is not None:
            self._waiting.append(notification)
            return
        if notification.is_missed:
            self.missed += 1
            self.begin()
            return
        for position, event in notification.events:
            assert position.sequence > self.state
            self.skip_to(position.sequence - 1)
            self.received.append((position.sequence, event))
            self._apply(event)
            self.state = position.sequence
            assert self.shown == self.expected(self.state), event
        self.on_event()

    def _apply(self, event: Event) -> None:
        data: Any = event.data
        changes = {"": data} if event.kind == "put" else data
        shown: Value = from_plain(self.shown)
        for name, value in changes.items():
            below = (*event.path, *filter(None, name.split("/")))
            if below[-1:] != (".priority",):
                shown = set_value(shown, below, from_plain(value))
        self.shown = {key: plain(child) for key, child in members(shown)}

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
    st.builds(lambda key, v: make_patch((*LIST, key), {"v": v, "w": None}), KEYS, LEAVES),
    st.builds(
        lambda one, other, v, w: make_patch(LIST, {f"{one}/v": v, f"{other}/w/x": w}),
        KEYS,
        KEYS,
        LEAVES,
        LEAVES,
    ),
    st.builds(
        lambda key, p, v: make_patch((), {f"list/{key}/.priority": p, f"list/{key}/v": v}),
        KEYS,
        st.none() | st.integers(0, 3),
        LEAVES,
    ),
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


def take(world: FollowedWorld, kind: str, what: Any) -> None:
    """Do one step of a random history."""
    if kind in ("write", "commit"):
        world.begin(what)
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


def test_a_stream_that_begins_again_leaves_no_other_waiting() -> None:
    """What the second one has drawn waits for the first one, which is still drawing."""
    world = FollowedWorld()
    world.put(LIST, {"a": True})
    first = Follower(world, LAST, LIST)
    first.begin_slowly()
    take(world, "commit", make_put(Place((*LIST, "b")), 1))
    second = world.follow(LAST)
    take(world, "commit", make_put(Place((*LIST, "c")), 2))
    first.begin()
    world.check()
    assert [number for number, _ in second.received] == [3]
    assert first.received == []


INDEXED = '{"rules":{"list":{".indexOn":["v","w/x",".value",".priority"]}}}'


@settings(max_examples=examples(700), deadline=None)
@given(
    st.booleans(),
    st.integers(0, 2),
    st.sampled_from([0.0, 0.0015, 0.005]),
    LISTS,
    st.lists(STEPS, max_size=50),
)
def test_after_each_event_a_stream_shows_what_its_query_selects_after_that_write(
    is_indexed: bool,
    reserve: int,
    lag: float,
    start: Any,
    steps: list[tuple[str, Any]],
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Window.__init__, "__defaults__", (reserve,))
        if is_indexed:  # only what is spread over rows has entries
            patch.setattr(make_writer, "__defaults__", (12, PAGE_BYTES))
        world = FollowedWorld(lag, INDEXED if is_indexed else '{"rules":{}}')
        world.put(LIST, start)
        for watched in (FIRST, LAST, ALL, FIRST):
            world.follow(watched)
        for kind, what in steps:
            take(world, kind, what)
        world.check()
        assert sum(follower.missed for follower in world.followers) == 0
        world.engine.read(lambda view: check_entries(view, read_states(view).kept))
        for follower in list(world.followers):
            follower.end()
        world.settle()
        assert world.database._watchers.count == 0
        assert not world.database._watchers._root.children
        assert not world.engine._store.snapshots


def large(count: int) -> dict[str, Json]:
    return {f"k{number:03}": number for number in range(count)}


def remove_one_by_one(world: FollowedWorld, keys: list[str]) -> None:
    """Queue the removals of some children, and let them be committed together."""
    for key in keys:
        world.begin(make_remove(Place((*LIST, key))))


def shown_by(follower: Follower) -> list[tuple[int, str, Path, Json]]:
    return [(number, event.kind, event.path, event.data) for number, event in follower.received]


def test_each_of_many_writes_of_one_batch_is_one_event() -> None:
    world = FollowedWorld()
    world.put(LIST, {"a": 1})
    last = world.follow(query(orderBy='"$key"', limitToLast="1"))
    for number in range(20):
        world.begin(make_put(Place((*LIST, f"m{number:02}")), number))
    world.settle()
    assert len(last.received) == 20
    assert shown_by(last)[-1] == (21, "patch", (), {"m18": None, "m19": 19})


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (make_put(Place((*LIST, "b", "n")), 5), ("put", ("b", "n"), 5)),
        (make_put(Place((*LIST, "b")), {"n": 5}), ("put", ("b",), {"n": 5})),
        (make_patch((*LIST, "b"), {"n": 5, "m/x": 1}), ("patch", ("b",), {"n": 5, "m/x": 1})),
        (make_patch(LIST, {"b": {"n": 5}}), ("put", ("b",), {"n": 5})),
        (make_patch(LIST, {"b/n": 5}), ("patch", ("b",), {"n": 5})),
        (make_patch((), {"list/b/n": 5, "other": 1}), ("patch", ("b",), {"n": 5})),
        (make_put(Place((*LIST, "b", "n")), 12), ("put", ("b",), None)),
        (make_remove(Place((*LIST, "b"))), ("put", ("b",), None)),
        (make_put(Place((*LIST, "d", "n")), 3), ("put", ("d",), {"m": 4, "n": 3})),
        (make_patch(LIST, {"a/n": 8, "b/n": 9}), ("patch", (), {"a": {"n": 8}, "b": {"n": 9}})),
        (
            make_patch((), {"list/a/n": 12, "list/d/n": 1}),
            ("patch", (), {"a": None, "d": {"m": 4, "n": 1}}),
        ),
        (make_put(Place(LIST), {"x": {"n": 1}, "y": 2}), ("put", (), {"x": {"n": 1}})),
        (make_patch((), {"list": {"x": {"n": 1}}, "o": 1}), ("put", (), {"x": {"n": 1}})),
        (make_remove(Place(())), ("put", (), None)),
    ],
)
def test_a_write_is_one_event_of_the_form_that_is_documented(
    edit: Edit, expected: tuple[str, Path, Json]
) -> None:
    world = FollowedWorld()
    world.put(LIST, {"a": {"n": 1}, "b": {"n": 2}, "c": {"n": 30}, "d": {"m": 4}})
    follower = world.follow(query(orderBy='"n"', startAt="0", endAt="10"))
    world.begin(edit)
    world.settle()
    assert [each[1:] for each in shown_by(follower)] == [expected]


def test_a_write_to_a_child_that_is_not_shown_is_no_event() -> None:
    world = FollowedWorld()
    world.put(LIST, {"a": {"n": 1}, "c": {"n": 30}})
    follower = world.follow(query(orderBy='"n"', endAt="10"))
    world.put((*LIST, "c", "m"), 5)
    world.put((*LIST, "c", "n"), 40)
    assert follower.received == []


def test_of_a_large_child_that_stays_only_what_was_written_is_sent_again() -> None:
    world = FollowedWorld()
    world.put(LIST, {"a": {"n": 1, "text": "x" * 5000}, "b": {"n": 2}})
    follower = world.follow(ALL)
    world.begin(make_patch(LIST, {"a/n": 3, "b/n": 4}))
    world.settle()
    assert shown_by(follower) == [(2, "patch", (), {"a/n": 3, "b": {"n": 4}})]


def test_a_window_is_revoked_when_it_would_look_through_too_many_children() -> None:
    world = FollowedWorld()
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


def count_reads(monkeypatch: pytest.MonkeyPatch) -> list[Query]:
    """Record the queries that read the collection."""
    reads: list[Query] = []

    def count(nodes: Nodes, path: Path, watched: Query) -> Any:
        reads.append(watched)
        return iterate_selected(nodes, path, watched)

    monkeypatch.setattr(select, "iterate_selected", count)
    monkeypatch.setattr(watched_queries, "iterate_selected", count)
    return reads


def test_the_first_value_of_many_streams_is_read_from_the_window_that_they_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = FollowedWorld()
    world.put(LIST, large(100))
    reads = count_reads(monkeypatch)
    followers = [world.follow(LAST) for _ in range(20)]
    assert [list(each.shown) for each in followers] == [["k098", "k099"]] * 20
    assert len(reads) == 1
    world.put((*LIST, "k100"), 100)
    assert list(world.follow(LAST).shown) == ["k099", "k100"]
    assert len(reads) == 1
    world.check()


def test_a_window_reads_the_collection_again_only_if_its_reserve_has_run_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = FollowedWorld()
    world.put(LIST, large(1000))
    reads = count_reads(monkeypatch)
    follower = world.follow(query(orderBy='"$value"', limitToFirst="10"))
    for number in range(LEAST_RESERVE):
        world.put((*LIST, f"k{number:03}"), None)
    assert len(reads) == 1
    world.put((*LIST, f"k{LEAST_RESERVE:03}"), None)
    assert len(reads) == 2
    assert len(follower.received) == LEAST_RESERVE + 1
    world.check()


@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.parametrize("rules", ['{"rules":{}}', '{"rules":{"list":{".indexOn":".value"}}}'])
@pytest.mark.parametrize("order", ["$key", "$value"])
def test_a_reserve_that_runs_out_in_one_batch_is_extended_write_by_write(
    order: str, rules: str, is_last: bool
) -> None:
    world = FollowedWorld(rules=rules)
    world.put(LIST, large(900))
    limit = "limitToLast" if is_last else "limitToFirst"
    follower = world.follow(query(orderBy=f'"{order}"', **{limit: "3"}))
    keys = list(large(900))[:: -1 if is_last else 1]
    remove_one_by_one(world, keys[:200])
    world.begin(make_put(Place((*LIST, keys[700])), 10_000))
    remove_one_by_one(world, keys[200:800])
    world.check()
    assert follower.missed == 0
    assert len(follower.received) >= 799  # the last of them, moved, is only shown late


def test_writers_do_not_wait_for_a_search_through_all_children() -> None:
    world = FollowedWorld()
    world.put(LIST, large(900))
    follower, other = world.follow(FIRST), world.follow(ALL)
    world.begin(make_patch(LIST, dict.fromkeys(list(large(600)))))
    world.clock.lag = 0.0005
    world.clock.run_until(lambda: world.disk.waiting)
    world.disk.finish()
    world.begin(make_put(Place((*LIST, "k600")), 5000))
    world.clock.run_until(lambda: world.disk.waiting)
    world.disk.finish()
    assert follower.received == []
    world.clock.run_until(lambda: len(other.received) == 2)
    assert follower.received == []
    world.check()
    assert [number for number, _ in follower.received] == [2, 3]


def test_who_waits_for_a_window_that_is_behind_is_called_when_it_has_caught_up() -> None:
    world = FollowedWorld()
    world.put(LIST, large(900))
    follower = world.follow(FIRST)
    calls: list[int] = []
    world.begin(make_patch(LIST, dict.fromkeys(list(large(600)))))
    world.clock.lag = 0.0005
    world.clock.run_until(lambda: world.disk.waiting)
    world.disk.finish()
    world.clock.run_until(lambda: follower.subscription.behind is not None)
    world.database.watching.call_when_notified(
        follower, lambda: calls.append(len(follower.received)), lambda: follower.subscription.behind
    )
    world.check()
    assert calls == [1]


def test_if_too_much_waits_for_a_window_its_streams_begin_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watched_queries, "MAX_WAITING", 5)
    world = FollowedWorld()
    world.put(LIST, large(900))
    follower = world.follow(FIRST)
    world.begin(make_patch(LIST, dict.fromkeys(list(large(600)))))
    world.clock.lag = 0.0005
    for number in range(30):
        world.clock.run_until(lambda: world.disk.waiting)
        world.disk.finish()
        world.begin(make_put(Place((*LIST, f"k{700 + number}")), number))
    world.check()
    assert follower.missed > 0


def test_a_stream_that_begins_slowly_is_told_each_write_meanwhile() -> None:
    world = FollowedWorld()
    world.put(LIST, large(500))
    follower = Follower(world, FIRST, LIST)
    follower.begin_slowly()
    follower.render(100)
    for number in range(10):
        world.put((*LIST, f"j{number}"), -number)
    follower.render()
    world.check()
    assert (follower.missed, len(follower.received)) == (0, 10)


def test_a_move_in_slices_sees_one_state_and_the_next_batch_waits() -> None:
    world = FollowedWorld()
    world.put(LIST, large(200))
    follower = world.follow(ALL)
    world.clock.lag = 0.001
    world.begin(make_patch(LIST, dict.fromkeys(large(200), -1)))
    world.clock.run_until(lambda: world.disk.waiting)
    world.disk.finish()
    world.begin(make_put(Place((*LIST, "k199")), "later"))
    while not follower.received:
        world.clock.take_turn()
        assert not world.disk.waiting
    world.settle()
    assert [each[:3] for each in shown_by(follower)] == [(2, "patch", ()), (3, "put", ("k199",))]


def test_a_stream_that_begins_again_between_two_notifications_receives_nothing_twice() -> None:
    world = FollowedWorld()
    world.put(LIST, {"a": 1})
    first, second = world.follow(ALL), world.follow(ALL)
    first.on_event = second.begin
    world.put((*LIST, "b"), 2)
    assert second.received == []
    world.check()


def test_a_stream_that_ends_between_two_notifications_receives_no_more() -> None:
    world = FollowedWorld()
    world.put(LIST, {"a": 1})
    first, second = world.follow(ALL), world.follow(ALL)
    first.on_event = second.end
    world.put((*LIST, "b"), 2)
    assert second.received == []
    assert len(first.received) == 1


def test_a_window_that_fails_ends_its_streams_and_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = FollowedWorld()
    world.put(LIST, {"a": 1})
    failing, other = world.follow(FIRST), world.follow(LAST)

    def fail(window: Window) -> Any:
        if window.wider_query.limit_to_first is not None:
            raise OSError("the disk of a test")
        return move(window)

    move = Window.move
    monkeypatch.setattr(Window, "move", fail)
    with logged_failures() as failures:
        world.put((*LIST, "b"), 2)
    assert failures == [OSError]
    assert (failing in world.followers, world.failures) == (False, 1)
    assert other.shown == {"a": 1, "b": 2}


def test_a_search_whose_streams_have_left_is_given_up() -> None:
    world = FollowedWorld()
    world.put(LIST, large(900))
    follower = world.follow(FIRST)
    world.begin(make_patch(LIST, dict.fromkeys(list(large(600)))))
    world.clock.lag = 0.0005
    world.clock.run_until(lambda: world.disk.waiting)
    world.disk.finish()
    world.clock.run_until(lambda: follower.subscription.behind is not None)
    turns = world.clock.turns
    follower.end()
    world.clock.run()
    assert world.clock.turns <= turns + 2
    assert not world.engine._store.snapshots


def test_the_events_of_many_writes_are_one_notification_of_each_stream() -> None:
    world = FollowedWorld()
    world.put(LIST, {"a": 1})
    sizes: list[int] = []
    follower = world.follow(ALL)
    follower.on_event = lambda: sizes.append(len(follower.received))
    for number in range(50):
        world.begin(make_put(Place((*LIST, "a")), number))
    world.settle()
    assert sizes == [50]


MANY: dict[str, Json] = {f"k{number:02}": {"x": number % 3} for number in range(40)}
NEXT = make_patch(LIST, {key: {"x": 1} for key in MANY})


@pytest.mark.parametrize("turns", range(1, 24))
@pytest.mark.parametrize(
    "later", [ALL, query(orderBy='"x"'), query(orderBy='"x"', equalTo="1"), LAST]
)
def test_a_query_that_comes_while_a_write_is_followed_begins_with_the_write(
    later: Query, turns: int
) -> None:
    world = FollowedWorld(lag=0.01)
    world.put(LIST, MANY)
    world.follow(query(orderBy='"$key"', limitToFirst="20"))
    world.begin(NEXT)
    with logged_failures() as failures:
        world.go_on(turns)
        world.follow(later)
        world.check()
    assert not failures


@pytest.mark.parametrize("turns", range(1, 24))
def test_the_last_stream_may_leave_while_a_write_is_followed(turns: int) -> None:
    world = FollowedWorld(lag=0.01)
    world.put(LIST, MANY)
    leaving = world.follow(query(orderBy='"$key"', limitToFirst="20"))
    world.follow(ALL)
    world.begin(NEXT)
    with logged_failures() as failures:
        world.go_on(turns)
        leaving.end()
        world.check()
    assert not failures


def fields(count: int) -> list[Query]:
    return [query(orderBy=f'"f{number}"') for number in range(count)]


class CountedView:
    """A view that counts what is looked up."""

    def __init__(self, view: Any) -> None:
        self._view = view
        self.lookups = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._view, name)

    def peek(self, *arguments: Any) -> Any:
        self.lookups += 1
        return self._view.peek(*arguments)


@pytest.mark.parametrize("text", ["", "x" * 5000])
def test_a_step_looks_up_few_of_many_watched_fields(text: str) -> None:
    world = FollowedWorld()
    children: Any = {f"k{number}": {"f1": number, "text": text} for number in range(50)}
    world.put(LIST, children)
    for each in fields(200):
        world.follow(each)
    collection: Any = world.database.watching.watchers.collection(LIST)
    changes = [CommittedChange((*LIST, key, "f2"), 1) for key in children]
    commit = Commit(Position(len(world.values), b""), "patch", LIST, tuple(changes))
    view = CountedView(ValueView(world.values[-1]))
    replay: Any = SimpleNamespace(view=view)
    most = before = 0
    steps = collection.look(commit, replay)
    for _ in steps:
        most, before = max(most, view.lookups - before), view.lookups
    assert most <= 20
    if not text:  # each of them is read as a whole
        assert view.lookups == 0


@pytest.mark.parametrize("name", ["MOST_FACTS", "MOST_TEXT"])
def test_streams_begin_again_if_a_write_would_have_to_read_too_much(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    world = FollowedWorld()
    world.put(LIST, {f"k{number}": {"f1": number, "f2": "y" * 9000} for number in range(30)})
    few, many = world.follow(fields(3)[1]), world.follow(fields(3)[2])
    world.put((*LIST, "k1", "f0"), 1)
    monkeypatch.setattr(written_children, name, 50 if name == "MOST_FACTS" else 90_000)
    world.begin(make_patch(LIST, {f"k{number}/f0": 2 for number in range(30)}))
    world.check()
    assert (few.missed, many.missed) == (1, 1)
    world.put((*LIST, "k1", "f0"), 3)
    world.check()
    assert (few.missed, many.missed) == (1, 1)


def test_children_that_enter_together_are_one_event_up_to_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = FollowedWorld()
    world.put(LIST, {f"k{number}": {"v": 0, "text": "x" * 5000} for number in range(10)})
    follower = world.follow(query(orderBy='"v"', equalTo="1"))
    world.begin(make_patch(LIST, {f"k{number}/v": 1 for number in range(5)}))
    world.check()
    assert (follower.missed, len(follower.received)) == (0, 1)
    monkeypatch.setattr(written_children, "EVENT_BYTES", 20_000)
    world.begin(make_patch(LIST, {f"k{number}/v": 1 for number in range(5, 10)}))
    world.check()
    assert follower.missed == 1


@pytest.mark.parametrize("count", [0, 1, 3 * SORTED_AT_ONCE + 1])
def test_children_are_sorted_in_steps(count: int) -> None:
    pairs = [(number * 7919 % count, f"k{number}") for number in range(count)]
    assert finish(sort_in_steps(pairs)) == sorted(pairs)
    assert len(list(sort_in_steps(pairs))) >= count // 256
