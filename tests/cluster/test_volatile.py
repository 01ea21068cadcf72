"""Volatile nodes of several daemons come to one state, whatever connections do."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Final

import attrs
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.database.test_volatile import put
from tests.database.world import ADMIN, World
from tests.examples import examples
from treedbd.cluster.volatile import OFFER_S, STATE_S, VolatilePeers
from treedbd.database.requests import Write
from treedbd.database.volatile_exchange import VolatileExchange, VolatileLink
from treedbd.names import DatabaseName
from treedbd.rules.ruleset import parse_rules

RULES: Final = parse_rules(
    '{"rules": {".read": true, ".write": true, "v": {"$a": {".volatile": true}}}}'
)
DAEMONS: Final = 3
ROUNDS: Final = 12


class Order:
    """The notifications of a PostgreSQL, and the daemons that may receive them."""

    def __init__(self, count: int = DAEMONS) -> None:
        self.messages: list[bytes] = []
        self.joins = 0
        self.daemons = [SimulatedDaemon(self) for _ in range(count)]

    def settle(self, daemons: Sequence[SimulatedDaemon] | None = None) -> None:
        """Let all arrive, and so much time pass that all wait for nothing more."""
        some = self.daemons if daemons is None else daemons
        for _ in range(ROUNDS):
            for _ in range(ROUNDS):
                for each in some:
                    each.world.clock.run()
                    each.send(100)
                    each.receive(100)
            for each in some:
                each.world.clock.advance(OFFER_S)


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
            self._find,
            self.world.clock,
            now_ms=lambda: len(order.messages),
        )
        link = VolatileLink(self.peers.share, self.peers.want)
        self.world.runtime = attrs.evolve(self.world.runtime, volatile_link=link)
        made = self.world.database
        self.world.database = type(made)(
            made.name, self.world.engine, made.project, made.rules, self.world.runtime, 100
        )
        self.world.write(put("exists", True))

    def _find(self, name: DatabaseName) -> VolatileExchange | None:
        database = self.world.database
        return None if database.volatile is None else database.volatile.exchange

    @property
    def is_joined(self) -> bool:
        return self._at is not None

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
        """Write, without waiting for anything."""
        self.world.database.write(Write(put(path, value), 0, ADMIN))


PATHS = st.sampled_from(["v/a", "v/b", "v/a/x", "v/a/x/y", "v/a/z", "v", "own"])
VALUES = st.sampled_from([1, 2, None, {"x": 1}, {"x": {"y": 2}, "z": 3}])
STEPS = st.one_of(
    st.tuples(st.just("write"), PATHS, VALUES),
    st.tuples(st.sampled_from(["cut", "join", "wait"]), st.none(), st.none()),
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


@settings(deadline=None, max_examples=examples(60))
@given(
    st.lists(st.tuples(st.integers(0, DAEMONS - 1), STEPS), max_size=25),
    st.booleans(),
    st.randoms(),
)
def test_all_come_to_one_state(steps: list[Any], is_one_left: bool, choose: random.Random) -> None:
    world = World3(choose, is_one_left=is_one_left)
    for number, step in steps:
        world.take(number, *step)
        world.pass_some()
    daemons = world.order.daemons
    for daemon in daemons:
        if not daemon.is_joined:
            daemon.join()
    world.order.settle()
    states = [each.world.get("v") for each in daemons]
    assert states[0] == states[1] == states[2]
    for number, daemon in enumerate(daemons):
        path = f"v/own{number}"
        if is_one_left and path in world.own and "v" not in world.own:
            assert daemon.world.get(*path.split("/")) == world.own[path]
