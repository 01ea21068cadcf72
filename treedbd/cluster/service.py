"""The part of a daemon that belongs to PostgreSQL: it starts, follows, reports and stops.

`ClusterService` receives the hints of other daemons over a connection on which a thread waits. A
hint may be lost, so the states of all open databases are read each half second too. Every few
seconds this daemon reports that it is alive, compares its clock with PostgreSQL's, and drops old
records of databases that it has written to. Its sessions belong to a `LeasedOwner`.
"""

from __future__ import annotations

import contextlib
import pathlib
import threading
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.defer import TimeoutError as DeferredTimeoutError
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.internet.task import LoopingCall
from twisted.logger import Logger

from treedbd import __version__
from treedbd.cluster.connections import ClusterConnections
from treedbd.cluster.election import LeaseElection
from treedbd.cluster.files import ClusterFiles
from treedbd.cluster.volatile import VolatileThreads
from treedbd.database.catalog import Catalog
from treedbd.database.open_databases import OpenBounds
from treedbd.database.requests import Unavailable
from treedbd.database.runtime import OtherProcesses, Runtime
from treedbd.database.session_owners import DeadOwner, NotedDatabases, OwnerFile
from treedbd.database.volatile_exchange import VolatileExchange
from treedbd.names import DatabaseName
from treedbd.store.changelog import FOLLOWED_ENTRIES
from treedbd.store.engine import StoreUnreachable
from treedbd.store.postgresql.cluster import (
    LEASE_S,
    LeaseOver,
    Leases,
    check_cluster,
    clock_offset,
    forget_daemon,
    send_heartbeat,
    trim,
)
from treedbd.store.postgresql.connection import PostgresqlSettings
from treedbd.store.postgresql.removal import remove_left_rows

T = TypeVar("T")

POLL_S: Final = 0.5
"""Seconds between two reads of the states of all open databases."""
HINT_WAIT_S: Final = 1.0
HEARTBEAT_S: Final = 5.0
"""Seconds between two reports of a daemon."""
MAX_AHEAD_S: Final = 60.0
"""If its clock is more seconds ahead of PostgreSQL's, a daemon refuses writes."""
TRIM_S: Final = 60.0
"""Seconds after which old records are dropped again."""
KEPT_AGE_S: Final = 600.0
"""Seconds for which every record is kept, for daemons that were cut off."""
STOP_S: Final = 1.0
"""Seconds for which a stop waits for PostgreSQL, twice."""
HEADS_S: Final = 1.0
"""Seconds between two looks at how far the logs of all databases reach, if something reads them."""
_PAUSE_S: Final = 0.5

RENEW_S: Final = LEASE_S / 3
"""Seconds between two renewals."""
RETRY_S: Final = 1.0
"""Seconds until a renewal is tried again that has failed."""
GRACE_S: Final = RENEW_S + 2.0
"""Seconds for which PostgreSQL must have answered without a break before a daemon judges others."""
_BREAK_S: Final = 4.0
"""If answers are more seconds apart, that is a break."""
OWNERLESS_S: Final = 30.0
"""Seconds between two searches for writes without an owner, as long as there may be others."""
ENDED_AT_ONCE: Final = 50
"""Sessions that are ended in one turn of the reactor."""
MakeFile = Callable[[], OwnerFile]


class ClusterService:
    """The work of one daemon for its databases in PostgreSQL.

    Attributes:
        connections: the connections.
        volatile: sends what is volatile to other daemons.

    """

    _log = Logger()

    def __init__(
        self, settings: PostgresqlSettings, reactor: Any, *, retain: int, is_strict: bool
    ) -> None:
        """Prepare; nothing is connected yet. Logs keep `retain` entries."""
        retain = max(retain, FOLLOWED_ENTRIES)
        self.connections: Final = ClusterConnections(
            settings, reactor, retain=retain, is_strict=is_strict
        )
        self.volatile: Final = VolatileThreads(self.connections, self._find_exchange, reactor)
        self._files: ClusterFiles | None = None
        self._runtime: Runtime | None = None
        self._catalog: Catalog | None = None
        self._owner: LeasedOwner | None = None
        self._reactor = reactor
        self._retain = retain
        self._shown_at = reactor.seconds()
        self._is_over = threading.Event()
        self._loops = [
            (POLL_S, LoopingCall(self._poll)),
            (HEARTBEAT_S, LoopingCall(self._report)),
            (TRIM_S, LoopingCall(self._trim)),
            (HEADS_S, LoopingCall(self._look_at_heads)),
        ]
        self._heads: dict[DatabaseName, int] = {}
        self._thread = threading.Thread(target=self._wait_for_hints, name="hints", daemon=True)

    def make_owner(self, make_file: MakeFile) -> LeasedOwner:
        """Return the owner of the sessions of this daemon."""
        self._owner = LeasedOwner(self.connections, make_file, self._reactor)
        return self._owner

    def make_election(self, name: str) -> LeaseElection:
        """Return the election of the daemon that reads for a purpose; stop it before this."""
        return LeaseElection(name, self.connections, self._reactor)

    async def find_hooked(self, names: Sequence[DatabaseName]) -> set[DatabaseName]:
        """Return which of some databases have hooks of their own; none of them is opened here.

        Raises `StoreUnreachable`.
        """
        found = await self.connections.run(self.connections.store.projects.hooked)
        return found.intersection(names)

    def make_files(
        self,
        folder: pathlib.Path,
        bounds: OpenBounds,
        runtime: Runtime,
        catalog: Catalog,
        _: OtherProcesses | None,
    ) -> ClusterFiles:
        """Return the files of a catalog."""
        self._runtime, self._catalog = runtime, catalog
        self._files = ClusterFiles(
            connections=self.connections,
            folder=folder,
            bounds=bounds,
            runtime=runtime,
            catalog=catalog,
        )
        return self._files

    def lag_ms(self) -> int:
        """Return how old, in milliseconds, what reads show may be."""
        return int((self._reactor.seconds() - self._shown_at) * 1000)

    def connect(self) -> None:
        """Connect, and check the server; blocks.

        Raises `StoreUnreachable` or `CannotOpenStore`.
        """
        self.connections.connect()
        self._judge_clock(clock_offset(self.connections.store.pool))  # before the first write
        report = check_cluster(self.connections.settings)
        for warning in report.warnings:
            self._log.warn("{warning}", warning=warning)
        self._log.info(
            "PostgreSQL {version}, {count} standbys; reads are {reads}. This daemon is {daemon}.",
            version=report.server_version,
            count=report.standbys,
            reads="strict" if self.connections.is_strict else "local",
            daemon=self.connections.daemon,
        )

    def start(self) -> None:
        """Begin to follow the others."""
        for interval, loop in self._loops:
            loop.clock = self._reactor
            loop.start(interval).addErrback(
                lambda failure: self._log.failure("A task of the cluster has ended.", failure)
            )
        self._thread.start()

    async def stop(self) -> bool:
        """Stop following, and close all connections; return False if one does not end in time."""
        self._is_over.set()
        self.volatile.stop()
        for _, loop in self._loops:
            if loop.running:
                loop.stop()
        forgetting = Deferred.fromCoroutine(self._run_quietly(self._forget))
        with contextlib.suppress(DeferredTimeoutError):
            await forgetting.addTimeout(STOP_S, self._reactor)
        self.connections.stop_queries()
        closed: Deferred[None] = Deferred()

        def close() -> None:
            self.connections.close()
            self._reactor.callFromThread(closed.callback, None)

        threading.Thread(target=close, name="close", daemon=True).start()
        try:
            await closed.addTimeout(STOP_S, self._reactor)
        except DeferredTimeoutError:
            return False
        return True

    def _find_exchange(self, name: DatabaseName) -> VolatileExchange | None:
        return None if self._catalog is None else self._catalog.volatile_exchange(name)

    def _forget(self) -> None:
        if self._owner is not None:
            self._owner.end_lease()
        forget_daemon(self.connections.store.pool, self.connections.daemon)

    def _wait_for_hints(self) -> None:
        while not self._is_over.is_set():
            try:
                dbs = self.connections.store.tail.wait(HINT_WAIT_S)
            except StoreUnreachable:
                self._is_over.wait(_PAUSE_S)
                continue
            if dbs:
                self._reactor.callFromThread(self._hinted, dbs)

    def _hinted(self, dbs: set[int]) -> None:
        replicas = {} if self._files is None else self._files.replicas()
        for db in dbs & replicas.keys():
            replicas[db].hinted()

    async def _poll(self) -> None:
        try:
            if self._files is not None:
                self._shown_at = await self._files.follow_all(self._reactor.seconds())
        except Unavailable:
            return  # `/.health` says so

    async def _report(self) -> None:
        connections = self.connections
        revs = {}
        if self._files is not None:
            revs = {db: each.rev or 0 for db, each in self._files.replicas().items()}

        def report() -> float:
            pool = connections.store.pool
            send_heartbeat(pool, connections.daemon, __version__, revs, connections.store.counts)
            return clock_offset(pool)

        try:
            self._judge_clock(await connections.run(report))
        except StoreUnreachable:
            return  # `connections.problem` reports it

    def _judge_clock(self, ahead: float) -> None:
        problem = None
        if ahead > MAX_AHEAD_S:
            problem = f"The clock of this daemon is {ahead:.0f} s ahead of PostgreSQL's."
        if problem is not None and self.connections.clock_problem is None:
            self._log.error("{problem} No writes are accepted.", problem=problem)
        self.connections.clock_problem = problem

    async def _look_at_heads(self) -> None:
        """Make those who read the logs look at databases that other daemons have written.

        These need not be open here, or known. Only the readers of this process need to know.
        """
        if self._runtime is None or self._catalog is None or not self._runtime.news:
            return
        try:
            heads = await self.connections.run(self.connections.store.projects.heads)
        except StoreUnreachable:
            return
        for name, head in heads.items():
            if head and self._heads.get(name) != head:
                self._catalog.created(name)
                for written in self._runtime.news:
                    written(name)
        self._heads = heads

    async def _trim(self) -> None:
        await self._run_quietly(partial(remove_left_rows, self.connections.store.pool))
        replicas = {} if self._files is None else self._files.replicas()
        for db, replica in replicas.items():
            if replica.was_written:
                replica.was_written = False
                pool = self.connections.store.pool
                await self._run_quietly(
                    partial(trim, pool, db, retain=self._retain, age_s=KEPT_AGE_S)
                )

    async def _run_quietly(self, work: Any) -> None:
        try:
            await self.connections.run(work)
        except StoreUnreachable:
            return  # it is done again, or not important


class LeasedOwner:
    """A `SessionOwner` that lives as long as its lease is renewed; of the reactor's thread.

    Theory of operation. The leases are in PostgreSQL (`store.postgresql.cluster`), so other daemons
    find the writes that this one has left, even if its data directory is lost. It also keeps the
    file of an owner (`database.session_owners`): by that file the next process in the same data
    directory finds at once, without waiting for the lease, that this one has ended.

    Others may have found this owner dead while it lives, because it was stopped or cut off, and may
    have done the writes of its sessions. Then it becomes another owner, with another id, and ends
    all sessions that have such writes: their clients connect and set them again. The writes stored
    under the old id are done once, by the first daemon that finds them.

    While PostgreSQL cannot be reached, no daemon can renew. So a daemon finds others dead only if
    it has reached PostgreSQL without a break for longer than an owner needs to renew (`GRACE_S`).
    """

    _log = Logger()
    must_learn = True

    def __init__(
        self, connections: ClusterConnections, make_file: MakeFile, clock: IReactorTime
    ) -> None:
        """Begin no lease before the first write; `make_file` makes the file of a new owner."""
        self._connections = connections
        self._make_file = make_file
        self._file = make_file()
        self._clock = clock
        self._noted = NotedDatabases(self._record)
        self._ends: dict[tuple[DatabaseName, str], Callable[[], object] | None] = {}
        self._dead: set[str] = set()
        self._has_begun = False
        self._next_renewal: IDelayedCall | None = None
        self._contact_since: float | None = None
        self._contact_at = 0.0
        self._ownerless_at: float | None = 0.0
        self._is_over = False

    @property
    def id(self) -> str:
        """The id in the rows of its writes."""
        return self._file.id

    # Its own lease.

    def note(self, name: DatabaseName) -> Deferred[None] | None:
        """Record that it has writes in a database; None if that is durable already."""
        return self._noted.note(name)

    async def _record(self, name: DatabaseName) -> None:
        """List a database in PostgreSQL and in the file; raise OSError or `StoreUnreachable`."""
        while not self._is_over:
            file = self._file
            try:
                await self._note_for(file, name)
            except OSError:
                if file is self._file:  # else it was closed meanwhile
                    raise
            except LeaseOver:
                self._begin_again(file.id)
            if file is self._file:
                break
        if self._is_over:
            raise StoreUnreachable("The daemon is stopping.")
        if self._next_renewal is None:
            self._next_renewal = self._clock.callLater(RENEW_S, self._renew)

    async def _note_for(self, file: OwnerFile, name: DatabaseName) -> None:
        if (noting := file.note(name)) is not None:
            await noting
        begins = not self._has_begun
        try:
            await self._run(lambda leases: leases.list_database(file.id, name, begins=begins))
        except StoreUnreachable:
            # The lease may have begun, and may end before the next try. An id is never used again.
            if begins and file is self._file and not self._has_begun:
                self._change_id()
            raise
        self._has_begun |= file is self._file

    def _change_id(self) -> None:
        former, self._file = self._file, self._make_file()
        self._noted.forget_all()
        self._has_begun = False
        former.close_later()

    def _renew(self) -> None:
        Deferred.fromCoroutine(self._renew_or_begin_again())

    async def _renew_or_begin_again(self) -> None:
        owner, pause = self.id, RENEW_S
        try:
            await self._run(lambda leases: leases.renew(owner))
        except LeaseOver:
            self._begin_again(owner)
        except StoreUnreachable:
            pause = RETRY_S
        except Exception:
            self._log.failure("The lease of this daemon could not be renewed.")
            pause = RETRY_S
        self._next_renewal = None
        if not (self._noted.is_empty or self._is_over):
            self._next_renewal = self._clock.callLater(pause, self._renew)

    def _begin_again(self, owner: str) -> None:
        """Be another owner, and end the sessions whose writes others may have done."""
        if owner != self.id or self._is_over:
            return
        ends, self._ends = self._ends, {}
        self._log.warn(
            "Other daemons have found this one dead, because it could not reach PostgreSQL in "
            "time: what {count} sessions have left for their end may be written already. They are "
            "ended; their clients connect again.",
            count=len(ends),
        )
        self._change_id()
        self._end_some([end for end in ends.values() if end is not None])

    def _end_some(self, ends: Sequence[Callable[[], object]]) -> None:
        for end in ends[:ENDED_AT_ONCE]:
            try:
                end()
            except Exception:
                self._log.failure("A session could not be ended.")
        if left := ends[ENDED_AT_ONCE:]:
            self._clock.callLater(0, self._end_some, left)

    def keep(
        self, name: DatabaseName, session: str, end: Callable[[], object] | None = None
    ) -> None:
        """Record that a session may have writes that are not done; `end` ends the session."""
        self._ends[name, session] = end
        self._file.keep(name, session)

    def forget(self, name: DatabaseName, session: str) -> None:
        """Record that a session has none."""
        self._ends.pop((name, session), None)
        self._file.forget(name, session)

    def close(self) -> None:
        """End it; its lease is ended by `end_lease`."""
        self._is_over = True
        if self._next_renewal is not None and self._next_renewal.active():
            self._next_renewal.cancel()
        self._file.close()

    def end_lease(self) -> None:
        """End the lease of an owner that is closed; blocks. Raises `StoreUnreachable`."""
        if self._has_begun:
            self._connections.store.leases.end(self.id)

    # Others.

    def is_dead(self, owner: str) -> bool:
        """Return whether an owner is known to be dead: by `learn`, or by its file."""
        return owner in self._dead or self._file.is_dead(owner)

    def may_be_dead(self, owner: str) -> bool:
        """Return whether it is another owner, of which `learn` has to find out."""
        return owner != self.id

    async def learn(self, owners: Collection[str]) -> None:
        """Find out which of some owners are dead, for good."""
        unknown = [owner for owner in owners if owner != self.id and not self.is_dead(owner)]
        if unknown:
            self._dead |= await self._run(lambda leases: leases.which_are_dead(unknown))

    async def find_dead(self) -> Sequence[DeadOwner]:
        """Return dead owners: in this data directory, in PostgreSQL, and those without a row.

        While PostgreSQL cannot be reached, those of the data directory.
        """
        found: list[DeadOwner] = list(await self._file.find_dead())
        own, may_judge = self.id, self._may_judge()
        try:
            leases = await self._run(lambda leases: leases.find_dead(own, may_judge=may_judge))
            found += [_DeadLeaseOwner(self, each.owner, each.names) for each in leases]
            found += await self._find_ownerless()
        except StoreUnreachable:
            self._contact_since = None
        else:
            self._note_contact()
        return found

    def _may_judge(self) -> bool:
        since, now = self._contact_since, self._clock.seconds()
        has_contact = since is not None and now - self._contact_at < _BREAK_S
        return has_contact and since is not None and now - since >= GRACE_S

    def _note_contact(self) -> None:
        now = self._clock.seconds()
        if self._contact_since is None or now - self._contact_at >= _BREAK_S:
            self._contact_since = now
        self._contact_at = now

    async def _find_ownerless(self) -> list[DeadOwner]:
        """Return the writes of owners without a row in PostgreSQL, until none are left."""
        if self._ownerless_at is None or self._clock.seconds() < self._ownerless_at:
            return []
        names = await self._run(lambda leases: leases.find_ownerless())
        self._ownerless_at = None if names == [] else self._clock.seconds() + OWNERLESS_S
        return [_DeadLeaseOwner(self, None, names)] if names else []

    async def forget_owner(self, owner: str) -> None:
        """Forget a dead owner that has left nothing; raise `StoreUnreachable`."""
        await self._run(lambda leases: leases.forget(owner))

    def _run(self, work: Callable[[Leases], T]) -> Deferred[T]:
        return self._connections.run(lambda: work(self._connections.store.leases))


@attrs.frozen
class _DeadLeaseOwner:
    """A dead owner in PostgreSQL; `owner` is None for those without a row there."""

    of: LeasedOwner
    owner: str | None
    names: Sequence[DatabaseName]

    def __str__(self) -> str:
        return f"PostgreSQL's row of the owner {self.owner}"

    def read_names(self) -> Sequence[DatabaseName]:
        """Return the databases that are listed."""
        return self.names

    async def done(self, *, is_all: bool) -> None:
        """Forget the owner; PostgreSQL keeps it if writes of it are left, served here or not."""
        if self.owner is not None:
            await self.of.forget_owner(self.owner)
