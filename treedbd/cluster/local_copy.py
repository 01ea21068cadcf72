"""The copy that a daemon has of one database, and how it is brought up to date.

What was fetched is applied in the reactor's thread if it is little. Only one at a time works on a
copy: a batch of this daemon, or who brings it up to date or recovers it and so has its lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol, TypeVar

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger

from treedbd.limits import KIB
from treedbd.store.engine import (
    Conflict,
    DiskFull,
    InDoubt,
    ReadView,
    StoreFailed,
    StoreUnreachable,
)
from treedbd.store.on_demand import ReopeningEngine
from treedbd.store.postgresql.engine import PostgresqlEngine
from treedbd.store.postgresql.fetching import DatabaseMissing, Fetched

T = TypeVar("T")

SETTLE_PAUSES: Final = (0.0, 0.1, 0.2, 0.5, 1.0)
"""Seconds before each attempt to settle a commit; the last one repeats."""
LOCK_PAUSE_S: Final = 0.002
"""Seconds between two looks whether the lock of a copy is free."""
APPLIED_AT_ONCE: Final = 500
"""Rows that are brought into the copy in the reactor's thread; more wait in another one."""
BYTES_AT_ONCE: Final = 256 * KIB
"""The same in bytes, with what the log says of them."""
IS_GONE: Final = "The database is no longer in PostgreSQL: restart the daemon."


class Waiting(Protocol):
    """Where a daemon waits for PostgreSQL and the disk (`ClusterConnections`).

    Attributes:
        is_closing: whether nothing new is to begin.

    """

    is_closing: bool

    def run(self, work: Callable[[], T]) -> Deferred[T]:
        """Run what blocks in a thread."""
        ...


class LocalCopy:
    """One copy; belongs to the reactor's thread, but for `use_file` and `run_alone`.

    Attributes:
        clock: the clock of the reactor.
        shown_rev: how many commits reads show.
        on_moment: called with each moment that reads begin to show.
        is_over: whether it is being closed, and used no more.

    """

    _log = Logger()

    def __init__(
        self,
        waiting: Waiting,
        engine: ReopeningEngine,
        clock: IReactorTime,
        arrived: Callable[[Fetched], None],
    ) -> None:
        """Use the file of `engine`; call `arrived` when something was brought in."""
        self._file: PostgresqlEngine | None = None
        self._engine = engine
        self.shown_rev = 0
        self.on_moment: Callable[[ReadView], None] = _do_nothing
        self._waiting = waiting
        self.clock = clock
        self._arrived = arrived
        self._has_news = False
        self.is_over = False
        self._lock = threading.Lock()

    @property
    def file(self) -> PostgresqlEngine | None:
        """The engine over it; None while it is not open, and after `end`."""
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
        """Run `work` while nobody else works on the copy; blocks, in a worker thread."""
        with self._lock:
            work()

    async def end(self) -> None:
        """Use the file no more, because it is being closed; return when nothing uses it."""
        self.is_over = True
        while self.is_in_use:
            await deferLater(self.clock, LOCK_PAUSE_S)

    async def fetch(self) -> Fetched | None:
        """Fetch what is missing; None if the copy is not open. Raises `StoreUnreachable`."""
        if self.file is None:
            return None
        try:
            return await self._waiting.run(self.file.fetch)
        except DatabaseMissing:
            raise StoreUnreachable(IS_GONE) from None
        except OSError as error:
            raise StoreUnreachable(f"No copy can be made: {error.strerror}.") from None

    def try_lock(self) -> bool:
        """Take the lock for `apply` if it is free."""
        return self._lock.acquire(blocking=False)

    async def apply(self, fetched: Fetched) -> bool:
        """Bring in what was fetched, show it, and give the lock back; return whether that was done.

        If not, the copy has changed: fetch again. Raises `StoreUnreachable`.
        """
        file = self.file
        try:
            if file is None:
                fetched.close()
                return False
            file.pin()  # until it is shown, what comes after this moment is not
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

    async def settle(self) -> None:
        """Return when a commit in doubt is known to be in PostgreSQL, and the copy has it.

        Raises `Conflict` if it is not there, and never will be; `InDoubt` if that cannot be known.
        """
        attempt = 0
        while not self._waiting.is_closing and self.file is not None:
            await deferLater(self.clock, SETTLE_PAUSES[min(attempt, len(SETTLE_PAUSES) - 1)])
            attempt += 1
            try:
                is_applied = await self._waiting.run(self.file.settle)
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
                await deferLater(self.clock, LOCK_PAUSE_S)
            if await self.apply(fetched):
                return

    def _moment_begun(self, view: ReadView) -> None:
        self.on_moment(view)

    def _apply(self, file: PostgresqlEngine, fetched: Fetched) -> Deferred[bool]:
        work = partial(file.apply_fetched, fetched)
        return succeed(work()) if _is_little(fetched) else self._waiting.run(work)

    async def _recover(self, file: PostgresqlEngine) -> None:
        try:
            await self._waiting.run(file.recover)
            self.shown_rev = file.position.rev
        except StoreFailed as error:
            self._log.error("A copy could not be recovered: {error}", error=error)


def _do_nothing(_: ReadView) -> None:
    pass


def _is_little(fetched: Fetched) -> bool:
    """Return whether what was fetched can be applied in one turn of the reactor."""
    touched = fetched.touched
    if touched is None or touched.ranges or len(touched.keys) > APPLIED_AT_ONCE:
        return False
    size = sum(len(value) for _, value in fetched.rows)
    return size + sum(len(entry.content) for entry in fetched.entries) <= BYTES_AT_ONCE
