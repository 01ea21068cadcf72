"""Fixtures of the tests of a shelf."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest

from treedbd.store.shelf import Shelf, open_shelf


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    """The file of a database that does not exist yet."""
    return tmp_path / "data" / "demo" / "default.shelf"


@pytest.fixture
def shelf(path: pathlib.Path) -> Iterator[Shelf]:
    """A new database that is open for writing."""
    shelf = open_shelf(path, "c")
    yield shelf
    shelf.close()
