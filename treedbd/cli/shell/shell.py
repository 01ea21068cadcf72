"""`treedb shell`: reads and writes a database as one walks through a file system.

At a terminal it has a prompt (`shell/prompt`); otherwise the lines of standard input, or of `-c`,
are a script that ends at its first error. `shell/commands` has what the lines mean.

Tab completes the names of commands, their options, and the keys of the place (`complete`). Keys are
read only when they are asked for, some hundreds of them, and kept for a few seconds.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from typing import Final

import attrs

from treedbd.cli.data import read_pages
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
    standard_input,
)
from treedbd.cli.places import split_url
from treedbd.cli.shell.commands import (
    COMMANDS,
    OpenLine,
    ShellCommand,
    ShellEnded,
    ShellSession,
    Word,
    command_starts,
    describe_token,
    is_text,
    make_screen,
    quote,
    run_line,
    split_words,
)
from treedbd.names import parse_label
from treedbd.tree.types import Path

MAX_KEYS: Final = 300
FETCH_S: Final = 1.5
KEPT_S: Final = 5.0
MAX_KEPT: Final = 64
_MAX_HEALTH_BYTES: Final = 65_536
MAX_COMMAND_BYTES: Final = 256 * 1024 * 1024


class KeyCache:
    """Keys of places; several threads may use it."""

    def __init__(
        self,
        read: Callable[[Path, str | None], list[str]],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Count seconds by the clock `now`.

        `read` returns the keys of the children of a path, in order, those after a key if one is
        given, and at most `MAX_KEYS`; it raises `CommandFailed`.
        """
        self._read = read
        self._now = now
        self._kept: dict[tuple[Path, str | None], tuple[float, list[str]]] = {}
        self._lock = threading.Lock()

    def find(self, path: Path, prefix: str) -> list[str]:
        """Return keys that begin with a text; none if they cannot be read."""
        keys = self._keys(path, None)
        if len(keys) >= MAX_KEYS and prefix:
            # Those that begin with the text come right after it, but for numbers.
            more = self._keys(path, prefix)
            keys = list(dict.fromkeys([*keys, *more]))
        return [key for key in keys if key.startswith(prefix)]

    def clear(self) -> None:
        """Forget all keys, since something was written or the database is another."""
        with self._lock:
            self._kept.clear()

    def _keys(self, path: Path, after: str | None) -> list[str]:
        now = self._now()
        with self._lock:
            end, keys = self._kept.get((path, after), (now, []))
        if now < end:
            return keys
        try:
            keys = self._read(path, after)
        except CommandFailed:
            keys = []  # also kept, so that Tab does not wait again and again
        with self._lock:
            if len(self._kept) >= MAX_KEPT:
                self._kept.clear()
            self._kept[path, after] = (self._now() + KEPT_S, keys)
        return keys


@attrs.frozen
class Candidate:
    """A completion: the text that replaces the line from `start` on, and what is shown for it."""

    start: int
    text: str
    shown: str


def complete(line: str, resolve: Callable[[str], Path], keys: KeyCache) -> list[Candidate]:
    """Return what the last word of a line, at whose end the cursor is, may become."""
    begin = command_starts(line)[-1]
    words = split_words(line[begin:])
    if not words or (line[-1:].isspace() and words[-1].is_closed):
        words.append(Word("", len(line) - begin, len(line) - begin))
    last, start = words[-1].text, begin + words[-1].start
    if len(words) == 1:
        return _names(last, start, list(COMMANDS))
    command = COMMANDS.get(words[0].text)
    if words[0].text == "help":
        return _names(last, start, list(COMMANDS))
    if command is None or words[-2].text in command.shape.options:
        return []
    if last.startswith("--"):
        return _names(last, start, list(command.shape.names))
    paths = [word for word in words[1:-1] if word.text not in command.shape.names]
    is_value = command.shape.has_value and paths
    if not command.has_path or is_value or not is_text(line):
        return []
    return _paths(last, start, command, resolve, keys)


def _names(last: str, start: int, names: list[str]) -> list[Candidate]:
    return [Candidate(start, name, name) for name in names if name.startswith(last)]


def _paths(
    last: str, start: int, command: ShellCommand, resolve: Callable[[str], Path], keys: KeyCache
) -> list[Candidate]:
    head, slash, prefix = last.rpartition("/")
    try:
        above = resolve(head + slash if slash else ".")
    except CommandFailed:
        return []
    found = keys.find(above, prefix)
    return [Candidate(start, _write(head + slash, key, command), key) for key in found]


def _write(head: str, key: str, command: ShellCommand) -> str:
    is_like_option = key.startswith("--") or key == "-" or key in command.shape.names
    return quote(f"./{key}" if not head and is_like_option else head + key)


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
            # Imported only now: a script needs no prompt_toolkit.
            prompt = import_module("treedbd.cli.shell.prompt")
            prompt.run_prompt(
                session, keys, None if arguments.no_history else prompt.history_file()
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
        url = session.url_of(path)
        pages = read_pages(client, url, MAX_KEYS, with_values=False, limit=MAX_KEYS, after=after)
        return [key for page in pages if isinstance(page, dict) for key in page]

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
