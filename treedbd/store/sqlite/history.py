"""Notices that the history of a shelf has gone back: that changes are missing that it once held.

Theory of operation
-------------------
SQLite reads a write-ahead log up to the first frame that does not fit: a log that was cut, altered
or removed is an older state, and looks sound. So is a shelf that was replaced by an older copy. The
mark beside the shelf (`mark`) says which change was the newest:

- Before the first commit after an opening, the mark says durably that the database is open.
- After each commit, when that is durable, the mark receives its number and id, without a sync. A
  process that is killed leaves a mark that is exact, or one commit behind.
- After each checkpoint the mark is synced: the shelf alone, without its log, is never behind what a
  power failure leaves of the mark.
- At a close that leaves no log, the mark says durably that the database is closed, when it is
  durable that the log is gone: there are file systems on which the sync of one file does not carry
  the removal of another, and a power failure then brings the log back. So a log beside a closed
  shelf is refused only if it would change the shelf (`log_frames`).

At the next opening a shelf that ends before its mark has lost changes, and one that has another
change under the number of the mark has another history. Either is refused, and no file is changed:
what is missing may still be found and put back. `accept_loss` goes on, with a new mark.

A missing mark alone is no loss, because who copies the shelf alone has made a backup; but then
nothing can be noticed, which is a warning.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
from typing import Final

import apsw

from treedbd.store.engine import CannotOpenStore, StoreInaccessible
from treedbd.store.sqlite.file import beside, log_of
from treedbd.store.sqlite.log_frames import is_applied
from treedbd.store.sqlite.mark import Mark, MarkFile
from treedbd.store.sqlite.wal import last_sequence

MARK: Final = "-mark"
"""What the name of the mark has after that of the shelf."""
_REMEDY: Final = (
    "put back what is missing, or restore a backup with its -mark, or start once with "
    "--accept-loss to go on without these changes"
)
_CHECK_DISK: Final = "let the user that runs treedb read and write it, and check the disk"


class History:
    """The history of one shelf, from its opening to its close.

    Attributes:
        was_closed_cleanly: whether the shelf was sound when it was closed, and nothing has happened
            to it since that could be noticed.
        warning: what an operator should know about the opening, in one sentence; None if nothing.

    """

    def __init__(self, path: pathlib.Path) -> None:
        """Read the mark of the shelf at `path`, before SQLite opens that.

        Raises `CannotOpenStore` if the mark cannot be read, or if there is a log that cannot belong
        to the shelf: SQLite would apply it all the same.
        """
        self.was_closed_cleanly = False
        self.warning: str | None = None
        self._path = path
        self._newest = (0, b"")
        self._is_begun = False
        self._has_accepted_loss = False
        self._file = MarkFile(beside(path.resolve(), MARK))
        self._mark = self._read()
        log = log_of(path)
        if self._says_closed() and self._is_foreign(log):
            # Unless another process has opened it since then: before it writes to a log, the mark
            # says so.
            self._mark = self._read()
            if self._says_closed():
                raise CannotOpenStore(
                    log,
                    f"is not the log of {path.name}, which was closed without one",
                    "remove it, or restore the database from a backup",
                )

    def check(self, connection: apsw.Connection, *, accept_loss: bool) -> None:
        """Compare the shelf with its mark; raise `CannotOpenStore` if changes are missing.

        With `accept_loss` that is a warning, and the shelf receives a new mark.
        """
        self._newest = _newest(connection)
        sequence = self._newest[0]
        if self._mark is None:
            if sequence:
                self.warning = (
                    f"{self._path} has no readable mark ({self._path.name}{MARK}): whether its "
                    "newest changes are missing cannot be noticed."
                )
            return
        loss = _find_loss(connection, self._mark, sequence)
        if loss is None:
            self.was_closed_cleanly = self._mark == Mark(*self._newest, is_closed=True)
        elif accept_loss:
            self._has_accepted_loss = True
            self.warning = f"{self._path} {loss}. It is served, because of --accept-loss."
        else:
            raise CannotOpenStore(self._path, loss, _REMEDY)

    def replace_mark(self) -> None:
        """Let the mark say durably where a history goes on whose loss was accepted.

        Raises `CannotOpenStore`.
        """
        if self._has_accepted_loss:
            try:
                self.begin()
            except OSError as error:
                raise self._inaccessible(error) from None

    def begin(self) -> None:
        """Record durably that the shelf is about to be changed; raise OSError."""
        if not self._is_begun:
            self._file.write(Mark(*self._newest), sync=True)
            self._is_begun = True

    def advance(self, sequence: int, op_id: bytes) -> None:
        """Record the newest change, which is durable; raise OSError."""
        self._newest = (sequence, op_id)
        self._file.write(Mark(sequence, op_id))

    def follow(self, connection: apsw.Connection) -> None:
        """Go on from where other processes have brought the shelf; raise OSError."""
        mark = self._file.follow()
        self._newest = _newest(connection)
        self._is_begun = mark is not None and not mark.is_closed

    def renew(self, connection: apsw.Connection) -> None:
        """Record durably how far a shelf has come that was recovered; raise OSError."""
        self._file.close()
        self._newest = _newest(connection)
        self._is_begun = False
        self.begin()

    def sync(self) -> None:
        """Make what was recorded durable; raise OSError."""
        self._file.sync()

    def close(self, *, is_clean: bool) -> None:
        """Close the mark; with `is_clean` it says durably that the shelf was closed and is sound.

        Raises nothing: a mark that cannot be written says that the shelf was not closed.
        """
        with contextlib.suppress(OSError):
            if not is_clean:
                self._file.sync()
            elif self._is_begun or not self.was_closed_cleanly:
                self._file.write(Mark(*self._newest, is_closed=True), sync=True)
        self._file.close()

    def _read(self) -> Mark | None:
        try:
            return self._file.read()
        except OSError as error:
            raise self._inaccessible(error) from None

    def _says_closed(self) -> bool:
        return self._mark is not None and self._mark.is_closed

    def _is_foreign(self, log: pathlib.Path) -> bool:
        """Return whether there is a log that would change the shelf, which was closed without."""
        try:
            return has_content(log) and not is_applied(log, self._path)
        except OSError as error:
            reason = os.strerror(error.errno or 0)
            raise StoreInaccessible(log, f"cannot be read ({reason})", _CHECK_DISK) from None

    def _inaccessible(self, error: OSError) -> CannotOpenStore:
        return StoreInaccessible(
            beside(self._path, MARK),
            f"cannot be read or written ({os.strerror(error.errno or 0)})",
            _CHECK_DISK,
        )


def has_content(log: pathlib.Path) -> bool:
    """Return whether there is a log that is not empty."""
    try:
        return log.stat().st_size > 0
    except OSError:
        return False


def _newest(connection: apsw.Connection) -> tuple[int, bytes]:
    """Return the number and the id of the newest change."""
    sequence = last_sequence(connection)
    return sequence, _id_of(connection, sequence) or b""


def _id_of(connection: apsw.Connection, sequence: int) -> bytes | None:
    """Return the id of a change, None if the change log does not hold it any more."""
    op_id: bytes | None = connection.execute("SELECT op_id FROM log WHERE seq = ?", (sequence,)).get
    return op_id


def _find_loss(connection: apsw.Connection, mark: Mark, last: int) -> str | None:
    """Return what a shelf whose newest change is number `last` lacks, from the verb on."""
    if last < mark.sequence:
        return f"ends with change {last}, but change {mark.sequence} had been made durable"
    op_id = _id_of(connection, mark.sequence)
    if op_id is None or Mark(mark.sequence, op_id).op_id == mark.op_id:
        return None
    return f"has another change {mark.sequence} than the one that had been made durable"
