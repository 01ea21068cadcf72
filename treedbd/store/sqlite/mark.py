"""The mark of a shelf: a small file beside it that says how far its history has come.

It holds the number and the id of the newest change, and whether the database was closed after that.
It is written when a change is durable, never before: so a sound shelf is never behind its mark, and
one that is behind has lost changes (`history`).

A write of the mark is synced only where that is asked for: it survives the end of the process, not
that of the machine, and takes some microseconds. Two slots, each in a page of its own, are written
in turn, each with a counter and a check sum: a write that is torn leaves the other slot.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import struct
import zlib
from typing import Final

import attrs

from treedbd.files import open_private, write_atomically

_MAGIC: Final = b"treedb\x00\x01"
_ID_BYTES: Final = 16
_RECORD: Final = struct.Struct(f">8sQQ{_ID_BYTES}s?")
_CHECK_SUM: Final = struct.Struct(">I")
_SLOT_BYTES: Final = 4096


def _shorten(op_id: bytes) -> bytes:
    return op_id[:_ID_BYTES].ljust(_ID_BYTES, b"\0")


@attrs.frozen
class Mark:
    """How far a history has come.

    `sequence` is the number of the newest change, 0 before the first. `op_id` are the first 16
    bytes of its id, by which histories that have diverged are told apart. `is_closed` says that the
    database was closed after that change, and that everything in its file was sound.
    """

    sequence: int
    op_id: bytes = attrs.field(converter=_shorten)
    is_closed: bool = False


class MarkFile:
    """The file of a mark; it is opened at the first write."""

    def __init__(self, path: pathlib.Path) -> None:
        """Use the file at `path`, which may be missing."""
        self._path = path
        self._descriptor: int | None = None
        self._is_readable = False
        self._count = 0

    def read(self) -> Mark | None:
        """Return the last mark that was written whole; None if there is none. Raises OSError."""
        try:
            with self._path.open("rb") as file:
                content = file.read(2 * _SLOT_BYTES)
        except FileNotFoundError:
            return None
        return self._take_last(content)

    def follow(self) -> Mark | None:
        """Return the last mark, after which the next one is written; raise OSError."""
        if self._descriptor is None:
            return self.read()
        return self._take_last(os.pread(self._descriptor, 2 * _SLOT_BYTES, 0))

    def write(self, mark: Mark, *, sync: bool = False) -> None:
        """Write a mark, and with `sync` wait until it is on the disk; raise OSError."""
        self._count += 1
        content = _encode(self._count, mark)
        if self._descriptor is None:
            self._descriptor = self._open(content)
        os.pwrite(self._descriptor, content, self._count % 2 * _SLOT_BYTES)
        if sync:
            self.sync()

    def sync(self) -> None:
        """Wait until the last mark is on the disk; raise OSError."""
        if self._descriptor is not None:
            os.fsync(self._descriptor)

    def close(self) -> None:
        """Close the file, if it is open."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _take_last(self, content: bytes) -> Mark | None:
        whole = _whole_slots(content)
        if not whole:
            return None
        self._is_readable = True
        self._count, mark = max(whole, key=lambda slot: slot[0])
        return mark

    def _open(self, content: bytes) -> int:
        """Open the file; create it with `content` if no mark can be read from it."""
        if self._is_readable:
            with contextlib.suppress(FileNotFoundError):
                return open_private(self._path, os.O_RDWR)
        slot = content.ljust(_SLOT_BYTES, b"\0")
        write_atomically(self._path, slot + slot)  # both, so that later writes need no new space
        return open_private(self._path, os.O_RDWR)


def _whole_slots(content: bytes) -> list[tuple[int, Mark]]:
    """Return the counters and marks of the slots that were written whole."""
    slots = (_decode(content[at:]) for at in (0, _SLOT_BYTES))
    return [slot for slot in slots if slot is not None]


def _encode(count: int, mark: Mark) -> bytes:
    record = _RECORD.pack(_MAGIC, count, mark.sequence, mark.op_id, mark.is_closed)
    return record + _CHECK_SUM.pack(zlib.crc32(record))


def _decode(slot: bytes) -> tuple[int, Mark] | None:
    """Return the counter and the mark of a slot, None if it was not written whole."""
    record = slot[: _RECORD.size]
    if slot[_RECORD.size :][: _CHECK_SUM.size] != _CHECK_SUM.pack(zlib.crc32(record)):
        return None
    if not record.startswith(_MAGIC):
        return None
    _, count, sequence, op_id, is_closed = _RECORD.unpack(record)
    return count, Mark(sequence, op_id, is_closed)
