"""`treedb audit verify` and `treedb audit export`: the audit files of a machine, without a daemon.

Both only read, and work while a daemon writes: `verify` says of each series whether its files are
as they were written, and the first thing in each file that is not. `export` prints lines, without
their links, as JSON. `moment` is the type of options that are times.
"""

from __future__ import annotations

import argparse
import pathlib
import re
import time
from argparse import ArgumentParser, Namespace
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from treedbd.audit.chain import Mark, Verification, verify
from treedbd.audit.search import BadTime, Search, find_all, parse_time
from treedbd.audit.series import list_series
from treedbd.cli.exit import (
    DONE,
    FAILED,
    CommandFailed,
    Status,
    counted,
    make_printable,
    print_line,
    write_out,
)
from treedbd.cli.options import add_config_option, add_flag, read_settings

_AGO: Final = re.compile(r"(\d{1,9}) ?(s|min|h|d) ago", re.ASCII)
_SECONDS: Final = {"s": 1, "min": 60, "h": 3600, "d": 86_400}


def moment(text: str) -> str:
    """Parse a time of a command line, as lines of the audit have it; raise ArgumentTypeError."""
    if found := _AGO.fullmatch(text):
        seconds = time.time() - int(found[1]) * _SECONDS[found[2]]
        text = datetime.fromtimestamp(max(0.0, seconds), UTC).isoformat()
    try:
        return parse_time(text)
    except BadTime as error:
        raise argparse.ArgumentTypeError(f'{error} "2h ago" is possible too.') from None


def add_search_options(parser: ArgumentParser) -> None:
    """Add the options that choose lines."""
    parser.add_argument(
        "--since", metavar="TIME", type=moment, help='such as 2026-11-28, or "2h ago"'
    )
    parser.add_argument("--until", metavar="TIME", type=moment, help="before this time")
    parser.add_argument("--path", metavar="PATH", help="at, above or below this path")
    parser.add_argument("--uid", metavar="UID", help="of this user; empty for none")


def search_of(arguments: Namespace, project: str | None = None, name: str | None = None) -> Search:
    """Return the search that options describe."""
    return Search(
        since=arguments.since,
        until=arguments.until,
        path=arguments.path,
        uid=arguments.uid,
        project=project,
        database=name,
    )


def add_options(parser: ArgumentParser, _: str) -> None:
    """Add the subcommands of `audit` to its parser."""
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    verifying = commands.add_parser(
        "verify", help="say whether the audit files are as they were written"
    )
    _add_directory(verifying)
    verifying.add_argument(
        "--mark",
        metavar="MARK",
        type=_mark,
        action="append",
        default=[],
        help="what an earlier verification has printed; the files must still have all up to there",
    )
    add_flag(verifying, "--json", "print one JSON object for each series")
    verifying.set_defaults(run=_verify)
    exporting = commands.add_parser("export", help="print lines of the audit, as JSON")
    _add_directory(exporting)
    add_search_options(exporting)
    exporting.add_argument("--project", metavar="PROJECT", help="of this project")
    exporting.add_argument("--database", metavar="NAME", help="of databases with this name")
    exporting.set_defaults(run=_export)


def _add_directory(parser: ArgumentParser) -> None:
    parser.add_argument(
        "directory",
        metavar="DIR",
        nargs="?",
        type=pathlib.Path,
        help="the directory of the audit (default: that of the configuration)",
    )
    add_config_option(parser)


def _mark(text: str) -> Mark:
    try:
        return Mark.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _directory_of(arguments: Namespace) -> pathlib.Path:
    directory: pathlib.Path | None = arguments.directory
    if directory is None:
        directory = read_settings(arguments).audit.directory
    if directory is None:
        raise CommandFailed("Name the directory, or the configuration that has one by --config.")
    return directory


def _verify(arguments: Namespace) -> Status:
    directory = _directory_of(arguments)
    marks: tuple[Mark, ...] = tuple(arguments.mark)
    has_fault = False
    try:
        found = list_series(directory)
        if not found:
            raise CommandFailed(f"{directory} has no audit files.")
        names, others = {each.name for each in found}, set[str]()
        for series in found:
            verified = verify(series, tuple(each for each in marks if each.series == series.name))
            has_fault |= bool(verified.faults)
            others |= verified.others
            _print_verified(verified, as_json=arguments.json)
    except OSError as error:
        raise CommandFailed(_describe(directory, error)) from None
    for name in sorted((others | {each.series for each in marks}) - names):
        has_fault = True
        print_line(
            make_printable(f"{name}: the series was removed: a mark, or another one, names it")
        )
    return FAILED if has_fault else DONE


def _print_verified(verified: Verification, *, as_json: bool) -> None:
    if as_json:
        shown: dict[str, Any] = {
            "series": verified.series,
            "files": verified.files,
            "lines": verified.lines,
            "unfinished": verified.unfinished,
            "removed": verified.removed,
            "mark": None if verified.mark is None else str(verified.mark),
            "faults": [
                {"file": each.file, "line": each.line, "reason": each.reason}
                for each in verified.faults
            ],
        }
        write_out(orjson.dumps(shown) + b"\n")
        return
    for fault in verified.faults:
        print_line(make_printable(f"{verified.series}/{fault}"))
    size = f"{counted(verified.files, 'file')}, {counted(verified.lines, 'line')}"
    state = "as they were written" if not verified.faults else "not as they were written"
    print_line(make_printable(f"{verified.series}: {size}: {state}"))
    if verified.unfinished:
        print_line(f"  {counted(verified.unfinished, 'byte')} after the last line: not whole yet")
    for each in verified.removed:
        print_line(make_printable(f"  {each}"))
    if verified.mark is not None and not verified.faults:
        print_line(make_printable(f"  mark {verified.mark}"))


def _export(arguments: Namespace) -> Status:
    directory = _directory_of(arguments)
    try:
        for line in find_all(
            directory, search_of(arguments, arguments.project, arguments.database)
        ):
            write_out(line + b"\n")
    except OSError as error:
        raise CommandFailed(_describe(directory, error)) from None
    return DONE


def _describe(directory: pathlib.Path, error: OSError) -> str:
    return f"{error.filename or directory} cannot be read ({error.strerror})."
