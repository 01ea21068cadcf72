"""What `test_engine` runs in processes that are killed: it creates a shelf file with one entry."""

from __future__ import annotations

import pathlib

from treedbd.store.sqlite.engine import SqliteEngine


def main(path: str) -> None:
    """Create the file at a path."""
    engine = SqliteEngine.create(pathlib.Path(path), reserve_bytes=4096)
    transaction = engine.begin()
    transaction.append(b"op", b"one")
    transaction.commit()
    engine.close()
