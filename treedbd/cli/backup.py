"""`treedb backup` and `treedb restore`: copies of all databases, and a data directory from one.

What both do with an archive (`restore --to`, `backup verify`) is in `archive` and `path_restore`.

*Backup*: each database is copied at one exact moment, while the daemon runs. The moments of all
databases are opened first, one after the other, then their files are copied. Each copy is read back
and checked, and the manifest is written last: a folder without one is not a backup. With `--keep`
backups are numbered; the oldest are removed once a new one is complete.

*Restore*: all of a backup or nothing. The files are copied into a folder beside the data directory,
checked against the manifest, and receive marks with the end of their history; then the folder
replaces the data directory. So a restore that is broken off leaves nothing that a daemon serves.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import pathlib
import re
import shutil
import signal
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Collection, Iterable, Iterator, Sequence
from importlib import import_module
from typing import Any, Final, NoReturn

import attrs
import orjson
from attrs.validators import deep_iterable, ge, instance_of, le, matches_re, optional

from treedbd import __version__
from treedbd.cli.exit import DONE, CommandFailed, Status, counted, make_printable, print_line, warn
from treedbd.cli.loading.transfer import ProgressReport
from treedbd.cli.options import (
    SILENCE_S,
    add_flag,
    add_network_options,
    add_settings_options,
    number_from,
    read_settings,
    read_stored_settings,
)
from treedbd.config.settings import Settings
from treedbd.database.backup_folder import (
    FAILED,
    MANIFEST,
    UNFINISHED,
    BackupUnderWay,
    find_complete,
    locked,
    name_at,
    remove_left,
)
from treedbd.database.data_directory import (
    BACKUP_NOTE,
    RULES_FILE,
    SHELF,
    DirectoryEntry,
    list_locks,
    walk,
)
from treedbd.files import (
    FULL_ERRNOS,
    copy_private,
    create_directory,
    make_directory,
    sync_directory,
    write_atomically,
)
from treedbd.names import DatabaseName
from treedbd.store.directory_lock import LOCK_FILE, DirectoryLock
from treedbd.store.engine import CannotOpenStore, DiskFull, StoreFailed
from treedbd.store.sqlite.copy import Moment, Progress, hash_file, verify_copy
from treedbd.store.sqlite.engine import SqliteEngine
from treedbd.store.sqlite.file import beside
from treedbd.store.sqlite.history import MARK, Mark, MarkFile

FORMAT: Final = 1

_MAX_SEQUENCE: Final = 2**63 - 1
_NAME: Final = re.compile(r"(?!\.)[^/\x00-\x1f\x7f]{1,255}")
"""A name of a file or directory: neither hidden, nor `..`, nor a path."""
_OWN_FILES: Final = "treedb."
"""The prefix of the files of a daemon in a data directory."""

_LOW_PRIORITY: Final = 10
"""How much nicer the process of a daemon's backup is than the daemon."""
SKIPPED: Final = 3
"""The exit status if a database could not be saved and all others were."""
_DIGITS: Final = 4

VERIFY: Final = "verify"
"""The word that is given in place of a folder."""
_BACKUP_DESCRIPTION: Final = (
    "Save all databases into DIR, while the daemon runs. treedb backup verify SOURCE verifies a "
    "backup, or numbered ones, or an archive: all of it is read, and restored into nothing."
)
_RESTORE_DESCRIPTION: Final = (
    "Make a data directory of a backup, or with --to of an archive, as of any moment. With --path "
    "what was at one path then is brought back into a running database."
)
WORK: Final = ".restoring"
"""The suffix of the folder in which a data directory is made."""


class _WrongName(Exception):
    """A path that no file of a backup can have."""


def _check_path(saved: SavedFile, _: object, path: str) -> None:
    project, _, name = path.partition("/")
    is_rules = name == RULES_FILE and saved.sequence is None
    is_database = name.endswith(SHELF) and name != SHELF and saved.sequence is not None
    is_safe = bool(_NAME.fullmatch(project) and _NAME.fullmatch(name))
    is_safe = is_safe and not project.startswith(_OWN_FILES)
    if not (is_safe and (is_rules or is_database)):
        raise _WrongName(make_printable(path[:100]))


@attrs.frozen
class SavedFile:
    """One file of a backup, whose `path` is `<project>/<file>`.

    `sequence` and `op_id` (hexadecimal digits) are those of a database, None for rules.
    """

    path: str = attrs.field(validator=[instance_of(str), _check_path])
    size: int = attrs.field(validator=[instance_of(int), ge(0)])
    sha256: str = attrs.field(validator=matches_re("[0-9a-f]{64}"))
    sequence: int | None = attrs.field(
        default=None, validator=optional([instance_of(int), ge(0), le(_MAX_SEQUENCE)])
    )
    op_id: str | None = attrs.field(default=None, validator=optional(matches_re("([0-9a-f]{2})*")))


@attrs.frozen
class Manifest:
    """A complete backup: its time (ISO 8601), and the sizes and digests of its files."""

    time: str = attrs.field(validator=instance_of(str))
    files: tuple[SavedFile, ...] = attrs.field()
    skipped: tuple[str, ...] = attrs.field(default=(), validator=deep_iterable(instance_of(str)))

    @files.validator
    def _check_files(self, _: object, files: tuple[SavedFile, ...]) -> None:
        if len({each.path for each in files}) < len(files):
            raise ValueError("a file is named twice")

    def write(self, folder: pathlib.Path) -> None:
        """Write it durably; from then on the backup counts as complete. Raises OSError."""
        content = {"format": FORMAT, "treedb": __version__, **attrs.asdict(self)}
        write_atomically(folder / MANIFEST, orjson.dumps(content, option=orjson.OPT_INDENT_2))


def read_manifest(folder: pathlib.Path) -> Manifest:
    """Return the manifest of a backup, which may be any file; raise `CommandFailed`.

    All paths in it lead to files in its folder.
    """
    file = folder / MANIFEST
    try:
        if not file.is_file():
            raise CommandFailed(f"{folder} is not a complete backup: it has no {MANIFEST}.")
        content: Any = orjson.loads(file.read_bytes())
        if content["format"] != FORMAT:
            raise CommandFailed(f"{file} is of a newer version of treedb: use that version.")
        files = tuple(SavedFile(**each) for each in content["files"])
        return Manifest(content["time"], files, tuple(content.get("skipped", ())))
    except OSError as error:
        raise CommandFailed(f"{file} cannot be read ({error.strerror}).") from None
    except _WrongName as error:
        raise CommandFailed(
            f"{file} names a file that no backup has ({error}): use another backup."
        ) from None
    except (ValueError, LookupError, TypeError, AttributeError):
        raise CommandFailed(f"{file} is damaged: use another backup.") from None


def add_options(parser: ArgumentParser, _: str) -> None:
    """Add the options of the command to its parser."""
    parser.description = _BACKUP_DESCRIPTION
    parser.add_argument(
        "folder", metavar="DIR", type=pathlib.Path, help="an empty or new folder for the backup"
    )
    parser.add_argument(
        "source",
        metavar="SOURCE",
        nargs="?",
        help="after the word verify in place of DIR: what to verify, a folder or s3://bucket/prefix",
    )
    parser.add_argument(
        "--keep",
        metavar="N",
        type=number_from(1, 9999),
        help="make a numbered backup in DIR, and keep the newest N",
    )
    add_flag(parser, "--quiet", "print errors only")
    add_archive_key_option(parser)
    add_settings_options(parser)
    parser.set_defaults(run=_back_up_or_verify, optional="source", refuse=parser.error)


def add_archive_key_option(parser: ArgumentParser) -> None:
    """Add the option that names the key file of an archive."""
    parser.add_argument(
        "--key",
        metavar="FILE",
        type=pathlib.Path,
        help="the key file of a sealed archive (default: key_file of [archive])",
    )


def _back_up_or_verify(arguments: Namespace) -> Status:
    if str(arguments.folder) == VERIFY:
        if arguments.source is None:
            arguments.refuse(f"verify needs a SOURCE; a folder of that name is ./{VERIFY}")
        return _verify(arguments)
    if arguments.source is not None or arguments.key is not None:
        arguments.refuse("a SOURCE and --key are for verify")
    return _backup(arguments)


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
                if not saved.skipped:  # else an older backup may have the only copy of a database
                    _remove_old(arguments.folder, keep)
    except OSError as error:
        raise CommandFailed(f"The backup failed ({reason_of(error)}).") from None
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


def _verify(arguments: Namespace) -> Status:
    """Verify a backup, or an archive."""
    archive: Any = import_module("treedbd.cli.archive")
    if archive.is_archive(arguments.source):
        status: Status = archive.verify_archive(arguments, arguments.source)
        return status
    folder = pathlib.Path(arguments.source)
    if not folder.is_dir():
        raise CommandFailed(f"There is no folder {folder}.")
    backups = [folder]
    if not (folder / MANIFEST).is_file():
        backups = numbered(folder) or find_complete(folder)
    if not backups:
        raise CommandFailed(f"{folder} is neither a backup nor an archive.")
    faults = [fault for each in backups if (fault := _find_fault(each)) is not None]
    for sentence in faults:
        warn(sentence)
    if faults:
        raise CommandFailed(f"{folder} has {counted(len(faults), 'fault')}.")
    print_line(make_printable(f"{folder}: {counted(len(backups), 'backup')}, verified."))
    return DONE


def _find_fault(folder: pathlib.Path) -> str | None:
    """Restore a backup into nothing; return a sentence about the first thing that is wrong."""
    try:
        manifest = read_manifest(folder)
        for saved in manifest.files:
            with tempfile.TemporaryDirectory(prefix="treedb-verify-") as work:
                _restore_file(folder, saved, pathlib.Path(work))
    except CommandFailed as error:
        return str(error)
    except OSError as error:
        return f"{folder} cannot be verified ({reason_of(error)})."
    return None


def _note(data: pathlib.Path, saved: Manifest) -> None:
    """Write the time of a complete backup into the data directory, for metrics."""
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
    """Create a folder of numbered backups, and hold its lock, so that no other writes there."""
    try:
        with locked(folder):
            yield
    except BackupUnderWay:
        raise CommandFailed(f"Another backup into {folder} is under way: wait for it.") from None


def _save_numbered(
    settings: Settings, folder: pathlib.Path, *, quiet: bool
) -> tuple[pathlib.Path, Manifest]:
    """Make the next numbered backup; remove unfinished ones."""
    remove_left(folder)
    number = max((int(each.name) for each in numbered(folder)), default=0) + 1
    target = folder / f"{number:0{_DIGITS}}"
    return target, _save_as(settings.data, settings.projects, target, quiet=quiet)


def _save_as(
    data: pathlib.Path,
    projects: Collection[str],
    target: pathlib.Path,
    *,
    quiet: bool,
    is_served: bool = False,
) -> Manifest:
    """Make a backup, which has its name when it is complete."""
    work = target.with_name(target.name + UNFINISHED)
    saved = _save(data, projects, work, quiet=quiet, is_served=is_served)
    work.rename(target)
    sync_directory(target.parent)
    return saved


def reason_of(error: OSError) -> str:
    """Return why an operation on a file has failed, with its path."""
    return str(error.strerror) + (f": {error.filename}" if error.filename else "")


def numbered(folder: pathlib.Path) -> list[pathlib.Path]:
    """Return the complete numbered backups in a folder, oldest first."""
    found = [
        each
        for each in folder.iterdir()
        if each.name.isascii() and each.name.isdecimal() and (each / MANIFEST).is_file()
    ]
    return sorted(found, key=lambda each: int(each.name))


def _remove_old(folder: pathlib.Path, keep: int) -> None:
    _remove_each(numbered(folder)[:-keep])


def _remove_each(backups: Iterable[pathlib.Path]) -> None:
    for old in backups:
        (old / MANIFEST).unlink()  # first, since a folder without it is not a backup
        sync_directory(old)
        shutil.rmtree(old)


@attrs.frozen(eq=False)
class _Source:
    """A file to be saved; `moment` is None for rules."""

    entry: DirectoryEntry
    moment: Moment | None

    @property
    def path(self) -> pathlib.PurePosixPath:
        return pathlib.PurePosixPath(self.entry.project, self.entry.file.name)


def _save(
    data: pathlib.Path,
    projects: Collection[str],
    folder: pathlib.Path,
    *,
    quiet: bool,
    is_served: bool = False,
) -> Manifest:
    """Save all files of a data directory, write the manifest, and return it.

    Leaves nothing in the folder if it fails, or if no database can be saved. Unless the directory
    `is_served`, no daemon can start meanwhile.
    """
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    skipped: list[str] = []
    saved: list[SavedFile] = []
    with contextlib.ExitStack() as closing:
        closing.enter_context(_whole_or_nothing(folder))
        with contextlib.nullcontext() if is_served else _readable(data):
            sources = list(_open(data, projects, skipped, closing))
        size = sum(each.moment.size for each in sources if each.moment is not None)
        progress = ProgressReport("backup", size, is_quiet=quiet or not sys.stderr.isatty())
        closing.callback(progress.stop)
        for project in {(folder / each.path).parent for each in sources}:
            make_directory(project)
        for source in sources:
            target = folder / source.path
            problem = _copy(source, target, progress.advance)
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
    """Create a folder, and empty it if the block raises."""
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
def _readable(data: pathlib.Path) -> Iterator[None]:
    """Make the files of a data directory that no daemon serves readable.

    No daemon can start until the context ends.
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
    source.moment.close()  # so that the daemon can restart its log
    return verify_copy(target)


def _describe(source: _Source, target: pathlib.Path) -> SavedFile:
    size, digest = target.stat().st_size, hash_file(target)
    if source.moment is None:
        return SavedFile(str(source.path), size, digest)
    position = source.moment.position
    return SavedFile(
        path=str(source.path),
        size=size,
        sha256=digest,
        sequence=position.sequence,
        op_id=position.op_id.hex(),
    )


def take_for_daemon(
    data: pathlib.Path, folder: pathlib.Path, kept: int, projects: Collection[str]
) -> dict[str, Any]:
    """Make a backup whose name is its time; return what its daemon reports, without paths.

    With `problem`, which is `busy`, `full` or `failed`, nothing was saved; the reason is on
    standard error.
    """
    try:
        with locked(folder):
            remove_left(folder)
            target = folder / name_at(folder, datetime.datetime.now(datetime.UTC))
            try:
                return _take(data, target, kept, projects)
            except BaseException:
                with contextlib.suppress(OSError):
                    make_directory(target.with_name(target.name + FAILED))
                raise
    except BackupUnderWay:
        return {"problem": "busy"}
    except DiskFull as error:
        warn(str(error))
        return {"problem": "full"}
    except OSError as error:
        warn(f"The backup failed ({reason_of(error)}).")
        return {"problem": "full" if error.errno in FULL_ERRNOS else "failed"}
    except (CannotOpenStore, StoreFailed, CommandFailed) as error:
        warn(str(error))
        return {"problem": "failed"}


def _take(
    data: pathlib.Path, target: pathlib.Path, kept: int, projects: Collection[str]
) -> dict[str, Any]:
    saved = _save_as(data, projects, target, quiet=True, is_served=True)
    for sentence in saved.skipped:
        warn(sentence)
    if not saved.skipped:  # else an older backup may have the only copy of a database
        _remove_each(find_complete(target.parent)[:-kept])
        _note(data, saved)
    paths = {each.path for each in saved.files}
    found = [each for each in walk(data, projects) if each.file.name != RULES_FILE]
    skipped = {
        DatabaseName(each.project, each.database).label
        for each in found
        if f"{each.project}/{each.file.name}" not in paths
    }
    size = sum(each.size for each in saved.files)
    return {"name": target.name, "time": saved.time, "bytes": size, "skipped": sorted(skipped)}


def main(words: Sequence[str]) -> None:
    """Run the process of a daemon's backup (`web/backups`), and print its report."""
    os.nice(_LOW_PRIORITY)
    signal.signal(signal.SIGTERM, _end)
    data, folder, kept, *projects = words
    report = take_for_daemon(pathlib.Path(data), pathlib.Path(folder), int(kept), projects)
    print_line(orjson.dumps(report).decode())


def _end(*_: object) -> NoReturn:
    raise SystemExit(1)


def add_restore_options(parser: ArgumentParser, _: str) -> None:
    """Add the options of the command to its parser."""
    parser.description = _RESTORE_DESCRIPTION
    parser.add_argument(
        "source",
        metavar="SOURCE",
        help="the folder of a backup, or of numbered ones; with --to an archive, a folder or "
        "s3://bucket/prefix",
    )
    parser.add_argument(
        "target",
        metavar="TARGET",
        nargs="?",
        help="with --to the data directory to make (default: that of the configuration); with "
        "--path the URL of the database",
    )
    _add_moment_options(parser)
    add_archive_key_option(parser)
    _add_path_options(parser)
    add_settings_options(parser)
    parser.set_defaults(
        run=_restore, optional="target", refuse=parser.error, silence_s=SILENCE_S, timeout=None
    )


def _add_moment_options(parser: ArgumentParser) -> None:
    archive: Any = import_module("treedbd.cli.archive")
    parser.add_argument(
        "--to",
        metavar="WHEN",
        type=archive.parse_when,
        help='latest, a time such as 2026-11-29T08:30:00Z, "10min ago", or the number of a write',
    )
    parser.add_argument(
        "--database",
        metavar="PROJECT/NAME",
        action="append",
        type=archive.parse_database,
        help="restore this database only; may be given several times",
    )


def _add_path_options(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--path", metavar="PATH", help="bring back what is at this path of a running database"
    )
    add_flag(parser, "--dry-run", "with --path: show what would change, and write nothing")
    add_flag(parser, "--yes", "with --path: write without a question")
    add_flag(parser, "--json", "with --path: print what changes as JSON")
    add_network_options(parser)


def _restore(arguments: Namespace) -> Status:
    given = vars(arguments)
    for name in ("dry_run", "yes", "json"):
        if given[name] and arguments.path is None:
            arguments.refuse(f"--{name.replace('_', '-')} needs --path")
    for name in ("path", "database", "key", "target"):
        if given[name] is not None and arguments.to is None:
            what = "TARGET" if name == "target" else f"--{name}"
            arguments.refuse(f"{what} needs --to, and an archive as SOURCE")
    if arguments.to is None:
        return _restore_backup(arguments)
    module = "archive" if arguments.path is None else "path_restore"
    status: Status = import_module(f"treedbd.cli.{module}").restore_moment(arguments)
    return status


def _restore_backup(arguments: Namespace) -> Status:
    data = read_settings(arguments).data.absolute()
    archive: Any = import_module("treedbd.cli.archive")
    if archive.is_archive(arguments.source):
        raise CommandFailed(f"{arguments.source} is an archive: say which moment by --to.")
    try:
        folder = _choose(pathlib.Path(arguments.source))
        manifest = read_manifest(folder)
        if data.resolve().is_relative_to(folder.resolve()):
            raise CommandFailed(f"{data} is in the backup: choose another by --data.")
        with in_work_folder(data) as work:
            for saved in manifest.files:
                _restore_file(folder, saved, work)
    except OSError as error:
        raise CommandFailed(f"The restore failed ({reason_of(error)}).") from None
    except CannotOpenStore as error:
        raise CommandFailed(str(error)) from None
    _report_restored(folder, manifest, data)
    return DONE


@contextlib.contextmanager
def in_work_folder(data: pathlib.Path) -> Iterator[pathlib.Path]:
    """In a `with` block, make a data directory in the folder that it returns.

    At the end of the block that is put in the place of `data`, or nothing is left of it if the
    block raises. No other process can use either meanwhile. Raises `CommandFailed`,
    `CannotOpenStore` or OSError.
    """
    with contextlib.ExitStack() as locks:
        is_there = _require_free(data, locks)
        work = _make_work_folder(data, locks)
        try:
            yield work
            _put_in_place(work, data, is_there=is_there)
        except BaseException:
            shutil.rmtree(work, ignore_errors=True)
            raise


def _choose(folder: pathlib.Path) -> pathlib.Path:
    """Return the folder of a backup: of numbered ones the newest that has all databases.

    The newest of all, if none has.
    """
    if not folder.is_dir():
        raise CommandFailed(f"There is no folder {folder}.")
    if (folder / MANIFEST).is_file() or not (found := numbered(folder) or find_complete(folder)):
        return folder
    newest = found[-1]
    chosen = next((each for each in reversed(found) if not read_manifest(each).skipped), newest)
    if chosen != newest:
        warn(
            f"{newest} is newer, but lacks what could not be saved then, so {chosen} is restored. "
            "Name the folder of a backup to restore that one."
        )
    return chosen


def _require_free(data: pathlib.Path, locks: contextlib.ExitStack) -> bool:
    """Return whether the directory exists; lock it. Raises `CommandFailed` if it is not empty."""
    if not data.exists():
        return False
    if data.is_mount():
        raise CommandFailed(
            f"{data} is a mount point, which a restore cannot replace: name a directory in it, "
            "and set data to that."
        )
    lock = DirectoryLock(data)
    locks.callback(lock.release)
    if set(data.iterdir()) - {*list_locks(data), data / BACKUP_NOTE}:
        raise CommandFailed(f"{data} is not empty: move it away, or choose another by --data.")
    return True


def _make_work_folder(data: pathlib.Path, locks: contextlib.ExitStack) -> pathlib.Path:
    """Return an empty folder that no other restore uses."""
    work = data.with_name(data.name + WORK)
    lock = DirectoryLock(work)
    locks.callback(lock.release)
    for left in work.iterdir():  # from an attempt that was killed
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left)
        elif left.name != LOCK_FILE:
            left.unlink()
    return work


def _restore_file(folder: pathlib.Path, saved: SavedFile, work: pathlib.Path) -> None:
    source, target = folder / saved.path, work / saved.path
    create_directory(target.parent)
    try:
        copy_private(source, target)
    except FileNotFoundError:
        raise CommandFailed(f"{source} is missing: use another backup.") from None
    if target.stat().st_size != saved.size or hash_file(target) != saved.sha256:
        raise CommandFailed(f"{source} is not what was saved: use another backup.")
    if saved.sequence is not None:
        if (problem := verify_copy(target)) is not None:
            raise CommandFailed(f"{source} is damaged: {problem}")
        end = Mark(saved.sequence, bytes.fromhex(saved.op_id or ""), is_closed=True)
        with contextlib.closing(MarkFile(beside(target, MARK))) as mark:
            mark.write(end, sync=True)
    sync_directory(target.parent)


def _put_in_place(work: pathlib.Path, data: pathlib.Path, *, is_there: bool) -> None:
    sync_directory(work)
    if is_there:  # else the rename fails if a daemon was started meanwhile
        for file in (*list_locks(data), data / BACKUP_NOTE):
            file.unlink(missing_ok=True)
        data.rmdir()
    work.rename(data)
    sync_directory(data.parent)


def _report_restored(folder: pathlib.Path, manifest: Manifest, data: pathlib.Path) -> None:
    count = sum(each.sequence is not None for each in manifest.files)
    text = f"{data}: {counted(count, 'database')} of {manifest.time}, from {folder}."
    print_line(make_printable(text))
    for sentence in manifest.skipped:
        print_line(make_printable(f"Note: it lacks what could not be saved. {sentence}"))


if __name__ == "__main__":
    main(sys.argv[1:])
