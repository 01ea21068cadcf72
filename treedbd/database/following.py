"""Following the change log: what other processes commit to a database is shown here too.

Theory of operation. All processes that share a database read the same file, and what any of them
has committed is in the change log. This process shows one moment of the file for as long as a read
transaction of it is open. Whenever another moment begins, the entries of the log that are newer
than the last one are read in it: in the same turn the answers and verdicts that they concern are
dropped, and a round (`rounds`) is begun in which watchers are notified of them, in the order and
with the identifiers of the log. So a watcher that begins with a moment is notified of all that came
after it, and it makes no difference to a client which process it is connected to.

The moment that is left is held while watchers are notified (`replay`), so a moment is kept open
whenever others may commit.

Each request first asks whether there is news, so no read is older than an acknowledged write,
wherever that was acknowledged. Only while a batch of this process is being committed the moment
stands still; who knows of newer writes then waits for the end of the batch. Hints of other
processes only make it sooner that watchers are notified.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Final, NamedTuple

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from treedbd.database.requests import Unavailable
from treedbd.database.rounds import Rounds
from treedbd.database.slices import Steps
from treedbd.limits import KIB
from treedbd.store import changelog
from treedbd.store.engine import Arrivals, DiskFull, Engine, LogEntry, ReadView, StoreFailed
from treedbd.tree.event import Commit, CommittedChange, Position, describe
from treedbd.tree.types import ROOT

LONG_ENTRY_BYTES: Final = 64 * KIB
"""A longer entry may be that of a large write, which is not parsed."""
AT_ONCE: Final = 64
"""Entries that are read and decoded in one step; of more, all answers are dropped."""
BYTES_AT_ONCE: Final = 256 * KIB
"""The same in bytes; one entry may be longer."""


class News(NamedTuple):
    """What others have committed: up to the number `sequence`.

    `commits` is None if there are too many to look at now. No push id of theirs is later than the
    millisecond `pushed`.
    """

    sequence: int
    pushed: int
    commits: Sequence[Commit] | None


@attrs.frozen
class FollowerHooks:
    """Who is told of what others commit.

    Attributes:
        is_interested: returns whether anything depends on it.
        show: called when another moment begins to be shown; must not read.
        notify: run in a round after that.
        leave: lets reads show what has been committed.

    """

    is_interested: Callable[[], bool]
    show: Callable[[News], None]
    notify: Callable[[Sequence[Commit]], Steps]
    leave: Callable[[], object]


class LogFollower:
    """Follows what other processes commit to one database.

    Attributes:
        through: the number of the last commit that this process shows.
        latest_ms: the latest time of what others have written, in milliseconds since 1970.

    """

    _log = Logger()

    def __init__(
        self,
        arrivals: Arrivals,
        engine: Engine,
        clock: IReactorTime,
        follower: FollowerHooks,
    ) -> None:
        """Let `follower` have what others commit."""
        self.through = 0
        self.latest_ms = 0
        self._arrivals = arrivals
        self._engine = engine
        self._clock = clock
        self._follower = follower
        self._rounds: Rounds | None = None
        self._is_behind = False
        self._waiting: list[Deferred[None]] = []
        arrivals.on_moment = self._moment_begun

    def use_rounds(self, rounds: Rounds) -> None:
        """Notify in these rounds; while they are held, a batch is being committed."""
        self._rounds = rounds

    def is_current(self) -> bool:
        """Return whether this process shows the last durable state, which it does if it can.

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

        Returns False if a moment is shown that was shown before, and has to be.
        """
        through = self.through
        try:
            if self.is_current() and not self._follower.is_interested():
                # A transaction that is left open would keep the log from being restarted.
                self._engine.advance()
                return True
        except (StoreFailed, DiskFull, Unavailable) as error:
            self._log.error("What others have written cannot be read: {error}", error=error)
            return True
        return self.through != through

    def committed(self, sequence: int) -> None:
        """Record what this process has committed by itself, and shows from now on."""
        self.through = sequence

    def batch_over(self) -> None:
        """Advance, if that had to wait for the end of a batch."""
        if self._is_committing:
            return
        waiting, self._waiting = self._waiting, []
        try:
            if self._is_behind:  # another request may have advanced in this turn
                self._advance()
        except (StoreFailed, DiskFull, Unavailable) as error:
            for waiter in waiting:
                waiter.errback(error)
            return
        for waiter in waiting:
            waiter.callback(None)

    def keep_open(self) -> None:
        """Show a moment while nobody else can commit, so that it is known what comes after it."""
        if self._follower.is_interested():
            with suppress(StoreFailed, DiskFull, Unavailable):
                self._engine.read(_sequence)

    def forget(self) -> None:
        """Let the next moment be new as a whole: it does not follow the one before."""
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
        self._follower.leave()
        self._engine.read(_sequence)
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
        if self._follower.is_interested():
            if self.through < sequence <= self.through + AT_ONCE:
                entries = _read_entries(view, self.through)
            is_all = bool(entries) and entries[-1].sequence == sequence
            commits = self._commits_of(entries, self.through) if is_all else None
        # It is not read twice: it may be long.
        pushed = changelog.push_time_of(entries[-1]) if commits else changelog.push_time(view)
        news = News(sequence, pushed, commits)
        self.latest_ms = max(self.latest_ms, news.pushed)
        since, self.through = self.through, sequence
        self._follower.show(news)
        if commits != [] and self._rounds is not None:
            self._rounds.add(self._notify_of(news, since))
            # Not in this turn: whoever reads may not be disturbed.
            self._clock.callLater(0, self._rounds.start)

    def _read_commits(self, view: ReadView, after: int) -> list[Commit] | None:
        """Return the next commits after a number; None if they are not known any more."""
        return self._commits_of(_read_entries(view, after), after)

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
            yield from self._follower.notify(news.commits)
            return
        while since < news.sequence:
            after = since
            commits = self._engine.read(lambda view: self._read_commits(view, after))  # noqa: B023
            if commits is None:
                commits = [self._everything(news.sequence)]
            commits = [each for each in commits if each.position.sequence <= news.sequence]
            since = commits[-1].position.sequence
            yield
            yield from self._follower.notify(commits)

    def _everything(self, sequence: int) -> Commit:
        """Return a commit after which every watcher reads its value again."""
        last = self._engine.read(lambda view: next(view.entries(sequence - 1), None))
        is_known = last is not None and last.sequence == sequence
        position = Position(sequence, last.op_id if last is not None and is_known else b"")
        return Commit(position, "put", ROOT, (CommittedChange(ROOT, None),), is_large=True)


def commit_of(entry: LogEntry) -> Commit:
    """Return the commit that an entry of the change log describes; raise ValueError.

    One with a long body, or whose body the log does not hold, is large: it is not parsed, and who
    watches a part of what it set reads that again.
    """
    content, body = entry.content, None
    if len(content) > LONG_ENTRY_BYTES:
        content, body = changelog.printed_body(content)
    edit = changelog.decode(content)
    if not isinstance(edit, changelog.NotRetained):
        return describe(entry.sequence, edit, entry.op_id, len(content))
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


def _read_entries(view: ReadView, after: int) -> list[LogEntry]:
    """Return the next entries after a number, as many as are looked at in one step."""
    found, size = list[LogEntry](), 0
    for entry in islice(view.entries(after), AT_ONCE):
        size += len(entry.content)
        if found and size > BYTES_AT_ONCE:
            break
        found.append(entry)
    return found


def _sequence(view: ReadView) -> int:
    return view.sequence()
