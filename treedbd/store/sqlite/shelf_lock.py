"""The lock file of a shelf that several processes have open: `<database>.shelf-lock`.

The locks are the kernel's, each on one byte of the file, so they end with the process that holds
them, however that ends. They belong to the open file (`F_OFD_SETLK` of Linux), not to the process:
closing another descriptor of the file does not release them, and no deadlock is suspected where
several threads of two processes wait for each other's databases.

- `WRITE` is held by the process that writes, checkpoints, or opens and closes the shelf.
- `QUEUE` is held by the process that is next: who has waited for `WRITE` is not overtaken by the
  one that has just released it.
- `USE` is shared by all processes that have the shelf open. Whoever can have it alone is the first
  to open it or the last to close it.

The file itself holds a number, of how often a store has failed (`failures`): what one process has
found to be untrustworthy, no other goes on writing to before it has verified it. A byte after it
says whether a process that had the shelf open has found all of it sound (`is_sound`).
"""

from __future__ import annotations

import fcntl
import os
import pathlib
import struct
from typing import Final

from treedbd.files import open_private

LOCK: Final = "-lock"
"""What the name of the lock file has after that of the shelf."""

_WRITE: Final = 0
_QUEUE: Final = 1
_USE: Final = 2
_FLOCK: Final = struct.Struct("hhqqi4x")
"""`struct flock` of 64-bit Linux: type, whence, start, length, process."""
_NUMBER: Final = struct.Struct(">Q")


def can_share() -> bool:
    """Return whether this system has the locks that processes share a shelf by."""
    return hasattr(fcntl, "F_OFD_SETLK") and struct.calcsize("P") == 8


class ShelfLock:
    """The locks that this process has on one shelf; it waits for none of them."""

    def __init__(self, path: pathlib.Path) -> None:
        """Open the lock file of the shelf at `path`, or create it; raise OSError."""
        name = path.with_name(path.name + LOCK)
        self._descriptor: Final = open_private(name, os.O_RDWR | os.O_CREAT)
        self._is_next = False

    def try_write(self, *, is_next: bool = True) -> bool:
        """Lock for writing if no other process is next; return whether it is locked.

        If it is not, this process `is_next` from now on, if it says so and no other is.
        """
        if not self._is_next:
            self._is_next = self._set(fcntl.F_WRLCK, _QUEUE)
        if not self._is_next:
            return False
        is_locked = self._set(fcntl.F_WRLCK, _WRITE)
        if is_locked or not is_next:
            self._leave_queue()
        return is_locked

    def end_write(self) -> None:
        """Release the lock for writing."""
        self._set(fcntl.F_UNLCK, _WRITE)

    def give_up(self) -> None:
        """Wait no longer for the lock for writing."""
        if self._is_next:
            self._leave_queue()

    def use(self) -> bool:
        """Record that this process has the shelf open; return whether no other has.

        To be called with the lock for writing.
        """
        is_alone = self._set(fcntl.F_WRLCK, _USE)
        self._set(fcntl.F_RDLCK, _USE)
        return is_alone

    def end_use(self) -> None:
        """Record that this process has the shelf closed."""
        self._set(fcntl.F_UNLCK, _USE)

    @property
    def failures(self) -> int:
        """How often a process has found that the store may have failed."""
        content = os.pread(self._descriptor, _NUMBER.size, 0)
        return int(_NUMBER.unpack(content)[0]) if len(content) == _NUMBER.size else 0

    def add_failure(self) -> int:
        """Count one more failure; return how many there are. To be called with the write lock."""
        count = self.failures + 1
        os.pwrite(self._descriptor, _NUMBER.pack(count), 0)
        return count

    @property
    def is_sound(self) -> bool:
        """Whether all of the shelf is known to be sound, since the first process opened it."""
        return os.pread(self._descriptor, 1, _NUMBER.size) == b"\1"

    @is_sound.setter
    def is_sound(self, is_sound: bool) -> None:
        """To be set with the lock for writing."""
        os.pwrite(self._descriptor, bytes([is_sound]), _NUMBER.size)

    def close(self) -> None:
        """Release all locks."""
        os.close(self._descriptor)

    def _leave_queue(self) -> None:
        self._set(fcntl.F_UNLCK, _QUEUE)
        self._is_next = False

    def _set(self, kind: int, byte: int) -> bool:
        """Set one lock, or change it; return False if another process has one in its way."""
        try:
            fcntl.fcntl(
                self._descriptor,
                fcntl.F_OFD_SETLK,
                _FLOCK.pack(kind, os.SEEK_SET, byte, 1, 0),
            )
        except BlockingIOError:
            return False
        return True
