"""Entries of a change log, applied to the file of a database that is not served.

Theory of operation. An entry holds the resolved request (`store.changelog`), so the tree after it
is the tree before it with the same edit. `Redo` makes the edits by the writer that the daemon uses,
which keeps the indexes too, in transactions of many entries: most of the time of a single write is
that of its commit. Commits are not synced. The file is synced once, at the end (`finish`), and must
not be served before that: the caller gives it its name, or puts its folder in place, only then.

A transaction applies what many entries change together (`NetChanges`): places that are written
again and again are written once, and neighbours one after the other. Long bodies are applied
fragment by fragment, as the daemon has applied them (`store.bulk`), so memory does not grow with a
body.

The file continues the history that the entries are from: its log ends with the newest of them,
under their own numbers and ids. The writes that sessions had kept for their ends are known only at
the moment of a base, so they are removed as soon as an entry is applied: by then they may have been
cancelled, and the next daemon would run them.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

from treedbd.files import sync_directory
from treedbd.limits import MIB, StreamLimits
from treedbd.store import changelog
from treedbd.store.bulk import BulkPatch, BulkWriter
from treedbd.store.engine import LogEntry
from treedbd.store.expiry_rows import distrust
from treedbd.store.indexes import DISCONNECT_END, DISCONNECT_FIRST, make_writer, read_states
from treedbd.store.node_writer import NodeWriter
from treedbd.store.sqlite.engine import FILE_SUFFIXES, SqliteEngine
from treedbd.store.sqlite.file import beside
from treedbd.store.sqlite.history import MARK, Mark, MarkFile
from treedbd.store.sqlite.writer import SqliteTransaction
from treedbd.tree.edit import ANY_LENGTH, Resolver, set_value
from treedbd.tree.fragments import Splitter
from treedbd.tree.types import Change, InvalidData, InvalidPath, Path, Place, Value
from treedbd.tree.value import nest

BATCH_ENTRIES: Final = 16_384
BATCH_BYTES: Final = 8 * MIB
"""Entries, and bytes of them, that are applied in one transaction."""
LONG_BYTES: Final = 256 * 1024
"""A longer entry is applied in fragments."""
PAGES_BYTES: Final = 128 * MIB
"""Pages of the file that are kept in memory."""
_PIECE_BYTES: Final = 65_536
_RETAINED: Final = StreamLimits().retain_events + 1
"""Entries that the log of a restored file has: as many as a daemon keeps, and one before them."""
_SHORT_BYTES: Final = 16 * 1024
"""A value of more bytes is written before what is set below it."""
_MAX_PLAIN: Final = 10_000


class CannotRedo(Exception):
    """An entry that does not continue a history, or that says nothing that could be applied.

    Attributes:
        sequence: its number.
        is_left_out: whether the entry is sound, but its body was not kept.

    """

    def __init__(self, sequence: int, reason: str, *, is_left_out: bool = False) -> None:
        super().__init__(f"The entry {sequence} {reason}.")
        self.sequence = sequence
        self.is_left_out = is_left_out


class NetChanges:
    """What many edits change together: the values that are set, and the places that are removed.

    No place that is kept is above another one. Values first, in the order of their paths, then
    removals, have the effect of the edits in their own order, for these reasons:

    - What is set at a place replaces all that is there. What is written below a value that is kept
      is written in that value.
    - Edits of places of which none is above another commute, but for one case: a removal may leave
      a container empty, which then loses its priority. So a removal below a container with a
      priority, and all that sets a priority, is applied by itself (`add_alone`).
    - A value that is set makes containers of the leaves above it, also if it is removed again: so
      before a removal in its place something is set there.
    """

    def __init__(self, writer: NodeWriter, plain: set[Path]) -> None:
        """Change the tree by `writer`; `plain` are places that surely have no priority."""
        self._writer = writer
        self._plain = plain
        self._set: dict[Path, Value] = {}
        self._sizes: dict[Path, int] = {}
        self._removed: set[Path] = set()
        self._below: dict[Path, set[Path]] = {}  # of each place above them

    def add(self, changes: Sequence[Change], size: int) -> None:
        """Keep changes that set no priority, in their order; `size` is that of their entry."""
        for change in changes:
            path, value = change.place.path, change.value
            if value is None and not self._is_plain_above(path):
                self.flush()
                self._writer.change([change])
                continue
            above = self._find_above(path)
            if above is None:
                self._keep(path, value, size)
            else:
                self._write_inside(above, path[len(above) :], value, size)

    def add_alone(self, changes: Sequence[Change]) -> None:
        """Apply changes that may set priorities."""
        self.flush()
        self._plain.clear()
        self._writer.change(changes)

    def flush(self) -> None:
        """Apply what is kept."""
        changes: list[Change] = [Change(Place(path), self._set[path]) for path in sorted(self._set)]
        changes += [Change(Place(path), None) for path in sorted(self._removed)]
        if changes:
            self._writer.change(changes)
        self._set.clear()
        self._sizes.clear()
        self._removed.clear()
        self._below.clear()

    def finish(self) -> None:
        """Apply what is kept, and store all of it in the transaction."""
        self.flush()
        self._writer.flush()

    def target_of(self, entry: changelog.NotRetained) -> BulkWriter | BulkPatch:
        """Return what the body of an entry is added to, when all before it is applied."""
        self.add_alone(())
        self._writer.flush()
        resolver = Resolver(0, None)  # an entry has no server values
        path = entry.place.path
        if entry.method == "put":
            return BulkWriter(self._writer, path, resolver, ANY_LENGTH)
        return BulkPatch(
            writer=self._writer,
            path=path,
            resolver=resolver,
            max_string_bytes=ANY_LENGTH,
            shown_bytes=0,
        )

    def _find_above(self, path: Path) -> Path | None:
        """Return the place above a path that is kept, None if there is none."""
        for depth in range(len(path)):
            above = path[:depth]
            if above not in self._below:
                return above if above in self._set or above in self._removed else None
        return None

    def _keep(self, path: Path, value: Value, size: int) -> None:
        is_known = path in self._set or path in self._removed
        had_any = path in self._set
        for below in self._below.pop(path, ()):
            had_any = had_any or below in self._set
            self._forget(below, len(path))
        if value is None:
            self._removed.add(path)
            value = True if had_any else None
        else:
            self._removed.discard(path)
        if value is not None:
            self._set[path] = value
            self._sizes[path] = size
        if not is_known:
            for depth in range(len(path)):
                self._below.setdefault(path[:depth], set()).add(path)

    def _forget(self, path: Path, depth: int) -> None:
        """Forget a place, and that it is below others, those down to a depth."""
        self._set.pop(path, None)
        self._sizes.pop(path, None)
        self._removed.discard(path)
        for length in range(len(path)):
            above = path[:length]
            if (places := self._below.get(above)) is not None:
                places.discard(path)
                if not places and length > depth:
                    del self._below[above]

    def _write_inside(self, above: Path, inside: Path, value: Value, size: int) -> None:
        """Write below a place that is kept."""
        if above in self._removed:
            if value is not None:
                self._keep(above, nest(inside, value), size)
            return
        if self._sizes[above] > _SHORT_BYTES:
            self.flush()
            self._keep((*above, *inside), value, size)
            return
        self._keep(above, set_value(self._set[above], inside, value), self._sizes[above] + size)

    def _is_plain_above(self, path: Path) -> bool:
        """Return whether no place above a path has a priority."""
        return all(
            path[:depth] in self._plain or self._is_plain(path[:depth])
            for depth in range(len(path) - 1, -1, -1)
        )

    def _is_plain(self, path: Path) -> bool:
        if self._writer.priority(path) is not None:
            return False
        if len(self._plain) >= _MAX_PLAIN:
            self._plain.clear()
        self._plain.add(path)
        return True


class Redo:
    """Applies entries to the file of one database, which nothing else uses.

    Attributes:
        sequence, op_id: the number and the id of the last entry that was applied, or that the file
            came with.

    """

    def __init__(self, file: pathlib.Path) -> None:
        """Open a file, or create it if it is missing; raise `CannotOpenStore` or `DiskFull`."""
        self._file = file
        if not file.exists():
            SqliteEngine.create(file, reserve_bytes=0).close()
        self._engine = SqliteEngine.open(file, reserve_bytes=0, is_cache=True)
        self._engine.limit_cache(PAGES_BYTES)
        self._newest: deque[LogEntry] = deque(maxlen=_RETAINED)
        self._engine.read(lambda view: self._newest.extend(view.entries(0)))
        self.sequence: int = self._engine.read(lambda view: view.sequence())
        self.op_id = self._newest[-1].op_id if self._newest else b""
        self._transaction: SqliteTransaction | None = None
        self._changes: NetChanges | None = None
        self._plain: set[Path] = set()
        self._entries = self._bytes = 0  # of the open transaction
        self._has_changed = False

    def __enter__(self) -> Self:
        """Return the object."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the file, as it is after an exception, else as `finish` does."""
        if error is None:
            self.finish()
        else:
            self._abandon()

    def apply(self, entry: LogEntry) -> None:
        """Apply the next entry; raise `CannotRedo`, `StoreFailed` or `DiskFull`."""
        if entry.sequence != self.sequence + 1:
            raise CannotRedo(entry.sequence, f"does not follow the entry {self.sequence}")
        try:
            self._apply(self._changes or self._begin(), entry)
        except (InvalidData, InvalidPath, ValueError, LookupError, TypeError) as error:
            raise CannotRedo(entry.sequence, "cannot be read") from error
        self.sequence, self.op_id = entry.sequence, entry.op_id
        self._newest.append(_shortened(entry))
        self._entries += 1
        self._bytes += len(entry.content)
        if self._entries >= BATCH_ENTRIES or self._bytes >= BATCH_BYTES:
            self._commit()

    def _apply(self, changes: NetChanges, entry: LogEntry) -> None:
        content = entry.content
        size = len(content)
        if size > LONG_BYTES:
            head, body = changelog.split_body(content)
            if body is not None and not head.place.is_priority:
                _apply_long(changes.target_of(head), body)
                return
        edit = changelog.decode(content, size)
        if isinstance(edit, changelog.NotRetained):
            raise CannotRedo(entry.sequence, "was kept without its body", is_left_out=True)
        if sets_priority(content):
            changes.add_alone(edit.changes)
        else:
            changes.add(edit.changes, size)

    def finish(self) -> None:
        """Make all that was applied durable, as a database that was closed cleanly."""
        if self._has_changed:
            self._begin()
            self._commit(is_last=True)
        self._engine.close()
        with contextlib.closing(MarkFile(beside(self._file, MARK))) as mark:
            mark.write(Mark(self.sequence, self.op_id, is_closed=True), sync=True)
        for suffix in FILE_SUFFIXES:
            if suffix not in ("", MARK):
                beside(self._file, suffix).unlink(missing_ok=True)
        descriptor = os.open(self._file, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        sync_directory(self._file.parent)

    def _begin(self) -> NetChanges:
        if self._transaction is None or self._changes is None:
            self._transaction = self._engine.begin()
            if not self._has_changed:
                self._transaction.delete_range(DISCONNECT_FIRST, DISCONNECT_END)
                distrust(self._transaction)
                self._has_changed = True
            kept = read_states(self._transaction).kept
            self._changes = NetChanges(make_writer(self._transaction, kept), self._plain)
        return self._changes

    def _commit(self, *, is_last: bool = False) -> None:
        """Commit what was applied; the log is written with the last commit only."""
        transaction, changes = self._transaction, self._changes
        self._transaction = self._changes = None
        self._entries = self._bytes = 0
        if transaction is None or changes is None:
            return
        changes.finish()
        if is_last:
            transaction.replace_log(self.sequence, self._newest)
        transaction.commit()

    def _abandon(self) -> None:
        transaction, self._transaction, self._changes = self._transaction, None, None
        if transaction is not None:
            transaction.rollback()
        self._engine.close()


def _apply_long(target: BulkWriter | BulkPatch, body: bytes) -> None:
    """Make an edit from its body, fragment by fragment, as the daemon makes a long one."""
    splitter = Splitter()
    for at in range(0, len(body), _PIECE_BYTES):
        for fragment in splitter.feed(body[at : at + _PIECE_BYTES]):
            target.add(fragment)
    for fragment in splitter.finish():
        target.add(fragment)
    target.finish()


def sets_priority(content: bytes) -> bool:
    """Return whether an entry may set a priority; it surely does not if this is False.

    In a body as it was sent the name of a priority may be escaped.
    """
    return b'.priority"' in content or b'"is_priority":true' in content or b"\\u" in content


def _shortened(entry: LogEntry) -> LogEntry:
    """Return an entry as the log keeps it: a long one without its body."""
    if len(entry.content) <= changelog.MAX_ENTRY_BYTES:
        return entry
    return entry._replace(content=changelog.without_body(entry.content))
