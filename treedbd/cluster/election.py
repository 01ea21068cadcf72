"""Which daemon over PostgreSQL reads the change logs for a purpose: that which renews a lease.

`LeaseElection` is the election of daemons that each have a data directory of their own; the row of
the lease is in PostgreSQL (`store.postgresql.cluster.ReaderLeases`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime

from treedbd.cluster.connections import ClusterConnections
from treedbd.database.election import PolledElection
from treedbd.loop import seconds_since_boot
from treedbd.store.engine import StoreUnreachable
from treedbd.store.postgresql.cluster import READER_LEASE_S, ReaderLease, ReaderLeases

T = TypeVar("T")

BELIEF_S: Final = READER_LEASE_S - 1.0
"""Seconds for which a daemon counts as elected after it began a renewal that was confirmed."""


class LeaseElection(PolledElection):
    """The election of daemons over PostgreSQL: the daemon that renews a row reads.

    Theory of operation. The elected daemon renews the lease each second. It counts as elected for
    `BELIEF_S` from the moment before it sent the last renewal that was confirmed, by a clock of its
    own that runs also while the process is stopped or the machine suspended: so it is not elected
    when it goes on, and nothing has to be answered for that.

    Another daemon looks each second, and takes the lease if there is no row, or if the row is the
    same that it saw `READER_LEASE_S` ago. What it saw was renewed before it saw it, and it waits
    longer than the other counts as elected; so two are never elected at a time, whatever steps the
    clocks of the machines make, also that of PostgreSQL: `ends`, which is by that one, is compared
    only with itself. The row decides: it is taken only if it is still what was seen.

    A renewal counts when a standby has confirmed it, as a commit. A daemon that is cut off from
    PostgreSQL cannot renew; one that is cut off with an old primary cannot either, and cannot take
    the lease there. What was seen before PostgreSQL was away is forgotten, since another server may
    answer then: the daemon that had the lease renews it first.
    """

    def __init__(
        self,
        name: str,
        connections: ClusterConnections,
        clock: IReactorTime,
        seconds: Callable[[], float] = seconds_since_boot,
    ) -> None:
        """Be a candidate as the daemon of `connections`."""
        super().__init__(name, clock)
        self._connections = connections
        self._seconds = seconds
        self._elected_until = float("-inf")
        self._has_row = False  # whether the row may be that of this daemon
        self._seen: ReaderLease | None = None
        self._seen_at = 0.0
        self._end_call: IDelayedCall | None = None

    def _is_held(self) -> bool:
        return self._seconds() < self._elected_until

    async def _try(self) -> None:
        try:
            if self._has_row:
                await self._renew()
            else:
                await self._look()
        except StoreUnreachable:
            self._seen = None
            raise

    async def _renew(self) -> None:
        since, daemon = self._seconds(), self._connections.daemon
        self._has_row = await self._run(lambda leases: leases.renew(self._name, daemon))
        self._hold(since if self._has_row else float("-inf"))

    async def _look(self) -> None:
        found = await self._run(lambda leases: leases.find(self._name))
        now, daemon = self._seconds(), self._connections.daemon
        if found is not None and found != self._seen:
            self._seen, self._seen_at = found, now
        elif found is None or now - self._seen_at >= READER_LEASE_S:
            self._has_row = True  # if the answer is lost, a renewal finds whether it was taken
            self._has_row = await self._run(lambda leases: leases.take(self._name, daemon, found))
            self._hold(now if self._has_row else float("-inf"))

    def _hold(self, since: float) -> None:
        """Be elected by a renewal that began at `since`."""
        self._elected_until = since + BELIEF_S
        if self._end_call is not None and self._end_call.active():
            self._end_call.cancel()
        self._await_end()

    def _await_end(self) -> None:
        """Report it if the lease ends before it is renewed, while a renewal is waited for."""
        left = self._elected_until - self._seconds()
        if left > 0 and not self._is_over:
            self._end_call = self._clock.callLater(left, self._await_end)
        else:
            self._judge()

    async def stop(self) -> None:
        """Give it up for good; if PostgreSQL is away, others wait until the lease has ended."""
        await super().stop()
        if self._end_call is not None and self._end_call.active():
            self._end_call.cancel()

    async def _give_up(self) -> None:
        self._elected_until, daemon = float("-inf"), self._connections.daemon
        if self._has_row:
            await self._run(lambda leases: leases.give_up(self._name, daemon))

    def _run(self, work: Callable[[ReaderLeases], T]) -> Deferred[T]:
        return self._connections.run(lambda: work(self._connections.store.readers))
