"""The pace of maintenance: little while others are busy, else all that is left, some always."""

from __future__ import annotations

import pytest

from tests.database.world import Disk, World
from treedbd.database.group_commit import SHARE, State
from treedbd.database.slices import SLICE_SECONDS
from treedbd.loop import pause
from treedbd.store.engine import Transaction
from treedbd.tree.edit import make_put
from treedbd.tree.types import Place

STEP_S = 0.02


class PacedWorld(World):
    """There is always maintenance to be done, in steps of 20 ms of processor time.

    `built_s` are the seconds that it has had, and `turns` those of the reactor.
    """

    def __init__(self) -> None:
        super().__init__(disk=Disk())
        self.built_s = 0.0
        self.turns = 0
        self.database._group_commit._maintenance.add(self.build)

    def spend(self, seconds: float) -> None:
        """Use the processor."""
        self.clock.rightNow += seconds
        self.used_s += seconds

    def build(self, transaction: Transaction) -> bool:
        """Do a step of maintenance."""
        for _ in range(20):
            self.spend(STEP_S / 20)
            self.built_s += STEP_S / 20
            pause()
        return True

    def take_turn(self, others_s: float) -> None:
        """Serve others for so long, and let the disk finish; without others, wait."""
        self.turns += 1
        self.spend(others_s)
        self.clock.rightNow += 0.0004  # in which only the disk works
        self.disk.finish_all()
        if not (self.clock.take_turn() or others_s):
            self.clock.rightNow += 0.001

    def share(self, others_s: float, seconds: float = 10.0) -> float:
        """Return what maintenance has of the time, if others want so much of each turn."""
        began, before = self.clock.rightNow, self.built_s
        while self.clock.rightNow < began + seconds:
            self.take_turn(others_s)
        return (self.built_s - before) / (self.clock.rightNow - began)

    def begin_pause(self) -> None:
        """Do a step while others are busy."""
        commits = self.database._group_commit
        for _ in range(100):
            self.take_turn(0.001)
            if self.built_s >= STEP_S and commits.state is State.IDLE:
                return
        raise AssertionError


@pytest.mark.parametrize("others_s", [0.0002, 0.0015, 0.01])
def test_maintenance_has_a_small_share_of_the_time_while_others_are_busy(others_s: float) -> None:
    assert 0.1 < PacedWorld().share(others_s) <= 1 / SHARE + 0.01


def test_maintenance_has_nearly_all_of_the_time_that_nobody_else_wants() -> None:
    world = PacedWorld()
    assert world.share(0) > 0.85
    world.share(0.0015)
    assert world.share(0) > 0.85


def test_maintenance_that_has_less_than_its_share_does_not_pause() -> None:
    world = PacedWorld()
    world.share(0.1, 100)
    assert world.built_s > 0.8 * SLICE_SECONDS * world.turns


def test_a_write_that_comes_in_a_pause_does_not_wait() -> None:
    world = PacedWorld()
    world.begin_pause()
    now, built_s = world.clock.rightNow, world.built_s
    write = world.begin(make_put(Place(("a",)), 1))
    world.clock.take_turn()
    world.disk.finish()
    assert write.called
    assert (world.clock.rightNow, world.built_s) == (now, built_s)


def test_a_database_closes_in_a_pause() -> None:
    world = PacedWorld()
    world.begin_pause()
    assert world.database.is_writing
    assert world.database.close().called
    assert world.clock.getDelayedCalls() == []
