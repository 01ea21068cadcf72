"""`treedb top`: what clients do with the databases of a project, shown again until Ctrl-C.

With `--profile` it shows the operations on one database instead (`profile`).
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from argparse import ArgumentParser, Namespace
from typing import Any, Final, NoReturn

import attrs

from treedbd.cli.exit import (
    DONE,
    CommandFailed,
    format_bytes,
    make_printable,
    print_line,
    write_out,
)
from treedbd.cli.http_client import HttpClient, add_online_options
from treedbd.cli.options import add_flag, add_optional_address, require_database, seconds_from
from treedbd.cli.profile import BY, show_profile

INTERVAL_S: Final = 2.0
_CLEAR: Final = b"\x1b[H\x1b[2J"
_MAX_BYTES: Final = 67_108_864
_EPILOG: Final = (
    "REQ/S and MS, the time of a request, are those since it was shown before, at first since the "
    "daemon began; streams count as requests when they end, and their time does not count. A "
    "profile is of the database that the URL addresses, from the beginning of the command on."
)


def add_options(parser: ArgumentParser, _: str) -> None:
    """Add the options of the command to its parser."""
    parser.description = "Show the databases of a project and what clients do with them."
    parser.epilog = _EPILOG
    add_optional_address(parser, "a project, as in https://shop.localhost:8443")
    parser.add_argument(
        "--interval",
        metavar="SECONDS",
        type=seconds_from(0.1, 3600, "must be a number of seconds from 0.1 to 3600"),
        default=INTERVAL_S,
        help=f"how long to wait before it is shown again (default: {INTERVAL_S:g})",
    )
    add_flag(parser, "--once", "show it once, and end; a profile, after the interval")
    add_flag(parser, "--json", "print one JSON object each time; of a profile, each operation")
    add_flag(parser, "--profile", "show the operations on a database by path, as they come")
    parser.add_argument(
        "--by",
        choices=BY,
        help=f"what the rows of a profile are ordered by (default: {BY[0]})",
    )
    add_online_options(parser, _top)
    parser.set_defaults(parser=parser)


def _top(client: HttpClient, arguments: Namespace) -> None:
    if arguments.profile:
        require_database(arguments, "URL")
    elif arguments.by is not None:
        arguments.parser.error("argument --by: only with --profile")
    signal.signal(signal.SIGINT, _end)
    if arguments.profile:
        show_profile(client, arguments, lambda lines: _print(lines, arguments))
        return
    url = arguments.url.to_activity()
    before = Counted(0.0, {}, ())
    while True:
        content, counted = client.request("GET", url).json_text(_MAX_BYTES)
        try:
            now = parse_counted(counted)
        except (AttributeError, KeyError, TypeError, ValueError):
            raise CommandFailed(f"{url.origin} did not return what a daemon counts.") from None
        if arguments.json:
            print_line(content.decode())
        else:
            _print(format_counted(before, now), arguments)
        if arguments.once:
            return
        before = now
        time.sleep(arguments.interval)


def _print(lines: list[str], arguments: Namespace) -> None:
    _show(lines, clears=sys.stdout.isatty() and not arguments.once)


def _show(lines: list[str], *, clears: bool) -> None:
    """Print lines; with `clears` they replace those on the terminal, and are cut to its size."""
    if clears:
        size = shutil.get_terminal_size()
        lines = [line[: size.columns] for line in lines[: size.lines - 1]]
    text = os.fsencode("\n".join(lines) + "\n")
    write_out(_CLEAR + text if clears else text + b"\n")


@attrs.frozen
class CountedDatabase:
    """One database: its bytes on the disk, open streams and WebSockets, requests and their time."""

    bytes: int | None
    streams: int
    sockets: int
    requests: int
    busy_ms: float


@attrs.frozen
class Counted:
    """What a daemon has counted for `for_s` seconds; `slowest` are members as it sends them."""

    for_s: float
    databases: dict[str, CountedDatabase]
    slowest: tuple[dict[str, Any], ...]


def parse_counted(content: dict[str, Any]) -> Counted:
    """Return what a daemon sends."""
    names = [field.name for field in attrs.fields(CountedDatabase)]
    databases = {
        each["name"]: CountedDatabase(**{name: each[name] for name in names})
        for each in content["databases"]
    }
    return Counted(content["for_s"], databases, tuple(content["slowest"]))


def format_counted(before: Counted, now: Counted) -> list[str]:
    """Return what is shown: the databases with the most requests first, the slowest requests."""
    has_restarted = now.for_s <= before.for_s
    seconds = max(now.for_s - (0.0 if has_restarted else before.for_s), 0.001)
    rows = []
    for name, counted in now.databases.items():
        former = None if has_restarted else before.databases.get(name)
        requests = counted.requests - (former.requests if former else 0)
        busy_ms = counted.busy_ms - (former.busy_ms if former else 0)
        rows.append((requests / seconds, busy_ms / requests if requests else 0.0, name, counted))
    rows.sort(key=lambda row: (-row[0], row[2]))
    streams = sum(counted.streams for counted in now.databases.values())
    sockets = sum(counted.sockets for counted in now.databases.values())
    rate = sum(row[0] for row in rows)
    what = f"{_count(len(rows), 'database')}, {_count(streams, 'stream')}, "
    what += _count(sockets, "WebSocket")
    lines = [
        f"{what}, {rate:.1f} requests a second",
        "",
        f"{'REQ/S':>9} {'MS':>8} {'STREAMS':>8} {'SOCKETS':>8} {'SIZE':>10}  DATABASE",
    ]
    for per_second, ms, name, counted in rows:
        size = "-" if counted.bytes is None else format_bytes(counted.bytes)
        open_now = f"{counted.streams:8} {counted.sockets:8}"
        lines.append(f"{per_second:9.1f} {ms:8.1f} {open_now} {size:>10}  {name}")
    if now.slowest:
        lines += ["", f"{'SLOWEST MS':>18} {'AGO':>8} {'STATUS':>10}  REQUEST"]
    for slow in now.slowest:
        request = f"{slow['method']} {slow['path']} ({slow['name']})"
        lines.append(f"{slow['ms']:18.1f} {slow['ago_s']:6} s {slow['status']:10}  {request}")
    return [make_printable(line) for line in lines]


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _end(*_: object) -> NoReturn:
    raise SystemExit(DONE)
