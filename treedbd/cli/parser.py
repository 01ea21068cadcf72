"""The command line: its subcommands, and which module defines and runs each.

The module of a subcommand is imported only if that subcommand is given: the others cost no time.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final, NamedTuple

from treedbd.version import __version__

_EPILOG: Final = (
    "A URL names a path of a database, as in https://localhost:8443/users/ada. A token for it is "
    "read from the variable TREEDB_TOKEN or from --token-file. The exit status is 0 on success, 1 "
    "after an error, which is one sentence on standard error, and 2 for a wrong command line."
)


class _Command(NamedTuple):
    """A subcommand: the module that defines its options and runs it, and its summary."""

    module: str
    summary: str


COMMANDS: Final = {
    "get": _Command("data", "print the value at a path"),
    "set": _Command("data", "replace the value at a path"),
    "push": _Command("data", "add a child with a new key that sorts after all earlier ones"),
    "update": _Command("data", "change some children of a path and keep the others"),
    "remove": _Command("data", "remove the value at a path"),
    "watch": _Command("watch", "print the events of a path until Ctrl-C"),
    "import": _Command("loading.importing", "write a file of any size at a path"),
    "export": _Command("loading.exporting", "write the value at a path to a file"),
    "backup": _Command("backups.backup", "save all databases while the daemon runs"),
    "restore": _Command("backups.restore", "make a data directory of a backup"),
    "compact": _Command("compact", "give free space back to the file system"),
    "log": _Command("log", "print who has written what, and when"),
    "migrate": _Command("migration.migrate", "move a database here from another server"),
    "move": _Command("moving.move", "move all databases to PostgreSQL, or back"),
    "cluster": _Command("cluster", "show the daemons and databases of a PostgreSQL"),
    "token": _Command("token", "make a token for a project"),
    "rules": _Command("rules", "check, read, put and explain security rules"),
    "check": _Command("check", "read all databases and report errors"),
}


class OptionParser(argparse.ArgumentParser):
    """A parser that accepts options by their full names only.

    An abbreviation would become ambiguous with the next option that begins like it.
    """

    def __init__(self, *, command: str | None = None, **more: Any) -> None:
        """Parse the options of a subcommand, which are added when it is parsed."""
        super().__init__(**more, allow_abbrev=False)
        self._command = command

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does, with the options of the subcommand."""
        if self._command is not None:
            name, self._command = self._command, None
            import_module(f"treedbd.cli.{COMMANDS[name].module}").add_options(self, name)
        return super().parse_known_args(args, namespace)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line; what it parses carries `run`."""
    parser = OptionParser(
        prog="treedb",
        description="Work with a treedb daemon and its data.",
        epilog=_EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"treedb {__version__}")
    parser.add_argument("--config", metavar="FILE", help=argparse.SUPPRESS)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        commands.add_parser(name, command=name, help=command.summary)
    return parser


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse a command line; exit with 2 if it is wrong."""
    parser = make_parser()
    parsed, more = parser.parse_known_args(arguments)
    optional = getattr(parsed, "optional", None)
    if optional and getattr(parsed, optional) is None and len(more) == 1 and more[0][:2] != "--":
        # Before Python 3.13 argparse does not find an optional argument after an option.
        setattr(parsed, optional, more.pop())
    if more:
        # Only the names of options are repeated: anything else might be a token.
        names = " ".join(word.partition("=")[0] for word in more if word.startswith("--"))
        parser.error(f"unknown options: {names}" if names else "too many arguments")
    return parsed
