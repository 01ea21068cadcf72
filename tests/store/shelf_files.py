"""What is in the file of a database after it has been closed, or while another has it open."""

from __future__ import annotations

import pathlib
from typing import Any

from treedbd.store.engine import LogEntry
from treedbd.store.shelf import open_shelf
from treedbd.store.sqlite.engine import SqliteEngine


def entries_of(path: pathlib.Path) -> list[LogEntry]:
    """Return the entries of the change log of a closed database."""
    engine = SqliteEngine.open(path)
    try:
        entries = engine.read(lambda view: list(view.entries(0)))
        assert engine.read(lambda view: view.sequence()) == (entries[-1].sequence if entries else 0)
        return entries
    finally:
        engine.close()


def read_once(path: pathlib.Path, key: str) -> Any:
    with open_shelf(path) as shelf:
        return shelf.get(key)
