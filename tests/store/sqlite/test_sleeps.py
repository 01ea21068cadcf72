"""Locks that the system refuses fail a read or a write soon, and not after SQLite's ten seconds."""

from __future__ import annotations

import contextlib
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import apsw
import pytest

from tests.store.conformance import append_all
from treedbd.store.engine import StoreFailed
from treedbd.store.sqlite.engine import SqliteEngine
from treedbd.store.sqlite.file import SLEEP_US, allow_bounds, this_thread

LOCK = """
import fcntl, sys
with open(sys.argv[1], "r+b") as index:
    fcntl.lockf(index, fcntl.LOCK_EX, int(sys.argv[3]), int(sys.argv[2]))
    print(flush=True)
    sys.stdin.read()
"""
READ_LOCKS = (123, 5)
WRITE_LOCK = (120, 1)
"""Where SQLite locks the index of the log, https://www.sqlite.org/walformat.html#wal_locks."""


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "demo" / "default.shelf"


@pytest.fixture
def engine(path: pathlib.Path) -> Iterator[SqliteEngine]:
    with contextlib.closing(SqliteEngine.create(path, reserve_bytes=0)) as engine:
        append_all(engine, b"one")
        yield engine


@contextlib.contextmanager
def locked(path: pathlib.Path, start: int, count: int) -> Iterator[None]:
    """Let another process hold locks in the index of the log, so that SQLite is refused them."""
    command = [sys.executable, "-c", LOCK, f"{path}-shm", str(start), str(count)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield
        finally:
            process.communicate()


def begin(engine: SqliteEngine) -> None:
    engine.begin()


def read(engine: SqliteEngine) -> None:
    engine.advance()
    engine.read(lambda view: view.sequence())


@pytest.mark.parametrize(
    ("locks", "use", "times"),
    [
        (READ_LOCKS, read, 1),
        (READ_LOCKS, SqliteEngine.snapshot, 1),
        (READ_LOCKS, begin, 1),
        (WRITE_LOCK, begin, 10),  # of one second each
    ],
)
def test_what_runs_in_a_turn_of_the_reactor_does_not_sleep_for_seconds(
    engine: SqliteEngine,
    path: pathlib.Path,
    locks: tuple[int, int],
    use: Callable[[SqliteEngine], object],
    times: int,
) -> None:
    engine.advance()
    with locked(path, *locks):
        began = time.monotonic()
        for _ in range(times):
            with pytest.raises(StoreFailed, match="lock"):
                use(engine)
        assert time.monotonic() - began < 5
    read(engine)
    engine.recover()
    assert append_all(engine, b"two") == [2]


def test_only_its_own_calls_are_bounded(engine: SqliteEngine, path: pathlib.Path) -> None:
    with contextlib.closing(apsw.Connection(str(path))) as other:
        allow_bounds(other)
        other.set_busy_timeout(300)
        with locked(path, *WRITE_LOCK):
            began = time.monotonic()
            this_thread.sleep_us = SLEEP_US
            with pytest.raises(apsw.BusyError):
                other.execute("BEGIN IMMEDIATE")
            this_thread.sleep_us = None
            with pytest.raises(apsw.BusyError):
                other.execute("BEGIN IMMEDIATE")
            assert time.monotonic() - began >= 0.25
