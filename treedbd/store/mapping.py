"""The seam to an engine: an ordered, transactional mapping of bytes to bytes, with a log.

One mapping holds one database. The contract, which `tests/store/conformance.py` checks for every
engine:

- Keys and values are byte strings of any content; keys compare byte by byte.
- `read` shows one moment: what the last durable commit left. It never waits for a writer and never
  shows what a transaction has not committed.
- A `Snapshot` is such a moment held open until it is closed, at a cost to the engine; it belongs
  to readers that need many turns.
- There is one `Transaction` at a time. It sees its own changes. `commit` returns only when they are
  durable, and may be called in another thread while nothing else touches the transaction; the rest
  belongs to the thread that opened the mapping. A commit that raises has changed nothing that a
  reader can see. Any method of a transaction may raise `Full` or `Failed`, which ends it;
  `rollback` has no effect on a transaction that has ended.
- Rows and the iterators over them end with the moment or the transaction that they belong to;
  whoever uses one later gets RuntimeError, as does whoever opens a second transaction. A scan in a
  transaction goes on behind the last key it gave, over the rows as they are by then. Reads do not
  nest.
- `append` puts one entry into the log and gives it the next sequence number: numbers of a database
  start at 1, have no gaps and stand in commit order. `trim` forgets old entries, never numbers.
- After `Failed`, the mapping takes no transaction until `recover` has brought it back from disk and
  verified it; reads go on. After `Full` it has lost nothing and takes transactions at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

T = TypeVar("T")

Row: TypeAlias = tuple[bytes, bytes]
"""One key and its value: a bare tuple, since a read may take a hundred thousand of them."""


class Refused(Exception):
    """A store that cannot be opened: locked, damaged, newer or foreign; one sentence says which."""


class NotMade(Exception):
    """A mapping that cannot come into being though the medium is sound; says why, without paths."""


class Failed(Exception):
    """The engine can no longer vouch for what it writes; the reason, without any path."""


class Full(Exception):
    """There is no space for what was to be written; nothing of the transaction was."""


class Entry(NamedTuple):
    """One entry of the change log; `op_id` tells operations apart when an outcome is in doubt."""

    sequence: int
    op_id: bytes
    content: bytes


class Rows(Protocol):
    """What can be read at one moment."""

    def get(self, key: bytes) -> bytes | None:
        """Return the value of `key`."""
        ...

    def floor(self, key: bytes) -> Row | None:
        """Return the row with the greatest key that is at most `key`."""
        ...

    def scan(self, low: bytes, high: bytes, *, reverse: bool = False) -> Iterator[Row]:
        """Iterate over the rows with `low <= key < high` in key order, or backwards."""
        ...

    def scan_keys(self, low: bytes, high: bytes, *, reverse: bool = False) -> Iterator[bytes]:
        """Iterate over the keys alone, as `scan` does."""
        ...

    def sequence(self) -> int:
        """Return the number of the last entry ever appended, 0 before the first."""
        ...

    def entries(self, after: int) -> Iterator[Entry]:
        """Iterate over the entries that are still retained and have a number above `after`."""
        ...


class Snapshot(Rows, Protocol):
    """One moment, held open."""

    def close(self) -> None:
        """Let the moment go."""
        ...


class Transaction(Rows, Protocol):
    """Changes under way; sees itself."""

    def put(self, key: bytes, value: bytes) -> None:
        """Set the value of `key`."""
        ...

    def put_all(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Set the values of many keys; nothing may use the transaction while they are iterated."""
        ...

    def delete(self, key: bytes) -> None:
        """Remove `key` if it is there."""
        ...

    def delete_range(self, low: bytes, high: bytes) -> None:
        """Remove every key with `low <= key < high`."""
        ...

    def append(self, op_id: bytes, content: bytes) -> int:
        """Append an entry to the log; return its sequence number."""
        ...

    def trim(self, upto: int) -> None:
        """Forget the entries with numbers up to and including `upto`."""
        ...

    def commit(self) -> None:
        """Make the changes durable; raise `Full` or `Failed`."""
        ...

    def rollback(self) -> None:
        """Forget the changes."""
        ...


class Mapping(Protocol):
    """One engine's store of one database."""

    def read(self, work: Callable[[Rows], T]) -> T:
        """Run `work` on the present moment and return what it returns."""
        ...

    def snapshot(self) -> Snapshot:
        """Hold the present moment open."""
        ...

    def begin(self) -> Transaction:
        """Open the one transaction; raise `Failed` while the mapping waits for `recover`."""
        ...

    def recover(self) -> None:
        """Bring the mapping back from disk after `Failed`, verified; raise `Failed` if it cannot.

        Blocks, and may be called in another thread.
        """
        ...

    def release_reserve(self) -> None:
        """Give up the space kept in reserve, so that removals still find room on a full disk."""
        ...

    def restore_reserve(self) -> bool:
        """Take the reserve back; return whether there was room for it."""
        ...

    def verify(self) -> list[str]:
        """Read the whole store and return what is damaged, a sentence each."""
        ...

    def size(self) -> int:
        """Return the bytes that the store takes on its medium."""
        ...

    def close(self) -> None:
        """Close in good order; what was committed stays."""
        ...
