"""`treedb shell`: reads and writes a database as one walks through a file system.

At a terminal it has a prompt (`shell/prompt`); otherwise the lines of standard input, or of `-c`,
are a script that ends at its first error.

Theory of operation. `run_line` splits a line into commands, finds each in the table `COMMANDS`,
parses its arguments by its `Shape`, and runs its function with the `ShellSession`: which database,
which place, as whom, and its requests. What it prints goes to a `Screen`.

Words are quoted as in a POSIX shell: in single quotation marks, in double ones, or by a backslash
before one character. The value of a write is not a word: it is the rest of the command, as JSON, so
that its quotation marks need no others around them. Commands are separated by `;` outside of
quotation marks and brackets.

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
import codecs
import difflib
import json
import os
import re
import shlex
import shutil
import signal
import sys
import threading
import time
import unicodedata
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from importlib import import_module
from typing import Any, Final

import attrs
import orjson

from treedbd.cli.cp import (
    Move,
    TargetExists,
)
from treedbd.cli.data import FORBIDDEN, JSON_HEADERS, SIZE, read_pages
from treedbd.cli.exit import (
    DONE,
    CommandFailed,
    Status,
    has_colour,
    make_printable,
    write_out,
)
from treedbd.cli.http_client import Body, HttpClient, parse_json
from treedbd.cli.options import (
    ADDRESS_HELP,
    Address,
    InvalidUrl,
    Url,
    add_network_options,
    add_query_options,
    add_settings_options,
    choose_authorities,
    in_options,
    is_json,
    label_of,
    parse_address,
    query_parameters,
    read_settings,
    read_token,
    resolve,
    resolve_path,
    split_url,
    standard_input,
    with_host,
    with_parameter,
)
from treedbd.cli.watch import (
    CHANGES,
    FINAL_EVENTS,
    STREAM,
    EventParser,
    InvalidEvent,
    StreamEvent,
    require_stream,
)
from treedbd.names import parse_label
from treedbd.tree.path import format_path
from treedbd.tree.types import ROOT, Path

MAX_KEYS: Final = 300
FETCH_S: Final = 1.5
KEPT_S: Final = 5.0
MAX_KEPT: Final = 64
_MAX_HEALTH_BYTES: Final = 65_536
MAX_COMMAND_BYTES: Final = 256 * 1024 * 1024
_RESET: Final = "\x1b[0m"
_KEY: Final = "\x1b[34m"
_STRING: Final = "\x1b[32m"
_NUMBER: Final = "\x1b[36m"
_WORD: Final = "\x1b[35m"
_ERROR: Final = "\x1b[31m"
_DIM: Final = "\x1b[2m"
_GAP: Final = 2
_TOKEN = re.compile(r'("(?:[^"\\]|\\.)*+")(\s*:)?|(-?\d[\d.eE+-]*)|\b(true|false|null)\b')
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")

OWNER: Final = "owner"
_MAX_UID_CHARACTERS: Final = 256

_OVERRIDE: Final = "auth_variable_override"

_WORD_OR_SIGN = re.compile(r""""(?:[^"\\\n]|\\.)*"?|'[^']*'?|\\.|[\[\]{};]""", re.DOTALL)
_BLANK = re.compile(r"\s*")
_UNSAFE = re.compile(r"""[\s"'\\;{}\[\]]""")

PAGE_KEYS: Final = 1000
PAGE_CHILDREN: Final = 100
MAX_TREE_LINES: Final = 1000
DEPTH: Final = 3
CHILDREN: Final = 20
MAX_COUNT: Final = 1_000_000
_SHOWN_CHARACTERS: Final = 60

_BACK: Final = "-"


class ShellEnded(Exception):
    """The user leaves the shell."""


class Screen:
    """Standard output and standard error, as a terminal or as files."""

    def __init__(self, *, is_terminal: bool, has_colour: bool) -> None:
        """Print for a terminal or not, in colours or not."""
        self.is_terminal: Final = is_terminal
        self.has_colour: Final = has_colour

    def print(self, text: str) -> None:
        """Print lines of text, which hold no value of the database."""
        write_out(os.fsencode(text) + b"\n")

    def note(self, sentence: str, *, is_error: bool = False) -> None:
        """Print a sentence for the user, which is no result."""
        text = make_printable(sentence)
        style = _ERROR if is_error else _DIM
        print(self._paint(style, text), file=sys.stderr, flush=True)

    def print_names(self, names: Sequence[str]) -> None:
        """Print names: in columns on a terminal, else one on each line."""
        if not self.is_terminal:
            lines: Iterable[str] = names
        else:
            lines = in_columns(list(map(make_safe, names)), shutil.get_terminal_size().columns)
        for line in lines:
            self.print(line)

    def print_value(self, pieces: Iterable[bytes]) -> None:
        """Print JSON as it arrives, and a line end."""
        last = b"\n"
        for piece in self._show_lines(pieces) if self.is_terminal else pieces:
            write_out(piece)
            last = piece[-1:] or last
        if last != b"\n":
            write_out(b"\n")

    def style_json(self, text: str) -> str:
        """Return JSON as it is shown."""
        if not self.is_terminal:
            return text
        return colour_json(make_safe(text)) if self.has_colour else make_safe(text)

    def style_name(self, text: str) -> str:
        """Return a key or a path as it is shown."""
        return self._paint(_KEY, make_safe(text)) if self.is_terminal else text

    def _show_lines(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """Show whole lines: a token of JSON never spans two of them."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        rest: list[str] = []
        for piece in pieces:
            text = decoder.decode(piece)
            head, end, tail = text.rpartition("\n")
            if end:
                yield self.style_json("".join([*rest, head])).encode() + b"\n"
                rest = []
            rest.append(tail)
        yield self.style_json("".join(rest)).encode()

    def _paint(self, style: str, text: str) -> str:
        return f"{style}{text}{_RESET}" if self.has_colour else text


def make_screen() -> Screen:
    """Return the screen of this process."""
    return Screen(is_terminal=sys.stdout.isatty(), has_colour=has_colour())


def colour_json(text: str) -> str:
    """Return JSON with the colours of its tokens."""
    return _TOKEN.sub(_colour, text)


def make_safe(text: str) -> str:
    """Return text, or JSON, without characters that a terminal obeys."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def in_columns(names: Sequence[str], width: int) -> list[str]:
    """Return lines of names, which are in order down each column."""
    widest = max(map(width_of, names), default=0) + _GAP
    columns = max(1, (width + _GAP) // widest)
    rows = -(-len(names) // columns)
    return ["".join(pad(name, widest) for name in names[row::rows]).rstrip() for row in range(rows)]


def pad(text: str, width: int) -> str:
    """Return text with blanks up to a width on a terminal."""
    return text + " " * (width - width_of(text))


def width_of(text: str) -> int:
    """Return how many columns a text takes on a terminal."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(each) in {"W", "F"} for each in text)
    return len(text) + wide - sum(map(bool, map(unicodedata.combining, text)))


def shorten(text: str, most: int) -> str:
    """Return the beginning of a text, as many characters as are asked for."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def size_of(child: Any) -> int | None:
    """Return the bytes below a child of a shallow read; None for a leaf."""
    return child.get(SIZE, 0) if isinstance(child, dict) else None


def format_child(child: Any, most: int) -> str:
    """Return a child of a shallow read as one short line: its value, or its size."""
    size = size_of(child)
    if size is not None:
        return f"({size:,} bytes)"
    return shorten(json.dumps(child, ensure_ascii=False), most)


def _colour(found: re.Match[str]) -> str:
    string, colon, number, word = found.groups()
    if colon is not None:
        return f"{_KEY}{string}{_RESET}{colon}"
    style = _STRING if string is not None else _NUMBER if number is not None else _WORD
    return f"{style}{string or number or word}{_RESET}"


def describe_token(token: str | None) -> str:
    """Return whom a token names; it is not verified here, the daemon does that."""
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
    return f"{', '.join(parts) or 'nobody by name'} (as the token says)"


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
        confirm: asks a question that is answered by yes or no; None if there is no terminal.
        identity: what is known of the token.
        on_change: is called when what was read may have changed.

    """

    client: HttpClient
    screen: Screen
    root: Url
    place: Path
    default_label: str = ""
    identity: str = ""
    confirm: Callable[[str], bool] | None = None
    on_change: Callable[[], None] | None = None
    previous: Path | None = None
    auth: str | None = None

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

    def url_of(self, path: Path, parameters: dict[str, str] | None = None) -> Url:
        """Return the URL of a path, as the caller that the shell is now."""
        url = self.root.below(path).to_json()
        if self.auth is not None:
            url = url.with_parameters({_OVERRIDE: self.auth})
        return url.with_parameters(parameters or {})

    def children(self, path: Path, limit: int, *, with_values: bool = False) -> Any:
        """Return the first children of a path, as `read_pages` yields them, in one dict.

        What has no children is returned as it is. Raises `CommandFailed`.
        """
        found: Any = None
        url = self.url_of(path)
        for page in read_pages(self.client, url, limit, with_values=with_values, limit=limit):
            found = page if found is None else found | page
        return found

    def write(
        self, method: str, path: Path, value: str | None = None, *, is_silent: bool = True
    ) -> bytes:
        """Send a write; return the body of its response. Raises `CommandFailed`."""
        url = self.url_of(path, {"print": "silent"} if is_silent else {})
        body = None
        if value is not None:
            content = value.encode()
            body = Body((content,), len(content))
        headers = None if body is None else JSON_HEADERS
        try:
            return self.client.request(method, url, headers, body).content()
        finally:
            self.changed()

    def changed(self) -> None:
        """Note that what was read before may be different now."""
        if self.on_change is not None:
            self.on_change()


@attrs.frozen
class Word:
    """A word of a command: its text without quotation marks, and where it stands in the line."""

    text: str
    start: int
    end: int
    is_closed: bool = True


class OpenLine:
    """Whether the text so far is only the beginning of a command, which may have many lines.

    It is while a bracket is open, or a value in single quotation marks. What was added before is
    not looked at again.
    """

    def __init__(self) -> None:
        """Start with nothing."""
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
    start = at = _end_of_blank(line, position)
    if start == len(line):
        return None
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


def read_json(text: str) -> str:
    """Return the JSON of a value, which may have single quotation marks around it.

    Raises `CommandFailed` with a hint.
    """
    if is_json(text):
        return text
    words = split_words(text) if text.startswith("'") else []
    if len(words) == 1 and words[0].is_closed and is_json(words[0].text):
        return words[0].text
    if not text:
        raise CommandFailed('A value is missing; it is JSON, such as 36 or "hello".')
    shown = text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
    if text[0] in "[{\"'":
        raise CommandFailed(f"{shown} is not valid JSON.")
    hint = json.dumps(shown.strip("\"'"), ensure_ascii=False)
    raise CommandFailed(f"{shown} is not JSON: a string is written {hint}.")


def _end_of_blank(line: str, position: int) -> int:
    found = _BLANK.match(line, position)
    return position if found is None else found.end()


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


_END_OF_OPTIONS: Final = "--"


def _query_attributes() -> Namespace:
    parser = ArgumentParser(add_help=False)
    add_query_options(parser)
    return parser.parse_args([])


QUERY_OPTIONS: Final = tuple(f"--{name.replace('_', '-')}" for name in vars(_query_attributes()))


@attrs.frozen
class Shape:
    """Which arguments a command has: options without and with a value, how many words, a value."""

    flags: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    least: int = 0
    most: int = 1
    has_value: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """All options."""
        return self.flags + self.options


@attrs.frozen
class Given:
    """The arguments that were given."""

    words: list[str]
    flags: frozenset[str]
    options: dict[str, str]
    value: str = ""

    def path(self) -> str:
        """Return the first word, or the present place."""
        return self.words[0] if self.words else "."

    def query(self) -> dict[str, str]:
        """Return the parameters of the query."""
        attributes = _query_attributes()
        for name, value in self.options.items():
            if name in QUERY_OPTIONS:
                setattr(attributes, name[2:].replace("-", "_"), value)
        return query_parameters(attributes)

    def number(self, name: str, default: int, most: int) -> int:
        """Return the number of an option; raise `CommandFailed`."""
        text = self.options.get(name)
        if text is None:
            return default
        if not (text.isascii() and text.isdecimal() and 1 <= int(text[:16]) <= most):
            raise CommandFailed(f"{name} must be a number from 1 to {most:,}.")
        return int(text)


def parse_arguments(shape: Shape, text: str, usage: str) -> Given:
    """Parse what follows the name of a command; raise `CommandFailed`."""
    words: list[str] = []
    flags: set[str] = set()
    options: dict[str, str] = {}
    has_ended, at = False, 0
    while not (shape.has_value and len(words) == shape.most):
        word = _next(text, at)
        if word is None:
            break
        at = word.end
        name, equals, given = word.text.partition("=")
        if has_ended or not word.text.startswith("-"):
            words.append(word.text)
        elif word.text == _END_OF_OPTIONS:
            has_ended = True
        elif word.text in shape.flags:
            flags.add(word.text)
        elif name in shape.options:
            following = None if equals else _next(text, at)
            if not equals and following is None:
                raise CommandFailed(f"{name} needs a value: {usage}.")
            options[name] = given if following is None else following.text
            at = at if following is None else following.end
        elif name.startswith("--"):
            raise CommandFailed(f"There is no option {name}: {usage}.")
        else:
            words.append(word.text)
    if not shape.least <= len(words) <= shape.most:
        raise CommandFailed(f"The command is written {usage}.")
    return Given(words, frozenset(flags), options, text[at:].strip())


def _next(text: str, position: int) -> Word | None:
    word = next_word(text, position)
    if word is not None and not word.is_closed:
        raise CommandFailed("A quotation mark is not closed.")
    return word


def ls(session: ShellSession, given: Given) -> None:
    """Print the keys of the children, with `-l` their values or sizes."""
    path = session.resolve(given.path())
    is_long = "-l" in given.flags
    size = PAGE_CHILDREN if is_long else PAGE_KEYS
    for page in read_pages(session.client, session.url_of(path), size, with_values=is_long):
        if is_long and isinstance(page, dict):
            _print_long(session, page)
        elif isinstance(page, dict):
            session.screen.print_names(list(page))
        elif page is not None:
            _print_long(session, {path[-1] if path else "/": page})


def _print_long(session: ShellSession, children: dict[str, Any]) -> None:
    screen = session.screen
    widest = max(width_of(make_safe(key)) for key in children)
    for key, child in children.items():
        gap = pad("", widest - width_of(make_safe(key)))
        shown = format_child(child, _SHOWN_CHARACTERS)
        shown = shown if size_of(child) is not None else screen.style_json(shown)
        screen.print(f"{screen.style_name(key)}{gap}  {shown}")


def tree(session: ShellSession, given: Given) -> None:
    """Print children, and theirs, down to a depth."""
    path = session.resolve(given.path())
    depth = given.number("--depth", DEPTH, 32)
    width = given.number("--children", CHILDREN, PAGE_KEYS)
    screen = session.screen
    screen.print(screen.style_name(format_path(path)))
    for count, line in enumerate(_tree_lines(session, path, depth, width, "")):
        if count >= MAX_TREE_LINES:
            screen.note(f"There is more: {MAX_TREE_LINES:,} lines are shown.")
            return
        screen.print(line)


def _tree_lines(
    session: ShellSession, path: Path, depth: int, width: int, indent: str
) -> Iterator[str]:
    screen = session.screen
    found = session.children(path, width + 1, with_values=True)
    if not isinstance(found, dict):
        if found is not None:
            yield f"{indent}└── {screen.style_json(format_child(found, _SHOWN_CHARACTERS))}"
        return
    children = list(found.items())
    for number, (key, child) in enumerate(children[:width], 1):
        is_last = number == len(children)
        name = f"{indent}{'└' if is_last else '├'}── {screen.style_name(key)}"
        shown = format_child(child, _SHOWN_CHARACTERS)
        if size_of(child) is None:
            yield f"{name}: {screen.style_json(shown)}"
        elif depth == 1:
            yield f"{name} {shown}"
        else:
            yield name
            below = f"{indent}{' ' if is_last else '│'}   "
            yield from _tree_lines(session, (*path, key), depth - 1, width, below)
    if len(children) > width:
        yield f"{indent}└── …"


def cat(session: ShellSession, given: Given) -> None:
    """Print a value, or what a query of it selects."""
    parameters = given.query()
    if "--raw" not in given.flags:
        parameters["print"] = "pretty"
    if "--shallow" in given.flags:
        parameters["shallow"] = "true"
    url = session.url_of(session.resolve(given.path()), parameters)
    with in_options():
        response = session.client.request("GET", url)
    session.screen.print_value(response.pieces())


def watch(session: ShellSession, given: Given) -> None:
    """Print the events of a path until Ctrl-C, or as many as are asked for."""
    path = session.resolve(given.path())
    left = given.number("-n", 0, MAX_COUNT)
    url = session.url_of(path, given.query())
    if session.screen.is_terminal:
        session.screen.note(f"{format_path(path)} is watched until Ctrl-C.")
    for event in _events(session.client, url):
        _show_event(session, event)
        left -= 1
        if left == 0:
            return
    raise CommandFailed(f"{url.origin} ended the stream.")


def _events(client: HttpClient, url: Url) -> Iterator[StreamEvent]:
    """Iterate over the changes of a stream, which is closed when the caller has enough of them."""
    with in_options():
        response = client.request("GET", url, {"Accept": STREAM})
    try:
        require_stream(response.header("Content-Type") or "", url)
        parser = EventParser()
        for piece in response.pieces():
            for event in parser.feed(piece):
                if event.kind in FINAL_EVENTS:
                    raise CommandFailed(FINAL_EVENTS[event.kind])
                if event.kind in CHANGES:
                    yield event
    finally:
        response.close()


def _show_event(session: ShellSession, event: StreamEvent) -> None:
    try:
        kind, path, data = event.print_text().decode().rstrip("\n").split("\t", 2)
    except (InvalidEvent, ValueError):
        raise CommandFailed(
            f"{session.root.origin} sent an event that treedb does not know."
        ) from None
    screen = session.screen
    screen.print(f"{kind}\t{screen.style_name(path)}\t{screen.style_json(data)}")


def set_value(session: ShellSession, given: Given) -> None:
    """Replace the value at a path."""
    session.write("PUT", session.resolve(given.path()), read_json(given.value))


def update(session: ShellSession, given: Given) -> None:
    """Change some children of a path and keep the others."""
    path, value = session.resolve(given.path()), read_json(given.value)
    if not value.lstrip().startswith("{"):
        raise CommandFailed('update needs the children as an object, such as {"age": 37}.')
    session.write("PATCH", path, value)


def push(session: ShellSession, given: Given) -> None:
    """Add a child with a new key, and print the key."""
    path, value = session.resolve(given.path()), read_json(given.value)
    answer = session.write("POST", path, value, is_silent=False)
    added = parse_json(answer, session.root)
    if isinstance(added, dict):
        session.screen.print(make_safe(str(added.get("name"))))


def rm(session: ShellSession, given: Given) -> None:
    """Remove the value at a path; ask first if it has children."""
    path = session.resolve(given.path())
    if "-f" not in given.flags and not path:
        _require_consent(session, "the whole database")
    elif "-f" not in given.flags:
        found = session.children(path, 2)
        if isinstance(found, dict):
            _require_consent(session, f"{format_path(path)} and everything below it")
    session.write("DELETE", path)


def mv(session: ShellSession, given: Given) -> None:
    """Move the value at a path to another one; ask first if something is there."""
    source, target = map(session.resolve, given.words)
    move = Move(session.client, session.url_of, source, target)
    try:
        move.run(replaces="-f" in given.flags)
    except TargetExists as error:
        if session.confirm is None:
            raise CommandFailed(f"{error} mv -f replaces it.") from None
        if not session.confirm(f"Replace what is at {format_path(target)}? [y/N] "):
            raise CommandFailed("Nothing is moved.") from None
        move.run(replaces=True)
    finally:
        session.changed()


def _require_consent(session: ShellSession, what: str) -> None:
    if session.confirm is None:
        raise CommandFailed(f"rm would remove {what}: write rm -f.")
    if not session.confirm(f"Remove {what}? [y/N] "):
        raise CommandFailed("Nothing is removed.")


@attrs.frozen
class ShellCommand:
    """A command: what runs it, how it is written, what it does, and its arguments."""

    run: Callable[[ShellSession, Given], None]
    usage: str
    summary: str
    shape: Shape
    has_path: bool = True


def cd(session: ShellSession, given: Given) -> None:
    """Go to a path, which need not exist."""
    target = given.words[0] if given.words else "/"
    if target == _BACK:
        if session.previous is None:
            raise CommandFailed("There is no previous place yet.")
        path = session.previous
    else:
        path = session.resolve(target)
    session.previous, session.place = session.place, path
    if target == _BACK:
        session.screen.print(session.screen.style_name(format_path(path)))


def pwd(session: ShellSession, _: Given) -> None:
    """Print the path and the URL of the place."""
    url = session.root.below(session.place)
    shown = attrs.evolve(url, path=url.path or "/")
    session.screen.print(f"{session.screen.style_name(format_path(session.place))}  {shown}")


def use(session: ShellSession, given: Given) -> None:
    """Go to the root of another database."""
    label = given.words[0].lower()
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


def as_auth(session: ShellSession, given: Given) -> None:
    """Let rules see another `auth`, as admins may; without an argument as before."""
    auth = read_json(given.value) if given.value else None
    if auth is not None and not (auth == "null" or auth.startswith("{")):
        raise CommandFailed('as needs an object, such as {"uid": "ada"}, or null.')
    session.auth = auth
    session.changed()


def whoami(session: ShellSession, _: Given) -> None:
    """Print as whom requests are sent."""
    session.screen.print(session.identity)
    if session.auth is not None:
        session.screen.print(f"rules see auth = {session.screen.style_json(session.auth)}")


def leave(_session: ShellSession, _given: Given) -> None:
    """Leave the shell."""
    raise ShellEnded


def show_help(session: ShellSession, given: Given) -> None:
    """Print what the commands do, or how one is written."""
    if given.words:
        command = find_command(given.words[0])
        session.screen.print(f"{command.usage}\n    {command.summary}")
        options = [each for each in command.shape.names if each not in command.usage]
        if options:
            session.screen.print(f"    options: {' '.join(options)}")
        return
    widest = max(len(command.usage) for command in COMMANDS.values())
    for command in COMMANDS.values():
        session.screen.print(f"{command.usage:{widest}}  {command.summary}")


_NOTHING: Final = Shape(most=0)
_PATH: Final = Shape()
_ONE_WORD: Final = Shape(least=1)
_WRITE: Final = Shape(least=1, has_value=True)
COMMANDS: Final = {
    "cd": ShellCommand(cd, "cd [PATH]", "go to a path: .. is above, / the root, - back", _PATH),
    "pwd": ShellCommand(pwd, "pwd", "print where one is", _NOTHING, has_path=False),
    "ls": ShellCommand(
        ls, "ls [-l] [PATH]", "print keys, with -l values and sizes", Shape(flags=("-l",))
    ),
    "tree": ShellCommand(
        tree,
        "tree [--depth N] [--children N] [PATH]",
        f"print what is below, {DEPTH} deep and {CHILDREN} children of each",
        Shape(options=("--depth", "--children")),
    ),
    "cat": ShellCommand(
        cat,
        "cat [--raw] [--shallow] [QUERY] [PATH]",
        "print a value; QUERY as in --order-by age --limit-to-first 3",
        Shape(flags=("--raw", "--shallow"), options=QUERY_OPTIONS),
    ),
    "watch": ShellCommand(
        watch,
        "watch [-n N] [QUERY] [PATH]",
        "print changes until Ctrl-C, or N of them",
        Shape(options=("-n", *QUERY_OPTIONS)),
    ),
    "set": ShellCommand(
        set_value, "set PATH VALUE", 'replace a value; VALUE is JSON: 1, "a", {…}', _WRITE
    ),
    "update": ShellCommand(
        update, "update PATH OBJECT", "change some children, keep the others", _WRITE
    ),
    "push": ShellCommand(
        push, "push PATH VALUE", "add a child with a new key, print the key", _WRITE
    ),
    "rm": ShellCommand(
        rm,
        "rm [-f] PATH",
        "remove; asks before more than one value goes, but not with -f",
        Shape(flags=("-f",), least=1),
    ),
    "mv": ShellCommand(
        mv,
        "mv [-f] PATH PATH",
        "move to another path; asks before it replaces a value, but not with -f",
        Shape(flags=("-f",), least=2, most=2),
    ),
    "use": ShellCommand(
        use, "use NAME", "go to another database, as PROJECT or DATABASE--PROJECT", _ONE_WORD, False
    ),
    "as": ShellCommand(
        as_auth,
        "as [OBJECT]",
        'let rules see this auth, as in as {"uid": "ada"}; as alone ends it (admins)',
        Shape(most=0, has_value=True),
        has_path=False,
    ),
    "whoami": ShellCommand(whoami, "whoami", "print whom the token names", _NOTHING, False),
    "help": ShellCommand(
        show_help, "help [COMMAND]", "print this, or about a command", _PATH, False
    ),
    "exit": ShellCommand(leave, "exit", "leave (or Ctrl-D)", _NOTHING, has_path=False),
}

MEANINGS: Final = {
    **dict.fromkeys(("remove", "del", "delete"), "rm"),
    "get": "cat",
    "put": "set",
    "post": "push",
    "patch": "update",
    "move": "mv",
    "rename": "mv",
    "quit": "exit",
}
"""What other programs call the commands."""


def find_command(name: str) -> ShellCommand:
    """Return a command by its name; raise `CommandFailed` with the nearest one."""
    command = COMMANDS.get(name)
    if command is not None:
        return command
    near = (
        [MEANINGS[name.lower()]]
        if name.lower() in MEANINGS
        else difflib.get_close_matches(name.lower(), COMMANDS, 1, 0.5)
    )
    hint = f"did you mean {near[0]}?" if near else "try help."
    raise CommandFailed(f"There is no command {name[:40]}: {hint}")


def run_line(session: ShellSession, line: str) -> None:
    """Run the commands of a line; raise `CommandFailed` at the first failure, or `ShellEnded`."""
    if not is_text(line):
        raise CommandFailed("The command is not UTF-8.")
    for text in split_commands(line):
        name = next_word(text, 0)
        if name is not None:
            command = find_command(name.text)
            given = parse_arguments(command.shape, text[name.end :], command.usage)
            command.run(session, given)


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
