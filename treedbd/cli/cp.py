"""`treedb cp`: copies the value at one path to another, of any two daemons, piece by piece."""

from __future__ import annotations

import argparse
import pathlib
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from urllib.parse import parse_qsl, unquote

from treedbd.cli.data import JSON_HEADERS, NULL, TOO_LARGE
from treedbd.cli.exit import CommandFailed
from treedbd.cli.http_client import Body, HttpClient, UnreadResponse, run_once
from treedbd.cli.options import (
    LOCALHOST,
    SUFFIX,
    Url,
    add_network_options,
    add_settings_options,
    add_timeout_option,
    choose_authorities,
    is_local,
    parse_address,
    read_settings,
    read_token,
    read_token_file,
    time_parameters,
)


def add_options(parser: ArgumentParser, _: str) -> None:
    """Add the options of the command to its parser."""
    parser.add_argument(
        "source", metavar="SOURCE-URL", type=parse_address, help="the path to copy from"
    )
    parser.add_argument("url", metavar="TARGET-URL", type=parse_address, help="the path to copy to")
    parser.add_argument(
        "--export",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="copy priorities too (default: they are copied)",
    )
    parser.add_argument(
        "--source-token-file",
        metavar="FILE",
        type=pathlib.Path,
        help="a file with the token for the source (default: that for the target, if both are of "
        "one server, else none)",
    )
    add_timeout_option(parser)
    add_network_options(parser)
    add_settings_options(parser)
    parser.set_defaults(run=run_once, request=_copy)


def _copy(client: HttpClient, arguments: Namespace) -> None:
    source, target = arguments.source, arguments.url
    if is_within(target, source):
        raise CommandFailed(f"{source} cannot be copied into itself.")
    parameters = {"format": "export"} if arguments.export else {}
    address = source.to_json().with_parameters(parameters | time_parameters(arguments))
    response = _source_client(arguments).request("GET", address)
    body = Body(_all_but_nothing(response, source))
    to = target.to_json().with_parameters({"print": "silent", **time_parameters(arguments)})
    written = client.send("PUT", to, JSON_HEADERS, body)
    if not written.is_success:
        hint = " treedb export and import copy values of any size."
        is_too_large = written.status == TOO_LARGE
        raise CommandFailed(written.read_error() + (hint if is_too_large else ""))


def _all_but_nothing(response: UnreadResponse, source: Url) -> Iterator[bytes]:
    """Return the pieces of a body; raise `CommandFailed` for `null`, which would remove a value."""
    pieces = response.pieces()
    begin = b""
    for piece in pieces:
        begin += piece
        if len(begin) > len(NULL) + 1:
            break
    if begin.strip() == NULL:
        raise CommandFailed(f"There is nothing at {source}, so nothing was copied.")
    yield begin
    yield from pieces


def _source_client(arguments: Namespace) -> HttpClient:
    source: Url = arguments.source
    file: pathlib.Path | None = arguments.source_token_file
    token = None
    if file is not None:
        token = read_token_file(file)
    elif source.origin == arguments.url.origin:  # a token is sent to no other server
        token = read_token(arguments)
    authority = choose_authorities(arguments, source, read_settings(arguments))
    timeout = arguments.timeout
    return HttpClient(authority, token, timeout and timeout.client_s)


def database_of(url: Url) -> tuple[str, int, str, str]:
    """Return what tells the database of a URL from others, as far as the URL says it."""
    ns = dict(parse_qsl(url.query)).get("ns", "").lower()
    host = url.host.lower()
    if is_local(host):
        label, _, rest = host.rpartition(f".{LOCALHOST}")
        ns, host = ns or ("" if rest else label), LOCALHOST
    return host, url.port, url.socket, ns


def is_within(inner: Url, outer: Url) -> bool:
    """Return whether a path is that of another URL of the same database, or below it."""
    keys = _keys(outer)
    return database_of(inner) == database_of(outer) and _keys(inner)[: len(keys)] == keys


def _keys(url: Url) -> list[str]:
    return [key for key in unquote(url.path.removesuffix(SUFFIX)).split("/") if key]
