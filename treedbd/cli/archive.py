"""`treedb archive`, and what `restore --to` and `backup verify` do with an archive.

`ls` lists the databases of an archive, the moments that can be restored, and why others cannot;
`key` makes a key file. `restore --to WHEN SOURCE DIR` makes a data directory as of a moment: like
any restore in a folder beside it, which is put in its place when all of it is there and was read
back. `verify` reads every object, restores the newest moment of each database into nothing, and
compares what the entries after a base lead to with the next base.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import math
import os
import pathlib
import re
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import orjson

from treedbd.archive import segments
from treedbd.archive.index import Archive, Stretch
from treedbd.archive.ownership import adopt
from treedbd.archive.places import (
    MARKER,
    Place,
    PlaceFailed,
    open_place,
    read_marker,
)
from treedbd.archive.restoring import (
    Goal,
    NotReachable,
    Restoration,
    Restored,
    ToLatest,
    ToSequence,
    ToTime,
    print_time,
)
from treedbd.archive.sealing import Damaged, WrongKey, make_key, read_key
from treedbd.archive.verification import find_faults
from treedbd.cli.backup import SKIPPED, add_archive_key_option, in_work_folder, reason_of
from treedbd.cli.exit import (
    DONE,
    CommandFailed,
    Status,
    counted,
    format_bytes,
    make_printable,
    print_line,
    warn,
)
from treedbd.cli.loading import importing
from treedbd.cli.loading.transfer import ProgressReport
from treedbd.cli.options import add_flag, add_settings_options, read_settings
from treedbd.files import open_private, sync_directory
from treedbd.names import NAME_PATTERN
from treedbd.store.engine import CannotOpenStore, DiskFull, StoreFailed

BUCKET: Final = "s3://"
_DATABASE: Final = re.compile(rf"{NAME_PATTERN}/{NAME_PATTERN}", re.ASCII)
_AGO: Final = re.compile(r"(\d{1,9}) ?(s|min|h|d) ago", re.ASCII)
_SECONDS: Final = {"s": 1, "min": 60, "h": 3600, "d": 86_400}
_NUMBER: Final = re.compile(r"\d{1,18}", re.ASCII)
_WHEN: Final = (
    "must be latest, a time with its zone as in 2026-11-29T08:30:00Z, a number of a write, or a "
    'time ago as in "10min ago"'
)
_CLOCKS_DIFFER_S: Final = 86_400.0
"""A time that is later by more is not that of a clock which is ahead."""
_NO_SOURCE: Final = "Name the archive, or the configuration that has one ([archive] to)."


def parse_when(text: str, now: Callable[[], float] = time.time) -> Goal:
    """Parse the moment of a command line; raise ArgumentTypeError."""
    if text == "latest":
        return ToLatest()
    if _NUMBER.fullmatch(text):
        return ToSequence(int(text))
    if found := _AGO.fullmatch(text):
        return ToTime(int((now() - int(found[1]) * _SECONDS[found[2]]) * 1000))
    try:
        when = datetime.datetime.fromisoformat(text)
        if when.tzinfo is None:
            raise argparse.ArgumentTypeError(
                "must have a zone: Z for UTC, or an offset such as +02:00"
            )
        return ToTime(math.floor(when.timestamp() * 1000))
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(_WHEN) from None


def parse_database(text: str) -> str:
    """Parse `project/name`, the name of a database; raise ArgumentTypeError."""
    if not _DATABASE.fullmatch(text):
        raise argparse.ArgumentTypeError("must be PROJECT/NAME, as in shop/default")
    return text


def add_options(parser: ArgumentParser, _: str) -> None:
    """Add the subcommands to the parser of the command."""
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    listing = commands.add_parser("ls", help="list databases, and the moments to restore")
    listing.add_argument(
        "source",
        metavar="SOURCE",
        nargs="?",
        help="a folder, or s3://bucket/prefix (default: to of [archive] in the configuration)",
    )
    add_flag(listing, "--json", "print one JSON object")
    add_archive_key_option(listing)
    add_settings_options(listing)
    listing.set_defaults(run=_list, optional="source")
    key = commands.add_parser("key", help="make a key file, with which an archive is sealed")
    key.add_argument("file", metavar="FILE", type=pathlib.Path, help="a new file")
    key.set_defaults(run=_make_key)
    adopting = commands.add_parser(
        "adopt", help="let this data directory go on with the archive of another one"
    )
    add_settings_options(adopting)
    adopting.set_defaults(run=_adopt)


class CountedPlace:
    """A place whose bytes are counted as they are read, by `advance`."""

    def __init__(self, place: Place, advance: Callable[[int], None]) -> None:
        self.text = place.text
        self.advance = advance
        self.put = place.put
        self.list = place.list
        self.delete = place.delete
        self.is_empty = place.is_empty
        self.clean = place.clean
        self._place = place

    def get(self, name: str) -> Iterator[bytes]:
        """Yield the content of an object in pieces."""
        for piece in self._place.get(name):
            yield piece
            self.advance(len(piece))


def is_archive(source: str) -> bool:
    """Return whether a SOURCE names an archive, and not a backup."""
    return "://" in source or (pathlib.Path(source) / MARKER).is_file()


def open_archive(
    arguments: Namespace, source: str, advance: Callable[[int], None] = lambda _: None
) -> Archive:
    """Return the archive that a command line names; raise `CommandFailed`."""
    configured = read_settings(arguments).archive
    file = arguments.key or configured.key_file
    with reported_failures("The archive cannot be used"):
        try:
            key = None if file is None else read_key(file)
        except ValueError as error:
            raise CommandFailed(str(error)) from None
        except OSError as error:
            reason = error.strerror
            raise CommandFailed(f"The key file {file} cannot be read ({reason}).") from None
        place = open_place(
            source,
            endpoint=configured.endpoint,
            region=configured.region,
        )
        if read_marker(place) is None:
            raise CommandFailed(f"{source} is not an archive: it has no {MARKER}.")
        return Archive(CountedPlace(place, advance), key)


@contextlib.contextmanager
def reported_failures(what: str) -> Iterator[None]:
    """In a `with` block, raise the errors of archives and stores as `CommandFailed`."""
    try:
        yield
    except (NotReachable, Damaged, WrongKey, PlaceFailed, CannotOpenStore, StoreFailed) as error:
        raise CommandFailed(make_printable(str(error))) from None
    except DiskFull:
        raise CommandFailed(f"{what}: the disk is full.") from None
    except OSError as error:
        raise CommandFailed(f"{what} ({reason_of(error)}).") from None


def _list(arguments: Namespace) -> Status:
    source = arguments.source
    if source is None:
        source = read_settings(arguments).archive.to
    if not source:
        raise CommandFailed(_NO_SOURCE)
    archive = open_archive(arguments, str(source))
    with reported_failures("The archive cannot be read"):
        found = _describe(archive, str(source))
    if arguments.json:
        print_line(orjson.dumps(found).decode())
    else:
        for line in _lines(found):
            print_line(make_printable(line))
    for name, fault in archive.faults.items():
        warn(f"{name} cannot be read: {fault}")
    return DONE


def _describe(archive: Archive, source: str) -> dict[str, Any]:
    """Return what an archive holds, as JSON."""
    objects = list(archive.place.list(""))
    return {
        "source": source,
        "bytes": sum(each.size for each in objects),
        "segments": len(archive.segments()),
        "databases": [_describe_database(archive, db) for db in archive.databases()],
        "faults": [{"object": name, "reason": reason} for name, reason in archive.faults.items()],
    }


def _describe_database(archive: Archive, db: str) -> dict[str, Any]:
    spans = archive.spans(db)
    gaps = [
        {"after": gap.after, "reason": gap.reason, "time": print_time(gap.at_ms)}
        for gap in archive.gaps(db)
        if not any(each.first <= gap.after < each.through for each in spans)
    ]
    return {
        "name": db,
        "spans": [_describe_stretch(each) for each in spans],
        "gaps": gaps,
        "deleted": [print_time(each.at_ms) for each in archive.deletions(db)],
    }


def _describe_stretch(stretch: Stretch) -> dict[str, Any]:
    return {
        "first": stretch.first,
        "last": stretch.through,
        "from": print_time(stretch.first_ms),
        "to": print_time(stretch.last_ms),
        "bases": [
            {
                "number": base.sequence,
                "time": print_time(base.header.time_ms),
                "bytes": base.size,
                "object": base.name.name,
            }
            for base in stretch.bases
        ],
    }


def _lines(found: dict[str, Any]) -> Iterator[str]:
    count = counted(len(found["databases"]), "database")
    files = counted(found["segments"], "segment")
    yield f"{found['source']}: {count}, {files}, {format_bytes(found['bytes']).strip()}"
    for database in found["databases"]:
        yield database["name"]
        for span in database["spans"]:
            numbers = f"{span['first']:,} to {span['last']:,}"
            count = counted(len(span["bases"]), "base")
            yield f"    {span['from']} to {span['to']}  numbers {numbers}, {count}"
        for gap in database["gaps"]:
            yield f"    gap after number {gap['after']:,}, noted {gap['time']}: {gap['reason']}"
        for when in database["deleted"]:
            yield f"    deleted {when}"
        if not database["spans"]:
            yield "    nothing can be restored: it has no base"


def _make_key(arguments: Namespace) -> Status:
    file = arguments.file
    with reported_failures(f"{file} cannot be written"):
        try:
            descriptor = open_private(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        except FileExistsError:
            raise CommandFailed(f"{file} is there already: name a new file.") from None
        with open(descriptor, "w") as opened:
            opened.write(make_key())
            opened.flush()
            os.fsync(opened.fileno())
        sync_directory(file.absolute().parent)
    print_line(
        make_printable(f"{file}: keep a copy elsewhere; without it nothing can be restored.")
    )
    return DONE


def _adopt(arguments: Namespace) -> Status:
    settings = read_settings(arguments)
    archive = settings.archive
    if not archive.to:
        raise CommandFailed(_NO_SOURCE)
    if not settings.data.is_dir():
        raise CommandFailed(f"There is no data directory {settings.data}: restore it first.")
    with reported_failures("The archive cannot be adopted"):
        place = open_place(archive.to, endpoint=archive.endpoint, region=archive.region)
        if read_marker(place) is None:
            raise CommandFailed(f"{archive.to} is not an archive: it has no {MARKER}.")
        adopt(place, settings.data, archive.to, time.time_ns() // 1_000_000)
    print_line(make_printable(f"{settings.data} goes on with the archive {archive.to}."))
    return DONE


def restore_moment(arguments: Namespace) -> Status:
    """Make a data directory as of a moment of an archive: `restore --to`."""
    source: str = arguments.source
    settings = read_settings(arguments)
    if settings.is_cluster and not arguments.target:
        raise CommandFailed(
            "The data of this configuration is in PostgreSQL: name a directory to restore into, "
            "and bring it there by treedb move."
        )
    data = pathlib.Path(arguments.target or settings.data).absolute()
    if BUCKET not in source and data.resolve().is_relative_to(pathlib.Path(source).resolve()):
        raise CommandFailed(f"{data} is in the archive: choose another directory.")
    progress = ProgressReport("restore", None, is_quiet=not sys.stderr.isatty())
    archive = open_archive(arguments, source, progress.advance)
    try:
        with reported_failures("The restore failed"), importing.few_collections():
            restoration = Restoration(archive)
            databases = choose_databases(restoration, arguments)
            with in_work_folder(data) as work:
                choices = list(restoration.find_all(arguments.to, databases))
                progress.set_total(restoration.size_of(choices))
                progress.advance_to(0)
                restored, rules = restoration.restore_all(choices, arguments.to, work, databases)
    finally:
        progress.stop()
    print_line(make_printable(f"{data}: {counted(len(restored), 'database')} of {source}."))
    for each in restored:
        print_line(describe_restored(each))
    for each_rules in rules:
        print_line(f"{each_rules.project}: rules in force since {print_time(each_rules.at_ms)}")
    are_all = not arguments.database and not isinstance(arguments.to, ToSequence)
    return _warn_of(archive, arguments.to, restored, are_all=are_all)


def _warn_of(
    archive: Archive, goal: Goal, restored: Sequence[Restored], *, are_all: bool
) -> Status:
    if isinstance(goal, ToTime) and goal.ms > 1000 * (time.time() + _CLOCKS_DIFFER_S):
        warn("The time is later than now: the last moment of the archive is restored.")
    warnings = [each.warning for each in restored if each.warning is not None]
    for sentence in warnings:
        warn(sentence)
    if archive.faults:
        count = counted(len(archive.faults), "object")
        warn(f"Of the archive {count} cannot be read: run treedb backup verify.")
    lost = [name for name in archive.faults if segments.parse_name(name) is not None]
    for first, last in archive.holes() if are_all else ():
        lost.append(f"{first}-{last}")
        warn(f"Segments {first} to {last} of the archive are missing.")
    if lost and are_all:
        warn("A database that has entries in these objects only is not restored.")
    return SKIPPED if warnings or (lost and are_all) else DONE


def describe_restored(restored: Restored) -> str:
    """Return a line about a database that was restored."""
    when = "nothing was ever written"
    if restored.time_ms is not None:
        when = f"written {print_time(restored.time_ms)}"
    return make_printable(f"{restored.db}: number {restored.sequence}, {when}")


def choose_databases(restoration: Restoration, arguments: Namespace) -> Sequence[str] | None:
    """Return the databases that a command line names, None for all; raise `CommandFailed`."""
    named: list[str] | None = arguments.database
    found = restoration.databases()
    if named is None:
        if isinstance(arguments.to, ToSequence) and len(found) > 1:
            raise CommandFailed(
                "A number is that of a write of one database: name it by --database "
                f"({', '.join(found[:10])})."
            )
        return None
    for db in named:
        if db not in found:
            raise CommandFailed(f"The archive has no database {db}.")
    if isinstance(arguments.to, ToSequence) and len(set(named)) > 1:
        raise CommandFailed("A number is that of a write of one database: name one.")
    return list(dict.fromkeys(named))


def verify_archive(arguments: Namespace, source: str) -> Status:
    """Verify an archive: `backup verify`; raise `CommandFailed` with a line for each fault."""
    progress = ProgressReport("verify", None, is_quiet=not sys.stderr.isatty())
    archive = open_archive(arguments, source, progress.advance)
    try:
        with (
            reported_failures("The archive cannot be verified"),
            importing.few_collections(),
            tempfile.TemporaryDirectory(prefix="treedb-verify-") as folder,
        ):
            report = find_faults(archive, pathlib.Path(folder))
    finally:
        progress.stop()
    for sentence in report.faults:
        warn(sentence)
    if report.faults:
        raise CommandFailed(
            f"{source} has {counted(len(report.faults), 'fault')}: what depends on them cannot be "
            "restored."
        )
    objects = counted(report.objects, "object")
    print_line(
        make_printable(f"{source}: {objects} read, {report.compared} bases compared; verified.")
    )
    for each in report.restored:
        print_line(describe_restored(each))
    return _warn_of(archive, ToLatest(), report.restored, are_all=False)
