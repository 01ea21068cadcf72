"""The turn of a process to write a database: what `GroupCommit` takes before each batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from treedbd.database.rounds import Rounds


class WriteTurn(Protocol):
    """The turn of this process at one database.

    Attributes:
        is_waiting: whether another process has it, and it is asked for.

    """

    is_waiting: bool

    def attach(self, rounds: Rounds, try_again: Callable[[], None]) -> None:
        """Call `try_again` when the turn may be free; watchers are notified in `rounds`."""
        ...

    def take(self) -> bool:
        """Return whether this process has the turn; if not, it is asked for until `give`."""
        ...

    def give(self) -> None:
        """Give the turn back, or ask for it no longer."""
        ...

    def commit(self, commit: Callable[[], None], must_keep: Callable[[], bool]) -> None:
        """Run `commit`, in a worker thread, and give the turn back at once unless it must be kept.

        What has to be done with the turn after a commit is then done with the next one.
        """
        ...

    def run(self, work: Callable[[], None]) -> None:
        """Run `work` with the turn, in a worker thread; raise `StoreFailed`."""
        ...

    def batch_over(self) -> None:
        """Do what had to wait for the end of a batch, or of a round after it."""
        ...


class OwnTurn:
    """The turn of a process that shares its databases with no other: it always has it."""

    is_waiting = False

    def attach(self, rounds: Rounds, try_again: Callable[[], None]) -> None:
        """Do nothing."""

    def take(self) -> bool:
        """Return True."""
        return True

    def give(self) -> None:
        """Do nothing."""

    def commit(self, commit: Callable[[], None], _: Callable[[], bool]) -> None:
        """Run `commit`."""
        commit()

    def run(self, work: Callable[[], None]) -> None:
        """Run `work`."""
        work()

    def batch_over(self) -> None:
        """Do nothing."""
