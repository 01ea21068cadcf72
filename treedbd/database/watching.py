"""Watching one database: who is notified, beginning with which state, and when.

`Watching` is what everything that watches is made from: `subscription`, `shared_window`, `resume`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from treedbd.database.rounds import Rounds
from treedbd.database.slices import Slices, StepQueue, Steps
from treedbd.database.watchers import Watcher, Watchers
from treedbd.store.engine import Engine
from treedbd.store.nodes import HeldNodes, PresentNodes
from treedbd.tree.event import Position
from treedbd.tree.types import Path

T = TypeVar("T")


class Watching:
    """The watchers of one database, and the states that they begin with.

    Attributes:
        watchers: by path.
        rounds: what is run between two batches.
        background: long work for watchers that writers do not wait for; one after the other.
        notified_through: the number of the last write that all watchers were notified of; 0 if
            there was none since the start.

    """

    def __init__(self, engine: Engine, rounds: Rounds, slices: Slices) -> None:
        """Read the durable state from `engine`."""
        self.watchers: Final = Watchers()
        self.rounds: Final = rounds
        self.background: Final = StepQueue(slices)
        self.notified_through = 0
        self._engine = engine

    def read(self, work: Callable[[PresentNodes], T]) -> T:
        """Run `work` on the last durable state and return its result."""
        return self._engine.read(lambda view: work(PresentNodes(view)))

    def hold(self) -> HeldNodes:
        """Hold the last durable state open, for a reader that needs many turns."""
        return HeldNodes(self._engine.snapshot())

    def watch(
        self,
        path: Path,
        watcher: Watcher,
        work: Callable[[PresentNodes], T],
        group: object | None = None,
    ) -> tuple[T, int]:
        """Notify `watcher` of what concerns `path` from now on, as one of a `group`.

        Returns what `work` made of the present state, and its sequence number: the watcher is
        notified of every later write and no earlier one. A second call replaces the first.
        """
        result, sequence = self._engine.read(
            lambda view: (work(PresentNodes(view)), view.sequence())
        )
        self.watchers.add(path, watcher, sequence, group)
        return result, sequence

    def call_when_notified(self, call: Callable[[], None], is_behind: Callable[[], bool]) -> None:
        """Call this when the watchers have been notified of all that is durable by now.

        Called by a writer who is answered, it is called in the same round. `is_behind` returns
        whether a watched query of the caller still has to catch up; that is waited for, too.
        """

        def after_watchers() -> Steps:
            # The windows of queries were added to the round by now.
            self.rounds.add(after_windows())
            yield

        def after_windows() -> Steps:
            if is_behind():
                self.background.add(after_drawing())
            else:
                call()
            yield

        def after_drawing() -> Steps:
            self.rounds.run_later(after_windows())
            yield

        self.rounds.add(after_watchers())
        self.rounds.start()

    def position(self, sequence: int) -> Position:
        """Return the position of a client that has received everything up to a number."""
        entry = self._engine.read(lambda view: next(view.entries(sequence - 1), None))
        is_known = entry is not None and entry.sequence == sequence
        return Position(sequence, entry.op_id if entry is not None and is_known else b"")
