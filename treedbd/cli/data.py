"""`treedb get`, `set`, `push`, `update` and `remove`: one place of the tree, once.

What comes back is printed as it comes, and ends with a line end. Values of any size pass through;
no more than a piece of one is in memory at a time.
"""

from __future__ import annotations

import io
import os
from argparse import ArgumentParser, Namespace
from typing import Any, BinaryIO, Final, cast

from twisted.web.client import FileBodyProducer
from twisted.web.iweb import IBodyProducer

from treedbd.cli.client import Client, receive
from treedbd.cli.online import online
from treedbd.cli.options import STANDARD_INPUT, network_options, settings_options, standard_input
from treedbd.cli.outcome import write_out
from treedbd.cli.query import query_options, query_parameters
from treedbd.cli.url import Url, parse_url

JSON: Final = {"Content-Type": "application/json"}
_WRITES: Final = {
    "set": ("PUT", "replace what is at a place"),
    "push": ("POST", "add a child under a key that sorts after all earlier ones"),
    "update": ("PATCH", "change some children of a place, and no others"),
    "remove": ("DELETE", "remove what is at a place"),
}


def add_to(commands: Any) -> None:
    """Add these commands to a parser."""
    shared = [network_options(), settings_options()]
    get = commands.add_parser(
        "get", help="print what is at a place", parents=[query_options(), *shared]
    )
    _add_url(get)
    get.add_argument("--shallow", action="store_true", help="print the keys of the children only")
    get.add_argument("--pretty", action="store_true", help="print over several lines, indented")
    get.set_defaults(run=online, work=_get)
    for name, (method, summary) in _WRITES.items():
        write = commands.add_parser(name, help=summary, parents=shared)
        _add_url(write)
        if method != "DELETE":
            write.add_argument(
                "value", metavar="VALUE", help="JSON, or - for what standard input holds"
            )
        write.add_argument("--silent", action="store_true", help="print nothing")
        write.set_defaults(run=online, work=_write, method=method, value=None)


async def print_body(client: Client, url: Url) -> None:
    """Print the JSON at a URL."""
    await print_answer(client, "GET", url, None)


async def _get(_: object, client: Client, arguments: Namespace) -> None:
    parameters = query_parameters(arguments)
    if arguments.shallow:
        parameters["shallow"] = "true"
    if arguments.pretty:
        parameters["print"] = "pretty"
    await print_body(client, arguments.url.place().ask(parameters))


async def _write(_: object, client: Client, arguments: Namespace) -> None:
    url: Url = arguments.url.place().ask({"print": "silent"} if arguments.silent else {})
    body = None if arguments.value is None else body_of(arguments.value)
    await print_answer(client, arguments.method, url, body)


async def print_answer(client: Client, method: str, url: Url, body: IBodyProducer | None) -> None:
    """Ask, and print what comes back; raise `CommandFailed`."""
    response = await client.ask(method, url, JSON if body is not None else None, body)
    last = b"\n"

    def take(data: bytes) -> None:
        nonlocal last
        write_out(data)
        last = data[-1:]

    await receive(response, url, take)
    if last != b"\n":
        write_out(b"\n")


def body_of(value: str) -> IBodyProducer:
    """Return what sends a value of the command line, or standard input for `-`."""
    if value != STANDARD_INPUT:
        source: BinaryIO = io.BytesIO(os.fsencode(value))
    elif standard_input().seekable():
        source = standard_input()
    else:
        source = cast(BinaryIO, _Pipe(standard_input()))
    return cast(IBodyProducer, FileBodyProducer(source))


class _Pipe:
    """A file without an end that could be known: it is sent in chunks, as it comes."""

    def __init__(self, pipe: io.BufferedReader) -> None:
        self._pipe = pipe

    def read(self, size: int) -> bytes:
        return self._pipe.read1(size)

    def close(self) -> None:
        self._pipe.close()


def _add_url(parser: ArgumentParser) -> None:
    parser.add_argument(
        "url", metavar="URL", type=parse_url, help="a place, with or without .json at its end"
    )
