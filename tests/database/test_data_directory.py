"""A data directory: every file in it is found, or reported as unreadable."""

from __future__ import annotations

import pathlib

import pytest

from tests.rights import someone_else
from treedbd.database.data_directory import READER_FILE, walk
from treedbd.store.engine import CannotOpenStore


def create_files(folder: pathlib.Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()


def test_databases_and_rules_are_found_in_order_and_other_files_are_skipped(
    tmp_path: pathlib.Path,
) -> None:
    create_files(
        tmp_path, "treedb.lock", "b/rules.json", "b/rules.json.new", "a/x.shelf", "a/x.shelf-wal"
    )
    create_files(tmp_path, "a/default.shelf", "a/x.shelf-shm", "a/x.shelf-reserve", "a/notes.txt")
    create_files(tmp_path, f"{READER_FILE}archive", "a/x.shelf-mark", "a/x.shelf-mark.new")
    found = list(walk(tmp_path, ["a", "b", "c"]))
    assert [str(each.file.relative_to(tmp_path)) for each in found] == [
        *("a/default.shelf", "a/x.shelf", "b/rules.json")
    ]
    assert [each.error for each in found] == [None] * 3
    assert [(each.project, each.is_shelf) for each in found] == [
        *(("a", True), ("a", True), ("b", False))
    ]
    assert [each.database for each in found[:2]] == ["default", "x"]


def test_what_may_hide_a_database_is_reported_and_the_rest_is_found(tmp_path: pathlib.Path) -> None:
    create_files(tmp_path, "a", "b/x.shelf-wal", "d/x.shelf", "other")
    (tmp_path / "c").mkdir(mode=0)
    with someone_else(tmp_path):
        found = list(walk(tmp_path, ["a", "b"]))
    assert [(each.project, each.is_shelf) for each in found] == [
        *(("a", False), ("b", False), ("c", False), ("d", True))
    ]
    for each in found[:3]:
        assert each.error is not None
        assert str(each.error).startswith(f"{each.file} ")


@pytest.mark.parametrize(("suffix", "kind"), [("-wal", "log"), ("-mark", "mark")])
def test_what_a_missing_database_has_left_is_reported(
    tmp_path: pathlib.Path, suffix: str, kind: str
) -> None:
    create_files(tmp_path, f"a/x.shelf{suffix}")
    (found,) = walk(tmp_path, ["a"])
    assert not found.is_shelf
    assert str(found.error) == (
        f"{tmp_path}/a/x.shelf{suffix} is the {kind} of a database whose own file, x.shelf, is "
        "missing: put that file back, or restore the database from a backup, or remove x.shelf-* "
        "to go on without it."
    )


def test_a_data_directory_that_cannot_be_read_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(CannotOpenStore, match="cannot be read"):
        list(walk(tmp_path / "missing", []))
