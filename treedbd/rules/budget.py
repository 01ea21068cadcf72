"""What the rules of one request may read, and the errors of an evaluation."""

from __future__ import annotations

from typing import Final

from treedbd.limits import KIB, RulesLimits
from treedbd.loop import pause

DEFAULT_CHARACTERS: Final = RulesLimits().judged_characters
AT_ONCE_PART: Final = 2
"""The part of them that may be read in one turn: a half."""
PAUSED_CHARACTERS: Final = 64 * KIB
"""Characters that take long enough to read for a pause before them."""


class EvaluationError(Exception):
    """An expression has no value; its rule counts as not true."""


class BudgetExceeded(EvaluationError):
    """The rules of one request have read all that they may read for it."""

    def __init__(self) -> None:
        super().__init__("The rules read too much text.")


class Budget:
    """The characters that the rules of one request may still read.

    They are those of stored text that has to be parsed, of what string methods, patterns and
    comparisons read, and of paths. One takes about a nanosecond.

    Attributes:
        characters: how many are left.
        at_once: whether all rules are evaluated in one turn, so that a pattern is charged what it
            takes at the worst.

    """

    __slots__ = ("at_once", "characters")

    def __init__(self, characters: int = DEFAULT_CHARACTERS, *, at_once: bool = False) -> None:
        self.characters = characters
        self.at_once = at_once

    def spend(self, characters: int) -> None:
        """Subtract characters about to be read; raise `BudgetExceeded` if too few remain.

        Many of them pause.
        """
        self.characters -= characters
        if self.characters < 0:
            raise BudgetExceeded
        if characters >= PAUSED_CHARACTERS:
            pause()
