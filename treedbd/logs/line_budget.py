"""A bound on how many lines of one kind are logged, so that no caller can fill a disk with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

LINES: Final = 20
PER_S: Final = 60.0

NO_FIELDS: Final[Mapping[str, object]] = MappingProxyType({})
"""Of an entry of the log that has no more than its text."""


class LineBudget:
    """At most `lines` lines in each period of `per_s` seconds; those beyond it are counted."""

    def __init__(
        self, seconds: Callable[[], float], lines: int = LINES, per_s: float = PER_S
    ) -> None:
        """Count time by `seconds`."""
        self._seconds = seconds
        self._lines = lines
        self._per_s = per_s
        self._began = seconds()
        self._used = 0
        self._left_out = 0

    def take(self) -> str | None:
        """Return what to append to a line that may be logged; None if it must not be.

        It is empty, or says how many lines were left out before, or that no more follow for now.
        """
        now = self._seconds()
        if now - self._began >= self._per_s:
            self._began, self._used = now, 0
        if self._used >= self._lines:
            self._left_out += 1
            return None
        self._used += 1
        note = ""
        if self._left_out:
            note = f" … {self._left_out} more such lines were left out before."
            self._left_out = 0
        if self._used == self._lines:
            left = max(1, round(self._per_s - (now - self._began)))
            note += f" Further such lines are left out, and counted, for {left} s."
        return note
