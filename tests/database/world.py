"""What a database needs in tests: a disk that the test controls, and rules that are not stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.python.failure import Failure

from treedbd.database.active_rules import ActiveRules
from treedbd.database.database import Database, ProjectSpec
from treedbd.database.runtime import RunInThread, Runtime
from treedbd.names import DatabaseName
from treedbd.rules.ruleset import OPEN, RuleSet
from treedbd.store.engine import Engine, Transaction

NAME: Final = DatabaseName("p")
PROJECT: Final = ProjectSpec(NAME.project)


class Disk:
    """Runs blocking work when the test says so, and fails the commits that the test chooses."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Callable[[], None], Deferred[None]]] = []

    def run(self, work: Callable[[], None]) -> Deferred[None]:
        """Queue work for `finish` or `fail`."""
        done: Deferred[None] = Deferred()
        self.waiting.append((work, done))
        return done

    def finish(self) -> None:
        """Run the oldest work, and fire with its result."""
        work, done = self.waiting.pop(0)
        maybeDeferred(work).addCallbacks(done.callback, done.errback)

    def fail(self, error: Exception) -> None:
        """Roll back the oldest work, which is a commit, and errback with `error`."""
        commit, done = self.waiting.pop(0)
        method: Any = commit
        transaction: Transaction = method.__self__
        transaction.rollback()
        done.errback(Failure(error))


def run_at_once(work: Callable[[], None]) -> Deferred[None]:
    """Run blocking work in the calling thread."""
    return maybeDeferred(work)


def make_active_rules(
    run_in_thread: RunInThread, first: RuleSet = OPEN, changed: Callable[[], None] = lambda: None
) -> ActiveRules:
    """Return rules in force that no file manages and that are not stored."""
    return ActiveRules(
        first, is_file_managed=False, folder=None, run_in_thread=run_in_thread, changed=changed
    )


def make_database(
    engine: Engine, runtime: Runtime, rules: ActiveRules | None = None, retain_events: int = 100
) -> Database:
    """Return the database of a project; without `rules` everything is allowed."""
    active = rules or make_active_rules(runtime.run_in_thread)
    return Database(NAME, engine, PROJECT, active, runtime, retain_events)
