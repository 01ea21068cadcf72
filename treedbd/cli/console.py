"""`treedb console`: opens the console in a browser, with an admin's token that it makes.

The token is in the fragment of the URL, which a browser does not send to any server. It must not be
an argument of a process, because all users of a machine can read those. So the browser is given a
page in a file, which leads to that URL. Only the user of the command can read the file; it is
removed after `KEPT_S`, or when the command is interrupted. It is in a folder of the home directory
whose name does not begin with a dot: browsers in a sandbox (snap) read no other folders.

The token is signed with the secret of the project, as `treedb token` does. Where no secret is at
hand, or a file names a token, an existing token is used.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import pathlib
import shutil
import signal
import stat
import tempfile
import time
import webbrowser
from argparse import ArgumentParser, Namespace
from html import escape
from typing import Final, NoReturn
from urllib.parse import parse_qs, urlencode

import attrs

from treedbd.cli.exit import DONE, CommandFailed, Status, print_line
from treedbd.cli.http_client import HttpClient
from treedbd.cli.options import (
    CONNECT_S,
    NAMESPACE,
    URL_VARIABLE,
    InvalidUrl,
    NoResponse,
    Url,
    add_flag,
    add_network_options,
    add_settings_options,
    choose_authorities,
    find_bases,
    in_project,
    is_local,
    parse_address,
    read_settings,
    read_token,
)
from treedbd.cli.token import can_sign, mint_admin, parse_ttl
from treedbd.config.settings import Settings
from treedbd.files import open_private
from treedbd.names import parse_label
from treedbd.tree.types import Json
from treedbd.web.auth.minting import SESSION_CLAIM

DEFAULT_TTL: Final = "30m"
MAX_TTL_S: Final = 12 * 3600.0
"""A console extends the life of its token up to this, so a longer one has no use."""
OPENED_S: Final = 120.0
PRINTED_S: Final = 300.0
"""How long the token of the link is valid: a browser that is opened, or a person, uses it. Browsers
keep links in their history; the page has replaced that token at once."""
KEPT_S: Final = 10.0
"""How long the page is kept for a browser that starts."""
LEFT_S: Final = 60.0
"""How old a folder of another command is that was killed before it could remove it."""
CONSOLE_UID: Final = "console"
_FOLDER: Final = "treedb-console-"
PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url={url}">
<title>treedb</title>
</head>
<body><p><a href="{url}" rel="noreferrer">The console</a></p></body>
</html>
"""
_EPILOG: Final = (
    "The token is signed with the secret of the project, which --config or --data find. "
    "--token-file names a token to be used instead. The browser is the default one, or that of "
    "the variable BROWSER."
)


class _Interrupted(Exception):
    """A signal ends the command."""


def add_options(parser: ArgumentParser, _: str) -> None:
    """Add the options of the command to its parser."""
    parser.description = "Open the console in the browser, signed in as an admin of a project."
    parser.epilog = _EPILOG
    parser.add_argument(
        "url",
        metavar="URL",
        type=parse_address,
        nargs="?",
        help=f"where the interface is served (default: {URL_VARIABLE}, or the daemon of --data)",
    )
    add_flag(parser, "--read-only", "with a token that can only read")
    parser.add_argument(
        "--ttl",
        metavar="TIME",
        type=_parse_ttl,
        help=f"when the token expires: after 30s, 5m, 1h, at most 12h (default: {DEFAULT_TTL})",
    )
    add_flag(parser, "--no-browser", "print the URL with the token, and open nothing")
    add_network_options(parser)
    add_settings_options(parser)
    parser.set_defaults(run=lambda arguments: _console(arguments, parser))


def _parse_ttl(text: str) -> float:
    seconds = parse_ttl(text)
    if seconds > MAX_TTL_S:
        raise argparse.ArgumentTypeError("must be at most 12h")
    return seconds


def _console(arguments: Namespace, parser: ArgumentParser) -> Status:
    settings = read_settings(arguments)
    base = find_console(arguments, _find_candidates(arguments, parser), settings)
    token = _choose_token(arguments, base, settings, parser)
    url = attrs.evolve(to_console(base), query="")
    named = {NAMESPACE: label} if (label := _named_label(base)) else {}
    secret_url = f"{url}#{urlencode({'token': token, **named})}"
    if arguments.no_browser:
        print_line(secret_url)
        return DONE
    print_line(str(url))
    open_browser(secret_url)
    return DONE


def _find_candidates(arguments: Namespace, parser: ArgumentParser) -> list[Url]:
    """Return the URLs below which the console may be."""
    if arguments.url is not None:
        return [arguments.url]
    try:
        return [in_project(each, arguments.ns) for each in find_bases(arguments)]
    except InvalidUrl as error:
        parser.error(f"argument URL: {error}")


def to_console(base: Url) -> Url:
    """Return the URL of the console below the one that this is."""
    root = base.path.removesuffix(".json").rstrip("/")
    return attrs.evolve(base, path=f"{root}/.console/")


def find_console(arguments: Namespace, bases: list[Url], settings: Settings) -> Url:
    """Return the first of these URLs below which there is a console.

    Raises `CommandFailed`, with the reason of the last one if there is none.
    """
    reason = "A browser cannot open a Unix socket: let treedb listen at a port too."
    for base in (each for each in bases if not each.socket):
        client = HttpClient(choose_authorities(arguments, base, settings), silence_s=CONNECT_S)
        try:
            response = client.send("GET", to_console(base))
        except NoResponse as error:
            reason = str(error)
            continue
        except CommandFailed as error:
            if len(bases) == 1:
                raise
            reason = f"{error} Give a URL."
            continue
        is_found = response.status == 200
        response.close()
        if is_found:
            return base
        reason = (
            f"{base.origin} serves no console: development mode does, and the endpoints that "
            "console_listen names in a configuration."
        )
    raise CommandFailed(reason)


def _choose_token(
    arguments: Namespace, base: Url, settings: Settings, parser: ArgumentParser
) -> str:
    """Return the token to sign in with; raise `CommandFailed`."""
    if arguments.token_file is None and can_sign(settings):
        _check_receiver(arguments, base, settings)
        return _mint(arguments, _project_of(base, settings), settings)
    given = read_token(arguments)
    if given is None:
        raise CommandFailed(
            f"There is no secret to sign a token with: name the configuration of {base.origin} by "
            "--config, its data directory by --data, or a file with a token by --token-file."
        )
    if arguments.read_only or arguments.ttl is not None:
        parser.error("arguments --read-only and --ttl: need a secret to sign a token with")
    return given


def _check_receiver(arguments: Namespace, base: Url, settings: Settings) -> None:
    """Raise `CommandFailed` if another machine would receive a token of development mode here."""
    is_meant = not settings.development or hasattr(arguments, "data")
    if not is_meant and not is_local(base.host):
        raise CommandFailed(
            f"{base.origin} is not this machine: name its configuration by --config, or a file "
            "with a token by --token-file."
        )


def _mint(arguments: Namespace, project: str, settings: Settings) -> str:
    """Return a token that the page replaces at once: browsers keep links, and so this one."""
    now = int(time.time())
    ttl_s = arguments.ttl if arguments.ttl is not None else parse_ttl(DEFAULT_TTL)
    configured = settings.projects.get(project)
    longest = None if configured is None else configured.max_token_life_s
    ttl_s = min(ttl_s, math.inf if longest is None else longest)
    more: dict[str, Json] = {"auth_time": now, SESSION_CLAIM: int(ttl_s)}
    if arguments.read_only:
        more["read_only"] = True
    link_s = PRINTED_S if arguments.no_browser else OPENED_S
    return mint_admin(settings, project, CONSOLE_UID, ttl_s=min(ttl_s, link_s), more=more)


def _named_label(base: Url) -> str | None:
    """Return the label of the database that the query of a URL names."""
    labels = parse_qs(base.query).get(NAMESPACE)
    return labels[-1] if labels else None


def _project_of(base: Url, settings: Settings) -> str:
    """Return the project that a URL addresses, as the daemon does; raise `CommandFailed`."""
    label = _named_label(base)
    host = base.host.lower().removesuffix(".")
    for domain in settings.domains:
        if label is None and host.endswith(f".{domain}"):
            label = host.removesuffix(f".{domain}")
    name = parse_label(label) if label is not None else None
    project = settings.default_project if name is None else name.project
    if not project:
        raise CommandFailed("The URL names no project: name it by --project.")
    return project


def open_browser(url: str) -> None:
    """Open a URL in the browser of the user, by a page that is kept for `KEPT_S`.

    Returns when the page is removed. Raises `CommandFailed`.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    folder: str | None = None
    try:
        folder = _make_folder()
        page = pathlib.Path(folder, "open.html")
        with open(open_private(page, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "w") as file:
            file.write(PAGE.format(url=escape(url)))
        if not webbrowser.open(page.as_uri()):
            raise CommandFailed("No browser could be started: use --no-browser, and open the URL.")
        time.sleep(KEPT_S)
    except _Interrupted:
        return
    except OSError as error:
        raise CommandFailed(f"The page cannot be written ({error.strerror}).") from None
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def _make_folder() -> str:
    """Return a new folder of the home directory, or of the one for temporary files."""
    try:
        _remove_left(pathlib.Path.home())
        return tempfile.mkdtemp(prefix=_FOLDER, dir=pathlib.Path.home())
    except (OSError, RuntimeError):
        return tempfile.mkdtemp(prefix=_FOLDER)


def _remove_left(parent: pathlib.Path) -> None:
    """Remove the folders of commands that were killed; none needs its own for so long."""
    for folder in parent.glob(f"{_FOLDER}*"):
        with contextlib.suppress(OSError):
            status = folder.lstat()
            is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
            if is_own and status.st_mtime < time.time() - LEFT_S:
                (folder / "open.html").unlink(missing_ok=True)
                folder.rmdir()


def _interrupt(*_: object) -> NoReturn:
    raise _Interrupted
