"""Replays: the states between two durable ones, write by write.

Theory of operation. Writes that are committed together become visible together, and a process that
follows others sees many of their commits at once. Yet watchers are notified of each write by
itself, so what was true after each of them has to be known: a moment that reads have left is held,
and the writes since then are applied over it in memory (`tree.overlay.EditedTree`), one by one,
when anything has to be read there. Neither the present rows are read for that, which are newer, nor
does it matter which process has committed.

`Moments` are those of one database. While anybody watches, whatever lets reads show something newer
does so by `leave`, which holds the moment before. It is released when watchers were notified of
what came after it and reads show the state that this led to; until then the log of a file cannot be
restarted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from treedbd.store.engine import Engine, EngineSnapshot, PresentView
from treedbd.store.memory import MemoryEngine
from treedbd.store.nodes import HeldNodes
from treedbd.tree.edit import in_order
from treedbd.tree.event import Commit
from treedbd.tree.overlay import EditedTree, Overlay
from treedbd.tree.types import Change, Place, View
from treedbd.tree.value import from_export


class SharedMoment:
    """A moment that several replays begin with; released when none needs it any more."""

    def __init__(self, nodes: HeldNodes) -> None:
        self.nodes: Final = nodes
        self._users = 1

    def share(self) -> SharedMoment:
        """Return it for one more user."""
        self._users += 1
        return self

    def release(self) -> None:
        """Need it no longer."""
        self._users -= 1
        if not self._users:
            self.nodes.close()


class Replay:
    """A moment, and the writes that have come after it so far.

    Attributes:
        through: the number of the last of them.

    """

    def __init__(self, moment: SharedMoment, commits: Sequence[Commit] = ()) -> None:
        """Begin with `moment`, which the replay releases, and the `commits` after it."""
        self.through = moment.nodes.sequence
        self._moment = moment
        self._edited: EditedTree | None = None
        self._commits: list[Commit] = []
        self._applied = 0
        self._view: View | None = moment.nodes
        for commit in commits:
            self.add(commit)

    @property
    def has_writes(self) -> bool:
        """Whether any write has come after the moment."""
        return bool(self._commits)

    @property
    def nodes(self) -> HeldNodes:
        """The moment that it begins with."""
        return self._moment.nodes

    @property
    def view(self) -> View:
        """The tree after the writes so far, until the next is added.

        To read what a large write has set raises `StateUnknown`.
        """
        if self._view is None:
            first = self._commits[0]
            if len(self._commits) == 1 and not first.is_large:
                self._view = Overlay(self.nodes, in_order(_changes_of(first)))
            else:
                self._view = self.edited
        return self._view

    @property
    def edited(self) -> EditedTree:
        """The same, which also knows what was written to; it costs more for a single write."""
        edited, commits = self._edited, self._commits
        if edited is None:
            edited = self._edited = EditedTree(self.nodes)
        while self._applied < len(commits):
            _apply(commits[self._applied], edited)
            self._applied += 1
        return edited

    def add(self, commit: Commit) -> None:
        """Add the next write."""
        self._commits.append(commit)
        self._view = None
        self.through = commit.position.sequence

    def fork(self, *, without_last: bool = False) -> Replay:
        """Return a replay that has come as far, or to the state before, and goes on by itself."""
        commits = self._commits[:-1] if without_last else self._commits
        return Replay(self._moment.share(), commits)

    def close(self) -> None:
        """Release the moment."""
        self._moment.release()


class Moments:
    """The moments that reads of one database have left, and the replay that begins with one.

    Attributes:
        are_held: whether any moment is held.

    """

    def __init__(self, engine: Engine) -> None:
        """Hold none yet of `engine`."""
        self.are_held = False
        self._engine = engine
        self._left: deque[HeldNodes] = deque()
        self._replay: Replay | None = None

    def leave(self) -> None:
        """Let reads show what has been committed, and hold the moment that they leave."""
        left = self._engine.advance(holds=True)
        if left is not None:
            self._left.append(HeldNodes(left))
            self.are_held = True

    def replay_to(self, sequence: int) -> Replay | None:
        """Return the replay of the state with a number, None if that is not known any more."""
        while self._left and self._left[0].sequence <= sequence:
            moment = self._left.popleft()
            if self._replay is not None and self._replay.through > moment.sequence:
                moment.close()
                continue
            self._begin(moment)
        if self._replay is None and sequence == 0:
            self._begin(_nothing())
        replay = self._replay
        return replay if replay is not None and replay.through == sequence else None

    def add(self, commit: Commit) -> Replay | None:
        """Return the replay of the state after a write, None if that is not known."""
        sequence = commit.position.sequence
        if commit.is_large and self._begin_with_present(sequence):
            return self._replay
        replay = self.replay_to(sequence - 1)
        if replay is not None:
            replay.add(commit)
        return replay

    def release_unneeded(self) -> None:
        """Release what is not needed any more: watchers were notified of all that reads show."""
        replay = self._replay
        if replay is not None and replay.through == self._engine.read(_sequence):
            self.close()

    def close(self) -> None:
        """Release all."""
        self.are_held = False
        while self._left:
            self._left.popleft().close()
        if self._replay is not None:
            self._replay.close()
            self._replay = None

    def _begin_with_present(self, sequence: int) -> bool:
        """Begin with the state that reads show, if it has this number."""

        def hold(view: PresentView) -> EngineSnapshot | None:
            return view.hold() if view.sequence() == sequence else None

        held = self._engine.read(hold)
        if held is not None:
            self._begin(HeldNodes(held))
        return held is not None

    def _begin(self, moment: HeldNodes) -> None:
        self.are_held = True
        if self._replay is not None:
            self._replay.close()
        self._replay = Replay(SharedMoment(moment))


def _sequence(view: PresentView) -> int:
    return view.sequence()


def _nothing() -> HeldNodes:
    """Return the state before the first write."""
    return HeldNodes(MemoryEngine().snapshot())


def _apply(commit: Commit, edited: EditedTree) -> None:
    if commit.is_large:
        for change in commit.changes:
            edited.forget(change.path)
    else:
        edited.apply(_changes_of(commit))


def _changes_of(commit: Commit) -> list[Change]:
    return [
        Change(
            Place(each.path, each.is_priority),
            from_export(each.sent) if each.is_priority else each.value,
        )
        for each in commit.changes
    ]
