"""`treedb rules`: checks, reads, sets and explains the rules of a project.

`check` needs no daemon; the others ask one, as an administrator.
"""

from __future__ import annotations

import io
import pathlib
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from typing import Any, Final, cast

import orjson
from twisted.web.client import FileBodyProducer
from twisted.web.iweb import IBodyProducer

from treedbd.cli.client import Client, content
from treedbd.cli.data import JSON, body_of, print_answer, print_body
from treedbd.cli.online import online
from treedbd.cli.options import (
    STANDARD_INPUT,
    is_json,
    network_options,
    read_settings,
    read_text,
    settings_options,
)
from treedbd.cli.outcome import DONE, CommandFailed, Status, print_line, printable
from treedbd.cli.url import Url, parse_url
from treedbd.rules.refusal import InvalidRules
from treedbd.rules.ruleset import parse_rules

_METHODS: Final = ("GET", "PUT", "POST", "PATCH", "DELETE")


def add_to(commands: Any) -> None:
    """Add these commands to a parser."""
    rules = commands.add_parser("rules", help="check, read, set and explain security rules")
    commands = rules.add_subparsers(metavar="COMMAND", required=True)
    shared = [network_options(), settings_options()]
    check = commands.add_parser(
        "check", help="say whether rules can be put in force", parents=[settings_options()]
    )
    check.add_argument("file", metavar="FILE", help="rules, or - for standard input")
    check.set_defaults(run=_check)
    get = commands.add_parser("get", help="print the rules of a project", parents=shared)
    _add_root(get)
    get.set_defaults(run=online, work=_get)
    put = commands.add_parser("put", help="put rules in force", parents=shared)
    _add_root(put)
    put.add_argument(
        "rules",
        metavar="RULES",
        nargs="?",
        help="a file, or the document itself, which begins with {, or - for standard input "
        "(which is the default)",
    )
    put.add_argument("--dry-run", action="store_true", help="only let the daemon check them")
    put.set_defaults(run=online, work=_put, spare="rules")
    _add_explain(commands, shared)


def _add_explain(commands: Any, shared: list[ArgumentParser]) -> None:
    explain = commands.add_parser(
        "explain",
        help="show which rules would run for a request, and what they say",
        parents=shared,
    )
    explain.add_argument("url", metavar="URL", type=parse_url, help="the place that is asked for")
    explain.add_argument(
        "value", metavar="VALUE", nargs="?", help="what would be written, or - for standard input"
    )
    explain.add_argument(
        "--method", choices=_METHODS, type=str.upper, default="GET", help="(default: GET)"
    )
    explain.add_argument(
        "--auth",
        metavar="JSON",
        type=_auth,
        help="what auth is in the rules, an object or null (default: the token's)",
    )
    explain.add_argument("--json", action="store_true", help="print the answer as it comes")
    explain.set_defaults(run=online, work=_explain, spare="value")


def _add_root(parser: ArgumentParser) -> None:
    parser.add_argument(
        "url", metavar="URL", type=parse_url, help="a project, as in https://shop.localhost:8443"
    )


def _check(arguments: Namespace) -> Status:
    limits = read_settings(arguments).rules.limits()
    try:
        parse_rules(_read_file(arguments.file), limits)
    except InvalidRules as error:
        raise CommandFailed(f"{arguments.file}:{error}") from None
    print_line(f"{arguments.file}: ok")
    return DONE


async def _get(_: object, client: Client, arguments: Namespace) -> None:
    await print_body(client, arguments.url.rules())


async def _put(_: object, client: Client, arguments: Namespace) -> None:
    given: str = arguments.rules or STANDARD_INPUT
    document = given.encode() if given.lstrip().startswith("{") else _read_file(given)
    url = arguments.url.rules().ask({"dryRun": "true"} if arguments.dry_run else {})
    await print_answer(client, "PUT", url, _body(document))


async def _explain(_: object, client: Client, arguments: Namespace) -> None:
    url: Url = arguments.url.place()
    if arguments.auth is not None:
        url = url.ask({"auth_variable_override": arguments.auth})
    body = None if arguments.value is None else body_of(arguments.value)
    headers = {**JSON, "X-TreeDB-Explain": "true"}
    response = await client.ask(arguments.method, url, headers, body)
    answer = await content(response, url)
    if arguments.json:
        print_line(answer.decode())
    else:
        for line in show_verdict(orjson.loads(answer)):
            print_line(line)


def show_verdict(verdict: dict[str, Any]) -> list[str]:
    """Return the lines that tell of an explanation: the outcome, then each rule that ran."""
    outcome = "allowed" if verdict["allowed"] else "denied"
    lines = [outcome + (": an administrator skips the rules" if verdict["admin"] else "")]
    for rule in verdict["rules"]:
        result = f"error: {rule['error']}" if "error" in rule else str(rule["result"]).lower()
        where = f"{rule['rule']} ({rule['line']}:{rule['column']})"
        lines.append(printable(f"  {where} at {rule['path']}: {result}"))
    return lines


def _read_file(file: str) -> bytes:
    if file == STANDARD_INPUT:
        return read_text(file)
    try:
        return pathlib.Path(file).read_bytes()
    except OSError as error:
        raise CommandFailed(f"{file} cannot be read ({error.strerror}).") from None


def _body(content: bytes) -> IBodyProducer:
    return cast(IBodyProducer, FileBodyProducer(io.BytesIO(content)))


def _auth(text: str) -> str:
    if not is_json(text):
        raise ArgumentTypeError("the auth of the rules is a JSON object, or null")
    return text
