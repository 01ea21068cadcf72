"""Files of format 1, made by a frozen copy of what that format was.

`format_1.shelf.gz` is one that treedb itself wrote when the format was the present one.
"""

from __future__ import annotations

import contextlib
import gzip
import pathlib
import re
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import apsw

from treedbd.store.engine import Row
from treedbd.store.rows import encode_priority_row, encode_row
from treedbd.store.sqlite.file import connect, empty_file

FIXTURE = pathlib.Path(__file__).with_name("format_1.shelf.gz")
_CANONICAL = re.compile(r"0|-?[1-9][0-9]*")
_ROW_KEY_BYTES, _SPREAD_BYTES = 480, 470


def unpack_fixture(path: pathlib.Path) -> None:
    """Put the file that treedb has written at `path`."""
    path.parent.mkdir(parents=True)
    path.write_bytes(gzip.decompress(FIXTURE.read_bytes()))


def rows_of(body: Any, row_bytes: int = 4096) -> list[Row]:
    """Return the rows of a tree, given as an export shows it, in their order."""
    return sorted(_rows(b"", _sort(body), row_bytes))


@contextlib.contextmanager
def open_file(
    path: pathlib.Path, rows: Sequence[Row], entries: Sequence[bytes] = ()
) -> Iterator[apsw.Connection]:
    """Create a file; yield a connection that has written the rows and entries to the log."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(empty_file(1))
    connection = connect(path)
    connection.pragma("user_version", 1)
    connection.wal_checkpoint()
    connection.execute("BEGIN")
    connection.executemany("INSERT INTO kv VALUES(1, ?, ?)", rows)
    for number, entry in enumerate(entries, 1):
        connection.execute("INSERT INTO log VALUES(1, ?, ?, ?)", (number, b"%d" % number, entry))
    connection.execute("UPDATE dbs SET seq = ?", (len(entries),))
    connection.execute("COMMIT")
    try:
        yield connection
    finally:
        connection.close()


def create_file(path: pathlib.Path, rows: Sequence[Row], entries: Sequence[bytes] = ()) -> None:
    """Create a file and close it."""
    with open_file(path, rows, entries):
        pass


def encode_key(key: str) -> bytes:
    number = _number(key)
    if number is None:
        return b"\x03" + key.encode() + b"\x00"
    return struct.pack(">BI", 2, number + 2**31)


def _number(key: str) -> int | None:
    if not _CANONICAL.fullmatch(key) or not -(2**31) <= int(key) < 2**31:
        return None
    return int(key)


def _rank(key: str) -> tuple[int, int, str]:
    number = _number(key)
    return (1, 0, key) if number is None else (0, number, "")


def _sort(body: Any) -> Any:
    if not isinstance(body, dict):
        return body
    if ".value" in body:
        return {".value": body[".value"], ".priority": body[".priority"]}
    keys = sorted(body.keys() - {".priority"}, key=_rank)
    first = {".priority": body[".priority"]} if ".priority" in body else {}
    return first | {key: _sort(body[key]) for key in keys}


def _rows(key: bytes, value: Any, row_bytes: int) -> Iterator[Row]:
    raw = encode_row(value)
    is_container = isinstance(value, dict) and ".value" not in value
    if not is_container or len(raw) <= row_bytes or len(key) > _SPREAD_BYTES:
        yield key, raw
        return
    buckets: dict[bytes, dict[str, Any]] = {}
    for name, child in value.items():
        below = key + encode_key(name)
        if name == ".priority":
            yield key, encode_priority_row(child)
        elif len(below) > _ROW_KEY_BYTES:
            buckets.setdefault(below[:_ROW_KEY_BYTES], {})[name] = child
        else:
            yield from _rows(below, child, row_bytes)
    for bucket, children in buckets.items():
        yield bucket, encode_row(children)
