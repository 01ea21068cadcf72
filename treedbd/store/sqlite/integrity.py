"""The checks of a shelf file that need not know what is in its rows."""

from __future__ import annotations

import contextlib
import pathlib

import apsw

from treedbd.store.engine import StoreFailed
from treedbd.store.sqlite.file import SQLITE_ERRORS, connect_reader, describe


def check_all(connection: apsw.Connection) -> list[str]:
    """Check the file, its index and the numbers of its log; return a sentence for each finding."""
    return [*_damage(connection), *_gaps(connection)]


def check_file_content(path: pathlib.Path) -> list[str]:
    """Read the whole file; return what is damaged, one sentence each."""
    try:
        with contextlib.closing(connect_reader(path)) as connection:
            connection.execute("BEGIN")
            return check_all(connection)
    except (StoreFailed, *SQLITE_ERRORS) as error:
        return [f"The file cannot be read: {describe(error)}."]


def _damage(connection: apsw.Connection) -> list[str]:
    rows = [row[0] for row in connection.execute("PRAGMA integrity_check")]
    if rows == ["ok"]:
        return []
    return [f"The file is damaged: {line}." for row in rows for line in messages(row)]


def messages(found: str) -> list[str]:
    """Return the lines of what a check of the engine found, without its headings."""
    return [line for line in found.splitlines() if not line.startswith("***")]


def _gaps(connection: apsw.Connection) -> list[str]:
    last = connection.execute("SELECT seq FROM dbs WHERE db = 1").get
    count, low, high = connection.execute("SELECT count(*), min(seq), max(seq) FROM log").get
    if count and (high - low + 1 != count or high != last):
        return [f"The change log has {count} entries from {low} to {high}, not up to {last}."]
    return []
