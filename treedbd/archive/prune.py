"""What is older than the retention, removed from an archive.

The horizon is the present time less `keep_s`. Every moment since then stays reachable, and so does
every moment since the oldest of the newest `keep_bases` bases of a database, however far a clock
has jumped.

- A base is removed if it is older than the horizon, not among the newest `keep_bases` of its
  database, and not the newest one at or before the horizon: neither of all, nor of a history that
  is the last one or has a write since the horizon.
- A segment is removed if it was written before the horizon and no base that is kept comes before
  it. The entries that follow a base are in the segments from the one on that was the next when the
  base began; so this is seen by numbers, not by times. A history without a base at or before the
  horizon is restored from its first entry: then all segments with entries of its database stay.
- Of a database that was deleted before the horizon all is removed, but only when another database
  has had `keep_bases` bases since then.
- The segment with the highest number stays, since numbers are never used twice.
- Rules have no bases: the last text of each project that a kept moment needs stays (`_with_rules`).
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from treedbd.archive.index import Archive, Base
from treedbd.archive.segments import Deleted, Rules, SegmentHeader, SegmentName


@attrs.frozen
class Pruned:
    """The names of the objects that were removed."""

    bases: list[str]
    segments: list[str]


@attrs.frozen
class _Kept:
    """The bases of a database that stay, and whether all entries from the first one on do."""

    bases: list[Base]
    from_first: bool


@attrs.frozen
class _Retention:
    horizon_ms: int
    keep_bases: int


def prune(archive: Archive, keep_s: int, keep_bases: int, now_ms: int) -> Pruned:
    """Remove what is older than the retention; return what was removed.

    Raises `PlaceFailed` or `WrongKey`. What cannot be read is left alone: it counts as no base, and
    no segment.
    """
    archive.refresh()
    retention = _Retention(now_ms - 1000 * keep_s, max(1, keep_bases))
    bases = {db: archive.bases(db) for db in archive.databases()}
    found = [(segment, archive.header(segment)) for segment in archive.segments()]
    segments = [(segment, header) for segment, header in found if header is not None]
    newest = archive.next_number() - 1
    gone = _gone(bases, segments, retention)
    kept = {
        db: _Kept([], from_first=False) if db in gone else _keep(archive, db, retention)
        for db in bases
    }
    old_bases = [base.name.name for db in bases for base in bases[db] if base not in kept[db].bases]
    unneeded = _unneeded(segments, kept, retention.horizon_ms)
    old_segments = [segment.name for segment in unneeded if segment.last < newest]
    if old_segments:
        archive.note_pruned(max(each.last for each in unneeded if each.last < newest))
    for name in old_segments:  # first: a base without them is a moment, they are nothing without it
        archive.place.delete(name)
    for name in old_bases:
        archive.place.delete(name)
    archive.refresh()
    return Pruned(old_bases, old_segments)


def _keep(archive: Archive, db: str, retention: _Retention) -> _Kept:
    """Return what stays of a database."""
    horizon_ms = retention.horizon_ms
    every, stretches = archive.bases(db), archive.spans(db)
    kept = {base.name.name for base in every if base.header.time_ms > horizon_ms}
    kept.update(base.name.name for base in every[-retention.keep_bases :])
    kept.update(_newest_before(every, horizon_ms))
    from_first = False
    for stretch in stretches:
        if stretch is stretches[-1] or stretch.last_ms >= horizon_ms:
            newest = _newest_before(stretch.bases, horizon_ms)
            kept.update(newest)
            from_first = from_first or (stretch.first == 0 and not newest)
    return _Kept([base for base in every if base.name.name in kept], from_first)


def _newest_before(bases: Sequence[Base], horizon_ms: int) -> list[str]:
    """Return the name of the last base at or before the horizon, if there is one."""
    return [base.name.name for base in bases if base.header.time_ms <= horizon_ms][-1:]


def _gone(
    bases: dict[str, list[Base]],
    segments: list[tuple[SegmentName, SegmentHeader]],
    retention: _Retention,
) -> set[str]:
    """Return the databases that were deleted before the horizon, and not created again."""
    deleted: dict[str, tuple[int, int]] = {}
    for segment, header in segments:
        for db in header.databases:
            deleted.pop(db, None)
        for event in header.events:
            if isinstance(event, Deleted):
                deleted[event.db] = segment.last, event.at_ms
    return {
        db
        for db, (number, at_ms) in deleted.items()
        if at_ms < retention.horizon_ms
        and all(base.header.segment <= number for base in bases.get(db, ()))
        and any(
            sum(base.header.segment > number for base in others) >= retention.keep_bases
            for others in bases.values()
        )
    }


def _unneeded(
    segments: list[tuple[SegmentName, SegmentHeader]], kept: dict[str, _Kept], horizon_ms: int
) -> list[SegmentName]:
    """Return the segments that no kept moment needs."""
    with_rules = _with_rules(segments, kept)
    found = []
    staying = {db for db, of_db in kept.items() if of_db.bases}
    for segment, header in segments:
        is_needed = (
            header.written_ms >= horizon_ms
            or segment in with_rules
            # Without it a copy of a deleted database would seem to be of one that is there.
            or any(isinstance(event, Deleted) and event.db in staying for event in header.events)
            or any(_is_needed(segment, kept[db]) for db in header.databases)
        )
        if is_needed:
            staying.update(header.databases)
        else:
            found.append(segment)
    return found


def _is_needed(segment: SegmentName, kept: _Kept) -> bool:
    """Return whether a segment has entries of a database that follow a base that is kept."""
    return kept.from_first or any(base.header.segment <= segment.last for base in kept.bases)


def _with_rules(
    segments: list[tuple[SegmentName, SegmentHeader]], kept: dict[str, _Kept]
) -> set[SegmentName]:
    """Return the segments with rules that were in force at a moment that is kept."""
    numbers = [base.header.segment for of_db in kept.values() for base in of_db.bases]
    oldest = 0 if any(of_db.from_first for of_db in kept.values()) else min(numbers, default=0)
    since = {
        segment
        for segment, header in segments
        if segment.last >= oldest and any(isinstance(event, Rules) for event in header.events)
    }
    return since | set(_last_before(segments, oldest).values())


def _last_before(
    segments: list[tuple[SegmentName, SegmentHeader]], number: int
) -> dict[str, SegmentName]:
    """Return the last segments before a number in which the rules of a project are."""
    found: dict[str, SegmentName] = {}
    for segment, header in segments:
        if segment.last < number:
            for event in header.events:
                if isinstance(event, Rules):
                    found[event.project] = segment
    return found
