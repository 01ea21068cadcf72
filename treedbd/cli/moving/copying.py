"""What both directions of a move share: reading shelf files, and comparing them with PostgreSQL."""

from __future__ import annotations

import contextlib
import pathlib
import socket
from collections.abc import Iterator
from functools import partial
from typing import Final

import attrs

from treedbd.cli.exit import make_printable, write_out
from treedbd.cli.progress import ProgressReport
from treedbd.store.engine import ReadView
from treedbd.store.postgresql.connection import PostgresqlSettings, TimedConnection
from treedbd.store.postgresql.fetching import (
    LOG,
    ROWS,
    Bucket,
    ComparedTable,
    Key,
    find_different,
    repair,
    take_buckets,
)
from treedbd.store.postgresql.moving import MoveConnection
from treedbd.store.sqlite.file import connect_reader
from treedbd.store.sqlite.reader import SqliteReader

PATIENCE_S: Final = 30.0
"""How long one step in PostgreSQL may take: more than with a daemon, since it carries more."""


def describe_counts(databases: int, rows: int, entries: int) -> str:
    """Return how much was moved, in words."""
    counts = ((databases, "database", "s"), (rows, "row", "s"), (entries, "log entr", "ies"))
    singular = {"s": "", "ies": "y"}
    first, second, third = (
        f"{count:,} {noun}{singular[end] if count == 1 else end}" for count, noun, end in counts
    )
    return f"{first} with {second} and {third}"


def make_postgresql_settings(url: str) -> PostgresqlSettings:
    """Return how a move connects; raise `OperatorError`."""
    return PostgresqlSettings(url, patience_s=PATIENCE_S)


def describe_place(directory: pathlib.Path) -> str:
    """Return what PostgreSQL remembers of a data directory."""
    return f"{socket.gethostname()}:{directory.resolve()}"


@contextlib.contextmanager
def open_reader(shelf: pathlib.Path) -> Iterator[SqliteReader]:
    """Open a shelf file for reading, also while a daemon writes it.

    Each `read` shows a moment of its own, so the log of the daemon can be restarted between them.
    Raises `CannotOpenStore`.
    """
    connection = connect_reader(shelf, is_known=False)
    try:
        yield SqliteReader(connection)
    finally:
        connection.close()


class MoveReport:
    """Prints what has been done, and how far a step has come."""

    def __init__(self, *, is_quiet: bool) -> None:
        self._is_quiet = is_quiet
        self._progress: ProgressReport | None = None
        self._bytes = 0

    @contextlib.contextmanager
    def step(self, title: str, total: int | None, done: str) -> Iterator[None]:
        """Show the progress of a step in a `with` block; at its end `done` is printed."""
        self._progress = progress = ProgressReport(title, total, is_quiet=self._is_quiet)
        self._bytes = 0
        try:
            yield
            progress.finish(done, self._bytes)
        finally:
            progress.stop()
            self._progress = None

    def advance(self, count: int) -> None:
        """Count bytes."""
        self._bytes += count
        if self._progress is not None:
            self._progress.advance_to(self._bytes)

    def print(self, sentence: str) -> None:
        """Print a sentence."""
        if not self._is_quiet:
            write_out(make_printable(sentence).encode() + b"\n")


@attrs.frozen
class Compared:
    """What a comparison has found.

    Attributes:
        records: how many records there are on this side.
        repaired: how many records were written or removed in PostgreSQL.
        wrong: how many buckets differ in the end.

    """

    records: int = 0
    repaired: int = 0
    wrong: int = 0

    def __add__(self, other: Compared) -> Compared:
        """Return both together."""
        return Compared(
            self.records + other.records, self.repaired + other.repaired, self.wrong + other.wrong
        )


def compare_table(
    move: MoveConnection,
    table: ComparedTable,
    reader: SqliteReader,
    db: int,
    report: MoveReport,
    *,
    low: Key,
    repairs: bool,
) -> Compared:
    """Compare all records from `low` on; with `repairs` make those in PostgreSQL the same.

    What was repaired is compared once more. So if nothing is written on either side meanwhile, and
    nothing is wrong in the end, both sides are the same.
    """
    found = Compared()
    start: Key | None = low
    while start is not None:
        buckets, start = reader.read(partial(_take, table, start))
        found += move.run(partial(_compare, table, db, buckets, repairs))
        report.advance(sum(each.size for each in buckets))
    return found


def compare_all(
    move: MoveConnection, shelf: pathlib.Path, db: int, report: MoveReport
) -> tuple[Compared, Compared, int]:
    """Make PostgreSQL hold what a file holds; return also the number of the last entry."""
    with open_reader(shelf) as reader:
        before = reader.read(lambda view: view.sequence())
        rows, entries = (
            compare_table(move, table, reader, db, report, low=table.first, repairs=True)
            for table in (ROWS, LOG)
        )
        sequence = reader.read(lambda view: view.sequence())
    return rows, entries + Compared(wrong=sequence - before), sequence


def _take(table: ComparedTable, low: Key, view: ReadView) -> tuple[list[Bucket], Key | None]:
    return take_buckets(table, view, low)


def _compare(
    table: ComparedTable,
    db: int,
    buckets: list[Bucket],
    repairs: bool,
    connection: TimedConnection,
) -> Compared:
    records = sum(len(each.records) for each in buckets)
    different = find_different(connection, table, db, buckets)
    if not repairs or not different:
        return Compared(records, wrong=len(different))
    connection.execute("BEGIN")
    count = sum(repair(connection, table, db, each) for each in different)
    connection.execute("COMMIT")
    return Compared(records, count, len(find_different(connection, table, db, different)))
