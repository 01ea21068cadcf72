"""The database functions of pyrebase4, as published on PyPI."""

from __future__ import annotations

import pathlib

from tests.clients.harness import Domain, check_python, sign_token
from tests.daemon import Daemon

SCRIPT = "play_pyrebase.py"


def test_pyrebase_works_in_development_mode(development: Daemon, tmp_path: pathlib.Path) -> None:
    variables = {
        "PLAY_DOMAIN": "localhost",
        "PLAY_URL": f"http://pyrebase.localhost:{development.port}",
        "PLAY_TOKEN": "",
    }
    check_python(SCRIPT, tmp_path, variables)


def test_pyrebase_works_over_tls_with_a_token(domain: Domain, tmp_path: pathlib.Path) -> None:
    variables = {
        "REQUESTS_CA_BUNDLE": str(domain.ca),
        "PLAY_URL": domain.url("devices"),
        "PLAY_TOKEN": sign_token("devices", admin=True),
    }
    check_python(SCRIPT, tmp_path, variables)
