"""`treedb database`: databases are listed, created and deleted by their daemon."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from typing import Any, Final

from treedbd.cli.exit import CommandFailed, format_bytes, make_printable, print_line
from treedbd.cli.http_client import HttpClient, add_online_options, parse_json, reading_answer
from treedbd.cli.options import Url, add_address, add_flag, add_optional_address

_DATABASE: Final = "a database, as in https://room--shop.localhost:8443"
_DESCRIPTION: Final = (
    "Delete a database with everything in it: its data, its change log, and what its sessions have "
    "left for their ends. Its rules are those of the project, and stay. A backup is the only way "
    "back."
)


def add_options(parser: ArgumentParser, _: str) -> None:
    """Add the subcommands to the parser of the command."""
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    listing = commands.add_parser("ls", help="list databases, with their sizes")
    add_optional_address(
        listing, "a project whose admin the token is, as in https://shop.localhost:8443"
    )
    add_flag(listing, "--json", "print what the daemon sends")
    add_online_options(listing, _list)
    create = commands.add_parser("create", help="create an empty database")
    add_address(create, _DATABASE)
    add_online_options(create, _create)
    delete = commands.add_parser("delete", help="delete a database with everything in it")
    delete.description = _DESCRIPTION
    add_address(delete, _DATABASE)
    delete.add_argument(
        "--yes",
        metavar="NAME",
        help="the name of the database, which is asked for without this option",
    )
    add_online_options(delete, _delete)
    delete.set_defaults(silence_s=None)  # nothing is sent before all is done


def _list(client: HttpClient, arguments: Namespace) -> None:
    url: Url = arguments.url.to_inspect("projects.json")
    body = client.request("GET", url).content()
    if arguments.json:
        print_line(body.decode())
        return
    with reading_answer(url):
        lines = _lines(parse_json(body, url))
    for line in lines:
        print_line(line)


def _lines(projects: list[dict[str, Any]]) -> list[str]:
    """Return a line for each database: its size and its name."""
    return [
        make_printable(f"{_size(each['bytes']):>10}  {each['name']}")
        for project in projects
        for each in project["databases"]
    ]


def _size(size: int | None) -> str:
    return "-" if size is None else format_bytes(size)


def _create(client: HttpClient, arguments: Namespace) -> None:
    _report(client, "PUT", arguments.url.to_settings("database.json"), "created")


def _delete(client: HttpClient, arguments: Namespace) -> None:
    name = arguments.yes or _ask()
    url = arguments.url.to_settings("database.json").with_parameters({"confirm": name})
    _report(client, "DELETE", url, "deleted")


def _report(client: HttpClient, method: str, url: Url, what: str) -> None:
    body = client.request(method, url).content()
    with reading_answer(url):
        name = parse_json(body, url)["name"]
        line = make_printable(f"{name}: {what}")
    print_line(line)


def _ask() -> str:
    """Return the name that is typed at the terminal; raise `CommandFailed` without one."""
    if sys.stdin is None or not sys.stdin.isatty():
        raise CommandFailed("Nothing is deleted: give the name of the database by --yes.")
    sys.stderr.write("The name of the database, which is deleted with everything in it: ")
    sys.stderr.flush()
    name = sys.stdin.readline().strip()
    if not name:
        raise CommandFailed("Nothing is deleted.")
    return name
