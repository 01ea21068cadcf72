"""One shelf that several processes have open: its write lock, and whether others have committed.

None of the processes owns the shelf. One that wants to write takes the write lock (`ShelfLock`),
which one process has at a time; whatever was committed before is visible to it then, and nothing is
committed by others until it releases the lock. It alone writes, checkpoints, opens and closes the
shelf. All others only read meanwhile: they see the last durable state. Whether that has changed is
seen in the index of the log (`LogIndex`), which shows a commit when that has been synced.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import pathlib
import struct
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from treedbd.files import open_private
from treedbd.loop import do_nothing
from treedbd.store.engine import ReadView, StoreFailed

if TYPE_CHECKING:  # a parent of workers opens no file
    from treedbd.store.sqlite.engine import SqliteEngine

MORE_IF_SHARED: Final = 2
"""Descriptors of a shelf that is shared, beside those of its engine: its lock and its index."""
PATIENCE_S: Final = 0.005
"""Seconds for which a process may be overtaken: one that is busy otherwise would keep the lock
from those that can use it."""
POLL_S: Final = 0.002
"""Seconds between two attempts of a thread to take the write lock."""
WAIT_S: Final = 15.0
"""Seconds for which a thread waits for it: longer than a process that is stopped may keep it."""
CLOSE_WAIT_S: Final = 1.0
"""The same before a shelf is closed; without the lock it is closed as if the process had died."""

_BUSY: Final = "Another process has been writing the database for long."
_FAILED: Final = "Another process has found that the store may have failed."

LOCK: Final = "-lock"
"""What the name of the lock file has after that of the shelf."""

_WRITE: Final = 0
_QUEUE: Final = 1
_USE: Final = 2
_FLOCK: Final = struct.Struct("hhqqi4x")
"""`struct flock` of 64-bit Linux: type, whence, start, length, process."""
_NUMBER: Final = struct.Struct(">Q")

INDEX: Final = "-shm"
"""What the name of the index has after that of the shelf."""
_HEADER_BYTES: Final = 48
_MAPPED_BYTES: Final = 4096


def can_share() -> bool:
    """Return whether this system has the locks that processes share a shelf by."""
    return hasattr(fcntl, "F_OFD_SETLK") and struct.calcsize("P") == 8


class ShelfLock:
    """The locks that this process has on one shelf, in the file `<database>.shelf-lock`.

    It waits for none of them. The locks are the kernel's, each on one byte of the file, so they end
    with the process that holds them, however that ends. They belong to the open file (`F_OFD_SETLK`
    of Linux), not to the process: closing another descriptor of the file does not release them, and
    no deadlock is suspected where several threads of two processes wait for each other's databases.

    - `_WRITE` is held by the process that writes, checkpoints, or opens and closes the shelf.
    - `_QUEUE` is held by the process that is next: one that has waited for `_WRITE` is not
      overtaken by the one that has just released it.
    - `_USE` is shared by all processes that have the shelf open. One that can have it alone is the
      first to open it or the last to close it.

    The file itself holds a number, of how often a store has failed (`failures`): what one process
    has found to be untrustworthy, no other goes on writing to before it has verified it. A byte
    after it says whether a process that had the shelf open has found all of it sound (`is_sound`).
    """

    def __init__(self, path: pathlib.Path) -> None:
        """Open the lock file of the shelf at `path`, or create it; raise OSError."""
        name = path.with_name(path.name + LOCK)
        self._descriptor: Final = open_private(name, os.O_RDWR | os.O_CREAT)
        self._is_next = False

    def try_write(self, *, is_next: bool = True) -> bool:
        """Lock for writing if no other process is next; return whether it is locked.

        If it is not, wait as the next one from now on, if `is_next` and no other process is.
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
                self._descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, byte, 1, 0)
            )
        except BlockingIOError:
            return False
        return True


class LogIndex:
    """The index of one shelf's write-ahead log, where commits are noticed in memory.

    SQLite keeps the index in the file `-shm`, which all processes that have the shelf open map into
    memory. Its first 48 bytes describe the last commit, and change with each one, when that has
    been synced and before it can be read (https://www.sqlite.org/walformat.html, section 2.1). To
    compare it takes a twentieth of a microsecond; `PRAGMA data_version`, which does the same, takes
    35 times that. A process that records the header before it reads is never deceived: what it
    reads is at least as new.

    To be closed after the last connection: closing any descriptor of the file would drop the locks
    that SQLite has on it in this process.
    """

    def __init__(self, path: pathlib.Path) -> None:
        """Map the index of the shelf at `path`; raise OSError."""
        real = path.resolve()
        name = real.with_name(real.name + INDEX)
        self._descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._map = mmap.mmap(self._descriptor, _MAPPED_BYTES, access=mmap.ACCESS_READ)
        except BaseException:
            os.close(self._descriptor)
            raise

    def header(self) -> bytes:
        """Return the header as it is now."""
        return self._map[:_HEADER_BYTES]

    def close(self) -> None:
        """Release it."""
        self._map.close()
        os.close(self._descriptor)


class SharedShelf:
    """One shelf, which may not exist yet, as this process shares it with others.

    It belongs to the reactor's thread.

    Attributes:
        is_held: whether this process has the write lock.
        on_moment: called with each moment that reads begin to show.

    """

    def __init__(self, path: pathlib.Path) -> None:
        """Share the shelf at `path`; nothing is opened yet."""
        self.is_held = False
        self.on_moment: Callable[[ReadView], None] = do_nothing
        self._path: Final = path
        self._lock: ShelfLock | None = None
        # Both threads of a process have the same lock, so they must keep each other out.
        self._in_use: Final = threading.Lock()
        self._file: SqliteEngine | None = None
        self._index: LogIndex | None = None
        self._seen = b""  # the header of the index, when this process began to show a state
        self._has_pending = False
        self._waits_since: float | None = None
        self._failures = 0

    # The write lock.

    def has_news(self) -> bool:
        """Return whether anything was committed since the last call that returned True.

        What this process commits is news too, from the moment when others can see it.
        """
        if self._index is None:
            return False
        header = self._index.header()
        if header == self._seen and not self._has_pending:
            return False
        self._seen, self._has_pending = header, False
        return True

    def try_hold(self) -> bool:
        """Take the write lock if it is free; return whether this process has it. Never waits.

        A process that tries until it is free is overtaken at most once by each other process.
        A shelf that does not exist has no lock: the processes that create it find out who is first.
        """
        if self.is_held or self._file is None:
            return True
        if not self._in_use.acquire(blocking=False):
            return False
        now = time.monotonic()
        if self._waits_since is None:
            self._waits_since = now
        if not self._existing_lock().try_write(is_next=now > self._waits_since + PATIENCE_S):
            self._in_use.release()
            return False
        self._waits_since = None
        self._has_pending = self.has_news()
        self._begin_writing(self._file)
        self.is_held = True
        return True

    def release_lock(self) -> None:
        """Release the write lock, or stop waiting for it."""
        if self.is_held:
            self.is_held = False
            self._end_writing()
            self._in_use.release()
        elif self._in_use.acquire(blocking=False):
            if self._lock is not None:
                self._lock.give_up()
            self._waits_since = None
            self._in_use.release()

    def run_held(self, work: Callable[[], None]) -> None:
        """Run `work` with the write lock, waiting for it if need be; in a worker thread.

        Raises `StoreFailed` if other processes have had the lock all the time.
        """
        if self.is_held or self._file is None:
            work()
            return
        if not self._wait(WAIT_S):
            raise StoreFailed(_BUSY)
        try:
            self._begin_writing(self._file)
            try:
                work()
            finally:
                self._end_writing()
        finally:
            self._in_use.release()

    def renew(self) -> None:
        """Renew the moment that is shown, if a checkpoint since then waits for its end."""
        if self._file is not None:
            self._file.readers.renew()

    # The file.

    def exists(self) -> bool:
        """Return whether there is a shelf, from this process or another."""
        return self._file is not None or os.path.exists(self._path)

    def open(
        self, open_file: Callable[[bool], SqliteEngine], *, keeps_lock: bool = False
    ) -> SqliteEngine:
        """Return what `open_file` opens or creates, in any thread.

        It is called under the write lock, with whether no other process has the shelf open. With
        `keeps_lock` this process keeps the lock from now on, and there is news. Raises what
        `open_file` raises, `StoreFailed`, or OSError.
        """
        if self._lock is None:
            self._lock = ShelfLock(self._path)
        if not self._wait(WAIT_S):
            raise StoreFailed(_BUSY)
        try:
            file = self._attach(open_file)
        except BaseException:
            self._release()
            raise
        if keeps_lock:
            self.is_held = self._has_pending = True
        else:
            self._release()
        return file

    def _attach(self, open_file: Callable[[bool], SqliteEngine]) -> SqliteEngine:
        lock = self._existing_lock()
        try:
            is_first = lock.use()
            file = open_file(is_first)
            index = LogIndex(self._path)
            if is_first:
                lock.is_sound = file.is_sound
        except BaseException:
            lock.end_use()
            raise
        file.shared = self
        file.follow_moments(self._moment_begun)
        self._file = file
        self._failures = lock.failures
        self._seen = index.header()
        self._index = index
        return file

    def _moment_begun(self, view: ReadView) -> None:
        self.on_moment(view)

    def leave(self, file: SqliteEngine) -> None:
        """Close the file of the shelf, waiting for the write lock for a moment.

        Without the lock nothing is written or checkpointed.
        """
        lock = self._existing_lock()
        has_lock = self.is_held or self._wait(CLOSE_WAIT_S)
        try:
            self._file, (index, self._index) = None, (self._index, None)
            if has_lock:
                self._agree_on_soundness(lock, file)
            file.close_file(may_write=has_lock, is_last=has_lock and lock.use())
            if index is not None:
                index.close()
        finally:
            lock.close()
            self._lock = None
            self.is_held = False
            if has_lock:
                self._in_use.release()

    def _agree_on_soundness(self, lock: ShelfLock, file: SqliteEngine) -> None:
        """Share with the other processes whether the shelf is sound, and learn it from them."""
        if file.is_sound:
            lock.is_sound = True
        elif lock.is_sound:
            file.confirm_sound()

    def _wait(self, seconds: float) -> bool:
        """Wait for the write lock, in a worker thread; return whether this thread has it."""
        end = time.monotonic() + seconds
        if not self._in_use.acquire(timeout=seconds):
            return False
        lock = self._existing_lock()
        while not lock.try_write():
            if time.monotonic() >= end:
                lock.give_up()
                self._in_use.release()
                return False
            time.sleep(POLL_S)
        return True

    def _release(self) -> None:
        self._existing_lock().end_write()
        self._in_use.release()

    def _begin_writing(self, file: SqliteEngine) -> None:
        """Bring the writing connection up to date with what others have done."""
        failures = self._existing_lock().failures
        if failures != self._failures:
            self._failures = failures
            file.writer.fail(_FAILED)
        file.writer.refresh()

    def _end_writing(self) -> None:
        lock = self._existing_lock()
        if self._file is not None and self._file.writer.take_failure():
            self._failures = lock.add_failure()
        lock.end_write()

    def _existing_lock(self) -> ShelfLock:
        if self._lock is None:
            raise StoreFailed("The lock file of the database is not open.")
        return self._lock
