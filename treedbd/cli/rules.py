"""`treedb rules`: the options of its subcommands, and all of them but `test`.

`get`, `log`, `put` and `explain` send requests as an admin. `check` parses a document as the daemon
does, without one. So does `test`, whose work is in `rules_testing`.
"""

from __future__ import annotations

import pathlib
import re
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from codecs import BOM_UTF8
from fractions import Fraction
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import orjson

from treedbd.cli.data import JSON_HEADERS, make_body, print_response
from treedbd.cli.exit import DONE, CommandFailed, Status, excerpt, make_printable, print_line, warn
from treedbd.cli.http_client import Body, HttpClient, add_online_options, reading_answer
from treedbd.cli.options import (
    STANDARD_INPUT,
    Url,
    add_address,
    add_config_option,
    add_flag,
    add_settings_options,
    is_json,
    number_from,
    read_settings,
    read_value,
    reported,
)
from treedbd.limits import RulesLimits

if TYPE_CHECKING:  # the language of rules takes longer to import than a request to send
    from treedbd.rules.ruleset import RuleSet

_PERCENT: Final = re.compile(r"(?:100|[0-9]{1,2})(?:\.[0-9]{1,3})?%?")
_ALL: Final = Fraction(100)

_PROJECT_HELP: Final = "a project, as in https://shop.localhost:8443"
_VERSIONS: Final = "rules/versions.json"
_UNKNOWN: Final = "not known"
_METHODS: Final = ("GET", "PUT", "POST", "PATCH", "DELETE")


def add_options(parser: ArgumentParser, _: str) -> None:
    """Add the subcommands to the parser of the command."""
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    check = commands.add_parser("check", help="check rules, and show where they are wrong")
    check.add_argument("file", metavar="FILE", help="a rules document, or - for standard input")
    add_settings_options(check)
    check.set_defaults(run=_check)
    add_test_options(commands.add_parser("test", help="judge cases by rules, without a daemon"))
    get = commands.add_parser("get", help="print the rules of a project")
    add_address(get, _PROJECT_HELP)
    get.add_argument(
        "--version",
        metavar="N",
        type=number_from(1),
        help="the number of a version, as rules log shows it (default: what is in force)",
    )
    add_online_options(get, _get)
    log = commands.add_parser("log", help="list the last versions of the rules of a project")
    add_address(log, _PROJECT_HELP)
    add_flag(log, "--json", "print the response as it is")
    add_online_options(log, _log)
    _add_put(commands.add_parser("put", help="put rules in force"))
    _add_explain(
        commands.add_parser("explain", help="show the rules that a request evaluates, and results")
    )


def _add_put(parser: ArgumentParser) -> None:
    add_address(parser, _PROJECT_HELP)
    parser.add_argument(
        "rules",
        metavar="RULES",
        nargs="?",
        help="a file, or the document itself, which begins with {, or - for standard input "
        "(default: -)",
    )
    add_flag(parser, "--dry-run", "only check them, by the daemon")
    add_online_options(parser, _put)
    parser.set_defaults(optional="rules")


def _add_explain(parser: ArgumentParser) -> None:
    add_address(parser, "the URL of the request")
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
    add_flag(parser, "--json", "print the response as it is")
    add_online_options(parser, _explain)
    parser.set_defaults(optional="value")


def _check(arguments: Namespace) -> Status:
    limits = read_settings(arguments).rules
    file: str = arguments.file
    raw = read_rules(file)
    text = raw.decode("utf-8", "replace")
    rules = parse_rules_of(file, raw, limits)
    for (line, column), warning, _ in rules.warnings:
        warn(f"{file}:{line}:{column}: warning: {warning}", *excerpt(text, line, column))
    for location, hz in rules.volatile_nodes():
        rate = f", at most {hz:g} events a second" if hz else ""
        print_line(f"{file}: {location} is volatile: in memory alone{rate}")
    print_line(f"{file}: ok")
    return DONE


def parse_rules_of(
    file: str, raw: bytes, limits: RulesLimits, shown: bytes | None = None
) -> RuleSet:
    """Return the rules in a text; raise `CommandFailed`, which shows the lines of the errors.

    The lines are of `shown`, if the text is only a part of that file, at the same positions.
    """
    # Not imported at the top: the language of rules takes longer to import than a request to send.
    from treedbd.rules.document import InvalidRules, with_hint
    from treedbd.rules.ruleset import parse_rules

    try:
        return parse_rules(raw, limits)
    except InvalidRules as error:
        text = (shown or raw).decode("utf-8", "replace")
        details = [*excerpt(text, error.line, error.column)]
        for each in error.others:
            details.append(make_printable(f"treedb: {file}:{with_hint(each)}"))
            details += excerpt(text, each.line, each.column)
        raise CommandFailed(f"{file}:{with_hint(error)}", *details) from None


def _get(client: HttpClient, arguments: Namespace) -> None:
    url: Url = arguments.url.to_rules()
    if arguments.version is not None:
        url = url.to_settings(_VERSIONS).with_parameters({"version": str(arguments.version)})
    print_response(client, "GET", url, None)


def _log(client: HttpClient, arguments: Namespace) -> None:
    url: Url = arguments.url.to_settings(_VERSIONS)
    if arguments.json:
        print_response(client, "GET", url, None)
        return
    body = client.request("GET", url, None, None).content()
    with reading_answer(url):
        lines = [make_printable(line) for line in show_versions(orjson.loads(body))]
    for line in lines:
        print_line(line)


def show_versions(versions: list[dict[str, Any]]) -> list[str]:
    """Return a line for each version: its number, time, size and admin, and which is in force."""
    rows = []
    for each in versions:
        by = each["uid"] or ("an admin" if each["admin"] else _UNKNOWN)
        note = "  in force" if each["is_current"] else ""
        time, size = str(each["time"] or _UNKNOWN), f"{int(each['bytes'])} bytes"
        rows.append((str(int(each["version"])), time, size, f"{by}{note}"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        f"{number:>{widths[0]}}  {time:{widths[1]}}  {size:>{widths[2]}}  {rest}"
        for number, time, size, rest in rows
    ]


def _put(client: HttpClient, arguments: Namespace) -> None:
    given: str = arguments.rules or STANDARD_INPUT
    document = given.encode() if given.lstrip().startswith("{") else read_rules(given)
    parameters = {"dryRun": "true"} if arguments.dry_run else {}
    url = arguments.url.to_rules().with_parameters(parameters)
    print_response(client, "PUT", url, Body((document,), len(document)))


def _explain(client: HttpClient, arguments: Namespace) -> None:
    url: Url = arguments.url.to_json()
    if arguments.auth is not None:
        url = url.with_parameters({"auth_variable_override": arguments.auth})
    sent = None if arguments.value is None else make_body(arguments.value)
    headers = {**JSON_HEADERS, "X-TreeDB-Explain": "true"}
    body = client.request(arguments.method, url, headers, sent).content()
    if arguments.json:
        print_line(body.decode())
        return
    with reading_answer(url):
        lines = explanation_lines(body)
    for line in lines:
        print_line(line)


def explanation_lines(body: bytes) -> list[str]:
    """Return the lines that show an explanation of a daemon, without control characters."""
    from treedbd.rules.ruleset import format_explanation

    return [make_printable(line) for line in format_explanation(orjson.loads(body))]


def read_rules(file: str) -> bytes:
    """Return the content of a rules document, or of standard input for `-`.

    A byte order mark at its beginning is left out.
    """
    if file == STANDARD_INPUT:
        return read_value(file)
    with reported(file, "read"):
        return pathlib.Path(file).read_bytes().removeprefix(BOM_UTF8)


def _auth(text: str) -> str:
    if not is_json(text):
        raise ArgumentTypeError("must be a JSON object or null")
    return text


def add_test_options(parser: ArgumentParser) -> None:
    """Add the options of the command to its parser."""
    parser.add_argument(
        "files", metavar="FILE", nargs="+", help="a test file: rules, data, and cases"
    )
    add_flag(parser, "-v", "--verbose", "list all cases")
    required = parser.add_mutually_exclusive_group()
    required.add_argument(
        "--require-coverage",
        dest="required",
        action="store_const",
        const=_ALL,
        help="fail unless each rule was true in one case and false in another",
    )
    required.add_argument(
        "--least-coverage",
        dest="required",
        metavar="PERCENT",
        type=_percent,
        help="fail if fewer results of rules were seen",
    )
    parser.add_argument("--junit", metavar="FILE", type=pathlib.Path, help="write JUnit's XML")
    add_flag(parser, "--json", "print the report as JSON")
    summary = "a daemon's configuration file, whose limits of rules apply (default: its defaults)"
    add_config_option(parser, summary=summary)
    parser.set_defaults(run=_run)


def _run(arguments: Namespace) -> Status:
    # By its name, since it imports this module.
    status: Status = import_module("treedbd.cli.rules_testing").run(arguments)
    return status


def _percent(text: str) -> Fraction:
    if not _PERCENT.fullmatch(text) or Fraction(text.rstrip("%")) > _ALL:
        raise ArgumentTypeError("must be a percentage from 0 to 100")
    return Fraction(text.rstrip("%"))
