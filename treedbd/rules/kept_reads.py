"""What rules have read at a high cost, kept so that it is not read again for the next request.

Theory of operation. Rules that compare with a leaf of ten megabytes would parse it for each
request. So the result of an expensive read is kept with its cost, which every request is charged
all the same: a verdict never depends on what is kept.

Entity tags and hashes of large values, which writes are compared with, are kept in the same way.

What is kept of a database is the same in its last durable state and in the transaction that is
open, so both may use it. A change in the transaction drops what was read at, above and below its
place, and until the transaction has ended nothing is kept there again; whether it was committed or
rolled back makes no difference. A snapshot that is held may be older, and uses nothing of this.

One `ReadPool` bounds what is kept of all databases; what was used longest ago is dropped first.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from treedbd.limits import KIB, MIB
from treedbd.tree.types import Change, Path

LEAST_COST: Final = 8 * KIB
"""A read that costs less is not kept."""
POOL_BYTES: Final = 64 * MIB
POOL_READS: Final = 64
MAX_CHANGES: Final = 1000
"""Changes of one transaction; if it has more, nothing is kept until it has ended."""

Read: TypeAlias = tuple[Literal["peek", "type_at", "etag", "hash"], Path]
"""A method of `View`, or what was computed of all that is there, and the path."""


class KeptRead(NamedTuple):
    """The result of a read, and what it costs."""

    result: Any
    cost: int


class ReadPool:
    """What is kept of all databases, in the order of its last use."""

    def __init__(self) -> None:
        self._sizes: Final[OrderedDict[tuple[KeptReads, Read], int]] = OrderedDict()
        self._bytes = 0

    def use(self, owner: KeptReads, read: Read) -> None:
        """Record that something is used."""
        self._sizes.move_to_end((owner, read))

    def add(self, owner: KeptReads, read: Read, size: int) -> None:
        """Add something of that many bytes; drop what was used longest ago to make room for it."""
        self._sizes[owner, read] = size
        self._bytes += size
        while self._bytes > POOL_BYTES or len(self._sizes) > POOL_READS:
            oldest_owner, oldest = next(iter(self._sizes))
            oldest_owner.drop(oldest)

    def remove(self, owner: KeptReads, read: Read) -> None:
        """Remove something."""
        self._bytes -= self._sizes.pop((owner, read))


class KeptReads:
    """What is kept of one database."""

    def __init__(self, pool: ReadPool) -> None:
        """Keep what `pool` has room for."""
        self._pool: Final = pool
        self._kept: Final[dict[Read, KeptRead]] = {}
        self._transaction: object = None
        self._changed: Final[list[Path]] = []

    def __len__(self) -> int:
        """Return how many reads are kept."""
        return len(self._kept)

    def find(self, read: Read) -> KeptRead | None:
        """Return the result of a read, if it is kept."""
        kept = self._kept.get(read)
        if kept is not None:
            self._pool.use(self, read)
        return kept

    def keep(self, read: Read, result: Any, cost: int) -> None:
        """Keep the result of a read of the durable state or of the open transaction."""
        size = sys.getsizeof(result)
        if size <= POOL_BYTES and not self._is_changed(read[1]):
            self._kept[read] = KeptRead(result, cost)
            self._pool.add(self, read, size)

    def drop(self, read: Read) -> None:
        """Forget one read."""
        del self._kept[read]
        self._pool.remove(self, read)

    def clear(self) -> None:
        """Forget everything."""
        for read in list(self._kept):
            self.drop(read)

    def note_changes(self, transaction: object, changes: Sequence[Change]) -> None:
        """Drop what changes in the open transaction concern."""
        if transaction is not self._transaction:
            self.end_transaction()  # there is one at a time, so the one before it has ended
            self._transaction = transaction
        paths = [change.place.path for change in changes[: MAX_CHANGES + 1]]
        if len(self._changed) <= MAX_CHANGES:
            self._changed.extend(paths)
        if not self._kept:
            return
        if len(paths) > MAX_CHANGES:
            self.clear()
        for read in [read for read in self._kept if _concern(paths, read[1])]:
            self.drop(read)

    def end_transaction(self) -> None:
        """Record that no transaction is open."""
        self._transaction = None
        self._changed.clear()

    def _is_changed(self, path: Path) -> bool:
        """Return whether the open transaction has changed what is at, above or below a path."""
        return len(self._changed) > MAX_CHANGES or _concern(self._changed, path)


def _concern(changed: Sequence[Path], path: Path) -> bool:
    """Return whether one of the changed paths is at, above or below `path`."""
    depth = len(path)
    return any(each[:depth] == path[: len(each)] for each in changed)
