"""The readers of a shelf file: one of the present moment, and one for each moment that is held."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Final

import apsw

from treedbd.store.engine import ReadView
from treedbd.store.sqlite.file import connect_reader, set_cache_size
from treedbd.store.sqlite.reader import PresentReader

_SPARE_CONNECTIONS: Final = 1
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
        self._cache_size: int | None = None
        self._begun: Callable[[ReadView], None] | None = None
        self.present = self._make_reader(connect_reader(path))
        self.snapshots: Final[set[PresentReader]] = set()
        self._spare: list[apsw.Connection] = []

    def follow(self, begun: Callable[[ReadView], None]) -> None:
        """Call `begun` with each moment that `present` begins to show from now on."""
        self.present.let_go()
        self._begun = self.present.begun = begun

    def hold(self) -> PresentReader:
        """Hold the present moment open; raise `StoreFailed`."""
        snapshot = self._make_reader(self._take_spare()).begin_held()
        self.snapshots.add(snapshot)
        return snapshot

    def limit_cache(self, size: int) -> None:
        """Keep about `size` bytes of pages for the present; a snapshot keeps a few of its own."""
        self._cache_size = size
        set_cache_size(self.present.connection, size)

    def let_go(self) -> bool:
        """Do as `PresentReader.let_go`; may be called in any thread."""
        return self.present.let_go()

    def close(self) -> None:
        """Close all connections, and the snapshots with them."""
        for snapshot in list(self.snapshots):
            snapshot.close()
        for connection in (*self._spare, self.present.connection):
            connection.close()
        self._spare.clear()

    def _make_reader(self, connection: apsw.Connection) -> PresentReader:
        return PresentReader(connection, self._hold_present, self._release)

    def _take_spare(self) -> apsw.Connection:
        if self._spare:
            return self._spare.pop()
        self._check_in_place()
        connection = connect_reader(self._path)
        set_cache_size(connection, _SNAPSHOT_CACHE_BYTES)
        return connection

    def _hold_present(self, reader: PresentReader) -> bool:
        """Let another reader show the present moment from now on; return whether it can.

        It cannot if a commit that readers must not see yet has taken effect.
        """
        other = self._make_reader(self._take_spare())
        if reader.is_pinned:
            other.pin()
            if not other.shows_as(reader):
                other.advance()
                self._release(other)
                return False
        if self._cache_size is not None:
            set_cache_size(other.connection, self._cache_size)
        set_cache_size(reader.connection, _SNAPSHOT_CACHE_BYTES)
        other.begun, reader.begun = self._begun, None
        self.present = other
        self.snapshots.add(reader)
        return True

    def _release(self, reader: PresentReader) -> None:
        self.snapshots.discard(reader)
        if len(self._spare) < _SPARE_CONNECTIONS:
            self._spare.append(reader.connection)
        else:
            reader.connection.close()
