"""A file of format 3 is checked, and raised to the present one in place."""

from __future__ import annotations

import pathlib

import pytest

from tests.store.normal_form import normal_form
from tests.store.older_files import BODY, unpack_file
from treedbd.store.nodes import Nodes
from treedbd.store.sqlite.convert import check_older
from treedbd.store.sqlite.engine import SqliteEngine
from treedbd.store.verify import verify
from treedbd.tree.types import ROOT


@pytest.fixture
def old(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "demo" / "default.shelf"
    unpack_file(3, path)
    return path


def ignore(_: str) -> None:
    """Receive a sentence about the progress."""


def test_a_file_that_treedb_has_written_is_converted(old: pathlib.Path) -> None:
    engine = SqliteEngine.open(old, reserve_bytes=0, report=ignore)
    assert engine.read(verify) == []
    assert engine.verify() == []
    assert engine.read(lambda view: Nodes(view).get(ROOT)) == normal_form(BODY)
    assert engine.read(lambda view: (view.sequence(), len(list(view.entries(0))))) == (6, 6)
    engine.close()


def test_a_sound_file_is_checked_and_not_changed(old: pathlib.Path) -> None:
    before = old.read_bytes()
    assert check_older(old, 3) == []
    assert old.read_bytes() == before
