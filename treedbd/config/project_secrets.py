"""The secrets of projects: those that files hold, and that of development mode.

This module loads no Twisted: `treedb token` signs with a secret where there is no daemon.
"""

from __future__ import annotations

import hashlib
import hmac
import pathlib
import secrets
from typing import Final

from treedbd.config.values import SettingLocation
from treedbd.errors import OperatorError
from treedbd.files import create_directory, write_atomically
from treedbd.web.auth.jwt import MIN_SECRET_BYTES, BadSecret, read_secret

DEVELOPMENT_SECRET: Final = "development.secret"  # noqa: S105 - the name of a file
_SECRET_BYTES: Final = 32


class BadCredentials(OperatorError):
    """A file of secrets, keys or rules that cannot be used."""


def read_project_secret(file: pathlib.Path, location: SettingLocation) -> bytes:
    """Return a secret of the project with its keys at `location`; raise `BadCredentials`."""
    try:
        return read_secret(file)
    except BadSecret as error:
        raise BadCredentials(
            location.at("secret_files"),
            f"names {file}, which {error.problem}",
            f"use a file with {MIN_SECRET_BYTES} random bytes or more that the user that runs "
            "treedb can read",
        ) from None


def ensure_development_secret(data: pathlib.Path) -> bytes:
    """Return the secret of development mode, made on its first use; raise `BadCredentials`."""
    file = data / DEVELOPMENT_SECRET
    try:
        if not file.exists():
            create_directory(data)
            write_atomically(file, secrets.token_urlsafe(_SECRET_BYTES).encode())
    except OSError as error:
        raise BadCredentials(
            file,
            f"cannot be created ({error.strerror})",
            f"let the user that runs treedb write to {data}",
        ) from None
    try:
        return read_secret(file)
    except BadSecret as error:
        raise BadCredentials(file, error.problem, "remove it: the next use makes another") from None


def derive_project_secret(secret: bytes, project: str) -> bytes:
    """Return the secret that signs one project's tokens in development mode, and no other's."""
    return hmac.new(secret, project.encode(), hashlib.sha256).hexdigest().encode()
