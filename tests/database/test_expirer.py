"""Who removes nodes whose time is over, and when: never early, soon, and beside other writes."""

from __future__ import annotations

import json
import pathlib
from typing import Any, Final

import pytest
from twisted.internet.defer import Deferred
from twisted.logger import LogLevel, capturedLogs, formatEvent

from tests.database.catalogs import ANONYMOUS, PROJECT, make_catalog, read
from tests.database.world import TurnClock
from treedbd.database import expirer as expirer_module
from treedbd.database.catalog import Catalog
from treedbd.database.database import Database
from treedbd.database.election import SoleElection
from treedbd.database.expirer import (
    LOOK_S,
    MOST_NODES,
    POSTPONED_MS,
    RETRY_S,
    SWEEPS,
    Expirer,
)
from treedbd.database.requests import TooLarge, Write
from treedbd.limits import HookLimits
from treedbd.names import DatabaseName
from treedbd.store.changelog import events_of
from treedbd.store.hooks import KINDS, Hook
from treedbd.tree.edit import Edit, make_put
from treedbd.tree.pattern import parse_pattern
from treedbd.tree.types import Place

START_MS: Final = 1_800_000_000_000
RULES: Final = {"rules": {".read": True, ".write": True, "chat": {"$id": {".ttl": 10}}}}


class SweptWorld:
    """A catalog of SQLite files, and what removes nodes; its wall clock is that of the test."""

    def __init__(self, folder: pathlib.Path, rules: Any = RULES, **options: Any) -> None:
        self.folder = folder
        self.options = options
        self.now_ms = START_MS
        self.elections: list[SoleElection] = []
        self.catalog: Catalog
        self.clock: TurnClock
        self.start()
        if rules is not None:
            self.put_rules(rules)

    def start(self) -> None:
        self.catalog, self.clock = make_catalog(
            self.folder,
            PROJECT,
            now_ms=lambda: self.now_ms,
            max_open=SWEEPS,
            **self.options,
        )
        self.runtime = self.catalog._runtime
        self.expirer = Expirer(self.catalog, self.runtime, self.make_election)
        self.expirer.start()
        self.clock.run()

    def make_election(self) -> SoleElection:
        self.elections.append(SoleElection())
        return self.elections[-1]

    def put_rules(self, rules: Any) -> None:
        self.wait(self.catalog.rules("p").put(json.dumps(rules).encode()))

    def wait(self, waiting: Deferred[Any]) -> Any:
        found: list[Any] = []
        waiting.addBoth(found.append)
        while not found:
            assert self.clock.take_turn()
        return found[0]

    def find(self, name: str) -> Database:
        return self.catalog.find(DatabaseName("p", name))

    def do(self, name: str, edit: Edit) -> Any:
        database = self.find(name)
        opening = self.catalog.acquire(database, 30.0, is_write=True)
        if opening is not None:
            self.wait(opening)
        outcome = self.wait(database.write(Write(edit, self.now_ms, ANONYMOUS)))
        self.catalog.release(database)
        return outcome

    def put(self, name: str, path: str, value: Any) -> Any:
        return self.do(name, make_put(Place(tuple(path.split("/"))), value))

    def pass_by(self, seconds: float) -> None:
        """Let time pass, in steps as short as the looks."""
        passed = 0.0
        while passed < seconds:
            step = min(LOOK_S, seconds - passed)
            self.now_ms += int(step * 1000)
            self.clock.advance(step)
            self.clock.run()
            passed += step

    def read(self, name: str = "a") -> Any:
        return read(self.find(name))

    def stop(self) -> None:
        self.wait(Deferred.fromCoroutine(self.expirer.stop()))
        self.catalog.close_at_once()


@pytest.fixture
def world(tmp_path: pathlib.Path) -> SweptWorld:
    return SweptWorld(tmp_path)


def test_a_node_goes_within_two_seconds_and_not_early(world: SweptWorld) -> None:
    world.put("a", "chat/x", "hello")
    world.pass_by(9.9)
    assert world.read() == {"chat": {"x": "hello"}}
    world.pass_by(2)
    assert world.read() is None
    statistics = world.runtime.statistics
    assert statistics.expired_nodes == 1
    assert statistics.expiry_seconds.counts[-4:] == [0, 0, 0, 0]
    assert statistics.expiry_seconds.total < 2
    assert world.expirer.lag_s() == 0.0


def test_a_node_that_is_written_again_at_the_last_moment_stays(world: SweptWorld) -> None:
    world.put("a", "chat/x", 1)
    world.pass_by(9.9)
    world.put("a", "chat/x", 2)
    world.pass_by(5)
    assert world.read() == {"chat": {"x": 2}}


def test_many_nodes_go_in_writes_of_a_few_between_which_others_write(
    world: SweptWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expirer_module, "WRITE_S", 3600.0)  # the machine may be slow
    world.put("a", "chat", {f"m{at:04}": at for at in range(3000)})
    world.now_ms += 10_000
    for turn in range(40):
        world.pass_by(LOOK_S)
        world.put("a", "other", turn)
    assert world.read() == {"other": 39}
    sizes = [each for each in world.runtime.statistics.expiry_seconds.counts if each]
    assert 3000 / MOST_NODES <= sum(sizes) < 30
    assert world.runtime.statistics.expired_nodes == 3000


def test_a_clock_that_steps_is_followed_and_nothing_goes_before_it_says_so(
    world: SweptWorld,
) -> None:
    world.put("a", "chat/x", 1)
    world.now_ms -= 3600_000
    world.pass_by(60)
    assert world.read() == {"chat": {"x": 1}}
    world.now_ms += 3600_000
    world.pass_by(1)
    assert world.read() is None


def test_what_came_due_while_the_daemon_was_away_goes_after_a_start(world: SweptWorld) -> None:
    for name in "abcde":  # more than are open at a time
        world.put(name, "chat/x", name)
    world.put("f", "chat/y", 1)
    world.stop()
    world.now_ms += 10_000
    world.start()
    world.pass_by(2)
    assert [world.read(name) for name in "abcdef"] == [None] * 6


def test_rules_that_come_later_are_followed_in_databases_that_are_closed(
    tmp_path: pathlib.Path,
) -> None:
    world = SweptWorld(tmp_path, rules=None)
    world.put("a", "chat/x", 1)
    world.pass_by(60)
    assert not world.elections
    assert not world.runtime.news
    world.put_rules(RULES)
    world.pass_by(9)
    assert world.read() == {"chat": {"x": 1}}
    world.pass_by(3)
    assert world.read() is None
    assert len(world.elections) == 1


def test_a_ttl_that_is_added_to_others_is_followed_without_another_write(
    tmp_path: pathlib.Path,
) -> None:
    world = SweptWorld(tmp_path, {"rules": {".write": True, "other": {"$id": {".ttl": 10}}}})
    world.put("a", "chat/x", 1)
    world.pass_by(1)
    world.put_rules(RULES)
    world.pass_by(12)
    assert world.read() is None


def test_a_process_that_accepts_no_writes_removes_nothing_until_it_does(world: SweptWorld) -> None:
    world.put("a", "chat/x", 1)
    world.runtime.gate.refusal = "This is a standby."
    world.pass_by(60)
    assert world.read() == {"chat": {"x": 1}}
    world.runtime.gate.refusal = None
    world.pass_by(1)
    assert world.read() is None


def test_one_that_is_not_elected_removes_nothing(world: SweptWorld) -> None:
    world.put("a", "chat/x", 1)
    world.elections[0]._is_elected = False
    world.pass_by(60)
    assert world.read() == {"chat": {"x": 1}}
    world.elections[0]._is_elected = True
    world.pass_by(1)
    assert world.read() is None


def test_a_node_that_cannot_be_removed_delays_no_other(
    world: SweptWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.put("a", "chat", {"a": 3, "bad": 1, "good": 2})
    check = type(world.find("a").rights).check_write

    def refuse(rights: Any, nodes: Any, write: Write, edit: Edit, after: Any) -> bool:
        if any(change.place.path[-1:] == ("bad",) for change in edit.changes):
            raise TooLarge("too much")
        return check(rights, nodes, write, edit, after)

    monkeypatch.setattr(type(world.find("a").rights), "check_write", refuse)
    with capturedLogs() as events:
        world.pass_by(12 + RETRY_S)
    assert world.read() == {"chat": {"bad": 1}}
    lag = world.expirer.lag_s()
    assert lag > RETRY_S
    world.put("a", "chat/later", 1)
    world.pass_by(5)
    assert lag + 4 <= world.expirer.lag_s() <= lag + 6
    world.pass_by(POSTPONED_MS / 1000)
    assert world.read() == {"chat": {"bad": 1}}
    assert world.expirer.lag_s() > lag + POSTPONED_MS / 1000
    warned = [formatEvent(each) for each in events if each["log_level"] is LogLevel.warn]
    assert warned == ["a--p: nodes whose time is over are not removed yet: too much"]
    monkeypatch.undo()
    world.pass_by(POSTPONED_MS / 1000)
    assert world.read() is None
    assert world.expirer.lag_s() == 0.0


def test_nodes_with_too_many_events_for_hooks_go_in_smaller_writes(tmp_path: pathlib.Path) -> None:
    hook = Hook(
        "lines", parse_pattern("/chat/$id/$line"), frozenset(KINDS), url="https://a.example"
    )
    world = SweptWorld(
        tmp_path, hooks_of=lambda _: (hook,), hook_limits=HookLimits(events_per_write=3)
    )
    for name, lines in (("a", "xy"), ("b", "xy"), ("c", "xyz")):
        world.put("a", f"chat/{name}", dict.fromkeys(lines, 1))
    world.do("a", make_put(Place(("chat", "long", "p")), 1))
    world.do("a", make_put(Place(("chat", "long", "q")), {"r": 1}))
    for at in range(3):
        world.put("a", f"chat/long/{at}", 1)
    with capturedLogs() as events:
        world.pass_by(15)
    assert world.read() is None
    entries = world.find("a").read(lambda nodes: list(nodes.rows.entries(0)))
    deleted = [event for entry in entries for event in events_of(entry.content)]
    gone = sorted("/".join(event.path) for event in deleted if event.kind == "deleted")
    assert gone == [f"chat/{name}" for name in ("a/x", "a/y", "b/x", "b/y", "c/x", "c/y", "c/z")]
    (warned,) = [formatEvent(each) for each in events if each["log_level"] is LogLevel.warn]
    assert warned.startswith("a--p: a node whose time is over goes without events for hooks: ")


def test_a_database_that_is_deleted_is_forgotten(world: SweptWorld) -> None:
    world.put("a", "chat/x", 1)
    world.wait(world.catalog.delete(DatabaseName("p", "a")))
    world.pass_by(20)
    assert world.expirer.lag_s() == 0.0
    world.put("b", "chat/x", 1)
    world.pass_by(12)
    assert world.read("b") is None


def test_without_such_rules_nothing_is_scheduled(tmp_path: pathlib.Path) -> None:
    world = SweptWorld(tmp_path, rules=None)
    assert not world.expirer._looking.running
    world.stop()
