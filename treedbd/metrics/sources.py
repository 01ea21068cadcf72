"""What metrics are read of: the parts of one service, and what is looked up for each scrape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import attrs

from treedbd.database.runtime import AnswerPool, Statistics
from treedbd.held_bytes import HeldBytes
from treedbd.loop import BUCKETS_S, Histogram, Turns
from treedbd.names import DatabaseName
from treedbd.web.activity import RequestCounts


class Server(Protocol):
    """The HTTP server of the databases."""

    @property
    def connections(self) -> int:
        """How many connections are open."""

    @property
    def refusals(self) -> Mapping[str, int]:
        """How many errors it has sent without any resource, by code."""

    @property
    def cut_off(self) -> Mapping[str, int]:
        """How many responses ended before their end, by the reason."""

    @property
    def held(self) -> HeldBytes:
        """What connections make the server hold."""


class Streams(Protocol):
    """The open streams.

    Attributes:
        events_sent, event_bytes, overflowed: counters since the start.

    """

    events_sent: int
    event_bytes: int
    overflowed: int

    def __len__(self) -> int:
        """Return how many are open."""


class Sockets(Protocol):
    """The open WebSockets.

    Attributes:
        opened, messages_in, messages_out, events_sent, event_bytes, overflowed: counters since the
            start.
        listens: how many there are.

    """

    opened: int
    messages_in: int
    messages_out: int
    events_sent: int
    event_bytes: int
    overflowed: int
    listens: int

    @property
    def refused(self) -> Mapping[str, int]:
        """What was refused, or which sockets were closed, by the setting of the limit."""

    def __len__(self) -> int:
        """Return how many are open."""


class Queries(Protocol):
    """What queries have read.

    Attributes:
        unindexed: how many of them had no index.

    """

    unindexed: int


@attrs.frozen
class Facts:
    """What is not counted but looked up for each scrape.

    Attributes:
        database_bytes: on the disk, of the largest databases.
        project_bytes: on the disk, of all databases of each project.
        disk_free_bytes: of the file system of the data; None if nothing is stored in files.
        problems: how many things are not as they should be.
        write_problems: how many of them refuse writes.
        last_backup_at: seconds since 1970, 0 for never; None if there are no files to be saved.
        certificate_ends_at: when the first certificate ends, in the same; None if there is none.

    """

    database_bytes: Mapping[DatabaseName, int] = attrs.field(factory=dict)
    project_bytes: Mapping[str, int] = attrs.field(factory=dict)
    disk_free_bytes: int | None = None
    problems: int = 0
    write_problems: int = 0
    last_backup_at: float | None = None
    certificate_ends_at: float | None = None


@attrs.define
class Sources:
    """The parts of one service that count, or know how many there are.

    Attributes:
        facts: what was looked up last.
        turns: the turns of the event loop; None if they are not counted.
        process: the metrics of the process by name, as they were looked up last.

    """

    requests: RequestCounts
    statistics: Statistics
    answers: AnswerPool
    streams: Streams
    sockets: Sockets
    queries: Queries
    server: Server
    turns: Turns | None = None
    facts: Facts = attrs.field(factory=Facts)
    process: Mapping[str, float] = attrs.field(factory=dict)

    def turn_seconds(self) -> Histogram | None:
        """Return how long the turns of the event loop took."""
        if self.turns is None:
            return None
        histogram = Histogram(BUCKETS_S)
        histogram.counts[:] = self.turns.counts
        histogram.total = self.turns.total_ns / 1e9
        return histogram
