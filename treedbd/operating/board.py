"""The board of metrics: memory in which each worker writes its values and reads the others'.

All workers have one file in memory, in which each has a part. A worker writes it once a second, and
before it shows values to an operator. A worker that replaces one that has ended finds the values of
that one in its part and goes on counting from them, so nothing that was shown ever falls. What does
not only grow, such as open connections, counts only if it was written lately.

A part has two halves, which are written in turn, each with a check sum: if a worker ends while it
writes, or is read meanwhile, the other half remains.
"""

from __future__ import annotations

import os
import struct
import zlib
from typing import Any, Final

import orjson

from treedbd.operating.metrics import NOTHING, Samples, from_json, to_json

HALF_BYTES: Final = 8 * 1024 * 1024
"""Room for the values of one worker; what is not written takes no memory."""
_HEAD: Final = struct.Struct("<QdII")
"""How often the part has been written, when, the length of the content, and its check sum."""


class SampleBoard:
    """The file, as worker `number` of `workers` sees it."""

    def __init__(self, descriptor: int, number: int, workers: int) -> None:
        """Use the memory behind `descriptor`."""
        self._file = descriptor
        self._number = number
        self._others = [each for each in range(workers) if each != number]
        found = self._read(number)
        self._written = 0 if found is None else found[0]

    def before(self) -> Samples:
        """Return what was written in the place of this worker last."""
        found = self._read(self._number)
        return NOTHING if found is None else found[2]

    def write(self, samples: Samples, now: float) -> None:
        """Show values to the others; `now` is in seconds of a clock that all of them have."""
        content = orjson.dumps(to_json(samples))
        if _HEAD.size + len(content) > HALF_BYTES:
            return  # the others see what there was before
        self._written += 1
        head = _HEAD.pack(self._written, now, len(content), zlib.crc32(content))
        os.pwrite(self._file, head + content, _start(self._number, self._written % 2))

    def read_others(self) -> list[tuple[float, Samples]]:
        """Return the values of all others, and when each was written."""
        found = [self._read(number) for number in self._others]
        return [(each[1], each[2]) for each in found if each is not None]

    def _read(self, number: int) -> tuple[int, float, Samples] | None:
        """Return how often a part was written, when it was last, and with what."""
        halves = [half for at in (0, 1) if (half := self._read_half(_start(number, at)))]
        return max(halves, key=lambda half: half[0], default=None)

    def _read_half(self, start: int) -> tuple[int, float, Samples] | None:
        head = os.pread(self._file, _HEAD.size, start)
        if len(head) < _HEAD.size:
            return None
        count, at, size, check = _HEAD.unpack(head)
        if not count or size > HALF_BYTES:
            return None
        content = os.pread(self._file, size, start + _HEAD.size)
        if len(content) != size or zlib.crc32(content) != check:
            return None  # it is being written
        json: dict[str, Any] = orjson.loads(content)
        return count, at, from_json(json)


def create_sample_board() -> int:
    """Return the descriptor of new memory for a board."""
    return os.memfd_create("treedb-samples", os.MFD_CLOEXEC)


def _start(number: int, half: int) -> int:
    return (2 * number + half) * HALF_BYTES
