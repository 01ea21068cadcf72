"""What a process has left is written by the next one, before anything of a database is served."""

from __future__ import annotations

import os
import pathlib
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.logger import capturedLogs

from tests.database.catalogs import PROJECT, acquire, close, find, make_catalog, put, read, use
from tests.database.world import Disk, TurnClock, run_at_once
from treedbd.database.catalog import Catalog
from treedbd.database.files import RETRY_S
from treedbd.database.requests import Caller, ProjectSpec, Unavailable
from treedbd.database.runtime import RunInThread
from treedbd.database.session_owners import OWNER_FILE, OwnerFile
from treedbd.store.disconnect_rows import list_owners
from treedbd.store.sqlite.engine import SqliteEngine
from treedbd.tree.edit import make_put
from treedbd.tree.types import Json, Place

ADMIN = Caller(None, is_admin=True)


def make_owner(folder: pathlib.Path) -> OwnerFile:
    return OwnerFile(folder, run_at_once, os.urandom)


def start(
    folder: pathlib.Path, run: RunInThread = run_at_once, project: ProjectSpec = PROJECT
) -> tuple[Catalog, TurnClock]:
    """Start a process that serves a folder, but not its calls in later turns."""
    return make_catalog(folder, project, run_in_thread=run, owner=make_owner(folder))


def leave(folder: pathlib.Path, names: str, session: str = "1") -> None:
    """Leave `{"a": "offline"}` to be written in each database, as a process that is killed."""
    catalog, clock = start(folder)
    for name in names:
        database = find(catalog, name)
        put(database, clock, "online")
        edit = make_put(Place(("a",)), "offline")
        setting = database.disconnect_writes.set(session, edit, ADMIN, 0, 9)
        clock.run()
        assert setting.called
    close(catalog)


def files(folder: pathlib.Path) -> list[pathlib.Path]:
    return sorted(folder.glob(f"{OWNER_FILE}*"))


def stored(folder: pathlib.Path, name: str) -> tuple[list[str], int]:
    """Return the owners of what is kept in a database, and how many writes it has had."""
    engine = SqliteEngine.open(folder / "p" / f"{name}.shelf")
    try:
        return engine.read(lambda view: (list(list_owners(view)), view.sequence()))
    finally:
        engine.close()


def test_what_was_left_is_written_in_the_background_of_the_next_start(
    tmp_path: pathlib.Path,
) -> None:
    leave(tmp_path, "ab")
    assert len(files(tmp_path)) == 1
    catalog, clock = start(tmp_path)
    clock.run()
    assert read(find(catalog, "a")) == {"a": "offline"}
    assert read(find(catalog, "b")) == {"a": "offline"}
    assert files(tmp_path) == []
    close(catalog)
    assert stored(tmp_path, "a") == ([], 2)


def test_a_request_waits_until_what_was_left_is_written(tmp_path: pathlib.Path) -> None:
    leave(tmp_path, "a")
    disk = Disk()
    catalog, clock = start(tmp_path, disk.run)
    database = find(catalog, "a")
    opening = acquire(catalog, database)
    assert opening is not None
    seen: list[Json] = []
    opening.addCallback(lambda _: seen.append(read(database)))
    while not seen:
        assert not database.is_open
        if disk.waiting:
            disk.finish()
        else:
            clock.take_turn()
    assert seen == [{"a": "offline"}]
    catalog.release(database)


def test_it_is_written_once_by_whichever_process_comes_first(tmp_path: pathlib.Path) -> None:
    leave(tmp_path, "a")
    for _ in range(3):
        catalog, clock = start(tmp_path)
        use(catalog, find(catalog, "a"))
        clock.run()
        close(catalog)
    assert stored(tmp_path, "a") == ([], 2)


def test_an_opening_in_place_is_refused_until_it_is_written(tmp_path: pathlib.Path) -> None:
    leave(tmp_path, "a")
    catalog, clock = start(tmp_path)
    database = find(catalog, "a")
    with capturedLogs(), pytest.raises(Unavailable, match="try again"):
        read(database)
    clock.run()
    assert read(database) == {"a": "offline"}
    close(catalog)


def test_a_file_without_its_owners_file_is_treated_as_left(tmp_path: pathlib.Path) -> None:
    leave(tmp_path, "a")
    for file in files(tmp_path):
        file.unlink()
    catalog, clock = start(tmp_path)
    clock.run()
    assert read(find(catalog, "a")) == {"a": "offline"}
    close(catalog)


def test_what_a_living_owner_has_set_is_left_to_it(tmp_path: pathlib.Path) -> None:
    catalog, clock = start(tmp_path)
    database = find(catalog, "a")
    edit = make_put(Place(("a",)), "offline")
    database.disconnect_writes.set("1", edit, ADMIN, 0, 9)
    clock.run()
    database.disconnect_writes.run_left()
    clock.run()
    assert read(database) is None
    database.disconnect_writes.run("1")
    clock.run()
    assert read(database) == {"a": "offline"}
    close(catalog)
    assert files(tmp_path) == []


def test_a_database_that_is_not_served_any_more_keeps_what_was_left(
    tmp_path: pathlib.Path,
) -> None:
    leave(tmp_path, "a")
    catalog, clock = start(tmp_path, project=ProjectSpec("p", frozenset({"other"})))
    clock.run()
    assert clock.getDelayedCalls() != []
    close(catalog)
    assert len(files(tmp_path)) == 1
    catalog, clock = start(tmp_path)
    clock.run()
    assert read(find(catalog, "a")) == {"a": "offline"}
    close(catalog)


def test_a_database_is_served_though_what_was_left_cannot_be_written_yet(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave(tmp_path, "a")
    catalog, clock = start(tmp_path)
    database = find(catalog, "a")
    write, is_full = database.disconnect_writes._write, [True]

    def fail(each: Any) -> Deferred[Any]:
        if is_full[0]:
            raise Unavailable("The disk is full.")
        return write(each)

    monkeypatch.setattr(database.disconnect_writes, "_write", fail)
    with capturedLogs():
        assert use(catalog, database) is None
    assert read(database) == {"a": "online"}
    is_full[0] = False
    advance(clock, RETRY_S)
    assert read(database) == {"a": "offline"}
    close(catalog)
    assert clock.getDelayedCalls() == []


def advance(clock: TurnClock, seconds: float) -> None:
    clock.rightNow += seconds
    clock.run()


def test_a_stop_ends_the_search(tmp_path: pathlib.Path) -> None:
    leave(tmp_path, "ab")
    disk = Disk()
    catalog, clock = start(tmp_path, disk.run)
    clock.run()
    closed: list[None] = []
    catalog.close().addCallback(closed.append)
    with capturedLogs():
        while disk.waiting or clock.take_turn():
            if disk.waiting:
                disk.finish()
    assert closed == [None]
    assert clock.getDelayedCalls() == []
    assert len(files(tmp_path)) == 1
