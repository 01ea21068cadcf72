"""What is acknowledged survives calls that fail, and what is not acknowledged never takes effect.

strace makes one call after another fail in a process that writes (`fault_injected_writer`). A
machine that loses what was not synced cannot be tested here: the cache of the system outlives the
process.
"""

from __future__ import annotations

import itertools
import json
import pathlib
from collections.abc import Iterable, Iterator
from typing import Any

import attrs
import pytest

from tests.faulty_runs import FaultyRuns
from tests.store.sqlite.fault_injected_writer import COMMITS, LARGE, SMALL
from treedbd.store.sqlite.engine import SqliteEngine

SYNCS = "fdatasync,fsync"


@attrs.frozen
class Report:
    """What happened in a run of the program, where its files are, and whether a call failed."""

    path: pathlib.Path
    copies: pathlib.Path
    large: int
    events: list[list[Any]]
    is_faulty: bool

    def numbers(self, name: str) -> list[int]:
        return [event[1] for event in self.events if event[0] == name]

    def details(self, name: str) -> list[Any]:
        return [event[1:] for event in self.events if event[0] == name]


@attrs.frozen
class Writing:
    """Runs of the program below a folder, each in a process of its own."""

    processes: FaultyRuns
    folder: pathlib.Path

    def run(self, suffix: str, calls: str, fault: str, large: int = LARGE) -> Report:
        """Run the program with `fault` injected in `calls` on the file with that suffix."""
        folder = self.folder / fault
        folder.mkdir()
        path = folder / "data" / "default.shelf"
        events, trace = folder / "events", folder / "trace"
        arguments = [str(path), str(folder / "copies"), str(large), str(events)]
        affected = [path.with_name(f"{path.name}{suffix}")]
        assert self.processes.run(arguments, calls, fault, affected, trace) == 0
        return Report(
            path,
            folder / "copies",
            large,
            [json.loads(line) for line in events.read_text().splitlines()],
            "INJECTED" in trace.read_text(),
        )

    def run_each(
        self, suffix: str, calls: str, error: str, steps: Iterable[int]
    ) -> Iterator[Report]:
        """Let the first, second … such call fail, until no call of a run fails."""
        for step in steps:
            report = self.run(suffix, calls, f"error={error}:when={step}")
            yield report
            if not report.is_faulty:
                break


@pytest.fixture(scope="module")
def processes() -> Iterator[FaultyRuns]:
    with FaultyRuns("tests.store.sqlite.fault_injected_writer:main") as runs:
        yield runs


@pytest.fixture
def writing(processes: FaultyRuns, tmp_path: pathlib.Path) -> Writing:
    return Writing(processes, tmp_path)


def assert_content(path: pathlib.Path, numbers: list[int], large: int) -> None:
    """Open a shelf, and check that it is sound and has these commits and no others."""
    engine = SqliteEngine.open(path, reserve_bytes=4096)
    try:
        found = dict(engine.read(lambda rows: list(rows.scan(b"", b"~"))))
        assert sorted(int(key) for key in found) == numbers
        sizes = {int(key): len(value) for key, value in found.items()}
        assert sizes == {number: large if number % 3 == 2 else SMALL for number in numbers}
        entries = engine.read(lambda rows: list(rows.entries(0)))
        assert [entry.content for entry in entries] == [b"%d" % number for number in numbers]
        assert [entry.sequence for entry in entries] == list(range(1, len(numbers) + 1))
        assert engine.verify() == []
    finally:
        engine.close()


def assert_kept(report: Report) -> None:
    """Check that every read, then and now, returned what was acknowledged and nothing else."""
    acknowledged = report.numbers("acknowledged")
    assert report.details("closed") == [[]]
    assert report.details("wrong") == []
    assert [sequence for _, sequence in report.details("acknowledged")] == list(
        range(1, len(acknowledged) + 1)
    )
    done: list[int] = []
    for name, *details in report.events:
        if name == "acknowledged":
            done.append(details[0])
        elif name in ("seen", "recovered"):
            assert details[0] == done
        elif name == "failed":
            assert_content(report.copies / str(details[0]) / report.path.name, done, report.large)
    assert_content(report.path, acknowledged, report.large)


@pytest.mark.parametrize(
    ("error", "steps", "least"), [("EIO", range(1, 1000), COMMITS), ("ENOSPC", [2, 5], 2)]
)
def test_after_a_failed_sync_of_the_log_nothing_is_acknowledged_and_the_engine_recovers(
    writing: Writing, error: str, steps: Iterable[int], least: int
) -> None:
    failures = 0
    for report in writing.run_each("-wal", SYNCS, error, steps):
        failures += len(report.details("failed"))
        assert len(report.details("failed")) == len(report.details("recovered"))
        assert_kept(report)
    assert failures >= least


def test_after_a_failed_sync_of_the_file_what_the_log_holds_is_acknowledged(
    writing: Writing,
) -> None:
    failures = 0
    for report in writing.run_each("", SYNCS, "EIO", itertools.count(1)):
        failures += len(report.details("failed"))
        assert_kept(report)
    assert failures >= 2


def test_on_a_disk_that_keeps_failing_nothing_recovers_and_nothing_is_lost(
    writing: Writing,
) -> None:
    report = writing.run("-wal", SYNCS, "error=EIO:when=5+")
    assert len(report.details("acknowledged")) >= 2
    assert len(report.details("failed")) == len(report.details("lost")) >= 2
    assert_kept(report)


@pytest.mark.parametrize(
    ("error", "steps"), [("ENOSPC", [1, 2, 3, 4, 7, 8, 60, 440, 60_000]), ("EDQUOT", [1, 8, 60])]
)
def test_with_no_space_for_the_log_nothing_is_lost_and_writes_go_on_at_once(
    writing: Writing, error: str, steps: list[int]
) -> None:
    full = 0
    for report in writing.run_each("-wal", "pwrite64", error, steps):
        assert report.details("failed") == []
        full += len(report.details("full"))
        assert len(report.details("acknowledged")) == COMMITS - len(report.details("full"))
        assert_kept(report)
    assert full >= 2


def test_the_engine_recovers_from_a_failed_write_to_the_log(writing: Writing) -> None:
    failures = 0
    for report in writing.run_each("-wal", "pwrite64", "EIO", [1, 2, 3, 60, 440]):
        failures += len(report.details("failed"))
        assert len(report.details("failed")) == len(report.details("recovered"))
        assert_kept(report)
    assert failures >= 3


def test_with_no_space_for_a_checkpoint_every_commit_succeeds(writing: Writing) -> None:
    for report in writing.run_each("", "pwrite64", "ENOSPC", [1, 2, 50, 110, 150, 60_000]):
        assert report.numbers("acknowledged") == list(range(1, COMMITS + 1))
        assert_kept(report)


def test_with_no_space_for_the_index_of_the_log_nothing_is_lost(writing: Writing) -> None:
    for report in writing.run_each("-shm", "pwrite64", "ENOSPC", itertools.count(1)):
        assert report.details("not created") == []
        assert report.numbers("acknowledged") == list(range(1, COMMITS + 1))
        assert_kept(report)


def test_with_no_space_for_a_longer_index_a_synced_log_does_not_take_effect(
    writing: Writing,
) -> None:
    first_extension = 9  # the index has 4062 pages of the log at first, in 8 pages of its own
    fault = f"error=ENOSPC:when={first_extension}"
    report = writing.run("-shm", "pwrite64", fault, large=20_000_000)
    assert report.numbers("failed") == [2]
    assert report.numbers("acknowledged")[:3] == [1, 3, 4]
    assert_kept(report)


@pytest.mark.parametrize(("calls", "steps"), [(SYNCS, [1, 2, 3]), ("pwrite64", [1, 2, 3, 5, 9])])
def test_the_engine_recovers_from_a_failure_of_the_mark(
    writing: Writing, calls: str, steps: list[int]
) -> None:
    failures = 0
    for report in writing.run_each("-mark", calls, "EIO", steps):
        failures += len(report.details("failed"))
        assert len(report.details("failed")) == len(report.details("recovered"))
        assert_kept(report)
    assert failures >= 2
