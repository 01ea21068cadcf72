"""The file of a database is replaced whole or not at all, wherever the process is killed."""

from __future__ import annotations

import os
import pathlib
import shutil
import sys
from typing import Any

import pytest

from treedbd.archive.bases import dump, load
from treedbd.database.removal import shelf_of
from treedbd.names import DatabaseName
from treedbd.standby.replacement import (
    FOLDER,
    download_of,
    finish_all,
    new_file_of,
    put_in_place,
    remove_new,
)
from treedbd.store.nodes import Nodes
from treedbd.store.shelf import open_shelf
from treedbd.store.sqlite.engine import SqliteEngine
from treedbd.tree.value import plain

NAME = DatabaseName("shop", "eu")
CHANGES = frozenset({"open", "os.rename", "os.remove", "os.mkdir"})
KILLED = 77


def write(file: pathlib.Path, value: Any, count: int = 1) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    for _ in range(count):
        with open_shelf(file, "c") as shelf:
            shelf["value"] = value


def write_as_killed(file: pathlib.Path, value: Any) -> None:
    """Write a database as a killed daemon leaves it: what was written last is in its log."""
    write(file, "older")
    with open_shelf(file, "w") as shelf:
        shelf["value"] = value
        shelf.sync()
        kept = {each: each.read_bytes() for each in file.parent.iterdir()}
    for each, content in kept.items():
        each.write_bytes(content)


def read(file: pathlib.Path) -> Any:
    engine = SqliteEngine.open(file)  # as a daemon, with the log that is beside it
    try:
        assert engine.verify() == []
        return engine.read(lambda view: plain(Nodes(view).get(("value",))))
    finally:
        engine.close()


@pytest.fixture
def data(tmp_path: pathlib.Path) -> pathlib.Path:
    """Return a data directory with a database, and a new file for it that is complete."""
    data = tmp_path / "data"
    write_as_killed(shelf_of(data, NAME), "old")
    source = tmp_path / "source.shelf"
    write(source, "new")
    new = new_file_of(data, NAME)
    load(dump(source, db="shop/eu", time_ms=0, segment=0)[1], new)
    return data


def replace(data: pathlib.Path) -> None:
    put_in_place(new_file_of(data, NAME), shelf_of(data, NAME))


def test_a_file_takes_the_place_of_another_one(data: pathlib.Path) -> None:
    replace(data)
    assert read(shelf_of(data, NAME)) == "new"
    assert list((data / FOLDER).iterdir()) == []
    assert finish_all(data) == []
    assert not (data / FOLDER).exists()


def test_without_a_note_the_old_file_stays(data: pathlib.Path) -> None:
    download_of(data, NAME).write_bytes(b"half")
    assert finish_all(data) == []
    assert not (data / FOLDER).exists()
    assert read(shelf_of(data, NAME)) == "old"
    remove_new(data, NAME)


def kill_at(number: int, data: pathlib.Path) -> bool:
    """Replace in a process that is killed at its Nth change of a file; return whether it was."""
    pid = os.fork()
    if pid == 0:
        left = number

        def look(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal left
            is_change = event in CHANGES and not (event == "open" and arguments[1] == "r")
            if is_change:
                left -= 1
                if left < 0:
                    os._exit(KILLED)

        sys.addaudithook(look)
        replace(data)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == KILLED


def test_a_kill_leaves_the_old_file_or_the_new_one(
    data: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    found, number = list[str](), 0
    while True:
        copy = tmp_path / f"copy{number}"
        shutil.copytree(data, copy)
        is_killed = kill_at(number, copy)
        has_note = any((copy / FOLDER).glob("*.ready"))
        replaced = finish_all(copy)
        found.append(read(shelf_of(copy, NAME)))
        assert found[-1] == "new" or not has_note
        assert bool(replaced) == has_note
        shutil.rmtree(copy)
        if not is_killed:
            break
        number += 1
    assert found == sorted(found, reverse=True)  # old, then new
    assert {"old", "new"} == set(found)
    assert number > 8
