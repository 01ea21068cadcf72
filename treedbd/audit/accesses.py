"""Denied writes, and what admins read, set and make: recorded by the process that answers them.

They are in no change log. Each process has a series of its own for them. They wait in a bounded
queue, which is written once a second in a thread; what comes while it is full is counted, and a
line says how many were lost. So a request never waits for the files, and the memory for a flood
of denied writes is that of the queue.
"""

from __future__ import annotations

import pathlib
from collections import deque
from collections.abc import Callable
from typing import Final

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall
from twisted.logger import Logger

from treedbd.audit.lines import Access, Kind, print_access, print_lost
from treedbd.audit.series import AuditSeries, SeriesLocked
from treedbd.database.runtime import RunInThread
from treedbd.names import DatabaseName
from treedbd.store.changelog import Writer

MAX_WAITING: Final = 10_000
"""Requests that wait to be written."""
WRITE_S: Final = 1.0
MAX_SERIES: Final = 256
"""Series of processes that record at a time."""
MAX_PATH: Final = 2000
"""Characters of a path that was denied or read."""


class AccessRecorder:
    """Records requests of this process; belongs to the reactor's thread.

    Attributes:
        reads: whether reads of admins are recorded.
        denied: whether denied writes are.
        problem: why nothing can be written at present, a sentence; None if it can.

    """

    _log = Logger()

    def __init__(
        self,
        folder: pathlib.Path,
        make_series: Callable[[pathlib.Path], AuditSeries],
        *,
        reads: bool,
        denied: bool,
        run_in_thread: RunInThread,
        clock: IReactorTime,
        now_ms: Callable[[], int],
    ) -> None:
        """Write to a series in a folder below `folder`."""
        self.reads, self.denied = reads, denied
        self.problem: str | None = None
        self._folder, self._make_series = folder, make_series
        self._series: AuditSeries | None = None
        self._run_in_thread, self._now_ms = run_in_thread, now_ms
        self._waiting: deque[Access] = deque()
        self._lost = 0
        self._writing = LoopingCall(self._write)
        self._writing.clock = clock
        self._running: Deferred[LoopingCall] | None = None

    def start(self) -> None:
        """Write from now on."""
        self._running = self._writing.start(WRITE_S, now=False)

    async def stop(self) -> None:
        """Write what waits, and close the files."""
        if self._writing.running and self._running is not None:
            self._writing.stop()
            await self._running
        await self._write()
        if self._series is not None:
            await self._run_in_thread(self._series.close)

    def note(
        self,
        kind: Kind,
        name: DatabaseName,
        writer: Writer,
        method: str,
        path: str,
        *,
        status: int | None = None,
        error: str | None = None,
        made: dict[str, str | None] | None = None,
    ) -> None:
        """Record a request; it is durable within about a second."""
        if len(self._waiting) >= MAX_WAITING:
            self._lost += 1
            return
        shown = path if len(path) <= MAX_PATH else path[:MAX_PATH] + "…"
        access = Access(
            kind=kind,
            name=name,
            time=self._now_ms(),
            writer=writer,
            method=method,
            path=shown,
            status=status,
            error=error,
            made=made,
        )
        self._waiting.append(access)

    def _write(self) -> Deferred[None]:
        return Deferred.fromCoroutine(self._write_waiting())

    async def _write_waiting(self) -> None:
        if not (self._waiting or self._lost):
            return
        waiting, lost = list(self._waiting), self._lost

        def write() -> None:
            lines = [print_access(each) for each in waiting]
            if lost:
                lines.append(print_lost(self._now_ms(), lost))
            self._open_series().append(lines)

        try:
            await self._run_in_thread(write)
        except OSError as error:
            self.problem = f"Denied writes and reads cannot be audited ({error.strerror or error})."
            return
        except Exception:
            self._log.failure("Denied writes and reads cannot be audited.")
            self.problem = "Denied writes and reads cannot be audited; the log says why."
            return
        self.problem = None
        self._lost -= lost
        for _ in waiting:
            self._waiting.popleft()
        await self._prune()

    async def _prune(self) -> None:
        if self._series is not None:
            try:
                await self._run_in_thread(self._series.prune)
            except OSError as error:
                self._log.warn("An audit file cannot be removed: {error}", error=error)

    def _open_series(self) -> AuditSeries:
        """Return the series of this process: the first that no other has; raise OSError."""
        if self._series is None:
            for number in range(1, MAX_SERIES + 1):
                series = self._make_series(self._folder / f"access-{number}")
                try:
                    series.open()
                except SeriesLocked:
                    continue
                except OSError:
                    series.close()
                    raise
                self._series = series
                return series
            raise SeriesLocked
        return self._series
