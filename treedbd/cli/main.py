"""The `treedb` command: parses the command line and runs the command."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from treedbd import __version__
from treedbd.cli.exit import (
    DONE,
    INTERRUPTED,
    CommandFailed,
    OutputClosed,
    Status,
    print_line,
    report_failure,
)


def main(arguments: Sequence[str] | None = None) -> Status:
    """Run one command, that of the process if None; return its exit status."""
    words = sys.argv[1:] if arguments is None else arguments
    try:
        if list(words) == ["--version"]:  # needs no parser, which takes longest to import
            print_line(f"treedb {__version__}")
            return DONE
        parsed = import_module("treedbd.cli.parser").parse(words)
        status: Status = parsed.run(parsed)
    except KeyboardInterrupt:
        return INTERRUPTED
    except (CommandFailed, OutputClosed) as error:
        return report_failure(error)
    return status
