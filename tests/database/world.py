"""What a database stands on in tests: a disk in the test's hands, and rules that are not kept."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.python.failure import Failure

from treedbd.database.platform import RunCommit
from treedbd.database.rulebook import Rulebook
from treedbd.rules.ruleset import OPEN, RuleSet
from treedbd.store.mapping import Transaction


class Disk:
    """Runs what blocks when the test says so, and fails the commits that the test says."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Callable[[], None], Deferred[None]]] = []

    def run(self, work: Callable[[], None]) -> Deferred[None]:
        """Keep it for `finish` or `fail`."""
        done: Deferred[None] = Deferred()
        self.waiting.append((work, done))
        return done

    def finish(self) -> None:
        """Do what came first, and tell how that went."""
        work, done = self.waiting.pop(0)
        maybeDeferred(work).addCallbacks(done.callback, done.errback)

    def fail(self, error: Exception) -> None:
        """Leave nothing of the commit that came first, and tell of an error."""
        commit, done = self.waiting.pop(0)
        transaction: Transaction = commit.__self__  # type: ignore[attr-defined]
        transaction.rollback()
        done.errback(Failure(error))


def run_at_once(work: Callable[[], None]) -> Deferred[None]:
    """Run what blocks here and now."""
    return maybeDeferred(work)


def bare_rulebook(
    run_commit: RunCommit, first: RuleSet = OPEN, changed: Callable[[], None] = lambda: None
) -> Rulebook:
    """Return a rulebook that is not governed and keeps nothing."""
    return Rulebook(first, is_governed=False, folder=None, run_commit=run_commit, changed=changed)
