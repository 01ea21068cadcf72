"""Writers whose deadline passes during a commit are answered in slices."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import CancelledError, Deferred
from twisted.python.failure import Failure

from tests.database.world import TurnClock
from treedbd.cluster.connections import Singleflight
from treedbd.cluster.replica import BatchEnds, answer_when_late
from treedbd.database.group_commit import QueuedWrite
from treedbd.database.requests import Caller, Outcome, OutcomeInDoubt, Write
from treedbd.database.slices import SLICE_SECONDS, Slices
from treedbd.tree.edit import make_put
from treedbd.tree.types import ROOT, Place

LOOKS = 10
"""So often the clock is looked at in a slice."""


def queued(at: float) -> QueuedWrite:
    """Return a write with a deadline, whose answer is not looked at."""
    write = Write(make_put(Place(ROOT), 1), 0, Caller(None), deadline=at)
    deferred: Deferred[Outcome] = Deferred()
    deferred.addErrback(lambda failure: failure.trap(OutcomeInDoubt))
    return QueuedWrite(write, deferred)


def test_many_writers_whose_deadline_passes_together_are_answered_in_slices_in_order() -> None:
    clock = TurnClock(lag=SLICE_SECONDS / LOOKS)
    batch = [queued(at=1 + number * 1e-6) for number in range(4 * LOOKS)]
    answer_when_late(clock, batch)
    clock.rightNow = 2
    counts = [0]
    while counts[-1] < len(batch):
        assert clock.take_turn()
        counts.append(sum(each.deferred.called for each in batch))
        assert all(each.deferred.called for each in batch[: counts[-1]])
        assert 0 < counts[-1] - counts[-2] <= LOOKS + 1
    assert not clock.take_turn()


def go_on_together(clock: TurnClock, waiting: list[Deferred[Any]]) -> list[list[Any]]:
    """Return what those who wait go on with, turn by turn: those of now, then of later ones."""
    turns: list[list[Any]] = [[]]

    def note(result: Any, number: int) -> None:
        turns[-1].append((number, getattr(result, "value", result)))

    for number, each in enumerate(waiting):
        each.addBoth(note, number)
    while sum(map(len, turns)) < len(waiting):
        turns.append([])
        assert clock.take_turn()
    return turns


def check_slices(turns: list[list[Any]], result: object) -> None:
    assert sum(turns, []) == [(number, result) for number in range(4 * LOOKS)]  # noqa: RUF017
    assert max(map(len, turns)) <= 2 * LOOKS


@pytest.mark.parametrize("result", ["done", ValueError()])
def test_all_who_wait_for_a_run_go_on_in_slices_in_order_with_its_result(
    result: str | ValueError,
) -> None:
    clock = TurnClock(lag=SLICE_SECONDS / LOOKS)
    runs: list[Deferred[str]] = []

    def work() -> Deferred[str]:
        runs.append(Deferred())
        return runs[-1]

    run = Singleflight(work, Slices(clock))
    first = run.call()
    waiting = [run.call() for _ in range(4 * LOOKS)]
    given_up = run.call()
    given_up.cancel()
    given_up.addErrback(lambda failure: failure.trap(CancelledError))
    runs[0].callback("first")
    assert first.called
    runs[1].callback(Failure(result) if isinstance(result, ValueError) else result)
    check_slices(go_on_together(clock, waiting), result)
    run.call()
    assert len(runs) == 3


def test_all_who_wait_for_the_end_of_a_batch_go_on_in_slices_of_later_turns() -> None:
    clock = TurnClock(lag=SLICE_SECONDS / LOOKS)
    ends = BatchEnds(clock, Slices(clock))
    waiting = [ends.wait() for _ in range(4 * LOOKS)]
    ends.over()
    assert not any(each.called for each in waiting)
    check_slices(go_on_together(clock, waiting), None)
