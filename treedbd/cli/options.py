"""Options that several commands share, and the values that are read from them."""

from __future__ import annotations

import argparse
import io
import os
import pathlib
import re
import sys
from codecs import BOM_UTF8
from collections.abc import Callable
from typing import Final, NamedTuple, cast

import orjson

from treedbd.cli.exit import CommandFailed
from treedbd.cli.url import Url, is_local
from treedbd.config.endpoints import AUTHORITY_CERTIFICATE, LOCAL_CERTIFICATE
from treedbd.config.settings import Settings, load_settings
from treedbd.config.values import ConfigError
from treedbd.names import parse_label

TOKEN_VARIABLE: Final = "TREEDB_TOKEN"  # noqa: S105 - the name of a variable
PROJECT_VARIABLE: Final = "TREEDB_PROJECT"
STANDARD_INPUT: Final = "-"
CONFIG_HELP: Final = "the daemon's configuration file (default: the settings of development mode)"
_MAX_TOKEN_BYTES: Final = 65_536
_MAX_DIGITS: Final = 16
_TIMEOUT = re.compile(r"([0-9]{1,9})(ms|s|min|m)", re.ASCII)
_TIME_UNITS: Final = {"ms": 0.001, "s": 1.0, "min": 60.0, "m": 60.0}
_LONGEST_TIMEOUT_S: Final = 900.0
_LATER_S: Final = 2.0
_TOKEN = re.compile(r"[!-~]+")


def add_settings_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that name the configuration and the data."""
    group = parser.add_argument_group("configuration and data")
    group.add_argument(
        "--config",
        metavar="FILE",
        default=argparse.SUPPRESS,  # it may precede the command as well
        help=CONFIG_HELP,
    )
    group.add_argument(
        "--data",
        metavar="DIR",
        default=argparse.SUPPRESS,
        help="the data directory, if the daemon was started with --data",
    )


def number_from(least: int, most: int = 2**53) -> Callable[[str], int]:
    """Return what parses a whole number of a command line, within bounds."""
    limits = f"from {least} to {most}" if most < 2**53 else f"of at least {least}"

    def parse(text: str) -> int:
        is_number = text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS
        if not is_number or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"must be a number {limits}")
        return int(text)

    return parse


def parse_project(text: str) -> str:
    """Return the label of a database: `shop`, or `eu--shop`; raise ArgumentTypeError."""
    if parse_label(text) is None:
        raise argparse.ArgumentTypeError("must be a project, or <database>--<project>")
    return text


def add_network_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of commands that send requests to a daemon."""
    group = parser.add_argument_group("connection")
    group.add_argument(
        "--project",
        dest="ns",
        metavar="P",
        type=parse_project,
        help="the project, or <database>--<project>, where the URL names none by ns (default: the "
        f"variable {PROJECT_VARIABLE})",
    )
    group.add_argument(
        "--token-file",
        metavar="FILE",
        type=pathlib.Path,
        help=f"a file with the token to send (default: the variable {TOKEN_VARIABLE})",
    )
    group.add_argument(
        "--cacert",
        metavar="FILE",
        type=pathlib.Path,
        help="certificates in PEM that verify the server (default: those of the system; for this "
        "machine, that of development mode)",
    )


def add_timeout_option(parser: argparse.ArgumentParser) -> None:
    """Add the option that limits how long a request may take."""
    parser.add_argument(
        "--timeout",
        metavar="TIME",
        type=_timeout,
        help="fail if the request is not done after this time: 500ms, 5s, 2min (at most 15min)",
    )


def time_parameters(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the parameter of the interface for `--timeout`."""
    timeout: Timeout | None = arguments.timeout
    return {} if timeout is None else {"timeout": timeout.text}


class Timeout(NamedTuple):
    """A time-out as the interface reads it, and how long a client waits: a little longer."""

    text: str
    client_s: float


def _timeout(text: str) -> Timeout:
    found = _TIMEOUT.fullmatch(text)
    seconds = int(found[1]) * _TIME_UNITS[found[2]] if found else 0.0
    if found is None or not 0 < seconds <= _LONGEST_TIMEOUT_S:
        raise argparse.ArgumentTypeError("must be a number with a unit, as in 500ms, 5s or 2min")
    # The interface has no unit `m`, which --ttl has.
    unit = "min" if found[2] == "m" else found[2]
    return Timeout(found[1] + unit, seconds + _LATER_S)


def read_settings(arguments: argparse.Namespace) -> Settings:
    """Return the daemon's settings; raise `CommandFailed`."""
    file, data = getattr(arguments, "config", None), getattr(arguments, "data", None)
    try:
        return load_settings(
            None if file is None else pathlib.Path(file),
            {} if data is None else {"data": data},
            pathlib.Path.cwd(),
        )
    except ConfigError as error:
        raise CommandFailed(str(error)) from None


def read_stored_settings(arguments: argparse.Namespace, done: str) -> Settings:
    """Return the settings of a daemon that has a data directory; raise `CommandFailed`.

    `done` is what the command does with it, "checked".
    """
    settings = read_settings(arguments)
    if settings.engine == "memory":
        raise CommandFailed(f"The memory engine stores nothing that could be {done}.")
    if settings.is_cluster:
        raise CommandFailed(
            f"The data is in PostgreSQL, and cannot be {done} here: use the tools of PostgreSQL."
        )
    if not settings.data.is_dir():
        raise CommandFailed(
            f"There is no data directory {settings.data}: choose one by --config or --data."
        )
    return settings


def read_token(arguments: argparse.Namespace) -> str | None:
    """Return the token to send, None if none is given; raise `CommandFailed`."""
    file: pathlib.Path | None = arguments.token_file
    if file is not None:
        return read_token_file(file)
    token = os.environ.get(TOKEN_VARIABLE, "")
    return _check_token(token, f"The variable {TOKEN_VARIABLE}") if token else None


def read_token_file(file: pathlib.Path) -> str:
    """Return the token in a file; raise `CommandFailed`."""
    return _check_token(_read_token_file(file), str(file))


def _check_token(token: str, source: str) -> str:
    if not _TOKEN.fullmatch(token):
        raise CommandFailed(f"{source} does not hold a token, which is one word.")
    return token


def _read_token_file(file: pathlib.Path) -> str:
    try:
        with file.open("rb") as opened:
            return opened.read(_MAX_TOKEN_BYTES).decode("latin-1").rstrip("\r\n")
    except OSError as error:
        raise CommandFailed(f"{file} cannot be read ({error.strerror}).") from None


def choose_authorities(
    arguments: argparse.Namespace, url: Url, settings: Settings
) -> tuple[pathlib.Path, ...]:
    """Return files of certificates that verify the server of a URL, none for the system's.

    Development mode's own certificates are trusted for this machine only.
    """
    given: pathlib.Path | None = arguments.cacert
    if given is not None:
        return (given,)
    if not (url.is_secure and is_local(url.host) and settings.development):
        return ()
    own = (LOCAL_CERTIFICATE, AUTHORITY_CERTIFICATE)
    return tuple(file for name in own if (file := settings.data / name).exists())


def is_json(text: str) -> bool:
    """Return whether a text is JSON."""
    try:
        orjson.loads(text)
    except ValueError:
        return False
    return True


def read_value(value: str) -> bytes:
    """Return the bytes of a value on the command line, or of standard input for `-`.

    A byte order mark at the beginning of standard input is left out.
    """
    if value != STANDARD_INPUT:
        return os.fsencode(value)
    try:
        return standard_input().read().removeprefix(BOM_UTF8)
    except OSError as error:
        raise CommandFailed(f"Standard input cannot be read ({error.strerror}).") from None


def standard_input() -> io.BufferedReader:
    """Return standard input as bytes; raise `CommandFailed` if there is none."""
    if sys.stdin is None:
        raise CommandFailed("Standard input is closed.")
    return cast(io.BufferedReader, sys.stdin.buffer)
