"""The board: memory that all workers share, with signs of life, counts, and levels of rates.

Theory of operation. Each worker has a part of its own, which it alone writes: when it was last
alive, and how many connections and streams it has, by address and by database. All workers read all
parts, so nothing is locked. To find out whether there is room, a worker counts the new connection
first, then adds up the parts, and takes it back if there is none. Two that come at the same time
may both be refused, but never both admitted beyond a limit.

A part has no room for every address, so counts are kept in two tables of fixed size, in places that
a keyed hash gives (a count-min sketch): the smaller of the two sums is shown. Only where two
addresses share both places are they counted together, and such a pair cannot be found from outside.

After the parts come the levels of token buckets (`loop.Levelling`), which all workers write, in two
tables of the same kind: the lower one of the two counts, and each is only ever raised. These are
not locked either: of two workers that take from one bucket within the same microsecond one may take
nothing. So a rate holds for all workers together, wherever a caller is connected, but for these
few.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Callable
from hashlib import blake2b
from typing import Final

from treedbd.caches import short_cache

PLACES: Final = 16_384
"""Counts in one of the two tables."""
_TABLES: Final = 2
_HEAD_BYTES: Final = 64
_COUNT_BYTES: Final = 4
_PART_BYTES: Final = _HEAD_BYTES + _TABLES * PLACES * _COUNT_BYTES
LEVEL_PLACES: Final = 262_144
"""Levels in one of the two tables; only those that are used take memory."""
_LEVEL_BYTES: Final = 8
_BEAT: Final = struct.Struct("d")


class Board:
    """The board, as the worker `number` of `workers` sees it; the parent has the number -1."""

    def __init__(self, descriptor: int, number: int, workers: int, secret: bytes) -> None:
        """Map the memory behind `descriptor`; `secret` is the same for all workers."""
        self._map = mmap.mmap(descriptor, workers * _PART_BYTES)
        self._counts = memoryview(self._map).cast("I")
        self._own = number
        self._workers = range(workers)

        self._places = _make_places(PLACES, secret)

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


class SharedLevels:
    """The levels of token buckets, as all workers see them (`loop.Levelling`)."""

    def __init__(self, descriptor: int, workers: int, secret: bytes) -> None:
        """Map the memory of the board; as `Board`."""
        start = workers * _PART_BYTES
        memory = mmap.mmap(descriptor, start + _TABLES * LEVEL_PLACES * _LEVEL_BYTES)
        self._levels = memoryview(memory)[start:].cast("d")
        self._places = _make_places(LEVEL_PLACES, secret)

    def get(self, key: str) -> float:
        """Return a level."""
        first, second = self._places(key)
        return min(self._levels[first], self._levels[second])

    def set(self, key: str, level: float) -> None:
        """Raise a level."""
        levels = self._levels
        for place in self._places(key):
            levels[place] = max(levels[place], level)


def create_board(workers: int) -> int:
    """Return the descriptor of new memory for a board."""
    descriptor = os.memfd_create("treedb-board", os.MFD_CLOEXEC)
    size = workers * _PART_BYTES + _TABLES * LEVEL_PLACES * _LEVEL_BYTES
    os.ftruncate(descriptor, size)
    return descriptor


def _start(worker: int) -> int:
    return (worker * _PART_BYTES + _HEAD_BYTES) // _COUNT_BYTES


def _make_places(places: int, secret: bytes) -> Callable[[str], tuple[int, int]]:
    """Return what finds the place of a key in each of two tables of so many places."""

    @short_cache(4096)
    def find(key: str) -> tuple[int, int]:
        hashed = blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8, key=secret).digest()
        first, second = struct.unpack("II", hashed)
        return first % places, places + second % places

    return find
