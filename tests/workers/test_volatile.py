"""Workers come to one state of what is volatile, in whatever order messages arrive."""

from __future__ import annotations

import json
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

import pytest
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.error import ConnectionDone

from tests.database.test_volatile import Reader, put
from tests.database.world import ADMIN, TurnClock, World
from tests.examples import examples
from treedbd.database.requests import Write
from treedbd.database.volatile_exchange import VolatileExchange
from treedbd.rules.ruleset import parse_rules
from treedbd.workers import protocol
from treedbd.workers.volatile import LOCK_S, VolatileRelay, WorkerVolatile

COUNT: Final = 3
VOLATILE: Final = {".volatile": True}
RULES: Final = [
    parse_rules(
        json.dumps({"rules": {".read": True, ".write": True, "k": {"$a": VOLATILE}, "v": of_v}})
    )
    for of_v in ({"$a": VOLATILE}, VOLATILE, {"a": {"$b": VOLATILE}, "b": VOLATILE}, {})
]
STORED: Final = 3
ADD: Final = {".sv": {"increment": 1}}


class Parent:
    """The parent of the workers, with their connections."""

    def __init__(self) -> None:
        self.clock = TurnClock()
        self.workers: list[SimulatedWorker] = []
        workers: Any = self.workers
        self.relay = VolatileRelay(workers, self.clock)
        for number in range(COUNT):
            self.workers.append(SimulatedWorker(self, number))

    def answer(self, worker: Any, command: Any, label: str, **arguments: Any) -> Any:
        """Do what a worker commands."""
        relay = self.relay
        if command is protocol.ShareVolatile:
            return relay.share(worker, label, arguments["content"], arguments["to"])
        if command is protocol.WantVolatile:
            wanted: Deferred[bool] = Deferred.fromCoroutine(relay.want(worker, label, **arguments))
            return wanted.addCallback(lambda is_given: {"is_given": is_given})
        if command is protocol.LockVolatile:
            return relay.lock(worker, label)
        assert command is protocol.UnlockVolatile
        return relay.unlock(worker, label)

    def settle(self) -> None:
        """Let all messages arrive."""
        is_quiet = False
        while not is_quiet:
            is_quiet = not self.clock.take_turn()
            for each in self.workers:
                while each.world.clock.take_turn() or each.pass_up() or each.pass_down():
                    is_quiet = False


class SimulatedWorker:
    """A worker, and its connection: messages and answers arrive in the order they are sent."""

    def __init__(self, parent: Parent, number: int) -> None:
        self.number = number
        self.rules = 0
        self.deaths = 0
        self._parent = parent
        self._up: deque[Callable[[], object]] = deque()
        self._down: deque[Callable[[], object]] = deque()
        self._told: set[Deferred[Any]] = set()
        self._start()

    def _start(self) -> None:
        clock = TurnClock()
        self.volatile = WorkerVolatile(clock)
        self.world = World(
            rules=RULES[self.rules], clock=clock, of_runtime={"volatile_link": self.volatile.link}
        )
        self.volatile.call, self.volatile.find = self._call, lambda _: self._exchange
        self.world.write(put("exists", True))
        self.reader = Reader(self.world, (), None)
        self.reader.start()

    @property
    def _exchange(self) -> VolatileExchange | None:
        volatile = self.world.database.volatile
        return None if volatile is None else volatile.exchange

    def write(self, path: str, value: Any) -> list[Any]:
        """Write; return where the outcome will be."""
        found: list[Any] = []
        self.world.database.write(Write(put(path, value), 0, ADMIN)).addBoth(found.append)
        return found

    def change_rules(self, number: int) -> None:
        """Put other rules in force, here alone."""
        self.rules = number
        self.world.rules.current = RULES[number]
        self.world.rules_changed()

    def state(self) -> Any:
        """Return what a read shows."""
        return self.world.get()

    def held(self) -> list[str]:
        """Return what this worker has in memory alone."""
        assert self._exchange is not None
        return sorted(map(repr, self._exchange.state()))

    # The connection.

    def tell(self, command: Any, **arguments: Any) -> Deferred[Any]:
        """Send a command from the parent."""
        done: Deferred[Any] = Deferred()
        self._told.add(done)

        def answer(response: Any) -> None:
            if done in self._told:
                self._told.remove(done)
                done.callback(response)

        def receive() -> None:
            response = self._do(command, **arguments)
            self._up.append(lambda: answer(response))

        self._down.append(receive)
        return done

    def _call(self, command: Any, **arguments: Any) -> Deferred[Any]:
        done: Deferred[Any] = Deferred()
        life = self.deaths

        def answer(response: Any) -> None:
            if life == self.deaths:
                self._down.append(lambda: done.callback(response))

        def receive() -> None:
            maybeDeferred(self._parent.answer, self, command, **arguments).addCallback(answer)

        self._up.append(receive)
        return done

    def _do(self, command: Any, label: str, **arguments: Any) -> Any:
        if command is protocol.ShareVolatile:
            content, is_state = arguments["content"], arguments["to"] >= 0
            return self.volatile.receive(label, content, is_state=is_state)
        if command is protocol.BeginVolatile:
            return self.volatile.begin(label)
        assert command is protocol.GiveVolatile
        is_given = self.volatile.give(label, **arguments)
        return {"is_given": is_given, "has_state": self.volatile.has_state(label)}

    def pass_up(self) -> bool:
        """Let the oldest message to the parent arrive; return whether there was one."""
        if self._up:
            self._up.popleft()()
            return True
        return False

    def pass_down(self) -> bool:
        """Let the oldest message from the parent arrive; return whether there was one."""
        if self._down:
            self._down.popleft()()
            return True
        return False

    def die(self) -> None:
        """End, and begin again; what was sent before arrives."""
        self.deaths += 1
        while self.pass_up():
            pass
        self._down.clear()
        self._parent.relay.ended(self)  # type: ignore[arg-type]
        told, self._told = self._told, set()
        for each in told:
            each.errback(ConnectionDone())
        self._up.clear()
        self._down.clear()
        self._start()


PATHS: Final = ("v/a", "v/b", "v/a/x", "v/a/x/y", "v/a/z", "v")
VALUES: Final = (1, 2, None, {"x": 1}, {"x": {"y": 2}, "z": 3})
MOST_STEPS: Final = 16


def make_step(choose: random.Random, kinds: Sequence[str]) -> tuple[Any, ...]:
    """Return a step of one of these kinds."""
    kind, worker = choose.choice(kinds), choose.randrange(COUNT)
    if kind == "write":
        return kind, worker, choose.choice(PATHS), choose.choice(VALUES)
    if kind == "rules":
        return kind, worker, choose.randrange(len(RULES))
    return kind, worker


def is_in_memory(rules: int, path: str, value: Any) -> bool:
    """Return whether nothing of a write is stored, by any rules: each worker has its own store."""
    is_leaf = value is not None and not isinstance(value, dict)
    return rules != STORED and not (is_leaf and path == "v/a") and (path != "v" or value is None)


class Run:
    """One example: what was done, and in which order messages arrived."""

    def __init__(self, choose: random.Random) -> None:
        self.parent = Parent()
        self._choose = choose
        self._kept: list[tuple[SimulatedWorker, str, list[Any]]] = []
        self._added: list[list[Any]] = []

    def go_on(self, most: int) -> None:
        """Let some messages arrive, and take some turns."""
        for _ in range(self._choose.randrange(most)):
            worker = self._choose.choice(self.parent.workers)
            turns = worker.world.clock.take_turn, self.parent.clock.take_turn
            self._choose.choice([*turns, worker.pass_up, worker.pass_down])()

    def do(self, kind: str, at: int, *rest: Any) -> None:
        """Do one step at one worker."""
        worker = self.parent.workers[at]
        if kind == "write" and is_in_memory(worker.rules, *rest):
            worker.write(*rest)
        elif kind == "add":
            self._added.append(worker.write("k/n", ADD))
        elif kind == "keep":
            key = f"u{len(self._kept)}"
            self._kept.append((worker, key, worker.write(f"k/{key}", key)))
        elif kind == "rules":
            worker.change_rules(*rest)
        elif kind == "die":
            worker.die()

    def check(self) -> None:
        """Compare the workers, and their readers, and find what was acknowledged."""
        workers = self.parent.workers
        states = [worker.state() for worker in workers]
        first, *others = [worker.held() for worker in workers]
        assert others == [first] * len(others)
        assert all(
            worker.reader.replica.equals(state)
            for worker, state in zip(workers, states, strict=True)
        )
        in_k = states[0].get("k", {})
        lasting = [each for each in self._kept if not each[0].deaths]
        assert all(outcome and in_k.get(key) == key for _, key, outcome in lasting)
        if not any(worker.deaths for worker in workers):
            assert all(self._added)
            assert in_k.get("n", 0) == len(self._added)


@pytest.mark.parametrize("others", [(), ("rules", "die"), ("rules",)])
def test_all_come_to_one_state(others: tuple[str, ...]) -> None:
    kinds = ("write", "write", "add", "keep", *others)
    for seed in range(examples(200)):
        choose = random.Random(seed)  # of which nothing is secret
        run = Run(choose)
        run.go_on(12)
        for _ in range(choose.randrange(MOST_STEPS)):
            run.do(*make_step(choose, kinds))
            run.go_on(8)
        last = choose.randrange(len(RULES))
        for worker in run.parent.workers:
            worker.change_rules(last)
            run.go_on(8)
        run.parent.settle()
        run.check()


def test_who_has_the_lock_too_long_or_dies_loses_it() -> None:
    parent = Parent()
    parent.settle()
    first, second, third = parent.workers
    locks = [parent.relay.lock(worker, "p") for worker in (first, second, third)]  # type: ignore[arg-type]
    held = second.write("k/a", 1)
    parent.settle()
    assert not held
    assert (first.held(), third.held()) == ([], [])
    assert [lock.called for lock in locks] == [True, False, False]
    parent.clock.advance(LOCK_S)
    parent.settle()
    assert held
    assert first.held() == third.held() == second.held() != []
    assert [lock.called for lock in locks] == [True, True, False]
    second.die()
    assert locks[2].called


def test_changes_of_one_message_after_the_other_have_their_places_one_by_one() -> None:
    parent = Parent()
    parent.settle()
    first, second, _ = parent.workers
    first.write("k/a", 1)
    first.write("k/b", "x" * 30_000)
    first.write("k/c", "x" * 30_000)  # in a second message
    first.world.clock.take_turn()
    first.pass_up()
    second.write("k/a", 2)
    second.world.clock.take_turn()
    second.pass_up()
    parent.settle()
    assert first.held() == second.held()
    assert first.world.get("k", "a") == 2


def test_what_is_not_sent_yet_when_the_rules_change_is_applied_by_the_new_ones() -> None:
    parent = Parent()
    parent.settle()
    parent.workers[0].write("v/a/x", 2)
    for worker in parent.workers:
        worker.change_rules(2)
    parent.settle()
    assert [worker.world.get("v", "a", "x") for worker in parent.workers] == [2] * COUNT
