"""`treedb completion`: the script with which a shell completes commands, options and files."""

from __future__ import annotations

import argparse
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from typing import Any, Final

import shtab

from treedbd.cli.exit import DONE, Status, print_line
from treedbd.cli.parser import OptionParser, make_parser

SHELLS: Final = ("bash", "zsh", "fish")
_EPILOG: Final = (
    "Save what is printed where the shell looks for it, and open a new one. bash: "
    "~/.local/share/bash-completion/completions/treedb; zsh: _treedb in a folder of $fpath; fish: "
    "~/.config/fish/completions/treedb.fish."
)
_FILES: Final = {"FILE": shtab.FILE, "RULES": shtab.FILE, "DIR": shtab.DIRECTORY}
"""The names of arguments that are files, and how shells complete them."""


def add_options(parser: ArgumentParser, _: str) -> None:
    """Add the options of the command to its parser."""
    parser.epilog = _EPILOG
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help="bash, zsh or fish")
    parser.set_defaults(run=_print_script)


def make_script(shell: str) -> str:
    """Return the script for a shell, with all commands and their options."""
    parser = make_parser()
    for each in _all_parsers(parser):
        for action in each._actions:
            name = action.metavar
            if isinstance(name, str) and name in _FILES:
                setattr(action, "complete", _FILES[name])  # noqa: B010 - what shtab looks for
    return shtab.complete(parser, shell)


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
