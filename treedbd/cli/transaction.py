"""`treedb transaction`: replaces a value by what an expression of jq makes of it.

The value is read with its entity tag and written only if it still has it; if another client has
changed it meanwhile, all of it is done again. jq calculates in doubles, so a value with an integer
that a double cannot hold is refused rather than changed.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from importlib import import_module
from typing import Any, Final

import orjson

from treedbd.cli.data import CONDITION_FAILED, JSON_HEADERS, WITH_TAG, pause_between_tries
from treedbd.cli.exit import CommandFailed, warn, write_out
from treedbd.cli.http_client import Body, HttpClient, run_once
from treedbd.cli.options import (
    ADDRESS_HELP,
    Url,
    add_network_options,
    add_settings_options,
    add_timeout_option,
    number_from,
    parse_address,
    time_parameters,
)

_DEFAULT_TRIES: Final = 25
_EXACT: Final = 2**53
_MAX_BYTES: Final = 268_435_456


def add_options(parser: ArgumentParser, _: str) -> None:
    """Add the options of the command to its parser."""
    parser.add_argument("url", metavar="URL", type=parse_address, help=ADDRESS_HELP)
    parser.add_argument(
        "expression",
        metavar="EXPRESSION",
        help="jq, such as '. + 1', '.age = 37' or '. + [\"new\"]'; null removes the value, empty "
        "leaves it",
    )
    parser.add_argument(
        "--tries",
        metavar="N",
        type=number_from(1, 1_000_000),
        default=_DEFAULT_TRIES,
        help="how often it is tried while others write (default: %(default)s)",
    )
    parser.add_argument("--export", action="store_true", help="let it see and keep priorities")
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--silent", action="store_true", help="print nothing")
    shown.add_argument(
        "--json", action="store_true", help='print {"value": …, "etag": …, "tries": …}'
    )
    add_timeout_option(parser)
    add_network_options(parser)
    add_settings_options(parser)
    parser.set_defaults(run=run_once, request=_transact)


def _transact(client: HttpClient, arguments: Namespace) -> None:
    program = _compile(arguments.expression)
    parameters = time_parameters(arguments)
    if arguments.export:
        parameters["format"] = "export"
    url: Url = arguments.url.to_json()
    for tries in range(1, arguments.tries + 1):
        read = client.request("GET", url.with_parameters(parameters), WITH_TAG)
        tag = read.header("ETag")
        if tag is None:
            raise CommandFailed("A query has no entity tag: give the URL of a path.")
        new = _evaluate(program, *read.json_text(_MAX_BYTES))
        if new is None:
            warn("The expression gave nothing, so nothing was written.")
            return
        headers = {**JSON_HEADERS, "If-Match": tag}
        written = client.send(
            "PUT", url.with_parameters(time_parameters(arguments)), headers, Body((new,), len(new))
        )
        if written.is_success:
            _print(written.content(), written.header("ETag"), tries, arguments)
            return
        if written.status != CONDITION_FAILED:
            raise CommandFailed(written.read_error())
        written.close()
        pause_between_tries(tries)
    times = "once" if arguments.tries == 1 else f"{arguments.tries} times"
    raise CommandFailed(
        f"Others have changed {arguments.url} each time, {times}: nothing was written."
    )


def _print(value: bytes, tag: str | None, tries: int, arguments: Namespace) -> None:
    if arguments.json:
        plain = (tag or "").removeprefix("W/").strip('"')
        shown = {"value": orjson.Fragment(value), "etag": plain, "tries": tries}
        write_out(orjson.dumps(shown) + b"\n")
    elif not arguments.silent:
        write_out(value + b"\n")


def _compile(expression: str) -> Any:
    try:
        return import_module("jq").compile(expression)
    except ValueError as error:
        raise _wrong(error) from None


def _evaluate(program: Any, text: bytes, value: Any) -> bytes | None:
    """Return the JSON that an expression makes of JSON, None for nothing."""
    _check_integers(value)
    results = iter(program.input_text(text.decode()))
    try:
        found = list(zip(range(2), results, strict=False))
    except ValueError as error:
        raise _wrong(error) from None
    if len(found) > 1:
        raise CommandFailed("The expression gave several values: put [ ] around it for an array.")
    return orjson.dumps(found[0][1]) if found else None


def _wrong(error: ValueError) -> CommandFailed:
    reason = str(error).strip().partition("\n")[0].removeprefix("jq: ").removeprefix("error: ")
    return CommandFailed(f"The expression fails: {reason.rstrip('.:')}.")


def _check_integers(value: Any) -> None:
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            waiting += each.values()
        elif isinstance(each, list):
            waiting += each
        elif type(each) is int and abs(each) > _EXACT:
            raise CommandFailed(f"The value has the integer {each}, which jq would round.")
