"""The command line of `treedb rules test`, which judges cases by rules without a daemon."""

from __future__ import annotations

import pathlib
import re
from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError, Namespace
from fractions import Fraction
from importlib import import_module
from typing import Final

from treedbd.cli.exit import Status

_PERCENT: Final = re.compile(r"(?:100|[0-9]{1,2})(?:\.[0-9]{1,3})?%?")
_ALL: Final = Fraction(100)


def add_options(parser: ArgumentParser) -> None:
    """Add the options of the command to its parser."""
    parser.add_argument(
        "files", metavar="FILE", nargs="+", help="a test file: rules, data, and cases"
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="list all cases")
    required = parser.add_mutually_exclusive_group()
    required.add_argument(
        "--require-coverage",
        dest="required",
        action="store_const",
        const=_ALL,
        help="fail unless each rule was true in one case and false in another",
    )
    required.add_argument(
        "--least-coverage",
        dest="required",
        metavar="PERCENT",
        type=_percent,
        help="fail if fewer results of rules were seen",
    )
    parser.add_argument("--junit", metavar="FILE", type=pathlib.Path, help="write JUnit's XML")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument(
        "--config",
        metavar="FILE",
        default=SUPPRESS,  # it may precede the command as well
        help="a daemon's configuration file, whose limits of rules apply (default: its defaults)",
    )
    parser.set_defaults(run=_run)


def _run(arguments: Namespace) -> Status:
    # Imported only now: the other subcommands of `rules` need none of it.
    status: Status = import_module("treedbd.cli.rules_testing.command").run(arguments)
    return status


def _percent(text: str) -> Fraction:
    if not _PERCENT.fullmatch(text) or Fraction(text.rstrip("%")) > _ALL:
        raise ArgumentTypeError("must be a percentage from 0 to 100")
    return Fraction(text.rstrip("%"))
