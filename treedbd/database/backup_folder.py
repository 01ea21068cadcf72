"""The directory of backups that a daemon takes: what is in it, and its lock.

Theory of operation. A backup is made in a folder `<name>.unfinished`, which gets its name when it
is complete; the process that makes it holds the lock of the directory meanwhile, so there is one at
a time, whichever process begins it. One that has failed leaves an empty folder `<name>.failed`.
What is unfinished while the lock is free was broken off. Both are removed when the next backup
begins, or a daemon starts. A list only looks whether the lock is free, for which it shares it for a
moment; who wants it for itself tries again for longer than that.

Backups of the same second are numbered; a number is above those that are there, since the oldest
are removed.

`treedb backup --keep` uses the same directories, with numbers for names.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import os
import pathlib
import re
import shutil
import time
from collections.abc import Iterator
from operator import itemgetter
from typing import Final, Literal, TypeAlias

import attrs
import orjson

from treedbd.files import create_directory

BackupState: TypeAlias = Literal["done", "running", "failed"]

MANIFEST: Final = "manifest.json"
"""The file that is written last: a folder without it is not a backup."""
UNFINISHED: Final = ".unfinished"
FAILED: Final = ".failed"
MAX_LISTED: Final = 100
"""Backups that are listed, the newest."""
_TIME: Final = "%Y-%m-%dT%H.%M.%SZ"
_NAME: Final = re.compile(r"(\d{4}-\d\d-\d\dT\d\d\.\d\d\.\d\dZ)(?:-(\d+))?|\d{1,9}", re.ASCII)
_LOOKS: Final = 100
_LOOK_S: Final = 0.005
"""The lock is tried this often, with so many seconds between."""


class NoBackups(Exception):
    """The daemon takes no backups."""

    def __init__(self) -> None:
        super().__init__("No directory is set for backups (backups).")


class BackupUnderWay(Exception):
    """A backup is made in the same directory already, by this process or another."""

    def __init__(self) -> None:
        super().__init__("A backup is being taken already: wait until it is complete.")


@attrs.frozen
class ListedBackup:
    """A backup in a directory; `time` is ISO 8601, None if it is not known."""

    name: str
    time: str | None
    bytes: int
    state: BackupState


@contextlib.contextmanager
def locked(folder: pathlib.Path) -> Iterator[None]:
    """Create a directory of backups, and hold its lock; raise `BackupUnderWay` or OSError."""
    create_directory(folder)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if not _lock(descriptor):
            raise BackupUnderWay
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    """Lock a directory; return whether that was possible. A list shares the lock for a moment."""
    for look in range(_LOOKS):
        if look:
            time.sleep(_LOOK_S)
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    return False


def remove_left(folder: pathlib.Path) -> None:
    """Remove what backups have left that failed or were broken off; under the lock."""
    for suffix in (UNFINISHED, FAILED):
        for left in folder.glob(f"*{suffix}"):
            shutil.rmtree(left, ignore_errors=True)


def clean(folder: pathlib.Path) -> None:
    """Do `remove_left` unless a backup is under way, or there is no such directory."""
    with contextlib.suppress(BackupUnderWay, OSError):
        if folder.is_dir():
            with locked(folder):
                remove_left(folder)


def name_at(folder: pathlib.Path, now: datetime.datetime) -> str:
    """Return the name of a backup that begins now, which no other has."""
    name = now.strftime(_TIME)
    others = [match for each in folder.iterdir() if (match := _NAME.fullmatch(each.name))]
    number = 1 + max((_number_of(match) for match in others if match[1] == name), default=0)
    return name if number == 1 else f"{name}-{number}"


def find_complete(folder: pathlib.Path) -> list[pathlib.Path]:
    """Return the complete backups that have the names of times, the oldest first."""
    found = [
        (match[1], _number_of(match), each)
        for each in folder.iterdir()
        if (match := _NAME.fullmatch(each.name)) and match[1] and (each / MANIFEST).is_file()
    ]
    return [each for *_, each in sorted(found)]


def _number_of(match: re.Match[str]) -> int:
    """Return which backup of its second has a name."""
    return int(match[2] or 1)


def list_backups(folder: pathlib.Path) -> list[ListedBackup]:
    """Return the backups in a directory, the newest first; blocks. Raises OSError."""
    if not folder.is_dir():
        return []
    is_free = _is_free(folder)
    found = []
    for each in folder.iterdir():
        name = each.name.removesuffix(UNFINISHED).removesuffix(FAILED)
        match = _NAME.fullmatch(name)
        if match is not None and (listed := _describe(each, name, is_free=is_free)) is not None:
            found.append((listed.time or "", _number_of(match), listed))
    found.sort(key=itemgetter(0, 1), reverse=True)
    return [listed for *_, listed in found[:MAX_LISTED]]


def _describe(each: pathlib.Path, name: str, *, is_free: bool) -> ListedBackup | None:
    """Return what there is of one backup; None if it is not one."""
    if each.name.endswith(FAILED):
        return ListedBackup(name, _time_of(name), 0, "failed")
    if each.name.endswith(UNFINISHED):
        state: BackupState = "failed" if is_free else "running"
        return ListedBackup(name, _time_of(name), _size_of(each), state)
    try:
        content = orjson.loads((each / MANIFEST).read_bytes())
        size = sum(file["size"] for file in content["files"])
        return ListedBackup(name, _time_of(name) or str(content["time"]), size, "done")
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _is_free(folder: pathlib.Path) -> bool:
    """Return whether no backup is under way."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def _time_of(name: str) -> str | None:
    """Return the time that a name says, in ISO 8601."""
    match = _NAME.fullmatch(name)
    return match[1].replace(".", ":") if match and match[1] else None


def _size_of(folder: pathlib.Path) -> int:
    size = 0
    for file in folder.rglob("*"):
        with contextlib.suppress(OSError):  # removed meanwhile
            size += file.stat().st_size
    return size
