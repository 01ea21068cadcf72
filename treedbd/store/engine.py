"""The interface to a storage engine: an ordered, transactional map of bytes to bytes, with a log.

One engine holds one database. The contract, which `tests/store/conformance.py` checks for every
engine:

- Keys and values are byte strings of any content; keys compare byte by byte.
- `read` shows one moment: the state that the last durable commit left. It never waits for a writer
  and never shows what a transaction has not committed. After `pin` it shows the same moment until
  `advance`, whatever is committed meanwhile: so a commit that ends in another thread is seen by all
  reads from the same moment on.
- An `EngineSnapshot` is such a moment held open until it is closed, at a cost to the engine; it is
  for readers that need many turns of the reactor.
- There is one `Transaction` at a time. It sees its own changes. `commit` returns only when they are
  durable, and may be called in another thread while nothing else uses the transaction; everything
  else belongs to the thread that opened the engine. A commit that raises has changed nothing that a
  reader can see. Any method of a transaction may raise `DiskFull` or `StoreFailed`, which ends it;
  `rollback` has no effect on a transaction that has ended.
- Views and the iterators over them end with the moment or the transaction that they belong to; a
  later use raises RuntimeError, as does opening a second transaction. A scan in a transaction goes
  on after the last key it returned, over the rows as they are by then. Reads do not nest.
- `append` adds one entry to the log and gives it the next sequence number: the numbers of a
  database start at 1, have no gaps and are in commit order; `trim` drops old entries, not numbers,
  and at most `TRIMMED_AT_ONCE` of them, so that what has collected is dropped by many writes.
- The engine of a database that several processes write (`postgresql`) may also raise `Conflict`,
  `StoreUnreachable` and `InDoubt` from `commit`. Each has ended the transaction and changed nothing
  that a reader of this process can see; after the last one the engine opens no transaction until
  `find_outcome` has found whether the commit was applied.
- After `StoreFailed`, the engine opens no transaction until `recover` has brought it back from disk
  and verified it; reads go on. After `DiskFull` nothing is lost and it opens transactions at once.

`Arrivals` is the second interface: whether others have committed to a database that several
processes write.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias, TypeVar

from treedbd.errors import OperatorError

T = TypeVar("T")

LONG_BYTES: Final = 65_536
"""A value of more bytes takes so long to read that it is read only if it is needed."""
TRIMMED_AT_ONCE: Final = 256
"""The most entries of a log that are dropped by one call."""
Row: TypeAlias = tuple[bytes, bytes]
"""A key and its value: a bare tuple, since a read may return a hundred thousand of them."""


class CannotOpenStore(OperatorError):
    """A database or data directory that cannot be served: locked, damaged, newer or foreign."""


class StoreInaccessible(CannotOpenStore):
    """A database that can perhaps be opened later: it is locked, or the disk or rights fail."""


class CannotCreateStore(Exception):
    """A database that cannot be created though the medium is sound; the text names no path."""


class StoreFailed(Exception):
    """The engine can no longer guarantee what it writes; `str()` is the reason, without a path."""


class StoreDamaged(StoreFailed):
    """The store is damaged so that nothing that is read from it can be trusted."""


class DamagedPage(StoreFailed):
    """A page of the store is damaged; what can be read without it can be trusted."""


class DiskFull(Exception):
    """The disk has no room for the transaction, of which nothing was written.

    Attributes:
        file: the file that was to be written; None if that is not known.
        needed: about how many bytes the transaction needed, 0 if that is not known.

    """

    def __init__(
        self,
        reason: str = "The disk is full.",
        *,
        file: pathlib.Path | None = None,
        needed: int = 0,
    ) -> None:
        super().__init__(reason)
        self.file = file
        self.needed = needed


class Conflict(Exception):
    """Another process has committed since; catch up, then do the batch again.

    Nothing was applied. The rules may also have been replaced meanwhile.
    """


class StoreUnreachable(Exception):
    """The store cannot be reached at present; surely nothing was applied.

    Nothing has to be recovered: the same may succeed at any later time. `str()` is the reason.
    """


class InDoubt(Exception):
    """Whether the commit was applied is not known yet; it was applied whole or not at all.

    It must not be reported as made or as failed before the engine knows its outcome.
    """


class DamagedRow(ValueError):
    """The content of a row is not what was written to it."""


Damage: TypeAlias = DamagedPage | StoreDamaged | DamagedRow


class LogEntry(NamedTuple):
    """One entry of the change log; `op_id` identifies the write when its outcome is in doubt."""

    sequence: int
    op_id: bytes
    content: bytes


class ReadView(Protocol):
    """The rows and the log at one moment."""

    def get(self, key: bytes) -> bytes | None:
        """Return the value of `key`."""
        ...

    def floor(self, key: bytes) -> Row | None:
        """Return the row with the greatest key that is at most `key`.

        Its value may be left out, and is empty then, if it is longer than `LONG_BYTES` and `key`
        does not begin with the key of the row.
        """
        ...

    def floors(self, keys: Sequence[bytes], longest: int) -> list[Row]:
        """Return the rows that `floor` returns for some keys, each once, in no certain order.

        A value of more than `longest` bytes is left out: it comes empty.
        """
        ...

    def scan(self, low: bytes, high: bytes, *, reverse: bool = False) -> Iterator[Row]:
        """Iterate over the rows with `low <= key < high` in key order, or backwards."""
        ...

    def scan_keys(self, low: bytes, high: bytes, *, reverse: bool = False) -> Iterator[bytes]:
        """Iterate over the keys alone, as `scan` does."""
        ...

    def sequence(self) -> int:
        """Return the number of the last entry that was ever appended, 0 before the first."""
        ...

    def entries(self, after: int) -> Iterator[LogEntry]:
        """Iterate over the retained entries with numbers above `after`."""
        ...


class PresentView(ReadView, Protocol):
    """The present moment, as `Engine.read` shows it."""

    def hold(self) -> EngineSnapshot | None:
        """Hold this moment open; the iterators over this view go on with it.

        The snapshot replaces the view. None if the moment cannot be held at present.
        """
        ...


class EngineSnapshot(ReadView, Protocol):
    """A moment that is held open."""

    def close(self) -> None:
        """Release the moment."""
        ...


class Transaction(ReadView, Protocol):
    """Changes that are not committed yet; it sees them."""

    def put(self, key: bytes, value: bytes) -> None:
        """Set the value of `key`."""
        ...

    def put_all(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Set the values of many keys; `rows` must not use the transaction while it is iterated."""
        ...

    def delete(self, key: bytes) -> None:
        """Remove `key` if it exists."""
        ...

    def delete_range(self, low: bytes, high: bytes) -> None:
        """Remove every key with `low <= key < high`."""
        ...

    def append(self, op_id: bytes, content: bytes) -> int:
        """Append an entry to the log; return its sequence number."""
        ...

    def trim(self, through: int) -> None:
        """Drop the oldest entries with numbers up to and including `through`, some at a time."""
        ...

    def shorten(
        self, after: int, through: int, longest: int, cut: Callable[[bytes], bytes]
    ) -> None:
        """Cut the entries above `after` and up to `through` that have more than `longest` bytes."""
        ...

    def commit(self) -> None:
        """Make the changes durable; raise `DiskFull` or `StoreFailed`."""
        ...

    def rollback(self) -> None:
        """Discard the changes."""
        ...


class Engine(Protocol):
    """The store of one database."""

    def read(self, work: Callable[[PresentView], T]) -> T:
        """Run `work` on the present moment and return its result."""
        ...

    def pin(self) -> None:
        """Pin the present moment: reads show it until `advance`, which precedes the next `begin`.

        Must precede a commit in another thread, unless nothing is read before it has returned.
        """
        ...

    def advance(self, *, holds: bool = False) -> EngineSnapshot | None:
        """Show the last commit to reads from now on.

        With `holds`, returns the moment that they showed until now, held; None if that is no longer
        open.
        """
        ...

    def needs_checkpoint(self) -> bool:
        """Return whether `checkpoint` is due: a commit left it out, because a moment was pinned."""
        ...

    def checkpoint(self) -> None:
        """Keep the log of the store short; blocks, and may be called in another thread.

        No transaction may be open meanwhile. Raises nothing; a failure shows at the next `begin`.
        """
        ...

    def compact(self) -> None:
        """Release unused space of the store; blocks, and may be called in another thread.

        No transaction may be open meanwhile; reads go on. Raises `DiskFull` or `StoreFailed`; then
        nothing has changed.
        """
        ...

    def snapshot(self) -> EngineSnapshot:
        """Hold the present moment open."""
        ...

    def begin(self) -> Transaction:
        """Open the one transaction; raise `StoreFailed` until `recover` has succeeded."""
        ...

    def recover(self) -> None:
        """Bring the store back from disk after `StoreFailed` and verify it; raise `StoreFailed`.

        Blocks, and may be called in another thread.
        """
        ...

    def release_reserve(self) -> None:
        """Release the space kept in reserve, so that removals still find room on a full disk."""
        ...

    def restore_reserve(self) -> bool:
        """Allocate the reserve again; return whether there was room for it."""
        ...

    def find_misplaced(self) -> str | None:
        """Return a sentence, without a path, about a file that is not where it was opened.

        None if all are. While there is one, no commit succeeds; reads go on.
        """
        ...

    def verify(self) -> list[str]:
        """Read the whole store and return what is damaged, one sentence each."""
        ...

    def size(self) -> int:
        """Return the bytes that the store occupies."""
        ...

    def close(self) -> None:
        """Close cleanly; what was committed stays."""
        ...


class Arrivals(Protocol):
    """What others commit to a database, as it arrives: in a shared shelf, or in a copy.

    Attributes:
        on_moment: called with each moment that reads begin to show; it must use only what it is
            given.

    """

    on_moment: Callable[[ReadView], None]

    def has_news(self) -> bool:
        """Return whether anything was committed since the last call that returned True.

        Commits of this process count too, from the moment when others can see them.
        """
        ...


class WrappedTransaction:
    """A `Transaction` that passes every call on to another one; subclasses override the rest."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    def get(self, key: bytes) -> bytes | None:
        """Return the value of `key`."""
        return self._transaction.get(key)

    def floor(self, key: bytes) -> Row | None:
        """Return the row with the greatest key that is at most `key`."""
        return self._transaction.floor(key)

    def floors(self, keys: Sequence[bytes], longest: int) -> list[Row]:
        """Return the rows that `floor` returns for some keys, each once."""
        return self._transaction.floors(keys, longest)

    def scan(self, low: bytes, high: bytes, *, reverse: bool = False) -> Iterator[Row]:
        """Iterate over rows."""
        return self._transaction.scan(low, high, reverse=reverse)

    def scan_keys(self, low: bytes, high: bytes, *, reverse: bool = False) -> Iterator[bytes]:
        """Iterate over keys."""
        return self._transaction.scan_keys(low, high, reverse=reverse)

    def sequence(self) -> int:
        """Return the number of the last entry."""
        return self._transaction.sequence()

    def entries(self, after: int) -> Iterator[LogEntry]:
        """Iterate over the retained entries with numbers above `after`."""
        return self._transaction.entries(after)

    def put(self, key: bytes, value: bytes) -> None:
        """Set the value of `key`."""
        self._transaction.put(key, value)

    def put_all(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Set the values of many keys."""
        self._transaction.put_all(rows)

    def delete(self, key: bytes) -> None:
        """Remove `key` if it exists."""
        self._transaction.delete(key)

    def delete_range(self, low: bytes, high: bytes) -> None:
        """Remove every key with `low <= key < high`; it pauses."""
        self._transaction.delete_range(low, high)

    def append(self, op_id: bytes, content: bytes) -> int:
        """Append an entry to the log; return its sequence number."""
        return self._transaction.append(op_id, content)

    def trim(self, through: int) -> None:
        """Drop the oldest entries with numbers up to and including `through`, some at a time."""
        self._transaction.trim(through)

    def shorten(
        self, after: int, through: int, longest: int, cut: Callable[[bytes], bytes]
    ) -> None:
        """Cut the entries above `after` and up to `through` that have more than `longest` bytes."""
        self._transaction.shorten(after, through, longest, cut)

    def commit(self) -> None:
        """Make the changes durable."""
        self._transaction.commit()

    def rollback(self) -> None:
        """Discard the changes."""
        self._transaction.rollback()
