"""The lock of a data directory, taken from the process that holds it and given back."""

from __future__ import annotations

import os
import pathlib

import pytest

from treedbd.store import directory_lock as takeover_module
from treedbd.store.directory_lock import (
    DirectoryInUse,
    DirectoryLock,
    LockTakeover,
    is_aside,
    put_lock_back,
)
from treedbd.store.engine import StoreFailed
from treedbd.store.sqlite.engine import SqliteEngine
from treedbd.store.sqlite.file import await_writers, connect


@pytest.fixture
def data(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "data"


def write(engine: SqliteEngine) -> None:
    transaction = engine.begin()
    transaction.put(b"a", b"1")
    transaction.commit()


def test_a_free_lock_is_just_taken(data: pathlib.Path) -> None:
    takeover = LockTakeover(data)
    assert not takeover.is_served
    with pytest.raises(DirectoryInUse):
        DirectoryLock(data)
    takeover.release(put_back=True)
    DirectoryLock(data).release()


def test_who_held_it_cannot_commit_until_it_is_put_back(data: pathlib.Path) -> None:
    lock = DirectoryLock(data)
    engine = SqliteEngine.create(data / "demo" / "default.shelf", lock=lock)
    write(engine)
    takeover = LockTakeover(data)
    assert takeover.is_served
    assert takeover.lock.is_in_place()
    assert not lock.is_in_place()
    with pytest.raises(StoreFailed, match="was moved"):
        write(engine)
    assert engine.read(lambda view: view.get(b"a")) == b"1"
    with pytest.raises(DirectoryInUse):
        DirectoryLock(data)
    takeover.release(put_back=True)
    assert lock.is_in_place()
    engine.recover()
    write(engine)
    engine.close()
    lock.release()
    assert sorted(os.listdir(data)) == ["demo", "treedb.lock"]


def test_a_takeover_is_not_taken_over(data: pathlib.Path) -> None:
    lock = DirectoryLock(data)
    takeover = LockTakeover(data)
    with pytest.raises(DirectoryInUse, match="another treedb move"):
        LockTakeover(data)
    takeover.release(put_back=True)
    assert lock.is_in_place()
    lock.release()


def test_one_that_was_not_given_back_is_found(data: pathlib.Path) -> None:
    lock = DirectoryLock(data)
    LockTakeover(data).release(put_back=False)
    assert is_aside(data)
    again = LockTakeover(data)  # the next attempt: the holder is still kept from writing
    assert again.is_served
    again.release(put_back=False)
    assert put_lock_back(data)
    assert lock.is_in_place()
    assert not put_lock_back(data)
    lock.release()


def test_the_lock_of_a_holder_that_has_ended_is_not_put_back(data: pathlib.Path) -> None:
    lock = DirectoryLock(data)
    LockTakeover(data).release(put_back=False)
    lock.release()
    successor = DirectoryLock(data)
    assert not put_lock_back(data)
    assert successor.is_in_place()
    takeover = LockTakeover(data)
    assert takeover.is_served
    takeover.release(put_back=True)
    assert successor.is_in_place()
    successor.release()


def test_one_that_was_killed_in_the_middle_is_in_nobodys_way(data: pathlib.Path) -> None:
    lock = DirectoryLock(data)
    os.link(data / "treedb.lock", data / "treedb.lock.aside")
    (data / "treedb.lock.new").write_bytes(b"")
    assert not is_aside(data)
    assert lock.is_in_place()
    takeover = LockTakeover(data)
    assert not lock.is_in_place()
    takeover.release(put_back=True)
    assert lock.is_in_place()
    lock.release()


@pytest.mark.parametrize("step", ["link", "fchown"])
def test_a_takeover_that_fails_changes_nothing(
    data: pathlib.Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    lock = DirectoryLock(data)

    def fail(*_: object) -> None:
        raise OSError

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(OSError):  # noqa: PT011 - any one
        LockTakeover(data)
    assert lock.is_in_place()
    assert not is_aside(data)
    lock.release()


def test_one_that_fails_at_its_end_is_undone(
    data: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = DirectoryLock(data)
    calls = iter((OSError,))

    def fail_once(path: pathlib.Path) -> None:
        for error in calls:
            raise error

    monkeypatch.setattr(takeover_module, "sync_directory", fail_once)
    with pytest.raises(OSError):  # noqa: PT011 - any one
        LockTakeover(data)
    assert lock.is_in_place()
    assert not (data / "treedb.lock.aside").exists()
    lock.release()


def test_a_transaction_that_is_open_is_waited_for(data: pathlib.Path) -> None:
    shelf = data / "demo" / "default.shelf"
    SqliteEngine.create(shelf).close()
    writer = connect(shelf)
    writer.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreFailed, match="for too long"):
        await_writers(shelf, 0.05)
    writer.execute("COMMIT")
    await_writers(shelf, 0)
    writer.close()
    with pytest.raises(StoreFailed, match="cannot be locked"):
        await_writers(data / "missing.shelf", 0)
