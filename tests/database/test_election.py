"""Of all processes that share a data directory one is elected, and another one when it ends."""

from __future__ import annotations

import fcntl
import os
import pathlib
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import pytest_twisted
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import capturedLogs

from tests.database.world import Disk, run_at_once
from treedbd.database.data_directory import READER_FILE
from treedbd.database.election import POLL_S, STOP_S, FileElection, SoleElection
from treedbd.database.runtime import RunInThread
from treedbd.loop import do_nothing

CHILD = """
import pathlib, sys
from twisted.internet.defer import maybeDeferred
from twisted.internet.task import Clock
from treedbd.database.election import FileElection
election = FileElection(pathlib.Path(sys.argv[1]), "archive", maybeDeferred, Clock())
election.start(lambda: None)
print(election.is_elected, flush=True)
sys.stdin.read()
"""
THREADS, ROUNDS = 4, 150


class Candidate:
    """A process in a data directory, and what it has been told."""

    def __init__(self, folder: pathlib.Path, run: RunInThread = run_at_once) -> None:
        self.clock = Clock()
        self.election = FileElection(folder, "archive", run, self.clock)
        self.changes: list[bool] = []

    def start(self) -> None:
        self.election.start(self._changed)

    def poll(self) -> bool:
        """Let it try again; return whether it is elected."""
        self.clock.advance(POLL_S)
        return self.election.is_elected

    def stop(self) -> Deferred[None]:
        return Deferred.fromCoroutine(self.election.stop())

    def _changed(self) -> None:
        self.changes.append(self.election.is_elected)


@pytest.fixture
def make(tmp_path: pathlib.Path) -> Iterator[Callable[..., Candidate]]:
    made: list[Candidate] = []

    def make(run: RunInThread = run_at_once) -> Candidate:
        made.append(Candidate(tmp_path / "data", run))
        made[-1].start()
        return made[-1]

    yield make
    for each in made:
        each.stop()


def files(folder: pathlib.Path) -> list[str]:
    return sorted(each.name for each in (folder / "data").glob(f"{READER_FILE}*"))


@pytest.fixture
def child(tmp_path: pathlib.Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process, which is elected."""
    command = [sys.executable, "-c", CHILD, str(tmp_path / "data")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"True\n"
        yield process
        process.kill()


@pytest_twisted.ensureDeferred
async def test_beside_no_other_process_the_election_is_won_at_once() -> None:
    election, changes = SoleElection(), list[bool]()
    assert not election.is_elected
    election.start(lambda: changes.append(election.is_elected))
    assert changes == [True]
    await election.stop()
    assert not election.is_elected
    assert changes == [True]


def test_one_of_two_is_elected_and_the_other_when_that_gives_it_up(
    make: Callable[..., Candidate], tmp_path: pathlib.Path
) -> None:
    first, second = make(), make()
    assert (first.changes, second.changes) == ([True], [])
    assert first.poll()
    assert not second.poll()
    assert files(tmp_path) == [f"{READER_FILE}archive"]
    first.stop()
    assert not first.election.is_elected
    assert second.poll()
    second.stop()
    assert (first.changes, second.changes) == ([True], [True])
    assert files(tmp_path) == []
    assert not any(each.clock.getDelayedCalls() for each in (first, second))


def test_each_purpose_has_its_own_reader(
    make: Callable[..., Candidate], tmp_path: pathlib.Path
) -> None:
    make()
    audit = FileElection(tmp_path / "data", "audit", run_at_once, Clock())
    audit.start(do_nothing)
    assert audit.is_elected
    Deferred.fromCoroutine(audit.stop())


def test_after_a_kill_another_process_is_elected(
    make: Callable[..., Candidate], child: subprocess.Popen[bytes], tmp_path: pathlib.Path
) -> None:
    candidate = make()
    assert not candidate.poll()
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert files(tmp_path) == [f"{READER_FILE}archive"]
    assert candidate.poll()


def test_a_process_that_is_stopped_for_a_while_stays_elected(
    make: Callable[..., Candidate], child: subprocess.Popen[bytes]
) -> None:
    candidate = make()
    child.send_signal(signal.SIGSTOP)
    assert not any(candidate.poll() for _ in range(20))
    child.send_signal(signal.SIGCONT)
    assert not candidate.poll()


def test_a_process_whose_file_was_removed_gives_it_up_and_may_be_elected_again(
    make: Callable[..., Candidate], tmp_path: pathlib.Path
) -> None:
    first, second = make(), make()
    (tmp_path / "data" / f"{READER_FILE}archive").unlink()
    assert not first.poll()
    assert second.poll()
    assert not first.poll()
    second.stop()
    assert first.poll()
    assert first.changes == [True, False, True]


def test_a_file_that_was_removed_while_it_was_being_locked_does_not_count(
    make: Callable[..., Candidate], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lock(descriptor: int, operation: int) -> None:
        monkeypatch.undo()
        (tmp_path / "data" / f"{READER_FILE}archive").unlink()
        fcntl.flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", lock)
    candidate = make()
    assert not candidate.election.is_elected
    assert candidate.poll()


def test_of_many_that_come_and_go_no_two_are_elected_at_a_time(tmp_path: pathlib.Path) -> None:
    reading, wrong, wins = threading.Lock(), list[int](), list[int]()

    def come_and_go(number: int) -> None:
        for _ in range(ROUNDS):
            candidate = Candidate(tmp_path / "data")
            candidate.start()
            if candidate.election.is_elected:
                wins.append(number)
                if reading.acquire(blocking=False):
                    os.sched_yield()
                    reading.release()
                else:
                    wrong.append(number)
            candidate.stop()

    threads = [threading.Thread(target=come_and_go, args=[each]) for each in range(THREADS)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert wrong == []
    assert wins
    assert files(tmp_path) == []


def test_an_error_is_logged_once_and_tried_again(
    make: Callable[..., Candidate], tmp_path: pathlib.Path
) -> None:
    (tmp_path / "data").write_text("not a directory")
    with capturedLogs() as logs:
        candidate = make()
        assert not candidate.poll()
        assert not candidate.poll()
    assert [each["log_format"].format(**each).partition(": ")[0] for each in logs] == [
        "It could not be found out whether this process is the reader archive"
    ]
    (tmp_path / "data").unlink()
    assert candidate.poll()


def test_a_reader_that_fails_at_the_change_is_logged_and_the_election_goes_on(
    tmp_path: pathlib.Path,
) -> None:
    candidate = Candidate(tmp_path / "data")
    with capturedLogs() as logs:
        candidate.election.start(lambda: candidate.changes.remove(True))
    assert logs[-1]["log_format"].format(**logs[-1]) == "The reader archive failed."
    assert candidate.poll()
    candidate.stop()


@pytest.fixture
def disk() -> Disk:
    return Disk()


def test_a_stop_waits_for_the_try_under_way_and_gives_it_up(
    make: Callable[..., Candidate], disk: Disk, tmp_path: pathlib.Path
) -> None:
    candidate = make(disk.run)
    stopped = candidate.stop()
    assert not stopped.called
    while disk.waiting:
        disk.waiting.reverse()
        disk.finish()
    assert stopped.called
    assert (candidate.changes, candidate.election.is_elected) == ([], False)
    assert files(tmp_path) == []


def test_after_a_stop_no_change_is_reported(make: Callable[..., Candidate], disk: Disk) -> None:
    candidate = make(disk.run)
    disk.finish_all()
    candidate.clock.advance(POLL_S)
    candidate.stop()
    disk.finish_all()
    assert (candidate.changes, candidate.election.is_elected) == ([True], False)


def test_a_stop_does_not_wait_for_a_disk_that_hangs(
    make: Callable[..., Candidate], disk: Disk
) -> None:
    candidate = make(disk.run)
    with capturedLogs() as logs:
        stopped: Deferred[Any] = candidate.stop()
        candidate.clock.advance(STOP_S)
    assert stopped.called
    assert logs == []
    assert candidate.clock.getDelayedCalls() == []
