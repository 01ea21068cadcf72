"""Colours of results: on a terminal, unless `NO_COLOR` is set (no-color.org), never in a pipe."""

from __future__ import annotations

import os
import sys
from typing import Final

from treedbd.cli.exit import make_printable

_CODES: Final = {"object": "1;34", "string": "32", "number": "36", "boolean": "33", "dim": "2"}


class Palette:
    """Colours text for standard output, if it is a terminal that shows colours."""

    def __init__(self) -> None:
        self._is_terminal = sys.stdout.isatty()
        self._is_on = (
            self._is_terminal
            and not os.environ.get("NO_COLOR")
            and os.environ.get("TERM") != "dumb"
        )

    def paint(self, text: str, kind: str) -> str:
        """Return a text in the colour of a kind; on a terminal it cannot move the cursor."""
        shown = make_printable(text) if self._is_terminal else text
        code = _CODES.get(kind)
        return f"\x1b[{code}m{shown}\x1b[0m" if self._is_on and code else shown
