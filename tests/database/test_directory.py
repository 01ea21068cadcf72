"""A data directory: everything in it is seen, or it is said why not."""

from __future__ import annotations

import pathlib

import pytest

from tests.rights import someone_else
from treedbd.database.directory import walk
from treedbd.store.mapping import Refused


def lay(folder: pathlib.Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()


def test_databases_and_rules_are_found_in_order_and_what_belongs_to_them_is_passed_over(
    tmp_path: pathlib.Path,
) -> None:
    lay(tmp_path, "treedb.lock", "b/rules.json", "b/rules.json.new", "a/x.shelf", "a/x.shelf-wal")
    lay(tmp_path, "a/default.shelf", "a/x.shelf-shm", "a/x.shelf-reserve", "a/notes.txt")
    found = list(walk(tmp_path, ["a", "b", "c"]))
    assert [str(each.place.relative_to(tmp_path)) for each in found] == [
        *("a/default.shelf", "a/x.shelf", "b/rules.json")
    ]
    assert [each.trouble for each in found] == [None] * 3
    assert [(each.project, each.is_shelf) for each in found] == [
        *(("a", True), ("a", True), ("b", False))
    ]
    assert [each.database for each in found[:2]] == ["default", "x"]


def test_what_hides_a_database_is_told_and_the_rest_is_found(tmp_path: pathlib.Path) -> None:
    lay(tmp_path, "a", "b/x.shelf-wal", "d/x.shelf", "other")
    (tmp_path / "c").mkdir(mode=0)
    with someone_else(tmp_path):
        found = list(walk(tmp_path, ["a", "b"]))
    assert [(each.project, each.is_shelf) for each in found] == [
        *(("a", False), ("b", False), ("c", False), ("d", True))
    ]
    for each in found[:3]:
        assert each.trouble is not None
        assert each.trouble.startswith(f"{each.place} ")


def test_a_directory_that_cannot_be_seen_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(Refused, match="cannot be looked into"):
        list(walk(tmp_path / "missing", []))
