"""Writes the archive while the daemon serves: segments each second, and what `upkeep` does.

**One writer.** Of all processes that serve the databases one is elected (`database.election`). When
it is, it opens the place, compares its marker, and looks at all databases once (`feeds`); then it
writes a segment whenever there is something new, `every_s` after the last one. A process that is
elected no longer stops at once; were two of them to write for a moment, their segments have
different numbers, and both are right.

**At least once.** A cursor is stored when the segment with its entries is durable. Whatever ends
the process before that, the entries are read again, and are in two segments, which readers of the
archive accept.

**A place that cannot be reached** is tried again after growing pauses, with the batch that has been
read; nothing more is read until it is written, so memory is bounded, and the change logs keep what
follows, within `[readers]`. The daemon serves as before; `/.health`, the log and the lag say so.

**A wrong place**, without a marker or with another one, or one that another data directory writes,
is not written (`ownership`).
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import attrs
from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger

from treedbd.archive import bases
from treedbd.archive.bases import BaseName
from treedbd.archive.feeds import Batch, Feeds
from treedbd.archive.index import Archive
from treedbd.archive.ownership import Note, check_archive, check_writer, open_as_writer
from treedbd.archive.places import FolderPlace, NameTaken, Place, PlaceFailed, open_place
from treedbd.archive.sealing import SUFFIX, Damaged, Key, WrongKey, read_key
from treedbd.archive.segments import make_header, name_segment, write_segment
from treedbd.archive.upkeep import ArchiveCounts, Upkeep
from treedbd.database.catalog import Catalog
from treedbd.database.election import Election
from treedbd.database.runtime import Problem, Runtime, in_own_thread

if TYPE_CHECKING:
    from treedbd.config.settings import ArchiveSettings

T = TypeVar("T")

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0
"""Seconds after which a place that cannot be written is tried again, at first and at most."""
LAST_S: Final = 1.0
"""Seconds that the last segment may take when the service stops."""


@attrs.frozen
class OpenArchive:
    """A place that is the right archive, its key, and what is known of it."""

    archive: Archive
    next_number: int
    bases: list[BaseName]


class Archiver:
    """Writes the archive of a service; belongs to the reactor's thread.

    Attributes:
        counts: for the metrics.

    """

    _log = Logger()

    def __init__(
        self,
        settings: ArchiveSettings,
        folder: pathlib.Path,
        *,
        is_shared: bool,
        catalog: Catalog,
        runtime: Runtime,
        reactor: Any,
        election: Election,
    ) -> None:
        """Archive the databases of `catalog`, whose data directory is `folder`."""
        self._settings, self._folder = settings, folder
        self._is_shared = is_shared
        self._note: Note | None = None
        self._catalog, self._runtime, self._reactor = catalog, runtime, reactor
        self._election = election
        self.counts: Final = ArchiveCounts(lag_s=self._lag_s)
        self._upkeep = Upkeep(
            settings,
            self.counts,
            is_shared=is_shared,
            catalog=catalog,
            runtime=runtime,
            reactor=reactor,
        )
        self._feeds = Feeds(catalog, runtime, self._upkeep)
        self._upkeep.next_number = lambda: self._number
        self._upkeep.report_missing = self._feeds.deleted
        self._term: object = None
        self._writing: Deferred[None] | None = None
        self._pause: Deferred[None] | None = None
        self._is_stopping = False
        self._number = 0
        self._problem: str | None = None

    def start(self) -> None:
        """Write whenever this process is elected."""
        self._catalog.problem_sources.append(self._find_problems)
        self._election.start(self._elected)

    async def stop(self) -> None:
        """Write what has not been written, if that takes no long time; then end everything."""
        self._is_stopping = True
        self._wake()
        if self._writing is not None:
            await self._writing.addTimeout(LAST_S, self._reactor, lambda _, __: None)
        self._term = None
        await self._upkeep.stop()
        await self._election.stop()
        self._catalog.problem_sources.remove(self._find_problems)

    def _elected(self) -> None:
        """Begin to write, or end it, as the election says."""
        if self._election.is_elected and not self._is_stopping:
            term = self._term = object()
            before, self._writing = self._writing, None
            writing = Deferred.fromCoroutine(self._run(term, before))
            self._writing = writing.addErrback(self._fail)
        else:
            self._term = None
            self._wake()

    def _fail(self, failure: Any) -> None:
        if not failure.check(CancelledError):
            self._log.failure("The archive is not written any longer.", failure)
            self._problem = "The archive is not written any longer, because of an internal error."

    def _is_ours(self, term: object) -> bool:
        return self._term is term and self._election.is_elected

    async def _run(self, term: object, before: Deferred[None] | None) -> None:
        """Write until another process is elected, or the service stops."""
        if before is not None:
            await before
        self._feeds.start()
        try:
            opened = await self._try(term, self._open)
            if opened is not None:
                await self._write(term, opened)
        finally:
            self._feeds.stop()

    async def _write(self, term: object, opened: OpenArchive) -> None:
        """Write to a place that is open."""
        self._number = opened.next_number
        self._upkeep.note = self._note
        self._upkeep.start(opened.bases)
        await self._feeds.find_databases()
        try:
            while self._is_ours(term):
                is_last = self._is_stopping
                await self._write_rounds(term, opened.archive)
                if is_last:
                    return
                if not self._is_stopping:
                    await self._sleep(self._settings.every_s)
        finally:
            if not self._is_stopping:
                await self._upkeep.stop()

    async def _write_rounds(self, term: object, archive: Archive) -> None:
        """Write segments until nothing is left that was there at the beginning."""
        while self._feeds.is_waiting():
            batch = await self._feeds.gather()
            if batch.records:
                written = await self._try(term, partial(self._put, archive, batch))
                if written is None:
                    return
            if not self._is_ours(term):
                return
            await self._feeds.reached(batch)
            if not batch.is_full:
                return

    # The place, in threads.

    async def _try(self, term: object, work: Callable[[], T]) -> T | None:
        """Do something with the place until it succeeds; None if that is not wanted any longer."""
        pause = FIRST_PAUSE_S
        while self._is_ours(term):
            try:
                result = await in_own_thread(self._reactor, work, "archive")
            except (PlaceFailed, WrongKey, Damaged) as error:
                self._note_failure(str(error))
            except Exception:
                self._log.failure("The archive could not be written.")
                self._note_failure("An internal error occurred; it has been logged.")
            else:
                self._note_success()
                return result
            if self._is_stopping:
                return None
            await self._sleep(pause)
            pause = min(LONGEST_PAUSE_S, 2 * pause)
        return None

    def _open(self) -> OpenArchive:
        """Open the place, which is the right one; raise `PlaceFailed` or `WrongKey`."""
        settings = self._settings
        key = self._read_key()
        place = open_place(settings.to, endpoint=settings.endpoint, region=settings.region)
        self._note = open_as_writer(
            place,
            self._folder,
            settings.to,
            self._runtime.now_ms(),
            is_shared=self._is_shared,
        )
        place.clean()
        archive = Archive(place, key)
        self._check_key(archive)
        names = [bases.parse_name(each.name) for each in place.list(bases.FOLDER)]
        return OpenArchive(
            archive, archive.next_number(), [each for each in names if each is not None]
        )

    def _read_key(self) -> Key | None:
        file = self._settings.key_file
        if file is None:
            return None
        try:
            return read_key(file)
        except OSError as error:
            raise PlaceFailed(f"The key file {file} cannot be read ({error.strerror}).") from None
        except ValueError as error:
            raise PlaceFailed(str(error)) from None

    def _check_key(self, archive: Archive) -> None:
        """Raise `WrongKey` if the last segment was sealed with another key, or was not sealed."""
        written = archive.segments()
        if not written:
            return
        archive.header(written[-1])
        if archive.key is not None and not written[-1].name.endswith(SUFFIX):
            raise WrongKey("The archive is not sealed: name an empty place for one that is.")

    def _put(self, archive: Archive, batch: Batch) -> int:
        """Write a batch as a segment; return its number."""
        self._check_folder(archive.place)
        after = {db: (at.sequence, at.op_id) for db, at in batch.after.items()}
        written_ms = self._runtime.now_ms()
        while True:
            number = self._number
            header = make_header(number, written_ms, after, batch.records)
            name = name_segment(number, written_ms, archive.key)
            chunks = write_segment(header, batch.records, archive.key)
            try:
                self.counts.bytes += archive.place.put(name, chunks, is_new=True)
            except NameTaken:  # by another process, or by this one without a word of it
                if self._note is not None and not self._is_shared:
                    check_writer(archive.place, self._note)
                archive.refresh()
                self._number = max(number + 1, archive.next_number())
            else:
                self.counts.segments += 1
                self._number = number + 1
                return number

    def _check_folder(self, place: Place) -> None:
        """Raise `PlaceFailed` if the disk at a folder is another one by now."""
        if self._note is not None and isinstance(place, FolderPlace):
            check_archive(place, self._note)

    # States.

    def _note_failure(self, sentence: str) -> None:
        self.counts.failures += 1
        if sentence != self._problem:
            self._problem = sentence
            self._log.error(
                "The archive cannot be written, and is tried again: {sentence}", sentence=sentence
            )

    def _note_success(self) -> None:
        if self._problem is not None:
            self._problem = None
            lag = self._lag_s() or 0.0
            self._log.info("The archive is written again; it lags by {lag:.0f} seconds.", lag=lag)

    def _find_problems(self) -> list[Problem]:
        if not self._election.is_elected:
            return []
        found = [*self._feeds.problems(), *self._upkeep.problems()]
        if self._problem is not None:
            reason = f"The archive cannot be written: {self._problem}"
            found.insert(0, Problem("", None, reason, refuses_writes=False))
        return found

    def _lag_s(self) -> float | None:
        if not self._election.is_elected:
            return None
        oldest = self._feeds.oldest()
        return 0.0 if oldest is None else max(0.0, self._reactor.seconds() - oldest)

    # Pauses.

    async def _sleep(self, seconds: float) -> None:
        if self._is_stopping:
            return
        pause: Deferred[None] = Deferred()
        self._pause = pause
        call = self._reactor.callLater(seconds, self._wake)
        try:
            await pause
        finally:
            if call.active():
                call.cancel()

    def _wake(self) -> None:
        pause, self._pause = self._pause, None
        if pause is not None:
            pause.callback(None)
