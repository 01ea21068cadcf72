"""What rules cost a database: large leaves are read once, deadlines end evaluations."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from twisted.internet.task import Clock
from twisted.logger import ILogObserver, LogEvent, globalLogPublisher
from twisted.python.failure import Failure
from zope.interface import implementer

from tests.database.world import make_active_rules, make_database, run_at_once
from tests.rules.evaluating import NOW
from treedbd.database.active_rules import ActiveRules
from treedbd.database.requests import Caller, DeadlinePassed, PermissionDenied, Write
from treedbd.database.rights import ReadRequest
from treedbd.database.runtime import Runtime
from treedbd.limits import RulesLimits
from treedbd.rules.ruleset import RuleSet, parse_rules
from treedbd.store.memory import MemoryEngine
from treedbd.store.rows import peek_part
from treedbd.tree.edit import make_put, make_remove
from treedbd.tree.types import Json, Path, Place

ADMIN = Caller(None, is_admin=True)
ANYONE = Caller(None)
BIG = "x" * 200_000
RULES: dict[str, Any] = {
    "posts": {"$post": {".write": True, ".validate": "newData.val() != root.child('big').val()"}},
    "watched": {".read": "data.val() == root.child('big').val()"},
}


class SlowClock(Clock):
    """A clock whose time advances by `lag` whenever it is read."""

    lag = 0.0

    def seconds(self) -> float:
        """Return the time."""
        self.rightNow += self.lag
        return super().seconds()


class World:
    """A database with rules; `parsed` are the lengths of the large rows that were parsed."""

    def __init__(self, document: Any, characters: int = 64 * 1024 * 1024) -> None:
        self.clock = SlowClock()
        self.rules: ActiveRules = make_active_rules(run_at_once, limited(document, characters))
        runtime = Runtime(self.clock, bytes, run_at_once)
        self.database = make_database(MemoryEngine(), runtime, self.rules)

    def write(
        self, path: str, value: Json, caller: Caller = ADMIN, deadline: float | None = None
    ) -> Any:
        """Do a write; return its outcome or the exception that refused it."""
        place = Place(tuple(path.split("/")))
        edit = make_remove(place) if value is None else make_put(place, value)
        results: list[Any] = []
        self.database.write(Write(edit, NOW, caller, deadline=deadline)).addBoth(results.append)
        self.clock.advance(0)
        (result,) = results
        return result.value if isinstance(result, Failure) else result

    def peek(self, *path: str) -> Any:
        return self.database.read(lambda tree: tree.peek(path))


def limited(document: Any, characters: int) -> RuleSet:
    return parse_rules(json.dumps({"rules": document}), RulesLimits(judged_characters=characters))


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of the large rows that were parsed."""
    lengths: list[int] = []

    def record(raw: bytes, below: Path, charge: Any) -> Any:
        if len(raw) > len(BIG):
            lengths.append(len(raw))
        return peek_part(raw, below, charge)

    monkeypatch.setattr("treedbd.store.nodes.peek_part", record)
    return lengths


@implementer(ILogObserver)
class Log:
    """Collects what is logged."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def __call__(self, event: LogEvent) -> None:
        self.texts.append(str(event.get("log_format", "")).format(**event))


@pytest.fixture
def log() -> Iterator[Log]:
    observer = Log()
    globalLogPublisher.addObserver(observer)
    yield observer
    globalLogPublisher.removeObserver(observer)


def test_three_hundred_posts_in_as_many_batches_parse_a_large_leaf_once(parsed: list[int]) -> None:
    world = World(RULES)
    world.write("big", BIG)
    for at in range(300):
        assert world.write(f"posts/p{at}", "text", ANYONE).commit is not None
    assert len(parsed) == 1
    world.write("big", BIG + "y")
    assert isinstance(world.write("posts/p", BIG + "y", ANYONE), PermissionDenied)
    assert len(parsed) == 2


def test_a_hundred_streams_parse_a_large_leaf_once(parsed: list[int]) -> None:
    world = World(RULES)
    world.write("big", BIG)
    world.write("watched", BIG)
    revoked: list[int] = []
    grants = [
        world.database.make_grant(
            ReadRequest(ANYONE, ("watched",), None, lambda: NOW),
            lambda at=at: revoked.append(at),  # type: ignore[misc]
            lambda: None,
        )
        for at in range(100)
    ]
    for grant in grants:
        world.database.read(grant.check)
    assert len(parsed) == 2
    world.write("watched", "other")
    assert len(revoked) == 100
    assert len(parsed) <= 3


def test_each_request_of_a_batch_has_its_own_budget() -> None:
    world = World(RULES, len(BIG) + 1000)
    world.write("big", BIG)
    results: list[Any] = []
    for at in range(10):
        edit = make_put(Place(("posts", f"p{at}")), "text")
        world.database.write(Write(edit, NOW, ANYONE)).addBoth(results.append)
    world.clock.advance(0)
    assert not [result for result in results if isinstance(result, Failure)]
    assert len(results) == 10


def test_the_rule_that_reads_too_much_denies_and_is_logged_once(log: Log) -> None:
    world = World(RULES, len(BIG) - 1)
    world.write("big", BIG)
    for _ in range(3):
        assert isinstance(world.write("posts/p", "text", ANYONE), PermissionDenied)
    (text,) = [text for text in log.texts if "judged_characters" in text]
    assert "rules/posts/$post/.validate" in text
    assert " at 1:" in text
    world.rules.put(json.dumps({"rules": RULES}, indent=1).encode())
    assert world.write("posts/p", "text", ANYONE).commit is not None


def test_a_deadline_that_passes_between_evaluations_ends_them_and_applies_nothing() -> None:
    document = {".write": True, "$a": {"$b": {".validate": "newData.val() != root.val()"}}}
    world = World(document)
    world.clock.lag = 0.001
    records: Json = {f"k{at}": 1 for at in range(10_000)}
    began = world.clock.seconds()
    late = world.write("posts", records, ANYONE, deadline=began + 1.0)
    assert isinstance(late, DeadlinePassed)
    assert world.clock.seconds() < began + 1.5
    assert world.peek("posts") is None
    world.clock.lag = 0
    assert world.write("posts", records, ANYONE, deadline=began + 100).commit is not None


def test_a_caller_without_any_right_is_denied_without_reading() -> None:
    world = World({"a": {"$x": {".write": "auth.uid == $x && data.val() == 1"}}})
    check = world.database.check_may_write
    check(("a",), ADMIN)
    check(("a", "ann"), Caller({"uid": "ann"}))
    for path in ((), ("a",), ("a", "ann"), ("b",)):
        with pytest.raises(PermissionDenied):
            check(path, ANYONE)


def ignore() -> None:
    """Do nothing when a grant is lost."""


def test_a_read_and_a_stream_have_half_the_budget_of_a_write(log: Log) -> None:
    same = "data.child('text').val() != 'x'"
    world = World({"a": {".read": same, ".write": same}}, 2 * len(BIG) - 2)
    world.write("a/text", BIG)
    assert world.write("a/other", 1, ANYONE).commit is not None
    request = ReadRequest(ANYONE, ("a",), None, lambda: NOW)
    with pytest.raises(PermissionDenied):
        world.database.read(lambda nodes: world.database.check_read(request, nodes))
    with pytest.raises(PermissionDenied):
        world.database.read(world.database.make_grant(request, ignore, ignore).check)
    assert any("half of it for a read" in text for text in log.texts)


def test_a_write_without_a_deadline_pauses_between_its_rules(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[None] = []
    monkeypatch.setattr("treedbd.database.rights.pause", lambda: pauses.append(None))
    world = World({".write": True, "$a": {"$b": {".validate": "newData.isNumber()"}}})
    assert world.write("posts", {f"k{at}": 1 for at in range(100)}, ANYONE).commit is not None
    assert len(pauses) >= 100
