"""What a writer remembers between two changes: where no rows are, and how many there are."""

from __future__ import annotations

from typing import NamedTuple


class EmptyRange(NamedTuple):
    """There is no row from `low` to `high`; `low` is just after the subtree of a node."""

    low: bytes
    high: bytes | None

    def holds(self, encoded: bytes) -> bool:
        """Return whether an encoded path is in the range, so that nothing is there."""
        if self.high is None:
            return self.low <= encoded
        return self.low <= encoded < self.high and not self.high.startswith(encoded)


class RowCount(NamedTuple):
    """A lower bound of the rows below a spread container, found by reading `counted` keys."""

    container: bytes
    rows: int
    counted: int
