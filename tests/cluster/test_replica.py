"""A database over PostgreSQL is closed while its copy is still being brought up to date."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from tests.database.world import NAME, PROJECT, Disk, logged_failures, make_active_rules
from tests.postgresql import PostgresqlServers
from tests.store.postgresql.daemons import DaemonSide
from treedbd.cluster.replica import APPLIED_AT_ONCE, LOCK_PAUSE_S, Replica
from treedbd.database.database import Database
from treedbd.database.files import ReadMoment
from treedbd.database.requests import Unavailable
from treedbd.database.runtime import Runtime
from treedbd.database.slices import Slices
from treedbd.store.on_demand import ReopeningEngine
from treedbd.store.postgresql.cluster import DatabaseState

MANY = tuple((b"row %d" % number, b"value") for number in range(APPLIED_AT_ONCE + 1))
FEW = MANY[:1]


class Connections:
    """The connections of a daemon, whose threads are those of a `Disk`."""

    is_closing = False
    is_strict = True
    problem = None

    def __init__(self, disk: Disk, clock: Clock) -> None:
        self.run = disk.run
        self.slices = Slices(clock)


class FollowedRules:
    """Rules that nobody changes."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch


class CopyingDaemon:
    """A daemon with a database that another one writes to; the test says when its threads run."""

    def __init__(self, dsn: str, folder: pathlib.Path) -> None:
        self.side = DaemonSide(dsn, folder / "own")
        self.other = self.side.beside(folder / "other")
        self.clock, self.disk = Clock(), Disk()
        self.is_closed = False
        self.refused: list[Any] = []
        file = self.side.engine
        self.engine = ReopeningEngine(lambda: file, self._use)
        connections: Any = Connections(self.disk, self.clock)
        rules: Any = FollowedRules(file.epoch)
        self.replica = Replica(connections, rules, self.engine, self.clock, ReadMoment())
        self.engine.open(1 << 20)
        self.replica.opened(self.side.db, file)
        runtime = Runtime(self.clock, os.urandom, self.disk.run)
        active = make_active_rules(self.disk.run)
        self.database = Database(
            NAME, self.engine, PROJECT, active, runtime, 100, make_lock=self.replica.begin
        )

    def _use(self) -> None:
        raise AssertionError("The copy is used after its close.")

    def fall_behind(self, *rows: tuple[bytes, bytes]) -> None:
        """Let the other daemon commit, and this one begin to fetch that."""
        self.other.put(*rows)
        self.reach()

    def reach(self) -> None:
        """Begin to show what the other daemon has committed; `refused` says if it failed."""
        position = self.other.engine.position
        state = DatabaseState(0, position.rev, self.side.engine.epoch)
        reaching = Deferred.fromCoroutine(self.replica.reach(state))
        reaching.addErrback(lambda failure: self.refused.append(failure.trap(Unavailable)))

    def close(self) -> None:
        """Begin to close the database; `is_closed` says when that is over."""
        self.database.close().addCallback(self._closed)

    def _closed(self, _: None) -> None:
        self.is_closed = True

    def finish(self) -> None:
        """Let the oldest work in a thread end, and what follows it."""
        self.disk.finish()
        self.clock.advance(LOCK_PAUSE_S)


@pytest.fixture
def world(lone_server: PostgresqlServers, tmp_path: pathlib.Path) -> Iterator[CopyingDaemon]:
    for folder in ("own", "other"):
        (tmp_path / folder).mkdir()
    made = CopyingDaemon(lone_server.dsn, tmp_path)
    with logged_failures() as failures:
        yield made
    assert failures == []
    made.other.close()
    made.side.close()


def test_a_close_waits_for_what_is_being_brought_into_the_copy(world: CopyingDaemon) -> None:
    world.fall_behind(*MANY)
    world.finish()  # the fetch
    assert world.replica.copy.is_in_use
    world.close()
    world.clock.advance(1)
    assert len(world.disk.waiting) == 1  # a close beside it would use the connection twice
    world.finish()
    assert world.refused == [Unavailable]
    assert world.replica.following.through == 0  # it is not shown, so nothing reads it
    assert not world.is_closed
    world.finish()
    assert world.is_closed


def test_a_copy_that_is_being_brought_up_to_date_stays_open(world: CopyingDaemon) -> None:
    assert world.database.is_idle
    world.fall_behind(*MANY)
    world.finish()  # the fetch
    assert not world.database.is_idle
    world.finish()
    assert world.database.is_idle
    assert world.replica.following.through == 1


@pytest.mark.parametrize("rows", [FEW, MANY], ids=["few", "many"])
def test_nothing_is_brought_into_a_copy_that_is_being_closed(
    world: CopyingDaemon, rows: tuple[tuple[bytes, bytes], ...]
) -> None:
    position = world.side.engine.position
    world.fall_behind(*rows)
    world.close()
    world.finish()  # the fetch, while the thread that closes the copy is at work
    assert world.side.engine.position == position
    world.reach()
    assert world.refused == [Unavailable] * 2  # a read would be answered with what is outdated
    assert len(world.disk.waiting) == 1
    world.finish()
    assert world.is_closed
    assert world.clock.getDelayedCalls() == []
