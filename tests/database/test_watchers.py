"""The registry of observers: who is concerned hears once a batch; who is not costs nothing."""

from __future__ import annotations

import sys
from types import FrameType

from hypothesis import given, settings
from hypothesis import strategies as st

from treedbd.database.watchers import Notice, Watchers
from treedbd.tree.edit import Edit, make_patch, make_put
from treedbd.tree.event import Event, Position, Telling, tell
from treedbd.tree.path import Path, Place


class Listener:
    """Keeps what it hears."""

    def __init__(self) -> None:
        self.notices: list[Notice] = []

    def notify(self, notice: Notice) -> None:
        self.notices.append(notice)

    @property
    def events(self) -> list[tuple[int, Event]]:
        return [(at.sequence, event) for notice in self.notices for at, event in notice.events]


class Broken(Listener):
    """Raises at whatever it hears."""

    def notify(self, notice: Notice) -> None:
        super().notify(notice)
        raise RuntimeError("a watcher of a test")


def told(sequence: int, edit: Edit) -> Telling:
    return tell(sequence, edit)


def put(sequence: int, *path: str) -> Telling:
    return told(sequence, make_put(Place(path), sequence))


def test_a_batch_is_one_notice_with_its_events_in_order() -> None:
    watchers, listener = Watchers(), Listener()
    watchers.add(("a",), listener, 0)
    watchers.tell([put(1, "a"), put(2, "b"), put(3, "a", "x")])
    assert len(listener.notices) == 1
    assert listener.events == [(1, Event("put", (), 1)), (3, Event("put", ("x",), 3))]


def test_every_event_of_a_write_has_a_position_and_the_last_is_that_of_all() -> None:
    watchers, listener = Watchers(), Listener()
    watchers.add(("a",), listener, 0)
    patch = make_patch((), {"a/b": 1, "a/c": 2, "a/d": 3})
    watchers.tell([tell(5, patch, b"op")])
    positions = [position for notice in listener.notices for position, _ in notice.events]
    assert positions == [Position(5, b"op", 1), Position(5, b"op", 2), Position(5, b"op")]


def test_a_watcher_hears_nothing_that_its_first_state_already_held() -> None:
    watchers, listener = Watchers(), Listener()
    watchers.add((), listener, 2)
    watchers.tell([put(1, "a"), put(2, "b")])
    watchers.tell([put(3, "c")])
    assert [sequence for sequence, _ in listener.events] == [3]


def test_watchers_of_one_path_share_one_notice() -> None:
    watchers, one, other = Watchers(), Listener(), Listener()
    watchers.add(("a",), one, 0)
    watchers.add(("a",), other, 0)
    watchers.tell([put(1, "a")])
    assert one.notices[0] is other.notices[0]


def test_a_watcher_that_raises_is_dropped_and_the_others_hear() -> None:
    watchers, broken, listener = Watchers(), Broken(), Listener()
    watchers.add((), broken, 0)
    watchers.add((), listener, 0)
    watchers.tell([put(1, "a")])
    watchers.tell([put(2, "a")])
    assert len(broken.notices) == 1
    assert len(listener.notices) == 2
    assert watchers.count == 1


def test_removing_a_watcher_leaves_nothing_behind() -> None:
    watchers, listener = Watchers(), Listener()
    watchers.add(("a", "b", "c"), listener, 0)
    watchers.remove(("a", "b", "c"), listener)
    watchers.remove(("a", "b", "c"), listener)
    watchers.remove(("never", "there"), listener)
    assert watchers.count == 0
    assert not watchers._root.children


def test_adding_a_watcher_again_starts_it_anew_and_counts_it_once() -> None:
    watchers, listener = Watchers(), Listener()
    watchers.add(("a",), listener, 0)
    watchers.add(("a",), listener, 5)
    watchers.tell([put(5, "a")])
    assert listener.notices == []
    assert watchers.count == 1


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


@settings(max_examples=300, deadline=None)
@given(st.lists(PATHS, max_size=8), st.lists(EDITS, min_size=1, max_size=4))
def test_everyone_hears_exactly_what_concerns_its_path(
    paths: list[Path], edits: list[Edit]
) -> None:
    watchers = Watchers()
    listeners = [(path, Listener()) for path in paths]
    for path, listener in listeners:
        watchers.add(path, listener, 0)
    tellings = [told(number, edit) for number, edit in enumerate(edits, 1)]
    watchers.tell(tellings)
    for path, listener in listeners:
        expected = [
            (one.position.sequence, event) for one in tellings for event in one.heard_at(path)
        ]
        assert listener.events == expected


def calls_of_a_patch(count: int) -> int:
    """Return how many calls it takes to tell a PATCH of so many keys, each of them watched."""
    watchers = Watchers()
    keys = [f"k{number}" for number in range(count)]
    listeners = [Listener() for _ in keys]
    for key, listener in zip(keys, listeners, strict=True):
        watchers.add(("a", key), listener, 0)
    telling = told(1, make_patch(("a",), dict.fromkeys(keys, 1)))
    calls = 0

    def count_call(_: FrameType, event: str, __: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count_call)
    try:
        watchers.tell([telling])
    finally:
        sys.setprofile(None)
    assert all(listener.events == [(1, Event("put", (), 1))] for listener in listeners)
    return calls


def test_the_cost_of_a_patch_grows_with_its_keys_and_no_faster() -> None:
    assert calls_of_a_patch(200) < 3 * calls_of_a_patch(100)


def test_who_watches_at_a_path_or_above_it_is_found() -> None:
    watchers, listener = Watchers(), Listener()
    watchers.add(("a", "b"), listener, 0)
    assert not any(map(watchers.has_at_or_above, [(), ("a",), ("a", "c", "b"), ("b",)]))
    assert all(map(watchers.has_at_or_above, [("a", "b"), ("a", "b", "c"), ("a", "b", "c", "d")]))
    watchers.add((), listener, 0)
    assert all(map(watchers.has_at_or_above, [(), ("a",), ("z", "y")]))
    watchers.remove((), listener)
    watchers.remove(("a", "b"), listener)
    assert not watchers.has_at_or_above(("a", "b"))
