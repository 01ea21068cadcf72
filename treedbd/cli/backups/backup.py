"""`treedb backup`: a copy of all databases, each at one exact moment, while the daemon runs.

The moments of all databases are opened first, one after the other, then their files are copied.
Each copy is read back and checked, and the manifest is written last: a folder without one is not a
backup. With `--keep` backups are numbered; the oldest are removed once a new one has everything.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import os
import pathlib
import shutil
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Collection, Iterator
from typing import Final

import attrs

from treedbd.cli.backups.manifest import MANIFEST, Manifest, SavedFile
from treedbd.cli.exit import DONE, CommandFailed, Status, counted, make_printable, print_line, warn
from treedbd.cli.options import add_settings_options, number_from, read_stored_settings
from treedbd.cli.progress import ProgressReport
from treedbd.config.settings import Settings
from treedbd.database.data_directory import BACKUP_NOTE, DirectoryEntry, walk
from treedbd.files import (
    copy_private,
    create_directory,
    make_directory,
    sync_directory,
    write_atomically,
)
from treedbd.store.engine import CannotOpenStore, DiskFull, StoreFailed
from treedbd.store.lock import DirectoryLock
from treedbd.store.sqlite.copy import Moment, Progress, hash_file, verify_copy
from treedbd.store.sqlite.engine import SqliteEngine

SKIPPED: Final = 3
"""The exit status if a database could not be saved, and all others were."""
_DIGITS: Final = 4
_UNFINISHED: Final = ".unfinished"


def add_options(parser: ArgumentParser, _: str) -> None:
    """Add the options of the command to its parser."""
    parser.add_argument(
        "folder", metavar="DIR", type=pathlib.Path, help="an empty or new folder for the backup"
    )
    parser.add_argument(
        "--keep",
        metavar="N",
        type=number_from(1, 9999),
        help="make a numbered backup in DIR, and keep the newest N",
    )
    parser.add_argument("--quiet", action="store_true", help="print errors only")
    add_settings_options(parser)
    parser.set_defaults(run=_backup)


def _backup(arguments: Namespace) -> Status:
    settings = read_stored_settings(arguments, "saved")
    folder, keep = arguments.folder, arguments.keep
    if folder.resolve().is_relative_to(settings.data.resolve()):
        raise CommandFailed(f"{folder} is in the data directory: choose another folder.")
    try:
        if keep is None:
            _require_empty(folder)
            saved = _save(settings.data, settings.projects, folder, quiet=arguments.quiet)
        else:
            with _alone(folder):
                folder, saved = _save_numbered(settings, folder, quiet=arguments.quiet)
                if not saved.skipped:  # else an older one may be all that is left of a database
                    _remove_old(arguments.folder, keep)
    except OSError as error:
        raise CommandFailed(f"The backup failed ({error.strerror}: {error.filename}).") from None
    except (CannotOpenStore, StoreFailed) as error:
        raise CommandFailed(str(error)) from None
    except DiskFull:
        raise CommandFailed(f"The backup failed: there is no space left in {folder}.") from None
    for sentence in saved.skipped:
        warn(sentence)
    if not saved.skipped:
        _note(settings.data, saved)
    if not arguments.quiet:
        _report(folder, saved)
    return SKIPPED if saved.skipped else DONE


def _note(data: pathlib.Path, saved: Manifest) -> None:
    """Leave a note in the data directory that everything in it is saved, for metrics."""
    try:
        write_atomically(data / BACKUP_NOTE, f"{saved.time}\n".encode())
    except OSError as error:
        warn(
            f"The backup is complete, but not noted in {data} ({error.strerror}): the metric of "
            "the last backup does not show it."
        )


def _report(folder: pathlib.Path, saved: Manifest) -> None:
    size = sum(each.size for each in saved.files)
    files = counted(len(saved.files), "file")
    print_line(make_printable(f"{folder}: {files}, {size:,} bytes, verified."))


def _require_empty(folder: pathlib.Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CommandFailed(f"{folder} is not an empty folder: choose another, or use --keep.")


@contextlib.contextmanager
def _alone(folder: pathlib.Path) -> Iterator[None]:
    """Keep other backups out of a folder of numbered ones, which is created."""
    create_directory(folder)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise CommandFailed(f"Another backup into {folder} is under way: wait for it.") from None
    finally:
        os.close(descriptor)


def _save_numbered(
    settings: Settings, folder: pathlib.Path, *, quiet: bool
) -> tuple[pathlib.Path, Manifest]:
    """Make the next numbered backup; what an earlier attempt has left is removed."""
    for left in folder.glob(f"*{_UNFINISHED}"):
        shutil.rmtree(left)
    number = max((int(each.name) for each in numbered(folder)), default=0) + 1
    target = folder / f"{number:0{_DIGITS}}"
    work = target.with_name(target.name + _UNFINISHED)
    saved = _save(settings.data, settings.projects, work, quiet=quiet)
    work.rename(target)
    sync_directory(folder)
    return target, saved


def numbered(folder: pathlib.Path) -> list[pathlib.Path]:
    """Return the complete numbered backups in a folder, oldest first."""
    found = [
        each
        for each in folder.iterdir()
        if each.name.isascii() and each.name.isdecimal() and (each / MANIFEST).is_file()
    ]
    return sorted(found, key=lambda each: int(each.name))


def _remove_old(folder: pathlib.Path, keep: int) -> None:
    for old in numbered(folder)[:-keep]:
        (old / MANIFEST).unlink()  # first: what is left of it is no backup any more
        sync_directory(old)
        shutil.rmtree(old)


class _Count:
    """Counts the bytes that have been copied."""

    def __init__(self, report: ProgressReport) -> None:
        self._report = report
        self._bytes = 0

    def add(self, count: int) -> None:
        self._bytes += count
        self._report.advance_to(self._bytes)


@attrs.frozen(eq=False)
class _Source:
    """A file to be saved; `moment` is None for rules."""

    entry: DirectoryEntry
    moment: Moment | None

    @property
    def path(self) -> pathlib.PurePosixPath:
        return pathlib.PurePosixPath(self.entry.project, self.entry.file.name)


def _save(
    data: pathlib.Path, projects: Collection[str], folder: pathlib.Path, *, quiet: bool
) -> Manifest:
    """Save all files of a data directory, and return the manifest, which has been written.

    Leaves nothing in the folder if it fails, also because no database can be saved.
    """
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    skipped: list[str] = []
    saved: list[SavedFile] = []
    with contextlib.ExitStack() as closing:
        closing.enter_context(_whole_or_nothing(folder))
        with _unserved(data):
            sources = list(_open(data, projects, skipped, closing))
        size = sum(each.moment.size for each in sources if each.moment is not None)
        progress = ProgressReport("backup", size, is_quiet=quiet or not sys.stderr.isatty())
        closing.callback(progress.stop)
        done = _Count(progress)
        for project in {(folder / each.path).parent for each in sources}:
            make_directory(project)
        for source in sources:
            target = folder / source.path
            problem = _copy(source, target, done.add)
            if problem is None:
                saved.append(_describe(source, target))
            else:
                target.unlink(missing_ok=True)
                skipped.append(f"{source.path} is not saved: {problem}")
        if skipped and all(each.sequence is None for each in saved):
            raise CommandFailed("No database could be saved.", *map(make_printable, skipped))
    for project in {(folder / each.path).parent for each in sources}:
        sync_directory(project)
    manifest = Manifest(now, tuple(saved), tuple(skipped))
    manifest.write(folder)
    return manifest


@contextlib.contextmanager
def _whole_or_nothing(folder: pathlib.Path) -> Iterator[None]:
    """Make a folder, and remove what has been put into it if it is not completed."""
    was_there = folder.exists()
    create_directory(folder)
    try:
        yield
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        if was_there:
            create_directory(folder)
        raise


@contextlib.contextmanager
def _unserved(data: pathlib.Path) -> Iterator[None]:
    """Bring the files of a data directory that no daemon serves into a state that can be read.

    No daemon can start until the context is left.
    """
    try:
        lock = DirectoryLock(data)
    except CannotOpenStore:
        yield  # a daemon serves it
        return
    try:
        for entry in walk(data, ()):
            if entry.is_shelf:
                with contextlib.suppress(CannotOpenStore, OSError):
                    SqliteEngine.open(entry.file, lock=lock).close()
        yield
    finally:
        lock.release()


def _open(
    data: pathlib.Path, projects: Collection[str], skipped: list[str], closing: contextlib.ExitStack
) -> Iterator[_Source]:
    for entry in walk(data, projects):
        if entry.error is not None:
            skipped.append(str(entry.error))
        elif not entry.is_shelf:
            yield _Source(entry, None)
        else:
            try:
                yield _Source(entry, closing.enter_context(contextlib.closing(Moment(entry.file))))
            except (CannotOpenStore, StoreFailed) as error:
                skipped.append(f"{entry.file} is not saved: {error}")


def _copy(source: _Source, target: pathlib.Path, progress: Progress) -> str | None:
    """Copy one file; return why it is not saved, None if it is."""
    if source.moment is None:
        copy_private(source.entry.file, target)
        return None
    try:
        source.moment.copy(target, progress)
    except StoreFailed as error:
        return str(error)
    source.moment.close()  # so that the log of the daemon can be emptied
    return verify_copy(target)


def _describe(source: _Source, target: pathlib.Path) -> SavedFile:
    size, digest = target.stat().st_size, hash_file(target)
    if source.moment is None:
        return SavedFile(str(source.path), size, digest)
    position = source.moment.position
    return SavedFile(str(source.path), size, digest, position.sequence, position.op_id.hex())
