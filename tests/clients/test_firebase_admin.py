"""The admin SDK for Python, as published on PyPI."""

from __future__ import annotations

import pathlib
from urllib.parse import urlsplit

from tests.clients.harness import DOMAIN, Domain, check_python, secret_of
from tests.daemon import Daemon

SCRIPT = "play_firebase_admin.py"


def test_firebase_admin_works_with_an_emulator_host(
    development: Daemon, tmp_path: pathlib.Path
) -> None:
    variables = {
        "FIREBASE_DATABASE_EMULATOR_HOST": urlsplit(development.http).netloc,
        "PLAY_URL": f"https://admin.{DOMAIN}",
        "PLAY_EU_URL": f"https://eu--admin.{DOMAIN}",
        "PLAY_GUARDED_URL": f"{development.http}?ns=admin-guarded",
    }
    check_python(SCRIPT, tmp_path, variables)


def test_firebase_admin_works_over_tls_with_signed_tokens(
    domain: Domain, tmp_path: pathlib.Path
) -> None:
    variables = {
        "REQUESTS_CA_BUNDLE": str(domain.ca),
        "PLAY_SECRET": secret_of("shop"),
        "PLAY_GUARDED_SECRET": secret_of("guarded"),
        "PLAY_URL": domain.url("shop"),
        "PLAY_EU_URL": domain.url("eu--shop"),
        "PLAY_GUARDED_URL": domain.url("guarded"),
    }
    check_python(SCRIPT, tmp_path, variables)
