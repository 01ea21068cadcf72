"""The rules in force: stored first, then in force, then announced; denied if in doubt."""

from __future__ import annotations

import json
import os
import pathlib
import stat
from typing import Any

import pytest
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock
from twisted.logger import capturedLogs, eventAsText
from twisted.python.failure import Failure

from tests.database.test_rules_work import STEP_S
from tests.database.world import Disk, TurnClock, run_at_once
from tests.rules.evaluating import NOW, rules, view
from treedbd.database.active_rules import ActiveRules, FileRules, RulesWork, tag_of
from treedbd.database.data_directory import RULES_FILE
from treedbd.database.requests import (
    DeadlinePassed,
    RulesChanged,
    RulesManagedByFile,
    RulesUnreadable,
    TooManyDrafts,
    Unavailable,
    UnknownVersion,
)
from treedbd.database.slices import SLICE_SECONDS
from treedbd.limits import RULES_VERSIONS, WAITING_DRAFTS
from treedbd.rules.context import Context
from treedbd.rules.document import InvalidRules
from treedbd.rules.ruleset import DENY, OPEN, RuleSet
from treedbd.store.rules_versions import UNKNOWN, Origin, RulesVersion
from treedbd.tree.hashes import parse_etags

FIRST = '{"rules": {"a": {".read": true}}}'
SECOND = '{"rules": {"b": {".read": true}}}'
VERSIONS = "versions"


class StoredRules:
    """Rules in force that are stored in a folder; counts how often they changed."""

    def __init__(
        self,
        folder: pathlib.Path | None,
        first: RuleSet = DENY,
        *,
        is_file_managed: bool = False,
        disk: Disk | None = None,
        clock: TurnClock | None = None,
    ) -> None:
        self.changes = 0
        self.clock = clock or TurnClock()
        self.active = ActiveRules(
            first,
            is_file_managed=is_file_managed,
            storage=None if folder is None else FileRules(folder / RULES_FILE, folder / VERSIONS),
            run_in_thread=run_at_once if disk is None else disk.run,
            changed=self.count_change,
            work=RulesWork(self.clock),
        )

    def count_change(self) -> None:
        self.changes += 1

    def run(self) -> None:
        """Make delayed calls until none is left."""
        while self.clock.calls:
            self.clock.take_turn()

    def may_read(self, key: str) -> bool:
        context = Context({"uid": "alice"}, NOW, view(None))
        return self.active.current.may_read((key,), context).allowed


def failure_of(deferred: Deferred[Any]) -> type[BaseException] | None:
    failures: list[Failure] = []
    deferred.addErrback(failures.append)
    return failures[0].type if failures else None


@pytest.fixture
def disk() -> Disk:
    return Disk()


def test_rules_that_are_put_are_in_force_announced_and_stored(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "shop"
    world = StoredRules(folder)
    world.active.put(FIRST.encode())
    assert (world.may_read("a"), world.may_read("b"), world.changes) == (True, False, 1)
    file = folder / RULES_FILE
    assert file.read_text() == FIRST
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    later = StoredRules(folder, OPEN)
    assert later.active.current.text == FIRST
    assert (later.may_read("a"), later.may_read("b"), later.changes) == (True, False, 0)


def test_rules_are_in_force_only_when_they_are_durable(tmp_path: pathlib.Path, disk: Disk) -> None:
    world = StoredRules(tmp_path, disk=disk)
    answered: list[RuleSet] = []
    world.active.put(FIRST.encode()).addCallback(answered.append)
    assert (world.may_read("a"), world.changes, answered) == (False, 0, [])
    disk.finish()
    assert (world.may_read("a"), world.changes, answered) == (True, 1, [world.active.current])


def test_rules_that_cannot_be_stored_are_not_in_force(tmp_path: pathlib.Path, disk: Disk) -> None:
    world = StoredRules(tmp_path, disk=disk)
    (tmp_path / RULES_FILE).mkdir()
    put = world.active.put(FIRST.encode())
    disk.finish()
    assert failure_of(put) is Unavailable
    assert (world.may_read("a"), world.changes) == (False, 0)


def test_rules_are_put_even_if_the_waiting_is_cancelled(tmp_path: pathlib.Path, disk: Disk) -> None:
    world = StoredRules(tmp_path, disk=disk)
    puts = [world.active.put(text.encode()) for text in (FIRST, SECOND)]
    for put in puts:
        put.cancel()
        assert failure_of(put) is CancelledError
    for text in (FIRST, SECOND):
        disk.finish()
        assert world.active.current.text == (tmp_path / RULES_FILE).read_text() == text


@pytest.mark.parametrize("is_stored", [True, False])
def test_of_concurrent_puts_with_one_tag_the_first_is_in_force(
    tmp_path: pathlib.Path, disk: Disk, *, is_stored: bool
) -> None:
    world = StoredRules(tmp_path if is_stored else None, disk=disk)
    read = parse_etags(tag_of(world.active.current))
    puts = [world.active.put(text.encode(), condition=read) for text in (FIRST, SECOND)]
    world.run()
    disk.finish_all()
    assert world.active.current.text == FIRST
    refused = failure_of(puts[1])
    assert refused is RulesChanged
    world.active.put(SECOND.encode(), condition=parse_etags(tag_of(world.active.current)))
    world.run()
    disk.finish_all()
    assert world.active.current.text == SECOND


def test_of_concurrent_puts_the_last_is_in_force_and_stored(
    tmp_path: pathlib.Path, disk: Disk
) -> None:
    world = StoredRules(tmp_path, disk=disk)
    puts = [world.active.put(text.encode()) for text in (FIRST, SECOND, FIRST, SECOND)]
    for put in puts:
        assert len(disk.waiting) == 1
        disk.finish()
        assert failure_of(put) is None
        assert world.active.current.text == (tmp_path / RULES_FILE).read_text()
    assert world.active.current.text == SECOND


@pytest.mark.parametrize("text", [b"", b"{", b'{"rules": {".read": "x"}}', b"\xff"])
def test_invalid_rules_change_nothing(tmp_path: pathlib.Path, text: bytes) -> None:
    world = StoredRules(tmp_path, OPEN)
    assert failure_of(world.active.put(text)) is InvalidRules
    assert (world.may_read("a"), world.changes) == (True, 0)
    assert not list(tmp_path.iterdir())


def test_without_a_folder_rules_are_only_in_memory(tmp_path: pathlib.Path) -> None:
    world = StoredRules(None)
    world.active.put(FIRST.encode())
    assert world.may_read("a")


@pytest.mark.parametrize("content", [b"", b'{"rules": {".read": tru', b"\xff"])
def test_stored_rules_that_are_damaged_deny_everything_and_are_logged(
    tmp_path: pathlib.Path, content: bytes
) -> None:
    (tmp_path / RULES_FILE).write_bytes(content)
    with capturedLogs() as logged:
        world = StoredRules(tmp_path, OPEN)
    assert not world.may_read("a")
    (event,) = logged
    assert event["file"] == str(tmp_path / RULES_FILE)


def test_stored_rules_that_cannot_be_read_deny_nothing(tmp_path: pathlib.Path) -> None:
    (tmp_path / RULES_FILE).mkdir()
    with pytest.raises(RulesUnreadable):
        StoredRules(tmp_path, OPEN)


# Rules that a file of the configuration sets.


def test_a_file_managed_project_denies_until_its_file_is_read_and_accepts_no_put(
    tmp_path: pathlib.Path,
) -> None:
    (tmp_path / RULES_FILE).write_text(FIRST)
    world = StoredRules(tmp_path, is_file_managed=True)
    assert not world.may_read("a")
    world.active.manage_by_file(rules({"b": {".read": True}}))
    assert (world.may_read("a"), world.may_read("b")) == (False, True)
    with pytest.raises(RulesManagedByFile):
        world.active.put(FIRST.encode())
    assert (tmp_path / RULES_FILE).read_text() == FIRST


def test_the_first_reading_of_a_file_is_not_a_change_and_later_ones_are(
    tmp_path: pathlib.Path,
) -> None:
    world = StoredRules(tmp_path, is_file_managed=True)
    for node, changes in (("a", 0), ("a", 0), ("b", 1), ("a", 2)):
        world.active.manage_by_file(rules({node: {".read": True}}))
        assert (world.may_read(node), world.changes) == (True, changes)


def test_a_project_that_becomes_file_managed_no_longer_uses_rules_that_were_put(
    tmp_path: pathlib.Path,
) -> None:
    world = StoredRules(tmp_path)
    world.active.put(FIRST.encode())
    world.active.manage_by_file(rules({"b": {".read": True}}))
    assert (world.may_read("a"), world.may_read("b"), world.changes) == (False, True, 2)
    with pytest.raises(RulesManagedByFile):
        world.active.put(FIRST.encode())


def test_a_project_that_is_no_longer_file_managed_keeps_its_rules_until_others_are_put(
    tmp_path: pathlib.Path,
) -> None:
    (tmp_path / RULES_FILE).write_text(FIRST)
    world = StoredRules(tmp_path, is_file_managed=True)
    world.active.manage_by_file(rules({"c": {".read": True}}))
    world.active.stop_managing_by_file()
    assert ([world.may_read(node) for node in "abc"], world.changes) == ([False, False, True], 0)
    assert (tmp_path / RULES_FILE).read_text() == FIRST
    world.active.put(SECOND.encode())
    assert ([world.may_read(node) for node in "abc"], world.changes) == ([False, True, False], 1)
    assert (tmp_path / RULES_FILE).read_text() == SECOND


@pytest.mark.parametrize("waiting", [0, 1])
def test_a_file_overrides_rules_that_are_being_put(
    tmp_path: pathlib.Path, disk: Disk, waiting: int
) -> None:
    world = StoredRules(tmp_path, disk=disk)
    puts = [world.active.put(text.encode()) for text in (SECOND, FIRST)]
    for _ in range(waiting):
        disk.finish()
    world.active.manage_by_file(rules({"c": {".read": True}}))
    while disk.waiting:
        disk.finish()
    assert [failure_of(put) for put in puts] == [
        None if waiting else RulesManagedByFile,
        RulesManagedByFile,
    ]
    assert [world.may_read(node) for node in "abc"] == [False, False, True]


def test_rules_are_not_stored_while_the_data_directory_is_elsewhere(tmp_path: pathlib.Path) -> None:
    active = ActiveRules(
        OPEN,
        is_file_managed=False,
        storage=FileRules(
            tmp_path / "moved" / "p" / RULES_FILE, tmp_path / "v", lambda: "The lock is gone."
        ),
        run_in_thread=run_at_once,
        changed=lambda: None,
        work=RulesWork(Clock()),
    )
    failures: list[Failure] = []
    active.put(FIRST.encode(), 10.0).addErrback(failures.append)
    assert [str(each.value) for each in failures] == [
        "The rules cannot be stored: The lock is gone."
    ]
    assert active.current is OPEN
    assert list(tmp_path.iterdir()) == []


# Large documents, which take many turns.


LARGE = json.dumps({"rules": {f"k{at}": {".read": f"now > {at}"} for at in range(500)}}).encode()


def test_rules_that_are_too_late_change_nothing(tmp_path: pathlib.Path) -> None:
    world = StoredRules(tmp_path, OPEN, clock=TurnClock(STEP_S))
    put = world.active.put(LARGE, world.clock.rightNow + 5 * SLICE_SECONDS)
    world.run()
    assert failure_of(put) is DeadlinePassed
    assert (world.active.current, world.changes) == (OPEN, 0)
    assert not list(tmp_path.iterdir())


def test_rules_whose_time_is_over_before_they_can_be_stored_change_nothing(
    tmp_path: pathlib.Path, disk: Disk
) -> None:
    world = StoredRules(tmp_path, OPEN, disk=disk)
    first = world.active.put(FIRST.encode(), 10.0)
    late = world.active.put(SECOND.encode(), 10.0)
    world.clock.advance(11)
    disk.finish()
    assert (failure_of(first), failure_of(late)) == (None, DeadlinePassed)
    assert not disk.waiting
    assert world.active.current.text == (tmp_path / RULES_FILE).read_text() == FIRST


def test_cancelling_stops_the_check_of_rules_and_nothing_changes(tmp_path: pathlib.Path) -> None:
    world = StoredRules(tmp_path, OPEN, clock=TurnClock(STEP_S))
    put = world.active.put(LARGE)
    assert world.clock.calls
    put.cancel()
    assert not world.clock.calls
    assert failure_of(put) is CancelledError
    assert (world.active.current, world.changes) == (OPEN, 0)
    assert not list(tmp_path.iterdir())


def test_a_put_waits_for_the_check_of_the_one_before(tmp_path: pathlib.Path) -> None:
    world = StoredRules(tmp_path, clock=TurnClock(STEP_S))
    puts = [world.active.put(text) for text in (LARGE, FIRST.encode())]
    world.run()
    assert [failure_of(put) for put in puts] == [None, None]
    assert world.active.current.text == (tmp_path / RULES_FILE).read_text() == FIRST


def test_stored_rules_with_a_warning_are_in_force_and_it_is_logged(tmp_path: pathlib.Path) -> None:
    (tmp_path / RULES_FILE).write_text('{"rules": {"a": {".read": "auth.uid.matches(/^al|b$/)"}}}')
    with capturedLogs() as logged:
        world = StoredRules(tmp_path)
    assert world.may_read("a") is False
    (event,) = logged
    assert eventAsText(event, includeTimestamp=False, includeSystem=False).startswith(
        f"{tmp_path / RULES_FILE}:1:49: ^ and $ bind the whole pattern"
    )


ADA = Origin(1_700_000_000_000, "ada", is_admin=True)
"""Where a version came from."""


def versions_of(world: StoredRules) -> list[tuple[int, Origin, bool]]:
    listed: list[RulesVersion] = []
    Deferred.fromCoroutine(world.active.list_versions()).addCallback(listed.extend)
    return [(each.number, each.origin, each.is_current) for each in listed]


def text_of(world: StoredRules, number: int) -> bytes | type[BaseException] | None:
    texts: list[bytes] = []
    reading = Deferred.fromCoroutine(world.active.read_version(number))
    reading.addCallback(texts.append)
    return texts[0] if texts else failure_of(reading)


@pytest.mark.parametrize("is_stored", [True, False])
def test_each_put_that_changes_the_text_makes_a_version(
    tmp_path: pathlib.Path, *, is_stored: bool
) -> None:
    world = StoredRules(tmp_path if is_stored else None)
    assert versions_of(world) == []
    for text in (FIRST, FIRST, SECOND):
        world.active.put(text.encode(), origin=ADA)
    assert versions_of(world) == [(2, ADA, True), (1, ADA, False)]
    world.active.put(FIRST.encode())
    assert versions_of(world) == [(3, UNKNOWN, True), (2, ADA, False), (1, ADA, False)]
    assert text_of(world, 2) == SECOND.encode()
    assert text_of(world, 4) is UnknownVersion
    assert versions_of(StoredRules(tmp_path)) == (versions_of(world) if is_stored else [])


@pytest.mark.parametrize("is_stored", [True, False])
def test_the_last_versions_are_kept(tmp_path: pathlib.Path, *, is_stored: bool) -> None:
    world = StoredRules(tmp_path if is_stored else None)
    for number in range(RULES_VERSIONS + 2):
        world.active.put(f'{{"rules": {{"k{number}": {{}}}}}}'.encode())
    numbers = [number for number, _, _ in versions_of(world)]
    assert numbers == list(range(RULES_VERSIONS + 2, 2, -1))
    assert text_of(world, 2) is UnknownVersion


def test_rules_that_were_stored_before_versions_are_the_first(tmp_path: pathlib.Path) -> None:
    file = tmp_path / RULES_FILE
    file.write_text(FIRST)
    os.utime(file, (1000, 1000))
    world = StoredRules(tmp_path)
    assert versions_of(world) == [(1, Origin(1_000_000), True)]
    assert text_of(world, 1) == FIRST.encode()
    assert [each.name for each in tmp_path.iterdir()] == [RULES_FILE]  # to list writes nothing
    world.active.put(SECOND.encode(), origin=ADA)
    assert versions_of(world) == [(2, ADA, True), (1, Origin(1_000_000), False)]
    assert text_of(world, 1) == FIRST.encode()


def test_rules_that_cannot_be_stored_are_no_version(tmp_path: pathlib.Path) -> None:
    world = StoredRules(tmp_path)
    world.active.put(FIRST.encode(), origin=ADA)
    (tmp_path / (RULES_FILE + ".new")).mkdir()
    assert failure_of(world.active.put(SECOND.encode())) is Unavailable
    assert versions_of(world) == [(1, ADA, True)]
    assert text_of(world, 2) is UnknownVersion


def test_a_crash_before_the_rules_are_stored_leaves_a_version_that_is_not_in_force(
    tmp_path: pathlib.Path,
) -> None:
    world = StoredRules(tmp_path)
    world.active.put(FIRST.encode(), origin=ADA)
    world.active.put(SECOND.encode(), origin=ADA)
    (tmp_path / RULES_FILE).write_text(FIRST)
    again = StoredRules(tmp_path)
    assert versions_of(again) == [(2, ADA, False), (1, ADA, True)]
    again.active.put(OPEN.text.encode())
    assert versions_of(again)[0] == (3, UNKNOWN, True)


def test_a_put_reads_no_version_but_the_newest(tmp_path: pathlib.Path) -> None:
    world = StoredRules(tmp_path)
    for text in (FIRST, SECOND):
        world.active.put(text.encode())
        world.run()
    older = tmp_path / VERSIONS / "1.rules"
    older.unlink()
    older.mkdir()  # it cannot be opened
    world.active.put(FIRST.encode())
    world.run()
    assert (tmp_path / RULES_FILE).read_text() == FIRST
    assert (tmp_path / VERSIONS / "3.rules").read_text().endswith(FIRST)


def test_rules_of_a_file_have_no_versions(tmp_path: pathlib.Path) -> None:
    world = StoredRules(tmp_path, is_file_managed=True)
    listing = Deferred.fromCoroutine(world.active.list_versions())
    assert failure_of(listing) is RulesManagedByFile
    assert text_of(world, 1) is RulesManagedByFile


def test_versions_that_cannot_be_read_are_unavailable(tmp_path: pathlib.Path) -> None:
    world = StoredRules(tmp_path)
    (tmp_path / VERSIONS).write_text("not a folder")
    listing = Deferred.fromCoroutine(world.active.list_versions())
    assert failure_of(listing) is Unavailable
    assert text_of(world, 1) is Unavailable
    assert failure_of(world.active.put(FIRST.encode())) is Unavailable


# Drafts that are checked.


LARGE_DRAFT = json.dumps({"rules": {f"k{at}": {".read": f"now > {at}"} for at in range(1_000)}})


def check(world: StoredRules, text: str) -> tuple[Deferred[RuleSet], list[object]]:
    """Check a draft; return also a list that its text, or the type of its error, is added to."""
    ended: list[object] = []
    checking = Deferred.fromCoroutine(world.active.compile_draft(text.encode()))
    checking.addCallbacks(
        lambda rules: ended.append(rules.text), lambda failure: ended.append(failure.type)
    )
    return checking, ended


def test_few_drafts_of_a_project_wait_and_one_that_is_dropped_makes_room() -> None:
    world = StoredRules(None, clock=TurnClock(STEP_S))
    checks = [check(world, LARGE_DRAFT) for _ in range(1 + WAITING_DRAFTS)]
    assert check(world, FIRST)[1] == [TooManyDrafts]
    checks[2][0].cancel()
    last = check(world, FIRST)[1]
    assert last == []
    world.run()
    assert last == [FIRST]
    assert [ended for _, ended in checks] == [
        [CancelledError] if number == 2 else [LARGE_DRAFT] for number in range(1 + WAITING_DRAFTS)
    ]


def test_rules_are_put_while_drafts_of_this_project_are_checked() -> None:
    world = StoredRules(None, clock=TurnClock(STEP_S))
    checks = [check(world, LARGE_DRAFT)[1] for _ in range(3)]
    world.clock.take_turn()
    world.active.put(FIRST.encode())
    world.clock.take_turn()
    assert (world.may_read("a"), checks) == (True, [[], [], []])
    world.run()
    assert checks == [[LARGE_DRAFT]] * 3
    assert world.active.current.text == FIRST
