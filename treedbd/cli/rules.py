"""`treedb rules`: checks, reads, puts and explains the rules of a project.

`check` needs no daemon; the others send requests to one, as an admin.
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
from treedbd.cli.data import JSON_HEADERS, make_body, print_response
from treedbd.cli.excerpt import excerpt
from treedbd.cli.exit import DONE, CommandFailed, Status, make_printable, print_line, warn
from treedbd.cli.options import (
    STANDARD_INPUT,
    add_network_options,
    add_settings_options,
    is_json,
    read_settings,
    read_value,
)
from treedbd.cli.run import Work, run_online
from treedbd.cli.url import Url, parse_url
from treedbd.rules.errors import InvalidRules, with_hint
from treedbd.rules.ruleset import parse_rules

_METHODS: Final = ("GET", "PUT", "POST", "PATCH", "DELETE")


def add_options(parser: ArgumentParser, _: str) -> None:
    """Add the subcommands to the parser of the command."""
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_check(commands.add_parser("check", help="check rules, and show where they are wrong"))
    _add_get(commands.add_parser("get", help="print the rules of a project"))
    _add_put(commands.add_parser("put", help="put rules in force"))
    _add_explain(
        commands.add_parser("explain", help="show the rules that a request evaluates, and results")
    )


def _add_check(parser: ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a rules document, or - for standard input")
    add_settings_options(parser)
    parser.set_defaults(run=_check)


def _add_get(parser: ArgumentParser) -> None:
    _add_project(parser)
    _add_online(parser, _get)


def _add_put(parser: ArgumentParser) -> None:
    _add_project(parser)
    parser.add_argument(
        "rules",
        metavar="RULES",
        nargs="?",
        help="a file, or the document itself, which begins with {, or - for standard input "
        "(default: -)",
    )
    parser.add_argument("--dry-run", action="store_true", help="let the daemon check them only")
    _add_online(parser, _put)
    parser.set_defaults(optional="rules")


def _add_explain(parser: ArgumentParser) -> None:
    parser.add_argument("url", metavar="URL", type=parse_url, help="the URL of the request")
    parser.add_argument(
        "value", metavar="VALUE", nargs="?", help="the value to write, or - for standard input"
    )
    parser.add_argument(
        "--method", choices=_METHODS, type=str.upper, default="GET", help="(default: GET)"
    )
    parser.add_argument(
        "--auth",
        metavar="JSON",
        type=_auth,
        help="the value of auth in the rules, an object or null (default: that of the token)",
    )
    parser.add_argument("--json", action="store_true", help="print the response as it is")
    _add_online(parser, _explain)
    parser.set_defaults(optional="value")


def _add_project(parser: ArgumentParser) -> None:
    parser.add_argument(
        "url", metavar="URL", type=parse_url, help="a project, as in https://shop.localhost:8443"
    )


def _add_online(parser: ArgumentParser, work: Work) -> None:
    add_network_options(parser)
    add_settings_options(parser)
    parser.set_defaults(run=run_online, work=work)


def _check(arguments: Namespace) -> Status:
    limits = read_settings(arguments).rules
    file: str = arguments.file
    raw = _read_file(file)
    text = raw.decode("utf-8", "replace")
    try:
        rules = parse_rules(raw, limits)
    except InvalidRules as error:
        where = excerpt(text, error.line, error.column)
        raise CommandFailed(f"{file}:{with_hint(error)}", *where) from None
    for (line, column), warning in rules.warnings:
        warn(f"{file}:{line}:{column}: warning: {warning}", *excerpt(text, line, column))
    print_line(f"{file}: ok")
    return DONE


async def _get(_: object, client: Client, arguments: Namespace) -> None:
    await print_response(client, "GET", arguments.url.to_rules(), None)


async def _put(_: object, client: Client, arguments: Namespace) -> None:
    given: str = arguments.rules or STANDARD_INPUT
    document = given.encode() if given.lstrip().startswith("{") else _read_file(given)
    parameters = {"dryRun": "true"} if arguments.dry_run else {}
    url = arguments.url.to_rules().with_parameters(parameters)
    await print_response(client, "PUT", url, _body(document))


async def _explain(_: object, client: Client, arguments: Namespace) -> None:
    url: Url = arguments.url.to_json()
    if arguments.auth is not None:
        url = url.with_parameters({"auth_variable_override": arguments.auth})
    sent = None if arguments.value is None else make_body(arguments.value)
    headers = {**JSON_HEADERS, "X-TreeDB-Explain": "true"}
    response = await client.request(arguments.method, url, headers, sent)
    body = await content(response, url)
    if arguments.json:
        print_line(body.decode())
    else:
        for line in format_explanation(orjson.loads(body)):
            print_line(line)


def format_explanation(verdict: dict[str, Any]) -> list[str]:
    """Return an explanation as lines: the outcome, then each rule that was evaluated.

    Below a rule that is not true stands what it saw.
    """
    if verdict["allowed"]:
        lines = ["allowed" + (": rules do not apply to an admin" if verdict["admin"] else "")]
    else:
        auth = orjson.dumps(verdict["auth"]).decode()
        lines = [f"denied: {verdict['reason']}", f"  auth is {auth}"]
    for rule in verdict["rules"]:
        result = f"error: {rule['error']}" if "error" in rule else str(rule["result"]).lower()
        where = f"{rule['rule']} ({rule['line']}:{rule['column']})"
        lines.append(f"  {where} at {rule['path']}: {result}")
        seen = {**rule.get("captures", {})}
        for read in rule.get("read", ()):
            shown = read["type"] if "type" in read else orjson.dumps(read["value"]).decode()
            seen[f"{read['from']} at {read['path']}"] = shown
        lines += [f"    {name} is {value}" for name, value in seen.items()]
    return [make_printable(line) for line in lines]


def _read_file(file: str) -> bytes:
    if file == STANDARD_INPUT:
        return read_value(file)
    try:
        return pathlib.Path(file).read_bytes()
    except OSError as error:
        raise CommandFailed(f"{file} cannot be read ({error.strerror}).") from None


def _body(content: bytes) -> IBodyProducer:
    return cast(IBodyProducer, FileBodyProducer(io.BytesIO(content)))


def _auth(text: str) -> str:
    if not is_json(text):
        raise ArgumentTypeError("must be a JSON object or null")
    return text
