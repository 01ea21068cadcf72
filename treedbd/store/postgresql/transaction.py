"""A transaction on the local copy that records what it touches, for the commit in PostgreSQL.

Only keys and ranges are recorded: the values are read from the local transaction when the commit is
sent. A range is recorded only if there were rows in it, and as single keys if they were few: most
ranges that the tree removes are empty, and each would be a statement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final

from treedbd.store.engine import LogEntry
from treedbd.store.postgresql.position import END_OF_ROWS, CopyPosition
from treedbd.store.postgresql.touched import Range
from treedbd.store.sqlite.writer import SqliteTransaction

_FEW_ROWS: Final = 64


class RecordingTransaction:
    """A `Transaction` whose `commit` is that of the engine.

    Attributes:
        local: the transaction on the copy.
        base: the position of the copy when it began, and the epoch of the rules then.
        appended: the entries that were appended.
        first_sequence: the number of the last entry before them.

    """

    def __init__(
        self,
        local: SqliteTransaction,
        base: CopyPosition,
        commit: Callable[[RecordingTransaction], None],
        ended: Callable[[], None],
    ) -> None:
        """`commit` commits it; `ended` is called when it is rolled back."""
        self.local: Final = local
        self.base: Final = base
        self.first_sequence: Final = local.sequence()
        self.appended: Final[list[LogEntry]] = []
        self._commit = commit
        self._ended = ended
        self._is_over = False  # then a rollback must not end the turn that a lost commit has taken
        self._keys: set[bytes] = set()
        self._ranges: list[Range] = []
        # What only reads, or concerns only the copy, does not pass through here.
        self.get = local.get
        self.floor = local.floor
        self.scan = local.scan
        self.scan_keys = local.scan_keys
        self.sequence = local.sequence
        self.trim = local.trim
        self.shorten = local.shorten
        self.entries = local.entries

    def keys(self) -> tuple[bytes, ...]:
        """Return the keys that were put or deleted singly, in order."""
        return tuple(sorted(self._keys))

    def ranges(self) -> tuple[Range, ...]:
        """Return the ranges that were emptied, in their order in time."""
        return tuple(self._ranges)

    @property
    def changes_something(self) -> bool:
        """Whether there is anything to be sent."""
        return bool(self._keys or self._ranges or self.appended)

    def put(self, key: bytes, value: bytes) -> None:
        """Set the value of `key`."""
        self._keys.add(key)
        self.local.put(key, value)

    def put_all(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Set the values of many keys."""
        self.local.put_all(self._recorded(rows))

    def delete(self, key: bytes) -> None:
        """Remove `key` if it exists."""
        self._keys.add(key)
        self.local.delete(key)

    def delete_range(self, low: bytes, high: bytes) -> None:
        """Remove every key with `low <= key < high`."""
        high = min(high, END_OF_ROWS)
        present = list(islice(self.local.scan_keys(low, high), _FEW_ROWS + 1))
        if len(present) > _FEW_ROWS:
            self._ranges.append((low, high))
        else:
            self._keys.update(present)
        self.local.delete_range(low, high)

    def append(self, op_id: bytes, content: bytes) -> int:
        """Append an entry to the log; return its sequence number."""
        number = self.local.append(op_id, content)
        self.appended.append(LogEntry(number, op_id, content))
        return number

    def commit(self) -> None:
        """Make the changes durable in PostgreSQL, then in the copy.

        Raises `Conflict`, `StoreUnreachable` or `InDoubt`, too.
        """
        self._is_over = True
        self._commit(self)

    def rollback(self) -> None:
        """Discard the changes; no effect once the transaction has ended in any way."""
        if not self._is_over:
            self._is_over = True
            self.local.rollback()
            self._ended()

    def _recorded(self, rows: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        record = self._keys.add
        for row in rows:
            record(row[0])
            yield row
