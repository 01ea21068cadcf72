"""Cursors of readers that tests put into databases, also before a daemon serves them."""

from __future__ import annotations

import pathlib
from collections.abc import Iterable

import attrs
from twisted.internet.defer import Deferred

from tests.database.catalogs import close, make_catalog, put
from treedbd.database.apply import WriteApplier
from treedbd.database.database import Database
from treedbd.database.requests import Caller, Outcome, Write
from treedbd.names import parse_label
from treedbd.store.cursors import Cursor, put_cursor
from treedbd.store.engine import Transaction
from treedbd.tree.edit import make_remove
from treedbd.tree.types import ROOT, Place

CREATED_MS = 1_700_000_000_000


@attrs.frozen
class PutCursor:
    """Puts a cursor at the last entry, or at a `sequence` before it."""

    name: str
    sequence: int | None = None
    dropped_ms: int | None = None

    def __call__(self, _: WriteApplier, transaction: Transaction, write: Write) -> Outcome:
        """Put it."""
        sequence = transaction.sequence() if self.sequence is None else self.sequence
        entry = next(transaction.entries(sequence - 1), None)
        cursor = Cursor(
            name=self.name,
            sequence=sequence,
            op_id=b"" if entry is None else entry.op_id,
            is_whole=True,
            bytes_read=0,
            created_ms=CREATED_MS,
            moved_ms=CREATED_MS,
            dropped_ms=self.dropped_ms,
        )
        put_cursor(transaction, cursor)
        return Outcome(write.edit, None, None, None, has_changed_rows=True)


def begin_reader(
    database: Database,
    name: str = "archive",
    *,
    sequence: int | None = None,
    dropped_ms: int | None = None,
) -> Deferred[Outcome]:
    """Put the cursor of a reader into a database."""
    task = PutCursor(name, sequence, dropped_ms)
    return database.write(
        Write(make_remove(Place(ROOT)), 0, Caller(None), wants_echo=False, task=task)
    )


def seed_readers(data: pathlib.Path, labels: Iterable[str], name: str = "archive") -> None:
    """Create databases with one write and a reader each; no daemon may serve them."""
    data.mkdir(mode=0o700, exist_ok=True)
    catalog, clock = make_catalog(data, any_project=True, max_databases=1000)
    for label in labels:
        found = parse_label(label)
        assert found is not None
        database = catalog.find(found)
        assert isinstance(put(database, clock, 1), Outcome)
        begun = begin_reader(database, name)
        clock.run()
        assert begun.called
    close(catalog)
