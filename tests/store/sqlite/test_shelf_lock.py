from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys

import pytest

from treedbd.store.sqlite.shared import LOCK, ShelfLock

HOLD = """
import pathlib, sys
from treedbd.store.sqlite.shared import ShelfLock
lock = ShelfLock(pathlib.Path(sys.argv[1]))
assert lock.try_write()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "x.shelf"


def test_one_holder_at_a_time_may_write(path: pathlib.Path) -> None:
    first, second = ShelfLock(path), ShelfLock(path)
    assert first.try_write()
    assert not second.try_write()
    first.end_write()
    assert second.try_write()


def test_whoever_has_waited_is_next(path: pathlib.Path) -> None:
    first, second = ShelfLock(path), ShelfLock(path)
    assert first.try_write()
    assert not second.try_write()
    first.end_write()
    assert not first.try_write(), "the one that waits is overtaken"
    assert second.try_write()
    second.end_write()
    assert first.try_write()


def test_whoever_gives_up_keeps_nobody_waiting(path: pathlib.Path) -> None:
    first, second = ShelfLock(path), ShelfLock(path)
    first.try_write()
    second.try_write()
    second.give_up()
    first.end_write()
    assert first.try_write()


def test_a_lock_ends_with_its_process(path: pathlib.Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        lock = ShelfLock(path)
        assert not lock.try_write()
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert lock.try_write()


def test_closing_another_descriptor_of_the_file_releases_nothing(path: pathlib.Path) -> None:
    first, second = ShelfLock(path), ShelfLock(path)
    assert first.try_write()
    os.close(os.open(f"{path}{LOCK}", os.O_RDWR))
    assert not second.try_write()


def test_who_has_the_shelf_open_knows_of_others(path: pathlib.Path) -> None:
    first, second, third = ShelfLock(path), ShelfLock(path), ShelfLock(path)
    assert first.use()
    assert not second.use()
    assert not first.use()
    second.end_use()
    assert first.use()
    assert not third.use()
    first.close()
    assert third.use()


def test_failures_are_counted_for_all(path: pathlib.Path) -> None:
    first, second = ShelfLock(path), ShelfLock(path)
    assert second.failures == 0
    assert first.add_failure() == 1
    assert second.failures == 1
    assert second.add_failure() == 2
    assert first.failures == 2
