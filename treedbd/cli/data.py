"""`treedb get`, `set`, `push`, `update` and `remove`: one request for one path.

The response is printed as it arrives and ends with a line end. Values may have any size: only a
piece of one is in memory at a time.
"""

from __future__ import annotations

import io
import os
from argparse import ArgumentParser, Namespace
from typing import BinaryIO, Final, cast

from twisted.web.client import FileBodyProducer
from twisted.web.iweb import IBodyProducer

from treedbd.cli.client import Client, receive
from treedbd.cli.exit import write_out
from treedbd.cli.options import (
    STANDARD_INPUT,
    add_network_options,
    add_settings_options,
    standard_input,
)
from treedbd.cli.query import add_query_options, query_parameters
from treedbd.cli.run import run_online
from treedbd.cli.url import Url, parse_url

JSON_HEADERS: Final = {"Content-Type": "application/json"}
_METHODS: Final = {"set": "PUT", "push": "POST", "update": "PATCH", "remove": "DELETE"}


def add_options(parser: ArgumentParser, command: str) -> None:
    """Add the options of one of these commands to its parser."""
    parser.add_argument(
        "url", metavar="URL", type=parse_url, help="the URL of a path, with or without .json"
    )
    if command == "get":
        _add_get_options(parser)
    else:
        _add_write_options(parser, _METHODS[command])
    add_network_options(parser)
    add_settings_options(parser)


def _add_get_options(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--shallow", action="store_true", help="print the keys of the children only"
    )
    parser.add_argument("--pretty", action="store_true", help="print indented lines")
    add_query_options(parser)
    parser.set_defaults(run=run_online, work=_get)


def _add_write_options(parser: ArgumentParser, method: str) -> None:
    if method != "DELETE":
        parser.add_argument("value", metavar="VALUE", help="JSON, or - for standard input")
    parser.add_argument("--silent", action="store_true", help="print nothing")
    parser.set_defaults(run=run_online, work=_write, method=method, value=None)


async def _get(_: object, client: Client, arguments: Namespace) -> None:
    parameters = query_parameters(arguments)
    if arguments.shallow:
        parameters["shallow"] = "true"
    if arguments.pretty:
        parameters["print"] = "pretty"
    url = arguments.url.to_json().with_parameters(parameters)
    await print_response(client, "GET", url, None)


async def _write(_: object, client: Client, arguments: Namespace) -> None:
    parameters = {"print": "silent"} if arguments.silent else {}
    url: Url = arguments.url.to_json().with_parameters(parameters)
    body = None if arguments.value is None else make_body(arguments.value)
    await print_response(client, arguments.method, url, body)


async def print_response(client: Client, method: str, url: Url, body: IBodyProducer | None) -> None:
    """Send a request and print the body of its response; raise `CommandFailed`."""
    response = await client.request(method, url, JSON_HEADERS if body is not None else None, body)
    last = b"\n"

    def consume(data: bytes) -> None:
        nonlocal last
        write_out(data)
        last = data[-1:]

    await receive(response, url, consume)
    if last != b"\n":
        write_out(b"\n")


def make_body(value: str) -> IBodyProducer:
    """Return the body that sends a value of the command line, or standard input for `-`."""
    if value != STANDARD_INPUT:
        source: BinaryIO = io.BytesIO(os.fsencode(value))
    elif standard_input().seekable():
        source = standard_input()
    else:
        source = cast(BinaryIO, _Pipe(standard_input()))
    return cast(IBodyProducer, FileBodyProducer(source))


class _Pipe:
    """A file of unknown length: it is sent in chunks, as it arrives."""

    def __init__(self, pipe: io.BufferedReader) -> None:
        self._pipe = pipe

    def read(self, size: int) -> bytes:
        return self._pipe.read1(size)

    def close(self) -> None:
        self._pipe.close()
