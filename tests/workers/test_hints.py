from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest
from twisted.internet.testing import MemoryReactor

from treedbd.names import DatabaseName
from treedbd.workers.process import Hints
from treedbd.workers.supervisor import create_hint_pairs

NAMES = [DatabaseName("shop"), DatabaseName("shop", "eu")]


@pytest.fixture
def pairs() -> Iterator[list[tuple[socket.socket, socket.socket]]]:
    made = create_hint_pairs(2)
    with contextlib.ExitStack() as stack:
        for pair in made:
            for each in pair:
                stack.enter_context(each)
        yield made


def two_workers(
    pairs: list[tuple[socket.socket, socket.socket]],
) -> tuple[Hints, Hints, list[DatabaseName]]:
    received: list[DatabaseName] = []
    reactor = MemoryReactor()
    first = Hints(reactor, pairs[0][0], [pairs[1][1]])
    second = Hints(reactor, pairs[1][0], [pairs[0][1]])
    second.begin(received.append)
    return first, second, received


def test_a_hint_reaches_the_others(pairs: list[tuple[socket.socket, socket.socket]]) -> None:
    first, second, received = two_workers(pairs)
    for name in NAMES:
        first.send(name)
    second.doRead()
    assert received == NAMES


def test_of_many_hints_for_a_database_one_is_followed(
    pairs: list[tuple[socket.socket, socket.socket]],
) -> None:
    first, second, received = two_workers(pairs)
    for _ in range(10):
        first.send(NAMES[0])
    second.doRead()
    assert received == [NAMES[0]]


def test_hints_that_find_no_room_are_dropped_and_nobody_waits(
    pairs: list[tuple[socket.socket, socket.socket]],
) -> None:
    first, second, received = two_workers(pairs)
    for _ in range(100_000):
        first.send(NAMES[1])
    second.doRead()
    assert received == [NAMES[1]]


def test_a_hint_to_a_worker_that_has_ended_is_dropped(
    pairs: list[tuple[socket.socket, socket.socket]],
) -> None:
    first, _, _ = two_workers(pairs)
    for each in pairs[1]:
        each.close()
    first.send(NAMES[0])
    assert pairs[1][0].fileno() == -1
