"""Errors for operators, and text that is safe in a log: one line, and not too many of them.

An `OperatorError` is what an operator has to correct: a file, an endpoint or a setting that cannot
be used. `find_similar` finds the name that a mistyped one means. `in_one_line` makes text of
unknown origin safe to print in a log, a sentence or a terminal. A `LineBudget` bounds how many
lines of one kind are logged, so that no caller can fill a disk with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Final

LIKENESS: Final = 0.6
"""How alike two names are of which one is taken for the other, from 0 to 1."""
_LONGEST_NAME: Final = 40
"""Characters of a name that is compared; the comparison takes quadratic time."""


def find_similar(name: str, known: Iterable[str], likeness: float = LIKENESS) -> str | None:
    """Return the known name that is most like a mistyped one, in any case; None if none is."""
    if len(name) > _LONGEST_NAME:
        return None
    by_folded = {each.casefold(): each for each in known}
    folded = name.casefold()
    if folded in by_folded:
        return by_folded[folded]
    # Loaded only for a mistyped name, because commands have to start fast.
    found = import_module("difflib").get_close_matches(folded, by_folded, 1, likeness)
    return by_folded[found[0]] if found else None


class OperatorError(Exception):
    """One sentence for an operator, `<subject> <problem>: <remedy>`.

    Attributes:
        subject: what cannot be used, by its full name: a file, an endpoint, a key of a file.
        problem: what is wrong with it, from the verb on: "cannot be read (No such file)".
        remedy: what to do about it, in the imperative.

    """

    def __init__(self, subject: object, problem: str, remedy: str) -> None:
        super().__init__(subject, problem, remedy)
        self.subject = str(subject)
        self.problem = problem
        self.remedy = remedy

    def __str__(self) -> str:
        """Return the sentence, on one line."""
        return in_one_line(f"{self.subject} {self.problem}: {self.remedy}.")

    def in_setting(self, source: str, key: str) -> str:
        """Return the sentence prefixed with the file and the key that name the subject."""
        return in_one_line(f"{source}: {key}: {self}")


def in_one_line(text: str) -> str:
    """Return text with escapes for what would start another line or move a terminal's cursor."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else _escape(each) for each in text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()


BUDGET_LINES: Final = 20
BUDGET_S: Final = 60.0

NO_FIELDS: Final[Mapping[str, object]] = MappingProxyType({})
"""The fields of an entry of the log that is only a text."""


class LineBudget:
    """At most `lines` lines in each period of `per_s` seconds; those beyond it are counted."""

    def __init__(
        self, seconds: Callable[[], float], lines: int = BUDGET_LINES, per_s: float = BUDGET_S
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

        It is empty, or says how many lines were left out before, or that the next ones will be.
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
