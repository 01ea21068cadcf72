"""How a command ends: its output, its error and its exit status.

Results are written to standard output as bytes, at once. An error is one sentence on standard error
and the status 1; lines below it only show a place in a file. A wrong command line is argparse's
error, and 2. No sentence holds a token or a secret.
"""

from __future__ import annotations

import os
import sys

Status = int

DONE = 0
FAILED = 1
INTERRUPTED = 130
"""By Ctrl-C, as shells say it: 128 and the number of the signal."""


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
    """Write one line of text to standard output."""
    write_out(os.fsencode(text) + b"\n")


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
    else:
        # Python flushes standard output once more at its end, and would report an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return FAILED


def make_printable(text: str) -> str:
    """Return text that cannot move a terminal's cursor or start another line."""
    return "".join(each if each.isprintable() else "�" for each in text)
