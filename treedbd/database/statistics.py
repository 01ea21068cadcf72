"""What the databases of a service have done since its start, all of them together.

Commits only note themselves; what they have noted is counted once a second, and for each scrape.
Commits and rules are measured only if there are metrics: most rules take less time than it takes to
measure them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sized
from time import perf_counter
from typing import Final, TypeAlias
from weakref import WeakSet

from treedbd.loop import Histogram

BATCH_WRITES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
"""Upper bounds of the buckets for the writes of a commit."""
MAX_NOTED: Final = 65_536
"""Commits that wait to be counted; more in a second are forgotten."""

Commit: TypeAlias = Callable[[], None]
TimeCommit: TypeAlias = Callable[[Commit, int, float], Commit]
"""Returns a commit that measures itself; with the writes of its batch, and when that began."""


class Statistics:
    """Counts commits, resumed streams, and the evaluation of rules; of the reactor's thread.

    Attributes:
        writes: writes that are durable.
        commit_seconds: from the first write of a batch that is applied until all are durable.
        commit_writes: writes of each of these batches.
        sync_seconds: what of that is spent in the commit itself, which waits for the disk.
        rule_seconds: how long each evaluation of rules takes that depends on data or the time.
        time_commit: makes a commit measure itself; None if none is measured.
        observe_rules: counts the seconds of one evaluation; None if none is measured.
        queues: the queues of writes that wait for a batch.
        count_open: returns how many databases are open.
        resumed, restarted: clients that continued after the last event that they had, and those
            that asked to, but began with the present value.
        disconnect_sessions: streams and sockets whose disconnect writes are not done yet.
        disconnect_writes, disconnect_refusals: disconnect writes that were done, and that were
            refused when their session had ended.

    """

    def __init__(self, *, is_measuring: bool = False) -> None:
        """Nothing is counted yet; commits and rules only ever if it `is_measuring`."""
        self.writes = 0
        self.commit_seconds: Final = Histogram()
        self.commit_writes: Final = Histogram(BATCH_WRITES)
        self.sync_seconds: Final = Histogram()
        self.rule_seconds: Final = Histogram()
        self.time_commit: Final[TimeCommit | None] = self._time_commit if is_measuring else None
        self.observe_rules: Final = self.rule_seconds.observe if is_measuring else None
        self.queues: Final[WeakSet[Sized]] = WeakSet()
        self.count_open: Callable[[], int] = int
        self.resumed = 0
        self.restarted = 0
        self.disconnect_sessions = 0
        self.disconnect_writes = 0
        self.disconnect_refusals = 0
        self._commits: deque[tuple[int, float, float]] = deque(maxlen=MAX_NOTED)

    @property
    def waiting_writes(self) -> int:
        """How many writes wait for a batch."""
        return sum(map(len, self.queues))

    def count(self) -> None:
        """Count the commits since the last time."""
        commits = self._commits
        while commits:
            writes, seconds, sync_seconds = commits.popleft()
            self.writes += writes
            self.commit_writes.observe(writes)
            self.commit_seconds.observe(seconds)
            self.sync_seconds.observe(sync_seconds)

    def add_resumption(self, *, is_known: bool) -> None:
        """Count a client that has asked to continue; `is_known` if it can."""
        self.resumed += is_known
        self.restarted += not is_known

    def _time_commit(self, commit: Commit, writes: int, began: float) -> Commit:
        if not writes:
            return commit  # maintenance
        note = self._commits.append  # which any thread may call

        def timed_commit() -> None:
            before = perf_counter()
            commit()
            now = perf_counter()
            note((writes, now - began, now - before))

        return timed_commit
