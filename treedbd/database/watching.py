"""Watching one database: who is notified of what, beginning with which state, and when.

Theory of operation. After each commit of a batch, of this process or another, comes a round
(`rounds`). The writes of the batch are followed one by one, in the order of their numbers: first
the grants are checked whose rules have read what was written, then it is found out what the write
means to the watchers and to the watched queries that it concerns. What all that needs to know of
the state that a write has made comes from a replay of it (`replay`). What was found is delivered
together, in order (`watchers`).

`Watching` is what everything that watches is made from: `subscription`, `shared_window`, `resume`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from treedbd.database.large_events import print_large
from treedbd.database.slices import Slices, StepQueue, Steps
from treedbd.database.watchers import PAUSE_AFTER, Audience, Concerned, Delivery, Watcher, Watchers
from treedbd.database.write_lock import Rounds
from treedbd.store.engine import Engine
from treedbd.store.nodes import PresentNodes
from treedbd.tree.event import Commit, Event, Position, complete
from treedbd.tree.types import Path
from treedbd.tree.window import Facts

if TYPE_CHECKING:
    from treedbd.database.read_grants import ReadGrants
    from treedbd.database.replay import Moments, Replay
    from treedbd.database.shared_window import SharedWindow

T = TypeVar("T")


class Watching:
    """The watchers of one database, and the states that they begin with.

    Attributes:
        watchers: by path.
        rounds: what is run between two batches.
        background: long work for watchers that writers do not wait for; one after the other.
        most_fields: by how many fields the queries of one path may order and select.
        followed_through: the number of the last write that was followed, 0 if there was none since
            the start; those whom it concerns may still have to be notified.

    """

    def __init__(
        self,
        engine: Engine,
        moments: Moments,
        grants: ReadGrants,
        rounds: Rounds,
        slices: Slices,
        most_fields: int,
    ) -> None:
        """Read the durable state from `engine`; watchers have `grants`."""
        self.watchers: Final = Watchers()
        self.rounds: Final = rounds
        self.background: Final = StepQueue(slices)
        self.most_fields: Final = most_fields
        self.followed_through = 0
        self._engine = engine
        self._moments = moments
        self._grants = grants

    def read(self, work: Callable[[PresentNodes], T]) -> T:
        """Run `work` on the last durable state and return its result."""
        return self._engine.read(lambda view: work(PresentNodes(view)))

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

    def notify(self, commits: Sequence[Commit]) -> Steps:
        """Notify of the writes of one batch, in their order; no other may be notified of yet."""
        delivery = Delivery()
        try:
            for commit in commits:
                yield from self._follow(commit, delivery, is_last=commit is commits[-1])
            yield from delivery.finish()
        finally:
            self._moments.release_unneeded()

    def call_when_notified(
        self, call: Callable[[], None], find_behind: Callable[[], SharedWindow | None]
    ) -> None:
        """Call this when the watchers have been notified of all that is durable by now.

        Called by a writer who is answered, it is called in the same round. `find_behind` returns a
        watched query of the caller that still has to catch up; that is waited for, too.
        """

        def after_watchers() -> Steps:
            _call_when_caught_up(call, find_behind)
            yield

        self.rounds.add(after_watchers())
        self.rounds.start()

    def position(self, sequence: int) -> Position:
        """Return the position of a client that has received everything up to a number."""
        entry = self._engine.read(lambda view: next(view.entries(sequence - 1), None))
        is_known = entry is not None and entry.sequence == sequence
        return Position(sequence, entry.op_id if entry is not None and is_known else b"")

    def _follow(self, commit: Commit, delivery: Delivery, *, is_last: bool) -> Steps:
        """Find out what one write means to whom it concerns."""
        sequence = commit.position.sequence
        replay = self._moments.replay_to(sequence - 1)
        concerned = yield from self._concerned(commit)
        before: list[dict[str, Facts] | None] = []
        for each in concerned:
            collection = each.node.collection
            before.append(
                None if collection is None else (yield from collection.look(each.commit, replay))
            )
        replay = self._moments.add(commit)
        yield from self._grants.follow(commit, replay, delivery.finish, is_last=is_last)
        completed = yield from self._completed(commit, replay)
        events: list[tuple[Audience, Event]] = []
        for number, (each, facts) in enumerate(zip(concerned, before, strict=True), 1):
            node, part = each.node, each.commit
            part = completed if part is commit else (yield from self._completed(part, replay))
            event = part.event_at(each.path) if node.audience.watchers else None
            if event is not None:
                events.append((node.audience, event))
            if node.collection is not None:
                events += yield from node.collection.follow(part, replay, facts)
            if number % PAUSE_AFTER == 0:
                yield
        yield from delivery.add(commit.position, events)
        self.followed_through = sequence

    def _concerned(self, commit: Commit) -> Generator[None, None, list[Concerned]]:
        found = []
        for each in self.watchers.concerned(commit):
            if each is not None:
                found.append(each)
            yield
        return found

    def _completed(self, commit: Commit, replay: Replay | None) -> Generator[None, None, Commit]:
        """Return a write with what watchers receive of it and the rows alone hold."""
        is_watched = self.watchers.has_at_or_above
        if commit.is_large:
            if not is_watched(commit.path):
                return commit
            nodes = None if replay is None or replay.has_writes else replay.nodes
            return (yield from print_large(commit, nodes))
        priorities = [] if commit.is_complete else commit.changes
        if any(change.is_priority and is_watched(change.path) for change in priorities):
            if replay is not None:
                return complete(commit, replay.view)
            return self.read(lambda nodes: complete(commit, nodes))
        return commit


def _call_when_caught_up(
    call: Callable[[], None], find_behind: Callable[[], SharedWindow | None]
) -> None:
    window = find_behind()
    if window is None:
        call()
    else:
        window.call_when_caught_up(lambda: _call_when_caught_up(call, find_behind))
