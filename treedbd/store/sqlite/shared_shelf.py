"""One shelf that several processes have open: the turn to write it, and news of it.

Whoever has the lock of the shelf (`shelf_lock`) writes, checkpoints, opens and closes it. Whether
others have committed is seen in the index of its log (`log_index`), which shows a commit when that
has been synced.
"""

from __future__ import annotations

import os
import pathlib
import threading
import time
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from treedbd.store.engine import ReadView, StoreFailed
from treedbd.store.sqlite.log_index import LogIndex
from treedbd.store.sqlite.shelf_lock import ShelfLock

MORE_IF_SHARED: Final = 2
"""Descriptors of a shelf that is shared, beside those of its engine: its lock and its index."""
PATIENCE_S: Final = 0.005
"""Seconds for which a process may be overtaken: one that is busy otherwise would keep the turn from
those that can use it."""
POLL_S: Final = 0.002
"""Seconds between two attempts of a thread to have the turn."""
WAIT_S: Final = 15.0
"""Seconds for which a thread waits for the turn: longer than a process may stand still with it."""
CLOSE_WAIT_S: Final = 1.0
"""The same before a shelf is closed; without the turn it is closed as if the process had died."""

_BUSY: Final = "Another process has been writing the database for long."
_FAILED: Final = "Another process has found that the store may have failed."


class SharedFile(Protocol):
    """An engine over a file that is shared (`SqliteEngine`).

    Attributes:
        leave: calls what closes the file, with whether it may be written to, and whether no other
            process has it open.

    """

    leave: Callable[[Callable[[bool, bool], None]], None]

    @property
    def is_sound(self) -> bool:
        """Whether all of the file is known to be sound."""
        ...

    def confirm_sound(self) -> None:
        """Record that all of the file is sound."""
        ...

    def follow_moments(self, begun: Callable[[ReadView], None]) -> None:
        """Call `begun` with each moment that reads begin to show from now on."""
        ...

    def refresh(self) -> None:
        """Let the writing connection go on after what other processes have written."""
        ...

    def renew(self) -> None:
        """Show the moment that is shown by a new transaction, if nothing is newer."""
        ...

    def fail(self, reason: str) -> None:
        """Write nothing more until `recover` has succeeded."""
        ...

    def take_failure(self) -> bool:
        """Return whether the store has failed since the last call."""
        ...


F = TypeVar("F", bound=SharedFile)


class SharedShelf:
    """A `Sharing` of one shelf, which may not exist yet; belongs to the reactor's thread.

    Attributes:
        is_held: whether this process has the turn.
        on_moment: called with each moment that reads begin to show.

    """

    def __init__(self, path: pathlib.Path) -> None:
        """Share the shelf at `path`; nothing is opened yet."""
        self.is_held = False
        self.on_moment: Callable[[ReadView], None] = _do_nothing
        self._path: Final = path
        self._lock: ShelfLock | None = None
        # Both threads of a process have the same lock, so they must keep each other out.
        self._in_use: Final = threading.Lock()
        self._file: SharedFile | None = None
        self._index: LogIndex | None = None
        self._seen = b""  # the header of the index, when this process began to show a state
        self._has_pending = False
        self._waits_since: float | None = None
        self._failures = 0

    # The turn.

    def has_news(self) -> bool:
        """Return whether anything was committed since the last call that returned True."""
        if self._index is None:
            return False
        header = self._index.header()
        if header == self._seen and not self._has_pending:
            return False
        self._seen, self._has_pending = header, False
        return True

    def try_hold(self) -> bool:
        """Take the turn if it is free; return whether this process has it.

        Of a shelf that does not exist there is no turn: whoever creates it finds out who is first.
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

    def let_go(self) -> None:
        """Give the turn back, or stop waiting for it."""
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
        """Run `work` with the turn, waiting for it if need be; in a worker thread."""
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
        """Let the log be restarted, if it was checkpointed since this moment began to be shown."""
        if self._file is not None:
            self._file.renew()

    # The file.

    def exists(self) -> bool:
        """Return whether there is a shelf, whoever has created it."""
        return self._file is not None or os.path.exists(self._path)

    def open(self, open_file: Callable[[bool], F], *, keeps_turn: bool = False) -> F:
        """Return what `open_file` opens or creates, in any thread.

        It is called with the turn, and whether no other process has the shelf open. With
        `keeps_turn` this process has the turn from now on, and there is news. Raises what
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
        if keeps_turn:
            self.is_held = self._has_pending = True
        else:
            self._release()
        return file

    def _attach(self, open_file: Callable[[bool], F]) -> F:
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
        file.leave = self._leave
        file.follow_moments(self._moment_begun)
        self._file = file
        self._failures = lock.failures
        self._seen = index.header()
        self._index = index
        return file

    def _moment_begun(self, view: ReadView) -> None:
        self.on_moment(view)

    def _leave(self, close: Callable[[bool, bool], None]) -> None:
        """Close the shelf by `close`, which is told of the turn and whether no other has it open.

        Without the turn nothing is written or checkpointed.
        """
        lock = self._existing_lock()
        has_turn = self.is_held or self._wait(CLOSE_WAIT_S)
        try:
            (file, self._file), (index, self._index) = (self._file, None), (self._index, None)
            if has_turn and file is not None:
                self._agree_on_soundness(lock, file)
            close(has_turn, has_turn and lock.use())
            if index is not None:
                index.close()
        finally:
            lock.close()
            self._lock = None
            self.is_held = False
            if has_turn:
                self._in_use.release()

    def _agree_on_soundness(self, lock: ShelfLock, file: SharedFile) -> None:
        """Let those that close the shelf later know what this process knows, and the other way."""
        if file.is_sound:
            lock.is_sound = True
        elif lock.is_sound:
            file.confirm_sound()

    def _wait(self, seconds: float) -> bool:
        """Wait for the turn, in a worker thread; return whether this thread has it."""
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

    def _begin_writing(self, file: SharedFile) -> None:
        """Bring the writing connection up to date with what others have done."""
        failures = self._existing_lock().failures
        if failures != self._failures:
            self._failures = failures
            file.fail(_FAILED)
        file.refresh()

    def _end_writing(self) -> None:
        lock = self._existing_lock()
        if self._file is not None and self._file.take_failure():
            self._failures = lock.add_failure()
        lock.end_write()

    def _existing_lock(self) -> ShelfLock:
        if self._lock is None:
            raise StoreFailed("The lock file of the database is not open.")
        return self._lock


def _do_nothing(_: ReadView) -> None:
    pass
