"""What a token says of its bearer: only claims are shown, never the token."""

from __future__ import annotations

import base64
import binascii
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from treedbd.cli.shell.printing import shorten

OWNER: Final = "owner"
_MAX_UID_CHARACTERS: Final = 256


def describe_token(token: str | None) -> str:
    """Return whom a token names; it is not verified here, the daemon does that."""
    if token is None:
        return "anonymous (no token)"
    if token == OWNER:
        return "admin, by the token of development mode"
    claims = _read_claims(token)
    if claims is None:
        return "a token that only the daemon can read"
    legacy = claims.get("d")
    known = legacy if isinstance(legacy, dict) else claims
    uid = known.get("uid", claims.get("sub"))
    parts = ["admin"] if claims.get("admin") is True else []
    if isinstance(uid, str):
        parts.append(f"uid {orjson.dumps(shorten(uid, _MAX_UID_CHARACTERS)).decode()}")
    until = _format_time(claims.get("exp"))
    if until:
        parts.append(f"until {until}")
    return f"{', '.join(parts) or 'nobody by name'} (as the token says)"


def _read_claims(token: str) -> dict[str, Any] | None:
    payload = token.split(".")[1:2]
    try:
        content = base64.urlsafe_b64decode("".join(payload) + "==")
        claims = orjson.loads(content)
    except (binascii.Error, ValueError):
        return None
    return claims if isinstance(claims, dict) else None


def _format_time(seconds: Any) -> str:
    try:
        return datetime.fromtimestamp(float(seconds), UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (TypeError, ValueError, OverflowError, OSError):
        return ""
