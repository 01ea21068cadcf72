"""A file of format 3 is checked, and raised to the present one in place."""

from __future__ import annotations

import pathlib

import pytest

from tests.store.older_files import check_content, unpack_file
from treedbd.store.sqlite.convert import check_older


@pytest.fixture
def old(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "demo" / "default.shelf"
    unpack_file(3, path)
    return path


def test_a_file_that_treedb_has_written_is_converted(old: pathlib.Path) -> None:
    check_content(old, 6)


def test_a_sound_file_is_checked_and_not_changed(old: pathlib.Path) -> None:
    before = old.read_bytes()
    assert check_older(old, 3) == []
    assert old.read_bytes() == before
