"""The registry of watchers: each is notified once for a batch, and only if it is concerned."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from types import FrameType

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from treedbd.database.watchers import (
    NOTIFIED_AT_ONCE,
    PAUSE_AFTER,
    Delivery,
    Notification,
    Watchers,
)
from treedbd.store.changelog import commit_of
from treedbd.tree.edit import Edit, make_patch, make_put
from treedbd.tree.event import Commit, Event, Position
from treedbd.tree.types import Path, Place


class RecordingWatcher:
    """Keeps its notifications."""

    def __init__(self) -> None:
        self.notifications: list[Notification] = []

    def notify(self, notification: Notification) -> bool | None:
        self.notifications.append(notification)
        return None

    @property
    def events(self) -> list[tuple[int, Event]]:
        found = [pair for each in self.notifications for pair in each.events]
        return [(position.sequence, event) for position, event in found]


class FailingWatcher(RecordingWatcher):
    """Raises at every notification."""

    def notify(self, notification: Notification) -> bool | None:
        super().notify(notification)
        raise RuntimeError("a watcher of a test")


class SendingWatcher(RecordingWatcher):
    """Only sends bytes."""

    def notify(self, notification: Notification) -> bool | None:
        super().notify(notification)
        return True


def follow(watchers: Watchers, commits: Sequence[Commit]) -> Iterator[None]:
    """Notify of the writes of one batch, in steps."""
    delivery = Delivery()
    for commit in commits:
        events = []
        for each in watchers.concerned(commit):
            event = None if each is None else each.commit.event_at(each.path)
            if each is not None and event is not None:
                events.append((each.node.audience, event))
            yield
        yield from delivery.add(commit.position, events)
    yield from delivery.finish()


def notify(watchers: Watchers, commits: Sequence[Commit]) -> None:
    """Notify of the writes of one batch, in all its steps."""
    for _ in follow(watchers, commits):
        pass


def put(sequence: int, *path: str) -> Commit:
    return commit_of(sequence, make_put(Place(path), sequence))


def test_a_batch_is_one_notification_with_its_events_in_order() -> None:
    watchers, watcher = Watchers(), RecordingWatcher()
    watchers.add(("a",), watcher, 0)
    notify(watchers, [put(1, "a"), put(2, "b"), put(3, "a", "x")])
    assert len(watcher.notifications) == 1
    assert watcher.events == [(1, Event("put", (), 1)), (3, Event("put", ("x",), 3))]


class LoggingWatcher:
    """Appends the numbers of the writes that it is notified of to the log of its group."""

    def __init__(self, log: list[int]) -> None:
        self.log = log

    def notify(self, notification: Notification) -> None:
        self.log += [position.sequence for position, _ in notification.events]


def test_the_watchers_of_a_group_are_notified_in_the_order_of_the_writes() -> None:
    watchers, log = Watchers(), list[int]()
    for path in ((), ("a",), ("a", "b"), ("c",)):
        watchers.add(path, LoggingWatcher(log), 0, group="client")
    writes = [("a",), ("a", "b"), ("a",), ("c",), ("a", "b"), ()]
    notify(watchers, [put(number, *path) for number, path in enumerate(writes, 1)])
    assert log == sorted(log)
    assert set(log) == set(range(1, len(writes) + 1))


PATHS = st.lists(st.sampled_from("ab"), max_size=3).map(tuple)


@given(
    st.sets(st.tuples(PATHS, st.integers(0, 2)), max_size=8),
    st.lists(PATHS, min_size=1, max_size=12),
)
def test_with_groups_every_watcher_receives_the_same_and_each_group_in_order(
    watched: set[tuple[Path, int]], writes: list[Path]
) -> None:
    """Each watcher receives the same events with and without groups, each group in order."""
    commits = [put(number, *path) for number, path in enumerate(writes, 1)]
    logs: list[list[int]] = [[], [], []]
    grouped, single = Watchers(), Watchers()
    recording = []
    for path, group in watched:
        pair = RecordingWatcher(), RecordingWatcher()
        recording.append(pair)
        grouped.add(path, pair[0], 0, group=group)
        grouped.add(path, LoggingWatcher(logs[group]), 0, group=group)
        single.add(path, pair[1], 0)
    notify(grouped, commits)
    notify(single, commits)
    assert all(one.events == other.events for one, other in recording)
    assert all(log == sorted(log) for log in logs)


def test_writes_of_unrelated_clients_are_one_notification_each() -> None:
    watchers, one, other = Watchers(), RecordingWatcher(), RecordingWatcher()
    watchers.add(("a",), one, 0, group=1)
    watchers.add(("b",), other, 0, group=2)
    notify(watchers, [put(1, "a"), put(2, "b"), put(3, "a"), put(4, "b")])
    assert [len(each.notifications) for each in (one, other)] == [1, 1]


def test_a_write_elsewhere_is_notified_after_those_before_it_and_with_those_after_it() -> None:
    watchers, one, other = Watchers(), RecordingWatcher(), RecordingWatcher()
    watchers.add(("a",), one, 0, group="client")
    watchers.add(("b",), other, 0, group="client")
    notify(watchers, [put(1, "a"), put(2, "b"), put(3, "b")])
    assert [len(each.notifications) for each in (one, other)] == [1, 1]


def test_watchers_without_a_group_are_called_once_for_a_batch_beside_groups() -> None:
    watchers, alone = Watchers(), RecordingWatcher()
    watchers.add(("a",), alone, 0)
    for path in (("a",), ("a", "b")):
        watchers.add(path, LoggingWatcher([]), 0, group="client")
    notify(watchers, [put(1, "a"), put(2, "a", "b"), put(3, "a")])
    assert len(alone.notifications) == 1
    assert [sequence for sequence, _ in alone.events] == [1, 2, 3]


def test_a_group_that_has_left_delays_nobody() -> None:
    watchers, one, other = Watchers(), RecordingWatcher(), RecordingWatcher()
    watchers.add(("a",), one, 0, group=1)
    watchers.add(("b",), other, 0, group=1)
    watchers.remove(("b",), other)
    watchers.add(("b",), other, 0)
    notify(watchers, [put(1, "a"), put(2, "b"), put(3, "a")])
    assert len(one.notifications) == 1


def test_a_write_is_one_event_with_its_position() -> None:
    watchers, watcher = Watchers(), RecordingWatcher()
    watchers.add(("a",), watcher, 0)
    patch = make_patch((), {"a/b": 1, "a/c": 2, "a/d": 3})
    notify(watchers, [commit_of(5, patch, b"op")])
    ((position, event),) = watcher.notifications[0].events
    assert position == Position(5, b"op")
    assert event == Event("patch", (), {"b": 1, "c": 2, "d": 3})


def test_a_watcher_is_not_notified_of_writes_that_its_first_state_includes() -> None:
    watchers, watcher = Watchers(), RecordingWatcher()
    watchers.add((), watcher, 2)
    notify(watchers, [put(1, "a"), put(2, "b")])
    notify(watchers, [put(3, "c")])
    assert [sequence for sequence, _ in watcher.events] == [3]


def test_watchers_of_one_path_share_one_notification() -> None:
    watchers, one, other = Watchers(), RecordingWatcher(), RecordingWatcher()
    watchers.add(("a",), one, 0)
    watchers.add(("a",), other, 0)
    notify(watchers, [put(1, "a")])
    assert one.notifications[0] is other.notifications[0]


def test_a_watcher_that_raises_is_removed_and_the_others_are_notified() -> None:
    watchers, failing, watcher = Watchers(), FailingWatcher(), RecordingWatcher()
    watchers.add((), failing, 0)
    watchers.add((), watcher, 0)
    notify(watchers, [put(1, "a")])
    notify(watchers, [put(2, "a")])
    assert len(failing.notifications) == 1
    assert len(watcher.notifications) == 2
    assert watchers.count == 1


def test_a_removed_watcher_leaves_no_nodes() -> None:
    watchers, watcher = Watchers(), RecordingWatcher()
    watchers.add(("a", "b", "c"), watcher, 0)
    watchers.remove(("a", "b", "c"), watcher)
    watchers.remove(("a", "b", "c"), watcher)
    watchers.remove(("never", "there"), watcher)
    assert watchers.count == 0
    assert not watchers._root.children


def test_a_watcher_that_is_added_again_starts_again_and_counts_once() -> None:
    watchers, watcher = Watchers(), RecordingWatcher()
    watchers.add(("a",), watcher, 0)
    watchers.add(("a",), watcher, 5)
    notify(watchers, [put(5, "a")])
    assert watcher.notifications == []
    assert watchers.count == 1


def count_in_steps(registered: Sequence[RecordingWatcher]) -> list[int]:
    """Return how many watchers of a path have been notified of a write after each step."""
    watchers = Watchers()
    for watcher in registered:
        watchers.add(("a",), watcher, 0)
    return [
        sum(len(watcher.notifications) for watcher in registered)
        for _ in follow(watchers, [put(1, "a")])
    ]


def test_each_watcher_is_notified_in_a_step_of_its_own() -> None:
    assert count_in_steps([RecordingWatcher() for _ in range(5)]) == [0, 1, 2, 3, 4, 5]


def test_some_watchers_that_only_send_are_notified_in_one_step() -> None:
    registered = [SendingWatcher() for _ in range(2 * NOTIFIED_AT_ONCE + 1)]
    assert count_in_steps(registered) == [0, NOTIFIED_AT_ONCE, 2 * NOTIFIED_AT_ONCE]
    assert all(watcher.notifications for watcher in registered)


def test_a_watcher_that_does_more_ends_the_step() -> None:
    kinds = (SendingWatcher, SendingWatcher, RecordingWatcher, FailingWatcher, SendingWatcher)
    registered = [kind() for kind in kinds]
    assert count_in_steps(registered) == [0, 3, 4]
    assert registered[-1].notifications


def test_of_a_group_in_two_places_a_write_elsewhere_waits_for_the_one_before() -> None:
    """The groups of a place are looked at when another place follows."""
    watchers, log = Watchers(), list[int]()
    for path in (("a",), ("b",)):
        watchers.add(path, LoggingWatcher(log), 0, group="client")
        watchers.add(path, LoggingWatcher([]), 0, group=path)
    notify(watchers, [put(number, "ab"[number % 2]) for number in range(1, 7)])
    assert log == [1, 2, 3, 4, 5, 6]


def test_the_keys_of_a_large_patch_are_followed_in_many_steps() -> None:
    watchers, watcher = Watchers(), RecordingWatcher()
    watchers.add(("elsewhere",), watcher, 0)
    patch = make_patch(("a",), {f"k{number}": 1 for number in range(10 * PAUSE_AFTER)})
    watchers.add(("a", "b"), watcher, 0)
    assert len(list(follow(watchers, [commit_of(1, patch)]))) == 10


def test_between_steps_watchers_may_come_go_and_start_again() -> None:
    watchers = Watchers()
    first, gone, again, new = (RecordingWatcher() for _ in range(4))
    for watcher in (first, gone, again):
        watchers.add(("a",), watcher, 0)
    steps = follow(watchers, [put(5, "a")])
    while not first.notifications:
        next(steps)
    watchers.remove(("a",), gone)
    watchers.add(("a",), again, 5)
    watchers.add(("a",), new, 5)
    watchers.add(("a", "below"), new, 5)
    watchers.remove(("a",), first)
    assert list(steps) == []
    assert [len(each.notifications) for each in (first, gone, again, new)] == [1, 0, 0, 0]
    notify(watchers, [put(6, "a")])
    assert [len(each.notifications) for each in (first, gone, again, new)] == [1, 0, 1, 2]


def test_nodes_may_come_and_go_while_a_write_above_them_is_followed() -> None:
    watchers, watcher = Watchers(), RecordingWatcher()
    for key in "abc":
        watchers.add((key,), watcher, 0)
    steps = follow(watchers, [commit_of(1, make_put(Place(()), {"a": 1, "b": 2, "c": 3}))])
    next(steps)
    watchers.remove(("b",), watcher)
    watchers.add(("d",), watcher, 1)
    for _ in steps:
        pass
    assert [event.data for _, event in watcher.events] == [1, 3]


KEYS = st.sampled_from(["a", "b", "c"])
PATHS = st.lists(KEYS, max_size=3).map(tuple)
EDITS = st.builds(
    lambda path, parts, is_patch: (
        make_patch(path, dict.fromkeys(parts, 1)) if is_patch else make_put(Place(path), 1)
    ),
    PATHS,
    st.sets(st.sampled_from(["a", "b/c", "b/.priority", "c/a/b"])),
    st.booleans(),
)


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(PATHS, max_size=8), st.lists(EDITS, min_size=1, max_size=4))
def test_each_watcher_receives_exactly_the_events_of_its_path(
    paths: list[Path], edits: list[Edit]
) -> None:
    watchers = Watchers()
    registered = [(path, RecordingWatcher()) for path in paths]
    for path, watcher in registered:
        watchers.add(path, watcher, 0)
    commits = [commit_of(number, edit) for number, edit in enumerate(edits, 1)]
    notify(watchers, commits)
    for path, watcher in registered:
        expected = [
            (commit.position.sequence, event)
            for commit in commits
            if (event := commit.event_at(path)) is not None
        ]
        assert watcher.events == expected


def calls_of_a_patch(count: int) -> int:
    """Return the number of calls for the notification of a PATCH of `count` watched keys."""
    watchers = Watchers()
    keys = [f"k{number}" for number in range(count)]
    registered = [RecordingWatcher() for _ in keys]
    for key, watcher in zip(keys, registered, strict=True):
        watchers.add(("a", key), watcher, 0)
    commit = commit_of(1, make_patch(("a",), dict.fromkeys(keys, 1)))
    calls = 0

    def count_call(_: FrameType, event: str, __: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count_call)
    try:
        notify(watchers, [commit])
    finally:
        sys.setprofile(None)
    assert all(watcher.events == [(1, Event("put", (), 1))] for watcher in registered)
    return calls


def test_the_cost_of_a_patch_grows_no_faster_than_its_keys() -> None:
    assert calls_of_a_patch(200) < 3 * calls_of_a_patch(100)


def test_watchers_at_a_path_or_above_it_are_found() -> None:
    watchers, watcher = Watchers(), RecordingWatcher()
    watchers.add(("a", "b"), watcher, 0)
    assert not any(map(watchers.shows_at_or_above, [(), ("a",), ("a", "c", "b"), ("b",)]))
    assert all(map(watchers.shows_at_or_above, [("a", "b"), ("a", "b", "c"), ("a", "b", "c", "d")]))
    watchers.add((), watcher, 0)
    assert all(map(watchers.shows_at_or_above, [(), ("a",), ("z", "y")]))
    watchers.remove((), watcher)
    watchers.remove(("a", "b"), watcher)
    assert not watchers.shows_at_or_above(("a", "b"))
