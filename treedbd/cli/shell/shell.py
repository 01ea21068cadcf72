"""`treedb shell`: reads and writes a database as one walks through a file system.

At a terminal it has a prompt; otherwise the lines of standard input, or of `-c`, are a script that
ends at its first error. Only the prompt needs prompt_toolkit, which no other command imports.
"""

from __future__ import annotations

import signal
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import Final

from treedbd.cli.exit import DONE, CommandFailed, Status
from treedbd.cli.http_client import HttpClient
from treedbd.cli.options import (
    ADDRESS_HELP,
    Address,
    InvalidUrl,
    Url,
    add_network_options,
    add_settings_options,
    choose_authorities,
    parse_address,
    read_settings,
    read_token,
    resolve,
    split_url,
    standard_input,
)
from treedbd.cli.shell.commands import ShellEnded, run_line
from treedbd.cli.shell.completion import FETCH_S, MAX_KEYS, KeyCache
from treedbd.cli.shell.identity import describe_token
from treedbd.cli.shell.lines import OpenLine
from treedbd.cli.shell.printing import make_screen
from treedbd.cli.shell.session import ShellSession, list_children
from treedbd.names import parse_label
from treedbd.tree.types import Path

_MAX_HEALTH_BYTES: Final = 65_536
MAX_COMMAND_BYTES: Final = 256 * 1024 * 1024


def add_options(parser: ArgumentParser, _: str) -> None:
    """Add the options of the command to its parser."""
    parser.add_argument(
        "url",
        metavar="URL",
        nargs="?",
        type=_parse_start,
        help=f"where to begin: {ADDRESS_HELP} (default: /)",
    )
    parser.add_argument("-c", dest="script", metavar="COMMANDS", help="run these commands and end")
    parser.add_argument("--no-history", action="store_true", help="neither read nor keep history")
    add_network_options(parser)
    add_settings_options(parser)
    parser.set_defaults(run=_run, optional="url")


def _run(arguments: Namespace) -> Status:
    arguments.url = _choose_url(arguments)
    session, keys = make_session(arguments)
    try:
        if arguments.script is not None:
            _run_script(session, arguments.script.splitlines(keepends=True))
        elif sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty():
            signal.signal(signal.SIGINT, signal.default_int_handler)
            session.default_label = _ask_label(arguments, session)
            prompt = import_module("treedbd.cli.shell.prompt")
            history = import_module("treedbd.cli.shell.history")
            prompt.run_prompt(
                session, keys, None if arguments.no_history else history.history_file()
            )
        else:
            _run_script(session, _input_lines())
    except ShellEnded:
        pass
    return DONE


def _choose_url(arguments: Namespace) -> Url:
    """Return where to begin; a text is one that argparse has not parsed."""
    given: Address | str | None = arguments.url
    try:
        if given is None or isinstance(given, str):
            arguments.url = _parse_start(given or "/")
            resolve(arguments)
    except InvalidUrl as error:
        sentence = str(error)
        raise CommandFailed(f"{sentence[:1].upper()}{sentence[1:]}.") from None
    url: Url = arguments.url
    try:
        split_url(url)
    except InvalidUrl as error:
        raise CommandFailed(f"The URL {error}.") from None
    return url


def _parse_start(text: str) -> Address:
    address = parse_address(text)
    if isinstance(address, Url):
        split_url(address)
    return address


def make_session(arguments: Namespace) -> tuple[ShellSession, KeyCache]:
    """Return the session that a command line describes, and the keys that Tab completes.

    Raises `CommandFailed`.
    """
    settings, token = read_settings(arguments), read_token(arguments)
    authority = choose_authorities(arguments, arguments.url, settings)
    root, place = split_url(arguments.url)
    session = ShellSession(
        HttpClient(authority, token),
        make_screen(),
        root,
        place,
        identity=describe_token(token),
    )

    def read_keys(path: Path, after: str | None) -> list[str]:
        # A client of its own: this is another thread, and it has a time-out.
        client = HttpClient(authority, token, FETCH_S)
        found = list_children(client, session.url_of(path), MAX_KEYS, after)
        return list(found) if isinstance(found, dict) else []

    keys = KeyCache(read_keys)
    session.on_change = keys.clear
    return session, keys


def _ask_label(arguments: Namespace, session: ShellSession) -> str:
    """Return what the server calls the database; empty if it does not say."""
    authority = choose_authorities(arguments, session.root, read_settings(arguments))
    client = HttpClient(authority, read_token(arguments), FETCH_S)
    try:
        response = client.request("GET", session.root.to_health())
        _, found = response.json_text(_MAX_HEALTH_BYTES)
    except CommandFailed:
        return ""
    label = found.get("database") if isinstance(found, dict) else None
    return label if isinstance(label, str) and parse_label(label) is not None else ""


def _run_script(session: ShellSession, lines: Iterable[str]) -> None:
    """Run the commands of lines; raise `CommandFailed` at the first that fails."""
    begin, size = 1, 0
    command: list[str] = []
    state = OpenLine()
    for number, line in enumerate(lines, 1):
        command.append(line)
        size += len(line)
        if size > MAX_COMMAND_BYTES:
            raise CommandFailed(f"Line {begin}: the command is longer than 256 MiB.")
        if not line.lstrip().startswith("#") and state.add(line):
            continue
        _run_numbered(session, "".join(command), begin)
        command, begin, size = [], number + 1, 0
        state = OpenLine()
    if command:
        raise CommandFailed(f"Line {begin}: a bracket or a quotation mark is not closed.")


def _run_numbered(session: ShellSession, command: str, number: int) -> None:
    try:
        run_line(session, command)
    except CommandFailed as error:
        raise CommandFailed(f"Line {number}: {error}", *error.details) from None


def _input_lines() -> Iterator[str]:
    for line in standard_input():
        try:
            yield line.decode()
        except UnicodeDecodeError:
            raise CommandFailed("Standard input is not UTF-8.") from None
