"""An archive verified: every object read, the newest moments restored, bases compared.

What the entries after a base lead to must be the next base of the same history: if it is, both were
made of the same database, and no entry is missing or wrong. So each stretch is restored once, from
its first base to its end, and the tree is compared with each base on the way.
"""

from __future__ import annotations

import pathlib
import shutil
from collections.abc import Iterator

import attrs

from treedbd.archive import bases
from treedbd.archive.bases import BaseReader
from treedbd.archive.index import Archive, Base, Stretch
from treedbd.archive.places import ObjectMissing
from treedbd.archive.restoring import (
    Choice,
    NotReachable,
    Restoration,
    Restored,
    ToLatest,
    digest_of,
)
from treedbd.archive.sealing import Damaged
from treedbd.store.sqlite.copy import verify_copy


@attrs.define
class VerificationReport:
    """What was found: how much was read and compared, the newest moments, sentences on faults."""

    objects: int = 0
    compared: int = 0
    restored: list[Restored] = attrs.field(factory=list)
    faults: list[str] = attrs.field(factory=list)


def find_faults(archive: Archive, folder: pathlib.Path) -> VerificationReport:
    """Verify an archive; `folder` is empty, and what is restored is in it meanwhile.

    Raises `PlaceFailed`, `WrongKey`, `StoreFailed`, `DiskFull`, `CannotOpenStore` or OSError.
    """
    report = VerificationReport()
    _read_objects(archive, report)
    restoration = Restoration(archive)
    try:
        databases = restoration.databases()
    except Damaged as error:
        report.faults.append(str(error))
        return report
    for db in databases:
        _restore_newest(restoration, db, folder, report)
        for stretch in archive.spans(db):
            _compare_bases(archive, restoration, stretch, folder, report)
    report.faults += [
        reason if reason.startswith(name) else f"{name} is damaged: {reason}"
        for name, reason in archive.faults.items()
    ]
    report.faults += [f"Segments {first} to {last} are missing." for first, last in archive.holes()]
    report.faults = list(dict.fromkeys(report.faults))
    return report


def _read_objects(archive: Archive, report: VerificationReport) -> None:
    """Read all objects to their ends."""
    for segment in archive.all_segments():
        try:
            for _ in archive.records(segment):
                pass
        except Damaged as error:
            report.faults.append(str(error))
        except ObjectMissing:
            continue  # merged meanwhile
        report.objects += 1
    for info in archive.place.list(bases.FOLDER):
        if bases.parse_name(info.name) is not None:
            try:
                for _ in _rows(archive, info.name):
                    pass
            except Damaged as error:
                report.faults.append(f"{info.name} is damaged: {error}")
            except ObjectMissing:
                continue
            report.objects += 1


def _rows(archive: Archive, name: str) -> Iterator[object]:
    yield from BaseReader(archive.place.get(name), archive.key, name=name).rows()


def _restore_newest(
    restoration: Restoration, db: str, folder: pathlib.Path, report: VerificationReport
) -> None:
    try:
        choice = restoration.find(db, ToLatest())
        if choice is not None:
            report.restored.append(restoration.restore(choice, folder / "newest" / "x.shelf"))
    except (NotReachable, Damaged) as error:
        report.faults.append(str(error))
    finally:
        shutil.rmtree(folder / "newest", ignore_errors=True)


def _compare_bases(
    archive: Archive,
    restoration: Restoration,
    stretch: Stretch,
    folder: pathlib.Path,
    report: VerificationReport,
) -> None:
    """Restore what leads from each base of a stretch to the next, and compare that with it."""
    begin: Base | None = None
    others = list(stretch.bases)
    if others and others[0].sequence == stretch.first:
        begin = others.pop(0)
    for base in others:
        part = attrs.evolve(stretch, bases=[] if begin is None else [begin])
        try:
            made = folder / "made" / "x.shelf"
            restoration.restore(Choice(part, base.sequence), made, verified=False)
            kept = folder / "kept" / "x.shelf"
            archive.load(base, kept, verified=False)
            if (problem := verify_copy(kept)) is not None:
                report.faults.append(f"{base.name.name} is damaged: {problem}")
            elif digest_of(made) != digest_of(kept):
                report.faults.append(f"{base.name.name} is not what the entries before it lead to.")
            report.compared += 1
        except ObjectMissing:
            continue  # removed or merged meanwhile, as it may be in an archive that is in use
        except (NotReachable, Damaged) as error:
            report.faults.append(str(error))
        finally:
            for each in ("made", "kept"):
                shutil.rmtree(folder / each, ignore_errors=True)
        begin = base
