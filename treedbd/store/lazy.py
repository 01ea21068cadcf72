"""A mapping that comes into being at its first commit.

A database that nobody has written to is empty and has no file. What a transaction on it changes is
kept in memory and, when it commits, written to the real mapping made at that moment; a transaction
that is rolled back leaves nothing anywhere.

What is made must be empty, as everyone was told that it is: what was judged, and who watches, knows
of nothing else. Where data has appeared meanwhile, the commit fails and the data is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from treedbd.store.layout import KEY_BYTES
from treedbd.store.mapping import Entry, Mapping, NotMade, Row, Rows, Snapshot, Transaction
from treedbd.store.memory import MemoryMapping

T = TypeVar("T")

_ALL = (b"", b"\xff" * (KEY_BYTES + 1))
"""A range that takes in every key."""
_TAKEN = (
    "Data has appeared where this new database was to be made: start the server anew to serve that."
)


class LazyMapping:
    """Stands for a mapping that `create` will make; passes everything on once it is there."""

    def __init__(self, create: Callable[[], Mapping], created: Callable[[], None]) -> None:
        """Call `created`, in the thread of the commit, when the mapping has come into being."""
        self._create = create
        self._created = created
        self._mapping: Mapping = MemoryMapping()
        self._is_real = False

    def read(self, work: Callable[[Rows], T]) -> T:
        """Run `work` on the present moment."""
        return self._mapping.read(work)

    def snapshot(self) -> Snapshot:
        """Hold the present moment open."""
        return self._mapping.snapshot()

    def begin(self) -> Transaction:
        """Open the one transaction."""
        transaction = self._mapping.begin()
        return transaction if self._is_real else _FirstTransaction(transaction, self._become_real)

    def recover(self) -> None:
        """Bring the mapping back from disk."""
        self._mapping.recover()

    def release_reserve(self) -> None:
        """Give up the space kept in reserve."""
        self._mapping.release_reserve()

    def restore_reserve(self) -> bool:
        """Take the reserve back."""
        return self._mapping.restore_reserve()

    def verify(self) -> list[str]:
        """Return what is damaged."""
        return self._mapping.verify()

    def size(self) -> int:
        """Return the bytes on the medium."""
        return self._mapping.size()

    def close(self) -> None:
        """Close in good order."""
        self._mapping.close()

    def _become_real(self, first: Transaction) -> None:
        rows = list(first.scan(*_ALL))
        entries = list(first.entries(0))
        first.rollback()
        mapping = self._create()
        try:
            if not mapping.read(_is_empty):
                raise NotMade(_TAKEN)
            transaction = mapping.begin()
            transaction.put_all(rows)
            for entry in entries:
                transaction.append(entry.op_id, entry.content)
            transaction.commit()
        except BaseException:
            mapping.close()
            raise
        self._mapping = mapping
        self._is_real = True
        self._created()


class _FirstTransaction:
    """Changes to what is not there yet; passes everything on but the commit."""

    def __init__(self, changes: Transaction, commit: Callable[[Transaction], None]) -> None:
        self._changes = changes
        self._commit = commit

    def get(self, key: bytes) -> bytes | None:
        return self._changes.get(key)

    def floor(self, key: bytes) -> Row | None:
        return self._changes.floor(key)

    def scan(self, low: bytes, high: bytes, *, reverse: bool = False) -> Iterator[Row]:
        return self._changes.scan(low, high, reverse=reverse)

    def scan_keys(self, low: bytes, high: bytes, *, reverse: bool = False) -> Iterator[bytes]:
        return self._changes.scan_keys(low, high, reverse=reverse)

    def sequence(self) -> int:
        return self._changes.sequence()

    def entries(self, after: int) -> Iterator[Entry]:
        return self._changes.entries(after)

    def put(self, key: bytes, value: bytes) -> None:
        self._changes.put(key, value)

    def put_all(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        self._changes.put_all(rows)

    def delete(self, key: bytes) -> None:
        self._changes.delete(key)

    def delete_range(self, low: bytes, high: bytes) -> None:
        self._changes.delete_range(low, high)

    def append(self, op_id: bytes, content: bytes) -> int:
        return self._changes.append(op_id, content)

    def trim(self, upto: int) -> None:
        self._changes.trim(upto)

    def commit(self) -> None:
        self._commit(self._changes)

    def rollback(self) -> None:
        self._changes.rollback()


def _is_empty(rows: Rows) -> bool:
    return not rows.sequence() and next(rows.scan_keys(*_ALL), None) is None
