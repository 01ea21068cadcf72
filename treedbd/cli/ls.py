"""`treedb ls`: the keys of the children of a path, however many there are."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

import orjson

from treedbd.cli.children import ListedChild, read_children, read_itself
from treedbd.cli.exit import CommandFailed, print_line, write_out
from treedbd.cli.http_client import HttpClient, run_once
from treedbd.cli.options import add_network_options, add_optional_address, add_settings_options
from treedbd.cli.output import Palette


def add_options(parser: ArgumentParser, _: str) -> None:
    """Add the options of the command to its parser."""
    add_optional_address(parser)
    parser.add_argument(
        "-l", "--long", action="store_true", help="print kind, size in bytes of JSON, and key"
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help='print a line for each child: {"key": …, "kind": …, "size": …}',
    )
    add_network_options(parser)
    add_settings_options(parser)
    parser.set_defaults(run=run_once, request=_ls)


def _ls(client: HttpClient, arguments: Namespace) -> None:
    palette = Palette()
    is_long = arguments.long or arguments.json
    is_empty = True
    for child in read_children(client, arguments.url, with_values=is_long):
        _print(child, palette, arguments)
        is_empty = False
    if is_empty:
        value = read_itself(client, arguments.url)
        if value is None or value.kind == "object":  # all children were removed meanwhile
            raise CommandFailed(f"There is nothing at {arguments.url}.")
        raise CommandFailed(f"The value at {arguments.url} is a {value.kind}, without children.")


def _print(child: ListedChild, palette: Palette, arguments: Namespace) -> None:
    if arguments.json:
        write_out(orjson.dumps({"key": child.key, "kind": child.kind, "size": child.size}) + b"\n")
    elif arguments.long:
        print_line(f"{child.kind:7} {child.size:>12} {palette.paint(child.key, child.kind)}")
    else:
        print_line(palette.paint(child.key, child.kind))
