"""Lines of the audit that are searched for: by time, path, user and database, a page at a time.

All series are read together, in the order of the times of their lines as far as each series has
that order. A page ends after some lines, or after some bytes were looked through; then it says
where the next one begins. All of it blocks.
"""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, Final

import attrs

from treedbd.audit.chain import parse_line, read_file
from treedbd.audit.series import AuditFile, list_files, list_series
from treedbd.limits import MIB

PAGE_BYTES: Final = 4 * MIB
"""Bytes of lines that are looked through for one page."""
MAX_PAGE_LINES: Final = 1000
_LATE: Final = timedelta(days=7)
"""How long after its time a line may be written: for so long no log is held."""
_POSITION: Final = re.compile(r"([a-z0-9-]{1,40})\.([0-9]{1,12})\.([0-9]{1,15})")


class NoAudit(Exception):
    """Writes are not audited."""

    def __init__(self) -> None:
        super().__init__("Writes are not audited: no directory is set for that (audit.directory).")


class BadTime(ValueError):
    """A text that is not a time."""

    def __init__(self) -> None:
        super().__init__(
            "This is not a time: give a day, such as 2026-11-28, or a time with a zone, such as "
            "2026-11-28T18:00:00Z."
        )


class BadPosition(ValueError):
    """A text that no page has named as the next position."""

    def __init__(self) -> None:
        super().__init__("This is not a position: copy what `next` of the page before says.")


def parse_time(text: str) -> str:
    """Return a time (ISO 8601) as lines have it; a day begins in UTC. Raises `BadTime`."""
    try:
        at = datetime.fromisoformat(text)
        is_day = len(text) <= len("2026-11-28")
        if at.tzinfo is None and not is_day:
            raise BadTime
        at = at.replace(tzinfo=UTC) if is_day else at.astimezone(UTC)
    except (ValueError, OverflowError):
        raise BadTime from None
    return f"{at.isoformat(timespec='milliseconds').removesuffix('+00:00')}Z"


@attrs.frozen
class Search:
    """Which lines are searched for.

    Attributes:
        since, until: the times, as `parse_time` returns them; None for any. `until` is not
            included.
        path: the requests at this path, above it or below it; None for all.
        uid: of this user, or sent as this one by an admin; empty for callers without a uid, None
            for all.
        project, database: of this project, or of this database; None for all.

    """

    since: str | None = None
    until: str | None = None
    path: str | None = None
    uid: str | None = None
    project: str | None = None
    database: str | None = None

    def finds(self, line: Mapping[str, Any]) -> bool:
        """Return whether a line is searched for."""
        time = str(line.get("time", ""))
        return (
            (self.since is None or time >= self.since)
            and (self.until is None or time < self.until)
            and (self.uid is None or self.uid in _uids(line))
            and (self.project is None or line.get("project", self.project) == self.project)
            and (self.database is None or line.get("database", self.database) == self.database)
            and (self.path is None or _touches(self.path, line.get("path")))
        )

    def may_be_in(self, file: AuditFile, next_day: str | None) -> bool:
        """Return whether a file may have such lines; `next_day` is that of the file after it."""
        since = "" if self.since is None else self.since[:10].replace("-", "")
        if next_day is not None and next_day < since:
            return False
        if self.until is None:
            return True
        last = datetime.fromisoformat(self.until) + _LATE
        return file.day <= f"{last:%Y%m%d}"


def _uids(line: Mapping[str, Any]) -> set[str]:
    """Return the uids of a line, empty for none: an admin may have sent it as another caller."""
    return {line.get("uid") or "", line.get("as", line.get("uid")) or ""}


def _touches(path: str, other: object) -> bool:
    """Return whether a request at one path concerns what is at another."""
    if not isinstance(other, str):
        return False
    one, two = path.strip("/"), other.strip("/")
    is_root = not (one and two)
    return is_root or f"{one}/".startswith(f"{two}/") or f"{two}/".startswith(f"{one}/")


@attrs.define
class _SeriesReader:
    """The lines of one series from a position on; `found` is the next one that is searched for."""

    name: str
    files: list[AuditFile]
    search: Search
    number: int = 0
    at: int = 0
    looked_through: int = 0
    found: tuple[str, bytes] | None = None
    lines: Iterator[tuple[int, int, bytes]] | None = None

    def advance(self, most_bytes: int) -> None:
        """Find the next line; stop without one at the end, or after so many bytes."""
        if self.lines is None:
            self.lines = self._read()
        self.found = None
        for number, at, line in self.lines:
            self.looked_through += len(line)
            self.number, self.at = number, at
            shown = parse_line(line)
            if self.search.finds(shown):
                self.found = str(shown.get("time", "")), line
                return
            if self.looked_through >= most_bytes:
                return

    def _read(self) -> Iterator[tuple[int, int, bytes]]:
        begin, begin_at = self.number, self.at
        for file, after in pairwise([*self.files, None]):
            if file is None or file.number < begin:
                continue
            if self.search.may_be_in(file, None if after is None else after.day):
                at = begin_at if file.number == begin else 0
                for end, line in read_file(file, at):
                    yield file.number, end, line


@attrs.frozen
class Page:
    """Lines that were found, and where the next page begins; None after the last."""

    lines: list[bytes]
    next: str | None


def find_page(
    folder: pathlib.Path,
    search: Search,
    begin: str | None = None,
    most_lines: int = MAX_PAGE_LINES,
    most_bytes: int = PAGE_BYTES,
) -> Page:
    """Return a page of the audit in a directory; raise OSError or `BadPosition`."""
    begun = _parse_position(begin)
    readers = [
        _SeriesReader(series.name, list_files(series), search, *begun.get(series.name, (0, 0)))
        for series in list_series(folder)
    ]
    before = {each.name: (each.number, each.at) for each in readers}
    lines, left = list[bytes](), most_bytes
    waiting = list(readers)
    for each in waiting:
        each.advance(most_bytes)
    while len(lines) < most_lines and left > 0:
        waiting = [each for each in waiting if each.found is not None]
        if not waiting:
            break
        first = min(waiting, key=lambda each: each.found or ("", b""))
        lines.append(first.found[1] if first.found else b"")
        before[first.name] = first.number, first.at
        first.advance(most_bytes)
        left = most_bytes - sum(each.looked_through for each in readers)
    for each in readers:
        if each.found is None:  # all up to here was looked through
            before[each.name] = each.number, each.at
    is_last = all(each.found is None and each.looked_through < most_bytes for each in readers)
    position = ",".join(f"{name}.{number}.{at}" for name, (number, at) in before.items())
    return Page(lines, None if is_last else position)


def find_all(folder: pathlib.Path, search: Search) -> Iterator[bytes]:
    """Yield all lines that are searched for; raise OSError."""
    page = find_page(folder, search)
    yield from page.lines
    while page.next is not None:
        page = find_page(folder, search, page.next)
        yield from page.lines


def _parse_position(text: str | None) -> dict[str, tuple[int, int]]:
    found = {}
    for part in (text or "").split(",") if text else ():
        match = _POSITION.fullmatch(part)
        if match is None:
            raise BadPosition
        found[match[1]] = int(match[2]), int(match[3])
    return found
