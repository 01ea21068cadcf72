"""The process that reads a base for a standby.

`python -m treedbd.standby.base_process FILE DB TIME` prints the base of a database
(`archive.bases`) to standard output, at a low priority, and ends with status 0 if that is all.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import sys
from typing import Final

from treedbd.archive.bases import Dump
from treedbd.store.engine import CannotOpenStore, StoreFailed

_LOW_PRIORITY: Final = 10
"""How much nicer the process is than the daemon."""


def print_base(file: pathlib.Path, db: str, time_ms: int) -> None:
    """Print the base; raise what reading raises, or OSError."""
    moment = Dump(file, db=db, time_ms=time_ms, segment=0)
    with contextlib.closing(moment):
        for chunk in moment.chunks():
            sys.stdout.buffer.write(chunk)
        sys.stdout.buffer.flush()


def main() -> int:
    """Print the base that the arguments describe; return the status."""
    file, db, time_ms = sys.argv[1:]
    os.nice(_LOW_PRIORITY)
    try:
        print_base(pathlib.Path(file), db, int(time_ms))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (CannotOpenStore, StoreFailed, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
