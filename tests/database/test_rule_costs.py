"""What rules cost a database: large leaves are read once, deadlines end evaluations."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from twisted.logger import ILogObserver, LogEvent, globalLogPublisher
from zope.interface import implementer

from tests.database.world import ADMIN, World
from tests.rules.evaluating import NOW
from treedbd.database.requests import Caller, DeadlinePassed, Outcome, PermissionDenied
from treedbd.database.rights import ReadRequest
from treedbd.limits import RulesLimits
from treedbd.rules.ruleset import RuleSet, parse_rules
from treedbd.store.rows import peek_part
from treedbd.tree.edit import make_put
from treedbd.tree.types import Json, Path, Place

ANYONE = Caller(None)
BIG = "x" * 200_000
RULES: dict[str, Any] = {
    "posts": {"$post": {".write": True, ".validate": "newData.val() != root.child('big').val()"}},
    "watched": {".read": "data.val() == root.child('big').val()"},
}


class RuledWorld(World):
    """What is written to it is judged by its rules."""

    def __init__(self, document: Any, characters: int = 64 * 1024 * 1024) -> None:
        super().__init__(rules=limited(document, characters))

    def put(
        self, path: str, value: Json, caller: Caller = ADMIN, deadline: float | None = None
    ) -> Any:
        """Do a write; return its outcome or the exception that refused it."""
        place = Place(tuple(path.split("/")))
        return self.write(make_put(place, value), None, deadline, now=NOW, caller=caller)

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
    world = RuledWorld(RULES)
    world.put("big", BIG)
    for at in range(300):
        assert world.put(f"posts/p{at}", "text", ANYONE).commit is not None
    assert len(parsed) == 1
    world.put("big", BIG + "y")
    assert isinstance(world.put("posts/p", BIG + "y", ANYONE), PermissionDenied)
    assert len(parsed) == 2


def test_a_hundred_streams_parse_a_large_leaf_once(parsed: list[int]) -> None:
    world = RuledWorld(RULES)
    world.put("big", BIG)
    world.put("watched", BIG)
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
    world.put("watched", "other")
    assert len(revoked) == 100
    assert len(parsed) <= 3


def test_each_request_of_a_batch_has_its_own_budget() -> None:
    world = RuledWorld(RULES, len(BIG) + 1000)
    world.put("big", BIG)
    writing = [
        world.begin(make_put(Place(("posts", f"p{at}")), "text"), now=NOW, caller=ANYONE)
        for at in range(10)
    ]
    world.clock.run()
    assert all(isinstance(world.wait(each), Outcome) for each in writing)


def test_the_rule_that_reads_too_much_denies_and_is_logged_once(log: Log) -> None:
    world = RuledWorld(RULES, len(BIG) - 1)
    world.put("big", BIG)
    for _ in range(3):
        assert isinstance(world.put("posts/p", "text", ANYONE), PermissionDenied)
    (text,) = [text for text in log.texts if "judged_characters" in text]
    assert "rules/posts/$post/.validate" in text
    assert " at 1:" in text
    world.rules.put(json.dumps({"rules": RULES}, indent=1).encode())
    assert world.put("posts/p", "text", ANYONE).commit is not None


def test_a_deadline_that_passes_between_evaluations_ends_them_and_applies_nothing() -> None:
    document = {".write": True, "$a": {"$b": {".validate": "newData.val() != root.val()"}}}
    world = RuledWorld(document)
    world.clock.lag = 0.001
    records: Json = {f"k{at}": 1 for at in range(10_000)}
    began = world.clock.seconds()
    late = world.put("posts", records, ANYONE, deadline=began + 1.0)
    assert isinstance(late, DeadlinePassed)
    assert world.clock.seconds() < began + 1.5
    assert world.peek("posts") is None
    world.clock.lag = 0
    assert world.put("posts", records, ANYONE, deadline=began + 100).commit is not None


def test_a_caller_without_any_right_is_denied_without_reading() -> None:
    world = RuledWorld({"a": {"$x": {".write": "auth.uid == $x && data.val() == 1"}}})
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
    world = RuledWorld({"a": {".read": same, ".write": same}}, 2 * len(BIG) - 2)
    world.put("a/text", BIG)
    assert world.put("a/other", 1, ANYONE).commit is not None
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
    world = RuledWorld({".write": True, "$a": {"$b": {".validate": "newData.isNumber()"}}})
    assert world.put("posts", {f"k{at}": 1 for at in range(100)}, ANYONE).commit is not None
    assert len(pauses) >= 100
