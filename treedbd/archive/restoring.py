"""Any moment again: databases and rules restored from an archive into a folder.

Theory of operation. `Restoration` first decides, for each database, which write the wanted moment
ends with (`find`); only headers are read for that, and one or two segments. Then it loads the
newest base at or before that write, applies the entries after it (`redo`), and reads all of the
file back. The folder is the caller's: it is not a data directory before everything is in it.

**The moment of a time** is that after the last entry, in the order of the numbers, whose time is at
most that: a clock may have been set back. It is sought in the newest history that had begun then.
If the database was deleted by then it is absent, and so it is if its first write came later.

**Holes.** Where entries are missing the archive says why (a `Gap`, or an entry without its body).
For a time within such a hole the last write before it is restored, with a warning. Where entries
are missing and the archive does not say why, an object is missing or damaged: nothing is restored.
A number is restored exactly or not at all.
"""

from __future__ import annotations

import hashlib
import math
import pathlib
import re
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from typing import Final, TypeAlias

import attrs

from treedbd.archive.index import Archive, Base, Stretch
from treedbd.archive.redo import CannotRedo, Redo
from treedbd.archive.sealing import Damaged
from treedbd.archive.segments import (
    Deleted,
    Entry,
    Gap,
    Rules,
    SegmentName,
    Span,
    describe,
)
from treedbd.database.data_directory import RULES_FILE, SHELF
from treedbd.files import create_directory, write_atomically
from treedbd.names import NAME_PATTERN
from treedbd.rules.ruleset import fingerprint_of
from treedbd.store import changelog
from treedbd.store.engine import LogEntry, ReadView
from treedbd.store.nodes import Nodes
from treedbd.store.sqlite.copy import verify_copy
from treedbd.store.sqlite.file import connect_reader
from treedbd.store.sqlite.reader import SqliteReader

_DB: Final = re.compile(rf"{NAME_PATTERN}/{NAME_PATTERN}", re.ASCII)
_RULES_PROJECT: Final = re.compile(NAME_PATTERN, re.ASCII)
_MAX_NAMED: Final = 3
"""Damaged objects that a sentence names."""


class NotReachable(Exception):
    """The wanted moment cannot be restored; `str()` is one sentence or more."""


@attrs.frozen
class ToLatest:
    """All that has arrived."""


@attrs.frozen
class ToTime:
    """The moment of a time, in ms since 1970."""

    ms: int


@attrs.frozen
class ToSequence:
    """The moment after the write with a number."""

    sequence: int


Goal: TypeAlias = ToLatest | ToTime | ToSequence

_OF_BASE: Final = -2
"""In the place of the number of a span: the beginning of a segment."""
_Where: TypeAlias = tuple[float, int]
"""A place in the order of arrival: the number of a segment, and of a span of a database in it."""


@attrs.frozen
class Choice:
    """The write with which the wanted moment of a database ends.

    `warning` says that it is not exactly the wanted moment, None if it is.
    """

    stretch: Stretch
    sequence: int
    warning: str | None = None

    @property
    def db(self) -> str:
        """The database, `project/name`."""
        return self.stretch.db


@attrs.frozen
class Restored:
    """A database that was restored, up to a write.

    `time_ms` is the time of that write, None if there is none; `applied` how many entries were
    applied to the base. `rules` is the fingerprint of the rules by which that write was judged,
    empty if it is not known. `warning` as in `Choice`.
    """

    db: str
    sequence: int
    op_id: bytes
    time_ms: int | None
    applied: int
    rules: str = ""
    warning: str | None = None


@attrs.frozen
class RestoredRules:
    """The rules of a project that were restored: their text, and when they came into force."""

    project: str
    text: str = attrs.field(repr=False)
    at_ms: int


@attrs.frozen
class _Line:
    """The stretches of a database in the order of arrival, with what happened between them.

    `ends` are where the stretches end; `events` are deletions and gaps.
    """

    stretches: list[Stretch]
    ends: list[_Where]
    events: list[tuple[_Where, Deleted | Gap]]

    def between(self, at: int) -> list[Deleted | Gap]:
        """Return what happened after a stretch and before the next one."""
        return [
            event
            for where, event in self.events
            if where >= self.ends[at] and self._is_before(event, where, at + 1)
        ]

    def _is_before(self, event: Deleted | Gap, where: _Where, at: int) -> bool:
        if at == len(self.ends) or where <= self.ends[at]:
            return True
        # Where a base was made, its segment may begin with the news of what came before it.
        is_there = self.ends[at] == (where[0], _OF_BASE)
        return is_there and event.at_ms <= self.stretches[at].bases[-1].header.time_ms


class Restoration:
    """Finds moments in an archive, and restores them.

    Methods raise `NotReachable`, `Damaged`, `WrongKey`, `PlaceFailed`, and those that write also
    `StoreFailed`, `DiskFull`, `CannotOpenStore` or OSError.
    """

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._lines: dict[str, _Line] = {}

    def databases(self) -> list[str]:
        """Return the databases of the archive; raise `Damaged` for a name that none can have."""
        found = self._archive.databases()
        for db in found:
            if not _DB.fullmatch(db):
                raise Damaged("The archive has a database with a name that none can have.")
        return found

    def find(self, db: str, goal: Goal) -> Choice | None:
        """Return the write with which a moment ends; None if there was no such database then."""
        line = self._line(db)
        if isinstance(goal, ToSequence):
            return self._find_sequence(db, line, goal.sequence)
        ms = goal.ms if isinstance(goal, ToTime) else math.inf
        if not line.stretches:
            raise NotReachable(self._with_faults(f"There is no readable base of {db}."))
        for at in reversed(range(len(line.stretches))):
            stretch = line.stretches[at]
            if stretch.own_ms > ms:
                continue
            found = self._last_within(stretch, goal)
            if found is None:
                continue
            if _is_deleted(line, at, ms):
                return None
            return Choice(stretch, found, self._check_end(line, at, found, ms))
        self._require_empty_before(db, line)
        return None

    def restore(self, choice: Choice, file: pathlib.Path, *, verified: bool = True) -> Restored:
        """Make the file of a database as of a moment; there must be no such file.

        Unless it is `verified`, the file is not read back.
        """
        stretch, db = choice.stretch, choice.db
        base = self._load_base(choice, file)
        create_directory(file.parent)
        start = 0 if base is None else base.sequence
        last = b"" if base is None else base.header.last_entry
        with Redo(file) as redo:
            for entry in self._archive.entries(stretch, start, choice.sequence):
                last = self._apply(redo, entry)
        if redo.sequence != choice.sequence:
            raise NotReachable(
                f"{db} was to be restored to number {choice.sequence}, but its entries end at "
                f"{redo.sequence}."
            )
        if verified and (problem := verify_copy(file)) is not None:
            raise Damaged(f"{db} is not sound as it was restored: {problem}")
        return Restored(
            db=db,
            sequence=redo.sequence,
            op_id=redo.op_id,
            time_ms=describe(last)[0] or None,
            applied=choice.sequence - start,
            rules=changelog.rules_of(last) if last else "",
            warning=choice.warning,
        )

    def restore_all(
        self,
        choices: Sequence[Choice],
        goal: Goal,
        folder: pathlib.Path,
        databases: Collection[str] | None = None,
    ) -> tuple[list[Restored], list[RestoredRules]]:
        """Restore databases and the rules of their projects into the folder of a data directory.

        `choices` are those of `find_all` with the same `goal` and `databases`. Raises
        `NotReachable` if there is none.
        """
        if not choices:
            raise NotReachable("There was no database then.")
        restored = [self.restore(each, file_of(folder, each.db)) for each in choices]
        until: float = math.inf
        if isinstance(goal, ToTime):
            until = goal.ms
        elif isinstance(goal, ToSequence):
            until = max((each.time_ms or 0 for each in restored), default=0)
        wanted = None if databases is None else {each.partition("/")[0] for each in databases}
        rules = [each for each in self.rules(until) if wanted is None or each.project in wanted]
        for text in rules:
            create_directory(folder / text.project)
            write_atomically(folder / text.project / RULES_FILE, text.text.encode())
        return [_with_rules(each, rules) for each in restored], rules

    def find_all(self, goal: Goal, databases: Collection[str] | None = None) -> Iterator[Choice]:
        """Yield the choices for some databases, or all; those that were absent are left out."""
        for db in self.databases() if databases is None else databases:
            if (choice := self.find(db, goal)) is not None:
                yield choice

    def size_of(self, choices: Sequence[Choice]) -> int:
        """Return the bytes of the objects that are read to restore some databases."""
        sizes = {each.name: each.size for each in self._archive.place.list("")}
        total = 0
        for choice in choices:
            base = choice.stretch.base_for(choice.sequence)
            start = 0 if base is None else base.sequence
            total += 0 if base is None else base.size
            total += sum(
                sizes.get(piece.segment.name, 0)
                for piece in choice.stretch.pieces
                if piece.through > start and piece.after < choice.sequence
            )
        return total

    def rules(self, until_ms: float) -> list[RestoredRules]:
        """Return the rules of each project that were in force at a time."""
        found: dict[str, tuple[SegmentName, Rules]] = {}
        for segment in self._archive.segments():
            header = self._archive.header(segment)
            for event in () if header is None else header.events:
                if isinstance(event, Rules) and event.at_ms <= until_ms:
                    found[event.project] = segment, event
        return [self._read_rules(*each) for _, each in sorted(found.items())]

    def _load_base(self, choice: Choice, file: pathlib.Path) -> Base | None:
        """Load the newest base that can be read; return it, None for the empty database."""
        stretch = choice.stretch
        usable = [each for each in stretch.bases if each.sequence <= choice.sequence]
        failure: Damaged | None = None
        for base in reversed(usable):
            try:
                self._archive.load(base, file, verified=False)
            except Damaged as error:
                self._archive.faults[base.name.name] = str(error)
                failure = error
            else:
                return base
        if failure is not None and (stretch.first or not stretch.pieces):
            raise failure
        return None

    def _apply(self, redo: Redo, entry: Entry) -> bytes:
        try:
            redo.apply(LogEntry(entry.sequence, entry.op_id, entry.content))
        except CannotRedo as error:
            raise Damaged(f"{entry.db} cannot be restored: {error}") from None
        return entry.content

    def _last_within(self, stretch: Stretch, goal: Goal) -> int | None:
        if isinstance(goal, ToTime):
            return self._archive.find_time(stretch, goal.ms)
        return stretch.through

    def _find_sequence(self, db: str, line: _Line, sequence: int) -> Choice:
        for stretch in reversed(line.stretches):
            if stretch.first <= sequence <= stretch.through:
                return Choice(stretch, sequence)
        ends = [each.through for each in line.stretches if each.through < sequence]
        begins = [each.first for each in line.stretches if each.first > sequence]
        near = [str(max(ends))] if ends else []
        near += [str(min(begins))] if begins else []
        which = {0: "none is", 1: "the nearest one is", 2: "the nearest ones are"}[len(near)]
        sentence = f"Number {sequence} of {db} cannot be restored: {which} {' and '.join(near)}"
        raise NotReachable(self._with_faults(sentence.rstrip() + "."))

    def _check_end(self, line: _Line, at: int, sequence: int, ms: float) -> str | None:
        """Return a warning if the moment is in a hole that the archive explains.

        Raises `NotReachable` for one that it does not explain.
        """
        stretch, end = line.stretches[at], line.ends[at]
        if sequence < stretch.through:
            return None
        later = line.stretches[at + 1] if at + 1 < len(line.stretches) else None
        events = line.between(at)
        if any(isinstance(event, Deleted) for event in events):
            return None  # so that was its last write
        db, through = stretch.db, stretch.through
        gaps = [event for event in events if isinstance(event, Gap) and event.after >= through]
        reasons = [gap.reason.rstrip(".") for gap in gaps]
        if self._is_bodiless(stretch):
            reasons.insert(0, f"write {through + 1} was too large for the log")
        if reasons:
            return f"{db}: the writes after number {through} are missing ({reasons[0]})."
        is_next = later is None or later.first == 0 or later.first <= through
        if is_next and not (later is None and self._has_later(stretch, end)):
            return None
        sentence = (
            f"Writes of {db} after number {through} are missing in the archive, which has later "
            f"ones: an object is missing or damaged. Restore to number {through} to go on without "
            "them."
        )
        raise NotReachable(self._with_faults(sentence))

    def _is_bodiless(self, stretch: Stretch) -> bool:
        """Return whether a stretch ends because the next entry has no body."""
        return any(
            not piece.span.is_whole and piece.after <= stretch.through < piece.through
            for history in self._archive.histories(stretch.db)
            for piece in history.pieces
            if piece.through > stretch.through
            and self._archive.op_at(stretch.db, history.pieces, stretch.through)
            == stretch.through_op
        )

    def _has_later(self, stretch: Stretch, end: _Where) -> bool:
        """Return whether there is, or may be, an entry of a database after a place."""
        db = stretch.db
        for segment in self._archive.segments():
            header = self._archive.header(segment)
            if header is None:
                if segment.last >= end[0]:
                    return True
                continue
            for number, span in enumerate(header.databases.get(db, ())):
                op_id = self._archive.op_at(db, stretch.pieces, span.through)
                if (segment.first, number) > end and op_id != span.through_op:
                    return True  # else it was sent twice
        return False

    def _require_empty_before(self, db: str, line: _Line) -> None:
        """Raise `NotReachable` unless a database was empty before its first stretch."""
        if line.stretches[0].first:
            when = print_time(min(each.first_ms for each in line.stretches))
            sentence = f"{db} cannot be restored to a time before {when}."
            raise NotReachable(self._with_faults(sentence))

    def _with_faults(self, sentence: str) -> str:
        faults = [f"{name}: {reason}" for name, reason in self._archive.faults.items()]
        named = faults[:_MAX_NAMED]
        if len(faults) > _MAX_NAMED:
            named.append(f"{len(faults) - _MAX_NAMED} more objects cannot be read.")
        return " ".join([sentence, *named])

    def _line(self, db: str) -> _Line:
        if db not in self._lines:
            stretches = sorted(self._archive.spans(db), key=_end_of)
            self._lines[db] = _Line(stretches, list(map(_end_of, stretches)), self._events(db))
        return self._lines[db]

    def _events(self, db: str) -> list[tuple[_Where, Deleted | Gap]]:
        """Return deletions and gaps of a database, each with the place directly after a span."""
        found: list[tuple[_Where, Deleted | Gap]] = []
        for segment in self._archive.segments():
            header = self._archive.header(segment)
            if header is None:
                continue
            own = [e for e in header.events if isinstance(e, Deleted | Gap) and e.db == db]
            spans = header.databases.get(db, ())
            if own and spans:
                found += self._among(segment, db, spans)
            else:
                found += [((segment.first, -1), event) for event in own]
        return found

    def _among(
        self, segment: SegmentName, db: str, spans: Sequence[Span]
    ) -> Iterator[tuple[_Where, Deleted | Gap]]:
        """Yield events with the number of the span that they follow, from the records."""
        lengths = iter([span.through - span.after for span in spans])
        number, left = -1, 0
        for each in self._archive.records(segment):
            if isinstance(each, Entry) and each.db == db:
                if left == 0:
                    number, left = number + 1, next(lengths)
                left -= 1
            elif isinstance(each, Deleted | Gap) and each.db == db:
                yield (segment.first, number), each

    def _read_rules(self, segment: SegmentName, wanted: Rules) -> RestoredRules:
        text, key = None, (wanted.project, wanted.at_ms)
        for each in self._archive.records(segment):
            if isinstance(each, Rules) and (each.project, each.at_ms) == key:
                text = each.text
        if text is None or not _RULES_PROJECT.fullmatch(wanted.project):
            raise Damaged(f"{segment.name} is damaged: the rules in it have no text.")
        return RestoredRules(wanted.project, text, wanted.at_ms)


def _with_rules(restored: Restored, rules: Collection[RestoredRules]) -> Restored:
    """Return what was restored, with a warning if its last write was judged by other rules."""
    for each in rules:
        is_of = restored.db.startswith(f"{each.project}/") and restored.rules
        is_later = restored.time_ms is None or each.at_ms > restored.time_ms
        if is_of and not is_later and fingerprint_of(each.text) != restored.rules:
            sentence = (
                f"{restored.db}: number {restored.sequence} was written under other rules than "
                "those that are restored: compare them before you serve it."
            )
            return attrs.evolve(
                restored, warning=" ".join(filter(None, [restored.warning, sentence]))
            )
    return restored


def _end_of(stretch: Stretch) -> _Where:
    """Return where a stretch ends, in the order of arrival."""
    ends = [(base.header.segment, _OF_BASE) for base in stretch.bases]
    ends += [(piece.segment.first, piece.number) for piece in stretch.pieces]
    return max(ends)


def _is_deleted(line: _Line, at: int, ms: float) -> bool:
    """Return whether a database was deleted after a stretch, and before a time."""
    end, stretch = line.ends[at], line.stretches[at]
    # A base may be made while the news of an older deletion are under way.
    since = stretch.bases[-1].header.time_ms if end[1] == _OF_BASE else 0
    return any(
        isinstance(event, Deleted) and since <= event.at_ms <= ms and where >= end
        for where, event in line.events
    )


def file_of(folder: pathlib.Path, db: str) -> pathlib.Path:
    """Return the file of a database, `project/name`, in a data directory."""
    project, _, name = db.partition("/")
    return folder / project / f"{name}{SHELF}"


def digest_of(file: pathlib.Path) -> str:
    """Return the SHA-256 of the tree in a file, printed with its priorities."""

    def compute(view: ReadView) -> str:
        digest = hashlib.sha256()
        for chunk in Nodes(view).chunks((), export=True):
            digest.update(chunk)
        return digest.hexdigest()

    with closing(connect_reader(file, is_known=False)) as connection:
        return SqliteReader(connection).read(compute)


def print_time(ms: float) -> str:
    """Return a time as ISO 8601 in UTC, with milliseconds."""
    seconds, rest = divmod(int(ms), 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{rest:03}Z"
