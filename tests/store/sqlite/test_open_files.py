"""While a file is moved, removed or replaced nothing is committed, and reads go on."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.store.conformance import append_all, everything, put_all
from treedbd.store.directory_lock import DirectoryLock
from treedbd.store.engine import StoreFailed
from treedbd.store.sqlite.engine import SqliteEngine

MISPLACED = "was moved, removed or replaced; put it back"


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "data" / "demo" / "default.shelf"


@pytest.fixture
def lock(path: pathlib.Path) -> Iterator[DirectoryLock]:
    lock = DirectoryLock(path.parent.parent)
    yield lock
    lock.release()


@pytest.fixture
def engine(path: pathlib.Path, lock: DirectoryLock) -> Iterator[SqliteEngine]:
    """A database with one change."""
    engine = SqliteEngine.create(path, lock=lock, reserve_bytes=0)
    put_all(engine, [(b"a", b"1")])
    append_all(engine, b"one")
    yield engine
    engine.close()


def beside(path: pathlib.Path, suffix: str) -> pathlib.Path:
    return path.with_name(path.name + suffix)


PLACES = {
    "the shelf": lambda path: path,
    "its log": lambda path: beside(path, "-wal"),
    "its folder": lambda path: path.parent,
    "the lock": lambda path: path.parent.parent / "treedb.lock",
    "the data directory": lambda path: path.parent.parent,
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES.keys())
def test_nothing_is_committed_while_a_file_is_elsewhere_and_reads_go_on(
    engine: SqliteEngine, path: pathlib.Path, place: Any
) -> None:
    moved: pathlib.Path = place(path)
    assert engine.find_misplaced() is None
    away = moved.rename(moved.with_name("away"))
    for _ in range(2):
        with pytest.raises(StoreFailed, match=MISPLACED):
            append_all(engine, b"two")
        with pytest.raises(StoreFailed, match=MISPLACED):
            engine.recover()
        assert MISPLACED in (engine.find_misplaced() or "")
        assert str(path.parent) not in (engine.find_misplaced() or "")
        assert not moved.exists()
        assert engine.read(everything) == {b"a": b"1"}
    away.rename(moved)
    assert engine.find_misplaced() is None
    engine.recover()
    assert append_all(engine, b"two") == [2]


def test_another_file_in_the_place_of_a_shelf_is_neither_read_nor_written(
    engine: SqliteEngine, path: pathlib.Path
) -> None:
    other = SqliteEngine.create(path.with_name("other.shelf"), reserve_bytes=0)
    put_all(other, [(b"a", b"other")])
    other.close()
    content = path.with_name("other.shelf").read_bytes()
    path.with_name("other.shelf").rename(path)
    with pytest.raises(StoreFailed, match=MISPLACED):
        append_all(engine, b"two")
    with pytest.raises(StoreFailed, match=MISPLACED):
        engine.recover()
    with pytest.raises(StoreFailed, match=MISPLACED):
        engine.snapshot()
    assert engine.read(everything) == {b"a": b"1"}
    assert path.read_bytes() == content


def test_what_a_removed_log_held_is_saved_in_the_shelf(
    engine: SqliteEngine, path: pathlib.Path
) -> None:
    beside(path, "-wal").unlink()
    with pytest.raises(StoreFailed, match=MISPLACED):
        append_all(engine, b"two")
    with pytest.raises(StoreFailed, match=MISPLACED):
        engine.recover()
    killed = path.parent.with_name("killed")
    subprocess.run(["cp", "-r", path.parent, killed], check=True)
    copied = SqliteEngine.open(killed / path.name)
    assert copied.read(lambda rows: rows.sequence()) == 1
    assert copied.read(everything) == {b"a": b"1"}
    copied.close()


def test_a_shelf_that_is_closed_elsewhere_leaves_nothing_in_its_old_place(
    path: pathlib.Path, lock: DirectoryLock
) -> None:
    engine = SqliteEngine.create(path, lock=lock, reserve_bytes=0)
    append_all(engine, b"one")
    moved = path.parent.rename(path.parent.with_name("moved"))
    path.parent.mkdir()
    engine.close()
    assert list(path.parent.iterdir()) == []
    shutil.rmtree(path.parent)
    moved.rename(path.parent)
    again = SqliteEngine.open(path, lock=lock)
    assert again.read(lambda rows: rows.sequence()) == 1
    assert again.warning is None
    assert not again.was_closed_cleanly
    again.close()


def test_a_lock_that_another_could_take_is_no_lock(
    path: pathlib.Path, engine: SqliteEngine
) -> None:
    lock_file = path.parent.parent / "treedb.lock"
    lock_file.unlink()
    lock_file.touch()
    with pytest.raises(StoreFailed, match=f"The lock file of the data directory {MISPLACED}"):
        append_all(engine, b"two")


def test_another_log_in_the_place_of_ours_is_noticed_at_the_next_checkpoint(
    engine: SqliteEngine, path: pathlib.Path
) -> None:
    log = beside(path, "-wal")
    ours = log.rename(path.with_name("ours"))
    log.touch()
    assert MISPLACED in (engine.find_misplaced() or "")
    assert append_all(engine, b"two") == [2]
    engine.release_reserve()  # with a checkpoint
    with pytest.raises(StoreFailed, match=f"The write-ahead log of the database {MISPLACED}"):
        append_all(engine, b"three")
    ours.replace(log)
    engine.recover()
    assert append_all(engine, b"three") == [3]
