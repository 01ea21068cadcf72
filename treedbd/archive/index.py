"""What an archive holds: bases, segments, and the stretches of histories that can be restored.

**Histories.** The number and the id of a write say which history of a database it belongs to: a
file that was restored from an older copy goes on with other ids under the same numbers. `histories`
links the spans of segments, in the order of the segments: a span continues the history that has the
write before it. If that history has gone on from there in another way, the span begins a branch,
which has the same beginning. Spans that overlap because they were sent twice are recognised by the
id of the last write that both have.

**Stretches.** A moment can be restored if there is a base at or before it, and every entry since
then is there with its body. A database whose first write is there needs no base: it was empty. So a
`Stretch` is a part of a history that begins with a base, or with the first write.

The names of objects are listed once, until `refresh`; headers are read once. An object that cannot
be read is in `faults`; what depends on it cannot be restored. While another process merges
segments, one that is looked for may be gone: its entries are then read from the merged one.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

import attrs
import orjson

from treedbd.archive import bases, segments
from treedbd.archive.bases import BaseHeader, BaseName
from treedbd.archive.places import ObjectMissing, Place
from treedbd.archive.sealing import Damaged, Key
from treedbd.archive.segments import (
    Deleted,
    Entry,
    Event,
    Gap,
    Record,
    Rules,
    SegmentHeader,
    SegmentName,
    Span,
    describe,
)

T = TypeVar("T")

_HEADERS_AT_ONCE: Final = 8
PRUNED: Final = "pruned.json"
"""The object that says up to which number segments were removed because they are old."""
_ATTEMPTS: Final = 5
"""How often the entries of a stretch are looked for again while others merge segments."""


@attrs.frozen
class Base:
    """A base of an archive: its name, its size in bytes and its header."""

    name: BaseName
    size: int
    header: BaseHeader

    @property
    def sequence(self) -> int:
        """The number of the last write in it."""
        return self.header.sequence


@attrs.frozen
class Piece:
    """Entries of a history above `after` up to `through`, in span `number` of a segment."""

    segment: SegmentName
    number: int
    span: Span
    after: int
    through: int


@attrs.frozen
class History:
    """Entries without a hole, in their order.

    `branched_at` is the number of the last write that it has in common with an older history, None
    if it is not a branch.
    """

    db: str
    pieces: list[Piece]
    branched_at: int | None = None

    @property
    def after(self) -> int:
        """The number of the write before the first entry."""
        return self.pieces[0].after

    @property
    def through(self) -> int:
        """The number of the last entry."""
        return self.pieces[-1].through


@attrs.frozen
class Stretch:
    """Moments of one history of a database that can be restored: numbers `first` to `through`.

    `bases` are in the order of their numbers. If there is none, or the first is above `first`, the
    stretch begins with the empty database, and `first` is 0. `pieces` may be empty. `first_ms` and
    `last_ms` are the times of these writes; that of an empty database is that of its first entry.
    `own_ms` is the earliest time of an entry that no older history has, or of its first base:
    before that time the older history was in force.
    """

    db: str
    bases: Sequence[Base]
    pieces: Sequence[Piece]
    first: int
    through: int
    through_op: bytes
    first_ms: int
    last_ms: int
    own_ms: int

    def base_for(self, sequence: int) -> Base | None:
        """Return the newest base at or before a number; None for the empty database."""
        found = [base for base in self.bases if base.sequence <= sequence]
        return found[-1] if found else None


class Archive:
    """What is in a place; `key` opens what is sealed. Methods raise `PlaceFailed` or `WrongKey`.

    Attributes:
        place: the place.
        key: the key, None for none.
        faults: sentences about objects that cannot be read, by name.

    """

    def __init__(self, place: Place, key: Key | None = None) -> None:
        self.place: Final = place
        self.key: Final = key
        self.faults: dict[str, str] = {}
        self._headers: dict[str, SegmentHeader] = {}
        self._bases: dict[str, Base] = {}
        self._ops: dict[tuple[str, str, int], list[bytes]] = {}
        self._missing = 0
        self._segment_names: list[SegmentName] | None = None
        self._base_names: list[tuple[BaseName, int]] | None = None

    def refresh(self) -> None:
        """List the objects again when they are next needed."""
        self._segment_names = self._base_names = None

    def databases(self) -> list[str]:
        """Return the databases, `project/name`, of which there is a base or an entry."""
        return self._with_present_objects(self._databases)

    def _databases(self) -> list[str]:
        found = {name.db for name, _ in self._list_bases()}
        for header in self.headers():
            found.update(header.databases)
        return sorted(found)

    def bases(self, db: str) -> list[Base]:
        """Return the bases of a database in the order in which they were made."""
        found = [self._base(name, size) for name, size in self._list_bases() if name.db == db]
        return sorted(filter(None, found), key=_order_of_base)

    def all_segments(self) -> list[SegmentName]:
        """Return all segments, also those that a merged one replaces, in their order."""
        if self._segment_names is None:
            found = map(segments.parse_name, self._names(segments.FOLDER))
            self._segment_names = sorted(filter(None, found), key=lambda each: each.first)
        return self._segment_names

    def segments(self) -> list[SegmentName]:
        """Return the segments without those that a merged one replaces, in their order.

        A merged one whose header cannot be read replaces none.
        """
        every = self.all_segments()
        merged = sorted(
            (each for each in every if each.first < each.last and each.name not in self.faults),
            key=lambda each: (each.first, -each.last),
        )
        kept: list[SegmentName] = []
        for each in merged:
            if not kept or each.last > kept[-1].last:
                kept.append(each)
        covered = {number for each in kept for number in range(each.first, each.last + 1)}
        single = [e for e in every if e.first == e.last and e.first not in covered]
        return sorted([*kept, *single], key=lambda each: (each.first, each.name))

    def holes(self) -> list[tuple[int, int]]:
        """Return which segments are missing that were not pruned, as pairs of first and last."""
        found = self._holes()
        if found:  # others may have merged segments while they were listed
            self.refresh()
            found = self._holes()
        return found

    def _holes(self) -> list[tuple[int, int]]:
        at, found = self._pruned_through(), list[tuple[int, int]]()
        for each in self.segments():
            if each.first > at + 1:
                found.append((at + 1, each.first - 1))
            at = max(at, each.last)
        return found

    def note_pruned(self, through: int) -> None:
        """Record that segments up to a number may be missing from now on."""
        through = max(through, self._pruned_through())
        self.place.put(PRUNED, [b'{"through":%d}\n' % through], is_new=False)

    def _pruned_through(self) -> int:
        try:
            return int(orjson.loads(b"".join(self.place.get(PRUNED)))["through"])
        except (ObjectMissing, ValueError, LookupError, TypeError):
            return 0

    def next_number(self) -> int:
        """Return a number that no segment has, above all others."""
        return max((each.last for each in self.all_segments()), default=0) + 1

    def header(self, segment: SegmentName) -> SegmentHeader | None:
        """Return the header of a segment, None if it cannot be read, or is gone."""
        if segment.name not in self._headers and segment.name not in self.faults:
            try:
                chunks = self.place.get(segment.name)
                found = segments.read_header(chunks, self.key, name=segment.name)
            except Damaged as error:
                self.faults[segment.name] = str(error)
                self._missing += segment.first < segment.last  # small ones may still be there
            except ObjectMissing:
                self._missing += 1
                return None
            else:
                self._headers[segment.name] = found
        return self._headers.get(segment.name)

    def headers(self) -> list[SegmentHeader]:
        """Return the headers of the segments that can be read, in their order."""
        return self._with_present_objects(
            lambda: [header for _, header in self._read_headers() if header is not None]
        )

    def _read_headers(self) -> list[tuple[SegmentName, SegmentHeader | None]]:
        """Return the segments with their headers; those of a bucket are read some at a time."""
        every = self.segments()
        unread = [each for each in every if each.name not in self._headers]
        with ThreadPoolExecutor(_HEADERS_AT_ONCE) as pool:
            for _ in pool.map(self.header, unread):
                pass
        return [(each, self.header(each)) for each in every]

    def events(self) -> list[Event]:
        """Return all gaps, deletions and changes of rules, in the order of their arrival.

        The texts of rules are left out: `rules` returns them.
        """
        return [event for header in self.headers() for event in header.events]

    def rules(self, project: str) -> Iterator[Rules]:
        """Yield the rules that a project has had, with their texts, in the order of arrival."""
        for segment in self.segments():
            header = self.header(segment)
            events = () if header is None else header.events
            if any(isinstance(each, Rules) and each.project == project for each in events):
                for record in self.records(segment):
                    if isinstance(record, Rules) and record.project == project:
                        yield record

    def gaps(self, db: str) -> list[Gap]:
        """Return the gaps of a database."""
        return [each for each in self.events() if isinstance(each, Gap) and each.db == db]

    def deletions(self, db: str) -> list[Deleted]:
        """Return when a database was deleted."""
        return [each for each in self.events() if isinstance(each, Deleted) and each.db == db]

    def records(self, segment: SegmentName) -> Iterator[Record]:
        """Yield the records of a segment; raise `Damaged` with a sentence that names it.

        They are right only if the iteration ends.
        """
        try:
            chunks = self.place.get(segment.name)
            yield from segments.read_segment(chunks, self.key, name=segment.name)[1]
        except Damaged as error:
            raise _named(segment.name, error) from None

    def load(self, base: Base, target: pathlib.Path, *, verified: bool = True) -> BaseHeader:
        """Write the file of a database from a base, as `bases.load`."""
        name = base.name.name
        try:
            chunks = self.place.get(name)
            return bases.load(chunks, target, self.key, name=name, verified=verified)
        except Damaged as error:
            raise _named(name, error) from None

    def histories(self, db: str) -> list[History]:
        """Return the histories of a database, in the order of their first own entry."""
        return self._with_present_objects(lambda: self._histories(db))

    def spans(self, db: str) -> list[Stretch]:
        """Return the stretches of a database that can be restored, older histories first."""
        return self._with_present_objects(lambda: self._spans(db))

    def _with_present_objects(self, work: Callable[[], T]) -> T:
        """Run `work`, again if an object that it needs was merged meanwhile."""
        for _ in range(_ATTEMPTS):
            self._missing = 0
            try:
                found = work()
            except ObjectMissing:
                self._missing += 1
            else:
                if not self._missing:
                    return found
            self.refresh()
        raise ObjectMissing(f"{self.place.text} is changed all the time: try it again.")

    def _histories(self, db: str) -> list[History]:
        found: list[History] = []
        for segment, header in self._read_headers():
            spans = () if header is None else header.databases.get(db, ())
            for number, span in enumerate(spans):
                piece = Piece(
                    segment=segment,
                    number=number,
                    span=span,
                    after=span.after,
                    through=span.through,
                )
                self._attach(found, db, piece)
        return found

    def _spans(self, db: str) -> list[Stretch]:
        left = self.bases(db)
        found: list[Stretch] = []
        attached: set[str] = set()
        for history in self._histories(db):
            on = [base for base in left if self._has(history, base.sequence, base.header.op_id)]
            attached.update(base.name.name for base in on)
            found += self._stretches(history, sorted(on, key=lambda base: base.sequence))
        alone = [base for base in left if base.name.name not in attached]
        found += [self._make_stretch(db, [base], [], base.sequence) for base in alone]
        return sorted(found, key=lambda each: each.own_ms)

    def entries(self, stretch: Stretch, after: int, through: int | None = None) -> Iterator[Entry]:
        """Yield the entries of a stretch above `after` up to `through`, or all that follow.

        They are right only if the iteration ends: raises `Damaged` with a sentence.
        """
        last = stretch.through if through is None else through
        for attempt in range(_ATTEMPTS):
            try:
                for entry in self._entries(stretch, after, last):
                    yield entry
                    after = entry.sequence
            except ObjectMissing:
                self.refresh()
                stretch = self._find_again(stretch)
                if attempt == _ATTEMPTS - 1:
                    raise
            else:
                return

    def find_time(self, stretch: Stretch, ms: int) -> int | None:
        """Return the number of the last write whose time is at most `ms`; None if there is none.

        The last in the order of the numbers: a clock may have been set back.
        """
        for piece in reversed(stretch.pieces):
            if piece.span.min_ms <= ms:
                found = None
                for entry in self._entries(stretch, piece.after, piece.through):
                    if entry.sequence > stretch.first and describe(entry.content)[0] <= ms:
                        found = entry.sequence
                if found is not None:
                    return found
        known = [base.sequence for base in stretch.bases if _time_of(base) <= ms]
        return known[-1] if known else None

    def op_at(self, db: str, pieces: Sequence[Piece], sequence: int) -> bytes | None:
        """Return the id of a write of a history, None if it is not among them."""
        for piece in reversed(pieces):
            if piece.after <= sequence <= piece.through:
                return self._op_in(db, piece, sequence)
        return None

    def _names(self, folder: str) -> Iterator[str]:
        return (each.name for each in self.place.list(folder))

    def _list_bases(self) -> list[tuple[BaseName, int]]:
        if self._base_names is None:
            found = [
                (bases.parse_name(each.name), each.size) for each in self.place.list(bases.FOLDER)
            ]
            self._base_names = [(name, size) for name, size in found if name is not None]
        return self._base_names

    def _base(self, name: BaseName, size: int) -> Base | None:
        if name.name not in self._bases and name.name not in self.faults:
            try:
                header = bases.read_header(self.place.get(name.name), self.key, name=name.name)
            except Damaged as error:
                self.faults[name.name] = str(error)
            except ObjectMissing:
                self._missing += 1
                return None
            else:
                self._bases[name.name] = Base(name, size, header)
        return self._bases.get(name.name)

    def _attach(self, histories: list[History], db: str, piece: Piece) -> None:
        """Add a span to the history that it continues, or as a branch, or as a new history."""
        span = piece.span
        for history in reversed(histories):
            if not self._has(history, span.after, span.after_op):
                continue
            common = min(history.through, span.through)
            if self.op_at(db, history.pieces, common) == self._op_in(db, piece, common):
                if span.through > history.through:
                    history.pieces.append(attrs.evolve(piece, after=history.through))
            else:
                kept = [*_cut(history.pieces, span.after), piece]
                histories.append(History(db, kept, branched_at=span.after))
            return
        histories.append(History(db, [piece]))

    def _has(self, history: History, sequence: int, op_id: bytes) -> bool:
        return self.op_at(history.db, history.pieces, sequence) == op_id

    def _op_in(self, db: str, piece: Piece, sequence: int) -> bytes | None:
        span = piece.span
        if sequence == span.after:
            return span.after_op
        if sequence == span.through:
            return span.through_op
        where = (piece.segment.name, db, sequence)
        if where not in self._ops:
            name = piece.segment.name
            try:
                chunks = self.place.get(name)
                self._ops[where] = segments.find_op(chunks, db, sequence, self.key, name=name)
            except Damaged as error:
                self.faults[name] = str(error)
                return None
        return self._of_span(piece, db, sequence, self._ops[where])

    def _of_span(
        self, piece: Piece, db: str, sequence: int, found: Sequence[bytes]
    ) -> bytes | None:
        """Return which of the ids of a number in a segment is that of a span."""
        header = self._headers[piece.segment.name]
        earlier = header.databases[db][: piece.number]
        number = sum(span.after < sequence <= span.through for span in earlier)
        return found[number] if number < len(found) else None

    def _stretches(self, history: History, on: Sequence[Base]) -> Iterator[Stretch]:
        """Yield the parts of a history that begin with a base, or with nothing, and are whole."""
        first, is_empty = history.after, history.after == 0
        beyond = history.through + 1
        for low, high in [*self._unusable(history), (beyond, beyond)]:
            within = [base for base in on if first <= base.sequence < low]
            start = 0 if is_empty else within[0].sequence if within else low
            pieces = [each for each in _cut(history.pieces, low - 1) if each.through > start]
            if within or (is_empty and pieces):
                yield self._on_branch(history, within, pieces, start)
            for base in on:
                if low <= base.sequence < high:
                    yield self._on_branch(history, [base], [], base.sequence)
            first, is_empty = high, False

    def _unusable(self, history: History) -> list[tuple[int, int]]:
        """Return the ranges of entries that have no body, or cannot be read."""
        found: list[tuple[int, int]] = []
        for piece in history.pieces:
            for low, high in [] if piece.span.is_whole else self._unusable_of(history.db, piece):
                start = found.pop()[0] if found and found[-1][1] + 1 == low else low
                found.append((start, high))
        return found

    def _unusable_of(self, db: str, piece: Piece) -> Iterator[tuple[int, int]]:
        read = piece.after
        try:
            for entry in self._entries_of(db, piece):
                read = entry.sequence
                if not describe(entry.content)[1]:
                    yield read, read
        except Damaged as error:
            self.faults[piece.segment.name] = str(error)
            if read < piece.through:
                yield read + 1, piece.through

    def _on_branch(
        self, history: History, on: Sequence[Base], pieces: Sequence[Piece], first: int
    ) -> Stretch:
        made = self._make_stretch(history.db, on, pieces, first)
        return attrs.evolve(made, own_ms=_own_ms(history, made))

    def _make_stretch(
        self, db: str, on: Sequence[Base], pieces: Sequence[Piece], first: int
    ) -> Stretch:
        if on and (not pieces or pieces[-1].through < on[-1].sequence):
            through, through_op = on[-1].sequence, on[-1].header.op_id
            last_ms = _time_of(on[-1])
        else:
            through = pieces[-1].through
            through_op = self.op_at(db, pieces, through) or b""
            last_ms = pieces[-1].span.last_ms
        begins_with_base = bool(on) and on[0].sequence == first
        first_ms = _time_of(on[0]) if begins_with_base else pieces[0].span.first_ms
        return Stretch(
            db=db,
            bases=on,
            pieces=pieces,
            first=first,
            through=through,
            through_op=through_op,
            first_ms=first_ms,
            last_ms=last_ms,
            own_ms=first_ms,
        )

    def _find_again(self, stretch: Stretch) -> Stretch:
        """Return a stretch with the objects that there are now; raise `ObjectMissing`."""
        for each in self.spans(stretch.db):
            if self.op_at(each.db, each.pieces, stretch.through) == stretch.through_op:
                return each
        raise ObjectMissing(f"Entries of {stretch.db} were removed from the archive meanwhile.")

    def _entries(self, stretch: Stretch, after: int, through: int) -> Iterator[Entry]:
        for piece in stretch.pieces:
            if piece.through > after and piece.after < through:
                for entry in self._entries_of(stretch.db, piece):
                    if after < entry.sequence <= through:
                        yield entry

    def _entries_of(self, db: str, piece: Piece) -> Iterator[Entry]:
        """Yield the entries of a piece, from its span alone; read the segment to its end."""
        header = self._headers[piece.segment.name]
        spans = header.databases[db]
        number, previous = -1, 0
        for record in self.records(piece.segment):
            if not isinstance(record, Entry) or record.db != db:
                continue
            if number < 0 or previous == spans[number].through:
                number += 1
            previous = record.sequence
            if number == piece.number and piece.after < record.sequence <= piece.through:
                yield record


def _cut(pieces: Iterable[Piece], through: int) -> list[Piece]:
    """Return the pieces up to a number."""
    return [
        attrs.evolve(piece, through=min(piece.through, through))
        for piece in pieces
        if piece.after < through
    ]


def _own_ms(history: History, stretch: Stretch) -> int:
    branched_at = history.branched_at
    own = [
        piece.span.min_ms
        for piece in stretch.pieces
        if branched_at is None or piece.through > branched_at
    ]
    if branched_at is None or stretch.first > branched_at:
        own.append(stretch.first_ms)
    return min(own, default=stretch.first_ms)


def _time_of(base: Base) -> int:
    """Return the time of the last write of a base; when the base was made, if there is none."""
    return describe(base.header.last_entry)[0] or base.header.time_ms


def _order_of_base(base: Base) -> tuple[int, int, int]:
    return base.header.segment, base.header.time_ms, base.header.sequence


def _named(name: str, error: Damaged) -> Damaged:
    return Damaged(f"{name} is damaged: {error}")
