"""Whether the files of a series are as they were written (`series`), and what their lines are.

`verify` reads all of a series, a file at a time and a line at a time, and says for the first thing
in each file that is not as it was written which file and line it is. A `Mark` is what it says of
the end: the newest file, its bytes and their digest. An operator may keep it elsewhere, and give it
to a later verification: then also one who can write all files, and computes all digests again,
cannot change what is before it. A file that was removed by age is named in a line of a later file.
"""

from __future__ import annotations

import hashlib
import pathlib
from collections.abc import Iterator
from typing import Any, Final

import attrs
import orjson

from treedbd.audit.series import (
    CHAIN,
    HEAD,
    LINK_DIGITS,
    AuditFile,
    Head,
    link_line,
    link_of_header,
    list_files,
    read_head,
)

_LINK_BYTES: Final = len(CHAIN) + LINK_DIGITS + len(b'"}')
_SHA_DIGITS: Final = 64
REMOVED: Final = b'"kind":"removed"'
DAY_S: Final = 86_400


@attrs.frozen
class Fault:
    """What is not as it was written: a file of a series, the number of a line, and a sentence."""

    file: str
    line: int
    reason: str

    def __str__(self) -> str:
        """Return it as one line of text."""
        return f"{self.file}:{self.line}: {self.reason}"


@attrs.frozen
class Mark:
    """A place in a series: the first `size` bytes of a file, and their digest."""

    series: str
    file: str
    size: int
    sha256: str

    def __str__(self) -> str:
        """Return the text that `parse` reads."""
        return f"{self.series}/{self.file}:{self.size}:{self.sha256}"

    @classmethod
    def parse(cls, text: str) -> Mark:
        """Return the mark that a verification has printed; raise ValueError."""
        name, _, rest = text.partition(":")
        series, _, file = name.partition("/")
        size, _, sha256 = rest.partition(":")
        if not (series and file and size.isdecimal() and len(sha256) == _SHA_DIGITS):
            raise ValueError("This is not a mark: copy it as a verification has printed it.")
        return cls(series, file, int(size), sha256)


@attrs.frozen
class Verification:
    """What was found in one series.

    `unfinished` are bytes after the last line of all, `others` the series that were beside it.
    `removed` are the files that a mark names and that were removed by age, as it says.
    """

    series: str
    files: int
    lines: int
    unfinished: int
    mark: Mark | None
    faults: tuple[Fault, ...]
    others: frozenset[str] = frozenset()
    removed: tuple[str, ...] = ()


@attrs.define
class _ReadFile:
    """One file of a series while it is verified."""

    file: AuditFile
    header: dict[str, Any] = attrs.field(factory=dict)
    lines: int = 0
    size: int = 0
    digest: Any = attrs.field(factory=hashlib.sha256)
    unfinished: int = 0
    link: bytes = b""
    fault: Fault | None = None
    marks: dict[int, str] = attrs.field(factory=dict)
    removed: dict[str, dict[str, Any]] = attrs.field(factory=dict)

    def read(self, sizes: frozenset[int]) -> None:
        """Read and check it; keep the digests of its first bytes, of each of `sizes`."""
        if not self.file.path.is_file():
            self.note(1, "this is not a file")
            return
        with self.file.path.open("rb") as file:
            for line in file:
                for size in sizes:
                    if self.size < size <= self.size + len(line):
                        part = self.digest.copy()
                        part.update(line[: size - self.size])
                        self.marks[size] = part.hexdigest()
                self.digest.update(line)
                self.size += len(line)
                if not line.endswith(b"\n"):
                    self.unfinished = len(line)
                    break
                self.lines += 1
                self._check(line[:-1])
        if not self.lines:
            self.note(1, "the file was cut: its header is not whole")

    def note(self, line: int, reason: str) -> None:
        """Note what is wrong, unless something before it is."""
        if self.fault is None or line < self.fault.line:
            self.fault = Fault(self.file.name, line, reason)

    def blame(self, reason: str) -> None:
        """Note what is wrong with the file as a whole: with its last line, if with no other."""
        self.note(max(1, self.lines + bool(self.unfinished)), reason)

    def _check(self, line: bytes) -> None:
        if self.lines == 1:
            self.header = parse_line(line)
            if self.header.get("treedb-audit") != 1 or self.header.get("number") != (
                self.file.number
            ):
                self.note(1, "this is not the header of this file")
            elif self.header.get("series") != self.file.path.parent.name:
                self.note(1, f"this is a file of the series {self.header.get('series')}")
            self.link = link_of_header(line)
            return
        body, link = line[:-_LINK_BYTES] + b"}", line[-_LINK_BYTES:]
        expected = link_line(self.link, body)
        if link != CHAIN + expected + b'"}':
            self.note(self.lines, "this line, or one before it, was changed or removed")
            expected = link[len(CHAIN) : -2]  # the next ones may be as they were
        elif REMOVED in body:
            removed = parse_line(body)
            if removed.get("kind") == "removed":
                self.removed[str(removed.get("file"))] = removed
        self.link = expected


def verify(folder: pathlib.Path, marks: tuple[Mark, ...] = ()) -> Verification:
    """Verify the series in a folder, and that it has all of the `marks` of it; raise OSError."""
    head, files = read_head(folder), list_files(folder)
    done = _read_all(files, marks, head)
    removed = {name: line for each in done for name, line in each.removed.items()}
    if done:
        _check_first(done[0], removed)
    faults = [each.fault for each in done if each.fault is not None]
    faults += _find_lost(folder.name, files, marks, head)
    last = done[-1] if done else None
    return Verification(
        series=folder.name,
        files=len(files),
        lines=sum(max(0, each.lines - 1) for each in done),
        unfinished=0 if last is None else last.unfinished,
        mark=None
        if last is None
        else Mark(folder.name, last.file.name, last.size, last.digest.hexdigest()),
        faults=tuple(faults),
        others=frozenset().union(*(_others(each.header) for each in done)),
        removed=tuple(
            _describe_removal(each.file, removed[each.file])
            for each in marks
            if each.series == folder.name and each.file in removed
        ),
    )


def _read_all(
    files: list[AuditFile], marks: tuple[Mark, ...], head: Head | None
) -> list[_ReadFile]:
    """Read the files of a series, and check each with the one before it."""
    done = list[_ReadFile]()
    for file in files:
        wanted = {each.size for each in marks if each.file == file.name}
        if head is not None and head.file == file.name:
            wanted.add(head.size)
        read = _ReadFile(file)
        read.read(frozenset(wanted))
        if done:
            _check_before(read, done[-1])
        else:
            _check_problem(read)
        _check_marks(read, marks, head)
        done.append(read)
    return done


def _describe_removal(file: str, line: dict[str, Any]) -> str:
    """Return when a file was removed, and for how long it had been kept."""
    keep_s = line.get("keep_s")
    days = f"{keep_s / DAY_S:.0f}" if isinstance(keep_s, int | float) else "?"
    return f"{file} was removed at {line.get('time')}: files are kept for {days} days"


def _others(header: dict[str, Any]) -> set[str]:
    others = header.get("others")
    return {each for each in others if isinstance(each, str)} if isinstance(others, list) else set()


def _check_problem(read: _ReadFile) -> None:
    """Note what was found wrong when a file was begun."""
    problem = read.header.get("problem")
    if problem is not None:
        read.note(1, f"when this file was begun, {problem}")


def _check_first(read: _ReadFile, removed: dict[str, dict[str, Any]]) -> None:
    """Check that the file before the first one was removed by age, if there was one.

    A line in a later file says that.
    """
    said = read.header.get("before")
    if not isinstance(said, dict) or (read.fault is not None and read.fault.line <= 2):
        return
    name = str(said.get("file"))
    if name not in removed:
        read.note(1, f"the file before it, {name}, was removed, and not because of its age")


def _check_before(read: _ReadFile, before: _ReadFile) -> None:
    """Check what the header of a file says of the one before it."""
    if read.fault is not None and read.fault.line <= 2:
        return  # this header may be another one than was written
    _check_problem(read)
    said = read.header.get("before")
    if read.file.number != before.file.number + 1:
        lost = f"{before.file.number + 1:06d} to {read.file.number - 1:06d}"
        read.note(1, f"the files {lost} before it were removed")
    elif said != {"file": before.file.name, "sha256": before.digest.hexdigest()}:
        before.blame("this file is not as it was when the next one was begun")
    elif before.unfinished != read.header.get("unfinished", 0):
        before.blame("the last line is not whole")


def _check_marks(read: _ReadFile, marks: tuple[Mark, ...], head: Head | None) -> None:
    """Check that a file begins with what the head and the marks say."""
    said = [(each.size, each.sha256, "a mark") for each in marks if each.file == read.file.name]
    if head is not None and head.file == read.file.name:
        said.append((head.size, head.sha256, HEAD))
    for size, sha256, source in said:
        if read.size < size:
            read.note(read.lines + 1, f"the file was cut: it had {size} bytes, as {source} says")
        elif read.marks.get(size) != sha256:
            read.blame(f"the file is not as {source} says")


def _find_lost(
    series: str, files: list[AuditFile], marks: tuple[Mark, ...], head: Head | None
) -> Iterator[Fault]:
    """Yield the files that the head or a mark names and that are not there."""
    names = {each.name for each in files}
    if head is None and len(files) > 1:
        yield Fault(HEAD, 1, "it was removed, or cannot be read")
    if head is not None:
        for name in dict.fromkeys((head.first, head.file)):
            if name not in names:
                yield Fault(name, 1, f"the file was removed: {HEAD} names it")
    for mark in marks:
        is_removed_by_age = bool(files) and _is_before(mark.file, files[0].name)
        if mark.series == series and mark.file not in names and not is_removed_by_age:
            yield Fault(mark.file, 1, "the file was removed: a mark names it")


def _is_before(one: str, other: str) -> bool:
    return one.rpartition("-")[2] < other.rpartition("-")[2]


def parse_line(line: bytes) -> dict[str, Any]:
    """Return a line, a JSON object; an empty one for other bytes."""
    try:
        json: Any = orjson.loads(line)
    except ValueError:
        return {}
    return json if isinstance(json, dict) else {}


def read_file(file: AuditFile, at: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a file from a byte on, but for its header and one that is not whole.

    Each has the byte after it, and is without its link. Raises OSError.
    """
    with file.path.open("rb") as content:
        content.seek(at)
        for line in content:
            if not line.endswith(b"\n"):
                return
            at += len(line)
            mark = line.rfind(CHAIN)
            if mark > 0:
                yield at, line[:mark] + b"}"
