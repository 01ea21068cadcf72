"""The audit of writes: every acknowledged write once, after any stop, and while files fail."""

from __future__ import annotations

import json
import pathlib
import shutil
from typing import Any, Final

import pytest
from twisted.internet.defer import Deferred
from twisted.logger import capturedLogs

from tests.audit.test_series import Clocks, headers_of
from tests.database.catalogs import make_catalog
from tests.database.world import TurnClock, run_at_once
from treedbd.audit.auditor import LATE_S, READ_S, READER, SERIES, Auditor
from treedbd.audit.chain import verify
from treedbd.audit.series import AuditSeries, list_files
from treedbd.database.catalog import Catalog
from treedbd.database.election import SoleElection
from treedbd.database.requests import Caller, ProjectSpec, Write
from treedbd.limits import ReaderLimits
from treedbd.names import DatabaseName, Origin
from treedbd.store.changelog import READ_AT_ONCE
from treedbd.store.cursors import read_cursor
from treedbd.tree.edit import make_patch, make_put, make_remove
from treedbd.tree.types import Place

PROJECT: Final = ProjectSpec("p", None)
ADA: Final = Caller({"uid": "ada"}, origin=Origin("203.0.113.7", "token-1", "http"))


class AuditedWorld:
    """A catalog of SQLite files, and what audits it; both can be killed and started again."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.audit = folder / "audit"
        self.clocks = Clocks()
        self.writes = self.audit / SERIES
        (folder / "data").mkdir()
        self.catalog: Catalog
        self.clock: TurnClock
        self.start()

    def start(self, *, body_bytes: int = 0) -> None:
        self.catalog, self.clock = make_catalog(
            self.folder / "data", PROJECT, first_cursors={READER: False}
        )
        self.election = SoleElection()
        self.auditor = Auditor(
            self.audit,
            self._make_series,
            body_bytes=body_bytes,
            catalog=self.catalog,
            runtime=self.catalog._runtime,
            election=self.election,
            run_in_thread=run_at_once,
            has_files=True,
        )
        self.auditor.start()

    def _make_series(self, folder: pathlib.Path) -> AuditSeries:
        return self.clocks.open(folder)

    def write(self, name: str, value: Any, *path: str, caller: Caller = ADA) -> None:
        self.do(name, make_put(Place(path), value), caller)

    def do(self, name: str, edit: Any, caller: Caller = ADA) -> None:
        database = self.catalog.find(DatabaseName("p", name))
        opening = self.catalog.acquire(database, 30.0, is_write=True)
        if opening is not None:
            self.wait(opening)
        self.wait(database.write(Write(edit, 1_700_000_000_123, caller)))
        self.catalog.release(database)

    def wait(self, waiting: Deferred[Any]) -> Any:
        found: list[Any] = []
        waiting.addBoth(found.append)
        while not found:
            assert self.clock.take_turn()
        return found[0]

    def pass_by(self, seconds: float = READ_S) -> None:
        self.clock.advance(seconds)
        self.clock.run()

    def kill(self) -> None:
        """End as a process that is killed: nothing is stored any more."""
        self.election._is_elected = False
        self.auditor._forget_all()
        self.auditor._series.close()
        self.catalog.close_at_once()

    def stop(self) -> None:
        self.wait(Deferred.fromCoroutine(self.auditor.stop()))
        self.catalog.close_at_once()

    def lines(self, kind: str = "write") -> list[dict[str, Any]]:
        read = [json.loads(line) for each in list_files(self.writes) for line in each.path.open()]
        return [each for each in read if each.get("kind") == kind]

    def seen(self) -> list[tuple[str, int]]:
        assert verify(self.writes).faults == ()
        return [(each["database"], each["seq"]) for each in self.lines()]


@pytest.fixture
def world(tmp_path: pathlib.Path) -> AuditedWorld:
    return AuditedWorld(tmp_path)


def test_a_line_says_who_wrote_what_from_where_and_by_which_token(world: AuditedWorld) -> None:
    world.write("a", {"secret": 1}, "users", "ada")
    world.do("a", make_patch(("users",), {"b": 2}, 1000), Caller(None, is_admin=True))
    world.do("a", make_remove(Place(("users", "b"))), Caller(None))
    world.pass_by()
    first, second, third = world.lines()
    assert {key: first[key] for key in first if key not in ("op", "chain")} == {
        "time": "2023-11-14T22:13:20.123Z",
        "kind": "write",
        "project": "p",
        "database": "a",
        "seq": 1,
        "uid": "ada",
        "from": "203.0.113.7",
        "token_id": "token-1",
        "means": "http",
        "method": "PUT",
        "path": "/users/ada",
        "size": 12,
    }
    assert (second["method"], second["admin"], second["path"]) == ("PATCH", True, "/users")
    assert (third["method"], third["path"]) == ("DELETE", "/users/b")
    assert len({each["op"] for each in world.lines()}) == 3


def test_bodies_are_kept_if_they_are_short_enough(tmp_path: pathlib.Path) -> None:
    world = AuditedWorld(tmp_path)
    world.stop()
    world.start(body_bytes=10)
    world.write("a", {"k": 1}, "x")
    world.write("a", {"k": "x" * 10}, "x")
    world.pass_by()
    assert [each.get("data") for each in world.lines()] == [{"k": 1}, None]


def test_all_databases_are_audited_each_write_once_and_in_order(world: AuditedWorld) -> None:
    for number in range(150):
        world.write("ab"[number % 2], number, "n")
        if number % 40 == 0:
            world.pass_by()
    world.pass_by()
    world.pass_by()
    for name in "ab":
        assert [seq for each, seq in world.seen() if each == name] == list(range(1, 76))
    assert world.auditor.lag_s() == 0


@pytest.mark.parametrize("passed_s", [0, READ_S, 10 * READ_S])
def test_nothing_is_missing_or_twice_after_a_kill(world: AuditedWorld, passed_s: float) -> None:
    expected = []
    for number in range(1, 8):
        world.write("a", number, "n")
        expected.append(("a", number))
        world.pass_by(passed_s)
        world.write("a", -number, "n")
        expected.append(("a", number + 1))
        world.kill()
        world.start()
    world.pass_by()
    world.pass_by()
    assert [seq for _, seq in world.seen()] == list(range(1, 15))
    assert world.lines("begin") == []


def test_a_stop_leaves_nothing_to_be_read_again(world: AuditedWorld) -> None:
    world.write("a", 1, "n")
    world.stop()
    assert world.seen() == [("a", 1)]
    world.start()
    database = world.catalog.find(DatabaseName("p", "a"))
    world.pass_by()
    cursor = database.read(lambda nodes: read_cursor(nodes.rows.stored, READER))
    assert cursor is not None
    assert cursor.sequence == 1


def test_files_that_are_gone_are_a_gap_that_the_audit_names(world: AuditedWorld) -> None:
    world.write("a", 1, "n")
    world.stop()
    shutil.rmtree(world.audit)
    world.start()
    world.write("a", 2, "n")
    world.pass_by()
    assert world.seen() == [("a", 2)]
    (begin,) = world.lines("begin")
    assert (begin["after"], "are not here" in begin["reason"]) == (1, True)


def test_writes_go_on_while_the_files_cannot_be_written(world: AuditedWorld) -> None:
    world.write("a", 1, "n")
    world.pass_by()
    shutil.rmtree(world.audit)
    world.audit.write_bytes(b"")  # in place of the directory
    world.auditor._series.close()
    world.write("a", 2, "n")
    with capturedLogs() as logged:
        for _ in range(5):
            world.pass_by()
    assert len([each for each in logged if "cannot be audited" in str(each.get("reason"))]) == 1
    (problem,) = world.auditor.problems()
    assert not problem.refuses_writes
    assert str(problem).startswith("Writes cannot be audited (")
    assert world.auditor.lag_s() == pytest.approx(5 * READ_S, abs=READ_S)
    world.write("a", 3, "n")
    world.audit.unlink()
    world.pass_by()
    world.pass_by()
    assert [seq for _, seq in world.seen()] == [2, 3]
    assert world.auditor.problems() == []
    assert world.auditor.lag_s() == 0


def test_what_waits_long_is_a_problem(world: AuditedWorld) -> None:
    world.write("a", 1, "n")
    world.auditor._reading.stop()
    world.pass_by(LATE_S + 5)
    (problem,) = world.auditor.problems()
    assert "35 s" in str(problem)
    world.auditor._reading.start(READ_S)
    world.clock.run()
    assert world.auditor.problems() == []


def test_a_process_that_is_not_elected_reads_nothing_and_then_all(world: AuditedWorld) -> None:
    world.election._is_elected = False
    world.write("a", 1, "n")
    world.write("b", 1, "n")
    world.pass_by()
    assert not world.audit.exists()
    assert world.auditor.lag_s() == 0
    world.election.start(world.auditor._election_changed)
    world.pass_by()
    assert sorted(world.seen()) == [("a", 1), ("b", 1)]


def test_the_last_writes_of_a_database_that_is_deleted_are_audited(world: AuditedWorld) -> None:
    world.catalog.end_listeners.append(world.auditor.leave)
    world.catalog.last_readers.append(world.auditor.finish)
    world.write("a", 1, "n")
    world.pass_by()
    world.write("a", 2, "n")
    world.write("b", 1, "n")  # which was not read yet
    for name in "ab":
        world.wait(world.catalog.delete(DatabaseName("p", name)))
    world.pass_by()
    assert sorted(world.seen()) == [("a", 1), ("a", 2), ("b", 1)]
    world.write("a", 3, "n")
    world.pass_by()
    assert world.seen()[-1] == ("a", 1)
    assert not (world.folder / "data" / "p" / "b.shelf").exists()


def test_a_database_that_is_deleted_while_it_is_read_is_audited_whole(world: AuditedWorld) -> None:
    world.catalog.end_listeners.append(world.auditor.leave)
    world.catalog.last_readers.append(world.auditor.finish)
    name = DatabaseName("p", "a")
    world.write("a", 0, "n")
    world.pass_by()
    for number in range(1, 3 * READ_AT_ONCE):
        world.write("a", number, "n")
    reading = world.auditor._print_some(world.auditor._followed[name])
    next(reading)
    world.wait(world.catalog.delete(name))
    with pytest.raises(StopIteration) as ended:
        next(reading)
    lines = [json.loads(each)["seq"] for each in ended.value.value]
    assert lines == list(range(2, READ_AT_ONCE + 2))
    found = [seq for _, seq in world.seen()]
    assert sorted([*found, *lines]) == list(range(1, 3 * READ_AT_ONCE + 1))


def test_a_cursor_that_was_dropped_is_a_gap_that_the_audit_names(world: AuditedWorld) -> None:
    world.write("a", 0, "n")
    world.pass_by()
    world.kill()
    readers = ReaderLimits(lag_bytes=1)
    world.catalog, world.clock = make_catalog(world.folder / "data", PROJECT, readers=readers)
    for number in range(300):
        world.write("a", number, "n")
    world.catalog.close_at_once()
    world.start()
    world.pass_by()
    world.pass_by()
    (gap,) = world.lines("begin")
    assert "writes after 1 are missing" in gap["reason"]
    numbers = [seq for _, seq in world.seen()]
    assert numbers[0] == 1
    assert numbers[1:] == list(range(gap["after"] + 1, 302))


def test_a_history_that_was_replaced_is_named(world: AuditedWorld) -> None:
    world.write("a", 0, "n")
    world.pass_by()
    world.kill()
    shutil.rmtree(world.folder / "data" / "p")
    world.start()
    world.write("a", 1, "n")
    world.pass_by()
    (begun,) = world.lines("begin")
    assert begun["reason"] == "the history of the database is another one"
    assert world.seen() == [("a", 1), ("a", 1)]


def test_a_new_database_is_audited_from_its_first_write_on(world: AuditedWorld) -> None:
    for number in range(300):  # far more than the log keeps for others
        world.write("a", number, "n")
    world.kill()
    world.start()
    world.pass_by()
    assert [seq for _, seq in world.seen()] == list(range(1, 301))
    assert world.lines("begin") == []


def test_a_database_from_before_the_audit_begins_with_what_its_log_has(
    world: AuditedWorld,
) -> None:
    world.kill()
    world.catalog, world.clock = make_catalog(world.folder / "data", PROJECT)
    world.write("short", 1, "n")
    for number in range(300):
        world.write("long", number, "n")
    world.catalog.close_at_once()
    world.start()
    world.pass_by()
    reasons = {each["database"]: each.get("reason") for each in world.lines("begin")}
    assert reasons["short"] is None
    assert "not in the change log" in str(reasons["long"])
    begun: dict[str, int] = {each["database"]: each["after"] for each in world.lines("begin")}
    assert begun["short"] == 0
    numbers = [seq for name, seq in world.seen() if name == "long"]
    assert numbers == list(range(begun["long"] + 1, 301))


def test_a_reading_adds_nothing_to_the_log(world: AuditedWorld) -> None:
    world.write("a", 1, "n")
    for _ in range(20):
        world.pass_by()
    database = world.catalog.find(DatabaseName("p", "a"))
    assert database.read(lambda nodes: nodes.rows.sequence()) == 1
    assert len(headers_of(world.writes)) == 1
