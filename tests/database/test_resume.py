"""Resuming after the rules have changed: no event of a time without permission is sent."""

from __future__ import annotations

import attrs
from twisted.internet.task import Clock

from tests.database.world import make_active_rules, make_database, run_at_once
from treedbd.database.active_rules import ActiveRules
from treedbd.database.database import Database
from treedbd.database.read_grants import ReadRequest
from treedbd.database.requests import Caller, Write
from treedbd.database.runtime import Runtime
from treedbd.rules.ruleset import DENY, OPEN
from treedbd.store.engine import Engine
from treedbd.store.memory import MemoryEngine
from treedbd.tree.edit import make_put
from treedbd.tree.event import Position
from treedbd.tree.types import Place

ADMIN = Caller(None, is_admin=True)
ANONYMOUS = Caller(None)


@attrs.define
class DaemonRun:
    """One run of the daemon: its rules, and a database whose engine outlives the run."""

    engine: Engine = attrs.field(factory=MemoryEngine)
    clock: Clock = attrs.field(factory=Clock)
    rules: ActiveRules = attrs.field(init=False)
    database: Database = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.rules = make_active_rules(run_at_once)
        runtime = Runtime(self.clock, lambda size: b"e" * size, run_at_once)
        self.database = make_database(self.engine, runtime, self.rules)

    def put(self, key: str) -> Position:
        self.database.write(Write(make_put(Place((key,)), 1), 0, ADMIN))
        self.clock.advance(0)
        return self.database.position(self.sequence())

    def sequence(self) -> int:
        return self.engine.read(lambda view: view.sequence())

    def resume(self, caller: Caller, after: Position) -> int | None:
        """Return how many events the caller receives, None if it must start again."""
        request = ReadRequest(caller, (), None, lambda: 0)
        grant = self.database.make_grant(request, lambda: None, lambda: None)
        self.database.read(grant.check)
        missed = self.database.read(
            lambda nodes: self.database.missed_events(nodes, (), after, grant)
        )
        return None if missed is None else len(missed)


def test_what_was_missed_under_the_same_rules_is_sent() -> None:
    run = DaemonRun()
    received = run.put("a")
    run.put("b")
    assert run.resume(ANONYMOUS, received) == 1


def test_what_was_written_under_other_rules_is_not_sent_even_after_a_restart() -> None:
    run = DaemonRun()
    received = run.put("a")
    run.rules.manage_by_file(DENY)
    run.put("secret")
    run.rules.manage_by_file(OPEN)
    assert run.resume(ANONYMOUS, received) is None
    again = DaemonRun(run.engine)
    assert again.resume(ANONYMOUS, received) is None


def test_an_admin_receives_what_was_written_under_any_rules() -> None:
    run = DaemonRun()
    received = run.put("a")
    run.rules.manage_by_file(DENY)
    run.put("secret")
    assert DaemonRun(run.engine).resume(ADMIN, received) == 1
