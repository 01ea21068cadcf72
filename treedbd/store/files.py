"""What the store asks of the file system itself: private files, and changes that last.

Directories are made with mode 0700 and files with 0600, whatever the umask is. A file appears under
its name complete and on the medium, or not at all. What is inside the files is not known here.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import stat
import sys

FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""What a write is refused with where there is no room for it."""

_UNFINISHED = ".new"
_BLOCK = 64 * 1024


def make_directory(path: pathlib.Path) -> None:
    """Make a directory for its owner alone, if it is missing, and its missing parents."""
    if path.is_dir():
        return
    make_directory(path.parent)
    with contextlib.suppress(FileExistsError):
        path.mkdir(0o700)
        path.chmod(0o700)
        sync_directory(path.parent)


def open_private(path: pathlib.Path, flags: int) -> int:
    """Open a file for its owner alone and return the descriptor; `flags` as in `os.open`."""
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(descriptor, 0o600)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def is_open_to_others(path: pathlib.Path) -> bool:
    """Tell whether a file or directory is there and lets anybody in but its owner."""
    try:
        return bool(path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO))
    except OSError:
        return False


def close_to_others(path: pathlib.Path) -> bool:
    """Let nobody but its owner at a file, if it is there; tell whether others were let before."""
    was_open = is_open_to_others(path)
    if was_open:
        with contextlib.suppress(OSError):
            path.chmod(0o600)
    return was_open and not is_open_to_others(path)


def write_new(path: pathlib.Path, content: bytes) -> None:
    """Make a file that is, through a crash at any moment, there with all its content or not.

    Raises OSError, and then leaves nothing but perhaps a name that the next call reuses.
    """
    unfinished = path.with_name(path.name + _UNFINISHED)
    descriptor = open_private(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        unfinished.rename(path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def allocate(descriptor: int, start: int, size: int) -> None:
    """Give a file real blocks from `start`, where nothing is yet, on; raise OSError."""
    if sys.platform == "linux":
        os.posix_fallocate(descriptor, start, size)
    else:
        zeros = bytes(_BLOCK)
        for at in range(start, start + size, _BLOCK):
            os.pwrite(descriptor, zeros[: start + size - at], at)


def sync_directory(path: pathlib.Path) -> None:
    """Make the entries of a directory durable: names added, changed and removed."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
