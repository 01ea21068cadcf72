"""`treedb hooks`: what is called when data of a database changes, listed, put and removed."""

from __future__ import annotations

import pathlib
from argparse import ArgumentParser, Namespace
from typing import Any, Final

import orjson

from treedbd.cli.data import JSON_HEADERS
from treedbd.cli.exit import CommandFailed, counted, make_printable, print_line, warn
from treedbd.cli.http_client import (
    Body,
    HttpClient,
    add_online_options,
    parse_json,
    reading_answer,
)
from treedbd.cli.options import Url, add_address, add_flag, add_optional_address
from treedbd.limits import MAX_HOOK_SECRET_CHARACTERS

RESOURCE: Final = "webhooks.json"
DEAD: Final = "webhooks/dead.json"
TEST: Final = "webhooks/test.json"
VOLATILE: Final = "There are no events of {on}: the rules make it volatile, so it is never stored."
_DATABASE: Final = "a database, as in https://shop.localhost:8443"
_PUT: Final = (
    "Create a hook, or replace the one of that name, which keeps its secret and goes on where it "
    "is. The secret of a new one is made by the daemon and printed, this once: a receiver verifies "
    "by it who has sent what it receives."
)
_HEAD: Final = f"{'UNSENT':>9} {'AGE':>9}  {'EVENTS':<23}  HOOK"


def add_options(parser: ArgumentParser, _: str) -> None:
    """Add the subcommands to the parser of the command."""
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    listing = commands.add_parser("list", help="list the hooks of a database, without secrets")
    add_optional_address(listing, _DATABASE)
    add_flag(listing, "--json", "print a JSON object for each")
    add_online_options(listing, _list)
    _add_put(commands.add_parser("put", help="create a hook, or replace one"))
    _add_letters(commands)
    remove = commands.add_parser("remove", help="remove a hook: nothing more is sent for it")
    add_address(remove, _DATABASE)
    remove.add_argument("name", metavar="NAME", help="the name of the hook")
    add_online_options(remove, _remove)


def _add_letters(commands: Any) -> None:
    dead = commands.add_parser("dead", help="list the events that a hook could not deliver")
    replay = commands.add_parser("replay", help="deliver such events again")
    discard = commands.add_parser("discard", help="discard such events")
    test = commands.add_parser("test", help="send an event to the receiver of a hook for trial")
    for parser in (dead, replay, discard, test):
        add_address(parser, _DATABASE)
        parser.add_argument("name", metavar="NAME", help="the name of the hook")
    add_flag(dead, "--json", "print a JSON object for each, with the event")
    for parser in (replay, discard):
        parser.add_argument("ids", metavar="ID", nargs="*", help="the id of an event")
        add_flag(parser, "--all", "all of them")
    add_online_options(dead, _list_dead)
    add_online_options(replay, _replay)
    add_online_options(discard, _discard)
    add_online_options(test, _test)


def _add_put(parser: ArgumentParser) -> None:
    parser.description = _PUT
    add_address(parser, _DATABASE)
    parser.add_argument("name", metavar="NAME", help="a-z, 0-9 and hyphens")
    parser.add_argument(
        "on", metavar="PATTERN", help="whose events it is for, as in '/orders/$id'; $id is any key"
    )
    parser.add_argument("receiver", metavar="RECEIVER", help="the URL that is called")
    parser.add_argument(
        "--events",
        metavar="KIND,…",
        default="written",
        help="created, updated and deleted, or written for all, which is the default",
    )
    secret = parser.add_mutually_exclusive_group()
    secret.add_argument(
        "--secret-file",
        metavar="FILE",
        type=pathlib.Path,
        help="a file with the secret that signs what is sent; a line end after it does not count",
    )
    add_flag(secret, "--new-secret", "have another secret made, and print it")
    old = parser.add_mutually_exclusive_group()
    add_flag(old, "--keep-old-secret", "sign by the secret that is replaced too")
    add_flag(old, "--drop-old-secret", "no longer sign by the secret that was replaced")
    add_flag(parser, "--json", "print what the daemon sends")
    add_online_options(parser, _put)


def _list(client: HttpClient, arguments: Namespace) -> None:
    url: Url = arguments.url.to_settings(RESOURCE)
    body = client.request("GET", url).content()
    with reading_answer(url):
        hooks = list(parse_json(body, url)["webhooks"])
        lines = [
            orjson.dumps(each).decode() if arguments.json else _line_of(each) for each in hooks
        ]
    if lines and not arguments.json:
        print_line(_HEAD)
    for line in lines:
        print_line(line)


def _line_of(hook: dict[str, Any]) -> str:
    """Return a line of the list: what is not sent yet, for what it is, and what it calls."""
    state = hook["state"]
    receiver = hook["url"] or "a program"
    line = (
        f"{state['entries']:>9} {state['seconds']:>7.0f} s  {','.join(hook['events']):<23}  "
        f"{hook['name']} on {hook['on']} to {receiver}"
    )
    if hook["configured"]:
        line += ", in the configuration"
    if hook.get("volatile"):
        line += ", volatile: no events"
    if state.get("dead"):
        line += f", {counted(state['dead'], 'dead letter')}"
    if state.get("paused"):
        line += f". {state['paused']}"
    if state["dropped"] is not None:
        line += f", dropped at {state['dropped']}"
    return make_printable(line)


def _put(client: HttpClient, arguments: Namespace) -> None:
    url: Url = arguments.url.to_settings(RESOURCE)
    sent = orjson.dumps(_definition_of(arguments))
    answer = client.request("PUT", url, JSON_HEADERS, Body((sent,), len(sent))).content()
    if arguments.json:
        print_line(answer.decode())
        return
    with reading_answer(url):
        hook = parse_json(answer, url)
        lines = [f"{hook['name']}: put on {hook['on']}"]
        if "secret" in hook:
            lines.append(f"secret: {hook['secret']}")
        is_volatile = bool(hook.get("volatile"))
    for line in lines:
        print_line(make_printable(line))
    if len(lines) > 1:
        warn("The secret is not shown again: give it to the receiver.")
    if is_volatile:
        warn(make_printable(VOLATILE.format(on=hook["on"])))


def _definition_of(arguments: Namespace) -> dict[str, Any]:
    """Return the hook that is put; raise `CommandFailed` for a secret that cannot be read."""
    definition: dict[str, Any] = {
        "name": arguments.name,
        "on": arguments.on,
        "events": arguments.events.split(","),
        "url": arguments.receiver,
    }
    if arguments.secret_file is not None:
        definition["secret"] = _read_secret(arguments.secret_file)
    elif arguments.new_secret:
        definition["secret"] = None
    if arguments.keep_old_secret or arguments.drop_old_secret:
        definition["keep_old_secret"] = arguments.keep_old_secret
    return definition


def _read_secret(file: pathlib.Path) -> str:
    """Return the secret in a file, which the daemon checks; raise `CommandFailed`."""
    try:
        with file.open("rb") as opened:
            content = opened.read(MAX_HOOK_SECRET_CHARACTERS + len("\r\n") + 1)
        return content.decode("ascii").removesuffix("\n").removesuffix("\r")
    except OSError as error:
        raise CommandFailed(f"{file} cannot be read ({error.strerror}).") from None
    except UnicodeDecodeError:
        raise CommandFailed(f"{file} has more than characters of ASCII.") from None


def _remove(client: HttpClient, arguments: Namespace) -> None:
    url: Url = arguments.url.to_settings(RESOURCE).with_parameters({"name": arguments.name})
    client.request("DELETE", url).content()
    print_line(make_printable(f"{arguments.name}: removed"))


def _list_dead(client: HttpClient, arguments: Namespace) -> None:
    after: str | None = None
    while True:
        parameters = {"name": arguments.name} | ({} if after is None else {"startAfter": after})
        url: Url = arguments.url.to_settings(DEAD).with_parameters(parameters)
        body = client.request("GET", url).content()
        with reading_answer(url):
            answer = parse_json(body, url)
            lines = [
                orjson.dumps(each).decode() if arguments.json else _line_of_letter(each)
                for each in answer["letters"]
            ]
            after = answer["next"]
        for line in lines:
            print_line(line)
        if after is None:
            return


def _line_of_letter(letter: dict[str, Any]) -> str:
    line = f"{letter['id']}  {letter['kind']} {letter['path']}, {letter['attempts']} attempts"
    return make_printable(f"{line}, the last at {letter['last']}: {letter['error']}")


def _ids_of(arguments: Namespace) -> list[str] | None:
    """Return the ids that are given, None for all; raise `CommandFailed` for neither, or both."""
    if bool(arguments.ids) == arguments.all:
        raise CommandFailed("Give the ids of events, or --all.")
    return None if arguments.all else list(arguments.ids)


def _replay(client: HttpClient, arguments: Namespace) -> None:
    url: Url = arguments.url.to_settings(DEAD)
    sent = orjson.dumps({"name": arguments.name, "ids": _ids_of(arguments) or "all"})
    answer = client.request("POST", url, JSON_HEADERS, Body((sent,), len(sent))).content()
    with reading_answer(url):
        count = int(parse_json(answer, url)["replayed"])
    print_line(make_printable(f"{arguments.name}: {counted(count, 'event')} delivered again"))


def _discard(client: HttpClient, arguments: Namespace) -> None:
    count = 0
    for each in _ids_of(arguments) or ["all"]:
        parameters = {"name": arguments.name, "id": each}
        url: Url = arguments.url.to_settings(DEAD).with_parameters(parameters)
        answer = client.request("DELETE", url).content()
        with reading_answer(url):
            count += int(parse_json(answer, url)["discarded"])
    print_line(make_printable(f"{arguments.name}: {counted(count, 'event')} discarded"))


def _test(client: HttpClient, arguments: Namespace) -> None:
    url: Url = arguments.url.to_settings(TEST)
    sent = orjson.dumps({"name": arguments.name})
    answer = client.request("POST", url, JSON_HEADERS, Body((sent,), len(sent))).content()
    with reading_answer(url):
        found = parse_json(answer, url)
        status, text = found["status"], found["answer"]
    if status is None:
        raise CommandFailed(make_printable(f"{arguments.name}: {text}."))
    line = f"{arguments.name}: the receiver answered {status}" + (f": {text}" if text else "")
    if not 200 <= status < 300:
        raise CommandFailed(make_printable(f"{line}."))
    print_line(make_printable(line))
