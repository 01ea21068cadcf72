"""Restored databases, read, and compared with what was written."""

from __future__ import annotations

import pathlib
import shutil

from tests.archive.written_history import Moment, WrittenHistory, moment_at
from treedbd.archive.restoring import Goal, Restoration, ToLatest, ToSequence, ToTime
from treedbd.store.nodes import Nodes
from treedbd.store.sqlite.copy import verify_copy
from treedbd.store.sqlite.engine import SqliteEngine
from treedbd.tree.types import Value


def tree_in(file: pathlib.Path) -> Value:
    """Return the tree in a file, which must be sound, and that of a database closed cleanly."""
    assert verify_copy(file) is None
    engine = SqliteEngine.open(file)
    assert engine.was_closed_cleanly
    found = engine.read(lambda view: Nodes(view).get(()))
    engine.close()
    return found


class Check:
    """Compares what is restored with what was written."""

    def __init__(self, history: WrittenHistory, folder: pathlib.Path) -> None:
        self.history = history
        self.restoration = Restoration(history.archive())
        self._folder = folder
        self.count = 0

    def latest(self, db: str) -> None:
        self.compare(db, ToLatest(), moment_at(self.history.lives[db], 2**62))

    def time(self, db: str, ms: int) -> None:
        self.compare(db, ToTime(ms), moment_at(self.history.lives[db], ms))

    def sequence(self, db: str, sequence: int) -> None:
        lives = [life for life in self.history.lives[db] if len(life.moments) >= sequence]
        self.compare(db, ToSequence(sequence), lives[-1].moments[sequence - 1])

    def compare(self, db: str, goal: Goal, expected: Moment | None) -> None:
        choice = self.restoration.find(db, goal)
        assert (choice is None) == (expected is None), (db, goal, choice, expected)
        if choice is None or expected is None:
            return
        assert (choice.sequence, choice.warning) == (expected.sequence, None), (db, goal)
        self.count += 1
        file = self._folder / f"{self.count}" / "x.shelf"
        restored = self.restoration.restore(choice, file)
        assert (restored.sequence, restored.time_ms) == (expected.sequence, expected.ms)
        assert tree_in(file) == expected.tree
        shutil.rmtree(file.parent)
