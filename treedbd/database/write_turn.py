"""The turn of a process to write a database: what `GroupCommit` takes before each batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from twisted.internet.defer import Deferred

from treedbd.database.following import FollowerHooks, LogFollower
from treedbd.database.requests import QueuedWrite
from treedbd.database.rounds import Rounds
from treedbd.database.runtime import RunInThread
from treedbd.store.engine import Engine


class WriteTurn(Protocol):
    """The turn of this process at one database."""

    @property
    def problem(self) -> str | None:
        """Why no write is accepted at present, in one sentence; None if they are."""
        ...

    @property
    def delay(self) -> str | None:
        """What the turn is waited for, in one sentence; None if it is not."""
        ...

    def attach(self, rounds: Rounds, try_again: Callable[[], None]) -> None:
        """Call `try_again` when the turn may be free; watchers are notified in `rounds`."""
        ...

    def take(self) -> bool:
        """Return whether this process has the turn; if not, it is asked for until `give`."""
        ...

    def give(self) -> None:
        """Give the turn back, or ask for it no longer."""
        ...

    def commit(
        self,
        commit: Callable[[], None],
        must_keep: Callable[[], bool],
        batch: Sequence[QueuedWrite],
    ) -> Deferred[None]:
        """Run `commit`, which blocks, for the writes of a batch; fires when they are durable.

        The turn is given back at once unless it must be kept. Errbacks with what `commit` raises,
        or with what the writers are refused with: `Unavailable` or `OutcomeInDoubt`. After
        `Conflict` the batch is done again, from the state that others have made.
        """
        ...

    def confirm(self) -> Deferred[None] | None:
        """Find out whether a batch without any commit saw the last durable state.

        None if it did. Else errbacks as `commit`.
        """
        ...

    def run(self, work: Callable[[], None]) -> None:
        """Run `work` with the turn, in a worker thread; raise `StoreFailed`."""
        ...

    def batch_over(self) -> None:
        """Do what had to wait for the end of a batch, or of a round after it."""
        ...


class SharedTurn(WriteTurn, Protocol):
    """The turn at a database that other processes write too.

    Attributes:
        following: follows what the others commit.

    """

    following: LogFollower

    @property
    def is_in_use(self) -> bool:
        """Whether the engine is being brought up to date, so that it must stay open."""
        ...

    def make_current(self) -> Deferred[None] | None:
        """Do as `LogFollower.make_current`."""
        ...

    def is_current(self) -> bool:
        """Return whether this process shows the last durable state, as far as it can know now."""
        ...

    def when_current(self, call: Callable[[], None]) -> bool:
        """Call `call` in a moment, during which `is_current` may return True.

        Returns False, and does nothing, if there is no such moment.
        """
        ...

    def hinted(self) -> None:
        """Look whether others have committed anything, or given the turn back."""
        ...

    def end(self) -> Deferred[None] | None:
        """Use the engine no more, because it is being closed; no batch may be under way.

        Fires when nothing uses it; None if nothing does.
        """
        ...


MakeSharedTurn: TypeAlias = Callable[[Engine, FollowerHooks], SharedTurn]
"""Makes the turn at one database, which lets the hooks have what others write to its engine."""


class OwnTurn:
    """The turn of a process that shares its databases with no other: it always has it."""

    problem = None
    delay = None

    def __init__(self, run_in_thread: RunInThread) -> None:
        """Commit by `run_in_thread`."""
        self._run_in_thread = run_in_thread

    def attach(self, rounds: Rounds, try_again: Callable[[], None]) -> None:
        """Do nothing."""

    def take(self) -> bool:
        """Return True."""
        return True

    def give(self) -> None:
        """Do nothing."""

    def commit(
        self, commit: Callable[[], None], _: Callable[[], bool], __: Sequence[QueuedWrite]
    ) -> Deferred[None]:
        """Run `commit`."""
        return self._run_in_thread(commit)

    def confirm(self) -> None:
        """Return None: nobody else writes."""

    def run(self, work: Callable[[], None]) -> None:
        """Run `work`."""
        work()

    def batch_over(self) -> None:
        """Do nothing."""
