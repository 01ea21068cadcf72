"""The `treedb` command: what an operator types, and which module does it."""

from __future__ import annotations

import argparse
import pathlib
from collections.abc import Sequence
from importlib.metadata import version
from typing import Final

from treedbd.cli import check, data, rules, token, watch
from treedbd.cli.options import Parser
from treedbd.cli.outcome import CommandFailed, ReaderLeft, Status, conclude

_EPILOG: Final = (
    "A URL is a place of the tree, as in https://localhost:8443/users/ada. A token for it comes "
    "from the variable TREEDB_TOKEN or from --token-file. The exit status is 0 on success, 1 where "
    "something failed, which one sentence on standard error says, and 2 for a wrong command line."
)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line; what it parses carries `run`."""
    parser = Parser(
        prog="treedb",
        description="Work with a treedb daemon and its data.",
        epilog=_EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"treedb {version('treedb')}")
    parser.add_argument("--config", metavar="FILE", type=pathlib.Path, help=argparse.SUPPRESS)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for module in (data, watch, token, rules, check):
        module.add_to(commands)
    return parser


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse a command line, that of the process for None; exit with 2 where it is wrong."""
    parser = make_parser()
    parsed, more = parser.parse_known_args(arguments)
    spare = getattr(parsed, "spare", None)
    if spare and getattr(parsed, spare) is None and len(more) == 1 and more[0][:2] != "--":
        # Before Python 3.13 argparse did not find an optional word that stands behind an option.
        setattr(parsed, spare, more.pop())
    if more:
        # Only the names of options are repeated: what else was typed may be a token.
        names = " ".join(word.partition("=")[0] for word in more if word.startswith("--"))
        parser.error(f"unknown options: {names}" if names else "too many words")
    return parsed


def main(arguments: Sequence[str] | None = None) -> Status:
    """Run one command; return its exit status."""
    parsed = parse(arguments)
    try:
        status: Status = parsed.run(parsed)
    except (CommandFailed, ReaderLeft) as error:
        return conclude(error)
    return status
