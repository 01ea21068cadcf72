"""Which process removes the nodes whose time is over (`.ttl`), and when.

Theory of operation. One process of those that serve the databases is elected (`election`), once
any project has rules with a `.ttl`; before that nothing is done here. It knows of each database
when the next node may go. It reads that from the index of times (`expiry`) after each hint that the
database was written (`Runtime.news`), and of all databases of such projects when it is elected,
when the rules change, and at times if other processes write too: their hints may be lost. Databases
are opened for that, one after the other.

What is due is removed by writes that wait in the queue of their database as all others do. Each
removes as many nodes as take a few milliseconds; after it the database is left to others for a
while, which is longer while users write. So a million nodes that go at once delay no other
writer for more than that, and what is due in other databases is removed meanwhile.

A process that accepts no writes, as a standby, removes nothing (`Runtime.gate`): it receives what
the first removes, and begins when it is promoted.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from heapq import nsmallest
from operator import itemgetter
from typing import Final

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall
from twisted.internet.task import LoopingCall, deferLater
from twisted.logger import Logger

from treedbd.database.catalog import Catalog
from treedbd.database.database import Database
from treedbd.database.election import Election
from treedbd.database.expiry import PostponeExpired, RemoveExpired
from treedbd.database.requests import (
    Caller,
    Outcome,
    Task,
    TooManyEvents,
    Unavailable,
    UnknownDatabase,
    Write,
)
from treedbd.database.runtime import Runtime
from treedbd.errors import in_one_line
from treedbd.limits import DEFAULT_TIMEOUT_S
from treedbd.names import DatabaseName, Origin
from treedbd.store.engine import DiskFull, StoreFailed
from treedbd.tree.edit import make_remove
from treedbd.tree.types import ROOT, Place

PURPOSE: Final = "expiry"
"""The name of the election, and how the sweep is named in the change log and the audit."""
LOOK_S: Final = 0.25
"""Seconds between two looks at what was written and what is due."""
ALL_S: Final = 600.0
"""Seconds after which all databases are looked at that other processes may have written."""
RETRY_S: Final = 5.0
"""Seconds until what could not be done is tried again."""
POSTPONED_MS: Final = 60_000
"""Milliseconds until a node that a write cannot remove is tried again."""
MOST_NODES: Final = 512
FIRST_NODES: Final = 64
"""Nodes that one write removes at most, and the first one."""
WRITE_S: Final = 0.004
"""Seconds that one write may take to be applied; the number of nodes is adapted to it."""
RUN_WRITES: Final = 32
"""Writes to one database before other databases are swept."""
SWEEPS: Final = 4
"""Databases that are swept at the same time."""
BUSY_PAUSE: Final = 3.0
IDLE_PAUSE: Final = 0.25
"""How many times as long as a write took the database is left to others: if others write, and if
none do."""
_NOTHING: Final = make_remove(Place(ROOT))
_CALLER: Final = Caller(None, is_admin=True, origin=Origin("", None, PURPOSE))


class Expirer:
    """Removes the nodes whose time is over, while this process is elected; of the reactor."""

    _log = Logger()

    def __init__(
        self, catalog: Catalog, runtime: Runtime, make_election: Callable[[], Election]
    ) -> None:
        """Remove nodes of the databases of a `catalog`, once any rules have a `.ttl`."""
        self._catalog, self._runtime, self._clock = catalog, runtime, runtime.clock
        self._make_election = make_election
        self._election: Election | None = None
        self._looking = LoopingCall(self._look)
        self._looking.clock = self._clock
        self._running: Deferred[LoopingCall] | None = None
        self._projects: set[str] = set()
        self._must_look_at_all = False
        self._looked_at = 0.0
        self._written: set[DatabaseName] = set()
        self._due: dict[DatabaseName, int] = {}
        self._delayed: dict[DatabaseName, float] = {}
        self._postponed: dict[DatabaseName, tuple[int, int]] = {}
        self._failures: dict[DatabaseName, str] = {}
        self._sizes: dict[DatabaseName, int] = {}
        self._sweeping: dict[DatabaseName, Deferred[None]] = {}
        self._next_sweep: IDelayedCall | None = None
        self._is_over = False

    def start(self) -> None:
        """Find out which projects have such rules, and follow their changes."""
        self._runtime.rules_news.append(self._note_rules)
        self._runtime.slices.start(self._find_rules())

    async def stop(self) -> None:
        """End after the writes under way, and let another process go on."""
        self._is_over = True
        if self._next_sweep is not None:
            self._next_sweep.cancel()
            self._next_sweep = None
        if self._note_rules in self._runtime.rules_news:
            self._runtime.rules_news.remove(self._note_rules)
        if self._looking.running and self._running is not None:
            self._looking.stop()
            await self._running
        for sweep in list(self._sweeping.values()):
            await sweep
        if self._election is not None:
            self._runtime.news.remove(self._note)
            await self._election.stop()

    def lag_s(self) -> float:
        """Return how late the oldest node is that is due, as far as this process knows."""
        postponed = (due for due, _ in self._postponed.values())
        first = min((*self._due.values(), *postponed), default=None)
        return 0.0 if first is None else max(0.0, (self._runtime.now_ms() - first) / 1000)

    # What is known.

    def _find_rules(self) -> Generator[None, None, None]:
        """Read the rules of all projects, in steps."""
        for project in (yield from self._catalog.projects()):
            self._note_rules(project.name)
            yield

    def _note_rules(self, project: str) -> None:
        """Begin, or look at the databases of a project, if its rules have a `.ttl`."""
        try:
            has_expiry = self._catalog.rules(project).current.expiry is not None
        except (Unavailable, UnknownDatabase):
            return  # when they are read, this is called again
        if self._is_over or not has_expiry:
            self._projects.discard(project)
            return
        self._projects.add(project)
        self._must_look_at_all = True
        if self._election is None:
            self._runtime.news.append(self._note)
            self._election = self._make_election()
            self._election.start(self._election_changed)
            self._running = self._looking.start(LOOK_S, now=False)

    def _election_changed(self) -> None:
        self._must_look_at_all = True

    def _note(self, name: DatabaseName) -> None:
        if name.project in self._projects:
            self._written.add(name)

    @property
    def _is_active(self) -> bool:
        """Whether this process removes nodes at this moment."""
        is_elected = self._election is not None and self._election.is_elected
        return is_elected and not self._is_over and self._runtime.gate.refusal is None

    # Looking.

    def _look(self) -> Deferred[None]:
        return Deferred.fromCoroutine(self._look_at_all())

    async def _look_at_all(self) -> None:
        try:
            if not self._is_active:
                self._written.clear()
                self._due.clear()
                self._postponed.clear()
                self._must_look_at_all = True
                return
            await self._find_databases()
            written, self._written = self._written, set()
            for name in written:
                if self._is_active:
                    await self._look_at(name)
            self._sweep_due()
        except Exception:
            self._log.failure("Nodes whose time is over could not be looked for.")

    async def _find_databases(self) -> None:
        """Note all databases that may have nodes which go, if those are not known."""
        now = self._clock.seconds()
        is_due = self._runtime.followed_bytes and now - self._looked_at >= ALL_S
        if not (self._must_look_at_all or is_due):
            return
        self._must_look_at_all, self._looked_at = False, now
        for project in await self._runtime.slices.run(self._catalog.projects()):
            if project.name not in self._projects:
                continue
            refreshing = self._catalog.refresh(project.name)
            if refreshing is not None:
                await refreshing
            self._written.update(self._catalog.names(project))

    async def _look_at(self, name: DatabaseName) -> None:
        """Read when the next node of a database may go."""
        try:
            if not self._catalog.has_data(name):
                return
            database = self._catalog.find(name)
            async with self._catalog.opened(database, DEFAULT_TIMEOUT_S):
                self._know_next(database)
            self._failures.pop(name, None)
        except UnknownDatabase:
            self._due.pop(name, None)
            self._postponed.pop(name, None)
        except Exception as error:
            self._fail(name, error)
            self._written.add(name)

    def _know_next(self, database: Database) -> None:
        due = database.expiry.next_due()
        _, until = self._postponed.get(database.name, (0, 0))
        if due is None or due > until:
            self._postponed.pop(database.name, None)  # what was postponed is gone, or written again
        if due is None:
            self._due.pop(database.name, None)
        else:
            self._due[database.name] = due
        if database.expiry.is_building:
            self._written.add(database.name)  # entries come without a hint

    def _fail(self, name: DatabaseName, error: Exception) -> None:
        """Log once why a database cannot be swept, and try again later."""
        self._delayed[name] = self._clock.seconds() + RETRY_S
        reason = in_one_line(str(error)) or type(error).__name__
        if self._failures.get(name) != reason:
            self._failures[name] = reason
            self._log.warn(
                "{label}: nodes whose time is over are not removed yet: {why}",
                label=name.label,
                why=reason,
            )

    # Sweeping.

    def _sweep_due(self) -> None:
        """Begin to sweep the databases in which something is due, the earliest first."""
        now_ms, now = self._runtime.now_ms(), self._clock.seconds()
        due = [
            (time, name)
            for name, time in self._due.items()
            if time <= now_ms and name not in self._sweeping and self._delayed.get(name, 0.0) <= now
        ]
        for _, name in nsmallest(SWEEPS - len(self._sweeping), due, key=itemgetter(0)):
            self._delayed.pop(name, None)
            sweep = self._sweeping[name] = Deferred.fromCoroutine(self._sweep(name))
            sweep.addBoth(self._swept, name)

    def _swept(self, _: object, name: DatabaseName) -> None:
        self._sweeping.pop(name, None)
        if self._next_sweep is None and not self._is_over:
            self._next_sweep = self._clock.callLater(0, self._sweep_next)

    def _sweep_next(self) -> None:
        self._next_sweep = None
        if self._is_active:
            self._sweep_due()

    async def _sweep(self, name: DatabaseName) -> None:
        """Remove some of what is due in a database; never fails."""
        try:
            database = self._catalog.find(name)
            async with self._catalog.opened(database, DEFAULT_TIMEOUT_S, is_write=True):
                await self._sweep_open(database)
                self._know_next(database)
            self._failures.pop(name, None)
        except UnknownDatabase:
            self._due.pop(name, None)
            self._sizes.pop(name, None)
            self._postponed.pop(name, None)
        except Exception as error:
            self._fail(name, error)

    async def _sweep_open(self, database: Database) -> None:
        name, last = database.name, 0
        for _ in range(RUN_WRITES):
            if not self._is_active:
                return
            task = RemoveExpired(database.expiry, self._sizes.get(name, FIRST_NODES))
            await self._remove(database, task)
            if not task.has_more:
                return
            is_busy = last < task.began or bool(self._runtime.statistics.waiting_writes)
            last = task.ended
            await deferLater(self._clock, (BUSY_PAUSE if is_busy else IDLE_PAUSE) * task.seconds)

    async def _remove(self, database: Database, task: RemoveExpired) -> None:
        """Do one write; if it is refused, remove one node at a time, and postpone that one."""
        name = database.name
        try:
            await self._write(database, task)
        except (Unavailable, StoreFailed, DiskFull):
            raise
        except Exception as error:
            task.has_more = True
            if task.limit > 1:
                # One node may have too many events; many nodes together have them more easily.
                self._sizes[name] = task.limit // 2 if isinstance(error, TooManyEvents) else 1
                return
            if isinstance(error, TooManyEvents):
                await self._remove_without_events(database, error)
                return
            self._fail(name, error)
            await self._postpone(database, self._runtime.now_ms() - task.late_ms)
            return
        self._sizes[name] = _next_size(task)
        statistics = self._runtime.statistics
        statistics.expired_nodes += task.removed
        if task.removed:
            statistics.expiry_seconds.observe(task.late_ms / 1000)

    async def _postpone(self, database: Database, due: int) -> None:
        """Try the first node that is due again later; it was due at that time, or after it."""
        later = self._runtime.now_ms() + POSTPONED_MS
        await self._write(database, PostponeExpired(database.expiry, later))
        earlier, _ = self._postponed.get(database.name, (due, 0))
        self._postponed[database.name] = (min(earlier, due), later)

    async def _remove_without_events(self, database: Database, error: Exception) -> None:
        """Remove a node of which hooks would get too many events."""
        self._log.warn(
            "{label}: a node whose time is over goes without events for hooks: {why}",
            label=database.name.label,
            why=str(error),
        )
        await self._write(database, RemoveExpired(database.expiry, 1), has_events=False)

    def _write(
        self, database: Database, task: Task, *, has_events: bool = True
    ) -> Deferred[Outcome]:
        write = Write(
            _NOTHING,
            self._runtime.now_ms(),
            _CALLER,
            wants_echo=False,
            task=task,
            has_events=has_events,
        )
        return database.write(write)


def _next_size(task: RemoveExpired) -> int:
    """Return how many nodes the next write may remove, so that it takes about `WRITE_S`."""
    if task.seconds > WRITE_S:
        return max(1, task.limit // 2)
    if task.has_more and task.seconds < WRITE_S / 2:
        return min(MOST_NODES, task.limit + task.limit // 2 + 1)
    return task.limit
