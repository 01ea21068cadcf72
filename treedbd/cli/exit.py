"""What commands print, and how they end: output, colours, excerpts, errors, exit status.

Results are written to standard output as bytes, at once. An error is one sentence on standard error
and the status 1; lines below it only show a place in a file. A wrong command line is argparse's
error, and 2. No sentence holds a token or a secret.

Colours are used on a terminal, unless `NO_COLOR` is set (no-color.org), never in a pipe. `excerpt`
shows a line of a document with a caret below one of its columns, as compilers do.
"""

from __future__ import annotations

import os
import sys

Status = int

DONE = 0
FAILED = 1
INTERRUPTED = 130
"""By Ctrl-C, as shells say it: 128 and the number of the signal."""

_CODES = {
    "object": "1;34",
    "key": "34",
    "string": "32",
    "number": "36",
    "boolean": "33",
    "word": "35",
    "dim": "2",
    "error": "31",
}

_MOST_LINKS = 40
_INDENT = "    "
_WIDTH = 100
"""Characters of a line that are shown; documents without line ends have very long ones."""
_BEFORE = 60
"""Characters of a long line that are shown before the caret."""
_CUT = "…"


class CommandFailed(Exception):
    """A command cannot do its work; `str()` is one sentence for the user.

    `details` are printable lines to be shown below it.
    """

    def __init__(self, sentence: str = "", *details: str) -> None:
        super().__init__(sentence)
        self.details = details


class OutputClosed(Exception):
    """The program that read our standard output has closed it."""


def write_out(data: bytes) -> None:
    """Write to standard output, waiting for its reader; raise `OutputClosed` or `CommandFailed`."""
    try:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise OutputClosed from None
    except OSError as error:
        raise CommandFailed(f"The output cannot be written ({error.strerror}).") from None


def print_line(text: str) -> None:
    """Write one line of text to standard output, in UTF-8 as JSON is, whatever the locale."""
    write_out(text.encode(errors="surrogateescape") + b"\n")


def descriptor_of(name: str) -> int | None:
    """Return the number of the open file that a name means, such as 1 for `/dev/stdout`.

    None for all other names. Such a file is written to where it is: it is not replaced.
    """
    for _ in range(_MOST_LINKS):
        folder, last = os.path.split(os.path.abspath(name))
        folder = os.path.realpath(folder)
        if folder == f"/proc/{os.getpid()}/fd":
            return int(last) if last.isdecimal() else None
        if not os.path.islink(name):
            break
        name = os.path.join(folder, os.readlink(name))
    return None


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: `1 row`, `2,635 rows`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def warn(sentence: str, *details: str) -> None:
    """Write a sentence to standard error, and printable lines below it."""
    lines = (f"treedb: {make_printable(sentence)}", *details)
    print(*lines, sep="\n", file=sys.stderr, flush=True)


def report_failure(error: CommandFailed | OutputClosed) -> Status:
    """Report why a command failed; return the exit status.

    A closed output (`treedb get … | head`) needs no sentence.
    """
    if isinstance(error, CommandFailed):
        warn(str(error), *error.details)
    try:
        sys.stdout.flush()
    except OSError:
        # Python flushes standard output once more at its end, and would report an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return FAILED


def make_printable(text: str) -> str:
    """Return text that cannot move a terminal's cursor or start another line."""
    return "".join(each if each.isprintable() else "�" for each in text)


def has_colour() -> bool:
    """Return whether standard output is a terminal that shows colours, and they are wanted."""
    is_wanted = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return is_wanted and sys.stdout.isatty()


def colour(text: str, kind: str) -> str:
    """Return a text in the colour of a kind."""
    code = _CODES.get(kind)
    return f"\x1b[{code}m{text}\x1b[0m" if code else text


def paint(text: str, kind: str) -> str:
    """Return a text in the colour of a kind, where standard output shows colours."""
    return colour(text, kind) if has_colour() else text


def paint_printable(text: str, kind: str) -> str:
    """Return a text in the colour of a kind; on a terminal it cannot move the cursor."""
    return paint(make_printable(text) if sys.stdout.isatty() else text, kind)


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
    import unicodedata

    if not character.isprintable():
        return 1  # shown as a replacement character
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def format_bytes(count: int) -> str:
    """Return a number of bytes in the unit that suits it: `1.2 MB`, of 1,048,576 bytes."""
    size, unit = float(count), "B"
    for larger in ("KB", "MB", "GB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"
