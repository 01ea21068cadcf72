"""`treedb restore`: a data directory made of a backup, all of it or nothing.

The files are copied into a folder beside the data directory, checked against the manifest, and
given marks that say where their history goes on; then the folder takes the place of the data
directory. So a restore that is stopped in the middle leaves nothing that a daemon would serve.
"""

from __future__ import annotations

import contextlib
import pathlib
import shutil
from argparse import ArgumentParser, Namespace
from typing import Final

from treedbd.cli.backups.backup import numbered
from treedbd.cli.backups.manifest import MANIFEST, Manifest, SavedFile, read_manifest
from treedbd.cli.exit import DONE, CommandFailed, Status, counted, make_printable, print_line, warn
from treedbd.cli.options import add_settings_options, read_settings
from treedbd.database.data_directory import BACKUP_NOTE
from treedbd.files import copy_private, create_directory, sync_directory
from treedbd.store.engine import CannotOpenStore
from treedbd.store.lock import LOCK_FILE, DirectoryLock
from treedbd.store.sqlite.copy import hash_file, verify_copy
from treedbd.store.sqlite.file import beside
from treedbd.store.sqlite.history import MARK, Mark, MarkFile

WORK: Final = ".restoring"
"""What the name of the folder has in which a data directory is made."""


def add_options(parser: ArgumentParser, _: str) -> None:
    """Add the options of the command to its parser."""
    parser.add_argument(
        "folder",
        metavar="DIR",
        type=pathlib.Path,
        help="the folder of a backup, or of numbered ones",
    )
    add_settings_options(parser)
    parser.set_defaults(run=_restore)


def _restore(arguments: Namespace) -> Status:
    data = read_settings(arguments).data.absolute()
    folder = _choose(arguments.folder)
    manifest = read_manifest(folder)
    if data.resolve().is_relative_to(folder.resolve()):
        raise CommandFailed(f"{data} is in the backup: choose another by --data.")
    try:
        with contextlib.ExitStack() as locks:
            is_there = _require_free(data, locks)
            work = _make_work_folder(data, locks)
            try:
                for saved in manifest.files:
                    _restore_file(folder, saved, work)
                _put_in_place(work, data, is_there=is_there)
            except BaseException:
                shutil.rmtree(work, ignore_errors=True)
                raise
    except OSError as error:
        raise CommandFailed(f"The restore failed ({error.strerror}: {error.filename}).") from None
    except CannotOpenStore as error:
        raise CommandFailed(str(error)) from None
    _report(folder, manifest, data)
    return DONE


def _choose(folder: pathlib.Path) -> pathlib.Path:
    """Return the folder of a backup: of numbered ones the newest that has all databases.

    The newest of all, if none has.
    """
    if not folder.is_dir():
        raise CommandFailed(f"There is no folder {folder}.")
    if (folder / MANIFEST).is_file() or not (found := numbered(folder)):
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
    """Return whether there is a directory; it is empty, and locked. Raises `CommandFailed`."""
    if not data.exists():
        return False
    lock = DirectoryLock(data)
    locks.callback(lock.release)
    if {each.name for each in data.iterdir()} - {LOCK_FILE, BACKUP_NOTE}:
        raise CommandFailed(f"{data} is not empty: move it away, or choose another by --data.")
    return True


def _make_work_folder(data: pathlib.Path, locks: contextlib.ExitStack) -> pathlib.Path:
    """Return an empty folder that no other restore uses."""
    work = data.with_name(data.name + WORK)
    lock = DirectoryLock(work)
    locks.callback(lock.release)
    for left in work.iterdir():  # by an attempt that was killed
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
        mark = MarkFile(beside(target, MARK))
        mark.write(
            Mark(saved.sequence, bytes.fromhex(saved.op_id or ""), is_closed=True), sync=True
        )
        mark.close()
    sync_directory(target.parent)


def _put_in_place(work: pathlib.Path, data: pathlib.Path, *, is_there: bool) -> None:
    sync_directory(work)
    if is_there:  # else a daemon that was started meanwhile has put its lock file there: an error
        for name in (LOCK_FILE, BACKUP_NOTE):
            (data / name).unlink(missing_ok=True)
        data.rmdir()
    work.rename(data)
    sync_directory(data.parent)


def _report(folder: pathlib.Path, manifest: Manifest, data: pathlib.Path) -> None:
    count = sum(each.sequence is not None for each in manifest.files)
    text = f"{data}: {counted(count, 'database')} of {manifest.time}, from {folder}."
    print_line(make_printable(text))
    for sentence in manifest.skipped:
        print_line(make_printable(f"Note: it lacks what could not be saved. {sentence}"))
