"""The files of one series of the audit, appended by one process; all of it blocks.

Theory of operation. A series is a folder with files `audit-<YYYYMMDD>-<number>.jsonl`, whose
numbers grow by one, and a file `head.json`. A file has JSON objects, one a line:

    {"treedb-audit":1,"series":"writes","others":["access-1"],"number":7,"time":…,
     "before":{"file":…,"sha256":…}}
    {…,"chain":"<32 hex digits>"}

The first line, the *header*, names the series and those beside it, and has the name and the SHA-256
of the whole file before. Each other line ends with its link: the SHA-256, cut to 128 bits, of the
link of the line before it, or of the header, and of the line without its link. `head.json` says up
to where the newest file was written, with the digest of that, and which file is the oldest. So
whatever is changed, removed or cut by one who does not compute all of it again is found, with its
line; who computes it again is found by the digest of a file that is kept elsewhere, such as in the
log of the daemon (`chain`).

Lines are synced before they count. The head is written after them, so after a crash the file may
have more than the head says, and at its end part of a line. That part is not removed: the next file
begins, and its header says how many bytes are unfinished. What was not as the head says when the
series is opened is said in the header of a new file, so opening it hides nothing.

Files are removed by the age of the day in their name: the oldest first, one at a time with a while
between, and never the newest `KEPT_FILES`. So a clock that is wrong for a while costs little. A
line `removed` in the newest file says so before: a file that is missing without one was removed by
something else.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import pathlib
import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final

import attrs
import orjson

from treedbd.files import (
    create_directory,
    is_at,
    open_private,
    sync_directory,
    write_atomically,
)
from treedbd.limits import KIB, MIB

FILE_NAME: Final = re.compile(r"audit-(\d{8})-(\d{6,12})\.jsonl")
SERIES_NAME: Final = re.compile(r"writes|access-\d{1,3}")
HEAD: Final = "head.json"
LOCK: Final = "lock"
KEPT_FILES: Final = 32
"""The newest files, which are kept however old they seem to be."""
REMOVE_EACH_S: Final = 600.0
"""Seconds between two files that are removed, and before the first."""
CHAIN: Final = b',"chain":"'
LINK_DIGITS: Final = 32
READ_BYTES: Final = 256 * KIB
RECENT: Final = timedelta(seconds=60)
RECENT_BYTES: Final = 128 * MIB
"""How long before the newest file others were ended that are read at the start, and how much of
them."""
_DAY_MS: Final = 86_400_000


class SeriesLocked(OSError):
    """Another process writes the series."""

    def __init__(self) -> None:
        super().__init__(errno.EAGAIN, "Another process writes these files")


@attrs.frozen
class AuditFile:
    """One file of a series, as its name describes it; `day` is YYYYMMDD."""

    path: pathlib.Path
    day: str
    number: int

    @property
    def name(self) -> str:
        """The name of the file."""
        return self.path.name


def list_files(folder: pathlib.Path) -> list[AuditFile]:
    """Return the files of a series in their order; raise OSError."""
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            match = FILE_NAME.fullmatch(entry.name)
            if match is not None:
                found.append(AuditFile(pathlib.Path(entry.path), match[1], int(match[2])))
    return sorted(found, key=lambda each: each.number)


def list_series(folder: pathlib.Path) -> list[pathlib.Path]:
    """Return the folders of the series in the directory of an audit; raise OSError."""
    with os.scandir(folder) as entries:
        return sorted(
            pathlib.Path(each.path)
            for each in entries
            if SERIES_NAME.fullmatch(each.name) and each.is_dir()
        )


@attrs.frozen
class Head:
    """What `head.json` says: the oldest file, and how far the newest was written."""

    first: str
    file: str
    size: int
    sha256: str

    def print(self) -> bytes:
        """Return the content of the file."""
        return orjson.dumps(attrs.asdict(self)) + b"\n"


def read_head(folder: pathlib.Path) -> Head | None:
    """Return the head of a series, None if there is none or it cannot be read."""
    try:
        json: Any = orjson.loads((folder / HEAD).read_bytes())
        head = Head(**json)
    except (OSError, ValueError, TypeError):
        return None
    is_head = all(isinstance(each, str) for each in (head.first, head.file, head.sha256))
    return head if is_head and isinstance(head.size, int) else None


@attrs.frozen
class FoundFile:
    """The bytes of a file: how many, their digest, and those after the last whole line.

    `link` is that of its last line. `head_sha256` is the digest of its first bytes, as many as the
    head says; None if it has fewer.
    """

    size: int
    sha256: Any
    unfinished: int
    link: bytes
    head_sha256: str | None


def look_at_file(
    path: pathlib.Path, head_size: int, seen: Callable[[bytes], None] | None
) -> FoundFile:
    """Read a file; `seen` is called with each whole line without its end; raise OSError."""
    digest, size, rest, first, last = hashlib.sha256(), 0, b"", b"", b""
    at_head = digest.hexdigest() if head_size == 0 else None
    with path.open("rb") as file:
        while chunk := file.read(READ_BYTES):
            if size < head_size <= size + len(chunk):
                part = digest.copy()
                part.update(chunk[: head_size - size])
                at_head = part.hexdigest()
            digest.update(chunk)
            size += len(chunk)
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                first = first or line
                last = line
                if seen is not None:
                    seen(line)
    return FoundFile(
        size=size,
        sha256=digest,
        unfinished=len(rest),
        link=_link_of(first, last),
        head_sha256=at_head,
    )


def _link_of(header: bytes, line: bytes) -> bytes:
    """Return what the next line is linked to: a line's own link, or the digest of the header."""
    _, mark, link = line.rpartition(CHAIN)
    return link[:LINK_DIGITS] if mark and line is not header else link_of_header(header)


def link_of_header(header: bytes) -> bytes:
    """Return what the first line after a header is linked to."""
    return hashlib.sha256(header).hexdigest()[:LINK_DIGITS].encode()


def link_line(link: bytes, line: bytes) -> bytes:
    """Return the link of a line, a JSON object without it, after the line with `link`."""
    return hashlib.sha256(link + line).hexdigest()[:LINK_DIGITS].encode()


class AuditSeries:
    """Appends lines to the files of one series; used in one thread at a time.

    Attributes:
        completed: the names and digests of files that were completed since this was read last.
        problem: what was not as it had been left when this was opened last, a clause; None if
            all was.
        is_first: whether no file was there before the one that is written.

    """

    def __init__(
        self,
        folder: pathlib.Path,
        *,
        file_bytes: int,
        keep_s: float,
        now_ms: Callable[[], int],
        seconds: Callable[[], float],
    ) -> None:
        """Write files of about `file_bytes` in `folder`, and keep them for `keep_s` seconds.

        `now_ms` returns milliseconds since 1970, `seconds` is a clock that does not step.
        """
        self._folder = folder
        self._file_bytes, self._keep_ms = file_bytes, int(keep_s * 1000)
        self._now_ms, self._seconds = now_ms, seconds
        self._lock: int | None = None
        self._descriptor: int | None = None
        self._files: list[AuditFile] = []
        self._size = 0
        self._digest = hashlib.sha256()
        self._link = b""
        self._removed_at = seconds()
        self.completed: list[tuple[str, str]] = []
        self._gone: str | None = None
        self.problem: str | None = None
        self.is_first = False

    def open(self, seen: Callable[[bytes], None] | None = None) -> None:
        """Continue the series, or begin it; raise OSError, and `SeriesLocked`.

        `seen` is called with each line of the newest file, and of those before it that were ended
        not long before that was begun.
        """
        create_directory(self._folder)
        self._take_lock()
        self._files = list_files(self._folder)
        head = read_head(self._folder)
        if not self._files:
            lost = self._gone if head is None else f"{head.file} had been removed"
            self._begin(1 if head is None else _number_of(head.file) + 1, None, lost, 0)
            return
        for each in [] if seen is None else self._find_recent():
            look_at_file(each.path, 0, seen)
        newest = self._files[-1]
        is_of_head = head is not None and head.file == newest.name
        found = look_at_file(newest.path, head.size if head and is_of_head else 0, seen)
        problem = _compare(head, newest, found, self._files) or self._gone
        self._size, self._digest, self._link = found.size, found.sha256, found.link
        if problem is not None or found.unfinished:
            before = (newest.name, found.sha256.hexdigest())
            last = newest.number if head is None else max(newest.number, _number_of(head.file))
            self._begin(last + 1, before, problem, found.unfinished)
            return
        self._descriptor = open_private(newest.path, os.O_WRONLY | os.O_APPEND)
        self.problem = None
        self._write_head()

    def _find_recent(self) -> list[AuditFile]:
        """Return the files before the newest of which lines may be written again after a kill."""
        *older, newest = self._files
        begun, found, size = _begun_at(newest), list[AuditFile](), 0
        ended = begun
        while older and ended >= begun - RECENT and size < RECENT_BYTES:
            found.append(older.pop())
            size += found[-1].path.stat().st_size
            ended = _begun_at(found[-1])
        return found[::-1]

    def append(self, lines: Iterable[bytes]) -> None:
        """Append lines, JSON objects without line ends; they are durable when this returns.

        Raises OSError; then none of them counts, and it may be tried again.
        """
        try:
            self._append(lines)
        except OSError:
            self.close()
            raise

    def _append(self, lines: Iterable[bytes]) -> None:
        descriptor = self._descriptor
        if descriptor is not None and not is_at(self._files[-1].path, descriptor):
            self.close()  # it was removed or replaced, so what is written to it is lost
            self._gone = f"{self._files[-1].name} had been removed while it was written"
        if self._descriptor is None:
            self.open()
        newest = self._files[-1]
        if self._size >= self._file_bytes or newest.day != self._day():
            self._begin(newest.number + 1, (newest.name, self._digest.hexdigest()), None, 0)
        link, chained = self._link, []
        for line in lines:
            link = link_line(link, line)
            chained.append(line[:-1] + CHAIN + link + b'"}\n')
        content = b"".join(chained)
        self._write(content)
        self._link = link
        self._size += len(content)
        self._digest.update(content)
        self._write_head()

    def prune(self) -> None:
        """Remove the oldest file if it is older than it has to be kept; raise OSError."""
        now = self._seconds()
        if now - self._removed_at < REMOVE_EACH_S or len(self._files) <= KEPT_FILES:
            return
        self._removed_at = now
        # A later day than today is that of a wrong clock: then the day of the next file counts.
        today = self._day()
        day = next((each.day for each in self._files if each.day <= today), None)
        if day is not None and self._now_ms() - end_of(day) > self._keep_ms:
            removed = {
                "time": show_time(self._now_ms()),
                "kind": "removed",
                "file": self._files[0].name,
                "keep_s": self._keep_ms / 1000,
            }
            self.append([orjson.dumps(removed)])
            oldest = self._files.pop(0)
            self._write_head()
            oldest.path.unlink(missing_ok=True)
            sync_directory(self._folder)

    def close(self) -> None:
        """Close the files; the next `append` opens them again."""
        for descriptor in (self._descriptor, self._lock):
            if descriptor is not None:
                os.close(descriptor)
        self._descriptor = self._lock = None

    def _take_lock(self) -> None:
        if self._lock is not None:
            return
        descriptor = open_private(self._folder / LOCK, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise SeriesLocked from None
        self._lock = descriptor

    def _begin(
        self, number: int, before: tuple[str, str] | None, problem: str | None, unfinished: int
    ) -> None:
        """Begin a file after the one `before`; raise OSError, and then nothing has changed."""
        now = self._now_ms()
        header: dict[str, Any] = {"treedb-audit": 1, "series": self._folder.name}
        header["others"] = self._find_others()
        self.problem, self.is_first = problem, before is None
        self._gone = None
        header |= {"number": number, "time": show_time(now), "before": None}
        if before is not None:
            header["before"] = {"file": before[0], "sha256": before[1]}
        if unfinished:
            header["unfinished"] = unfinished
        if problem is not None:
            header["problem"] = problem
        line = orjson.dumps(header)
        day = self._day()
        path = self._folder / f"audit-{day}-{number:06d}.jsonl"
        write_atomically(path, line + b"\n")
        descriptor = open_private(path, os.O_WRONLY | os.O_APPEND)
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = descriptor
        if before is not None:
            self.completed.append(before)
        self._files.append(AuditFile(path, day, number))
        self._size, self._digest = len(line) + 1, hashlib.sha256(line + b"\n")
        self._link = link_of_header(line)
        self._write_head()

    def _find_others(self) -> list[str]:
        """Return the names of the series beside this one."""
        names = [each.name for each in list_series(self._folder.parent)]
        return [each for each in names if each != self._folder.name]

    def _write(self, content: bytes) -> None:
        """Append to the newest file and sync it; raise OSError, and then remove it again."""
        descriptor = self._descriptor
        if descriptor is None:
            raise OSError(errno.EBADF, "The file is not open")
        left = memoryview(content)
        try:
            while left:
                left = left[os.write(descriptor, left) :]
            os.fsync(descriptor)
        except OSError:
            # What cannot be removed is an unfinished line, or lines that come twice.
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, self._size)
            raise

    def _write_head(self) -> None:
        newest = self._files[-1]
        head = Head(self._files[0].name, newest.name, self._size, self._digest.hexdigest())
        write_atomically(self._folder / HEAD, head.print())

    def _day(self) -> str:
        return f"{datetime.fromtimestamp(self._now_ms() / 1000, UTC):%Y%m%d}"


def _compare(
    head: Head | None, newest: AuditFile, found: FoundFile, files: list[AuditFile]
) -> str | None:
    """Return a sentence if the newest file is not as the head says."""
    if head is None:
        return None if len(files) == 1 else f"{HEAD} had been removed, or could not be read"
    if head.file != newest.name:
        number = _number_of(head.file)
        if number > newest.number:
            return f"{head.file} had been removed"
        # The next file is begun before the head says so.
        return None if newest.number == number + 1 else f"{HEAD} was an older one"
    if found.size < head.size:
        return f"{newest.name} had been cut at {found.size} of {head.size} bytes"
    return None if found.head_sha256 == head.sha256 else f"{newest.name} had been changed"


def _number_of(name: str) -> int:
    match = FILE_NAME.fullmatch(name)
    return 0 if match is None else int(match[2])


def _begun_at(file: AuditFile) -> datetime:
    """Return when a file was begun, as its header says; the beginning of time without one."""
    with contextlib.suppress(ValueError, LookupError, TypeError), file.path.open("rb") as content:
        return datetime.fromisoformat(orjson.loads(content.readline())["time"])
    return datetime.min.replace(tzinfo=UTC)


def end_of(day: str) -> int:
    """Return the end of a day as milliseconds since 1970; the end of time for another text."""
    try:
        begins = datetime.strptime(day, "%Y%m%d").replace(tzinfo=UTC)
    except ValueError:
        return 2**62  # nothing is removed for it
    return int(begins.timestamp() * 1000) + _DAY_MS


def show_time(now_ms: int) -> str:
    """Return milliseconds since 1970 as in `2026-11-28T18:00:00.000Z`."""
    return f"{_show_second(now_ms // 1000)}.{now_ms % 1000:03d}Z"


@lru_cache(maxsize=4)
def _show_second(second: int) -> str:
    return f"{datetime.fromtimestamp(second, UTC):%Y-%m-%dT%H:%M:%S}"
