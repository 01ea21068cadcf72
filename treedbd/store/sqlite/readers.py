"""The readers of a shelf file: one of the present moment, and one for each moment that is held."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Final

from treedbd.limits import KIB
from treedbd.store.engine import Damage, ReadView, StoreFailed
from treedbd.store.sqlite.file import connect_reader
from treedbd.store.sqlite.reader import CachedConnection, PresentReader

_SPARE_CONNECTIONS: Final = 1
_AT_ONCE_BYTES: Final = 64 * KIB
"""What is in a smaller file is read at once, and no moment of it held."""
_SNAPSHOT_CACHE_BYTES: Final = 1024 * 1024
"""Enough for the inner pages of the tree: a reader of a moment mostly reads each page once."""


class Readers:
    """The reading connections of one file.

    Attributes:
        present: reads the present moment; another one after it was held.
        snapshots: the moments that are held.

    """

    def __init__(self, path: pathlib.Path, check_in_place: Callable[[], None]) -> None:
        """Connect; `check_in_place` raises if the path leads to another file by now."""
        self._path = path
        self._check_in_place = check_in_place
        self._cache_bytes: int | None = None
        self._begun: Callable[[ReadView], None] | None = None
        self._damaged: Callable[[Damage], None] = lambda _: None
        self.present = self._make_reader(CachedConnection(connect_reader(path)))
        self.snapshots: Final[set[PresentReader]] = set()
        self._spare: list[CachedConnection] = []
        if path.stat().st_size > _AT_ONCE_BYTES:  # so that it can be read when it is removed
            other = self._try_spare()
            if other is not None:
                self._release(other)

    def follow(self, begun: Callable[[ReadView], None]) -> None:
        """Call `begun` with each moment that `present` begins to show from now on."""
        self.present.let_go()
        self._begun = self.present.begun = begun

    def report_damage(self, damaged: Callable[[Damage], None]) -> None:
        """Call `damaged` when a read finds the file damaged."""
        self._damaged = damaged

    def hold(self) -> PresentReader:
        """Hold the present moment open; raise `StoreFailed`."""
        snapshot = self._take_spare().begin_held()
        snapshot.cached.limit(_SNAPSHOT_CACHE_BYTES)
        self.snapshots.add(snapshot)
        return snapshot

    def advance(self, *, holds: bool) -> PresentReader | None:
        """Let reads show what has been committed; with `holds` return the moment before, held.

        None if that is not open any more, or no other connection can be opened.
        """
        reader = self.present
        other = self._try_spare() if holds else None
        if other is None or not reader.keep_open():
            reader.advance()
            if other is not None:
                self._release(other)
            return None
        self._show_by(other, reader)
        return reader

    def renew(self) -> None:
        """Show the moment that is shown by a transaction that begins now, if nothing is newer.

        One that began before the log was checkpointed keeps it from being restarted.
        """
        reader = self.present
        if reader.is_pinned:
            return
        other = self._try_spare()
        if other is None:
            return
        other.pin()
        if other.shows_as(reader) and reader.keep_open():
            self._show_by(other, reader)
            reader.close()
        else:
            self._release(other)
        other.is_pinned = False

    def limit_cache(self, size: int) -> None:
        """Keep about `size` bytes of pages for the present; a snapshot keeps a few of its own."""
        self._cache_bytes = size
        self.present.cached.limit(size)

    def let_go(self) -> bool:
        """Do as `PresentReader.let_go`; may be called in any thread."""
        return self.present.let_go()

    def close(self) -> None:
        """Close all connections, and the snapshots with them."""
        for snapshot in list(self.snapshots):
            snapshot.close()
        for cached in (*self._spare, self.present.cached):
            cached.connection.close()
        self._spare.clear()

    def _make_reader(self, connection: CachedConnection) -> PresentReader:
        return PresentReader(connection, self._hold_present, self._release, self._found_damaged)

    def _found_damaged(self, damage: Damage) -> None:
        self._damaged(damage)

    def _take_spare(self) -> PresentReader:
        if self._spare:
            return self._make_reader(self._spare.pop())
        self._check_in_place()
        return self._make_reader(CachedConnection(connect_reader(self._path)))

    def _try_spare(self) -> PresentReader | None:
        """Return a reader; None if there is none: no descriptor may be left, for one thing."""
        try:
            return self._take_spare()
        except StoreFailed:
            return None

    def _hold_present(self, reader: PresentReader) -> bool:
        """Let another reader show the present moment from now on; return whether it can.

        It cannot if a commit has taken effect that was not shown yet, or without a connection.
        """
        other = self._try_spare()
        if other is None:
            return False
        other.pin()
        if not other.shows_as(reader):
            other.advance()
            self._release(other)
            return False
        other.is_pinned = reader.is_pinned
        self._show_by(other, reader)
        reader.cached.limit(_SNAPSHOT_CACHE_BYTES)
        return True

    def _show_by(self, other: PresentReader, held: PresentReader) -> None:
        """Let another reader show the present moment from now on: `held` keeps its own."""
        if self._cache_bytes is not None:
            other.cached.limit(self._cache_bytes)
        other.begun, held.begun = self._begun, None
        self.present = other
        self.snapshots.add(held)

    def _release(self, reader: PresentReader) -> None:
        self.snapshots.discard(reader)
        if len(self._spare) < _SPARE_CONNECTIONS:
            self._spare.append(reader.cached)
        else:
            reader.cached.connection.close()
