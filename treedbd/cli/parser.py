"""The command line: its subcommands, which module defines and runs each, and its completion.

The module of a subcommand is imported only if that subcommand is given: the others cost no time.
`treedb completion` prints the script with which a shell completes commands, options and files.
"""

from __future__ import annotations

import argparse
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from types import MappingProxyType
from typing import Any, Final, NamedTuple, NoReturn

from treedbd import __version__
from treedbd.cli.exit import DONE, Status, print_line
from treedbd.errors import find_similar

_EPILOG: Final = (
    "A URL names a path of a database, as in https://localhost:8443/users/ada; a path alone is one "
    "below the variable TREEDB_URL, or of the daemon that serves ./treedb-data. A token is read "
    "from the variable TREEDB_TOKEN or from --token-file. The exit status is 0 on success, 1 after "
    "an error, which is one sentence on standard error, and 2 for a wrong command line."
)
_KNOWN: Final = "known_options"

SHELLS: Final = ("bash", "zsh", "fish")
_COMPLETION_EPILOG: Final = (
    "Save what is printed where the shell looks for it, and open a new one. bash: "
    "~/.local/share/bash-completion/completions/treedb; zsh: _treedb in a folder of $fpath; fish: "
    "~/.config/fish/completions/treedb.fish."
)


class _Command(NamedTuple):
    """A subcommand: the module that defines its options and runs it, and its summary.

    `options` is the function of the module that adds its options.
    """

    module: str
    summary: str
    options: str = "add_options"


COMMANDS: Final = {
    "serve": _Command("serve", "run the daemon in the foreground"),
    "init": _Command("init", "write a configuration, a secret, rules and a systemd unit"),
    "get": _Command("data", "print the value at a path"),
    "set": _Command("data", "replace the value at a path"),
    "push": _Command("data", "add a child with a new key that sorts after all earlier ones"),
    "update": _Command("data", "change some children of a path and keep the others"),
    "remove": _Command("data", "remove the value at a path"),
    "ls": _Command("data", "print the keys of the children of a path", "add_ls_options"),
    "tree": _Command(
        "data", "print a path and what is below it, down to a depth", "add_tree_options"
    ),
    "cp": _Command("cp", "copy the value at a path to another one, also of another daemon"),
    "mv": _Command(
        "cp", "move the value at a path to another one of the same database", "add_mv_options"
    ),
    "transaction": _Command(
        "data", "change a value by an expression, as a whole", "add_transaction_options"
    ),
    "watch": _Command("watch", "print the events of a path until Ctrl-C"),
    "run": _Command("running.command", "run a command for each event of a path"),
    "shell": _Command("shell.shell", "walk through a database, read and write it"),
    "console": _Command("console", "open the console in a browser"),
    "import": _Command("loading.importing", "write a file of any size at a path"),
    "export": _Command("loading.exporting", "write the value at a path to a file"),
    "token": _Command("token", "make a token for a project"),
    "rules": _Command("rules", "check, test, read, put and explain security rules"),
    "database": _Command("databases", "list, create and delete databases"),
    "cursors": _Command("cursors", "show how far the readers of change logs are"),
    "hooks": _Command("hooks", "list, put and remove what is called when data changes"),
    "top": _Command("top", "show what clients do with the databases of a project"),
    "log": _Command("data", "print who has written what, and when", "add_log_options"),
    "audit": _Command("audit", "verify and print the audit files: who has done what"),
    "backup": _Command("backup", "save all databases while the daemon runs"),
    "restore": _Command(
        "backup", "make a data directory of a backup or an archive", "add_restore_options"
    ),
    "archive": _Command("archive", "list the moments of an archive, make a key for one"),
    "compact": _Command("check", "give free space back to the file system", "add_compact_options"),
    "check": _Command("check", "read all databases and report errors"),
    "promote": _Command("promote", "make a standby the first"),
    "migrate": _Command("migrate", "copy a database from another server, then follow it"),
    "move": _Command("cluster", "move all databases to PostgreSQL, or back", "add_move_options"),
    "cluster": _Command("cluster", "show the daemons and databases of a PostgreSQL"),
    "completion": _Command("parser", "print what makes a shell complete this command"),
}

MEANINGS: Final = {
    **dict.fromkeys(("rm", "del", "delete"), "remove"),
    "put": "set",
    "post": "push",
    "patch": "update",
    "cat": "get",
    "copy": "cp",
    "rename": "mv",
}
"""The names of the commands in other programs."""


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
        self.load()
        parsed, more = super().parse_known_args(args, namespace)
        if more and not hasattr(parsed, _KNOWN):  # the innermost command is the first to come here
            setattr(parsed, _KNOWN, [*self._option_string_actions])
        return parsed, more

    def load(self) -> None:
        """Add the options of the subcommand, if that was not done before."""
        if self._command is not None:
            name, self._command = self._command, None
            command = COMMANDS[name]
            module = import_module(f"treedbd.cli.{command.module}")
            getattr(module, command.options)(self, name)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Check a choice as argparse does; say which one is like a mistyped one."""
        if action.choices is not None and value not in action.choices:
            hint = did_you_mean(str(value), map(str, action.choices), MEANINGS)
            if hint:
                raise argparse.ArgumentError(action, f"there is no {value!r}.{hint}")
        super()._check_value(action, value)


def did_you_mean(
    word: str, known: Iterable[str], meanings: Mapping[str, str] = MappingProxyType({})
) -> str:
    """Return a sentence about the name that is most like a mistyped one; empty if none is.

    `meanings` are names that a word means, whatever it is like.
    """
    names = {name: name for name in known}
    names |= {name: meant for name, meant in meanings.items() if meant in names}
    similar = find_similar(word, names)
    return f" Did you mean {names[similar]}?" if similar else ""


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line; what it parses carries `run`."""
    parser = OptionParser(
        prog="treedb", description="Work with a treedb daemon and its data.", epilog=_EPILOG
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
        _refuse(parser, more, getattr(parsed, _KNOWN, []))
    if hasattr(parsed, "url"):
        try:
            import_module("treedbd.cli.options").resolve(parsed)
        except argparse.ArgumentTypeError as error:
            parser.error(f"argument URL: {error}")
    return parsed


def _refuse(parser: argparse.ArgumentParser, more: list[str], known: list[str]) -> NoReturn:
    # Only the names of options are repeated: anything else might be a token.
    names = [word.partition("=")[0] for word in more if word.startswith("--") and word != "--"]
    if not names:
        parser.error("too many arguments")
    sentence = f"unknown options: {' '.join(names)}"
    hint = did_you_mean(names[0], known)
    parser.error(f"{sentence}.{hint}" if hint else sentence)


def add_options(parser: ArgumentParser, _: str) -> None:
    """Add the options of the command to its parser."""
    parser.epilog = _COMPLETION_EPILOG
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help="bash, zsh or fish")
    parser.set_defaults(run=_print_script)


def make_script(shell: str) -> str:
    """Return the script for a shell, with all commands and their options."""
    shtab: Any = import_module("shtab")  # what it loads takes longer than a request

    files = {"FILE": shtab.FILE, "RULES": shtab.FILE, "DIR": shtab.DIRECTORY}
    files |= {"SOURCE": shtab.DIRECTORY, "TARGET": shtab.DIRECTORY}
    parser = make_parser()
    for each in _all_parsers(parser):
        for action in each._actions:
            name = action.metavar
            if isinstance(name, str) and name in files:
                setattr(action, "complete", files[name])  # noqa: B010 - what shtab looks for
    script: str = shtab.complete(parser, shell)
    return script


def _all_parsers(parser: ArgumentParser) -> Iterator[ArgumentParser]:
    if isinstance(parser, OptionParser):
        parser.load()
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            choices: dict[str, Any] = action.choices
            for each in choices.values():
                yield from _all_parsers(each)


def _print_script(arguments: Namespace) -> Status:
    print_line(make_script(arguments.shell).rstrip("\n"))
    return DONE
