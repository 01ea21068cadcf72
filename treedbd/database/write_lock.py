"""The write lock of one database: whose process may write, and what the others have written.

`GroupCommit` acquires a `WriteLock` before each batch and releases it afterwards. A process that
shares its databases with no other always has it. Where others write too, the lock is a
`SharedWriteLock`: that of a file which several processes have open (`FileWriteLock`), or a replica
in a cluster (`cluster.replica`).

Theory of operation. When a process has the lock, it first catches up with what others have
committed, and then judges, applies and commits a batch of its own. While another process has it, it
is tried again when it may be free: as soon as the other one gives a hint, and every few
milliseconds in any case. No thread waits for it.

What others have committed is in the change log (`LogFollower`). This process shows one moment of
the store for as long as a read transaction of it is open. Whenever another moment begins, the
entries of the log that are newer than the last one are read in it: in the same turn the answers and
verdicts that they concern are dropped, and a round is begun in which watchers are notified of them,
in the order and with the identifiers of the log. So a watcher that begins with a moment is notified
of all that came after it, and it makes no difference to a client which process it is connected to.
The moment that is left is held while watchers are notified (`resume.Moments`), so a moment is kept
open whenever others may commit.

Each read first looks whether there is news, so none is older than an acknowledged write, wherever
that was acknowledged. Only while a batch of this process is being committed the moment does not
change; a read that has seen news then waits for the end of the batch. A small write does not look:
it is judged when this process has the lock. Where nothing is watched or kept, nothing is read but
for a read or a batch. Hints of other processes only make it sooner that watchers are notified.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from treedbd.database.group_commit import QueuedWrite, WriteLock
from treedbd.database.requests import Unavailable
from treedbd.database.runtime import RunInThread, Runtime
from treedbd.database.slices import Steps
from treedbd.limits import KIB
from treedbd.loop import do_nothing
from treedbd.names import DatabaseName
from treedbd.store import changelog
from treedbd.store.engine import Arrivals, DiskFull, Engine, LogEntry, ReadView, StoreFailed
from treedbd.tree.event import Commit, CommittedChange, Position
from treedbd.tree.types import ROOT

if TYPE_CHECKING:
    from treedbd.database.database import Database
    from treedbd.database.group_commit import Rounds
    from treedbd.store.sqlite.shared import SharedShelf

RETRY_S: Final = 0.002
"""Seconds until the lock is tried again, if no hint says that it is free."""
FAILED_S: Final = 0.2
"""The same after the store could not be read."""
WAITS_FOR_OTHERS: Final = "Another process has been writing to the database for long."

LONG_ENTRY_BYTES: Final = 64 * KIB
"""A longer entry may be that of a large write, which is not parsed."""


class SharedWriteLock(WriteLock):
    """The lock of a database that other processes write too.

    Attributes:
        following: follows what the others commit.

    """

    following: LogFollower

    def __init__(self, run_in_thread: RunInThread, clock: IReactorTime) -> None:
        """Commit by `run_in_thread`; try again by `clock`."""
        super().__init__(run_in_thread)
        self._clock = clock
        self._timer: IDelayedCall | None = None
        self._try_again: Callable[[], None] = do_nothing

    @property
    def is_in_use(self) -> bool:
        """Whether the engine is being brought up to date, so that it must stay open."""
        return False

    def attach(self, rounds: Rounds, try_again: Callable[[], None]) -> None:
        """Call `try_again` when the lock may be free; watchers are notified in `rounds`."""
        self._try_again = try_again
        self.following.use_rounds(rounds)

    def batch_over(self) -> None:
        """Show what others have committed, if that had to wait."""
        self.following.batch_over()

    def make_current(self) -> Deferred[None] | None:
        """Return what fires when the last durable state is shown; None if it is already.

        Raises, or errbacks with, `Unavailable` or an error of the store.
        """
        return self.following.make_current()

    def is_current(self) -> bool:
        """Advance to the last durable state, unless a commit is under way; return success."""
        return self.following.is_current()

    def when_current(self, call: Callable[[], None]) -> bool:
        """Call `call` as soon as reads may be current: `is_current` may be True during the call.

        Returns False if that moment cannot be known; `call` is not called then.
        """
        return False

    def hinted(self) -> None:
        """Look for commits of other processes, and whether the lock is free."""
        self.following.hinted()

    def end(self) -> Deferred[None] | None:
        """Stop using the engine, because it is being closed; no batch may be under way.

        Fires when nothing uses it; None if nothing does.
        """
        return None

    def _try_again_after(self, pause: float) -> None:
        if self._timer is None or not self._timer.active():
            self._timer = self._clock.callLater(pause, self._try_again)


class FileWriteLock(SharedWriteLock):
    """The lock of a database whose file other processes have open too."""

    _log = Logger()

    def __init__(
        self,
        sharing: SharedShelf,
        name: DatabaseName,
        runtime: Runtime,
        engine: Engine,
        database: Database,
    ) -> None:
        """Write to `engine`; `database` receives what others write to it."""
        super().__init__(runtime.run_in_thread, runtime.clock)
        self.following = LogFollower(sharing, engine, runtime.clock, database)
        self._sharing = sharing
        self._given = partial(runtime.send_hint, name)
        self._is_over = False

    def take(self) -> bool:
        """Acquire the lock; if that fails return False, and try again until `give`."""
        if self._sharing.is_held:
            return True
        if not self._sharing.try_hold():
            self._wait(RETRY_S)
            return False
        self.delay = None
        try:
            self.following.is_current()
        except (StoreFailed, DiskFull, Unavailable) as error:
            self._log.error("What others have written cannot be read: {error}", error=error)
            self._sharing.release_lock()
            self._wait(FAILED_S)
            return False
        return True

    def give(self) -> None:
        """Release the lock, or stop trying to acquire it."""
        self.delay = None
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        was_held = self._sharing.is_held
        if was_held:
            self.following.keep_open()
        self._sharing.release_lock()
        if was_held:
            self._given()

    def commit(
        self,
        commit: Callable[[], None],
        must_keep: Callable[[], bool],
        batch: Sequence[QueuedWrite],
    ) -> Deferred[None]:
        """Run `commit`; fires when the writes of a batch are durable.

        The lock is released in the thread of the commit: the reactor of this process may be busy,
        and others need not wait for it.
        """

        def commit_and_give() -> None:
            commit()
            if not must_keep():
                self._sharing.release_lock()
            self._given()  # those who read show the new moment before a checkpoint, which needs it

        return self._run_in_thread(commit_and_give)

    def run(self, work: Callable[[], None]) -> None:
        """Run `work` with the lock, in a worker thread; raise `StoreFailed`."""
        self._sharing.run_held(work)

    def hinted(self) -> None:
        """Look for commits of other processes, and whether the lock is free."""
        if self._is_over:
            return
        if not self.following.hinted():
            self._sharing.renew()
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
            self._try_again()

    def end(self) -> None:
        """Stop looking whether others have committed."""
        self._is_over = True

    def _wait(self, pause: float) -> None:
        self.delay = WAITS_FOR_OTHERS
        self._try_again_after(pause)


class LogFollower:
    """Follows what other processes commit to one database.

    Attributes:
        through: the number of the last commit that this process shows.
        latest_ms: the latest time of what others have written, in milliseconds since 1970.

    """

    _log = Logger()

    def __init__(
        self, arrivals: Arrivals, engine: Engine, clock: IReactorTime, database: Database
    ) -> None:
        """Follow what others commit to `database`, which `engine` stores."""
        self.through = 0
        self.latest_ms = 0
        self._arrivals = arrivals
        self._engine = engine
        self._clock = clock
        self._database = database
        self._rounds: Rounds | None = None
        self._is_behind = False
        self._waiting: list[Deferred[None]] = []
        arrivals.on_moment = self._moment_begun

    def use_rounds(self, rounds: Rounds) -> None:
        """Notify in these rounds; while they are held, a batch is being committed."""
        self._rounds = rounds

    def is_current(self) -> bool:
        """Show the last durable state unless a commit is under way; return whether it is shown.

        Raises an error of the store if that cannot be read.
        """
        if self._arrivals.has_news():
            self._is_behind = True
        if not self._is_behind:
            return True
        if self._is_committing:
            return False
        self._advance()
        return True

    def make_current(self) -> Deferred[None] | None:
        """Return what fires when the last durable state is shown; None if it is already.

        Raises, or errbacks with, an error of the store.
        """
        if self.is_current():
            return None
        waiter: Deferred[None] = Deferred()
        self._waiting.append(waiter)
        return waiter

    def hinted(self) -> bool:
        """Begin to notify of what another process may have committed.

        Returns False if the moment that was shown before is still shown, and must be.
        """
        if not self._database.is_interested():
            if not self._is_committing:
                # A transaction that is left open would keep the log from being restarted.
                self._engine.advance()
            return True  # the next read, or the next batch, finds what is new
        through = self.through
        try:
            self.is_current()
        except (StoreFailed, DiskFull, Unavailable) as error:
            self._log.error("What others have written cannot be read: {error}", error=error)
            return True
        return self.through != through

    def committed(self, sequence: int) -> None:
        """Record what this process has committed by itself, and shows from now on."""
        self.through = sequence

    def batch_over(self) -> None:
        """Advance, if that had to wait for the end of a batch and anything depends on it."""
        if self._is_committing:
            return
        waiting, self._waiting = self._waiting, []
        try:
            # Another request may have advanced in this turn.
            if self._is_behind and (waiting or self._database.is_interested()):
                self._advance()
        except (StoreFailed, DiskFull, Unavailable) as error:
            for waiter in waiting:
                waiter.errback(error)
            return
        for waiter in waiting:
            waiter.callback(None)

    def keep_open(self) -> None:
        """Show a moment while no other can commit, so that it is known what comes after it."""
        if self._database.is_interested():
            with suppress(StoreFailed, DiskFull, Unavailable):
                self._engine.read(lambda view: view.sequence())

    def forget(self) -> None:
        """Treat all of the next moment as new: it does not continue the one before."""
        self.through = -1

    def opened(self) -> None:
        """Begin with the present state of a file that was opened."""
        self._advance()

    @property
    def _is_committing(self) -> bool:
        return self._rounds is not None and self._rounds.is_held

    def _advance(self) -> None:
        """Begin the present moment."""
        self._is_behind = True  # until it has been read
        self._database.leave()
        self._engine.read(lambda view: view.sequence())
        self._is_behind = False
        if self._rounds is not None:
            self._rounds.start()

    def _moment_begun(self, view: ReadView) -> None:
        """Show what is new in a moment that begins, and prepare to notify of it."""
        sequence = view.sequence()
        if sequence == self.through or self._is_committing:
            return
        commits: list[Commit] | None = []
        entries: list[LogEntry] = []
        if self._database.is_interested():
            # Of more entries than are read and decoded in one step, all answers are dropped.
            if self.through < sequence <= self.through + changelog.READ_AT_ONCE:
                entries = changelog.read_some(view, self.through)
            is_all = bool(entries) and entries[-1].sequence == sequence
            commits = self._commits_of(entries, self.through) if is_all else None
        # It is not read twice: it may be long.
        pushed = changelog.push_time_of(entries[-1]) if commits else changelog.push_time(view)
        news = News(sequence, pushed, commits)
        self.latest_ms = max(self.latest_ms, news.pushed)
        since, self.through = self.through, sequence
        self._database.show_news(news)
        if commits != [] and self._rounds is not None:
            self._rounds.add(self._notify_of(news, since))
            # Not in this turn: the read that has begun the moment may not be disturbed.
            self._clock.callLater(0, self._rounds.start)

    def _commits_of(self, entries: Iterable[LogEntry], after: int) -> list[Commit] | None:
        """Return the commits of the entries after a number; None if some are missing."""
        try:
            found = [commit_of(entry) for entry in entries]
        except ValueError:
            self._log.error("An entry of the change log cannot be read.")
            return None
        return found if found and found[0].position.sequence == after + 1 else None

    def _notify_of(self, news: News, since: int) -> Steps:
        if news.commits is not None:
            yield from self._database.notify(news.commits)
            return
        while since < news.sequence:
            after = since
            entries = self._engine.read(partial(changelog.read_some, after=after))
            commits = self._commits_of(entries, after)
            if commits is None:
                commits = [self._everything(news.sequence)]
            commits = [each for each in commits if each.position.sequence <= news.sequence]
            since = commits[-1].position.sequence
            yield
            yield from self._database.notify(commits)

    def _everything(self, sequence: int) -> Commit:
        """Return a commit after which every watcher reads its value again."""
        last = self._engine.read(lambda view: next(view.entries(sequence - 1), None))
        is_known = last is not None and last.sequence == sequence
        position = Position(sequence, last.op_id if last is not None and is_known else b"")
        return Commit(position, "put", ROOT, (CommittedChange(ROOT, None),), is_large=True)


MakeWriteLock: TypeAlias = "Callable[[Engine, Database], SharedWriteLock]"
"""Makes the write lock of a database, over its engine."""


class News(NamedTuple):
    """What others have committed: up to the number `sequence`.

    `commits` is None if there are too many to look at now. No push id of theirs is later than the
    millisecond `pushed`.
    """

    sequence: int
    pushed: int
    commits: Sequence[Commit] | None


def commit_of(entry: LogEntry) -> Commit:
    """Return the commit that an entry of the change log describes; raise ValueError.

    An entry with a long body, or without its body, is a large commit: the body is not parsed, and
    watchers of a part of what it set read their value again.
    """
    content, body = entry.content, None
    if len(content) > LONG_ENTRY_BYTES:
        content, body = changelog.printed_body(content)
    edit = changelog.decode(content)
    if not isinstance(edit, changelog.NotRetained):
        return changelog.commit_of(entry.sequence, edit, entry.op_id, len(content))
    path, is_priority = edit.place
    # Of a PUT the rows say how it is read.
    printed = (body,) if body is not None and edit.method == "patch" else None
    return Commit(
        Position(entry.sequence, entry.op_id),
        edit.method,
        path,
        (CommittedChange(path, None, is_priority),),
        is_large=True,
        printed=printed,
        size=len(entry.content),
    )
