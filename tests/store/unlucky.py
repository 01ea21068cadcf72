"""A program that writes to a shelf file and says what became of it, one JSON array a line.

`test_sqlite_writer` runs it under strace, which makes system calls fail. After every failure it
keeps a copy of the files as a process killed at that moment would leave them. (The copy is made by
a program of its own: to close a file here would drop the locks of the engine.)
"""

from __future__ import annotations

import contextlib
import json
import pathlib
import subprocess
import sys

from treedbd.store.mapping import Failed, Full, Refused
from treedbd.store.sqlite import SqliteMapping

COMMITS = 7
SMALL = 1000
LARGE = 1_100_000
"""Bytes of a value that fills the log, so that it is folded; another number may be given."""


def say(*what: object) -> None:
    print(json.dumps(what), flush=True)


def make(path: pathlib.Path) -> SqliteMapping:
    """Create the shelf; what fails once must succeed the next time."""
    for _ in range(2):
        try:
            return SqliteMapping.open(path) if path.exists() else SqliteMapping.create(path)
        except (Full, Refused) as error:
            say("not made", str(error))
    return SqliteMapping.open(path) if path.exists() else SqliteMapping.create(path)


def write(mapping: SqliteMapping, number: int, large: int) -> int:
    transaction = mapping.begin()
    transaction.put(b"%d" % number, b"x" * (large if number % 3 == 2 else SMALL))
    sequence = transaction.append(b"op", b"%d" % number)
    transaction.commit()
    return sequence


def look(mapping: SqliteMapping) -> list[int]:
    """Return the numbers that a reader sees."""
    return sorted(mapping.read(lambda rows: [int(key) for key in rows.scan_keys(b"", b"~")]))


def survive(mapping: SqliteMapping, copies: pathlib.Path, path: pathlib.Path, number: int) -> None:
    """Look at a failed mapping, and recover it if it can be."""
    subprocess.run(["cp", "-r", path.parent, copies / str(number)], check=True)
    say("seen", look(mapping))
    with contextlib.suppress(Failed):
        mapping.begin()
        say("wrong", "a transaction begins before recovery")
    try:
        mapping.recover()
        say("recovered", look(mapping))
    except Failed as error:
        say("lost", str(error))


def main(path: pathlib.Path, copies: pathlib.Path, large: int) -> None:
    copies.mkdir()
    mapping = make(path)
    for number in range(1, COMMITS + 1):
        try:
            say("acknowledged", number, write(mapping, number, large))
        except Full as error:
            say("full", number, str(error))
        except Failed as error:
            say("failed", number, str(error))
            survive(mapping, copies, path, number)
    say("seen", look(mapping))
    mapping.close()
    say("closed")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), int(sys.argv[3]))
