"""What the databases of a service count: the queue, commits, the evaluation of rules."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
from twisted.internet.task import Clock

from tests.database.world import Disk
from treedbd.database.group_commit import GroupCommit
from treedbd.database.requests import Caller, Outcome, Write
from treedbd.database.runtime import Runtime, Statistics
from treedbd.loop import do_nothing
from treedbd.names import DatabaseName
from treedbd.operating.metrics import METRICS, Sources, read_samples
from treedbd.store.changelog import commit_of
from treedbd.store.engine import DiskFull, Transaction
from treedbd.store.memory import MemoryEngine
from treedbd.tree.edit import make_put
from treedbd.tree.types import Place

ADMIN = Caller(None, True)


def queue(statistics: Statistics, disk: Disk, clock: Clock) -> Callable[[str], object]:
    """Return what submits a write at a key."""

    def apply(transaction: Transaction, write: Write) -> Outcome:
        sequence = transaction.append(b"", b"")
        return Outcome(write.edit, commit_of(sequence, write.edit), None, None)

    engine = MemoryEngine()
    commits = GroupCommit(
        SimpleNamespace(
            name=DatabaseName("demo"),
            committed=lambda _: None,
            notify=lambda _: iter(()),
            leave=lambda: engine.advance() is not None,
        ),  # type: ignore[arg-type]
        engine,
        SimpleNamespace(apply=apply, finish=do_nothing),  # type: ignore[arg-type]
        Runtime(clock, bytes, disk.run, statistics=statistics),
    )
    return lambda key: commits.submit(Write(make_put(Place((key,)), 1, 100), 0, ADMIN))


def test_a_commit_is_measured_and_what_waits_for_the_next_one_is_seen() -> None:
    statistics, disk, clock = Statistics(is_measuring=True), Disk(), Clock()
    submit = queue(statistics, disk, clock)
    submit("a"), submit("b")
    clock.advance(0)
    submit("c")
    assert statistics.waiting_writes == 1
    waiting = [each for each in METRICS if each.name == "treedb_waiting_writes"]
    sources = Sources(*[None] * 7)  # type: ignore[arg-type]
    sources.statistics = statistics
    assert read_samples(waiting, sources) == {"treedb_waiting_writes": {(): 1}}
    disk.finish()
    clock.advance(0)
    disk.finish()
    assert statistics.waiting_writes == 0
    statistics.count()
    assert statistics.writes == 3
    assert statistics.commit_writes.total == 3
    assert sum(statistics.commit_writes.counts) == 2
    assert 0 < statistics.sync_seconds.total <= statistics.commit_seconds.total


def test_a_commit_that_fails_is_not_counted() -> None:
    statistics, clock = Statistics(is_measuring=True), Clock()
    assert statistics.time_commit is not None

    def fail() -> None:
        raise DiskFull("full")

    with pytest.raises(DiskFull):
        statistics.time_commit(fail, 1, 0.0, "demo")()
    statistics.count()
    assert (statistics.writes, clock.seconds()) == (0, 0)


def test_without_metrics_nothing_is_measured() -> None:
    statistics, disk, clock = Statistics(), Disk(), Clock()
    assert statistics.time_commit is None
    assert statistics.observe_rules is None
    queue(statistics, disk, clock)("a")
    clock.advance(0)
    disk.finish()
    statistics.count()
    assert statistics.writes == 0


def test_commits_are_measured_while_they_are_seen() -> None:
    statistics, disk, clock = Statistics(), Disk(), Clock()
    submit = queue(statistics, disk, clock)
    seen: list[tuple[str, int]] = []

    def see(project: str, writes: int, seconds: float) -> None:
        assert seconds > 0
        seen.append((project, writes))

    statistics.show_commits(see)
    submit("a"), submit("b")
    clock.advance(0)
    disk.finish()
    statistics.count()
    assert seen == [("demo", 2)]
    statistics.hide_commits(see)
    assert statistics.time_commit is None
    measuring = Statistics(is_measuring=True)
    measuring.show_commits(see)
    measuring.hide_commits(see)
    assert measuring.time_commit is not None
