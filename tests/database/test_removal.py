"""The removal of a database's files: whole or not at all, whichever step a process dies at."""

from __future__ import annotations

import os
import pathlib
import signal
import sys

import pytest

from tests.database.catalogs import PROJECT, find, make_catalog, make_write
from treedbd.database.data_directory import REMOVAL_NOTE, find_databases, is_removed, walk
from treedbd.database.removal import begin_removal, find_removed, finish_all, finish_removal
from treedbd.database.requests import DatabaseDeleted
from treedbd.names import DatabaseName
from treedbd.store.sqlite.file import beside

NAME = DatabaseName("p", "d")
MAX_STEPS = 60
CHANGES = {"os.remove", "os.rename", "open"}


def make_database(folder: pathlib.Path) -> pathlib.Path:
    """Create a database with a value, which was not closed cleanly; return its file."""
    folder.mkdir(exist_ok=True)
    catalog, clock = make_catalog(folder, PROJECT)
    database = find(catalog, "d")
    database.write(make_write("kept"))
    clock.advance(0)
    assert not database.is_writing
    return folder / "p" / "d.shelf"


def run_and_die(shelf: pathlib.Path, step: int) -> bool:
    """Remove a database in a process that is killed before a change of files; return whether."""
    child = os.fork()
    if child == 0:
        left = step

        def count(event: str, _: object) -> None:
            nonlocal left
            if event in CHANGES:
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                left -= 1

        sys.addaudithook(count)
        begin_removal(shelf)
        finish_removal(shelf)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def test_a_process_that_is_killed_leaves_the_database_or_nothing(tmp_path: pathlib.Path) -> None:
    outcomes = []
    for step in range(MAX_STEPS):
        folder = tmp_path / str(step)
        shelf = make_database(folder)
        was_killed = run_and_die(shelf, step)
        # The next start, of any process.
        assert finish_all(folder, find_removed(folder)) == []
        catalog, _ = make_catalog(folder, PROJECT)
        found = find(catalog, "d").read(lambda nodes: nodes.get(("a",)))
        assert (found is not None) == shelf.exists()
        outcomes.append(found is not None)
        assert list(shelf.parent.glob("*.new")) == []
        if not was_killed:
            assert os.listdir(shelf.parent) == []
            break
    assert outcomes == sorted(outcomes, reverse=True)  # there is one moment at which it is gone
    assert True in outcomes
    assert len(outcomes) > 8


def test_what_is_left_of_a_removed_database_is_none(tmp_path: pathlib.Path) -> None:
    shelf = make_database(tmp_path)
    begin_removal(shelf)
    assert is_removed(shelf)
    assert list(walk(tmp_path, ["p"])) == []
    assert find_databases(tmp_path, {"p": None}, any_project=False).databases == set()
    assert find_removed(tmp_path) == [NAME]


def test_a_start_finishes_a_removal_and_the_database_may_be_created_again(
    tmp_path: pathlib.Path,
) -> None:
    shelf = make_database(tmp_path)
    begin_removal(shelf)
    catalog, clock = make_catalog(tmp_path, PROJECT)
    assert os.listdir(shelf.parent) == []
    assert catalog.names(PROJECT) == [DatabaseName("p")]
    find(catalog, "d").write(make_write("again"))
    clock.advance(0)
    assert shelf.exists()
    assert not is_removed(shelf)


def test_a_database_whose_rest_cannot_be_removed_is_not_served(tmp_path: pathlib.Path) -> None:
    shelf = make_database(tmp_path)
    begin_removal(shelf)
    beside(shelf, "-reserve").unlink(missing_ok=True)
    beside(shelf, "-reserve").mkdir()  # a directory cannot be unlinked
    catalog, _ = make_catalog(tmp_path, PROJECT)
    with pytest.raises(DatabaseDeleted):
        find(catalog, "d")
    beside(shelf, "-reserve").rmdir()
    catalog, _ = make_catalog(tmp_path, PROJECT)
    assert find(catalog, "d").read(lambda nodes: nodes.get(())) is None


def test_without_a_note_nothing_is_removed(tmp_path: pathlib.Path) -> None:
    shelf = make_database(tmp_path)
    beside(shelf, f"{REMOVAL_NOTE}.new").mkdir()  # where the note is written first
    with pytest.raises(OSError, match="directory"):
        begin_removal(shelf)
    assert not is_removed(shelf)
    assert find_databases(tmp_path, {"p": None}, any_project=False).databases == {NAME}


def test_names_that_no_database_has_are_left_alone(tmp_path: pathlib.Path) -> None:
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / f"UPPER.shelf{REMOVAL_NOTE}").touch()
    assert find_removed(tmp_path) == []
