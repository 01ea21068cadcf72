"""The board: memory that all workers share, in which each writes a part of its own.

A worker writes when it was last alive, and how many connections and streams it has, by address and
by database; everybody reads all parts. So nothing is locked: who wants to know whether there is
room counts itself first and then adds up the parts, and takes itself back if there is none. Two who
come at the same time may both be refused, but never both admitted beyond a limit.

A part has no room for every address, so counts are kept in two tables of fixed size, in places that
a keyed hash gives (a count-min sketch): the smaller of the two sums is shown. Only where two
addresses share both places are they counted together, and nobody outside can find such a pair.
"""

from __future__ import annotations

import mmap
import os
import struct
from functools import lru_cache
from hashlib import blake2b
from typing import Final

PLACES: Final = 16_384
"""Counts in one of the two tables."""
_TABLES: Final = 2
_HEAD_BYTES: Final = 64
_COUNT_BYTES: Final = 4
_PART_BYTES: Final = _HEAD_BYTES + _TABLES * PLACES * _COUNT_BYTES
_BEAT: Final = struct.Struct("d")


class Board:
    """The board, as the worker `number` of `workers` sees it; the parent has the number -1."""

    def __init__(self, descriptor: int, number: int, workers: int, secret: bytes) -> None:
        """Map the memory behind `descriptor`; `secret` is the same for all workers."""
        self._map = mmap.mmap(descriptor, workers * _PART_BYTES)
        self._counts = memoryview(self._map).cast("I")
        self._own = number
        self._workers = range(workers)

        @lru_cache(maxsize=4096)
        def places(key: str) -> tuple[int, int]:
            hashed = blake2b(key.encode(), digest_size=8, key=secret).digest()
            low, high = struct.unpack("II", hashed)
            return low % PLACES, PLACES + high % PLACES

        self._places = places

    def total(self, key: str) -> int:
        """Return how many there are at all workers together."""
        counts, starts = self._counts, [_start(worker) for worker in self._workers]
        first, second = self._places(key)
        return min(
            sum(counts[start + first] for start in starts),
            sum(counts[start + second] for start in starts),
        )

    def add(self, key: str) -> None:
        """Count one more at this worker."""
        self._change(key, 1)

    def remove(self, key: str) -> None:
        """Count one less at this worker."""
        self._change(key, -1)

    def beat(self, seconds: float) -> None:
        """Record that this worker is alive, at a time of the monotonic clock."""
        _BEAT.pack_into(self._map, self._own * _PART_BYTES, seconds)

    def last_beat(self, worker: int) -> float:
        """Return when a worker was last alive."""
        seconds: float = _BEAT.unpack_from(self._map, worker * _PART_BYTES)[0]
        return seconds

    def clear(self, worker: int, seconds: float) -> None:
        """Forget what a worker had that has ended; the next one begins at a time."""
        start = worker * _PART_BYTES
        self._map[start : start + _PART_BYTES] = bytes(_PART_BYTES)
        _BEAT.pack_into(self._map, start, seconds)

    def _change(self, key: str, by: int) -> None:
        start = _start(self._own)
        for place in self._places(key):
            self._counts[start + place] += by


def create_board(workers: int) -> int:
    """Return the descriptor of new memory for a board."""
    descriptor = os.memfd_create("treedb-board", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, workers * _PART_BYTES)
    return descriptor


def _start(worker: int) -> int:
    return (worker * _PART_BYTES + _HEAD_BYTES) // _COUNT_BYTES
