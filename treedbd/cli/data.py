"""The commands of data: get, set, push, update, remove, ls, tree, log and transaction.

`get`, `set`, `push`, `update` and `remove` are one request for one path. The response is printed as
it arrives and ends with a line end. Values may have any size: only a piece of one is in memory at a
time. If a VALUE is not JSON, a hint says why: it is a bare word, or what a shell has left of an
object.

`ls` prints the keys of the children of a path, `tree` a path and what is below it, down to a depth,
with sizes and counts. Both read children in pages: any number of them in bounded memory.

`log` prints for admins who has written where and when, one JSON object a line. With
a search it prints what the audit has, too.

`transaction` replaces a value by what an expression of jq makes of it. The value is read with its
entity tag and written only if it still has it; if another client has changed it meanwhile, all of
it is done again. jq calculates in doubles, so a value with an integer that a double cannot hold is
refused rather than changed.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import json
import os
import pathlib
import random
import re
import shlex
import signal
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from codecs import BOM_UTF8
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, BinaryIO, Final, NoReturn
from urllib.parse import unquote

import attrs
import orjson

from treedbd.audit.search import Search, parse_time
from treedbd.cli.audit import add_search_options, search_of
from treedbd.cli.exit import (
    DONE,
    CommandFailed,
    colour,
    descriptor_of,
    has_colour,
    make_printable,
    paint_printable,
    print_line,
    warn,
    write_out,
)
from treedbd.cli.http_client import (
    PIECE_BYTES,
    Body,
    HttpClient,
    UnreadResponse,
    add_online_options,
    parse_json,
    reading_answer,
    run_once,
)
from treedbd.cli.options import (
    SILENCE_S,
    STANDARD_INPUT,
    SUFFIX,
    NoResponse,
    Url,
    add_address,
    add_config_option,
    add_flag,
    add_network_options,
    add_optional_address,
    add_query_options,
    add_tries_option,
    in_options,
    is_json,
    number_from,
    query_parameters,
    reported,
    standard_input,
    time_parameters,
    writing,
)

JSON_HEADERS: Final = {"Content-Type": "application/json"}
WITH_TAG: Final = {"X-TreeDB-ETag": "true"}
BAD_REQUEST: Final = 400
FORBIDDEN: Final = frozenset({401, 403})
CONDITION_FAILED: Final = 412
TOO_LARGE: Final = 413
NULL: Final = b"null"
_PAUSE_S: Final = 0.01
_MAX_PAUSE_S: Final = 0.5
_PARAMETERS: Final = (
    ("shallow", "shallow", "true"),
    ("pretty", "print", "pretty"),
    ("export", "format", "export"),
)
_METHODS: Final = {"set": "PUT", "push": "POST", "update": "PATCH", "remove": "DELETE"}

_MAX_CHARACTERS: Final = 200
_JSON_TOKEN = re.compile(r'("(?:[^"\\]|\\.)*+")(\s*:)?|(-?\d[\d.eE+-]*)|\b(true|false|null)\b')
_STEPS = re.compile(r'"(?:[^"\\]|\\.)*+\\?(?:"|\Z)|[,{}\[\]\n]', re.DOTALL)
"""Strings, of which the last one may have no end yet, and what separates tokens outside of them."""
_LONGEST_STYLED: Final = 65_536
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_WORD = re.compile(r"[^\s{}\[\]:,\"']+")

PAGE_CHILDREN: Final = 1000
_MAX_PAGE_BYTES: Final = 16_777_216
"""A page of values that has more is read again with fewer children."""
SIZE: Final = ".sz"
"""The member by which a shallow read shows the bytes of a container."""
_KINDS: Final = {bool: "boolean", str: "string", int: "number", float: "number"}

MAX_DEPTH: Final = 32
"""The keys of the longest path."""
_COUNTED: Final = 100 * PAGE_CHILDREN
"""How many children of a node are counted."""
_SHOWN_CHARACTERS: Final = 60

POLL_S: Final = 1.0
"""How long `--follow` waits when there is nothing new."""
PAGE_ENTRIES: Final = 1000
_NOT_FOUND: Final = 404
_AUDITED: Final = (
    *("seq", "time", "uid", "admin", "as", "method", "path", "size"),
    *("from", "token_id", "means", "data"),
)
"""The members of an audited write that `log` prints, in their order."""
_EXACT: Final = 2**53
_MAX_EXACT_BYTES: Final = 268_435_456


class _PageTooLarge(Exception):
    """A page has too many bytes to be read as a whole."""


def add_options(parser: ArgumentParser, command: str) -> None:
    """Add the options of one of these commands to its parser."""
    add_address(parser)
    if command == "get":
        _add_get_options(parser)
    else:
        _add_write_options(parser, _METHODS[command])
    add_online_options(parser, _get if command == "get" else _write, has_timeout=True)


def _add_get_options(parser: ArgumentParser) -> None:
    add_flag(parser, "--shallow", "print the keys of the children only")
    add_flag(parser, "--pretty", "print indented lines")
    add_flag(parser, "--export", "with priorities, without arrays")
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="write a file, which appears when it is whole"
    )
    tags = parser.add_mutually_exclusive_group()
    add_flag(tags, "--etag", "print the entity tag of the value only")
    add_flag(tags, "--json", 'print {"etag": …, "value": …}, for --if-match')
    add_query_options(parser)


def _add_write_options(parser: ArgumentParser, method: str) -> None:
    if method != "DELETE":
        parser.add_argument("value", metavar="VALUE", help="JSON, or - for standard input")
    add_flag(parser, "--silent", "print nothing")
    parser.add_argument(
        "--if-match", metavar="TAG", help="write only if the value at the path has this entity tag"
    )
    if method == "DELETE":
        add_flag(parser, "-f", "--force", "do not ask, as the shell does otherwise")
    parser.set_defaults(method=method, value=None)


def _get(client: HttpClient, arguments: Namespace) -> None:
    parameters = query_parameters(arguments) | time_parameters(arguments)
    for option, name, value in _PARAMETERS:
        if getattr(arguments, option):
            parameters[name] = value
    url = arguments.url.to_json().with_parameters(parameters)
    with in_options(), opened_output(arguments.output) as write:
        if arguments.etag or arguments.json:
            _print_tag(client, url, write, with_value=arguments.json)
        else:
            print_body(client.request("GET", url), write)


def _print_tag(
    client: HttpClient, url: Url, write: Callable[[bytes], None], *, with_value: bool
) -> None:
    response = client.request("GET" if with_value else "HEAD", url, WITH_TAG)
    tag = response.header("ETag")
    if tag is None:
        raise CommandFailed("A query and a shallow read have no entity tag.")
    tag = make_printable(_bare_tag(tag))
    if not with_value:
        write(os.fsencode(tag) + b"\n")
        return
    write(b'{"etag":%b,"value":' % json.dumps(tag).encode())
    for piece in response.pieces():
        write(piece)
    write(b"}\n")


def _write(client: HttpClient, arguments: Namespace) -> None:
    parameters = {"print": "silent"} if arguments.silent else {}
    url: Url = arguments.url.to_json().with_parameters(parameters | time_parameters(arguments))
    body = None if arguments.value is None else make_body(arguments.value)
    headers = {} if body is None else JSON_HEADERS
    if arguments.if_match is not None:
        headers = {**headers, "If-Match": make_tag(arguments.if_match)}
    response = client.send(arguments.method, url, headers, body)
    if response.status == CONDITION_FAILED:
        raise CommandFailed(describe_condition(response, arguments.url))
    if not response.is_success:
        hint = hint_at_value(arguments.value) if response.status == BAD_REQUEST else ""
        raise CommandFailed(response.read_error() + hint)
    print_body(response, write_out)


def make_tag(text: str) -> str:
    """Return an entity tag for a header; raise `CommandFailed`."""
    tag = _bare_tag(text)
    if not tag.isascii() or not tag.isprintable() or set(tag) & set(' ",'):
        raise CommandFailed("--if-match must be one entity tag, as get --etag prints it, or *.")
    return tag if tag == "*" else f'"{tag}"'


def describe_condition(response: UnreadResponse, url: Url) -> str:
    """Return the sentence of a 412, with the present tag."""
    tag = _bare_tag(response.header("ETag"))
    response.close()
    now = f": its entity tag is now {tag}" if tag else ""
    return f"412 condition_failed: The value at {url} is another one{now}."


def _bare_tag(tag: str | None) -> str:
    """Return an entity tag without quotation marks; empty if there is none."""
    return (tag or "").removeprefix("W/").strip('"')


def describe_tries(what: object, tries: int, undone: str) -> str:
    """Return the sentence of a conditional write that others have prevented each time."""
    times = "once" if tries == 1 else f"{tries} times"
    return f"Others have changed {what} each time, {times}: nothing was {undone}."


def pause_between_tries(tried: int) -> None:
    """Wait before a write is tried again; the pause grows with the number of tries."""
    # Random, so that clients that collided do not collide again.
    time.sleep(random.uniform(0, min(_MAX_PAUSE_S, _PAUSE_S * tried)))  # noqa: S311


@contextlib.contextmanager
def opened_output(name: str | None) -> Iterator[Callable[[bytes], None]]:
    """Open a file for a `with` block, None or `-` for standard output; raise `CommandFailed`.

    The block receives the function that writes, which raises `CommandFailed` or `OutputClosed`. The
    file appears, or replaces an older one, when the block ends without an error. A symbolic link is
    followed; a device, a named pipe or an open file such as `/dev/stdout` is written to directly.
    """
    if name is None or name == "-":
        yield write_out
        return
    path = pathlib.Path(os.path.realpath(name))
    descriptor = descriptor_of(name)
    with reported(name, "written"):
        part, file = _create(path, descriptor)

    def write(data: bytes) -> None:
        with writing(name, descriptor):
            file.write(data)

    try:
        try:
            yield write
            with writing(name, descriptor):
                file.close()
        finally:
            with contextlib.suppress(OSError):  # only what was reported above
                file.close()
        if part is not None:
            with reported(name, "written"):
                part.replace(path)
    except BaseException:
        if part is not None:
            part.unlink(missing_ok=True)
        raise


def _create(path: pathlib.Path, opened: int | None) -> tuple[pathlib.Path | None, BinaryIO]:
    """Create an unfinished file beside `path`, with the mode of the file there, or 0600.

    None for what is not replaced: the open file with a number, a device or a pipe.
    """
    if opened is not None:
        return None, os.fdopen(os.dup(opened), "wb")
    if path.exists() and not path.is_file():
        return None, path.open("wb")
    descriptor, part = tempfile.mkstemp(".part", f".{path.name[:100]}.", path.parent)
    os.fchmod(descriptor, path.stat().st_mode & 0o777 if path.exists() else 0o600)
    return pathlib.Path(part), os.fdopen(descriptor, "wb")


def print_response(client: HttpClient, method: str, url: Url, body: Body | None) -> None:
    """Send a request and print the body of its response; raise `CommandFailed`."""
    headers = JSON_HEADERS if body is not None else None
    print_body(client.request(method, url, headers, body), write_out)


def print_body(response: UnreadResponse, write: Callable[[bytes], None]) -> None:
    """Write the body of a response as it arrives, with a line end after it."""
    pieces = response.pieces()
    if write is write_out and sys.stdout.isatty():
        pieces = styled_pieces(pieces, style_json)
    last = b"\n"
    for piece in pieces:
        write(piece)
        last = piece[-1:] or last
    if last != b"\n":
        write(b"\n")


def styled_pieces(pieces: Iterable[bytes], style: Callable[[str], str]) -> Iterator[bytes]:
    """Show JSON as it arrives, each time up to its last complete token.

    A string that is longer than `_LONGEST_STYLED` ends the colours: it is not kept to its end.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    rest = ""
    try:
        for piece in pieces:
            rest += decoder.decode(piece)
            steps = (each for each in _STEPS.finditer(rest) if each[0][0] != '"')
            end = max((each.end() for each in steps), default=0)
            if len(rest) - end > _LONGEST_STYLED:
                style, end = make_safe, len(rest)
            elif style is make_safe:
                end = len(rest)
            yield style(rest[:end]).encode()
            rest = rest[end:]
    except NoResponse:  # what has arrived is shown
        yield style(rest).encode()
        raise
    yield style(rest).encode()


def style_json(text: str) -> str:
    """Return JSON as standard output shows it: safe on a terminal, and in its colours."""
    if not sys.stdout.isatty():
        return text
    return colour_json(make_safe(text)) if has_colour() else make_safe(text)


def colour_json(text: str) -> str:
    """Return JSON with the colours of its tokens."""
    return _JSON_TOKEN.sub(_colour, text)


def make_safe(text: str) -> str:
    """Return text, or JSON, with control characters as the escapes that JSON has for them."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _colour(found: re.Match[str]) -> str:
    string: str
    string, colon, number, word = found.groups()
    if colon is not None:
        return f"{colour(string, 'key')}{colon}"
    kind = "string" if string is not None else "number" if number is not None else "word"
    return colour(string or number or word, kind)


def make_body(value: str) -> Body:
    """Return the body that sends a value of the command line, or standard input for `-`.

    A byte order mark at the beginning of standard input is left out.
    """
    if value != STANDARD_INPUT:
        content = os.fsencode(value)
        return Body((content,), len(content))
    source = standard_input()
    if source.seekable():
        begin = source.tell()
        if source.read(len(BOM_UTF8)) == BOM_UTF8:
            begin = source.tell()
        length = source.seek(0, os.SEEK_END) - begin
        source.seek(begin)
        return Body(_read(source), length)
    return Body(_read(source, skips_mark=True), None)


def _read(source: io.BufferedReader, *, skips_mark: bool = False) -> Iterator[bytes]:
    """Yield the pieces of a file as they arrive, without a byte order mark if `skips_mark`."""
    with reported("Standard input", "read"):
        if skips_mark and (first := source.read(len(BOM_UTF8))) not in (b"", BOM_UTF8):
            yield first
        while piece := source.read1(PIECE_BYTES):
            yield piece


def hint_at_value(value: str | None) -> str:
    """Return a sentence that says how to write a value as JSON; empty if there is none to give."""
    if value is None or value == STANDARD_INPUT or len(value) > _MAX_CHARACTERS or is_json(value):
        return ""
    if not value.isprintable():
        return ""
    if value[:1] not in {"{", "[", '"'}:
        return f" A JSON string has quotation marks: {shlex.quote(json.dumps(value))}."
    repaired = _WORD.sub(_quote_word, value)
    if '"' not in value and is_json(repaired):
        return (
            " The shell has removed the quotation marks: put single ones around the whole value, "
            f"{shlex.quote(repaired)}."
        )
    return ""


def _quote_word(found: re.Match[str]) -> str:
    return found[0] if is_json(found[0]) else json.dumps(found[0])


@attrs.frozen
class ListedChild:
    """A child, or the value at a path itself.

    `kind` is object, string, number or boolean, and `size` the size of its JSON in bytes; of an
    object the `value` is None. Both are unknown, "" and 0, if only keys were read.
    """

    key: str
    kind: str = ""
    size: int = 0
    value: Any = None


def read_children(
    client: HttpClient, url: Url, *, with_values: bool, limit: int | None = None
) -> Iterator[ListedChild]:
    """Return the children of a path in key order, at most `limit`; none of a leaf.

    Raises `CommandFailed`. Each page is read at its own moment.
    """
    for page in read_pages(client, url, PAGE_CHILDREN, with_values=with_values, limit=limit):
        if isinstance(page, dict):
            for key, value in page.items():
                yield describe_child(key, value) if with_values else ListedChild(key)


def read_pages(
    client: HttpClient,
    url: Url,
    size: int,
    *,
    with_values: bool,
    limit: int | None = None,
    after: str | None = None,
) -> Iterator[Any]:
    """Yield pages of the children of a path, in key order, from the first one after `after` on.

    A page is a dict of at most `size` children, fewer if they are long; `limit` bounds all pages
    together. With `with_values` a leaf has its value, and a container its size. Without `after` a
    leaf at the path is yielded itself, and None if nothing is there. Raises `CommandFailed`. Each
    page is read at its own moment.
    """
    left = limit
    while left is None or left > 0:
        count = size if left is None else min(size, left)
        try:
            page = _read_page(client, url, after, count, with_values=with_values)
        except _PageTooLarge:
            size = max(1, count // 8)
            continue
        is_page = isinstance(page, dict)
        if is_page or after is None:
            yield page
        if not is_page or len(page) < count:
            return
        left = None if left is None else left - count
        after = next(reversed(page))


def read_itself(client: HttpClient, url: Url) -> ListedChild | None:
    """Return the value at a path, without its size if it is an object; None for nothing."""
    page = _read_page(client, url, None, 1, with_values=False)
    return None if page is None else describe_child("", page)


def describe_child(key: str, value: Any) -> ListedChild:
    """Return a child of a shallow read."""
    if isinstance(value, dict):
        size = value.get(SIZE)
        return ListedChild(key, "object", size if isinstance(size, int) else 0)
    return ListedChild(key, _KINDS.get(type(value), "value"), len(orjson.dumps(value)), value)


def _read_page(
    client: HttpClient, url: Url, after: str | None, count: int, *, with_values: bool
) -> Any:
    """Return the JSON of a page; raise `_PageTooLarge`."""
    parameters = {"shallow": "true", "limitToFirst": str(count)}
    if with_values:
        parameters["v"] = "2"
    if after is not None:
        parameters["startAfter"] = orjson.dumps(after).decode()  # a key may begin with a quote
    response = client.request("GET", url.to_json().with_parameters(parameters))
    content = response.content() if count == 1 else response.content_up_to(_MAX_PAGE_BYTES)
    if content is None:
        raise _PageTooLarge
    return parse_json(content, url)


def add_ls_options(parser: ArgumentParser, _: str) -> None:
    """Add the options of the command to its parser."""
    add_optional_address(parser)
    add_flag(parser, "-l", "--long", "print kind, size in bytes of JSON, and key")
    add_flag(parser, "--json", 'print a line for each child: {"key": …, "kind": …, "size": …}')
    add_online_options(parser, _ls)


def _ls(client: HttpClient, arguments: Namespace) -> None:
    is_long = arguments.long or arguments.json
    is_empty = True
    for child in read_children(client, arguments.url, with_values=is_long):
        _print(child, arguments)
        is_empty = False
    if is_empty:
        value = read_itself(client, arguments.url)
        if value is None or value.kind == "object":  # all children were removed meanwhile
            raise CommandFailed(f"There is nothing at {arguments.url}.")
        raise CommandFailed(f"The value at {arguments.url} is a {value.kind}, without children.")


def _print(child: ListedChild, arguments: Namespace) -> None:
    if arguments.json:
        write_out(orjson.dumps({"key": child.key, "kind": child.kind, "size": child.size}) + b"\n")
    elif arguments.long:
        print_line(f"{child.kind:7} {child.size:>12} {paint_printable(child.key, child.kind)}")
    else:
        print_line(paint_printable(child.key, child.kind))


def add_tree_options(parser: ArgumentParser, _: str) -> None:
    """Add the options of the command to its parser."""
    add_optional_address(parser)
    parser.add_argument(
        "--depth",
        metavar="N",
        type=number_from(1, MAX_DEPTH),
        default=2,
        help="how many levels are shown (default: %(default)s)",
    )
    parser.add_argument(
        "--children",
        metavar="N",
        type=number_from(1, PAGE_CHILDREN),
        default=20,
        help="how many children of a node are shown (default: %(default)s)",
    )
    add_flag(parser, "--json", "print one JSON object")
    add_online_options(parser, _tree)


@attrs.frozen
class _TreeNode:
    """A child with those of its children that are shown; `count` is None if it was not opened."""

    child: ListedChild
    children: tuple[_TreeNode, ...] = ()
    count: int | None = None


def _tree(client: HttpClient, arguments: Namespace) -> None:
    url: Url = arguments.url
    value = read_itself(client, url)
    if value is None:
        raise CommandFailed(f"There is nothing at {url}.")
    name = unquote(url.path.removesuffix(SUFFIX).rstrip("/").rpartition("/")[2]) or "/"
    root = attrs.evolve(value, key=name)
    node = _read_tree(client, url, root, arguments.depth, arguments.children)
    if arguments.json:
        write_out(orjson.dumps(_as_json(node)) + b"\n")
        return
    print_line(_label(node))
    for line in _lines(node, ""):
        print_line(line)


def _read_tree(
    client: HttpClient, url: Url, child: ListedChild, depth: int, most: int
) -> _TreeNode:
    if child.kind != "object" or depth == 0:
        return _TreeNode(child)
    shown = list(read_children(client, url, with_values=True, limit=most))
    count = len(shown)
    if count == most:
        count = sum(1 for _ in read_children(client, url, with_values=False, limit=_COUNTED))
    nodes = (_read_tree(client, url.below((each.key,)), each, depth - 1, most) for each in shown)
    return _TreeNode(child, tuple(nodes), count)


def _lines(node: _TreeNode, indent: str) -> Iterator[str]:
    more = (node.count or 0) - len(node.children)
    for at, each in enumerate(node.children, 1):
        is_last = at == len(node.children) and more <= 0
        yield f"{indent}{'└── ' if is_last else '├── '}{_label(each)}"
        yield from _lines(each, indent + ("    " if is_last else "│   "))
    if more > 0:
        text = f"… {more:,}{'+' if node.count == _COUNTED else ''} more"
        yield f"{indent}└── {paint_printable(text, 'dim')}"


def _label(node: _TreeNode) -> str:
    child = node.child
    name = paint_printable(child.key, child.kind)
    if child.kind != "object":
        text = orjson.dumps(child.value).decode()
        cut = text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
        return f"{name}: {paint_printable(cut, '')}"
    facts = []
    if node.count is not None:
        mark = "+" if node.count == _COUNTED else ""
        facts.append(f"{node.count:,}{mark} {'child' if node.count == 1 else 'children'}")
    if child.size:
        facts.append(f"{child.size:,} bytes")
    shown = ", ".join(facts)
    return f"{name} {paint_printable(f'({shown})', 'dim')}" if facts else name


def _as_json(node: _TreeNode) -> dict[str, Any]:
    found: dict[str, Any] = {"key": node.child.key, "kind": node.child.kind}
    if node.child.size:
        found["size"] = node.child.size
    if node.child.kind != "object":
        found["value"] = node.child.value
    if node.count is not None:
        found |= {"count": node.count, "children": [_as_json(each) for each in node.children]}
    return found


def add_log_options(parser: ArgumentParser, _: str) -> None:
    """Add the options of the command to its parser."""
    add_optional_address(parser, "the URL of a database")
    parser.add_argument(
        "--after", metavar="SEQ", type=number_from(0), help="print the writes after this number"
    )
    parser.add_argument(
        "--limit",
        metavar="N",
        type=number_from(1),
        default=100,
        help="print N writes (default: 100): the newest, or the first after --after",
    )
    summary = "print what was written, as far as the change log or the audit has kept it"
    parser.add_argument("--data", dest="with_data", action="store_true", help=summary)
    add_search_options(parser)
    add_flag(parser, "--follow", "go on with new writes until Ctrl-C")
    add_network_options(parser)
    add_config_option(parser)
    parser.set_defaults(run=run_once, request=_log, silence_s=SILENCE_S)


def _log(client: HttpClient, arguments: Namespace) -> None:
    if arguments.follow:
        signal.signal(signal.SIGINT, _end)
    search, limit, after = search_of(arguments), arguments.limit, arguments.after
    entries = _LogEntries(client, arguments.url, with_data=arguments.with_data)
    if search == Search():
        _print_entries(entries.read(after, limit))
    else:
        found = entries.find(search, after or 0)
        if after is None:  # the newest ones
            _print_entries(deque(found, limit))
        else:
            _print_entries(found if arguments.follow else islice(found, limit))
    while arguments.follow:
        time.sleep(POLL_S)
        after = entries.last or after or 0
        _print_entries(each for each in entries.read(after, None) if _is_in(search, each))


def _print_entries(entries: Iterable[dict[str, Any]]) -> None:
    for entry in entries:
        write_out(orjson.dumps(entry) + b"\n")


def _is_in(search: Search, entry: dict[str, Any]) -> bool:
    return search.finds(entry | {"time": parse_time(entry["time"])})


class _LogEntries:
    """The entries of a change log, and those that only the audit has.

    Attributes:
        last: the number of the last entry of the log that was read; None before.

    """

    def __init__(self, client: HttpClient, url: Url, *, with_data: bool) -> None:
        self._client, self._url, self._with_data = client, url, with_data
        self.last: int | None = None

    def read(self, after: int | None, most: int | None) -> Iterator[dict[str, Any]]:
        """Yield the entries after a number, or the newest; to the end, or `most`."""
        while most is None or most > 0:
            count = PAGE_ENTRIES if most is None else min(most, PAGE_ENTRIES)
            entries = _read_log(self._client, self._url, after, count, with_data=self._with_data)
            yield from entries
            if not entries:
                return
            after = self.last = entries[-1]["seq"]
            most = None if most is None else most - len(entries)

    def find(self, search: Search, after: int) -> Iterator[dict[str, Any]]:
        """Yield what is searched for: what the audit has, then what the log alone has."""
        known = set[int]()
        for entry in self._read_audited(search):
            if entry["seq"] > after:
                known.add(entry["seq"])
                yield entry
        for entry in self.read(after, None):
            if entry["seq"] not in known and _is_in(search, entry):
                yield entry

    def _read_audited(self, search: Search) -> Iterator[dict[str, Any]]:
        """Yield the writes that the audit has; none without an audit."""
        given = {name: value for name, value in attrs.asdict(search).items() if value is not None}
        parameters, begin = {**given, "limitToFirst": str(PAGE_ENTRIES)}, ""
        while begin is not None:
            if begin:
                parameters["startAfter"] = begin
            address = self._url.to_settings("audit.json").with_parameters(parameters)
            response = self._client.send("GET", address)
            if response.status == _NOT_FOUND:
                response.close()
                return
            if not response.is_success:
                raise CommandFailed(response.read_error())
            page = parse_json(response.content(), address)
            with reading_answer(address):
                lines = [each for each in page["lines"] if each["kind"] == "write"]
                begin = page["next"]
                shown = [_show_audited(each) for each in lines]
            yield from shown


def _show_audited(line: dict[str, Any]) -> dict[str, Any]:
    """Return a line of the audit as entries of the log are."""
    shown = {name: line[name] for name in _AUDITED if name in line}
    return shown | {"time": line["time"].replace("Z", "+00:00")}


def _read_log(
    client: HttpClient, url: Url, after: int | None, count: int, *, with_data: bool
) -> list[Any]:
    parameters = {"limitToFirst": str(count)}
    if after is not None:
        parameters["startAfter"] = str(after)
    if with_data:
        parameters["format"] = "export"
    address = url.to_settings("log.json").with_parameters(parameters)
    entries = parse_json(client.request("GET", address).content(), address)
    with reading_answer(address):
        return [entry for entry in entries if entry["seq"]]


def _end(*_: object) -> NoReturn:
    """End with success: Ctrl-C is the only end of `--follow`, and what was read is printed."""
    os._exit(DONE)


def add_transaction_options(parser: ArgumentParser, _: str) -> None:
    """Add the options of the command to its parser."""
    add_address(parser)
    parser.add_argument(
        "expression",
        metavar="EXPRESSION",
        help="jq, such as '. + 1', '.age = 37' or '. + [\"new\"]'; null removes the value, empty "
        "leaves it",
    )
    add_tries_option(parser)
    add_flag(parser, "--export", "let it see and keep priorities")
    shown = parser.add_mutually_exclusive_group()
    add_flag(shown, "--silent", "print nothing")
    add_flag(shown, "--json", 'print {"value": …, "etag": …, "tries": …}')
    add_online_options(parser, _transact, has_timeout=True)


def _transact(client: HttpClient, arguments: Namespace) -> None:
    program = _compile_jq(arguments.expression)
    parameters = time_parameters(arguments)
    if arguments.export:
        parameters["format"] = "export"
    url: Url = arguments.url.to_json()
    for tries in range(1, arguments.tries + 1):
        read = client.request("GET", url.with_parameters(parameters), WITH_TAG)
        tag = read.header("ETag")
        if tag is None:
            raise CommandFailed("A query has no entity tag: give the URL of a path.")
        new = _evaluate_jq(program, *read.json_text(_MAX_EXACT_BYTES))
        if new is None:
            warn("The expression gave nothing, so nothing was written.")
            return
        headers = {**JSON_HEADERS, "If-Match": tag}
        written = client.send(
            "PUT", url.with_parameters(time_parameters(arguments)), headers, Body((new,), len(new))
        )
        if written.is_success:
            _print_written(written.content(), written.header("ETag"), tries, arguments)
            return
        if written.status != CONDITION_FAILED:
            raise CommandFailed(written.read_error())
        written.close()
        pause_between_tries(tries)
    raise CommandFailed(describe_tries(arguments.url, arguments.tries, "written"))


def _print_written(value: bytes, tag: str | None, tries: int, arguments: Namespace) -> None:
    if arguments.json:
        shown = {"value": orjson.Fragment(value), "etag": _bare_tag(tag), "tries": tries}
        write_out(orjson.dumps(shown) + b"\n")
    elif not arguments.silent:
        write_out(value + b"\n")


def _compile_jq(expression: str) -> Any:
    import jq

    try:
        return jq.compile(expression)
    except ValueError as error:
        raise _describe_jq_error(error) from None


def _evaluate_jq(program: Any, text: bytes, value: Any) -> bytes | None:
    """Return the JSON that an expression makes of JSON, None for nothing."""
    _refuse_large_integers(value)
    results = iter(program.input_text(text.decode()))
    try:
        found = list(zip(range(2), results, strict=False))
    except ValueError as error:
        raise _describe_jq_error(error) from None
    if len(found) > 1:
        raise CommandFailed("The expression gave several values: put [ ] around it for an array.")
    return orjson.dumps(found[0][1]) if found else None


def _describe_jq_error(error: ValueError) -> CommandFailed:
    reason = str(error).strip().partition("\n")[0].removeprefix("jq: ").removeprefix("error: ")
    return CommandFailed(f"The expression fails: {reason.rstrip('.:')}.")


def _refuse_large_integers(value: Any) -> None:
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            waiting += each.values()
        elif isinstance(each, list):
            waiting += each
        elif type(each) is int and abs(each) > _EXACT:
            raise CommandFailed(f"The value has the integer {each}, which jq would round.")
