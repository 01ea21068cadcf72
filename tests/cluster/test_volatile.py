"""Volatile nodes of several daemons come to one state, whatever connections do."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Final

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.database.test_volatile import keys_of, put
from tests.database.world import ADMIN, TurnClock, World
from tests.examples import examples
from treedbd.cluster.volatile import LATE_S, LONG_WAITS, OFFER_S, STATE_S, VolatilePeers
from treedbd.database import volatile_exchange
from treedbd.database.requests import Write
from treedbd.database.volatile_exchange import VolatileExchange, VolatileLink
from treedbd.names import DatabaseName
from treedbd.rules.ruleset import RuleSet, parse_rules

_TEXT: Final = '{"rules": {".read": true, ".write": true, "v": {"$a": {".volatile": true}}%s}}'
RULES: Final = parse_rules(_TEXT % ', "w": {"$a": {".volatile": true}}')
OTHER_RULES: Final = parse_rules(_TEXT % "")
DAEMONS: Final = 3
STEP_S: Final = 1.0
ROUNDS: Final = 6


class Order:
    """The notifications of a PostgreSQL, and the daemons that may receive them."""

    def __init__(self, count: int = DAEMONS) -> None:
        self.messages: list[bytes] = []
        self.joins = 0
        self.daemons = [SimulatedDaemon(self) for _ in range(count)]

    def settle(self, daemons: Sequence[SimulatedDaemon] | None = None) -> None:
        """Let all arrive, and so much time pass that all wait for nothing more."""
        some = self.daemons if daemons is None else daemons
        for _ in range(2 * LONG_WAITS):
            for _ in range(ROUNDS):
                for each in some:
                    each.world.clock.run()
                    each.send(100)
                    each.receive(100)
            for each in some:
                each.world.clock.advance(STEP_S)


class SimulatedDaemon:
    """A database at one daemon, and the way of its messages to the others."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._at: int | None = None
        self._messages: deque[bytes] = deque()
        self._states: deque[Iterator[bytes]] = deque()
        self.world = World(rules=RULES)
        self.peers = VolatilePeers(
            self._messages.append,
            self._states.append,
            self.find,
            self.world.clock,
            now_ms=lambda: int(self.world.clock.seconds() * 1000),
        )
        link = VolatileLink(self.peers.share, self.peers.want)
        self.world.runtime = attrs.evolve(self.world.runtime, volatile_link=link)
        made = self.world.database
        self.world.database = type(made)(
            made.name, self.world.engine, made.project, made.rules, self.world.runtime, 100
        )
        self.world.write(put("exists", True))

    def find(self, name: DatabaseName) -> VolatileExchange | None:
        database = self.world.database
        volatile = database.volatile if name == database.name else None
        return None if volatile is None else volatile.exchange

    @property
    def is_joined(self) -> bool:
        return self._at is not None

    def move_to(self, order: Order) -> None:
        """Lose the connection; the next one is to another server."""
        self.leave()
        self._order = order

    def join(self) -> None:
        """Connect, again if it was connected."""
        self.leave()
        self._at = len(self._order.messages)
        self._order.joins += 1
        self.peers.join(f"s{self._order.joins}")

    def leave(self) -> None:
        """Lose the connection, with all that is not sent or not received."""
        self._at = None
        self.peers.leave()
        self._messages.clear()
        self._states.clear()

    def send(self, most: int) -> None:
        """Send some messages."""
        for _ in range(most if self.is_joined else 0):
            if self._messages:
                self._order.messages.append(self._messages.popleft())
            elif self._states:
                part = next(self._states[0], None)
                if part is None:
                    self._states.popleft()
                else:
                    self._order.messages.append(part)

    def receive(self, most: int) -> None:
        """Receive some messages."""
        for _ in range(most):
            if self._at is not None and self._at < len(self._order.messages):
                self._at += 1
                self.peers.receive(self._order.messages[self._at - 1])

    def put(self, path: str, value: Any) -> None:
        """Write what is volatile, without waiting for anything."""
        keys = keys_of(path)
        paths = self.world.rules.current.volatile
        if paths is not None and (keys == ("v",) or paths.depth(keys) > 0):
            self.world.database.write(Write(put(path, value), 0, ADMIN))

    def put_rules(self, rules: RuleSet) -> None:
        """Replace the rules."""
        if self.world.rules.current.text != rules.text:
            self.world.wait(self.world.rules.put(rules.text.encode(), None))


PATHS = st.sampled_from(["v/a", "v/b", "v/a/x", "v/a/x/y", "v/a/z", "v", "own", "w/a"])
VALUES = st.sampled_from([1, 2, None, {"x": 1}, {"x": {"y": 2}, "z": 3}])
STEPS = st.one_of(
    st.tuples(st.just("write"), PATHS, VALUES),
    st.tuples(st.sampled_from(["cut", "join", "wait", "rules"]), st.none(), st.none()),
)


LONG_VALUES = st.one_of(
    VALUES,
    st.just({"x": {"y": "a" * 9, "q": "b" * 12}, "z": "c" * 12, "a": "d" * 9}),
    st.just({".priority": 4, "x": "a" * 9, "z": "b" * 9, "n": "c" * 5}),
)
LONG_STEPS = st.one_of(
    st.tuples(st.just("write"), PATHS, LONG_VALUES),
    st.tuples(st.sampled_from(["cut", "join", "wait", "rules"]), st.none(), st.none()),
)


class World3:
    """Three daemons, of which the first may be the one that is always connected."""

    def __init__(self, choose: random.Random, *, is_one_left: bool) -> None:
        self.order = Order()
        self.own: dict[str, Any] = {}
        self._choose = choose
        self._is_one_left = is_one_left
        if is_one_left:
            self.order.daemons[0].join()

    def take(self, number: int, kind: str, path: str, value: Any) -> None:
        """Take one step at a daemon."""
        daemon = self.order.daemons[number]
        if kind == "write":
            path = f"v/own{number}" if path == "own" else path
            value = None if path == "v" else value
            self.own[path] = value
            daemon.put(path, value)
        elif kind == "cut" and not (self._is_one_left and number == 0):
            daemon.leave()
        elif kind == "join" and not daemon.is_joined:
            daemon.join()
        elif kind == "rules":
            daemon.put_rules(self._choose.choice([RULES, OTHER_RULES]))
        elif kind == "wait":
            daemon.world.clock.advance(self._choose.choice([OFFER_S, STATE_S]))

    def pass_some(self) -> None:
        """Let some messages be sent and received."""
        choose = self._choose
        for _ in range(choose.randrange(8)):
            daemon = choose.choice(self.order.daemons)
            choose.choice([daemon.send, daemon.receive])(choose.randrange(3))
            if choose.random() < 0.7:
                daemon.world.clock.run()


def states_after(world: World3, steps: list[Any]) -> list[Any]:
    """Take steps, let all daemons be connected until nothing is under way; return their states."""
    for number, step in steps:
        world.take(number, *step)
        world.pass_some()
    daemons = world.order.daemons
    for daemon in daemons:
        daemon.put_rules(RULES)
        if not daemon.is_joined:
            daemon.join()
    world.order.settle()
    return [(each.world.get("v"), each.world.get("w")) for each in daemons]


@settings(deadline=None, max_examples=examples(60))
@given(
    st.lists(st.tuples(st.integers(0, DAEMONS - 1), STEPS), max_size=25),
    st.booleans(),
    st.randoms(),
)
def test_all_come_to_one_state(steps: list[Any], is_one_left: bool, choose: random.Random) -> None:
    world = World3(choose, is_one_left=is_one_left)
    states = states_after(world, steps)
    assert states[0] == states[1] == states[2]
    for number, daemon in enumerate(world.order.daemons):
        path = f"v/own{number}"
        if is_one_left and path in world.own and "v" not in world.own:
            assert daemon.world.get(*path.split("/")) == world.own[path]


@settings(deadline=None, max_examples=examples(30))
@given(
    st.lists(st.tuples(st.integers(0, DAEMONS - 1), LONG_STEPS), max_size=20),
    st.booleans(),
    st.randoms(),
)
def test_all_come_to_one_state_in_several_messages(
    steps: list[Any], is_one_left: bool, choose: random.Random
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for limit, most in (("PART_BYTES", 60), ("SHORT_BYTES", 12), ("MAX_KEPT", 3)):
            patch.setattr(volatile_exchange, limit, most)
        states = states_after(World3(choose, is_one_left=is_one_left), steps)
    assert states[0] == states[1] == states[2]


def get(daemon: SimulatedDaemon, path: str) -> Any:
    return daemon.world.get(*path.split("/"))


def test_a_state_that_was_founded_beside_an_older_one_is_replaced_by_it() -> None:
    order = Order(2)
    old, new = order.daemons
    old.join()
    order.settle([old])
    old.put("v/a", 1)
    order.settle([old])
    new.join()
    order.settle([new])  # the other one is slow, so it founds one
    new.put("v/b", 2)
    assert get(new, "v") == {"b": 2}
    order.settle()
    assert get(old, "v") == get(new, "v") == {"a": 1, "b": 2}


def test_a_daemon_offers_an_older_state_that_it_has_not_received_yet_to_one_of_a_later() -> None:
    order = Order(3)
    first, second, third = order.daemons
    first.join()
    order.settle([first])
    first.put("v/a", 1)
    order.settle([first])
    second.join()
    for _ in range(2):  # its want and the offer
        second.world.clock.run()
        second.send(1)
        first.receive(100)
        first.send(1)
    first.receive(100)
    third.join()
    order.settle([third])
    assert get(third, "v") is None
    first.send(100)
    first.leave()
    order.settle([second, third])
    assert get(second, "v") == get(third, "v") == {"a": 1}


def test_of_those_that_want_a_state_the_one_with_the_newest_offers_it() -> None:
    order = Order(3)
    left, former, new = order.daemons
    for daemon in (left, former):
        daemon.join()
    order.settle([left, former])
    former.put("v/a", "old")
    order.settle([left, former])
    other = Order(3)  # the server that is promoted, while one is connected to the old one
    left.put("v/a", "cut off")
    former.move_to(other)
    former.join()
    order.settle([left])
    other.settle([former])
    former.put("v/a", "new")
    other.settle([former])
    for daemon in (left, new):
        daemon.move_to(other)
    for daemon in (new, left, former):
        daemon.join()
    other.settle([new, left, former])
    for daemon in order.daemons:
        assert get(daemon, "v") == {"a": "new"}


def test_a_state_is_received_of_a_daemon_with_the_same_rules() -> None:
    order = Order(3)
    with_others, other, late = order.daemons
    with_others.put_rules(OTHER_RULES)
    for daemon in (with_others, other):
        daemon.join()
        order.settle([daemon])
    order.settle([with_others, other])
    other.put("w/a", 1)
    order.settle([with_others, other])
    late.join()
    late.world.clock.run()
    late.send(1)
    with_others.receive(100)
    with_others.send(100)  # before the one that has it
    order.settle()
    assert get(with_others, "w") is None
    assert get(late, "w") == {"a": 1}


def test_messages_that_no_daemon_sends_have_no_effect() -> None:
    order = Order(1)
    (daemon,) = order.daemons
    daemon.join()
    daemon.put("v/a", 1)
    order.settle()
    label = daemon.world.database.name.label
    for head in (
        "",
        "1",
        "[]",
        "[1]",
        "{",
        f'["state","s",1,"{label}","group",1,true]',
        '["x","y",1]',
    ):
        daemon.peers.receive(head.encode() + b"\n[]")
    assert get(daemon, "v") == {"a": 1}


def test_an_own_message_that_does_not_come_back_is_late() -> None:
    (daemon,) = Order(1).daemons
    daemon.join()
    daemon.put("v/a", 1)
    daemon.world.clock.run()
    assert not daemon.peers.beat()
    daemon.world.clock.advance(LATE_S)
    assert not daemon.peers.beat()
    daemon.world.clock.advance(1)
    assert daemon.peers.beat()


def test_databases_that_are_not_in_use_any_more_are_forgotten() -> None:
    looked: list[DatabaseName] = []

    def find(name: DatabaseName) -> None:
        looked.append(name)

    nothing: deque[Any] = deque()
    peers = VolatilePeers(nothing.append, nothing.append, find, TurnClock())
    for number in range(1000):
        peers.want(DatabaseName("shop", f"d{number}"))
    looked.clear()
    peers.join("s")
    assert 0 < len(looked) <= 200


def test_a_want_for_a_database_that_is_not_used_ends() -> None:
    (daemon,) = Order(1).daemons
    ended: list[object] = []
    daemon.join()
    daemon.peers.want(DatabaseName("shop", "unused")).addCallback(ended.append)
    daemon.world.clock.run()
    assert ended == [None]
