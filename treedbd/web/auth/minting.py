"""Tokens that the daemon makes for an admin: that of a user, and one that renews the admin's own.

Nothing is signed or verified here: `verifier` does that. `parse_token_request` parses a request,
`renew_claims` returns the claims of the token that replaces one.

The daemon makes no admin: a request names a user, and its claims hold nothing that a verifier reads
as more than the user's own. An admin's token is only replaced by one with the same claims that ends
later, until `MAX_RENEWED_S` after the first of them was made. The claim `auth_time` has that time
(OpenID Connect Core 1.0, section 2).
"""

from __future__ import annotations

from typing import Final

import attrs

from treedbd.limits import MAX_MADE_TOKEN_S, MAX_RENEWED_S
from treedbd.tree.types import InvalidData
from treedbd.tree.value import parse
from treedbd.web.auth.identity import ADMIN_CLAIM, READ_ONLY_CLAIM, auth_of_service_token
from treedbd.web.auth.jwt import LEEWAY_S, BadToken, Claims, parse_ttl, read_time

DEFAULT_TTL_S: Final = 3600.0
SESSION_CLAIM: Final = "session_s"
"""How long, in seconds, the tokens live that replace an admin's token, which itself ends soon: it
is in a link, which browsers keep."""
_MEMBERS: Final = frozenset({"uid", "claims", "ttl"})
_RESERVED: Final = frozenset(
    {
        *(ADMIN_CLAIM, READ_ONLY_CLAIM, "auth_time"),
        *("uid", "sub", "iss", "iat", "nbf", "exp"),  # the daemon sets them, or a provider does
        *("v", "d"),  # of a legacy token, whose `auth` is `d`
    }
)


class NoSigningSecret(Exception):
    """The project has no secret with which a token could be signed."""

    def __init__(self) -> None:
        super().__init__("The project has no secret to sign tokens with: name one in secret_files.")


@attrs.frozen
class MadeToken:
    """A signed token, whose `exp` is `expires_at`, in seconds since 1970."""

    text: str = attrs.field(repr=False)
    expires_at: int


@attrs.frozen
class TokenRequest:
    """A request for the token of a user; None as `ttl_s` is the default."""

    claims: Claims = attrs.field(repr=False)
    ttl_s: float | None

    def life_s(self, max_life_s: float | None) -> float:
        """Return how long the token is valid; raise `InvalidData` if that is too long.

        `max_life_s` is what the project allows, None for any life.
        """
        allowed = MAX_MADE_TOKEN_S if max_life_s is None else min(max_life_s, MAX_MADE_TOKEN_S)
        if self.ttl_s is None:
            return min(DEFAULT_TTL_S, allowed)
        if self.ttl_s > allowed:
            raise InvalidData(f"A token that is made here lives for at most {allowed:.0f} seconds.")
        return self.ttl_s


def parse_token_request(body: bytes) -> TokenRequest | None:
    """Return the token that a body requests, None for the renewal of the sender's own.

    Raises `InvalidData`.
    """
    request = parse(body)
    if isinstance(request, dict) and request.get("renew") is True and len(request) == 1:
        return None
    if not isinstance(request, dict) or not request.keys() <= _MEMBERS:
        raise InvalidData("A token is requested by an object with uid, claims and ttl, or renew.")
    uid, claims, ttl = request.get("uid"), request.get("claims", {}), request.get("ttl")
    if not isinstance(uid, str):
        raise InvalidData("uid must be a string: the user whom the token identifies.")
    if not isinstance(claims, dict):
        raise InvalidData("claims must be an object.")
    refused = sorted(_RESERVED & claims.keys())
    if refused:
        raise InvalidData(f"claims must not have {refused[0]}.")
    ttl_s = parse_ttl(ttl) if isinstance(ttl, str) else None
    if "ttl" in request and ttl_s is None:
        raise InvalidData("ttl must be a number with a unit, as in 30s, 5m, 1h or 7d.")
    claims = {**claims, "uid": uid}
    try:
        auth_of_service_token(claims)
    except BadToken as error:
        raise InvalidData(str(error)) from None
    return TokenRequest(claims, ttl_s)


def renew_claims(claims: Claims, now: float, max_life_s: float | None) -> tuple[Claims, int]:
    """Return the claims and the `exp` of the token that replaces an admin's valid one at `now`.

    It lives as long as that one did, or as its claim `session_s` says, but not beyond
    `MAX_RENEWED_S` after the first was made. Raises `InvalidData` if it would not live longer than
    the one it replaces.
    """
    issued, expires, begun = _read_times(claims)
    if begun > now + LEEWAY_S:
        raise InvalidData("A token with an auth_time to come cannot be renewed.")
    if max_life_s is not None:
        expires = min(expires, issued + max_life_s)
    life_s = _session_s(claims) or expires - issued
    if max_life_s is not None:
        life_s = min(life_s, max_life_s)
    latest = begun + MAX_RENEWED_S
    if latest <= expires:
        hours = MAX_RENEWED_S // 3600
        raise InvalidData(
            "This token cannot be renewed: the last of them ends "
            f"{hours} hours after the first was made."
        )
    # The clock that issued the token may be ahead: the new token does not end before the old one.
    end = min(max(now + life_s, expires), latest)
    return {**claims, "iat": int(now), "auth_time": int(begun)}, int(end)


def _session_s(claims: Claims) -> float | None:
    """Return how long each token lives that replaces this one; None for as long as this one."""
    session_s = claims.get(SESSION_CLAIM)
    if isinstance(session_s, bool) or not isinstance(session_s, int | float):
        return None
    return float(session_s) if session_s > 0 else None


def _read_times(claims: Claims) -> tuple[float, float, float]:
    """Return when a token was made, when it ends, and when the first was; raise `InvalidData`."""
    try:
        issued, expires = read_time(claims, "iat"), read_time(claims, "exp")
        begun = read_time(claims, "auth_time")
    except BadToken as error:
        raise InvalidData(str(error)) from None
    if issued is None or expires is None:
        raise InvalidData("A token without iat and exp cannot be renewed.")
    return issued, expires, issued if begun is None else begun
