"""A program that writes to a shelf file and prints the outcome, one JSON array a line.

`test_writer` runs it under strace, which makes system calls fail. After every failure it keeps a
copy of the files as a process killed at that moment would leave them. (Another program makes the
copy: to close a file here would drop the locks of the engine.)
"""

from __future__ import annotations

import contextlib
import json
import pathlib
import subprocess
import sys

from treedbd.store.engine import CannotOpenStore, DiskFull, StoreFailed
from treedbd.store.sqlite.engine import SqliteEngine

COMMITS = 7
SMALL = 1000
LARGE = 4_400_000
"""Bytes of a value that fills the log, so that it is checkpointed; an argument can change it."""


def report(*event: object) -> None:
    print(json.dumps(event), flush=True)


def create(path: pathlib.Path) -> SqliteEngine:
    """Create the shelf; a call that fails once must succeed the next time."""
    for _ in range(2):
        try:
            return SqliteEngine.open(path) if path.exists() else SqliteEngine.create(path)
        except (DiskFull, CannotOpenStore) as error:
            report("not created", str(error))
    return SqliteEngine.open(path) if path.exists() else SqliteEngine.create(path)


def write(engine: SqliteEngine, number: int, large: int) -> int:
    transaction = engine.begin()
    transaction.put(b"%d" % number, b"x" * (large if number % 3 == 2 else SMALL))
    sequence = transaction.append(b"op", b"%d" % number)
    transaction.commit()
    return sequence


def read(engine: SqliteEngine) -> list[int]:
    """Return the numbers that a reader sees."""
    return sorted(engine.read(lambda rows: [int(key) for key in rows.scan_keys(b"", b"~")]))


def recover(engine: SqliteEngine, copies: pathlib.Path, path: pathlib.Path, number: int) -> None:
    """Read a failed engine, and recover it if possible."""
    subprocess.run(["cp", "-r", path.parent, copies / str(number)], check=True)
    report("seen", read(engine))
    with contextlib.suppress(StoreFailed):
        engine.begin()
        report("wrong", "a transaction begins before recovery")
    try:
        engine.recover()
        report("recovered", read(engine))
    except StoreFailed as error:
        report("lost", str(error))


def main(path: pathlib.Path, copies: pathlib.Path, large: int) -> None:
    copies.mkdir()
    engine = create(path)
    for number in range(1, COMMITS + 1):
        try:
            report("acknowledged", number, write(engine, number, large))
        except DiskFull as error:
            report("full", number, str(error))
        except StoreFailed as error:
            report("failed", number, str(error))
            recover(engine, copies, path, number)
    report("seen", read(engine))
    engine.close()
    report("closed")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), int(sys.argv[3]))
