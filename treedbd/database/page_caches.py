"""The memory for pages, which all open databases share.

Each may keep an equal part, rounded down to a power of two, so that the parts change seldom. When
they do, the databases receive theirs a few at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from twisted.internet.interfaces import IDelayedCall, IReactorTime

from treedbd.database.file_user import FileUser
from treedbd.limits import KIB, MIB
from treedbd.store.on_demand import ReopeningEngine

MAX_SHARE: Final = 16 * MIB
MIN_SHARE: Final = 64 * KIB
"""Bytes of pages that one database may keep."""
DIVIDED_AT_ONCE: Final = 32
"""Databases that receive another part in one turn of the reactor."""
DIVIDE_AGAIN_S: Final = 1.0
"""Seconds until databases that were writing receive their part."""


class PageCaches:
    """Divides `total` bytes among the open databases.

    Attributes:
        share: the bytes of pages that each of them may keep at present.

    """

    def __init__(
        self, total: int, databases: Mapping[FileUser, ReopeningEngine], clock: IReactorTime
    ) -> None:
        """Divide among `databases`, which are those that are open at any time."""
        self._total = total
        self._databases = databases
        self._clock = clock
        self._next: IDelayedCall | None = None
        self.share = cache_share(total, 0)

    def divide(self) -> int:
        """Divide again if more or fewer are open now; return the share."""
        share = cache_share(self._total, len(self._databases))
        if share != self.share:
            self.share = share
            if self._next is None:
                self._next = self._clock.callLater(0, self._limit_some)
        return share

    def stop(self) -> None:
        """Change nothing any more."""
        if self._next is not None:
            self._next.cancel()
            self._next = None

    def _limit_some(self) -> None:
        """Let some databases keep their share only; those that are writing, later."""
        self._next = None
        others = [
            (database, engine)
            for database, engine in list(self._databases.items())
            if database.is_open and engine.cache_size != self.share
        ]
        free = [engine for database, engine in others if not database.is_writing]
        for engine in free[:DIVIDED_AT_ONCE]:
            engine.limit_cache(self.share)
        if free[DIVIDED_AT_ONCE:] or len(free) < len(others):
            pause = 0 if free else DIVIDE_AGAIN_S
            self._next = self._clock.callLater(pause, self._limit_some)


def cache_share(total: int, count: int) -> int:
    """Return the bytes of pages that each of `count` open databases may keep."""
    share = max(MIN_SHARE, min(MAX_SHARE, total // max(1, count)))
    return 1 << (share.bit_length() - 1)
