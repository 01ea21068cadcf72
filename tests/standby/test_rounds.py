"""A first and a standby change places, are killed and cut, and nothing is lost that must not be."""

from __future__ import annotations

import pathlib

from tests.standby.rounds import KINDS, Rounds


def test_nothing_is_lost_when_both_are_killed_cut_and_promoted(tmp_path: pathlib.Path) -> None:
    with Rounds(tmp_path, seed=1) as rounds:
        for kind in KINDS:
            rounds.run(kind)
        assert rounds.count > len(KINDS)
