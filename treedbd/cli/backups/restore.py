"""`treedb restore`: a data directory made of a backup, all of it or nothing.

The files are copied into a folder beside the data directory, checked against the manifest, and
given marks that say where their history goes on; then the folder takes the place of the data
directory. So a restore that is stopped in the middle leaves nothing that a daemon would serve.
"""

from __future__ import annotations

import os
import pathlib
import shutil
from argparse import ArgumentParser, Namespace
from typing import Final

from treedbd.cli.backups.backup import numbered
from treedbd.cli.backups.manifest import MANIFEST, Manifest, SavedFile, read_manifest
from treedbd.cli.exit import DONE, CommandFailed, Status, counted, make_printable, print_line, warn
from treedbd.cli.options import add_settings_options, read_settings
from treedbd.database.data_directory import BACKUP_NOTE
from treedbd.files import create_directory, sync_directory
from treedbd.store.engine import CannotOpenStore
from treedbd.store.lock import DirectoryLock
from treedbd.store.sqlite.copy import hash_file, verify_copy
from treedbd.store.sqlite.file import beside
from treedbd.store.sqlite.history import MARK
from treedbd.store.sqlite.mark import Mark, MarkFile

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
    work = data.with_name(data.name + WORK)
    try:
        _require_free(data)
        if work.exists():
            shutil.rmtree(work)  # what an attempt has left that was killed
        try:
            create_directory(work)
            for saved in manifest.files:
                _restore_file(folder, saved, work)
            _put_in_place(work, data)
        finally:
            shutil.rmtree(work, ignore_errors=True)
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


def _require_free(data: pathlib.Path) -> None:
    """Raise `CommandFailed` unless nothing is in the way; a daemon must not be running."""
    if not data.exists():
        return
    lock = DirectoryLock(data)
    lock.release()
    if {each.name for each in data.iterdir()} - {pathlib.Path(lock.path).name, BACKUP_NOTE}:
        raise CommandFailed(f"{data} is not empty: move it away, or choose another by --data.")
    pathlib.Path(lock.path).unlink()
    (data / BACKUP_NOTE).unlink(missing_ok=True)


def _restore_file(folder: pathlib.Path, saved: SavedFile, work: pathlib.Path) -> None:
    source, target = folder / saved.path, work / saved.path
    create_directory(target.parent)
    try:
        shutil.copyfile(source, target)
    except FileNotFoundError:
        raise CommandFailed(f"{source} is missing: use another backup.") from None
    target.chmod(0o600)
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
    with target.open("rb+") as file:
        os.fsync(file.fileno())
    sync_directory(target.parent)


def _put_in_place(work: pathlib.Path, data: pathlib.Path) -> None:
    sync_directory(work)
    if data.exists():
        data.rmdir()
    work.rename(data)
    sync_directory(data.parent)


def _report(folder: pathlib.Path, manifest: Manifest, data: pathlib.Path) -> None:
    count = sum(each.sequence is not None for each in manifest.files)
    text = f"{data}: {counted(count, 'database')} of {manifest.time}, from {folder}."
    print_line(make_printable(text))
    for sentence in manifest.skipped:
        print_line(make_printable(f"Note: it lacks what could not be saved. {sentence}"))
