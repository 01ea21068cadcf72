"""What the shell says of a token."""

from __future__ import annotations

import base64
import json
from typing import Any

import jwt
import pytest

from treedbd.cli.shell.shell import (
    describe_token,
)

SECRET = "s" * 32


@pytest.mark.parametrize(
    ("claims", "described"),
    [
        ({"uid": "ada"}, 'uid "ada" (as the token says)'),
        ({"sub": "ada", "exp": 0}, 'uid "ada", until 1970-01-01 00:00:00 UTC (as the token says)'),
        ({"admin": True, "uid": "me"}, 'admin, uid "me" (as the token says)'),
        ({"v": 0, "d": {"uid": "old"}}, 'uid "old" (as the token says)'),
        ({}, "without a name (as the token says)"),
    ],
)
def test_a_token_is_described_by_its_claims(claims: dict[str, Any], described: str) -> None:
    token = jwt.encode(claims, SECRET, "HS256")
    assert describe_token(token) == described


@pytest.mark.parametrize("token", ["x", "a.b.c", "a.WzFd.c", "....", "a.é.c", "{}"])
def test_a_token_that_cannot_be_read_is_not_shown(token: str) -> None:
    assert describe_token(token) == "a token that only the daemon can read"


@pytest.mark.parametrize("until", ["x", 1e99, None, [], -1e99])
def test_a_strange_time_is_not_shown(until: Any) -> None:
    payload = base64.urlsafe_b64encode(json.dumps({"uid": "a", "exp": until}).encode())
    assert describe_token(f"x.{payload.decode()}.x") == 'uid "a" (as the token says)'


def test_without_a_token_one_is_anonymous() -> None:
    assert describe_token(None) == "anonymous (no token)"
    assert describe_token("owner") == "admin, by the token of development mode"
