"""Options that several commands take, and what they stand for."""

from __future__ import annotations

import argparse
import io
import os
import pathlib
import re
import sys
from typing import Any, Final, cast

import orjson

from treedbd.certificate import LOCAL_CERTIFICATE
from treedbd.cli.outcome import CommandFailed
from treedbd.cli.url import Url, is_local
from treedbd.config import Settings, load_settings
from treedbd.keys import ConfigError
from treedbd.web.identity.fetch import BadAuthority, parse_authority, read_authority
from treedbd.web.identity.tls import Trust

TOKEN_VARIABLE: Final = "TREEDB_TOKEN"  # noqa: S105 - the name of a variable
STANDARD_INPUT: Final = "-"
_MAX_TOKEN_BYTES: Final = 65_536
_TOKEN = re.compile(r"[!-~]+")


class Parser(argparse.ArgumentParser):
    """Takes options by their whole names only, since an abbreviation may not stay unique."""

    def __init__(self, **more: Any) -> None:
        """Make a parser as argparse does, which makes those of subcommands by the same class."""
        super().__init__(**more, allow_abbrev=False)


def settings_options() -> argparse.ArgumentParser:
    """Return the options that tell where projects, secrets and data are."""
    parser = Parser(add_help=False)
    group = parser.add_argument_group("where projects and secrets are")
    group.add_argument(
        "--config",
        metavar="FILE",
        type=pathlib.Path,
        default=argparse.SUPPRESS,  # it may stand before the command as well
        help="the daemon's configuration (default: development mode's settings)",
    )
    group.add_argument(
        "--data",
        metavar="DIR",
        default=argparse.SUPPRESS,
        help="the data directory, where the daemon was given one by --data",
    )
    return parser


def network_options() -> argparse.ArgumentParser:
    """Return the options of commands that ask a daemon."""
    parser = Parser(add_help=False)
    group = parser.add_argument_group("how the daemon is asked")
    group.add_argument(
        "--token-file",
        metavar="FILE",
        type=pathlib.Path,
        help=f"a file that holds the token to show (default: the variable {TOKEN_VARIABLE})",
    )
    group.add_argument(
        "--cacert",
        metavar="FILE",
        type=pathlib.Path,
        help="certificates in PEM that verify the server (default: the system's; for this "
        "machine development mode's own)",
    )
    return parser


def read_settings(arguments: argparse.Namespace) -> Settings:
    """Return the daemon's settings; raise `CommandFailed`."""
    data = getattr(arguments, "data", None)
    try:
        return load_settings(
            getattr(arguments, "config", None),
            {} if data is None else {"data": data},
            pathlib.Path.cwd(),
        )
    except ConfigError as error:
        raise CommandFailed(str(error)) from None


def read_token(arguments: argparse.Namespace) -> str | None:
    """Return the token to show, None where there is none; raise `CommandFailed`."""
    file: pathlib.Path | None = arguments.token_file
    if file is None:
        token, source = os.environ.get(TOKEN_VARIABLE, ""), f"The variable {TOKEN_VARIABLE}"
        if not token:
            return None
    else:
        token, source = _read_token_file(file), str(file)
    if not _TOKEN.fullmatch(token):
        raise CommandFailed(f"{source} does not hold a token, which is one word.")
    return token


def _read_token_file(file: pathlib.Path) -> str:
    try:
        with file.open("rb") as opened:
            return opened.read(_MAX_TOKEN_BYTES).decode("latin-1").rstrip("\r\n")
    except OSError as error:
        raise CommandFailed(f"{file} cannot be read ({error.strerror}).") from None


def choose_trust(arguments: argparse.Namespace, url: Url, settings: Settings) -> Trust:
    """Return by what the server of a URL is verified; raise `CommandFailed`.

    Development mode's own certificate counts for this machine alone.
    """
    file: pathlib.Path | None = arguments.cacert
    if file is None and url.is_secure and is_local(url.host) and settings.development:
        own = settings.data / LOCAL_CERTIFICATE
        file = own if own.exists() else None
    try:
        return Trust(None if file is None else parse_authority(read_authority(file)))
    except BadAuthority as error:
        raise CommandFailed(f"{file}: {error}") from None


def is_json(text: str) -> bool:
    """Tell whether a text is JSON as it stands."""
    try:
        orjson.loads(text)
    except ValueError:
        return False
    return True


def read_text(value: str) -> bytes:
    """Return the bytes of a value on the command line, or of standard input for `-`."""
    if value != STANDARD_INPUT:
        return os.fsencode(value)
    try:
        return standard_input().read()
    except OSError as error:
        raise CommandFailed(f"Standard input cannot be read ({error.strerror}).") from None


def standard_input() -> io.BufferedReader:
    """Return standard input as bytes; raise `CommandFailed` if there is none."""
    if sys.stdin is None:
        raise CommandFailed("Standard input is closed.")
    return cast(io.BufferedReader, sys.stdin.buffer)
