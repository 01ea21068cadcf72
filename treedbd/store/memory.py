"""The engine that forgets: a mapping in memory, for trying things out and for tests.

Theory of operation
-------------------
The rows lie in one sorted dictionary, those that the open transaction has changed among them: a
transaction reads what is there. Whoever must see something else sees it through an *overlay*, a
sorted dictionary of the keys that differ, with None for a key that is not there. Each change gives
the old value to the overlay of every snapshot that is open, and to that of the transaction, through
which everybody else reads meanwhile and from which a rollback takes everything back. A snapshot
that is taken meanwhile begins with a copy of it.

`commit` may run in another thread than readers do. So a lock is held for each change, for the
whole of a `read`, and for each look of anybody else. Nobody waits for longer than that takes.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias, TypeVar

from sortedcontainers import SortedDict

from treedbd.store.mapping import Entry, Row, Rows

T = TypeVar("T")

_Overlay: TypeAlias = "SortedDict[bytes, bytes | None]"

_NOTHING: _Overlay = SortedDict()
_AT_ONCE = 64
"""Rows that a scan takes at one look."""


class MemoryMapping:
    """A `Mapping` that holds nothing any longer once the process ends."""

    def __init__(self) -> None:
        """Begin empty."""
        self._store = _Store()
        self._transaction: _MemoryTransaction | None = None

    def read(self, work: Callable[[Rows], T]) -> T:
        """Run `work` on the present moment."""
        with self._store.lock:
            rows = _MemoryRows(self._store, self._store.undo)
            try:
                return work(rows)
            finally:
                rows.leave()

    def snapshot(self) -> _MemorySnapshot:
        """Hold the present moment open."""
        with self._store.lock:
            snapshot = _MemorySnapshot(self._store)
            self._store.snapshots.add(snapshot)
        return snapshot

    def begin(self) -> _MemoryTransaction:
        """Open the one transaction."""
        if self._transaction is not None and not self._transaction.is_over:
            raise RuntimeError("There is one transaction at a time.")
        self._transaction = _MemoryTransaction(self._store)
        return self._transaction

    def recover(self) -> None:
        """Do nothing: there is no medium that could fail."""

    def release_reserve(self) -> None:
        """Do nothing: there is no reserve."""

    def restore_reserve(self) -> bool:
        """Say that there is room, since nothing is kept."""
        return True

    def verify(self) -> list[str]:
        """Find nothing damaged."""
        return []

    def size(self) -> int:
        """Return the bytes of all keys, values and entries."""
        log = self._store.log
        return self._store.size + sum(len(entry.op_id) + len(entry.content) for entry in log)

    def close(self) -> None:
        """Forget everything."""
        if self._transaction is not None:
            self._transaction.rollback()
        for snapshot in list(self._store.snapshots):
            snapshot.close()
        self._store = _Store()


class _Store:
    """What is there. `log` is replaced and never changed, so whoever has it may keep it."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.rows: SortedDict[bytes, bytes] = SortedDict()
        self.log: list[Entry] = []
        self.last = 0
        self.size = 0
        self.snapshots: set[_MemorySnapshot] = set()
        self.undo: _Overlay = _NOTHING

    def put(self, key: bytes, value: bytes | None) -> None:
        """Set or remove a row, and let those who must not see it keep what was there."""
        before = self.rows.get(key)
        if before is value is None:
            return
        self.undo.setdefault(key, before)
        for snapshot in self.snapshots:
            snapshot.overlay.setdefault(key, before)
        self.replace(key, before, value)

    def replace(self, key: bytes, before: bytes | None, value: bytes | None) -> None:
        """Set or remove a row of which `before` is there."""
        if before is not None:
            self.size -= len(key) + len(before)
        if value is not None:
            self.size += len(key) + len(value)
            self.rows[key] = value
        elif before is not None:
            del self.rows[key]


class _MemoryRows:
    """The rows under an overlay."""

    def __init__(self, store: _Store, overlay: _Overlay | None = None) -> None:
        self._store = store
        self.overlay = _NOTHING if overlay is None else overlay
        self._log = store.log
        self._last = store.last
        self._changes = 0
        self._is_over = False

    def leave(self) -> None:
        """End the moment."""
        self._is_over = True

    def get(self, key: bytes) -> bytes | None:
        """Return the value of `key`."""
        self._check()
        with self._store.lock:
            return self.overlay[key] if key in self.overlay else self._store.rows.get(key)

    def floor(self, key: bytes) -> Row | None:
        """Return the row with the greatest key that is at most `key`."""
        self._check()
        with self._store.lock:
            return next(self._merge(b"", key + b"\0", True), None)

    def scan(self, low: bytes, high: bytes, *, reverse: bool = False) -> Iterator[Row]:
        """Go on behind the last key given, over the rows as they are by then."""
        while True:
            self._check()
            changes = self._changes
            with self._store.lock:
                rows = list(itertools.islice(self._merge(low, high, reverse), _AT_ONCE))
            for row in rows:
                yield row
                self._check()
                if self._changes != changes:
                    break
            else:
                if len(rows) < _AT_ONCE:
                    return
            if reverse:
                high = row[0]
            else:
                low = row[0] + b"\0"

    def scan_keys(self, low: bytes, high: bytes, *, reverse: bool = False) -> Iterator[bytes]:
        """Iterate over keys in their order, or backwards."""
        return (key for key, _ in self.scan(low, high, reverse=reverse))

    def sequence(self) -> int:
        """Return the number of the last entry ever appended."""
        self._check()
        return self._last

    def entries(self, after: int) -> Iterator[Entry]:
        """Iterate over the retained entries with numbers above `after`."""
        self._check()
        log = self._log
        first = max(0, after + 1 - log[0].sequence) if log else 0
        for entry in log[first:]:
            self._check()
            yield entry

    def _merge(self, low: bytes, high: bytes, reverse: bool) -> Iterator[Row]:
        """Iterate over the rows that are there; the lock is held meanwhile."""
        bounds = (low, high, (True, False), reverse)
        stored = self._store.rows.irange(*bounds)
        if not self.overlay:
            yield from ((key, self._store.rows[key]) for key in stored)
            return
        changed = self.overlay.irange(*bounds)
        for key, _ in itertools.groupby(heapq.merge(stored, changed, reverse=reverse)):
            value = self.overlay[key] if key in self.overlay else self._store.rows[key]
            if value is not None:
                yield key, value

    def _check(self) -> None:
        if self._is_over:
            raise RuntimeError("The moment that these rows belong to is over.")


class _MemorySnapshot(_MemoryRows):
    """One moment; its overlay is what has been replaced since."""

    def __init__(self, store: _Store) -> None:
        super().__init__(store, store.undo.copy())

    def close(self) -> None:
        """Let the moment go."""
        self.leave()
        with self._store.lock:
            self._store.snapshots.discard(self)
            self.overlay = _NOTHING


class _MemoryTransaction(_MemoryRows):
    """Changes under way."""

    def __init__(self, store: _Store) -> None:
        super().__init__(store)
        self._log = list(store.log)
        with store.lock:
            store.undo = SortedDict()

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self._is_over

    def put(self, key: bytes, value: bytes) -> None:
        """Set the value of `key`."""
        self._set(key, bytes(value))

    def put_all(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Set the values of many keys."""
        for key, value in rows:
            self.put(key, value)

    def delete(self, key: bytes) -> None:
        """Remove `key` if it is there."""
        self._set(key, None)

    def delete_range(self, low: bytes, high: bytes) -> None:
        """Remove every key with `low <= key < high`."""
        for key in list(self.scan_keys(low, high)):
            self._set(key, None)

    def append(self, op_id: bytes, content: bytes) -> int:
        """Append an entry to the log; return its sequence number."""
        self._check()
        self._last += 1
        self._log.append(Entry(self._last, bytes(op_id), bytes(content)))
        return self._last

    def trim(self, upto: int) -> None:
        """Forget the entries with numbers up to and including `upto`."""
        self._log = list(self.entries(upto))

    def commit(self) -> None:
        """Make the changes the present."""
        self._check()
        store = self._store
        with store.lock:
            store.undo = _NOTHING
            store.log = self._log
            store.last = self._last
        self.leave()

    def rollback(self) -> None:
        """Take the changes back; without effect once the transaction has ended in any way."""
        if self._is_over:
            return
        self.leave()
        store = self._store
        with store.lock:
            for key, before in store.undo.items():
                store.replace(key, store.rows.get(key), before)
            store.undo = _NOTHING

    def _set(self, key: bytes, value: bytes | None) -> None:
        self._check()
        self._changes += 1
        with self._store.lock:
            self._store.put(key, value)
