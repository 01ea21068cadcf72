"""What the rules of one request may read, and the errors of an evaluation."""

from __future__ import annotations

from typing import Final

from treedbd.limits import RulesLimits

DEFAULT_CHARACTERS: Final = RulesLimits().judged_characters


class EvaluationError(Exception):
    """An expression has no value; its rule counts as not true."""


class BudgetExceeded(EvaluationError):
    """The rules of one request have read all that they may read for it."""

    def __init__(self) -> None:
        super().__init__("The rules read too much text.")


class Budget:
    """The characters that the rules of one request may still read.

    They are those of stored text that has to be parsed, of what string methods, patterns and
    comparisons read, and of paths.
    """

    __slots__ = ("characters",)

    def __init__(self, characters: int = DEFAULT_CHARACTERS) -> None:
        self.characters = characters

    def spend(self, characters: int) -> None:
        """Subtract characters that are read; raise `BudgetExceeded` if too few remain."""
        self.characters -= characters
        if self.characters < 0:
            raise BudgetExceeded
