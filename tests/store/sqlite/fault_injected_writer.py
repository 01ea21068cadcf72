"""What `test_writer` runs: it writes to a shelf file, and the outcome to another, as lines of JSON.

It runs under strace, which makes system calls fail. After every failure it keeps a copy of the
files as a process killed at that moment would leave them. (Another program makes the copy: to close
a file here would drop the locks of the engine.)
"""

from __future__ import annotations

import contextlib
import json
import pathlib
import subprocess
import sys
from typing import Final

from treedbd.store.engine import CannotOpenStore, DiskFull, StoreFailed
from treedbd.store.sqlite import writer
from treedbd.store.sqlite.engine import SqliteEngine

COMMITS: Final = 7
SMALL: Final = 1000
CHECKPOINT_FRAMES: Final = 100
"""The log is checkpointed at a tenth of its usual length: strace stops at every page of it."""
LARGE: Final = 440_000
"""Bytes of a value that fills the log, so that it is checkpointed; an argument can change it."""


def report(*event: object) -> None:
    """Write what happened to the standard output, which is a file."""
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


def main(path: str, copies: str, large: str, events: str) -> None:
    """Make the commits, the large ones of `large` bytes, and report what happened in `events`."""
    vars(writer).update(CHECKPOINT_FRAMES=CHECKPOINT_FRAMES, LONG_LOG_FRAMES=2 * CHECKPOINT_FRAMES)
    with pathlib.Path(events).open("w") as sys.stdout:
        write_all(pathlib.Path(path), pathlib.Path(copies), int(large))


def write_all(path: pathlib.Path, copies: pathlib.Path, large: int) -> None:
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
