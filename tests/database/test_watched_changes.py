"""Those who watch the changes of a place know where to read, and nothing is read for them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.database.world import ADMIN, Disk, World
from tests.replica import Replica
from tests.tree.strategies import PLAIN_BODIES
from treedbd.database.requests import Caller, LargeBody
from treedbd.database.rights import ReadRequest
from treedbd.database.watchers import Notification, Subscription
from treedbd.limits import MIB
from treedbd.rules.ruleset import parse_rules
from treedbd.store.nodes import Nodes
from treedbd.tree.edit import Edit, make_patch, make_put
from treedbd.tree.event import Event
from treedbd.tree.types import PRIORITY, STORED, Change, Json, Path, Place
from treedbd.tree.value import plain


@attrs.define(eq=False)
class Reader:
    """Reads again whatever an event names, and nothing else."""

    world: World
    path: Path
    subscription: Subscription = attrs.field(init=False)
    replica: Replica = attrs.field(factory=Replica)
    events: list[Event] = attrs.field(factory=list)

    @subscription.default
    def _(self) -> Subscription:
        return self.world.database.subscribe_to_changes(self.path, self)

    def start(self) -> None:
        """Watch, and read all of the place."""
        self.subscription.watch(lambda _: None)
        self._read("/")

    def notify(self, notification: Notification) -> None:
        """Read what the events name, at once."""
        for _, event in notification.events:
            self.events.append(event)
            shown = json.loads(event.print())
            for key in shown.get("keys", [""]):
                if not key.endswith(PRIORITY):
                    self._read(f"{shown['path']}/{key}")

    def fail(self) -> None:
        """Fail the test."""
        raise AssertionError

    def revoke(self) -> None:
        """Fail the test."""
        raise AssertionError

    def _read(self, path: str) -> None:
        keys = [key for key in path.split("/") if key]
        self.replica.apply("put", path, self.world.get(*self.path, *keys))


KEYS = st.sampled_from(["a", "b", "1"])
PATHS = st.lists(KEYS, max_size=3).map(tuple)
MEMBERS = st.dictionaries(KEYS, st.tuples(st.lists(KEYS, max_size=2), PLAIN_BODIES), min_size=1)


def patch_of(path: Path, members: dict[str, tuple[list[str], Json]]) -> Edit:
    """Return a PATCH; each child of the path has one of its keys."""
    body = {"/".join((key, *below)): value for key, (below, value) in members.items()}
    return make_patch(path, body)


EDITS = st.one_of(
    st.builds(lambda path, body: make_put(Place(path), body), PATHS, PLAIN_BODIES),
    st.builds(patch_of, PATHS, MEMBERS),
    st.builds(
        lambda path, value: make_put(Place(path, is_priority=True), value), PATHS, st.integers(0, 3)
    ),
)


@settings(deadline=None)
@given(
    st.lists(st.lists(EDITS, min_size=1, max_size=4), max_size=5),
    st.dictionaries(PATHS, st.integers(0, 3), max_size=3),
)
def test_a_reader_of_the_named_places_has_what_a_plain_read_shows(
    batches: list[list[Edit]], starts: dict[Path, int]
) -> None:
    world = World(disk=Disk())
    readers = [(Reader(world, path), start) for path, start in starts.items()]
    for at, batch in enumerate(batches):
        for reader, start in readers:
            if at == start:
                reader.start()
        for edit in batch:
            world.begin(edit)
        world.clock.run()
        while world.disk.waiting:
            world.disk.finish()
            world.clock.run()
        for reader, start in readers:
            assert at < start or reader.replica.equals(world.get(*reader.path))


# What is read for whom.

LARGE = json.dumps({f"k{at:05}": "x" * 100 for at in range(5000)}).encode()


def put_priority(world: World) -> None:
    world.write(make_put(Place(("a", "b"), is_priority=True), 5))


def put_large(world: World) -> None:
    place = Place(("a", "b"))
    edit = Edit("put", place, None, (Change(place, STORED),))
    body = LargeBody(lambda: iter((LARGE,)), len(LARGE), MIB, 2**40)
    outcome = world.write(edit, wants_echo=False, large=body)
    assert outcome.commit is not None


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Keep the paths of all values that are read."""
    found: list[Path] = []
    get, chunks = Nodes.get, Nodes.chunks

    def record_get(nodes: Nodes, path: Path) -> Any:
        found.append(path)
        return get(nodes, path)

    def record_chunks(nodes: Nodes, path: Path, **options: Any) -> Iterator[bytes]:
        found.append(path)
        return chunks(nodes, path, **options)

    monkeypatch.setattr(Nodes, "get", record_get)
    monkeypatch.setattr(Nodes, "chunks", record_chunks)
    return found


class Listening:
    """Watches, and does nothing."""

    def notify(self, notification: Notification) -> None: ...
    def fail(self) -> None: ...
    def revoke(self) -> None: ...


@pytest.mark.parametrize("write", [put_priority, put_large])
@pytest.mark.parametrize("watched", [(), ("a",), ("a", "b"), ("a", "b", "k00001")])
def test_no_value_is_read_for_those_who_watch_changes(
    write: Callable[[World], None], watched: Path, reads: list[Path]
) -> None:
    world, listening = World(), Listening()
    world.write(make_put(Place(("a", "b")), {"k00001": 1}))
    world.database.subscribe_to_changes(watched, listening).watch(lambda _: None)
    del reads[:]
    write(world)
    assert reads == []
    world.database.subscribe(("a",), None, listening).watch(lambda _: None)
    write(world)
    assert set(reads) == {("a", "b")}


def test_the_values_of_a_place_reach_only_those_who_watch_them(reads: list[Path]) -> None:
    world, plain_events = World(), list[Event]()

    class Values(Listening):
        def notify(self, notification: Notification) -> None:
            plain_events.extend(event for _, event in notification.events)

    reader = Reader(world, ("a",))
    reader.start()
    world.database.subscribe(("a",), None, Values()).watch(lambda _: None)
    world.write(make_patch(("a",), {"b": 1, "c/d": 2}))
    assert plain_events == [Event("patch", (), {"b": 1, "c/d": 2})]
    assert reader.events == [Event("changed", (), ["b", "c/d"])]
    reader.subscription.end()
    world.write(make_put(Place(("a",)), 3))
    assert [event.data for event in plain_events[1:]] == [3]
    assert len(reader.events) == 1
    assert world.database.watching.watchers.count == 1


def test_changes_are_watched_as_long_as_the_rules_allow_the_read() -> None:
    world = World(
        rules=parse_rules(b'{"rules":{"a":{".read":"root.child(\'open\').val() == true"}}}')
    )
    world.write(make_put(Place(("open",)), True))
    lost: list[str] = []
    request = ReadRequest(Caller(None), ("a",), None, lambda: 0)
    database, reader = world.database, Reader(world, ("a",))
    grant = database.make_grant(request, lambda: lost.append("revoked"), lambda: None)
    reader.subscription.watch(grant.check)
    world.write(make_put(Place(("a",)), 1), caller=ADMIN)
    assert (len(reader.events), lost) == (1, [])
    world.write(make_put(Place(("open",)), False))
    assert lost == ["revoked"]


def test_nothing_is_kept_of_a_watched_place_when_the_last_watcher_leaves() -> None:
    world = World()
    readers = [Reader(world, ("a", "b")) for _ in range(2)]
    values = world.database.subscribe(("a", "b"), None, Listening())
    watchers = world.database.watching.watchers
    for subscription in (*(reader.subscription for reader in readers), values):
        subscription.watch(lambda _: None)
    assert watchers.count == 3
    assert watchers.shows_at_or_above(("a", "b"))
    values.end()
    assert not watchers.shows_at_or_above(("a", "b"))
    world.write(make_put(Place(("a", "b")), 1))
    assert [len(reader.events) for reader in readers] == [1, 1]
    for reader in readers:
        reader.subscription.end()
    assert watchers.count == 0
    assert not watchers._root.children
    assert plain(world.database.read(lambda nodes: nodes.get(("a", "b")))) == 1
