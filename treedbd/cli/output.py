"""The output of commands: a file that appears when it is whole, colours, lines with a caret.

Results go to standard output, or to a file that has its name only when it is whole. Colours are
used on a terminal, unless `NO_COLOR` is set (no-color.org), never in a pipe. `excerpt` shows a line
of a document with a caret below one of its columns, as compilers do.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import sys
import tempfile
import unicodedata
from collections.abc import Callable, Iterator
from typing import BinaryIO, Final

from treedbd.cli.exit import CommandFailed, make_printable, write_out

_CODES: Final = {"object": "1;34", "string": "32", "number": "36", "boolean": "33", "dim": "2"}

_INDENT: Final = "    "
_WIDTH: Final = 100
"""Characters of a line that are shown; documents without line ends have very long ones."""
_BEFORE: Final = 60
"""Characters of a long line that are shown before the caret."""
_CUT: Final = "…"


def has_colour() -> bool:
    """Return whether standard output is a terminal that shows colours, and they are wanted."""
    is_wanted = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return is_wanted and sys.stdout.isatty()


class Palette:
    """Colours text for standard output, if it is a terminal that shows colours."""

    def __init__(self) -> None:
        self._is_terminal = sys.stdout.isatty()
        self._is_on = has_colour()

    def paint(self, text: str, kind: str) -> str:
        """Return a text in the colour of a kind; on a terminal it cannot move the cursor."""
        shown = make_printable(text) if self._is_terminal else text
        code = _CODES.get(kind)
        return f"\x1b[{code}m{shown}\x1b[0m" if self._is_on and code else shown


def excerpt(document: str, line: int, column: int) -> tuple[str, str]:
    """Return a line of a document, and the line with the caret; both numbers count from 1."""
    text = document.split("\n", line)[line - 1].removesuffix("\r")
    begin = max(0, column - 1 - _BEFORE) if len(text) > _WIDTH else 0
    before = _CUT * (begin > 0) + text[begin : column - 1]
    rest = text[column - 1 : begin + _WIDTH]
    after = rest + _CUT * (begin + _WIDTH < len(text))
    # A tab is as wide as the terminal makes it, so the caret's line has the same tabs.
    pad = "".join("\t" if each == "\t" else " " * _width(each) for each in before)
    shown = "\t".join(map(make_printable, (before + after).split("\t")))
    return f"{_INDENT}{shown}", f"{_INDENT}{pad}^"


def _width(character: str) -> int:
    """Return how many columns a terminal takes for a character."""
    if not character.isprintable():
        return 1  # shown as a replacement character
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


@contextlib.contextmanager
def opened_output(name: str | None) -> Iterator[Callable[[bytes], None]]:
    """Open a file for a `with` block, None or `-` for standard output; raise `CommandFailed`.

    The block is given the function that writes; it raises `CommandFailed` or `OutputClosed`.
    The file replaces another one when the block ends, not if it raises. Of a symbolic link the file
    that it names is replaced; a device or a named pipe is written to.
    """
    if name is None or name == "-":
        yield write_out
        return
    path = pathlib.Path(os.path.realpath(name))
    with _reported(name):
        is_file = path.is_file() or not path.exists()
        part, file = _create(path) if is_file else (None, path.open("wb"))

    def write(data: bytes) -> None:
        with _reported(name):
            file.write(data)

    try:
        with file:
            yield write
            with _reported(name):
                file.flush()
        if part is not None:
            with _reported(name):
                part.replace(path)
    except BaseException:
        if part is not None:
            part.unlink(missing_ok=True)
        raise


def _create(path: pathlib.Path) -> tuple[pathlib.Path, BinaryIO]:
    """Create an unfinished file beside a file, with its mode, or for its owner alone."""
    descriptor, part = tempfile.mkstemp(".part", f".{path.name[:100]}.", path.parent)
    os.fchmod(descriptor, path.stat().st_mode & 0o777 if path.exists() else 0o600)
    return pathlib.Path(part), os.fdopen(descriptor, "wb")


@contextlib.contextmanager
def _reported(name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CommandFailed(f"{name} cannot be written ({error.strerror}).") from None
