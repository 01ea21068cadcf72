"""The runtime of databases: what they are given from outside, and share.

`Runtime` joins it: the clock, random bytes, the thread that waits for the disk, and the limits of
entries. `Statistics` count what all databases do. A `SessionOwner` is what the sessions of this
process belong to, so that the next process finds what they have left. The `AnswerPool` bounds the
answers that all databases keep. `Problem` is what keeps a database or a project from being served
as it should be, and `OtherProcesses` are those that serve the same databases.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pathlib
import threading
import time
from collections import OrderedDict, deque
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Generator,
    Iterator,
    Sequence,
    Sized,
)
from contextlib import AbstractAsyncContextManager
from time import perf_counter
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias
from weakref import WeakSet

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.python.failure import Failure

from treedbd.database.slices import Slices, StepQueue, Steps
from treedbd.errors import LineBudget
from treedbd.files import create_directory, open_private, sync_directory
from treedbd.limits import Limits, StreamLimits
from treedbd.loop import Histogram
from treedbd.names import DatabaseName, parse_label
from treedbd.rules.context import MakeEvaluation, ReadPool
from treedbd.store.engine import StoreUnreachable

if TYPE_CHECKING:
    from treedbd.database.answers import Answer

BATCH_WRITES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
"""Upper bounds of the buckets for the writes of a commit."""
MAX_NOTED: Final = 65_536
"""Commits that wait to be counted; more in a second are forgotten."""

OWNER_FILE: Final = "treedb.owner."
"""How the name of an owner's file begins; its id follows. No project can have such a name."""
_ID_BYTES: Final = 8

_SHARE: Final = 8
"""An answer of more than one of this many parts of the pool is not kept."""

Commit: TypeAlias = Callable[[], None]
TimeCommit: TypeAlias = Callable[[Commit, int, float], Commit]
"""Returns a commit that measures itself; with the writes of its batch, and when that began."""
RunInThread: TypeAlias = Callable[[Callable[[], None]], "Deferred[None]"]
"""Runs what blocks in another thread; fires in the reactor's thread when it is done."""
MeasureRules: TypeAlias = Callable[[DatabaseName], MakeEvaluation]
"""Returns what evaluates the rules of a database, and measures them."""


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


class DeadOwner(Protocol):
    """An owner that has ended, and may have left writes."""

    def read_names(self) -> Sequence[DatabaseName]:
        """Return the databases in which it may have left any; raise OSError."""
        ...

    async def done(self, *, is_all: bool) -> None:
        """Forget it, because what it has left is done; `is_all` is False if some is not served."""
        ...


class SessionOwner(Protocol):
    """What the sessions of a process belong to, while it runs; used in the reactor's thread.

    Writes that are kept for the end of a session (`disconnect`) name the owner of the session. If
    the owner is dead, another process has to do them. `OwnerFile` is the owner of a process over
    files, `MemoryOwner` that of one whose databases end with it; over PostgreSQL the owner has a
    lease there too (`cluster.service`).
    """

    @property
    def id(self) -> str:
        """What names it in the rows of its writes; it may change while `note` is waited for."""
        ...

    @property
    def asks(self) -> bool:
        """Whether `learn` has to be called before it is known who is dead."""
        ...

    def note(self, name: DatabaseName) -> Deferred[None] | None:
        """Record that it has writes in a database; None if that is durable already.

        Errbacks with OSError or `StoreUnreachable`.
        """
        ...

    def keep(
        self, name: DatabaseName, session: str, end: Callable[[], object] | None = None
    ) -> None:
        """Record that a session may have writes that are not done.

        `end` ends the session, if others may do them because they take this process for dead.
        """
        ...

    def forget(self, name: DatabaseName, session: str) -> None:
        """Record that a session has none."""
        ...

    def is_dead(self, owner: str) -> bool:
        """Return whether the process of another owner has ended, as far as is known here."""
        ...

    def may_be_dead(self, owner: str) -> bool:
        """Return whether an owner is dead, or has to be learnt of."""
        ...

    async def learn(self, owners: Collection[str]) -> None:
        """Find out which of some owners are dead; raise `StoreUnreachable`."""
        ...

    async def find_dead(self) -> Sequence[DeadOwner]:
        """Return owners that are dead, as far as can be found out at present."""
        ...

    def close(self) -> None:
        """End it: what it has left is for the next process."""
        ...


class MemoryOwner:
    """The owner of sessions in databases that end with the process."""

    id = "memory"
    asks = False

    def note(self, _: DatabaseName) -> None:
        """Return None."""

    def keep(self, _: DatabaseName, __: str, ___: Callable[[], object] | None = None) -> None:
        """Do nothing."""

    def forget(self, _: DatabaseName, __: str) -> None:
        """Do nothing."""

    def is_dead(self, _: str) -> bool:
        """Return False."""
        return False

    def may_be_dead(self, _: str) -> bool:
        """Return False."""
        return False

    async def learn(self, _: Collection[str]) -> None:
        """Do nothing."""

    async def find_dead(self) -> Sequence[DeadOwner]:
        """Return nothing."""
        return []

    def close(self) -> None:
        """Do nothing."""


class NotedDatabases:
    """The databases that an owner has recorded; all who wait for one share its record."""

    def __init__(self, record: Callable[[DatabaseName], Awaitable[None]]) -> None:
        """`record` makes it durable; raises OSError or `StoreUnreachable`."""
        self._record = record
        self._done: set[DatabaseName] = set()
        self._waiting: dict[DatabaseName, list[Deferred[None]]] = {}

    @property
    def is_empty(self) -> bool:
        """Whether none is recorded, nor about to be."""
        return not (self._done or self._waiting)

    def note(self, name: DatabaseName) -> Deferred[None] | None:
        """Record a database; None if that is durable already.

        Errbacks with what `record` raises. Those who wait go on in the order in which they came.
        """
        if name in self._done:
            return None
        done: Deferred[None] = Deferred()
        waiting = self._waiting.setdefault(name, [])
        waiting.append(done)
        if len(waiting) == 1:
            Deferred.fromCoroutine(self._note(name))
        return done

    async def _note(self, name: DatabaseName) -> None:
        failed: Exception | None = None
        try:
            await self._record(name)
            self._done.add(name)
        except (OSError, StoreUnreachable) as error:
            failed = error
        for done in self._waiting.pop(name):
            if failed is None:
                done.callback(None)
            else:
                done.errback(failed)

    def forget_all(self) -> None:
        """Record each again when it is noted next."""
        self._done.clear()


class OwnerFile:
    """The owner of the sessions of this process, in one data directory.

    Theory of operation. The file of an owner is in the data directory, and is locked (`flock`)
    until the process ends, however that happens. It lists the databases in which the owner has ever
    stored such a write: a label is durable there before the first write is stored. So those that a
    dead process has left are found without opening every database. The file is removed when none
    are left.

    A process that looks takes a shared lock for a moment, so several can look at a time. An owner
    cannot be taken for dead between the creation of its file and the lock: if the file under its
    name is another one by then, the owner gives it up and makes another.

    Attributes:
        id: names it in the rows of its writes.

    """

    asks = False

    def __init__(
        self,
        folder: pathlib.Path,
        run_in_thread: Callable[[Callable[[], None]], Deferred[None]],
        entropy: Callable[[int], bytes],
        *,
        knows_all: bool = True,
    ) -> None:
        """Keep a file in `folder` from the first write on.

        `knows_all` says whether an owner without a file is dead; if not, its file may be in the
        data directory of another daemon.
        """
        self._folder = folder
        self._run_in_thread = run_in_thread
        self._entropy = entropy
        self._knows_all = knows_all
        self.id = entropy(_ID_BYTES).hex()
        self._descriptor: int | None = None
        self._writing = threading.Lock()
        self._is_over = False
        self._noted = NotedDatabases(self._record)
        self._sessions: set[tuple[DatabaseName, str]] = set()

    def note(self, name: DatabaseName) -> Deferred[None] | None:
        """Record that it has writes in a database; None if that is durable already."""
        return self._noted.note(name)

    async def _record(self, name: DatabaseName) -> None:
        await self._run_in_thread(lambda: self._append(name))

    def _append(self, name: DatabaseName) -> None:
        """Add a database to the file, durably; blocks."""
        with self._writing:
            if self._is_over:
                raise OSError(errno.EBADF, "The owner has ended")
            if self._descriptor is None:
                self._descriptor = self._create()
            os.write(self._descriptor, f"{name.label}\n".encode())
            os.fsync(self._descriptor)

    def _create(self) -> int:
        """Create the file and lock it; return its descriptor."""
        create_directory(self._folder)
        path = self._folder / (OWNER_FILE + self.id)
        while True:
            descriptor = open_private(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
            try:
                # Waits for those who only look, which is a moment.
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                if _is_at(path, descriptor):
                    sync_directory(self._folder)
                    return descriptor
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def keep(self, name: DatabaseName, session: str, _: Callable[[], object] | None = None) -> None:
        """Record that a session may have writes that are not done."""
        self._sessions.add((name, session))

    def forget(self, name: DatabaseName, session: str) -> None:
        """Record that a session has none."""
        self._sessions.discard((name, session))

    def is_dead(self, owner: str) -> bool:
        """Return whether the process of another owner has ended, as its file says."""
        if owner == self.id:
            return False
        descriptor = lock_dead(self._folder / (OWNER_FILE + owner))
        if descriptor is not None:
            os.close(descriptor)
            return True
        return self._knows_all and not (self._folder / (OWNER_FILE + owner)).exists()

    def may_be_dead(self, owner: str) -> bool:
        """Return whether an owner is dead."""
        return self.is_dead(owner)

    async def learn(self, _: Collection[str]) -> None:
        """Do nothing: the files say it."""

    async def find_dead(self) -> Sequence[DeadOwner]:
        """Return the owners in this data directory that are dead."""
        return [DeadOwnerFile(path) for path in self.find_dead_files()]

    def find_dead_files(self) -> list[pathlib.Path]:
        """Return the files of owners that are dead."""
        found = []
        for path in _list_files(self._folder):
            descriptor = None if path.name == OWNER_FILE + self.id else lock_dead(path)
            if descriptor is not None:
                os.close(descriptor)
                found.append(path)
        return found

    def close(self) -> None:
        """End it: what it has left is for the next process; without any, the file is removed."""
        with self._writing:  # a thread that writes must not meet a descriptor of another file
            self._is_over = True
            if self._descriptor is None:
                return
            if not self._sessions:
                with contextlib.suppress(OSError):
                    (self._folder / (OWNER_FILE + self.id)).unlink()
            os.close(self._descriptor)
            self._descriptor = None

    def close_later(self) -> None:
        """End it in a thread: what is being written must be waited for."""
        self._run_in_thread(self.close)


@attrs.frozen
class DeadOwnerFile:
    """A dead owner, as its file in the data directory describes it."""

    path: pathlib.Path

    def __str__(self) -> str:
        return str(self.path)

    def read_names(self) -> Sequence[DatabaseName]:
        """Return the databases in which it may have left writes; raise OSError."""
        return read_names(self.path)

    async def done(self, *, is_all: bool) -> None:
        """Remove the file if all is done; no error if that fails."""
        if is_all:
            with contextlib.suppress(OSError):
                self.path.unlink()


def lock_dead(path: pathlib.Path) -> int | None:
    """Return a descriptor of the file of a dead owner, None if it lives or has no file.

    As long as the descriptor is open, no process can be the owner.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def read_names(path: pathlib.Path) -> list[DatabaseName]:
    """Return the databases that the file of an owner lists; a label that was cut off is left out.

    Raises OSError.
    """
    labels = path.read_text("ascii", "replace").split("\n")[:-1]
    found = (parse_label(label) for label in labels)
    return list(dict.fromkeys(name for name in found if name is not None))


def _list_files(folder: pathlib.Path) -> Iterator[pathlib.Path]:
    try:
        names = sorted(name for name in os.listdir(folder) if name.startswith(OWNER_FILE))
    except OSError:
        return
    for name in names:
        yield folder / name


def _is_at(path: pathlib.Path, descriptor: int) -> bool:
    """Return whether a file is still the one under its name."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


class AnswerPool:
    """Bounds the memory that the kept answers of all databases take together.

    What was used longest ago is dropped first; `answers` says what falls before, because of a
    write.

    Attributes:
        size: the bytes that they take, as they are estimated.
        largest: bytes of the largest answer that is kept.
        hits, misses: how many reads found an answer, and how many might have but did not.

    """

    def __init__(self, limit: int) -> None:
        """Keep about `limit` bytes; 0 keeps nothing."""
        self.size = 0
        self.largest: Final = limit // _SHARE
        self.hits = 0
        self.misses = 0
        self._limit = limit
        self._by_use: OrderedDict[Answer, None] = OrderedDict()

    @property
    def count(self) -> int:
        """How many answers are kept."""
        return len(self._by_use)

    def use(self, answer: Answer) -> None:
        """Record that an answer is used."""
        self.hits += 1
        self._by_use.move_to_end(answer)

    def add(self, answer: Answer) -> None:
        """Count an answer; drop what was used longest ago to make room for it."""
        self._by_use[answer] = None
        self.size += answer.size
        while self.size > self._limit and self._by_use:
            next(iter(self._by_use)).drop()

    def remove(self, answer: Answer) -> None:
        """Count an answer no longer."""
        del self._by_use[answer]
        self.size -= answer.size


@attrs.frozen
class Problem:
    """One thing that is wrong with a project, or with one of its databases.

    `database` is None if it concerns them all. `reason` is a sentence for the operator.
    """

    project: str
    database: str | None
    reason: str
    refuses_writes: bool = True

    def __str__(self) -> str:
        """Return the reason, after the label of what it concerns."""
        if self.database is None:
            return f"{self.project}: {self.reason}"
        return f"{DatabaseName(self.project, self.database).label}: {self.reason}"


Look: TypeAlias = Generator[None, None, list[Problem]]
"""Steps that look at everything, and return what is wrong."""


class ProblemSearch:
    """Looks for problems in slices, once for all who ask before a look has begun.

    A look takes some microseconds for each open database, and any caller may ask for one.
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
        """Wait until no other process stores rules, and let none do so meanwhile."""
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

    def tell_damaged(self, name: DatabaseName, *, refuses_reads: bool) -> None:
        """Let them refuse a database that this process has found damaged."""
        ...

    def rules_of(self, project: str) -> RulesExchange:
        """Return how they agree on the rules of a project."""
        ...


def _read_clock() -> int:
    return time.time_ns() // 1_000_000


def _send_no_hint(_: DatabaseName) -> None:
    pass


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
        watched_fields: the most fields by which the watched queries of one path order and select.
        send_hint: sends the other processes that share a database the hint that it was written.
        measure_rules: finds slow rules; None if they are not logged.
        statistics: count what all databases do.
        now_ms: returns the milliseconds since 1970.
        owner: what the sessions of this process belong to.
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
    watched_fields: int = Limits().watched_fields_per_path
    send_hint: Callable[[DatabaseName], None] = _send_no_hint
    measure_rules: MeasureRules | None = None
    statistics: Statistics = attrs.field(factory=Statistics)
    now_ms: Callable[[], int] = _read_clock
    owner: SessionOwner = attrs.field(factory=MemoryOwner)
    slices: Slices = attrs.field(init=False)
    creation_lines: LineBudget = attrs.field(init=False)

    @creation_lines.default
    def _(self) -> LineBudget:
        return LineBudget(self.clock.seconds)

    @slices.default
    def _(self) -> Slices:
        return Slices(self.clock)
