"""What the change logs of all databases give for the next segment.

`Feeds` knows which databases have been written since they were read last, and since when. `gather`
reads their new entries up to a bound: a `Batch`, which becomes one segment. Only when that is
durable, `reached` stores the cursors. Nothing else is kept in memory: while the archive cannot be
written, the change logs hold what it lacks.

A database is read from its cursor. Where the log does not continue there, it is read from its end,
or from its first entry if it is new; the batch has a gap, and unless the database is new it needs a
base (`upkeep`). After a start all databases are looked at once, a few in each batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Final

import attrs
from twisted.internet.defer import Deferred, DeferredList
from twisted.internet.task import deferLater
from twisted.logger import Logger

from treedbd.archive.segments import Deleted, Entry, Gap, Record, Rules, describe
from treedbd.archive.upkeep import Upkeep
from treedbd.database.catalog import Catalog
from treedbd.database.database import Database
from treedbd.database.log_reader import CursorLost, LogPosition, LogReader
from treedbd.database.requests import DatabaseDeleted, Unavailable, UnknownDatabase
from treedbd.database.runtime import Problem, Runtime
from treedbd.errors import in_one_line
from treedbd.limits import MIB
from treedbd.names import DatabaseName
from treedbd.rules.ruleset import DENY, OPEN, RuleSet
from treedbd.store.changelog import is_whole
from treedbd.store.cursors import Cursor, read_cursor
from treedbd.store.engine import LogEntry, StoreFailed

READER: Final = "archive"
"""The name of the cursors."""
SEGMENT_BYTES: Final = 8 * MIB
"""Bytes of entries after which a batch is full."""
READ_AT_ONCE: Final = 128
"""Databases with news in one batch."""
LOOKED_AT_ONCE: Final = 32
"""Databases in one batch that are only looked at, because this process has just begun."""
OPEN_S: Final = 10.0
"""Seconds that opening a database may take."""
RETRY_S: Final = 5.0
"""Seconds until a database that could not be read is tried again."""
SLICE_S: Final = 0.002
"""Seconds of work after which others have the reactor."""

_TOO_LATE: Final = "The change log was not kept for the archive, which lagged too much ([readers])."
_REPLACED: Final = "The database was replaced by one with another history."
_REMOVED: Final = "The database was restored, or the cursor of the archive removed."
_NOT_WHOLE: Final = "Entry {n} has no body: it is longer than logged_bytes in [readers] allows."


@attrs.define
class Batch:
    """What one segment will hold.

    Attributes:
        records: events and entries, in their order.
        after: for each database with entries, the position before the first of them.
        readers: the readers of these databases, at the last entry.
        since: when the oldest write in the batch came, by the clock of the reactor.
        entry_bytes: of all entries.
        is_full: whether there is more to be read at once.

    """

    records: list[Record] = attrs.field(factory=list)
    after: dict[str, LogPosition] = attrs.field(factory=dict)
    readers: dict[DatabaseName, tuple[Database, LogReader]] = attrs.field(factory=dict)
    since: float | None = None
    entry_bytes: int = 0
    is_full: bool = False

    def note_since(self, since: float | None) -> None:
        """Record since when a write waits that may be in the batch."""
        if since is not None:
            self.since = since if self.since is None else min(self.since, since)

    def add(self, db: str, entries: list[LogEntry], after: LogPosition) -> None:
        """Add entries of a database that follow `after`, or those before."""
        self.after.setdefault(db, after)
        self.records += [Entry(db, each.sequence, each.op_id, each.content) for each in entries]
        self.entry_bytes += sum(len(each.content) for each in entries)
        self.is_full |= self.entry_bytes >= SEGMENT_BYTES


class Feeds:
    """What has not been archived of all databases; belongs to the reactor's thread."""

    _log = Logger()

    def __init__(self, catalog: Catalog, runtime: Runtime, upkeep: Upkeep) -> None:
        """Begin with `start`. `upkeep` learns which databases need a base."""
        self._catalog, self._runtime, self._upkeep = catalog, runtime, upkeep
        self._seconds: Callable[[], float] = runtime.clock.seconds
        self._waiting: dict[DatabaseName, float] = {}
        self._later: dict[DatabaseName, tuple[float, float]] = {}
        self._unseen: deque[DatabaseName] = deque()
        self._events: list[Record] = []
        self._rules: dict[str, RuleSet] = {}
        self._projects: set[str] = set()
        self._failures: dict[DatabaseName, str] = {}
        self._sent: Batch | None = None
        self._began = 0.0

    # What is known.

    def start(self) -> None:
        """Listen to news from now on, and look at all databases: others may have read before."""
        self._waiting.clear()
        self._later.clear()
        self._rules.clear()
        self._projects.clear()
        self._failures.clear()
        self._events = []
        self._sent = None
        self._began = self._seconds()
        self._unseen = deque(self._catalog.written.all())
        self._runtime.news.append(self._written)
        self._catalog.deletion_listeners.append(self.deleted)

    async def find_databases(self) -> None:
        """Find the projects, and databases that only other processes have used until now."""
        known = {*self._catalog.written.all(), *self._unseen}
        for project in await self._runtime.slices.run(self._catalog.projects()):
            self._projects.add(project.name)
            try:
                refreshing = self._catalog.refresh(project.name)
                if refreshing is not None:
                    await refreshing
            except Unavailable:
                continue  # they are found when they are written
            self._unseen.extend(each for each in self._catalog.names(project) if each not in known)

    def stop(self) -> None:
        """Listen to news no longer."""
        self._runtime.news.remove(self._written)
        self._catalog.deletion_listeners.remove(self.deleted)

    def deleted(self, name: DatabaseName) -> None:
        """Record that a database was deleted."""
        self._waiting.pop(name, None)
        self._later.pop(name, None)
        self._failures.pop(name, None)
        self._upkeep.forget(name)
        self._events.append(Deleted(db_of(name), self._runtime.now_ms()))

    def is_waiting(self) -> bool:
        """Return whether anything may be gathered now."""
        self._retry_late()
        return bool(
            self._waiting or self._unseen or self._events or next(self._changed_rules(), None)
        )

    def oldest(self) -> float | None:
        """Return since when the oldest write waits, by the clock of the reactor; None for none."""
        times = [*self._waiting.values(), *(since for since, _ in self._later.values())]
        if self._sent is not None and self._sent.since is not None:
            times.append(self._sent.since)
        if self._unseen:  # which may have been written long ago
            times.append(self._began)
        return min(times, default=None)

    def problems(self) -> list[Problem]:
        """Return which databases cannot be read."""
        return [
            Problem(name.project, name.database, reason, refuses_writes=False)
            for name, reason in self._failures.items()
        ]

    def _written(self, name: DatabaseName) -> None:
        self._waiting.setdefault(name, self._seconds())

    def _changed_rules(self) -> Iterator[tuple[str, RuleSet]]:
        """Yield the rules that were put in force since they were sent."""
        for project in self._projects:
            try:
                current = self._catalog.rules(project).current
            except (Unavailable, UnknownDatabase):
                continue
            known = self._rules.get(project)
            if current is not known and (known is None or current.text != known.text):
                yield project, current

    def _retry_late(self) -> None:
        now = self._seconds()
        for name, (since, at) in list(self._later.items()):
            if at <= now:
                del self._later[name]
                self._waiting[name] = min(since, self._waiting.get(name, since))

    # Gathering.

    async def gather(self) -> Batch:
        """Return what has not been archived, up to a bound; it may be nothing."""
        batch = Batch()
        batch.records, self._events = self._events, []
        self._sent = batch
        self._retry_late()
        waiting = sorted(self._waiting, key=self._waiting.__getitem__)[:READ_AT_ONCE]
        looked_at = [self._unseen.popleft() for _ in range(min(LOOKED_AT_ONCE, len(self._unseen)))]
        for name in dict.fromkeys([*waiting, *looked_at]):
            if not batch.is_full:
                await self._gather(name, batch)
            elif name not in self._waiting:
                self._unseen.append(name)
        batch.is_full |= bool(self._unseen) or len(waiting) >= READ_AT_ONCE
        self._add_rules(batch)
        return batch

    def _add_rules(self, batch: Batch) -> None:
        """Add the rules that have changed; entries may have been judged by them already."""
        now = self._runtime.now_ms()
        for project, rules in list(self._changed_rules()):
            self._rules[project] = rules
            if rules is not DENY and rules is not OPEN:
                batch.records.append(Rules(project, rules.text, now))

    async def _gather(self, name: DatabaseName, batch: Batch) -> None:
        since = self._waiting.pop(name, None)
        batch.note_since(since)
        self._projects.add(name.project)
        try:
            database = self._catalog.find(name)
            async with self._catalog.opened(database, OPEN_S):
                await self._read(database, batch, since)
            self._failures.pop(name, None)
        except (DatabaseDeleted, UnknownDatabase):
            pass
        except Exception as error:
            self._fail(name, since, error)

    def _fail(self, name: DatabaseName, since: float | None, error: Exception) -> None:
        """Try to read a database again later; log why it could not be read, once.

        Why one is not available is known: it is not served either.
        """
        now = self._seconds()
        self._later[name] = now if since is None else since, now + RETRY_S
        reason = f"Its change log cannot be read for the archive: {in_one_line(str(error))}"
        if isinstance(error, Unavailable) or self._failures.get(name) == reason:
            return
        self._failures[name] = reason
        if isinstance(error, StoreFailed):
            self._log.error("{label}: {reason}", label=name.label, reason=reason)
        else:
            self._log.failure("{label} cannot be read for the archive.", label=name.label)

    async def _read(self, database: Database, batch: Batch, since: float | None) -> None:
        """Read the entries of a database that it has now."""
        name = database.name
        reader = LogReader(database, self._runtime, READER, is_whole=True)
        cursor = database.read(lambda nodes: read_cursor(nodes.rows.stored, READER))
        if not await reader.open():
            if cursor is None and not reader.count_unread():
                return  # nothing was ever written
            await self._begin(reader, database, cursor, batch)
        elif not reader.sequence:
            self._upkeep.see_new(name)  # its cursor is there since its first write
        elif cursor is not None:
            self._upkeep.see(name, cursor.created_ms)
        start = reader.position
        try:
            await self._read_all(reader, database, batch)
        except CursorLost as error:
            self._add_gap(batch, name, f"The change log was cut: {error}.", reader.position)
            await reader.begin()
            self._upkeep.want(name)
        self._upkeep.note_position(name, reader.sequence)
        if reader.position != start:
            batch.readers[name] = database, reader
            if since is None:
                batch.note_since(self._time_of(database, start))

    async def _read_all(self, reader: LogReader, database: Database, batch: Batch) -> None:
        db, last = db_of(database.name), reader.sequence + reader.count_unread()
        began = perf_counter()
        while reader.sequence < last:
            after = reader.position
            entries = reader.read()
            if not entries:
                return
            self._add_bodiless(entries, database.name, batch)
            batch.add(db, entries, after)
            if batch.is_full:
                if reader.count_unread():
                    self._written(database.name)
                return
            if perf_counter() - began > SLICE_S:
                await deferLater(self._runtime.clock, 0)
                began = perf_counter()

    def _add_bodiless(self, entries: list[LogEntry], name: DatabaseName, batch: Batch) -> None:
        """Add a gap for entries without a body; what follows them needs a base."""
        for entry in entries:
            if not is_whole(entry.content):
                at = LogPosition(entry.sequence - 1)
                self._add_gap(batch, name, _NOT_WHOLE.format(n=entry.sequence), at)
                self._upkeep.want(name)

    async def _begin(
        self, reader: LogReader, database: Database, cursor: Cursor | None, batch: Batch
    ) -> None:
        """Begin to read a database that has no cursor, or one at which its log does not go on."""
        name = database.name
        first = database.read(lambda nodes: next(nodes.rows.stored.entries(0), None))
        is_cut = cursor is not None and (
            cursor.is_dropped or (first is not None and first.sequence > cursor.sequence)
        )
        await reader.begin(is_early=True)
        if cursor is not None:
            after = LogPosition(cursor.sequence, cursor.op_id)
            reason = _TOO_LATE if is_cut else _REPLACED
            self._add_gap(batch, name, reason, after)
        elif reader.sequence and self._upkeep.has_base(name):
            gap = Gap(db_of(name), _REMOVED, reader.sequence, self._runtime.now_ms())
            batch.records.append(gap)  # which it is only if the archive lacks what is before
            self._log.info(
                "{label} goes on in the archive after entry {n}, and a base follows. {reason}",
                label=name.label,
                n=reader.sequence,
                reason=_REMOVED,
            )
        if reader.sequence:
            self._upkeep.want(name)
        else:
            self._upkeep.see_new(name)

    def _add_gap(self, batch: Batch, name: DatabaseName, reason: str, after: LogPosition) -> None:
        gap = Gap(db_of(name), reason, after.sequence, self._runtime.now_ms())
        batch.records.append(gap)
        self._log.warn(
            "{label}: the archive has a gap after entry {n}. {reason}",
            label=name.label,
            n=after.sequence,
            reason=reason,
        )

    def _time_of(self, database: Database, after: LogPosition) -> float:
        """Return when the entry after a position was written, by the clock of the reactor."""
        entry = database.read(lambda nodes: next(nodes.rows.stored.entries(after.sequence), None))
        now_ms = self._runtime.now_ms()
        when = 0 if entry is None else describe(entry.content)[0]
        return self._seconds() - max(0, now_ms - (when or now_ms)) / 1000

    # Afterwards.

    async def reached(self, batch: Batch) -> None:
        """Store the cursors of a batch that is durable in the archive."""
        self._sent = None
        saves = [
            Deferred.fromCoroutine(self._save(name, database, reader))
            for name, (database, reader) in batch.readers.items()
        ]
        await DeferredList(saves)

    async def _save(self, name: DatabaseName, database: Database, reader: LogReader) -> None:
        try:
            if self._catalog.find(name) is not database:
                return
            self._upkeep.changed(name)
            async with self._catalog.opened(database, OPEN_S, is_write=True):
                try:
                    reader.reached()
                    await reader.save()
                finally:
                    reader.stop()
        except Exception as error:  # what is not stored is read again
            self._log.debug("A cursor is not stored: {error}", error=error)


def db_of(name: DatabaseName) -> str:
    """Return how an archive names a database."""
    return f"{name.project}/{name.database}"
