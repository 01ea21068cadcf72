"""The replica of one database: when its daemon may write, and how it follows the others.

Theory of operation. PostgreSQL decides. A batch is judged and applied on the copy that this daemon
has (`LocalCopy`). Its commit wins only if rules and data have not changed since; a batch that loses
is done again after the copy has caught up. So no daemon owns a database, and a late one can neither
write by old rules nor overwrite what it has not seen.

A read first reads the state of the database (`connections.States`), and waits until the copy shows
it; a write does not, because its commit compares. What was fetched is brought into the copy between
two batches; then watchers are notified of it from the log, as they are of the commits of other
workers (`database.write_lock`).

A commit may be in doubt when the connection to PostgreSQL breaks (`LocalCopy.commit`). Its
outcome is found before anything else is committed; its writers are answered at their deadlines
(`answer_when_late`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger

from treedbd.cluster.connections import ClusterConnections, Singleflight
from treedbd.database.active_rules import ActiveRules
from treedbd.database.database import Database
from treedbd.database.files import ReadMoment
from treedbd.database.group_commit import QueuedWrite
from treedbd.database.requests import (
    SHUTTING_DOWN,
    DatabaseDeleted,
    OutcomeInDoubt,
    Unavailable,
)
from treedbd.database.slices import SLICE_SECONDS, Slices
from treedbd.database.write_lock import LogFollower, SharedWriteLock
from treedbd.limits import KIB
from treedbd.loop import do_nothing
from treedbd.store.engine import (
    Conflict,
    DiskFull,
    Engine,
    InDoubt,
    ReadView,
    StoreFailed,
    StoreUnreachable,
)
from treedbd.store.on_demand import ReopeningEngine
from treedbd.store.postgresql.cluster import DatabaseState
from treedbd.store.postgresql.engine import PostgresqlEngine
from treedbd.store.postgresql.fetching import DatabaseMissing, Fetched

WAITED_FOR_S: Final = 3.0
"""Seconds for which others wait for a batch that has lost several times."""
UNREACHABLE_S: Final = 0.2
"""Seconds until writes are tried again after PostgreSQL could not be reached."""
_CATCHES_UP: Final = "The daemon is catching up with what others have written."
_IS_MOVED: Final = "The database is being moved to another place."
_SOON_S: Final = 0.002
"""Seconds before a look whether the copy is free is repeated."""

OUTCOME_PAUSES: Final = (0.0, 0.1, 0.2, 0.5, 1.0)
"""Seconds before each attempt to find the outcome of a commit; the last one repeats."""
LOCK_PAUSE_S: Final = 0.002
"""Seconds between two looks whether the lock of a copy is free."""
APPLIED_AT_ONCE: Final = 500
"""Rows that are brought into the copy in the reactor's thread; more wait in another one."""
BYTES_AT_ONCE: Final = 256 * KIB
"""The same in bytes, with what the log says of them."""


class Replica(SharedWriteLock):
    """The write lock of one database in a cluster; belongs to the reactor's thread.

    Attributes:
        copy: the copy that this daemon has.
        rules: the rules in force, with their epoch.
        db: the number in PostgreSQL; None until the database is known to be there.
        judged_epoch: the epoch of the rules by which the present batch is judged.
        gone: lets go of the database, because it is no longer in PostgreSQL.
        was_written: whether this daemon has written to it since the flag was last cleared.

    """

    def __init__(
        self,
        connections: ClusterConnections,
        rules: ActiveRules,
        engine: ReopeningEngine,
        clock: IReactorTime,
        moment: ReadMoment,
        gone: Callable[[], None] = do_nothing,
    ) -> None:
        """Write to `engine`, which is not open yet, by `rules`.

        `gone` is called when the database is no longer in PostgreSQL: another daemon deleted it.
        """
        super().__init__(connections.run, clock)
        self.rules: Final = rules
        self.db: int | None = None
        self.gone: Final = gone
        self.judged_epoch = rules.epoch
        self.was_written = False
        self._delay: str | None = None
        self._connections = connections
        self.copy: Final = LocalCopy(connections, engine, clock, self._arrived)
        self._catching_up: Final = Singleflight(self._fetch_and_apply, connections.slices)
        self._moment = moment
        self._is_moved = False
        self._must_catch_up = False
        self._wants_copy = False  # what was fetched waits for the end of a batch
        self._is_taken = False
        self._batches = 0
        self._is_committing = False
        self._is_loading = False
        self._ends = BatchEnds(clock, connections.slices)
        self._not_before = 0.0

    def begin(self, engine: Engine, database: Database) -> Replica:
        """Begin to notify `database`, which `engine` stores, of what others write."""
        self.following = LogFollower(self.copy, engine, self._clock, database)
        return self

    @property
    def rev(self) -> int | None:
        """How many commits the copy shows; None if it is not open."""
        return None if self.copy.file is None else self.copy.shown_rev

    def opened(self, db: int, file: PostgresqlEngine) -> None:
        """Use a copy that was opened just now, of the database with this number; in any thread."""
        self.db = db
        self.copy.use_file(file)

    @property
    def is_in_use(self) -> bool:
        """Whether the copy is being brought up to date or recovered."""
        return self.copy.is_in_use

    # Reads.

    def is_current(self) -> bool:
        """Return whether reads may be answered without reading the state from PostgreSQL."""
        is_fresh = self._moment.of is self or not self._connections.is_strict
        return is_fresh and self.following.is_current()

    def when_current(self, call: Callable[[], None]) -> bool:
        """Call `call` when it is known whether reads may be answered at once.

        Returns False if that cannot be known; `call` is not called then.
        """
        db, connections = self.db, self._connections
        if db is None or not connections.is_strict or connections.problem is not None:
            return False
        connections.states.find_state_soon(db, partial(self._let_read, call))
        return True

    def _let_read(self, call: Callable[[], None], state: DatabaseState | None) -> None:
        """Make a call, during which reads are answered at once if the copy shows `state`."""
        if state is not None:
            self._is_moved = state.epoch < 0
            if state.epoch == self.rules.epoch and state.rev <= self.copy.shown_rev:
                self._moment.of = self
        try:
            call()
        finally:
            self._moment.of = None

    def is_usable_at_once(self, *, is_write: bool) -> bool:
        """Return whether a request need not wait: the copy is open and known to be current."""
        if self.copy.file is None or self.rules.epoch < 0:
            return False
        return is_write or self.is_current()

    def make_current(self) -> Deferred[None] | None:
        """Return a Deferred until the last durable state is shown; None if it is already.

        Errbacks with `Unavailable`.
        """
        if self._moment.of is self or (not self._connections.is_strict and self.rules.epoch > 0):
            return self.following.make_current()
        return Deferred.fromCoroutine(self.find_and_reach())

    async def find_and_reach(self) -> None:
        """Return when the last durable state is shown; raise `Unavailable`."""
        try:
            state = await self._find_state()
            if state is not None:
                await self.reach(state)
        except StoreUnreachable as error:
            raise Unavailable(str(error)) from None

    async def _find_state(self) -> DatabaseState | None:
        """Return the state in PostgreSQL; None if the database is not known to be there."""
        if self.db is None:
            return None
        states = await self._connections.states.find_states((self.db,))
        if self.db not in states:
            self.gone()
            raise DatabaseDeleted
        return states[self.db]

    async def reach(self, state: DatabaseState) -> None:
        """Show `state`, with its rules in force; raise `StoreUnreachable` or `Unavailable`."""
        await self.use_epoch(state.epoch)
        while self.copy.shown_rev < state.rev:
            if self.copy.is_over:
                raise Unavailable(SHUTTING_DOWN)
            if self.copy.file is None:
                return
            if self._is_taken:
                await self._ends.wait()
            else:
                await self._catching_up.call()

    async def use_epoch(self, epoch: int) -> None:
        """Put the rules of an epoch in force; a negative one refuses writes."""
        self._is_moved = epoch < 0
        if not self._is_moved and epoch != self.rules.epoch:
            await self.rules.load_stored(epoch)

    def hinted(self) -> None:
        """Follow a commit of another daemon."""
        Deferred.fromCoroutine(self.find_and_reach()).addErrback(do_nothing)

    def end(self) -> Deferred[None]:
        """Bring nothing into the copy any more; fires when that has ended."""
        return Deferred.fromCoroutine(self.copy.end())

    # The copy.

    async def _fetch_and_apply(self) -> None:
        """Bring the copy up to date; raise `StoreUnreachable`."""
        while (fetched := await self._fetch()) is not None:
            self._wants_copy = True
            try:
                while self._is_taken or not self.copy.try_lock():
                    await (
                        self._ends.wait() if self._is_taken else deferLater(self._clock, _SOON_S)
                    )
            finally:
                self._wants_copy = False
            if await self.copy.apply(fetched):
                self._must_catch_up = False
                await self.use_epoch(fetched.epoch)
                break
        self._try_again()

    async def _fetch(self) -> Fetched | None:
        try:
            return await self.copy.fetch()
        except DatabaseDeleted:
            self.gone()
            raise

    def _arrived(self, fetched: Fetched) -> None:
        """Show what was brought into the copy."""
        if fetched.is_whole:
            self.following.forget()
        self.following.is_current()

    # Writes.

    # Each write reads these two: in other write locks they are plain attributes, always None.

    @property
    def problem(self) -> str | None:  # type: ignore[override]
        """Why no write is accepted at present; None if they are."""
        return _IS_MOVED if self._is_moved else self._connections.clock_problem

    @property
    def delay(self) -> str | None:  # type: ignore[override]
        """What a batch waits for; None if for nothing."""
        return self._connections.problem or self._delay

    def take(self) -> bool:
        """Return whether a batch may begin; if not, that is tried again soon."""
        if self._is_taken:
            return True
        if (pause := self._not_before - self._clock.seconds()) > 0:
            self._try_again_after(pause)
            return False
        if self._must_catch_up or self.rules.epoch < 0:
            self._delay = _CATCHES_UP
            self._catch_up_to_write()
            return False
        if self._wants_copy or self.copy.is_in_use:
            self._delay = _CATCHES_UP
            self._try_again_after(_SOON_S)
            return False
        self._delay = None
        self._is_taken = True
        self._batches += 1
        self.judged_epoch = self.rules.epoch
        if self.copy.file is not None:
            self.copy.file.epoch = self.judged_epoch
        return True

    def give(self) -> None:
        """Allow the copy to be brought up to date, and the next batch to begin."""
        self._delay = None
        if not self._is_taken:
            return
        self._is_taken = False
        self.copy.show_commit()
        self._ends.over()

    def commit(
        self,
        commit: Callable[[], None],
        must_keep: Callable[[], bool],
        batch: Sequence[QueuedWrite],
    ) -> Deferred[None]:
        """Commit in PostgreSQL, then the copy."""
        return Deferred.fromCoroutine(self._commit(commit, batch))

    async def _commit(self, commit: Callable[[], None], batch: Sequence[QueuedWrite]) -> None:
        self._is_committing = True
        try:
            await self.copy.commit(commit, batch)
        except Conflict:
            self._must_catch_up = True
            self._clock.callLater(WAITED_FOR_S, self._end_waiting, self._batches)
            raise
        except StoreUnreachable as error:
            self._not_before = self._clock.seconds() + UNREACHABLE_S
            raise Unavailable(str(error)) from None
        except InDoubt:
            self._must_catch_up = True
            raise OutcomeInDoubt from None
        finally:
            self._is_committing = False
        self.was_written = True
        if self.db is not None:
            self._connections.hint_others(self.db)

    def _end_waiting(self, batches: int) -> None:
        """Stop delaying others, if no batch has followed the one that lost."""
        if batches == self._batches and not self._is_taken and self.copy.file is not None:
            self.copy.file.release_lock()

    def confirm(self) -> Deferred[None] | None:
        """Find out whether the state that a batch has read is current; None if it is known."""
        if not self._connections.is_strict or self.db is None:
            return None
        return Deferred.fromCoroutine(self._confirm())

    async def _confirm(self) -> None:
        try:
            state = await self._find_state()
        except StoreUnreachable as error:
            raise Unavailable(str(error)) from None
        if state is None or self.copy.file is None:
            return
        if state.rev != self.copy.file.position.rev or state.epoch != self.judged_epoch:
            self._must_catch_up = True
            raise Conflict

    def run(self, work: Callable[[], None]) -> None:
        """Run `work` on the copy, in a worker thread."""
        self.copy.run_alone(work)

    def batch_over(self) -> None:
        """Show what has arrived, if that had to wait."""
        if not self._is_committing:
            self.copy.show_commit()
        super().batch_over()

    def _catch_up_to_write(self) -> None:
        if not self._is_loading:
            self._is_loading = True
            catching_up = Deferred.fromCoroutine(self._load_and_catch_up())
            catching_up.addErrback(lambda _: self._try_again_after(UNREACHABLE_S))

    async def _load_and_catch_up(self) -> None:
        try:
            if self.rules.epoch < 0:
                await self.rules.load_stored()
            await self._catching_up.call()
        finally:
            self._is_loading = False
        if self.copy.file is None:
            self._must_catch_up = False
        self._try_again()


class LocalCopy:
    """The copy that a daemon has of one database, and how it is brought up to date.

    Little is applied in the reactor's thread, more in another one. Only one of these uses a copy at
    a time: a batch of this daemon, or the owner of its lock, which brings it up to date or recovers
    it. It belongs to the reactor's thread, except `use_file` and `run_alone`.

    Attributes:
        shown_rev: how many commits reads show.
        on_moment: called with each moment that reads begin to show.
        is_over: whether it is being closed, and no longer used.

    """

    _log = Logger()

    def __init__(
        self,
        connections: ClusterConnections,
        engine: ReopeningEngine,
        clock: IReactorTime,
        arrived: Callable[[Fetched], None],
    ) -> None:
        """Use the file of `engine`; call `arrived` when something was brought in."""
        self._file: PostgresqlEngine | None = None
        self._engine = engine
        self.shown_rev = 0
        self.on_moment: Callable[[ReadView], None] = do_nothing
        self._connections = connections
        self._clock = clock
        self._arrived = arrived
        self._has_news = False
        self.is_over = False
        self._lock = threading.Lock()

    @property
    def file(self) -> PostgresqlEngine | None:
        """The open engine of the copy; None while it is not open, and after `end`."""
        return self._file if self._engine.is_open and not self.is_over else None

    @property
    def is_in_use(self) -> bool:
        """Whether it is being brought up to date or recovered."""
        return self._lock.locked()

    def use_file(self, file: PostgresqlEngine) -> None:
        """Use a file that was opened just now, and has caught up; in any thread."""
        self.shown_rev = file.position.rev
        file.follow_moments(self._moment_begun)
        self._file = file

    def has_news(self) -> bool:
        """Return whether something was brought in since the last call; for `LogFollower`."""
        had, self._has_news = self._has_news, False
        return had

    def show_commit(self) -> None:
        """Record that reads show what the last batch has committed."""
        if self.file is not None:
            self.shown_rev = self.file.position.rev

    def run_alone(self, work: Callable[[], None]) -> None:
        """Run `work` while nothing else works on the copy; blocks, in a worker thread."""
        with self._lock:
            work()

    async def end(self) -> None:
        """Stop using the file, because it is being closed; return when nothing uses it."""
        self.is_over = True
        while self.is_in_use:
            await deferLater(self._clock, LOCK_PAUSE_S)

    async def fetch(self) -> Fetched | None:
        """Fetch what is missing; None if the copy is not open.

        Raises `StoreUnreachable`, or `DatabaseDeleted`.
        """
        if self.file is None:
            return None
        try:
            return await self._connections.run(self.file.fetch)
        except DatabaseMissing:
            raise DatabaseDeleted from None
        except OSError as error:
            raise StoreUnreachable(f"No copy can be made: {error.strerror}.") from None

    def try_lock(self) -> bool:
        """Acquire the lock for `apply` if it is free."""
        return self._lock.acquire(blocking=False)

    async def apply(self, fetched: Fetched) -> bool:
        """Bring in what was fetched, show it, and release the lock; return whether that was done.

        If not, the copy has changed since: fetch again. Raises `StoreUnreachable`.
        """
        file = self.file
        try:
            if file is None:
                fetched.close()
                return False
            file.pin()  # reads show this moment until `fetched` is shown
            is_applied = await self._apply(file, fetched)
            if not is_applied:
                file.advance()
        except (DiskFull, StoreFailed) as error:
            self._log.error("A copy could not be brought up to date: {error}", error=error)
            if file is not None:
                file.advance()
            if isinstance(error, StoreFailed) and file is not None:
                await self._recover(file)
            raise StoreUnreachable("The copy of the database cannot be written.") from None
        finally:
            self._lock.release()
        if is_applied and not self.is_over:
            self._has_news = True
            self._arrived(fetched)
            self.shown_rev = file.position.rev
        return is_applied

    async def commit(self, commit: Callable[[], None], batch: Sequence[QueuedWrite]) -> None:
        """Return when a batch is committed, and the copy has it.

        Raises `Conflict` or `StoreUnreachable`: then it was not applied; or `InDoubt`.
        """
        stop_answering = answer_when_late(self._clock, batch)
        try:
            await self._connections.run(commit)
        except InDoubt:
            await self._find_outcome()
        finally:
            stop_answering()

    async def _find_outcome(self) -> None:
        """Return when a commit in doubt is known to be in PostgreSQL, and the copy has it.

        Raises `Conflict` if it is not there, and never will be; `InDoubt` if that cannot be known.
        """
        attempt = 0
        while not self._connections.is_closing and self.file is not None:
            await deferLater(self._clock, OUTCOME_PAUSES[min(attempt, len(OUTCOME_PAUSES) - 1)])
            attempt += 1
            try:
                is_applied = await self._connections.run(self.file.find_outcome)
                if is_applied:
                    await self._bring_in()
                    return
            except StoreUnreachable as error:
                self._log.info("A commit is in doubt: {error}", error=error)
                continue
            if is_applied is None:
                break
            raise Conflict
        raise InDoubt

    async def _bring_in(self) -> None:
        """Bring in a commit of this daemon that the copy lacks."""
        while (fetched := await self.fetch()) is not None:
            while not self.try_lock():
                await deferLater(self._clock, LOCK_PAUSE_S)
            if await self.apply(fetched):
                return

    def _moment_begun(self, view: ReadView) -> None:
        self.on_moment(view)

    def _apply(self, file: PostgresqlEngine, fetched: Fetched) -> Deferred[bool]:
        work = partial(file.apply_fetched, fetched)
        return succeed(work()) if _is_little(fetched) else self._connections.run(work)

    async def _recover(self, file: PostgresqlEngine) -> None:
        try:
            await self._connections.run(file.recover)
            self.shown_rev = file.position.rev
        except StoreFailed as error:
            self._log.error("A copy could not be recovered: {error}", error=error)


def _is_little(fetched: Fetched) -> bool:
    """Return whether what was fetched can be applied in one turn of the reactor."""
    touched = fetched.touched
    if touched is None or touched.ranges or len(touched.keys) > APPLIED_AT_ONCE:
        return False
    size = sum(len(value) for _, value in fetched.rows)
    return size + sum(len(entry.content) for entry in fetched.entries) <= BYTES_AT_ONCE


def answer_when_late(clock: IReactorTime, batch: Sequence[QueuedWrite]) -> Callable[[], None]:
    """Answer each writer at its deadline that its outcome is in doubt; return how to stop that.

    The commit itself goes on, and writers with later deadlines wait for it.
    """
    late = sorted(
        (each for each in batch if each.write.deadline is not None),
        key=lambda each: each.write.deadline or 0,
        reverse=True,
    )
    calls: list[IDelayedCall] = []

    def answer() -> None:
        calls.clear()
        now = clock.seconds()
        end = now + SLICE_SECONDS
        while late and (late[-1].write.deadline or 0) <= now < end:
            late.pop().refuse(OutcomeInDoubt())
            now = clock.seconds()
        wait()

    def wait() -> None:
        if late:
            pause = (late[-1].write.deadline or 0) - clock.seconds()
            calls.append(clock.callLater(max(0, pause), answer))

    def stop() -> None:
        for call in calls:
            call.cancel()
        late.clear()

    wait()
    return stop


class BatchEnds:
    """The Deferreds that wait for the end of the present batch of a database."""

    def __init__(self, clock: IReactorTime, slices: Slices) -> None:
        """Fire them in `slices`."""
        self._clock = clock
        self._slices = slices
        self._waiting: list[Deferred[None]] = []

    def wait(self) -> Deferred[None]:
        """Return one that fires at the end of the batch."""
        end: Deferred[None] = Deferred()
        self._waiting.append(end)
        return end

    def over(self) -> None:
        """Fire all, in slices, from the next turn on."""
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            self._clock.callLater(0, self._slices.fire, waiting, None)
