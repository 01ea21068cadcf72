"""What the disk and SQLite do without a server: the least that a durable write can cost.

Each writes in the process of the load, on the core of the servers, while no server works. A commit
writes one row as long as a small value with its key, and is synced as those of treedb are: WAL,
`synchronous = FULL`.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
from load import Sample, on_core, percentiles_ms
from servers import SERVER_CORE

BLOCK = b"x" * 4096
KEYS = 1000
PRAGMAS: dict[str, int | str] = {
    "page_size": 4096,
    "locking_mode": "exclusive",
    "journal_mode": "wal",
    "synchronous": 2,
    "fullfsync": 1,
}


@contextlib.contextmanager
def syncs(folder: Path) -> Iterator[Callable[[float], Sample]]:
    """Append 4 KB to a file and sync it, as often as possible."""
    with open(folder / "syncs", "wb", buffering=0) as file:

        def sync() -> None:
            file.write(BLOCK)
            os.fdatasync(file.fileno())

        yield lambda seconds: repeat(sync, seconds)


@contextlib.contextmanager
def commits(folder: Path, rows: int) -> Iterator[Callable[[float], Sample]]:
    """Commit so many rows at a time by SQLite; the rate is of rows."""
    numbers = itertools.count()
    with contextlib.closing(apsw.Connection(str(folder / f"rows-{rows}"))) as connection:
        for name, value in PRAGMAS.items():
            connection.pragma(name, value)
        connection.execute("CREATE TABLE kv(k BLOB NOT NULL UNIQUE, v BLOB NOT NULL) STRICT")

        def commit() -> None:
            with connection:
                for number in itertools.islice(numbers, rows):
                    row = b"apps/shop/users/k%06d/v" % (number % KEYS), b'"%048d"' % number
                    connection.execute("INSERT OR REPLACE INTO kv VALUES (?, ?)", row)

        yield lambda seconds: repeat(commit, seconds, rows)


def repeat(work: Callable[[], None], seconds: float, count: int = 1) -> Sample:
    """Do it again and again; return how often, times `count`, and how long each took."""
    delays: list[float] = []
    with on_core(SERVER_CORE):
        start = now = time.perf_counter()
        while now < start + seconds or not delays:
            work()
            ended = time.perf_counter()
            delays.append(ended - now)
            now = ended
    return Sample(count * len(delays) / (now - start), *percentiles_ms(delays))
