"""The runtime of databases: what they are given from outside, and share.

`Runtime` joins it: the clock, random bytes, the thread that waits for the disk, and the limits of
entries. `Statistics` count what all databases do. `Problem` is what keeps a database or a project
from being served as it should be, and `OtherProcesses` are those that serve the same databases.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence, Sized
from contextlib import AbstractAsyncContextManager
from time import perf_counter
from typing import Any, Final, Protocol, TypeAlias, TypeVar
from weakref import WeakSet

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.python.failure import Failure

from treedbd.counting import Histogram
from treedbd.database.answers import AnswerPool
from treedbd.database.first_hooks import FirstHooks
from treedbd.database.requests import WrittenElsewhere
from treedbd.database.session_owners import MemoryOwner, SessionOwner
from treedbd.database.slices import Slices, StepQueue, Steps
from treedbd.database.volatile_exchange import VolatileLink
from treedbd.errors import LineBudget
from treedbd.limits import HookLimits, Limits, ReaderLimits, StreamLimits
from treedbd.names import DatabaseName
from treedbd.rules.context import ReadPool, SlowRulesReport
from treedbd.store.cursors import Lag
from treedbd.store.hooks import Hook

T = TypeVar("T")

BATCH_WRITES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
"""Upper bounds of the buckets for the writes of a commit."""
LATE_SECONDS: Final = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 15.0, 60.0, 300.0)
"""Upper bounds of the buckets for how late a node is removed whose time is over."""
MAX_NOTED: Final = 65_536
"""Commits that wait to be counted; more in a second are forgotten."""

TimeCommit: TypeAlias = Callable[[Callable[[], None], int, float, str], Callable[[], None]]
"""Returns a commit that measures itself.

It is called with the writes of its batch, when that began, and its project.
"""
SeeCommit: TypeAlias = Callable[[str, int, float], None]
"""Is called with the project of a commit, its writes, and the seconds that it took."""
RunInThread: TypeAlias = Callable[[Callable[[], None]], "Deferred[None]"]
"""Runs what blocks in another thread; fires in the reactor's thread when it is done."""
MeasureRules: TypeAlias = Callable[[DatabaseName], SlowRulesReport]
"""Returns what slow rules of a database are reported to."""


class Statistics:
    """Counts commits, resumed streams, and the evaluation of rules; of the reactor's thread.

    Commits only note themselves; what they have noted is counted once a second, and for each
    scrape. Commits and rules are measured only if there are metrics: most rules take less time than
    it takes to measure them.

    Attributes:
        writes: writes that are durable.
        commit_seconds: from the first write of a batch that is applied until all are durable.
        commit_writes: writes of each of these batches.
        sync_seconds: what of that is spent in the commit itself, which waits for the disk.
        rule_seconds: how long each evaluation of rules takes that depends on data or the time.
        time_commit: makes a commit measure itself; None if none is measured.
        seen: what is called with the project, writes and seconds of each commit that is counted.
        observe_rules: counts the seconds of one evaluation; None if none is measured.
        queues: the queues of writes that wait for a batch.
        count_open: returns how many databases are open.
        resumed, restarted: clients that continued after the last event that they had, and those
            that wanted to, but began with the present value.
        disconnect_sessions: streams and sockets whose disconnect writes are not done yet.
        disconnect_writes, disconnect_refusals: disconnect writes that were done, and that were
            refused when their session had ended.
        dropped_cursors: readers of change logs whose lag was too long.
        expired_nodes: nodes that this process has removed since their time was over (`.ttl`).
        expiry_seconds: how late each of the writes was that removed them.
        find_expiry_lag: returns how many seconds late the oldest node is that is due.
        reader_lags: the largest lag of the readers of each name, as the open databases showed it
            last (`reader_lags`).
        volatile_writes: writes of volatile nodes alone, which are applied without a commit.
        count_volatile: returns how many volatile nodes have values in all open databases, and how
            many bytes they take.
        find_standby_lag: returns how many seconds old the data of a standby may be; None elsewhere.

    """

    def __init__(self, *, is_measuring: bool = False) -> None:
        """Nothing is counted yet; commits and rules only ever if it `is_measuring`."""
        self.writes = 0
        self.commit_seconds: Final = Histogram()
        self.commit_writes: Final = Histogram(BATCH_WRITES)
        self.sync_seconds: Final = Histogram()
        self.rule_seconds: Final = Histogram()
        self.time_commit: TimeCommit | None = self._time_commit if is_measuring else None
        self.seen: Final[list[SeeCommit]] = []
        self.observe_rules: Final = self.rule_seconds.observe if is_measuring else None
        self.queues: Final[WeakSet[Sized]] = WeakSet()
        self.count_open: Callable[[], int] = int
        self.resumed = 0
        self.restarted = 0
        self.disconnect_sessions = 0
        self.disconnect_writes = 0
        self.disconnect_refusals = 0
        self.dropped_cursors = 0
        self.expired_nodes = 0
        self.expiry_seconds: Final = Histogram(LATE_SECONDS)
        self.find_expiry_lag: Callable[[], float] = float
        self.reader_lags: Mapping[str, Lag] = {}
        self.volatile_writes = 0
        self.count_volatile: Callable[[], tuple[int, int]] = _count_none
        self.find_standby_lag: Callable[[], float | None] = _find_no_lag
        self._is_measuring = is_measuring
        self._commits: deque[tuple[int, float, float, str]] = deque(maxlen=MAX_NOTED)

    @property
    def waiting_writes(self) -> int:
        """How many writes wait for a batch."""
        return sum(map(len, self.queues))

    def show_commits(self, see: SeeCommit) -> None:
        """Call `see` with each commit that is counted, which are measured meanwhile."""
        self.seen.append(see)
        self.time_commit = self._time_commit

    def hide_commits(self, see: SeeCommit) -> None:
        """Call `see` no longer."""
        self.seen.remove(see)
        if not (self.seen or self._is_measuring):
            self.time_commit = None

    def count(self) -> None:
        """Count the commits since the last time."""
        commits = self._commits
        while commits:
            writes, seconds, sync_seconds, project = commits.popleft()
            for see in self.seen:
                see(project, writes, seconds)
            self.writes += writes
            self.commit_writes.observe(writes)
            self.commit_seconds.observe(seconds)
            self.sync_seconds.observe(sync_seconds)

    def _time_commit(
        self, commit: Callable[[], None], writes: int, began: float, project: str
    ) -> Callable[[], None]:
        if not writes:
            return commit  # maintenance
        note = self._commits.append  # which any thread may call

        def timed_commit() -> None:
            before = perf_counter()
            commit()
            now = perf_counter()
            note((writes, now - began, now - before, project))

        return timed_commit


@attrs.frozen
class Problem:
    """One thing that is wrong with a project, or with one of its databases.

    `database` is None if it concerns them all, and `project` is empty if it concerns all projects.
    `reason` is a sentence for the operator.
    """

    project: str
    database: str | None
    reason: str
    refuses_writes: bool = True

    def __str__(self) -> str:
        """Return the reason, after the label of what it concerns."""
        if not self.project:
            return self.reason
        if self.database is None:
            return f"{self.project}: {self.reason}"
        return f"{DatabaseName(self.project, self.database).label}: {self.reason}"


Look: TypeAlias = Generator[None, None, list[Problem]]
"""Steps that look at everything, and return what is wrong."""


class ProblemSearch:
    """Searches for problems in slices; calls before a search begins share it.

    A search takes some microseconds for each open database, and any caller may request one.
    """

    def __init__(self, look: Callable[[], Look], slices: Slices) -> None:
        """Run what `look` returns in `slices`."""
        self._look = look
        self._queue = StepQueue(slices)
        self._waiting: list[Deferred[list[Problem]]] = []

    def find(
        self, find_more: Callable[[], Awaitable[list[Problem]]] | None = None
    ) -> Deferred[list[Problem]]:
        """Return what a look finds that begins now or later, and what `find_more` finds."""
        found = self._find()
        if find_more is None:
            return found

        async def find_all() -> list[Problem]:
            return list(dict.fromkeys(await found + await find_more()))

        return Deferred.fromCoroutine(find_all())

    def _find(self) -> Deferred[list[Problem]]:
        waiter: Deferred[list[Problem]] = Deferred()
        self._waiting.append(waiter)
        if len(self._waiting) == 1:
            self._queue.add(self._run())
        return waiter

    def _run(self) -> Steps:
        waiting, self._waiting = self._waiting, []
        try:
            found: list[Problem] | Failure = yield from self._look()
        except Exception:
            found = Failure()
        for waiter in waiting:
            waiter.callback(found)
            yield


class RulesExchange(Protocol):
    """How the processes that serve a project agree on its rules.

    One class has it, in `workers/process`: this package does not know `workers`.
    """

    def lock(self) -> AbstractAsyncContextManager[None]:
        """Acquire the lock under which one process at a time stores rules."""
        ...

    def spread(self) -> Awaitable[None]:
        """Return when all other processes have the stored rules in force."""
        ...


class OtherProcesses(Protocol):
    """The other processes that serve the same databases, as a catalog and its rules know them.

    One class has it, in `workers/process`: this package does not know `workers`.

    Attributes:
        checks_files: whether this process, and no other, checks files for damage.

    """

    @property
    def checks_files(self) -> bool:
        """Whether this process checks files for damage."""
        ...

    def find_problems(self) -> Awaitable[list[Problem]]:
        """Find what keeps them from serving databases as they should."""
        ...

    def report_damaged(self, name: DatabaseName, *, refuses_reads: bool) -> None:
        """Make them refuse a database that this process has found damaged."""
        ...

    def delete(self, name: DatabaseName) -> Awaitable[None]:
        """Delete a database, which all processes let go of first; raise `Unavailable`."""
        ...

    def rules_of(self, project: str) -> RulesExchange:
        """Return how they agree on the rules of a project."""
        ...


def in_own_thread(reactor: Any, work: Callable[[], T], name: str) -> Deferred[T]:
    """Run what may take minutes in a thread of its own, so that no commit waits for one."""
    done: Deferred[T] = Deferred()

    def run() -> None:
        try:
            result = work()
        except Exception as error:
            reactor.callFromThread(done.errback, error)
        else:
            reactor.callFromThread(done.callback, result)

    threading.Thread(target=run, name=name, daemon=True).start()
    return done


def _read_clock() -> int:
    return time.time_ns() // 1_000_000


def _find_no_lag() -> None:
    return None


def _count_none() -> tuple[int, int]:
    return 0, 0


def _have_no_hooks(_: DatabaseName) -> Sequence[Hook]:
    return ()


def _send_no_hint(_: DatabaseName) -> None:
    pass


@attrs.define(eq=False)
class WriteGate:
    """Whether this process accepts writes: a standby does not, nor a first that was superseded.

    Writes of what this process keeps for itself are done all the same: those whose tasks have the
    attribute `is_local`, such as cursors and what a standby has received.

    Attributes:
        refusal: why it accepts none, in one sentence for clients; None if it does.

    """

    refusal: str | None = None

    def check(self) -> None:
        """Raise `WrittenElsewhere` if no write is accepted."""
        if self.refusal is not None:
            raise WrittenElsewhere(self.refusal)


@attrs.frozen
class Runtime:
    """What the databases of a service are given from outside, and share.

    Attributes:
        clock: schedules calls and counts seconds.
        entropy: returns that many random bytes.
        run_in_thread: runs what waits for the disk.
        answer_pool: bounds the answers that all databases keep.
        read_pool: bounds what the rules of all databases keep of what they have read.
        entry_bytes: the most bytes of an entry of a change log; a longer one is kept without its
            body, or with it for a while, up to `followed_bytes`, for other processes to follow.
        readers: what a change log keeps for its readers.
        first_cursors: the readers of change logs that a database has from its first write on, and
            whether they need whole entries.
        news: called with each database in the turn in which this process knows that it was written,
            by those who read change logs.
        hook_limits: bound the events of a write.
        hooks_of: returns the hooks that the configuration gives a database.
        rules_news: called with each project whose rules this process has read, or replaced.
        first_hooks: the hooks that databases have from their first write on.
        watched_fields: the most fields by which the watched queries of one path order and select.
        volatile_link: sends other processes that share databases what is volatile; None if none do.
        volatile_bytes: the most bytes of the volatile nodes of one database.
        send_hint: sends the other processes that share a database the hint that it was written.
        measure_rules: finds slow rules; None if they are not logged.
        statistics: count what all databases do.
        now_ms: returns the milliseconds since 1970.
        used_seconds: returns the processor time that the calling thread has used, in seconds.
        owner: what the sessions of this process belong to.
        gate: whether writes are accepted.
        slices: run the long work of all databases.
        creation_lines: bound what is logged of databases that may not be created, since their names
            are those of clients.

    """

    clock: IReactorTime
    entropy: Callable[[int], bytes]
    run_in_thread: RunInThread
    answer_pool: AnswerPool = attrs.field(factory=lambda: AnswerPool(Limits().kept_answer_bytes))
    read_pool: ReadPool = attrs.field(factory=ReadPool)
    entry_bytes: int = StreamLimits().retain_entry_bytes
    followed_bytes: int = 0
    readers: ReaderLimits = attrs.field(factory=ReaderLimits)
    first_cursors: Mapping[str, bool] = attrs.field(factory=dict)
    news: list[Callable[[DatabaseName], None]] = attrs.field(factory=list)
    hook_limits: HookLimits = attrs.field(factory=HookLimits)
    hooks_of: Callable[[DatabaseName], Sequence[Hook]] = _have_no_hooks
    rules_news: list[Callable[[str], None]] = attrs.field(factory=list)
    first_hooks: FirstHooks = attrs.field(factory=FirstHooks)
    watched_fields: int = Limits().watched_fields_per_path
    volatile_link: VolatileLink | None = None
    volatile_bytes: int = Limits().volatile_bytes
    send_hint: Callable[[DatabaseName], None] = _send_no_hint
    measure_rules: MeasureRules | None = None
    statistics: Statistics = attrs.field(factory=Statistics)
    now_ms: Callable[[], int] = _read_clock
    used_seconds: Callable[[], float] = time.thread_time
    owner: SessionOwner = attrs.field(factory=MemoryOwner)
    gate: WriteGate = attrs.field(factory=WriteGate)
    slices: Slices = attrs.field(init=False)
    creation_lines: LineBudget = attrs.field(init=False)

    @creation_lines.default
    def _(self) -> LineBudget:
        return LineBudget(self.clock.seconds)

    @slices.default
    def _(self) -> Slices:
        return Slices(self.clock)
