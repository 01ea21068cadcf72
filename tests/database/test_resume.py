"""Resuming after the rules have changed: nothing is told of a time without permission."""

from __future__ import annotations

import attrs
from twisted.internet.task import Clock

from tests.database.world import bare_rulebook, run_at_once
from treedbd.database.database import Database
from treedbd.database.permit import Claim
from treedbd.database.platform import Platform
from treedbd.database.question import Caller, Write
from treedbd.database.rulebook import Rulebook
from treedbd.database.watchers import Notice
from treedbd.rules.ruleset import DENY, OPEN
from treedbd.store.mapping import Mapping
from treedbd.store.memory import MemoryMapping
from treedbd.tree.edit import make_put
from treedbd.tree.event import Position
from treedbd.tree.path import Place

ADMIN = Caller(None, is_admin=True)
NOBODY = Caller(None)


class Listener:
    """Hears, and keeps nothing."""

    def notify(self, notice: Notice) -> None:
        """Hear."""


@attrs.define
class Life:
    """One life of the daemon: rules and a database over a store that outlives it."""

    mapping: Mapping = attrs.field(factory=MemoryMapping)
    clock: Clock = attrs.field(factory=Clock)
    rulebook: Rulebook = attrs.field(init=False)
    database: Database = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.rulebook = bare_rulebook(run_at_once)
        platform = Platform(self.clock, lambda size: b"e" * size, run_at_once)
        self.database = Database(self.mapping, self.rulebook, platform, 100)

    def put(self, key: str) -> Position:
        self.database.write(Write(make_put(Place((key,)), 1), 0, ADMIN))
        self.clock.advance(0)
        return self.database.position(self.sequence())

    def sequence(self) -> int:
        return self.mapping.read(lambda rows: rows.sequence())

    def resume(self, caller: Caller, after: Position) -> int | None:
        """Return how many events the caller is told, None where it has to begin anew."""
        permit = self.database.permit(
            Claim(caller, (), None, lambda: 0), lambda: None, lambda: None
        )
        self.database.read(permit.judge)
        missed = self.database.resume((), Listener(), after, permit)
        return None if missed is None else len(missed)


def test_what_was_missed_under_the_same_rules_is_told() -> None:
    life = Life()
    heard = life.put("a")
    life.put("b")
    assert life.resume(NOBODY, heard) == 1


def test_what_was_written_under_other_rules_is_not_told_even_after_a_restart() -> None:
    life = Life()
    heard = life.put("a")
    life.rulebook.govern(DENY)
    life.put("secret")
    life.rulebook.govern(OPEN)
    assert life.resume(NOBODY, heard) is None
    again = Life(life.mapping)
    assert again.resume(NOBODY, heard) is None


def test_an_administrator_is_told_all_of_it() -> None:
    life = Life()
    heard = life.put("a")
    life.rulebook.govern(DENY)
    life.put("secret")
    assert Life(life.mapping).resume(ADMIN, heard) == 1
