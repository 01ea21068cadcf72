"""`treedb cursors`: how far the readers of change logs are; cursors that are not used removed."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from typing import Any, Final

import orjson

from treedbd.cli.exit import CommandFailed, counted, format_bytes, make_printable, print_line
from treedbd.cli.http_client import HttpClient, add_online_options, parse_json, reading_answer
from treedbd.cli.options import Url, add_flag, add_optional_address

_DESCRIPTION: Final = (
    "Show the readers of the change logs, such as the archive: up to which write each has read, "
    "and how many it has not read. The change log keeps these, unless the reader is dropped "
    "because they are too many."
)
_HEAD: Final = f"{'SEQ':>10} {'UNREAD':>9} {'SIZE':>10} {'AGE':>9}  {'WHOLE':5}  READER"
_MOST_LISTED: Final = 10
"""Databases that one sentence names."""


def add_options(parser: ArgumentParser, _: str) -> None:
    """Add the options of the command to its parser."""
    parser.description = _DESCRIPTION
    add_optional_address(
        parser, "a project whose admin the token is, as in https://shop.localhost:8443"
    )
    parser.add_argument(
        "--database",
        metavar="NAME",
        help="show this database alone, such as room--shop (default: all that the token may see)",
    )
    parser.add_argument(
        "--remove",
        metavar="READER",
        help="remove the cursors of this reader, which is not used any more, from the databases "
        "that would be shown",
    )
    add_flag(parser, "--json", "print a JSON object for each")
    add_online_options(parser, _cursors)


def _cursors(client: HttpClient, arguments: Namespace) -> None:
    url: Url = arguments.url.to_settings("cursors.json")
    unreadable: list[str] = []
    shown = _list(client, url, arguments.database, unreadable)
    if arguments.remove is None:
        _show(shown, as_json=arguments.json)
    else:
        _remove(client, url, shown, arguments.remove, as_json=arguments.json)
    if unreadable:
        what = counted(len(unreadable), "database")
        names = ", ".join(unreadable[:_MOST_LISTED]) + (
            ", …" if len(unreadable) > _MOST_LISTED else ""
        )
        raise CommandFailed(f"The readers of {what} cannot be shown: {names}.")


def _list(
    client: HttpClient, url: Url, database: str | None, unreadable: list[str]
) -> Iterator[dict[str, Any]]:
    """Yield all cursors, page by page; collect the databases that cannot be read."""
    given = {} if database is None else {"database": database}
    while True:
        page = url.with_parameters(given)
        body = client.request("GET", page).content()
        with reading_answer(url):
            answer = parse_json(body, url)
            cursors, after = list(answer["cursors"]), answer["next"]
            unreadable += map(make_printable, answer["unreadable"])
        yield from cursors
        if after is None:
            return
        if given.get("startAfter") == after:
            raise CommandFailed(f"{url.origin} repeats a page of its list.")
        given = {**given, "startAfter": after}


def _show(cursors: Iterator[dict[str, Any]], *, as_json: bool) -> None:
    has_head = as_json
    for each in cursors:
        if not has_head:
            has_head = True
            print_line(_HEAD)
        print_line(orjson.dumps(each).decode() if as_json else _line(each))


def _line(cursor: dict[str, Any]) -> str:
    """Return a line of the list: numbers, and of which reader and database they are."""
    try:
        numbers = f"{cursor['seq']:>10} {cursor['entries']:>9} {format_bytes(cursor['bytes']):>10}"
        whole = "yes" if cursor["whole"] else "no"
        name = f"{cursor['name']} of {cursor['database']}"
        if cursor["dropped"] is not None:
            name += f", dropped at {cursor['dropped']}"
        return make_printable(f"{numbers} {cursor['seconds']:>7.0f} s  {whole:5}  {name}")
    except (KeyError, TypeError, ValueError):
        raise CommandFailed("The daemon did not return a list of cursors.") from None


def _remove(
    client: HttpClient, url: Url, cursors: Iterator[dict[str, Any]], reader: str, *, as_json: bool
) -> None:
    has_removed = False
    for each in cursors:
        if each.get("name") != reader:
            continue
        named = {"database": str(each.get("database")), "cursor": reader}
        body = client.request("DELETE", url.with_parameters(named)).content()
        has_removed = True
        label = make_printable(named["database"])
        print_line(body.decode() if as_json else f"{label}: the cursor {reader} is removed")
    if not has_removed:
        raise CommandFailed(f"No database that is shown has a cursor {make_printable(reader)}.")
