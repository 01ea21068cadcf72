"""Volatile nodes of several processes come to one state, in whatever order messages arrive."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import attrs
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.defer import Deferred

from tests.database.test_volatile import put
from tests.database.world import ADMIN, World
from tests.examples import examples
from treedbd.database.requests import Write
from treedbd.database.volatile_exchange import VolatileLink, decode_changes, encode_changes
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


def make_process(parent: Parent, number: int) -> World:
    """Return a database that exists at one process."""
    world = World(rules=RULES)
    world.runtime = attrs.evolve(world.runtime, volatile_link=parent.link(number))
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


def test_long_values_are_sent_in_parts_that_one_message_has_room_for() -> None:
    value: dict[str, Value] = {f"k{at}": {"text": "x" * 9000, "n": at} for at in range(30)}
    parts = list(encode_changes([Change(Place(("v", "a")), value)]))
    assert max(map(len, parts)) < 60_000
    leaves = [Change(Place(("v", key)), "x" * 32_000) for key in "abc"]
    assert [len(part) < 60_000 for part in encode_changes(leaves)] == [True] * 3
    changes = [change for part in parts for change in decode_changes(part)]
    assert changes[0] == Change(Place(("v", "a")), None)
    assert {change.place.path[-1]: change.value for change in changes[1:]} == value
