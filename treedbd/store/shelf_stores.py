"""The file behind a shelf, opened for reading, or for writing under the lock of its directory.

A store runs work on the nodes of the file; `shelf` says what a path and a value are.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import time
from collections.abc import Callable
from typing import TypeVar

from treedbd.store import changelog
from treedbd.store.engine import DiskFull, StoreFailed
from treedbd.store.indexes import make_writer, read_states
from treedbd.store.lock import DirectoryLock
from treedbd.store.node_writer import NodeWriter
from treedbd.store.nodes import Nodes
from treedbd.store.sqlite.engine import SqliteEngine
from treedbd.store.sqlite.file import check_file, connect_reader
from treedbd.store.sqlite.reader import SqliteReader
from treedbd.store.sqlite.transaction import SqliteTransaction
from treedbd.tree.edit import Edit, resolve

T = TypeVar("T")


class ReadOnlyShelf(TypeError):
    """A write to a shelf that was opened for reading."""

    def __init__(self) -> None:
        super().__init__('The shelf was opened for reading; open it with the flag "w" to write.')


class ReadingStore:
    """A file that is opened for reading; each read sees the last commit."""

    def __init__(self, path: pathlib.Path) -> None:
        """Open the file; raise FileNotFoundError or `CannotOpenStore`."""
        check_file(path, os.R_OK)
        self._connection = connect_reader(path, is_known=False)
        self._reader = SqliteReader(self._connection)
        self._is_closed = False

    def read(self, work: Callable[[Nodes], T]) -> T:
        """Run `work` on the last commit and return its result."""
        _check_open(self._is_closed)
        return self._reader.read(lambda view: work(Nodes(view)))

    def write(self, edit: Edit) -> None:
        """Raise `ReadOnlyShelf`."""
        raise ReadOnlyShelf

    def commit(self) -> None:
        """Do nothing: there are no changes."""

    def rollback(self) -> None:
        """Do nothing: there are no changes."""

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._is_closed = True
        self._connection.close()


class WritingStore:
    """A file that is opened for writing, with the lock of its data directory."""

    _locks: contextlib.ExitStack | None = None
    """None before the file is open and after it has been closed."""

    def __init__(self, path: pathlib.Path, retain_events: int, *, may_create: bool) -> None:
        """Lock the directory and open the file, or create it if it is missing and that is allowed.

        Raises FileNotFoundError, `CannotOpenStore` or `DiskFull`.
        """
        self._retain_events = retain_events
        self._transaction: SqliteTransaction | None = None
        self._pushed: int | None = None
        if not may_create:
            check_file(path)  # before the lock, which would create the directory of a wrong path
        with contextlib.ExitStack() as locks:
            # A link must not lead past the lock of the directory that a daemon serves.
            for folder in {path.parent.parent.resolve(), path.resolve().parent.parent}:
                locks.callback(DirectoryLock(folder).release)
            if may_create and not path.exists():
                self._engine = SqliteEngine.create(path)
            else:
                self._engine = SqliteEngine.open(path, report=_ignore)
            locks.callback(self._engine.close)
            self._locks = locks.pop_all()

    def __del__(self) -> None:
        """Release the lock of a shelf that was never closed; discard what was not synced."""
        if self._locks is not None:
            self.rollback()
            self.close()

    def read(self, work: Callable[[Nodes], T]) -> T:
        """Run `work` on what has been written so far and return its result."""
        _check_open(self._locks is None)
        if self._transaction is None:
            return self._engine.read(lambda view: work(Nodes(view)))
        try:
            return work(Nodes(self._transaction))
        except (DiskFull, StoreFailed):
            self._transaction = None  # the error has ended it
            raise

    def write(self, edit: Edit) -> None:
        """Do one write, which is not durable before `commit`."""
        now = int(time.time() * 1000)
        resolved = self.read(lambda nodes: resolve(edit, now, nodes))
        path, is_priority = resolved.place
        if is_priority and self.read(lambda nodes: nodes.peek(path)) is None:
            return  # a priority needs a node
        self.write_rows(lambda writer: writer.apply(resolved.changes), resolved, now)

    def write_rows(
        self,
        work: Callable[[NodeWriter], None],
        edit: Edit,
        now: int,
        entry_bytes: int = changelog.MAX_ENTRY_BYTES,
    ) -> None:
        """Do one write by `work`, which must have the effect of `edit`.

        `edit` has no server values. The log holds it if its entry has at most `entry_bytes`.
        """
        if self._pushed is None:
            self._pushed = self.read(lambda nodes: changelog.push_time(nodes.rows))
        entry = changelog.encode(edit, now, entry_bytes, pushed=self._pushed)
        if self._transaction is None:
            self._transaction = self._engine.begin()
        try:
            work(make_writer(self._transaction, read_states(self._transaction).kept))
            changelog.append(self._transaction, os.urandom(16), entry, self._retain_events)
        except BaseException:
            self.rollback()  # half of a write, or one without its entry, must not be committed
            raise

    def commit(self) -> None:
        """Make what was written durable; raise `DiskFull` or `StoreFailed`."""
        transaction, self._transaction = self._transaction, None
        if transaction is not None:
            transaction.commit()

    def rollback(self) -> None:
        """Discard what was written since the last commit."""
        transaction, self._transaction = self._transaction, None
        if transaction is not None:
            transaction.rollback()

    def close(self) -> None:
        """Commit, close the file and release the lock; a second call does nothing."""
        if self._locks is None:
            return
        with self._locks:
            self._locks = None
            self.commit()


def _ignore(_: str) -> None:
    """Receive a sentence about the progress of a conversion."""


def _check_open(is_closed: bool) -> None:
    if is_closed:
        raise ValueError("The shelf is closed.")
