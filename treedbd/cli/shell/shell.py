"""`treedb shell`: reads and writes a database as one walks through a file system.

At a terminal it has a prompt (`shell/prompt`); otherwise the lines of standard input, or of `-c`,
are a script that ends at its first error.

Theory of operation. `run_line` splits a line into commands, finds each in the table `COMMANDS`,
parses its arguments by its `ShellParser`, and calls its function with the `ShellSession`: the
database, the place, the caller and the client. A command that `treedb` has too is the function of
`treedb`, with the same options.

Words are quoted as in a POSIX shell: in single quotation marks, in double ones, or by a backslash
before one character. The value of a write is not a word, but the rest of the command, as JSON, so
its quotation marks need not be quoted. Commands are separated by `;` outside of quotation marks and
brackets.

An option is a word that the command knows. Keys may begin with a hyphen, as those of `push` do, so
any other word with one hyphen is a path. After `--` all words are paths.

A value may hold any characters. On a terminal those that could move its cursor are printed as the
escapes that JSON has for them; in a pipe all bytes stay as they are. Of a token only the claims are
shown, never the token.

Tab completes the names of commands, their options, and the keys of the place (`complete`). Keys are
read only when Tab is pressed, some hundreds of them, and kept for a few seconds.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import shlex
import signal
import sys
import threading
import time
from argparse import Action, ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from functools import cached_property
from importlib import import_module
from typing import Any, Final, NoReturn

import attrs
import orjson

from treedbd.cli.cp import TargetExists
from treedbd.cli.data import FORBIDDEN, make_safe, read_itself, read_pages, style_json
from treedbd.cli.exit import DONE, CommandFailed, Status, make_printable, paint, print_line
from treedbd.cli.http_client import HttpClient, make_http_client
from treedbd.cli.options import (
    ADDRESS_HELP,
    OVERRIDE,
    SILENCE_S,
    STANDARD_INPUT,
    Address,
    InvalidUrl,
    SessionParser,
    Url,
    add_flag,
    add_network_options,
    add_settings_options,
    choose_authorities,
    is_json,
    label_of,
    parse_address,
    read_settings,
    read_token,
    resolve,
    resolve_path,
    split_url,
    standard_input,
    with_host,
    with_parameter,
)
from treedbd.cli.parser import COMMANDS as TREEDB_COMMANDS
from treedbd.cli.parser import MEANINGS as TREEDB_MEANINGS
from treedbd.cli.parser import did_you_mean
from treedbd.names import parse_label
from treedbd.tree.path import format_path
from treedbd.tree.types import ROOT, Path

MAX_KEYS: Final = 300
FETCH_S: Final = 1.5
KEPT_S: Final = 5.0
MAX_KEPT: Final = 64
_MAX_HEALTH_BYTES: Final = 65_536
MAX_COMMAND_BYTES: Final = 256 * 1024 * 1024

OWNER: Final = "owner"
_MAX_UID_CHARACTERS: Final = 256


_WORD_OR_SIGN = re.compile(r""""(?:[^"\\\n]|\\.)*"?|'[^']*'?|\\.|[\[\]{};]""", re.DOTALL)
_VISIBLE = re.compile(r"\S")
_DECODER: Final = json.JSONDecoder()
_UNSAFE = re.compile(r"""[\s"'\\;{}\[\]]""")


_CONNECTION: Final = ("config", "data", "token_file", "cacert", "ns")
_BACK: Final = "-"


class ShellEnded(Exception):
    """The user leaves the shell."""


def note(sentence: str, *, is_error: bool = False) -> None:
    """Print a sentence for the user to standard error: it is not part of the result."""
    print(paint(make_printable(sentence), "error" if is_error else "dim"), file=sys.stderr)


def paint_name(text: str) -> str:
    """Return a key or a path as standard output shows it."""
    return paint(make_safe(text), "key") if sys.stdout.isatty() else text


def shorten(text: str, most: int) -> str:
    """Return the beginning of a text, at most so many characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def describe_token(token: str | None) -> str:
    """Return whom a token names; only the daemon verifies it."""
    if token is None:
        return "anonymous (no token)"
    if token == OWNER:
        return "admin, by the token of development mode"
    claims = _read_claims(token)
    if claims is None:
        return "a token that only the daemon can read"
    legacy = claims.get("d")
    known = legacy if isinstance(legacy, dict) else claims
    uid = known.get("uid", claims.get("sub"))
    parts = ["admin"] if claims.get("admin") is True else []
    if isinstance(uid, str):
        parts.append(f"uid {orjson.dumps(shorten(uid, _MAX_UID_CHARACTERS)).decode()}")
    until = _format_time(claims.get("exp"))
    if until:
        parts.append(f"until {until}")
    return f"{', '.join(parts) or 'without a name'} (as the token says)"


def _read_claims(token: str) -> dict[str, Any] | None:
    payload = token.split(".")[1:2]
    try:
        content = base64.urlsafe_b64decode("".join(payload) + "==")
        claims = orjson.loads(content)
    except (binascii.Error, ValueError):
        return None
    return claims if isinstance(claims, dict) else None


def _format_time(seconds: Any) -> str:
    try:
        return datetime.fromtimestamp(float(seconds), UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (TypeError, ValueError, OverflowError, OSError):
        return ""


@attrs.define
class ShellSession:
    """A shell's connection and its place.

    Attributes:
        root: the URL of the database.
        place: where relative paths begin.
        previous: where `cd -` goes.
        auth: the JSON that rules see as `auth`; None for what the token says.
        default_label: what the prompt calls a database whose URL does not name it.
        confirm: returns whether the user confirms a question; None without a terminal.
        connection: the options of the connection, for commands that open another one.
        identity: whom the token names.
        on_change: is called when keys that were read may be out of date.

    """

    client: HttpClient
    root: Url
    place: Path
    default_label: str = ""
    identity: str = ""
    confirm: Callable[[str], bool] | None = None
    on_change: Callable[[], None] | None = None
    previous: Path | None = None
    auth: str | None = None
    connection: Namespace = attrs.field(factory=Namespace)

    @property
    def label(self) -> str:
        """What the prompt calls the database."""
        return label_of(self.root, self.default_label)

    @property
    def location(self) -> str:
        """The database and the path, as in `demo:/users/ada`."""
        return f"{self.label}:{format_path(self.place)}"

    def resolve(self, text: str) -> Path:
        """Return the path that a text names; raise `CommandFailed`."""
        return resolve_path(text, self.place)

    def url_of(self, path: Path) -> Url:
        """Return the URL of a path, as the caller that the shell is now."""
        url = self.root.below(path)
        return url if self.auth is None else url.with_parameters({OVERRIDE: self.auth})

    def changed(self) -> None:
        """Call `on_change`, after a write or a change of database or caller."""
        if self.on_change is not None:
            self.on_change()


@attrs.frozen
class Word:
    """A word of a command: its text without quotation marks, and its place in the line."""

    text: str
    start: int
    end: int
    is_closed: bool = True


class OpenLine:
    """Whether the lines so far end within a command, which goes on in the next line.

    They do in an open bracket, and in a value in single quotation marks. Each line is scanned once.
    """

    def __init__(self) -> None:
        """Start without a line."""
        self._depth = 0
        self._in_quotes = False

    def add(self, text: str) -> bool:
        """Add text, which ends where a line does; return whether the command goes on."""
        begin = 0
        if self._in_quotes:
            begin = text.find("'") + 1
            if not begin:
                return True
            self._in_quotes = False
        for found in _WORD_OR_SIGN.finditer(text, begin):
            mark = found[0]
            if mark in "[{":
                self._depth += 1
            elif mark in "]}":
                self._depth = max(0, self._depth - 1)
            elif mark[0] == "'" and (len(mark) == 1 or mark[-1] != "'"):
                before = text[found.start() - 1 : found.start()]
                self._in_quotes = not before or before.isspace()
        return self._depth > 0 or self._in_quotes


def is_text(line: str) -> bool:
    """Return whether a line was UTF-8: Python keeps other bytes as lone surrogates."""
    try:
        line.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_open(text: str) -> bool:
    """Return whether a text is only the beginning of a command."""
    return OpenLine().add(text)


def command_starts(text: str) -> list[int]:
    """Return where the commands of a text begin."""
    starts, depth = [0], 0
    for found in _WORD_OR_SIGN.finditer(text):
        if found[0] in "[{":
            depth += 1
        elif found[0] in "]}":
            depth = max(0, depth - 1)
        elif found[0] == ";" and not depth:
            starts.append(found.end())
    return starts


def split_commands(text: str) -> list[str]:
    """Return the commands of a text, without those that are empty; `#` begins a comment."""
    if text.lstrip().startswith("#"):
        return []
    starts = command_starts(text)
    ends = [start - 1 for start in starts[1:]] + [len(text)]
    commands = (text[start:end].strip() for start, end in zip(starts, ends, strict=True))
    return [each for each in commands if each]


def next_word(line: str, position: int) -> Word | None:
    """Return the word at or after a position, None if there is none."""
    found = _VISIBLE.search(line, position)
    if found is None:
        return None
    start = at = found.start()
    text: list[str] = []
    while at < len(line) and not line[at].isspace():
        if line[at] in "\"'":
            part, after = _quoted(line, at)
            text.append(part)
            if after is None:
                return Word("".join(text), start, len(line), is_closed=False)
            at = after
        elif line[at] == "\\":
            text.append(line[at + 1 : at + 2])
            at = min(at + 2, len(line))
        else:
            text.append(line[at])
            at += 1
    return Word("".join(text), start, at)


def split_words(line: str) -> list[Word]:
    """Return all words of a line; the last one may be unclosed."""
    words: list[Word] = []
    while (word := next_word(line, words[-1].end if words else 0)) is not None:
        words.append(word)
    return words


def quote(text: str) -> str:
    """Return a text as one word of a line."""
    return shlex.quote(text) if not text or _UNSAFE.search(text) else text


def split_value(text: str) -> tuple[str, str]:
    """Return the value that begins a text, and what follows it.

    A value is JSON, or anything in single quotation marks, without these. A text that begins with
    neither is the value as a whole.
    """
    if text.startswith("'"):
        word = next_word(text, 0)
        return (word.text, text[word.end :]) if word and word.is_closed else (text, "")
    try:
        _, end = _DECODER.raw_decode(text)
    except (ValueError, RecursionError):
        return text, ""
    is_whole = not text[end : end + 1].strip()
    return (text[:end], text[end:]) if is_whole else (text, "")


def _quoted(line: str, start: int) -> tuple[str, int | None]:
    """Return a part in quotation marks, and where it ends; None if it does not."""
    mark, at = line[start], start + 1
    text: list[str] = []
    while at < len(line):
        if line[at] == mark:
            return "".join(text), at + 1
        if mark == '"' and line[at] == "\\" and line[at + 1 : at + 2] in {'"', "\\"}:
            at += 1
        text.append(line[at])
        at += 1
    return "".join(text), None


class ShellParser(SessionParser):
    """The parser of a command of the shell; an error is a `CommandFailed` with the usage."""

    def __init__(self, name: str, add_options: Callable[[ArgumentParser], object]) -> None:
        super().__init__(prog=name, add_help=False, allow_abbrev=False)
        add_options(self)
        self.positionals: Final = [each for each in self._actions if not each.option_strings]
        for each in self.positionals:
            if each.dest in _PATHS:
                each.type = None  # it is relative to the place of the session

    @property
    def known(self) -> dict[str, Action]:
        """The options by their names."""
        return self._option_string_actions

    @property
    def usage_line(self) -> str:
        """How the command is written, as in `get [OPTIONS] [PATH]`."""
        words = [self.prog, "[OPTIONS]"] if self.known else [self.prog]
        for each in self.positionals:
            name = str(each.metavar).replace("-URL", "").replace("URL", "PATH")
            can_be_omitted = each.nargs == "?" or _is_place(self.prog, each)
            words.append(f"[{name}]" if can_be_omitted else name)
        return " ".join(words)

    def error(self, message: str) -> NoReturn:
        """Raise `CommandFailed` for wrong arguments."""
        sentence = message.removeprefix("argument ").replace(": must", " must", 1)
        raise CommandFailed(f"{sentence[:1].upper()}{sentence[1:]}: {self.usage_line}.")

    def parse(self, text: str, namespace: Namespace) -> Namespace:
        """Parse what follows the name of a command; raise `CommandFailed`."""
        takes_rest = bool(self.positionals) and self.positionals[-1].dest in _RESTS
        most = len(self.positionals) - 1 if takes_rest else len(text)
        options, words, rest = self._split(text, most)
        rest = rest.strip()
        if rest:
            value, after = split_value(rest)
            more, others, _ = self._split(after, len(after))
            words.append(rest if others else value)
            options += [] if others else more
        return self._parse_words(options, words, namespace)

    def _split(self, text: str, most: int) -> tuple[list[str], list[str], str]:
        """Return the options and the words of a text until `most` words, and what follows these."""
        options: list[str] = []
        words: list[str] = []
        has_ended, at = False, 0
        while len(words) < most and (word := _next(text, at)) is not None:
            at = word.end
            name, equals, _ = word.text.partition("=")
            option = None if has_ended else self.known.get(name)
            if option is not None and option.nargs is None and not equals:
                value = _next(text, at)
                if value is None:
                    raise CommandFailed(f"{name} needs a value: {self.usage_line}.")
                options.append(f"{name}={value.text}")
                at = value.end
            elif option is not None:
                options.append(word.text)
            elif not has_ended and word.text == _END_OF_OPTIONS:
                has_ended = True
            elif not has_ended and name.startswith("--"):
                hint = did_you_mean(name, self.known)
                raise CommandFailed(f"There is no option {name}.{hint} Usage: {self.usage_line}.")
            else:
                words.append(word.text)
        return options, words, text[at:]

    def _parse_words(self, options: list[str], words: list[str], given: Namespace) -> Namespace:
        if not words and self.positionals and _is_place(self.prog, self.positionals[0]):
            words = ["."]
        if len(words) > len(self.positionals):
            raise CommandFailed(f"The command is written {self.usage_line}.")
        return self.parse_args([*options, *([_END_OF_OPTIONS] if words else []), *words], given)


_END_OF_OPTIONS: Final = "--"
_RESTS: Final = frozenset({"value", "auth"})
"""The arguments that are the rest of a command, as JSON."""


def _is_place(command: str, argument: Action) -> bool:
    """Return whether a command without this argument means the present place."""
    return argument.dest == "url" and command in _READS


def _next(text: str, position: int) -> Word | None:
    word = next_word(text, position)
    if word is not None and not word.is_closed:
        raise CommandFailed("A quotation mark is not closed.")
    return word


@attrs.frozen
class ShellCommand:
    """A command: its name, its function, its summary, and what adds its arguments to a parser.

    `before` are options that an alias implies.
    """

    name: str
    run: Callable[[ShellSession, Namespace], None]
    summary: str
    add_options: Callable[[ArgumentParser], object] = lambda _: None
    before: str = ""

    @cached_property
    def parser(self) -> ShellParser:
        """The parser of its arguments."""
        return ShellParser(self.name, self.add_options)


_PATHS: Final = ("source", "url", "path")
_READS: Final = frozenset({"get", "cat", "ls", "tree", "watch"})


def _run_shared(session: ShellSession, arguments: Namespace) -> None:
    """Run the function of a command of `treedb` with the connection of the shell."""
    client = session.client
    timeout = getattr(arguments, "timeout", None)
    if timeout is not None:
        client = client.within(timeout.client_s)
    for name in _PATHS:
        if hasattr(arguments, name):
            setattr(arguments, name, session.url_of(session.resolve(getattr(arguments, name))))
    arguments.request(client, arguments)


def _write(session: ShellSession, arguments: Namespace) -> None:
    if getattr(arguments, "value", None) == STANDARD_INPUT:
        raise CommandFailed("- is not JSON: the shell reads its commands from standard input.")
    try:
        _run_shared(session, arguments)
    finally:
        session.changed()


def _remove(session: ShellSession, arguments: Namespace) -> None:
    """Remove a value; if it has children, only once the user confirms it."""
    path = session.resolve(arguments.url)
    what = f"{format_path(path)} and everything below it" if path else "the whole database"
    if not arguments.force and (not path or _has_children(session, path)):
        if session.confirm is None:
            raise CommandFailed(f"This removes {what}: give -f.")
        if not session.confirm(f"Remove {what}? [y/N] "):
            raise CommandFailed("Nothing is removed.")
    _write(session, arguments)


def _has_children(session: ShellSession, path: Path) -> bool:
    child = read_itself(session.client, session.url_of(path))
    return child is not None and child.kind == "object"


def _move(session: ShellSession, arguments: Namespace) -> None:
    """Move a value; if the target has one, only once the user confirms it."""
    target = session.resolve(arguments.url)
    paths = {name: getattr(arguments, name) for name in _PATHS if hasattr(arguments, name)}
    try:
        _write(session, arguments)
    except TargetExists:
        if session.confirm is None:
            raise
        if not session.confirm(f"Replace what is at {format_path(target)}? [y/N] "):
            raise CommandFailed("Nothing is moved.") from None
        vars(arguments).update(paths, force=True)
        _write(session, arguments)


def _shared(name: str, alias: str = "", before: str = "") -> ShellCommand:
    """Return the command of the shell that is one of `treedb`."""
    command = TREEDB_COMMANDS[name]

    def add_options(to: ArgumentParser) -> None:
        getattr(import_module(f"treedbd.cli.{command.module}"), command.options)(to, name)

    runs = {"remove": _remove, "mv": _move, **dict.fromkeys(_READS, _run_shared)}
    summary = f"{name} {before}".strip() if alias else command.summary
    return ShellCommand(
        name=alias or name,
        run=runs.get(name, _write),
        summary=summary,
        add_options=add_options,
        before=before,
    )


def cd(session: ShellSession, given: Namespace) -> None:
    """Go to a path, which need not exist."""
    target = given.path or "/"
    if target == _BACK:
        if session.previous is None:
            raise CommandFailed("There is no previous place yet.")
        path = session.previous
    else:
        path = session.resolve(target)
    session.previous, session.place = session.place, path
    if target == _BACK:
        print_line(paint_name(format_path(path)))


def pwd(session: ShellSession, _: Namespace) -> None:
    """Print the path and the URL of the place."""
    url = session.root.below(session.place)
    shown = attrs.evolve(url, path=url.path or "/")
    print_line(f"{paint_name(format_path(session.place))}  {shown}")


def use(session: ShellSession, given: Namespace) -> None:
    """Go to the root of another database."""
    label = given.name.lower()
    if parse_label(label) is None:
        raise CommandFailed("A database is written PROJECT or DATABASE--PROJECT, such as eu--shop.")
    session.root = _find_database(session, label)
    session.place, session.previous = ROOT, None
    session.changed()


def _find_database(session: ShellSession, label: str) -> Url:
    """Return the URL of a database; raise `CommandFailed`.

    The daemon refuses the parameter `ns` if the host names another database: then the first label
    of the host has to be replaced.
    """
    root = with_parameter(session.root, label)
    status, error = _probe(session, root)
    if status == 400 and "." in root.host:
        root = with_host(session.root, label)
        status, error = _probe(session, root)
    if error and status not in FORBIDDEN:
        raise CommandFailed(error)
    return root


def _probe(session: ShellSession, root: Url) -> tuple[int, str]:
    url = root.below(ROOT).to_json().with_parameters({"shallow": "true", "limitToFirst": "1"})
    response = session.client.send("GET", url)
    if 200 <= response.status < 300:
        response.close()
        return response.status, ""
    return response.status, response.read_error()


def as_auth(session: ShellSession, given: Namespace) -> None:
    """Set the `auth` that rules see, as admins may; without an argument, end that."""
    auth = None if given.auth is None else given.auth.lstrip()
    is_auth = auth is None or auth == "null" or (auth.startswith("{") and is_json(auth))
    if not is_auth:
        raise CommandFailed('as needs an object, such as {"uid": "ada"}, or null.')
    session.auth = auth
    session.changed()


def whoami(session: ShellSession, _: Namespace) -> None:
    """Print who the caller of requests is."""
    print_line(session.identity)
    if session.auth is not None:
        print_line(f"rules see auth = {style_json(session.auth)}")


def leave(_session: ShellSession, _given: Namespace) -> None:
    """Leave the shell."""
    raise ShellEnded


def show_help(session: ShellSession, given: Namespace) -> None:
    """Print all commands, or the usage of one."""
    if given.command is not None:
        command = find_command(given.command)
        print_line(f"{command.parser.usage_line}\n    {command.summary}")
        if command.parser.known:
            print_line(f"    options: {' '.join(command.parser.known)}")
        return
    lines = {command.parser.usage_line: command.summary for command in COMMANDS.values()}
    for usage, summary in lines.items():
        print_line(f"{usage:{max(map(len, lines))}}  {summary}")


def _argument(name: str, metavar: str, nargs: str | None = None) -> Callable[..., object]:
    """Return what adds one argument to a parser."""
    return lambda to: to.add_argument(name, metavar=metavar, nargs=nargs)


_AS_SUMMARY: Final = 'make rules see this auth, as in as {"uid": "ada"}; as alone ends it (admins)'
_USE_SUMMARY: Final = "go to another database, as PROJECT or DATABASE--PROJECT"
_CD_SUMMARY: Final = "go to a path: .. is above, / the root, - back"


COMMANDS: Final = {
    command.name: command
    for command in (
        ShellCommand("cd", cd, _CD_SUMMARY, _argument("path", "PATH", "?")),
        ShellCommand("pwd", pwd, "print where one is"),
        *map(_shared, ("ls", "tree", "get")),
        _shared("get", "cat", "--pretty"),
        *map(_shared, ("watch", "set", "update", "push", "remove")),
        _shared("remove", "rm"),
        *map(_shared, ("cp", "mv", "transaction")),
        ShellCommand("use", use, _USE_SUMMARY, _argument("name", "NAME")),
        ShellCommand("as", as_auth, _AS_SUMMARY, _argument("auth", "OBJECT", "?")),
        ShellCommand("whoami", whoami, "print whom the token names"),
        ShellCommand(
            "help",
            show_help,
            "print this, or about a command",
            _argument("command", "COMMAND", "?"),
        ),
        ShellCommand("exit", leave, "leave (or Ctrl-D)"),
    )
}

MEANINGS: Final = {
    word: meant
    for word, meant in (TREEDB_MEANINGS | {"move": "mv", "quit": "exit"}).items()
    if word not in COMMANDS
}
"""The names of the commands in other programs."""


def find_command(name: str) -> ShellCommand:
    """Return a command by its name; raise `CommandFailed` with the nearest one."""
    command = COMMANDS.get(name)
    if command is not None:
        return command
    hint = did_you_mean(name.lower(), COMMANDS, MEANINGS).strip() or "Try help."
    raise CommandFailed(f"There is no command {name[:40]}. {hint}")


def run_line(session: ShellSession, line: str) -> None:
    """Run the commands of a line; raise `CommandFailed` at the first failure, or `ShellEnded`."""
    if not is_text(line):
        raise CommandFailed("The command is not UTF-8.")
    for text in split_commands(line):
        name = next_word(text, 0)
        if name is not None:
            command = find_command(name.text)
            given = f"{command.before} {text[name.end :]}"
            command.run(session, command.parser.parse(given, Namespace(**vars(session.connection))))


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
            # Keys that begin with the text sort right after it, except numbers.
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
    """Return the completions of the last word of a line, at whose end the cursor is."""
    begin = command_starts(line)[-1]
    words = split_words(line[begin:])
    if not words or (line[-1:].isspace() and words[-1].is_closed):
        words.append(Word("", len(line) - begin, len(line) - begin))
    last, start = words[-1].text, begin + words[-1].start
    if len(words) == 1 or words[0].text == "help":
        return _names(last, start, list(COMMANDS))
    command = COMMANDS.get(words[0].text)
    if command is None or _awaits_value(command, words[-2].text):
        return []
    if last.startswith("--"):
        return _names(last, start, [each for each in command.parser.known if each[:2] == "--"])
    known = command.parser.known
    given = [word.text for word in words[1:-1]]
    before = sum(
        word not in known and not _awaits_value(command, previous)
        for previous, word in zip(["", *given], given, strict=False)
    )
    arguments = command.parser.positionals
    if before >= len(arguments) or arguments[before].dest not in _PATHS or not is_text(line):
        return []
    return _paths(last, start, command, resolve, keys)


def _awaits_value(command: ShellCommand, word: str) -> bool:
    option = command.parser.known.get(word)
    return option is not None and option.nargs is None


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
    return [Candidate(start, _complete_key(head + slash, key, command), key) for key in found]


def _complete_key(head: str, key: str, command: ShellCommand) -> str:
    is_like_option = key.startswith("--") or key == "-" or key in command.parser.known
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
    add_flag(parser, "--no-history", "neither read nor keep history")
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
            session.default_label = _find_label(arguments, session)
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
    """Return the URL to begin at; argparse leaves one after an option as text."""
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
    connection = Namespace(
        **{name: getattr(arguments, name) for name in _CONNECTION if hasattr(arguments, name)}
    )
    client, identity = HttpClient(authority, token, silence_s=SILENCE_S), describe_token(token)
    session = ShellSession(client, root, place, identity=identity, connection=connection)

    def read_keys(path: Path, after: str | None) -> list[str]:
        client = session.client.within(FETCH_S)  # one of its own, since this is another thread
        url = session.url_of(path)
        pages = read_pages(client, url, MAX_KEYS, with_values=False, limit=MAX_KEYS, after=after)
        return [key for page in pages if isinstance(page, dict) for key in page]

    keys = KeyCache(read_keys)
    session.on_change = keys.clear
    return session, keys


def _find_label(arguments: Namespace, session: ShellSession) -> str:
    """Return the label by which the server names the database; empty if it does not."""
    client = make_http_client(arguments).within(FETCH_S)
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
    for number, line in enumerate(standard_input()):
        try:
            yield line.decode("utf-8" if number else "utf-8-sig")  # it may have a byte order mark
        except UnicodeDecodeError:
            raise CommandFailed("Standard input is not UTF-8.") from None
