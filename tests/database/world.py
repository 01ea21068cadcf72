"""A database in tests: its clock and its disk are those of the test, its rules are not stored."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

import attrs
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.task import Clock
from twisted.logger import ILogObserver, LogEvent, globalLogPublisher
from twisted.python.failure import Failure
from zope.interface import implementer

from treedbd.database.active_rules import ActiveRules, RulesWork
from treedbd.database.database import Database
from treedbd.database.requests import Caller, Condition, Outcome, ProjectSpec, Write
from treedbd.database.runtime import RunInThread, Runtime
from treedbd.database.watchers import Notification
from treedbd.names import DatabaseName
from treedbd.rules.ruleset import OPEN, RuleSet
from treedbd.store.engine import Engine, Transaction
from treedbd.store.memory import MemoryEngine
from treedbd.tree.edit import Edit
from treedbd.tree.event import Event, Position
from treedbd.tree.types import Json
from treedbd.tree.value import plain

NAME: Final = DatabaseName("p")
PROJECT: Final = ProjectSpec(NAME.project)
ADMIN: Final = Caller(None, is_admin=True)


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

    def finish_all(self) -> None:
        """Run all work that waits."""
        while self.waiting:
            self.finish()

    def commits_next(self) -> bool:
        """Return whether the oldest work is the commit of a batch."""
        return _is_commit(self.waiting[0][0])

    def fail(self, error: Exception) -> None:
        """Roll back the oldest work, which is a commit, and errback with `error`."""
        commit, done = self.waiting.pop(0)
        assert _is_commit(commit)
        transaction: Transaction = commit.__self__  # type: ignore[attr-defined]
        transaction.rollback()
        done.errback(Failure(error))


def _is_commit(work: Callable[[], None]) -> bool:
    return getattr(work, "__name__", "") == "commit"


@contextlib.contextmanager
def logged_failures() -> Iterator[list[type[BaseException]]]:
    """Collect the types of the exceptions that are logged meanwhile."""
    found: list[type[BaseException]] = []

    @implementer(ILogObserver)
    def observe(event: LogEvent) -> None:
        if "log_failure" in event:
            found.append(event["log_failure"].type)

    globalLogPublisher.addObserver(observe)
    try:
        yield found
    finally:
        globalLogPublisher.removeObserver(observe)


class TurnClock(Clock):
    """A clock that a test advances turn by turn of the reactor.

    Each look at it takes `lag` seconds, so that work in slices needs more turns.
    """

    def __init__(self, lag: float = 0.0) -> None:
        super().__init__()
        self.lag = lag
        self.turns = 0

    def seconds(self) -> float:
        """Return the time."""
        self.rightNow += self.lag
        return super().seconds()

    def take_turn(self) -> bool:
        """Run the calls that are due, but not those that they schedule; return if there were."""
        due = [call for call in self.calls if call.getTime() <= self.rightNow]
        self.turns += bool(due)
        for call in due:
            if call.active():
                self.calls.remove(call)
                call.called = 1
                call.func(*call.args, **call.kw)
        return bool(due)

    def run_until(self, is_reached: Callable[[], object]) -> None:
        """Take turns until something is so, which must come."""
        while not is_reached():
            assert self.take_turn()

    def run(self) -> None:
        """Take turns until nothing is due."""
        while self.take_turn():
            pass


def run_at_once(work: Callable[[], None]) -> Deferred[None]:
    """Run blocking work in the calling thread."""
    return maybeDeferred(work)


def make_active_rules(
    run_in_thread: RunInThread, first: RuleSet = OPEN, changed: Callable[[], None] = lambda: None
) -> ActiveRules:
    """Return rules in force that no file manages and that are not stored."""
    return ActiveRules(
        first,
        is_file_managed=False,
        storage=None,
        run_in_thread=run_in_thread,
        changed=changed,
        work=RulesWork(Clock()),
    )


def make_database(
    engine: Engine, runtime: Runtime, rules: ActiveRules | None = None, retain_events: int = 100
) -> Database:
    """Return the database of a project; without `rules` everything is allowed."""
    active = rules or make_active_rules(runtime.run_in_thread)
    return Database(NAME, engine, PROJECT, active, runtime, retain_events)


@attrs.define(eq=False)
class Recorder:
    """A watcher that keeps what it is notified of, and must not be ended."""

    received: list[tuple[Position, Event]] = attrs.field(factory=list)

    def notify(self, notification: Notification) -> None:
        """Keep the events."""
        self.received += notification.events

    def fail(self) -> None:
        """Fail the test."""
        raise AssertionError

    def revoke(self) -> None:
        """Fail the test."""
        raise AssertionError

    @property
    def events(self) -> list[Event]:
        """The events."""
        return [event for _, event in self.received]

    @property
    def data(self) -> list[Json]:
        """The data of each event."""
        return [event.data for event in self.events]

    @property
    def numbered(self) -> list[tuple[int, Json]]:
        """The sequence number and the data of each event."""
        return [(position.sequence, event.data) for position, event in self.received]


class World:
    """A database of one project, with the clock and the disk that it depends on.

    Commits wait until `disk` finishes them if one is given, else they are made at once. Without
    `rules` everything is allowed; `quotas` are those of the project, `of_runtime` further fields of
    the `Runtime`. `used_s` is the processor time that the reactor's thread has used.

    Attributes:
        now_ms: the milliseconds since 1970.

    """

    def __init__(
        self,
        engine: Engine | None = None,
        rules: RuleSet = OPEN,
        *,
        clock: TurnClock | None = None,
        disk: Disk | None = None,
        now_ms: int = 0,
        retain_events: int = 100,
        of_runtime: Mapping[str, Any] = MappingProxyType({}),
        **quotas: int,
    ) -> None:
        run = run_at_once if disk is None else disk.run
        self.clock: TurnClock = clock or TurnClock()
        self.disk: Disk = disk or Disk()
        self.engine: Engine = engine or MemoryEngine()
        self.rules = make_active_rules(run, rules, self.rules_changed)
        self.used_s = 0.0
        self.now_ms = now_ms
        self.runtime = Runtime(
            self.clock,
            bytes,
            run,
            now_ms=lambda: self.now_ms,
            used_seconds=lambda: self.used_s,
            **of_runtime,
        )
        project = ProjectSpec(NAME.project, **quotas)  # type: ignore[arg-type]
        self.database = Database(
            NAME, self.engine, project, self.rules, self.runtime, retain_events
        )

    def rules_changed(self) -> None:
        """Recheck the grants: the rules in force have changed."""
        self.database.recheck_grants()

    def begin(
        self,
        edit: Edit,
        condition: Condition | None = None,
        deadline: float | None = None,
        *,
        now: int = 0,
        caller: Caller = ADMIN,
        **options: Any,
    ) -> Deferred[Outcome]:
        """Queue a write."""
        return self.database.write(Write(edit, now, caller, condition, deadline, **options))

    def wait(self, deferred: Deferred[Any]) -> Any:
        """Return the result of what needs only turns of the reactor, or its error."""
        found: list[Any] = []
        deferred.addBoth(found.append)
        self.clock.run()
        (result,) = found
        return result.value if isinstance(result, Failure) else result

    def write(self, edit: Edit, *args: Any, **options: Any) -> Any:
        """Do a write; return its outcome, or the error that refused it."""
        return self.wait(self.begin(edit, *args, **options))

    def get(self, *path: str) -> Any:
        """Return the value at a path."""
        return self.database.read(lambda nodes: plain(nodes.get(path)))
