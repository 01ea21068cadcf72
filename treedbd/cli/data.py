"""`treedb get`, `set`, `push`, `update` and `remove`: one request for one path.

The response is printed as it arrives and ends with a line end. Values may have any size: only a
piece of one is in memory at a time.
"""

from __future__ import annotations

import io
import json
import os
from argparse import ArgumentParser, Namespace
from codecs import BOM_UTF8
from collections.abc import Iterator
from typing import Final

from treedbd.cli.exit import CommandFailed, make_printable, write_out
from treedbd.cli.hints import hint_at_value
from treedbd.cli.http_client import PIECE_BYTES, Body, HttpClient, UnreadResponse, run_once
from treedbd.cli.options import (
    ADDRESS_HELP,
    STANDARD_INPUT,
    Url,
    add_network_options,
    add_query_options,
    add_settings_options,
    add_timeout_option,
    in_options,
    parse_address,
    query_parameters,
    standard_input,
    time_parameters,
)
from treedbd.cli.output import WriteBytes, opened_output

JSON_HEADERS: Final = {"Content-Type": "application/json"}
WITH_TAG: Final = {"X-TreeDB-ETag": "true"}
BAD_REQUEST: Final = 400
CONDITION_FAILED: Final = 412
_PARAMETERS: Final = (
    ("shallow", "shallow", "true"),
    ("pretty", "print", "pretty"),
    ("export", "format", "export"),
)
_METHODS: Final = {"set": "PUT", "push": "POST", "update": "PATCH", "remove": "DELETE"}


def add_options(parser: ArgumentParser, command: str) -> None:
    """Add the options of one of these commands to its parser."""
    parser.add_argument("url", metavar="URL", type=parse_address, help=ADDRESS_HELP)
    if command == "get":
        _add_get_options(parser)
    else:
        _add_write_options(parser, _METHODS[command])
    add_timeout_option(parser)
    add_network_options(parser)
    add_settings_options(parser)


def _add_get_options(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--shallow", action="store_true", help="print the keys of the children only"
    )
    parser.add_argument("--pretty", action="store_true", help="print indented lines")
    parser.add_argument("--export", action="store_true", help="with priorities, without arrays")
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="write a file, which appears when it is whole"
    )
    tags = parser.add_mutually_exclusive_group()
    tags.add_argument("--etag", action="store_true", help="print the entity tag of the value only")
    tags.add_argument(
        "--json", action="store_true", help='print {"etag": …, "value": …}, for --if-match'
    )
    add_query_options(parser)
    parser.set_defaults(run=run_once, request=_get)


def _add_write_options(parser: ArgumentParser, method: str) -> None:
    if method != "DELETE":
        parser.add_argument("value", metavar="VALUE", help="JSON, or - for standard input")
    parser.add_argument("--silent", action="store_true", help="print nothing")
    parser.add_argument(
        "--if-match", metavar="TAG", help="write only if the value at the path has this entity tag"
    )
    parser.set_defaults(run=run_once, request=_write, method=method, value=None)


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


def _print_tag(client: HttpClient, url: Url, write: WriteBytes, *, with_value: bool) -> None:
    response = client.request("GET" if with_value else "HEAD", url, WITH_TAG)
    tag = response.header("ETag")
    if tag is None:
        raise CommandFailed("A query and a shallow read have no entity tag.")
    tag = make_printable(tag.removeprefix("W/").strip('"'))
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
    tag = text.removeprefix("W/").strip('"')
    if not tag.isascii() or not tag.isprintable() or set(tag) & set(' ",'):
        raise CommandFailed("--if-match must be one entity tag, as get --etag prints it, or *.")
    return tag if tag == "*" else f'"{tag}"'


def describe_condition(response: UnreadResponse, url: Url) -> str:
    """Return the sentence of a 412, with the present tag."""
    tag = (response.header("ETag") or "").removeprefix("W/").strip('"')
    response.close()
    now = f": its entity tag is now {tag}" if tag else ""
    return f"412 condition_failed: The value at {url} is another one{now}."


def print_response(client: HttpClient, method: str, url: Url, body: Body | None) -> None:
    """Send a request and print the body of its response; raise `CommandFailed`."""
    headers = JSON_HEADERS if body is not None else None
    print_body(client.request(method, url, headers, body), write_out)


def print_body(response: UnreadResponse, write: WriteBytes) -> None:
    """Write the body of a response as it arrives, with a line end after it."""
    last = b"\n"
    for piece in response.pieces():
        write(piece)
        last = piece[-1:]
    if last != b"\n":
        write(b"\n")


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
    """Read a file of any size, a pipe as it arrives; without a byte order mark if it skips that."""
    try:
        if skips_mark and (first := source.read(len(BOM_UTF8))) not in (b"", BOM_UTF8):
            yield first
        while piece := source.read1(PIECE_BYTES):
            yield piece
    except OSError as error:
        raise CommandFailed(f"Standard input cannot be read ({error.strerror}).") from None
