"""Moments of an archive, restored: each is what the database held then."""

from __future__ import annotations

import pathlib
import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.archive.test_redo import tree_in
from tests.archive.written_history import Moment, WrittenHistory, moment_at
from tests.examples import examples
from treedbd.archive.restoring import Restoration, ToLatest, ToSequence, ToTime


class Check:
    """Compares what is restored with what was written."""

    def __init__(self, history: WrittenHistory, folder: pathlib.Path) -> None:
        self.history = history
        self.restoration = Restoration(history.archive())
        self._folder = folder
        self.count = 0

    def time(self, db: str, ms: int) -> None:
        self.compare(db, ToTime(ms), moment_at(self.history.lives[db], ms))

    def sequence(self, db: str, sequence: int) -> None:
        lives = [life for life in self.history.lives[db] if len(life.moments) >= sequence]
        self.compare(db, ToSequence(sequence), lives[-1].moments[sequence - 1])

    def compare(
        self, db: str, goal: ToTime | ToSequence | ToLatest, expected: Moment | None
    ) -> None:
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


@settings(max_examples=examples(30), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_any_moment_is_what_the_database_held_then(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    folder = tmp_path_factory.mktemp("history")
    history = WrittenHistory(folder, seed)
    try:
        history.run(80)
        check = Check(history, folder / "restored")
        for db, lives in history.lives.items():
            moments = [moment for life in lives for moment in life.moments]
            for moment in history.random.sample(moments, min(3, len(moments))):
                check.time(db, moment.ms)
                check.time(db, moment.ms - 1)
                check.sequence(db, moment.sequence)
            check.time(db, history.now)
            check.time(db, 0)
        assert check.count or not history.lives
    finally:
        history.close()
        shutil.rmtree(folder)
