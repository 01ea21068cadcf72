from __future__ import annotations

import gc
import json
import pathlib
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise

import pytest
from twisted.internet.task import Clock

from tests.daemon import Daemon
from tests.workers_of import worker_pids
from treedbd import process as free_memory
from treedbd.process import (
    CONNECTION_OBJECTS,
    FEW_OBJECTS,
    LOAD_S,
    LOOK_S,
    MANY_OBJECTS,
    WORKED_S,
    FreeMemory,
    Trim,
    find_trim,
)

ARENA_BYTES = 64 * 1024 * 1024


class Reactor(Clock):
    """A reactor that keeps what is to run in a thread."""

    def __init__(self) -> None:
        super().__init__()
        self.connections = 0
        self.in_thread: list[Trim] = []

    def callInThread(self, call: Trim) -> None:
        self.in_thread.append(call)

    def getReaders(self) -> Sequence[None]:
        return [None] * self.connections


class Process:
    """A process whose processor time, objects and collections are set by a test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = Reactor()
        self.used = 0.0
        self.objects = 0
        self.kept = 0
        self.collected = 0
        self.trimmed = 0
        self.emptied = 0
        self.in_thread = self.clock.in_thread
        self.blocks = self.counted = 0
        monkeypatch.setattr(sys, "getallocatedblocks", lambda: self.blocks)
        monkeypatch.setattr(free_memory, "count_old", self._count_old)
        monkeypatch.setattr(free_memory, "empty_caches", self._empty_caches)
        monkeypatch.setattr(gc, "get_count", lambda: (0, 0, 1))
        monkeypatch.setattr(gc, "collect", self._collect)
        self.memory = FreeMemory(self.clock, self._trim, used_s=lambda: self.used)
        self.memory.begin()

    def work(self, objects: int = 0, kept: int = 0) -> None:
        """Work until the next look, which finds `objects`, of which `kept` are in use."""
        self.used += 2 * WORKED_S
        self.objects, self.kept = objects, kept
        self.clock.advance(LOOK_S)

    def _count_old(self) -> int:
        self.counted += 1
        return self.objects

    def _empty_caches(self) -> None:
        self.emptied += 1

    def _collect(self) -> None:
        self.collected += 1
        self.objects = self.kept

    def _trim(self) -> None:
        self.trimmed += 1


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[Process]:
    thresholds = gc.get_threshold()
    yield Process(monkeypatch)
    gc.set_threshold(*thresholds)


def test_after_work_garbage_is_collected_and_free_memory_given_back_by_a_thread(
    process: Process,
) -> None:
    process.work(objects=1000)
    assert process.collected == 1
    assert process.trimmed == 0
    (run,) = process.in_thread
    run()
    assert process.trimmed == 1


def test_a_process_that_is_idle_is_left_alone(process: Process) -> None:
    process.work()
    process.in_thread.clear()
    process.collected = 0
    process.clock.pump([LOOK_S] * 100)
    assert (process.collected, process.in_thread) == (0, [])


def test_caches_are_emptied_when_a_load_is_over_and_free_memory_is_given_back(
    process: Process,
) -> None:
    for _ in range(3):
        process.used += LOAD_S
        process.work()
    assert process.emptied == 0
    process.in_thread.clear()
    process.clock.advance(LOOK_S)
    assert (process.emptied, len(process.in_thread)) == (1, 1)
    for _ in range(9):
        process.used += LOAD_S / 10
        process.clock.advance(LOOK_S)
    assert process.emptied == 1
    process.used += LOAD_S / 5
    process.clock.pump([LOOK_S] * 9)
    assert process.emptied == 2


def test_many_objects_in_use_are_looked_at_only_when_they_are_twice_as_many(
    process: Process,
) -> None:
    few, many = FEW_OBJECTS, MANY_OBJECTS
    process.work(many - 1, many - 1)
    assert process.collected == 0
    process.work(many, many)
    assert process.collected == 1
    for _ in range(100):
        process.work(2 * many - 1, many)
    assert process.collected == 1
    process.work(2 * many, many)
    assert process.collected == 2
    process.work(few + 1, few)
    assert process.collected == 2
    process.work(few, few)
    assert process.collected == 3


def test_what_connections_have_in_use_is_not_looked_at(process: Process) -> None:
    process.clock.connections = 16_000
    in_use = CONNECTION_OBJECTS * process.clock.connections
    process.blocks = MANY_OBJECTS + in_use - 1
    process.work(MANY_OBJECTS + in_use - 1)
    assert (process.counted, process.collected) == (0, 0)
    process.blocks *= 2
    process.work(MANY_OBJECTS + in_use - 1)
    assert (process.counted, process.collected) == (1, 0)
    process.clock.connections = 0
    process.work(MANY_OBJECTS)
    assert process.collected == 1


def test_the_interpreter_collects_young_objects_alone(process: Process) -> None:
    young, middle, all_of_them = gc.get_threshold()
    assert 1_000 < young < 10_000  # those of the writes under way are in use
    assert 0 < middle < 100
    assert all_of_them > 1_000_000


def test_garbage_in_cycles_is_counted_until_it_is_collected() -> None:
    gc.collect()
    before = free_memory.count_old()
    for _ in range(10_000):
        cycle: list[object] = []
        cycle.append(cycle)
        del cycle
    gc.collect(1)
    assert free_memory.count_old() < before + 1000
    many = [[number] for number in range(10_000)]
    gc.collect(1)
    assert free_memory.count_old() >= before + len(many)


@pytest.mark.parametrize("problem", [AttributeError, OSError, TypeError])
def test_an_allocator_that_knows_no_trim_is_left_alone(
    problem: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise problem

    monkeypatch.setattr("ctypes.CDLL", fail)
    assert find_trim() is None


def test_the_allocator_is_asked_where_it_can_be() -> None:
    trim = find_trim()
    assert trim is None or trim() in (0, 1)


def arenas_of(process: int) -> int:
    """Return how many arenas glibc has made for threads: each reserves 64 MiB, aligned to that."""
    count = 0
    lines = pathlib.Path(f"/proc/{process}/maps").read_text().splitlines()
    for line, following in pairwise(lines):
        begin, end = (int(text, 16) for text in line.split()[0].split("-"))
        further, last = (int(text, 16) for text in following.split()[0].split("-"))
        is_reserved = following.split()[1] == "---p" and end == further
        count += is_reserved and begin % ARENA_BYTES == last % ARENA_BYTES == 0
    return count


@pytest.mark.skipif(find_trim() is None, reason="needs the allocator of glibc")
@pytest.mark.parametrize("workers", [1, 2])
def test_all_threads_use_memory_that_can_be_given_back(
    workers: int, tmp_path: pathlib.Path
) -> None:
    with Daemon(tmp_path, arguments=("--workers", str(workers))) as daemon:
        text = json.dumps("x" * 2_000_000)
        for number in range(4 * workers):
            assert daemon.request("PUT", f"/a{number}.json?print=silent", text).status == 204
        serving = worker_pids(daemon) if workers > 1 else [daemon.pid]
        assert {arenas_of(process) for process in serving} == {0}
