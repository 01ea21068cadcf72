"""`treedb token`: makes a token for a project, signed with the first of its secrets.

Standard output is the token and nothing else. No other command prints a token.
"""

from __future__ import annotations

import argparse
import os
import time
from argparse import Namespace
from typing import Final

import orjson

from treedbd.cli.exit import DONE, CommandFailed, Status, print_line, warn
from treedbd.cli.options import (
    PROJECT_VARIABLE,
    add_flag,
    add_settings_options,
    read_settings,
    read_value,
)
from treedbd.config.settings import Settings
from treedbd.names import parse_label
from treedbd.tree.types import Json
from treedbd.web.auth.identity import ADMIN_CLAIM, READ_ONLY_CLAIM, auth_of_service_token
from treedbd.web.auth.jwt import (
    DEVELOPMENT_SECRET,
    BadCredentials,
    BadSecret,
    BadToken,
    derive_project_secret,
    ensure_development_secret,
    mint,
    read_project_secret,
)
from treedbd.web.auth.jwt import parse_ttl as read_ttl

NEVER: Final = "never"
_OWN_TTL_S: Final = 3600.0
DEFAULT_TTL: Final = "1h"
_ADMIN_UID: Final = "admin"
_MAX_TTL_S: Final = 100 * 365 * 86_400


class ReservedClaim(Exception):
    """Claims that set one to any value which an option sets; they often come from other programs.

    Attributes:
        name: that of the claim.

    """

    def __init__(self, name: str) -> None:
        super().__init__(f"The claims must not have {name}.")
        self.name = name


def add_options(parser: argparse.ArgumentParser, _: str) -> None:
    """Add the options of the command to its parser."""
    named = os.environ.get(PROJECT_VARIABLE, "")
    label = parse_label(named)
    parser.add_argument(
        "--project",
        metavar="P",
        required=label is None,
        default=None if label is None else label.project,
        help=f"the project it is valid for (default: that of the variable {PROJECT_VARIABLE})",
    )
    parser.add_argument(
        "--uid", metavar="U", help=f"the user it identifies (with --admin: {_ADMIN_UID})"
    )
    parser.add_argument(
        "--claims", metavar="JSON", help="more claims, an object, or - for standard input"
    )
    parser.add_argument(
        "--ttl",
        metavar="TIME",
        type=parse_ttl,
        help=f"when it expires: after 30s, 5m, 1h, 7d, or {NEVER} (default: {DEFAULT_TTL})",
    )
    add_flag(parser, "--admin", "an admin's token, exempt from rules")
    add_flag(parser, "--read-only", "with --admin: it may read everything, and write nothing")
    add_settings_options(parser)
    parser.set_defaults(run=lambda arguments: _token(arguments, parser))


def parse_ttl(text: str) -> float:
    """Return a time to live in seconds, infinite for `never`; raise ArgumentTypeError."""
    if text == NEVER:
        return float("inf")
    seconds = read_ttl(text)
    if seconds is None or seconds > _MAX_TTL_S:
        raise argparse.ArgumentTypeError(
            f"must be a number with a unit, as in 30s, 5m, 1h or 7d, or {NEVER}"
        )
    return seconds


def merge_claims(
    text: bytes | None, uid: str, *, is_admin: bool, is_read_only: bool = False
) -> dict[str, Json]:
    """Return the claims of a token; options win over the JSON text.

    Raises ValueError or TypeError for a text that is not an object, `ReservedClaim` for claims that
    could make an admin without the option, or that say what else an admin may.
    """
    claims = {} if text is None else orjson.loads(text)
    if not isinstance(claims, dict):
        raise TypeError
    if ADMIN_CLAIM in claims:
        raise ReservedClaim(ADMIN_CLAIM)
    if is_admin and READ_ONLY_CLAIM in claims:  # of a user it is a claim as any other
        raise ReservedClaim(READ_ONLY_CLAIM)
    kind = {ADMIN_CLAIM: is_admin, READ_ONLY_CLAIM: is_admin and is_read_only}
    return {**claims, "uid": uid, **{name: True for name, is_set in kind.items() if is_set}}


def _token(arguments: Namespace, parser: argparse.ArgumentParser) -> Status:
    if arguments.uid is None:
        if not arguments.admin:
            parser.error("the following arguments are required: --uid")
        arguments.uid = _ADMIN_UID
    if arguments.read_only and not arguments.admin:
        parser.error("argument --read-only: only with --admin")
    claims = _read_claims(arguments, parser)
    ttl_s: float | None = arguments.ttl
    if "exp" in claims and ttl_s is not None:
        parser.error("argument --ttl: the claims already have exp")
    if ttl_s is None and "exp" not in claims:
        ttl_s = parse_ttl(DEFAULT_TTL)
    settings = read_settings(arguments)
    secret = _first_secret(settings, arguments.project)
    _check_issuer(settings, arguments.project, claims)
    try:
        auth_of_service_token(claims)
        token = mint(
            secret, claims, now=time.time(), ttl_s=ttl_s if ttl_s != float("inf") else None
        )
    except (BadToken, BadSecret) as error:
        raise CommandFailed(str(error)) from None
    print_line(token)
    return DONE


def _read_claims(arguments: Namespace, parser: argparse.ArgumentParser) -> dict[str, Json]:
    """Return the claims of the token that a command line describes; end if they are not valid."""
    text = None if arguments.claims is None else read_value(arguments.claims)
    try:
        return merge_claims(
            text, arguments.uid, is_admin=arguments.admin, is_read_only=arguments.read_only
        )
    except ReservedClaim as error:
        option = "--admin makes an admin's token"
        if error.name != ADMIN_CLAIM:
            option = "--read-only makes a token that may only read"
        parser.error(f"argument --claims: must not have {error.name}: {option}")
    except (ValueError, TypeError):
        parser.error("argument --claims: must be a JSON object")


def mint_admin(settings: Settings, project: str) -> str:
    """Return an admin's token of a project for a command's own use; raise `CommandFailed`."""
    claims = merge_claims(None, "treedb", is_admin=True)
    try:
        return mint(_first_secret(settings, project), claims, now=time.time(), ttl_s=_OWN_TTL_S)
    except BadSecret as error:
        raise CommandFailed(str(error)) from None


def _check_issuer(settings: Settings, name: str, claims: dict[str, Json]) -> None:
    """Raise `CommandFailed` for the `iss` of a provider, whose keys alone can sign for it."""
    project = settings.projects.get(name)
    providers = () if project is None else project.providers
    if claims.get("iss") in [each.issuer for each in providers]:
        raise CommandFailed(
            f"The iss is that of a provider of the project {name}: only its keys can sign for it."
        )


def _first_secret(settings: Settings, name: str) -> bytes:
    """Return the secret that signs the tokens of a project; raise `CommandFailed`."""
    try:
        project = settings.projects.get(name)
        if project is not None and project.secret_files:
            location = settings.location_of(name).at("secret_files")
            return read_project_secret(project.secret_files[0], location)
        if settings.development:
            return derive_project_secret(_development_secret(settings), name)
    except BadCredentials as error:
        raise CommandFailed(str(error)) from None
    if project is None:
        known = ", ".join(settings.projects) or "none"
        raise CommandFailed(f"There is no project {name}; the configured projects: {known}.")
    raise CommandFailed(f"The project {name} has no secret: name its file in secret_files.")


def _development_secret(settings: Settings) -> bytes:
    is_there = (settings.data / DEVELOPMENT_SECRET).exists()
    secret = ensure_development_secret(settings.data)
    if not is_there:
        warn(
            f"No daemon has used {settings.data} yet, so a new secret was created in it; "
            "--config and --data choose another configuration."
        )
    return secret
