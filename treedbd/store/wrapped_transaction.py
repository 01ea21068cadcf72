"""A transaction that passes everything on to another; what stands around one overrides the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from treedbd.store.engine import LogEntry, Row, Transaction


class WrappedTransaction:
    """A `Transaction` around another one; each method does what that of the other does."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    def get(self, key: bytes) -> bytes | None:
        """Return the value of `key`."""
        return self._transaction.get(key)

    def floor(self, key: bytes) -> Row | None:
        """Return the row with the greatest key that is at most `key`."""
        return self._transaction.floor(key)

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
        """Drop the entries with numbers up to and including `through`."""
        self._transaction.trim(through)

    def shorten(self, through: int, longest: int, cut: Callable[[bytes], bytes]) -> None:
        """Cut the entries with numbers up to `through` that are longer than `longest` bytes."""
        self._transaction.shorten(through, longest, cut)

    def commit(self) -> None:
        """Make the changes durable."""
        self._transaction.commit()

    def rollback(self) -> None:
        """Discard the changes."""
        self._transaction.rollback()
