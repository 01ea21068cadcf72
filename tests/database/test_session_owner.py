"""Of a process that has ended, others find out that, and in which databases it has left writes."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from tests.database.world import Disk, run_at_once
from treedbd.database.session_owners import OWNER_FILE, OwnerFile, read_names
from treedbd.names import DatabaseName

SHOP, EU = DatabaseName("shop"), DatabaseName("shop", "eu")
CHILD = """
import os, pathlib, sys
from twisted.internet.defer import maybeDeferred
from treedbd.database.session_owners import OwnerFile
from treedbd.names import DatabaseName
owner = OwnerFile(pathlib.Path(sys.argv[1]), maybeDeferred, os.urandom)
owner.note(DatabaseName("shop"))
owner.keep(DatabaseName("shop"), "1")
print(owner.id, flush=True)
sys.stdin.read()
"""


def make_owner(
    folder: pathlib.Path,
    *,
    knows_all: bool = True,
    run: Callable[[Callable[[], None]], Deferred[None]] = run_at_once,
) -> OwnerFile:
    return OwnerFile(folder, run, os.urandom, knows_all=knows_all)


def files(folder: pathlib.Path) -> list[pathlib.Path]:
    return sorted(folder.glob(f"{OWNER_FILE}*"))


def test_an_owner_that_has_set_nothing_has_no_file(tmp_path: pathlib.Path) -> None:
    owner = make_owner(tmp_path)
    owner.close()
    assert files(tmp_path) == []


def test_a_database_is_listed_once_and_durably_before_it_counts(tmp_path: pathlib.Path) -> None:
    disk = Disk()
    owner = make_owner(tmp_path, run=disk.run)
    first, second, other = owner.note(SHOP), owner.note(SHOP), owner.note(EU)
    assert first is not None
    assert second is not None
    assert other is not None
    assert files(tmp_path) == []
    while disk.waiting:
        disk.finish()
    assert first.called
    assert second.called
    assert owner.note(SHOP) is None
    assert read_names(*files(tmp_path)) == [SHOP, EU]
    owner.close()


def test_a_living_owner_is_not_dead_for_others_and_never_for_itself(
    tmp_path: pathlib.Path,
) -> None:
    owner, other = make_owner(tmp_path), make_owner(tmp_path)
    owner.note(SHOP)
    owner.keep(SHOP, "1")
    assert not other.is_dead(owner.id)
    assert other.find_dead_files() == []
    owner.close()
    assert not owner.is_dead(owner.id)
    assert other.is_dead(owner.id)
    assert other.find_dead_files() == files(tmp_path)


def test_a_file_is_removed_at_the_end_if_no_session_has_left_anything(
    tmp_path: pathlib.Path,
) -> None:
    owner = make_owner(tmp_path)
    owner.note(SHOP)
    owner.keep(SHOP, "1")
    owner.forget(SHOP, "1")
    owner.close()
    assert files(tmp_path) == []


@pytest.mark.parametrize("knows_all", [True, False])
def test_an_owner_without_a_file_is_dead_where_all_files_are_known(
    tmp_path: pathlib.Path, *, knows_all: bool
) -> None:
    assert make_owner(tmp_path, knows_all=knows_all).is_dead("0f") is knows_all


def test_a_label_that_was_cut_off_by_a_crash_is_left_out(tmp_path: pathlib.Path) -> None:
    file = tmp_path / f"{OWNER_FILE}0f"
    file.write_text("shop\neu--shop\nshop\n??\neu--sh")
    assert read_names(file) == [SHOP, EU]


def test_a_disk_that_is_full_refuses_what_waits_and_is_tried_again(tmp_path: pathlib.Path) -> None:
    def fail() -> None:
        raise OSError(28, "No space left on device")

    disk = Disk()
    owner = make_owner(tmp_path, run=lambda _: disk.run(fail))
    failures: list[type[BaseException] | None] = []

    def record(failure: Failure) -> None:
        failures.append(failure.type)

    for _ in range(2):
        noting = owner.note(SHOP)
        assert noting is not None
        noting.addErrback(record)
        disk.finish()
    assert failures == [OSError, OSError]


def test_a_process_that_is_killed_is_dead_at_once(tmp_path: pathlib.Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    owner = child.stdout.readline().strip()
    other = make_owner(tmp_path)
    assert not other.is_dead(owner)
    child.send_signal(signal.SIGKILL)
    child.communicate()
    assert other.is_dead(owner)
    assert [read_names(file) for file in other.find_dead_files()] == [[SHOP]]
