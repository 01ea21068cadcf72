"""Suggestions for names that are probably misspelt."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

_LIKENESS: Final = 0.75
"""How alike two names must be: `.raed` and `.read` are at 0.8, which is meant; `numChildren` and
`hasChildren` at 0.73, which is not."""
_LONGEST: Final = 40
"""Characters of a name that is compared; the comparison takes quadratic time."""


def suggest(name: str, known: Iterable[str]) -> str:
    """Return a hint that names the known name which is most like `name`; empty if none is."""
    if len(name) > _LONGEST:
        return ""
    by_folded = {each.casefold(): each for each in known}
    found = get_close_matches(name.casefold(), by_folded, n=1, cutoff=_LIKENESS)
    return f"Did you mean '{by_folded[found[0]]}'?" if found else ""
