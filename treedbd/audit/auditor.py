"""The writes of all databases, read in their change logs and written to audit files.

Theory of operation. One process of those that serve the databases is elected (`election`). Once
a second it reads, in each database that was written (`Runtime.news`), what its `LogReader` has not
read, and writes that as lines to the series `writes`, in a thread. When the lines are synced, the
cursors are moved. So no acknowledged write is missing, however a process ends: what was not synced
is read again. While the files cannot be written, nothing more is read, and writes go on: the logs
hold what is not audited, within the bounds of `[readers]`.

After a crash the lines that were synced just before come again. They are recognised: the files of
the last while say which write of each database was the last, by its number and its id. A database
without a cursor is new, or its cursor was dropped; its log is read from the first entry that it
has, and a line `begin` says whether anything before that may be missing.

A database that is deleted is read to its end when all processes have closed it, in its file. Over
PostgreSQL there is none: what is left is read when it is being closed, and written later.
"""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Callable, Generator
from functools import partial
from typing import Final

import attrs
from twisted.internet.defer import Deferred, DeferredLock
from twisted.internet.task import LoopingCall
from twisted.logger import Logger

from treedbd.audit.lines import last_write, print_begin, print_write
from treedbd.audit.series import AuditSeries
from treedbd.database.catalog import Catalog
from treedbd.database.database import Database
from treedbd.database.election import Election
from treedbd.database.log_reader import LogPosition, LogReader
from treedbd.database.requests import UnknownDatabase
from treedbd.database.runtime import Problem, RunInThread, Runtime
from treedbd.errors import in_one_line
from treedbd.limits import DEFAULT_TIMEOUT_S, MIB
from treedbd.names import DatabaseName
from treedbd.store.cursors import read_cursor
from treedbd.store.engine import CannotOpenStore, StoreFailed
from treedbd.store.sqlite.file import connect_reader
from treedbd.store.sqlite.reader import SqliteReader

SERIES: Final = "writes"
READER: Final = "audit"
"""The name of the cursors, and of the election."""
READ_S: Final = 1.0
"""Seconds between two readings."""
WRITTEN_AT_ONCE: Final = MIB
"""Bytes of lines that are written together, rather more."""
FORGOTTEN_S: Final = 60.0
"""Seconds after which the reader of a database that is not written is forgotten."""
SWEEP_S: Final = 600.0
"""Seconds after which all databases are read that other processes may have written: the hints of
these may be lost."""
LATE_S: Final = 30.0
"""Seconds of lag that are a problem."""


@attrs.define
class _Followed:
    """A database that is read; lines of writes up to `known` are in the files already."""

    database: Database
    reader: LogReader
    known: int
    used_at: float


class Auditor:
    """Audits the writes of all databases while this process is elected; of the reactor's thread."""

    _log = Logger()

    def __init__(
        self,
        folder: pathlib.Path,
        make_series: Callable[[pathlib.Path], AuditSeries],
        *,
        body_bytes: int,
        catalog: Catalog,
        runtime: Runtime,
        election: Election,
        run_in_thread: RunInThread,
        has_files: bool,
    ) -> None:
        """Write to a series in `folder`; lines have bodies of at most `body_bytes`.

        With `has_files` what is left of a deleted database is read in its file (`finish`).
        """
        self._has_files = has_files
        self._series = make_series(folder / SERIES)
        self._body_bytes = body_bytes
        self._catalog, self._runtime, self._election = catalog, runtime, election
        self._run_in_thread, self._clock = run_in_thread, runtime.clock
        self._is_open = self._is_first = self._must_sweep = False
        self._swept_at = self._clock.seconds()
        self._unread: dict[DatabaseName, float] = {}
        self._reading_since: float | None = None
        self._followed: dict[DatabaseName, _Followed] = {}
        self._last: dict[DatabaseName, LogPosition] = {}
        self._parting: list[bytes] = []
        self._failures: dict[DatabaseName, str] = {}
        self._problem: str | None = None
        self._appending = DeferredLock()
        self._reading = LoopingCall(self._read)
        self._reading.clock = self._clock
        self._running: Deferred[LoopingCall] | None = None

    def start(self) -> None:
        """Be a candidate, and read when elected."""
        self._runtime.news.append(self._note)
        self._election.start(self._election_changed)
        self._running = self._reading.start(READ_S, now=False)

    async def stop(self) -> None:
        """Audit what is left, and let another process go on."""
        if self._reading.running and self._running is not None:
            self._reading.stop()
            await self._running
        await self._read()
        for followed in self._followed.values():
            await self._save(followed)
        self._forget_all()
        self._runtime.news.remove(self._note)
        await self._election.stop()

    def lag_s(self) -> float:
        """Return the age of the oldest write that is not audited; 0 if there is none.

        It is that of the elected process.
        """
        if not self._election.is_elected:
            return 0.0
        begun = [] if self._reading_since is None else [self._reading_since]
        since = min([*begun, *self._unread.values()], default=None)
        return 0.0 if since is None else max(0.0, self._clock.seconds() - since)

    def problems(self) -> list[Problem]:
        """Return what keeps writes from being audited; writes go on."""
        reason = self._problem
        if reason is None and self.lag_s() > LATE_S:
            reason = f"Writes have waited for {self.lag_s():.0f} s to be audited."
        return [] if reason is None else [Problem("", None, reason, refuses_writes=False)]

    def leave(self, name: DatabaseName) -> None:
        """Read a database no longer that is being deleted; `finish` reads what is left.

        Over PostgreSQL there is no file to read then: what is left in its log is read now.
        """
        followed, was_unread = self._followed.pop(name, None), self._unread.pop(name, None)
        if not self._has_files:
            followed = self._read_parting(name, followed, was_unread=was_unread is not None)
        if followed is not None:
            self._last[name] = followed.reader.position
            followed.reader.stop()

    def _read_parting(
        self, name: DatabaseName, followed: _Followed | None, *, was_unread: bool
    ) -> _Followed | None:
        """Read what is left in the log of a database that is being closed."""
        try:
            if followed is None and was_unread and self._election.is_elected:
                database = self._catalog.in_use(name)
                reader = LogReader(database, self._runtime, READER)
                Deferred.fromCoroutine(reader.open())  # which does not wait
                followed = self._make_followed(database, reader)
            while followed is not None and (lines := list(self._print(followed))):
                self._parting += lines
        except Exception as error:  # it may be closed already
            self._log.debug("{label} is left: {error}", label=name.label, error=error)
        return followed

    async def finish(self, name: DatabaseName, file: pathlib.Path) -> None:
        """Audit what is left in the log of a deleted database, whose file no process uses.

        The lines are synced when this returns. If they cannot be written they are missing, since
        the file is removed then.
        """
        last = self._last.pop(name, None)
        if not self._election.is_elected:
            return
        try:
            await self._open()
            await self._write(self._parting)
            async with self._appending:
                await self._run_in_thread(partial(self._append_closed, name, file, last))
        except (OSError, CannotOpenStore, StoreFailed) as error:
            self._log.error(
                "{label} is deleted, and its last writes cannot be audited ({why}).",
                label=name.label,
                why=in_one_line(str(error)),
            )

    def _append_closed(
        self, name: DatabaseName, file: pathlib.Path, last: LogPosition | None
    ) -> None:
        """Append what the log in a file has after its cursor, or after `last`; in a thread."""
        with contextlib.closing(connect_reader(file, is_known=False)) as connection:
            reader = SqliteReader(connection)
            reader.begin()
            cursor = read_cursor(reader, READER)
            at = 0 if cursor is None else cursor.sequence
            if last is not None and last.sequence > at:
                found = next(reader.entries(last.sequence - 1), None)
                at = last.sequence if found and found.op_id == last.op_id else at
            lines, size = list[bytes](), 0
            for entry in reader.entries(at):
                lines.append(print_write(name, entry, self._body_bytes))
                size += len(lines[-1])
                if size >= WRITTEN_AT_ONCE:
                    self._series.append(lines)
                    lines, size = [], 0
            if lines:
                self._series.append(lines)

    def _note(self, name: DatabaseName) -> None:
        self._unread.setdefault(name, self._clock.seconds())

    def _election_changed(self) -> None:
        self._must_sweep = True

    def _read(self) -> Deferred[None]:
        return Deferred.fromCoroutine(self._read_all())

    async def _read_all(self) -> None:
        if not self._election.is_elected:
            self._forget_all()
            self._unread.clear()  # who is elected reads all databases first
            return
        try:
            await self._open()
            await self._sweep()
            await self._write(self._parting)
            for name in list(self._unread):
                if self._election.is_elected and name in self._unread:  # it may be deleted now
                    await self._read_one(name)
            if self._problem is not None:
                self._log.info("Writes are audited again.")
            self._problem = None
            self._forget_idle()
            async with self._appending:
                await self._run_in_thread(self._series.prune)
        except OSError as error:
            self._fail(f"Writes cannot be audited ({error.strerror or error}).")
        except Exception:
            self._log.failure("Writes cannot be audited.")
            self._problem = "Writes cannot be audited; the log says why."

    def _fail(self, reason: str) -> None:
        if self._problem != reason:
            self._log.error(
                "{reason} They go on, and the change logs hold them until they can be.",
                reason=reason,
            )
        self._problem = reason

    async def _open(self) -> None:
        if self._is_open:
            return
        last = dict[DatabaseName, LogPosition]()

        def seen(line: bytes) -> None:
            found = last_write(line)
            if found is not None:
                last[found[0]] = LogPosition(found[1], found[2])

        async with self._appending:
            if not self._is_open:
                await self._run_in_thread(lambda: self._series.open(seen))
                self._know_opened(last)

    def _know_opened(self, last: dict[DatabaseName, LogPosition]) -> None:
        self._last, self._is_open, self._is_first = last, True, self._series.is_first
        self._report_changed()

    def _report_changed(self) -> None:
        """Log once what was not as it had been left when the series was opened last."""
        problem, self._series.problem = self._series.problem, None
        if problem is not None:
            self._log.critical(
                "The files of the audit are not as they were left: {problem}.", problem=problem
            )

    async def _sweep(self) -> None:
        """Read all databases: when elected, and at times if other processes write them too."""
        now = self._clock.seconds()
        is_due = self._runtime.followed_bytes and now - self._swept_at >= SWEEP_S
        if not (self._must_sweep or is_due):
            return
        self._must_sweep, self._swept_at = False, now
        for project in await self._runtime.slices.run(self._catalog.projects()):
            refreshing = self._catalog.refresh(project.name)
            if refreshing is not None:
                await refreshing
            self._catalog.names(project)  # which finds those that others have created
        for name in self._catalog.written.all():
            self._note(name)

    async def _read_one(self, name: DatabaseName) -> None:
        """Audit what is left in one log; raise OSError if the files cannot be written."""
        since = self._reading_since = self._unread.pop(name)
        try:
            if self._catalog.has_data(name):
                await self._acquire_and_read(name)
            self._failures.pop(name, None)
        except UnknownDatabase:
            return
        except Exception as error:
            self._followed.pop(name, None)
            self._unread[name] = since
            if isinstance(error, OSError):
                raise
            self._report(name, error)
        finally:
            self._reading_since = None

    def _report(self, name: DatabaseName, error: Exception) -> None:
        """Log why a database is not audited yet, once for the same reason."""
        reason = in_one_line(str(error)) or type(error).__name__
        if self._failures.get(name) != reason:
            self._failures[name] = reason
            self._log.warn("{label} is not audited yet: {why}", label=name.label, why=reason)

    async def _acquire_and_read(self, name: DatabaseName) -> None:
        database = self._catalog.find(name)
        async with self._catalog.opened(database, DEFAULT_TIMEOUT_S):
            followed = self._followed.get(name)
            if followed is None or followed.database is not database:
                followed = await self._follow(database)
            await self._read_open(followed)

    async def _read_open(self, followed: _Followed) -> None:
        while self._election.is_elected:
            before = followed.reader.position
            lines = await self._runtime.slices.run(self._print_some(followed))
            after = followed.reader.position
            if after == before:
                return
            await self._write(lines)
            self._last[followed.database.name] = after
            followed.reader.reached()
            followed.used_at = self._clock.seconds()

    async def _follow(self, database: Database) -> _Followed:
        """Continue at the cursor of a database, or begin with the first entry of its log."""
        name = database.name
        reader = LogReader(database, self._runtime, READER)
        is_new = not await reader.open()
        if is_new:
            await reader.begin(is_early=True)
        followed = self._make_followed(database, reader)
        last, at = self._last.get(name), reader.position
        is_other = last is not None and not followed.known and at.sequence < last.sequence
        is_lost = self._is_first and not is_new and at.sequence > 0
        if is_new or is_other or is_lost:
            reason = _missing(at, last, followed.known, is_lost=is_lost)
            now = self._runtime.now_ms()
            await self._write([print_begin(name, now, at.sequence, reason)])
        self._followed[name] = followed
        return followed

    def _make_followed(self, database: Database, reader: LogReader) -> _Followed:
        last = self._last.get(database.name)
        known = 0 if last is None or not _has(database, last) else last.sequence
        return _Followed(database, reader, known, self._clock.seconds())

    def _print_some(self, followed: _Followed) -> Generator[None, None, list[bytes]]:
        """Return the next lines.

        If reading fails after some of them, as when the database is deleted, they are returned: the
        position of the reader is after them.
        """
        lines, size = list[bytes](), 0
        before = -1
        while size < WRITTEN_AT_ONCE and before != followed.reader.sequence:
            before = followed.reader.sequence
            try:
                some = list(self._print(followed))
            except Exception:
                if lines:
                    return lines
                raise
            lines += some
            size += sum(map(len, some))
            yield
        return lines

    def _print(self, followed: _Followed) -> Generator[bytes, None, None]:
        name = followed.database.name
        for entry in followed.reader.read():
            if entry.sequence > followed.known:
                yield print_write(name, entry, self._body_bytes)

    async def _write(self, lines: list[bytes]) -> None:
        if not lines:
            return
        written = list(lines)
        async with self._appending:
            await self._run_in_thread(lambda: self._series.append(written))
        self._report_changed()
        if lines is self._parting:
            del self._parting[: len(written)]
        completed, self._series.completed = self._series.completed, []
        for file, sha256 in completed:
            self._log.info("The audit file {file} is complete: {sha256}", file=file, sha256=sha256)

    async def _save(self, followed: _Followed) -> None:
        try:
            await followed.reader.save()
        except Exception as error:
            self._log.debug("A cursor is not stored: {error}", error=error)

    def _forget_idle(self) -> None:
        now = self._clock.seconds()
        for name, followed in list(self._followed.items()):
            if now - followed.used_at > FORGOTTEN_S and name not in self._unread:
                del self._followed[name]  # its cursor was stored long ago

    def _forget_all(self) -> None:
        for followed in self._followed.values():
            followed.reader.stop()
        self._followed.clear()
        if self._is_open:
            self._is_open = False
            self._series.close()


def _has(database: Database, position: LogPosition) -> bool:
    """Return whether an entry is in the log of a database."""
    found = database.read(lambda nodes: next(nodes.rows.entries(position.sequence - 1), None))
    return found is not None and found[:2] == (position.sequence, position.op_id)


def _missing(at: LogPosition, last: LogPosition | None, known: int, *, is_lost: bool) -> str | None:
    """Return why writes before `at` may be missing in the audit; None if none are.

    It `is_lost` if they were in files that are gone.
    """
    if is_lost:
        return "the files of the audit with what was written before are not here"
    if last is None:
        return None if at.sequence == 0 else "what was written before is not in the change log"
    if known and known >= at.sequence:
        return None
    if last.sequence < at.sequence:
        return f"writes after {last.sequence} are missing: the change log did not hold them"
    return "the history of the database is another one"
