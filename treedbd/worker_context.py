"""What a service is given that is one of several workers, which serve the same databases."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol

from twisted.internet.interfaces import IListeningPort, IProtocolFactory

from treedbd.config.certificate import ServerContext
from treedbd.config.endpoints import Endpoint
from treedbd.database.other_processes import RulesExchange
from treedbd.database.problems import Problem
from treedbd.loop import Counting, Levelling
from treedbd.metrics.board import SampleBoard
from treedbd.names import DatabaseName
from treedbd.store.lock import DirectoryLock
from treedbd.web.activity import ProjectActivity


class WorkerContext(Protocol):
    """The other workers, and what they share.

    Attributes:
        checks_files: whether this one, and no other, checks files for damage.
        lock: that of the data directory, which their parent holds.
        counts: the connections and streams of them all.
        levels: what the callers of them all have used of their rates.
        samples: what each of them counts for metrics.

    """

    @property
    def checks_files(self) -> bool:
        """Whether this worker checks files for damage."""
        ...

    @property
    def lock(self) -> DirectoryLock:
        """The lock of the data directory."""
        ...

    @property
    def samples(self) -> SampleBoard:
        """What the workers show each other of what they count for metrics."""
        ...

    @property
    def counts(self) -> Counting:
        """How many connections and streams all workers have."""
        ...

    @property
    def levels(self) -> Levelling:
        """What the callers of all workers have used of their rates."""
        ...

    def adopt_port(
        self, endpoint: Endpoint, factory: IProtocolFactory, context: ServerContext | None
    ) -> IListeningPort:
        """Accept connections of an endpoint that the parent has opened."""
        ...

    def adopt_ops_port(
        self, endpoint: Endpoint, factory: IProtocolFactory, context: ServerContext | None
    ) -> IListeningPort:
        """Accept connections of an endpoint for operators that the parent has opened."""
        ...

    def send_hint(self, name: DatabaseName) -> None:
        """Tell the others that this worker has written a database."""
        ...

    def find_problems(self) -> Awaitable[list[Problem]]:
        """Find what keeps the others from serving databases as they should."""
        ...

    def find_activity(self, project: str) -> Awaitable[list[ProjectActivity]]:
        """Find what clients do at the others with the databases of a project."""
        ...

    def tell_damaged(self, name: DatabaseName, *, refuses_reads: bool) -> None:
        """Let the others refuse a database that this worker has found damaged."""
        ...

    def rules_of(self, project: str) -> RulesExchange:
        """Return how the workers agree on the rules of a project."""
        ...
