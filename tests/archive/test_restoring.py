"""Moments of an archive, restored: each is what the database held then."""

from __future__ import annotations

import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.archive.restored import Check
from tests.archive.written_history import WrittenHistory
from tests.examples import examples


@settings(max_examples=examples(8), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_any_moment_is_what_the_database_held_then(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    folder = tmp_path_factory.mktemp("history")
    history = WrittenHistory(folder, seed)
    try:
        history.run(60)
        check = Check(history, folder / "restored")
        for db, lives in history.lives.items():
            moments = [moment for life in lives for moment in life.moments]
            for moment in history.random.sample(moments, min(3, len(moments))):
                check.time(db, moment.ms)
                check.time(db, moment.ms - 1)
                check.sequence(db, moment.sequence)
            check.latest(db)
            check.time(db, 0)
        assert check.count or not history.lives
    finally:
        history.close()
        shutil.rmtree(folder)
