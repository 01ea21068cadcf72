"""Damage, looked for in a whole file.

`check_all` lists all that is wrong with the structure of a file, its index and the numbers of its
log, and knows nothing of its rows. `find_damage` looks for the first damage, in the rows too, while
the file is in use, in a worker thread: SQLite checks the structure, and that its index has every
row; then every row is read and parsed. Both steps use a connection of their own, and pause every
few milliseconds, so that other threads run in between.
"""

from __future__ import annotations

import contextlib
import pathlib
import re
from collections.abc import Callable, Iterator
from typing import Final

import apsw

from treedbd.store.engine import (
    Damage,
    DamagedPage,
    DamagedRow,
    ReadView,
    Row,
    StoreDamaged,
    StoreFailed,
)
from treedbd.store.rows import END, FIRST
from treedbd.store.sqlite.file import (
    SQLITE_ERRORS,
    WRONG_SUM,
    connect_reader,
    describe,
    find_failed_read,
    result_code,
    set_cache_size,
)
from treedbd.store.sqlite.reader import SqliteReader
from treedbd.store.verify import find_unreadable

ROWS_AT_ONCE: Final = 100
"""Rows of at most a few KiB that are parsed between two pauses; a large one is on its own."""
_BYTES_AT_ONCE: Final = 256 * 1024
_STEPS_AT_ONCE: Final = 2000
"""Steps of SQLite between two pauses."""
_CACHE_BYTES: Final = 1024 * 1024
_ERROR_CODE: Final = re.compile(r"unable to get the page\. error code=(\d+)")


class CheckStopped(Exception):
    """A check was ended by its caller before it was complete."""


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


def find_damage(path: pathlib.Path, pause: Callable[[], bool]) -> Damage | None:
    """Return a clause about the first thing that is wrong with a file, None if nothing is.

    It is a `StoreDamaged` if no row can be trusted, since rows may be missing.
    The file must be open in this process. Raises `CheckStopped` when `pause` returns True, and
    `StoreFailed` if the file cannot be read.
    """
    with contextlib.closing(connect_reader(path)) as connection:
        set_cache_size(connection, _CACHE_BYTES)
        try:
            broken = _find_broken_page(connection, pause)
            if broken is not None:
                return StoreDamaged(broken)
            unreadable = SqliteReader(connection).read(
                lambda view: find_unreadable(_with_pauses(view, pause))
            )
        except (DamagedPage, StoreDamaged) as damage:
            return damage
    return None if unreadable is None else DamagedRow(unreadable)


def _find_broken_page(connection: apsw.Connection, pause: Callable[[], bool]) -> str | None:
    connection.set_progress_handler(pause, _STEPS_AT_ONCE)
    try:
        found = str(connection.execute("PRAGMA integrity_check(1)").get)
    except apsw.InterruptError:
        raise CheckStopped from None
    except SQLITE_ERRORS as error:
        if result_code(error) == apsw.SQLITE_IOERR_DATA:
            raise DamagedPage(WRONG_SUM) from None
        if isinstance(error, apsw.CorruptError) and not find_failed_read(connection):
            return str(error)
        raise StoreFailed(describe(error)) from error
    finally:
        connection.set_progress_handler(None)
    if found == "ok":
        return None
    problem = "; ".join(messages(found))
    code = _ERROR_CODE.search(problem)
    if code is not None and int(code[1]) == apsw.SQLITE_IOERR_DATA:
        raise DamagedPage(WRONG_SUM)
    if code is not None and int(code[1]) & 0xFF != apsw.SQLITE_CORRUPT:
        raise StoreFailed(problem)  # a page that could not be read may be sound
    return problem


def _with_pauses(view: ReadView, pause: Callable[[], bool]) -> Iterator[Row]:
    """Iterate over all rows, and pause after some of them."""
    rows, size = 0, 0
    for row in view.scan(FIRST, END):
        yield row
        rows += 1
        size += len(row[1])
        if rows >= ROWS_AT_ONCE or size >= _BYTES_AT_ONCE:
            rows = size = 0
            if pause():
                raise CheckStopped
