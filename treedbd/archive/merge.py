"""Many small segments put together to one, when the hour in which they were written is over.

The merged segment is written and read back first, then the small ones are removed. A reader that
meets both uses the merged one (`Archive.segments`); what a process that was killed has left of the
small ones is removed by the next run. Numbers that are missing, and segments that cannot be read,
are left alone: no merged segment reaches across them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Final

import attrs

from treedbd.archive.index import Archive
from treedbd.archive.places import NameTaken
from treedbd.archive.sealing import Damaged
from treedbd.archive.segments import (
    FOLDER,
    Event,
    Record,
    SegmentHeader,
    SegmentName,
    Span,
    name_segment,
    write_segment,
)

HOUR_MS: Final = 3_600_000
MAX_BYTES: Final = 256 * 1024 * 1024
"""The most that the segments have together that are merged to one."""


@attrs.frozen
class _Small:
    segment: SegmentName
    header: SegmentHeader
    size: int


def merge(archive: Archive, now_ms: int) -> list[str]:
    """Merge the segments of hours that are over; return the names of the merged ones.

    Raises `PlaceFailed` or `WrongKey`, and `Damaged` for a segment that cannot be read to its end,
    once all others are merged. All entries are there as before, whatever is raised.
    """
    archive.refresh()
    damaged = list(_remove_replaced(archive))
    archive.headers()  # all at once
    made = []
    for group in list(_groups(archive, now_ms)):
        if len(group) > 1:
            try:
                made.append(_merge_group(archive, group))
            except Damaged as error:
                damaged.append(error)
            else:
                for small in group:
                    archive.place.delete(small.segment.name)
    archive.refresh()
    if damaged:
        raise damaged[0]
    return made


def _remove_replaced(archive: Archive) -> Iterator[Damaged]:
    """Remove the segments that a merged one replaces, once that one is read to its end.

    Yields what is wrong with those that cannot be read.
    """
    used = {each.name for each in archive.segments()}
    left = [each for each in archive.all_segments() if each.name not in used]
    for merged in archive.segments():
        inside = [e for e in left if merged.first <= e.first and e.last <= merged.last]
        if not inside or merged.first == merged.last:
            continue
        try:
            _read_all(archive, merged)
        except Damaged as error:
            yield error
        else:
            for each in inside:
                archive.place.delete(each.name)
    archive.refresh()


def _groups(archive: Archive, now_ms: int) -> Iterator[list[_Small]]:
    """Yield consecutive segments that were written in the same hour, which is over."""
    sizes = {each.name: each.size for each in archive.place.list(FOLDER)}
    group: list[_Small] = []
    for segment in archive.segments():
        header = archive.header(segment)
        small = None
        if header is not None and segment.first == segment.last and _is_over(header, now_ms):
            small = _Small(segment, header, sizes.get(segment.name, 0))
        if group and not (small is not None and _belongs(group, small)):
            yield group
            group = []
        if small is not None:
            group.append(small)
    if group:
        yield group


def _is_over(header: SegmentHeader, now_ms: int) -> bool:
    return header.written_ms // HOUR_MS < now_ms // HOUR_MS


def _belongs(group: Sequence[_Small], small: _Small) -> bool:
    last = group[-1]
    is_next = small.segment.first == last.segment.last + 1
    is_same_hour = small.header.written_ms // HOUR_MS == last.header.written_ms // HOUR_MS
    size = small.size + sum(each.size for each in group)
    return is_next and is_same_hour and size <= MAX_BYTES


def _merge_group(archive: Archive, group: Sequence[_Small]) -> str:
    """Write a merged segment and read it back; return its name."""
    header = _merge_headers([small.header for small in group])
    first = group[0].header
    name = name_segment(header.number, first.written_ms, archive.key, last=header.last)
    records = _all_records(archive, group)
    with contextlib.suppress(NameTaken):  # a run that was killed has written it
        archive.place.put(name, write_segment(header, records, archive.key), is_new=True)
    merged = SegmentName(name, header.number, header.last)
    _read_all(archive, merged)
    return name


def _all_records(archive: Archive, group: Sequence[_Small]) -> Iterator[Record]:
    for small in group:
        yield from archive.records(small.segment)


def _read_all(archive: Archive, segment: SegmentName) -> None:
    for _ in archive.records(segment):
        pass


def _merge_headers(headers: Sequence[SegmentHeader]) -> SegmentHeader:
    """Return the header of all records of some segments, one after the other."""
    databases: dict[str, list[Span]] = {}
    events: list[Event] = []
    for header in headers:
        events += header.events
        for db, spans in header.databases.items():
            for span in spans:
                _add_span(databases.setdefault(db, []), span)
    return SegmentHeader(
        headers[0].number,
        max(header.written_ms for header in headers),
        databases,
        events,
        last=headers[-1].last,
    )


def _add_span(spans: list[Span], new: Span) -> None:
    """Add a span, to the last one if it continues that."""
    if not spans or (spans[-1].through, spans[-1].through_op) != (new.after, new.after_op):
        spans.append(new)
        return
    last = spans[-1]
    spans[-1] = attrs.evolve(
        last,
        through=new.through,
        through_op=new.through_op,
        last_ms=new.last_ms,
        min_ms=min(last.min_ms, new.min_ms),
        is_whole=last.is_whole and new.is_whole,
    )
