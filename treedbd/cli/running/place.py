"""The file with what is done, which one run uses at a time; and the events that were given up.

The file has lines of JSON: first the hook and its database, the position (`at`) and what is `done`
above it; then what was done since, a line each time, up to a length at which the file is replaced
as a whole. A line is synced after each event that is done, before another one of its path begins: a
run that is killed repeats at most what was under way. A line that is cut off was not written.

`FILE.lock` is locked as long as the run lasts, and the groups that it has started: however it ends.
`FILE.dead` has the events that were given up, one a line.
"""

from __future__ import annotations

import fcntl
import os
import pathlib
import stat
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import attrs
import orjson

from treedbd.cli.exit import CommandFailed
from treedbd.cli.options import reported
from treedbd.cli.running.window import Event, EventNumber, Window
from treedbd.files import sync_directory, write_atomically

VERSION: Final = 1
LONGEST_BYTES: Final = 256 * 1024
"""What is added to the file before it is replaced."""
LOCKED_S: Final = 3.0
"""Seconds until a run that was killed has let go of the file, with what it had started."""
MOST_BYTES: Final = 16 * 1024 * 1024
"""The longest file that is read; what is written is far below."""
_LOOK_S: Final = 0.05


@attrs.frozen
class SavedPlace:
    """What the file says."""

    hook: str
    database: str
    at: str
    done: frozenset[EventNumber]


class CursorFile:
    """The file with what is done, locked by this process."""

    def __init__(self, path: pathlib.Path) -> None:
        """Lock it; raise `CommandFailed`, also if another process has, or it is not a file."""
        self.path: Final = path
        self.dead: Final = path.with_name(path.name + ".dead")
        descriptor = _open(path)  # first: no file is made beside what is not one
        if descriptor is not None:
            os.close(descriptor)
        lock = path.with_name(path.name + ".lock")
        with reported(lock, "opened"):
            self._lock = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _lock(self._lock)
        except BlockingIOError:
            os.close(self._lock)
            raise CommandFailed(
                f"Another treedb run uses {path}: stop it, or choose another file by --cursor."
            ) from None
        self._head: dict[str, Any] = {}
        self._file = -1
        self._length = 0

    def close(self) -> None:
        """Unlock it."""
        os.close(self._lock)
        if self._file >= 0:
            os.close(self._file)

    def load(self) -> SavedPlace | None:
        """Return what it says, None if it does not exist; raise `CommandFailed`."""
        content = self._read()
        if content is None:
            return None
        first, *lines = content.split(b"\n")
        try:
            if len(content) > MOST_BYTES:
                raise ValueError
            json: Any = orjson.loads(first)
            if json["version"] != VERSION:
                raise ValueError
            hook, database = str(json["hook"]), str(json["database"])
            at, done = str(json["at"]), _parse_numbers(json)
            for line in lines[:-1]:  # what follows the last line end is empty, or was cut off
                json = orjson.loads(line)
                at, done = str(json["at"]), done | _parse_numbers(json)
        except (LookupError, TypeError, ValueError):
            raise CommandFailed(
                f"{self.path} is not a cursor file of treedb run: choose another file by --cursor."
            ) from None
        return SavedPlace(hook, database, at, done)

    def _read(self) -> bytes | None:
        """Return its bytes, up to one more than it may have; None if it does not exist."""
        descriptor = _open(self.path)
        if descriptor is None:
            return None
        with reported(self.path, "read"), open(descriptor, "rb") as opened:
            return opened.read(MOST_BYTES + 1)

    def begin(self, hook: str, database: str, window: Window) -> None:
        """Replace what it says; it is durable when this returns. Raises `CommandFailed`."""
        self._head = {"version": VERSION, "hook": hook, "database": database}
        self._rewrite(window)

    def save(self, window: Window, finished: Sequence[EventNumber]) -> None:
        """Add what was finished; it is durable when this returns. Raises `CommandFailed`."""
        if self._length > LONGEST_BYTES:
            self._rewrite(window)
            return
        line = orjson.dumps({"at": window.at, "done": finished}) + b"\n"
        with reported(self.path, "written"):
            _write_all(self._file, line)
            os.fdatasync(self._file)
        self._length += len(line)

    def _rewrite(self, window: Window) -> None:
        content = orjson.dumps({**self._head, "at": window.at, "done": sorted(window.done)})
        with reported(self.path, "written"):
            write_atomically(self.path, content + b"\n")
            if self._file >= 0:
                os.close(self._file)
            self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        self._length = 0

    def give_up(self, event: Event, how: str) -> None:
        """Append an event that was given up; it is durable when this returns."""
        now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
        head = orjson.dumps({"time": now, "attempts": event.failures + 1, "end": how})
        line = head[:-1] + b',"event":' + event.json + b"}\n"
        is_new = not self.dead.exists()
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        with reported(self.dead, "written"):
            descriptor = os.open(self.dead, flags, 0o600)
            try:
                _write_all(descriptor, line)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            if is_new:
                sync_directory(self.dead.parent)


def _open(path: pathlib.Path) -> int | None:
    """Open a regular file to be read, without waiting; return None if it does not exist.

    Raises `CommandFailed`, also for a file of another kind, which could be read without an end.
    """
    with reported(path, "read"):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
    os.close(descriptor)
    raise CommandFailed(f"{path} is not a regular file: choose another file by --cursor.")


def _lock(descriptor: int) -> None:
    """Lock a file; raise `BlockingIOError` if another process has, and keeps it."""
    end = time.monotonic() + LOCKED_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                raise
            time.sleep(_LOOK_S)
        else:
            return


def _parse_numbers(json: Any) -> frozenset[EventNumber]:
    return frozenset((int(write), int(number)) for write, number in json["done"])


def _write_all(descriptor: int, content: bytes) -> None:
    while content:
        content = content[os.write(descriptor, content) :]
