"""The engine in memory, for experiments and tests: nothing outlives the process.

Theory of operation
-------------------
The rows are in one sorted dictionary, with the changes of the open transaction already made in it:
a transaction reads the dictionary itself. A view that must not see these changes, or later ones,
reads through an *overlay*, a sorted dictionary of the keys that differ, with None for a key that is
absent in the view. Before each change the old value is put into the overlay of every open snapshot,
and into the undo overlay of the transaction. All other reads go through the undo overlay while the
transaction is open; a rollback restores the old values from it; and a snapshot that is opened in
the meantime starts with a copy of it.

`commit` may run in another thread than readers. So a lock is held for each change, for the whole of
a `read`, and for each single access of any other view, and for no longer than that.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias, TypeVar

from sortedcontainers import SortedDict

from treedbd.store.engine import TRIMMED_AT_ONCE, LogEntry, PresentView, Row

T = TypeVar("T")

_Overlay: TypeAlias = "SortedDict[bytes, bytes | None]"

_NOTHING: _Overlay = SortedDict()
_BATCH_ROWS = 64
"""Rows that a scan reads at a time, under the lock."""


class MemoryEngine:
    """An `Engine` whose content ends with the process."""

    def __init__(self) -> None:
        """Start empty."""
        self._store = _Store()
        self._transaction: _MemoryTransaction | None = None

    def read(self, work: Callable[[PresentView], T]) -> T:
        """Run `work` on the present moment."""
        with self._store.lock:
            view = _MemoryPresentView(self._store)
            try:
                return work(view)
            finally:
                view.end_unless_held()

    def pin(self) -> None:
        """Pin the present moment: reads show it until `advance`."""
        self._store.is_pinned = True

    def advance(self, *, holds: bool = False) -> _MemoryPresentView | None:
        """Show the last commit to reads; with `holds` return the moment before."""
        held = self.snapshot() if holds else None
        self._store.advance()
        return held

    def needs_checkpoint(self) -> bool:
        """Return False: memory has no log that grows."""
        return False

    def checkpoint(self) -> None:
        """Do nothing: memory has no log that grows."""

    def compact(self) -> None:
        """Do nothing: memory has no file."""

    def snapshot(self) -> _MemoryPresentView:
        """Hold the present moment open."""
        with self._store.lock:
            return _MemoryPresentView(self._store).hold()

    def begin(self) -> _MemoryTransaction:
        """Open the one transaction."""
        if self._transaction is not None and not self._transaction.is_over:
            raise RuntimeError("A transaction is already open.")
        self._transaction = _MemoryTransaction(self._store)
        return self._transaction

    def recover(self) -> None:
        """Do nothing: memory does not fail."""

    def release_reserve(self) -> None:
        """Do nothing: memory has no reserve."""

    def restore_reserve(self) -> bool:
        """Return True: memory needs no reserve."""
        return True

    def find_misplaced(self) -> None:
        """Return None: memory has no files."""

    def verify(self) -> list[str]:
        """Return no damage."""
        return []

    def size(self) -> int:
        """Return the bytes of all keys and values, and of the entries of the log."""
        log = self._store.log
        return self._store.size + sum(len(entry.op_id) + len(entry.content) for entry in log)

    def close(self) -> None:
        """Discard everything."""
        if self._transaction is not None:
            self._transaction.rollback()
        for snapshot in list(self._store.snapshots):
            snapshot.close()
        self._store = _Store()


class _Store:
    """The content. `log` is replaced and never changed, so a view can keep a reference to it."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.rows: SortedDict[bytes, bytes] = SortedDict()
        self.log: list[LogEntry] = []
        self.last = 0
        self.size = 0
        self.snapshots: set[_MemoryPresentView] = set()
        self.undo: _Overlay = _NOTHING
        self.is_pinned = False
        self._committed: tuple[list[LogEntry], int] | None = None  # what reads must not see yet

    def commit(self, log: list[LogEntry], last: int) -> None:
        """Show the changes of the transaction to reads, at once or after `advance`."""
        with self.lock:
            self._committed = log, last
            if not self.is_pinned:
                self.advance()

    def advance(self) -> None:
        """Show to reads what has been committed."""
        with self.lock:
            self.is_pinned = False
            if self._committed is not None:
                self.log, self.last = self._committed
                self._committed = None
                self.undo = _NOTHING

    def put(self, key: bytes, value: bytes | None) -> None:
        """Set or remove a row; its old value goes to the views that must not see the change."""
        before = self.rows.get(key)
        if before is value is None:
            return
        self.undo.setdefault(key, before)
        for snapshot in self.snapshots:
            snapshot.overlay.setdefault(key, before)
        self.replace(key, before, value)

    def replace(self, key: bytes, before: bytes | None, value: bytes | None) -> None:
        """Set or remove a row whose present value is `before`."""
        if before is not None:
            self.size -= len(key) + len(before)
        if value is not None:
            self.size += len(key) + len(value)
            self.rows[key] = value
        elif before is not None:
            del self.rows[key]


class _MemoryReadView:
    """The rows as an overlay changes them, at one moment, until it `is_over`."""

    def __init__(self, store: _Store, overlay: _Overlay | None = None) -> None:
        self._store = store
        self.overlay = _NOTHING if overlay is None else overlay
        self._log = store.log
        self._last = store.last
        self._changes = 0
        self.is_over = False

    def end(self) -> None:
        """End the moment."""
        self.is_over = True

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

    def floors(self, keys: Sequence[bytes], longest: int) -> list[Row]:
        """Return the rows that `floor` returns for some keys, each once."""
        found = filter(None, map(self.floor, keys))
        return list({(key, value if len(value) <= longest else b"") for key, value in found})

    def scan(self, low: bytes, high: bytes, *, reverse: bool = False) -> Iterator[Row]:
        """Iterate over the rows as they are when each is read, after the last key returned."""
        while True:
            self._check()
            changes = self._changes
            with self._store.lock:
                rows = list(itertools.islice(self._merge(low, high, reverse), _BATCH_ROWS))
            for row in rows:
                yield row
                self._check()
                if self._changes != changes:
                    break
            else:
                if len(rows) < _BATCH_ROWS:
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

    def entries(self, after: int) -> Iterator[LogEntry]:
        """Iterate over the retained entries with numbers above `after`."""
        self._check()
        log = self._log
        first = max(0, after + 1 - log[0].sequence) if log else 0
        for entry in log[first:]:
            self._check()
            yield entry

    def _merge(self, low: bytes, high: bytes, reverse: bool) -> Iterator[Row]:
        """Iterate over the rows of the view; the caller holds the lock."""
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
        if self.is_over:
            raise RuntimeError("The read or transaction of these rows has ended.")


class _MemoryPresentView(_MemoryReadView):
    """The present moment; once it is held, its overlay has the old values of what has changed."""

    def __init__(self, store: _Store) -> None:
        super().__init__(store, store.undo)
        self._is_held = False

    def hold(self) -> _MemoryPresentView:
        """Hold this moment open."""
        with self._store.lock:
            self.overlay = self.overlay.copy()
            self._is_held = True
            self._store.snapshots.add(self)
        return self

    def end_unless_held(self) -> None:
        """End the moment, unless it is held."""
        if not self._is_held:
            self.end()

    def close(self) -> None:
        """Release the moment."""
        self.end()
        with self._store.lock:
            self._store.snapshots.discard(self)
            self.overlay = _NOTHING


class _MemoryTransaction(_MemoryReadView):
    """Changes that are not committed yet."""

    def __init__(self, store: _Store) -> None:
        super().__init__(store)
        self._log = list(store.log)
        with store.lock:
            store.undo = SortedDict()

    def put(self, key: bytes, value: bytes) -> None:
        """Set the value of `key`."""
        self._set(key, bytes(value))

    def put_all(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Set the values of many keys."""
        for key, value in rows:
            self.put(key, value)

    def delete(self, key: bytes) -> None:
        """Remove `key` if it exists."""
        self._set(key, None)

    def delete_range(self, low: bytes, high: bytes) -> None:
        """Remove every key with `low <= key < high`."""
        for key in list(self.scan_keys(low, high)):
            self._set(key, None)

    def append(self, op_id: bytes, content: bytes) -> int:
        """Append an entry to the log; return its sequence number."""
        self._check()
        self._last += 1
        self._log.append(LogEntry(self._last, bytes(op_id), bytes(content)))
        return self._last

    def trim(self, through: int) -> None:
        """Drop the oldest entries with numbers up to and including `through`, some at a time."""
        if self._log:
            through = min(through, self._log[0].sequence + TRIMMED_AT_ONCE - 1)
        self._log = list(self.entries(through))

    def shorten(
        self, after: int, through: int, longest: int, cut: Callable[[bytes], bytes]
    ) -> None:
        """Cut the entries above `after` and up to `through` that have more than `longest` bytes."""
        for at, entry in enumerate(self._log):
            if after < entry.sequence <= through and len(entry.content) > longest:
                self._log[at] = entry._replace(content=cut(entry.content))

    def commit(self) -> None:
        """Make the changes visible to all later reads."""
        self._check()
        self._store.commit(self._log, self._last)
        self.end()

    def rollback(self) -> None:
        """Discard the changes; no effect once the transaction has ended in any way."""
        if self.is_over:
            return
        self.end()
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
