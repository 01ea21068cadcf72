"""Writers whose deadline passes during a commit are answered in slices."""

from __future__ import annotations

from twisted.internet.defer import Deferred

from tests.database.world import TurnClock
from treedbd.cluster.committing import answer_when_late
from treedbd.database.errors import OutcomeInDoubt
from treedbd.database.requests import Caller, Outcome, QueuedWrite, Write
from treedbd.database.slices import SLICE_SECONDS
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
