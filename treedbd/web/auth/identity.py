"""Identities: what the claims of a token say about a caller, and the override of `auth`.

Nothing is verified here; `verifier` does that. Rules are not evaluated here either.
"""

from __future__ import annotations

from typing import Final

import attrs

from treedbd.limits import MAX_CLAIM_LEVELS
from treedbd.tree import printing
from treedbd.tree.errors import InvalidData, InvalidQuery
from treedbd.tree.types import Json
from treedbd.web.auth.jwt import BadToken, Claims, exceeds_levels

CUSTOM: Final = "custom"


class AuthRequired(Exception):
    """A request without a token for something that only an admin may do.

    Attributes:
        what: what was requested, as the subject of a sentence.

    """

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} requires an admin's token.")
        self.what = what


class NotAdmin(Exception):
    """A request with another token than an admin's for something that only an admin may do.

    Attributes:
        what: what was requested, as the subject of a sentence.

    """

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} requires an admin's token; this one is not.")
        self.what = what


@attrs.frozen
class Identity:
    """Who sent a request.

    `auth` is the variable of that name in the rules, None for an anonymous caller. `expires_at` is
    in seconds since 1970, leeway included, None for never. `source` is the fingerprint of the
    secret or provider that verified the token; `ANONYMOUS` and `OWNER` have sources of their own.
    """

    is_admin: bool
    auth: dict[str, Json] | None = attrs.field(repr=False)
    expires_at: float | None = None
    source: str = attrs.field(default="", repr=False)


ANONYMOUS: Final = Identity(False, None, source="anonymous")
OWNER: Final = Identity(True, None, source="emulator")


@attrs.frozen
class AuthOverride:
    """The `auth` that replaces an admin's own while the rules are evaluated."""

    auth: dict[str, Json] | None = attrs.field(repr=False)


def parse_override(text: str | None) -> AuthOverride | None:
    """Parse the parameter `auth_variable_override`; None if absent. Raises `InvalidQuery`."""
    if text is None:
        return None
    try:
        auth = printing.parse(text.encode())
    except InvalidData:
        auth = ""
    if not isinstance(auth, dict | None) or exceeds_levels(auth, MAX_CLAIM_LEVELS):
        raise InvalidQuery("auth_variable_override must be a JSON object or null.")
    return AuthOverride(auth)


def override_auth(identity: Identity, override: AuthOverride | None) -> Identity:
    """Return the identity for which rules are evaluated; raise `AuthRequired` or `NotAdmin`.

    An admin who overrides `auth` is not an admin for that request.
    """
    if override is None:
        return identity
    require_admin(identity, "auth_variable_override")
    return attrs.evolve(identity, is_admin=False, auth=override.auth)


def require_admin(identity: Identity, what: str) -> None:
    """Raise `AuthRequired` for a caller without a token, `NotAdmin` for one who is not an admin.

    `what` is what was requested, as the subject of a sentence.
    """
    if identity.is_admin:
        return
    if identity.source == ANONYMOUS.source:
        raise AuthRequired(what)
    raise NotAdmin(what)


def auth_of_service_token(claims: Claims) -> dict[str, Json]:
    """Return the `auth` of a token that the project signed; of a legacy one (`v` is 0), its `d`.

    Raises `BadToken`.
    """
    version = claims.get("v")
    if type(version) is not int or version != 0 or "d" not in claims:
        return auth_of_user_token(claims)
    auth = claims["d"]
    if not isinstance(auth, dict):
        raise BadToken("The token is malformed: its d must be a JSON object.")
    return auth


def auth_of_user_token(claims: Claims) -> dict[str, Json]:
    """Return the `auth` that the claims of a token describe; raise `BadToken`."""
    name = "uid" if claims.get("uid") is not None else "sub"
    uid = claims.get(name)
    if not isinstance(uid, str | None):
        raise BadToken(f"The token is malformed: its {name} must be a string.")
    return {"uid": uid, "provider": _sign_in_provider(claims), "token": claims}


def _sign_in_provider(claims: Claims) -> str:
    """Return how the user signed in, by the claim `provider` or as Firebase's tokens have it."""
    firebase = claims.get("firebase")
    for provider in (
        claims.get("provider"),
        firebase.get("sign_in_provider") if isinstance(firebase, dict) else None,
    ):
        if isinstance(provider, str):
            return provider
    return CUSTOM
