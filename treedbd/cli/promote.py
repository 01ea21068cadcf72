"""`treedb promote`: a standby becomes the first, by its daemon or without one."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from typing import Final

import orjson

from treedbd.cli.exit import DONE, CommandFailed, Status, make_printable, print_line, warn
from treedbd.cli.http_client import (
    Body,
    HttpClient,
    add_online_options,
    parse_json,
    reading_answer,
    run_once,
)
from treedbd.cli.options import (
    Url,
    add_flag,
    parse_address,
    read_settings,
    read_stored_settings,
)
from treedbd.cli.token import mint_admin
from treedbd.config.settings import Settings
from treedbd.errors import OperatorError
from treedbd.standby.replacement import finish_all
from treedbd.standby.term import Term, read_term, write_term
from treedbd.store.directory_lock import DirectoryLock
from treedbd.store.engine import CannotOpenStore

_DESCRIPTION: Final = (
    "Make a standby the first: it applies what it has received, and accepts writes from then on. "
    "Its old first receives a notice, and refuses writes from then on; if it can be reached "
    "now, nothing that it has acknowledged is lost. If the daemon has several projects, --config "
    "has to name its configuration, with whose secrets the tokens of their admins are made. "
    "Without a URL the data directory of a daemon that does not run is promoted. Afterwards remove "
    "standby_of from its configuration, with standby_url and standby_token_file."
)


def add_options(parser: ArgumentParser, _: str) -> None:
    """Add the options to the parser of the command."""
    parser.description = _DESCRIPTION
    parser.add_argument(
        "url",
        metavar="URL",
        type=parse_address,
        nargs="?",
        help="the standby, by the URL of a project whose admin the token is (default: the data "
        "directory, which no daemon serves)",
    )
    add_flag(
        parser,
        "--force",
        "also if it has not received all data yet, or was superseded by another one",
    )
    add_online_options(parser, _promote)
    parser.set_defaults(run=_run, silence_s=60.0)


def _run(arguments: Namespace) -> Status:
    if arguments.url is not None:
        return run_once(arguments)
    settings = read_stored_settings(arguments, "promoted")
    try:
        lock = DirectoryLock(settings.data)
    except CannotOpenStore as error:
        raise CommandFailed(
            f"{str(error).rstrip('.')}, or give the URL of the daemon that serves it."
        ) from None
    try:
        return _promote_directory(settings, is_forced=arguments.force)
    except OperatorError as error:
        raise CommandFailed(str(error)) from None
    except OSError as error:
        raise CommandFailed(f"{settings.data} cannot be promoted ({error.strerror}).") from None
    finally:
        lock.release()


def _promote_directory(settings: Settings, *, is_forced: bool) -> Status:
    term = read_term(settings.data)
    _check(settings, term, is_forced=is_forced)
    finish_all(settings.data)
    promoted = term.to_first(term.term + 1, time.time_ns() // 1_000_000)
    write_term(settings.data, promoted)
    print_line(f"{settings.data} is that of the first, in the term {promoted.term}.")
    if term.role == "standby":
        warn("What the old first had acknowledged last may be missing.")
    return DONE


def _check(settings: Settings, term: Term, *, is_forced: bool) -> None:
    """Raise `CommandFailed` if a directory is not promoted."""
    if term.role == "first":
        raise CommandFailed(f"{settings.data} is not the directory of a standby.")
    if is_forced:
        return
    if term.role == "superseded":
        raise CommandFailed(
            f"{settings.data} was superseded by {term.first_url or 'another daemon'}, which has "
            "newer data: make it a standby of that one, or add --force."
        )
    if not (term.peers and term.peers[-1].seen_ms):
        raise CommandFailed(
            f"{settings.data} has not received all data of its first yet: promote another one, or "
            "add --force."
        )


def _promote(client: HttpClient, arguments: Namespace) -> None:
    url: Url = arguments.url.to_standby("promote.json")
    body = orjson.dumps({"force": arguments.force, "tokens": _tokens(arguments)})
    content = client.request("POST", url, body=Body([body], len(body))).content()
    with reading_answer(url):
        answer = parse_json(content, url)
        line = make_printable(f"{url.origin} is the first, in the term {answer['term']}.")
        is_current, lag_s = answer["is_current"], answer["lag_ms"] / 1000
    print_line(line)
    if is_current:
        print_line("It has all that the old first had acknowledged.")
    else:
        warn(f"What the old first had acknowledged last may be missing: about {lag_s:.1f} s.")


def _tokens(arguments: Namespace) -> dict[str, str]:
    """Return tokens of admins of all projects of a configuration, if one is given."""
    if arguments.config is None:
        return {}
    settings = read_settings(arguments)
    return {each: mint_admin(settings, each) for each in settings.projects}
