"""The lags of the readers of change logs, and which of them have lost their places.

Theory of operation. Where a reader is, and whether it was dropped, is stored in each database that
it reads (`store.cursors`). `ReaderLags` reads that of the databases that are open, in slices, when
health or metrics are asked for: nothing is added to a write. A look takes some tens of microseconds
for each open database. So looks are at least `LOOK_S` apart, and further if there are so many
that they would use more than a part of `SHARE` of the time.

What was dropped stays a problem after its database is closed. It is forgotten when another process
has written the database, which then has it open and reports what is in it. And since a hint may be
lost, one such database is opened for another look now and then (`find_closed`).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from datetime import UTC, datetime
from typing import Final

import attrs

from treedbd.database.database import Database
from treedbd.database.requests import Unavailable
from treedbd.database.runtime import Problem, Statistics
from treedbd.database.slices import Steps
from treedbd.names import DatabaseName
from treedbd.store.cursors import Cursor, Lag, measure, read_cursors
from treedbd.store.engine import DamagedPage, DamagedRow, ReadView, StoreDamaged, StoreFailed

LOOK_S: Final = 1.0
"""Seconds between two looks at all open databases, at least."""
SHARE: Final = 50
"""Looks use at most this part of the time: one in `SHARE`."""
CLOSED_S: Final = 60.0
"""Seconds between two looks at databases that are closed, one at each."""
_UNREADABLE: Final = (DamagedPage, DamagedRow, StoreDamaged, StoreFailed, Unavailable)


@attrs.frozen
class ReaderLag:
    """Where a reader of a change log is, and how far that is from the end of the log."""

    cursor: Cursor
    lag: Lag


class ReaderLags:
    """The lags of the readers of the databases that are open; belongs to the reactor's thread."""

    def __init__(
        self, statistics: Statistics, seconds: Callable[[], float], now_ms: Callable[[], int]
    ) -> None:
        """Show the largest lags in `statistics`; nothing is known yet."""
        self._statistics = statistics
        self._seconds = seconds
        self._now_ms = now_ms
        self._dropped: dict[DatabaseName, list[Cursor]] = {}
        # The times of the first entries that were not read, by reader and place: one may be long.
        self._since: dict[DatabaseName, dict[tuple[str, int], int]] = {}
        self._due = self._closed_due = seconds()

    def look(self, database: Database) -> list[ReaderLag]:
        """Return the readers of a database that is open, and remember which were dropped.

        Raises what reading raises, and `DamagedRow`.
        """
        name, now = database.name, self._now_ms()
        since = self._since.pop(name, {})

        def read(view: ReadView) -> list[ReaderLag]:
            return [
                ReaderLag(each, measure(view, each, now, since.get((each.name, each.sequence))))
                for each in read_cursors(view)
            ]

        readers = database.read(lambda nodes: read(nodes.rows.stored))
        late = [each for each in readers if each.lag.entries]
        if late:
            self._since[name] = {
                (each.cursor.name, each.cursor.sequence): now - round(each.lag.seconds * 1000)
                for each in late
            }
        self._dropped.pop(name, None)
        dropped = [each.cursor for each in readers if each.cursor.is_dropped]
        if dropped:
            self._dropped[name] = dropped
        return readers

    def look_at_all(self, databases: Iterable[Database]) -> Steps:
        """Look at databases, at one in each step, unless that was done just now."""
        if self._seconds() < self._due:
            return
        lags: dict[str, Lag] = {}
        used = 0.0
        for database in databases:
            began = self._seconds()
            for each in self._try_to_look(database):
                if not each.cursor.is_dropped:
                    name = each.cursor.name
                    lags[name] = _largest(each.lag, lags.get(name, each.lag))
            used += self._seconds() - began
            yield
        self._statistics.reader_lags = lags
        self._due = self._seconds() + max(LOOK_S, SHARE * used)

    def _try_to_look(self, database: Database) -> list[ReaderLag]:
        """Look at a database; of one that cannot be read, others report why."""
        if not database.is_open:
            return []
        try:
            return self.look(database)
        except _UNREADABLE:
            return []

    def find_closed(self, is_open: Container[DatabaseName]) -> DatabaseName | None:
        """Return a database to be opened and looked at again, None if none is due."""
        now = self._seconds()
        if now < self._closed_due:
            return None
        name = next((each for each in self._dropped if each not in is_open), None)
        if name is not None:
            self._closed_due = now + CLOSED_S
            self._dropped[name] = self._dropped.pop(name)  # the others are first the next time
        return name

    def forget(self, name: DatabaseName) -> None:
        """Forget a database that was deleted, or that another process has written."""
        self._dropped.pop(name, None)
        self._since.pop(name, None)

    def problems(self) -> list[Problem]:
        """Return which readers have lost their places."""
        return [
            Problem(name.project, name.database, _reason(each), refuses_writes=False)
            for name, dropped in self._dropped.items()
            for each in dropped
        ]


def show_time(time_ms: int) -> str:
    """Return a time in milliseconds since 1970 as in `2026-11-28T18:00:00Z`."""
    return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"


def _largest(one: Lag, other: Lag) -> Lag:
    return Lag(
        max(one.entries, other.entries),
        max(one.bytes, other.bytes),
        max(one.seconds, other.seconds),
    )


def _reason(cursor: Cursor) -> str:
    return (
        f"The reader {cursor.name} of the change log has lost its place at "
        f"{show_time(cursor.dropped_ms or 0)}: it has to begin again with all data. If it is not "
        f"used any more, remove its cursor (treedb cursors --remove {cursor.name})."
    )
