"""How a command ends: what it prints, what it says when it fails, and the exit status.

Results go to standard output as bytes, at once. A failure is one sentence on standard error and the
status 1; what is wrong with the command line itself is argparse's affair, and 2. No sentence holds
a token or a secret.
"""

from __future__ import annotations

import os
import sys
from typing import Final, TypeAlias

DONE: Final = 0
FAILED: Final = 1

Status: TypeAlias = int


class CommandFailed(Exception):
    """What keeps a command from doing its work; one sentence says so."""


class ReaderLeft(Exception):
    """Whoever read our standard output does not read any more."""


def write_out(data: bytes) -> None:
    """Write to standard output, waiting for its reader; raise `ReaderLeft` or `CommandFailed`."""
    try:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise ReaderLeft from None
    except OSError as error:
        raise CommandFailed(f"The output cannot be written ({error.strerror}).") from None


def print_line(text: str) -> None:
    """Write one line of text to standard output."""
    write_out(os.fsencode(text) + b"\n")


def warn(sentence: str) -> None:
    """Say something on standard error."""
    print(f"treedb: {printable(sentence)}", file=sys.stderr, flush=True)


def conclude(error: CommandFailed | ReaderLeft) -> Status:
    """Say why a command failed; return the exit status.

    A reader that leaves (`treedb get … | head`) needs no sentence.
    """
    if isinstance(error, CommandFailed):
        warn(str(error))
    else:
        # Python flushes standard output once more at its end, and would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return FAILED


def printable(text: str) -> str:
    """Return text that cannot move a terminal's cursor or begin another line."""
    return "".join(each if each.isprintable() else "�" for each in text)
