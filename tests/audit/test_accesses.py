"""Requests that are recorded as such: bounded, in a thread, and what is lost is said."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from tests.audit.test_series import Clocks
from tests.database.world import run_at_once
from treedbd.audit import accesses
from treedbd.audit.accesses import MAX_PATH, WRITE_S, AccessRecorder
from treedbd.audit.chain import verify
from treedbd.audit.series import list_files, list_series
from treedbd.names import DatabaseName, Origin
from treedbd.store.changelog import Writer

NAME = DatabaseName("shop", "eu")
ADA = Writer("ada", origin=Origin("203.0.113.7", "t1", "http"))


class RecordedWorld:
    """Recorders of several processes, which write to one directory."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder / "audit"
        self.clock = Clock()
        self.clocks = Clocks()

    def make(self) -> AccessRecorder:
        recorder = AccessRecorder(
            self.folder,
            self.clocks.open,
            reads=True,
            denied=True,
            run_in_thread=run_at_once,
            clock=self.clock,
            now_ms=lambda: 1_700_000_000_000,
        )
        recorder.start()
        return recorder

    def lines(self) -> dict[str, list[Any]]:
        """Return the lines of each series, without their links."""
        found: dict[str, list[Any]] = {}
        for series in list_series(self.folder):
            assert verify(series).faults == ()
            read = [json.loads(line) for each in list_files(series) for line in each.path.open()]
            found[series.name] = [each for each in read if "kind" in each]
            for each in found[series.name]:
                del each["chain"]
        return found


@pytest.fixture
def world(tmp_path: pathlib.Path) -> RecordedWorld:
    return RecordedWorld(tmp_path)


def test_requests_are_written_once_a_second(world: RecordedWorld) -> None:
    recorder = world.make()
    recorder.note("denied", NAME, ADA, "PUT", "/a", error="permission_denied")
    assert not world.folder.exists()
    world.clock.advance(WRITE_S)
    assert world.lines() == {
        "access-1": [
            {
                "time": "2023-11-14T22:13:20.000Z",
                "kind": "denied",
                "project": "shop",
                "database": "eu",
                "uid": "ada",
                "from": "203.0.113.7",
                "token_id": "t1",
                "means": "http",
                "method": "PUT",
                "path": "/a",
                "error": "permission_denied",
            }
        ]
    }


def test_each_process_has_a_series_and_the_next_one_continues_it(world: RecordedWorld) -> None:
    first, second = world.make(), world.make()
    for number in range(3):
        first.note("read", NAME, ADA, "GET", f"/first/{number}")
        second.note("read", NAME, ADA, "GET", f"/second/{number}")
        world.clock.advance(WRITE_S)
    Deferred.fromCoroutine(first.stop())
    third = world.make()
    third.note("read", NAME, ADA, "GET", "/third")
    world.clock.advance(WRITE_S)
    found = {name: [each["path"] for each in lines] for name, lines in world.lines().items()}
    assert found == {
        "access-1": ["/first/0", "/first/1", "/first/2", "/third"],
        "access-2": ["/second/0", "/second/1", "/second/2"],
    }


def test_a_stop_writes_what_waits(world: RecordedWorld) -> None:
    recorder = world.make()
    recorder.note("read", NAME, ADA, "GET", "/a")
    Deferred.fromCoroutine(recorder.stop())
    assert [each["path"] for each in world.lines()["access-1"]] == ["/a"]


def test_what_comes_while_the_queue_is_full_is_counted(
    world: RecordedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accesses, "MAX_WAITING", 3)
    recorder = world.make()
    for number in range(10):
        recorder.note("denied", NAME, ADA, "PUT", f"/{number}", error="permission_denied")
    world.clock.advance(WRITE_S)
    recorder.note("denied", NAME, ADA, "PUT", "/later", error="permission_denied")
    world.clock.advance(WRITE_S)
    lines = world.lines()["access-1"]
    assert [each.get("path") for each in lines] == ["/0", "/1", "/2", None, "/later"]
    assert (lines[3]["kind"], lines[3]["count"]) == ("lost", 7)


def test_requests_wait_while_the_directory_is_not_writable(world: RecordedWorld) -> None:
    recorder = world.make()
    world.folder.write_bytes(b"")
    recorder.note("denied", NAME, ADA, "PUT", "/a", error="permission_denied")
    world.clock.advance(WRITE_S)
    assert recorder.problem is not None
    assert recorder.problem.startswith("Denied writes and reads cannot be audited (")
    world.folder.unlink()
    recorder.note("denied", NAME, ADA, "PUT", "/b", error="permission_denied")
    world.clock.advance(WRITE_S)
    assert recorder.problem is None
    assert [each["path"] for each in world.lines()["access-1"]] == ["/a", "/b"]


def test_a_long_path_is_cut(world: RecordedWorld) -> None:
    recorder = world.make()
    recorder.note("denied", NAME, ADA, "PUT", "/" + "x" * 70_000, error="permission_denied")
    world.clock.advance(WRITE_S)
    ((line,),) = world.lines().values()
    assert len(line["path"]) == MAX_PATH + 1
