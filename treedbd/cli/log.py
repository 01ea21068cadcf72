"""`treedb log`: who has written where and when, one JSON object a line, for admins."""

from __future__ import annotations

import os
import signal
import time
from argparse import SUPPRESS, ArgumentParser, Namespace
from typing import Any, Final, NoReturn

import orjson

from treedbd.cli.exit import DONE, write_out
from treedbd.cli.http_client import HttpClient, run_once
from treedbd.cli.options import (
    CONFIG_HELP,
    Url,
    add_network_options,
    add_optional_address,
    number_from,
)

POLL_S: Final = 1.0
"""How long `--follow` waits when there is nothing new."""
PAGE_ENTRIES: Final = 1000


def add_options(parser: ArgumentParser, _: str) -> None:
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
        help="print N writes (default: 100)",
    )
    parser.add_argument(
        "--data",
        dest="with_data",
        action="store_true",
        help="print what was written, as far as it was kept",
    )
    parser.add_argument("--follow", action="store_true", help="go on with new writes until Ctrl-C")
    add_network_options(parser)
    parser.add_argument("--config", metavar="FILE", default=SUPPRESS, help=CONFIG_HELP)
    parser.set_defaults(run=run_once, request=_log)


def _log(client: HttpClient, arguments: Namespace) -> None:
    url = arguments.url
    if arguments.follow:
        signal.signal(signal.SIGINT, _end)
    after, left = arguments.after, arguments.limit
    while left > 0 or arguments.follow:
        count = min(left, PAGE_ENTRIES) if left > 0 else PAGE_ENTRIES
        entries = _read(client, url, after, count, with_data=arguments.with_data)
        for entry in entries:
            write_out(orjson.dumps(entry) + b"\n")
        left -= len(entries)
        if entries:
            after = entries[-1]["seq"]
        elif arguments.follow:
            after = 0 if after is None else after
            time.sleep(POLL_S)
        else:
            return


def _read(
    client: HttpClient, url: Url, after: int | None, count: int, *, with_data: bool
) -> list[Any]:
    parameters = {"limitToFirst": str(count)}
    if after is not None:
        parameters["startAfter"] = str(after)
    if with_data:
        parameters["format"] = "export"
    address = url.to_settings("log.json").with_parameters(parameters)
    entries: list[Any] = orjson.loads(client.request("GET", address).content())
    return entries


def _end(*_: object) -> NoReturn:
    """End as a command that was told to: everything that was read has been printed."""
    os._exit(DONE)
