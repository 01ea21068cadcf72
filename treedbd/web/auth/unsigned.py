"""Unsigned tokens (`"alg": "none"`), with which clients of the Firebase emulator name a user.

They count in emulator mode only, where every client may be any user, and only for the real-time
protocol. Nothing of them is verified; times in them are not looked at.
"""

from __future__ import annotations

from typing import Final

from treedbd.web.auth.identity import Identity, auth_of_provider_token
from treedbd.web.auth.jwt import BadToken, parse

_NONE: Final = "none"
_PROVIDER: Final = "custom"


def unsigned_identity(text: str) -> Identity | None:
    """Return the identity that an unsigned token names, None for a token of any other kind.

    Raises `BadToken` for an unsigned one that names nobody.
    """
    try:
        token = parse(text)
    except BadToken:
        return None  # the verifier knows other tokens too, and says what is wrong
    if token.algorithm.lower() != _NONE or token.signature:
        return None
    return Identity(False, auth_of_provider_token(token.claims, _PROVIDER), source="unsigned")
