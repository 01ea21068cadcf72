"""The board on which workers show each other what they count."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from treedbd.operating.metrics import HALF_BYTES, SampleBoard, Samples
from treedbd.workers.protocol import create_sample_board

FIRST: Samples = {"a_total": {("x", ""): 1}, "b_seconds": {(): ((1, 2), 0.5)}}
SECOND: Samples = {"a_total": {("x", ""): 2}}


@pytest.fixture
def memory() -> Iterator[int]:
    descriptor = create_sample_board()
    yield descriptor
    os.close(descriptor)


def test_each_reads_what_the_others_have_written_last(memory: int) -> None:
    one, two = (SampleBoard(memory, number, 2) for number in range(2))
    assert two.read_others() == []
    one.write(FIRST, 7.0)
    one.write(SECOND, 8.0)
    assert two.read_others() == [(8.0, SECOND)]
    assert one.read_others() == []


def test_who_replaces_another_finds_what_that_one_had_written(memory: int) -> None:
    assert SampleBoard(memory, 1, 2).before() == {}
    SampleBoard(memory, 1, 2).write(FIRST, 1.0)
    after = SampleBoard(memory, 1, 2)
    assert after.before() == FIRST
    after.write(SECOND, 2.0)
    assert SampleBoard(memory, 0, 2).read_others() == [(2.0, SECOND)]


def test_who_ends_while_it_writes_leaves_what_there_was_before(memory: int) -> None:
    writer = SampleBoard(memory, 0, 2)
    writer.write(FIRST, 1.0)
    writer.write(SECOND, 2.0)  # in the other half, at its start
    os.pwrite(memory, b"\0", 30)
    assert SampleBoard(memory, 1, 2).read_others() == [(1.0, FIRST)]
    assert SampleBoard(memory, 0, 2).before() == FIRST


def test_what_has_no_room_is_not_written(memory: int) -> None:
    writer = SampleBoard(memory, 0, 2)
    writer.write(FIRST, 1.0)
    writer.write({"a_total": {("x" * HALF_BYTES,): 1}}, 2.0)
    assert SampleBoard(memory, 1, 2).read_others() == [(1.0, FIRST)]
