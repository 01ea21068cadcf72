"""Nodes that go at the time that rules say: the index that writes keep, and what the sweep removes.

The sweep is done here by the writes that it consists of; who does them is in `test_expirer`.
"""

from __future__ import annotations

import json
from itertools import product
from math import inf
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.database.world import Recorder, World
from tests.examples import examples
from treedbd.database import expiry as database_expiry
from treedbd.database.expiry import PostponeExpired, RemoveExpired, make_removal
from treedbd.database.requests import Caller, LargeBody, QuotaExceeded
from treedbd.names import Origin
from treedbd.rules.ruleset import OPEN, RuleSet, parse_rules
from treedbd.store import changelog
from treedbd.store.engine import Engine, ReadView
from treedbd.store.expiry_rows import (
    EXPIRY_END,
    EXPIRY_FIRST,
    check_expiry,
    read_state,
)
from treedbd.store.memory import MemoryEngine
from treedbd.tree.edit import Edit, make_patch, make_put, make_remove
from treedbd.tree.types import ROOT, Path, Place

SECOND = 1000
SWEEPER = Caller(None, is_admin=True, origin=Origin("", None, "expiry"))
NOTHING = make_remove(Place(ROOT))


def rules_of(rules: Any) -> RuleSet:
    return parse_rules(json.dumps({"rules": {".read": True, ".write": True, **rules}}))


CHAT = rules_of({"chat": {"$id": {".ttl": 10}}})
AT = rules_of({"jobs": {"$id": {".ttl": "data.child('at').val()"}}})


def put(path: str, value: Any) -> Edit:
    return make_put(Place(tuple(path.split("/"))), value)


class ExpiringWorld(World):
    """A database with such rules; its wall clock is that of the test."""

    def __init__(self, rules: RuleSet = CHAT, engine: Engine | None = None, **quotas: Any) -> None:
        super().__init__(engine, rules, **quotas)

    def do(self, edit: Edit, **options: Any) -> Any:
        return self.write(edit, now=self.now_ms, **options)

    def declare(self, rules: RuleSet) -> None:
        self.rules.current = rules
        self.database.recheck_grants()
        self.clock.run()

    def sweep(self, limit: int = 100) -> int:
        """Remove what is due, and return how many nodes were removed."""
        removed = 0
        while True:
            task = RemoveExpired(self.database.expiry, limit)
            outcome = self.write(NOTHING, now=self.now_ms, caller=SWEEPER, task=task)
            assert not isinstance(outcome, Exception), outcome
            removed += task.removed
            if not task.has_more:
                return removed

    def rows(self) -> int:
        return self.engine.read(
            lambda view: sum(1 for _ in view.scan_keys(EXPIRY_FIRST + b"\0", EXPIRY_END))
        )

    def check(self) -> None:
        assert self.engine.read(lambda view: list(check_expiry(view))) == []


def test_a_node_goes_some_seconds_after_its_last_write_and_not_before() -> None:
    world = ExpiringWorld()
    world.do(put("chat/a", {"text": "hello"}))
    world.do(put("other", 1))
    world.now_ms = 10 * SECOND - 1
    assert world.sweep() == 0
    world.now_ms = 10 * SECOND
    assert world.sweep() == 1
    assert world.get() == {"other": 1}
    assert world.rows() == 0


@pytest.mark.parametrize(
    "edit",
    [
        put("chat/a", 2),
        put("chat/a/text", "changed"),
        put("chat", {"a": 3}),
        make_put(Place(ROOT), {"chat": {"a": 4}}),
        make_patch(("chat",), {"a/text": 5}),
        make_put(Place(("chat", "a"), is_priority=True), 7),
    ],
)
def test_a_write_at_above_or_below_a_node_keeps_it_for_its_seconds(edit: Edit) -> None:
    world = ExpiringWorld()
    world.do(put("chat/a", {"text": "hello", "more": 1}))
    world.now_ms = 9 * SECOND
    world.do(edit)
    world.now_ms = 19 * SECOND - 1
    assert world.sweep() == 0
    assert world.get("chat", "a") is not None
    world.now_ms = 19 * SECOND
    assert world.sweep() == 1
    assert world.get() is None


def test_an_expression_says_when_a_node_goes_as_its_data_is() -> None:
    world = ExpiringWorld(AT)
    world.do(put("jobs", {"a": {"at": 5000}, "b": {"at": 9000}, "c": {"at": "never"}}))
    world.do(put("jobs/b/at", 3000))
    world.now_ms = 3000
    assert world.sweep() == 1
    world.do(put("jobs/a/at", 7000))
    world.now_ms = 6999
    assert world.sweep() == 0
    world.do(put("jobs/a/at", "never"))
    world.now_ms = 10**9
    assert world.sweep() == 0
    assert world.get() == {"jobs": {"a": {"at": "never"}, "c": {"at": "never"}}}
    assert world.rows() == 0


def test_nodes_that_go_together_are_one_logged_write_that_watchers_see() -> None:
    world, watcher = ExpiringWorld(), Recorder()
    world.do(put("chat", {"a": 1, "b": 2, "c": 3}))
    world.now_ms = 5 * SECOND
    world.do(put("chat/c", 4))
    world.database.watching.watch(("chat",), watcher, lambda _: None)
    world.now_ms = 10 * SECOND
    assert world.sweep() == 2
    assert [(each.kind, each.path, each.data) for each in watcher.events] == [
        ("patch", ROOT, {"a": None, "b": None})
    ]
    entry = world.engine.read(lambda view: list(view.entries(2)))[0]
    logged = changelog.describe_entry(entry)
    assert logged.writer == changelog.Writer(None, True, Origin("", None, "expiry"))


def test_nested_nodes_and_nodes_far_from_each_other_go_together() -> None:
    rules = rules_of({"a": {"$x": {".ttl": 1, "$y": {".ttl": 1}}}, "b": {".ttl": 1}})
    world = ExpiringWorld(rules)
    world.do(make_put(Place(ROOT), {"a": {"x": {"y": 1}, "z": {"y": 1}}, "b": 2, "c": 3}))
    assert world.rows() == 10
    world.now_ms = SECOND
    assert world.sweep() == 5
    assert world.get() == {"c": 3}
    world.check()
    assert world.rows() <= 4  # those of nodes that went with others are left to the sweep
    world.sweep()
    assert world.rows() == 0


def test_one_removal_is_a_patch_as_deep_as_it_can_be() -> None:
    def removal(*paths: str) -> tuple[Path, Any]:
        edit = make_removal([tuple(path.split("/")) for path in paths])
        return edit.place.path, edit.sent

    assert removal("a/b/c") == (("a", "b"), {"c": None})
    assert removal("a/b/c", "a/b/d", "a/b/c/e") == (("a", "b"), {"c": None, "d": None})
    assert removal("a/b/c", "a/d") == (("a",), {"b/c": None, "d": None})
    assert removal("a", "b/c") == ((), {"a": None, "b/c": None})


def test_rows_of_removed_subtrees_are_dropped_when_they_are_due() -> None:
    world = ExpiringWorld()
    world.do(put("chat", {"a": 1, "b": 2}))
    world.do(make_remove(Place(("chat", "a"))))
    assert world.rows() == 2
    world.do(make_remove(Place(("chat",))))
    world.now_ms = 10 * SECOND
    assert world.sweep() == 0
    assert world.rows() == 0
    assert world.engine.read(lambda view: view.sequence()) == 3


def test_a_refused_write_keeps_no_node() -> None:
    world = ExpiringWorld(database_bytes=600)
    world.do(put("chat/a", "x"))
    world.now_ms = 9 * SECOND
    assert isinstance(world.do(put("chat/a", "x" * 1000)), QuotaExceeded)
    world.now_ms = 10 * SECOND
    assert world.sweep() == 1
    assert world.do(put("chat/b", "x" * 400)).commit is not None


def test_a_large_body_is_entered_as_a_small_one_is() -> None:
    world = ExpiringWorld()
    body = json.dumps({f"m{at}": {"text": "x" * 50} for at in range(300)}).encode()
    large = LargeBody(lambda: iter([body]), len(body), 10**6, 10**6)
    edit = attrs.evolve(put("chat", {"m": 1}), sent=None)
    outcome = world.do(edit, large=large, wants_echo=False)
    assert outcome.commit is not None
    world.now_ms = 10 * SECOND
    assert world.sweep() == 300
    assert world.get() is None


def test_data_that_was_there_before_its_rule_counts_from_the_rule_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(database_expiry, "STEP_NODES", 7)
    monkeypatch.setattr(database_expiry, "STEP_KEYS", 11)
    world = ExpiringWorld(OPEN)
    world.do(make_put(Place(ROOT), {"chat": {f"m{at}": at for at in range(50)}, "x": 1}))
    world.now_ms = 100 * SECOND
    world.declare(CHAT)
    assert not world.database.expiry.is_building
    world.check()
    world.now_ms = 110 * SECOND - 1
    assert world.sweep() == 0
    world.now_ms += 1
    assert world.sweep() == 50
    assert world.get() == {"x": 1}


def test_rules_without_ttl_drop_the_index_and_what_was_written_meanwhile_is_not_early() -> None:
    world = ExpiringWorld()
    world.do(put("chat/a", 1))
    world.declare(OPEN)
    assert world.engine.read(read_state) is None
    assert world.rows() == 0
    assert not world.database.has_expiry
    world.now_ms = 9 * SECOND
    world.do(put("chat/a", 2))
    world.declare(CHAT)
    world.now_ms = 10 * SECOND
    assert world.sweep() == 0
    world.now_ms = 19 * SECOND
    assert world.sweep() == 1


def test_a_rule_that_was_away_for_one_write_does_not_know_when_that_was() -> None:
    other = rules_of({"other": {"$id": {".ttl": 10}}})
    world = ExpiringWorld()
    world.do(put("chat/a", 1))
    world.now_ms = 5 * SECOND
    world.rules.current = other  # without a step in the background
    world.do(put("chat/a", 2))
    world.now_ms = 6 * SECOND
    world.declare(CHAT)
    world.now_ms = 16 * SECOND - 1
    assert world.sweep() == 0
    world.now_ms = 16 * SECOND
    assert world.sweep() == 1


def test_seconds_in_place_of_an_expression_count_from_then_on() -> None:
    world = ExpiringWorld(AT)
    world.do(put("jobs/a", "no time"))
    world.now_ms = 9 * SECOND
    world.do(put("jobs/b", {"at": 30 * SECOND}))
    world.declare(rules_of({"jobs": {"$id": {".ttl": 10}}}))
    world.now_ms = 19 * SECOND - 1
    assert world.sweep() == 0
    world.now_ms = 19 * SECOND
    assert world.sweep() == 2


def test_a_shorter_time_is_kept_from_the_last_write_on() -> None:
    world = ExpiringWorld()
    world.do(put("chat/a", 1))
    world.now_ms = 4 * SECOND
    world.declare(rules_of({"chat": {"$other": {".ttl": 5}}}))
    assert world.sweep() == 0
    world.now_ms = 5 * SECOND
    assert world.sweep() == 1


def test_nodes_that_are_written_after_the_clock_was_set_back_count_from_then() -> None:
    world = ExpiringWorld()
    world.now_ms = 7200 * SECOND
    world.do(put("chat/a", 1))
    world.now_ms = 3600 * SECOND
    world.do(put("chat/b", 1))
    world.now_ms = 3605 * SECOND
    world.declare(rules_of({"chat": {"$id": {".ttl": 10}, "lobby": {}}}))
    world.do(put("chat/c", 1))
    world.now_ms = 3610 * SECOND - 1
    assert world.sweep() == 0
    world.now_ms += 1
    assert world.sweep() == 1
    assert world.get("chat") == {"a": 1, "c": 1}
    world.now_ms = 3615 * SECOND
    assert world.sweep() == 1
    world.now_ms = 7210 * SECOND - 1
    assert world.sweep() == 0
    world.now_ms += 1
    assert world.sweep() == 1


def test_a_last_write_before_a_gap_is_not_trusted_though_the_clock_was_set_back() -> None:
    world = ExpiringWorld()
    world.now_ms = 20 * SECOND
    world.do(put("chat/a", 1))
    world.now_ms = 12 * SECOND
    world.do(put("chat/a", 2))
    world.declare(rules_of({"other": {"$id": {".ttl": 10}}}))
    world.now_ms = 20 * SECOND
    world.do(put("chat/a", 3))
    world.declare(CHAT)
    world.now_ms = 30 * SECOND - 1
    assert world.sweep() == 0
    world.now_ms = 31 * SECOND
    assert world.sweep() == 1


def test_rows_that_cannot_be_read_are_made_again() -> None:
    world = ExpiringWorld()
    world.do(put("chat", {"a": 1, "b": 2}))
    transaction = world.engine.begin()
    for key in list(transaction.scan_keys(EXPIRY_FIRST + b"t", EXPIRY_END)):
        transaction.put(key, b"damaged")
    transaction.commit()
    world.now_ms = 10 * SECOND
    assert world.sweep() == 0
    world.clock.run()
    assert world.sweep() == 2
    assert world.get() is None


def test_a_node_that_cannot_be_removed_is_postponed() -> None:
    world = ExpiringWorld()
    world.do(put("chat/a", 1))
    world.now_ms = 10 * SECOND
    task = PostponeExpired(world.database.expiry, 70 * SECOND)
    world.write(NOTHING, now=world.now_ms, caller=SWEEPER, task=task)
    assert world.sweep() == 0
    world.now_ms = 70 * SECOND
    assert world.sweep() == 1


def test_without_such_rules_nothing_is_stored() -> None:
    world = ExpiringWorld(OPEN)
    world.do(put("chat/a", 1))
    assert world.engine.read(lambda view: list(view.scan_keys(EXPIRY_FIRST, EXPIRY_END))) == []


KEYS = st.sampled_from(["a", "lobby"])
NODES = st.tuples(KEYS, KEYS)
PAIRS = list(product(["a", "lobby"], repeat=2))
PATHS = NODES | NODES | st.tuples(KEYS, KEYS, st.just("at")) | st.lists(KEYS, max_size=1).map(tuple)
NODE = st.integers(-5, 40) | st.just("never") | st.fixed_dictionaries({"at": st.integers(-5, 40)})
VALUES = NODE | NODE | st.dictionaries(KEYS, NODE | st.dictionaries(KEYS, NODE, max_size=2))
"""Numbers are milliseconds from now on."""


SECONDS: dict[str, Any] = {
    "chat": {"$a": {"$b": {".ttl": 0.02}}},
    "longer": {"$other": {"$name": {".ttl": 0.03}}},
    "but lobby": {"$a": {"$b": {".ttl": 0.02}}, "lobby": {}},
    "and lobby": {"$a": {"$b": {".ttl": 0.02}}, "lobby": {"$b": {".ttl": 0.03}}},
    "only lobby": {"lobby": {"$b": {".ttl": 0.02}}},
    "but a": {"$a": {"$b": {".ttl": 0.02}, "a": {".read": "true"}}},
    "each": {"$a": {"$b": {".ttl": 0.02}, "a": {".ttl": 0.01}}, "lobby": {"a": {".ttl": 0.02}}},
}
"""Rules that differ in the keys beside the captures."""
RULES = {
    "none": OPEN,
    **{name: rules_of(rules) for name, rules in SECONDS.items()},
    "at": rules_of({"$a": {"$b": {".ttl": "data.child('at').val()"}}}),
    "both": rules_of(
        {"$a": {".ttl": 0.03, "$b": {".ttl": "data.child('at').val() + 5"}}, "lobby": {}}
    ),
}


def ttl_of(name: str, path: Path) -> int | None:
    """Return the `.ttl` of a path by rules in seconds, in milliseconds; None if it has none."""
    node = SECONDS.get(name)
    for key in path:
        captures = [below for below in node or () if below.startswith("$")]
        node = node and node.get(key, node.get(captures[0]) if captures else None)
    return int(node[".ttl"] * 1000) if node and ".ttl" in node else None


class Expiring(RuleBasedStateMachine):
    """A model that knows when each node was written, and when each rule began.

    A node is *due* surely if it has been since the last write and rule, or since the last write if
    all rules since then had a `.ttl` in seconds for it; the sweep must remove it then, and must not
    remove one whose time is not over.
    """

    @initialize(rules=st.sampled_from(sorted(RULES)))
    def begin(self, rules: str) -> None:
        self.engine = MemoryEngine()
        self.world = ExpiringWorld(RULES[rules], self.engine)
        self.name = rules
        self.writes: list[tuple[Path | None, int]] = []
        self.names = [(0, 0, rules)]

    @rule(path=PATHS, value=VALUES | st.none(), ms=st.integers(0, 15))
    def write(self, path: Path, value: Any, ms: int) -> None:
        self.world.now_ms += ms
        self.world.do(make_put(Place(path), self.from_now(value)))
        self.touch(path)

    @rule(
        path=st.lists(KEYS, max_size=1).map(tuple),
        members=st.dictionaries(KEYS, VALUES, min_size=1),
    )
    def patch(self, path: Path, members: Any) -> None:
        self.world.do(make_patch(path, self.from_now(members)))
        for key in members:
            self.touch((*path, key))

    def from_now(self, value: Any) -> Any:
        """Return a value with times for milliseconds from now on."""
        if isinstance(value, dict):
            return {key: self.from_now(item) for key, item in value.items()}
        return value + self.world.now_ms if isinstance(value, int) else value

    def touch(self, path: Path) -> None:
        self.writes.append((path, self.world.now_ms))

    def written(self, path: Path) -> int:
        """Return when the last write at, above or below a path was.

        Rules that began later may not know of it, and then count from their beginning, which is
        earlier if the clock has stepped back.
        """
        earliest: float = inf
        for place, time in reversed(self.writes):
            if place is None:
                earliest = min(earliest, time)
            elif place[: len(path)] == path or path[: len(place)] == place:
                return int(min(earliest, time))
        raise AssertionError

    def surely_due(self, path: Path) -> float:
        """Return when a node goes at the latest that has a `.ttl` in seconds, as far as is sure."""
        ttl = ttl_of(self.name, path)
        at = max(
            at
            for at, (place, _) in enumerate(self.writes)
            if place is not None and (place[: len(path)] == path or path[: len(place)] == place)
        )
        began = max(number for number, (begun, _, _) in enumerate(self.names) if begun <= at)
        if ttl is None or any(ttl_of(name, path) is None for _, _, name in self.names[began:]):
            return inf
        earlier = [time for _, time, _ in self.names[: began + 1]]
        return max(self.writes[at][1], *earlier) + ttl

    @rule(rules=st.sampled_from(sorted(RULES)), how=st.sampled_from(["steps", "none", "restart"]))
    def change_rules(self, rules: str, how: str) -> None:
        self.name = rules
        self.writes.append((None, self.world.now_ms))
        self.names.append((len(self.writes), self.world.now_ms, rules))
        if how == "steps":
            self.world.declare(RULES[rules])
        elif how == "none":
            self.world.rules.current = RULES[rules]
        else:
            now = self.world.now_ms
            self.world = ExpiringWorld(RULES[rules], self.engine)
            self.world.now_ms = now
            self.world.database.file_opened()
            self.world.clock.run()

    @rule(limit=st.integers(1, 3), ms=st.integers(-9, 25))
    def sweep(self, limit: int, ms: int) -> None:
        self.world.now_ms = max(0, self.world.now_ms + ms)
        before = self.instances()
        self.world.sweep(limit)
        after = self.instances()
        now = self.world.now_ms
        for path, due in before.items():
            if path in after:
                is_over = due is not None and due <= now
                is_sure = self.name == "at" or self.surely_due(path) <= now
                assert not (is_sure and is_over and self.is_built())
            elif path[:1] not in before or path[:1] in after:
                assert due is not None
                assert due <= now

    def is_built(self) -> bool:
        def is_built(view: ReadView) -> bool:
            state, expiry = read_state(view), self.world.rules.current.expiry
            if state is None or expiry is None:
                return False
            return state.is_built and state.rules == expiry.fingerprint

        return self.engine.read(is_built)

    def instances(self) -> dict[Path, int | None]:
        """Return the nodes that have a `.ttl` by the rules in force, and the earliest due."""
        found: dict[Path, int | None] = {}
        tree = self.world.get()
        top = tree.items() if isinstance(tree, dict) else ()
        for a, below in top:
            if self.name == "both" and a != "lobby":
                found[a,] = self.written((a,)) + 30
            for b, node in below.items() if isinstance(below, dict) else ():
                path = (a, b)
                ttl = ttl_of(self.name, path)
                if ttl is not None:
                    found[path] = self.written(path) + ttl
                elif self.name == "at" or (self.name == "both" and a != "lobby"):
                    at = node.get("at") if isinstance(node, dict) else None
                    more = 5 if self.name == "both" else 0
                    found[path] = at + more if isinstance(at, int) else None
        return found

    @precondition(lambda self: hasattr(self, "world"))
    @invariant()
    def the_rows_are_right(self) -> None:
        self.world.check()


TestExpiring = Expiring.TestCase
TestExpiring.settings = settings(max_examples=examples(40), stateful_step_count=40)


@settings(max_examples=examples(200))
@given(
    st.lists(
        st.tuples(st.integers(0, 12), st.sampled_from([*PAIRS, *SECONDS, *SECONDS, "none", "at"])),
        min_size=12,
        max_size=25,
    )
)
def test_a_place_counts_from_its_last_write_while_all_rules_have_seconds_for_it(
    steps: list[tuple[int, Path | str]],
) -> None:
    world, name, counts = ExpiringWorld(RULES["chat"]), "chat", dict.fromkeys(PAIRS, 0)
    world.do(make_put(Place(ROOT), {a: dict.fromkeys(("a", "lobby"), 1) for a in ("a", "lobby")}))
    for ms, what in steps:
        world.now_ms += ms
        if isinstance(what, str):
            unknown = [path for path in counts if ttl_of(name, path) is None]
            counts |= dict.fromkeys(unknown, world.now_ms)
            name = what
            world.declare(RULES[name])
        world.sweep()
        for path, time in list(counts.items()):
            if time + (ttl_of(name, path) or inf) <= world.now_ms:
                del counts[path]
        assert {path for path in PAIRS if world.get(*path) is not None} == set(counts)
        if not isinstance(what, str):
            world.do(make_put(Place(what), 1))
            counts[what] = world.now_ms
