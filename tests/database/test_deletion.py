"""The deletion of a database by its catalog: what uses it ends, and nothing else of it is used."""

from __future__ import annotations

import gc
import os
import pathlib
from typing import Any
from weakref import ref

import pytest
from twisted.internet.defer import Deferred
from twisted.logger import capturedLogs

from tests.database.catalogs import (
    ANONYMOUS,
    PROJECT,
    acquire,
    find,
    make_catalog,
    make_write,
    problems,
    put,
    read,
    use,
)
from tests.database.test_damage_checks import create
from tests.database.world import Disk, TurnClock
from treedbd.database.catalog import Catalog
from treedbd.database.data_directory import is_removed
from treedbd.database.removal import RETRY_S, begin_removal
from treedbd.database.requests import DatabaseDeleted, Unavailable
from treedbd.names import DatabaseName
from treedbd.store.sqlite.file import beside
from treedbd.tree.edit import make_put
from treedbd.tree.types import Place

NAME = DatabaseName("p", "d")


def begin(catalog: Catalog) -> list[Any]:
    """Begin to delete the database; return a list that receives the result."""
    found: list[Any] = []
    catalog.delete(NAME).addCallbacks(found.append, lambda failure: found.append(failure.value))
    return found


def finish(disk: Disk, clock: TurnClock) -> None:
    """Do all work in threads, and all that follows."""
    for _ in range(10):
        disk.finish_all()
        clock.advance(0)


def test_a_deleted_database_is_another_one_afterwards(tmp_path: pathlib.Path) -> None:
    catalog, clock = make_catalog(tmp_path, PROJECT)
    put(find(catalog, "d"), clock, 1)
    former = find(catalog, "d")
    assert begin(catalog) == [None]
    assert find(catalog, "d") is not former
    assert read(find(catalog, "d")) is None
    assert NAME not in catalog.written
    put(find(catalog, "d"), clock, 2)
    assert read(find(catalog, "d")) == {"a": 2}
    with pytest.raises(DatabaseDeleted):
        read(former)


def test_what_still_has_the_former_one_neither_reads_nor_writes(tmp_path: pathlib.Path) -> None:
    catalog, clock = make_catalog(tmp_path, PROJECT)
    database = find(catalog, "d")
    put(database, clock, 1)
    begin(catalog)
    put(find(catalog, "d"), clock, 2)
    assert isinstance(put(database, clock, 3), Unavailable)
    assert isinstance(use(catalog, database), DatabaseDeleted)
    with pytest.raises(DatabaseDeleted):
        database.hold()
    assert read(find(catalog, "d")) == {"a": 2}


def test_a_snapshot_that_is_held_shows_nothing_any_longer(tmp_path: pathlib.Path) -> None:
    catalog, clock = make_catalog(tmp_path, PROJECT)
    database = find(catalog, "d")
    put(database, clock, 1)
    held = database.hold()
    chunks = held.rows.scan(b"", b"\xff" * 8)
    begin(catalog)
    with pytest.raises(DatabaseDeleted):
        held.get(("a",))
    with pytest.raises(DatabaseDeleted):
        next(chunks)
    held.close()


def test_a_first_write_during_a_deletion_is_refused_and_not_logged(tmp_path: pathlib.Path) -> None:
    catalog, clock = make_catalog(tmp_path, PROJECT)
    begin_removal(tmp_path / "p" / "d.shelf")  # the catalog has not let go of the database yet
    with capturedLogs() as logged:
        refused = put(find(catalog, "d"), clock, 1)
    assert (type(refused), str(refused)) == (Unavailable, str(DatabaseDeleted()))
    assert logged == []


def test_nothing_keeps_the_former_one(tmp_path: pathlib.Path) -> None:
    catalog, clock = make_catalog(tmp_path, PROJECT)
    database = find(catalog, "d")
    put(database, clock, 1)
    former = ref(database)
    begin(catalog)
    clock.advance(0)
    del database
    gc.collect()
    assert former() is None


def test_a_batch_under_way_is_finished_and_what_waits_is_refused(tmp_path: pathlib.Path) -> None:
    disk = Disk()
    catalog, clock = make_catalog(tmp_path, PROJECT, run_in_thread=disk.run)
    database = find(catalog, "d")
    results: list[Any] = []

    def write(value: int) -> None:
        done = database.write(make_write(value))
        done.addCallbacks(lambda _: results.append(value), results.append)

    write(1)
    clock.advance(0)
    assert disk.commits_next()
    write(2)
    deleted = begin(catalog)
    finish(disk, clock)
    assert deleted == [None]
    assert results[0] == 1 or results[1] == 1
    (refused,) = [each for each in results if each != 1]
    refused.trap(Unavailable)
    assert os.listdir(tmp_path / "p") == []


def test_a_database_that_is_being_opened_is_deleted_afterwards(tmp_path: pathlib.Path) -> None:
    create(tmp_path, is_clean=True)
    disk = Disk()
    catalog, clock = make_catalog(tmp_path, PROJECT, run_in_thread=disk.run)
    opening = acquire(catalog, find(catalog, "d"))
    assert opening is not None
    opened: list[Any] = []
    opening.addBoth(opened.append)
    deleted = begin(catalog)
    finish(disk, clock)
    assert deleted == [None]
    assert len(opened) == 1
    assert os.listdir(tmp_path / "p") == []


def test_meanwhile_it_is_not_served_and_not_deleted_twice(tmp_path: pathlib.Path) -> None:
    disk = Disk()
    catalog, clock = make_catalog(tmp_path, PROJECT, run_in_thread=disk.run)
    find(catalog, "d").write(make_write(1))
    finish(disk, clock)
    deleted = begin(catalog)
    disk.finish()  # the note
    with pytest.raises(DatabaseDeleted):
        find(catalog, "d")
    (refused,) = begin(catalog)
    assert isinstance(refused, DatabaseDeleted)
    finish(disk, clock)
    assert deleted == [None]
    assert read(find(catalog, "d")) is None


def test_without_a_note_it_is_as_it_was(tmp_path: pathlib.Path) -> None:
    catalog, clock = make_catalog(tmp_path, PROJECT)
    put(find(catalog, "d"), clock, 1)
    note = beside(tmp_path / "p" / "d.shelf", "-removed.new")
    note.mkdir()
    (refused,) = begin(catalog)
    assert isinstance(refused, Unavailable)
    assert "cannot be deleted" in str(refused)
    assert str(tmp_path) not in str(refused)
    assert read(find(catalog, "d")) == {"a": 1}
    note.rmdir()
    assert begin(catalog) == [None]


def test_files_that_cannot_be_removed_are_tried_again(tmp_path: pathlib.Path) -> None:
    catalog, clock = make_catalog(tmp_path, PROJECT)
    put(find(catalog, "d"), clock, 1)
    shelf = tmp_path / "p" / "d.shelf"
    reserve = beside(shelf, "-reserve")
    reserve.unlink()
    reserve.mkdir()  # it cannot be unlinked
    deleted = begin(catalog)
    assert deleted == []
    assert is_removed(shelf)
    with pytest.raises(DatabaseDeleted):
        find(catalog, "d")
    reserve.rmdir()
    clock.advance(RETRY_S)
    assert deleted == [None]
    assert read(find(catalog, "d")) is None


def test_a_caller_that_waits_no_longer_stops_nothing(tmp_path: pathlib.Path) -> None:
    disk = Disk()
    catalog, clock = make_catalog(tmp_path, PROJECT, run_in_thread=disk.run)
    find(catalog, "d").write(make_write(1))
    finish(disk, clock)
    deleting: Deferred[None] = catalog.delete(NAME)
    deleting.addErrback(lambda _: None)
    deleting.cancel()
    finish(disk, clock)
    assert os.listdir(tmp_path / "p") == []
    assert read(find(catalog, "d")) is None


def test_a_damaged_database_can_be_deleted(tmp_path: pathlib.Path) -> None:
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "d.shelf").write_bytes(b"no database" * 1000)
    catalog, clock = make_catalog(tmp_path, PROJECT)
    assert len(problems(catalog)) == 1
    assert begin(catalog) == [None]
    assert problems(catalog) == []
    put(find(catalog, "d"), clock, 1)
    assert read(find(catalog, "d")) == {"a": 1}


def test_a_check_of_the_file_ends_before(tmp_path: pathlib.Path) -> None:
    create(tmp_path, is_clean=False)
    disk = Disk()
    catalog, clock = make_catalog(tmp_path, PROJECT, run_in_thread=disk.run)
    clock.advance(0)
    disk.finish()  # opened to be checked
    assert disk.waiting
    deleted = begin(catalog)
    finish(disk, clock)
    assert deleted == [None]
    assert problems(catalog) == []
    assert os.listdir(tmp_path / "p") == []


def test_what_sessions_have_left_is_forgotten(tmp_path: pathlib.Path) -> None:
    catalog, clock = make_catalog(tmp_path, PROJECT)
    database = find(catalog, "d")
    put(database, clock, 1)
    edit = make_put(Place(("online",)), False)
    stored: list[Any] = []
    database.disconnect_writes.set("s", edit, ANONYMOUS, 0, 10).addBoth(stored.append)
    clock.advance(0)
    assert stored == [None]
    assert begin(catalog) == [None]
    ended: list[Any] = []
    database.disconnect_writes.run("s").addBoth(ended.append)
    clock.advance(60)
    assert ended == [None]
    assert not database.disconnect_writes.is_needed
    assert read(find(catalog, "d")) is None


def test_listeners_are_ended_also_those_that_begin_meanwhile(tmp_path: pathlib.Path) -> None:
    catalog, clock = make_catalog(tmp_path, PROJECT)
    put(find(catalog, "d"), clock, 1)
    ended: list[DatabaseName] = []
    catalog.end_listeners.append(ended.append)
    begin(catalog)
    assert ended == [NAME, NAME]


def test_a_created_database_has_a_file_and_nothing_in_it(tmp_path: pathlib.Path) -> None:
    catalog, clock = make_catalog(tmp_path, PROJECT)
    database = find(catalog, "d")
    assert not catalog.exists(NAME)
    created: list[Any] = []
    database.create(ANONYMOUS, 0, 30.0).addBoth(created.append)
    clock.advance(0)
    assert created[0].commit is None
    assert catalog.exists(NAME)
    assert (tmp_path / "p" / "d.shelf").is_file()
    assert read(database) is None
    assert database.read(lambda nodes: nodes.rows.sequence()) == 0
