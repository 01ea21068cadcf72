"""The rules in force: kept before they hold, told when they change, never by accident open."""

from __future__ import annotations

import json
import pathlib
import stat
from typing import Any

import pytest
from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import capturedLogs
from twisted.python.failure import Failure

from tests.database.world import Disk, run_at_once
from tests.rules.asking import NOW, rules, view
from treedbd.database.question import Caller, PermissionDenied, Unavailable
from treedbd.database.rulebook import RULES_FILE, Governed, Rulebook
from treedbd.rules.evaluation import QueryFacts
from treedbd.rules.refusal import InvalidRules
from treedbd.rules.ruleset import DENY, OPEN, RuleSet

ALICE = Caller({"uid": "alice"})
FIRST = '{"rules": {"a": {".read": true}}}'
SECOND = '{"rules": {"b": {".read": true}}}'


class World:
    """A rulebook that keeps in a folder, and how often it told of a change."""

    def __init__(
        self,
        folder: pathlib.Path | None,
        first: RuleSet = DENY,
        *,
        is_governed: bool = False,
        disk: Disk | None = None,
    ) -> None:
        self.told = 0
        self.book = Rulebook(
            first,
            is_governed=is_governed,
            folder=folder,
            run_commit=run_at_once if disk is None else disk.run,
            changed=self.hear,
        )

    def hear(self) -> None:
        self.told += 1

    def may_read(self, key: str, caller: Caller = ALICE) -> bool:
        return self.book.may_read((key,), caller, NOW, view(None))


def failure_of(deferred: Deferred[Any]) -> type[BaseException] | None:
    failures: list[Failure] = []
    deferred.addErrback(failures.append)
    return failures[0].type if failures else None


@pytest.fixture
def disk() -> Disk:
    return Disk()


def test_rules_that_are_put_hold_are_told_and_are_kept(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "shop"
    world = World(folder)
    world.book.put(FIRST.encode())
    assert (world.may_read("a"), world.may_read("b"), world.told) == (True, False, 1)
    file = folder / RULES_FILE
    assert file.read_text() == FIRST
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    later = World(folder, OPEN)
    assert later.book.rules.text == FIRST
    assert (later.may_read("a"), later.may_read("b"), later.told) == (True, False, 0)


def test_rules_hold_only_once_they_are_durable(tmp_path: pathlib.Path, disk: Disk) -> None:
    world = World(tmp_path, disk=disk)
    answered: list[None] = []
    world.book.put(FIRST.encode()).addCallback(answered.append)
    assert (world.may_read("a"), world.told, answered) == (False, 0, [])
    disk.finish()
    assert (world.may_read("a"), world.told, answered) == (True, 1, [None])


def test_rules_that_cannot_be_kept_do_not_hold(tmp_path: pathlib.Path, disk: Disk) -> None:
    world = World(tmp_path, disk=disk)
    (tmp_path / RULES_FILE).mkdir()
    put = world.book.put(FIRST.encode())
    disk.finish()
    assert failure_of(put) is Unavailable
    assert (world.may_read("a"), world.told) == (False, 0)


def test_rules_are_put_whether_or_not_anybody_waits_for_it(
    tmp_path: pathlib.Path, disk: Disk
) -> None:
    world = World(tmp_path, disk=disk)
    puts = [world.book.put(text.encode()) for text in (FIRST, SECOND)]
    for put in puts:
        put.cancel()
        assert failure_of(put) is CancelledError
    for text in (FIRST, SECOND):
        disk.finish()
        assert world.book.rules.text == (tmp_path / RULES_FILE).read_text() == text


def test_of_rules_that_are_put_at_once_the_last_hold_and_are_kept(
    tmp_path: pathlib.Path, disk: Disk
) -> None:
    world = World(tmp_path, disk=disk)
    puts = [world.book.put(text.encode()) for text in (FIRST, SECOND, FIRST, SECOND)]
    for put in puts:
        assert len(disk.waiting) == 1
        disk.finish()
        assert failure_of(put) is None
        assert world.book.rules.text == (tmp_path / RULES_FILE).read_text()
    assert world.book.rules.text == SECOND


@pytest.mark.parametrize("text", [b"", b"{", b'{"rules": {".read": "x"}}', b"\xff"])
def test_rules_with_a_fault_change_nothing(tmp_path: pathlib.Path, text: bytes) -> None:
    world = World(tmp_path, OPEN)
    with pytest.raises(InvalidRules):
        world.book.put(text)
    assert (world.may_read("a"), world.told) == (True, 0)
    assert not list(tmp_path.iterdir())


def test_without_a_folder_rules_are_kept_in_memory(tmp_path: pathlib.Path) -> None:
    world = World(None)
    world.book.put(FIRST.encode())
    assert world.may_read("a")


@pytest.mark.parametrize("content", [b"", b'{"rules": {".read": tru', b"\xff"])
def test_kept_rules_that_are_damaged_deny_and_are_told_of(
    tmp_path: pathlib.Path, content: bytes
) -> None:
    (tmp_path / RULES_FILE).write_bytes(content)
    with capturedLogs() as logged:
        world = World(tmp_path, OPEN)
    assert not world.may_read("a")
    (event,) = logged
    assert event["file"] == str(tmp_path / RULES_FILE)


def test_kept_rules_that_cannot_be_read_deny(tmp_path: pathlib.Path) -> None:
    (tmp_path / RULES_FILE).mkdir()
    assert not World(tmp_path, OPEN).may_read("a")


# Rules that a file of the configuration sets.


def test_a_governed_project_denies_until_its_file_is_read_and_takes_no_other(
    tmp_path: pathlib.Path,
) -> None:
    (tmp_path / RULES_FILE).write_text(FIRST)
    world = World(tmp_path, is_governed=True)
    assert not world.may_read("a")
    world.book.govern(rules({"b": {".read": True}}))
    assert (world.may_read("a"), world.may_read("b")) == (False, True)
    with pytest.raises(Governed):
        world.book.put(FIRST.encode())
    assert (tmp_path / RULES_FILE).read_text() == FIRST


def test_the_first_reading_of_a_file_is_no_change_and_later_ones_are(
    tmp_path: pathlib.Path,
) -> None:
    world = World(tmp_path, is_governed=True)
    for node, told in (("a", 0), ("a", 0), ("b", 1), ("a", 2)):
        world.book.govern(rules({node: {".read": True}}))
        assert (world.may_read(node), world.told) == (True, told)


def test_a_project_that_comes_to_be_governed_leaves_what_was_put(
    tmp_path: pathlib.Path,
) -> None:
    world = World(tmp_path)
    world.book.put(FIRST.encode())
    world.book.govern(rules({"b": {".read": True}}))
    assert (world.may_read("a"), world.may_read("b"), world.told) == (False, True, 2)
    with pytest.raises(Governed):
        world.book.put(FIRST.encode())


def test_a_project_that_is_governed_no_more_keeps_its_rules_until_others_are_put(
    tmp_path: pathlib.Path,
) -> None:
    (tmp_path / RULES_FILE).write_text(FIRST)
    world = World(tmp_path, is_governed=True)
    world.book.govern(rules({"c": {".read": True}}))
    world.book.release()
    assert ([world.may_read(node) for node in "abc"], world.told) == ([False, False, True], 0)
    assert (tmp_path / RULES_FILE).read_text() == FIRST
    world.book.put(SECOND.encode())
    assert ([world.may_read(node) for node in "abc"], world.told) == ([False, True, False], 1)
    assert (tmp_path / RULES_FILE).read_text() == SECOND


@pytest.mark.parametrize("waiting", [0, 1])
def test_a_file_wins_over_rules_that_are_being_put(
    tmp_path: pathlib.Path, disk: Disk, waiting: int
) -> None:
    world = World(tmp_path, disk=disk)
    puts = [world.book.put(text.encode()) for text in (SECOND, FIRST)]
    for _ in range(waiting):
        disk.finish()
    world.book.govern(rules({"c": {".read": True}}))
    while disk.waiting:
        disk.finish()
    assert [failure_of(put) for put in puts] == [None if waiting else Governed, Governed]
    assert [world.may_read(node) for node in "abc"] == [False, False, True]


# Asking.


def test_who_may_not_read_is_denied_and_an_administrator_never() -> None:
    world = World(None)
    with pytest.raises(PermissionDenied):
        world.book.check_read(("a",), ALICE, NOW, view(None))
    world.book.check_read(("a",), Caller(None, is_admin=True), NOW, view(None))
    assert world.may_read("a", Caller(None, is_admin=True))


def test_a_read_is_judged_by_auth_time_data_and_query() -> None:
    world = World(None)
    test = f"auth.uid == 'alice' && now == {NOW} && data.val() == 1 && query.limitToFirst == 2"
    world.book.put(json.dumps({"rules": {"a": {".read": test}}}).encode())
    data, query = view({"a": 1}), QueryFacts(limit_to_first=2)
    world.book.check_read(("a",), ALICE, NOW, data, query)
    for caller, now, seen, facts in (
        (Caller(None), NOW, data, query),
        (ALICE, NOW + 1, data, query),
        (ALICE, NOW, view(None), query),
        (ALICE, NOW, data, None),
    ):
        with pytest.raises(PermissionDenied):
            world.book.check_read(("a",), caller, now, seen, facts)
