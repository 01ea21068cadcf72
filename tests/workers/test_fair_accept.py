"""Which worker accepts a new connection."""

from __future__ import annotations

import os
from typing import Any, cast

import pytest
from twisted.internet.task import Clock

from treedbd.http1.registry import CONNECTIONS
from treedbd.workers.process import LEFT_S, UNEVEN, FairAccept
from treedbd.workers.protocol import Board, create_board


class Port:
    """A port that is always ready, and counts what it accepts."""

    def __init__(self) -> None:
        self.connected = self.is_reading = True
        self.accepted = 0

    def doRead(self) -> None:
        self.accepted += 1

    def stopReading(self) -> None:
        self.is_reading = False

    def startReading(self) -> None:
        self.is_reading = True


class World:
    """Two workers, of which the first has a port."""

    def __init__(self) -> None:
        memory = create_board(2)
        self.own, self.other = (Board(memory, number, 2, b"secret") for number in range(2))
        os.close(memory)
        self.port, self.clock = Port(), Clock()
        FairAccept(cast(Any, self.port), self.own, self.clock)

    def accept(self, own: int, other: int) -> bool:
        """Be ready after so many more connections; return whether one was accepted."""
        for board, count in ((self.own, own), (self.other, other)):
            for _ in range(count):
                board.add(CONNECTIONS)
        before = self.port.accepted
        if self.port.is_reading:
            self.port.doRead()
        return self.port.accepted > before


@pytest.fixture
def world() -> World:
    return World()


def test_a_worker_with_about_as_many_as_another_accepts(world: World) -> None:
    assert world.accept(UNEVEN, 0)
    assert world.accept(100, 90)


def test_a_worker_that_has_more_leaves_a_connection_for_a_moment(world: World) -> None:
    assert not world.accept(UNEVEN + 1, 0)
    assert not world.port.is_reading
    world.clock.advance(LEFT_S)
    assert world.port.is_reading


def test_it_does_not_wait_again_for_a_worker_that_accepts_none(world: World) -> None:
    assert not world.accept(UNEVEN + 1, 0)
    world.clock.advance(LEFT_S)
    assert world.accept(0, 0)
    assert world.accept(1, 0)
    assert not world.accept(1, 1), "the other accepts again"


def test_a_port_that_was_closed_meanwhile_stays_closed(world: World) -> None:
    assert not world.accept(UNEVEN + 1, 0)
    world.port.connected = False
    world.clock.advance(LEFT_S)
    assert not world.port.is_reading
