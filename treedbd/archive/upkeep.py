"""Bases, and the merging and removal of old segments, while an archive is written.

All this is done by processes of low priority, one at a time: reading a database of gigabytes, or
unpacking the segments of an hour, would take the interpreter from the requests. So writes and
segments go on meanwhile.

A database has a base when it is first read, unless it is read from its first entry; when its log
did not continue; and `base_every_s` after the last one if it was written since then. Whether the
archive has a base that the entries go on from is seen by its time and that of the cursor, which a
clock that was set back makes one base too many at most. The pauses are measured by a clock that
does not step.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs
import orjson
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import deferLater
from twisted.logger import Logger

from treedbd.archive.bases import BaseName
from treedbd.archive.ownership import Note
from treedbd.database.catalog import Catalog
from treedbd.database.requests import DatabaseDeleted, Unavailable, UnknownDatabase
from treedbd.database.runtime import Problem, Runtime, in_own_thread
from treedbd.errors import in_one_line
from treedbd.names import DatabaseName
from treedbd.store.engine import CannotOpenStore

if TYPE_CHECKING:
    from treedbd.config.settings import ArchiveSettings

PROCESS: Final = "treedbd.archive.process"
LOOK_S: Final = 1.0
"""Seconds between two looks whether anything is due."""
FIRST_UPKEEP_S: Final = 60.0
UPKEEP_S: Final = 3600.0
"""Seconds from the start to the first upkeep, and between two."""
FIRST_RETRY_S: Final = 5.0
RETRY_S: Final = 300.0
"""Seconds after which a process that failed is started again, at first and at most."""
OPEN_S: Final = 10.0
END_S: Final = 1.0
"""Seconds that a process has to end in."""
_STOPPED: Final = "It was stopped."


@attrs.define
class ArchiveCounts:
    """What is counted of an archive, and since when the oldest write waits.

    Attributes:
        segments, bytes: that were written, and their bytes, with those of bases.
        failures: writes and processes that failed.
        last_base_ms: when the last base was made, in ms since 1970; 0 for never.
        lag_s: returns the age of the oldest write that has not arrived; None if another process
            writes the archive.

    """

    segments: int = 0
    bytes: int = 0
    failures: int = 0
    last_base_ms: int = 0
    lag_s: Callable[[], float | None] = lambda: None


class ProcessFailed(Exception):
    """A process of the upkeep did not do what was ordered; `str()` is a sentence."""


class Upkeep:
    """What is due of bases, merging and retention; belongs to the reactor's thread.

    Attributes:
        next_number: returns the number of the next segment.
        note: what the data directory knows of its archive, once it is open.
        report_missing: called with each database in the archive that was not deleted there.

    """

    _log = Logger()

    def __init__(
        self,
        settings: ArchiveSettings,
        counts: ArchiveCounts,
        *,
        is_shared: bool,
        catalog: Catalog,
        runtime: Runtime,
        reactor: Any,
    ) -> None:
        """Begin with `start`."""
        self.next_number: Callable[[], int] = int
        self.note: Note | None = None
        self.report_missing: Callable[[DatabaseName], None] = lambda _: None
        self._settings, self._counts = settings, counts
        self._is_shared = is_shared
        self._catalog, self._runtime, self._reactor = catalog, runtime, reactor
        self._bases: dict[DatabaseName, tuple[int, int]] = {}
        self._wanted: dict[DatabaseName, None] = {}
        self._changed: set[DatabaseName] = set()
        self._due: dict[DatabaseName, float] = {}
        self._seen: set[DatabaseName] = set()
        self._failures: dict[DatabaseName | None, str] = {}
        self._pauses: dict[DatabaseName | None, float] = {}
        self._not_before = 0.0
        self._upkeep_at = 0.0
        self._running: Deferred[None] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._term: object = None

    def start(self, names: Iterable[BaseName]) -> None:
        """Begin with the bases that there are."""
        now, now_ms = self._runtime.clock.seconds(), self._runtime.now_ms()
        for each in (self._wanted, self._changed, self._due, self._seen, self._bases):
            each.clear()
        every = self._settings.base_every_s
        for base in names:
            name = name_of(base.db)
            if base.time_ms >= self._bases.get(name, (0, -1))[1]:
                self._bases[name] = base.sequence, base.time_ms
                left = (base.time_ms - now_ms) / 1000 + every
                self._due[name] = now + max(0.0, min(every, left))
        last = max((time_ms for _, time_ms in self._bases.values()), default=0)
        self._counts.last_base_ms = max(self._counts.last_base_ms, last)
        self._failures.clear()
        self._upkeep_at = now + FIRST_UPKEEP_S
        term = self._term = object()
        self._running = Deferred.fromCoroutine(self._run(term))

    async def stop(self) -> None:
        """End the process that runs, and start no other."""
        self._term = None
        if self._process is not None:
            self._process.terminate()
        running, self._running = self._running, None
        if running is not None:
            running.addErrback(lambda _: None)
            await running.addTimeout(END_S, self._reactor, lambda _, __: None)

    # What is due.

    def want(self, name: DatabaseName) -> None:
        """Make a base of a database as soon as possible."""
        self._seen.add(name)  # `see` must not want another one while it is made
        self._wanted[name] = None

    def see(self, name: DatabaseName, created_ms: int) -> None:
        """Make a base of a database if there is none since its cursor was made."""
        if name not in self._seen:
            self._seen.add(name)
            if self._bases.get(name, (0, -1))[1] + 999 < created_ms:  # names have whole seconds
                self.want(name)

    def see_new(self, name: DatabaseName) -> None:
        """Make no base of a database before it is due: it is read from its first entry."""
        self._seen.add(name)

    def note_position(self, name: DatabaseName, sequence: int) -> None:
        """Record the last entry of a database, which may be in no base yet."""
        if sequence > self._bases.get(name, (0, 0))[0]:
            self.changed(name)

    def changed(self, name: DatabaseName) -> None:
        """Record that a database was written since its last base."""
        self._changed.add(name)
        self._due.setdefault(name, self._runtime.clock.seconds() + self._settings.base_every_s)

    def has_base(self, name: DatabaseName) -> bool:
        """Return whether the archive has a base of a database."""
        return name in self._bases

    def forget(self, name: DatabaseName) -> None:
        """Make no base of a database, which was deleted."""
        self._wanted.pop(name, None)
        self._changed.discard(name)
        self._due.pop(name, None)
        self._bases.pop(name, None)
        self._failures.pop(name, None)

    def problems(self) -> list[Problem]:
        """Return what has failed and was not done since."""
        return [
            Problem(
                "" if name is None else name.project,
                None if name is None else name.database,
                reason,
                refuses_writes=False,
            )
            for name, reason in self._failures.items()
        ]

    def _next_base(self) -> DatabaseName | None:
        """Return the database whose base is due, None for none."""
        if self._wanted:
            return next(iter(self._wanted))
        now = self._runtime.clock.seconds()
        due = [name for name in self._changed if self._due.get(name, now) <= now]
        return min(due, key=lambda name: self._due.get(name, now), default=None)

    async def _run(self, term: object) -> None:
        while self._term is term:
            try:
                await self._do_next(term)
            except CancelledError:
                return
            except Exception:
                self._log.failure("The upkeep of the archive failed.")
            await deferLater(self._reactor, LOOK_S)

    async def _do_next(self, term: object) -> None:
        """Do what is due now, one after the other."""
        while self._term is term and self._runtime.clock.seconds() >= self._not_before:
            name = self._next_base()
            if name is not None:
                await self._try(name, self._make_base(name))
            elif self._runtime.clock.seconds() >= self._upkeep_at:
                await self._try(None, self._keep_up())
            else:
                return

    async def _try(self, name: DatabaseName | None, work: Awaitable[None]) -> None:
        """Do one thing; if it fails, log that once, and pause."""
        try:
            await work
        except (ProcessFailed, Unavailable, CannotOpenStore) as error:
            if self._term is not None:
                self._note_failure(name, in_one_line(str(error)))
        else:
            self._pauses.pop(name, None)
            if self._failures.pop(name, None) is not None:
                self._log.info("The upkeep of the archive succeeds again.")

    def _note_failure(self, name: DatabaseName | None, reason: str) -> None:
        self._counts.failures += 1
        pause = min(RETRY_S, 2 * self._pauses.get(name, FIRST_RETRY_S / 2))
        self._pauses[name] = pause
        self._not_before = self._runtime.clock.seconds() + pause
        what = _NO_UPKEEP if name is None else f"No base of {name.label} could be archived"
        reason = f"{what}: {reason}"
        if self._failures.get(name) != reason:
            self._failures[name] = reason
            self._log.error("{reason}", reason=reason)
        if (
            name is not None and name in self._wanted
        ):  # others are not kept waiting by one that cannot be read
            self._wanted[name] = self._wanted.pop(name)

    # Processes.

    def _order(self, **more: object) -> dict[str, object]:
        """Return an order for a process, which ends if this daemon may not write there."""
        settings, note = self._settings, self.note
        key_file = settings.key_file
        return {
            "to": settings.to,
            "key_file": None if key_file is None else os.fspath(key_file.absolute()),
            "endpoint": settings.endpoint,
            "region": settings.region,
            "archive": None if note is None else note.id,
            "writer": None if note is None or self._is_shared else note.writer,
            **more,
        }

    async def _make_base(self, name: DatabaseName) -> None:
        try:
            if name not in self._catalog.written:
                raise DatabaseDeleted
            async with self._catalog.opened(self._catalog.find(name), OPEN_S):
                time_ms = self._runtime.now_ms()
                report = await self._dump(name, time_ms)
        except (DatabaseDeleted, UnknownDatabase):
            self.forget(name)
        else:
            self._note_base(name, report, time_ms)

    async def _dump(self, name: DatabaseName, time_ms: int) -> dict[str, Any]:
        """Make a base of a database that is open; return the report."""
        order = self._order(
            file=os.fspath(self._catalog.file_of(name).absolute()),
            db=f"{name.project}/{name.database}",
            time=time_ms,
            segment=self.next_number(),
        )
        self._changed.discard(name)
        self._wanted.pop(name, None)
        try:
            return await self._run_process("base", order)
        except BaseException:
            self.want(name)
            raise

    def _note_base(self, name: DatabaseName, report: Mapping[str, Any], time_ms: int) -> None:
        self._bases[name] = int(report["seq"]), time_ms
        self._due[name] = self._runtime.clock.seconds() + self._settings.base_every_s
        self._seen.add(name)
        self._counts.last_base_ms = time_ms
        self._counts.bytes += int(report["bytes"])
        self._log.info(
            "A base of {label} is in the archive, up to entry {n}.",
            label=name.label,
            n=int(report["seq"]),
        )

    async def _keep_up(self) -> None:
        """Merge and remove what is old, and find what was deleted without a word of it."""
        keep_s, keep_bases = self._settings.keep_s, self._settings.keep_bases
        order = self._order(time=self._runtime.now_ms(), keep_s=keep_s, keep_bases=keep_bases)
        report = await self._run_process("upkeep", order)
        self._upkeep_at = self._runtime.clock.seconds() + UPKEEP_S
        for db in report["databases"]:
            name = name_of(db)
            await self._refresh(name)
            if name not in self._catalog.written and self._term is not None:
                self.report_missing(name)

    async def _refresh(self, name: DatabaseName) -> None:
        """Learn of databases that other processes have created."""
        try:
            refreshing = self._catalog.refresh(name.project)
            if refreshing is not None:
                await refreshing
        except UnknownDatabase:
            return

    async def _run_process(self, work: str, order: Mapping[str, object]) -> dict[str, Any]:
        """Return the report of a process; raise `ProcessFailed`."""
        command = [sys.executable, "-m", PROCESS, work]
        report = await in_own_thread(self._reactor, lambda: self._call(command, order), "archive")
        if "problem" in report:
            raise ProcessFailed(report["problem"])
        return report

    def _call(self, command: Sequence[str], order: Mapping[str, object]) -> dict[str, Any]:
        if self._term is None:
            return {"problem": _STOPPED}
        with subprocess.Popen(  # noqa: S603 - a module of this package, without a shell
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            self._process = process
            output, errors = process.communicate(orjson.dumps(order))
        self._process = None
        try:
            report: dict[str, Any] = orjson.loads(output)
        except ValueError:
            lines = errors.decode(errors="replace").splitlines()
            return {"problem": f"The process failed ({lines[-1] if lines else 'without a word'})."}
        return report


_NO_UPKEEP: Final = "Old segments of the archive could not be merged or removed"


def name_of(db: str) -> DatabaseName:
    """Return the database that an archive names."""
    project, _, database = db.partition("/")
    return DatabaseName(project, database)
