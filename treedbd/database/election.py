"""Which process reads the change logs of all databases for one purpose: one of them at a time.

Several processes may serve the same databases, and one purpose, such as the archive, needs one
reader. Each process has an `Election` for it, and reads while it `is_elected`. `FileElection` is
that of processes that share a data directory, also of one alone; `SoleElection` that of a process
beside which there is none; over PostgreSQL there is a lease (`cluster.election`).

An election says who reads, and nothing about what was read: a process that ends leaves its cursors
(`store.cursors`), and the next one reads again what was not stored there.
"""

from __future__ import annotations

import fcntl
import os
import pathlib
from collections.abc import Callable
from typing import Final, Protocol

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from treedbd.database.data_directory import READER_FILE
from treedbd.database.runtime import RunInThread
from treedbd.errors import in_one_line
from treedbd.files import create_directory, is_at, open_private
from treedbd.loop import do_nothing
from treedbd.store.engine import StoreUnreachable

POLL_S: Final = 1.0
"""Seconds between two tries to be elected, and between two renewals."""
STOP_S: Final = 1.0
"""Seconds for which a stop waits until the election is given up."""


class Election(Protocol):
    """Whether this process is the one that reads for a purpose; used in the reactor's thread.

    `FileElection` is that of processes that share a data directory, `SoleElection` that of a
    process beside which there is none, `cluster.election.LeaseElection` that of daemons over
    PostgreSQL.
    """

    @property
    def is_elected(self) -> bool:
        """Whether this process reads, at this moment; look again after whatever took time."""
        ...

    def start(self, changed: Callable[[], None]) -> None:
        """Be a candidate; `changed` is called when `is_elected` has changed, maybe at once."""
        ...

    async def stop(self) -> None:
        """Give it up for good, so that another process is elected soon.

        What this process reads must have ended before. `changed` is not called any more.
        """
        ...


class SoleElection:
    """The election of a process beside which there is no other: it is always won."""

    def __init__(self) -> None:
        """Begin with `start`."""
        self._is_elected = False

    @property
    def is_elected(self) -> bool:
        """Whether it was started and not stopped."""
        return self._is_elected

    def start(self, changed: Callable[[], None]) -> None:
        """Be elected; `changed` is called before it returns."""
        self._is_elected = True
        changed()

    async def stop(self) -> None:
        """Give it up."""
        self._is_elected = False


class PolledElection:
    """The base of elections that are tried again each second.

    One try follows the other. A class says how to try (`_try`), whether this process is elected
    (`_is_held`) and how to give it up (`_give_up`).
    """

    _log = Logger()

    def __init__(self, name: str, clock: IReactorTime) -> None:
        """`name` is the purpose, of small letters."""
        self._name = name
        self._clock = clock
        self._changed: Callable[[], None] = do_nothing
        self._was_elected = False
        self._is_over = False
        self._timer: IDelayedCall | None = None
        self._trying: Deferred[None] | None = None
        self._failure = ""

    @property
    def is_elected(self) -> bool:
        """Whether this process reads, at this moment."""
        return not self._is_over and self._is_held()

    def start(self, changed: Callable[[], None]) -> None:
        """Be a candidate; `changed` is called when `is_elected` has changed."""
        self._changed = changed
        self._begin()

    async def stop(self) -> None:
        """Give it up for good; what takes longer than `STOP_S` is not waited for, and goes on."""
        self._is_over = True
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        ended: Deferred[None] = Deferred()  # not that of `_end`, which must not be cancelled
        late = self._clock.callLater(STOP_S, ended.callback, None)

        def end(_: object) -> None:
            if late.active():
                late.cancel()
                ended.callback(None)

        Deferred.fromCoroutine(self._end()).addBoth(end)
        await ended

    async def _end(self) -> None:
        if self._trying is not None:
            await self._trying  # it may be elected by this try
        try:
            await self._give_up()
        except (OSError, StoreUnreachable):
            return  # the others wait until it has ended by itself

    def _begin(self) -> None:
        self._trying = Deferred.fromCoroutine(self._try_and_judge())

    async def _try_and_judge(self) -> None:
        try:
            await self._try()
            self._failure = ""
        except (OSError, StoreUnreachable) as error:
            self._note(error)
        except Exception:
            if not self._is_over:
                self._log.failure("The election of the reader {name} failed.", name=self._name)
        self._judge()
        if not self._is_over:
            self._timer = self._clock.callLater(POLL_S, self._begin)

    def _note(self, error: Exception) -> None:
        """Log why a try failed, once for the same reason."""
        reason = in_one_line(str(error))
        if reason != self._failure and not self._is_over:
            self._log.warn(
                "It could not be found out whether this process is the reader {name}: {reason}",
                name=self._name,
                reason=reason,
            )
        self._failure = reason

    def _judge(self) -> None:
        """Report it if `is_elected` has changed."""
        is_elected = self.is_elected
        if is_elected == self._was_elected or self._is_over:
            return
        self._was_elected = is_elected
        self._log.info(
            "This process is the reader {name}." if is_elected else _NO_LONGER, name=self._name
        )
        try:
            self._changed()
        except Exception:
            self._log.failure("The reader {name} failed.", name=self._name)

    async def _try(self) -> None:
        """Try to be elected, or to remain it; raise OSError or `StoreUnreachable`."""
        raise NotImplementedError

    def _is_held(self) -> bool:
        """Return whether this process is elected, as far as it knows."""
        raise NotImplementedError

    async def _give_up(self) -> None:
        """Release what elects this process; raise OSError or `StoreUnreachable`."""
        raise NotImplementedError


_NO_LONGER: Final = "This process is the reader {name} no longer."


class FileElection(PolledElection):
    """The election among processes that share a data directory: one has locked a file there.

    The lock (`flock`) ends with the process, however that ends. A stop removes the file; so between
    opening and locking it another process may have removed or replaced it, and a lock counts only
    if the path still leads to the file. A process whose file was removed by others gives it up.
    """

    def __init__(
        self, folder: pathlib.Path, name: str, run_in_thread: RunInThread, clock: IReactorTime
    ) -> None:
        """Lock a file in `folder`, which is made if it is missing."""
        super().__init__(name, clock)
        self._path = folder / (READER_FILE + name)
        self._run_in_thread = run_in_thread
        self._descriptor: int | None = None

    def _is_held(self) -> bool:
        return self._descriptor is not None

    async def _try(self) -> None:
        await self._run_in_thread(self._lock if self._descriptor is None else self._keep)

    async def _give_up(self) -> None:
        await self._run_in_thread(self._unlock)

    def _lock(self) -> None:
        """Lock the file if no other process has; blocks for a moment."""
        create_directory(self._path.parent)
        descriptor = open_private(self._path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_locked = is_at(self._path, descriptor)
        except BlockingIOError:
            is_locked = False
        except BaseException:
            os.close(descriptor)
            raise
        if is_locked:
            self._descriptor = descriptor
        else:
            os.close(descriptor)

    def _keep(self) -> None:
        """Give it up if the file was removed: another process may lock one of the same name."""
        descriptor = self._descriptor
        if descriptor is not None and not is_at(self._path, descriptor):
            self._descriptor = None
            os.close(descriptor)

    def _unlock(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        try:
            if is_at(self._path, descriptor):
                self._path.unlink(missing_ok=True)
        finally:
            os.close(descriptor)
