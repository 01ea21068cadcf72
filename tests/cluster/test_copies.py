"""The files of copies: where the names of databases in PostgreSQL may lead."""

from __future__ import annotations

import os
import pathlib
from types import SimpleNamespace
from typing import Any

import pytest

from treedbd.cluster.files import Copies
from treedbd.names import DatabaseName
from treedbd.store.engine import CannotOpenStore


@pytest.mark.parametrize("name", ["../../other", "/other", "a/b", "a\0b", ".", "", "A", "a\nb"])
def test_a_name_that_no_database_can_have_makes_no_file(tmp_path: pathlib.Path, name: str) -> None:
    folder = tmp_path / "data"
    found: Any = SimpleNamespace(find_database=lambda *_: SimpleNamespace(db=1))
    connections: Any = SimpleNamespace(store=SimpleNamespace(projects=found))
    nothing: Any = SimpleNamespace(judged_epoch=0, db=None)
    copies = Copies(connections, folder, nothing, lambda: True)
    for wrong in (DatabaseName("demo", name), DatabaseName(name, "demo")):
        with pytest.raises(CannotOpenStore, match="is none"):
            copies.open(wrong, nothing)
    assert not os.listdir(tmp_path)
