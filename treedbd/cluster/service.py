"""The part of a daemon that belongs to PostgreSQL: it starts, follows, reports and stops.

Hints of other daemons come over a connection that a thread waits at; all databases that are open
are asked for each half second in any case, since a hint may be lost. Every few seconds this daemon
reports that it is there, compares its clock with PostgreSQL's, and drops old records of databases
that it has written to.
"""

from __future__ import annotations

import contextlib
import pathlib
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.internet.defer import TimeoutError as DeferredTimeoutError
from twisted.internet.task import LoopingCall
from twisted.logger import Logger

from treedbd import __version__
from treedbd.cluster.connections import ClusterConnections
from treedbd.cluster.files import ClusterFiles
from treedbd.cluster.leased_owner import LeasedOwner, MakeFile
from treedbd.database.files import CatalogHooks
from treedbd.database.open_databases import OpenBounds
from treedbd.database.requests import Unavailable
from treedbd.database.runtime import OtherProcesses, Runtime
from treedbd.store.changelog import FOLLOWED_ENTRIES
from treedbd.store.engine import StoreUnreachable
from treedbd.store.postgresql.connection import PostgresqlSettings
from treedbd.store.postgresql.status import (
    check_cluster,
    clock_offset,
    forget_daemon,
    send_heartbeat,
    trim,
)

POLL_S: Final = 0.5
"""Seconds between two questions how far all open databases are."""
HINT_WAIT_S: Final = 1.0
HEARTBEAT_S: Final = 5.0
"""Seconds between two reports of a daemon."""
MAX_AHEAD_S: Final = 60.0
"""Seconds by which the clock of a daemon may be ahead of PostgreSQL's, or it takes no writes."""
TRIM_S: Final = 60.0
"""Seconds between two times that old records are dropped."""
KEPT_AGE_S: Final = 600.0
"""Seconds for which every record is kept, for daemons that have been away."""
STOP_S: Final = 1.0
"""Seconds for which a stop waits for PostgreSQL, twice."""
_PAUSE_S: Final = 0.5


class ClusterService:
    """What one daemon does for its databases in PostgreSQL.

    Attributes:
        connections: the connections.

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
        self._files: ClusterFiles | None = None
        self._owner: LeasedOwner | None = None
        self._reactor = reactor
        self._retain = retain
        self._shown_at = reactor.seconds()
        self._is_over = threading.Event()
        self._loops = [
            (POLL_S, LoopingCall(self._poll)),
            (HEARTBEAT_S, LoopingCall(self._report)),
            (TRIM_S, LoopingCall(self._trim)),
        ]
        self._thread = threading.Thread(target=self._wait_for_hints, name="hints", daemon=True)

    def make_owner(self, make_file: MakeFile) -> LeasedOwner:
        """Return the owner of the sessions of this daemon."""
        self._owner = LeasedOwner(self.connections, make_file, self._reactor)
        return self._owner

    def make_files(
        self,
        folder: pathlib.Path,
        bounds: OpenBounds,
        runtime: Runtime,
        catalog: CatalogHooks,
        others: OtherProcesses | None,
    ) -> ClusterFiles:
        """Return the files of a catalog."""
        self._files = ClusterFiles(self.connections, folder, bounds, runtime, catalog, others)
        return self._files

    def run_in_thread(self, work: Callable[[], None]) -> Deferred[None]:
        """Run what blocks in a thread that nothing waits for at the end of the process."""
        return self.connections.run(work)

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
        """Follow no more, and close all connections; return False if one does not end in time."""
        self._is_over.set()
        for _, loop in self._loops:
            if loop.running:
                loop.stop()
        forgetting = Deferred.fromCoroutine(self._run_quietly(self._forget))
        with contextlib.suppress(DeferredTimeoutError):
            await forgetting.addTimeout(STOP_S, self._reactor)
        self.connections.stop_asking()
        closed: Deferred[None] = Deferred()

        def close() -> None:
            self.connections.close()
            self.connections.call_in_reactor(closed.callback, None)

        threading.Thread(target=close, name="close", daemon=True).start()
        try:
            await closed.addTimeout(STOP_S, self._reactor)
        except DeferredTimeoutError:
            return False
        return True

    def close_at_once(self) -> None:
        """Close all connections in this thread; nothing may be under way."""
        self.connections.close()

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
                self.connections.call_in_reactor(self._hinted, dbs)

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
            return  # that is noticed by other means

    def _judge_clock(self, ahead: float) -> None:
        problem = None
        if ahead > MAX_AHEAD_S:
            problem = f"The clock of this daemon is {ahead:.0f} s ahead of PostgreSQL's."
        if problem is not None and self.connections.clock_problem is None:
            self._log.error("{problem} No writes are accepted.", problem=problem)
        self.connections.clock_problem = problem

    async def _trim(self) -> None:
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
