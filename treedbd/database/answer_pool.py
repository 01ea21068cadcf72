"""How much memory the kept answers of all databases take together.

What was used longest ago is dropped first; `answers` says what falls before, because of a write.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, Protocol

_SHARE: Final = 8
"""An answer of more than one of this many parts of the pool is not kept."""


class Droppable(Protocol):
    """An answer, as far as the pool knows it; `size` is in bytes."""

    @property
    def size(self) -> int:
        """The memory that it takes."""
        ...

    def drop(self) -> None:
        """Leave the pool, and the place where it would be found."""
        ...


class AnswerPool:
    """What bounds the answers of all databases.

    Attributes:
        size: the bytes that they take, as they are estimated.
        largest: bytes of the largest answer that is kept.
        hits, misses: how many reads found an answer, and how many might have but did not.

    """

    def __init__(self, limit: int) -> None:
        """Keep about `limit` bytes; 0 keeps nothing."""
        self.size = 0
        self.largest: Final = limit // _SHARE
        self.hits = 0
        self.misses = 0
        self._limit = limit
        self._by_use: OrderedDict[Droppable, None] = OrderedDict()

    @property
    def count(self) -> int:
        """How many answers are kept."""
        return len(self._by_use)

    def use(self, answer: Droppable) -> None:
        """Record that an answer is used."""
        self.hits += 1
        self._by_use.move_to_end(answer)

    def add(self, answer: Droppable) -> None:
        """Count an answer; drop what was used longest ago to make room for it."""
        self._by_use[answer] = None
        self.size += answer.size
        while self.size > self._limit and self._by_use:
            next(iter(self._by_use)).drop()

    def remove(self, answer: Droppable) -> None:
        """Count an answer no longer."""
        del self._by_use[answer]
        self.size -= answer.size
