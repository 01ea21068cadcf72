"""`treedb token`: makes a token for a project, signed with the first of its secrets.

The token alone goes to standard output; it is the only thing of its kind that any command prints.
"""

from __future__ import annotations

import argparse
import re
import time
from argparse import Namespace
from typing import Any, Final

import orjson

from treedbd.cli.options import read_settings, read_text, settings_options
from treedbd.cli.outcome import DONE, CommandFailed, Status, print_line, warn
from treedbd.config import Settings
from treedbd.tree.value import Json
from treedbd.trust import (
    DEVELOPMENT_SECRET,
    Untrustworthy,
    development_secret_of,
    keep_development_secret,
    read_project_secret,
)
from treedbd.web.identity.identity import service_auth
from treedbd.web.identity.tokens import BadSecret, BadToken, mint

NEVER: Final = "never"
DEFAULT_TTL: Final = "1h"
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_MAX_TTL_S: Final = 100 * 365 * 86_400
_TTL = re.compile(r"([0-9]{1,10})([smhd])", re.ASCII)


def add_to(commands: Any) -> None:
    """Add the command to a parser."""
    token = commands.add_parser(
        "token", help="make a token for a project", parents=[settings_options()]
    )
    token.add_argument("--project", metavar="P", required=True, help="the project it is good for")
    token.add_argument("--uid", metavar="U", required=True, help="whom it makes of its bearer")
    token.add_argument("--claims", metavar="JSON", help="more claims, an object, or - for stdin")
    token.add_argument(
        "--ttl",
        metavar="TIME",
        type=parse_ttl,
        help=f"how long it lives: 30s, 5m, 1h, 7d or {NEVER} (default: {DEFAULT_TTL})",
    )
    token.add_argument("--admin", action="store_true", help="let its bearer skip all rules")
    token.set_defaults(run=lambda arguments: _token(arguments, token))


def parse_ttl(text: str) -> float:
    """Return a time to live in seconds, infinite for `never`; raise ArgumentTypeError."""
    if text == NEVER:
        return float("inf")
    found = _TTL.fullmatch(text)
    seconds = int(found[1]) * _UNITS[found[2]] if found else 0
    if not 0 < seconds <= _MAX_TTL_S:
        raise argparse.ArgumentTypeError(
            f"a time is a number with a unit, as in 30s, 5m, 1h or 7d, or {NEVER}"
        )
    return float(seconds)


def merge_claims(text: bytes | None, uid: str, *, is_admin: bool) -> dict[str, Json]:
    """Return the claims of a token; what has an option of its own wins over the JSON.

    Raises ValueError for a text that is no object.
    """
    claims = {} if text is None else orjson.loads(text)
    if not isinstance(claims, dict):
        raise TypeError
    return {**claims, "uid": uid, **({"admin": True} if is_admin else {})}


def _token(arguments: Namespace, parser: argparse.ArgumentParser) -> Status:
    text = None if arguments.claims is None else read_text(arguments.claims)
    try:
        claims = merge_claims(text, arguments.uid, is_admin=arguments.admin)
    except (ValueError, TypeError):
        parser.error("argument --claims: the claims are a JSON object")
    ttl_s: float | None = arguments.ttl
    if "exp" in claims and ttl_s is not None:
        parser.error("argument --ttl: the claims say already when the token ends, by exp")
    if ttl_s is None and "exp" not in claims:
        ttl_s = parse_ttl(DEFAULT_TTL)
    settings = read_settings(arguments)
    secret = _first_secret(settings, arguments.project)
    _refuse_issuer(settings, arguments.project, claims)
    try:
        service_auth(claims)
        token = mint(
            secret, claims, now=time.time(), ttl_s=ttl_s if ttl_s != float("inf") else None
        )
    except (BadToken, BadSecret) as error:
        raise CommandFailed(str(error)) from None
    print_line(token)
    return DONE


def _refuse_issuer(settings: Settings, name: str, claims: dict[str, Json]) -> None:
    """Refuse an `iss` by which the token would have to be a provider's; raise `CommandFailed`."""
    project = settings.projects.get(name)
    providers = () if project is None else project.providers
    if claims.get("iss") in [each.issuer for each in providers]:
        raise CommandFailed(
            f"The iss names a provider of the project {name}, whose keys alone vouch for it."
        )


def _first_secret(settings: Settings, name: str) -> bytes:
    """Return what signs the tokens of a project; raise `CommandFailed`."""
    try:
        project = settings.projects.get(name)
        if project is not None and project.secret_files:
            return read_project_secret(project.secret_files[0], settings.place_of(name))
        if settings.development:
            return development_secret_of(_development_secret(settings), name)
    except Untrustworthy as error:
        raise CommandFailed(str(error)) from None
    if project is None:
        known = ", ".join(settings.projects) or "none"
        raise CommandFailed(f"There is no project {name}; those that are configured: {known}.")
    raise CommandFailed(f"The project {name} has no secret: name a file of it in secret_files.")


def _development_secret(settings: Settings) -> bytes:
    is_there = (settings.data / DEVELOPMENT_SECRET).exists()
    secret = keep_development_secret(settings.data)
    if not is_there:
        warn(
            f"No daemon has run with {settings.data} yet, and a secret was made in it; "
            "--config and --data name another place."
        )
    return secret
