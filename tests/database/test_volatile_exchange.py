"""Volatile nodes of several processes come to one state, in whatever order messages arrive."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import attrs
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.defer import Deferred, fail

from tests.database.test_volatile import put
from tests.database.world import ADMIN, World
from tests.examples import examples
from treedbd.database.requests import Write
from treedbd.database.volatile_exchange import (
    MAX_KEPT,
    WAIT_S,
    VolatileExchange,
    VolatileLink,
    decode_changes,
    encode_changes,
)
from treedbd.loop import do_nothing
from treedbd.names import DatabaseName
from treedbd.rules.ruleset import parse_rules
from treedbd.tree.types import Change, Place, Value

RULES = parse_rules('{"rules": {".read": true, ".write": true, "v": {"$a": {".volatile": true}}}}')


class Parent:
    """Passes messages on in one order, each when a test says so."""

    def __init__(self, count: int) -> None:
        self.to_parent: list[deque[tuple[bytes, Deferred[Any]]]] = [deque() for _ in range(count)]
        self.to_process: list[deque[Any]] = [deque() for _ in range(count)]

    def link(self, number: int) -> VolatileLink:
        """Return what a process sends by."""

        def share(_: DatabaseName, content: bytes) -> Deferred[object]:
            done: Deferred[Any] = Deferred()
            self.to_parent[number].append((content, done))
            return done

        def want(_: DatabaseName) -> Deferred[object]:
            done: Deferred[Any] = Deferred()
            done.callback(None)
            return done

        return VolatileLink(share, want)

    def relay(self, number: int) -> None:
        """Pass the oldest message of a process on to the others."""
        if self.to_parent[number]:
            content, done = self.to_parent[number].popleft()
            for other, waiting in enumerate(self.to_process):
                waiting.append(done if other == number else content)

    def deliver(self, number: int, world: World) -> None:
        """Give a process the oldest message for it."""
        if self.to_process[number]:
            message = self.to_process[number].popleft()
            if isinstance(message, Deferred):
                message.callback(None)
            else:
                assert world.database.volatile is not None
                assert world.database.volatile.exchange is not None
                world.database.volatile.exchange.receive(message, is_state=False)


def make_process(parent: Parent, number: int, link: VolatileLink | None = None) -> World:
    """Return a database that exists at one process."""
    world = World(rules=RULES)
    world.runtime = attrs.evolve(world.runtime, volatile_link=link or parent.link(number))
    world.database = type(world.database)(
        world.database.name, world.engine, world.database.project, world.rules, world.runtime, 100
    )
    world.write(put("exists", True))
    return world


PATHS = st.sampled_from(["v/a", "v/b", "v/a/x", "v/a/x/y", "v/a/z", "v"])
VALUES = st.sampled_from([1, 2, None, {"x": 1}, {"x": {"y": 2}, "z": 3}])


@settings(deadline=None, max_examples=examples(100))
@given(st.lists(st.tuples(st.integers(0, 2), PATHS, VALUES), max_size=14), st.randoms())
def test_all_come_to_one_state(writes: list[Any], choose: random.Random) -> None:
    parent = Parent(3)
    worlds = [make_process(parent, number) for number in range(3)]

    def pass_some(most: int) -> None:
        for _ in range(choose.randrange(most)):
            number = choose.randrange(3)
            choose.choice([parent.relay, lambda at: parent.deliver(at, worlds[at])])(number)

    for number, path, value in writes:
        if path == "v" and value is not None:
            continue
        world = worlds[number]
        world.database.write(Write(put(path, value), 0, ADMIN))
        if choose.random() < 0.7:
            world.clock.run()
        pass_some(6)
    for _ in range(40):
        for number, world in enumerate(worlds):
            world.clock.run()
            parent.relay(number)
            parent.deliver(number, world)
            parent.deliver(number, world)
            parent.deliver(number, world)
    assert not any(map(len, [*parent.to_parent, *parent.to_process]))
    states = [world.get("v") for world in worlds]
    assert states[0] == states[1] == states[2]


class HeldLink:
    """A link whose messages have their place in the order when a test says so."""

    def __init__(self) -> None:
        self.shared: list[bytes] = []
        self.waiting: list[Deferred[Any]] = []
        self.wants: list[Deferred[Any]] = []

    def share(self, _: DatabaseName, content: bytes) -> Deferred[object]:
        self.shared.append(content)
        self.waiting.append(Deferred())
        return self.waiting[-1]

    def want(self, _: DatabaseName) -> Deferred[object]:
        self.wants.append(Deferred())
        return self.wants[-1]

    def take(self) -> list[Change]:
        """Return the changes that were sent."""
        changes = [change for part in self.shared for change in decode_changes(part)]
        self.shared.clear()
        return changes

    def end(self, error: Exception | None = None) -> None:
        """Give all that was sent its place in the order, or none."""
        waiting, self.waiting = self.waiting, []
        for each in waiting:
            each.callback(None) if error is None else each.errback(error)


def make_held(link: HeldLink) -> tuple[World, VolatileExchange]:
    """Return a database that sends by a link, and its exchange."""
    world = World(rules=RULES)
    passes = VolatileLink(link.share, link.want)
    world.runtime = attrs.evolve(world.runtime, volatile_link=passes)
    made = world.database
    world.database = type(made)(
        made.name, world.engine, made.project, made.rules, world.runtime, 100
    )
    world.write(put("exists", True))
    world.clock.advance(WAIT_S)  # it goes on without the state
    assert world.database.volatile is not None
    assert world.database.volatile.exchange is not None
    return world, world.database.volatile.exchange


def encode(*changes: Change) -> bytes:
    (content,) = encode_changes(changes)
    return content


AT_A, AT_B, AT_C = (Place(("v", key)) for key in "abc")


def test_an_own_change_remains_when_a_state_arrives_that_was_sent_before_it() -> None:
    link = HeldLink()
    world, exchange = make_held(link)
    world.write(put("v/a", "new"))
    link.end()
    exchange.receive(encode(Change(AT_A, "old")), is_state=True)
    assert world.get("v", "a") == "new"
    link.wants[0].callback(None)
    exchange.receive(encode(Change(AT_A, "newer")), is_state=False)
    assert world.get("v", "a") == "newer"


def test_one_message_follows_the_other_with_the_last_value_of_each_place() -> None:
    link = HeldLink()
    world, _ = make_held(link)
    for number in range(5):
        world.write(put("v/a", number))
        world.write(put("v/b", -number))
    assert link.take() == [Change(AT_A, 0)]
    link.end()
    world.clock.run()
    assert link.take() == [Change(AT_A, 4), Change(AT_B, -4)]


def test_what_could_not_be_sent_is_sent_with_the_next_fetch_in_its_order() -> None:
    link = HeldLink()
    world, exchange = make_held(link)
    world.write(put("v/c", 1))
    world.write(put("v/a", 1))
    world.write(put("v/b", 1))
    link.end(ValueError())
    world.write(put("v/a", 2))
    assert link.take() == [Change(AT_C, 1)]
    exchange.fetch()
    world.clock.run()
    assert link.take() == [Change(AT_C, 1), Change(AT_B, 1), Change(AT_A, 2)]


def test_a_removal_and_the_value_before_it_are_sent_because_a_leaf_above_ends_with_that() -> None:
    link = HeldLink()
    world, exchange = make_held(link)
    exchange.receive(encode(Change(AT_A, "leaf")), is_state=False)
    world.write(put("v/b", 1))
    for value in (1, None, 2, 3, None):
        world.write(put("v/a/x", value))
    assert world.get("v") == {"b": 1}
    link.take()
    link.end()
    world.clock.run()
    below = Place(("v", "a", "x"))
    assert link.take() == [Change(below, 3), Change(below, None)]


def test_an_own_change_that_the_sender_of_a_state_has_missed_is_made_again() -> None:
    link = HeldLink()
    world, exchange = make_held(link)
    world.write(put("v/a", 1))
    link.end()
    world.write(put("v/b", 1))
    link.end()
    exchange.receive(encode(Change(AT_B, 2)), is_state=False)
    link.take()
    exchange.begin_state()
    exchange.receive(encode(Change(AT_C, 3)), is_state=True)
    exchange.end_state(lambda: link.wants[0].callback(None))
    assert world.get("v") == {"a": 1, "c": 3}
    world.clock.run()
    assert link.take() == [Change(AT_A, 1)]


def test_of_too_many_changes_the_state_is_sent() -> None:
    link = HeldLink()
    world, exchange = make_held(link)
    world.write(put("v/a", 0))
    link.end(ValueError())
    for number in range(MAX_KEPT + 1):
        world.database.write(Write(put(f"v/u{number % 3}", number), 0, ADMIN))
        world.database.write(Write(put(f"v/a/k{number}", 1), 0, ADMIN))
        world.database.write(Write(put(f"v/a/k{number}", None), 0, ADMIN))
    link.take()
    exchange.fetch()
    world.clock.run()
    changes = link.take()
    assert changes[0] == Change(Place(()), None)
    assert len(changes) == 1 + len(list(exchange.state())) == 4


def make_long(count: int) -> dict[str, Value]:
    """Return a value that is sent in several parts."""
    return {f"k{number:04d}": f"value {number}" for number in range(count)}


def state_of(value: Value) -> list[bytes]:
    return list(encode_changes([Change(AT_A, value)]))


def test_a_state_in_several_parts_leaves_what_is_here_already_as_it_is() -> None:
    world, exchange = make_held(HeldLink())
    value = make_long(3000)
    for part in state_of(value):
        exchange.receive(part, is_state=False)
    parts = state_of({**value, "k2999": "newer"})
    assert len(parts) > 1
    exchange.begin_state()
    for part in parts:
        exchange.receive(part, is_state=True)
    exchange.end_state(do_nothing)
    assert world.get("v", "a") == {**value, "k2999": "newer"}


def test_the_priority_of_a_value_that_is_sent_in_parts_is_sent() -> None:
    world, exchange = make_held(HeldLink())
    for part in state_of({".priority": 7, **make_long(1000)}):
        exchange.receive(part, is_state=False)
    assert world.get("v", "a", ".priority") == 7


def test_several_messages_that_cannot_be_sent_are_kept_in_their_order() -> None:
    link = HeldLink()
    world, exchange = make_held(link)
    passes = VolatileLink(lambda *_: fail(ValueError()), link.want)
    exchange._link = passes
    value = make_long(1500)
    world.write(put("v/a", value))
    world.clock.run()
    exchange._link = VolatileLink(link.share, link.want)
    exchange.fetch()
    world.clock.run()
    other, received = make_held(HeldLink())
    for part in link.shared:
        received.receive(part, is_state=False)
    assert other.get("v", "a") == value


def test_a_whole_state_that_others_have_received_is_not_sent_again() -> None:
    link = HeldLink()
    world, exchange = make_held(link)
    world.write(put("v/a", 0))
    link.end(ValueError())
    for number in range(MAX_KEPT + 1):
        world.database.write(Write(put(f"v/a/k{number}", 1), 0, ADMIN))
    exchange.fetch()
    world.clock.run()
    parts = state_of(world.get("v", "a"))
    link.end()
    link.take()
    exchange.begin_state()
    for part in parts:
        exchange.receive(part, is_state=True)
    exchange.end_state(do_nothing)
    for each in link.wants:
        each.callback(None)
    world.clock.run()
    assert not exchange.is_fetching
    assert link.take() == []


def test_a_whole_state_removes_what_it_does_not_have() -> None:
    world, exchange = make_held(HeldLink())
    exchange.receive(encode(Change(AT_A, 1), Change(AT_B, 2)), is_state=False)
    exchange.begin_state()
    exchange.receive(encode(Change(AT_C, 3)), is_state=False)
    exchange.receive(encode(Change(AT_B, 4)), is_state=True)
    ended: list[int] = []
    exchange.end_state(lambda: ended.append(1))
    assert ended == [1]
    assert world.get("v") == {"b": 4, "c": 3}


def test_long_values_are_sent_in_parts_that_one_message_has_room_for() -> None:
    value: dict[str, Value] = {f"k{at}": {"text": "x" * 9000, "n": at} for at in range(30)}
    parts = list(encode_changes([Change(Place(("v", "a")), value)]))
    assert max(map(len, parts)) < 60_000
    leaves = [Change(Place(("v", key)), "x" * 32_000) for key in "abc"]
    assert [len(part) < 60_000 for part in encode_changes(leaves)] == [True] * 3
    changes = [change for part in parts for change in decode_changes(part)]
    assert changes[0] == Change(Place(("v", "a")), None)
    assert {change.place.path[-1]: change.value for change in changes[1:]} == value
