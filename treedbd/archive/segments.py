"""Segments: objects with entries of the change logs of all databases, in order of their arrival.

A segment is named `segments/<YYYYMMDD>/<12 digits>.jsonl.zst`, with `.sealed` if it is: the day in
UTC when it was written, and its number. Numbers grow by one and are never used twice; so the order
of the numbers is that of arrival, whatever the clock does. A merged segment (`merge`) has the first
and the last of the numbers that it replaces.

It consists of lines of JSON: the header, records, and a line with the number of the lines before it
and their SHA-256. Without that last line a segment is damaged, never just short. The header has for
each database the *spans* of its entries, and all records that are not entries, without the text of
rules; so what an archive holds is known from the headers alone.

    {"treedb-segment":1,"number":7,"last":7,"written":1796000000000,
     "databases":{"app/default":[{"after":10,"after_op":"…","through":12,"through_op":"…",…}]},
     "events":[{"db":"app/b","gap":"The cursor was dropped.","after":5,"at":1796000000000}]}
    {"db":"app/default","seq":11,"op":"…","entry":{…}}
    {"db":"app/b","gap":"The cursor was dropped.","after":5,"at":1796000000000}
    {"db":"app/c","deleted":true,"at":1796000000000}
    {"rules":"app","text":"{…}","at":1796000000000}
    {"end":5,"sha256":"…"}

An entry is the bytes of the log, not parsed and printed again. One that is not a line of JSON,
which only a damaged log has, is in base64 as `raw`. The entries of a span have consecutive numbers,
and each follows the one before it: `after_op` is the id of the write before the first.

Delivery is at least once: after a crash the same entries may be in two segments.
"""

from __future__ import annotations

import base64
import hashlib
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import attrs
import orjson

from treedbd.archive.packing import pack, suffix, unpack
from treedbd.archive.sealing import Damaged, Key
from treedbd.store.changelog import without_body

FOLDER: Final = "segments/"
FORMAT: Final = 1
MAX_LINE_BYTES: Final = 256 * 1024 * 1024
"""The longest line that is read: an entry with a body, or the text of rules."""
_ENTRY: Final = b',"entry":'
_SENT: Final = b',"sent":'
_TIME: Final = b'{"time":'
_NAME: Final = re.compile(
    r"segments/\d{8}/(?P<first>\d{12})(-(?P<last>\d{12}))?\.jsonl\.zst(?P<sealed>\.sealed)?"
)
_WRITTEN_AT_ONCE: Final = 65_536


@attrs.frozen
class Entry:
    """An entry of the log of a database, `project/name`; `content` are its bytes in the log."""

    db: str
    sequence: int
    op_id: bytes
    content: bytes = attrs.field(repr=False)


@attrs.frozen
class Gap:
    """Entries after number `after` are not in the archive; `reason` is a sentence."""

    db: str
    reason: str
    after: int
    at_ms: int


@attrs.frozen
class Deleted:
    """The database was deleted."""

    db: str
    at_ms: int


@attrs.frozen
class Rules:
    """The rules of a project became this text; in a header the text is None."""

    project: str
    text: str | None = attrs.field(repr=False)
    at_ms: int


Event: TypeAlias = Gap | Deleted | Rules
Record: TypeAlias = Entry | Event


@attrs.frozen
class Span:
    """Consecutive entries of one database in a segment: those above `after` up to `through`.

    `first_ms`, `last_ms` and `min_ms` are the times in the first and in the last entry, and the
    earliest: a clock may have been set back. `is_whole` says that all entries have their bodies.
    """

    after: int
    after_op: bytes
    through: int
    through_op: bytes
    first_ms: int
    last_ms: int
    min_ms: int
    is_whole: bool


@attrs.frozen
class SegmentHeader:
    """What a segment holds: its number, when it was written (ms since 1970), spans and events.

    A merged one has the numbers from `number` to `last`, and was written when the last of them was.
    """

    number: int
    written_ms: int
    databases: Mapping[str, Sequence[Span]]
    events: Sequence[Event] = ()
    last: int = attrs.field(kw_only=True)

    @last.default
    def _last(self) -> int:
        return self.number


@attrs.frozen
class SegmentName:
    """The name of a segment, which has the numbers `first` to `last`."""

    name: str
    first: int
    last: int


def name_segment(
    number: int, written_ms: int, key: Key | None = None, *, last: int | None = None
) -> str:
    """Return the name of a segment, or of a merged one with the numbers up to `last`."""
    day = time.strftime("%Y%m%d", time.gmtime(written_ms / 1000))
    numbers = f"{number:012}" if last is None else f"{number:012}-{last:012}"
    return f"{FOLDER}{day}/{numbers}.jsonl.zst{suffix(key)}"


def parse_name(name: str) -> SegmentName | None:
    """Return what the name of an object says, None if it is not that of a segment."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    first = int(found["first"])
    last = first if found["last"] is None else int(found["last"])
    return SegmentName(name, first, last) if first <= last else None


class SpanBuilder:
    """Finds the spans of records. `after` has, for each database, where its first entry follows."""

    def __init__(self, after: Mapping[str, tuple[int, bytes]]) -> None:
        self._after = dict(after)
        self._spans: dict[str, list[_GrowingSpan]] = {}
        self._events: list[Event] = []

    def add(self, record: Record) -> None:
        """Add the next record; raise ValueError for an entry that follows nothing."""
        if isinstance(record, Rules):
            self._events.append(attrs.evolve(record, text=None))
        elif not isinstance(record, Entry):
            self._events.append(record)
        else:
            self._add_entry(record)

    def start(self, db: str, after: int, after_op: bytes) -> None:
        """Begin another span of a database, whose next entry follows this position."""
        self._after[db] = after, after_op

    def header(self, number: int, written_ms: int) -> SegmentHeader:
        """Return the header of a segment with what was added."""
        spans = {db: [each.span() for each in spans] for db, spans in self._spans.items()}
        return SegmentHeader(number, written_ms, spans, self._events)

    def _add_entry(self, entry: Entry) -> None:
        when, is_whole = describe(entry.content)
        spans = self._spans.setdefault(entry.db, [])
        if (start := self._after.pop(entry.db, None)) is not None:
            spans.append(_GrowingSpan(*start, when))
        if not spans or entry.sequence != spans[-1].through + 1:
            raise ValueError(f"The entry {entry.sequence} of {entry.db} does not follow another.")
        spans[-1].add(entry, when, is_whole=is_whole)


class _GrowingSpan:
    """A span to which entries are added: many thousands are read in a second."""

    def __init__(self, after: int, after_op: bytes, first_ms: int) -> None:
        self._after = self.through = after
        self._after_op = self._op_id = after_op
        self._first_ms = self._last_ms = self._min_ms = first_ms
        self._is_whole = True

    def add(self, entry: Entry, when: int, *, is_whole: bool) -> None:
        self.through = entry.sequence
        self._op_id = entry.op_id
        self._last_ms = when
        self._min_ms = min(self._min_ms, when)
        if not is_whole:
            self._is_whole = False

    def span(self) -> Span:
        return Span(
            after=self._after,
            after_op=self._after_op,
            through=self.through,
            through_op=self._op_id,
            first_ms=self._first_ms,
            last_ms=self._last_ms,
            min_ms=self._min_ms,
            is_whole=self._is_whole,
        )


class _CheckedSpans(SpanBuilder):
    """The spans of records that are compared with those of a header."""

    def __init__(self, header: SegmentHeader) -> None:
        super().__init__({})
        self._expected = header

    def is_all(self) -> bool:
        """Return whether the header is that of what was added."""
        expected = self._expected
        found = self.header(expected.number, expected.written_ms)
        return attrs.evolve(found, last=expected.last) == expected

    def _add_entry(self, entry: Entry) -> None:
        expected = self._expected.databases.get(entry.db, ())
        found = self._spans.get(entry.db, ())
        is_complete = not found or found[-1].through == expected[len(found) - 1].through
        if is_complete and len(found) < len(expected):
            span = expected[len(found)]
            self.start(entry.db, span.after, span.after_op)
        super()._add_entry(entry)


def describe(content: bytes) -> tuple[int, bool]:
    """Return the time of an entry of the log in ms, and whether it has its body.

    An entry that cannot be read has the time 0 and no body.
    """
    if content.startswith(_TIME):  # as all are that `changelog.encode` makes
        digits = content[len(_TIME) : content.find(b",", len(_TIME))]
        if digits.isdigit():
            return int(digits), _SENT in content
    head = without_body(content)
    try:
        return int(orjson.loads(head)["time"]), len(head) < len(content)
    except (ValueError, LookupError, TypeError):
        return 0, False


def make_header(
    number: int,
    written_ms: int,
    after: Mapping[str, tuple[int, bytes]],
    records: Iterable[Record],
) -> SegmentHeader:
    """Return the header of a segment of some records.

    `after` has for each database that has entries the number and the id of the write before them.
    Raises ValueError if the numbers of a database are not consecutive.
    """
    builder = SpanBuilder(after)
    for record in records:
        builder.add(record)
    return builder.header(number, written_ms)


def write_segment(
    header: SegmentHeader, records: Iterable[Record], key: Key | None = None
) -> Iterator[bytes]:
    """Yield the object of a segment, for `Place.put`; raise ValueError if the header is wrong."""
    return pack(_lines(header, records), key)


def read_segment(
    chunks: Iterable[bytes], key: Key | None = None, *, name: str = ""
) -> tuple[SegmentHeader, Iterator[Record]]:
    """Return the header of a segment, and its records as they are read.

    All of it is right only if the iteration ends: raises `Damaged`, which the iterator may raise
    after any record, or `WrongKey`. The header is compared with `name`, that of the object.
    """
    lines = _split(unpack(chunks, key, name=name))
    first = next(lines, b"")
    header = _parse_header(first, name)
    return header, _records(header, first, lines)


def read_header(
    chunks: Iterable[bytes], key: Key | None = None, *, name: str = ""
) -> SegmentHeader:
    """Return the header of a segment, of which only the beginning is read."""
    return read_segment(chunks, key, name=name)[0]


def _lines(header: SegmentHeader, records: Iterable[Record]) -> Iterator[bytes]:
    first = _print_header(header)
    digest = hashlib.sha256(first)
    yield first
    checked = _CheckedSpans(header)
    buffer = bytearray()
    count = 1
    for record in records:
        checked.add(record)
        buffer += print_record(record)
        count += 1
        if len(buffer) >= _WRITTEN_AT_ONCE:
            digest.update(buffer)
            yield bytes(buffer)
            buffer.clear()
    if not checked.is_all():
        raise ValueError("The header of the segment is not that of its records.")
    digest.update(buffer)
    yield bytes(buffer) + _print_end(count, digest.hexdigest())


def find_op(
    chunks: Iterable[bytes], db: str, sequence: int, key: Key | None = None, *, name: str = ""
) -> list[bytes]:
    """Return the ids of the entries of a database with a number, in their order.

    There may be several if a segment was merged. Only what was looked for is parsed.
    """
    head = orjson.dumps({"db": db, "seq": sequence})[:-1] + b","
    lines = _split(unpack(chunks, key, name=name))
    try:
        found = [parse_record(line) for line in lines if line.startswith(head)]
    except (ValueError, LookupError, TypeError):
        raise Damaged("It has a line that is not a record.") from None
    return [record.op_id for record in found if isinstance(record, Entry)]


def print_record(record: Record) -> bytes:
    """Return the line of a record."""
    if not isinstance(record, Entry):
        return orjson.dumps(_print_event(record)) + b"\n"
    head: dict[str, Any] = {"db": record.db, "seq": record.sequence, "op": record.op_id.hex()}
    content = record.content
    if not content.startswith(b"{") or b"\n" in content:
        head["raw"] = base64.b64encode(content).decode()
        return orjson.dumps(head) + b"\n"
    return orjson.dumps(head)[:-1] + _ENTRY + content + b"}\n"


def _print_event(event: Event) -> dict[str, Any]:
    match event:
        case Gap():
            return {"db": event.db, "gap": event.reason, "after": event.after, "at": event.at_ms}
        case Deleted():
            return {"db": event.db, "deleted": True, "at": event.at_ms}
        case _:
            return {"rules": event.project, "text": event.text, "at": event.at_ms}


def _print_header(header: SegmentHeader) -> bytes:
    content = {
        "treedb-segment": FORMAT,
        "number": header.number,
        "last": header.last,
        "written": header.written_ms,
        "databases": {
            db: [_print_span(span) for span in spans] for db, spans in header.databases.items()
        },
        "events": [_print_event(event) for event in header.events],
    }
    return orjson.dumps(content) + b"\n"


def _print_span(span: Span) -> dict[str, Any]:
    return {
        **attrs.asdict(span),
        "after_op": span.after_op.hex(),
        "through_op": span.through_op.hex(),
    }


def _parse_header(line: bytes, name: str) -> SegmentHeader:
    try:
        json: Any = orjson.loads(line)
        if json["treedb-segment"] != FORMAT:
            raise Damaged("It is of a newer version of treedb.")
        header = SegmentHeader(
            int(json["number"]),
            int(json["written"]),
            {db: [_parse_span(span) for span in spans] for db, spans in json["databases"].items()},
            [_parse_event(event) for event in json["events"]],
            last=int(json["last"]),
        )
    except (ValueError, LookupError, TypeError, AttributeError):
        raise Damaged("Its header is not that of a segment.") from None
    expected = parse_name(name)
    if expected is not None and (header.number, header.last) != (expected.first, expected.last):
        raise Damaged(f"It is the segment {header.number}, which has another name.")
    return header


def _parse_span(json: dict[str, Any]) -> Span:
    ops = {name: bytes.fromhex(json[name]) for name in ("after_op", "through_op")}
    span = Span(**{**json, **ops})
    if not 0 <= span.after < span.through:
        raise ValueError(span)
    return span


def _parse_event(json: dict[str, Any]) -> Event:
    if "rules" in json:
        return Rules(str(json["rules"]), json["text"], int(json["at"]))
    if "gap" in json:
        return Gap(str(json["db"]), str(json["gap"]), int(json["after"]), int(json["at"]))
    if json["deleted"] is not True:
        raise ValueError(json)
    return Deleted(str(json["db"]), int(json["at"]))


def _split(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield lines with their ends; what follows the last end comes last, without one."""
    rest = bytearray()
    for chunk in chunks:
        if b"\n" not in chunk:
            rest += chunk
            if len(rest) > MAX_LINE_BYTES:
                raise Damaged("It has a line that is too long.")
            continue
        first, *lines = chunk.split(b"\n")
        yield bytes(rest) + first + b"\n"
        rest = bytearray(lines.pop())
        for line in lines:
            yield line + b"\n"
    if rest:
        yield bytes(rest)


def _records(header: SegmentHeader, first: bytes, lines: Iterator[bytes]) -> Iterator[Record]:
    digest = hashlib.sha256(first)
    checked = _CheckedSpans(header)
    count = 1
    for line in lines:
        if line.startswith(b'{"end":'):
            _check_end(line, count, digest.hexdigest())
            break
        try:
            record = parse_record(line)
            checked.add(record)
        except (ValueError, LookupError, TypeError, AttributeError):
            raise Damaged(f"Its line {count + 1} is not a record.") from None
        digest.update(line)
        count += 1
        yield record
    else:
        raise Damaged("Its end is missing.")
    if next(lines, None) is not None:
        raise Damaged("It has more than it should have.")
    if not checked.is_all():
        raise Damaged("Its header is not that of its records.")


def _print_end(count: int, digest: str) -> bytes:
    return orjson.dumps({"end": count, "sha256": digest}) + b"\n"


def _check_end(line: bytes, count: int, digest: str) -> None:
    if line != _print_end(count, digest):
        raise Damaged("Its check sum is wrong.")


def parse_record(line: bytes) -> Record:
    """Return the record of a line; raise ValueError, LookupError or TypeError."""
    if not line.endswith(b"}\n"):
        raise ValueError("This is not a whole line.")
    at = line.find(_ENTRY)
    if at > 0 and line.startswith(b'{"db":'):  # in a text the quotation marks are escaped
        json: Any = orjson.loads(line[:at] + b"}")
        return _make_entry(json, line[at + len(_ENTRY) : -2])
    json = orjson.loads(line)
    if "raw" in json:
        return _make_entry(json, base64.b64decode(json["raw"], validate=True))
    return _parse_event(json)


def _make_entry(json: dict[str, Any], content: bytes) -> Entry:
    return Entry(str(json["db"]), int(json["seq"]), bytes.fromhex(json["op"]), content)
